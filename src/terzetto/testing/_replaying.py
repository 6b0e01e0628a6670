"""One point again, with its log: what the command prints for ``--point``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ._crashes import LATENCY, POWER_CUT, cut_power
from ._explorer import problems_of
from ._life import Play, Second, ctrl_c_heard, run
from ._stage import Source
from ._trace import traced
from ._whole import whole_log


def replay(play: Play, name: str, source: Source, point: int, second: Second | None = None) -> int:
    """Print the logs of a run that is struck at *point*; the exit code."""
    with ctrl_c_heard():
        unstruck, outcome = run(play), run(play, source, point, second)
    stage = outcome.stage
    then = f", then {second.source.name} {second.after} later" if second else ""
    where = f"{name}, {source.name}, point {point}{then}, seed {play.seed}"
    print(f"{where}: {outcome.steps} task steps")
    if not stage.struck:
        print(f"the scenario ends before point {point}")
    elif second and not stage.struck_again:
        print("the run has unwound by then: nobody strikes again")
    for session, length in zip(stage.sessions, _lengths(stage.lengths_at_strike), strict=False):
        print(f"\nsession {session.id}")
        strike = f"struck by {source.name}; {stage.strike_text}"
        log = whole_log(session, stage.store)
        print("\n".join(traced(log, length if stage.struck else None, strike)))
    struck = [source, second.source] if second else [source]
    problems = problems_of(outcome, unstruck, *struck) if stage.struck else outcome.problems
    return _told(problems)


def replay_cut(play: Play, name: str, point: int) -> int:
    """Print the logs that a power cut leaves, each resumed; the exit code."""
    with ctrl_c_heard():
        cut = cut_power(play, point, LATENCY)
        print(f"{name}, {POWER_CUT}, point {point}, seed {play.seed}")
        problems: list[str] = []
        for life in cut.lives:
            resumed = life.resumed(play)
            problems += resumed.problems
            print(f"\nsession {life.session_id}, {life.how}")
            if resumed.header is not None:
                strike = "the power is cut; resumed"
                print("\n".join(traced(resumed.events, life.stored, strike)))
    return _told(problems)


def _told(problems: Sequence[str]) -> int:
    print(f"\n{len(problems)} violations")
    for problem in problems:
        print(f"  {problem}")
    return 1 if problems else 0


def _lengths(known: Sequence[int]) -> Iterator[int]:
    """Of sessions opened after the strike, none was there."""
    yield from known
    while True:
        yield 0
