"""The bytes of a chat-completions stream: which of them are events, read the shortest way.

Pure: `ChatStream` is read without waiting, and any way of cutting the bytes gives the same
chunks. Nearly every event of a stream is one line that adds some text to an answer. Such a one is
read in a single pass from its bytes, as `_Plain`. All else goes the long way: framing by
`SseDecoder`, meaning by `ChatDecoder`; and so does what is like it but for one field, because a
`_Plain` has no room for anything that could mean more. What the two ways give is the same.
"""

from __future__ import annotations

import json
from typing import Literal

import msgspec
from attrs import define, field

from ..vocabulary import Failure, ProviderError, StreamChunk
from . import _failures as failures
from ._openai_decode import ChatDecoder
from ._openai_fields import is_error, parse
from ._sse import SseDecoder

_MAX_PLAIN_BODY = 64 * 1024
_TRIES = 64
"""How many events in a row may be no `_Plain` until nothing is tried any more."""


class _Said(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    role: str | None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None


class _Choice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    delta: _Said
    index: Literal[0] | None = None
    finish_reason: None = None
    logprobs: None = None
    matched_stop: None = None
    native_finish_reason: None = None
    stop_reason: None = None
    token_ids: None = None


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An event that adds text and does nothing else; what is not read has no effect either."""

    choices: tuple[_Choice]
    id: str | None = None
    object: Literal["chat.completion.chunk"] | None = None
    created: int | float | None = None
    model: str | None = None
    error: None = None
    obfuscation: str | None = None
    prompt_token_ids: None = None
    provider: str | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: None = None


_PLAIN = msgspec.json.Decoder(_Plain)
_NOT_PLAIN = (msgspec.MsgspecError, ValueError, RecursionError)


@define(eq=False)
class ChatStream:
    """Bytes of a chat-completions stream in, chunks out.

    A body that is JSON or a page and not an event stream (a server that ignores ``stream``,
    an error under status 200, the login of a proxy) is read as what it says.
    """

    chat: ChatDecoder = field(factory=ChatDecoder)
    _sse: SseDecoder = field(factory=SseDecoder, init=False)
    _plain_body: bytearray | None = field(default=None, init=False)
    _begun: bool = field(default=False, init=False)
    _rest: bytes = field(default=b"", init=False)
    _tries: int = field(default=_TRIES, init=False)
    _between: bool = field(default=False, init=False)
    """Whether an event may begin with the next byte; only the decoder of the framing knows."""

    def feed(self, data: bytes) -> list[StreamChunk]:
        """The chunks that *data* completes."""
        if not self._begun and (head := data.lstrip()):
            self._begun = True
            self._plain_body = bytearray() if head[:1] in (b"{", b"<") else None
        if self._plain_body is not None:
            self._plain_body += data[: _MAX_PLAIN_BODY - len(self._plain_body)]
            return []
        out: list[StreamChunk] = []
        try:
            self._feed(self._rest + data if self._rest else data, out)
        except ProviderError as error:
            out += self.chat.fail(error.failure)
        return out

    def _feed(self, data: bytes, out: list[StreamChunk]) -> None:
        self._rest = b""
        if b"\r" in data or len(data) > self._sse.max_event_bytes:
            self._framed(data, out)
            return
        if not self._between:
            # The first of these ends whatever was begun before, and with it an event.
            end = data.find(b"\n\n") + 2
            self._framed(data[:end] if end > 1 else data, out)
            if end < 2 or not self._between:
                return
            data = data[end:]
        end = data.rfind(b"\n\n")
        if end < 0:
            # Held in pieces by the decoder, which joins them once; we would join them each time.
            self._framed(data, out)
            return
        events = data[:end]
        if b"\n" not in events:
            if not self.chat.ended:
                self._event(events, out)
        elif not self._all_said(events, out):
            for event in events.split(b"\n\n"):
                if self.chat.ended:
                    return
                self._event(event, out)
        self._rest = data[end + 2 :]

    def _event(self, event: bytes, out: list[StreamChunk]) -> None:
        if self._tries and event.startswith(b"data:") and b"\n" not in event:
            try:
                plain = _PLAIN.decode(event[5:])
            except _NOT_PLAIN:
                self._tries -= 1
            else:
                if self._take(plain, out):
                    self._tries = _TRIES
                    return
        self._framed(event + b"\n\n", out)

    def _all_said(self, events: bytes, out: list[StreamChunk]) -> bool:
        """Take *events*, if there are several and each is a `_Plain`: whether they were."""
        between = events.count(b"}\n\ndata: {")
        if not (
            between
            and not self.chat.ended
            and self._tries
            and events.count(b"\n") == 2 * between
            and events.startswith(b"data: {")
            and events.endswith(b"}")
        ):
            return False
        # A line feed is never part of a text, and no value goes on with a brace after one. So
        # each line is a value or several, and as many values as lines are one on each.
        try:
            plains = _PLAIN.decode_lines(events[6:].replace(b"\n\ndata: {", b"\n{"))
        except _NOT_PLAIN:
            return False  # singly it is found out which is not, and that is counted
        if len(plains) != between + 1:
            return False
        self._tries = _TRIES
        taken = self._take_all(plains, out)
        if taken < len(plains):
            for event in events.split(b"\n\n")[taken:]:
                if self.chat.ended:
                    break
                self._event(event, out)
        return True

    def _take(self, plain: _Plain, out: list[StreamChunk]) -> bool:
        """Say what *plain* says: whether it was; not if it says two things at once."""
        delta = plain.choices[0].delta
        thought, text = delta.reasoning_content or delta.reasoning, delta.content
        if not thought:
            self.chat.write("text", text or "", plain.id, out)
        elif text:
            return False
        else:
            self.chat.write("reasoning", thought, plain.id, out)
        return True

    def _take_all(self, plains: list[_Plain], out: list[StreamChunk]) -> int:
        """`_take` each of *plains*, up to one that says two things at once: how many were."""
        chat, texts = self.chat, list[str]()
        last: Literal["text", "reasoning"] = "text"
        taken = 0
        for plain in plains:
            delta = plain.choices[0].delta
            thought, text = delta.reasoning_content or delta.reasoning, delta.content
            kind: Literal["text", "reasoning"] = "reasoning" if thought else "text"
            if thought and text:
                break
            taken += 1
            if kind != last and (said := thought or text):
                chat.write_all(last, texts, out)
                last, texts = kind, [said]
            elif said := thought or text:
                texts.append(said)
        chat.write_all(last, texts, out)
        chat.count(taken, (plain.id for plain in plains[:taken]))
        return taken

    def _framed(self, data: bytes, out: list[StreamChunk]) -> None:
        self._between = False  # also if it raises
        for event in self._sse.feed(data):
            out += self.chat.feed(event.data, event.event)
        self._sse.feed(b"")  # raises if the event that follows is too large
        self._between = self._sse.between

    def finish(self) -> list[StreamChunk]:
        """The chunks that the end of the bytes gives; the last is a `Finish`, unless
        one was given out before."""
        if self._plain_body is None:
            return self.chat.finish()
        body = bytes(self._plain_body)
        if body.lstrip()[:1] == b"<":
            page = failures.classify(200, {}, body, now=0, secrets=self.chat.secrets)
            text = f"expected a stream of server-sent events, got a page; {page.message}"
            return self.chat.fail(Failure(message=text, code=failures.TRANSPORT))
        payload = parse(body.decode("utf-8", "replace"))
        if isinstance(payload, dict) and is_error(payload):
            return self.chat.feed(json.dumps(payload), "error")
        text = "expected a stream of server-sent events, got one JSON body"
        return self.chat.fail(Failure(message=text, code=failures.TRANSPORT))
