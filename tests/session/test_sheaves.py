"""Sheaves: what is over, as rows; whoever reads it reads the log (C147)."""

from __future__ import annotations

import enum
import gc
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st
from tests.session.oracle import Log, new_session
from tests.session.shelf import fed
from tests.strategies_logs import open_logs

from terzetto.session import Session, _columns, _sheaves
from terzetto.session._columns import packed
from terzetto.session._sheaves import Sheaf
from terzetto.vocabulary import (
    Append,
    AssistantChunk,
    AssistantMessage,
    AssistantMessageEvent,
    BlockEnd,
    BlockStart,
    CallId,
    ErrorFinish,
    Event,
    Extension,
    Failure,
    Finish,
    MaxTokens,
    ModelSource,
    StepEnd,
    StepStart,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolCallEvent,
    ToolCalls,
    ToolResultBlock,
    ToolResultEvent,
    ToolSource,
    TurnStart,
    Usage,
    UsageChunk,
    UserMessage,
    freeze_object,
)
from terzetto.vocabulary._seqs import Seqs, cited


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_columns, "LEAST", 2)
    monkeypatch.setattr(_sheaves, "_PART", 3)
    monkeypatch.setattr(_sheaves, "_SHORT", 3)


def read(sheaf: Sheaf) -> list[Event]:
    return list(sheaf.between(sheaf.seq, sheaf.stop))


def told(events: Sequence[Event]) -> list[str]:
    """Everything of *events*, the class of each part as well."""
    return [f"{event!r} {type(event.sources)}" for event in events]


@given(open_logs(splitting=True), st.booleans(), st.data())
def test_what_was_bound_comes_back_equal(log: Log, runs: bool, data: st.DataObject) -> None:
    events = fed(new_session(), log)
    if not events:
        return
    sheaf = Sheaf(packed(events) if runs else events)
    assert (sheaf.seq, sheaf.stop, len(sheaf)) == (0, len(events), len(events))
    assert read(sheaf) == events
    assert told(read(sheaf)) == told(events)
    start, stop = (data.draw(st.integers(0, len(events) + 1)) for _ in range(2))
    assert list(sheaf.between(start, stop)) == events[start:stop]
    said = list(sheaf.whole(0))
    assert list(sheaf.whole(start)) == [event for event in said if event.seq >= start]
    for event in events:
        if event.surface_op is not None:
            (same,) = [one for one in said if one.seq == event.seq]
            assert same.data is event.data


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    """A text of a class of its own."""


def of_each(text: str, number: int) -> list[Event]:
    call = CallId(text)
    source, block = ModelSource("p", "m"), ToolCallBlock(call, text, text)
    answer = UserMessage((ToolResultBlock(call, (TextBlock(text),)),), ToolSource(call))
    chunks = [
        BlockStart(number, "tool-call"),
        ToolCallDelta(number, call, text, None),
        ToolCallDelta(number, call, text, text),
        TextDelta(number, text),
        BlockEnd(number, block),
        Finish(ToolCalls(), freeze_object({"a": 1})),
        Finish(ToolCalls()),
        Finish(MaxTokens(), "state"),
        Finish(ErrorFinish(Failure(message="m"))),
        UsageChunk(Usage(input_tokens=number, output_tokens=2, reasoning_tokens=0)),
    ]
    of_message = AssistantMessageEvent(number, number, AssistantMessage((block,), source))
    many = Seqs([range(2, 40), range(60, 100)])
    found = [
        Event(0, 5, TurnStart(number)),
        Event(0, number, StepStart(number, number)),
        *(Event(0, 2**50, AssistantChunk(number, number, chunk)) for chunk in chunks),
        Event(0, 5, AssistantChunk(1, 1, chunks[0]), None, ()),
        Event(0, 5, AssistantChunk(1, 1, chunks[0]), None, None, True),
        *(Event(0, 5, of_message, Append(), seqs) for seqs in (None, (), (1, 3), cited(many))),
        Event(0, 5, of_message, Append(), None, True),
        Event(0, 5, ToolCallEvent(number, number, call, text, text)),
        Event(0, 5, ToolResultEvent(number, number, answer), Append(), (3,)),
        Event(0, 5, StepEnd(number, number)),
        Event(0, 5, Extension("my/own", freeze_object({"text": text}))),
    ]
    return [
        Event(seq, e.time_ms, e.data, e.surface_op, e.sources, e.ignorable)
        for seq, e in enumerate(found)
    ]


