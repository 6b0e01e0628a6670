"""The command ``python -m terzetto.testing.explore``: arguments, output, exit codes.

The work is done in processes, a scenario and a source at a time; what is printed comes in
the order of the scenarios, whichever is ready first.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeAlias

from attrs import define, field, frozen

from ._checkpoints import Checkpoints
from ._crashes import POWER_CUT, cut_power, explore_crashes
from ._disk import Latency
from ._explorer import Report, Violation, explore, makers, problems_of
from ._life import Play, ctrl_c_heard, run
from ._shipped import SHIPPED
from ._stage import SOURCES
from ._trace import traced
from ._whole import whole_log

_ABOUT = """\
Run the scenarios that Terzetto ships, cancel each at every step from every source, and
check the eight invariants of docs/explanation/cancellation.md after every run.
"""
_EPILOG = "exit codes: 0 no violations, 1 violations, 2 the command line is wrong, 130 Ctrl-C"

ENGINE = (
    "agent",
    "tools",
    "session",
    "stores/_base.py",
    "stores/_memory.py",
    "llm/_runtime.py",
    "llm/scripted.py",
    "hooks.py",
    "engine.py",
)
"""Whose checkpoints are counted: paths under the package."""

_NAMES = [*(source.name for source in SOURCES), POWER_CUT]
_BY_NAME = {source.name: source for source in SOURCES}
_Findings: TypeAlias = tuple[frozenset[int], frozenset[int]]


@cache
def engine_checkpoints() -> Checkpoints:
    """The engine's own awaits: all but those of HTTP, of files and of the command line."""
    package = Path(__file__).parents[1]
    return Checkpoints.of(*(package / path for path in ENGINE))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    options = _parser().parse_args(argv)
    try:
        if options.list:
            return _list()
        scenarios = options.scenario or list(SHIPPED)
        sources = options.source or _NAMES
        if options.point is not None:
            return _replay(scenarios, sources, options.point, options.seed)
        return _explore_all(scenarios, sources, options)
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m terzetto.testing.explore", description=_ABOUT, epilog=_EPILOG
    )
    add = parser.add_argument
    add("--all", action="store_true", help="every scenario and every source (the default)")
    add("--list", action="store_true", help="show the scenarios and the sources")
    add("--scenario", action="append", choices=list(SHIPPED), metavar="NAME", help="only this one")
    add("--source", action="append", choices=_NAMES, metavar="NAME", help="only this one")
    add("--stride", type=_positive, default=1, metavar="N", help="strike every N points")
    add("--point", type=_positive, metavar="N", help="one run, with its log; needs the two names")
    add("--seed", type=int, default=0, metavar="N", help="of the scheduler (0)")
    add("--jobs", type=_positive, default=os.cpu_count() or 1, metavar="N", help="processes")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {number}")
    return number


def _list() -> int:
    width = max(map(len, [*SHIPPED, *_NAMES]))
    print("scenarios")
    for name, shipped in SHIPPED.items():
        print(f"  {name:{width}}  {shipped.does}")
    print("sources")
    for source in SOURCES:
        print(f"  {source.name:{width}}  a turn that it cuts ends by {source.cause}")
    print(f"  {POWER_CUT:{width}}  a turn that it cuts is ended by the next resume, Interrupted()")
    return 0


# --- one point ------------------------------------------------------------------------


def _replay(scenarios: Sequence[str], sources: Sequence[str], point: int, seed: int) -> int:
    if len(scenarios) != 1 or len(sources) != 1:
        print("--point needs one --scenario and one --source", file=sys.stderr)
        return 2
    shipped = SHIPPED[scenarios[0]]
    first, second = makers(shipped.scenario, shipped.model)
    play = Play(scenario=shipped.scenario, make_adapter=first, make_second=second, seed=seed)
    if sources[0] == POWER_CUT:
        return _replay_cut(play, shipped.name, point)
    source = _BY_NAME[sources[0]]
    with ctrl_c_heard():
        unstruck, outcome = run(play), run(play, source, point)
    stage = outcome.stage
    print(f"{shipped.name}, {source.name}, point {point}, seed {seed}: {outcome.steps} task steps")
    if not stage.struck:
        print(f"the scenario ends before point {point}")
    for session, length in zip(stage.sessions, _lengths(stage.lengths_at_strike), strict=False):
        print(f"\nsession {session.id}")
        strike = f"struck by {source.name}; {stage.strike_text}"
        print(
            "\n".join(
                traced(whole_log(session, stage.store), length if stage.struck else None, strike)
            )
        )
    problems = problems_of(outcome, unstruck, source) if stage.struck else outcome.problems
    return _told(problems)


