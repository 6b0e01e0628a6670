"""Chunks appended together are in the log as if each had been appended by itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import trio
from hypothesis import given, strategies as st
from tests.session.oracle import START_MS, new_session, observed

from terzetto.session import Session, append_chunks
from terzetto.session._attempt import _GROUP
from terzetto.testing._strategies_logs import FAILED, Tape, chunk, tapes
from terzetto.vocabulary import (
    AssistantChunk,
    BlockStart,
    Event,
    Finish,
    IllegalEvent,
    StepStart,
    Stop,
    StoreError,
    StreamChunk,
    TextDelta,
    TurnStart,
    WrongThread,
)


def in_a_step(first: StreamChunk | None = BlockStart(0, "text")) -> Session:
    """A session with a step open, and *first* streamed in it."""
    session = new_session()
    session.append(TurnStart(1))
    session.append(StepStart(1, 1))
    if first is not None:
        session.append(AssistantChunk(1, 1, first))
    return session


def singly(session: Session, chunks: list[StreamChunk]) -> None:
    for each in chunks:
        session.append(AssistantChunk(1, 1, each))


def together(session: Session, chunks: list[StreamChunk], sizes: list[int]) -> int:
    """Append *chunks* in groups, singly where that is asked for; how many came in groups."""
    at, grouped, turn = 0, 0, count()
    while at < len(chunks):
        size = sizes[next(turn) % len(sizes)]
        taken = append_chunks(session, 1, 1, chunks[at : at + size])
        if not taken:
            singly(session, [chunks[at]])
        at += taken or 1
        grouped += taken
    return grouped


def chunks_of(tape: Tape) -> list[StreamChunk]:
    """Any chunks, some of them ends, after which an attempt goes on or another begins."""
    ends: list[StreamChunk] = [Finish(Stop()), *map(Finish, FAILED)]
    return [tape.pick(ends) if tape.chance(12) else chunk(tape) for _ in range(tape.below(60))]


def full(at: int) -> Callable[[Event], None]:
    def sink(event: Event) -> None:
        if event.seq == at:
            raise StoreError("full")

    return sink


@given(tapes(), st.lists(st.integers(1, 40), min_size=1, max_size=9), st.booleans())
def test_any_chunks_together_are_as_one_by_one(tape: Tape, sizes: list[int], stored: bool) -> None:
    chunks = chunks_of(tape)
    quick, slow = in_a_step(), in_a_step()
    handed: list[Event] = []
    if stored:
        quick.sink = handed.append
    together(quick, chunks, sizes)
    singly(slow, chunks)
    # When chunks are folded is nobody's business.
    quick.place.attempt.content(), slow.place.attempt.content()
    assert observed(quick) == observed(slow)
    if stored:
        assert handed == list(quick.events)[3:]


@given(tapes(), st.integers(3, 40))
def test_a_store_that_refuses_one_has_those_before(tape: Tape, at: int) -> None:
    chunks = [chunk(tape) for _ in range(20)]
    quick, slow = in_a_step(), in_a_step()
    quick.sink, slow.sink = full(at), full(at)
    said = []
    for session, append in ((quick, lambda: together(quick, chunks, [7])), (slow, None)):
        try:
            append() if append else singly(slow, chunks)
        except StoreError as error:
            said.append(str(error))
        session.sink = lambda event: None
        singly(session, [TextDelta(0, "later")])
        session.place.attempt.content()
    assert said == ["full"] * (2 if at < 23 else 0)
    assert observed(quick) == observed(slow)


def test_more_than_a_group_is_folded() -> None:
    session = in_a_step()
    texts: list[StreamChunk] = [TextDelta(0, f"{n} ") for n in range(3 * _GROUP)]
    assert together(session, texts, [100]) == len(texts)
    attempt = session.place.attempt
    assert len(attempt._waiting) < _GROUP
    assert list(attempt.sources()) == list(range(2, 3 * _GROUP + 3))
    (block,) = attempt.content().assembled().content
    assert block.text == "".join(f"{n} " for n in range(3 * _GROUP))  # type: ignore[union-attr]


def test_one_look_at_the_clock_and_never_back() -> None:
    times = iter([START_MS, START_MS, START_MS + 9, START_MS + 5, START_MS + 12])
    session = new_session(lambda: next(times))
    session.append(TurnStart(1))
    session.append(StepStart(1, 1))
    singly(session, [BlockStart(0, "text")])
    for _ in range(2):
        assert append_chunks(session, 1, 1, [TextDelta(0, "a"), TextDelta(0, "b")]) == 2
    assert [event.time_ms - START_MS for event in session.events] == [0, 0, 9, 9, 9, 12, 12]


def test_a_finish_and_what_follows_it_are_left() -> None:
    session = in_a_step()
    chunks: list[StreamChunk] = [TextDelta(0, "a"), Finish(Stop()), TextDelta(0, "b")]
    assert append_chunks(session, 1, 1, chunks) == 1
    assert append_chunks(session, 1, 1, chunks[1:]) == 0
    assert append_chunks(session, 1, 1, []) == 0


@pytest.mark.parametrize("why", ["first", "step", "turn", "observed", "over", "reentrant"])
def test_what_may_not_come_or_is_told_of_is_left_to_append(why: str) -> None:
    session = in_a_step(None if why == "first" else BlockStart(0, "text"))
    chunks: list[StreamChunk] = [TextDelta(0, "a"), TextDelta(0, "b")]
    turn, step = 2 if why == "turn" else 1, 2 if why == "step" else 1
    found: list[int] = []
    if why == "observed":
        session.observe(lambda event: None)
    elif why == "over":
        session.detach()
    elif why == "reentrant":
        registration = session.observe(
            lambda event: found.append(append_chunks(session, 1, 1, chunks))
        )
        singly(session, [TextDelta(0, "seen")])
        registration.remove()
        assert found == [0]
        return
    before = observed(session)
    assert append_chunks(session, turn, step, chunks) == 0
    assert observed(session) == before
    if why in ("step", "turn"):
        with pytest.raises(IllegalEvent):
            session.append(AssistantChunk(turn, step, chunks[0]))


async def test_another_thread_is_told_so_by_append() -> None:
    session = in_a_step()
    chunks: list[StreamChunk] = [TextDelta(0, "a")]
    assert await trio.to_thread.run_sync(append_chunks, session, 1, 1, chunks) == 0
    with pytest.raises(WrongThread):
        await trio.to_thread.run_sync(singly, session, chunks)
    assert len(session.events) == 3
