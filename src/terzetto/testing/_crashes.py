"""Power cuts: stop a scenario for good at every step, and resume what the disk still has.

What must hold afterwards: the session opens, its log begins with what had been flushed,
every invariant that a log can show, a valid request - and no call whose body had started is
said not to have started, so that no model is told to repeat an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import trio
from attrs import define, field, frozen

from ..session import Session
from ..vocabulary import (
    AssistantMessageEvent,
    CallId,
    Event,
    InvalidValue,
    SessionHeader,
    SessionId,
    ToolResultBlock,
    ToolResultEvent,
    texts,
)
from ._disk import Latency, SimulatedDisk
from ._explorer import Report, Violation, makers
from ._invariants import Evidence
from ._judging import Log
from ._life import Play, Resumed, Scenario, ctrl_c_heard, resume
from ._recording import Answers, MakeAdapter, Recording
from ._stage import Stage
from ._virtual import play
from ._whole import whole_log

POWER_CUT = "power cut"
LATENCY = Latency.of(0.05)
"""Of the disk whose power is cut, unless the scenario brings one of its own."""


def explore_crashes(
    scenario: Scenario,
    model: MakeAdapter | Answers | None = None,
    *,
    name: str | None = None,
    latency: Latency = LATENCY,
    seed: int = 0,
    limit: int = 10_000,
    stride: int = 1,
) -> Report:
    """Run *scenario* on a `SimulatedDisk`, cut the power at every point, and resume.

    At each point the disk is looked at in three ways: everything unflushed is gone, half of it
    is there and the next event is torn, everything was written after all. Every session that
    the disk then has is resumed by itself, without its tools, and asked to go on.

    Args:
        scenario: As for `explore`. If it makes a store of its own, a `SimulatedDisk`.
        model: As for `explore`.
        name: Shown in violations; the scenario's own name when absent.
        latency: Of the disk.
        seed: Of Trio's scheduler.
        limit: Most points; reaching it is itself a violation.
        stride: Every how many points to cut.
    """
    first, second = makers(scenario, model)
    played = Play(scenario=scenario, make_adapter=first, make_second=second, seed=seed)
    shown = name if name is not None else getattr(scenario, "__name__", "scenario")
    with ctrl_c_heard():
        return cut_everywhere(played, shown, latency, limit, stride)


def cut_everywhere(
    played: Play, shown: str, latency: Latency, limit: int = 10_000, stride: int = 1
) -> Report:
    """Cut the power at every point of *played*."""
    seen, seed = look(played, latency, limit, stride), played.seed
    report = Report(points=len(seen.points), steps=seen.steps)
    judged = {facts: life.problems(played) for facts, life in seen.lives.items()}
    for point, left in seen.points.items():
        problems = [problem for facts in left for problem in judged[facts]]
        report.violations += [Violation(shown, POWER_CUT, point, p, seed) for p in problems]
    if seen.steps > limit:
        report.violations.append(Violation(shown, POWER_CUT, limit, "it never ended", seed))
    return report


@frozen
class Life:
    """A session as a disk has it after a power cut. *before* is its log in the first life,
    *started* the calls whose bodies had begun, *stored* how many events the disk has."""

    session_id: SessionId
    how: str
    disk: SimulatedDisk
    before: Sequence[Event]
    started: frozenset[CallId]

    stored: int

    def problems(self, played: Play) -> list[str]:
        """What is wrong once it is resumed."""
        return self.resumed(played).problems

    def resumed(self, played: Play) -> Resumed:
        """Resume it, and judge what comes of it."""
        resumed = resume(played, self.session_id, self.disk)
        if resumed.header is not None:
            resumed.problems += self._problems(played, resumed.header, resumed)
        where = f"(session {self.session_id}, {self.how})"
        resumed.problems = [f"{problem} {where}" for problem in resumed.problems]
        return resumed

    def _problems(self, played: Play, header: SessionHeader, resumed: Resumed) -> Iterator[str]:
        events, length = resumed.events, resumed.length
        yield from played.judge.broken(Log.of(events), Evidence(events))
        known = min(self.stored, len(self.before))  # a session being resumed has more stored
        if list(events[:known]) != list(self.before[:known]):
            yield "8. the log does not begin with what was stored"
        left, repeated = _repeated(events[:length], self.started)
        yield from repeated
        if header.durability != "lazy":  # which promises nothing of what it did
            yield from (f"5. {call_id!r} ran and its call is not in the log" for call_id in left)


def _repeated(events: Sequence[Event], started: frozenset[CallId]) -> tuple[set[CallId], list[str]]:
    """Calls that ran and are not in the log at all; and those that are said not to have run."""
    left, repeated = set(started), list[str]()
    for event in events:
        match event.data:
            case AssistantMessageEvent(message=message):
                left -= {call.id for call in message.tool_calls}
            case ToolResultEvent(error=error, message=message):
                ids = {b.tool_call_id for b in message.content if isinstance(b, ToolResultBlock)}
                if error is not None and error.code in _UNSTARTED:
                    repeated += [
                        f"5. {i!r} ran but its result says {error.code}" for i in ids & started
                    ]
            case _:
                pass
    return left, repeated


_UNSTARTED = {texts.ABORTED_BEFORE_DISPATCH, texts.TOOL_NOT_STARTED}


_Facts: TypeAlias = Hashable
"""All that a life depends on. A session and a file only grow, so their lengths will do."""


def lives_of(stage: Stage, disk: SimulatedDisk) -> Iterator[tuple[_Facts, Callable[[], Life]]]:
    """The lives that would be left if the power were cut now: what each depends on, and what
    makes it; to be made now or never."""
    latest = {session.id: session for session in stage.sessions}
    for session in latest.values():
        file = disk._files.get(session.id)
        if file is None:
            continue  # its creation had not ended
        waiting, stored = len(disk.unflushed(session.id)), len(file.events)
        waits_for_all = session.header.durability == "each"
        started = frozenset(
            body.call_id
            for body in stage.bodies
            if body.agent_id == session.id and (waits_for_all or not body.read_only)
        )
        ways = {"nothing unflushed kept": (0, False)}
        if waiting:
            ways["half kept, torn"] = (waiting // 2, True)
            ways["all kept"] = (waiting, False)
        device = (disk, disk.latency, disk.cache, disk.room, frozenset(disk.extensions))
        for how, kept in ways.items():
            facts = (session, len(session.events), file, stored, waiting, started, how, device)
            yield facts, partial(_life, session, disk, started, how, *kept)


def _life(
    session: Session,
    disk: SimulatedDisk,
    started: frozenset[CallId],
    how: str,
    keep: int,
    torn: bool,
) -> Life:
    found = disk.after_crash(keep, torn=torn)
    before, stored = whole_log(session, disk), found.lengths[session.id]
    return Life(session.id, how, found, before, started, stored)


@define(eq=False)
class Seen(trio.abc.Instrument):
    """Looks before every *stride*-th task step at what a power cut would leave then.

    *lives* are the different ones, *points* which of them are left at each.
    """

    stage: Stage
    limit: int
    stride: int
    steps: int = 0
    refused: str | None = None
    points: dict[int, list[_Facts]] = field(factory=dict)
    lives: dict[_Facts, Life] = field(factory=dict)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if (self.steps - 1) % self.stride or self.refused is not None:
            return
        disk = self.stage.store
        if not isinstance(disk, SimulatedDisk):
            self.refused = type(disk).__name__
            self.stage.scope.cancel(reason="this store has no power to cut")
            return
        if self.steps > self.limit:
            self.stage.scope.cancel(reason="it never ends")
            return
        left = self.points[self.steps] = []
        for facts, life in lives_of(self.stage, disk):
            left.append(facts)
            if facts not in self.lives:
                self.lives[facts] = life()


def look(played: Play, latency: Latency, limit: int = 10_000, stride: int = 1) -> Seen:
    """What power cuts would leave, at every point. One run tells it all: to see what a disk has
    after a cut, none is needed."""
    seen = Seen(_stage(played, latency), limit, stride)
    try:
        _play_under(played, seen.stage, seen)
    except BaseException:  # what comes after it was ended has not happened
        if seen.refused is None and seen.steps <= limit:
            raise
    if seen.refused is not None:
        raise _no_disk(seen.refused)
    return seen


@define(eq=False)
class Cut(trio.abc.Instrument):
    """Cuts the power before the *point*-th task step. *lives* are what is left."""

    stage: Stage
    steps: int = 0
    done: bool = False
    refused: str | None = None
    lives: list[Life] = field(factory=list)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.steps != self.stage.point:
            return
        self.done = True
        disk = self.stage.store
        if not isinstance(disk, SimulatedDisk):
            self.refused = type(disk).__name__
            self.stage.scope.cancel(reason="this store has no power to cut")
            return
        self.lives += [life() for _, life in lives_of(self.stage, disk)]
        disk.crash()
        self.stage.scope.cancel(reason="the power is cut")


def cut_power(played: Play, point: int, latency: Latency) -> Cut:
    """Run up to *point* and no further."""
    cut = Cut(_stage(played, latency, point))
    try:
        _play_under(played, cut.stage, cut)
    except BaseException:  # what comes after the power cut has not happened
        if not cut.done:
            raise
    if cut.refused is not None:
        raise _no_disk(cut.refused)
    return cut


def _stage(played: Play, latency: Latency, point: int = 0) -> Stage:
    return Stage(Recording(played.make_adapter()), None, point, SimulatedDisk(latency))


def _play_under(played: Play, stage: Stage, instrument: trio.abc.Instrument) -> None:
    async def main() -> None:
        with stage.scope:
            await played.scenario(stage)

    play(main, seed=played.seed, instruments=[instrument])


def _no_disk(store: str) -> InvalidValue:
    return InvalidValue(
        f"explore_crashes: the scenario's store is a {store}; it has to be a SimulatedDisk"
    )
