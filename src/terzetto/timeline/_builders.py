"""Spans in the making: moved by the events of a log, frozen at the end.

Each costs time proportional to what it was told, however long a step or a batch is.
"""

from __future__ import annotations

from attrs import define, field

from ..vocabulary import (
    AbortedFinish,
    AssistantMessageEvent,
    BlockEnd,
    BlockStart,
    CallId,
    ErrorFinish,
    Event,
    Failure,
    Finish,
    MessageId,
    ModelSelection,
    ReasoningBlock,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolResultBlock,
    TurnEnding,
    Usage,
    UsageChunk,
)
from ._spans import AttemptSpan, InputSpan, StepSpan, ToolSpan, TurnSpan

_SOON_MS = 25
_SOON_SHARE = 10
"""A result comes soon after another within 25 ms, or a tenth of the time its call was open.

Generous on purpose: the engine may have been busy between the two, and to call a time
unclear is never wrong.
"""


@define(eq=False)
class CallBuilder:
    block: ToolCallBlock
    asked_ms: int
    started_ms: int | None = None
    started_seq: int | None = None
    committed_ms: int | None = None
    committed_seq: int | None = None
    is_error: bool = False
    code: str | None = None
    result: str = ""
    held: bool = False
    alone: bool = False
    began_alone: bool = False
    starts: int = 0
    """How many calls of the step had been started when it was."""

    def span(self) -> ToolSpan:
        return ToolSpan(
            call_id=self.block.id,
            name=self.block.name,
            arguments=self.block.arguments,
            asked_ms=self.asked_ms,
            started_ms=self.started_ms,
            committed_ms=self.committed_ms,
            started_seq=self.started_seq,
            committed_seq=self.committed_seq,
            is_error=self.is_error,
            code=self.code,
            result=self.result,
            held=self.held,
            alone=self.alone,
        )


@define(eq=False)
class AttemptBuilder:
    started_ms: int
    first_ms: int | None = None
    ended_ms: int | None = None
    pieces: int = 0
    failure: Failure | None = None
    retry_delay_ms: int | None = None
    usage: Usage | None = None
    text: list[str] = field(factory=list)
    reasoning: list[str] = field(factory=list)

    def take(self, chunk: StreamChunk, at: int) -> None:
        match chunk:
            case TextDelta(text=text):
                self.pieces += 1
                self.text.append(text)
            case ReasoningDelta(text=text):
                self.pieces += 1
                self.reasoning.append(text)
            case ToolCallDelta() | BlockStart() | BlockEnd():
                pass
            case UsageChunk(usage=usage):
                self.usage = usage
                return
            case Finish(reason=reason):
                self.ended_ms = at
                if isinstance(reason, (ErrorFinish, AbortedFinish)):
                    self.failure = reason.failure
                return
        if self.first_ms is None:
            self.first_ms = at

    def span(self) -> AttemptSpan:
        return AttemptSpan(
            started_ms=self.started_ms,
            first_ms=self.first_ms,
            ended_ms=self.ended_ms,
            pieces=self.pieces,
            failure=self.failure,
            retry_delay_ms=self.retry_delay_ms,
            usage=self.usage,
        )


