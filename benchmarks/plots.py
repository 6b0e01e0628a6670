"""Pictures of what ``--peers`` measured: ``python -m benchmarks.plots REPORT.json ... FOLDER``.

One for each kind of work that was done in several sizes: what a unit costs, by how many there
are. Both axes are logarithmic, so what does not grow is a level line. Plain SVG, written here;
its colours are such that they can be read on a white page and on a black one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from attrs import frozen

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 72, 150, 44, 52
INK = "#808080"  # grey enough for both kinds of page
COLOURS = {"terzetto": "#0b84f3", "floor": INK}
OTHERS = ("#e0662f", "#2a9d5c", "#a45bd6", "#c9971c", "#d14b7d")
LABELS = {"floor": "bare Trio with a log"}
LINE = 16
"""Between two labels, at least."""


@frozen
class Plot:
    """*lines*: by who did the work, (how many, microseconds for each), rising."""

    title: str
    across: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


TITLES = {
    "batch": ("Microseconds a call, by the calls of a batch", "calls in the batch"),
    "steps": ("Microseconds a step, by the steps of a turn", "steps in the turn"),
}


def plots_of(rows: Iterable[Mapping[str, object]]) -> dict[str, Plot]:
    """The plots that *rows* of reports have enough for, by the name of their work."""
    found: dict[str, dict[str, dict[float, float]]] = {}
    for row in rows:
        work, size, seconds = row.get("work"), row.get("size"), row.get("seconds")
        if work in TITLES and isinstance(size, int) and isinstance(seconds, dict):
            for who, took in seconds.items():
                found.setdefault(str(work), {}).setdefault(who, {})[size] = took * 1e6
    plots = {}
    for work, lines in found.items():
        title, across = TITLES[work]
        points = {who: sorted(line.items()) for who, line in lines.items() if len(line) > 1}
        if points:
            plots[work] = Plot(title, across, points)
    return plots


def svg(plot: Plot) -> str:
    """*plot* as a picture, with its figures in words for those who cannot see it."""
    xs = [x for line in plot.lines.values() for x, _ in line]
    ys = [y for line in plot.lines.values() for _, y in line]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    first, last = math.log10(min(xs)), math.log10(max(xs))
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x_of(x: float) -> float:
        return LEFT + wide * (math.log10(x) - first) / (last - first)

    def y_of(y: float) -> float:
        return TOP + tall * (high - math.log10(y)) / (high - low or 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="13" fill="{INK}">',
        f"<title>{escape(plot.title)}</title><desc>{escape(words(plot))}</desc>",
        _text(LEFT, 24, plot.title, "start", weight="bold"),
    ]
    for power in range(low, high + 1):
        at = y_of(10.0**power)
        parts.append(_stroke([(LEFT, at), (LEFT + wide, at)], INK, 0.5))
        parts.append(_text(LEFT - 8, at + 4, f"{10.0**power:,.10g}", "end"))
    for x in sorted(set(xs)):
        parts += [_text(x_of(x), HEIGHT - BOTTOM + 20, f"{x:,.0f}", "middle")]
    parts.append(_text(LEFT + wide / 2, HEIGHT - 10, plot.across, "middle"))
    ends = {}
    for number, (who, line) in enumerate(sorted(plot.lines.items(), key=_others_first)):
        colour = COLOURS.get(who) or OTHERS[number % len(OTHERS)]
        points = [(x_of(x), y_of(y)) for x, y in line]
        parts.append(_stroke(points, colour, 3 if who == "terzetto" else 2, who == "floor"))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
        ends[who] = (points[-1][1], colour)
    for who, at in _apart({who: y for who, (y, _) in ends.items()}, TOP + tall).items():
        weight = "bold" if who == "terzetto" else "normal"
        label = LABELS.get(who, who)
        parts.append(_text(LEFT + wide + 12, at + 4, label, "start", ends[who][1], weight))
    return "\n".join([*parts, "</svg>", ""])


def words(plot: Plot) -> str:
    """The figures of *plot* in a sentence: the text for who cannot see it."""
    said = (
        f"{LABELS.get(who, who)} " + ", ".join(f"{y:,.0f} at {x:,.0f}" for x, y in line)
        for who, line in plot.lines.items()
    )
    return f"{plot.title}: {'; '.join(said)}."


def _others_first(one: tuple[str, object]) -> tuple[bool, str]:
    return one[0] in COLOURS, one[0]


def _apart(wanted: Mapping[str, float], lowest: float) -> dict[str, float]:
    """Heights near those *wanted*, in their order, `LINE` from each other at least; none is
    below *lowest*, where the picture has other texts."""
    placed: dict[str, float] = {}
    least = -math.inf
    for who, at in sorted(wanted.items(), key=lambda one: one[1]):
        placed[who] = least = max(at, least + LINE)
    for who in reversed(list(placed)):
        placed[who] = lowest = min(placed[who], lowest)
        lowest -= LINE
    return placed


def _text(
    x: float, y: float, text: str, anchor: str, fill: str = INK, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def _stroke(
    points: Sequence[tuple[float, float]], colour: str, width: float, dashed: bool = False
) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    return (
        f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{width}"{dash}/>'
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw what reports have; 2 if they have nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots")
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT", help="of --peers --json")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the pictures go")
    asked = parser.parse_args(arguments)
    rows = []
    for report in asked.reports:
        try:
            rows += json.loads(report.read_text("utf-8"))["rows"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(f"{report}: expected a report of --peers --json: {error}")
    plots = plots_of(rows)
    if not plots:
        parser.error("expected works of several sizes in the reports; measure with --peers first")
    asked.folder.mkdir(parents=True, exist_ok=True)
    for work, plot in plots.items():
        path = asked.folder / f"{work}.svg"
        path.write_text(svg(plot), "utf-8")
        print(f"{path}\n  {words(plot)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
