"""Records looked through without being decoded, and the sparse index of where they are.

Opening a log for writing looks at every record, and must not cost what decoding them costs.
Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from operator import attrgetter
from typing import Final

import msgspec
from attrs import define, field, frozen

from ..session._codec import TAGS, loads_event, loads_json
from ..vocabulary import Event, InvalidValue

STRIDE: Final = 256
"""Events from one entry of an `Index` to the next, at least."""

_SECTOR: Final = 512
_HOLE: Final = bytes(32)
"""Shorter than a sector; neither JSON nor what is compressed has as much of it."""

_OWN_TYPES = frozenset(TAGS.values())


class _Mark(msgspec.Struct):
    """What is looked at of a record. The rest is only parsed."""

    type: str
    seq: int
    ignorable: bool = False


_MARK = msgspec.json.Decoder(_Mark)


def check_record(record: bytes, seq: int, extensions: Collection[str]) -> None:
    """Refuse a record that is no JSON, not the event *seq*, or of an unknown type.

    What is inside of its data is judged by `read_record`, later.

    Raises:
        InvalidValue: as `read_record` would.
    """
    try:
        if not record.isascii():
            record.decode()  # msgspec does not look into texts that it skips
        mark = _MARK.decode(record)
    except (ValueError, RecursionError):  # it says what is wrong, or that nothing is
        read_record(record, seq, extensions)
        return
    if mark.type not in _OWN_TYPES and not mark.ignorable and mark.type not in extensions:
        read_record(record, seq, extensions)
    if mark.seq != seq:
        raise InvalidValue(misplaced(mark.seq, seq))


def read_record(record: bytes, seq: int, extensions: Collection[str]) -> Event:
    """The event *seq* in *record*.

    Raises:
        InvalidValue: it is no JSON, no event, of an unknown type, or another one.
    """
    event = loads_event(record, seq_hint=seq, extensions=extensions)
    if event.seq != seq:
        raise InvalidValue(misplaced(event.seq, seq))
    return event


def is_json(record: bytes) -> bool:
    try:
        loads_json(record)
    except InvalidValue:
        return False
    return True


def misplaced(found: int, seq: int) -> str:
    """In words, that event *found* stands where *seq* should."""
    return f"seq {found} where {seq} comes next"


def holed(data: bytes, offset: int, *, to_the_end: bool) -> bool:
    """Whether a part of *data*, at byte *offset* of a file, never reached the disk.

    A file system leaves zeros for it, in whole sectors: a sector's worth, or from the
    beginning of *data* to where a sector ends; or, if the file ends with it, from where one
    begins *to the end*. A zero anywhere else is damage, which is not to be cut off.
    """
    first = data[: _SECTOR - offset % _SECTOR]
    rest = (offset + len(data)) % _SECTOR or _SECTOR
    parts = [first, data[-rest:]] if to_the_end else [first]
    return _HOLE in data or any(part and not part.strip(b"\0") for part in parts)


@frozen
class Place:
    """Where in a file reading can begin: event *seq* is the first one there."""

    seq: int
    offset: int
    line: int


@define(eq=False)
class Index:
    """Where events are: the beginning, and one place in some hundred events after it."""

    _places: list[Place] = field()

    @classmethod
    def beginning(cls, place: Place) -> Index:
        return cls([place])

    def add(self, place: Place) -> None:
        """Places come in order; ones that are near the last one, or known, are left out."""
        if place.seq >= self._places[-1].seq + STRIDE:
            self._places.append(place)

    def before(self, seq: int) -> Place:
        """The last known place whose seq is not greater than *seq*."""
        return self._places[bisect_right(self._places, seq, key=attrgetter("seq")) - 1]

    def after_first(self) -> list[Place]:
        """The places that were added."""
        return self._places[1:]

    def __len__(self) -> int:
        return len(self._places)
