"""Session events: the facts a log is made of.

An `Event` is an envelope around one payload. Payload classes are a closed union
(`EventData`) plus `Extension`, through which extras add their own. Their JSON
names live beside the codec (`session/_codec.py`).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import field, frozen

from ._json import EMPTY_OBJECT, JsonObject, clean_text, freeze_object
from ._messages import (
    AssistantMessage,
    CallId,
    DeveloperMessage,
    InboxTarget,
    SystemMessage,
    UserMessage,
    clean_call_id,
)
from ._request import HeaderReason, ModelSelection, RequestHeader
from ._seqs import Sources
from ._stream import Failure, StreamChunk, Usage


@frozen
class TurnStart:
    """A turn was opened; nothing of it is claimed yet. Turns are numbered from 1."""

    turn: int


@frozen
class UserCause:
    """Somebody asked for the stop."""


@frozen
class ParentCause:
    """The parent's turn or agent was torn down."""


@frozen
class DisposedCause:
    """The agent, its engine or its host ended."""


@frozen
class HookCause:
    """A policy asked for the stop."""

    reason: str = field(converter=clean_text)


@frozen
class LegacyCause:
    """Only in imported logs."""


CancelCause: TypeAlias = UserCause | ParentCause | DisposedCause | HookCause | LegacyCause


@frozen
class Completed:
    """Nothing was owed any more."""


@frozen
class Blocked:
    """`pre_step` rejected the batch."""


@frozen
class Aborted:
    """It was cancelled, by *cause*."""

    cause: CancelCause


@frozen
class Failed:
    """Something failed that nobody retried: *error*."""

    error: Failure


@frozen
class EndedAtMaxTokens:
    """The output limit cut an answer of the turn."""


@frozen
class Interrupted:
    """Written by crash recovery only."""


TurnEnding: TypeAlias = Completed | Blocked | Aborted | Failed | EndedAtMaxTokens | Interrupted


@frozen
class TurnEnd:
    """The turn was closed, its last step before it. *ending* says why."""

    turn: int
    ending: TurnEnding


@frozen
class StepStart:
    """A step was opened for accepted input. Steps of a turn are numbered from 1."""

    turn: int
    step: int


@frozen
class StepEnd:
    """The step was closed; every call of it has its result."""

    turn: int
    step: int


@frozen
class UserMessageEvent:
    """Input entered the conversation."""

    message: UserMessage


@frozen
class SystemMessageEvent:
    """A version of the prompt entered, or took the place of another."""

    turn: int
    step: int
    message: SystemMessage


@frozen
class DeveloperMessageEvent:
    """*header_seq* is the header that declares the added tools."""

    turn: int
    step: int
    message: DeveloperMessage
    header_seq: int | None = None


@frozen
class AssistantChunk:
    """A piece of an answer, as it arrived. Not part of the surface."""

    turn: int
    step: int
    chunk: StreamChunk


@frozen
class AssistantMessageEvent:
    """*interrupted* marks a delivered prefix. The event's sources cite its chunks."""

    turn: int
    step: int
    message: AssistantMessage
    usage: Usage | None = None
    interrupted: bool = False


@frozen
class ToolCallEvent:
    """The call is about to run; written before its pre-execute listeners."""

    turn: int
    step: int
    call_id: CallId = field(converter=clean_call_id)
    name: str = field(converter=clean_text)
    arguments: str = field(converter=clean_text)


@frozen
class ToolErrorInfo:
    """Who failed and how; *code* is stable."""

    name: str = field(converter=clean_text)
    code: str = field(converter=clean_text)


@frozen
class ToolResultEvent:
    """The result of a call. The event's sources cite its `ToolCallEvent`, if it has one."""

    turn: int
    step: int
    message: UserMessage
    error: ToolErrorInfo | None = None


