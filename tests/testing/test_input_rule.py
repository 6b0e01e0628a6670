"""Invariant 6 on logs written by hand: what counts as consumed, and what as lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from terzetto.testing import Evidence, check_invariants
from terzetto.testing._input import InputFold
from terzetto.vocabulary import (
    APPEND,
    Aborted,
    AssistantChunk,
    Blocked,
    BlockStart,
    CallConfig,
    Completed,
    Event,
    EventData,
    Failed,
    Failure,
    InboxSpliced,
    Interrupted,
    RequestHeader,
    RequestHeaderEvent,
    StepEnd,
    StepStart,
    TurnEnd,
    TurnEnding,
    TurnStart,
    UserCause,
    UserMessage,
    UserMessageEvent,
)

ASKED, OTHER = UserMessage("asked"), UserMessage("instead")
SENT = InboxSpliced("next-turn", 0, 0, (ASKED,))
CLAIMED = InboxSpliced("next-turn", 0, 1)
PUT_BACK = InboxSpliced("next-turn", 0, 0, (ASKED,))
DISCARDED = InboxSpliced("next-turn", 0, 1, outcome="canceled")
CUT = Aborted(UserCause())
STEP, STEP_END = StepStart(1, 1), StepEnd(1, 1)
HEADER = RequestHeaderEvent(RequestHeader(config=CallConfig(provider="p", model="m")), "initial")
CHUNK = AssistantChunk(1, 1, BlockStart(0, "text"))


def turn(ending: TurnEnding, *events: EventData) -> list[EventData]:
    """A turn that claims the message, *events*, and its end."""
    return [SENT, TurnStart(1), CLAIMED, *events, TurnEnd(1, ending)]


def problems(data: Sequence[EventData], *, set_aside: bool = False) -> list[str]:
    fold = InputFold(set_aside)
    for seq, each in enumerate(data):
        op = APPEND if isinstance(each, UserMessageEvent) else None
        fold.move(Event(seq, 0, each, op))
    return fold.problems


FINE = {
    "entered": turn(CUT, STEP, UserMessageEvent(ASKED), STEP_END),
    "put back": turn(CUT, PUT_BACK),
    "discarded": turn(CUT, PUT_BACK, DISCARDED),
    "put back after the step began": turn(CUT, STEP, PUT_BACK, STEP_END),
    "replaced by another": turn(CUT, STEP, UserMessageEvent(OTHER), STEP_END),
    "set aside, header": turn(CUT, STEP, HEADER, STEP_END),
    "set aside, chunk": turn(CUT, STEP, CHUNK, STEP_END),
    "blocked": turn(Blocked()),
    "failed": turn(Failed(Failure(message="no", code="NO_ROUTE"))),
    "completed without a step": turn(Completed()),
    "sent again after it was consumed": [*turn(Blocked()), SENT],
    "crashed inside the breath, put back": turn(
        Interrupted(), STEP, UserMessageEvent(OTHER), PUT_BACK, STEP_END
    ),
    "crashed after the breath": turn(Interrupted(), STEP, HEADER, STEP_END),
}


@pytest.mark.parametrize("name", FINE)
def test_input_that_is_accounted_for(name: str) -> None:
    assert problems(FINE[name]) == []


LOST = {
    "never in a step": turn(CUT),
    "in a step that was never admitted": turn(CUT, STEP, STEP_END),
    "crashed before the step": turn(Interrupted()),
    "crashed inside the breath, forgotten": turn(
        Interrupted(), STEP, UserMessageEvent(OTHER), STEP_END
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_input_that_a_cut_turn_lost(name: str) -> None:
    [problem] = problems(LOST[name])
    assert problem == f"{ASKED.id!r} was lost by turn 1, which was cut short"


def test_an_admission_without_a_word_counts_if_listeners_set_aside() -> None:
    """A step that adds nothing to the log looks like one that was never admitted."""
    silent = LOST["in a step that was never admitted"]
    assert problems(silent, set_aside=True) == []
    assert problems(LOST["never in a step"], set_aside=True) != []
    assert problems(turn(Interrupted(), STEP, STEP_END), set_aside=True) != []


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([STEP, HEADER, PUT_BACK, STEP_END], "pending after it was consumed"),
        ([STEP, HEADER, UserMessageEvent(ASKED), STEP_END], "after it was consumed"),
        ([STEP, UserMessageEvent(ASKED), PUT_BACK, STEP_END], "pending after it entered"),
        ([STEP, UserMessageEvent(ASKED), UserMessageEvent(ASKED), STEP_END], "a second time"),
    ],
)
def test_two_of_the_four_at_once(events: list[EventData], text: str) -> None:
    """Exactly one of pending, entered, discarded and consumed."""
    [problem] = problems(turn(CUT, *events))
    assert text in problem


def test_the_invariants_ask_the_rule() -> None:
    """`check_invariants` reports it under its number, and a claim that no turn made, too."""
    log = [Event(seq, 0, data) for seq, data in enumerate(LOST["never in a step"])]
    assert [p for p in check_invariants(Evidence(log)) if p.startswith("6. ")] == [
        f"6. {ASKED.id!r} was lost by turn 1, which was cut short"
    ]
    loose = [Event(0, 0, SENT), Event(1, 0, CLAIMED)]
    assert any("in no turn" in problem for problem in check_invariants(Evidence(loose)))
