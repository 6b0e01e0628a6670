"""Reading a log as a timeline.

Any prefix of a log can be read, that of a running agent or of a crashed one too. What has
no place is passed over: judging is the session's business. One pass, in time proportional
to the log: everything is built in place and frozen at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from attrs import define, evolve, field

from ..session import TARGETS, PendingInput, is_snapshot
from ..vocabulary import (
    AssistantChunk,
    AssistantMessageEvent,
    CompactionEnd,
    CompactionStart,
    EndSeed,
    Event,
    Extension,
    InboxSpliced,
    InboxTarget,
    InvalidValue,
    LlmRetry,
    LlmRetryStarted,
    MessageId,
    ModelSelected,
    ModelSelection,
    PluginSource,
    Replace,
    RequestHeaderEvent,
    StepEnd,
    StepStart,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    TurnEnd,
    TurnStart,
    UserMessage,
    UserMessageEvent,
)
from ._builders import AttemptBuilder, StepBuilder, TurnBuilder
from ._spans import InputSpan, Mark, MarkKind, Timeline, TurnSpan


def read_timeline(events: Iterable[Event]) -> Timeline:
    """The timeline of *events*: a log from its start, or any prefix of one.

    Of a session that is live, give ``await session.read()``: part of ``session.events`` may
    have left memory. Raises `InvalidValue` for a log with a gap.
    """
    reader = _Reader()
    for event in events:
        reader.read(event)
    return reader.timeline()


@define(eq=False)
class _Reader:
    began_ms: int | None = None
    ended_ms: int | None = None
    events: int = 0
    turns: list[TurnSpan] = field(factory=list)
    marks: list[Mark] = field(factory=list)
    turn: TurnBuilder | None = None
    step: StepBuilder | None = None
    route: ModelSelection | None = None
    pending: PendingInput = field(factory=PendingInput)
    sent: dict[MessageId, tuple[InboxTarget, int]] = field(factory=dict)
    extensions: Counter[str] = field(factory=Counter)

    def read(self, event: Event) -> None:
        at, data = event.time_ms, event.data
        if event.seq != self.events:
            raise InvalidValue(
                f"events: expected a log from its start without a gap, got event {event.seq} "
                f"where {self.events} comes; of a session use await session.read()"
            )
        if self.began_ms is None:
            self.began_ms = at
        self.ended_ms = at
        self.events += 1
        match data:
            case AssistantChunk(chunk=chunk):  # first: most events are chunks
                if self.step is not None:
                    self.step.streamed(chunk, at)
            case TurnStart(turn=number):
                self._end_turn()
                self.turn = TurnBuilder(number, event.seq, at)
            case TurnEnd(ending=ending):
                if self.turn is not None:
                    self.turn.ended_ms, self.turn.end_seq = at, event.seq
                    self.turn.ending = ending
                self._end_turn()
            case StepStart(turn=turn, step=number):
                self._end_step()
                self.step = StepBuilder(
                    turn, number, event.seq, at, self.route, [AttemptBuilder(at)]
                )
            case StepEnd():
                if self.step is not None:
                    self.step.ended_ms = at
                self._end_step()
            case EndSeed(inherited=inherited):
                self.pending.move(event, self.turn is not None)
                self._mark(event, "forked" if inherited else "resumed")
            case ModelSelected(selection=selection):
                words = (selection.provider, selection.model, selection.effort)
                self._mark(event, "model", " ".join(filter(None, words)))
            case CompactionStart():
                self._mark(event, "compaction", "started")
            case CompactionEnd(outcome=outcome):
                self._mark(event, "compaction", outcome)
            case InboxSpliced():
                self._spliced(data, event)
            case Extension(name=name):
                self.extensions[name] += 1
            case RequestHeaderEvent(header=header):
                self.route = header.config.selection
                if self.step is not None:
                    self.step.route = self.route
            case _ if self.step is not None and not isinstance(event.surface_op, Replace):
                self._in_step(self.step, event)

    def _in_step(self, step: StepBuilder, event: Event) -> None:
        match event.data:
            case UserMessageEvent(message=message) if not is_snapshot(message):
                if self.turn is not None:
                    self.turn.claimed.pop(message.id, None)
                step.inputs.append(self._input(message, event.time_ms))
            case AssistantMessageEvent() as answer:
                step.answered(answer, event.time_ms)
            case LlmRetry(delay_ms=delay):
                step.attempts[-1].retry_delay_ms = delay
            case LlmRetryStarted():
                step.attempt(event.time_ms)
            case ToolCallEvent(call_id=call_id):
                step.called(call_id, event)
            case ToolResultEvent(message=message, error=error):
                for block in message.content:
                    if isinstance(block, ToolResultBlock):
                        step.settled(block, None if error is None else error.code, event)
            case _:
                pass

    def _spliced(self, splice: InboxSpliced, event: Event) -> None:
        removed = self.pending.removed(splice)
        self.pending.move(event, self.turn is not None)
        for message in splice.inserted:
            self.sent.setdefault(message.id, (splice.target, event.time_ms))
            if self.turn is not None:
                self.turn.claimed.pop(message.id, None)  # put back
        if splice.outcome is not None:
            edited = {message.id for message in splice.inserted}
            for message in removed:
                if message.id not in edited:
                    self._mark(event, "discarded", message.text)
        elif self.turn is not None:
            for message in removed:
                self.turn.claimed[message.id] = self._input(message, event.time_ms)

    def _input(self, message: UserMessage, at: int) -> InputSpan:
        plugin = message.source.plugin if isinstance(message.source, PluginSource) else None
        via, sent = self.sent.get(message.id, (None, None))
        return InputSpan(at, message.id, message.text, plugin, via, sent)

    def _waiting(self, message: UserMessage, target: InboxTarget) -> InputSpan:
        sent = self.sent[message.id][1]
        return evolve(self._input(message, sent), via=target)

    def _mark(self, event: Event, kind: MarkKind, text: str = "") -> None:
        self.marks.append(Mark(event.time_ms, kind, text, event.seq))

    def _end_step(self) -> None:
        if self.step is not None and self.turn is not None:
            self.turn.steps.append(self.step.span())
        self.step = None

    def _end_turn(self) -> None:
        self._end_step()
        if self.turn is not None:
            self.turns.append(self.turn.span())
        self.turn = None

    def timeline(self) -> Timeline:
        self._end_turn()
        lists = self.pending.lists
        return Timeline(
            turns=tuple(self.turns),
            marks=tuple(self.marks),
            began_ms=self.began_ms,
            ended_ms=self.ended_ms,
            events=self.events,
            pending=tuple(
                self._waiting(message, target) for target in TARGETS for message in lists[target]
            ),
            extensions=dict(self.extensions),
        )