@frozen
class RequestHeaderEvent:
    """The envelope of the requests from here on, and why it was written in full."""

    header: RequestHeader
    reason: HeaderReason
    starts_series: bool = False


@frozen
class RequestContextEvent:
    """What the adapter declares about the model that is asked."""

    provider: str = field(converter=clean_text)
    model: str = field(converter=clean_text)
    context_window: int | None = None
    system_prompt_update: Literal["in-history"] | None = None


@frozen
class InboxSpliced:
    """A normalised splice of a pending list. A removal without *outcome* is a claim."""

    target: InboxTarget
    start: int
    removed_count: int = 0
    inserted: tuple[UserMessage, ...] = ()
    outcome: Literal["canceled"] | None = None


@frozen
class EndSeed:
    """What follows was made by this session; *inherited* marks a fork's seed."""

    inherited: bool = False


@frozen
class ModelSelected:
    """The model was chosen, from the next step on."""

    selection: ModelSelection


@frozen(kw_only=True)
class LlmRetry:
    """A retry was decided; written before the wait."""

    turn: int
    step: int
    retry_id: str = field(converter=clean_text)
    attempt: int
    delay_ms: int
    failure: Failure


@frozen(kw_only=True)
class LlmRetryStarted:
    """The retry *retry_id* begins."""

    turn: int
    step: int
    retry_id: str = field(converter=clean_text)


@frozen
class CompactionStart:
    """A compaction began. Its three events share *id*."""

    id: str = field(converter=clean_text)


@frozen
class CompactionSummary:
    """The text that a compaction made."""

    id: str = field(converter=clean_text)
    text: str = field(converter=clean_text)


@frozen
class CompactionEnd:
    """The compaction is over."""

    id: str = field(converter=clean_text)
    outcome: Literal["completed", "failed", "canceled"] = "completed"


@frozen
class Extension:
    """A fact of an extra. Who does not know *name* refuses the log, unless it is ignorable."""

    name: str = field(converter=clean_text)
    data: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)


EventData: TypeAlias = (
    TurnStart
    | TurnEnd
    | StepStart
    | StepEnd
    | UserMessageEvent
    | SystemMessageEvent
    | DeveloperMessageEvent
    | AssistantChunk
    | AssistantMessageEvent
    | ToolCallEvent
    | ToolResultEvent
    | RequestHeaderEvent
    | RequestContextEvent
    | InboxSpliced
    | EndSeed
    | ModelSelected
    | LlmRetry
    | LlmRetryStarted
    | CompactionStart
    | CompactionSummary
    | CompactionEnd
    | Extension
)

SurfaceData: TypeAlias = (
    UserMessageEvent
    | SystemMessageEvent
    | DeveloperMessageEvent
    | AssistantMessageEvent
    | ToolResultEvent
)
"""Payloads that are nodes of the surface, which the model sees."""
SURFACE_TYPES = (
    UserMessageEvent,
    SystemMessageEvent,
    DeveloperMessageEvent,
    AssistantMessageEvent,
    ToolResultEvent,
)


@frozen
class Append:
    """The node goes to the end of the surface."""


@frozen
class Replace:
    """The node takes the place of the nodes *start* to *end*, both included (seqs)."""

    start: int
    end: int


SurfaceOp: TypeAlias = Append | Replace
APPEND = Append()


@frozen
class Draft:
    """An event not yet numbered: what appending turns into an `Event`."""

    data: EventData
    surface_op: SurfaceOp | None = None
    sources: Sources | None = None
    ignorable: bool = False


@frozen
class Event:
    """One immutable entry of a log.

    *time_ms* is integer milliseconds since the epoch; *sources* cites earlier events
    by seq (absent and empty differ: an empty stream cites an empty list). Many seqs in a row
    are a `Seqs`, which is equal to their tuple.
    """

    seq: int
    time_ms: int
    data: EventData
    surface_op: SurfaceOp | None = None
    sources: Sources | None = None
    ignorable: bool = False
