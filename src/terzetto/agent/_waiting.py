"""Waiting done right: acquisitions that are not lost, and the bell of a session."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio
from attrs import define, field

from ..vocabulary import StoreError, chain_text

logger = logging.getLogger("terzetto")

T = TypeVar("T")


@define(eq=False)
class Acquisition(Generic[T]):
    """Something slow that must not be lost: it is finished even if nobody waits any more.

    Runs in a task of the engine's, shielded until the engine's end and bounded after it.
    Who waits may be cancelled; what arrives then is given to *discard*. A cancelled wait
    takes *seconds* at most.
    """

    acquire: Callable[[], Awaitable[T]]
    discard: Callable[[T], Awaitable[None]]
    finished: Callable[[], None]
    seconds: float
    patience: float = math.inf
    shield: trio.CancelScope = field(factory=lambda: trio.CancelScope(shield=True))
    done: trio.Event = field(factory=trio.Event)
    abandoned: bool = False
    _result: list[T] = field(factory=list)
    _failure: BaseException | None = None

    async def run(self) -> None:
        """The task. Its failures are for who waits."""
        with self.shield:
            try:
                self._result.append(await self.acquire())
            except Exception as error:
                self._failure = error
            if self.abandoned:
                await self._give_back()
        self.done.set()

    async def _give_back(self) -> None:
        """Give what came too late to *discard*; its trouble is nobody's any more."""
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self.seconds):
                if self._result:
                    await self.discard(self._result.pop())
        except Exception as error:  # a store: whatever it fails with
            logger.error("giving up a late session failed: %s", chain_text(error))
        self.finished()

    async def wait(self) -> T:
        """What was acquired. Raises what acquiring raised."""
        try:
            await self.done.wait()
        except (trio.Cancelled, KeyboardInterrupt):
            self.abandoned = True
            if self.done.is_set():
                # It came in the same tick: somebody has to give it back.
                await self._give_back()
            else:
                # Most stores answer soon; one that hangs is left to the engine.
                self.patience = trio.current_time() + self.seconds
                with trio.CancelScope(shield=True, deadline=self.patience):
                    await self.done.wait()
            raise
        if self._failure is not None:
            raise self._failure
        if not self._result:
            raise StoreError("the store did not answer before the engine was left")
        return self._result.pop()

    def limit(self) -> None:
        """The engine ends: some seconds more, then what is in flight is given up."""
        self.shield.deadline = min(self.patience, trio.current_time() + self.seconds)


class TrioBell:
    """Wakes the followers of a session."""

    __slots__ = ("_lot",)

    def __init__(self) -> None:
        self._lot: trio.lowlevel.ParkingLot | None = None

    def ring(self) -> None:
        lot = self._lot  # rung for every event, and mostly nobody waits
        if lot is not None:
            self._lot = None
            lot.unpark_all()

    async def wait(self) -> None:
        if self._lot is None:
            self._lot = trio.lowlevel.ParkingLot()
        await self._lot.park()

    async def checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()
