"""The scenarios that are shipped: their names, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from ._checkpoints import Checkpoints
from ._explorer import makers
from ._life import Play, Scenario
from ._recording import Answers, MakeAdapter
from ._scenarios_doors import DOORS
from ._scenarios_lives import LIVES
from ._scenarios_saving import SAVING
from ._scenarios_tools import TOOLS
from ._scenarios_turns import TURNS


@frozen
class Shipped:
    """A scenario with its model. *does* is its first line, for ``--list``."""

    name: str
    scenario: Scenario = field(repr=False)
    model: MakeAdapter | Answers = field(repr=False)

    @property
    def does(self) -> str:
        return (self.scenario.__doc__ or "").strip().partition("\n")[0]


def play_of(
    shipped: Shipped, seed: int = 0, checkpoints: Checkpoints | None = None, *, told: bool = False
) -> Play:
    """What is played of *shipped*."""
    first, second = makers(shipped.scenario, shipped.model)
    return Play(
        scenario=shipped.scenario,
        make_adapter=first,
        make_second=second,
        seed=seed,
        checkpoints=checkpoints,
        told=told,
    )


def _shipped() -> Mapping[str, Shipped]:
    found = {**TURNS, **TOOLS, **LIVES, **DOORS, **SAVING}
    return {name: Shipped(name, scenario, model) for name, (scenario, model) in found.items()}


SHIPPED = _shipped()
"""In the order in which they are explored."""
