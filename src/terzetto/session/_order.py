"""Place: where a log stands, which event may come next, and what is still owed.

One table (`RULES`) judges live appends, replay and repair alike. A `Place` is one
mutable object that moves with its log: copying what is owed would make a batch of
tool calls quadratic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import define, frozen

from ..vocabulary import (
    AssistantChunk,
    AssistantMessageEvent,
    CallId,
    CompactionEnd,
    CompactionStart,
    CompactionSummary,
    DeveloperMessageEvent,
    EndSeed,
    Event,
    EventData,
    Extension,
    Finish,
    IllegalEvent,
    InboxSpliced,
    LlmRetry,
    LlmRetryStarted,
    ModelSelected,
    Replace,
    RequestContextEvent,
    RequestHeaderEvent,
    StepEnd,
    StepStart,
    StreamChunk,
    SystemMessageEvent,
    ToolCallBlock,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    TurnEnd,
    TurnStart,
    Usage,
    UserMessageEvent,
    is_complete,
)
from ._attempt import NO_ATTEMPT, Attempt
from ._few import appended


@define(eq=False)
class OwedCall:
    """A tool call of the open step. *call_seq* is its ``tool/call`` once recorded."""

    call: ToolCallBlock
    call_seq: int | None = None


@define(eq=False)
class Place:
    """The position of a log.

    *attempt* is the model attempt in progress; an attempt begins with its step or after a
    failed `Finish`. *unsettled* is the seq of the latest attempt's first chunk, until its
    answer is in the log, the next attempt begins, or the step ends. *unanswered* says what
    providers reported for attempts without an answer, with the seq of the event that ended
    each. *answered* says that the step has its assistant message.

    With *strict* false (replay) a step may end with calls unanswered: older logs hold
    such steps, and closed history is not rewritten (C138).
    """

    strict: bool = True
    next_seq: int = 0
    last_time_ms: int = 0
    last_turn: int = 0
    open_turn: int | None = None
    last_step: int = 0
    open_step: int | None = None
    answered: bool = False
    attempt: Attempt = NO_ATTEMPT
    unsettled: int | None = None
    unanswered: Sequence[tuple[int, Usage]] = ()
    seeded: bool = False
    _calls: Sequence[OwedCall] = ()
    _recorded: int = 0
    _settled: int = 0

    def owed(self) -> list[OwedCall]:
        """Calls of the open step without a result, in model order."""
        return [*self._calls[self._settled :]]

    def next_call(self) -> ToolCallBlock | None:
        """The call of the open step whose ``tool/call`` comes next, if one is left."""
        return self._calls[self._recorded].call if self._recorded < len(self._calls) else None

    def judge(self, event: Event) -> None:
        """Raise `IllegalEvent` unless *event* may come next. Changes nothing."""
        if event.seq != self.next_seq:
            raise IllegalEvent(event.seq, f"seq {event.seq}", f"seq {self.next_seq}")
        rule = RULES[type(event.data)]
        if type(event.surface_op) is Replace and type(event.data) is not SystemMessageEvent:
            return  # a replacement adds no step of its own; the surface judges it
        problem = rule.where(self) or (rule.check(self, event) if rule.check else None)
        if problem:
            raise IllegalEvent(event.seq, describe(event.data), problem)

    def move(self, event: Event) -> None:
        """Take *event*, which `judge` let pass."""
        self.next_seq = event.seq + 1
        self.last_time_ms = event.time_ms
        kind = type(event.data)
        self.seeded = kind is EndSeed
        move = RULES[kind].move
        if move is not None and type(event.surface_op) is not Replace:
            move(self, event)

    def takes_chunk(self, chunk: AssistantChunk) -> bool:
        """Whether `judge` lets *chunk*, of an event with the next seq, pass."""
        return chunk.step == self.open_step and chunk.turn == self.open_turn and not self.answered

    def move_chunk(self, event: Event, chunk: StreamChunk) -> None:
        """`move` for an event of *chunk*."""
        self.next_seq = event.seq + 1
        self.last_time_ms = event.time_ms
        self.seeded = False
        attempt = self.attempt
        if attempt.first < 0:
            attempt = self.attempt = Attempt()
            self.unsettled = event.seq
        if type(chunk) is Finish and not is_complete(chunk.reason):
            self.settle(event.seq)
        else:
            attempt.take(event.seq, chunk)

    def settle(self, seq: int | None = None) -> None:
        """The attempt in progress is over; *seq* is the event that ended it without answer."""
        if self.attempt:
            if seq is not None and (usage := self.attempt.content().usage) is not None:
                self.unanswered = appended(self.unanswered, (seq, usage))
            self.attempt = NO_ATTEMPT

    def _here(self, turn: int, step: int) -> str | None:
        if step == self.open_step and turn == self.open_turn:
            return None
        return f"turn {self.open_turn}, step {self.open_step}"


def describe(data: EventData) -> str:
    """*data* in a few words, for an error text."""
    match data:
        case TurnStart(turn=turn) | TurnEnd(turn=turn):
            return f"{type(data).__name__} of turn {turn}"
        case StepStart(turn=turn, step=step) | StepEnd(turn=turn, step=step):
            return f"{type(data).__name__} of turn {turn}, step {step}"
        case ToolCallEvent(call_id=call_id):
            return f"ToolCallEvent for {call_id!r}"
        case ToolResultEvent():
            return f"ToolResultEvent for {result_call_id(data)!r}"
        case _:
            return type(data).__name__


def result_call_id(data: ToolResultEvent) -> CallId | None:
    """The call that a result answers."""
    for block in data.message.content:
        if isinstance(block, ToolResultBlock):
            return block.tool_call_id
    return None


# --- where an event may come: what is expected instead, or None -----------------------


def _anywhere(place: Place) -> str | None:
    return None


def _between_turns(place: Place) -> str | None:
    return None if place.open_turn is None else f"the end of turn {place.open_turn}"


def _in_a_turn(place: Place) -> str | None:
    if place.open_turn is None:
        return "an open turn"
    return None if place.open_step is None else f"the end of step {place.open_step}"


def _in_a_step(place: Place) -> str | None:
    return None if place.open_step is not None else "an open step"


def _before_the_answer(place: Place) -> str | None:
    if place.open_step is None:
        return "an open step"
    return "nothing of a request: the step is answered" if place.answered else None


# --- checks: what else is expected, or None ------------------------------------------


def _check_turn_start(place: Place, event: Event) -> str | None:
    assert isinstance(event.data, TurnStart)
    want = place.last_turn + 1
    return None if event.data.turn == want else f"turn {want}"


def _check_turn_end(place: Place, event: Event) -> str | None:
    assert isinstance(event.data, TurnEnd)
    return None if event.data.turn == place.open_turn else f"the end of turn {place.open_turn}"


def _check_step_start(place: Place, event: Event) -> str | None:
    assert isinstance(event.data, StepStart)
    want = (place.open_turn, place.last_step + 1)
    if (event.data.turn, event.data.step) == want:
        return None
    return f"turn {want[0]}, step {want[1]}"


def _check_step_end(place: Place, event: Event) -> str | None:
    assert isinstance(event.data, StepEnd)
    if problem := place._here(event.data.turn, event.data.step):
        return problem
    if place.strict and (owed := place.owed()):
        return f"a result for call {owed[0].call.id!r} ({len(owed)} owed)"
    return None


def _check_coordinates(place: Place, event: Event) -> str | None:
    data = event.data
    if TYPE_CHECKING:  # the table says so; this runs for every chunk
        assert isinstance(
            data,
            SystemMessageEvent
            | DeveloperMessageEvent
            | AssistantChunk
            | AssistantMessageEvent
            | LlmRetry
            | LlmRetryStarted,
        )
    return place._here(data.turn, data.step)


def _check_unstarted(place: Place, event: Event) -> str | None:
    return "the rest of the stream" if place.attempt else None


def _check_request_part(place: Place, event: Event) -> str | None:
    return _check_unstarted(place, event) or _check_coordinates(place, event)


def _check_call(place: Place, event: Event) -> str | None:
    data = event.data
    assert isinstance(data, ToolCallEvent)
    if problem := place._here(data.turn, data.step):
        return problem
    if place._recorded >= len(place._calls):
        return "no further call: all that the answer asked for are recorded"
    want = place._calls[place._recorded].call
    return None if data.call_id == want.id else f"call {want.id!r} (calls keep model order)"


def _check_result(place: Place, event: Event) -> str | None:
    data = event.data
    assert isinstance(data, ToolResultEvent)
    if problem := place._here(data.turn, data.step):
        return problem
    if place._settled >= len(place._calls):
        return "no result: none is owed"
    owed = place._calls[place._settled]
    if result_call_id(data) != owed.call.id:
        return f"the result of {owed.call.id!r} (results keep model order)"
    sources = () if owed.call_seq is None else (owed.call_seq,)
    if (event.sources or ()) != sources:
        return f"sources {list(sources)}"
    return None


# --- moves ----------------------------------------------------------------------------


def _turn_start(place: Place, event: Event) -> None:
    assert isinstance(event.data, TurnStart)
    place.last_turn = place.open_turn = event.data.turn
    place.last_step = 0


def _turn_end(place: Place, event: Event) -> None:
    place.open_turn = None


def _step_start(place: Place, event: Event) -> None:
    assert isinstance(event.data, StepStart)
    place.last_step = place.open_step = event.data.step
    place.answered = False
    place._calls, place._recorded, place._settled = (), 0, 0


def _step_end(place: Place, event: Event) -> None:
    place.open_step = place.unsettled = None
    place.settle(event.seq)
    place._calls, place._recorded, place._settled = (), 0, 0


def _chunk(place: Place, event: Event) -> None:
    assert isinstance(event.data, AssistantChunk)
    place.move_chunk(event, event.data.chunk)


def _message(place: Place, event: Event) -> None:
    assert isinstance(event.data, AssistantMessageEvent)
    place.answered = True
    place.unsettled = None
    place.settle()
    place._calls = [OwedCall(call) for call in event.data.message.tool_calls]


def _call(place: Place, event: Event) -> None:
    place._calls[place._recorded].call_seq = event.seq
    place._recorded += 1


def _result(place: Place, event: Event) -> None:
    place._settled += 1
    # A result may come without its call (recovery): calls stay ahead of results.
    place._recorded = max(place._recorded, place._settled)


Where: TypeAlias = Callable[[Place], str | None]
Check: TypeAlias = Callable[[Place, Event], str | None]
Move: TypeAlias = Callable[[Place, Event], None]


@frozen
class Rule:
    """Where an event may come, what else must hold, and how it moves the place."""

    where: Where
    check: Check | None = None
    move: Move | None = None


RULES: Final[dict[type, Rule]] = {
    TurnStart: Rule(_between_turns, _check_turn_start, _turn_start),
    TurnEnd: Rule(_in_a_turn, _check_turn_end, _turn_end),
    StepStart: Rule(_in_a_turn, _check_step_start, _step_start),
    StepEnd: Rule(_in_a_step, _check_step_end, _step_end),
    SystemMessageEvent: Rule(_before_the_answer, _check_request_part),
    UserMessageEvent: Rule(_before_the_answer, _check_unstarted),
    DeveloperMessageEvent: Rule(_before_the_answer, _check_request_part),
    RequestHeaderEvent: Rule(_before_the_answer, _check_unstarted),
    RequestContextEvent: Rule(_before_the_answer, _check_unstarted),
    AssistantChunk: Rule(_before_the_answer, _check_coordinates, _chunk),
    AssistantMessageEvent: Rule(_before_the_answer, _check_coordinates, _message),
    LlmRetry: Rule(_before_the_answer, _check_coordinates),
    LlmRetryStarted: Rule(_before_the_answer, _check_coordinates),
    ToolCallEvent: Rule(_in_a_step, _check_call, _call),
    ToolResultEvent: Rule(_in_a_step, _check_result, _result),
    EndSeed: Rule(_between_turns),
    InboxSpliced: Rule(_anywhere),
    ModelSelected: Rule(_anywhere),
    CompactionStart: Rule(_anywhere),
    CompactionSummary: Rule(_anywhere),
    CompactionEnd: Rule(_anywhere),
    Extension: Rule(_anywhere),
}
