"""Slots: how many threads a store may use at once, taken without a turn of the scheduler.

Trio's limiter lets others run for each slot that it gives. Waiting for the thread lets them
run already, and a turn of the scheduler is a tenth of what a flush costs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import cast

import trio


class _Taken:
    """Awaited, it is over."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return iter(())  # type: ignore[return-value]  # all that is asked of it is its end


_TAKEN = _Taken()


class _Slots:
    """What `trio.to_thread.run_sync` asks of a limiter."""

    __slots__ = ("_limiter",)

    def __init__(self, count: int) -> None:
        self._limiter = trio.CapacityLimiter(count)

    def acquire_on_behalf_of(self, borrower: object) -> Awaitable[None]:
        """A slot, at once if one is free and nobody waits for it. To be awaited at once."""
        try:
            self._limiter.acquire_on_behalf_of_nowait(borrower)
        except trio.WouldBlock:
            return self._limiter.acquire_on_behalf_of(borrower)
        return _TAKEN

    def release_on_behalf_of(self, borrower: object) -> None:
        self._limiter.release_on_behalf_of(borrower)


def slots(count: int) -> trio.CapacityLimiter:
    """A limiter of *count* threads, for `trio.to_thread.run_sync` and nothing else.

    Whoever calls that in a loop still lets others run: it waits for its thread.
    """
    return cast(trio.CapacityLimiter, _Slots(count))
