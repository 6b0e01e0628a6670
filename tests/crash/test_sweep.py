"""Logs that are cut anywhere are resumed, and nothing that was acknowledged is lost.

All of it: ``python -m tests.crash.sweep``. Here are fewer scenarios and fewer cuts.
"""

from __future__ import annotations

import re

import pytest
from tests.crash.cuts import main, sweep
from tests.crash.logs import RICH, lazily, logs_of, play_once

from terzetto.vocabulary import EndSeed, ToolCallEvent, ToolResultEvent


@pytest.mark.parametrize(
    ("kind", "name", "stride", "least"),
    [
        ("jsonl", "batch", 7, 30),
        ("jsonl", "interrupted", 9, 25),
        ("packed", "batch", 17, 10),
        ("zstd", "batch", 17, 10),
        ("sqlite", "batch", 23, 40),
        ("sqlite", "everything", 53, 25),
    ],
)
def test_a_cut_log_is_resumed(kind: str, name: str, stride: int, least: int) -> None:
    """BC-42, BC-44, C145, C148: what was acknowledged is there, and no effect is repeated."""
    (log,) = play_once(name)
    swept = sweep(kind, log, part=slice(None, None, stride))
    assert swept.violations == []
    assert swept.cuts > least


@pytest.mark.parametrize(("name", "closed"), [("reasoning", 3), ("batch", 7)])
def test_a_crash_during_the_repair_is_repaired(name: str, closed: int) -> None:
    """C145, BC-44: at every event of the repair, it goes on where it was cut."""
    (log,) = [log for log in logs_of([name]) if log.name == f"{name}, crashed"]
    mark = next(event.seq for event in log.events if isinstance(event.data, EndSeed))
    # After the header and each event, and in the middle of each.
    part = slice(2 * (mark - closed) + 1, 2 * mark + 4)
    swept = sweep("jsonl", log, part=part)
    assert swept.violations == []
    assert swept.cuts == 2 * closed + 3


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_a_lazy_log_claims_of_no_call_that_it_did_not_start(kind: str) -> None:
    (log,) = play_once("batch")
    swept = sweep(kind, lazily(log), part=slice(None, None, {"jsonl": 7, "sqlite": 61}[kind]))
    assert swept.violations == []
    assert swept.cuts > 15


@pytest.mark.parametrize(
    ("defect", "kind", "part", "words"),
    [
        ("fuse", "jsonl", slice(0, 60, 3), "what is stored is not|CorruptLog"),
        ("not started", "jsonl", slice(40, 100, 6), "says TOOL_NOT_STARTED, expected TOOL_OUT"),
        ("not started", "sqlite", slice(40, 150, 9), "says TOOL_NOT_STARTED, expected TOOL_OUT"),
        ("forgetful", "sqlite", slice(0, 60), "10 events were stored"),
    ],
)
def test_a_defect_is_reported(defect: str, kind: str, part: slice, words: str) -> None:
    """The very cuts at which nothing is wrong without it."""
    (log,) = play_once("batch")
    swept = sweep(kind, log, part=part, defect=defect)
    assert swept.violations
    assert any(re.search(words, violation) for violation in swept.violations), swept.violations[:3]
    assert sweep(kind, log, part=part).violations == []


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--defect", "not started"), 1)])
def test_the_command(
    arguments: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--scenario", "batch", "--store", "jsonl", "--stride", "15", "--jobs", "1")
    assert main([*few, *arguments]) == code
    *lines, last = capsys.readouterr().out.splitlines()
    found = re.fullmatch(r"(\d+) cuts, (\d+) violations", last)
    assert found is not None
    assert int(found[1]) == sum(int(n) for n in re.findall(r" (\d+) cuts", "\n".join(lines)))
    assert (int(found[2]) > 0) == bool(code)


def test_the_scenarios_are_rich() -> None:
    """Enough of them, and calls are cut at every stage: before they run, while, after."""
    assert len(RICH) >= 12
    kinds = {type(event.data) for name in RICH for log in play_once(name) for event in log.events}
    assert {ToolCallEvent, ToolResultEvent} < kinds
    assert len(kinds) > 12
