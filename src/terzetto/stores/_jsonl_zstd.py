"""The layout `zstd`: packed lines, compressed, those of one flush in one frame or in a few.

A file is a sequence of units, the first of which has the line of the header. A unit is a
*skippable* frame, which says how long the next one is and has a checksum of all its bytes,
and a frame of Zstandard with a checksum of what is in it. Decompressing a file as a whole,
with any tool, gives a log in the layout `packed`.

The package ``zstandard`` is imported when it is needed, and not before.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Final

from ..session._codec import encode_event
from ..vocabulary import CorruptLog, Event, SessionHeader, StoreError, UsageError
from ._jsonl_layouts import PACKED, Block, LayoutName, Packed
from ._packing import pack
from ._records import Place, holed

MAGIC: Final = bytes.fromhex("542a4d18") + struct.pack("<I", 8)
"""How each unit begins: a skippable frame of Zstandard that holds eight bytes."""

_HEAD: Final = struct.Struct("<II")
"""What these are: how many bytes the frame has, and CRC-32 of that number and of the frame."""

_BEFORE: Final = len(MAGIC) + _HEAD.size
_FRAME: Final = 1 << 18
"""Bytes of lines from which on a flush goes on in another frame: what reading a range may
have to decompress for nothing."""
_LEVEL: Final = 3
_SEARCHED: Final = 1 << 20
_EXTRA: Final = (
    "the layout 'zstd' needs the package zstandard; install terzetto with the extra: "
    'pip install "terzetto[zstd]"'
)


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise StoreError(_EXTRA) from error
    return zstandard


def require_zstd() -> None:
    """Raises `UsageError` if compressing is not installed."""
    try:
        _zstandard()
    except StoreError as error:
        raise UsageError(str(error)) from error


def unit_of(lines: bytes) -> bytes:
    """*lines*, newlines included, as one unit."""
    compressor = _zstandard().ZstdCompressor(level=_LEVEL, write_checksum=True)
    frame: bytes = compressor.compress(lines)
    return MAGIC + _HEAD.pack(len(frame), _crc(frame)) + frame


def _crc(frame: bytes) -> int:
    return zlib.crc32(frame, zlib.crc32(struct.pack("<I", len(frame))))


def _text_of(frame: bytes, offset: int) -> bytes:
    zstandard = _zstandard()
    try:
        text: bytes = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptLog(f"not what was written: {error}", f"frame at byte {offset}") from error
    return text


def _unit_at(fd: int, offset: int, size: int) -> bytes | None:
    """The frame of the unit at byte *offset*; None if it is not whole."""
    head = os.pread(fd, min(_BEFORE, size - offset), offset)
    if len(head) < _BEFORE or not head.startswith(MAGIC):
        return None
    length, crc = _HEAD.unpack_from(head, len(MAGIC))
    if offset + _BEFORE + length > size:
        return None
    frame = os.pread(fd, length, offset + _BEFORE)
    return frame if len(frame) == length and _crc(frame) == crc else None


def _units(fd: int, offset: int, size: int) -> Iterator[Block]:
    """The lines of each unit. Stops before what was never finished.

    Raises:
        CorruptLog: at what is damaged.
    """
    while offset < size:
        frame = _unit_at(fd, offset, size)
        if frame is None:
            if not _is_torn(fd, offset, size):
                raise CorruptLog(
                    "it is not what was written: its checksum is wrong", f"frame at byte {offset}"
                )
            return
        text = _text_of(frame, offset)
        end = offset + _BEFORE + len(frame)
        if not text.endswith(b"\n"):
            raise CorruptLog("it ends inside of a line", f"frame at byte {offset}")
        yield Block(text[:-1].split(b"\n"), offset, end)
        offset = end


def _is_torn(fd: int, offset: int, size: int) -> bool:
    """Whether what begins at *offset*, and is no whole unit, was never finished.

    It is if it is the last one, and its end is missing, or a page in it never reached the
    disk. A damaged one, of which nothing is missing, is not.
    """
    if _followed(fd, offset + 1, size):
        return False
    rest = os.pread(fd, size - offset, offset)
    if holed(rest, offset, to_the_end=True):
        return True
    if not rest.startswith(MAGIC[: len(rest)]):
        return False
    # A whole frame, although its length says otherwise: then that is what is damaged.
    return len(rest) < _BEFORE + _length_of(rest) and not _is_frame(rest[_BEFORE:])


def _length_of(unit: bytes) -> int:
    if len(unit) < _BEFORE:
        return 1
    length: int = _HEAD.unpack_from(unit, len(MAGIC))[0]
    return length


def _is_frame(data: bytes) -> bool:
    zstandard = _zstandard()
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    try:
        decompressor.decompress(data)
    except zstandard.ZstdError:
        return False
    return bool(decompressor.eof)


def _followed(fd: int, offset: int, size: int) -> bool:
    """Whether a whole unit begins anywhere from *offset* on."""
    while part := os.pread(fd, min(_SEARCHED, size - offset), offset):
        found = part.find(MAGIC)
        while found >= 0:
            if _unit_at(fd, offset + found, size) is not None:
                return True
            found = part.find(MAGIC, found + 1)
        if len(part) < len(MAGIC):
            return False
        offset += len(part) - len(MAGIC) + 1
    return False


class Zstd:
    """See the module."""

    @property
    def name(self) -> LayoutName:
        return "zstd"

    def begin(self, header: SessionHeader) -> bytes:
        return unit_of(PACKED.begin(header))

    def header_of(self, line: bytes) -> SessionHeader:
        return PACKED.header_of(line)

    def pack(self, events: Sequence[Event], at: Place) -> Packed:
        data: list[bytes] = []
        places: list[Place] = []
        for lines, count in _frames(pack(encode_event(event) for event in events)):
            places.append(at)
            data.append(unit_of(b"\n".join(lines) + b"\n"))
            at = Place(at.seq + count, at.offset + len(data[-1]), at.line + len(lines))
        return Packed(b"".join(data), places, at)

    def blocks(self, fd: int, place: Place, size: int) -> Iterator[Block]:
        return _units(fd, place.offset, size)

    def judge(self, line: bytes, seq: int, extensions: Collection[str]) -> int:
        return PACKED.judge(line, seq, extensions)

    def count(self, line: bytes, seq: int) -> int:
        return PACKED.count(line, seq)

    def read(self, line: bytes, seq: int, extensions: Collection[str]) -> Sequence[Event]:
        return PACKED.read(line, seq, extensions)

    def records(self, line: bytes, seq: int) -> Sequence[bytes]:
        return PACKED.records(line, seq)

    def is_torn(self, line: bytes, offset: int) -> bool:
        return False  # its frame is whole, and what is in it is what was written


def _frames(packed: Iterable[tuple[int, bytes]]) -> Iterator[tuple[list[bytes], int]]:
    lines: list[bytes] = []
    count = size = 0
    for events, line in packed:
        lines.append(line)
        count, size = count + events, size + len(line)
        if size >= _FRAME:
            yield lines, count
            lines, count, size = [], 0, 0
    if lines:
        yield lines, count


ZSTD: Final = Zstd()
