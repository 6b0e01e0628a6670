"""What of a log is in memory: everything, or all but the chunks that a store has.

Chunks are most of a log, and nobody asks for them once their answer stands. So those of
settled attempts are released when they are durable, and read back from the store. Without a
store that reads back they are packed into columns (`_columns`). What is kept keeps its seq.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TypeAlias, overload

from attrs import define, field

from ..vocabulary import AssistantChunk, Event, EventReleased
from ._columns import Entry, Run, packed
from ._sheaves import SIZE, Sheaf

_MOVED = 4096
"""Events that may be shifted in memory to release fewer."""


_Kept: TypeAlias = Entry | Sheaf
_MANY = (Run, Sheaf)


def _seq(entry: _Kept) -> int:
    return entry.seq


@define(eq=False)
class Held:
    """The events of one log that are in memory.

    *tail* is every event from seq *start* on, and grows by being appended to. Before it
    there is what was kept. Releasing or packing costs each event once. What was packed
    before there was a store to read back from stays, all of it.
    """

    start: int = 0
    tail: list[Event] = field(factory=list)
    _kept: list[_Kept] = field(factory=list)
    _packed: int = 0
    _loose: int = 0
    """Where among what was kept that begins which is in no sheaf yet."""

    def __len__(self) -> int:
        """The length of the log, and not of what is in memory."""
        return self.start + len(self.tail)

    def get(self, seq: int) -> Event | None:
        """The event *seq* of the log, or None if it was released."""
        if seq >= self.start:
            return self.tail[seq - self.start]
        index = bisect_right(self._kept, seq, key=_seq) - 1
        if index < 0:
            return None
        entry = self._kept[index]
        if isinstance(entry, _MANY):
            return next(entry.between(seq, seq + 1), None)
        return entry if entry.seq == seq else None

    def between(self, start: int, stop: int) -> list[Event]:
        """Those from *start* to before *stop*, within the log."""
        tail = self.tail[max(0, start - self.start) : max(0, stop - self.start)]
        if start >= self.start:
            return tail
        first = self._place(start)
        last = bisect_left(self._kept, stop, first, key=_seq)
        found: list[Event] = []
        for entry in self._kept[first:last]:
            if isinstance(entry, _MANY):
                found += entry.between(start, stop)
            else:
                found.append(entry)
        return found + tail

    def everything(self) -> Iterator[Event]:
        """All of them, in order, those that are appended meanwhile too."""
        seq = -1
        while (found := self._from(seq + 1)) is not None:
            start, (index, entries) = self.start, found
            # What is kept between two events moves what is left to another place.
            while index < len(entries) and self.start == start:
                entry = entries[index]
                index += 1
                if isinstance(entry, _MANY):
                    for event in entry.between(seq + 1, entry.stop):
                        seq = event.seq
                        yield event
                else:
                    seq = entry.seq
                    yield entry

    def whole(self, start: int = 0) -> list[Event]:
        """Those from *start* on that say what nothing else says: messages, calls of one's
        own, all that is not in a run or made anew from a row."""
        if start >= self.start:
            return self.tail[start - self.start :]
        kept = self._kept[self._place(start) :] if start else self._kept
        found: list[Event] = []
        for entry in kept:
            if isinstance(entry, Sheaf):
                found += entry.whole(start)
            elif not isinstance(entry, Run):
                found.append(entry)
        return found + self.tail

    def backwards(self) -> Iterator[Event]:
        """Those of now, the last first."""
        kept = self._kept.copy()
        yield from reversed(self.tail.copy())
        for entry in reversed(kept):
            if isinstance(entry, _MANY):
                yield from reversed(list(entry.between(entry.seq, entry.stop)))
            else:
                yield entry

    def _from(self, seq: int) -> tuple[int, Sequence[_Kept]] | None:
        """Where the first event at or after *seq* is, and in which list."""
        if seq < self.start:
            index = self._place(seq)
            if index < len(self._kept):
                return index, self._kept
        index = max(0, seq - self.start)
        return (index, self.tail) if index < len(self.tail) else None

    def _place(self, seq: int) -> int:
        """Where in what was kept the first event at or after *seq* is."""
        index = bisect_left(self._kept, seq, key=_seq)
        before = self._kept[index - 1] if index else None
        return index - 1 if isinstance(before, _MANY) and before.stop > seq else index

    def missing(self, start: int, stop: int) -> tuple[int, int] | None:
        """Where what was released of *start* to before *stop* begins and ends; None for
        nothing. Costs what is in memory of that range."""
        start, stop = max(start, self._packed), min(stop, self.start)
        if start >= stop:
            return None
        index = bisect_left(self._kept, start, key=_seq)
        last = bisect_left(self._kept, stop, index, key=_seq)
        if last - index == stop - start:
            return None
        while index < last and self._kept[index].seq == start:
            index, start = index + 1, start + 1
        while index < last and self._kept[last - 1].seq == stop - 1:
            last, stop = last - 1, stop - 1
        return start, stop

    def release(self, stop: int) -> None:
        """Let go of every chunk before seq *stop*: it is settled, and a store has it."""
        if gone := self._shift(stop):
            self._kept += [event for event in gone if type(event.data) is not AssistantChunk]
            self._loose = len(self._kept)  # with gaps: each event tells its own seq

    def pack(self, stop: int) -> None:
        """Keep what is before seq *stop*, and has settled, in less memory."""
        if gone := self._shift(stop):
            self._packed = self.start
            self._kept += packed(gone)
            self._bind()

    def keep(self, stop: int) -> None:
        """As `pack`, where nothing is worth a run."""
        if gone := self._shift(stop):
            self._packed = self.start
            self._kept += gone
            self._bind()

    def _bind(self) -> None:
        """Put what gathered into sheaves."""
        while len(self._kept) - self._loose >= SIZE:
            first = self._loose
            bound: list[Entry] = self._kept[first : first + SIZE]  # type: ignore[assignment]
            self._kept[first : first + SIZE] = [Sheaf(bound)]
            self._loose += 1

    def _shift(self, stop: int) -> list[Event]:
        """Take what is before seq *stop* off the tail; nothing, if it would cost more to
        shift the rest than it frees: the next time."""
        count = stop - self.start
        if count <= 0 or len(self.tail) - count > count + _MOVED:
            return []
        gone = self.tail[:count]
        del self.tail[:count]
        self.start = stop
        return gone


class EventLog(Sequence[Event]):
    """A read-only view of a session's events, indexed by seq; it grows with the log.

    All events are in memory but the chunks of settled attempts of a session that a store
    keeps: they leave it once they are durable. Without a store their events are made when
    they are read, each time equal and not the same. ``len`` is the length of the log; iterating
    and slices give what is in memory; asking for an event that has left is an
    `EventReleased`. `Session.read` and `Session.follow` give every event.
    """

    __slots__ = ("_held",)

    def __init__(self, held: Held) -> None:
        self._held = held

    def __len__(self) -> int:
        return len(self._held)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        length = len(self._held)
        if isinstance(index, slice):
            start, stop, step = index.indices(length)
            if step == 1:
                return self._held.between(start, max(start, stop))
            found = (self._held.get(seq) for seq in range(start, stop, step))
            return [event for event in found if event is not None]
        seq = index + length if index < 0 else index
        if not 0 <= seq < length:
            raise IndexError(f"event {index}: the log has {length} events")
        event = self._held.get(seq)
        if event is None:
            raise EventReleased(
                f"event {seq} is a chunk that has left memory; "
                f"await session.read({seq}, {seq + 1}) gives it"
            )
        return event

    def __iter__(self) -> Iterator[Event]:
        return self._held.everything()

    def __reversed__(self) -> Iterator[Event]:
        return self._held.backwards()

    def __contains__(self, event: object) -> bool:
        return isinstance(event, Event) and self.count(event) > 0

    def index(self, value: Event, start: int = 0, stop: int | None = None) -> int:
        """The seq of *value*. Raises ValueError if it is not in memory there."""
        for event in self[start:stop]:
            if event == value:
                return event.seq
        raise ValueError(f"{value!r} is not among the events in memory")

    def count(self, value: Event) -> int:
        """1 if *value* is in memory, else 0."""
        if not isinstance(value, Event) or not 0 <= value.seq < len(self._held):
            return 0
        return int(self._held.get(value.seq) == value)

    def __repr__(self) -> str:
        return f"<EventLog: {len(self._held)} events>"
