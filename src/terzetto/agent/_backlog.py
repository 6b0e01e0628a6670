"""Backlog: about how much of a log is in memory only. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from attrs import define, field

from ..vocabulary import (
    AssistantChunk,
    AssistantMessageEvent,
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)

MOST_EVENTS = 5_000
"""Events of a session that may wait for its store before its agent waits, too."""
MOST_BYTES = 8 * 2**20
"""Their size, roughly, in bytes."""
LOOK_EVERY = 32
"""Events of a stream after which the backlog is looked at again."""

_ENVELOPE = 100
_LEAF = 8
_DELTAS = ("text", "arguments_delta")


@define(eq=False)
class Backlog:
    """How far a store is behind a log. Sizes are rough: of texts, and a bit for the rest."""

    _measured: int = 0
    most_events: int = MOST_EVENTS
    most_bytes: int = MOST_BYTES
    _total: int = 0
    _stored: int = 0
    _marks: deque[tuple[int, int]] = field(factory=deque)

    def grow(self, events: Iterable[Event], next_seq: int) -> None:
        """*events* are those from `measured` to before *next_seq*."""
        self._total += sum(map(rough_size, events))
        self._measured = next_seq
        self._marks.append((next_seq - 1, self._total))

    @property
    def measured(self) -> int:
        return self._measured

    def too_long(self, durable_seq: int) -> bool:
        """Whether more is waiting than may wait, now that *durable_seq* is stored."""
        while self._marks and self._marks[0][0] <= durable_seq:
            self._stored = self._marks.popleft()[1]
        waiting = self._measured - 1 - durable_seq
        return waiting > self.most_events or self._total - self._stored > self.most_bytes


def rough_size(event: Event) -> int:
    """About how many bytes *event* takes, by its texts."""
    match event.data:
        case AssistantChunk(chunk=TextDelta() | ReasoningDelta() | ToolCallDelta() as part):
            texts = (getattr(part, name, "") for name in _DELTAS)  # most events are these
            size = sum(map(len, texts))
        case AssistantMessageEvent():  # a copy of chunks, whose texts it may share
            size = _length(event.data.message.content)
        case data:
            size = _length(data)
    return _ENVELOPE + size


def _length(value: object) -> int:
    """Of the texts in *value*, however deep."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_LEAF + len(key) + _length(item) for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return sum(_LEAF + _length(item) for item in value)
    return sum(_length(getattr(value, one.name)) for one in getattr(value, "__attrs_attrs__", ()))
