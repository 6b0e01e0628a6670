"""What a benchmark says: rows with a verdict, as a table for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from attrs import frozen

from ._measure import Series

Verdict: TypeAlias = Literal["ok", "OVER", ""]
"""Empty for a row that is only shown."""


@frozen(kw_only=True)
class Ratio:
    """*ours* against *floor*, both in seconds for each *unit*, alternating.

    *budget* is the largest ratio that is right; None where the disk's mood decides.
    """

    name: str
    unit: str
    ours: Series
    against: str
    floor: Series
    budget: float | None = None

    @property
    def ratio(self) -> Series:
        return self.ours.over(self.floor)

    @property
    def verdict(self) -> Verdict:
        return _judged(self.ratio.median, self.budget)

    def cells(self) -> tuple[str, ...]:
        low, high = self.ratio.spread
        return (
            self.name,
            f"{_time(self.ours.median)} {'an' if self.unit[0] in 'aeiou' else 'a'} {self.unit}",
            f"{_time(self.floor.median)} {self.against}",
            f"{self.ratio.median:.2f}",
            f"{low:.2f} to {high:.2f}",
            "" if self.budget is None else f"{self.budget:g}",
            self.verdict,
        )

    def plain(self) -> dict[str, object]:
        low, high = self.ratio.spread
        return {
            "kind": "ratio",
            "name": self.name,
            "unit": self.unit,
            "seconds": self.ours.median,
            "against": self.against,
            "floor_seconds": self.floor.median,
            "ratio": self.ratio.median,
            "spread": [low, high],
            "rounds": list(self.ratio.values),
            "budget": self.budget,
            "verdict": self.verdict,
        }


@frozen(kw_only=True)
class Count:
    """Something counted: the same on every machine, or nearly. *limit*: the largest that
    is right; None where it is only shown."""

    name: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def verdict(self) -> Verdict:
        return _judged(self.value, self.limit)

    def cells(self) -> tuple[str, ...]:
        limit = "" if self.limit is None else f"{self.limit:g}"
        value = f"{self.value:.4g}" if self.value < 10_000 else f"{self.value:,.0f}"
        return (self.name, f"{value} {self.unit}", "", "", "", limit, self.verdict)

    def plain(self) -> dict[str, object]:
        return {
            "kind": "count",
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "limit": self.limit,
            "verdict": self.verdict,
        }


Row: TypeAlias = Ratio | Count
HEADINGS = ("what", "ours", "floor", "ratio", "middle half", "budget", "")


def table(rows: Sequence[Row]) -> str:
    """*rows* under their headings, one a line."""
    lines = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _judged(value: float, most: float | None) -> Verdict:
    if most is None:
        return ""
    return "ok" if value <= most else "OVER"


def _time(seconds: float) -> str:
    for size, unit in ((1, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
