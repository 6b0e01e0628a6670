"""The picture of the documentation: drawn from coloured lines, whole, and of the present output."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from terzetto.commands._bars import UNICODE
from terzetto.commands._show_lines import render
from terzetto.commands._terminal import Look, Terminal
from tests import shown

DOCS = Path(__file__).resolve().parents[1] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
SHAPES = frozenset("━╍┃┊▶")


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_picture", DOCS / "make_picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


async def test_all_that_was_printed_is_drawn(drawing: ModuleType, autojump_clock: object) -> None:
    """Every word is text, every part of a bar a shape, and nothing is outside of the page."""
    look = Look(width=drawing.COLUMNS, color=True, unicode=True)
    lines = render(await shown.busy_session(), look)
    svg = drawing.picture(
        "terzetto <show>", [one.painted(Terminal(None, look).style) for one in lines]
    )
    words = " ".join(texts(svg)).split()
    printed = " ".join(one.text for one in lines)
    expected = "".join(" " if char in SHAPES else char for char in printed)
    expected = re.sub(r"·+", " ", expected)
    assert "".join(words) == "".join(["$", "terzetto", "<show>", *expected.split()])
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    boxes = list(root.iter(f"{SVG}rect"))
    assert len(boxes) > 10
    for element in [*boxes, *root.iter(f"{SVG}text")]:
        long = float(element.get("width") or element.get("textLength") or 0)
        assert 0 <= float(element.get("x", 0)) <= float(element.get("x", 0)) + long <= width
        assert 0 <= float(element.get("y", 0)) <= height
    dots = sum(element.get("class") == "dim" for element in root.iter(f"{SVG}circle"))
    assert dots == printed.count("·")


def test_picture_that_is_shipped_is_of_the_present_output(drawing: ModuleType) -> None:
    """A change of the words or the bars has to be followed by a run of docs/make_picture.py."""
    svg = drawing.TARGET.read_text("utf-8")
    said = " ".join(texts(svg))
    assert re.search(r"\$ terzetto show demo-\w+ --turn 2-4 Session demo-\w+ created ", said)
    for words in ("ok, alone", "aborted by the user", "Cut off here.", "steer", "≤0."):
        assert words in said
    legend = re.sub(r"[·━╍┃┊]", "", UNICODE.legend())
    assert re.sub(r"\s+", "", legend) in re.sub(r"\s+", "", said).replace("·", "")
    assert svg == re.sub(r"<style>.*?</style>", f"<style>{drawing.STYLE}</style>", svg, flags=re.S)
