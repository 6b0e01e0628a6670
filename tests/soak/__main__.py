"""``python -m tests.soak --lifetimes 200000``: everything is back where it was."""

from __future__ import annotations

import argparse
import sys

from tests.soak.soak import Soaked, soak


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--lifetimes", type=int, default=200_000, metavar="N")
    parser.add_argument("--warm-up", type=int, default=2_000, metavar="N")
    parser.add_argument("--trace", action="store_true", help="say which lines hold what is left")
    given = parser.parse_args(arguments)
    soaked = soak(given.lifetimes, given.warm_up, trace=given.trace)
    print(table(soaked))
    return 0 if soaked.clean else 1


def table(soaked: Soaked) -> str:
    """Before, after, and one line that says all."""
    rows = [("", "before", "after", "")]
    rows += [(n, f"{a:,}", f"{b:,}", f"{b - a:+,}") for n, a, b in soaked.counts()]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join(
            cell.ljust(width) if not number else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines += [f"{kind}: {count:,}" for kind, count in soaked.kinds.items()]
    lines += [f"left: {orphan}" for orphan in soaked.left]
    lines += soaked.lines
    lines.append(str(soaked))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
