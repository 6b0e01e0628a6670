"""The scenarios that are shipped: their names, and where they come from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import cast

from attrs import field, frozen

from ..vocabulary import InvalidValue
from ._checkpoints import Checkpoints
from ._explorer import makers
from ._life import Play, Scenario
from ._recording import Answers, MakeAdapter
from ._scenarios_doors import DOORS
from ._scenarios_files import FILES
from ._scenarios_lives import LIVES
from ._scenarios_saving import SAVING
from ._scenarios_tools import TOOLS
from ._scenarios_turns import TURNS
from ._scenarios_wire import OVER_HTTP
from ._scenarios_world import WORLD
from ._script_acts import Script


@frozen
class Shipped:
    """A scenario with its model. *does* is its first line, *groups* the parts of the engine
    that it is about, for ``--list``. *weight*: how much dearer its steps are than others'."""

    name: str
    scenario: Scenario = field(repr=False)
    model: MakeAdapter | Answers = field(repr=False)
    groups: tuple[str, ...] = ()
    weight: int = 1

    @property
    def does(self) -> str:
        if isinstance(self.scenario, Script):
            return f"A script: {', '.join(map(str, self.scenario.acts))}."
        return (self.scenario.__doc__ or "").strip().partition("\n")[0]


def shipped(name: str) -> Shipped:
    """The scenario of that *name*, or one of yours: ``module:attribute``, or a path instead
    of the module.

    Raises `InvalidValue`, which says what was looked for and what there is.
    """
    if name in SHIPPED:
        return SHIPPED[name]
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise InvalidValue(
            f"scenario: expected one of the names that --list shows, or module:attribute, "
            f"got {name!r}"
        )
    try:
        found = getattr(_module(place), attribute)
    except (ImportError, OSError, AttributeError) as error:
        raise InvalidValue(f"scenario {name!r}: {error}") from error
    if not callable(found):
        raise InvalidValue(f"scenario {name!r}: expected an async function or a Script")
    return Shipped(name, cast(Scenario, found), getattr(found, "model", ()))


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        module: ModuleType = resolve_name(place)
        return module
    path = Path(place).resolve()
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no module in {place!r}")
    found = module_from_spec(spec)
    sys.modules.setdefault(path.stem, found)
    spec.loader.exec_module(found)
    return found


def play_of(
    scene: Shipped, seed: int = 0, checkpoints: Checkpoints | None = None, *, told: bool = False
) -> Play:
    """What is played of *scene*."""
    first, second = makers(scene.scenario, scene.model)
    return Play(
        scenario=scene.scenario,
        make_adapter=first,
        make_second=second,
        seed=seed,
        checkpoints=checkpoints,
        told=told,
    )


def _shipped() -> Mapping[str, Shipped]:
    found = {**TURNS, **TOOLS, **LIVES, **DOORS, **SAVING, **WORLD, **OVER_HTTP, **FILES}
    return {
        name: Shipped(name, scenario, model, tuple(GROUPS[name].split()), WEIGHTS.get(name, 1))
        for name, (scenario, model) in found.items()
    }


GROUPS: Mapping[str, str] = {
    "plain": "inbox turns requests streams",
    "reasoning": "streams",
    "asked": "inbox turns",
    "asking": "inbox turns cancellation",
    "steered": "inbox turns hooks",
    "interrupted": "inbox turns cancellation",
    "failing": "failures retries steps inbox",
    "rewriting": "steps inbox",
    "batch": "scheduling",
    "touching": "scheduling",
    "spilling": "pipeline",
    "broken": "pipeline declarations",
    "swallowing": "pipeline cancellation",
    "shielding": "scheduling cancellation",
    "context": "declarations pipeline inbox",
    "threaded": "pipeline scheduling",
    "reviewed": "pipeline hooks scheduling",
    "maintenance": "turns models",
    "stopping": "teardown cancellation",
    "resumed": "persistence creation inbox",
    "family": "ownership teardown initiator",
    "disposed": "teardown cancellation",
    "slow disk": "persistence turns",
    "everything": "turns steps requests prompt scheduling hooks retries",
    "wrapped": "ownership embedding turns",
    "forking": "creation persistence log",
    "doors": "creation ownership registry persistence",
    "held": "streams cancellation",
    "unsaved": "persistence steps turns",
    "lazy": "persistence",
    "each": "persistence log",
    "behind": "persistence",
    "reading back": "log persistence",
    "driving": "pipeline embedding",
    "groups": "pipeline failures",
    "script": "inbox cancellation persistence turns",
    "wire": "streams requests retries",
    "breaking": "streams failures retries",
    "connecting": "streams failures retries cancellation",
    "leaving": "streams cancellation failures",
    "by hand": "streams pipeline",
    "files": "persistence log",
    "database": "persistence log",
    "in files": "persistence log",
    "in a database": "persistence log",
    "together": "persistence cancellation",
}
"""What each scenario is about, in the words of the reference."""

WEIGHTS: Mapping[str, int] = {"files": 3, "database": 3}
"""Both lives of these work with threads all the time."""


SHIPPED = _shipped()
"""In the order in which they are explored."""
