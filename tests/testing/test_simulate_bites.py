"""Simulations find what is broken, and make it small: one thing is broken at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import terzetto.agent._saving as saving_module
import terzetto.session._recovery as recovery_module
from terzetto import Agent
from terzetto.testing import SessionCheck, Simulation, shrink, simulate
from terzetto.testing._simulate_command import main
from terzetto.testing._simulate_draw import drawn
from terzetto.testing._simulate_shrink import kind_of

SEEDS = 60
"""Within so many seeds each of these has to be found."""


def _nothing_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claimed input of a turn that is cut is forgotten."""

    def put_back(*args: object) -> Iterator[Any]:
        return iter(())

    monkeypatch.setattr(recovery_module, "_put_back", put_back)


def _bodies_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies start before their calls are saved."""
    monkeypatch.setattr(saving_module.Saving, "must_flush", lambda self, read_only: False)


def _deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancel does nothing."""
    monkeypatch.setattr(Agent, "cancel", lambda self, *args, **kwargs: None)


def found(kind: str) -> tuple[int, str]:
    """The first seed with a problem that has *kind* in it."""
    for seed in range(SEEDS):
        for problem in simulate(seed).problems:
            if kind in problem:
                return seed, problem
    pytest.fail(f"no {kind!r} within {SEEDS} seeds")


@pytest.mark.parametrize(
    ("break_it", "kind"),
    [
        (_bodies_first, "is in no log"),
        (_deaf, "to give way to its cancel"),
    ],
)
def test_a_defect_is_found(
    break_it: Callable[[pytest.MonkeyPatch], None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    found(kind)


def test_a_defect_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """To one agent, one life and a few acts; the script fails alike, and passes once mended."""
    with monkeypatch.context() as broken:
        _nothing_put_back(broken)
        seed, problem = found("was lost by turn")
        kind = kind_of(problem)

        def fails(simulation: Simulation) -> bool:
            return any(kind_of(each) == kind for each in simulate(simulation).problems)

        small = shrink(drawn(seed), fails, plays=300)
        assert fails(Simulation.from_json(small.to_json()))
    assert len(small.lives) <= 2, small.to_json()
    assert sum(len(life.acts) for life in small.lives) <= 6, small.to_json()
    assert len(small.to_json()) < min(800, len(drawn(seed).to_json()) / 3)
    assert simulate(small).problems == ()


def test_a_script_that_passes_is_not_made_smaller() -> None:
    simulation = drawn(3)
    assert shrink(simulation, lambda script: False) is simulation
    assert shrink(simulation, lambda script: True) == Simulation()
    assert shrink(simulation, lambda script: True, plays=0) is simulation


def test_the_command_prints_a_script_that_can_be_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each violation with its seed, the first of them made small, and exit code 1."""
    seed, problem = 4, "there is an ada (ada)"
    check: SessionCheck = lambda header, events: ["there is an ada"] * (header.id == "ada")  # noqa: E731
    monkeypatch.setattr("terzetto.testing._simulate_judge.SESSION_CHECKS", [check])
    assert main(["--from", str(seed), "--seeds", "1", "--no-shrink"]) == 1
    out = capsys.readouterr().out
    assert f"seed {seed}: {problem}\n" in out
    assert "made smaller" not in out
    assert out.endswith(" violations\n")
    monkeypatch.setattr("terzetto.testing._simulate_command.shrink", lambda script, fails: script)
    assert main(["--from", str(seed), "--seeds", "1"]) == 1
    script = capsys.readouterr().out.partition("made smaller:\n")[2].partition("\n}\n")[0] + "\n}"
    assert Simulation.from_json(script) == drawn(seed)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("turn 3 of ada took 9.1 s", "turn 12 of ada took 60.0 s"),
        ("6. 'm5' was lost by turn 2 (ada)", "6. 'm71' was lost by turn 1 (bob.f1)"),
    ],
)
def test_problems_are_alike_whatever_their_numbers_and_names(one: str, other: str) -> None:
    assert kind_of(one) == kind_of(other)
    assert kind_of(one) != kind_of("7. 2 tasks are alive after the engine was left")
