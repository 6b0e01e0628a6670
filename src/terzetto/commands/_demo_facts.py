"""What the demo may claim: each claim is read off what happened, or `Missing` is raised.

Pure. A `Moment` is a log event, or the beginning or end of a tool's body; the list of them
has the order in which they happened, which decides what was before what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from attrs import frozen

from ..timeline import StepSpan, Timeline, ToolSpan, TurnSpan
from ..vocabulary import (
    Aborted,
    AssistantChunk,
    AssistantMessageEvent,
    CallId,
    Completed,
    Event,
    InboxSpliced,
    MessageId,
    PlainJson,
    TextDelta,
    ToolResultBlock,
    ToolResultEvent,
    UserCause,
)
from ._table import duration

Body: TypeAlias = Mapping[str, PlainJson]
"""A request as the server got it."""


class Missing(Exception):
    """Something that the story needs has not happened. The text says what came instead."""


@frozen
class Began:
    """A tool's body began. *alone*: its tool declares that it does not run beside others."""

    call_id: CallId
    alone: bool


@frozen
class Ended:
    """A tool's body ended."""

    call_id: CallId


@frozen
class Moment:
    """*what* happened at *at*, in seconds of Trio's clock."""

    at: float
    what: Event | Began | Ended


# --- 1: streaming -----------------------------------------------------------------------------


def last_turn(timeline: Timeline) -> TurnSpan:
    """The latest turn."""
    if not timeline.turns:
        raise Missing("expected a turn in the log, found none")
    return timeline.turns[-1]


def completed(turn: TurnSpan) -> TurnSpan:
    """*turn*, if it came to its natural end."""
    if not isinstance(turn.ending, Completed):
        raise Missing(f"expected turn {turn.number} to be completed; it is: {turn.reason}")
    return turn


def streamed(turn: TurnSpan, events: Iterable[Event]) -> str:
    """The answer of *turn* came in pieces."""
    times = [
        event.time_ms - turn.started_ms
        for event in events
        if isinstance(event.data, AssistantChunk)
        and event.data.turn == turn.number
        and isinstance(event.data.chunk, TextDelta)
    ]
    if len(times) < 2:
        raise Missing(f"expected an answer in pieces, got {len(times)}")
    return (
        f"It came in {len(times)} pieces: the first after {duration(times[0])}, "
        f"the last after {duration(times[-1])}."
    )


# --- 2: a batch -------------------------------------------------------------------------------


@frozen
class Span:
    """The body of one call: its number from 1, and the places of its moments."""

    number: int
    call: ToolSpan
    alone: bool
    began: int
    ended: int


def spans(step: StepSpan, moments: Sequence[Moment]) -> list[Span]:
    """The bodies of a step's calls, in the model's order."""
    if not step.calls:
        raise Missing(f"expected calls in step {step.step} of turn {step.turn}, found none")
    began = {m.what.call_id: n for n, m in enumerate(moments) if isinstance(m.what, Began)}
    ended = {m.what.call_id: n for n, m in enumerate(moments) if isinstance(m.what, Ended)}
    alone = {m.what.call_id: m.what.alone for m in moments if isinstance(m.what, Began)}
    missing = [c.name for c in step.calls if c.call_id not in began or c.call_id not in ended]
    if missing:
        raise Missing(f"expected every call to run; these did not: {', '.join(missing)}")
    return [
        Span(number, call, alone[call.call_id], began[call.call_id], ended[call.call_id])
        for number, call in enumerate(step.calls, 1)
    ]


def side_by_side(batch: Sequence[Span]) -> str:
    """Calls before the barrier were running at the same time."""
    first = batch[: _barrier(batch).number - 1]
    together = [one for one in first if one.began < min(other.ended for other in first)]
    if len(together) < 2:
        raise Missing("expected calls that run at the same time, found none")
    return f"{_names(together)} ran at the same time."


def barrier(batch: Sequence[Span]) -> str:
    """The exclusive call began after all before it had ended, and ended before all after it."""
    one = _barrier(batch)
    before, after = batch[: one.number - 1], batch[one.number :]
    if any(other.ended > one.began for other in before):
        raise Missing(f"expected #{one.number} to wait for the calls before it; it did not")
    if any(other.began < one.ended for other in after):
        raise Missing(f"expected the calls after #{one.number} to wait for it; they did not")
    waits = f"; {_names(after)} waited for it" if after else ""
    return f"#{one.number} waited for {_names(before)} and ran alone{waits}."


def in_model_order(batch: Sequence[Span], moments: Sequence[Moment]) -> str:
    """The results are in the log in the order in which the model asked."""
    numbers = {one.call.call_id: one.number for one in batch}
    logged = [numbers[call_id] for call_id in _results(moments) if call_id in numbers]
    asked = sorted(numbers.values())
    if logged != asked:
        raise Missing(f"expected results in the order {_list(asked)}, got {_list(logged)}")
    ended = [one.number for one in sorted(batch, key=lambda one: one.ended)]
    how = "as they also ended" if ended == asked else f"although they ended {_list(ended)}"
    return f"The log has the results in the model's order, {_list(logged)}, {how}."


