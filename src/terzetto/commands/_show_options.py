"""The arguments of ``terzetto show``, and what its neighbours share with it.

Nothing here imports more than the parser itself needs: ``--help`` waits for it. So folders are
texts still; `terzetto.cli` makes them paths.
"""

from __future__ import annotations

import argparse
import re

FOLDER = "sessions"
"""Where sessions are looked for by default."""
NARROWEST, WIDEST = 30, 1_000
ABOUT = """\
Show a session from its log: what was said, the tools over time, how each turn ended. The
log is only read, so the session may be in use. SESSION is an id in the folder of --log, or
the path of a log.

  terzetto show 5f0c --log sessions
  terzetto show sessions/5f0c.jsonl --turn 2-4
  terzetto show 5f0c --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``terzetto show``."""
    add = parser.add_argument
    add("session", metavar="SESSION", help="a session id, or the path of a log")
    add(
        "--log",
        default=FOLDER,
        metavar="DIR",
        help=f"the folder, or the database; {FOLDER} by default",
    )
    add("--json", action="store_true", help="one JSON document, for programs")
    add("--turn", type=turns, metavar="N", help="only this turn; 2-4 or 2- for several")
    add("--width", type=_width, metavar="COLUMNS", help="as wide as the terminal by default")
    add(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto, the default: on a terminal, unless NO_COLOR is set",
    )
    add("--no-color", dest="color", action="store_const", const="never", help="--color never")


def turns(text: str) -> range:
    """The turns that *text* names, for `argparse`."""
    found = re.fullmatch(r"(\d+)(-(\d*))?", text)
    if found is None or len(text) > 20:
        raise argparse.ArgumentTypeError(f"expected 3, 2-4 or 2-, got {text!r}")
    first = int(found[1])
    last = first if found[2] is None else int(found[3] or 2**53)
    if not 1 <= first <= last:
        raise argparse.ArgumentTypeError(f"expected turns from 1 on, upwards, got {text!r}")
    return range(first, last + 1)


def _width(text: str) -> int:
    if not text.isdecimal() or len(text) > 6 or not NARROWEST <= int(text) <= WIDEST:
        raise argparse.ArgumentTypeError(
            f"expected a number from {NARROWEST} to {WIDEST}, got {text!r}"
        )
    return int(text)
