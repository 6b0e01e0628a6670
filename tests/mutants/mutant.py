"""A mutant: one seeded defect in a copy of the engine, and who has to notice it.

The original is never touched: a mutant is one replacement of text in one file of a copy of
``src/terzetto``. The text has to be there exactly once, so that a mutant whose place has
gone says so instead of proving nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from attrs import field, frozen

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "terzetto"


@frozen
class Explorer:
    """The explorer notices it, in the scenario that is called so, struck by *sources*."""

    scenario: str
    sources: tuple[str, ...] = ("user",)

    def command(self, source: Path) -> list[str]:
        return ["-m", "tests.mutants.strike", self.scenario, *self.sources]

    def __str__(self) -> str:
        return f"explorer: {self.scenario} x {', '.join(self.sources)}"


@frozen
class Simulation:
    """The simulation notices it in one of the seeds *first* to *first* + *count*."""

    count: int
    first: int = 0

    def command(self, source: Path) -> list[str]:
        span = ["--seeds", str(self.count), "--from", str(self.first)]
        return ["-m", "terzetto.testing.simulate", *span, "--jobs", "1"]

    def __str__(self) -> str:
        return f"simulation: seeds {self.first} to {self.first + self.count - 1}"


@frozen
class Law:
    """A property, a law of a store or a recorded run notices it: test ids of this project."""

    tests: tuple[str, ...]

    def command(self, source: Path) -> list[str]:
        place = f"pythonpath={ROOT} {source}"
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-o", place]
        return ["-m", "pytest", *options, *self.tests]

    def __str__(self) -> str:
        return f"law: {' '.join(self.tests)}"


def law(*tests: str) -> Law:
    return Law(tuple(f"tests/{test}" for test in tests))


def by(scenario: str, *sources: str) -> Explorer:
    return Explorer(scenario, sources or ("user",))


@frozen
class Mutant:
    """One defect. *path* is below ``src/terzetto``; *old* becomes *new*.

    *breaks* says in a few words what users would see; *by* notices it.
    """

    name: str
    path: str
    old: str = field(repr=False)
    new: str = field(repr=False)
    breaks: str = field(repr=False)
    by: Explorer | Simulation | Law

    def apply(self, package: Path) -> None:
        """Plant it in *package*, a copy of ``src/terzetto``. `ValueError`: it does not fit."""
        file = package / self.path
        text = file.read_text("utf-8")
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: expected its text once in {self.path}, found {found}")
        file.write_text(text.replace(self.old, self.new), "utf-8")


def copied(folder: Path) -> Path:
    """A copy of the engine in *folder*, which goes on ``sys.path``."""
    kept = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCE, folder / "terzetto", ignore=kept)
    return folder
