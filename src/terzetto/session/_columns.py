"""Columns: the deltas of an answer that is over, without an object for each.

An event of a stream is three objects, of some hundred bytes for a few characters, and the
garbage collector looks at each as long as the log lives. Nobody asks for most of them again.
So deltas that follow each other become one run: their texts in one piece of UTF-8, their
lengths and times as numbers. Their events are made anew when somebody reads them, equal to
those that there were. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

from ..vocabulary import AssistantChunk, CallId, Event, ReasoningDelta, TextDelta, ToolCallDelta

LEAST = 16
"""Deltas that are worth a run."""

_SIZES = (("H", 2**16), ("I", 2**32), ("Q", 2**64))
_Key: TypeAlias = tuple[int, int, type, int, CallId | None, str | None]


class Run:
    """Events with successive seqs from *seq* to before *stop*: deltas of one block."""

    __slots__ = ("_began", "_ends", "_key", "_texts", "_times", "seq", "stop")

    def __init__(self, key: _Key, events: Sequence[Event], texts: list[str]) -> None:
        self.seq = events[0].seq
        self.stop = self.seq + len(events)
        self._key = key
        whole = "".join(texts)
        if whole.isascii():
            self._texts = whole.encode()
            lengths = map(len, texts)
        else:
            # Nothing that is not clean gets here; if it did, it would come out as it went in.
            parts = [text.encode("utf-8", "surrogatepass") for text in texts]
            self._texts = b"".join(parts)
            lengths = map(len, parts)
        self._ends = _narrow(accumulate(lengths), len(self._texts))
        times = [event.time_ms for event in events]
        began = self._began = min(times)
        self._times = _narrow([time - began for time in times], max(times) - began)

    def __len__(self) -> int:
        return self.stop - self.seq

    def between(self, start: int, stop: int) -> Iterator[Event]:
        """The events of the seqs from *start* to before *stop*, as far as they are in it."""
        turn, step, kind, block, call_id, name = self._key
        first, last = max(start - self.seq, 0), min(stop, self.stop) - self.seq
        if first >= last:
            return
        ends, times = _numbers(self._ends), _numbers(self._times)
        begin = ends[first - 1] if first else 0
        for index in range(first, last):
            end = ends[index]
            text = self._texts[begin:end].decode("utf-8", "surrogatepass")
            begin = end
            chunk: TextDelta | ReasoningDelta | ToolCallDelta
            if kind is TextDelta:
                chunk = TextDelta(block, text)
            elif kind is ReasoningDelta:
                chunk = ReasoningDelta(block, text)
            else:
                chunk = ToolCallDelta(block, call_id or CallId(""), text, name)
            data = AssistantChunk(turn, step, chunk)
            yield Event(self.seq + index, self._began + times[index], data)


Entry: TypeAlias = Event | Run
"""What is kept of a log: an event as it is, or some of them as a run. Both have a *seq*."""


def packed(events: Iterable[Event]) -> list[Entry]:
    """*events*, whose seqs are successive, with their deltas in runs where that is worth it."""
    found: list[Entry] = []
    key: _Key | None = None
    run: list[Event] = []
    texts: list[str] = []

    def end() -> None:
        if key is not None and len(run) >= LEAST:
            found.append(Run(key, run, texts))
        else:
            found.extend(run)

    for event in events:
        data = event.data
        this: _Key | None = None
        text = ""
        if type(data) is AssistantChunk:
            chunk = data.chunk
            kind = type(chunk)
            if type(chunk) is TextDelta or type(chunk) is ReasoningDelta:
                text = chunk.text
                this = (data.turn, data.step, kind, chunk.index, None, None)
            elif type(chunk) is ToolCallDelta:
                text = chunk.arguments_delta
                this = (data.turn, data.step, kind, chunk.index, chunk.id, chunk.name)
        if this is None or event.ignorable or event.sources is not None:
            if run:
                end()
                key, run, texts = None, [], []
            found.append(event)
            continue
        if this != key:
            if run:
                end()
            key, run, texts = this, [], []
        run.append(event)
        texts.append(text)
    end()
    return found


def _narrow(numbers: Iterable[int], largest: int) -> tuple[str, bytes]:
    """*numbers*, none less than 0, in as few bytes as the *largest* needs. In bytes, because
    the collector looks at an array."""
    code = next(code for code, limit in _SIZES if largest < limit)
    return code, array(code, numbers).tobytes()


def _numbers(narrow: tuple[str, bytes]) -> Sequence[int]:
    """What `_narrow` was given."""
    code, data = narrow
    found: Sequence[int] = memoryview(data).cast(code)  # type: ignore[call-overload]
    return found
