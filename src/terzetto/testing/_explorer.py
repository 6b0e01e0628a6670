"""The explorer: run a scenario, cancel it at its 1st, 2nd, 3rd ... step, check each time.

A *point* is a moment between two task steps of Trio's scheduler: every place where a
cancel, a disposal or a Ctrl-C can be noticed lies between two of them. The explorer
runs the scenario afresh for every point and every source until a run ends before its
point is reached.

What a point strikes is decided by `Source`; what must hold afterwards by the eight
invariants, the host's own cancellation, and a second life of the same session.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import trio
import trio.testing
from attrs import define, field, frozen
from trio._core import _run

from ..engine import open_engine
from ..llm import Adapter
from ..session import Session, replay
from ..vocabulary import (
    Aborted,
    DisposedCause,
    Event,
    ParentCause,
    SessionHeader,
    SessionId,
    TurnEnd,
    UserCause,
)
from ._invariants import Evidence, check_invariants, history_is_valid
from ._stage import SOURCES, Recording, Source, Stage, Ticks

Scenario: TypeAlias = Callable[[Stage], Awaitable[None]]
MakeAdapter: TypeAlias = Callable[[], Adapter]


class _Striker(trio.abc.Instrument):
    """Strikes before the *point*-th task step, once."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        stage = self.stage
        if stage.source is None or stage.source.inside is not None:
            return
        if self.steps == stage.point:
            stage.struck = True
            stage.source.strike(stage)


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
    make_adapter: MakeAdapter,
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
    with _ctrl_c_heard():
        return _explore(scenario, make_adapter, name, sources, check, seed, limit, stride)


def _explore(
    scenario: Scenario,
    make_adapter: MakeAdapter,
    name: str,
    sources: Sequence[Source],
    check: Callable[[Evidence], list[str]],
    seed: int,
    limit: int,
    stride: int,
) -> Report:
    report = Report()
    unstruck = _play(scenario, make_adapter, None, 0, seed, check)
    report.steps = unstruck.steps
    report.violations += [Violation(name, "nobody", 0, p) for p in unstruck.problems]
    for source in sources:
        for point in range(1, limit + 1, stride):
            outcome = _play(scenario, make_adapter, source, point, seed, check)
            if not outcome.struck:
                break
            report.points += 1
            found = outcome.problems + _ending_problems(outcome.events, unstruck.events, source)
            report.violations += [Violation(name, source.name, point, p) for p in found]
        else:
            report.violations.append(Violation(name, source.name, limit, "it never ended"))
    return report


@frozen
class _Outcome:
    struck: bool
    steps: int
    events: Sequence[Event]
    problems: list[str]


def _play(
    scenario: Scenario,
    make_adapter: MakeAdapter,
    source: Source | None,
    point: int,
    seed: int,
    check: Callable[[Evidence], list[str]],
) -> _Outcome:
    """One run of the scenario, struck once; then a second life of its session."""
    stage = Stage(Recording(make_adapter()), source, point)
    striker = _Striker(stage)
    problems = stage.problems

    async def main() -> None:
        baseline = trio.lowlevel.current_statistics().tasks_living
        with stage.scope:
            await scenario(stage)
        left = trio.lowlevel.current_statistics().tasks_living - baseline
        if left:
            problems.append(f"7. {left} tasks are alive after the engine was left")

    _seed_scheduler(seed)
    clock = trio.testing.MockClock(autojump_threshold=0)
    interrupted = False
    try:
        trio.run(main, clock=clock, instruments=[striker], strict_exception_groups=True)
    except KeyboardInterrupt:
        interrupted = True
    except BaseException as error:  # whatever leaves a scenario is reported, not raised
        problems.append(f"7. {type(error).__name__} left the run: {error}")
    by_interrupt = source is not None and source.name.startswith("KeyboardInterrupt")
    if interrupted and not by_interrupt:
        problems.append("7. a KeyboardInterrupt that nobody sent")
    if by_interrupt and source is not None and source.inside and stage.struck and not interrupted:
        problems.append("7. a KeyboardInterrupt was swallowed")
    problems += [f"8. {p}" for r in stage.adapter.requests for p in history_is_valid(r.messages)]
    for session in stage.sessions:
        mine = session is stage.session
        evidence = Evidence(
            list(session.events),
            stage.bodies if mine else None,
            stage.sent if mine else (),
            stage.reviewed,
        )
        problems += check(evidence) + _drift(session)
    if stage.session is not None and stage.struck:
        problems += _second_life(stage, make_adapter, seed)
    events = list(stage.session.events) if stage.session is not None else []
    return _Outcome(stage.struck, striker.steps, events, problems)


def _drift(session: Session) -> list[str]:
    """The history derived as the log grew equals the one derived from scratch."""
    fresh = Session(SessionHeader(id=SessionId("check"), created_ms=0), now_ms=lambda: 0)
    try:
        replay(fresh, session.events)
    except Exception as error:
        return [f"8. the log does not replay: {error}"]
    same = list(fresh.history()) == list(session.history())
    return [] if same else ["8. the history has drifted from its log"]


def _ending_problems(
    events: Sequence[Event], unstruck: Sequence[Event], source: Source
) -> list[str]:
    """A turn ends as in the run that nobody struck, or says who ended it."""
    endings = [e.data.ending for e in unstruck if isinstance(e.data, TurnEnd)]
    natural = {type(ending) for ending in endings}
    # What a struck scenario leaves behind is ended by leaving its blocks.
    causes = {source.cause, DisposedCause(), ParentCause()}
    if not source.host or source.name.startswith("KeyboardInterrupt"):
        # The scenario goes on and may cancel an `ask` of its own; so may Ctrl-C, in a nursery
        # of the scenario's, before the engine hears of it. The host's cancel never does.
        causes.add(UserCause())
    causes |= {ending.cause for ending in endings if isinstance(ending, Aborted)}
    problems = []
    for event in events:
        if not isinstance(event.data, TurnEnd):
            continue
        ending = event.data.ending
        if isinstance(ending, Aborted):
            if ending.cause not in causes:
                problems.append(f"turn {event.data.turn} was ended by {ending.cause}")
        elif type(ending) not in natural:
            problems.append(f"turn {event.data.turn} ended as {ending}, which nobody meant")
    return problems


def _second_life(stage: Stage, make_adapter: MakeAdapter, seed: int) -> list[str]:
    """Resume the stored session and follow up: its request must be valid (invariant 8)."""
    assert stage.session is not None
    session_id, problems = stage.session.id, list[str]()
    before = list(stage.session.events)

    async def main() -> None:
        adapter = Recording(make_adapter())
        async with (
            open_engine(adapters=[adapter], store=stage.store, now_ms=Ticks()) as engine,
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


@contextmanager
def _ctrl_c_heard() -> Iterator[None]:
    """Python's own handler, also where a shell started us with Ctrl-C ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _seed_scheduler(seed: int) -> None:
    """Make Trio's choice among runnable tasks repeatable, as hypothesis does for its tests."""
    if hasattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING"):
        _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    if isinstance(getattr(_run, "_r", None), random.Random):
        _run._r.seed(seed)
