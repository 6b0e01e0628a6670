"""Pictures of what was measured: whole SVG, level where a cost does not grow, labels apart."""

import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.plots import BOTTOM, HEIGHT, LINE, main, plots_of, svg, words

SVG = "{http://www.w3.org/2000/svg}"


def row(work: str, size: int, **seconds: float) -> dict[str, object]:
    return {"kind": "peers", "work": work, "size": size, "seconds": seconds}


ROWS = [
    row("steps", 50, terzetto=1e-4, floor=1e-4, peer=1e-3),
    row("steps", 800, terzetto=1e-4, floor=1.01e-4, peer=1e-2),
    row("steps", 200, terzetto=1e-4, floor=1e-4, peer=3e-3),
    row("stream", 20, terzetto=1e-6),
    row("batch", 100, terzetto=1e-5),
    {"kind": "ratio", "name": "of another run"},
]


def test_only_work_in_several_sizes_is_drawn() -> None:
    plots = plots_of(ROWS)
    assert plots.keys() == {"steps"}
    assert [x for x, _ in plots["steps"].lines["peer"]] == [50, 200, 800]


def test_picture_is_whole_level_where_nothing_grows_and_its_labels_are_apart() -> None:
    tree = ElementTree.fromstring(svg(plots_of(ROWS)["steps"]))
    drawn = {
        line.get("stroke"): [float(at.partition(",")[2]) for at in line.get("points", "").split()]
        for line in tree.iter(f"{SVG}polyline")
        if len(line.get("points", "").split()) == 3
    }
    ours, peer = drawn["#0b84f3"], drawn["#e0662f"]
    assert len(set(ours)) == 1
    assert peer == sorted(peer, reverse=True)
    assert peer[0] < ours[0]  # what costs more is higher
    texts = {text.text: float(text.get("y", "")) for text in tree.iter(f"{SVG}text")}
    heights = sorted(texts[label] for label in ("terzetto", "bare Trio with a log", "peer"))
    assert all(low + LINE <= high for low, high in pairwise(heights))
    assert "800" in texts
    description = tree.findtext(f"{SVG}desc")
    assert description == words(plots_of(ROWS)["steps"])
    assert "peer 1,000 at 50, 3,000 at 200, 10,000 at 800" in description


def test_labels_of_lines_at_the_bottom_stay_in_the_picture() -> None:
    """Above the figures of the axis, still apart, and in the order of their lines."""
    costs = {"terzetto": 1.001e-5, "floor": 1.0e-5, "one": 1.003e-5, "two": 1.002e-5}
    rows = [row("steps", 50, **costs), row("steps", 800, **costs)]
    tree = ElementTree.fromstring(svg(plots_of(rows)["steps"]))
    at = {text.text: float(text.get("y", "")) for text in tree.iter(f"{SVG}text")}
    heights = [at[label] for label in ("one", "two", "terzetto", "bare Trio with a log")]
    assert all(low + LINE <= high + 0.1 for low, high in pairwise(heights))
    assert heights[-1] <= HEIGHT - BOTTOM + 4 < at["800"]


def test_reports_are_drawn_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, rows in enumerate((ROWS[:2], ROWS[2:])):
        (tmp_path / f"{number}.json").write_text(json.dumps({"rows": rows}))
    folder = tmp_path / "deep" / "figures"
    assert main([str(tmp_path / "0.json"), str(tmp_path / "1.json"), str(folder)]) == 0
    assert [path.name for path in folder.iterdir()] == ["steps.svg"]
    assert "at 200" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[]", "{}", "no json", '{"rows": []}'])
def test_what_is_no_report_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(SystemExit) as left:
        main([str(tmp_path / "report.json"), str(tmp_path / "figures")])
    assert left.value.code == 2
    assert "expected" in capsys.readouterr().err
    assert not (tmp_path / "figures").exists()
