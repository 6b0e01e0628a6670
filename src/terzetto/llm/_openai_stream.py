"""What a server says in OpenAI's chat-completions format: values in, bytes out.

Pure. Owns the JSON of chunks, completions, models and errors. Requests are read by
`_openai_asked`; HTTP and waiting belong to `loopback`. An adapter's decoder shares
nothing with this module, so that one can test the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import define, field

from ..vocabulary import (
    AbortedFinish,
    AssistantBlock,
    BlockEnd,
    BlockStart,
    ErrorFinish,
    Failure,
    Finish,
    FinishReason,
    MaxTokens,
    PlainJson,
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
    assemble,
)

DONE: Final = b"data: [DONE]\n\n"

_SPELLED: Final = {
    "AUTH": (401, "authentication_error", "invalid_api_key"),
    "CONTENT_FILTER": (400, "invalid_request_error", "content_filter"),
    "CONTEXT_OVERFLOW": (400, "invalid_request_error", "context_length_exceeded"),
    "INVALID_REQUEST": (400, "invalid_request_error", None),
    "NOT_FOUND": (404, "invalid_request_error", "model_not_found"),
    "PERMISSION": (403, "permission_error", "permission_denied"),
    "QUOTA": (429, "insufficient_quota", "insufficient_quota"),
    "RATE_LIMIT": (429, "rate_limit_error", "rate_limit_exceeded"),
    "SCRIPT_EXHAUSTED": (400, "invalid_request_error", "script_exhausted"),
    "SERVER": (500, "server_error", None),
    "TIMEOUT": (504, "timeout_error", "timeout"),
}
"""How OpenAI says our codes: status, ``error.type``, ``error.code``."""


def _dump(value: Mapping[str, PlainJson]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def event(data: Mapping[str, PlainJson]) -> bytes:
    """*data* as one server-sent event, in raw UTF-8."""
    return b"data: " + _dump(data) + b"\n\n"


def error_status(failure: Failure) -> int:
    """The status of a response that says *failure*."""
    if failure.status is not None:
        return failure.status
    return _SPELLED[failure.code][0] if failure.code in _SPELLED else 500


def error_object(failure: Failure, provider_code: str | None = None) -> dict[str, PlainJson]:
    """``{"error": {...}}``; codes of ours become OpenAI's, others stay as they are."""
    _, kind, code = _SPELLED.get(failure.code, (500, "server_error", failure.code))
    error: dict[str, PlainJson] = {
        "message": failure.message,
        "type": kind,
        "param": None,
        "code": provider_code or code,
    }
    if failure.status is not None:
        error["status"] = failure.status
    return {"error": error}


def error_body(failure: Failure, provider_code: str | None = None) -> bytes:
    """The body of an error response."""
    return _dump(error_object(failure, provider_code))


def models_body(names: tuple[str, ...]) -> bytes:
    """The body of ``GET /v1/models``."""
    data: list[PlainJson] = [
        {"id": name, "object": "model", "created": 0, "owned_by": "terzetto"} for name in names
    ]
    return _dump({"object": "list", "data": data})


def _finish_word(reason: FinishReason) -> str:
    match reason:
        case Stop():
            return "stop"
        case ToolCalls():
            return "tool_calls"
        case MaxTokens():
            return "length"
        case ErrorFinish() | AbortedFinish():
            return "error"