def _results(moments: Iterable[Moment]) -> list[CallId]:
    return [
        block.tool_call_id
        for moment in moments
        if isinstance(moment.what, Event) and isinstance(moment.what.data, ToolResultEvent)
        for block in moment.what.data.message.content
        if isinstance(block, ToolResultBlock)
    ]


def _barrier(batch: Sequence[Span]) -> Span:
    inner = [one for one in batch[1:-1] if one.alone]
    if len(inner) != 1:
        raise Missing(f"expected one exclusive call among the others, found {len(inner)}")
    return inner[0]


def _names(batch: Sequence[Span]) -> str:
    names = [f"#{one.number}" for one in batch]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _list(numbers: Iterable[int]) -> str:
    return " ".join(f"#{number}" for number in numbers)


# --- 3: a steer -------------------------------------------------------------------------------


def steered(timeline: Timeline, message_id: MessageId, moments: Sequence[Moment]) -> str:
    """The message came while a tool of the turn ran, and entered the same turn."""
    sent = next(
        (
            n
            for n, moment in enumerate(moments)
            if isinstance(moment.what, Event)
            and isinstance(moment.what.data, InboxSpliced)
            and any(message.id == message_id for message in moment.what.data.inserted)
        ),
        None,
    )
    if sent is None:
        raise Missing("expected the second message in the inbox; it never got there")
    for turn in timeline.turns:
        for step in turn.steps:
            if any(entered.message_id == message_id for entered in step.inputs):
                running = _running(turn, moments, sent)
                return (
                    f"Sent while {running} was running in turn {turn.number}; "
                    f"it entered that turn at step {step.step}."
                )
    raise Missing("expected the second message to enter the running turn; it entered none")


def _running(turn: TurnSpan, moments: Sequence[Moment], sent: int) -> str:
    for step in turn.steps:
        for span in spans(step, moments) if step.calls else ():
            if span.began < sent < span.ended:
                return span.call.name
    raise Missing("expected the second message to come while a tool ran; none did")


# --- 4 and 5: what is kept --------------------------------------------------------------------


@frozen
class Kept:
    """The beginning of an interrupted answer, as event *seq* of the log has it."""

    text: str
    seq: int


def kept(turn: TurnSpan, events: Iterable[Event]) -> Kept:
    """What *turn* kept of the answer that was cut in mid-sentence."""
    if turn.ending != Aborted(UserCause()):
        raise Missing(f"expected turn {turn.number} to be aborted; it is: {turn.reason}")
    for event in events:
        match event.data:
            case AssistantMessageEvent(turn=number, message=message, interrupted=True):
                if number == turn.number and not message.text.rstrip().endswith((".", "!", "?")):
                    return Kept(message.text, event.seq)
    raise Missing("expected the beginning of a sentence in the log, found none")


def sent_back(prefix: Kept, requests: Sequence[Body]) -> str:
    """The latest request has the interrupted answer in its history."""
    if not any(
        message.get("role") == "assistant" and message.get("content") == prefix.text
        for message in _messages(requests[-1])
    ):
        raise Missing(f"expected the interrupted words in request {len(requests)}; they are not")
    tail = " ".join(prefix.text.split()[-3:])
    return f'Request {len(requests)} carried these words, up to "{tail}", as the model\'s own.'


def carried(text: str, requests: Sequence[Body]) -> str:
    """The latest request has *text* as the user's last words."""
    last = _messages(requests[-1])[-1]
    if (last.get("role"), last.get("content")) != ("user", text):
        raise Missing(f"expected {text!r} at the end of request {len(requests)}; it is not there")
    return f"Request {len(requests)} carried it."


def remembered(answer: str, requests: Sequence[Body]) -> str:
    """The latest request goes on where the one before it, and its *answer*, ended."""
    before, after = _messages(requests[-2]), _messages(requests[-1])
    if after[: len(before)] != before:
        raise Missing("expected the old messages, unchanged, in the new request; they are not")
    rest = [(message.get("role"), message.get("content")) for message in after[len(before) :]]
    if rest[:1] != [("assistant", answer)] or [role for role, _ in rest[1:]] != ["user"]:
        raise Missing(f"expected the last answer and one question more, got {rest!r:.80}")
    return (
        f"Request {len(requests)}, the first one after it, carried {len(after)} messages: "
        f"the {len(before)} of request {len(requests) - 1} unchanged, its answer, "
        "and the new question."
    )


def _messages(request: Body) -> list[dict[str, PlainJson]]:
    messages = request.get("messages")
    return [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []
