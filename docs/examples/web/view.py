"""Events of a log as the page sees them: small JSON objects, or nothing.

A view of its own, not the log's own JSON: a browser gets what it shows and no more - no
system prompt, no request, no private state of a provider - and the page does not depend on
the format of the log.
"""

from __future__ import annotations

from terzetto import Event
from terzetto.vocabulary import (
    Aborted,
    AssistantBlock,
    AssistantChunk,
    AssistantMessageEvent,
    Blocked,
    Completed,
    EndedAtMaxTokens,
    ErrorFinish,
    Failed,
    Finish,
    InboxSpliced,
    Interrupted,
    LlmRetry,
    ReasoningBlock,
    ReasoningDelta,
    StepStart,
    StreamChunk,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    TurnEnd,
    TurnEnding,
    TurnStart,
    UserMessageEvent,
    UserSource,
)

Shown = dict[str, object]
LONGEST_RESULT = 4000
"""Characters of a tool result that a page gets."""


def for_page(event: Event) -> Shown | None:
    """What the page shows of *event*, None if that is nothing. ``type`` says how."""
    match event.data:
        case TurnStart():
            return {"type": "turn-start"}
        case StepStart():
            return {"type": "step-start"}
        case TurnEnd(ending=ending):
            return {"type": "turn-end", **_ending(ending)}
        case InboxSpliced() as edit:
            # The page keeps both lists by doing what the log says was done to them.
            return {
                "type": "pending",
                "list": edit.target,
                "start": edit.start,
                "removed": edit.removed_count,
                "inserted": [{"id": one.id, "text": one.text} for one in edit.inserted],
                "discarded": edit.outcome == "canceled",
            }
        case UserMessageEvent(message=message) if isinstance(message.source, UserSource):
            return {"type": "user", "id": message.id, "text": message.text}
        case AssistantChunk(chunk=chunk):
            return _chunk(chunk)
        case AssistantMessageEvent(message=message, interrupted=interrupted):
            blocks = [_block(block) for block in message.content]
            return {"type": "answer", "blocks": blocks, "interrupted": interrupted}
        case ToolCallEvent(call_id=call_id):
            return {"type": "call-start", "id": call_id}
        case ToolResultEvent(message=message, error=error):
            [block] = [one for one in message.content if isinstance(one, ToolResultBlock)]
            text = "".join(part.text for part in block.content)
            return {
                "type": "call-end",
                "id": block.tool_call_id,
                "text": text[:LONGEST_RESULT],
                "code": (error.code if error is not None else "ERROR") if block.is_error else None,
            }
        case LlmRetry(attempt=attempt, delay_ms=delay_ms, failure=failure):
            note = f"{failure.message}; attempt {attempt + 1} in {delay_ms / 1000:g} s"
            return {"type": "retry", "text": note}
        case _:
            return None


def _chunk(chunk: StreamChunk) -> Shown | None:
    match chunk:
        case TextDelta(index=index, text=text):
            return {"type": "text", "block": index, "text": text}
        case ReasoningDelta(index=index, text=text):
            return {"type": "thinking", "block": index, "text": text}
        case ToolCallDelta(index=index, id=call_id, arguments_delta=text, name=name):
            return {"type": "call", "block": index, "id": call_id, "name": name, "text": text}
        case Finish(reason=ErrorFinish()):
            return {"type": "broken"}  # what came of this attempt is not kept
        case _:
            return None


def _block(block: AssistantBlock) -> Shown:
    match block:
        case TextBlock(text=text):
            return {"type": "text", "text": text}
        case ReasoningBlock(text=text):
            return {"type": "thinking", "text": text}
        case ToolCallBlock(id=call_id, name=name, arguments=arguments):
            return {"type": "call", "id": call_id, "name": name, "text": arguments}


def _ending(ending: TurnEnding) -> Shown:
    match ending:
        case Completed():
            return {"reason": "completed"}
        case Aborted(cause=cause):
            kind = type(cause).__name__.removesuffix("Cause").lower()
            return {"reason": "stopped", "by": kind}
        case Failed(error=failure):
            return {"reason": "failed", "text": f"{failure.message} ({failure.code})"}
        case EndedAtMaxTokens():
            return {"reason": "cut", "text": "the answer has reached its longest length"}
        case Blocked():
            return {"reason": "blocked"}
        case Interrupted():
            return {"reason": "crashed"}
