"""The shortest failing trace: what somebody should read who looks for the cause of a violation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attrs import evolve, field, frozen

from ._crashes import LATENCY, POWER_CUT, cut_power
from ._explorer import Violation, makers, problems_of
from ._invariants import check_invariants
from ._judging import Invariants
from ._life import Check, Outcome, Play, Scenario, Second, ctrl_c_heard, run
from ._recording import Answers, MakeAdapter
from ._script_acts import Script
from ._stage import SOURCES, Source
from ._trace import traced
from ._whole import whole_log

_BY_NAME = {source.name: source for source in SOURCES}
_LOWER_POINTS = 40
"""Points and pairs that are tried below the one that was found."""
_MOST_RUNS = 2_000
"""What is not shorter by then stays as long as it is."""


@frozen
class Trace:
    """A violation with its story, as short as it could be made.

    *violation* is the earliest of its kind in the whole scenario, so that its command finds it;
    the rest tells of what the scenario was shortened to.
    *acts* are the acts of a `Script` that were begun, *before* how many of them when the strike
    came. *answers* are how many of the model's it takes, None if they are not a list. *struck*
    is where each task waited at the strike; *again* where they waited at the second, if there
    was one. *log* are the lines of the session's log, the strike among them. *runs* counts
    what was played to find it.
    """

    violation: Violation
    problems: tuple[str, ...]
    acts: tuple[str, ...] = ()
    before: int = 0
    answers: int | None = None
    struck: str = ""
    again: str = ""
    log: tuple[str, ...] = field(default=(), repr=False)
    runs: int = 0

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield str(self.violation)
        if self.acts:
            yield "what ran"
        for number, act in enumerate(self.acts, start=1):
            yield f"  {number}. {act}{'   <- struck' if number == self.before else ''}"
        if self.answers is not None:
            yield f"  with {self.answers} of the model's answers, then 'more'"
        yield "where it was struck"
        for place in self.struck.split("; ") if self.struck else ["nobody struck"]:
            yield f"  {place}"
        if self.again:
            yield "where it was struck again"
            yield from (f"  {place}" for place in self.again.split("; "))
        yield "the log"
        yield from (f"  {line}" for line in self.log)
        yield "what is wrong"
        yield from (f"  {problem}" for problem in self.problems)
        yield "again"
        yield f"  {self.violation.command}"


def shortest_trace(
    violation: Violation,
    scenario: Scenario,
    model: MakeAdapter | Answers | None = None,
    *,
    sources: Sequence[Source] = SOURCES,
    check: Check | None = None,
    invariants: Invariants = check_invariants,
) -> Trace:
    """The shortest story in which what *violation* tells still goes wrong.

    Tried are: one strike instead of two, an earlier point, fewer steps between two strikes;
    then, of a list, fewer answers of the model, and of a `Script`, fewer acts. A story counts
    if the same thing is wrong in it, but for numbers and quoted names.

    Args:
        violation: As `explore` or `explore_crashes` reported it.
        scenario: The same scenario, and so on for *model*, *check* and *invariants*.
        sources: Those that were explored with, if they are your own.

    Plays the scenario again and again, as `explore` does, and under the same conditions.
    """
    search = _Search(violation, {s.name: s for s in sources} | _BY_NAME, check, invariants)
    with ctrl_c_heard():
        return search.run(scenario, model)


def kind_of(problem: str) -> str:
    """What is wrong, whoever it is wrong with."""
    return re.sub(r"'[^']*'|\d+", "#", problem.partition(". ")[2] or problem)


@frozen
class _Case:
    """A scenario, and how it is struck."""

    scenario: Scenario
    model: MakeAdapter | Answers | None
    source: Source | None
    point: int
    second: Second | None = None


@frozen(eq=False)
class _Search:
    violation: Violation
    sources: dict[str, Source]
    check: Check | None
    invariants: Invariants
    _runs: list[int] = field(factory=lambda: [0], init=False)
    _last: list[tuple[Scenario, MakeAdapter | Answers | None, Play, Outcome]] = field(
        factory=list, init=False
    )

    def run(self, scenario: Scenario, model: MakeAdapter | Answers | None) -> Trace:
        violation = self.violation
        if violation.source == POWER_CUT:
            return self._cut(scenario, model)
        given: MakeAdapter | Answers = getattr(scenario, "model", ()) if model is None else model
        source = self.sources.get(violation.source)  # nobody: the run that was not struck
        second = None
        if violation.then:
            name, _, after = violation.then.removesuffix(" later").rpartition(", ")
            second = Second(self.sources[name], int(after))
        case = _Case(scenario, given, source, violation.point, second)
        earliest = self._earlier(case)
        return self._tell(earliest, self._shorter(earliest))

    # --- shorter and shorter ------------------------------------------------------------

    def _earlier(self, case: _Case) -> _Case:
        """The same scenario, struck once instead of twice, or earlier."""
        if case.source is None:
            return case
        if case.second is not None:
            points = range(1, min(case.point + case.second.after, _LOWER_POINTS) + 1)
            for source in (case.source, case.second.source):
                for point in points:
                    once = _Case(case.scenario, case.model, source, point)
                    if self._fails(once):
                        return once
            for after in range(1, case.second.after):
                sooner = evolve(case, second=Second(case.second.source, after))
                if self._fails(sooner):
                    return sooner
            return case
        for point in range(max(1, case.point - _LOWER_POINTS), case.point):
            earlier = evolve(case, point=point)
            if self._fails(earlier):
                return earlier
        return case

    def _shorter(self, case: _Case) -> _Case:
        """Fewer answers and fewer acts, struck wherever it fails then."""
        shorter = True
        while shorter:
            shorter = False
            for candidate in _candidates(case):
                found = self._anywhere(candidate)
                if found is not None:
                    case, shorter = found, True
                    break
        return case

    def _anywhere(self, case: _Case) -> _Case | None:
        """*case* struck at the first point where it fails, not after the one that is known."""
        if case.source is None:
            return case if self._fails(case) else None
        begin = self._unstruck(case)[1].first_agent if case.source.to_agent else 1
        for point in range(max(1, begin), case.point + 1):
            struck = evolve(case, point=point)
            if self._fails(struck):
                return struck
        return None

    def _fails(self, case: _Case) -> bool:
        if self._runs[0] >= _MOST_RUNS:
            return False
        wanted = kind_of(self.violation.problem)
        problems, _ = self._play(case)
        return any(kind_of(problem) == wanted for problem in problems)

    def _play(self, case: _Case, *, told: bool = False) -> tuple[list[str], Outcome]:
        play, unstruck = self._unstruck(case)
        if told:
            play = evolve(play, told=True)
        if case.source is None:
            return unstruck.problems, unstruck
        wanted = kind_of(self.violation.problem)
        if any(kind_of(problem) == wanted for problem in unstruck.problems):
            return [], unstruck  # another story: it takes no strike
        if case.source.to_agent and case.point < unstruck.first_agent:
            return [], unstruck
        self._runs[0] += 1
        outcome = run(play, case.source, case.point, case.second)
        stage = outcome.stage
        if not stage.struck or (case.second is not None and not stage.struck_again):
            return [], outcome
        struck = [case.source, case.second.source] if case.second else [case.source]
        return problems_of(outcome, unstruck, *struck), outcome

    def _unstruck(self, case: _Case) -> tuple[Play, Outcome]:
        """The play of *case*, which remembers its judgements, and its run that nobody strikes."""
        if self._last and (self._last[0][0], self._last[0][1]) == (case.scenario, case.model):
            return self._last[0][2:]
        first, second = makers(case.scenario, case.model)
        play = Play(
            scenario=case.scenario,
            make_adapter=first,
            make_second=second,
            check=self.check,
            invariants=self.invariants,
            seed=self.violation.seed,
        )
        self._runs[0] += 1
        outcome = run(play)
        self._last[:] = [(case.scenario, case.model, play, outcome)]
        return play, outcome

    # --- told ---------------------------------------------------------------------------

    def _tell(self, earliest: _Case, case: _Case) -> Trace:
        problems, outcome = self._play(case, told=True)
        wanted = kind_of(self.violation.problem)
        stage, then = outcome.stage, ""
        if earliest.second is not None:
            then = f"{earliest.second.source.name}, {earliest.second.after} later"
        same = [p for p in problems if kind_of(p) == wanted] or [self.violation.problem]
        struck = case.source.name if case.source else "nobody"
        log = list[str]()
        if stage.session is not None:
            lengths = stage.lengths_at_strike
            at = (lengths[0] if lengths else 0) if stage.struck else None
            log = traced(whole_log(stage.session, stage.store), at, f"struck by {struck}")
        return Trace(
            evolve(self.violation, source=struck, point=earliest.point, problem=same[0], then=then),
            tuple(problems),
            acts=tuple(stage.acts),
            before=len(stage.acts_at_strike) if stage.struck else 0,
            answers=None if callable(case.model) or case.model is None else len(case.model),
            struck=stage.strike_text,
            again=stage.second_strike_text,
            log=tuple(log),
            runs=self._runs[0],
        )

    def _cut(self, scenario: Scenario, model: MakeAdapter | Answers | None) -> Trace:
        """Of a power cut: the first point at which it happens."""
        first, second = makers(scenario, model)
        play = Play(scenario=scenario, make_adapter=first, make_second=second)
        play = evolve(play, seed=self.violation.seed)
        wanted = kind_of(self.violation.problem)
        for point in range(1, self.violation.point + 1):
            self._runs[0] += 1
            for life in cut_power(play, point, LATENCY).lives:
                resumed = life.resumed(play)
                same = [p for p in resumed.problems if kind_of(p) == wanted]
                if same:
                    strike = f"the power is cut ({life.how}); resumed"
                    return Trace(
                        evolve(self.violation, point=point, problem=same[0]),
                        tuple(resumed.problems),
                        log=tuple(traced(resumed.events, life.stored, strike)),
                        runs=self._runs[0],
                    )
        return Trace(self.violation, (self.violation.problem,), runs=self._runs[0])


def _candidates(case: _Case) -> Iterator[_Case]:
    """*case* with less: without its last answers first, then without single ones and acts."""
    model = case.model
    if model is not None and not callable(model):
        answers = list(model)
        for length in (len(answers) // 2, len(answers) - 1):
            if 0 <= length < len(answers):
                yield evolve(case, model=answers[:length])
        for at in range(len(answers) - 1):
            yield evolve(case, model=[*answers[:at], *answers[at + 1 :]])
    if isinstance(case.scenario, Script):
        acts = case.scenario.acts
        for at in reversed(range(len(acts) - 1)):  # the last one is what it waits for
            shorter = evolve(case.scenario, acts=(*acts[:at], *acts[at + 1 :]))
            yield evolve(case, scenario=shorter)
