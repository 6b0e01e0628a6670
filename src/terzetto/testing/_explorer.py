"""The explorer: run a scenario, cancel it at its 1st, 2nd, 3rd ... step, check each time.

A *point* is a moment between two task steps of Trio's scheduler: every place where a
cancel, a disposal or a Ctrl-C can be noticed lies between two of them. The explorer
runs the scenario afresh for every point and every source until a run ends before its
point is reached.

What a point strikes is decided by `Source`; what must hold afterwards by the eight
invariants, the host's own cancellation, the scenario's own expectations, and a second
life of the same session.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field, frozen

from ..llm.scripted import call
from ..tools import Tool
from ..vocabulary import Aborted, DisposedCause, Event, ParentCause, TurnEnd, UserCause
from ._checkpoints import Checkpoints
from ._invariants import check_invariants
from ._judging import Invariants
from ._life import Check, Outcome, Play, Scenario, ctrl_c_heard, run
from ._pairs import Pairs, struck_twice
from ._recording import Answers, MakeAdapter, scripted
from ._sampling import Points, sample
from ._stage import SOURCES, Source, Stage


@frozen
class Violation:
    """Something that must not happen, and how to make it happen again.

    *point* counts task steps from 1; for a source that strikes inside bodies or listeners,
    it counts those. *seed* is the scheduler's. *then*: who struck again, how many steps later.
    """

    scenario: str
    source: str
    point: int
    problem: str
    seed: int = 0
    then: str = ""

    @property
    def command(self) -> str:
        """Plays it again and prints its log, if the scenario is one of the shipped ones."""
        name, _, after = self.then.removesuffix(" later").rpartition(", ")
        then = f" --then {name!r} --after {after}" if name else ""
        return (
            f"python -m terzetto.testing.explore --scenario {self.scenario!r} "
            f"--source {self.source!r} --point {self.point}{then} --seed {self.seed}"
        )

    def __str__(self) -> str:
        point = f"point {self.point}, then {self.then}" if self.then else f"point {self.point}"
        where = f"{self.scenario}, {self.source}, {point}, seed {self.seed}"
        return f"{where}: {self.problem}"


@define
class Report:
    """What an exploration found. *points* counts the runs that were struck, *left_out* those
    that a sample left out, *steps* the task steps of the run that nobody struck."""

    points: int = 0
    steps: int = 0
    left_out: int = 0
    violations: list[Violation] = field(factory=list)

    def __str__(self) -> str:
        return f"{self.points:,} points, {len(self.violations):,} violations"

    def add(self, other: Report) -> None:
        """What *other* found of the same scenario."""
        self.points += other.points
        self.left_out += other.left_out
        self.violations += other.violations


def explore(
    scenario: Scenario,
    model: MakeAdapter | Answers | None = None,
    *,
    name: str | None = None,
    sources: Sequence[Source] = SOURCES,
    check: Check | None = None,
    invariants: Invariants = check_invariants,
    checkpoints: Checkpoints | None = None,
    seed: int = 0,
    limit: int = 10_000,
    stride: int = 1,
    pairs: Pairs = 0,
) -> Report:
    """Run *scenario* struck at every point from every source, and check each run.

    Args:
        scenario: Opens an engine and an agent on the stage and drives it to its end. Called
            once for every point, so what it needs it makes afresh.
        model: What the model answers, request by request (then ``more``), or a function
            that makes a fresh adapter for each run. Absent: the scenario's own ``model``,
            as `calling` gives one, or a model that only says ``more``.
        name: Shown in violations; the scenario's own name when absent.
        sources: Who strikes.
        check: Called with the stage after every run; what it returns is wrong.
        invariants: What must hold of every log and its bodies.
        checkpoints: Notes which of its awaits were reached and cancelled.
        seed: Of Trio's scheduler, so that a point is the same moment in every run.
        limit: Most points per source; reaching it is itself a violation.
        stride: Every how many points to strike; 1 is all of them.
        pairs: How many runs are struck a second time, by another of *sources*, while they
            unwind: a sample by *seed*, or ``"all"`` of them, which are many thousands.

    A run that hangs is a violation, too: time is virtual, and the run is given up when every
    task is blocked for ever. Not to be called inside a Trio run; from the main thread, else
    Ctrl-C cannot be explored. Threads work, sockets and processes do not (`play`).
    A Ctrl-C of yours while it works is raised, unless it comes with one of its own.
    """
    first, second = makers(scenario, model)
    play = Play(
        scenario=scenario,
        make_adapter=first,
        make_second=second,
        check=check,
        invariants=invariants,
        seed=seed,
        checkpoints=checkpoints,
    )
    shown = name if name is not None else getattr(scenario, "__name__", "scenario")
    with ctrl_c_heard():
        found = Findings(play, shown)
        for source in sources:
            found.strike(source, limit, stride)
        if pairs:
            found.strike_twice(sources, pairs, stride)
    return found.report


def calling(tool: Tool, /, **arguments: object) -> Scenario:
    """The shortest scenario: an agent whose model calls *tool* once, with *arguments*.

    It brings its own model, so ``explore(calling(save, path="a.txt"))`` says whether ``save``
    keeps the engine's promises wherever it is cancelled. What else must hold goes into
    ``check=``, or into a scenario of your own.
    """

    async def scenario(stage: Stage) -> None:
        async with stage.open_engine([tool]) as engine, stage.open_agent(engine) as agent:
            stage.send("followup", "go")
            await agent.wait_idle()

    scenario.__name__ = tool.name
    scenario.model = [call(tool.name, arguments), "Done."]  # type: ignore[attr-defined]
    return scenario


def makers(
    scenario: Scenario, model: MakeAdapter | Answers | None
) -> tuple[MakeAdapter, MakeAdapter]:
    """What makes the models of first lives, and of second ones."""
    given: MakeAdapter | Answers = getattr(scenario, "model", ()) if model is None else model
    return (given, given) if callable(given) else (scripted(given), scripted(()))


@define
class Findings:
    """What an exploration of one scenario finds. Made by the parts of it, one after the other."""

    play: Play
    name: str
    report: Report = field(factory=Report)
    unstruck: Outcome = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.unstruck = run(self.play)
        self.report.steps = self.unstruck.steps
        self.tell("nobody", 0, self.unstruck.problems)

    def tell(self, source: str, point: int, problems: Sequence[str], second: str = "") -> None:
        seed = self.play.seed
        for problem in problems:
            self.report.violations.append(
                Violation(self.name, source, point, problem, seed, second)
            )

    def strike(self, source: Source, limit: int, stride: int) -> None:
        """Strike once, at every point there is: until a run ends before it is reached."""
        for point in range(self._first(source), limit + 1, stride):
            if not self._strike_at(source, point):
                return
        self.tell(source.name, limit, ["it never ended"])

    def strike_some(self, source: Source, points: Points) -> None:
        """Strike at some of the points of the run that nobody struck, counting the others."""
        there = range(self._first(source), self.unstruck.steps + 1, points.stride)
        struck = sample(self.unstruck.waited, there, points)
        self.report.left_out += len(there) - len(struck)
        for point in struck:
            self._strike_at(source, point)

    def _first(self, source: Source) -> int:
        return max(1, self.unstruck.first_agent) if source.to_agent else 1

    def _strike_at(self, source: Source, point: int) -> bool:
        """Strike at *point*; whether the run came to it."""
        outcome = run(self.play, source, point)
        if not outcome.stage.struck:
            return False
        self.report.points += 1
        self.tell(source.name, point, problems_of(outcome, self.unstruck, source))
        return True

    def strike_twice(self, sources: Sequence[Source], pairs: Pairs, stride: int) -> None:
        """Strike again while the first strike is being followed."""
        found = struck_twice(self.play, self.name, self.unstruck, sources, pairs, stride)
        for pair, outcome in found:
            self.report.points += 1
            second = pair.second
            problems = problems_of(outcome, self.unstruck, pair.source, second.source)
            told = f"{second.source.name}, {second.after} later"
            self.tell(pair.source.name, pair.point, problems, told)


def problems_of(outcome: Outcome, unstruck: Outcome, *sources: Source) -> list[str]:
    """What is wrong with a run that *sources* struck, its endings included."""
    return outcome.problems + _ending_problems(outcome.events, unstruck.events, sources)


def _ending_problems(
    events: Sequence[Event], unstruck: Sequence[Event], sources: Sequence[Source]
) -> list[str]:
    """A turn ends as in the run that nobody struck, or says who ended it."""
    endings = [e.data.ending for e in unstruck if isinstance(e.data, TurnEnd)]
    natural = {type(ending) for ending in endings}
    # What a struck scenario leaves behind is ended by leaving its blocks.
    causes = {DisposedCause(), ParentCause(), *(source.cause for source in sources)}
    if any(not source.host or source.interrupts for source in sources):
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
