"""What a stream of chunks must be: the laws of an answer, for adapters and stream listeners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from ..vocabulary import (
    Finish,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
)
from ._verdicts import Verdict

_CHUNKS: tuple[type, ...] = get_args(StreamChunk)


def chunk_problems(chunks: Sequence[StreamChunk], *, ended: bool = True) -> Iterator[Verdict]:
    """What is wrong with *chunks*, all of an answer; *ended*: by itself, without an error."""
    kinds: dict[int, type] = {}
    calls: dict[str, int] = {}
    finished = False
    for chunk in chunks:
        name = type(chunk).__name__
        if finished:
            yield Verdict(kind="after-finish", text=f"sends {name} after the finish")
        match chunk:
            case Finish():
                finished = True
            case TextDelta(index=index) | ReasoningDelta(index=index) | ToolCallDelta(index=index):
                if kinds.setdefault(index, type(chunk)) is not type(chunk):
                    text = f"block {index} is {kinds[index].__name__} and then {name}"
                    yield Verdict(kind="wrong-order", text=text)
                call = str(chunk.id) if isinstance(chunk, ToolCallDelta) else None
                if call is not None and calls.setdefault(call, index) != index:
                    text = f"the call {call!r} is in blocks {calls[call]} and {index}"
                    yield Verdict(kind="wrong-order", text=text)
            case _ if not isinstance(chunk, _CHUNKS):
                yield Verdict(kind="wrong-order", text=f"sends {name}, which is no chunk")
    if ended and not finished:
        yield Verdict(kind="no-finish", text="ends without a finish")
