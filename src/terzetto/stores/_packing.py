"""Lines of the packed layouts: a checksum in each, and many chunks of an answer in one.

A line is JSON and ends with ``,"crc":"xxxxxxxx"}``: CRC-32, in lower case, of the bytes before
the comma. Without that member a line is either the record of one event, as in the plain
layout, or a run: successive chunks of one step, which differ in little but their text.

Lossless: `unpack` gives the objects that were packed. Pure, and knows JSON only.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from attrs import define, field

from ..session._codec import TAGS, dumps_json, loads_json
from ..vocabulary import AssistantChunk, InvalidValue, PlainJson

Object: TypeAlias = dict[str, PlainJson]
MOST: Final = 256
"""Events of one run."""

_CHUNK: Final = TAGS[AssistantChunk]
_RUN: Final = b'{"run":'
_EVENT_KEYS: Final = ["type", "seq", "time", "data"]
_DATA_KEYS: Final = ["turn", "step", "chunk"]
_RUN_KEYS: Final = ["run", "seq", "time", "turn", "step", "gaps", "chunks"]
_TEXTS: Final = {
    "text-delta": "text",
    "reasoning-delta": "text",
    "tool-call-delta": "argumentsDelta",
}
"""The member of a chunk that differs from one to the next, by the chunk's type."""
_LARGEST_GAP: Final = 1 << 52
_SEAL: Final = len(b',"crc":"01234567"}')


# --- checksums --------------------------------------------------------------------------


def seal(record: bytes) -> bytes:
    """*record*, a JSON object that is not empty, with its checksum."""
    body = record[:-1]
    return body + _seal_of(body)


def unseal(line: bytes) -> bytes:
    """The record in *line*.

    Raises:
        InvalidValue: one of its bytes is not what was written.
    """
    body = line[:-_SEAL]
    if line[-_SEAL:] != _seal_of(body) or not body:
        raise InvalidValue("it is not what was written: its checksum is wrong")
    return body + b"}"


def _seal_of(body: bytes) -> bytes:
    return b',"crc":"%08x"}' % zlib.crc32(body)


# --- runs -------------------------------------------------------------------------------


@define(eq=False)
class _Run:
    """Successive chunks of one step, as far as they are known. *groups* are chunks; one whose
    text is a list stands for as many as there are texts in it."""

    first: dict[str, Any]
    place: tuple[Any, Any]
    time: int
    gaps: list[int] = field(factory=list)
    groups: list[Object] = field(factory=list)
    like: Object | None = None
    texts: list[PlainJson] = field(factory=list)

    def takes(self, place: tuple[Any, Any], obj: Object) -> bool:
        """Whether *obj* can be next; then its time is taken."""
        count = len(self.gaps) + 1
        if place != self.place or count == MOST or obj["seq"] != self.first["seq"] + count:
            return False
        time = obj["time"]
        if type(time) is not int or abs(time - self.time) > _LARGEST_GAP:
            return False
        self.gaps.append(time - self.time)
        self.time = time
        return True

    def add(self, chunk: Object) -> None:
        key = _TEXTS.get(str(chunk["type"]))
        if key is None:
            self.like = None
            self.groups.append(chunk)
            return
        like = {**chunk, key: None}
        if like != self.like:
            self.like, self.texts = like, []
            self.groups.append({**chunk, key: self.texts})
        self.texts.append(chunk[key])

    def record(self) -> Object:
        turn, step = self.place
        gaps: list[PlainJson] = [*self.gaps]
        groups: list[PlainJson] = [*self.groups]
        return {
            "run": _CHUNK,
            "seq": self.first["seq"],
            "time": self.first["time"],
            "turn": turn,
            "step": step,
            "gaps": gaps,
            "chunks": groups,
        }


