"""One run of a scenario, struck once; and a second life of its session.

What must hold afterwards: of every log the eight invariants and the turn machine, the host's
own cancellation, the scenario's expectations, and a valid request from the session when it is
resumed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import trio
from attrs import define, field, frozen

from ..engine import open_engine
from ..session import Session, replay
from ..stores import Store
from ..vocabulary import Event, SessionHeader, SessionId
from ._checkpoints import Checkpoints
from ._invariants import Evidence, check_invariants, history_is_valid
from ._recording import MakeAdapter, Recording
from ._requests import check_requests
from ._stage import Source, Stage, Ticks
from ._turn_machine import check_trace
from ._virtual import Hung, play, tasks, where
from ._whole import whole_log

Scenario: TypeAlias = Callable[[Stage], Awaitable[None]]
Check: TypeAlias = Callable[[Stage], Iterable[str]]
Invariants: TypeAlias = Callable[[Evidence], list[str]]


@frozen(kw_only=True)
class Play:
    """What is played, and what must hold. *check* and *invariants*: see `explore`.

    *make_second* makes the models of second lives: nobody is there who could run the tools
    of a script, so they get plain answers.
    """

    scenario: Scenario
    make_adapter: MakeAdapter
    make_second: MakeAdapter
    check: Check | None = None
    invariants: Invariants = check_invariants
    seed: int = 0
    checkpoints: Checkpoints | None = None


@define
class Outcome:
    """What a run left behind."""

    stage: Stage
    steps: int
    problems: list[str]

    @property
    def events(self) -> Sequence[Event]:
        stage = self.stage
        return () if stage.session is None else whole_log(stage.session, stage.store)


_NOBODYS = "7. a KeyboardInterrupt that nobody sent"


def run(play_: Play, source: Source | None = None, point: int = 0) -> Outcome:
    """Play once, struck by *source* at *point*, and say what is wrong.

    Raises KeyboardInterrupt when one came that does not come again: somebody pressed Ctrl-C.
    """
    outcome = _run(play_, source, point)
    if _NOBODYS in outcome.problems and _NOBODYS not in _run(play_, source, point).problems:
        raise KeyboardInterrupt
    return outcome


def _run(play_: Play, source: Source | None, point: int) -> Outcome:
    stage = Stage(Recording(play_.make_adapter()), source, point)
    striker = _Striker(stage, play_.checkpoints)
    if _hangs(play_, stage, striker):
        return Outcome(stage, striker.steps, stage.problems)
    problems = stage.problems
    problems += [f"8. {p}" for r in stage.adapter.requests for p in history_is_valid(r.messages)]
    for session in stage.sessions:
        mine = session is stage.session
        events = whole_log(session, stage.store)
        evidence = Evidence(
            events,
            [b for b in stage.bodies if b.agent_id == session.id] if mine else None,
            stage.sent if mine else (),
            stage.reviewed,
            stage.set_aside,
        )
        problems += play_.invariants(evidence) + _drift(session, events) + check_trace(events)
        if session is {one.id: one for one in stage.sessions}[session.id]:  # not resumed since
            asked = [r for r in stage.adapter.requests if r.session_id == session.id]
            problems += [f"8. {p}" for p in check_requests(session.header, events, asked)]
    for holds, what in stage.expectations:
        if not holds():
            problems.append(what)
    if play_.check is not None:
        problems += play_.check(stage)
    if stage.session is not None and stage.struck:
        problems += second_life(play_, stage.session, stage.store)
    return Outcome(stage, striker.steps, problems)


def _hangs(play_: Play, stage: Stage, striker: _Striker) -> bool:
    """Run it. Whether it hangs, which ends everything: such a run has no end to judge."""
    problems = stage.problems

    async def main() -> None:
        baseline = trio.lowlevel.current_statistics().tasks_living
        try:
            with stage.scope:
                await play_.scenario(stage)
        finally:
            problems.extend(stage.left_behind())
        left = trio.lowlevel.current_statistics().tasks_living - baseline
        if left:
            problems.append(f"7. {left} tasks are alive after the engine was left")

    interrupted = False
    watch = play_.checkpoints.watch() if play_.checkpoints and not stage.source else None
    try:
        with watch or _nothing():
            play(main, seed=play_.seed, instruments=[striker])
    except KeyboardInterrupt:
        interrupted = True
    except Hung as hung:
        problems.append(f"7. the run hangs: {hung}")
        return True
    except BaseException as error:  # whatever leaves a scenario is reported, not raised
        problems.append(f"7. {type(error).__name__} left the run: {error}")
    by_interrupt = stage.source is not None and stage.source.name.startswith("KeyboardInterrupt")
    if interrupted and not by_interrupt:
        problems.append(_NOBODYS)
    inside = stage.source is not None and stage.source.inside is not None
    if by_interrupt and inside and stage.struck and not interrupted:
        problems.append("7. a KeyboardInterrupt was swallowed")
    return False


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@define(eq=False)
class _Striker(trio.abc.Instrument):
    """Strikes before the *point*-th task step, once; and sees where tasks wait."""

    stage: Stage
    checkpoints: Checkpoints | None
    steps: int = field(default=0, init=False)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.checkpoints is not None:
            self.checkpoints.stepped(task)
        stage = self.stage
        if stage.source is None or stage.source.inside is not None or self.steps != stage.point:
            return
        parked = [where(each) for each in tasks() if not each.name.startswith("<")]
        stage.struck_now("; ".join(parked))
        if self.checkpoints is not None:
            self.checkpoints.struck(tasks())
        stage.source.strike(stage)


def _drift(session: Session, events: Sequence[Event]) -> list[str]:
    """The history derived as the log grew equals the one derived from scratch."""
    fresh = Session(SessionHeader(id=SessionId("check"), created_ms=0), now_ms=lambda: 0)
    try:
        replay(fresh, events)
    except Exception as error:
        return [f"8. the log does not replay: {error}"]
    same = list(fresh.history()) == list(session.history())
    return [] if same else ["8. the history has drifted from its log"]


def second_life(play_: Play, session: Session, store: Store) -> list[str]:
    """Resume the stored session and follow up: its request must be valid (invariant 8)."""
    before = whole_log(session, store)
    resumed = resume(play_, session.id, store)
    if resumed.session is not None and resumed.events[: len(before)] != before:
        resumed.problems.append("8. the stored log differs from the one in memory")
    return resumed.problems


@define
class Resumed:
    """A session's second life. *length* is that of its log when it was opened again, *events*
    are all of it in the end."""

    problems: list[str] = field(factory=list)
    session: Session | None = None
    events: list[Event] = field(factory=list)
    length: int = 0


def resume(play_: Play, session_id: SessionId, store: Store) -> Resumed:
    """Resume a session and follow up once."""
    found = Resumed()
    problems = found.problems

    async def main() -> None:
        adapter = Recording(play_.make_second())
        async with (
            open_engine(adapters=[adapter], store=store, now_ms=Ticks()) as engine,
            engine.open_agent(resume=session_id) as agent,
        ):
            found.session, found.length = agent.session, len(agent.session.events)
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

    try:
        play(main, seed=play_.seed)
    except BaseException as error:  # reported, not raised
        problems.append(f"8. the second life failed: {type(error).__name__}: {error}")
    if found.session is not None:
        found.events = whole_log(found.session, store)
        problems.extend(check_trace(found.events))
    return found


@contextmanager
def ctrl_c_heard() -> Iterator[None]:
    """Python's own handler, also where a shell started us with Ctrl-C ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
