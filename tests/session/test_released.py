"""Chunks that left memory: what is kept, what is read back, who follows (C147, C151, C158)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from hypothesis import given, settings, strategies as st
from tests.session.oracle import START_MS, Log, new_session, recorded, replayed
from tests.session.shelf import Shelf, chunks_in, fed
from tests.strategies_logs import legal_logs, open_logs
from trio.testing import wait_all_tasks_blocked

from terzetto.session import Held, Session, _attempt, _held, _log, _reading, fork_prefix
from terzetto.session._codec import dumps_event, loads_event
from terzetto.vocabulary import (
    APPEND,
    AssistantChunk,
    AssistantMessage,
    AssistantMessageEvent,
    Completed,
    ErrorFinish,
    Event,
    EventReleased,
    Failure,
    Finish,
    InvalidValue,
    ModelSource,
    Seqs,
    StepEnd,
    StepStart,
    Stop,
    StoreError,
    StreamChunk,
    TextBlock,
    TextDelta,
    TurnEnd,
    TurnStart,
    Usage,
    UsageChunk,
    _seqs,
    cited,
    new_message_id,
    of_runs,
)

RECORDED = sorted(recorded())
FAILED = Finish(ErrorFinish(Failure(message="no", code="SERVER")))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and groups of a few events, so that short logs have many of them."""
    monkeypatch.setattr(_reading, "PAGE", 4)
    monkeypatch.setattr(_log, "PAGE", 4)
    monkeypatch.setattr(_attempt, "_GROUP", 3)
    monkeypatch.setattr(_seqs, "_SHORT", 2)


def stream(session: Session, *chunks: StreamChunk) -> None:
    place = session.place
    assert place.open_turn is not None
    assert place.open_step is not None
    for chunk in chunks:
        session.append(AssistantChunk(place.open_turn, place.open_step, chunk))


def answered(session: Session, text: str) -> None:
    place = session.place
    assert place.open_turn is not None
    assert place.open_step is not None
    message = AssistantMessage((TextBlock(text),), ModelSource("p", "m"), new_message_id())
    data = AssistantMessageEvent(place.open_turn, place.open_step, message)
    session.append(data, APPEND, place.attempt.sources())


def opened(session: Session) -> None:
    session.append(TurnStart(session.place.last_turn + 1))
    session.append(StepStart(session.place.last_turn, 1))


def closed(session: Session) -> None:
    turn = session.place.last_turn
    session.append(StepEnd(turn, session.place.last_step))
    session.append(TurnEnd(turn, Completed()))


def said(session: Session, words: int) -> None:
    """A turn of one answer in so many chunks."""
    opened(session)
    stream(session, *[TextDelta(0, "a") for _ in range(words)], Finish(Stop()))
    answered(session, "a" * words)
    closed(session)


# --- what is kept ---------------------------------------------------------------------------


def test_chunks_of_an_answer_leave_when_it_is_in_the_log_and_they_are_durable() -> None:
    """DESIGN: both, whichever comes last."""
    shelf = Shelf()
    session = shelf.session()
    opened(session)
    stream(session, *[TextDelta(0, "a")] * 5, Finish(Stop()))
    shelf.flush(session)
    assert chunks_in(session) == 6, "its answer may need them"
    answered(session, "aaaaa")
    assert chunks_in(session) == 0, "they were durable before it"
    opened_at = len(session.events)
    closed(session)
    opened(session)
    stream(session, *[TextDelta(0, "b")] * 5)
    answered(session, "bbbbb")
    assert chunks_in(session) == 5, "the store does not have them"
    assert len(session.events) > opened_at
    shelf.flush(session, len(shelf.waiting) - 3)
    assert chunks_in(session) == 2
    shelf.flush(session)
    assert chunks_in(session) == 0


def test_chunks_of_a_failed_attempt_leave_when_the_next_one_begins() -> None:
    shelf = Shelf()
    session = shelf.session()
    opened(session)
    stream(session, TextDelta(0, "a"), FAILED)
    shelf.flush(session)
    assert chunks_in(session) == 2
    stream(session, TextDelta(0, "b"))
    assert chunks_in(session) == 1
    assert session.events[-1].data == AssistantChunk(1, 1, TextDelta(0, "b"))


