"""The guards of the turn machine inside a step: admission, the answer, tools, retries."""

from __future__ import annotations

from typing import cast

from ..session import is_snapshot
from ..vocabulary import (
    Append,
    AssistantMessageEvent,
    CompactionEnd,
    CompactionSummary,
    DeveloperMessageEvent,
    Event,
    LlmRetryStarted,
    RequestContextEvent,
    RequestHeader,
    RequestHeaderEvent,
    TextBlock,
    ToolAdditionBlock,
    ToolCallEvent,
    ToolRemovalBlock,
    ToolResultBlock,
    ToolResultEvent,
    UserMessageEvent,
    assemble,
    texts,
)
from ._turn_facts import Facts

# --- admission ------------------------------------------------------------------------------


def one_prompt(f: Facts, event: Event) -> str | None:
    """at most one version of the prompt is added at a time"""
    added = f.prompts and isinstance(event.surface_op, Append)
    return "one prompt, which is there" if added else None


def has_input(f: Facts, event: Event) -> str | None:
    """input has entered, or results are owed to a request"""
    return None if f.admitted or f.owed_request else "user/message first: the step's input"


def enters_once(f: Facts, event: Event) -> str | None:
    """it enters for the first time and is not pending; a retry enters snapshots only"""
    message = cast(UserMessageEvent, event.data).message
    if message.id in f.entered:
        return f"a message that has not entered before; {message.id!r} has"
    if f.pending(message.id):
        return f"{message.id!r} claimed first: it is pending"
    if f.attempt > 1 and not is_snapshot(message):
        return "no input: a retry has the input of its step"
    return None


def header_is_due(f: Facts, event: Event) -> str | None:
    """its reason is true: first ever, first of this life, changed, or a new series"""
    data = cast(RequestHeaderEvent, event.data)
    if not f.headed:
        want = {"initial" if f.header is None else "resume"}
    else:
        want = {"change" if data.header != f.header else "series"}
    return None if data.reason in want else f"a header for the reason {want.pop()!r}"


def names(header: RequestHeader) -> list[str]:
    return [tool.name for tool in header.tools]


def announces(f: Facts, event: Event) -> str | None:
    """it says which tools came and went since the header before"""
    data = cast(DeveloperMessageEvent, event.data)
    if f.before is None or f.header is None:
        return "two headers to compare"
    old, new = names(f.before), names(f.header)
    blocks = data.message.content
    came = [b.tool_name for b in blocks if isinstance(b, ToolAdditionBlock)]
    went = [b.tool_name for b in blocks if isinstance(b, ToolRemovalBlock)]
    want = [n for n in new if n not in old], [n for n in old if n not in new]
    if (came, went) != want:
        return f"additions {want[0]} and removals {want[1]}"
    cited = f.header_seq if came else None
    return None if data.header_seq == cited else f"the header {cited}"


def context_is_news(f: Facts, event: Event) -> str | None:
    """it differs from the one before"""
    return "a context that differs" if cast(RequestContextEvent, event.data) == f.context else None


def request_is_whole(f: Facts, event: Event) -> str | None:
    """prompt, header and context are in the log, and input, or results, for the request"""
    if not f.has_prompt:
        return "system/message: the prompt takes the first place"
    if not f.headed:
        return "request/header: the first request of a session's life writes it"
    if f.context is None:
        return "request/context: the first request writes it"
    if f.before is not None and f.header is not None and {*names(f.before)} != {*names(f.header)}:
        return "developer/message: the tools have changed"
    return has_input(f, event)


def request_is_not_whole(f: Facts, event: Event) -> str | None:
    """something of its request is missing"""
    return None if request_is_whole(f, event) else "the rest of the step: its request is whole"


# --- the answer -----------------------------------------------------------------------------


def nothing_delivered(f: Facts, event: Event) -> str | None:
    """the attempt has delivered no text"""
    return "the delivered prefix as assistant/message interrupted" if f.delivered() else None


def something_delivered(f: Facts, event: Event) -> str | None:
    """the attempt has delivered text, which a failure discards"""
    return None if f.delivered() else "nothing else: nothing was delivered"


def is_what_was_streamed(f: Facts, event: Event) -> str | None:
    """it holds what the attempt streamed, and cites all of it"""
    data = cast(AssistantMessageEvent, event.data)
    seqs = [seq for seq, _ in f.chunks]
    if event.sources is None or list(event.sources) != seqs:
        return f"sources {seqs}"
    assembler = assemble([chunk for _, chunk in f.chunks])
    if data.interrupted:
        prefix = assembler.delivered_prefix()
        if prefix is None:
            return "no anchor: nothing was delivered"
        whole = prefix
    else:
        whole = assembler.assembled()
    if data.message.content != whole.content or data.usage != whole.usage:
        return "the content that was streamed"
    return None


