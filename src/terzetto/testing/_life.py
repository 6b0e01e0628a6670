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
from attrs import Factory, define, evolve, field, frozen

from ..engine import open_engine
from ..session import Session
from ..stores import Store
from ..vocabulary import DisposedCause, Event, SessionHeader, SessionId, TurnEnd
from ._checkpoints import Checkpoints
from ._invariants import Evidence, check_invariants
from ._judging import Invariants, Judge, Log, digest
from ._recording import MakeAdapter, Recording
from ._stage import Source, Stage, Ticks
from ._virtual import Hung, play, tasks, where
from ._whole import fingerprint, whole_log

Scenario: TypeAlias = Callable[[Stage], Awaitable[None]]
Check: TypeAlias = Callable[[Stage], Iterable[str]]


@frozen(kw_only=True)
class Play:
    """What is played, and what must hold. *check* and *invariants*: see `explore`.

    *make_second* makes the models of second lives: nobody is there who could run the tools
    of a script, so they get plain answers. *told*: a strike says where the tasks waited.
    *judge* remembers what it found in other runs.
    """

    scenario: Scenario
    make_adapter: MakeAdapter
    make_second: MakeAdapter
    check: Check | None = None
    invariants: Invariants = check_invariants
    seed: int = 0
    checkpoints: Checkpoints | None = None
    told: bool = False
    judge: Judge = field(
        default=Factory(lambda self: Judge(self.invariants), takes_self=True), eq=False
    )


@define
class Outcome:
    """What a run left behind. *events* are those of the stage's first session.

    *first_agent* is the first point at which there was an agent to strike, 0 without one.
    *waited* has the awaits that tasks waited at, point by point, if nobody struck.
    """

    stage: Stage
    steps: int
    problems: list[str]
    events: Sequence[Event] = ()
    first_agent: int = 0
    waited: Sequence[frozenset[int]] = ()


_GRACE = 3
"""Steps after an unwinding that still belong to it: what comes next is being decided."""
_NOBODYS = "7. a KeyboardInterrupt that nobody sent"


@frozen
class Second:
    """A second strike, *after* task steps later, if the run is still unwinding by then."""

    source: Source
    after: int


def run(
    play_: Play, source: Source | None = None, point: int = 0, second: Second | None = None
) -> Outcome:
    """Play once, struck by *source* at *point* and then by *second*, and say what is wrong.

    Raises KeyboardInterrupt when one came that does not come again: somebody pressed Ctrl-C.
    """
    outcome = _run(play_, source, point, second)
    if _NOBODYS in outcome.problems:
        again = _run(play_, source, point, second)
        if _NOBODYS not in again.problems:
            raise KeyboardInterrupt
    return outcome


