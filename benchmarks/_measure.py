"""Taking samples: contenders in turn in one process, and what their figures say together.

A machine that others share is faster at one moment than at the next, by more than most
differences that matter. So contenders take turns within one process, ratios are made within
a round, and the middle of the rounds is what counts. The garbage collector is on, as it is
for users, and has just run when a sample begins.
"""

from __future__ import annotations

import gc
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

import trio
from attrs import define, frozen

from ._profile import Profiles

T = TypeVar("T")
Clock: TypeAlias = Callable[[], float]
"""`time.perf_counter`, or `time.process_time` where nothing has to be waited for: on a busy
machine only the second tells one program's work from another's."""
Sample: TypeAlias = Callable[[], float]
"""Does the work once and gives what one unit of it took, in seconds. It looks at the clock
itself, so that what it needs before and after is not counted."""

ROUNDS = 7


@frozen
class Scale:
    """How much is measured. *quick*: only whether everything works, in seconds. With
    *profiles* every contender does its work twice, and they say where its time went."""

    quick: bool = False
    profiles: Profiles | None = None

    @property
    def rounds(self) -> int:
        return 1 if self.quick or self.profiles is not None else ROUNDS

    def pick(self, full: T, quick: T) -> T:
        return quick if self.quick else full


@frozen
class Series:
    """The figures of all rounds, in their order."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """Between which two values the middle half of the figures is."""
        if len(self.values) < 3:
            return min(self.values), max(self.values)
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    def over(self, floor: Series) -> Series:
        """The ratio to *floor*, round by round."""
        return Series(tuple(a / b for a, b in zip(self.values, floor.values, strict=True)))


def alternate(contenders: Mapping[str, Sample], scale: Scale) -> dict[str, Series]:
    """Let *contenders* take turns; what each one took, by its name.

    One round more than is counted comes first, and every other round goes backwards, so
    that nobody is always the first or the last. A quick measurement has no such round.
    """
    if (profiles := scale.profiles) is not None:
        return {name: Series((took,)) for name, took in profiles.sample(contenders).items()}
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(1 if scale.quick else 0, scale.rounds + 1):
        names = list(contenders)
        for name in names if turn % 2 else reversed(names):
            gc.collect()
            value = contenders[name]()
            if turn:
                found[name].append(value)
    return {name: Series(tuple(values)) for name, values in found.items()}


@define
class Counted:
    """What was done inside `counting`: syncs of files, and calls that went to a thread."""

    syncs: int = 0
    hops: int = 0


@contextmanager
def counting() -> Iterator[Counted]:
    """Count syncs and thread hops in the block. SQLite's own syncs are not seen, nor those of a
    system without `os.fdatasync`."""
    counted = Counted()
    fsync, run_sync = os.fsync, trio.to_thread.run_sync
    fdatasync = getattr(os, "fdatasync", None)

    def counted_fsync(fd: int) -> None:
        counted.syncs += 1
        fsync(fd)

    def counted_fdatasync(fd: int) -> None:
        counted.syncs += 1
        assert fdatasync is not None
        fdatasync(fd)

    async def counted_run_sync(*args: object, **options: object) -> object:
        counted.hops += 1
        return await run_sync(*args, **options)  # type: ignore[arg-type]

    os.fsync = counted_fsync  # type: ignore[assignment]
    if fdatasync is not None:
        os.fdatasync = counted_fdatasync  # type: ignore[assignment]
    trio.to_thread.run_sync = counted_run_sync  # type: ignore[assignment]
    try:
        yield counted
    finally:
        os.fsync, trio.to_thread.run_sync = fsync, run_sync
        if fdatasync is not None:
            os.fdatasync = fdatasync


@contextmanager
def no_syncs() -> Iterator[None]:
    """Syncs of files in the block do nothing, and take no time."""
    before = {name: getattr(os, name) for name in ("fsync", "fdatasync") if hasattr(os, name)}
    for name in before:
        setattr(os, name, _no_sync)
    try:
        yield
    finally:
        for name, sync in before.items():
            setattr(os, name, sync)


def _no_sync(fd: int) -> None:
    return None
