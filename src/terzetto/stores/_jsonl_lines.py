"""The lines of a log file, block by block: judged when it is opened, decoded when it is read.

Blocking; runs in threads. However long a log is, a block of it is in memory, and what is
asked for. Only whole lines count: what is being written, or was when somebody died, has no
newline yet.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Final

from attrs import frozen

from ..session._codec import decode_header, loads_json
from ..vocabulary import CorruptLog, Event, InvalidValue, SessionHeader
from ._records import Index, Place, check_record, is_json, read_record

_SMALLEST: Final = 1 << 14
_LARGEST: Final = 1 << 20
"""Bytes of the first block that is read of a range, and of later ones, which are larger."""
BEGINNING: Final = b'{"formatVersion":'
"""How every log begins; a file that stops before its first newline and begins otherwise is
not ours to finish."""


def blocks(fd: int, offset: int, size: int) -> Iterator[list[bytes]]:
    """The whole lines from byte *offset* to byte *size*, without newlines, many at a time."""
    rest = bytearray()
    wanted = _SMALLEST
    while part := os.pread(fd, min(wanted, size - offset), offset):
        offset += len(part)
        end = part.rfind(b"\n")
        if end < 0:
            rest += part
        else:
            rest += part[:end]
            yield bytes(rest).split(b"\n")
            rest = bytearray(part[end + 1 :])
        wanted = min(2 * wanted, _LARGEST)


def unfinished(data: bytes) -> bool:
    """Whether *data* is the beginning of a log whose creation was cut off."""
    return b"\n" not in data and data[: len(BEGINNING)] == BEGINNING[: len(data)]


@frozen
class First:
    """The first line of a log, as its bytes, and what it says. What makes a log this log: a
    session that was deleted and made anew has another one."""

    line: bytes
    header: SessionHeader

    @property
    def place(self) -> Place:
        """Where the first event is."""
        return Place(0, len(self.line) + 1, 2)


def first_of(fd: int, size: int) -> First | None:
    """None for a file whose creation was never finished.

    Raises:
        CorruptLog: it is no header.
        StoreError: another version of Terzetto wrote it.
    """
    for lines in blocks(fd, 0, size):
        line = lines[0]
        break
    else:
        line = os.pread(fd, size, 0)
        if unfinished(line):
            return None
    try:
        return First(line, decode_header(loads_json(line)))
    except InvalidValue as error:
        raise CorruptLog(str(error), "line 1, byte 0") from error


@frozen
class Survey:
    """What is in a log: *count* events, the last of which ends at byte *length*; *torn* is
    what follows, in words."""

    index: Index
    count: int
    length: int
    torn: str | None = None


def survey(fd: int, size: int, first: First, extensions: Collection[str]) -> Survey:
    """Look at all records.

    What follows the last newline is torn off, and so is a last line that is not JSON: a
    record that never became durable. Anything else is damage.

    Raises:
        CorruptLog: with line and byte.
    """
    index = Index.beginning(first.place)
    seq, offset = 0, first.place.offset
    for lines in blocks(fd, offset, size):
        for record in lines:
            end = offset + len(record) + 1
            if end == size and not is_json(record):
                return Survey(index, seq, offset, _torn(seq, offset, size))
            try:
                check_record(record, seq, extensions)
            except InvalidValue as error:
                raise damaged(error, seq, offset) from error
            index.add(Place(seq, offset, seq + 2))
            seq, offset = seq + 1, end
    return Survey(index, seq, offset, _torn(seq, offset, size) if offset < size else None)


@frozen
class Passage:
    """What was read: *events*, *places* that were passed, and where the last line ends."""

    events: list[Event]
    places: list[Place]
    end: int


def events_from(
    fd: int,
    size: int,
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
    index = Index.beginning(place)
    events: list[Event] = []
    seq, offset = place.seq, place.offset
    for lines in blocks(fd, offset, size):
        for record in lines:
            if stop is not None and seq >= stop:
                return Passage(events, index.after_first(), offset)
            end = offset + len(record) + 1
            if seq >= start:
                try:
                    events.append(read_record(record, seq, extensions))
                except InvalidValue as error:
                    if torn and end == size and not is_json(record):
                        return Passage(events, index.after_first(), offset)
                    raise damaged(error, seq, offset) from error
            index.add(Place(seq, offset, seq + 2))
            seq, offset = seq + 1, end
    if not torn and (seq if stop is None else stop) > seq:
        raise damaged(InvalidValue(f"there is no event {seq}"), seq, offset)
    return Passage(events, index.after_first(), offset)


def damaged(error: InvalidValue, seq: int, offset: int) -> CorruptLog:
    return CorruptLog(str(error), f"line {seq + 2}, byte {offset}")


def _torn(seq: int, offset: int, size: int) -> str:
    return f"cut {size - offset} bytes of an unfinished record, line {seq + 2}"
