"""Server-sent events: bytes in, events out.

Owns the framing rules of the WHATWG specification and nothing of what the events
mean. Pure: it is fed and read without waiting, and any way of cutting the same
bytes gives the same events. Source: https://html.spec.whatwg.org, "Server-sent
events", sections on parsing and on interpreting an event stream.
"""

from __future__ import annotations

import re

from attrs import define, field, frozen

from ..vocabulary import Failure, ProviderError

MAX_EVENT_BYTES = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_DIGITS = re.compile(rb"[0-9]+")


@frozen
class SseEvent:
    """One dispatched event; *id* is the last event id when it was dispatched."""

    data: str
    event: str = "message"
    id: str = ""


@define(eq=False)
class SseDecoder:
    """An incremental decoder. Time is linear in the bytes, however they are cut.

    Args:
        max_event_bytes: The most bytes that one event may hold, its unfinished
            line included. Past it `feed` and `finish` raise `ProviderError`
            (``TRANSPORT``); events completed before are returned first.
    """

    max_event_bytes: int = MAX_EVENT_BYTES
    retry_ms: int | None = field(default=None, init=False)
    """The last reconnection time that the server asked for."""
    _line: bytearray = field(factory=bytearray, init=False, repr=False)
    _data: list[str] = field(factory=list, init=False, repr=False)
    _size: int = field(default=0, init=False)
    _event: str = field(default="", init=False)
    _id: str = field(default="", init=False)
    _at_start: bool = field(default=True, init=False)
    _after_cr: bool = field(default=False, init=False)
    _left_over: bool = field(default=False, init=False)
    _broken: ProviderError | None = field(default=None, init=False)

    @property
    def pending(self) -> bool:
        """Whether bytes of an event that was never ended have come."""
        unfinished = bool(self._line) and not self._line.startswith(b":")
        return self._left_over or bool(self._data) or unfinished

    @property
    def between(self) -> bool:
        """Whether an event may begin with the next byte: nothing is held, nor expected."""
        held = self._line or self._data or self._event or self._broken
        return not (held or self._after_cr or self._at_start)

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that *data* completes, in order."""
        if self._broken is not None:
            raise self._broken
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == 0x0A:  # the second half of a CR LF
                data = data[1:]
        if not data:
            return []
        events = self._lines(data)
        if self._size + len(self._line) > self.max_event_bytes:
            self._break()
        if self._broken is not None and not events:
            raise self._broken
        return events

    def finish(self) -> None:
        """End the input. An unfinished event is discarded; `pending` tells of it."""
        if self._broken is not None:
            raise self._broken
        self._left_over = self.pending
        self._line.clear()
        self._data.clear()

    def _lines(self, data: bytes) -> list[SseEvent]:
        if b"\n" not in data and b"\r" not in data:
            self._line += data
            return []
        whole = bytes(self._line) + data if self._line else data
        self._line.clear()
        # On bytes, splitlines knows CR, LF and CR LF only; on str it would also
        # split at U+2028 and others, in the middle of a JSON text.
        lines = whole.splitlines()
        self._after_cr = whole.endswith(b"\r")
        if not self._after_cr and not whole.endswith(b"\n"):
            self._line += lines.pop()
        events: list[SseEvent] = []
        for line in lines:
            if line:
                # The same sum as for an unfinished line, so cuts change nothing.
                if self._size + len(line) > self.max_event_bytes:
                    self._break()
                    break
                self._field(line)
            elif (event := self._dispatch()) is not None:
                events.append(event)
            self._at_start = False
        return events

    def _field(self, line: bytes) -> None:
        size = len(line)
        if self._at_start and line.startswith(_BOM):
            line = line[3:]
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        # Line ends are ASCII, so no character is ever cut by decoding line by line.
        match name:
            case b"data":
                self._data.append(value.decode("utf-8", "replace"))
                self._size += size
            case b"event":
                self._event = value.decode("utf-8", "replace")
            case b"id" if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
            case b"retry" if _DIGITS.fullmatch(value) and len(value) < 16:
                self.retry_ms = int(value)
            case _:  # comments have an empty name; unknown fields are ignored
                pass

    def _dispatch(self) -> SseEvent | None:
        event, self._event = self._event, ""
        if not self._data:
            return None
        data = "\n".join(self._data)
        self._data.clear()
        self._size = 0
        return SseEvent(data, event or "message", self._id)

    def _break(self) -> None:
        self._line.clear()
        self._data.clear()
        self._left_over = True
        text = f"a server-sent event is larger than the limit of {self.max_event_bytes} bytes"
        self._broken = ProviderError(Failure(message=text, code="TRANSPORT"))
