"""A log file from end to end: judged when it is opened, decoded when it is read.

Blocking; runs in threads. However long a log is, a block of it is in memory, and what is
asked for. Only what was finished counts: how that is seen is up to the layout.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from typing import Final

from attrs import define, frozen

from ..vocabulary import CorruptLog, Event, InvalidValue, SessionHeader
from ._jsonl_layouts import (
    PACKED,
    PACKED_VERSION,
    PLAIN,
    Block,
    Layout,
    LayoutName,
    lines_of,
    refuse_version,
)
from ._jsonl_zstd import MAGIC, ZSTD
from ._records import Index, Place

LAYOUTS: Final[dict[LayoutName, Layout]] = {"plain": PLAIN, "packed": PACKED, "zstd": ZSTD}
BEGINNINGS: Final = (b'{"formatVersion":', MAGIC)
"""How every log begins; a file that stops before its first line or frame ends, and begins
otherwise, is not ours to finish."""

NOT_PLAIN: Final = (b'{"formatVersion":%d,' % PACKED_VERSION, MAGIC)
"""How a log in another layout than `plain` begins."""

_VERSION: Final = re.compile(rb'\{"formatVersion":([1-9][0-9]{0,8}),')


@frozen
class First:
    """The beginning of a log, as its bytes, and what it says. What makes a log this log: a
    session that was deleted and made anew has another one."""

    raw: bytes
    header: SessionHeader
    layout: Layout

    @property
    def place(self) -> Place:
        """Where the first event is."""
        return Place(0, len(self.raw), 2)


def first_of(fd: int, size: int) -> First | None:
    """None for a file whose creation was never finished.

    Raises:
        CorruptLog: it is no header.
        StoreError: another version of Terzetto wrote it, or its layout is not installed.
    """
    found = _first_line(fd, size)
    if found is None:
        return None
    layout, raw, line = found
    try:
        return First(raw, layout.header_of(line), layout)
    except InvalidValue as error:
        raise CorruptLog(str(error), "line 1, byte 0") from error


def _first_line(fd: int, size: int) -> tuple[Layout, bytes, bytes] | None:
    if os.pread(fd, len(MAGIC), 0) == MAGIC:
        for block in ZSTD.blocks(fd, Place(0, 0, 1), size):
            if len(block.lines) != 1:
                raise CorruptLog("expected the header alone in the first frame", "frame at byte 0")
            return ZSTD, os.pread(fd, block.end or 0, 0), block.lines[0]
        return None
    for block in lines_of(fd, 0, size):
        line = block.lines[0]
        break
    else:
        line = os.pread(fd, size, 0)
        if begins_like_a_log(line):
            return None
    match = _VERSION.match(line)
    version = int(match[1]) if match else 0
    if version > PACKED_VERSION:
        raise refuse_version(version)
    return PACKED if version == PACKED_VERSION else PLAIN, line + b"\n", line


def begins_like_a_log(data: bytes) -> bool:
    """Whether *data* may be the beginning of a log: it begins like one, as far as it goes."""
    return any(data[: len(one)] == one[: len(data)] for one in BEGINNINGS)


@define(eq=False)
class _Cursor:
    """Where we are in a log: the first event that was not passed, and its line."""

    size: int
    seq: int
    offset: int
    line: int
    index: Index

    @classmethod
    def at(cls, place: Place, size: int) -> _Cursor:
        return cls(size, place.seq, place.offset, place.line, Index.beginning(place))

    def lines(self, blocks: Iterator[Block]) -> Iterator[tuple[bytes, bool]]:
        """Each line, and whether it is the last of the file. After each, `passed` is called."""
        for block in blocks:
            if block.end is None:
                for line in block.lines:
                    self.index.add(Place(self.seq, self.offset, self.line))
                    end = self.offset + len(line) + 1
                    yield line, end == self.size
                    self.offset = end
                    self.line += 1
            else:
                self.index.add(Place(self.seq, self.offset, self.line))
                for line in block.lines:
                    yield line, False
                    self.line += 1
                self.offset = block.end

    @property
    def place(self) -> Place:
        return Place(self.seq, self.offset, self.line)

    def damaged(self, layout: Layout, error: InvalidValue | str) -> CorruptLog:
        return CorruptLog(str(error), where_is(layout, self.line, self.offset))

    def torn(self) -> str:
        return f"cut {self.size - self.offset} bytes of an unfinished record, line {self.line}"


def where_is(layout: Layout, line: int, offset: int) -> str:
    """A place in words."""
    byte = f"in the frame at byte {offset}" if layout is ZSTD else f"byte {offset}"
    return f"line {line}, {byte}"


@frozen
class Survey:
    """What is in a log: it ends at *end*, whose seq is how many events there are; *torn* is
    what follows, in words."""

    index: Index
    end: Place
    torn: str | None = None


def survey(fd: int, size: int, first: First, extensions: Collection[str]) -> Survey:
    """Look at all records.

    What was never finished is torn off: what follows the last newline, or the last whole
    frame; and of the last line what its layout says. Anything else is damage.

    Raises:
        CorruptLog: with line and byte.
    """
    layout = first.layout
    cursor = _Cursor.at(first.place, size)
    for line, last in cursor.lines(layout.blocks(fd, first.place, size)):
        try:
            if last and layout is PLAIN and layout.is_torn(line, cursor.offset):
                break
            cursor.seq += layout.judge(line, cursor.seq, extensions)
        except InvalidValue as error:
            if last and layout.is_torn(line, cursor.offset):
                break
            raise cursor.damaged(layout, error) from error
    return Survey(cursor.index, cursor.place, cursor.torn() if cursor.offset < size else None)


@frozen
class Passage:
    """What was read: *events*, *places* that were passed, and at which byte the log ends, or
    where reading stopped."""

    events: list[Event]
    places: list[Place]
    end: int


def events_from(
    fd: int,
    size: int,
    layout: Layout,
    place: Place,
    start: int,
    stop: int | None,
    extensions: Collection[str],
    *,
    torn: bool = True,
) -> Passage:
    """The events with *start* <= seq < *stop* in the lines from *place* on; earlier ones are
    only counted. A torn end is left out, if there may be one.

    Raises:
        CorruptLog: with line and byte.
    """
    cursor = _Cursor.at(place, size)
    events: list[Event] = []
    if stop is not None and stop <= max(start, place.seq):
        return Passage(events, [], place.offset)
    for line, last in cursor.lines(layout.blocks(fd, place, size)):
        seq = cursor.seq
        try:
            if seq >= start:
                found = layout.read(line, seq, extensions)
                events += found
                cursor.seq += len(found)
            elif seq + (count := layout.count(line, seq)) <= start:
                cursor.seq += count
            else:
                events += layout.read(line, seq, extensions)[start - seq :]
                cursor.seq += count
        except InvalidValue as error:
            if torn and last and layout.is_torn(line, cursor.offset):
                break
            raise cursor.damaged(layout, error) from error
        if stop is not None and cursor.seq >= stop:
            break
    else:
        if not torn and (stop is None or cursor.seq < stop):
            raise cursor.damaged(layout, f"there is no event {cursor.seq}")
    wanted = events if stop is None else events[: stop - start]
    return Passage(wanted, cursor.index.after_first(), cursor.offset)


@frozen
class Everything:
    """All that is in a log: each event as the record that the plain layout has of it, and
    where its line is. *end* is where the log ends; *damage* is why no more was read."""

    records: list[bytes]
    places: list[Place]
    end: int
    damage: CorruptLog | None = None


def everything(fd: int, size: int, first: First) -> Everything:
    """Read a log without judging more than what tells its records apart."""
    layout = first.layout
    cursor = _Cursor.at(first.place, size)
    records: list[bytes] = []
    places: list[Place] = []
    damage: CorruptLog | None = None
    try:
        for line, last in cursor.lines(layout.blocks(fd, first.place, size)):
            if last and layout is PLAIN and layout.is_torn(line, cursor.offset):
                break
            try:
                found = layout.records(line, cursor.seq)
            except InvalidValue as error:
                if last and layout.is_torn(line, cursor.offset):
                    break
                raise cursor.damaged(layout, error) from error
            records += found
            places += [cursor.place] * len(found)
            cursor.seq += len(found)
    except CorruptLog as error:
        damage = error
    return Everything(records, places, cursor.offset, damage)
