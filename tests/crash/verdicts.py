"""What must hold between a session's log and the effects that really happened.

Pure: it is given both, and says what is wrong. Who made them is not asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen
from tests.crash.effects import LOOK
from tests.crash.ledger import Effect
from tests.crash.second_lives import answered, repeated_effects

from terzetto.session import Session, replay
from terzetto.testing import history_is_valid
from terzetto.testing._invariants import Evidence, check_invariants
from terzetto.vocabulary import (
    Append,
    AssistantMessageEvent,
    CallId,
    Event,
    SessionHeader,
    TextBlock,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    TurnEnd,
    TurnStart,
    texts,
)

UNTRUE = frozenset({texts.TOOL_NOT_STARTED, texts.ABORTED_BEFORE_DISPATCH, "nothing"})
"""What may not be said of an effect that began."""


@frozen
class Answer:
    """What a log says of a call: *code* of the error, and the *text* of the result."""

    code: str | None
    text: str


@frozen
class Fate:
    """A session: its log, and what was in the store at each death of its owner.

    *deaths*: how many events were stored then.
    """

    header: SessionHeader
    events: Sequence[Event]
    deaths: Sequence[int] = ()


def of_a_log(fate: Fate) -> Iterator[str]:
    """What is wrong with a log whose last owner has ended by himself."""
    header, events = fate.header, fate.events
    if [event.seq for event in events] != list(range(len(events))):
        yield "the log is not contiguous"
    yield from check_invariants(Evidence(events))
    ends = Counter(event.data.turn for event in events if isinstance(event.data, TurnEnd))
    starts = Counter(event.data.turn for event in events if isinstance(event.data, TurnStart))
    if starts != ends or any(count != 1 for count in ends.values()):
        yield f"turns began {starts} and ended {ends}"
    session = Session(header, now_ms=lambda: 0)
    replay(session, events)
    yield from history_is_valid(session.history())
    lazy = header.durability == "lazy"
    for death in fate.deaths:
        yield from repeated_effects(events[:death], repair(events, death), lazy)
    codes = [answer.code for answer in answers(events).values()]
    if lazy and texts.TOOL_NOT_STARTED in codes:
        yield "a lazy log says that a call was not started"


def repair(events: Sequence[Event], death: int) -> Sequence[Event]:
    """What was appended after *death* to close the turn that was open, if one was."""
    marks = [event for event in events[:death] if isinstance(event.data, TurnStart | TurnEnd)]
    if not marks or isinstance(marks[-1].data, TurnEnd):
        return ()
    end = next(e.seq for e in events[death:] if isinstance(e.data, TurnEnd))
    return events[death : end + 1]


def of_the_effects(
    fates: Mapping[str, Fate], effects: Sequence[Effect], ended: set[tuple[str, str]], level: str
) -> Iterator[str]:
    """Where the logs of all sessions, and the effects of all their lives, disagree."""
    said = {name: answers(fate.events) for name, fate in fates.items()}
    recorded = {
        name: {e.data.call_id for e in fate.events if isinstance(e.data, ToolCallEvent)}
        for name, fate in fates.items()
    }
    careful = level != "lazy"
    for effect in effects:
        answer = said.get(effect.session, {}).get(effect.call)
        saved_first = careful and (effect.tool != LOOK or level == "each")
        which = f"the effect {effect.name} of {effect.session}, call {effect.call},"
        if answer is None:
            if saved_first:
                yield f"{which} is in no log"
            continue
        if saved_first and effect.call not in recorded[effect.session]:
            yield f"{which} began, and no tool/call is in the log"
        if answer.code in UNTRUE and (saved_first or answer.code != texts.TOOL_NOT_STARTED):
            yield f"{which} began, and its result says {answer.code}"
        if answer.code is None and answer.text != effect.name:
            yield f"{which} has the result of another: {answer.text!r}"
    for name, answers_of_it in said.items():
        for call, answer in answers_of_it.items():
            if answer.code is None and (name, call) not in ended:
                yield f"call {call} of {name} has a result, and never ended"
    for call, times in Counter(effect.call for effect in effects).items():
        if times > 1:
            yield f"call {call} ran {times} times"
    again = Counter(effect.name for effect in effects if careful and effect.tool != LOOK)
    for name, times in again.items():
        if times > 1:
            yield f"the effect {name} was invited again, and happened {times} times"


def answers(events: Sequence[Event]) -> dict[CallId, Answer]:
    """The result of each call that has one; "nothing" for one without."""
    found: dict[CallId, Answer] = {}
    for event in events:
        match event.data:
            case AssistantMessageEvent(message=message):
                found |= {call.id: Answer("nothing", "") for call in message.tool_calls}
            case ToolResultEvent(error=error) if isinstance(event.surface_op, Append):
                for call_id in answered(event.data):
                    code = error.code if error is not None else None
                    found[call_id] = Answer(code, _text(event.data))
            case _:
                pass
    return found


def _text(data: ToolResultEvent) -> str:
    blocks = (b for b in data.message.content if isinstance(b, ToolResultBlock))
    return "".join(t.text for block in blocks for t in block.content if isinstance(t, TextBlock))
