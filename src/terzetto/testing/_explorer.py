"""The explorer: run a scenario, cancel it at its 1st, 2nd, 3rd ... step, check each time.

A *point* is a moment between two task steps of Trio's scheduler: every place where a
cancel, a disposal or a Ctrl-C can be noticed lies between two of them. The explorer
runs the scenario afresh for every point and every source until a run ends before its
point is reached.

What a point strikes is decided by `Source`; what must hold afterwards by the eight
invariants, the host's own cancellation, and a second life of the same session.
"""

from __future__ import annotations

import math
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import trio
import trio.testing
from attrs import define, field, frozen
from trio._core import _run

from ..agent import Agent, AgentHandle
from ..engine import Engine, open_engine
from ..llm import Adapter, ChunkStream, PreparedCall
from ..session import Session
from ..stores import MemoryStore
from ..tools import Tool, ToolRun
from ..vocabulary import (
    CallConfig,
    DefaultField,
    DisposedCause,
    Event,
    HookCause,
    MessageId,
    ModelInfo,
    Request,
    UserMessage,
)
from ._invariants import BodyRecord, Evidence, check_invariants, history_is_valid

Strike: TypeAlias = Callable[["Stage"], None]


@frozen
class Source:
    """Somebody who may cut a scenario short. *host*: the whole program is stopped."""

    name: str
    strike: Strike
    host: bool = False


@define(eq=False)
class Stage:
    """What a scenario plays on, and what it leaves behind for the checks.

    Open engines with `open_engine` and agents with `open_agent`; wrap tool bodies with
    `body` so that the explorer knows which of them ran.
    """

    adapter: Adapter
    store: MemoryStore = field(factory=MemoryStore)
    agent: Agent | None = None
    handle: AgentHandle | None = None
    session: Session | None = None
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    bodies: list[BodyRecord] = field(factory=list)
    sent: list[MessageId] = field(factory=list)
    requests: list[Request] = field(factory=list)
    problems: list[str] = field(factory=list)
    struck: bool = False

    @asynccontextmanager
    async def open_engine(
        self, tools: Iterable[Tool] = (), *, max_parallel_tool_calls: int = 10
    ) -> AsyncIterator[Engine]:
        """An engine on the stage's store and model."""
        async with open_engine(
            adapters=[self.adapter],
            tools=tools,
            store=self.store,
            max_parallel_tool_calls=max_parallel_tool_calls,
            now_ms=_Clock(),
        ) as engine:
            engine.scope.hooks.session_created.listen(self._watch)
            yield engine

    @asynccontextmanager
    async def open_agent(
        self, engine: Engine, *, resume: str | None = None
    ) -> AsyncIterator[Agent]:
        """The scenario's agent, known to the sources that cancel it."""
        provider = self.adapter.provider
        async with engine.open_agent(provider=provider, model="m", resume=resume) as agent:
            self.agent = agent
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
        assert self.session is not None
        cancelled = trio.current_effective_deadline() == -math.inf
        record = BodyRecord(run.call_id, len(self.session.events), cancelled)
        self.bodies.append(record)
        try:
            yield
            record.returned = True
        finally:
            record.left_at = len(self.session.events)

    def _watch(self, session: Session) -> None:
        self.session = session


class _Clock:
    """Milliseconds that only go forward by being asked."""

    def __init__(self) -> None:
        self._now = 0

    def __call__(self) -> int:
        self._now += 1
        return self._now


Scenario: TypeAlias = Callable[[Stage], Awaitable[None]]


def _user(stage: Stage) -> None:
    if stage.agent is not None:
        stage.agent.cancel()


def _keeping(stage: Stage) -> None:
    if stage.agent is not None:
        stage.agent.cancel(keep_inbox=True)


def _hook(stage: Stage) -> None:
    if stage.agent is not None:
        stage.agent.cancel(HookCause("explored"))


def _dispose(stage: Stage) -> None:
    if stage.agent is not None:
        stage.agent._state.begin_closing(DisposedCause(), keep_inbox=False)


def _host(stage: Stage) -> None:
    stage.scope.cancel(reason="explored")


def _deadline(stage: Stage) -> None:
    stage.scope.deadline = trio.current_time() - 1


def _interrupt(stage: Stage) -> None:
    signal.raise_signal(signal.SIGINT)


SOURCES: tuple[Source, ...] = (
    Source("user", _user),
    Source("user, inbox kept", _keeping),
    Source("hook", _hook),
    Source("dispose", _dispose),
    Source("host cancel", _host, host=True),
    Source("host deadline", _deadline, host=True),
    Source("KeyboardInterrupt", _interrupt, host=True),
)


class _Striker(trio.abc.Instrument):
    """Strikes before the *point*-th task step, once."""

    def __init__(self, stage: Stage, source: Source | None, point: int) -> None:
        self.stage = stage
        self.source = source
        self.point = point
        self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.source is not None and self.steps == self.point:
            self.stage.struck = True
            self.source.strike(self.stage)


