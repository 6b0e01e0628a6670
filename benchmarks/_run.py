"""The runner that ``python -m benchmarks`` and each benchmark of its own share."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import trio

import terzetto

from ._measure import Scale
from ._profile import Profiles
from ._rows import Row, table

Part: TypeAlias = Callable[[Scale], Iterable[Row]]
"""Measures one thing. Runs outside of Trio; a sample that needs Trio runs it."""
Parts: TypeAlias = Mapping[str, Part]
"""By name: ``store.memory`` and the like."""


Against: TypeAlias = Callable[[str, Scale], list[dict[str, object]]]
"""Measures against others, prints it and gives rows for a report. Raises ValueError for what
cannot be, with a text for people."""


def run(
    parts: Parts, arguments: Sequence[str] | None = None, against: Against | None = None
) -> int:
    """Measure what *arguments* ask for and print it; 1 if a row is over its budget."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="What Terzetto costs, as ratios to floors that take turns with it.",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows there as well")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny sizes, one round: shows that everything works, its times mean nothing",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="one round, and then another under a profiler: what a unit is made of, by layer",
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        nargs="+",
        default=(),
        help=f"these parts, or all whose names begin so: {', '.join(parts)}",
    )
    if against is not None:
        parser.add_argument(
            "--peers",
            metavar="NAMES",
            help="instead: other agent loops on the same work, with commas between their names; "
            "each gets an environment of its own, which is made when it is first asked for",
        )
    asked = parser.parse_args(arguments)
    peers: str | None = getattr(asked, "peers", None)
    if peers is not None and asked.only:
        parser.error("--peers: it measures its own parts; expected no --only beside it")
    chosen = {
        name: part
        for name, part in parts.items()
        if not asked.only or any(f"{name}.".startswith(f"{one}.") for one in asked.only)
    }
    for one in asked.only:
        if not any(f"{name}.".startswith(f"{one}.") for name in parts):
            parser.error(f"--only {one}: expected one of {', '.join(parts)}")
    if asked.json is not None:
        try:  # now, and not when everything has been measured
            asked.json.touch()
        except OSError as error:
            parser.error(f"--json {asked.json}: {error.strerror}")
    scale, rows = Scale(asked.quick), dict[str, list[Row]]()
    if against is not None and peers is not None:
        try:
            found = against(peers, scale)
        except ValueError as error:
            parser.error(str(error))
        if asked.json is not None:
            record = _record({}, scale) | {"rows": found}
            asked.json.write_text(json.dumps(record, indent=1) + "\n")
        return 0  # to be behind is no failure
    for name, part in chosen.items():
        began = time.perf_counter()
        if asked.profile:
            scale = Scale(asked.quick, Profiles())
        rows[name] = list(part(scale))
        print(f"\n{name} ({time.perf_counter() - began:.0f} s)\n{table(rows[name])}", flush=True)
        if scale.profiles is not None:
            print(scale.profiles, flush=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps(_record(rows, scale), indent=1) + "\n")
    over = [row.name for found in rows.values() for row in found if row.verdict == "OVER"]
    # One round is too little for its times to be judged; what it counted can be.
    if scale.quick or asked.profile:
        over = _counts_over(rows)
    if over:
        print(f"\nover budget: {', '.join(over)}")
    return 1 if over else 0


def main(parts: Parts, against: Against | None = None) -> None:
    sys.exit(run(parts, against=against))


def _counts_over(rows: Mapping[str, Iterable[Row]]) -> list[str]:
    return [
        row.name
        for found in rows.values()
        for row in found
        if row.plain()["kind"] == "count" and row.verdict == "OVER"
    ]


def _record(rows: Mapping[str, Iterable[Row]], scale: Scale) -> dict[str, object]:
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "trio": trio.__version__,
        "terzetto": terzetto.__version__,
        "quick": scale.quick,
        "rows": [{"part": name, **row.plain()} for name, found in rows.items() for row in found],
    }
