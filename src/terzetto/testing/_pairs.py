"""Second strikes: another source strikes while the run unwinds from the first.

A first strike opens paths that no undisturbed run takes: closers, put-back input, a drain, a
flush under a shield. Each step of those is a point as well, for each other source.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from attrs import frozen

from ._life import Outcome, Play, Second, run
from ._stage import SOURCES, Source

Pairs: TypeAlias = int | Literal["all"]

_MEAN_STEPS = 4
"""Of a sample: how many steps after the first strike the second one comes, on average."""


@frozen
class Pair:
    """Struck by *source* at *point*, then by *second*."""

    source: Source
    point: int
    second: Second


def pairs_of(sources: Sequence[Source]) -> list[tuple[Source, Source]]:
    """Who may strike after whom: every other source, between steps only."""
    between = [source for source in sources if source.inside is None]
    return [(one, other) for one in between for other in between if one is not other]


def struck_twice(
    play: Play, name: str, unstruck: Outcome, sources: Sequence[Source], pairs: Pairs, stride: int
) -> Iterator[tuple[Pair, Outcome]]:
    """Runs that were struck twice: all there are, or as many as *pairs*, by the play's seed.

    *stride* is that of first points when they are all asked for.
    """
    if pairs == "all":
        yield from _all(play, unstruck, sources, stride)
    else:
        yield from _some(play, name, unstruck, sources, pairs)


def _all(
    play: Play, unstruck: Outcome, sources: Sequence[Source], stride: int
) -> Iterator[tuple[Pair, Outcome]]:
    for first, other in pairs_of(sources):
        for point in range(_begin(first, unstruck), unstruck.steps + 1, stride):
            after = 1
            while True:
                pair = Pair(first, point, Second(other, after))
                outcome = run(play, first, point, pair.second)
                if not outcome.stage.struck_again:
                    break
                yield pair, outcome
                after += 1


def _some(
    play: Play, name: str, unstruck: Outcome, sources: Sequence[Source], count: int
) -> Iterator[tuple[Pair, Outcome]]:
    """A sample of first points and of steps after them, of each two sources in turn."""
    chance, combinations = random.Random(f"{play.seed} {name}"), pairs_of(sources)
    chance.shuffle(combinations)
    found = 0
    for attempt in range(3 * count if combinations else 0):
        first, other = combinations[attempt % len(combinations)]
        begin = _begin(first, unstruck)
        point = chance.randint(begin, max(begin, unstruck.steps))
        after = 1 + int(chance.expovariate(1 / _MEAN_STEPS))
        pair = Pair(first, point, Second(other, after))
        outcome = run(play, first, point, pair.second)
        if outcome.stage.struck_again:
            yield pair, outcome
            found += 1
        if found == count:
            return


def _begin(source: Source, unstruck: Outcome) -> int:
    return max(1, unstruck.first_agent) if source.to_agent else 1


BY_NAME = {source.name: source for source in SOURCES}
