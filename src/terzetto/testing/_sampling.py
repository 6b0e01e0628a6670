"""Which points of a scenario are struck, where not all of them are. Pure, and repeatable.

A run costs its steps, so that all points of a long scenario cost the square of them. Of those
there is a sample: points at even distances, other ones for each source, and more until each
kind of source has struck at every await that a task of the scenario waits at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from attrs import frozen

from ..vocabulary import DisposedCause
from ._stage import Source

Waited: TypeAlias = Sequence[frozenset[int]]

_WORK = 650
"""Task steps that one source's strikes at a scenario may come to before they are a sample."""


def sampled_by(cost: int, stride: int = 1) -> int:
    """Of every how many points of a *stride* one is struck, in a scenario all of whose points
    *cost* so many task steps: the square of its own."""
    return max(1, round(cost / _WORK / stride))


@frozen
class Points:
    """Which points of a scenario a source strikes.

    Of every *stride*-th point one in *sampled*, counted from a beginning that depends on
    *place*, the source's among all. And, of a stride of 1, the *part*-th of every *parts* of
    those which its kind of source needs to have struck at every await.
    """

    stride: int = 1
    sampled: int = 1
    place: int = 0
    part: int = 0
    parts: int = 1


def points_of(sources: Sequence[Source], stride: int, sampled: int) -> list[Points]:
    """What each of *sources* strikes."""
    kinds = list(map(kind_of, sources))
    return [
        Points(stride, sampled, place, kinds[:place].count(kind), kinds.count(kind))
        for place, kind in enumerate(kinds)
    ]


def kind_of(source: Source) -> str:
    """What it cuts, and how. Of one kind, only what is said of the cut is different."""
    if source.inside is not None:
        return f"Ctrl-C inside a {source.inside}"
    if source.host:
        return "Ctrl-C" if source.interrupts else "host"
    return "agent" if isinstance(source.cause, DisposedCause) else "turn"


def sample(waited: Waited, there: range, points: Points) -> list[int]:
    """Some of the points that are *there*, ascending.

    *waited* has the awaits that tasks wait at before each step, if somebody looked.
    """
    if points.sampled == 1:
        return list(there)
    found = set(there[points.place % points.sampled :: points.sampled])
    if points.stride == 1:
        found.update(covering(waited, there.start)[points.part :: points.parts])
    return sorted(found)


def covering(waited: Waited, first: int = 1) -> list[int]:
    """Points from *first* on at which, together, every await is waited at; few, ascending."""
    points = range(first, len(waited) + 1)
    missing = set[int]().union(*waited[first - 1 :])
    found = list[int]()
    while missing:
        best = max(points, key=lambda point: len(missing & waited[point - 1]))
        missing -= waited[best - 1]
        found.append(best)
    return sorted(found)
