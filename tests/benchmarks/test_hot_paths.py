"""The benchmarks of the hot paths run, and time the work that they say they do."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from benchmarks import _idle, agents, batches, doors, steps, streams
from benchmarks._hot import Engaged, Hot, batches_of, on_disk, one_by_one, turn_of
from benchmarks._run import Parts, run
from benchmarks._sse import writes
from benchmarks._work import Load

from terzetto.vocabulary import Completed, ToolCallEvent, ToolResultEvent, TurnEnd

ROOT = Path(__file__).resolve().parents[2]


def measured(tmp_path: Path, parts: Parts) -> list[dict[str, Any]]:
    """The rows of *parts*, measured quickly."""
    report = tmp_path / "report.json"
    assert run(parts, ["--quick", "--json", str(report)]) == 0
    rows: list[dict[str, Any]] = json.loads(report.read_text())["rows"]
    assert {row["part"] for row in rows} == set(parts)
    assert len({row["name"] for row in rows}) == len(rows)
    return rows


@pytest.mark.parametrize(
    ("parts", "budgets"),
    [
        (
            batches.PARTS,
            [3.0, 1.6] + [1.6, 1.0] * 2 + [1.15, 1.25] + [1.2] + [2.0] + [1.3, 1.03] * 2,
        ),
        (steps.PARTS, [1.2, 1.5, 1.0, 1.1, 1.1, None]),
        (streams.PARTS, [0.40, 0.55] + [1.3] * 3),
        (doors.PARTS, [1.3, 1.8, 1.5]),
    ],
    ids=["batches", "steps", "streams", "doors"],
)
def test_every_row_is_a_ratio_with_its_budget(
    tmp_path: Path, parts: Parts, budgets: list[float | None]
) -> None:
    rows = measured(tmp_path, parts)
    assert [row["budget"] for row in rows] == budgets
    assert all(row["ratio"] > 0 and row["seconds"] > 0 for row in rows)


def test_agents_are_counted_and_timed(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in measured(tmp_path, agents.PARTS)}
    ratios = [row for row in rows.values() if row["kind"] == "ratio"]
    assert [row["budget"] for row in ratios] == [4]
    counts = {name: row["value"] for name, row in rows.items() if row["kind"] == "count"}
    lost = [value for name, value in counts.items() if "streams without end" in name]
    assert len(counts) == 4 + 6 + 5
    assert len(lost) == 5
    assert all(value > 0 for name, value in counts.items() if "streams" not in name)
    assert all(-1e-9 < value < 1 for value in lost[:4])
    assert 0 < lost[4] < 10


def test_a_module_of_its_own_is_a_command_too() -> None:
    command = [sys.executable, "-m", "benchmarks.steps", "--quick", "--only", "step.growth"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "a step at 12, median of 5" in done.stdout


def test_the_clock_of_a_batch_sees_every_call_and_its_result() -> None:
    """With a store as well, where the batch has to be written before the clock stops."""
    seen: list[tuple[int, int, int]] = []

    async def work(one: Engaged) -> float:
        took = await batches_of(one)
        events = [event.data for event in one.agent.session.events]
        calls = sum(isinstance(data, ToolCallEvent) for data in events)
        seen.append(
            (one.watch.calls, calls, sum(isinstance(data, ToolResultEvent) for data in events))
        )
        assert one.watch.calls == 14
        assert took == one.watch.seconds / one.watch.calls > 0
        return took

    hot = Hot(work, Load(3, 0, 7, tools=("note", "alone")))
    assert hot() > 0
    assert on_disk(hot)() > 0
    assert seen == [(14, 14, 14)] * 2


def test_calls_that_end_one_by_one_end_in_their_order() -> None:
    """In every batch of a turn, whatever order they started in."""
    ended: list[int] = []

    async def main() -> None:
        body = one_by_one(5)

        async def one(number: int) -> None:
            assert await body.start({"n": number}, None) == "ok"  # type: ignore[arg-type]
            ended.append(number)

        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for number in (3, 5, 1, 4, 2):
                    nursery.start_soon(one, number)

    trio.run(main)
    assert ended == [1, 2, 3, 4, 5] * 2


def test_a_turn_is_timed_to_its_end_and_every_step_is_seen() -> None:
    async def work(one: Engaged) -> float:
        took = await turn_of(one)
        (end,) = (e.data for e in one.agent.session.events if isinstance(e.data, TurnEnd))
        assert isinstance(end.ending, Completed)
        assert len(one.model.asked) == 4
        assert sorted(one.model.asked) == one.model.asked
        return took

    assert Hot(work, Load(4, 2), watched=False, asked=True)() > 0


def test_the_served_stream_has_so_many_deltas_in_a_write() -> None:
    """And what ends it: a reason, the marker, and HTTP's last chunk."""
    pieces = writes(16, 8)
    assert [piece.count(b"data: ") for piece in pieces] == [8, 8, 2, 0]
    assert pieces[-1] == b"0\r\n\r\n"
    assert b"".join(pieces).count(b'"content": "word "') == 16
    for piece in pieces[:-1]:
        size, _, rest = piece.partition(b"\r\n")
        assert len(rest) == int(size, 16) + 2


def test_a_share_that_one_takes_for_itself_is_seen() -> None:
    assert _idle.jain([1.0] * 10) == pytest.approx(1)
    assert _idle.jain([0.0] * 9 + [1.0]) == pytest.approx(0.1)
