"""Stream chunks, finish reasons, usage, failures; and the assembler of blocks.

`BlockAssembler` is fed chunk by chunk and read without waiting. It costs time
proportional to the text it was fed, however small the pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from attrs import define, field, frozen
from attrs.converters import optional

from ._errors import CodedError
from ._json import JsonObject, JsonValue, clean_text, freeze_json
from ._kinds import among, exactly, whole, whole_or_none
from ._messages import (
    AssistantBlock,
    CallId,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    clean_call_id,
)
from ._texts import UNKNOWN

BlockType: TypeAlias = Literal["text", "reasoning", "tool-call"]


@frozen(kw_only=True)
class Usage:
    """Tokens of one request. Absent means the provider did not say."""

    input_tokens: int = field(validator=whole)
    output_tokens: int = field(validator=whole)
    cache_read_tokens: int | None = field(default=None, validator=whole_or_none)
    cache_write_tokens: int | None = field(default=None, validator=whole_or_none)
    reasoning_tokens: int | None = field(default=None, validator=whole_or_none)


@frozen(kw_only=True)
class Failure:
    """What a provider or the transport reported. Route on *code*."""

    message: str = field(converter=clean_text)
    code: str = field(default=UNKNOWN, converter=clean_text)
    status: int | None = field(default=None, validator=whole_or_none)
    provider_retry_after_ms: int | None = field(default=None, validator=whole_or_none)
    request_id: str | None = field(default=None, converter=optional(clean_text))


class ProviderError(CodedError):
    """A model provider's failure, with the facts of it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, failure.code)
        self.failure = failure


@frozen
class Stop:
    """The model ended its answer."""


@frozen
class ToolCalls:
    """The model waits for tools; the blocks decide, not this reason."""


@frozen
class MaxTokens:
    """The output limit cut the answer."""


@frozen
class ErrorFinish:
    """The attempt failed."""

    failure: Failure = field(validator=exactly(Failure))


@frozen
class AbortedFinish:
    """The provider says that it aborted."""

    failure: Failure = field(validator=exactly(Failure))


FinishReason: TypeAlias = Stop | ToolCalls | MaxTokens | ErrorFinish | AbortedFinish


@frozen
class BlockStart:
    """Block *index* of the answer begins."""

    index: int = field(validator=whole)
    block_type: BlockType = field(validator=among(*get_args(BlockType)))


@frozen
class TextDelta:
    """More text of block *index*."""

    index: int = field(validator=whole)
    text: str = field(converter=clean_text)


@frozen
class ReasoningDelta:
    """More reasoning of block *index*."""

    index: int = field(validator=whole)
    text: str = field(converter=clean_text)


@frozen
class ToolCallDelta:
    """More of the arguments of a call; *name* comes with its first delta."""

    index: int = field(validator=whole)
    id: CallId = field(converter=clean_call_id)
    arguments_delta: str = field(converter=clean_text)
    name: str | None = field(default=None, converter=optional(clean_text))


@frozen
class BlockEnd:
    """The authoritative block; later deltas and ends of its index are ignored."""

    index: int = field(validator=whole)
    block: AssistantBlock = field(validator=exactly(TextBlock, ReasoningBlock, ToolCallBlock))


@frozen
class UsageChunk:
    """What the request cost, as far as the provider says. The last one counts."""

    usage: Usage = field(validator=exactly(Usage))


@frozen
class Finish:
    """The end of an attempt; nothing follows it. *replay_state* is the adapter's own."""

    reason: FinishReason = field(
        validator=exactly(Stop, ToolCalls, MaxTokens, ErrorFinish, AbortedFinish)
    )
    replay_state: JsonValue = field(default=None, converter=freeze_json)


StreamChunk: TypeAlias = (
    BlockStart | TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | UsageChunk | Finish
)


CHUNKS = frozenset(get_args(StreamChunk))


def is_chunk(value: object) -> bool:
    """Whether *value* is a `StreamChunk`; of a subclass more might be lost than it says."""
    return type(value) in CHUNKS


def is_complete(reason: FinishReason) -> bool:
    """Whether *reason* ends an attempt with an answer rather than a failure."""
    return isinstance(reason, (Stop, ToolCalls, MaxTokens))


_PARTS = 512
"""Pieces of one block that are kept as they came."""


