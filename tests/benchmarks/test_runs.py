"""The benchmarks run, and count what they should; whether the figures are good is theirs to say."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from benchmarks.__main__ import PARTS
from benchmarks._measure import Scale, Series, alternate, counting
from benchmarks._rows import Count, Ratio, Row, table
from benchmarks._run import Parts, run

ROOT = Path(__file__).resolve().parents[2]


def measured(tmp_path: Path, *names: str) -> list[dict[str, Any]]:
    """The rows of these parts, measured quickly."""
    report = tmp_path / "report.json"
    assert run(PARTS, ["--quick", "--json", str(report), "--only", *names]) == 0
    return json.loads(report.read_text())["rows"]


@pytest.mark.parametrize(
    "part", ["floors", "store.write", "store.levels", "store.prices", "store.resume"]
)
def test_every_part_gives_ratios_above_zero(tmp_path: Path, part: str) -> None:
    rows = measured(tmp_path, part)
    assert {row["kind"] for row in rows} == {"ratio"}
    assert all(
        row["part"].startswith(part) and row["ratio"] > 0 and row["seconds"] > 0 for row in rows
    )
    assert len({(row["part"], row["name"]) for row in rows}) == len(rows) >= 2


def test_a_batch_is_measured_against_bare_trio_for_one_ten_and_a_hundred_slots(
    tmp_path: Path,
) -> None:
    """C178: what a call takes, and what it takes more than in a nursery with nothing around."""
    rows = [row for row in measured(tmp_path, "batch.parallel") if "no store" in row["name"]]
    assert [row["name"].split(", ")[1] for row in rows] == ["cap 1", "cap 10", "cap 100"]
    assert {(row["kind"], row["unit"], row["against"]) for row in rows} == {
        ("ratio", "call", "bare Trio")
    }
    assert all(row["seconds"] > 0 and row["ratio"] > 0 for row in rows)


def test_a_batch_and_a_step_need_few_syncs_and_few_threads(tmp_path: Path) -> None:
    """At most 2 + ceil(calls / cap) for a batch; a step waits for its request and its calls.

    As a command: what has its own is the same as ``python -m benchmarks --only store``.
    """
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks.store", "--quick", "--json", str(report)]
    done = subprocess.run(
        [*command, "--only", "store.counts"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "store.counts" in done.stdout
    rows = {row["name"]: row for row in json.loads(report.read_text())["rows"]}
    limits = {"a turn of": 2, "a further step": 2, "100 calls, cap 10": 12, "100 calls that": None}
    for name, row in rows.items():
        (limit,) = (most for what, most in limits.items() if what in name)
        assert row["limit"] == limit
        assert 1 <= row["value"] <= (limit or 101), name
    assert len(rows) == 2 * 2 * len(limits)


def test_memory_is_measured_for_every_store(tmp_path: Path) -> None:
    """Each in a process of its own; with this few pieces only that there is a figure."""
    rows = measured(tmp_path, "store.memory")
    assert [row["unit"] for row in rows] == ["B a piece", "objects a piece"] * 2
    assert all(row["value"] > 0 for row in rows if row["unit"] == "objects a piece")


def test_only_takes_whole_names_and_refuses_others(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run(PARTS, ["--quick", "--only", "stor"])
    assert left.value.code == 2
    assert "--only stor: expected one of floors, batch.parallel" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(scale: Scale) -> list[Row]:
        raise AssertionError("measured")

    with pytest.raises(SystemExit) as left:
        run({"never": never}, ["--json", str(tmp_path / "no" / "report.json")])
    assert left.value.code == 2
    assert "No such file or directory" in capsys.readouterr().err


def test_what_is_over_its_budget_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    low, high = Series((1.0, 1.0, 1.0)), Series((2.0, 3.0, 9.0))
    rows: list[Row] = [
        Ratio(name="slow", unit="event", ours=high, against="floor", floor=low, budget=2.5),
        Ratio(name="fast", unit="event", ours=low, against="floor", floor=high, budget=2.5),
        Ratio(name="any", unit="event", ours=high, against="floor", floor=low),
        Count(name="many", value=13, unit="", limit=12),
    ]
    parts: Parts = {"made.up": lambda scale: rows}
    assert run(parts, []) == 1
    printed = capsys.readouterr().out
    assert "over budget: slow, many" in printed
    assert table(rows) in printed
    # A quick run judges what it counted, not the times.
    assert run(parts, ["--quick"]) == 1
    assert "over budget: many" in capsys.readouterr().out
    assert run({"made.up": lambda scale: rows[:3]}, ["--quick"]) == 0


def test_contenders_take_turns_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []

    def contender(name: str) -> float:
        order.append(name)
        return len(order)

    found = alternate({"a": lambda: contender("a"), "b": lambda: contender("b")}, Scale())
    assert "".join(order) == "ba" + "abba" * 3 + "ab"
    assert len(found["a"].values) == len(found["b"].values) == 7
    assert found["a"].values[0] == 3
    assert found["a"].over(found["b"]).values[0] == 3 / 4


def test_counting_puts_back_what_it_watches() -> None:
    before = os.fsync, os.fdatasync, trio.to_thread.run_sync
    with pytest.raises(ZeroDivisionError), counting():
        assert before != (os.fsync, os.fdatasync, trio.to_thread.run_sync)
        raise ZeroDivisionError
    assert before == (os.fsync, os.fdatasync, trio.to_thread.run_sync)