@define(eq=False)
class StepBuilder:
    turn: int
    step: int
    seq: int
    started_ms: int
    route: ModelSelection | None
    attempts: list[AttemptBuilder]
    inputs: list[InputSpan] = field(factory=list)
    calls: list[CallBuilder] = field(factory=list)
    answered_ms: int | None = None
    ended_ms: int | None = None
    text: str = ""
    reasoning: str = ""
    interrupted: bool = False
    _unstarted: dict[CallId, list[CallBuilder]] = field(factory=dict)
    _unanswered: dict[CallId, list[CallBuilder]] = field(factory=dict)
    """Calls by id, the next one last: an id may be there twice."""
    _starts: int = 0
    _open: int = 0
    _last_commit: tuple[int, int] | None = None
    """Seq and time of the latest result."""

    def attempt(self, at: int) -> AttemptBuilder:
        """The attempt that goes on; after a failure, a new one that began at *at*."""
        if self.attempts[-1].failure is not None:
            self.attempts.append(AttemptBuilder(at))
        return self.attempts[-1]

    def streamed(self, chunk: StreamChunk, at: int) -> None:
        # Without a record of a retry, an attempt begins where the one before it failed.
        self.attempt(self.attempts[-1].ended_ms or at).take(chunk, at)

    def answered(self, data: AssistantMessageEvent, at: int) -> None:
        message = data.message
        self.answered_ms, self.interrupted = at, data.interrupted
        self.text = message.text
        self.reasoning = "".join(
            block.text for block in message.content if isinstance(block, ReasoningBlock)
        )
        if data.usage is not None:
            self.attempts[-1].usage = data.usage
        self.calls = [CallBuilder(block, at) for block in message.tool_calls]
        self._unstarted, self._unanswered = {}, {}
        for call in reversed(self.calls):
            self._unstarted.setdefault(call.block.id, []).append(call)
            self._unanswered.setdefault(call.block.id, []).append(call)

    def called(self, call_id: CallId, event: Event) -> None:
        if waiting := self._unstarted.get(call_id):
            call = waiting.pop()
            call.started_ms, call.started_seq = event.time_ms, event.seq
            call.began_alone = self._open == 0
            self._starts += 1
            self._open += 1
            call.starts = self._starts

    def settled(self, block: ToolResultBlock, code: str | None, event: Event) -> None:
        if not (owed := self._unanswered.get(block.tool_call_id)):
            return
        call = owed.pop()
        call.committed_ms, call.committed_seq = event.time_ms, event.seq
        call.is_error, call.code = block.is_error, code
        call.result = "".join(part.text for part in block.content)
        if call.started_seq is not None:
            self._open -= 1
            if call.span().ran:
                self._compare(call, call.started_seq, event)
        self._last_commit = event.seq, event.time_ms

    def _compare(self, call: CallBuilder, started_seq: int, event: Event) -> None:
        """With the other calls of the step."""
        undisturbed = call.began_alone and call.starts == self._starts
        call.alone = undisturbed and len(self.calls) > 1
        if self._last_commit is not None:
            seq, at = self._last_commit
            open_ms = event.time_ms - (call.started_ms or 0)
            soon = event.time_ms - at <= max(_SOON_MS, open_ms // _SOON_SHARE)
            call.held = started_seq < seq and soon

    def _so_far(self) -> None:
        """While there is no answer: what has come of it."""
        last = self.attempts[-1]
        if self.answered_ms is None and last.failure is None:
            self.text, self.reasoning = "".join(last.text), "".join(last.reasoning)

    def span(self) -> StepSpan:
        self._so_far()
        return StepSpan(
            turn=self.turn,
            step=self.step,
            seq=self.seq,
            started_ms=self.started_ms,
            answered_ms=self.answered_ms,
            ended_ms=self.ended_ms,
            route=self.route,
            text=self.text,
            reasoning=self.reasoning,
            interrupted=self.interrupted,
            attempts=tuple(attempt.span() for attempt in self.attempts),
            inputs=tuple(self.inputs),
            calls=tuple(call.span() for call in self.calls),
        )


@define(eq=False)
class TurnBuilder:
    number: int
    seq: int
    started_ms: int
    ended_ms: int | None = None
    end_seq: int | None = None
    ending: TurnEnding | None = None
    steps: list[StepSpan] = field(factory=list)
    claimed: dict[MessageId, InputSpan] = field(factory=dict)

    def span(self) -> TurnSpan:
        return TurnSpan(
            number=self.number,
            seq=self.seq,
            started_ms=self.started_ms,
            ended_ms=self.ended_ms,
            end_seq=self.end_seq,
            ending=self.ending,
            steps=tuple(self.steps),
            unentered=tuple(self.claimed.values()),
        )