@pytest.mark.parametrize("failed", [True, False])
def test_chunks_of_an_attempt_without_answer_leave_when_the_step_ends(failed: bool) -> None:
    shelf = Shelf()
    session = shelf.session()
    opened(session)
    stream(session, TextDelta(0, "a"), *([FAILED] if failed else []))
    shelf.flush(session)
    assert chunks_in(session) == 1 + failed
    session.append(StepEnd(1, 1))
    assert chunks_in(session) == 0


def test_without_a_store_that_reads_back_everything_stays() -> None:
    session = new_session()
    said(session, 20)
    session.saved()
    assert len(list(session.events)) == len(session.events) == 26
    assert session.events[5].seq == 5


def test_an_event_that_has_left_says_where_it_is() -> None:
    """A LookupError and no IndexError, which a loop would take for the end."""
    shelf = Shelf()
    session = shelf.session()
    said(session, 5)
    shelf.flush(session)
    for index in (3, 3 - len(session.events)):
        with pytest.raises(EventReleased, match=r"event 3 .*await session\.read\(3, 4\)") as info:
            session.events[index]
        assert isinstance(info.value, LookupError)
        assert not isinstance(info.value, IndexError)
    with pytest.raises(IndexError, match="the log has 11 events"):
        session.events[11]
    assert session.events[8].seq == 8
    assert session.events[-1].seq == 10


@given(open_logs(splitting=True), st.data())
def test_the_view_is_the_log_less_what_has_left(log: Log, data: st.DataObject) -> None:
    """C151: by seq, by slice, forwards, backwards, and while it grows."""
    shelf = Shelf()
    session = shelf.session()
    events = session.events
    split = data.draw(st.integers(0, len(log)))
    whole = fed(session, log[:split])
    shelf.flush(session, data.draw(st.integers(0, split)))
    kept = list(events)
    growing = iter(events)
    begun = [next(growing) for _ in kept[:2]]
    assert begun == kept[:2]
    whole += fed(session, log[split:])
    shelf.flush(session, data.draw(st.integers(0, len(log))))
    left = {e.seq for e in whole} - {e.seq for e in events}
    assert all(isinstance(whole[seq].data, AssistantChunk) for seq in left)
    assert len(events) == len(whole)
    assert list(events) == [e for e in whole if e.seq not in left]
    assert list(reversed(events)) == list(events)[::-1]
    seen = [e.seq for e in begun] + [e.seq for e in growing]
    assert seen == sorted(set(seen))
    assert {e.seq for e in events} <= set(seen) | left
    part = data.draw(st.slices(len(whole) + 3))
    assert events[part] == [e for e in whole[part] if e.seq not in left]
    for event in whole:
        assert (event in events) is (event.seq not in left)
        assert events.count(event) == (event.seq not in left)
        if event.seq in left:
            with pytest.raises(EventReleased):
                events[event.seq]
            with pytest.raises(ValueError, match="not among"):
                events.index(event)
        else:
            assert events[event.seq] is event
            assert events.index(event) == event.seq
    assert object() not in events  # type: ignore[comparison-overlap]
    assert events.count("x") == 0  # type: ignore[arg-type]


def test_a_list_of_what_is_in_memory_is_no_seed() -> None:
    """C154: half a past is none, and the message says how to get the whole one."""
    shelf = Shelf()
    session = shelf.session()
    said(session, 5)
    assert len(fork_prefix(session.events)) == 11
    shelf.flush(session)
    with pytest.raises(InvalidValue, match=r"6 have left memory; use await session\.read"):
        fork_prefix(session.events)


# --- reading --------------------------------------------------------------------------------


@given(legal_logs(splitting=True), st.data())
@settings(deadline=None)
def test_whatever_has_left_the_log_reads_as_if_nothing_had(log: Log, data: st.DataObject) -> None:
    """C151: ranges and followers, at any moment, equal those of a session in memory."""

    async def main() -> None:
        shelf, memory = Shelf(), new_session()
        session = shelf.session()
        followers = [(0, session.follow()), (0, session.follow(durable=True))]
        got: list[list[Event]] = [[], []]
        at = 0
        while at < len(log):
            count = data.draw(st.integers(1, len(log) - at), "append")
            fed(session, log[at : at + count])
            fed(memory, log[at : at + count])
            at += count
            shelf.flush(session, data.draw(st.integers(0, at), "flush"))
            assert session.history() == memory.history()
            assert len(session.events) == len(memory.events) == at
            start, stop = data.draw(st.tuples(st.integers(0, at + 2), st.integers(0, at + 2)))
            assert await session.read(start, stop) == await memory.read(start, stop)
            seq = data.draw(st.integers(0, at), "follow from")
            followers.append((seq, session.follow(seq)))
            got.append([])
            reading = data.draw(st.integers(0, len(got) - 1), "read on")
            seq, follower = followers[reading]
            there = (len(shelf.events) if reading == 1 else at) - seq - len(got[reading])
            for _ in range(data.draw(st.integers(0, max(0, there)), "so many")):
                got[reading].append(await follower.__anext__())
        assert await session.read() == list(memory.events)
        shelf.flush(session)
        session.detach()
        for events, (seq, follower) in zip(got, followers, strict=True):
            events += [event async for event in follower]
            assert events == list(memory.events)[seq:]
        settled = session.place.unsettled
        assert all(
            settled is not None and event.seq >= settled
            for event in session.events
            if isinstance(event.data, AssistantChunk)
        )

    trio.run(main)


