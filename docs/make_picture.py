"""Draws ``docs/_static/show.svg``: what ``terzetto show`` prints of a session of the demo.

Runs both commands as they stand, in a temporary folder, and draws the coloured output on a
grid of characters. Letters are text in whatever monospace font there is, held to the grid;
bars are shapes, so that no font can break them. Colours follow the reader's light or dark
scheme.

    python docs/make_picture.py
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "_static" / "show.svg"
COLUMNS = 90
CELL, LINE, SIZE = 8.4, 20, 14
"""Width of a character, height of a line, size of the font: pixels."""
SIDE, TOP = 22, 44
"""Space beside and above the text."""
FILES = {
    "README.md": "# Quartet\n\nFour voices in search of a fifth.\n" + "la " * 400,
    "LICENSE": "MIT. " + "words " * 160,
    "score.py": "print('do re mi')\n",
    "parts.txt": "violin violin viola cello\n",
}
STYLE = """
.page { fill: #ffffff; stroke: #d0d7de }
.dot { fill: #d8dee4 }
.bold { font-weight: 600 }
.fg { fill: #1f2328 } .dim { fill: #7a828c } .red { fill: #c4303a }
.green { fill: #1a7f37 } .yellow { fill: #9a6700 } .cyan { fill: #0969a8 }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117; stroke: #30363d }
.dot { fill: #30363d }
.fg { fill: #e6edf3 } .dim { fill: #7d8590 } .red { fill: #ff7b72 }
.green { fill: #3fb950 } .yellow { fill: #d8a02a } .cyan { fill: #58b2f0 }
}
"""
_CODES = {"1": "bold", "2": "dim", "31": "red", "32": "green", "33": "yellow", "36": "cyan"}
_RUN = re.compile(r"\x1b\[([\d;]*)m|([^\x1b]+)")


@dataclass(frozen=True)
class Run:
    """A piece of text in one style, from *column* on."""

    column: int
    text: str
    style: str

    @property
    def width(self) -> int:
        return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in self.text)


def output() -> tuple[str, list[str]]:
    """The command, and the lines it printed with their colours."""
    environment = {**os.environ, "PYTHONUTF8": "1", "PYTHONPATH": str(ROOT / "src")}
    environment.pop("NO_COLOR", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in FILES.items():
            (folder / file).write_text(content, "utf-8")

        def terzetto(*arguments: str) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "terzetto", *arguments],
                cwd=folder,
                env={**environment, "TMPDIR": name},
                capture_output=True,
                check=True,
                encoding="utf-8",
            )
            return done.stdout

        terzetto("demo", "--sessions", "sessions")
        [log] = (folder / "sessions").glob("*.jsonl")
        command = ["show", log.stem, "--turn", "2-4"]
        lines = terzetto(*command, "--color", "always", "--width", str(COLUMNS)).splitlines()
        return shlex.join(["terzetto", *command]), lines


def runs(line: str) -> Iterator[Run]:
    """The pieces of *line*; shapes are apart from letters, and blanks stand for themselves."""
    column, style = 0, "fg"
    for codes, text in _RUN.findall(line):
        if not text:
            names = [_CODES[code] for code in codes.split(";") if code in _CODES]
            colour = next((name for name in names if name != "bold"), "fg")
            style = f"{colour} bold" if "bold" in names else colour
            continue
        for part in re.findall(r"━+|╍+|·+|[┃┊▶]| {2,}|(?:[^━╍·┃┊▶ ]| (?! ))+", text):
            run = Run(column, part, style)
            column += run.width
            if part.strip():
                yield run


def drawn(run: Run, row: int) -> str:
    """*run* as SVG, on line *row*."""
    x, y = SIDE + run.column * CELL, TOP + row * LINE
    width, middle, kind = run.width * CELL, y + LINE / 2, run.style
    match run.text[0]:
        case "━":
            return _box(x, middle - 4.5, width, 9, kind)
        case "╍":
            dashes = range(run.width)
            return "".join(
                _box(x + n * CELL + 1.2, middle - 4.5, CELL - 2.4, 9, kind, 0.55) for n in dashes
            )
        case "·" if run.width > 1 or kind == "dim":
            dots = range(run.width)
            return "".join(
                f'<circle class="{kind}" cx="{x + (n + 0.5) * CELL:.1f}" cy="{middle:g}" r="1.1"/>'
                for n in dots
            )
        case "┃":
            return _box(x + 0.6, middle - 7.5, 2.6, 15, kind)
        case "┊":
            steps = (y + 1, y + 6, y + 11, y + 16)
            return "".join(_box(x + 1.3, step, 1.2, 2.6, kind, 0.8) for step in steps)
    letters = escape(run.text.rstrip())
    width -= (len(run.text) - len(run.text.rstrip())) * CELL
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y + 14.6:.1f}" textLength="{width:.1f}" '
        f'lengthAdjust="spacingAndGlyphs" xml:space="preserve">{letters}</text>'
    )


def _box(x: float, y: float, width: float, height: float, kind: str, opacity: float = 1) -> str:
    faint = "" if opacity == 1 else f' opacity="{opacity:g}"'
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:g}" rx="1.2"{faint}/>'
    )


def picture(command: str, lines: list[str]) -> str:
    """The whole SVG."""
    rows = [f"\x1b[2m$\x1b[0m \x1b[1m{command}\x1b[0m", "", *lines]
    width = 2 * SIDE + COLUMNS * CELL
    height = TOP + len(rows) * LINE + 20
    shapes = [drawn(run, row) for row, line in enumerate(rows) for run in runs(line)]
    dots = "".join(
        f'<circle class="dot" cx="{SIDE + 5 + 19 * n}" cy="22" r="5.5"/>' for n in range(3)
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img" '
            'aria-label="A session in the terminal, shown by terzetto show">',
            f"<style>{STYLE}</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" '
            'rx="10"/>',
            dots,
            f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, '
            f'monospace" font-size="{SIZE}">',
            *shapes,
            "</g>",
            "</svg>",
            "",
        ]
    )


def main() -> None:
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(picture(*output()), "utf-8")
    print(TARGET.relative_to(ROOT), TARGET.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
