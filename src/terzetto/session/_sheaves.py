"""Sheaves: events that are over, many of them in a few pieces of bytes.

A step is a score of objects that say little: that it began, which pieces its answer came in,
when. The garbage collector looks at each, and at what each names, as long as the log lives.
What is over is read seldom, so it is kept as rows of numbers and short texts, and its events
are made anew when somebody reads them, equal to those that there were. What somebody else
holds anyhow, the messages of the conversation and the blocks of answers, is kept as it is, and
so is what is large or has no rows. Pure.
"""

from __future__ import annotations

import itertools
import marshal
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from ..vocabulary import (
    Append,
    AssistantChunk,
    AssistantMessageEvent,
    BlockEnd,
    BlockStart,
    Event,
    EventData,
    Finish,
    MaxTokens,
    ReasoningDelta,
    StepEnd,
    StepStart,
    Stop,
    TextDelta,
    ToolCallDelta,
    ToolCallEvent,
    ToolCalls,
    ToolResultEvent,
    UsageChunk,
    UserMessageEvent,
)
from ..vocabulary._seqs import Seqs, Sources
from ._columns import Entry, Run

SIZE = 64
"""Entries of one sheaf."""

_PART = 8
"""Entries that are read together: who asks for one event has so many rows read."""
_SHORT = 256
"""Characters of a text up to which a copy costs less than an object."""

_Row: TypeAlias = tuple[Any, ...]

(
    _WHOLE,
    _MESSAGE,
    _RUN,
    _STEP_START,
    _STEP_END,
    _CALL,
    _BLOCK_START,
    _BLOCK_END,
    _FINISH,
    _CALL_DELTA,
    _TEXT_DELTA,
    _REASONING_DELTA,
    _USAGE,
) = range(13)

_REASONS = (Stop, ToolCalls, MaxTokens)
_ENDED = tuple(reason() for reason in _REASONS)
_MESSAGES = frozenset({AssistantMessageEvent, ToolResultEvent, UserMessageEvent})
_APPEND = Append()


class Sheaf:
    """What was kept from *seq* to before *stop*, every event of it."""

    __slots__ = ("_parts", "_starts", "_things", "seq", "stop")

    def __init__(self, entries: Sequence[Entry]) -> None:
        """*entries*, at least one, each beginning where the one before it ends."""
        self.seq = entries[0].seq
        things: list[Any] = []
        parts: list[bytes] = []
        for first in range(0, len(entries), _PART):
            some, had = entries[first : first + _PART], len(things)
            try:
                # Without references: looking for them takes longer than they would save.
                parts.append(marshal.dumps([_row(entry, things) for entry in some], 2))
            except ValueError:  # a number or a text of a class of somebody's own
                things[had:] = some
                rows = [
                    (_RUN if type(entry) is Run else _WHOLE, had + index)
                    for index, entry in enumerate(some)
                ]
                parts.append(marshal.dumps(rows, 2))
        last = entries[-1]
        self.stop = last.stop if isinstance(last, Run) else last.seq + 1
        # Tuples of numbers and of bytes: the collector lets go of these.
        self._starts = tuple(entry.seq for entry in entries[::_PART])
        self._parts = tuple(parts)
        self._things: tuple[Any, ...] = tuple(things)

    def __len__(self) -> int:
        return self.stop - self.seq

    def between(self, start: int, stop: int) -> Iterator[Event]:
        """The events of the seqs from *start* to before *stop*, as far as they are in it."""
        things = self._things
        for seq, part in self._from(start):
            if seq >= stop:
                return
            for row in marshal.loads(part):
                if row[0] == _RUN:
                    run: Run = things[row[1]]
                    yield from run.between(start, stop)
                    seq = run.stop
                    continue
                if start <= seq < stop:
                    yield _event(seq, row, things)
                seq += 1

    def whole(self, start: int) -> Iterator[Event]:
        """The events that say what nothing else says, from seq *start* on: the messages, and
        what was kept as it is."""
        things = self._things
        for seq, part in self._from(start):
            for row in marshal.loads(part):
                code = row[0]
                if code == _RUN:
                    seq = things[row[1]].stop
                    continue
                if code in (_WHOLE, _MESSAGE) and seq >= start:
                    yield _event(seq, row, things)
                seq += 1

    def _from(self, start: int) -> Iterator[tuple[int, bytes]]:
        """Where each part that has something from seq *start* on begins, and the part."""
        ends = itertools.chain(self._starts[1:], (self.stop,))
        for seq, end, part in zip(self._starts, ends, self._parts, strict=True):
            if end > start:
                yield seq, part