@given(open_logs(splitting=True), st.integers(1, 9))
@settings(deadline=None)
def test_a_log_that_is_replayed_in_pages_is_the_log(log: Log, size: int) -> None:
    """C144, C152: and keeps no chunk, an open attempt's neither; what follows is the same."""
    shelf = Shelf()
    session = shelf.session()
    shelf.events += log
    for start in range(0, len(log), size):
        _log.replay(session, shelf.events[start : start + size])
    whole = replayed(log)
    assert chunks_in(session) == 0
    assert session.history() == whole.history()
    assert session.place.attempt.sources() == whole.place.attempt.sources()
    one, other = session.place.attempt.content(), whole.place.attempt.content()
    assert one.assembled() == other.assembled()
    assert (session.place.unsettled, session.place.unanswered) == (
        whole.place.unsettled,
        whole.place.unanswered,
    )


@pytest.mark.parametrize("bad", [-1, 1.0, "0", True, None])
async def test_what_is_no_seq_is_refused(bad: object) -> None:
    """Bad input: said at once, also of a log in memory."""
    session = new_session()
    with pytest.raises(InvalidValue, match="start: expected a seq, 0 or more, got"):
        await session.read(bad)  # type: ignore[arg-type]
    if bad is not None:
        with pytest.raises(InvalidValue, match="stop: expected a seq"):
            await session.read(0, bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="from_seq: expected a seq"):
        session.follow(bad)  # type: ignore[arg-type]


async def test_a_range_is_read_in_pages_and_only_where_something_has_left() -> None:
    """One call of the store a page: neither the whole log at once, nor a call a hole."""
    shelf = Shelf()
    session = shelf.session()
    for _ in range(3):
        said(session, 1)
    assert await session.read() == list(session.events)
    assert shelf.pages == []
    shelf.flush(session)
    whole = await session.read()
    assert shelf.pages == [(2, 4), (9, 11), (16, 18)]
    assert whole == shelf.events
    assert all(a is b for a, b in zip(whole, shelf.events, strict=True))
    shelf.pages.clear()
    assert await session.read(4, 9) == whole[4:9]
    assert shelf.pages == []


# --- following ------------------------------------------------------------------------------


async def test_a_follower_far_behind_holds_one_page(autojump_clock: trio.abc.Clock) -> None:
    """BC-54: it is nobody's burden, however little it reads."""
    shelf = Shelf()
    session = shelf.session()
    follower = session.follow()
    said(session, 100)
    shelf.flush(session)
    assert (await follower.__anext__()).seq == 0
    assert [(await follower.__anext__()).seq for _ in range(20)] == list(range(1, 21))
    assert len(follower._page) <= 4
    assert all(stop - start <= 4 for start, stop in shelf.pages)
    assert chunks_in(session) == 0


async def test_what_closing_made_durable_leaves_memory_as_well() -> None:
    """Of a session that is over, and that somebody still looks at."""
    shelf = Shelf()
    session = shelf.session()
    said(session, 10)
    assert chunks_in(session) == 11
    shelf.events += shelf.waiting  # by closing the write path: nobody is told of that
    session.detach()
    assert chunks_in(session) == 0
    assert await session.read() == shelf.events


async def test_a_follower_goes_on_after_the_session_was_detached() -> None:
    shelf = Shelf()
    session = shelf.session()
    said(session, 10)
    shelf.flush(session)
    session.detach()
    assert [event async for event in session.follow(3)] == shelf.events[3:]
    assert await session.read(2, 6) == shelf.events[2:6]


