"""Shrinking: from a script that fails to a small one that fails in the same way.

Works on the script as JSON: takes things out of lists, first many at once and then one by
one, and makes what is left as plain as by default. Every step is played, so the result is
known to fail.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from ..vocabulary import InvalidValue
from ._simulate_plan import Simulation

_DIGITS = re.compile(r"\d+(\.\d+)?")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_KEPT = 60
"""Characters of a problem that tell it from another."""


def kind_of(problem: str) -> str:
    """*problem* without what differs from run to run: numbers, names, ids."""
    plain = _DIGITS.sub("#", _QUOTED.sub("_", problem))
    return plain.partition(" (")[0][:_KEPT]


def shrink(
    simulation: Simulation, fails: Callable[[Simulation], bool], *, plays: int = 600
) -> Simulation:
    """The smallest script found that still fails; *simulation* itself if it does not.

    Args:
        simulation: A script that fails.
        fails: Plays a script and says whether it fails in the way that matters.
        plays: How many scripts are played, at most.
    """
    return _Shrinking(fails, plays).run(simulation)


class _Shrinking:
    def __init__(self, fails: Callable[[Simulation], bool], plays: int) -> None:
        self.fails = fails
        self.plays = plays

    def run(self, simulation: Simulation) -> Simulation:
        best = json.loads(simulation.to_json())
        if not self._still(best):
            return simulation
        while True:
            before = json.dumps(best)
            best = self._smaller_lists(best)
            best = self._plainer(best)
            if json.dumps(best) == before or self.plays <= 0:
                return Simulation.from_json(before if self.plays > 0 else json.dumps(best))

    def _still(self, script: Any) -> bool:
        if self.plays <= 0:
            return False
        try:
            simulation = Simulation.from_json(json.dumps(script))
        except InvalidValue:
            return False
        self.plays -= 1
        return self.fails(simulation)

    def _smaller_lists(self, script: Any) -> Any:
        """Take runs of entries out of each list, long runs first."""
        for path in sorted(_lists(script), key=len):
            run = _length(script, path)
            while run:
                start = 0
                while start < _length(script, path):
                    smaller = _without(script, path, start, start + run)
                    if self._still(smaller):
                        script = smaller
                    else:
                        start += run
                run = min(run // 2, _length(script, path))
        return script

    def _plainer(self, script: Any) -> Any:
        """Leave out what need not be said, and make numbers small."""
        for path in _leaves(script):
            if _at(script, path) is None:
                continue  # it went with something around it
            dropped = _edited(script, path, None)
            if self._still(dropped):
                script = dropped
                continue
            value = _at(script, path)
            for smaller in _smaller(value):
                edited = _edited(script, path, smaller)
                if self._still(edited):
                    script = edited
                    break
        return script


def _smaller(value: object) -> Iterator[object]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    for candidate in (1, value // 2, round(value / 2, 2)):
        if 0 < candidate < value:
            yield candidate


def _lists(script: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the lists are, outer ones first."""
    if isinstance(script, dict):
        for key, value in script.items():
            yield from _lists(value, (*path, key))
    elif isinstance(script, list):
        yield path
        for index, value in enumerate(script):
            yield from _lists(value, (*path, index))


def _leaves(script: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where named values are; whole things before what is in them."""
    found: list[tuple[Any, ...]] = []
    if isinstance(script, dict):
        for key, value in script.items():
            found += [(*path, key), *_leaves(value, (*path, key))]
    elif isinstance(script, list):
        for index, value in enumerate(script):
            found += _leaves(value, (*path, index))
    return found


def _at(script: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        try:
            script = script[key]
        except (KeyError, IndexError, TypeError):
            return None
    return script


def _length(script: Any, path: tuple[Any, ...]) -> int:
    found = _at(script, path)
    return len(found) if isinstance(found, list) else 0


def _edited(script: Any, path: tuple[Any, ...], value: object) -> Any:
    """A copy of *script* with *value* at *path*; None takes it out."""
    copied = json.loads(json.dumps(script))
    inner = _at(copied, path[:-1])
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copied


def _without(script: Any, path: tuple[Any, ...], start: int, stop: int) -> Any:
    copied = json.loads(json.dumps(script))
    del _at(copied, path)[start:stop]
    return copied