def has_calls(f: Facts, event: Event) -> str | None:
    """it calls tools"""
    data = cast(AssistantMessageEvent, event.data)
    return None if data.message.tool_calls else "tool calls in it"


def has_no_calls(f: Facts, event: Event) -> str | None:
    """it calls no tools"""
    return None if has_calls(f, event) else "no tool calls in it"


# --- tools ----------------------------------------------------------------------------------


def next_call(f: Facts, event: Event) -> str | None:
    """the next call of the answer, in model order"""
    data = cast(ToolCallEvent, event.data)
    if f.recorded == len(f.calls):
        return "no further call: all are recorded"
    want = f.calls[f.recorded].block
    same = (data.call_id, data.name, data.arguments) == (want.id, want.name, want.arguments)
    return None if same else f"call {want.id!r} as the model wrote it"


def is_no_barrier(f: Facts, event: Event) -> str | None:
    """neither it nor a call that runs is known to be exclusive"""
    running = [call.block for call in f.calls[f.settled : f.recorded]]
    if not running:
        return None
    name = cast(ToolCallEvent, event.data).name
    if f.capacity == 1:
        return f"the result of {running[0].id!r}: one call runs at a time"
    alone = next((b.name for b in running if b.name in f.exclusive), None)
    if alone is not None:
        return f"the result of {running[0].id!r}: {alone!r} is exclusive"
    return (
        f"the result of {running[0].id!r}: {name!r} is exclusive" if name in f.exclusive else None
    )


def next_result(f: Facts, event: Event) -> str | None:
    """the result of the next call in model order, citing it if it is recorded"""
    data = cast(ToolResultEvent, event.data)
    if f.settled == len(f.calls):
        return "no result: none is owed"
    want = f.calls[f.settled]
    answers = [b.tool_call_id for b in data.message.content if isinstance(b, ToolResultBlock)]
    if answers != [want.block.id]:
        return f"the result of {want.block.id!r}"
    cited = () if want.seq is None else (want.seq,)
    return None if tuple(event.sources or ()) == cited else f"sources {list(cited)}"


def was_recorded(f: Facts, event: Event) -> str | None:
    """its call is recorded"""
    call = f.calls[f.settled]
    return f"tool/call of {call.block.id!r}" if call.seq is None else None


def ran_alone(f: Facts, event: Event) -> str | None:
    """a call that no tool could take ran alone: it is exclusive"""
    error = cast(ToolResultEvent, event.data).error
    call = f.calls[f.settled]
    if error is None or not call.shared:
        return None
    refused = {
        texts.UNKNOWN_TOOL: texts.UNKNOWN_TOOL_ERROR,
        texts.INVALID_ARGS: texts.INVALID_ARGS_ERROR,
    }
    return "a call that ran alone" if refused.get(error.code) == error.name else None


def says_what_is_known(f: Facts, event: Event) -> str | None:
    """recorded calls have an unknown outcome; others did not start, or are unknown in a lazy log"""
    data = cast(ToolResultEvent, event.data)
    assert data.error is not None
    unknown = data.error.code == texts.TOOL_OUTCOME_UNKNOWN
    text = texts.TOOL_OUTCOME_UNKNOWN_TEXT if unknown else texts.TOOL_NOT_STARTED_TEXT
    block = data.message.content[0]
    if not isinstance(block, ToolResultBlock) or block.content != (TextBlock(text),):
        return "the fixed text of its code"
    if not unknown and f.calls[f.settled].seq is not None:
        return "TOOL_OUTCOME_UNKNOWN: the call is recorded"
    return None


def is_last(f: Facts, event: Event) -> str | None:
    """no further call is unanswered"""
    left = len(f.calls) - f.settled - 1
    return f"{left} more results" if left else None


def is_answered(f: Facts, event: Event) -> str | None:
    """every call is answered"""
    left = len(f.calls) - f.settled
    return f"{left} more results" if left else None


def is_not_last(f: Facts, event: Event) -> str | None:
    """further calls are unanswered"""
    return None if is_last(f, event) else "the last result"


# --- retries and compactions ----------------------------------------------------------------


def starts_its_retry(f: Facts, event: Event) -> str | None:
    """of the retry that was decided"""
    data = cast(LlmRetryStarted, event.data)
    return None if data.retry_id == f.retry_id else f"retry {f.retry_id!r}"


def none_is_open(f: Facts, event: Event) -> str | None:
    """no compaction is open"""
    return f"the end of compaction {f.compaction!r}" if f.compaction is not None else None


def is_open(f: Facts, event: Event) -> str | None:
    """of the compaction that is open"""
    data = cast(CompactionSummary | CompactionEnd, event.data)
    return None if f.compaction == data.id else f"compaction {f.compaction!r}"
