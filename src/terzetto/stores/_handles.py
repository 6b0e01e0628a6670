"""What the handles of all stores share: the books of a writer, and the life of one on files.

No store is known here. What differs - where events are kept, how they get there, and how
ownership ends - is what a subclass says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import trio
from attrs import define, field

from ..vocabulary import Event, IllegalEvent, InvalidValue, SessionHeader, UsageError
from ._base import Events


@define(eq=False)
class Buffer:
    """Events handed over and not yet durable. Pure."""

    next_seq: int
    _pending: list[Event] = field(factory=list, init=False)

    @property
    def durable_seq(self) -> int:
        return self.next_seq - len(self._pending) - 1

    def append(self, event: Event) -> None:
        if event.seq != self.next_seq:
            raise IllegalEvent(event.seq, f"seq {event.seq}", f"seq {self.next_seq}")
        self._pending.append(event)
        self.next_seq += 1

    def pending(self) -> Sequence[Event]:
        """A copy, in order."""
        return tuple(self._pending)

    def settle(self, count: int) -> None:
        """The first *count* are durable."""
        del self._pending[:count]


class Writing(ABC):
    """A `WriteHandle` but for its flushing and closing.

    Its session had *count* events when the handle was made.
    """

    def __init__(self, header: SessionHeader, count: int) -> None:
        self._header = header
        self._buffer = Buffer(count)
        self._closed = False

    @property
    def header(self) -> SessionHeader:
        return self._header

    @property
    def repaired(self) -> str | None:
        return None

    @property
    def durable_seq(self) -> int:
        return self._buffer.durable_seq

    def append(self, event: Event) -> None:
        if self._closed:
            raise self._is_closed()
        buffer = self._buffer
        if event.seq != buffer.next_seq:  # called only to say what is wrong
            buffer.append(event)
        buffer._pending.append(event)  # as it does, without a call for each event
        buffer.next_seq += 1

    async def read(self, start: int = 0, stop: int | None = None) -> Events:
        check_range(start, stop)
        durable = self.durable_seq + 1
        end = durable if stop is None else min(stop, durable)
        return await self._stored(min(start, end), end)

    @abstractmethod
    async def _stored(self, start: int, stop: int) -> Events:
        """Durable events, *start* <= *stop* <= `durable_seq` + 1. A checkpoint."""

    def _is_closed(self) -> UsageError:
        return UsageError(f"the write handle of session {self._header.id!r} is closed")


class FileHandle(Writing):
    """The `WriteHandle` of a session that is written in threads and owned by a lock."""

    async def flush(self) -> None:
        wanted = self._buffer.next_seq - 1
        if self.durable_seq >= wanted:  # nothing to wait for, and no turn of the scheduler
            await trio.lowlevel.checkpoint_if_cancelled()
        while self.durable_seq < wanted:
            await self._write()

    @abstractmethod
    async def _write(self) -> None:
        """Make some of what is pending durable, and settle it in the buffer; the oldest first.

        Raises:
            StoreError: nothing of it is.
            UsageError: ownership was given up.
        """

    @trio.lowlevel.enable_ki_protection
    async def close(self) -> None:
        self._closed = True
        if not self._owns:
            await trio.lowlevel.checkpoint()
            return
        try:
            await self.flush()
        finally:
            # Not bounded by a timeout: it waits for writes in a thread, which none can end.
            with trio.CancelScope(shield=True):
                await self._give_up()

    @property
    @abstractmethod
    def _owns(self) -> bool: ...

    @abstractmethod
    async def _give_up(self) -> None:
        """End the ownership; the second time nothing happens. Runs shielded."""


class Reading(ABC):
    """A `ReadHandle`: it owns nothing, so that closing it only ends its use."""

    def __init__(self, header: SessionHeader) -> None:
        self._header = header
        self._closed = False

    @property
    def header(self) -> SessionHeader:
        return self._header

    async def read(self, start: int = 0, stop: int | None = None) -> Events:
        check_range(start, stop)
        if self._closed:
            raise UsageError(f"the read handle of session {self._header.id!r} is closed")
        return await self._stored(start, stop)

    @abstractmethod
    async def _stored(self, start: int, stop: int | None) -> Events:
        """What there is of the range. A checkpoint."""

    async def close(self) -> None:
        self._closed = True
        await trio.lowlevel.checkpoint()


def check_start(start: int) -> None:
    """Refuse what no event can have as its seq.

    Raises:
        InvalidValue: it is no int, or less than 0.
    """
    if type(start) is not int or start < 0:
        raise InvalidValue(f"start: expected the seq of an event, 0 or more, got {start!r}")


def check_range(start: int, stop: int | None) -> None:
    """Refuse what is no range of seqs. One that is empty, or ends before it starts, is one.

    Raises:
        InvalidValue: *start* or *stop* is no int, or less than 0.
    """
    check_start(start)
    if stop is not None and (type(stop) is not int or stop < 0):
        raise InvalidValue(f"stop: expected the seq to stop before, or None, got {stop!r}")
