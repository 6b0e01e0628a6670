"""The stage of an exploration: what a scenario plays on, and who may strike it."""

from __future__ import annotations

import math
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Literal, TypeAlias, cast

import trio
from attrs import define, evolve, field, frozen

from ..agent import Agent, Driver, EngineStatistics, Hooks
from ..engine import Engine, open_engine
from ..session import Session
from ..stores import MemoryStore, Store
from ..tools import Approver, Spill, Tool, ToolExecutor, ToolRun
from ..vocabulary import (
    AgentDisposed,
    CancelCause,
    DisposedCause,
    Durability,
    HookCause,
    MessageId,
    ParentCause,
    UserCause,
    UserMessage,
)
from ._invariants import BodyRecord
from ._recording import Recording

Inside: TypeAlias = Literal["body", "listener"]
Strike: TypeAlias = Callable[["Stage"], None]


@frozen
class Source:
    """Somebody who may cut a scenario short.

    *cause* is what a turn that it cuts must say. *host*: the whole program is stopped.
    *inside*: Ctrl-C comes inside the n-th body or listener, instead of between two steps.
    *to_agent*: it strikes the stage's agent, so it begins when there is one.
    """

    name: str
    strike: Strike
    cause: CancelCause
    host: bool = False
    inside: Inside | None = None
    to_agent: bool = False

    @property
    def interrupts(self) -> bool:
        """Whether it may send a KeyboardInterrupt."""
        return self.name.startswith("KeyboardInterrupt")


@define(eq=False)
class Stage:
    """What a scenario plays on, and what it leaves behind for the checks.

    Open engines with `open_engine` and agents with `open_agent`. *agent* is the first one
    opened, which the sources strike; *session* is its session, and *sessions* are all.
    *bodies* are the tool bodies that ran, *problems* what is wrong so far.
    """

    adapter: Recording
    source: Source | None = None
    point: int = 0
    store: Store = field(factory=MemoryStore)
    agent: Agent | None = None
    session: Session | None = None
    sessions: list[Session] = field(factory=list)
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    bodies: list[BodyRecord] = field(factory=list)
    sent: list[MessageId] = field(factory=list)
    problems: list[str] = field(factory=list)
    reviewed: bool = False
    set_aside: bool = False
    struck: bool = False
    strike_text: str = ""
    struck_again: bool = False
    second_strike_text: str = ""
    acts: list[str] = field(factory=list)
    acts_at_strike: list[str] = field(factory=list)
    lengths_at_strike: list[int] = field(factory=list)
    expectations: list[tuple[Callable[[], bool], str]] = field(factory=list)
    _inside: int = 0
    _ids: int = 0
    _left: list[Callable[[], EngineStatistics]] = field(factory=list)
    _running: set[tuple[int, int]] = field(factory=set)
    _read_only: set[str] = field(factory=set, init=False)

    @asynccontextmanager
    async def open_engine(
        self,
        tools: Iterable[Tool] = (),
        *,
        max_parallel_tool_calls: int = 10,
        shutdown_timeout: float = 5.0,
        durability: Durability = "step",
        approver: Approver | None = None,
        spill: Spill | None = None,
        driver: Driver | None = None,
        executor: ToolExecutor | None = None,
    ) -> AsyncIterator[Engine]:
        """An engine on the stage's store and model; what its block raises must leave it.

        The bodies of *tools* are watched (`watch`).
        """
        raised: BaseException | None = None
        async with open_engine(
            adapters=[self.adapter],
            tools=[self.watch(tool) for tool in tools],
            store=self.store,
            max_parallel_tool_calls=max_parallel_tool_calls,
            shutdown_timeout=shutdown_timeout,
            durability=durability,
            approver=approver,
            spill=spill,
            driver=driver,
            executor=executor,
            now_ms=Ticks(),
            new_id=self._new_id,
        ) as engine:
            engine.scope.hooks.session_created.listen(self._remember)
            if self.source is not None and self.source.inside == "listener":
                self._listen(engine.scope.hooks)
            try:
                yield engine
            except BaseException as error:
                raised = error
                raise
            finally:
                self._note_policies(engine.scope.hooks)
                # Whatever leaves here, the engine's own count has to be at zero afterwards.
                self._left.append(engine.statistics)
        if raised is not None:
            self.problems.append(f"7. the engine swallowed {type(raised).__name__}")

    @asynccontextmanager
    async def open_agent(
        self, engine: Engine, *, resume: str | None = None, session_id: str | None = None
    ) -> AsyncIterator[Agent]:
        """The scenario's agent, known to the sources that cancel it."""
        if resume is None and session_id is None:
            session_id = f"session-{len(self.sessions) + 1}"
        async with engine.open_agent(
            provider=self.adapter.provider, model="m", resume=resume, session_id=session_id
        ) as agent:
            self.agent, self.session = agent, agent.session
            try:
                yield agent
            finally:
                self._note_policies(agent.scope.hooks)

    def send(self, how: str, text: str) -> None:
        """Send *text* to the agent, on the record: *how* is ``followup``, ``steer``, ``inject``.

        Nothing happens if the agent is gone already.
        """
        assert self.agent is not None, "open an agent first"
        message = UserMessage(text, id=self._new_id())
        with suppress(AgentDisposed):
            getattr(self.agent, how)(message)
            self.sent.append(message.id)

    def expect(self, holds: Callable[[], bool], what: str) -> None:
        """When the run is over, however it ended, *holds* must say True; else *what* is wrong.

        Call it at the beginning of a scenario: what comes late may never be reached.
        """
        self.expectations.append((holds, what))

    def watch(self, tool: Tool) -> Tool:
        """*tool* with a body that the explorer knows of: whether it ran, when, how it ended.

        For tools that are not given to `open_engine`.
        """
        given, injected = tool.injects, tool.injects or "terzetto_run"
        if tool.read_only:
            self._read_only.add(tool.name)

        def taken(kwargs: dict[str, object]) -> ToolRun:
            run = kwargs[injected]
            assert isinstance(run, ToolRun)
            if given is None:
                del kwargs[injected]
            return run

        async def awaited(*args: object, **kwargs: object) -> object:
            async with self.body(taken(kwargs)):
                return await cast(Awaitable[object], tool.body(*args, **kwargs))

        def plain(*args: object, **kwargs: object) -> object:
            with self._recorded(taken(kwargs), cancelled=False):  # a thread has no scope
                return tool.body(*args, **kwargs)

        return evolve(tool, body=awaited if tool.is_async else plain, injects=injected)

    @asynccontextmanager
    async def body(self, run: ToolRun) -> AsyncIterator[None]:
        """Around a tool body: records that it ran. Of two around one body the outer counts."""
        mine = id(run), id(trio.lowlevel.current_task())
        if mine in self._running:
            yield
            return
        self._running.add(mine)
        try:
            with self._recorded(run, trio.current_effective_deadline() == -math.inf):
                yield
        finally:
            self._running.discard(mine)

    @contextmanager
    def _recorded(self, run: ToolRun, cancelled: bool) -> Iterator[None]:
        events = run.agent.session.events
        record = BodyRecord(run.call_id, len(events), cancelled, agent_id=run.agent.id)
        record.read_only = run.name in self._read_only
        self.bodies.append(record)
        try:
            self._strike_inside("body")
            yield
            record.returned = True
        finally:
            record.left_at = len(events)

    def left_behind(self) -> list[str]:
        """What the engines say is still at work, once they have been left."""
        counts = [statistics() for statistics in self._left]
        return [
            f"7. the engine counts what it left behind: {count}"
            for count in counts
            if count.agents_living or count.tool_bodies_running or count.turns_open
        ]

    def struck_now(self, text: str = "") -> None:
        """Remember that and where the run was struck."""
        self.struck = True
        self.strike_text = text
        self.acts_at_strike = list(self.acts)
        self.lengths_at_strike = [len(session.events) for session in self.sessions]

    def _new_id(self) -> MessageId:
        self._ids += 1
        return MessageId(f"m{self._ids}")

    def _remember(self, session: Session) -> None:
        self.sessions.append(session)
        self.session = self.session or session

    def _note_policies(self, hooks: Hooks) -> None:
        self.reviewed = self.reviewed or bool(hooks.tool_post_execute)
        self.set_aside = self.set_aside or bool(hooks.pre_step)

    def _strike_inside(self, where: Inside) -> None:
        if self.source is None or self.source.inside != where:
            return
        self._inside += 1
        if self._inside == self.point:
            self.struck_now(f"inside {where} {self.point}")
            raise KeyboardInterrupt

    def _listen(self, hooks: Hooks) -> None:
        """A listener that strikes, at every notification and every awaited hook."""

        def plain(value: object) -> None:
            self._strike_inside("listener")

        async def serial(value: object) -> None:
            self._strike_inside("listener")

        for point in (hooks.status, hooks.tool_result, hooks.agent_error):
            point.listen(plain)
        for notice in (hooks.inbox_inserted, hooks.inbox_claimed, hooks.inbox_discarded):
            notice.listen(plain)
        hooks.turn_stopping.listen(serial)