@frozen
class Violation:
    """Something that must not happen, and how to make it happen again."""

    scenario: str
    source: str
    point: int
    problem: str


@define
class Report:
    """What an exploration found. *points* counts the runs that were struck."""

    points: int = 0
    steps: int = 0
    violations: list[Violation] = field(factory=list)

    def __str__(self) -> str:
        return f"{self.points:,} points, {len(self.violations):,} violations"


def explore(
    scenario: Scenario,
    make_adapter: Callable[[], Adapter],
    *,
    name: str = "scenario",
    sources: Sequence[Source] = SOURCES,
    check: Callable[[Evidence], list[str]] = check_invariants,
    seed: int = 0,
    limit: int = 10_000,
    stride: int = 1,
) -> Report:
    """Run *scenario* struck at every point from every source, and check each run.

    Args:
        scenario: Opens an engine and an agent on the stage and drives it to its end.
        make_adapter: A fresh model for each run.
        name: Shown in violations.
        sources: Who strikes.
        check: The invariants of a log and its bodies.
        seed: Of Trio's scheduler, so that a point is the same moment in every run.
        limit: Most points per source; reaching it is itself a violation.
        stride: Every how many points to strike; 1 is all of them.
    """
    report = Report()
    unstruck = _play(scenario, make_adapter, None, 0, seed)
    report.steps = unstruck.steps
    found = unstruck.problems + check(unstruck.evidence)
    report.violations += [Violation(name, "nobody", 0, problem) for problem in found]
    for source in sources:
        for point in range(1, limit + 1, stride):
            outcome = _play(scenario, make_adapter, source, point, seed)
            if not outcome.struck:
                break
            report.points += 1
            found = outcome.problems + check(outcome.evidence)
            report.violations += [Violation(name, source.name, point, problem) for problem in found]
        else:
            report.violations.append(Violation(name, source.name, limit, "it never ended"))
    return report


@frozen
class _Outcome:
    struck: bool
    steps: int
    evidence: Evidence
    problems: list[str]


def _play(
    scenario: Scenario,
    make_adapter: Callable[[], Adapter],
    source: Source | None,
    point: int,
    seed: int,
) -> _Outcome:
    """One run of the scenario, struck once; then a second life of its session."""
    stage = Stage(make_adapter())
    striker = _Striker(stage, source, point)
    problems: list[str] = []
    interrupted = False

    async def main() -> None:
        baseline = trio.lowlevel.current_statistics().tasks_living
        with stage.scope:
            await scenario(stage)
        left = trio.lowlevel.current_statistics().tasks_living - baseline
        if left:
            problems.append(f"7. {left} tasks are alive after the engine was left")

    _seed_scheduler(seed)
    try:
        trio.run(
            main,
            clock=trio.testing.MockClock(autojump_threshold=0),
            instruments=[striker],
            strict_exception_groups=True,
        )
    except KeyboardInterrupt:
        interrupted = True
    except BaseException as error:  # whatever leaves a scenario is reported, not raised
        problems.append(f"7. {type(error).__name__} left the run: {error}")
    if interrupted and (source is None or source.name != "KeyboardInterrupt"):
        problems.append("7. a KeyboardInterrupt that nobody sent")
    events: Sequence[Event] = list(stage.session.events) if stage.session is not None else []
    problems += stage.problems
    if stage.session is not None and stage.struck:
        problems += _second_life(stage, make_adapter, seed)
    return _Outcome(
        stage.struck, striker.steps, Evidence(events, stage.bodies, stage.sent), problems
    )


def _second_life(stage: Stage, make_adapter: Callable[[], Adapter], seed: int) -> list[str]:
    """Resume the stored session and follow up: its request must be valid (invariant 8)."""
    assert stage.session is not None
    session_id, problems = stage.session.id, list[str]()
    before = list(stage.session.events)

    async def main() -> None:
        adapter = _Recording(make_adapter())
        async with (
            open_engine(adapters=[adapter], store=stage.store, now_ms=_Clock()) as engine,
            engine.open_agent(resume=session_id) as agent,
        ):
            if list(agent.session.events)[: len(before)] != before:
                problems.append("8. the stored log differs from the one in memory")
            if agent.model.current() is None:
                agent.model.select(adapter.provider, "m")
            agent.inbox.clear()
            agent.followup("and now?")
            with trio.move_on_after(60):
                await agent.wait_status("idle")
            for request in adapter.requests:
                problems.extend(f"8. {p}" for p in history_is_valid(request.messages))
            if not adapter.requests:
                problems.append("8. the resumed session sent no request")

    _seed_scheduler(seed)
    try:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseException as error:  # reported, not raised
        problems.append(f"8. the second life failed: {type(error).__name__}: {error}")
    return problems


@frozen
class _Recording:
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


def _seed_scheduler(seed: int) -> None:
    """Make Trio's choice among runnable tasks repeatable, as hypothesis does for its tests."""
    if hasattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING"):
        _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    if isinstance(getattr(_run, "_r", None), random.Random):
        _run._r.seed(seed)
