"""What happened when: a log read as turns, steps and tool calls with their times.

Pure: events in, values out; nothing is waited for, opened or printed. Any prefix of a log
can be read, that of a running agent or of a crashed one too: what has not happened is
None. Times are the log's own, in milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, TypedDict, Unpack, assert_never

from attrs import define, evolve, field, frozen

from .session import is_snapshot
from .vocabulary import (
    Aborted,
    AbortedFinish,
    AssistantChunk,
    AssistantMessageEvent,
    Blocked,
    BlockEnd,
    BlockStart,
    CallId,
    CancelCause,
    CompactionEnd,
    CompactionStart,
    Completed,
    DisposedCause,
    EndedAtMaxTokens,
    EndSeed,
    ErrorFinish,
    Event,
    Failed,
    Finish,
    HookCause,
    Interrupted,
    LegacyCause,
    MessageId,
    ModelSelected,
    ParentCause,
    PluginSource,
    ReasoningDelta,
    Replace,
    StepEnd,
    StepStart,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    TurnEnd,
    TurnEnding,
    TurnStart,
    UserCause,
    UserMessageEvent,
    texts,
)

_NEVER_STARTED = frozenset({texts.ABORTED_BEFORE_DISPATCH, texts.TOOL_NOT_STARTED})


@frozen(kw_only=True)
class ToolSpan:
    """One tool call.

    *asked_ms*: the answer that asks for it was complete. *started_ms*: its turn came, and
    it was recorded. *committed_ms*: its result entered the log. When its body ended is not
    in a log: a result waits for those of earlier calls. *code* is that of an error result,
    if it has one.
    """

    call_id: CallId
    name: str
    arguments: str = field(repr=False)
    asked_ms: int
    started_ms: int | None = None
    committed_ms: int | None = None
    is_error: bool = False
    code: str | None = None

    @property
    def ran(self) -> bool:
        """Whether it was started, as far as the log knows."""
        return self.started_ms is not None and self.code not in _NEVER_STARTED

    @property
    def waited_ms(self) -> int | None:
        """From asked to started: for a slot, a barrier, the store. None if it never started."""
        return between(self.asked_ms, self.started_ms) if self.ran else None

    @property
    def running_ms(self) -> int | None:
        """From started to committed; None while it runs, or if it never did."""
        return between(self.started_ms, self.committed_ms) if self.ran else None


@frozen
class InputSpan:
    """A message that entered a step. *plugin* names the code that sent it; None: the user."""

    at_ms: int
    message_id: MessageId
    text: str = field(repr=False)
    plugin: str | None = None


@frozen(kw_only=True)
class StepSpan:
    """One model request and its tool calls.

    *first_ms*: the first content of the answer that counts came. *pieces* counts its text
    and reasoning deltas. *interrupted*: *text* is a prefix, kept when the answer was cut.
    *failures* are the codes of attempts that failed.
    """

    turn: int
    step: int
    started_ms: int
    first_ms: int | None = None
    answered_ms: int | None = None
    ended_ms: int | None = None
    text: str = field(default="", repr=False)
    pieces: int = 0
    interrupted: bool = False
    failures: tuple[str, ...] = ()
    inputs: tuple[InputSpan, ...] = ()
    calls: tuple[ToolSpan, ...] = ()


@frozen(kw_only=True)
class TurnSpan:
    """One turn; *ending* and *ended_ms* are None while it is open."""

    number: int
    started_ms: int
    ended_ms: int | None = None
    ending: TurnEnding | None = None
    steps: tuple[StepSpan, ...] = ()

    @property
    def reason(self) -> str:
        """Why it ended, in words; ``open`` while it has not."""
        return _ending_text(self.ending)


MarkKind: TypeAlias = Literal["resumed", "forked", "model", "compaction"]


@frozen
class Mark:
    """Something beside the turns: *text* says more, if there is more to say."""

    at_ms: int
    kind: MarkKind
    text: str = ""


@frozen
class Timeline:
    """A whole log. *turns* and *marks* are each in the order of the log."""

    turns: tuple[TurnSpan, ...] = ()
    marks: tuple[Mark, ...] = ()
    began_ms: int | None = None
    """When its first event happened; None for a log without events."""


def read_timeline(events: Iterable[Event]) -> Timeline:
    """The timeline of *events*: a log from its start, or any prefix of one."""
    reader = _Reader()
    for event in events:
        reader.read(event)
    return reader.timeline()


def between(start: int | None, end: int | None) -> int | None:
    """Milliseconds from *start* to *end*, if both have come."""
    return None if start is None or end is None else end - start


def _ending_text(ending: TurnEnding | None) -> str:
    match ending:
        case None:
            return "open"
        case Completed():
            return "completed"
        case Blocked():
            return "blocked"
        case EndedAtMaxTokens():
            return "cut at the output limit"
        case Interrupted():
            return "crashed, closed later"
        case Failed(error=failure):
            return f"failed: {failure.code}"
        case Aborted(cause=cause):
            return _cause_text(cause)
        case _:
            assert_never(ending)


def _cause_text(cause: CancelCause) -> str:
    match cause:
        case UserCause():
            return "aborted by the user"
        case ParentCause():
            return "aborted with its parent"
        case DisposedCause():
            return "aborted: agent or engine closed"
        case HookCause(reason=reason):
            return f"aborted by a policy: {reason}"
        case LegacyCause():
            return "aborted"
        case _:
            assert_never(cause)


@define
class _Reader:
    """Moves over a log. What has no place is passed over: judging is the session's business."""

    began_ms: int | None = None
    turns: list[TurnSpan] = field(factory=list)
    marks: list[Mark] = field(factory=list)
    turn: TurnSpan | None = None
    steps: list[StepSpan] = field(factory=list)
    step: StepSpan | None = None

    def read(self, event: Event) -> None:
        at = event.time_ms
        if self.began_ms is None:
            self.began_ms = at
        match event.data:
            case TurnStart(turn=number):
                self._end_turn()
                self.turn = TurnSpan(number=number, started_ms=at)
            case TurnEnd(ending=ending) if self.turn is not None:
                self.turn = evolve(self.turn, ended_ms=at, ending=ending)
                self._end_turn()
            case StepStart(turn=turn, step=number):
                self._end_step()
                self.step = StepSpan(turn=turn, step=number, started_ms=at)
            case StepEnd() if self.step is not None:
                self.step = evolve(self.step, ended_ms=at)
                self._end_step()
            case EndSeed(inherited=inherited):
                self.marks.append(Mark(at, "forked" if inherited else "resumed"))
            case ModelSelected(selection=selection):
                self.marks.append(Mark(at, "model", f"{selection.provider} {selection.model}"))
            case CompactionStart():
                self.marks.append(Mark(at, "compaction", "started"))
            case CompactionEnd(outcome=outcome):
                self.marks.append(Mark(at, "compaction", outcome))
            case _ if self.step is not None and not isinstance(event.surface_op, Replace):
                self.step = _after(self.step, event)

    def timeline(self) -> Timeline:
        self._end_turn()
        return Timeline(tuple(self.turns), tuple(self.marks), self.began_ms)

    def _end_step(self) -> None:
        if self.step is not None:
            self.steps.append(self.step)
        self.step = None

    def _end_turn(self) -> None:
        self._end_step()
        if self.turn is not None:
            self.turns.append(evolve(self.turn, steps=tuple(self.steps)))
        self.turn, self.steps = None, []


