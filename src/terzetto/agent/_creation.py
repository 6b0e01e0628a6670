"""The creation transaction: one path for fresh and resumed agents, with its rollback.

Order (C19): acquire the session and its write path, build agent and scope around it,
store the constructor's history, announce the session, `setup` and its commit, enter
the registry, `agent_created` listeners, release held input. Any failure before the
end unwinds what was built, in reverse, before the error arrives.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import trio
from attrs import define, field

from ..session import AgentView, Session, fork_header
from ..stores import Store, WriteHandle
from ..tools import Tool
from ..vocabulary import (
    AgentDisposed,
    Durability,
    Event,
    ForkError,
    InvalidValue,
    MessageId,
    SessionHeader,
    SessionId,
    UsageError,
    freeze_object,
)
from ._agent import Agent
from ._beginning import inherited, restored, seeded
from ._building import Workshop, run_commit
from ._hooks import SessionStarted, SessionStartSource
from ._initiator import being_created
from ._lifetime import AgentHandle, Lifetime
from ._options import Options, Setup, absolute, checked_durability, checked_options, id_of, seed_of
from ._past import Past, living, stored
from ._registry import AgentRegistry
from ._scope import AgentScope
from ._services import Services
from ._waiting import Acquisition, TrioBell
from ._writer import Writer


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
    writer: Writer = field(kw_only=True)
    durability: Durability = field(default="step", kw_only=True)
    nursery: trio.Nursery | None = field(default=None, kw_only=True)
    _acquiring: dict[SessionId, Acquisition[tuple[Session, WriteHandle | None]]] = field(
        factory=dict, init=False
    )
    _creations: dict[trio.CancelScope, trio.Event] = field(factory=dict, init=False)
    _workshop: Workshop = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._workshop = Workshop(
            registry=self,
            services=self.services,
            scope=self.scope,
            writer=self.writer,
            shutdown_timeout=self.shutdown_timeout,
            report_unsaved=self.report_unsaved,
        )

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
        durability: Durability | None = None,
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
            durability: When the agent waits for its store (`Durability`); the engine's when
                absent. Stored with the session, and what every resume of it keeps to.
            setup: Composes the agent before anyone sees it.

        Raises `AgentExists`, `InvalidValue`, `StoreError`, and whatever *setup* and
        ``agent_created`` listeners raise, after everything built is gone again.
        Cancellation: the same rollback, then `trio.Cancelled`.
        """
        agent_id = id_of(session_id)
        options = checked_options(provider, model, effort, system, tools, max_tokens, parent, setup)
        header = SessionHeader(
            id=agent_id,
            created_ms=self.now_ms(),
            cwd=absolute(cwd),
            seed_length=len(seed_of(seed)),
            durability=self._level(durability),
            meta=freeze_object(meta or {}),
        )

        async def acquire() -> tuple[Session, WriteHandle | None]:
            session = self._session(header)
            return session, await seeded(session, self.store, seed)

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

        A log that crashed inside a turn is closed first, as an ordinary batch. Its
        durability is the one it was made with, for recovery reads it by that. The route
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
                session = self._session(handle.header)
                await restored(session, handle)
            except BaseException:
                await handle.close()
                raise
            return session, handle

        return await self._make(agent_id, options, acquire, "resume")

    async def fork(
        self,
        source: str | Agent,
        *,
        turn: int | None = None,
        boundary: int | None = None,
        provider: str | None = None,
        model: str | None = None,
        effort: str | None = None,
        system: str | None = None,
        tools: Iterable[Tool] = (),
        max_tokens: int | None = None,
        cwd: str | None = None,
        session_id: str | None = None,
        parent: Agent | None = None,
        meta: Mapping[str, object] | None = None,
        durability: Durability | None = None,
        setup: Setup | None = None,
    ) -> AgentHandle:
        """Make an agent on a copy of a session's past; the source only is read.

        Args:
            source: An agent, the id of a live one, or that of a stored session, which may
                be in use.
            turn: Inherit up to the end of this turn of the source.
            boundary: Inherit up to the event before this seq, which must be between turns.
                Without *turn* and *boundary* everything is inherited, and of a source with
                an open turn what was before that turn.
            provider: With *model*, a route for what follows, recorded as a choice. Without
                both, the source's.
            cwd: Like *meta* and *durability*, the source's when absent.

        The others are those of `create`. As on `resume`, what the log does not hold is to be
        given again: with the same *system*, *tools* and *setup*, the first request is what
        the source itself would send, to the byte. Pending input stays behind. The header
        names the source (``parent_id``) and counts what was inherited (``seed_length``).

        Raises:
            ForkError: ``SESSION_NOT_FOUND``; ``SESSION_NOT_LIVE``, without a store;
                ``INVALID_BOUNDARY``; ``OPEN_TURN``; ``SESSION_ALREADY_EXISTS``.
            CorruptLog: The source is damaged.

        and everything `create` raises. Cancellation: as `create`.
        """
        options = checked_options(provider, model, effort, system, tools, max_tokens, parent, setup)
        level = None if durability is None else checked_durability(durability)
        async with await self._past(source) as past:
            length = await past.point(turn, boundary)
            agent_id = id_of(session_id)
            header = fork_header(
                past.header,
                agent_id,
                self.now_ms(),
                length,
                cwd=absolute(cwd),
                meta=meta,
                durability=level,
            )
            if self.taken(agent_id):
                raise ForkError("SESSION_ALREADY_EXISTS", f"an agent with id {agent_id!r} is live")
            chosen = options.selection
            options.selection = chosen or past.route

            async def acquire() -> tuple[Session, WriteHandle | None]:
                session = self._session(header)
                return session, await inherited(session, self.store, past.read, chosen)

            return await self._make(agent_id, options, acquire, "startup")

    async def _past(self, source: str | Agent) -> Past:
        """What is forked."""
        if isinstance(source, Agent):
            return living(source)
        if not isinstance(source, str):
            raise InvalidValue(f"source: expected an agent or a session id, got {source!r}")
        agent = self.get(source)
        return await stored(self.store, source) if agent is None else living(agent)

    # --- the transaction ----------------------------------------------------------------

    async def _make(
        self,
        agent_id: SessionId,
        options: Options,
        acquire: Callable[[], Awaitable[tuple[Session, WriteHandle | None]]],
        source: SessionStartSource,
    ) -> AgentHandle:
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_owner(options.parent)
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

    @trio.lowlevel.enable_ki_protection  # for the hand-over; what runs others' code has none
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
            life = self._workshop.build(session, handle, options, self.driver())
            life.agent.scope.compose(options.system, options.tools)
            await trio.lowlevel.checkpoint_if_cancelled()
            self._check_owner(options.parent)
            await self._publish(life, options, source)
            await self._awake(options.parent)
            # Nothing is awaited from here on: who is handed over has a task that will run.
            nursery = self._owner(options.parent)
            nursery.start_soon(life.run, name=f"terzetto agent {agent_id}")
            if options.parent is not None:
                options.parent._state.children += 1
        except BaseException:
            if life is not None:
                life.bound.extend()
                await life.tear_down()
            elif acquired or agent_id not in self._acquiring:
                self.release(agent_id)
            raise
        life.agent._state.release()
        return AgentHandle(life.agent, life)

    @trio.lowlevel.disable_ki_protection
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

        nursery = self._owner(None)  # a parent may outlive the engine's block by a tick
        task = Acquisition(acquire, discard, finished, self.shutdown_timeout)
        self._acquiring[agent_id] = task
        nursery.start_soon(task.run, name=f"terzetto opens {agent_id}")
        try:
            return await task.wait()
        finally:
            if not task.abandoned:
                del self._acquiring[agent_id]

    def _check_owner(self, parent: Agent | None) -> None:
        """Raise where nobody could own an agent, of whoever goes away meanwhile too."""
        if parent is None:
            if self.nursery is None:
                raise UsageError("the engine is closed")
            return
        if parent._state.held and not parent.disposed:
            raise UsageError(f"parent {parent.id!r} is still being created; it can own none yet")
        if self.get(parent.id) is not parent and not parent.disposed:
            raise UsageError(f"parent {parent.id!r} belongs to another engine")
        if parent._state.held or parent._state.closing or parent._state.leaving:
            raise AgentDisposed(f"parent {parent.id!r} is not running; it can own no agent")

    @trio.lowlevel.enable_ki_protection
    async def _awake(self, parent: Agent | None) -> None:
        """An agent at rest has no nursery: return once *parent* has one, or is going away."""
        if parent is None or parent._nursery is not None:
            return
        state = parent._state
        state.adopting += 1
        state.changed()
        try:
            await state.wait(lambda: parent._nursery is not None or state.closing or state.leaving)
        finally:
            state.adopting -= 1
            state.changed()

    def _owner(self, parent: Agent | None) -> trio.Nursery:
        self._check_owner(parent)
        nursery = self.nursery if parent is None else parent._nursery
        assert nursery is not None
        return nursery

    def _level(self, durability: Durability | None) -> Durability:
        return self.durability if durability is None else checked_durability(durability)

    def _session(self, header: SessionHeader) -> Session:
        return Session(header, self.now_ms, self.new_id, self.make_bell())

    @trio.lowlevel.disable_ki_protection
    async def _publish(self, life: Lifetime, options: Options, source: SessionStartSource) -> None:
        agent, hooks = life.agent, self.scope.hooks
        with being_created(agent):
            life.session_announced = True
            hooks.session_created.notify(agent.session)
            if options.setup is not None:
                composed = options.setup(agent)
                run_commit(await composed if inspect.isawaitable(composed) else composed)
            self.enter(agent)
            life.agent_announced = True
            view: AgentView = agent
            await agent.scope.heard.agent_created.run(view)
            agent.scope.heard.session_started.notify(SessionStarted(agent, source))
