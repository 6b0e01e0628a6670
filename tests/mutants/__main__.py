"""``python -m tests.mutants``: plant every defect, one at a time; is it noticed?

Each is planted in a copy of the engine, and the one instrument that its entry names has to
report a violation: the explorer, the simulation, or a law. First all instruments run on the
copy as it is, where none may report anything: else a mutant would prove nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attrs import frozen
from tests.mutants.mutant import ROOT, Explorer, Law, Mutant, Simulation, copied
from tests.mutants.planted import MUTANTS

LIMIT = 600.0
"""Seconds for one instrument. Who hangs on a mutant has noticed nothing."""


@frozen
class Seen:
    """What an instrument made of a copy: *noticed*, or else why not."""

    noticed: bool
    said: str
    seconds: float


def look(instrument: Explorer | Simulation | Law, source: Path) -> Seen:
    """Run *instrument* on the engine that lies in *source*."""
    began = time.monotonic()
    paths = [str(source), str(ROOT)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CI": "true"}
    try:
        done = subprocess.run(
            [sys.executable, *instrument.command(source)],
            cwd=ROOT,
            env={**variables, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return Seen(False, f"not done after {LIMIT:.0f} s", time.monotonic() - began)
    seconds = time.monotonic() - began
    said = summary(instrument, done.stdout)
    if done.returncode not in (0, 1) or not said:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        return Seen(False, f"exit status {done.returncode}: {' '.join(last)[:200]}", seconds)
    return Seen(done.returncode == 1, said, seconds)


def summary(instrument: Explorer | Simulation | Law, output: str) -> str:
    """What *instrument* said at its end; empty if it did not come so far."""
    pattern = r"\d+ (passed|failed)" if isinstance(instrument, Law) else r"[\d,]+ violations"
    lines = output.splitlines()
    if not lines or not re.search(pattern, lines[-1]) or "error" in lines[-1]:
        return ""
    told = [line for line in lines[:-1] if line.startswith("FAILED ") or ": " in line]
    first = next((line for line in told if line.startswith("FAILED ")), told[-1] if told else "")
    return (first or lines[-1])[:160]


def planted(mutant: Mutant) -> Seen:
    """What is made of a copy with *mutant* in it."""
    with tempfile.TemporaryDirectory() as folder:
        source = copied(Path(folder))
        mutant.apply(source / "terzetto")
        return look(mutant.by, source)


def untouched(instrument: Explorer | Simulation | Law) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        return look(instrument, copied(Path(folder)))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    chosen = [m for m in MUTANTS if not options.only or m.name in options.only]
    if unknown := set(options.only) - {mutant.name for mutant in MUTANTS}:
        print(f"no such mutant: {', '.join(sorted(unknown))}; see --list", file=sys.stderr)
        return 2
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:<34} {mutant.path:<26} {mutant.breaks}")
        return 0
    missed = false_alarms = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        if not options.no_control:
            instruments = list(dict.fromkeys(mutant.by for mutant in chosen))
            for instrument, seen in zip(instruments, pool.map(untouched, instruments), strict=True):
                if seen.noticed or "exit status" in seen.said or "not done" in seen.said:
                    false_alarms += 1
                    print(f"FALSE   {instrument}: {seen.said}", flush=True)
        for mutant, seen in zip(chosen, pool.map(planted, chosen), strict=True):
            missed += not seen.noticed
            mark = "caught" if seen.noticed else "MISSED"
            print(f"{mark}  {mutant.name:<34} {seen.seconds:5.1f} s  {mutant.by}", flush=True)
            print(f"        {seen.said}", flush=True)
    caught = len(chosen) - missed
    print(f"{len(chosen)} mutants, {caught} caught, {missed} missed, {false_alarms} false alarms")
    return 1 if missed or false_alarms else 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Plant every defect in a copy of the engine, one at a time.",
        epilog="exit codes: 0 all caught, 1 one was missed, 2 the command line is wrong",
    )
    found.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these alone")
    found.add_argument("--list", action="store_true", help="show them and end")
    found.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    found.add_argument(
        "--no-control", action="store_true", help="do not run the instruments on the whole engine"
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