@define(eq=False)
class _Building:
    kind: BlockType
    parts: list[str] = field(factory=list)
    call_id: CallId = CallId("")
    name: str = ""
    ended: AssistantBlock | None = None
    joined: int = 0

    def add(self, text: str) -> None:
        """Take *text*. Many small parts become one, each of them once."""
        self.parts.append(text)
        if len(self.parts) > self.joined + _PARTS:
            self.parts[self.joined :] = ["".join(self.parts[self.joined :])]
            self.joined += 1

    def block(self) -> AssistantBlock:
        if self.ended is not None:
            return self.ended
        text = "".join(self.parts)
        match self.kind:
            case "text":
                return TextBlock(text)
            case "reasoning":
                return ReasoningBlock(text)
            case "tool-call":
                return ToolCallBlock(self.call_id, self.name, text)


@frozen(kw_only=True)
class Assembled:
    """The content of one attempt."""

    content: tuple[AssistantBlock, ...]
    usage: Usage | None
    replay_state: JsonValue


@define(eq=False)
class BlockAssembler:
    """Blocks of one attempt, in order of first appearance.

    Deltas open their block when no start came; deltas and ends after a block's
    end change nothing. The last `Finish` and the last usage win.
    """

    finish: Finish | None = None
    usage: Usage | None = None
    _blocks: dict[int, _Building] = field(factory=dict)

    def push(self, chunk: StreamChunk) -> None:
        if type(chunk) is TextDelta or type(chunk) is ReasoningDelta:  # most of a stream
            kind: BlockType = "text" if type(chunk) is TextDelta else "reasoning"
            block = self._blocks.get(chunk.index) or self._open(chunk.index, kind)
            if block.kind == kind:
                block.add(chunk.text)
            return
        match chunk:
            case BlockStart():
                self._open(chunk.index, chunk.block_type)
            case ToolCallDelta():
                block = self._append(chunk.index, "tool-call", chunk.arguments_delta)
                # Continuations repeat or blank the identity; the first real one stands.
                block.call_id = block.call_id or chunk.id
                block.name = block.name or chunk.name or ""
            case BlockEnd():
                block = self._open(chunk.index, _kind_of(chunk.block))
                if block.ended is None:
                    block.ended = chunk.block
            case Finish():
                self.finish = chunk
            case UsageChunk():
                self.usage = chunk.usage
            case TextDelta():
                self._append(chunk.index, "text", chunk.text)
            case ReasoningDelta():
                self._append(chunk.index, "reasoning", chunk.text)

    def assembled(self) -> Assembled:
        """The complete answer. A max-tokens finish drops every tool call (C110)."""
        blocks = [building.block() for building in self._blocks.values()]
        state = self.finish.replay_state if self.finish else None
        if self.finish and isinstance(self.finish.reason, MaxTokens):
            kept = [not isinstance(block, ToolCallBlock) for block in blocks]
            state = _prune(state, kept)
            blocks = [block for block, keep in zip(blocks, kept, strict=True) if keep]
        return Assembled(content=tuple(blocks), usage=self.usage, replay_state=state)

    def delivered_prefix(self) -> Assembled | None:
        """The non-blank text and reasoning so far, or None; never half a call."""
        blocks = [building.block() for building in self._blocks.values()]
        kept = [isinstance(b, (TextBlock, ReasoningBlock)) and bool(b.text.strip()) for b in blocks]
        if not any(kept):
            return None
        state = _prune(self.finish.replay_state, kept) if self.finish else None
        content = tuple(block for block, keep in zip(blocks, kept, strict=True) if keep)
        return Assembled(content=content, usage=self.usage, replay_state=state)

    def _open(self, index: int, kind: BlockType) -> _Building:
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = _Building(kind)
        return block

    def _append(self, index: int, kind: BlockType, text: str) -> _Building:
        block = self._open(index, kind)
        if block.kind == kind:
            block.add(text)
        return block


def _kind_of(block: AssistantBlock) -> BlockType:
    match block:
        case TextBlock():
            return "text"
        case ReasoningBlock():
            return "reasoning"
        case ToolCallBlock():
            return "tool-call"


def _prune(state: JsonValue, kept: Sequence[bool]) -> JsonValue:
    """Drop the entries of *state*'s ``blocks`` whose block was dropped (C111)."""
    if not isinstance(state, JsonObject):
        return state
    entries = state.get("blocks")
    if not isinstance(entries, tuple) or len(entries) != len(kept):
        return state
    pruned = tuple(entry for entry, keep in zip(entries, kept, strict=True) if keep)
    return JsonObject({**state, "blocks": pruned})


def assemble(chunks: Sequence[StreamChunk]) -> BlockAssembler:
    """An assembler fed with *chunks*."""
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.push(chunk)
    return assembler
