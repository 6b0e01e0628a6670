"""The chat-completions wire of OpenAI and of the many servers that speak it: answers.

Owns how the events of a stream become chunks, and what counts as its end. Pure:
`ChatDecoder` takes payloads and is read without waiting. The bytes belong to
`_openai_bytes.py`, sockets and clocks to `_http.py`.

Ends: ``[DONE]``, or a ``finish_reason`` and then the end of the bytes. Anything
else that ends the bytes is ``TRANSPORT``. An answer without a call and without a
character that is not white space is ``EMPTY_RESPONSE``, unless the output limit
explains it: then it is `MaxTokens`. Nothing is read behind ``[DONE]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Literal

from attrs import define, evolve, field

from ..vocabulary import (
    AbortedFinish,
    BlockEnd,
    BlockStart,
    CallId,
    ErrorFinish,
    Failure,
    Finish,
    FinishReason,
    MaxTokens,
    ReasoningBlock,
    ReasoningDelta,
    Stop,
    StreamChunk,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolCalls,
    Usage,
    UsageChunk,
    clean_text,
)
from ..vocabulary._opening import opened
from . import _failures as failures
from ._openai_fields import (
    UNREADABLE,
    arguments_of,
    content_of,
    is_error,
    list_of,
    parse,
    position_of,
    split_half,
    text_of,
    usage_of,
)

DONE = "[DONE]"

_QUICK = {
    "text": (opened(TextDelta), TextDelta),
    "reasoning": (opened(ReasoningDelta), ReasoningDelta),
}

_FAILED_REASONS = {
    "content_filter": failures.CONTENT_FILTER,
    "error": failures.SERVER,
    "insufficient_system_resource": failures.SERVER,
}
_ABORTED_REASONS = frozenset({"abort", "aborted", "cancelled", "canceled"})


@define(eq=False)
class _Prose:
    """The text or reasoning block that is being written."""

    index: int
    kind: Literal["text", "reasoning"]
    parts: list[str] = field(factory=list)
    held: str = ""


@define(eq=False)
class _Call:
    index: int
    id: str = ""
    name: str = ""
    parts: list[str] = field(factory=list)
    held: str = ""


@define(eq=False)
class ChatDecoder:
    """Payloads of a chat-completions stream in, chunks out.

    Text and reasoning are one open block at a time; calls stay open to the end,
    because their fragments may interleave. A failed answer ends no open block.
    An id or name that is empty or null counts as absent, and the first real one of
    a call stands. A call whose id is absent, or repeats an earlier one of the same
    answer, gets an id made from the answer's content.
    A high surrogate at the end of a delta waits for its other half.

    Args:
        secrets: Texts that no failure may show.
    """

    secrets: Sequence[str] = field(default=(), repr=False)
    ended: bool = field(default=False, init=False)
    """Whether the final `Finish` was given out; everything later is ignored."""
    events: int = field(default=0, init=False)
    """Payloads taken so far: the measure of progress."""
    _blocks: int = field(default=0, init=False)
    _prose: _Prose | None = field(default=None, init=False)
    _calls: list[_Call] = field(factory=list, init=False)
    _by_position: dict[int, _Call] = field(factory=dict, init=False)
    _usage: Usage | None = field(default=None, init=False)
    _reason: str = field(default="", init=False)
    _answer_id: str = field(default="", init=False)
    _characters: int = field(default=0, init=False)
    _substance: bool = field(default=False, init=False)

    @property
    def answered(self) -> bool:
        """Whether a ``finish_reason`` came: only usage and the end marker may follow."""
        return bool(self._reason)

    def feed(self, data: str, event: str = "message") -> list[StreamChunk]:
        """The chunks of one event's payload."""
        if self.ended:
            return []
        self.events += 1
        data = data.strip()
        if not data:
            return []
        if data == DONE:
            return self._end()
        payload = parse(data)
        if event == "error":
            return self._fail(self._reported(data if payload is UNREADABLE else payload))
        if not isinstance(payload, dict):
            shown = failures.redact(data, self.secrets)[:80]
            text = f"event {self.events} is not a JSON object: {shown!r}; {self._arrived()}"
            return self._fail(Failure(message=text, code=failures.TRANSPORT))
        if is_error(payload):
            return self._fail(self._reported(payload))
        return self._chunk(payload)

    def write(
        self,
        kind: Literal["text", "reasoning"],
        text: str,
        answer_id: str | None,
        out: list[StreamChunk],
    ) -> None:
        """One event that says *text* and nothing else: what `feed` does with its payload.

        *text* may be empty, and has no halves of surrogate pairs.
        """
        self.count(1, (answer_id,))
        if text:
            self.write_all(kind, (text,), out)

    def count(self, events: int, answer_ids: Iterable[str | None]) -> None:
        """Count *events* whose texts are written, and note the first id that they have."""
        self.events += events
        if not self._answer_id:
            self._answer_id = next(filter(None, answer_ids), "")

    def write_all(
        self, kind: Literal["text", "reasoning"], texts: Sequence[str], out: list[StreamChunk]
    ) -> None:
        """Say *texts*, none of them empty, each as a delta of its own; count no event."""
        if (block := self._prose) is None or block.kind != kind or block.held:
            if not texts:
                return
            self._write(kind, texts[0], out)
            block, texts = self._prose, texts[1:]
            assert block is not None
        index = block.index
        opened_as, made_as = _QUICK[kind]
        for text in texts:
            made = opened_as()
            made.index = index
            made.text = text
            made.__class__ = made_as
            out.append(made)
        block.parts += texts
        said = "".join(texts)
        self._characters += len(said)
        self._substance = self._substance or bool(said.strip())

    def finish(self) -> list[StreamChunk]:
        """The chunks that the end of the bytes gives."""
        text = f"the stream ended without finish_reason and without {DONE}"
        return self.fail(Failure(message=text, code=failures.TRANSPORT))

    def fail(self, failure: Failure) -> list[StreamChunk]:
        """End the answer because its bytes ended, for the reason *failure*.

        An answer whose ``finish_reason`` came is complete all the same.
        """
        if self.ended:
            return []
        if self.answered:
            return self._end()
        message = f"{failure.message}; {self._arrived()}"
        return self._fail(evolve(failure, message=message))

    # Reading

    def _chunk(self, payload: dict[str, object]) -> list[StreamChunk]:
        out: list[StreamChunk] = []
        if not self._answer_id:
            self._answer_id = text_of(payload.get("id"))
        if "usage" in payload or "x_groq" in payload:
            self._note_usage(payload)
        for choice in list_of(payload.get("choices")):
            if not isinstance(choice, dict) or choice.get("index") not in (None, 0):
                continue
            if error := choice.get("error"):
                return out + self._fail(self._reported({"error": error}))
            if "usage" in choice:
                self._note_usage(choice)
            if isinstance(delta := choice.get("delta"), dict):
                self._delta(delta, out)
            self._reason = self._reason or text_of(choice.get("finish_reason"))
        return out

    def _delta(self, delta: dict[str, object], out: list[StreamChunk]) -> None:
        thought, said = content_of(delta.get("content"))
        thought = text_of(delta.get("reasoning_content") or delta.get("reasoning")) or thought
        if thought:
            self._write("reasoning", thought, out)
        if said := said or text_of(delta.get("refusal")):
            self._write("text", said, out)
        fragments = delta.get("tool_calls")
        if function := delta.get("function_call"):
            fragments = [{"index": 0, "function": function}]
        if fragments:
            for fragment in list_of(fragments):
                if isinstance(fragment, dict):
                    self._fragment(fragment, out)

    def _write(self, kind: Literal["text", "reasoning"], text: str, out: list[StreamChunk]) -> None:
        if not text:
            return
        block = self._prose
        if block is None or block.kind != kind:
            self._close_prose(out)
            block = self._prose = _Prose(self._open(kind, out), kind)
        text, block.held = split_half(block.held + text)
        if text:
            self._emit(block, text, out)

    def _emit(self, block: _Prose, text: str, out: list[StreamChunk]) -> None:
        make = TextDelta if block.kind == "text" else ReasoningDelta
        delta = make(block.index, text)
        block.parts.append(delta.text)
        self._characters += len(delta.text)
        self._substance = self._substance or not delta.text.isspace()
        out.append(delta)

    def _fragment(self, fragment: dict[str, object], out: list[StreamChunk]) -> None:
        """One entry of ``tool_calls``."""
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        call_id = clean_text(text_of(fragment.get("id")))
        name = clean_text(text_of(function.get("name")))
        text = arguments_of(function.get("arguments"))
        call = self._find(fragment.get("index"), call_id, name)
        if call is None:
            if not (call_id or name or text):
                return
            call = self._begin(fragment.get("index"), out)
        first_name = name if not call.name else ""
        news = bool(first_name or (call_id and not call.id))
        call.id = call.id or call_id
        call.name = call.name or name
        text, call.held = split_half(call.held + text)
        if text or news:
            delta = ToolCallDelta(call.index, CallId(call.id), text, first_name or None)
            call.parts.append(delta.arguments_delta)
            self._characters += len(text)
            out.append(delta)

    def _find(self, position: object, call_id: str, name: str) -> _Call | None:
        """The call that a fragment goes on with, or None if it begins one.

        By ``index``; a fragment that brings another id *and* a name begins a new call,
        because some servers number every call 0. Without an index by id, else a
        fragment with a name begins a new call and one without goes on with the last.
        """
        if (key := position_of(position)) is not None:
            call = self._by_position.get(key)
            if call and call_id and name and call.id and call.id != call_id:
                return None
            return call
        if call_id:
            same = [call for call in self._calls if call.id == call_id]
            if same or name or not self._calls or self._calls[-1].id:
                return same[-1] if same else None
        last = self._calls[-1] if self._calls else None
        return None if last is not None and name and last.name else last

    def _begin(self, position: object, out: list[StreamChunk]) -> _Call:
        self._close_prose(out)
        call = _Call(self._open("tool-call", out))
        self._calls.append(call)
        if (key := position_of(position)) is not None:
            self._by_position[key] = call
        return call

    def _open(self, kind: Literal["text", "reasoning", "tool-call"], out: list[StreamChunk]) -> int:
        index = self._blocks
        self._blocks += 1
        out.append(BlockStart(index, kind))
        return index

    def _note_usage(self, holder: dict[str, object]) -> None:
        usage = usage_of(holder.get("usage"))
        if usage is None and isinstance(groq := holder.get("x_groq"), dict):
            usage = usage_of(groq.get("usage"))
        self._usage = usage or self._usage

    # Ending

    def _end(self) -> list[StreamChunk]:
        reason = self._finish_reason()
        if isinstance(reason, (ErrorFinish, AbortedFinish)):
            return self._finish(reason, [])
        out: list[StreamChunk] = []
        self._close_prose(out)
        taken: set[str] = set()
        for call in self._calls:
            if call.held:
                tail = ToolCallDelta(call.index, CallId(call.id), call.held)
                call.parts.append(tail.arguments_delta)
                out.append(tail)
            out.append(BlockEnd(call.index, self._finished_call(call, taken)))
        return self._finish(reason, out)

    def _finish(self, reason: FinishReason, out: list[StreamChunk]) -> list[StreamChunk]:
        self.ended = True
        if self._usage is not None:
            out.append(UsageChunk(self._usage))
        out.append(Finish(reason))
        return out

    def _fail(self, failure: Failure) -> list[StreamChunk]:
        return self._finish(ErrorFinish(failure), [])

    def _reported(self, error: object) -> Failure:
        return failures.classify_event(error, secrets=self.secrets)

    def _finish_reason(self) -> FinishReason:
        said = self._reason.lower()
        if said in _FAILED_REASONS:
            text = f"the provider gave up (finish_reason {said!r}); {self._arrived()}"
            return ErrorFinish(Failure(message=text, code=_FAILED_REASONS[said]))
        if said in _ABORTED_REASONS:
            text = f"the provider aborted the answer (finish_reason {said!r}); {self._arrived()}"
            return AbortedFinish(Failure(message=text, code=failures.SERVER))
        if said in ("length", "max_tokens"):
            return MaxTokens()
        if not self._calls and not self._substance:
            text = f"the answer is empty or blank (finish_reason {said or None!r})"
            return ErrorFinish(Failure(message=text, code=failures.EMPTY_RESPONSE))
        if said in ("tool_calls", "function_call") or (not said and self._calls):
            return ToolCalls()
        return Stop()

    def _close_prose(self, out: list[StreamChunk]) -> None:
        block, self._prose = self._prose, None
        if block is None:
            return
        if block.held:  # its other half never came; the value makes it U+FFFD
            self._emit(block, block.held, out)
        text = "".join(block.parts)
        ended = TextBlock(text) if block.kind == "text" else ReasoningBlock(text)
        out.append(BlockEnd(block.index, ended))

    def _finished_call(self, call: _Call, taken: set[str]) -> ToolCallBlock:
        arguments = "".join(call.parts)
        call_id = call.id
        if not call_id.strip() or call_id in taken:
            seed = "\0".join((self._answer_id, str(call.index), call.name, arguments))
            made = blake2b(clean_text(seed).encode(), digest_size=10).hexdigest()
            call_id = f"call_{made}"
        taken.add(call_id)
        return ToolCallBlock(CallId(call_id), call.name, arguments)

    def _arrived(self) -> str:
        return (
            f"{self.events} events had arrived, with {self._characters} characters"
            f" and {len(self._calls)} tool calls"
        )
