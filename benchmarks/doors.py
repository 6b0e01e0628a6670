"""Starting: ``python -m benchmarks.doors``, or ``--only start``.

- ``start.import``: ``import terzetto`` against the packages it is made of; and with the engine,
  which loads when it is first named, as most programs will at once.
- ``start.help``: ``terzetto --help`` against a parser alone.

Each in a fresh process, of which the processor's time is taken, the interpreter's included.
Everything is compiled before, as an installed package is: the round that is not counted does it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from ._measure import Scale, alternate
from ._rows import Ratio, Row
from ._run import Parts, main

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = """\
import sys
sys.modules["click"] = None  # httpx has a command, which a plain installation has not
import trio, attrs, cattrs, httpx
"""
PARSER = """\
import argparse
parser = argparse.ArgumentParser(prog="bare")
commands = parser.add_subparsers(title="commands", metavar="COMMAND")
for name in ("demo", "chat", "show", "fork", "replay", "export", "verify"):
    command = commands.add_parser(name, help=f"to {name}")
    command.add_argument("session", metavar="SESSION")
    command.add_argument("--log", help="where the sessions are")
parser.parse_args(["--help"])
"""


def imports(scale: Scale) -> Iterable[Row]:
    """The rest of a program has most of these anyway."""
    named = "import trio, attrs, cattrs, httpx"
    yield _row("import terzetto", ["-c", "import terzetto"], named, ["-c", PACKAGES], 1.3, scale)
    engine = ["-c", "from terzetto import open_engine, tool"]
    yield _row("the same, and the engine", engine, named, ["-c", PACKAGES], 1.8, scale)


def helps(scale: Scale) -> Iterable[Row]:
    """What somebody at a terminal waits for."""
    yield _row(
        "terzetto --help", ["-m", "terzetto", "--help"], "a parser", ["-c", PARSER], 1.5, scale
    )


def _row(
    name: str, ours: Sequence[str], against: str, floor: Sequence[str], budget: float, scale: Scale
) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        compiled = scale.pick(folder, None)  # to compile it all is most of one round
        found = alternate(
            {
                "ours": partial(_started, ours, compiled),
                "floor": partial(_started, floor, compiled),
            },
            scale,
        )
    return Ratio(
        name=name,
        unit="process",
        ours=found["ours"],
        against=against,
        floor=found["floor"],
        budget=budget,
    )


def _started(arguments: Sequence[str], compiled: str | None) -> float:
    """The processor's seconds of a Python with *arguments*, from its start to its end. What it
    compiles is kept in the folder *compiled*; with None, where Python keeps it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if compiled is not None:
        environment["PYTHONPYCACHEPREFIX"] = compiled
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = _children()
    subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return _children() - before


def _children() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


PARTS: Parts = {"start.import": imports, "start.help": helps}

if __name__ == "__main__":
    main(PARTS)
