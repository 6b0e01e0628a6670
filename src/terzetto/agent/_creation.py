"""The creation transaction: one path for fresh and resumed agents, with its rollback.

Order (C19): acquire the session and its write path, build agent and scope around it,
store the constructor's history, announce the session, `setup` and its commit, enter
the registry, `agent_created` listeners, release held input. Any failure before the
end unwinds what was built, in reverse, before the error arrives.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import trio
from attrs import define, evolve, field

from ..session import CRASH, AgentView, Session, closers, replay
from ..stores import Store, WriteHandle
from ..tools import Tool
from ..vocabulary import (
    AgentDisposed,
    EndSeed,
    Event,
    ForkError,
    MessageId,
    ModelSelection,
    SessionHeader,
    SessionId,
    UsageError,
    freeze_object,
)
from ._agent import Agent
from ._bound import Bound
from ._driver import Driven
from ._hooks import SessionStarted, SessionStartSource
from ._initiator import being_created
from ._lifetime import AgentHandle, Lifetime
from ._model import AgentModel
from ._options import Options, Setup, absolute, checked_options
from ._registry import AgentRegistry
from ._request import RequestBuilder
from ._run_state import RunState
from ._saving import NoStore, Saving, WritePath
from ._scope import AgentScope
from ._services import Services
from ._step import StepRunner
from ._waiting import Acquisition, TrioBell


@define(eq=False)
class Agents(AgentRegistry):
    """The live agents of an engine, and how to make more."""

    services: Services = field(kw_only=True)
    scope: AgentScope = field(kw_only=True)
    store: Store | None = field(kw_only=True)
    shutdown_timeout: float = field(kw_only=True)
    now_ms: Callable[[], int] = field(kw_only=True)
    new_id: Callable[[], MessageId] = field(kw_only=True)
    make_bell: Callable[[], TrioBell] = field(kw_only=True)
    report_unsaved: Callable[[SessionId, str], None] = field(kw_only=True)
    nursery: trio.Nursery | None = field(default=None, kw_only=True)
    _acquiring: dict[SessionId, Acquisition[tuple[Session, WriteHandle | None]]] = field(
        factory=dict, init=False
    )
    _creations: dict[trio.CancelScope, trio.Event] = field(factory=dict, init=False)

    async def create(
        self,
        *,
        provider: str | None = None,
        model: str | None = None,
        effort: str | None = None,
        system: str | None = None,
        tools: Iterable[Tool] = (),
        max_tokens: int | None = None,
        cwd: str | None = None,
        session_id: str | None = None,
        seed: Sequence[Event] = (),
        parent: Agent | None = None,
        meta: Mapping[str, object] | None = None,
        setup: Setup | None = None,
    ) -> AgentHandle:
        """Make an agent on a fresh session; it runs when this returns.

        Args:
            provider: With *model*, the route; without both, select one before the first step.
            system: The agent's own section of the system prompt.
            tools: Visible to this agent alone.
            max_tokens: Output cap of every request.
            cwd: Absolute workspace directory, stored with the session.
            session_id: The identity; random when absent.
            seed: Events of another session to start from; its pending input stays behind.
            parent: The agent that owns this one; it ends with its parent.
            meta: JSON stored with the session.
            setup: Composes the agent before anyone sees it.

        Raises `AgentExists`, `InvalidValue`, `StoreError`, and whatever *setup* and
        ``agent_created`` listeners raise, after everything built is gone again.
        Cancellation: the same rollback, then `trio.Cancelled`.
        """
        agent_id = SessionId(session_id or f"session-{secrets.token_hex(8)}")
        options = checked_options(provider, model, effort, system, tools, max_tokens, parent, setup)
        header = SessionHeader(
            id=agent_id,
            created_ms=self.now_ms(),
            cwd=absolute(cwd),
            seed_length=len(seed),
            meta=freeze_object(meta or {}),
        )

        async def acquire() -> tuple[Session, WriteHandle | None]:
            session = self._session(header)
            replay(session, seed)
            if session.place.open_turn is not None:
                raise ForkError("OPEN_TURN", "the seed ends inside a turn; cut it at a turn's end")
            handle = await self.store.create(header) if self.store is not None else None
            _attach(session, handle)
            for event in seed:
                session.sink(event)
            if seed:
                session.append(EndSeed(inherited=True))
            return session, handle

        return await self._make(agent_id, options, acquire, "startup")

    async def resume(
        self,
        session_id: str,
        *,
        provider: str | None = None,
        model: str | None = None,
        effort: str | None = None,
        system: str | None = None,
        tools: Iterable[Tool] = (),
        max_tokens: int | None = None,
        parent: Agent | None = None,
        setup: Setup | None = None,
    ) -> AgentHandle:
        """Rebuild an agent on a stored session; it starts nothing by itself.

        A log that crashed inside a turn is closed first, as an ordinary batch. The route
        is the one the session recorded; *provider* and *model* serve a session without
        any. Pending input is kept. Raises `SessionNotFound`, `SessionLocked`,
        `CorruptLog`, and everything `create` raises.
        """
        agent_id = SessionId(session_id)
        options = checked_options(provider, model, effort, system, tools, max_tokens, parent, setup)
        store = self.store
        if store is None:
            raise UsageError("resuming needs a store; give one to open_engine(store=...)")

        async def acquire() -> tuple[Session, WriteHandle | None]:
            handle = await store.open(agent_id)
            try:
                events = await handle.read()
                session = self._session(handle.header)
                replay(session, events)
                _attach(session, handle)
                _repair(session)
            except BaseException:
                await handle.close()
                raise
            return session, handle

        return await self._make(agent_id, options, acquire, "resume")

    # --- the transaction ----------------------------------------------------------------

    async def _make(
        self,
        agent_id: SessionId,
        options: Options,
        acquire: Callable[[], Awaitable[tuple[Session, WriteHandle | None]]],
        source: SessionStartSource,
    ) -> AgentHandle:
        await trio.lowlevel.checkpoint_if_cancelled()
        self._owner(options.parent)
        self.driver()
        self.reserve(agent_id)
        handle: AgentHandle | None = None
        ended = trio.Event()
        with trio.CancelScope() as scope:
            self._creations[scope] = ended
            try:
                handle = await self._transaction(agent_id, options, acquire, source)
            finally:
                del self._creations[scope]
                ended.set()
        if handle is None:
            raise UsageError(f"the engine was left while agent {agent_id!r} was being created")
        return handle

    async def cancel_creations(self) -> None:
        """Roll back what is being created; for the engine's end."""
        with trio.CancelScope(shield=True):
            for scope, ended in list(self._creations.items()):
                scope.cancel(reason="the engine was left")
                await ended.wait()
        for task in self._acquiring.values():
            task.limit()

    async def _transaction(
        self,
        agent_id: SessionId,
        options: Options,
        acquire: Callable[[], Awaitable[tuple[Session, WriteHandle | None]]],
        source: SessionStartSource,
    ) -> AgentHandle:
        life: Lifetime | None = None
        acquired = False
        try:
            session, handle = await self._acquired(agent_id, acquire)
            acquired = True
            path: WritePath = handle if handle is not None else NoStore()
            life = self._build(session, path, options)
            life.agent.scope.compose(options.system, options.tools)
            await trio.lowlevel.checkpoint_if_cancelled()
            self._owner(options.parent)
            await self._publish(life, options, source)
            # Whoever owns it may have gone meanwhile, and takes it along.
            nursery = self._owner(options.parent)
            await nursery.start(life.run, name=f"terzetto agent {agent_id}")
            self._owner(options.parent)
            life.agent._state.release()
        except BaseException:
            if life is not None:
                life.bound.extend()
                await life.tear_down()
            elif acquired or agent_id not in self._acquiring:
                self.release(agent_id)
            raise
        return AgentHandle(life.agent, life)

    async def _acquired(
        self,
        agent_id: SessionId,
        acquire: Callable[[], Awaitable[tuple[Session, WriteHandle | None]]],
    ) -> tuple[Session, WriteHandle | None]:
        """The session and its handle. A store that is still creating does not lose the
        handle it will give: it is closed when it comes (C25)."""

        async def discard(late: tuple[Session, WriteHandle | None]) -> None:
            if late[1] is not None:
                await late[1].close()

        def finished() -> None:
            del self._acquiring[agent_id]
            self.release(agent_id)

        assert self.nursery is not None
        task = Acquisition(acquire, discard, finished, self.shutdown_timeout)
        self._acquiring[agent_id] = task
        self.nursery.start_soon(task.run, name=f"terzetto opens {agent_id}")
        try:
            return await task.wait()
        finally:
            if not task.abandoned:
                del self._acquiring[agent_id]

    def _owner(self, parent: Agent | None) -> trio.Nursery:
        if parent is None:
            if self.nursery is None:
                raise UsageError("the engine is closed")
            return self.nursery
        if self.get(parent.id) is not parent and not parent.disposed:
            raise UsageError(f"parent {parent.id!r} belongs to another engine")
        if parent._nursery is None or parent._state.closing:
            raise AgentDisposed(f"parent {parent.id!r} is not running; it can own no agent")
        return parent._nursery

    def _session(self, header: SessionHeader) -> Session:
        return Session(header, self.now_ms, self.new_id, self.make_bell())

    def _build(self, session: Session, path: WritePath, options: Options) -> Lifetime:
        """The agent and its scope around an acquired session. No await."""
        scope = AgentScope(f"agent {session.id}", self.scope)
        state = RunState(session, scope.hooks)
        model = AgentModel(session, _initial(session, options.selection))
        parent = options.parent
        bound = parent._bound if parent is not None else Bound(self.shutdown_timeout)
        saving, runtime = Saving(session, path), self.services.runtime
        agent = Agent(session, scope, model, parent, state, bound, saving, runtime)
        state.view = agent
        requests = RequestBuilder(agent, session, scope, runtime, options.max_tokens)
        steps = StepRunner(agent, session, state, scope, self.services, requests, saving.flush)
        driven = Driven(
            session, state, scope, model, requests, steps, saving.flush, parent is not None
        )
        return Lifetime(
            agent,
            driven,
            self.driver(),
            path,
            self,
            self.scope,
            bound,
            self.report_unsaved,
        )

    async def _publish(self, life: Lifetime, options: Options, source: SessionStartSource) -> None:
        agent, hooks = life.agent, self.scope.hooks
        with being_created(agent):
            life.session_announced = True
            hooks.session_created.notify(agent.session)
            if options.setup is not None:
                composed = options.setup(agent)
                commit = await composed if inspect.isawaitable(composed) else composed
                if commit is not None:
                    commit()
            self.enter(agent)
            life.agent_announced = True
            view: AgentView = agent
            await agent.scope.hooks.agent_created.run(view)
            agent.scope.hooks.session_started.notify(SessionStarted(agent, source))


def _attach(session: Session, handle: WriteHandle | None) -> None:
    """From here on every append reaches the store's buffer."""
    if handle is None:
        session.durable = lambda: session.place.next_seq - 1
    else:
        session.sink = handle.append
        session.durable = lambda: handle.durable_seq


def _repair(session: Session) -> None:
    """Close a crashed log and mark where its history ends (C145)."""
    closing = evolve(CRASH, uncertain=session.header.durability == "lazy")
    time_ms = session.place.last_time_ms
    for draft in closers(session.place, session.pending, session.folds, closing):
        session.append_draft(draft, time_ms)
    if not session.place.seeded:
        session.append(EndSeed())


def _initial(session: Session, selection: ModelSelection | None) -> ModelSelection | None:
    """Saved history wins over the options an agent is rebuilt with (C14)."""
    header = session.folds.header
    if header is None:
        return selection
    route = header.config.selection
    return evolve(route, effort=None) if "reasoningEffort" in header.adapter_defaults else route