def _run(play_: Play, source: Source | None, point: int, second: Second | None) -> Outcome:
    stage = Stage(Recording(play_.make_adapter()), source, point)
    striker = _Striker(stage, play_.checkpoints, second, play_.told)
    if _hangs(play_, stage, striker):
        return Outcome(stage, striker.steps, stage.problems)
    problems, judge, first = stage.problems, play_.judge, Log.of([])
    problems += judge.requests(stage.adapter.requests)
    latest = {session.id: session for session in stage.sessions}
    for session in stage.sessions:
        mine = session is stage.session
        log = Log.of(whole_log(session, stage.store))
        first = log if mine else first
        evidence = Evidence(
            log.events,
            [b for b in stage.bodies if b.agent_id == session.id] if mine else None,
            stage.sent if mine else (),
            stage.reviewed,
            stage.set_aside,
        )
        problems += judge.broken(log, evidence) + judge.drift(session, log) + judge.moves(log)
        if session is latest[session.id]:  # not resumed since
            asked = [r for r in stage.adapter.requests if r.session_id == session.id]
            problems += judge.asked(session.header, log, asked)
    for holds, what in stage.expectations:
        if not holds():
            problems.append(what)
    if play_.check is not None:
        problems += play_.check(stage)
    if stage.session is not None and stage.struck:
        problems += second_life(play_, stage.session.id, first.events, stage.store)
    first_agent, waited = striker.first_agent, striker.waited
    return Outcome(stage, striker.steps, problems, first.events, first_agent, waited)


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
    by = [stage.source, striker.second.source if striker.second else None]
    if interrupted and not any(source and source.interrupts for source in by):
        problems.append(_NOBODYS)
    inside = stage.source is not None and stage.source.inside is not None
    if inside and stage.struck and not interrupted:
        problems.append("7. a KeyboardInterrupt was swallowed")
    return False


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@define(eq=False)
class _Striker(trio.abc.Instrument):
    """Strikes before the *point*-th task step, once; and sees where tasks wait.

    Until it strikes the run is the one that nobody struck, so there is nothing to see.
    *first_agent* is the step before which there was an agent to strike, *waited* where tasks
    waited before each step of a run that nobody strikes.
    """

    stage: Stage
    checkpoints: Checkpoints | None
    second: Second | None = None
    told: bool = False
    steps: int = field(default=0, init=False)
    first_agent: int = field(default=0, init=False)
    waited: list[frozenset[int]] = field(factory=list, init=False)
    _over: int = field(default=0, init=False)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        stage = self.stage
        if not self.first_agent and stage.agent is not None:
            self.first_agent = self.steps
        if self.steps >= stage.point and self.checkpoints is not None:
            self.checkpoints.stepped(task)
            if stage.source is None:
                self.waited.append(self.checkpoints.at(tasks()))
        if stage.source is None or stage.source.inside is not None or self.steps < stage.point:
            return
        if self.steps == stage.point:
            stage.struck_now(parked() if self.told else "")
            self._strike(stage.source)
        elif (
            self.second is not None
            and not stage.struck_again
            and self._unwinding()
            and self.steps == stage.point + self.second.after
        ):
            stage.struck_again = True
            stage.second_strike_text = parked() if self.told else ""
            self._strike(self.second.source)

    def _strike(self, source: Source) -> None:
        if self.checkpoints is not None:
            self.checkpoints.struck(tasks())
        source.strike(self.stage)

    def _unwinding(self) -> bool:
        """Whether what the first strike began goes on, or ended less than three steps ago.

        What stops a program or an agent goes on to its end; what stops a turn, to the turn's.
        """
        stage = self.stage
        source, agent, session = stage.source, stage.agent, stage.session
        if source is None or agent is None or session is None:
            return True
        if source.host or isinstance(source.cause, DisposedCause):
            return True
        known = stage.lengths_at_strike[0] if stage.lengths_at_strike else 0
        ended = any(isinstance(event.data, TurnEnd) for event in session.events[known:])
        if ended or agent.status == "idle":
            self._over += 1
        return self._over < _GRACE


def parked() -> str:
    """Where each task of the run waits, but for Trio's own."""
    return "; ".join(where(each) for each in tasks() if not each.name.startswith("<"))


def second_life(
    play_: Play, session_id: SessionId, before: Sequence[Event], store: Store
) -> list[str]:
    """Resume the stored session and follow up: its request must be valid (invariant 8)."""
    resumed = resume(play_, session_id, store)
    if resumed.header is not None and resumed.events[: len(before)] != before:
        return [*resumed.problems, "8. the stored log differs from the one in memory"]
    return resumed.problems


@define
class Resumed:
    """A session's second life. *length* is that of its log when it was opened again, *events*
    are all of it in the end. Without a header it was not opened."""

    problems: list[str] = field(factory=list)
    header: SessionHeader | None = None
    events: list[Event] = field(factory=list)
    length: int = 0


def resume(play_: Play, session_id: SessionId, store: Store) -> Resumed:
    """Resume a session and follow up once.

    Once for each state of the session: what is equal in the store lives on equally.
    """
    state = fingerprint(store, session_id)
    key = None if state is None else digest(("life", session_id, state))
    known = play_.judge.seen.once(key, lambda: _resume(play_, session_id, store))
    return evolve(known, problems=list(known.problems))


def _resume(play_: Play, session_id: SessionId, store: Store) -> Resumed:
    found, opened = Resumed(), list[Session]()
    problems = found.problems

    async def main() -> None:
        adapter = Recording(play_.make_second())
        async with (
            open_engine(adapters=[adapter], store=store, now_ms=Ticks()) as engine,
            engine.open_agent(resume=session_id) as agent,
        ):
            opened.append(agent.session)
            found.header, found.length = agent.session.header, len(agent.session.events)
            if agent.model.current() is None:
                agent.model.select(adapter.provider, "m")
            agent.inbox.clear()
            agent.followup("and now?")
            with trio.move_on_after(60):
                await agent.wait_status("idle")
            problems.extend(play_.judge.requests(adapter.requests))
            if not adapter.requests:
                problems.append("8. the resumed session sent no request")

    try:
        play(main, seed=play_.seed)
    except BaseException as error:  # reported, not raised
        problems.append(f"8. the second life failed: {type(error).__name__}: {error}")
    for session in opened:
        found.events = whole_log(session, store)
        problems.extend(play_.judge.moves(Log.of(found.events)))
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