async def test_two_tasks_share_a_follower_and_no_event_comes_twice() -> None:
    shelf = Shelf()
    session = shelf.session()
    said(session, 30)
    shelf.flush(session)
    session.detach()
    follower = session.follow()
    got: list[int] = []

    async def read() -> None:
        got.extend([event.seq async for event in follower])

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(read)
    assert sorted(got) == list(range(len(session.events)))


async def test_cancelled_while_it_reads_back_a_follower_loses_nothing() -> None:
    shelf = Shelf()
    session = shelf.session()
    said(session, 10)
    shelf.flush(session)
    follower = session.follow(2)
    shelf.before = trio.sleep_forever
    for _ in range(2):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follower.__anext__)
                await wait_all_tasks_blocked()
                scope.cancel()
    shelf.before = trio.lowlevel.checkpoint
    assert [(await follower.__anext__()).seq for _ in range(6)] == [2, 3, 4, 5, 6, 7]


def _raise(error: Exception) -> object:
    async def before() -> None:
        await trio.lowlevel.checkpoint()
        raise error

    return before


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StoreError("the disk is gone"), "the disk is gone"),
        (OSError("input/output error"), "reading events 2 to 5 back failed: input/output error"),
        (ExceptionGroup("g", [KeyError("x")]), "session 's': reading events 2 to 5 back failed"),
    ],
    ids=["store", "other", "group"],
)
async def test_a_store_that_cannot_read_back_tells_the_reader_and_nobody_else(
    error: Exception, told: str
) -> None:
    """A StoreError whatever it was; the log goes on, and so does the reader, later."""
    shelf = Shelf()
    session = shelf.session()
    said(session, 10)
    shelf.flush(session)
    follower = session.follow(2)
    shelf.before = _raise(error)  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(StoreError, match=told):
            await follower.__anext__()
    with pytest.raises(StoreError):
        await session.read()
    said(session, 1)
    shelf.flush(session)
    shelf.before = trio.lowlevel.checkpoint
    assert [(await follower.__anext__()).seq for _ in range(5)] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("loss", ["fewer", "others"])
async def test_a_store_that_gives_other_events_is_not_believed(loss: str) -> None:
    shelf = Shelf()
    session = shelf.session()
    said(session, 10)
    shelf.flush(session)
    match loss:
        case "fewer":
            del shelf.events[5:]
        case _:
            shelf.events[4], shelf.events[5] = shelf.events[5], shelf.events[4]
    with pytest.raises(StoreError, match="the store has other events than it was given"):
        await session.read(2, 8)
    with pytest.raises(StoreError, match="other events"):
        await session.follow(4).__anext__()


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(
    ("gives", "told"),
    [
        ([], "the store gives none of them, although it says that it has them"),
        ((), "the store gives none of them"),
        (None, r"expected a list of events from the store's read\(\), got NoneType"),
        ([None], r"got list with \['NoneType'\] in it"),
        (7, "got int"),
    ],
    ids=["nothing", "an empty tuple", "None", "a list of None", "a number"],
)
async def test_a_store_without_what_it_says_it_has_is_no_endless_loop(
    gives: object, told: str, durable: bool
) -> None:
    """Whoever follows or reads is told, at once and each time; when the store is whole again,
    the follower goes on where it was."""
    shelf = Shelf()
    session = shelf.session()
    said(session, 10)
    shelf.flush(session)
    whole_again = session.reader

    async def nothing(start: int, stop: int) -> Any:
        await trio.lowlevel.checkpoint()
        return gives

    session.reader = nothing
    follower = session.follow(4, durable=durable)
    for _ in range(3):
        with pytest.raises(StoreError, match="reading events 4 to 7 back failed: .*" + told):
            await follower.__anext__()
    with pytest.raises(StoreError, match=told):
        await session.read()
    session.reader = whole_again
    assert [(await follower.__anext__()).seq for _ in range(3)] == [4, 5, 6]