def _usage(usage: Usage) -> dict[str, PlainJson]:
    said: dict[str, PlainJson] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    if usage.cache_read_tokens is not None:
        said["prompt_tokens_details"] = {"cached_tokens": usage.cache_read_tokens}
    if usage.reasoning_tokens is not None:
        said["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return said


@define(eq=False)
class _Sent:
    """What the client knows of one block."""

    number: int = 0  # among the calls, as the wire counts
    call_id: str = ""
    text: str = ""
    ended: bool = False


@define(eq=False)
class ChunkEncoder:
    """Chunks of one answer to server-sent events, fed one by one.

    Block starts say nothing on this wire; a block's end says what its deltas left out,
    if the block begins with what they said. Usage is held back until the finish, as
    OpenAI sends it, and left out unless *include_usage*. Replay state has no place here.
    """

    id: str
    model: str
    include_usage: bool = True
    _blocks: dict[int, _Sent] = field(factory=dict, init=False)
    _calls: int = field(default=0, init=False)
    _opened: bool = field(default=False, init=False)
    _finished: bool = field(default=False, init=False)
    _failed: bool = field(default=False, init=False)
    _held: Usage | None = field(default=None, init=False)

    def encode(self, chunk: StreamChunk) -> list[bytes]:
        """The events of *chunk*: none, one, or two."""
        match chunk:
            case TextDelta(index, text):
                return self._text(index, "content", text)
            case ReasoningDelta(index, text):
                return self._text(index, "reasoning_content", text)
            case ToolCallDelta(index, call_id, arguments, name):
                return self._call(index, call_id, name, arguments)
            case BlockStart():
                return []
            case BlockEnd(index, block):
                return self._rest(index, block)
            case UsageChunk(usage):
                self._held = usage
                return self._flush() if self._finished else []
            case Finish(ErrorFinish(failure) | AbortedFinish(failure)):
                self._failed = True
                return [event(error_object(failure))]
            case Finish(reason):
                self._finished = True
                return [self._choice({}, _finish_word(reason)), *self._flush()]

    def end(self) -> list[bytes]:
        """What is held back, and the terminal marker; nothing after an error object."""
        return [] if self._failed else [*self._flush(), DONE]

    def _text(self, index: int, key: str, text: str) -> list[bytes]:
        self._blocks.setdefault(index, _Sent()).text += text
        return [self._choice({key: text})]

    def _call(self, index: int, call_id: str, name: str | None, arguments: str) -> list[bytes]:
        sent = self._blocks.get(index)
        if first := sent is None:
            sent = self._blocks[index] = _Sent(self._calls, call_id)
            self._calls += 1
        sent.text += arguments
        entry: dict[str, PlainJson] = {"index": sent.number}
        # An id is told once; a different one, such as an empty one, was written on purpose.
        if first or call_id != sent.call_id:
            entry |= {"id": call_id, "type": "function"}
        named: dict[str, PlainJson] = {} if name is None else {"name": name}
        entry["function"] = {**named, "arguments": arguments}
        return [self._choice({"tool_calls": [entry]})]

    def _rest(self, index: int, block: AssistantBlock) -> list[bytes]:
        known = index in self._blocks
        sent = self._blocks.setdefault(index, _Sent()) if known else _Sent()
        whole = block.arguments if isinstance(block, ToolCallBlock) else block.text
        rest = whole.removeprefix(sent.text) if whole.startswith(sent.text) else ""
        if sent.ended or (known and not rest):
            return []
        match block:
            case TextBlock() if rest:
                events = self._text(index, "content", rest)
            case ReasoningBlock() if rest:
                events = self._text(index, "reasoning_content", rest)
            case ToolCallBlock(call_id, name):
                events = self._call(index, call_id, None if known else name, rest)
            case _:
                return []
        self._blocks[index].ended = True
        return events

    def _flush(self) -> list[bytes]:
        usage, self._held = self._held, None
        if usage is None or not self.include_usage:
            return []
        return [event(self._envelope([]) | {"usage": _usage(usage)})]

    def _choice(self, delta: dict[str, PlainJson], finish: str | None = None) -> bytes:
        if not self._opened:
            self._opened = True
            delta = {"role": "assistant", **delta}
        choice: PlainJson = {"index": 0, "delta": delta, "finish_reason": finish}
        return event(self._envelope([choice]))

    def _envelope(self, choices: list[PlainJson]) -> dict[str, PlainJson]:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": 0,
            "model": self.model,
            "choices": choices,
        }


def completion_body(id: str, model: str, chunks: Sequence[StreamChunk]) -> bytes:
    """The answer *chunks* as the one JSON body of an unstreamed request.

    Without a finish it is ``stop``. A failed finish cannot be said here; see `error_body`.
    """
    finishes = [chunk for chunk in chunks if isinstance(chunk, Finish)]
    # Without its finish, for the assembler drops the calls of an answer cut by the limit.
    answer = assemble([chunk for chunk in chunks if not isinstance(chunk, Finish)]).assembled()
    texts = [block.text for block in answer.content if isinstance(block, TextBlock)]
    reasoning = [block.text for block in answer.content if isinstance(block, ReasoningBlock)]
    calls: list[PlainJson] = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": block.arguments},
        }
        for block in answer.content
        if isinstance(block, ToolCallBlock)
    ]
    message: dict[str, PlainJson] = {
        "role": "assistant",
        "content": "".join(texts) if texts else None,
    }
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    reason = finishes[-1].reason if finishes else Stop()
    choice: PlainJson = {"index": 0, "message": message, "finish_reason": _finish_word(reason)}
    body: dict[str, PlainJson] = {
        "id": id,
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [choice],
    }
    return _dump(body | ({"usage": _usage(answer.usage)} if answer.usage else {}))
