"""Every recorded run, replayed: its log, requests, notifications and final state, exactly.

The files are those of ``runs/`` beside this module, or of the directory named by
``TERZETTO_CONFORMANCE``; every ``[0-9]*.json`` is a test, its file name the test's id.
A run that is shown to be wrong stands in ``disputed.toml`` with the argument, as a
strict expected failure.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.shelf import Shelf
from tests.conformance.world import Numbers, World

from terzetto import Durability
from terzetto.vocabulary import texts

HERE = Path(__file__).parent
RUNS = Path(os.environ.get("TERZETTO_CONFORMANCE") or HERE / "runs")
DISPUTED = tomllib.loads((HERE / "disputed.toml").read_text())
UNSURE = {
    texts.TOOL_NOT_STARTED_TEXT: texts.TOOL_OUTCOME_UNKNOWN_TEXT,
    texts.TOOL_NOT_STARTED_ERROR: texts.TOOL_OUTCOME_UNKNOWN_ERROR,
    texts.TOOL_NOT_STARTED: texts.TOOL_OUTCOME_UNKNOWN,
}
OUTPUTS = ("log", "requests", "notifications", "tool_notifications", "final")


def parameters() -> list[Any]:
    found = []
    for path in sorted(RUNS.glob("[0-9]*.json")):
        marks = []
        if path.stem in DISPUTED:
            reason = DISPUTED[path.stem]["argument"]
            marks = [pytest.mark.xfail(strict=True, reason=reason)]
        found.append(pytest.param(path, id=path.name, marks=marks))
    return found


def on_stores() -> list[Any]:
    """Each run on each store that does more than to keep events in a list."""
    return [
        pytest.param(*run.values, kind, id=f"{run.values[0].stem}[{kind}]", marks=run.marks)
        for run in parameters()
        for kind in ("jsonl", "sqlite", "simulated")
    ]


def at_levels() -> list[Any]:
    """Each run at the levels of durability that are not the usual one."""
    return [
        pytest.param(*run.values, level, id=f"{run.values[0].stem}[{level}]", marks=run.marks)
        for run in parameters()
        for level in ("lazy", "each")
    ]


@pytest.mark.parametrize("path", parameters())
async def test_run(path: Path) -> None:
    await replay(path, Shelf())


@pytest.mark.parametrize(("path", "kind"), on_stores())
async def test_run_on_a_store(path: Path, kind: str, tmp_path: Path) -> None:
    """C143, C144, C146: the store changes nothing, and has everything in the end."""
    shelf = Shelf(kind, tmp_path)
    with shelf.watching_threads():
        await replay(path, shelf)


@pytest.mark.parametrize(("path", "level"), at_levels())
async def test_run_at_a_level(path: Path, level: Durability) -> None:
    """C149: when something is written changes nothing of what is done and recorded; only that
    nobody can know, of a lazy log, which calls a crash kept from starting."""
    await replay(path, Shelf("simulated", level=level), UNSURE if level == "lazy" else {})


async def replay(path: Path, shelf: Shelf, instead: Mapping[str, str] = {}) -> None:
    """*instead*: texts that are expected in the place of others."""
    run = load(path)
    expected = renamed({name: run[name] for name in OUTPUTS}, instead)
    actual = normalised(json.loads(json.dumps(await World(run, shelf).perform())))
    masked(actual, expected)
    for name in OUTPUTS:
        assert_equal(name, actual[name], expected[name])


def load(path: Path) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(path.read_text())
    return run


def test_there_are_runs() -> None:
    """A wrong directory must not pass for success."""
    assert len(parameters()) >= 1


def normalised(outputs: dict[str, Any]) -> dict[str, Any]:
    """Message ids numbered by first appearance in the log, then in the requests."""
    numbers = Numbers()
    for event in outputs["log"]:
        numbers.scan(event["data"])
    numbers.scan(outputs["requests"])
    return renamed(outputs, numbers.known)


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def masked(actual: Any, expected: Any) -> None:
    """Put ``*`` wherever *expected* has it: texts that are ours to choose."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key, item in expected.items():
            if item == "*":
                actual[key] = "*"
            elif key in actual:
                masked(actual[key], item)
    elif isinstance(expected, list) and isinstance(actual, list):
        for ours, theirs in zip(actual, expected, strict=False):
            masked(ours, theirs)


def assert_equal(name: str, actual: Any, expected: Any) -> None:
    """Compare with ``==``; on a difference show the first one, line by line."""
    if actual == expected:
        return
    if isinstance(actual, dict) and isinstance(expected, dict):
        actual = [{k: actual.get(k)} for k in sorted({*actual, *expected})]
        expected = [{k: expected.get(k)} for k in [next(iter(e)) for e in actual]]
    lines = [f"{name} differs: {len(actual)} entries, expected {len(expected)}"]
    for index in range(max(len(actual), len(expected))):
        ours = actual[index] if index < len(actual) else "(nothing)"
        theirs = expected[index] if index < len(expected) else "(nothing)"
        if ours != theirs:
            lines += [f"  at {index}", f"    got      {json.dumps(ours)}"]
            lines += [f"    expected {json.dumps(theirs)}"]
            if len(lines) > 12:
                break
    pytest.fail("\n".join(lines))
