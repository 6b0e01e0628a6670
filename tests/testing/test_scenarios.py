"""The shipped scenarios do what they say, and are clean at every ninth point.

All points of all sources are the business of ``python -m terzetto.testing.explore --all``.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from terzetto.testing import SOURCES, explore, explore_crashes
from terzetto.testing._command import engine_checkpoints
from terzetto.testing._crashes import LATENCY, Life, cut_power, look
from terzetto.testing._explorer import Findings, makers
from terzetto.testing._life import Outcome, Play, run
from terzetto.testing._sampling import (
    Points,
    covering,
    kind_of,
    points_of,
    sample,
    sampled_by,
)
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
    "stopping": [],
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
    "connecting": ["Completed"],
    "leaving": ["Completed"] * 2,
    "by hand": ["Completed"],
    "files": ["Completed"],
    "database": ["Completed"],
    "in files": [],
    "in a database": [],
    "together": ["Completed"],
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
    "together": {"ok": 1},
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
}
"""Checkpoints that are reached at some moment of a strike only, and why."""


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer at work stays alone")
def test_every_checkpoint_of_the_engine_is_reached() -> None:
    """A new await in the engine needs a scenario that comes to it, struck or not.

    What only strikes come to is listed above, without rows that are out of date; a whole
    ``python -m terzetto.testing.explore --all`` reaches those as well, and ends with 1 if it
    leaves one where a task was suspended and that it never cut.

    And wherever a task waits in the run that nobody strikes, each kind of source strikes: also
    where only a sample of the points is struck.
    """
    checkpoints = engine_checkpoints().fresh()
    for shipped in SHIPPED.values():
        outcome = run(play_of(shipped, 0, checkpoints))
        assert outcome.problems == []
        sampled = sampled_by(outcome.steps**2 * shipped.weight)
        cut: dict[tuple[str, int], set[int]] = {}
        for source, points in zip(SOURCES, points_of(SOURCES, 1, sampled), strict=True):
            if source.inside is None:
                first = max(1, outcome.first_agent) if source.to_agent else 1
                struck = sample(outcome.waited, range(first, outcome.steps + 1), points)
                met = cut.setdefault((kind_of(source), first), set())
                met.update(*(outcome.waited[point - 1] for point in struck))
        assert len(cut) == 4, "a turn, an agent, a host, a process"
        for (kind, first), met in cut.items():
            assert met == set().union(*outcome.waited[first - 1 :]), (shipped.name, kind)
    assert {f"{p.path}: {p.text}" for p in checkpoints.unreached} == set(ONLY_STRUCK)
    assert len(checkpoints.passed) < len(checkpoints.points) / 4


@pytest.mark.parametrize("name", ["lazy", "slow disk", "family"])
def test_one_run_shows_what_a_power_cut_leaves_at_each_point(name: str) -> None:
    """The same lives as if the power were cut there, in the same order."""

    def told(life: Life) -> object:
        kept = life.disk.stored(life.session_id)
        return life.session_id, life.how, kept, list(life.before), life.started, life.stored

    played = play_of(SHIPPED[name])
    seen = look(played, LATENCY)
    for point in range(1, seen.steps + 1, 8):
        lives = [told(seen.lives[facts]) for facts in seen.points[point]]
        assert lives == [told(life) for life in cut_power(played, point, LATENCY).lives]
    assert not cut_power(played, seen.steps + 1, LATENCY).done
    assert len(seen.points) == seen.steps > 40
    assert 5 < len(seen.lives) < 3 * seen.steps


LONG = {
    *("wire", "breaking", "connecting", "leaving", "by hand"),
    *("files", "database", "in files", "in a database"),
}
"""Scenarios whose runs cost much, which have few points here."""


@pytest.mark.parametrize("source", [s for s in SOURCES if s.name in {"user", "host cancel"}])
def test_a_sample_of_points_cuts_every_await_that_a_task_waits_at(source: Source) -> None:
    """Points that are left out are counted, and none of them is at an await of its own."""
    checkpoints = engine_checkpoints().fresh()
    findings = Findings(play_of(SHIPPED["batch"], 0, checkpoints), "batch")
    findings.strike_some(source, Points(sampled=5))
    report, unstruck = findings.report, findings.unstruck
    first = unstruck.first_agent if source.to_agent else 1
    assert report.violations == []
    assert 5 <= report.points < report.left_out + report.points == unstruck.steps + 1 - first
    waited = frozenset[int]().union(*unstruck.waited[first - 1 :])
    assert len(waited) > 20
    assert waited <= checkpoints.findings()[1]


def test_only_long_scenarios_are_struck_at_a_sample() -> None:
    """What a sample leaves out grows with the steps, for a run costs as much as it has steps."""
    found = [sampled_by(steps**2) for steps in (1, 20, 60, 110, 200)]
    assert found[:2] == [1, 1]
    assert found[1] < found[2] < found[3] < found[4]
    assert [sampled_by(steps**2, 2) for steps in (1, 20)] == [1, 1]
    assert sampled_by(200**2, 2) < sampled_by(200**2) < sampled_by(3 * 200**2)
    assert max(shipped.weight for shipped in SHIPPED.values()) > 1


@given(
    st.lists(st.frozensets(st.integers(0, 9)), min_size=1, max_size=30),
    st.integers(1, 9),
    st.integers(1, 30),
)
def test_the_sources_of_a_kind_share_what_it_strikes(
    waited: list[frozenset[int]], sampled: int, first: int
) -> None:
    """Together they come to every await; each has points of its own besides, and none twice."""
    first = min(first, len(waited))
    there = range(first, len(waited) + 1)
    few = covering(waited, first)
    assert few == sorted({*few})
    assert len(few) <= len(frozenset().union(*waited))
    of_kinds: dict[str, set[int]] = {}
    for source, points in zip(SOURCES, points_of(SOURCES, 1, sampled), strict=True):
        struck = sample(waited, there, points)
        assert struck == sorted({*struck})
        assert {*struck} <= {*there}
        assert sampled > 1 or struck == list(there)
        of_kinds.setdefault(kind_of(source), set()).update(struck)
    for struck_by_all in of_kinds.values():
        met = frozenset[int]().union(*(waited[point - 1] for point in struck_by_all))
        assert met == frozenset[int]().union(*waited[first - 1 :])


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
    report = explore_crashes(shipped.scenario, shipped.model, name=name, stride=4)
    assert list(map(str, report.violations)) == []
    assert report.points == -(-report.steps // 4) > 3