def _after(step: StepSpan, event: Event) -> StepSpan:
    """*step* with *event* of it taken in."""
    at = event.time_ms
    match event.data:
        case UserMessageEvent(message=message) if not is_snapshot(message):
            plugin = message.source.plugin if isinstance(message.source, PluginSource) else None
            entered = InputSpan(at, message.id, message.text, plugin)
            return evolve(step, inputs=(*step.inputs, entered))
        case AssistantChunk(chunk=chunk):
            return _streamed(step, chunk, at)
        case AssistantMessageEvent(message=message, interrupted=interrupted):
            calls = tuple(
                ToolSpan(call_id=call.id, name=call.name, arguments=call.arguments, asked_ms=at)
                for call in message.tool_calls
            )
            text = message.text
            return evolve(step, answered_ms=at, interrupted=interrupted, text=text, calls=calls)
        case ToolCallEvent(call_id=call_id):
            return _with_call(step, call_id, started_ms=at)
        case ToolResultEvent(message=message, error=error):
            code = error.code if error is not None else None
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    step = _with_call(
                        step,
                        block.tool_call_id,
                        committed_ms=at,
                        is_error=block.is_error,
                        code=code,
                    )
            return step
        case _:
            return step


def _streamed(step: StepSpan, chunk: StreamChunk, at: int) -> StepSpan:
    first = at if step.first_ms is None else step.first_ms
    match chunk:
        case TextDelta() | ReasoningDelta():
            return evolve(step, first_ms=first, pieces=step.pieces + 1)
        case ToolCallDelta() | BlockStart() | BlockEnd():
            return evolve(step, first_ms=first)
        case Finish(reason=ErrorFinish(failure) | AbortedFinish(failure)):
            # The attempt is void; what counts is the answer of the next one.
            failures = (*step.failures, failure.code)
            return evolve(step, failures=failures, first_ms=None, pieces=0)
        case _:
            return step


class _CallChange(TypedDict, total=False):
    started_ms: int
    committed_ms: int
    is_error: bool
    code: str | None


def _with_call(step: StepSpan, call_id: CallId, **change: Unpack[_CallChange]) -> StepSpan:
    """*step* with *change* made to the first call of this id that has not come so far."""
    calls = list(step.calls)
    for at, call in enumerate(calls):
        moment = call.committed_ms if "committed_ms" in change else call.started_ms
        if call.call_id == call_id and moment is None:
            calls[at] = evolve(call, **change)
            break
    return evolve(step, calls=tuple(calls))