def _row(entry: Entry, things: list[object]) -> _Row:
    """*entry* as a row, and what it needs of objects among *things*."""
    if type(entry) is Run:
        things.append(entry)
        return (_RUN, len(things) - 1)
    event: Event = entry  # type: ignore[assignment]
    data, sources = event.data, event.sources
    kind = type(data)
    if event.ignorable or type(event.time_ms) is not int:  # a clock may be somebody's own
        pass
    elif event.surface_op is not None:
        if kind in _MESSAGES and type(event.surface_op) is Append:
            cited: Any = sources
            if type(sources) is Seqs:
                cited = [edge for run in sources.runs for edge in (run.start, run.stop)]
            if cited is None or type(cited) is tuple or cited is not sources:
                things.append(data)
                return (_MESSAGE, event.time_ms, len(things) - 1, cited)
    elif sources is not None:
        pass
    elif type(data) is AssistantChunk:
        row = _chunk(event, data, things)
        if row is not None:
            return row
    elif kind is StepStart:
        return (_STEP_START, event.time_ms, data.turn, data.step)  # type: ignore[union-attr]
    elif kind is StepEnd:
        return (_STEP_END, event.time_ms, data.turn, data.step)  # type: ignore[union-attr]
    elif type(data) is ToolCallEvent and len(data.arguments) <= _SHORT:
        return (_CALL, event.time_ms, data.turn, data.step, data.call_id, data.name, data.arguments)
    things.append(event)
    return (_WHOLE, len(things) - 1)


def _chunk(event: Event, data: AssistantChunk, things: list[object]) -> _Row | None:
    chunk = data.chunk
    kind = type(chunk)
    head = (event.time_ms, data.turn, data.step)
    if type(chunk) is BlockStart:
        return (_BLOCK_START, *head, chunk.index, chunk.block_type)
    if type(chunk) is BlockEnd:  # the message has the same block, mostly
        things.append(chunk.block)
        return (_BLOCK_END, *head, chunk.index, len(things) - 1)
    if type(chunk) is ToolCallDelta:
        if len(chunk.arguments_delta) <= _SHORT:
            return (_CALL_DELTA, *head, chunk.index, chunk.id, chunk.arguments_delta, chunk.name)
    elif type(chunk) is TextDelta or type(chunk) is ReasoningDelta:
        if len(chunk.text) <= _SHORT:
            code = _TEXT_DELTA if kind is TextDelta else _REASONING_DELTA
            return (code, *head, chunk.index, chunk.text)
    elif type(chunk) is UsageChunk:  # of the message as well, as is the state of a finish
        things.append(chunk.usage)
        return (_USAGE, *head, len(things) - 1)
    elif type(chunk) is Finish:
        reason = type(chunk.reason)
        if reason in _REASONS:
            state = None
            if chunk.replay_state is not None:
                state = len(things)
                things.append(chunk.replay_state)
            return (_FINISH, *head, _REASONS.index(reason), state)
    return None


def _event(seq: int, row: _Row, things: Sequence[Any]) -> Event:
    """The event *seq* that `_row` made *row* of."""
    code = row[0]
    if code == _WHOLE:
        whole: Event = things[row[1]]
        return whole
    if code == _MESSAGE:
        cited = row[3]
        sources: Sources | None = cited
        if type(cited) is list:
            sources = Seqs(map(range, cited[::2], cited[1::2]))
        return Event(seq, row[1], things[row[2]], _APPEND, sources)
    data: EventData
    if code == _STEP_START:
        data = StepStart(row[2], row[3])
    elif code == _STEP_END:
        data = StepEnd(row[2], row[3])
    elif code == _CALL:
        data = ToolCallEvent(*row[2:])
    elif code == _BLOCK_START:
        data = AssistantChunk(row[2], row[3], BlockStart(row[4], row[5]))
    elif code == _BLOCK_END:
        data = AssistantChunk(row[2], row[3], BlockEnd(row[4], things[row[5]]))
    elif code == _FINISH:
        state = None if row[5] is None else things[row[5]]
        data = AssistantChunk(row[2], row[3], Finish(_ENDED[row[4]], state))
    elif code == _USAGE:
        data = AssistantChunk(row[2], row[3], UsageChunk(things[row[4]]))
    elif code == _CALL_DELTA:
        data = AssistantChunk(row[2], row[3], ToolCallDelta(*row[4:]))
    else:
        delta = TextDelta if code == _TEXT_DELTA else ReasoningDelta
        data = AssistantChunk(row[2], row[3], delta(row[4], row[5]))
    return Event(seq, row[1], data)