def _chunk_of(obj: Object) -> tuple[tuple[Any, Any], Object] | None:
    """Where in its log a chunk belongs, turn and step, and the chunk; None for what is not a
    chunk and nothing else."""
    data = obj.get("data")
    if obj.get("type") != _CHUNK or list(obj) != _EVENT_KEYS or not isinstance(data, dict):
        return None
    chunk = data.get("chunk")
    if list(data) != _DATA_KEYS or not isinstance(chunk, dict):
        return None
    return (data["turn"], data["step"]), chunk


def pack(objects: Iterable[Object]) -> Iterator[tuple[int, bytes]]:
    """Lines for events in the shapes of the codec, in order, and how many are in each.

    Raises:
        InvalidValue: one cannot be written as JSON.
    """
    run: _Run | None = None
    for obj in objects:
        found = _chunk_of(obj)
        if run is not None:
            if found is not None and run.takes(found[0], obj):
                run.add(found[1])
                continue
            yield _line_of(run)
            run = None
        if found is not None and type(obj["time"]) is int:
            run = _Run(obj, found[0], obj["time"])
            run.add(found[1])
        else:
            yield 1, seal(dumps_json(obj))
    if run is not None:
        yield _line_of(run)


def _line_of(run: _Run) -> tuple[int, bytes]:
    if not run.gaps:
        return 1, seal(dumps_json(run.first))
    return len(run.gaps) + 1, seal(dumps_json(run.record()))


class _Mark(msgspec.Struct):
    """What is looked at of a run. The rest is only parsed."""

    run: str
    seq: int
    gaps: list[int]


_MARK = msgspec.json.Decoder(_Mark)


def is_run(record: bytes) -> bool:
    return record.startswith(_RUN)


def count_of(record: bytes, seq: int) -> int:
    """How many events are in a run whose first is *seq*.

    Raises:
        InvalidValue: it is none, or another one.
    """
    try:
        mark = _MARK.decode(record)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"not a run of chunks: {error}") from None
    if mark.run != _CHUNK:
        raise InvalidValue(f"a run of {mark.run!r}, expected one of {_CHUNK!r}")
    if mark.seq != seq:
        raise InvalidValue(f"seq {mark.seq} where {seq} comes next")
    return len(mark.gaps) + 1


def unpack(record: bytes) -> list[Object]:
    """The events in a run, in the shapes of the codec.

    Raises:
        InvalidValue: it is none.
    """
    obj = loads_json(record)
    if not isinstance(obj, dict) or list(obj) != _RUN_KEYS or obj["run"] != _CHUNK:
        raise InvalidValue(f"not a run of chunks: expected the keys {', '.join(_RUN_KEYS)}")
    seq, time, gaps, groups = obj["seq"], obj["time"], obj["gaps"], obj["chunks"]
    if type(seq) is not int or not isinstance(gaps, list) or not isinstance(groups, list):
        raise InvalidValue("not a run of chunks: seq, gaps or chunks is of another type")
    times = list(_times(time, gaps))
    chunks = list(_chunks(groups))
    if len(times) != len(chunks):
        raise InvalidValue(f"a run of {len(chunks)} chunks at {len(times)} times")
    return [
        {
            "type": _CHUNK,
            "seq": seq + number,
            "time": at,
            "data": {"turn": obj["turn"], "step": obj["step"], "chunk": chunk},
        }
        for number, (at, chunk) in enumerate(zip(times, chunks, strict=True))
    ]


def _times(time: PlainJson, gaps: Sequence[PlainJson]) -> Iterator[int]:
    for gap in (0, *gaps):
        if type(time) is not int or type(gap) is not int:
            raise InvalidValue("not a run of chunks: a time is no integer")
        time += gap
        yield time


def _chunks(groups: Sequence[PlainJson]) -> Iterator[Object]:
    for group in groups:
        if not isinstance(group, dict):
            raise InvalidValue("not a run of chunks: a chunk is no object")
        key = _TEXTS.get(str(group.get("type")))
        if key is None:
            yield group
            continue
        texts = group.get(key)
        if not isinstance(texts, list):
            raise InvalidValue(f"not a run of chunks: expected a list as {key!r}")
        for text in texts:
            yield {**group, key: text}
