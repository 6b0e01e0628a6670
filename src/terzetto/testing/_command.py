"""The command ``python -m terzetto.testing.explore``: arguments, output, exit codes.

The work is done in processes, a scenario and a source at a time; what is printed comes in
the order of the scenarios, whichever is ready first.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from attrs import define, field, frozen

from ..vocabulary import InvalidValue
from ._checkpoints import Checkpoints, Found
from ._crashes import LATENCY, POWER_CUT, cut_everywhere
from ._explorer import Findings, Report, Violation
from ._life import Second, ctrl_c_heard
from ._pairs import Pairs
from ._processes import hush, positive, workers
from ._replaying import replay, replay_cut
from ._sampling import points_of, sampled_by
from ._shipped import SHIPPED, play_of, shipped
from ._shrinking import kind_of, shortest_trace
from ._stage import SOURCES

_ABOUT = """\
Run the scenarios that Terzetto ships, cancel each at every step from every source, and
check the eight invariants of docs/explanation/cancellation.md after every run.
"""
_EPILOG = """\
exit codes: 0 no violations, 1 violations, or checkpoints that a whole run leaves, 2 the command
line is wrong, 130 Ctrl-C"""

NOT_THE_ENGINE = ("extras", "commands", "cli.py", "__main__.py", "testing")
"""Whose checkpoints are not counted: names directly under the package."""

_ONLY_THIS = "only this one; module:attribute, or path.py:attribute, is one of yours"
TWICE = "two strikes"
PAIRS = 12
"""Second strikes of each scenario that are tried unless all of them are asked for."""

_LIMIT = 10_000
_UNITS_A_WORKER = 4
_MOST_TRACES = 3
_NAMES = [*(source.name for source in SOURCES), POWER_CUT, TWICE]
_BY_NAME = {source.name: source for source in SOURCES}


@cache
def engine_checkpoints() -> Checkpoints:
    """The awaits of the package, but for the extras, the command line and what tests it."""
    package = Path(__file__).parents[1]
    parts = (path for path in sorted(package.iterdir()) if path.name not in NOT_THE_ENGINE)
    return Checkpoints.of(*(p for p in parts if p.suffix == ".py" or p.is_dir()))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    options = _parser().parse_args(argv)
    try:
        if options.list:
            return _list()
        scenarios = options.scenario or list(SHIPPED)
        sources = options.source or _NAMES
        if options.point is not None:
            return _replay(scenarios, sources, options)
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
    add("--scenario", action="append", type=_scenario, metavar="NAME", help=_ONLY_THIS)
    add("--source", action="append", choices=_NAMES, metavar="NAME", help="only this one")
    add("--stride", type=positive, default=1, metavar="N", help="strike every N points")
    add("--full", action="store_true", help="all points of the long scenarios, not a sample")
    add("--passed", action="store_true", help="show the checkpoints at which nothing ever waits")
    add("--pairs", action="store_true", help="all second strikes, instead of a sample: hours")
    add("--point", type=positive, metavar="N", help="one run, with its log; needs the two names")
    add("--then", choices=list(_BY_NAME), metavar="NAME", help="with --point: who strikes again")
    add("--after", type=positive, default=1, metavar="N", help="and how many steps later (1)")
    add("--seed", type=int, default=0, metavar="N", help="of the scheduler (0)")
    add("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="processes")
    return parser


def _scenario(text: str) -> str:
    try:
        return shipped(text).name
    except InvalidValue as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _list() -> int:
    width = max(map(len, [*SHIPPED, *_NAMES]))
    print("scenarios")
    for name, scene in SHIPPED.items():
        print(f"  {name:{width}}  {scene.does}")
        print(f"  {'':{width}}  about: {', '.join(scene.groups)}")
    print("sources")
    for source in SOURCES:
        print(f"  {source.name:{width}}  a turn that it cuts ends by {source.cause}")
    print(f"  {POWER_CUT:{width}}  a turn that it cuts is ended by the next resume, Interrupted()")
    print(f"  {TWICE:{width}}  one of the others, and another while the run unwinds from it")
    return 0


def _replay(scenarios: Sequence[str], sources: Sequence[str], options: argparse.Namespace) -> int:
    if len(scenarios) != 1 or len(sources) != 1:
        print("--point needs one --scenario and one --source", file=sys.stderr)
        return 2
    scene, point = shipped(scenarios[0]), options.point
    play = play_of(scene, options.seed, told=True)
    if sources[0] == TWICE:
        print("--point needs the first source of two, and --then the second", file=sys.stderr)
        return 2
    if sources[0] == POWER_CUT:
        return replay_cut(play, scene.name, point)
    second = Second(_BY_NAME[options.then], options.after) if options.then else None
    return replay(play, scene.name, _BY_NAME[sources[0]], point, second)


# --- all of them ----------------------------------------------------------------------


@frozen
class _Unit:
    """What one worker does at a time: a scenario, struck by some sources.

    What it judged for one source it knows for the others.
    """

    scenario: str
    sources: tuple[str, ...]
    stride: int
    seed: int
    pairs: Pairs
    full: bool = False


@frozen
class _Result:
    report: Report
    seconds: float
    findings: Found


def _work(unit: _Unit) -> _Result:
    hush()
    began = time.process_time()
    checkpoints = engine_checkpoints().fresh()
    scene = shipped(unit.scenario)
    play = play_of(scene, unit.seed, checkpoints)
    sources = [_BY_NAME[name] for name in unit.sources if name in _BY_NAME]
    with ctrl_c_heard():
        found = Findings(play, unit.scenario)
        cost = found.report.steps**2 * scene.weight
        sampled = 1 if unit.full else sampled_by(cost, unit.stride)
        points = dict(zip(_BY_NAME, points_of(SOURCES, unit.stride, sampled), strict=True))
        for source in sources:
            if source.inside is None:
                found.strike_some(source, points[source.name])
            else:
                found.strike(source, _LIMIT, unit.stride)
        if TWICE in unit.sources:
            found.strike_twice(SOURCES, unit.pairs, unit.stride)
        if POWER_CUT in unit.sources:
            found.report.add(cut_everywhere(play, unit.scenario, LATENCY, _LIMIT, unit.stride))
    return _Result(found.report, time.process_time() - began, checkpoints.findings())


@define
class _Row:
    """A scenario's line in the table."""

    name: str
    steps: int = 0
    points: int = 0
    left_out: int = 0
    violations: list[Violation] = field(factory=list)
    seconds: float = 0.0

    def add(self, result: _Result) -> None:
        report = result.report
        self.steps, self.points = report.steps, self.points + report.points
        self.left_out += report.left_out
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
    pairs: Pairs = "all" if options.pairs else PAIRS
    groups = _split(sources, options.jobs, len(scenarios))
    with workers(options.jobs, _work) as submit:
        units = {
            (name, group): _Unit(name, group, options.stride, options.seed, pairs, options.full)
            for name in scenarios
            for group in groups
        }
        # The long ones come last in the table, and first here: no worker is left alone with one.
        futures = {key: submit(units[key]) for key in reversed(units)}
        waiting = [(name, [futures[name, group] for group in groups]) for name in scenarios]
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
            total.left_out += row.left_out
            total.violations += row.violations
    print(f"\n{checkpoints}")
    left = [f"  never reached: {checkpoint}" for checkpoint in checkpoints.unreached]
    left += [f"  not cancelled at: {checkpoint}" for checkpoint in checkpoints.uncut]
    print("\n".join(left))
    if options.passed:
        print("\n".join(f"  never suspends: {checkpoint}" for checkpoint in checkpoints.passed))
    if total.left_out:
        print(f"{total.left_out:,} points of the long scenarios left out; --full strikes them all")
    for violation in _first_of_each(total.violations):
        scene = shipped(violation.scenario)
        print(f"\n{shortest_trace(violation, scene.scenario, scene.model)}", flush=True)
    print(f"\n{total}")
    whole = {*scenarios} >= {*SHIPPED} and {*sources} >= {*_NAMES} and options.stride == 1
    return 1 if total.violations or (whole and left) else 0


def _first_of_each(violations: Sequence[Violation]) -> list[Violation]:
    """One of each kind, and of few kinds: whoever mends those runs it again."""
    kinds = dict[str, Violation]()
    for violation in violations:
        kinds.setdefault(kind_of(violation.problem), violation)
    return list(kinds.values())[:_MOST_TRACES]


def _split(sources: Sequence[str], jobs: int, scenarios: int) -> list[tuple[str, ...]]:
    """*sources* in groups: one, unless there are so few scenarios that workers would idle."""
    parts = min(len(sources), -(-jobs * _UNITS_A_WORKER // scenarios))
    return [tuple(sources[part::parts]) for part in range(parts)]
