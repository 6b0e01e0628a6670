"""The usual events are taken as the tables would take them (C60, C63, C151).

Two sessions of the same log: one takes what is usual in one pass, the other all by the tables.
They stay equal event by event, and refuse the same with the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from attrs import evolve
from hypothesis import given, settings, strategies as st
from tests.session.oracle import new_session, observed, recorded
from tests.strategies_logs import legal_logs, mutated_logs, recorded_logs

from terzetto.session import Session, _log
from terzetto.session._compacting import COMPACTED
from terzetto.session._inbox import SPLICED
from terzetto.session._surface import FOLDED
from terzetto.session._usual import USUAL
from terzetto.vocabulary import (
    APPEND,
    AssistantChunk,
    AssistantMessageEvent,
    CallId,
    Event,
    IllegalEvent,
    Replace,
    StepEnd,
    StepStart,
    StoreError,
    TextBlock,
    ToolCallEvent,
    ToolResultEvent,
    UserMessageEvent,
    UserSource,
)


class _Nothing:
    """The class of no event's data."""


@contextmanager
def by_the_tables() -> Iterator[None]:
    with patch.object(_log, "USUAL", {}), patch.object(_log, "AssistantChunk", _Nothing):
        yield


def refused(session: Session, event: Event, sink: Callable[[Event], None] | None = None) -> str:
    """In which words *event* is refused; nothing if it is taken."""
    before = observed(session)
    try:
        session._take(event, (lambda event: None) if sink is None else sink)
    except IllegalEvent as error:
        assert observed(session) == before
        return str(error)
    except StoreError as error:
        assert observed(session) == before
        return f"the sink: {error}"
    return ""


def both(quick: Session, slow: Session, event: Event) -> str:
    said = refused(quick, event)
    with by_the_tables():
        assert refused(slow, event) == said
    assert observed(quick) == observed(slow)
    return said


def full(event: Event) -> None:
    raise StoreError("full")


def taken(log: Sequence[Event], *, strict: bool) -> Session:
    session = new_session()
    session.place.strict = strict
    for event in log:
        session._take(event, lambda event: None)
    return session


@pytest.mark.parametrize("name", sorted(recorded()))
def test_a_recorded_log_is_taken_as_by_the_tables(name: str) -> None:
    quick, slow = new_session(), new_session()
    for event in recorded()[name]:
        quick.place.strict = slow.place.strict = False
        quick._take(event, lambda event: None)
        with by_the_tables():
            slow._take(event, lambda event: None)
    assert observed(quick) == observed(slow)


@settings(max_examples=60)
@given(mutated_logs(), st.booleans())
def test_a_changed_log_is_refused_at_the_same_event_in_the_same_words(
    log: list[Event], strict: bool
) -> None:
    quick, slow = new_session(), new_session()
    quick.place.strict = slow.place.strict = strict
    for event in log:
        if both(quick, slow, event):
            return


# --- an event that is nearly the usual one ---------------------------------------------------

_Change = Callable[[Event], Event]


def _of_data(**changes: Any) -> _Change:
    """With attributes of the data moved by a number, or set; the event itself if it has none."""

    def change(event: Event) -> Event:
        data: Any = event.data
        known = {
            name: getattr(data, name) + value if isinstance(value, int) else value
            for name, value in changes.items()
            if hasattr(data, name)
        }
        return evolve(event, data=evolve(data, **known)) if known else event

    return change


def _of_message(**changes: Any) -> _Change:
    def change(event: Event) -> Event:
        data: Any = event.data
        if not isinstance(data, ToolResultEvent | AssistantMessageEvent | UserMessageEvent):
            return event
        if "source" in changes and isinstance(data, AssistantMessageEvent):
            return event
        return evolve(event, data=evolve(data, message=evolve(data.message, **changes)))

    return change


def _with_first_block_twice(event: Event) -> Event:
    data: Any = event.data
    if not isinstance(data, ToolResultEvent | AssistantMessageEvent):
        return event
    content = (*data.message.content[:1], *data.message.content)
    return evolve(event, data=evolve(data, message=evolve(data.message, content=content)))


