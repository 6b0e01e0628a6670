"""The command ``python -m terzetto.testing.simulate``: arguments, output, exit codes."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from attrs import define, field, frozen

from ..vocabulary import InvalidValue, UsageError
from ._life import ctrl_c_heard
from ._processes import hush, positive, workers
from ._simulate_draw import drawn
from ._simulate_plan import Simulation
from ._simulate_run import simulate
from ._simulate_shrink import kind_of, shrink
from ._simulate_trace import lines_of

_ABOUT = """\
Play whole programs of agents: crashes, cancels, bad tools, bad models, bad disks and a
scheduler of its own, all from a seed. What must hold is checked of every one.
"""
_EPILOG = "exit codes: 0 no violations, 1 violations, 2 the command line is wrong, 130 Ctrl-C"
EVERY = 50
"""Seeds of one block: what a worker does at a time, and how often progress is told."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    options = _parser().parse_args(argv)
    hush()
    try:
        with ctrl_c_heard():
            if options.script is not None:
                return _replay(Simulation.from_json(_read(options.script)))
            if options.replay is not None:
                return _replay(drawn(options.replay))
            return _play_all(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who reads has seen enough
        sys.stdout = None
        return 1
    except (InvalidValue, UsageError, OSError, UnicodeDecodeError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m terzetto.testing.simulate", description=_ABOUT, epilog=_EPILOG
    )
    add = parser.add_argument
    add("--seeds", type=positive, default=200, metavar="N", help="how many (200)")
    add("--from", dest="first", type=_natural, default=0, metavar="K", help="the first one (0)")
    add("--jobs", type=positive, default=1, metavar="J", help="processes (1)")
    add("--hashes", action="store_true", help="print each seed with the digest of its logs")
    add("--no-shrink", action="store_true", help="do not make a failing script smaller")
    one = parser.add_mutually_exclusive_group()
    add = one.add_argument
    add("--replay", type=_natural, metavar="SEED", help="play one seed, and tell what happens")
    add("--script", metavar="FILE", help="play a script of JSON, and tell; - is standard input")
    return parser


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, got {number}")
    return number


def _read(path: str) -> str:
    return sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")


# --- one of them ----------------------------------------------------------------------


def _replay(simulation: Simulation) -> int:
    print(simulation.to_json())
    done = simulate(simulation, traced=True)
    print("\n".join(lines_of(done.notes)))
    print(f"\n{done}, digest {done.digest}")
    print("\n".join(f"  {problem}" for problem in done.problems))
    return 1 if done.problems else 0


# --- all of them ----------------------------------------------------------------------


@frozen
class _Block:
    """What one worker does at a time."""

    seeds: range


@frozen
class _One:
    seed: int
    digest: str
    turns: int
    problems: tuple[str, ...]


def _work(block: _Block) -> list[_One]:
    hush()
    found = []
    for seed in block.seeds:
        done = simulate(seed)
        found.append(_One(seed, done.digest, done.turns, done.problems))
    gc.collect()
    return found


@define
class _Total:
    seeds: int = 0
    turns: int = 0
    violations: int = 0
    failed: list[_One] = field(factory=list)
    began: float = field(factory=time.monotonic)

    def add(self, one: _One) -> None:
        self.seeds += 1
        self.turns += one.turns
        self.violations += len(one.problems)
        if one.problems:
            self.failed.append(one)

    def __str__(self) -> str:
        minutes = max(time.monotonic() - self.began, 1e-9) / 60
        return (
            f"{self.seeds:,} seeds, {self.turns:,} turns, {round(self.turns / minutes):,} turns "
            f"a minute, {self.violations:,} violations"
        )


def _play_all(options: argparse.Namespace) -> int:
    first, count = options.first, options.seeds
    blocks = [
        _Block(range(start, min(start + EVERY, first + count)))
        for start in range(first, first + count, EVERY)
    ]
    total = _Total()
    with workers(options.jobs, _work) as submit:
        # One that is worked on here is not begun before those before it have been told.
        found = map(submit, blocks) if options.jobs == 1 else [submit(block) for block in blocks]
        for future in found:
            for one in future.result():
                total.add(one)
                if options.hashes:
                    print(f"{one.seed} {one.digest}", flush=True)
                for problem in one.problems:
                    print(f"seed {one.seed}: {problem}", flush=True)
            if not options.hashes and total.seeds < count:
                print(f"  {total}", flush=True)
    if total.failed and not options.no_shrink:
        _tell_smallest(total.failed[0])
    print(total)
    return 1 if total.violations else 0


def _tell_smallest(failed: _One) -> None:
    kind = kind_of(failed.problems[0])

    def fails(candidate: Simulation) -> bool:
        return any(kind_of(problem) == kind for problem in simulate(candidate).problems)

    print(f"\nseed {failed.seed} made smaller:")
    smallest = shrink(drawn(failed.seed), fails)
    print(smallest.to_json())
    for problem in simulate(smallest).problems:
        print(f"  {problem}")
    print("play it with --script FILE\n")
