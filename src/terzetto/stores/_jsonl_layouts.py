"""How events lie in a log file: `plain`, one a line, and `packed`, with many in some lines.

A layout says what is written, where lines are found, and what is in them. Which one a file
has is told by its beginning (`_jsonl_lines.py`). The third is `_jsonl_zstd.py`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from typing import Final, Literal, Protocol, TypeAlias

from attrs import frozen

from ..session._codec import (
    FORMAT_VERSION,
    decode_event,
    decode_header,
    dumps_event,
    dumps_json,
    encode_event,
    encode_header,
    loads_json,
)
from ..vocabulary import Event, InvalidValue, PlainJson, SessionHeader, StoreError
from ._packing import count_of, is_run, pack, seal, unpack, unseal
from ._records import STRIDE, Place, check_record, holed, is_json, misplaced, read_record

LayoutName: TypeAlias = Literal["plain", "packed", "zstd"]
PACKED_VERSION: Final = 2
"""The ``formatVersion`` of a file whose lines are packed. Its events are those of format 1."""

_SMALLEST: Final = 1 << 14
_LARGEST: Final = 1 << 20
"""Bytes of the first block that is read of a range, and of later ones, which are larger."""


@frozen
class Block:
    """Whole lines, without newlines, the first of them at byte *offset*.

    *end*: where they end together, if reading can only begin with the first of them.
    """

    lines: Sequence[bytes]
    offset: int
    end: int | None = None


@frozen
class Packed:
    """What is to be appended, where some of the events in it are, and where it ends."""

    data: bytes
    places: Sequence[Place]
    end: Place


class Layout(Protocol):
    """One of the ways in which a log is kept in a file."""

    @property
    def name(self) -> LayoutName: ...

    def begin(self, header: SessionHeader) -> bytes:
        """How a file begins. Raises `InvalidValue` for what cannot be written."""
        ...

    def header_of(self, line: bytes) -> SessionHeader:
        """Raises `InvalidValue`, or `StoreError` for another version's."""
        ...

    def pack(self, events: Sequence[Event], at: Place) -> Packed:
        """Raises `InvalidValue` for an event that cannot be written."""
        ...

    def blocks(self, fd: int, place: Place, size: int) -> Iterator[Block]:
        """The lines from *place* on, up to byte *size*, without a torn end.

        Raises:
            CorruptLog: where lines cannot be told apart.
        """
        ...

    def judge(self, line: bytes, seq: int, extensions: Collection[str]) -> int:
        """How many events are in a line whose first is *seq*, without decoding them.

        Raises:
            InvalidValue: it is damaged.
        """
        ...

    def count(self, line: bytes, seq: int) -> int:
        """As `judge`, of a line that is passed by, and need not be judged."""
        ...

    def read(self, line: bytes, seq: int, extensions: Collection[str]) -> Sequence[Event]:
        """The events in a line. Raises `InvalidValue`."""
        ...

    def records(self, line: bytes, seq: int) -> Sequence[bytes]:
        """The events in a line, each as the record that the plain layout has of it. Raises
        `InvalidValue`."""
        ...

    def is_torn(self, line: bytes, offset: int) -> bool:
        """Whether a damaged line at byte *offset*, if it is the last, was never finished."""
        ...


def lines_of(fd: int, offset: int, size: int) -> Iterator[Block]:
    """The whole lines from byte *offset* to byte *size*, many at a time."""
    rest = bytearray()
    wanted, at = _SMALLEST, offset
    while part := os.pread(fd, min(wanted, size - at), at):
        at += len(part)
        end = part.rfind(b"\n")
        if end < 0:
            rest += part
        else:
            rest += part[:end]
            yield Block(bytes(rest).split(b"\n"), offset)
            offset += len(rest) + 1
            rest = bytearray(part[end + 1 :])
        wanted = min(2 * wanted, _LARGEST)


