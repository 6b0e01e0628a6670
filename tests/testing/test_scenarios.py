"""The shipped scenarios do what they say, and are clean at every ninth point.

All points of all sources are the business of ``python -m terzetto.testing.explore --all``.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest

from terzetto.testing import SOURCES, explore, explore_crashes
from terzetto.testing._command import engine_checkpoints, sampled_by
from terzetto.testing._explorer import Findings, makers
from terzetto.testing._life import Outcome, Play, run
from terzetto.testing._shipped import SHIPPED, play_of
from terzetto.testing._stage import Source
from terzetto.tools import _batch as batch_module
from terzetto.tools._pipeline import ToolPipeline
from terzetto.tools._touches import NOTHING
from terzetto.vocabulary import ToolResultEvent, TurnEnd

ENDINGS = {
    "plain": ["Completed"] * 2,
    "reasoning": ["Completed"],
    "asked": ["Completed"] * 2,
    "asking": ["Completed", "Aborted", "Completed"],
    "steered": ["Completed"],
    "interrupted": ["Completed"] * 2,
    "failing": ["Blocked", "Completed", "Failed", "Completed"],
    "rewriting": ["Completed"],
    "batch": ["Completed"],
    "touching": ["Completed"],
    "spilling": ["Completed"],
    "broken": ["Completed"],
    "swallowing": ["Completed"],
    "shielding": ["Completed"],
    "context": ["Completed"] * 2,
    "threaded": ["Completed"],
    "reviewed": ["Completed"],
    "maintenance": ["Completed"] * 2,
    "resumed": ["Completed"] * 2,
    "family": ["Completed"] * 2,
    "disposed": ["Aborted"],
    "slow disk": ["Completed"],
    "everything": ["Completed"] * 2,
    "wrapped": ["Completed"] * 2,
    "forking": ["Completed"],
    "doors": [],
    "held": ["Completed", "Aborted"],
    "unsaved": [],
    "lazy": ["Completed"] * 2,
    "each": ["Completed"],
    "behind": ["Completed"],
    "reading back": ["Completed"],
    "driving": ["Completed"],
    "groups": ["Completed"],
    "script": ["Completed"] * 4,
    "wire": ["Completed", "Failed"],
    "breaking": ["Completed"],
    "leaving": ["Completed"] * 2,
    "by hand": ["Completed"],
    "files": ["Completed"],
    "database": ["Completed"],
}
"""How the turns of the first session end when nobody strikes."""

RESULTS = {
    "steered": {"ok": 1},
    "interrupted": {"ABORTED": 2},
    "rewriting": {"ok": 1},
    "batch": {"ok": 5},
    "touching": {"ok": 8},
    "spilling": {"ok": 2},
    "broken": {"error": 1, "TOOL_TIMEOUT": 1, "INVALID_ARGS": 1, "UNKNOWN_TOOL": 1},
    "swallowing": {"ok": 2},
    "shielding": {"ok": 4},
    "context": {"ok": 3},
    "threaded": {"ok": 3},
    "reviewed": {"ok": 4, "error": 1},
    "family": {"ok": 1},
    "disposed": {"ok": 1},
    "slow disk": {"ok": 2},
    "everything": {"ok": 4, "error": 1, "UNKNOWN_TOOL": 1},
    "lazy": {"ok": 3},
    "each": {"ok": 1},
    "reading back": {"ok": 2},
    "behind": {"ok": 2},
    "driving": {"ok": 1},
    "groups": {"error": 3},
    "wire": {"ok": 1},
    "by hand": {"ok": 1},
    "files": {"ok": 1},
    "database": {"ok": 1},
}
"""How its tool calls end; absent: it makes none."""


GROUPS_OF_THE_ENGINE = {
    *("creation", "teardown", "registry", "ownership", "initiator", "inbox", "turns", "steps"),
    *("requests", "models", "prompt", "declarations", "streams", "pipeline", "scheduling"),
    *("cancellation", "failures", "retries", "persistence", "log", "hooks", "embedding"),
}
"""What the engine has rows of a contract for, and a scenario can play."""


def test_every_scenario_is_described() -> None:
    assert list(ENDINGS) == list(SHIPPED)
    assert len(SHIPPED) >= 30
    about = Counter(group for shipped in SHIPPED.values() for group in shipped.groups)
    assert set(about) >= GROUPS_OF_THE_ENGINE
    assert all(shipped.groups for shipped in SHIPPED.values())
    assert all(shipped.does.endswith(".") for shipped in SHIPPED.values())
    assert len({shipped.does for shipped in SHIPPED.values()}) == len(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_scenario_that_nobody_strikes_does_what_it_says(name: str) -> None:
    """No scenario may pass by doing nothing."""
    shipped = SHIPPED[name]
    first, second = makers(shipped.scenario, shipped.model)
    outcome = run(Play(scenario=shipped.scenario, make_adapter=first, make_second=second))
    assert outcome.problems == []
    data = [event.data for event in outcome.events]
    assert [type(d.ending).__name__ for d in data if isinstance(d, TurnEnd)] == ENDINGS[name]
    codes = Counter(
        d.error.code
        if d.error
        else "error"
        if getattr(d.message.content[0], "is_error", 0)
        else "ok"
        for d in data
        if isinstance(d, ToolResultEvent)
    )
    assert codes == RESULTS.get(name, {})
    assert len(outcome.stage.bodies) >= codes["ok"]


def test_the_scenario_of_batches_sees_a_cap_that_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def may_open(self: Any) -> bool:
        return len(self.opened) < len(self.batch.calls)

    monkeypatch.setattr(batch_module._Run, "_may_open", may_open)
    assert any("together in two slots: look, look, look" in p for p in _played("batch").problems)


def test_the_scenario_of_batches_sees_a_barrier_that_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def classify(self: Any, call: Any) -> Any:
        found = original(self, call)
        found.claim = NOTHING
        return found

    original = ToolPipeline.classify
    monkeypatch.setattr(ToolPipeline, "classify", classify)
    assert any("alone" in problem for problem in _played("batch").problems)


def _played(name: str) -> Outcome:
    first, second = makers(SHIPPED[name].scenario, SHIPPED[name].model)
    return run(Play(scenario=SHIPPED[name].scenario, make_adapter=first, make_second=second))


ONLY_STRUCK = {
    "agent/_creation.py: await late[1].close()": "its creator was cancelled",
    "agent/_waiting.py: await self._give_back()": "its creator was cancelled",
    "agent/_waiting.py: await self.discard(self._result.pop())": "its creator was cancelled",
    "agent/_waiting.py: await self.done.wait()": "its creator was cancelled",
    "llm/_http.py: await self._close()": "cancelled in the tick in which it has connected",
    "stores/_group.py: await batch.ended.wait()": "cancelled while others write what is its own",
}
"""Checkpoints that are reached at some moment of a strike only, and why."""


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer at work stays alone")
def test_every_checkpoint_of_the_engine_is_reached() -> None:
    """A new await in the engine needs a scenario that comes to it, struck or not.

    What only strikes come to is listed above, without rows that are out of date; a whole
    ``python -m terzetto.testing.explore --all`` reaches those as well.
    """
    checkpoints = engine_checkpoints().fresh()
    for shipped in SHIPPED.values():
        first, second = makers(shipped.scenario, shipped.model)
        played = Play(
            scenario=shipped.scenario,
            make_adapter=first,
            make_second=second,
            checkpoints=checkpoints,
        )
        assert run(played).problems == []
    assert {f"{p.path}: {p.text}" for p in checkpoints.unreached} == set(ONLY_STRUCK)


LONG = {"wire", "breaking", "leaving", "by hand", "files", "database"}
"""Scenarios of a hundred steps and more, which have few points here."""


@pytest.mark.parametrize("source", [s for s in SOURCES if s.name in {"user", "host cancel"}])
def test_a_sample_of_points_cuts_every_await_that_a_task_waits_at(source: Source) -> None:
    """Points that are left out are counted, and none of them is at an await of its own."""
    checkpoints = engine_checkpoints().fresh()
    findings = Findings(play_of(SHIPPED["batch"], 0, checkpoints), "batch")
    findings.strike(source, 10_000, 1, sampled=5)
    report, unstruck = findings.report, findings.unstruck
    first = unstruck.first_agent if source.to_agent else 1
    assert report.violations == []
    assert 5 <= report.points < report.left_out + report.points == unstruck.steps + 1 - first
    waited = frozenset[int]().union(*unstruck.waited[first - 1 :])
    assert len(waited) > 20
    assert waited <= checkpoints.findings()[1]


def test_only_long_scenarios_are_struck_at_a_sample() -> None:
    """What a sample leaves out grows with the steps, for a run costs as much as it has steps."""
    assert [sampled_by(steps) for steps in (1, 30, 60, 110, 200)] == [1, 1, 4, 12, 40]
    assert [sampled_by(steps, 2) for steps in (1, 30, 60, 110, 200)] == [1, 1, 2, 6, 20]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_scenario_is_clean_at_every_ninth_point(name: str) -> None:
    """C16 C28 C32 C34 C67 C113 C116 C119 C124 C126-C130 C134 C173 C175 C176 C179."""
    shipped = SHIPPED[name]
    some = {"user", "host cancel", "KeyboardInterrupt", "KeyboardInterrupt in a listener"}
    sources = [source for source in SOURCES if source.name in some]
    stride = 37 if name in LONG else 9
    report = explore(shipped.scenario, shipped.model, name=name, sources=sources, stride=stride)
    assert list(map(str, report.violations)) == []
    assert report.points >= 3 * (report.steps // stride)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_scenario_survives_power_cuts(name: str) -> None:
    """C145 and the durability of starts: what ran is never said not to have run."""
    shipped = SHIPPED[name]
    stride = 37 if name in LONG else 9
    report = explore_crashes(shipped.scenario, shipped.model, name=name, stride=stride)
    assert list(map(str, report.violations)) == []
    assert report.points >= 3
