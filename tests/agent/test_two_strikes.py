"""Who ended what, and two strikes in a row, on scenarios that are shipped.

That every point of every one of them keeps the invariants is what
``python -m terzetto.testing.explore --all`` checks.
"""

from __future__ import annotations

import pytest
import trio
from tests.agent.kit import kind_of

from terzetto.testing import SOURCES, Source, Stage, explore
from terzetto.testing._shipped import SHIPPED
from terzetto.vocabulary import TurnEnd


@pytest.mark.parametrize("source", [s for s in SOURCES if s.host], ids=lambda source: source.name)
@pytest.mark.parametrize("name", ["asked", "slow disk", "failing"])
def test_a_host_that_stops_leaves_no_turn_ended_by_the_user(name: str, source: Source) -> None:
    """A host's cancellation, a deadline and Ctrl-C end the turn `disposed`, also where
    the program was asking: its own `Cancelled` in the same tick is no second cause."""
    found: set[str] = set()

    def check(stage: Stage) -> list[str]:
        for session in stage.sessions:
            ends = [event.data for event in session.events if isinstance(event.data, TurnEnd)]
            found.update(kind_of(end.ending) for end in ends)
        return []

    explore(SHIPPED[name].scenario, SHIPPED[name].model, sources=[source], check=check)
    assert found >= {"Completed"}
    assert {kind for kind in found if kind.startswith("Aborted")} <= {"Aborted DisposedCause"}


# --- two strikes --------------------------------------------------------------------------


def then(first: Source, second: Source, steps: int) -> Source:
    """*first*, and *second* a few task steps later."""

    def strike(stage: Stage) -> None:
        first.strike(stage)
        trio.lowlevel.add_instrument(Later(stage, second, steps))

    # The explorer knows by its name that this source may send a KeyboardInterrupt. The first
    # cause stands, unless nothing ran yet; then it is the second's.
    name = second.name if "Keyboard" in second.name else f"{first.name}, {second.name}"
    return Source(name, strike, first.cause, host=first.host or second.host)


class Later(trio.abc.Instrument):
    def __init__(self, stage: Stage, source: Source, steps: int) -> None:
        self.stage = stage
        self.source = source
        self.steps = steps

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps -= 1
        if self.steps == 0:
            self.source.strike(self.stage)


BY_NAME = {source.name: source for source in SOURCES}
PAIRS = [
    ("user", "host cancel"),
    ("user, inbox kept", "dispose"),
    ("dispose", "host cancel"),
    ("dispose", "user"),
    ("dispose", "KeyboardInterrupt"),
    ("host cancel", "KeyboardInterrupt"),
    ("host cancel", "user"),
    ("KeyboardInterrupt", "KeyboardInterrupt"),
]


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("pair", PAIRS, ids=" then ".join)
@pytest.mark.parametrize("name", ["slow disk", "disposed"])
def test_a_second_strike_while_the_first_converges(
    name: str, pair: tuple[str, str], steps: int
) -> None:
    """BC-06 BC-56 C127: stopping twice, by the same or by another, breaks nothing."""
    shipped = SHIPPED[name]
    first, second = BY_NAME[pair[0]], BY_NAME[pair[1]]
    twice = then(first, second, steps)
    report = explore(shipped.scenario, shipped.model, sources=[twice], stride=2)
    assert report.points > 10
    mixed = f"was ended by {second.cause}"
    assert [v for v in report.violations if not v.problem.endswith(mixed)] == []
