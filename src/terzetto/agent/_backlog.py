"""Backlog: about how much of a log is in memory only. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import define, field

from ..vocabulary import (
    AssistantChunk,
    AssistantMessageEvent,
    BlockEnd,
    BlockStart,
    Event,
    Finish,
    ReasoningBlock,
    ReasoningDelta,
    StepEnd,
    StepStart,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    TurnStart,
    is_complete,
)

MOST_EVENTS = 5_000
"""Events of a session that may wait for its store before its agent waits, too."""
MOST_BYTES = 8 * 2**20
"""Their size, roughly, in bytes."""
LOOK_EVERY = 32
"""Events of a stream after which the backlog is looked at again."""

_ENVELOPE = 100
_LEAF = 8


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
        for event in events:
            self._total += rough_size(event)
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
    measure = _TEXTS.get(type(event.data))
    return _ENVELOPE + (_length(event.data) if measure is None else measure(event.data))


# What a step and its calls record is measured after each result, so without looking at every
# attribute of everything in it.


def _of_chunk(data: AssistantChunk) -> int:
    chunk = data.chunk
    if type(chunk) is TextDelta or type(chunk) is ReasoningDelta:
        return len(chunk.text)
    if type(chunk) is ToolCallDelta:
        return len(chunk.arguments_delta)
    if type(chunk) is BlockStart:
        return 0
    if type(chunk) is BlockEnd:
        return _of_content((chunk.block,))
    if type(chunk) is Finish and chunk.replay_state is None and is_complete(chunk.reason):
        return 0
    return _length(chunk)


def _of_answer(data: AssistantMessageEvent) -> int:
    return _of_content(data.message.content)  # a copy of chunks, whose texts it may share


def _of_call(data: ToolCallEvent) -> int:
    return len(data.arguments)


def _of_result(data: ToolResultEvent) -> int:
    size = 0
    for block in data.message.content:
        size += _of_content(block.content if type(block) is ToolResultBlock else (block,))
    return size


def _of_content(blocks: Iterable[object]) -> int:
    size = 0
    for block in blocks:
        if type(block) is TextBlock or type(block) is ReasoningBlock:
            size += _LEAF + len(block.text)
        elif type(block) is ToolCallBlock:
            size += _LEAF + len(block.arguments)
        else:
            size += _LEAF + _length(block)
    return size


def _of_nothing(data: object) -> int:
    return 0


_TEXTS: dict[type, Callable[[Any], int]] = {
    AssistantChunk: _of_chunk,
    AssistantMessageEvent: _of_answer,
    ToolCallEvent: _of_call,
    ToolResultEvent: _of_result,
    TurnStart: _of_nothing,
    StepStart: _of_nothing,
    StepEnd: _of_nothing,
}


def _length(value: object) -> int:
    """Of the texts in *value*, however deep."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_LEAF + len(key) + _length(item) for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return sum(_LEAF + _length(item) for item in value)
    return sum(_length(getattr(value, one.name)) for one in getattr(value, "__attrs_attrs__", ()))
