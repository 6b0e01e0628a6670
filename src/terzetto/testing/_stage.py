"""The stage of an exploration: what a scenario plays on, and who may strike it."""

from __future__ import annotations

import math
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import trio
from attrs import define, field, frozen

from ..agent import Agent, Hooks
from ..engine import Engine, open_engine
from ..llm import Adapter, ChunkStream, PreparedCall
from ..session import Session
from ..stores import MemoryStore
from ..tools import Tool, ToolRun
from ..vocabulary import (
    CallConfig,
    CancelCause,
    DefaultField,
    DisposedCause,
    HookCause,
    MessageId,
    ModelInfo,
    ParentCause,
    Request,
    UserCause,
    UserMessage,
)
from ._invariants import BodyRecord

Inside: TypeAlias = Literal["body", "listener"]
Strike: TypeAlias = Callable[["Stage"], None]


@frozen
class Source:
    """Somebody who may cut a scenario short.

    *cause* is what a turn that it cuts must say. *host*: the whole program is stopped.
    *inside*: Ctrl-C comes inside the n-th body or listener, instead of between two steps.
    """

    name: str
    strike: Strike
    cause: CancelCause
    host: bool = False
    inside: Inside | None = None


@define(eq=False)
class Stage:
    """What a scenario plays on, and what it leaves behind for the checks.

    Open engines with `open_engine` and agents with `open_agent`; wrap every tool body in
    `body`, so that the explorer knows which of them ran.
    """

    adapter: Recording
    source: Source | None = None
    point: int = 0
    store: MemoryStore = field(factory=MemoryStore)
    agent: Agent | None = None
    session: Session | None = None
    sessions: list[Session] = field(factory=list)
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    bodies: list[BodyRecord] = field(factory=list)
    sent: list[MessageId] = field(factory=list)
    problems: list[str] = field(factory=list)
    reviewed: bool = False
    struck: bool = False
    _inside: int = 0

    @asynccontextmanager
    async def open_engine(
        self, tools: Iterable[Tool] = (), *, max_parallel_tool_calls: int = 10
    ) -> AsyncIterator[Engine]:
        """An engine on the stage's store and model; what its block raises must leave it."""
        raised: BaseException | None = None
        async with open_engine(
            adapters=[self.adapter],
            tools=tools,
            store=self.store,
            max_parallel_tool_calls=max_parallel_tool_calls,
            now_ms=Ticks(),
        ) as engine:
            engine.scope.hooks.session_created.listen(self._watch)
            if self.source is not None and self.source.inside == "listener":
                self._listen(engine.scope.hooks)
            try:
                yield engine
            except BaseException as error:
                raised = error
                raise
            finally:
                self.reviewed = self.reviewed or bool(engine.scope.hooks.tool_post_execute)
        if raised is not None:
            self.problems.append(f"7. the engine swallowed {type(raised).__name__}")

    @asynccontextmanager
    async def open_agent(
        self, engine: Engine, *, resume: str | None = None
    ) -> AsyncIterator[Agent]:
        """The scenario's agent, known to the sources that cancel it."""
        provider = self.adapter.provider
        async with engine.open_agent(provider=provider, model="m", resume=resume) as agent:
            self.agent, self.session = agent, agent.session
            yield agent

    def send(self, how: str, text: str) -> None:
        """Send *text* to the agent as a follow-up, steering or injection, on the record."""
        assert self.agent is not None
        message = UserMessage(text)
        getattr(self.agent, how)(message)
        self.sent.append(message.id)

    @asynccontextmanager
    async def body(self, run: ToolRun) -> AsyncIterator[None]:
        """Around a tool body: records that it ran, when, and how it ended."""
        events = run.agent.session.events
        cancelled = trio.current_effective_deadline() == -math.inf
        record = BodyRecord(run.call_id, len(events), cancelled)
        self.bodies.append(record)
        try:
            self._strike_inside("body")
            yield
            record.returned = True
        finally:
            record.left_at = len(events)

    def _watch(self, session: Session) -> None:
        self.sessions.append(session)
        self.session = self.session or session

    def _strike_inside(self, where: Inside) -> None:
        if self.source is None or self.source.inside != where:
            return
        self._inside += 1
        if self._inside == self.point:
            self.struck = True
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
    Source("user", _cancel(UserCause()), UserCause()),
    Source("user, inbox kept", _cancel(UserCause(), keep_inbox=True), UserCause()),
    Source("parent", _cancel(ParentCause()), ParentCause()),
    Source("hook", _cancel(HookCause("explored")), HookCause("explored")),
    Source("dispose", _dispose, _GONE),
    Source("host cancel", _host, _GONE, host=True),
    Source("host deadline", _deadline, _GONE, host=True),
    Source("KeyboardInterrupt", _interrupt, _GONE, host=True),
    Source("KeyboardInterrupt in a body", _interrupt, _GONE, host=True, inside="body"),
    Source("KeyboardInterrupt in a listener", _interrupt, _GONE, host=True, inside="listener"),
)
"""Everybody who may cut a scenario short."""


@frozen
class Recording:
    """An adapter that remembers what it was asked."""

    adapter: Adapter
    requests: list[Request] = field(factory=list)

    @property
    def provider(self) -> str:
        return self.adapter.provider

    async def prepare(self, config: CallConfig) -> PreparedCall:
        return _RecordingCall(await self.adapter.prepare(config), self.requests)

    async def aclose(self) -> None:
        await self.adapter.aclose()


@frozen
class _RecordingCall:
    call: PreparedCall
    requests: list[Request]

    @property
    def config(self) -> CallConfig:
        return self.call.config

    @property
    def adapter_defaults(self) -> frozenset[DefaultField]:
        return self.call.adapter_defaults

    @property
    def info(self) -> ModelInfo:
        return self.call.info

    def open_stream(self, request: Request) -> ChunkStream:
        self.requests.append(request)
        return self.call.open_stream(request)
