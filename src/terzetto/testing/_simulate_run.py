"""Playing a simulation: its lives one after the other, a last one for the survivors, a verdict."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import trio
from attrs import field, frozen

from ..llm.scripted import Part, ScriptedModel
from ..session import Session
from ..session._codec import dumps_event
from ..tools import Tool
from ..vocabulary import Event, InvalidValue, SessionId, StoreError, ToolCallBlock, UsageError
from ._life import ctrl_c_heard
from ._pinned import can_be_pinned, why_not
from ._simulate_draw import drawn
from ._simulate_judge import SessionCheck, judge
from ._simulate_life import Living
from ._simulate_model import Mind
from ._simulate_plan import TOOLS, Act, Call, Life, Simulation
from ._simulate_world import Note, World
from ._virtual import Hung, play
from ._whole import whole_log

Check: TypeAlias = Callable[[], Iterable[str]]
MAX_STEPS = 60_000
"""Task steps of one life, at most; a life takes some hundreds."""


@frozen(kw_only=True)
class Simulated:
    """What came of a simulation.

    Attributes:
        simulation: What was played.
        problems: What must not happen and did, in words. Nothing, it should be.
        turns: Turns that began, in all lives and sessions, lost ones included.
        events: Events that were recorded.
        digest: Of all logs of all lives as they were in memory; one script, one digest, in
            every process.
        sessions: The logs as the disk has them in the end, by session.
        notes: What happened, in order, if it was traced: the life's number, its virtual
            seconds, who, and what.
    """

    simulation: Simulation = field(repr=False)
    problems: tuple[str, ...]
    turns: int
    events: int
    digest: str
    sessions: dict[str, Sequence[Event]] = field(repr=False)
    notes: Sequence[Note] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.turns:,} turns, {self.events:,} events, {len(self.problems):,} violations"


def simulate(
    simulation: int | Simulation,
    *,
    tools: Sequence[Tool] = (),
    calls: Sequence[Part] = (),
    session_checks: Iterable[SessionCheck] = (),
    check: Check | None = None,
    traced: bool = False,
) -> Simulated:
    """Play one simulation from its beginning to its end, and say what is wrong.

    A seed stands for several lives of several agents on a simulated disk: a model that
    stalls, fails and streams in pieces; tools that hang, raise, swallow their cancel or do
    not give way; listeners that misbehave; steering, edits of the inbox, cancels from every
    side, forks, children, maintenance; a store that is slow, full or without power. What
    happens follows from the seed alone, to the byte, in every process.

    Args:
        simulation: A seed, or what `Simulation.from_json` read.
        tools: Of your own, beside the simulated ones. Time is virtual (`play`): threads
            work, sockets and processes do not.
        calls: Of your tools, as ``terzetto.llm.scripted.call`` makes them; the model picks
            among them. What a body did before a power cut, it did.
        session_checks: Asked of every session's log when all is over, beside the invariants.
        check: Asked when all is over: what is wrong with the world that your tools changed.
        traced: Keep `Simulated.notes`.

    From the main thread, else Ctrl-C is left out. Somebody's own Ctrl-C is raised.
    Raises `UsageError` inside a Trio run, and where Trio's scheduler cannot be pinned;
    `InvalidValue` for what is no seed and no script.
    """
    if not can_be_pinned():
        raise UsageError(why_not())
    if trio.lowlevel.in_trio_run():
        raise UsageError("simulate: runs Trio itself, so it cannot be called inside a Trio run")
    for given in tools:
        if not isinstance(given, Tool):
            raise InvalidValue(f"tools: expected Tools, got {given!r}")
        if given.name in TOOLS:
            raise InvalidValue(
                f"tools: {given.name!r} is one of the simulation's own ({', '.join(TOOLS)}); "
                "give yours another name"
            )
    for part in calls:
        if not isinstance(part, Part) or not isinstance(part.block, ToolCallBlock):
            raise InvalidValue(f"calls: expected what scripted.call(...) gives, got {part!r}")
    if isinstance(simulation, int) and not isinstance(simulation, bool):
        simulation = drawn(simulation, own=len(calls))
    if not isinstance(simulation, Simulation):
        raise InvalidValue(f"simulate: expected a seed or a Simulation, got {simulation!r}")
    _check_calls(simulation, len(calls))
    mind = Mind()
    world = mind.world = World(simulation, ScriptedModel(mind.reply), tools, calls, traced)
    playing = _Playing(world)
    with ctrl_c_heard():
        for life in simulation.lives:
            playing.live(life)
        playing.afterlife()
    if not playing.hung:
        world.problems += judge(world, session_checks)
    if check is not None:
        world.problems += check()
    return Simulated(
        simulation=simulation,
        problems=tuple(world.problems),
        turns=world.turns,
        events=world.events,
        digest=playing.digest.hexdigest()[:32],
        sessions={name: world.disk.stored(name) for name in sorted(world.disk.lengths)},
        notes=tuple(world.notes),
    )


def _check_calls(simulation: Simulation, known: int) -> None:
    for answers in simulation.answers.values():
        for answer in answers:
            for part in answer.parts:
                if isinstance(part, Call) and part.given is not None and part.given >= known:
                    raise InvalidValue(
                        f"the script wants call {part.given} of yours, and calls= has {known}"
                    )


class _Playing:
    """Plays lives, and looks at what each leaves behind."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.digest = hashlib.sha256()
        self.hung = False

    def live(self, life: Life) -> None:
        """One life. What it leaves in memory is judged at once, the rest when all is over."""
        if self.hung:
            return
        world = self.world
        world.number += 1
        world.dead, world.ended_by, world.engine = False, None, None
        world.interrupted = False
        world.unsaved, world.left = {}, None
        world.troubled = any(trouble.does != "slow" for trouble in life.troubles)
        world.sessions, world.opened, world.handed = {}, {}, {}
        world.opens.clear()
        raised: BaseException | None = None
        seed = world.plan.seed * 7 + world.number
        try:
            play(Living(world, life).run, seed=seed, max_steps=MAX_STEPS)
        except Hung as error:
            if not world.dead:
                world.problem(f"7. life {world.number} hangs: {error}")
                self.hung = True
        except BaseException as error:  # what leaves a life is judged, not raised
            if isinstance(error, KeyboardInterrupt) and not world.interrupted:
                raise  # somebody pressed Ctrl-C
            raised = error
        self._note_logs()
        if world.dead:
            world.bury()
            return
        world.count()
        if self.hung:
            return
        for problem in self._left_by(raised):
            world.problem(problem)
        for name, session in world.sessions.items():
            self._look_at(name, session)

    def afterlife(self) -> None:
        """Everybody whom the disk still knows is resumed, and asked to go on."""
        world = self.world
        world.over = True
        names = sorted(world.disk.lengths)
        opening = [Act(do="open", who=name) for name in names]
        asking = [Act(at=1 + world.plan.latency * 20, do="followup", who=name) for name in names]
        before = {name: len(world.asked_by(SessionId(name))) for name in names}
        self.live(Life(acts=(*opening, *asking)))
        if self.hung:
            return
        for name in names:
            if SessionId(name) not in world.handed:
                world.lost.add(SessionId(name))  # a fork that a crash cut short
            elif len(world.asked_by(SessionId(name))) == before[name]:
                world.problem(f"8. {name} was resumed and sent no request")

    def _note_logs(self) -> None:
        for name, session in self.world.sessions.items():
            self.digest.update(f"{self.world.number} {name}\n".encode())
            for event in session.events:
                self.digest.update(dumps_event(event))

    def _left_by(self, raised: BaseException | None) -> Iterable[str]:
        """What left the life, and what may not have."""
        world = self.world
        left = raised
        if isinstance(left, BaseExceptionGroup):
            inner = left.exceptions
            left = inner[0] if len(inner) == 1 else left
        match left:
            case None:
                if world.ended_by == "ctrl-c":
                    yield "7. a Ctrl-C was swallowed"
            case KeyboardInterrupt():
                pass  # the script's
            case StoreError() if world.troubled:
                pass
            case _:
                yield f"7. {type(left).__name__} left the life: {left}"
        if world.unsaved and not world.troubled:
            yield f"8. what was recorded is not saved: {dict(world.unsaved)}"
        if world.left is not None:
            count = world.left()
            if count.agents_living or count.tool_bodies_running or count.turns_open:
                yield f"7. the engine counts what it left behind: {count}"
        if self.open_streams:
            yield f"7. {self.open_streams} streams are open after the engine was left"

    @property
    def open_streams(self) -> int:
        adapter = self.world.adapter
        return adapter.open_streams if isinstance(adapter, ScriptedModel) else 0

    def _look_at(self, name: SessionId, session: Session) -> None:
        """A log that its owner left by himself is balanced, and stored unless that was told."""
        world = self.world
        if name in world.unsaved:
            world.forget(name, world.disk)
            return
        if name not in world.disk.lengths:
            world.problem(f"8. the session {name} is not stored")
            return
        events, stored = whole_log(session, world.disk), list(world.disk.stored(name))
        if world.opens[name] > 1:  # given up when it was opened once more, or while it is
            events, stored = (x[: min(len(events), len(stored))] for x in (events, stored))
        if events != stored:
            world.problem(f"8. the stored log of {name} differs from the one in memory")
