"""Deltas in columns: whoever reads a packed log reads the log (C147)."""

from __future__ import annotations

import gc
import sys

import pytest
from hypothesis import given, strategies as st
from tests.session.oracle import Log, new_session
from tests.session.shelf import fed
from tests.strategies_logs import open_logs

from terzetto.session import Held, Session, _columns, _held, _log, _sheaves
from terzetto.session._columns import Run, packed
from terzetto.vocabulary import (
    AssistantChunk,
    BlockEnd,
    BlockStart,
    CallId,
    Event,
    Finish,
    ReasoningDelta,
    StepEnd,
    StepStart,
    Stop,
    StreamChunk,
    TextBlock,
    TextDelta,
    ToolCallDelta,
    ToolCallEvent,
    TurnStart,
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and sheaves of a few events, so that short logs have many of them."""
    for module in (_columns, _log):
        monkeypatch.setattr(module, "LEAST", 2)
    monkeypatch.setattr(_log, "_FEW", 5)
    monkeypatch.setattr(_held, "SIZE", 4)
    monkeypatch.setattr(_sheaves, "_PART", 3)


_MADE_ANEW = {AssistantChunk, StepStart, StepEnd, ToolCallEvent}


def chunks() -> st.SearchStrategy[StreamChunk]:
    block = st.integers(0, 1)
    text = st.text(max_size=5)
    ids = st.sampled_from([CallId("a"), CallId("b\N{SNOWMAN}"), CallId("")])
    return st.one_of(
        st.builds(TextDelta, block, text),
        st.builds(TextDelta, st.just(0), st.sampled_from(["", "a", "\N{GRINNING FACE}"])),
        st.builds(ReasoningDelta, block, text),
        st.builds(ToolCallDelta, block, ids, text, st.none() | st.just("") | st.just("tool")),
        st.builds(BlockStart, block, st.just("text")),
        st.just(Finish(Stop())),
    )


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """Chunks with successive seqs, of different steps, at times that need not grow."""
    first = draw(st.integers(0, 2**40))
    found: list[Event] = []
    for chunk in draw(st.lists(chunks(), max_size=30)):
        time_ms = draw(st.sampled_from([0, 1, 2**15, 2**20, 2**40]))
        step = draw(st.sampled_from([1, 1, 1, 2]))
        data = AssistantChunk(1, step, chunk)
        sources = draw(st.sampled_from([None, None, None, ()]))
        ignorable = draw(st.sampled_from([False, False, False, True]))
        event = Event(first + len(found), time_ms, data, None, sources, ignorable)
        found.append(event)
    return found


@given(streams(), st.data())
def test_what_was_packed_comes_back_equal(events: list[Event], data: st.DataObject) -> None:
    entries = packed(events)
    back: list[Event] = []
    for entry in entries:
        if isinstance(entry, Run):
            assert len(entry) >= 2
            back += entry.between(entry.seq, entry.stop)
        else:
            back.append(entry)
    assert back == events
    assert [repr(event) for event in back] == [repr(event) for event in events]
    for run in (entry for entry in entries if isinstance(entry, Run)):
        start = data.draw(st.integers(run.seq - 2, run.stop + 2))
        stop = data.draw(st.integers(run.seq - 2, run.stop + 2))
        wanted = [e for e in events if run.seq <= e.seq < run.stop and start <= e.seq < stop]
        assert list(run.between(start, stop)) == wanted


@given(streams(), st.data())
def test_a_packed_log_is_read_like_a_list(events: list[Event], data: st.DataObject) -> None:
    """C147: by seq, by range, forwards and backwards, however it was packed meanwhile."""
    events = [
        Event(i, e.time_ms, e.data, None, e.sources, e.ignorable) for i, e in enumerate(events)
    ]
    held, length = Held(), 0
    while length < len(events):
        growth = data.draw(st.integers(1, len(events) - length))
        held.tail.extend(events[length : length + growth])
        length += growth
        held.pack(data.draw(st.integers(0, length)))
    assert len(held) == len(events)
    assert list(held.everything()) == events
    assert list(held.backwards()) == events[::-1]
    singly = held.whole()
    assert [e for e in events if e in singly] == singly
    assert [e for e in singly if e.ignorable or e.sources is not None] == [
        e for e in events if e.ignorable or e.sources is not None
    ]
    assert [held.get(seq) for seq in range(len(events))] == events
    start = data.draw(st.integers(0, len(events)))
    stop = data.draw(st.integers(0, len(events)))
    assert held.between(start, stop) == events[start:stop]
    assert held.whole(start) == [event for event in singly if event.seq >= start]
    assert held.missing(0, len(events)) is None


@given(open_logs(splitting=True), st.data())
def test_a_session_without_a_store_has_every_event(log: Log, data: st.DataObject) -> None:
    """C147: also for who has begun to read it before it is packed."""
    session = new_session()
    events = session.events
    split = data.draw(st.integers(0, len(log)))
    whole = fed(session, log[:split])
    growing = iter(events)
    begun = [next(growing) for _ in whole[:3]]
    whole += fed(session, log[split:])
    assert list(events) == whole
    assert begun + list(growing) == whole
    assert list(reversed(events)) == whole[::-1]
    said = session.held.whole()
    assert [event for event in whole if event in said] == said
    assert {type(event.data) for event in whole if event not in said} <= _MADE_ANEW
    first = data.draw(st.integers(0, len(whole)))
    assert session.held.whole(first) == [event for event in said if event.seq >= first]
    part = data.draw(st.slices(len(whole) + 3))
    assert events[part] == whole[part]
    for event in whole:
        assert events[event.seq] == event
        assert event in events
        assert events.index(event) == event.seq


def answer(session: Session, pieces: int) -> None:
    """One more step of turn 1 that streams an answer, without its message."""
    step = session.place.last_step + 1
    session.append(StepStart(1, step))
    text = [f"{n} " for n in range(pieces)]
    session.append(AssistantChunk(1, step, BlockStart(0, "text")))
    for part in text:
        session.append(AssistantChunk(1, step, TextDelta(0, part)))
    session.append(AssistantChunk(1, step, BlockEnd(0, TextBlock("".join(text)))))
    session.append(AssistantChunk(1, step, Finish(Stop())))


def test_a_piece_of_a_settled_answer_keeps_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: what the collector looks at, and the blocks of memory, for each piece."""
    monkeypatch.undo()
    session = new_session()
    session.append(TurnStart(1))
    answer(session, 100)
    session.append(StepEnd(1, 1))
    gc.collect()
    tracked, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    for _ in range(20):
        answer(session, 1000)
        session.append(StepEnd(1, session.place.last_step))
    gc.collect()
    assert (len(gc.get_objects()) - tracked) / 20_000 <= 0.05
    assert (sys.getallocatedblocks() - blocks) / 20_000 <= 0.1
    assert sum(isinstance(event.data, AssistantChunk) for event in session.events) > 20_000