def _replay_cut(play: Play, name: str, point: int) -> int:
    with ctrl_c_heard():
        cut = cut_power(play, point, Latency.of(0.05))
        print(f"{name}, {POWER_CUT}, point {point}, seed {play.seed}")
        problems: list[str] = []
        for life in cut.lives:
            resumed = life.resumed(play)
            problems += resumed.problems
            print(f"\nsession {life.session_id}, {life.how}")
            if resumed.session is not None:
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


# --- all of them ----------------------------------------------------------------------


@frozen
class _Unit:
    """What one worker does at a time."""

    scenario: str
    source: str
    stride: int
    seed: int


@frozen
class _Result:
    report: Report
    seconds: float
    findings: _Findings


def _work(unit: _Unit) -> _Result:
    # What the engine reports of runs that are cut short is no news here.
    logging.getLogger("terzetto").addHandler(logging.NullHandler())
    began = time.process_time()
    shipped, checkpoints = SHIPPED[unit.scenario], engine_checkpoints().fresh()
    if unit.source == POWER_CUT:
        report = explore_crashes(
            shipped.scenario,
            shipped.model,
            name=shipped.name,
            seed=unit.seed,
            stride=unit.stride,
        )
        return _Result(report, time.process_time() - began, checkpoints.findings())
    report = explore(
        shipped.scenario,
        shipped.model,
        name=shipped.name,
        sources=[_BY_NAME[unit.source]],
        checkpoints=checkpoints,
        seed=unit.seed,
        stride=unit.stride,
    )
    return _Result(report, time.process_time() - began, checkpoints.findings())


@define
class _Row:
    """A scenario's line in the table."""

    name: str
    steps: int = 0
    points: int = 0
    violations: list[Violation] = field(factory=list)
    seconds: float = 0.0

    def add(self, result: _Result) -> None:
        report = result.report
        self.steps, self.points = report.steps, self.points + report.points
        # The run that nobody struck is the same for every source.
        self.violations += [v for v in report.violations if v not in self.violations]
        self.seconds += result.seconds

    def __str__(self) -> str:
        return (
            f"{self.name:14} {self.steps:6,} {self.points:8,} {len(self.violations):11,} "
            f"{self.seconds:9.1f}"
        )


def _explore_all(
    scenarios: Sequence[str], sources: Sequence[str], options: argparse.Namespace
) -> int:
    checkpoints, total = engine_checkpoints().fresh(), Report()
    print(
        f"{'scenario':14} {'steps':>6} {'points':>8} {'violations':>11} {'seconds':>9}", flush=True
    )
    with _workers(options.jobs) as submit:
        waiting = [
            (
                name,
                [submit(_Unit(name, source, options.stride, options.seed)) for source in sources],
            )
            for name in scenarios
        ]
        for name, results in waiting:
            row = _Row(name)
            for future in results:
                result = future.result()
                row.add(result)
                checkpoints.add(result.findings)
            print(row, flush=True)
            for violation in row.violations:
                print(f"  {violation}", flush=True)
            total.points += row.points
            total.violations += row.violations
    print(f"\n{checkpoints}")
    print("\n".join(f"  never reached: {checkpoint}" for checkpoint in checkpoints.unreached))
    if total.violations:
        first = total.violations[0]
        print(
            f"\nfor the log of one: --scenario {first.scenario!r} --source {first.source!r} "
            f"--point {first.point}"
        )
    print(f"\n{total}")
    return 1 if total.violations else 0


@contextmanager
def _workers(jobs: int) -> Iterator[Callable[[_Unit], Future[_Result]]]:
    """Where units are worked on: here, or in *jobs* processes. Left early, they are ended."""
    if jobs == 1:
        yield _here
        return
    # Fresh processes, which share nothing with this one: what a unit finds depends on it alone.
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield lambda unit: pool.submit(_work, unit)
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _here(unit: _Unit) -> Future[_Result]:
    future: Future[_Result] = Future()
    future.set_result(_work(unit))
    return future