def _with_the_answer_of_another(event: Event) -> Event:
    data = event.data
    if not isinstance(data, ToolResultEvent):
        return event
    blocks: list[Any] = [
        evolve(block, tool_call_id=CallId("another")) if hasattr(block, "tool_call_id") else block
        for block in data.message.content
    ]
    message = evolve(data.message, content=tuple(blocks))
    return evolve(event, data=evolve(data, message=message))


CHANGES: dict[str, _Change] = {
    "none": lambda event: event,
    "a later turn": _of_data(turn=1),
    "an earlier turn": _of_data(turn=-1),
    "a later step": _of_data(step=1),
    "an earlier step": _of_data(step=-1),
    "another call": _of_data(call_id=CallId("another")),
    "the answer of another": _with_the_answer_of_another,
    "from the user": _of_message(source=UserSource()),
    "nothing in it": _of_message(content=()),
    "text in it": _of_message(content=(TextBlock("text"),)),
    "the first block twice": _with_first_block_twice,
    "ignorable": lambda event: evolve(event, ignorable=True),
    "no operation": lambda event: evolve(event, surface_op=None),
    "an operation": lambda event: evolve(event, surface_op=APPEND),
    "a replacement": lambda event: evolve(event, surface_op=Replace(event.seq - 1, event.seq - 1)),
    "no sources": lambda event: evolve(event, sources=None),
    "empty sources": lambda event: evolve(event, sources=()),
    "itself as a source": lambda event: evolve(event, sources=(event.seq,)),
    "a source before all": lambda event: evolve(event, sources=(-1, 0)),
    "the event before as a source": lambda event: evolve(event, sources=(event.seq - 1,)),
    "two sources": lambda event: evolve(event, sources=(0, event.seq - 1)),
    "a seq too late": lambda event: evolve(event, seq=event.seq + 1),
    "a seq too early": lambda event: evolve(event, seq=event.seq - 1),
    "at an earlier time": lambda event: evolve(event, time_ms=0),
}


@settings(max_examples=150)
@given(
    legal_logs(splitting=True) | recorded_logs(),
    st.integers(0, 1000),
    st.sampled_from(sorted(CHANGES)),
    st.booleans(),
)
def test_what_is_nearly_usual_is_judged_as_by_the_tables(
    log: Sequence[Event], where: int, change: str, strict: bool
) -> None:
    usual = [event for event in log if type(event.data) in (*USUAL, AssistantChunk)]
    if not usual:
        return
    event = usual[where % len(usual)]
    before = log[: event.seq]
    quick, slow = taken(before, strict=False), taken(before, strict=False)
    quick.place.strict = slow.place.strict = strict
    changed = CHANGES[change](event)
    both(quick, slow, changed)


@pytest.mark.parametrize("change", sorted(CHANGES))
@pytest.mark.parametrize("kind", [*USUAL, AssistantChunk])
def test_each_kind_with_each_change_is_judged_as_by_the_tables(kind: type, change: str) -> None:
    found = 0
    for name in sorted(recorded())[::9]:
        log = recorded()[name]
        events = [event for event in log if type(event.data) is kind]
        if events:
            before = log[: events[-1].seq]
            both(
                taken(before, strict=False),
                taken(before, strict=False),
                CHANGES[change](events[-1]),
            )
            found += 1
            if found == 3:
                return
    raise AssertionError("too few logs have one")


def test_nothing_is_folded_from_a_usual_event() -> None:
    assert not USUAL.keys() & (FOLDED | COMPACTED | SPLICED)


@pytest.mark.parametrize(
    "kind", [StepStart, StepEnd, AssistantMessageEvent, ToolCallEvent, ToolResultEvent]
)
def test_a_sink_that_refuses_a_usual_event_leaves_the_log_as_it_was(kind: type) -> None:
    """C151. And the usual shapes are what the recorded logs hold: each is taken in one pass."""
    assert kind in USUAL
    found = 0
    for log in recorded().values():
        events = [event for event in log if type(event.data) is kind]
        if not events or found >= 5:
            continue
        session = taken(log[: events[-1].seq], strict=False)
        if session.pending.claiming:
            continue
        with patch.object(_log.Session, "_take_by_the_tables", side_effect=AssertionError):
            assert refused(session, events[-1], full) == "the sink: full"
            assert refused(session, events[-1]) == ""
        found += 1
    assert found == 5