class Ticks:
    """Milliseconds that only go forward by being asked."""

    def __init__(self) -> None:
        self._now = 0

    def __call__(self) -> int:
        self._now += 1
        return self._now


def _cancel(cause: CancelCause, *, keep_inbox: bool = False) -> Strike:
    def strike(stage: Stage) -> None:
        if stage.agent is not None:
            stage.agent.cancel(cause, keep_inbox=keep_inbox)

    return strike


def _dispose(stage: Stage) -> None:
    if stage.agent is not None:
        stage.agent._state.begin_closing(DisposedCause(), keep_inbox=False)


def _host(stage: Stage) -> None:
    stage.scope.cancel(reason="explored")


def _deadline(stage: Stage) -> None:
    stage.scope.deadline = trio.current_time() - 1


def _interrupt(stage: Stage) -> None:
    signal.raise_signal(signal.SIGINT)


_GONE = DisposedCause()
SOURCES: tuple[Source, ...] = (
    Source("user", _cancel(UserCause()), UserCause(), to_agent=True),
    Source("user, inbox kept", _cancel(UserCause(), keep_inbox=True), UserCause(), to_agent=True),
    Source("parent", _cancel(ParentCause()), ParentCause(), to_agent=True),
    Source("hook", _cancel(HookCause("explored")), HookCause("explored"), to_agent=True),
    Source("dispose", _dispose, _GONE, to_agent=True),
    Source("host cancel", _host, _GONE, host=True),
    Source("host deadline", _deadline, _GONE, host=True),
    Source("KeyboardInterrupt", _interrupt, _GONE, host=True),
    Source("KeyboardInterrupt in a body", _interrupt, _GONE, host=True, inside="body"),
    Source("KeyboardInterrupt in a listener", _interrupt, _GONE, host=True, inside="listener"),
)
"""Everybody who may cut a scenario short."""