@pytest.mark.parametrize("text", ["", "a\N{GRINNING FACE}", "longer than a row has", Text("t")])
@pytest.mark.parametrize("number", [0, 1, 2**70])
def test_every_event_comes_back_with_what_it_held(text: str, number: int) -> None:
    """Also what no row can hold: long texts, numbers and texts of classes of their own."""
    events = of_each(text, number)
    back = read(Sheaf(events))
    assert back == events
    assert told(back) == told(events)


def test_what_no_row_can_hold_is_kept_as_it_is() -> None:
    """A number of a class of its own, among events that have rows."""
    chunk = AssistantChunk(1, 1, BlockStart(0, "text"))
    events = [Event(seq, Level.LOW if seq == 4 else seq, chunk) for seq in range(9)]
    back = read(Sheaf(events))
    assert back == events
    assert [type(event.time_ms) for event in back] == [type(event.time_ms) for event in events]
    assert back[4] is events[4]


def steps(session: Session, count: int) -> None:
    """So many steps of one call in turn 1, as an agent does them."""
    for _ in range(count):
        step, seq = session.place.last_step + 1, session.place.next_seq + 1
        call = ToolCallBlock(CallId(f"call-{step}"), "note", f'{{"n":{step}}}')
        session.append(StepStart(1, step))
        for chunk in (
            BlockStart(0, "tool-call"),
            ToolCallDelta(0, call.id, call.arguments, call.name),
            BlockEnd(0, call),
            UsageChunk(usage := Usage(input_tokens=step, output_tokens=1)),
            Finish(ToolCalls()),
        ):
            session.append(AssistantChunk(1, step, chunk))
        said = AssistantMessage((call,), ModelSource("p", "m"))
        cites = tuple(range(seq, seq + 5))
        session.append(AssistantMessageEvent(1, step, said, usage), Append(), cites)
        session.append(ToolCallEvent(1, step, call.id, call.name, call.arguments))
        result = UserMessage((ToolResultBlock(call.id, (TextBlock("ok"),)),), ToolSource(call.id))
        session.append(ToolResultEvent(1, step, result), Append(), (seq + 6,))
        session.append(StepEnd(1, step))


def test_a_step_that_is_over_keeps_the_objects_of_its_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted: what the collector looks at, of a step of one call. It was 39."""
    monkeypatch.undo()
    session = new_session()
    session.append(TurnStart(1))
    steps(session, 100)
    gc.collect()
    before = len(gc.get_objects())
    steps(session, 500)
    gc.collect()
    assert (len(gc.get_objects()) - before) / 500 <= 16
    assert [event.seq for event in session.events] == list(range(600 * 10 + 1))
    assert sum(isinstance(event.data, ToolCallEvent) for event in session.events) == 600


def test_reading_one_event_reads_the_rows_around_it_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: events that are made, for one that is asked for, wherever it is."""
    monkeypatch.undo()
    session = new_session()
    session.append(TurnStart(1))
    steps(session, 100)
    made = 0
    make = _sheaves._event

    def counted(seq: int, row: tuple[object, ...], things: Sequence[object]) -> Event:
        nonlocal made
        made += 1
        return make(seq, row, things)

    monkeypatch.setattr(_sheaves, "_event", counted)
    for seq in range(0, 500, 7):
        assert session.events[seq].seq == seq
    assert 0 < made <= 500 / 7 + 1
