"""Citations: which events another one names, without a number in memory for each.

An answer cites every chunk it came from. Their seqs are a few runs of numbers, so that is
what is kept; in the format they stay a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias, overload

_SHORT = 16
"""Up to this many seqs are kept as a tuple: nobody would gain anything."""


class Seqs(Sequence[int]):
    """Seqs as runs of numbers that follow each other. Immutable; equal to the same tuple."""

    __slots__ = ("_length", "_runs")

    def __init__(self, runs: Iterable[range]) -> None:
        self._runs = tuple(runs)
        self._length = sum(map(len, self._runs))

    @property
    def runs(self) -> tuple[range, ...]:
        """The same, a range for each run."""
        return self._runs

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        rest = index + self._length if index < 0 else index
        if rest >= 0:
            for run in self._runs:
                if rest < len(run):
                    return run[rest]
                rest -= len(run)
        raise IndexError(index)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._runs)

    def __contains__(self, seq: object) -> bool:
        return any(seq in run for run in self._runs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Seqs):
            return self._runs == other._runs
        if isinstance(other, tuple):
            return self._length == len(other) and all(
                a == b for a, b in zip(self, other, strict=True)
            )
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<Seqs: {', '.join(f'{run[0]}..{run[-1]}' for run in self._runs)}>"


def bounds(seqs: Sources) -> tuple[int, int]:
    """The least and the greatest of *seqs*, of which there is one at least."""
    if isinstance(seqs, Seqs):  # a run at a time
        return min(run[0] for run in seqs._runs), max(run[-1] for run in seqs._runs)
    return (seqs[0], seqs[0]) if len(seqs) == 1 else (min(seqs), max(seqs))


Sources: TypeAlias = tuple[int, ...] | Seqs
"""What `Event.sources` holds: a tuple, or the same in less memory."""


def of_runs(runs: Sequence[range]) -> Sources:
    """The seqs of *runs*, none of which is empty or goes on where the one before it ends."""
    length = sum(map(len, runs))
    if length <= _SHORT or 4 * len(runs) > length:
        return tuple(chain.from_iterable(runs))
    return Seqs(runs)


def cited(seqs: Sequence[int]) -> Sources:
    """*seqs*, in the smaller of the two forms."""
    if isinstance(seqs, Seqs):
        return seqs
    if len(seqs) <= _SHORT:
        return tuple(seqs)
    if seqs[-1] - seqs[0] == len(seqs) - 1:
        whole = range(seqs[0], seqs[-1] + 1)
        if tuple(whole) == tuple(seqs):  # nearly always
            return Seqs((whole,))
    runs: list[range] = []
    first = last = seqs[0]
    for seq in seqs[1:]:
        if seq != last + 1:
            runs.append(range(first, last + 1))
            first = seq
        last = seq
    runs.append(range(first, last + 1))
    return of_runs(runs)
