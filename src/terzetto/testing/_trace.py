"""A log in lines, for somebody who looks for what went wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..session._codec import TAGS
from ..vocabulary import (
    Aborted,
    AssistantChunk,
    AssistantMessageEvent,
    Event,
    Extension,
    Failed,
    Finish,
    InboxSpliced,
    ReasoningDelta,
    StepEnd,
    StepStart,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    TurnEnd,
    TurnStart,
    UserMessage,
    UserMessageEvent,
)

_LONGEST = 70
"""Characters of one detail."""


def traced(events: Sequence[Event], struck_after: int | None = None, strike: str = "") -> list[str]:
    """A line for each event, and one where the strike came: after *struck_after* of them."""
    lines = [f"{event.seq:4}  {event.time_ms:5} ms  {describe(event)}" for event in events]
    if struck_after is not None:
        lines.insert(struck_after, f"----  {strike}")
    return lines


def describe(event: Event) -> str:
    """The event's type, and what matters most of it."""
    data = event.data
    name = data.name if isinstance(data, Extension) else TAGS[type(data)]
    return " ".join([f"{name:22}", *map(_short, _details(event))]).rstrip()


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _details(event: Event) -> Iterator[str]:
    match event.data:
        case TurnStart(turn=turn):
            yield f"turn {turn}"
        case StepStart(turn=turn, step=step) | StepEnd(turn=turn, step=step):
            yield f"turn {turn}, step {step}"
        case TurnEnd(turn=turn, ending=ending):
            yield f"turn {turn}: {type(ending).__name__}"
            if isinstance(ending, Aborted):
                yield f"by {type(ending.cause).__name__}"
            elif isinstance(ending, Failed):
                yield f"with {ending.error.code}: {ending.error.message}"
        case UserMessageEvent(message=message):
            yield repr(_text(message))
        case InboxSpliced() as splice:
            yield f"{splice.target} at {splice.start}"
            if splice.removed_count:
                yield f"{splice.outcome or 'claimed'} {splice.removed_count}"
            yield from (f"+ {_text(message)!r}" for message in splice.inserted)
        case AssistantChunk(chunk=TextDelta(text=text) | ReasoningDelta(text=text)):
            yield repr(text)
        case AssistantChunk(chunk=ToolCallDelta(id=call_id)):
            yield f"call {call_id}"
        case AssistantChunk(chunk=Finish(reason=reason)):
            yield f"finish {type(reason).__name__}"
        case AssistantMessageEvent(message=message, interrupted=interrupted):
            yield repr(message.text)
            calls = [b for b in message.content if isinstance(b, ToolCallBlock)]
            yield from (f"call {c.id} = {c.name}({c.arguments})" for c in calls)
            if interrupted:
                yield "interrupted"
        case ToolCallEvent(call_id=call_id, name=name):
            yield f"{call_id} = {name}"
        case ToolResultEvent(message=message, error=error):
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    said = "".join(part.text for part in block.content)
                    yield f"{block.tool_call_id}: {said.partition(chr(10))[0]!r}"
            if error is not None:
                yield error.code
        case _:
            pass


def _text(message: UserMessage) -> str:
    return "".join(getattr(block, "text", "") for block in message.content)
