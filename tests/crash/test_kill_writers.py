"""SIGKILL between and inside writes: what was confirmed is there, and nothing else is.

More of it: ``python -m tests.crash.kill_writers --store sqlite --kills 1000 --seed 1``.
"""

from __future__ import annotations

import re

import pytest
from tests.crash.commands import run


def kill(*arguments: str) -> tuple[int, list[str]]:
    return run("kill_writers", *arguments)


@pytest.mark.parametrize("store", ["jsonl", "packed", "zstd", "sqlite"])
def test_what_was_acknowledged_survives_its_process(store: str) -> None:
    """BC-42, BC-43, C148: nothing lost, contiguous, nobody locked out, over 30 lives."""
    if store == "zstd":
        pytest.importorskip("zstandard")
    code, lines = kill("--store", store, "--kills", "30")
    assert code == 0, "\n".join(lines)
    found = re.fullmatch(r"30 kills, (\d+) acknowledged events, 0 violations", lines[-1])
    assert found is not None
    assert int(found[1]) > 100
    # They died where it matters: some in the middle of a write.
    told = re.fullmatch(r"15 of the kills aimed, (\d+) torn ends cut, (\d+) events .*", lines[-2])
    assert told is not None
    assert (int(told[1]) > 0) == (store != "sqlite")
    assert int(told[2]) > 0


@pytest.mark.parametrize(
    ("defect", "words"),
    [("early", "were confirmed"), ("other text", "not the one that was written")],
)
def test_a_defect_is_seen(defect: str, words: str) -> None:
    code, lines = kill("--store", "jsonl", "--kills", "6", "--defect", defect)
    assert code == 1
    assert any(words in line for line in lines[:-2]), lines
    assert re.fullmatch(r"6 kills, \d+ acknowledged events, [1-9]\d* violations", lines[-1])