class Plain:
    """One event a line, and nothing more: format 1."""

    @property
    def name(self) -> LayoutName:
        return "plain"

    def begin(self, header: SessionHeader) -> bytes:
        return dumps_json(encode_header(header)) + b"\n"

    def header_of(self, line: bytes) -> SessionHeader:
        return decode_header(loads_json(line))

    def pack(self, events: Sequence[Event], at: Place) -> Packed:
        lines = [dumps_event(event) + b"\n" for event in events]
        data, end, shift = b"".join(lines), at.seq + len(lines), at.line - at.seq
        places = []
        if -at.seq % STRIDE < len(lines):  # seldom: a place that is remembered is among them
            offset = at.offset
            for seq, line in enumerate(lines, at.seq):
                if not seq % STRIDE:
                    places.append(Place(seq, offset, seq + shift))
                offset += len(line)
        return Packed(data, places, Place(end, at.offset + len(data), end + shift))

    def blocks(self, fd: int, place: Place, size: int) -> Iterator[Block]:
        return lines_of(fd, place.offset, size)

    def judge(self, line: bytes, seq: int, extensions: Collection[str]) -> int:
        check_record(line, seq, extensions)
        return 1

    def count(self, line: bytes, seq: int) -> int:
        return 1

    def read(self, line: bytes, seq: int, extensions: Collection[str]) -> Sequence[Event]:
        return (read_record(line, seq, extensions),)

    def records(self, line: bytes, seq: int) -> Sequence[bytes]:
        return (line,)

    def is_torn(self, line: bytes, offset: int) -> bool:
        return not is_json(line)


class PackedLines:
    """Runs of chunks in one line, and a checksum in each: format 2."""

    @property
    def name(self) -> LayoutName:
        return "packed"

    def begin(self, header: SessionHeader) -> bytes:
        fields: dict[str, PlainJson] = {**encode_header(header), "formatVersion": PACKED_VERSION}
        return seal(dumps_json(fields)) + b"\n"

    def header_of(self, line: bytes) -> SessionHeader:
        fields = loads_json(unseal(line))
        if isinstance(fields, dict) and fields.get("formatVersion") == PACKED_VERSION:
            return decode_header({**fields, "formatVersion": FORMAT_VERSION})
        raise InvalidValue(f"session header: expected format {PACKED_VERSION}")

    def pack(self, events: Sequence[Event], at: Place) -> Packed:
        data: list[bytes] = []
        places = []
        seq, offset, number = at.seq, at.offset, at.line
        for count, line in pack(encode_event(event) for event in events):
            data += (line, b"\n")
            places.append(Place(seq, offset, number))
            seq, offset, number = seq + count, offset + len(line) + 1, number + 1
        return Packed(b"".join(data), places, Place(seq, offset, number))

    def blocks(self, fd: int, place: Place, size: int) -> Iterator[Block]:
        return lines_of(fd, place.offset, size)

    def judge(self, line: bytes, seq: int, extensions: Collection[str]) -> int:
        record = unseal(line)
        if is_run(record):
            return count_of(record, seq)
        check_record(record, seq, extensions)
        return 1

    def count(self, line: bytes, seq: int) -> int:
        return count_of(unseal(line), seq) if is_run(line) else 1

    def read(self, line: bytes, seq: int, extensions: Collection[str]) -> Sequence[Event]:
        record = unseal(line)
        if not is_run(record):
            return (read_record(record, seq, extensions),)
        events = [
            decode_event(obj, seq_hint=seq + number) for number, obj in enumerate(unpack(record))
        ]
        if events[0].seq != seq:
            raise InvalidValue(misplaced(events[0].seq, seq))
        return events

    def records(self, line: bytes, seq: int) -> Sequence[bytes]:
        record = unseal(line)
        return [dumps_json(obj) for obj in unpack(record)] if is_run(record) else (record,)

    def is_torn(self, line: bytes, offset: int) -> bool:
        # Its newline is there, so what is missing is a page that never reached the disk.
        return holed(line, offset, to_the_end=False)


PLAIN: Final = Plain()
PACKED: Final = PackedLines()


def refuse_version(version: int) -> StoreError:
    return StoreError(
        f"written by a newer terzetto: format {version}, this one reads "
        f"{FORMAT_VERSION} and {PACKED_VERSION}; upgrade terzetto"
    )
