"""What the turn machine tells apart: kinds of events, finer than their types."""

from __future__ import annotations

from typing import Final, TypeAlias

from ..vocabulary import (
    Aborted,
    AbortedFinish,
    AssistantChunk,
    AssistantMessageEvent,
    Blocked,
    CompactionEnd,
    CompactionStart,
    CompactionSummary,
    Completed,
    DeveloperMessageEvent,
    EndedAtMaxTokens,
    EndSeed,
    ErrorFinish,
    Event,
    Extension,
    Failed,
    Finish,
    InboxSpliced,
    Interrupted,
    LlmRetry,
    LlmRetryStarted,
    ModelSelected,
    Replace,
    RequestContextEvent,
    RequestHeaderEvent,
    StepEnd,
    StepStart,
    SystemMessageEvent,
    ToolCallEvent,
    ToolResultEvent,
    TurnEnd,
    TurnStart,
    UserMessageEvent,
    texts,
)

Kind: TypeAlias = str
"""An event's type, and what else the table tells apart: how a turn ended, what a splice does."""

RECOVERED = frozenset({texts.TOOL_NOT_STARTED, texts.TOOL_OUTCOME_UNKNOWN})
CUT_SHORT = RECOVERED | {texts.ABORTED, texts.ABORTED_BEFORE_DISPATCH}

ENDINGS: Final[dict[type, Kind]] = {
    Completed: "turn/end completed",
    EndedAtMaxTokens: "turn/end max-tokens",
    Blocked: "turn/end blocked",
    Aborted: "turn/end aborted",
    Failed: "turn/end error",
    Interrupted: "turn/end interrupted",
}
_PLAIN: Final[dict[type, Kind]] = {
    TurnStart: "turn/start",
    StepStart: "step/start",
    StepEnd: "step/end",
    UserMessageEvent: "user/message",
    SystemMessageEvent: "system/message",
    DeveloperMessageEvent: "developer/message",
    RequestHeaderEvent: "request/header",
    RequestContextEvent: "request/context",
    ToolCallEvent: "tool/call",
    LlmRetry: "llm/retry",
    LlmRetryStarted: "llm/retry-started",
    EndSeed: "session/end-seed",
    ModelSelected: "aside",
    Extension: "aside",
    CompactionStart: "compaction/start",
    CompactionSummary: "compaction/summary",
    CompactionEnd: "compaction/end",
}


def kind_of(event: Event) -> Kind:
    """The kind of *event* in the table."""
    data = event.data
    if type(event.surface_op) is Replace and type(data) is not SystemMessageEvent:
        return "replacement"
    match data:
        case AssistantChunk(chunk=Finish(reason=ErrorFinish() | AbortedFinish())):
            return "finish failed"
        case AssistantChunk(chunk=Finish()):
            return "finish"
        case AssistantChunk():
            return "assistant/chunk"
        case AssistantMessageEvent(interrupted=True):
            return "assistant/message interrupted"
        case AssistantMessageEvent():
            return "assistant/message"
        case ToolResultEvent(error=error) if error is not None and error.code in RECOVERED:
            return "tool/result recovered"
        case ToolResultEvent():
            return "tool/result"
        case TurnEnd(ending=ending):
            return ENDINGS[type(ending)]
        case InboxSpliced(outcome=None, removed_count=0):
            return "inbox/insert"
        case InboxSpliced(outcome=None):
            return "inbox/claim"
        case InboxSpliced():
            return "inbox/edit"
        case _:
            return _PLAIN[type(data)]