async def test_a_page_without_events_is_no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is between the follower and the store."""
    shelf = Shelf()
    session = shelf.session()
    said(session, 10)
    shelf.flush(session)

    async def empty(session: Session, start: int, stop: int) -> list[Event]:
        return []

    monkeypatch.setattr(_reading, "page", empty)
    with pytest.raises(StoreError, match="gives none of them"):
        await session.follow(4).__anext__()


# --- costs ----------------------------------------------------------------------------------


class Counted(list[Event]):
    """A tail that counts how many events are moved in it."""

    moved = 0

    def __delitem__(self, part: object) -> None:
        assert isinstance(part, slice)
        self.moved += len(self)
        super().__delitem__(part)


@contextmanager
def counting(held: Held) -> Iterator[Counted]:
    held.tail = tail = Counted(held.tail)
    yield tail


@pytest.mark.parametrize("step", [1, 7, 100])
def test_releasing_moves_each_event_a_few_times_at_most(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O(1) a piece, whatever the order: also where the store is far behind and creeps up."""
    monkeypatch.setattr(_held, "_MOVED", 0)
    shelf = Shelf()
    session = shelf.session()
    with counting(session.held) as tail:
        for _ in range(40):
            said(session, 20)
        count = len(session.events)
        for _ in range(0, count, step):
            shelf.flush(session, step)
        assert chunks_in(session) < count / 2
        shelf.flush(session)
        said(session, 1)
        shelf.flush(session)
        assert chunks_in(session) == 0
        assert tail.moved < 6 * count


# --- citations ------------------------------------------------------------------------------


def test_an_answer_cites_its_chunks_by_their_range() -> None:
    """C106: equal to their tuple, in memory as from a store, with a gap or without."""
    shelf = Shelf()
    session = shelf.session()
    opened(session)
    stream(session, *[TextDelta(0, "a")] * 50)
    session.record("app/note", {})
    stream(session, *[TextDelta(0, "a")] * 50, Finish(Stop()))
    answered(session, "a" * 100)
    seqs = (*range(2, 52), *range(53, 104))
    sources = session.events[-1].sources
    assert isinstance(sources, Seqs)
    assert sources == seqs
    assert session.events[-1] == loads_event(dumps_event(session.events[-1]), seq_hint=104)
    again = loads_event(dumps_event(session.events[-1]), seq_hint=104)
    assert isinstance(again.sources, Seqs)
    assert hash(again) == hash(session.events[-1])


@given(st.lists(st.integers(0, 60)), st.data())
def test_citations_are_their_tuple_in_less_memory(seqs: list[int], data: st.DataObject) -> None:
    sources = cited(seqs)
    assert sources == tuple(seqs)
    assert tuple(seqs) == sources
    assert hash(sources) == hash(tuple(seqs))
    assert list(sources) == seqs
    assert len(sources) == len(seqs)
    assert cited(sources) == sources
    assert sources != (*seqs, 1)
    assert sources != object()
    part = data.draw(st.slices(len(seqs) + 2))
    assert sources[part] == tuple(seqs)[part]
    for index in range(-len(seqs), len(seqs)):
        assert sources[index] == seqs[index]
    for index in (len(seqs), -len(seqs) - 1):
        with pytest.raises(IndexError):
            sources[index]
    assert all(seq in sources for seq in seqs)
    assert 61 not in sources


def test_two_citations_are_equal_whatever_they_are_made_of() -> None:
    assert cited(range(5, 500)) == of_runs([range(5, 500)]) == cited(tuple(range(5, 500)))
    assert cited(range(5, 500)) != cited(range(5, 501))
    assert repr(cited([*range(5, 50), *range(60, 90)])) == "<Seqs: 5..49, 60..89>"
    assert type(cited([1, 3, 5, 7, 9, 11])) is tuple, "no runs, no gain"


# --- attempts without an answer -------------------------------------------------------------


def test_what_providers_reported_of_attempts_without_answer_is_kept() -> None:
    """For who adds up what was used: their chunks are gone."""
    shelf = Shelf()
    session = shelf.session()
    usage = [Usage(input_tokens=n, output_tokens=1) for n in range(4)]
    opened(session)
    stream(session, UsageChunk(usage[0]), UsageChunk(usage[1]), FAILED)
    stream(session, FAILED)
    stream(session, UsageChunk(usage[2]), Finish(Stop()))
    answered(session, "")
    closed(session)
    opened(session)
    stream(session, UsageChunk(usage[3]), TextDelta(0, " "))
    closed(session)
    shelf.flush(session)
    assert session.place.unanswered == [(4, usage[1]), (15, usage[3])]
    assert chunks_in(session) == 0


@pytest.mark.parametrize("name", RECORDED)
async def test_recorded_runs_read_back(name: str) -> None:
    """C151."""
    log = recorded()[name]
    shelf = Shelf()
    session = shelf.session()
    _log.replay(session, log)
    shelf.events += log
    session.saved()
    assert await session.read() == list(log)
    session.detach()
    got: Sequence[Event] = [event async for event in session.follow()]
    assert got == list(log)
    assert session.place.last_time_ms >= START_MS
