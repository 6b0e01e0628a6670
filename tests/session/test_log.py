"""Session: append, observe, follow, record, replace, fork (C147, C151, C154, C156, C158)."""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import pytest
import trio
import trio.testing
from hypothesis import given, settings, strategies as st
from tests.session.oracle import (
    START_MS,
    Log,
    letters,
    new_session,
    observed,
    recorded,
    replayed,
)
from tests.strategies import extensions, json_values
from tests.strategies_logs import legal_logs, open_logs
from trio.testing import wait_all_tasks_blocked

from terzetto.agent import TrioBell
from terzetto.session import Session, fork_prefix, last_ending, replay
from terzetto.session._codec import TAGS, dumps_event, loads_event
from terzetto.vocabulary import (
    APPEND,
    CompactionStart,
    Completed,
    Draft,
    Event,
    Extension,
    ForkError,
    IllegalEvent,
    InvalidValue,
    JsonObject,
    ReentrantAppend,
    Replace,
    ScopeClosed,
    SessionHeader,
    SessionId,
    StepStart,
    TurnEnd,
    TurnStart,
    UserMessage,
    UserMessageEvent,
    WrongThread,
    new_message_id,
)

RECORDED = sorted(recorded())


def live_session() -> Session:
    """A session that can be followed."""
    header = SessionHeader(id=SessionId("s"), created_ms=START_MS)
    return Session(header, lambda: START_MS, new_message_id, TrioBell())


def note(n: int = 0) -> Extension:
    return Extension("app/note", JsonObject({"n": n}))


def notes(session: Session, *numbers: int) -> None:
    for n in numbers:
        session.append(note(n))


def numbers(events: Sequence[Event]) -> list[Any]:
    return [e.data.data["n"] for e in events if isinstance(e.data, Extension)]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


# --- append ---------------------------------------------------------------------------------


@given(legal_logs(), st.lists(st.integers(-(10**15), 10**15), min_size=1))
def test_seqs_are_contiguous_and_time_never_goes_back(log: Log, times: list[int]) -> None:
    """C151: whatever the clock does."""
    ticks = itertools.cycle(times)
    session = new_session(lambda: next(ticks))
    for event in log:
        session.append(event.data, event.surface_op, event.sources, event.ignorable)
    assert [event.seq for event in session.events] == list(range(len(log)))
    stamps = [event.time_ms for event in session.events]
    assert stamps == sorted(stamps)
    assert [event.data for event in session.events] == [event.data for event in log]


def test_the_clock_is_followed_when_it_goes_forward() -> None:
    """C151."""
    ticks = iter([5, 9, 3, 9, 12])
    session = new_session(lambda: next(ticks))
    notes(session, 1, 2, 3, 4, 5)
    assert [event.time_ms for event in session.events] == [5, 9, 9, 9, 12]


def test_time_goes_on_from_the_replayed_log() -> None:
    """C145, C151: also when the machine's clock is behind the log."""
    session = new_session(lambda: 1)
    replay(session, [Event(0, 500, note())])
    assert session.append(note(1)).time_ms == 500


def test_a_clock_that_fails_changes_nothing() -> None:
    """C151."""

    def broken() -> int:
        raise OSError("no clock")

    session = new_session(broken)
    before = observed(session)
    with pytest.raises(OSError, match="no clock"):
        session.append(note())
    assert observed(session) == before


def test_append_returns_the_event_that_is_in_the_log() -> None:
    """C151."""
    session = new_session()
    event = session.append(TurnStart(1))
    assert session.events[0] is event
    assert event == Event(0, START_MS, TurnStart(1))


def test_appends_are_handed_on_and_shown_in_order() -> None:
    """C146, C151: to the store's buffer, which may refuse, then folded, then to observers."""
    session = new_session()
    told: list[tuple[str, int, int]] = []
    session.sink = lambda event: told.append(("sink", event.seq, len(session.events)))
    session.observe(lambda event: told.append(("first", event.seq, len(session.events))))
    session.observe(lambda event: told.append(("second", event.seq, len(session.events))))
    session.append(note())
    assert told == [("sink", 0, 0), ("first", 0, 1), ("second", 0, 1)]


def test_repair_is_stored_and_not_shown() -> None:
    """C145: at a time of its own."""
    session = new_session()
    stored: list[Event] = []
    shown: list[Event] = []
    session.sink = stored.append
    session.observe(shown.append)
    event = session.append_draft(Draft(TurnStart(1), ignorable=True), 42)
    assert (event.time_ms, event.ignorable) == (42, True)
    assert stored == [event]
    assert shown == []
    shown_too = session.append_draft(Draft(TurnEnd(1, Completed())))
    assert shown == [shown_too]


def test_a_sink_that_refuses_leaves_the_log_as_it_was() -> None:
    """C151: "nothing changes when it is refused" - a closed write handle refuses.

    Otherwise memory holds an event that no store will ever have.
    """
    session = new_session()
    notes(session, 1)
    before = observed(session)

    def closed(event: Event) -> None:
        raise RuntimeError("the write handle is closed")

    session.sink = closed
    with pytest.raises(RuntimeError, match="closed"):
        session.append(note(2))
    assert observed(session) == before


# --- observers ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["append", "draft", "record", "replace"])
def test_an_observer_that_appends_is_refused_and_contained(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C151, C156: `ReentrantAppend`, and the append that it saw stands."""
    session = new_session()
    session.append(TurnStart(1))
    session.append(StepStart(1, 1))
    node = session.append(UserMessageEvent(UserMessage("a")), APPEND).seq
    meddling: dict[str, Callable[[], object]] = {
        "append": lambda: session.append(note(9)),
        "draft": lambda: session.append_draft(Draft(note(9))),
        "record": lambda: session.record("app/note", {"n": 9}),
        "replace": lambda: session.replace(node, node, [UserMessage("b")]),
    }
    refused: list[BaseException] = []
    seen: list[int] = []

    def meddle(event: Event) -> None:
        with pytest.raises(ReentrantAppend) as caught:
            meddling[how]()
        refused.append(caught.value)
        meddling[how]()

    session.observe(meddle)
    session.observe(lambda event: seen.append(event.seq))
    session.append(note(1))
    assert len(refused) == 1
    assert numbers(session.events) == [1]
    assert seen == [3]
    assert len(session.history()) == 1
    assert len(errors(caplog)) == 1
    session.append(note(2))
    assert numbers(session.events) == [1, 2]


def test_an_observer_that_fails_is_contained_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C139, C156, C158."""
    session = new_session()
    seen: list[int] = []

    def fail(event: Event) -> None:
        raise ValueError("first") from KeyError("cause")

    session.observe(fail)
    session.observe(lambda event: seen.append(event.seq))
    event = session.append(note())
    assert list(session.events) == [event]
    assert seen == [0]
    (text,) = errors(caplog)
    assert "first" in text
    assert "cause" in text
    (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert record.name == "terzetto"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_not_an_observers_failure_passes_and_the_event_stands(
    error: type[BaseException],
) -> None:
    """DESIGN 4: Ctrl-C in a listener is raised on; the log is in order."""
    session = new_session()

    def interrupt(event: Event) -> None:
        raise error

    registration = session.observe(interrupt)
    deferred: list[int] = []
    session.observe(lambda event: None)
    with pytest.raises(error):
        session.append(note(1))
    registration.remove()
    session.after_append(lambda: deferred.append(1))
    session.append(note(2))
    assert numbers(session.events) == [1, 2]
    assert deferred == [1]


def test_an_observer_may_come_and_go_in_a_dispatch() -> None:
    session = new_session()
    seen: list[str] = []

    def once(event: Event) -> None:
        seen.append(f"once {event.seq}")
        registration.remove()
        session.observe(lambda later: seen.append(f"added {later.seq}"))

    registration = session.observe(once)
    session.observe(lambda event: seen.append(f"after {event.seq}"))
    notes(session, 1, 2)
    assert seen == ["once 0", "after 0", "after 1", "added 1"]


def test_no_observer_is_told_of_a_replay() -> None:
    session = new_session()
    seen: list[Event] = []
    stored: list[Event] = []
    session.observe(seen.append)
    session.sink = stored.append
    replay(session, recorded()["001-plain-text"])
    assert seen == stored == []


# --- after_append ---------------------------------------------------------------------------


def test_deferred_actions_run_in_order_after_the_append() -> None:
    """DESIGN 3: a cancel from an observer takes effect when the append has returned."""
    session = new_session()
    told: list[str] = []

    def append_and_tell() -> None:
        session.append(note(5))
        told.append("two")

    def observer(event: Event) -> None:
        if event.seq == 0:
            session.after_append(lambda: told.append("one"))
            session.after_append(append_and_tell)
            session.after_append(lambda: told.append(f"three of {len(session.events)}"))
        told.append(f"observed {event.seq}")

    session.observe(observer)
    session.observe(lambda event: told.append(f"last {event.seq}"))
    notes(session, 1)
    assert told[:5] == ["observed 0", "last 0", "one", "observed 1", "last 1"]
    # The second action appends: the third may run inside that append or after the second.
    assert sorted(told[5:]) == ["three of 2", "two"]
    assert numbers(session.events) == [1, 5]


def test_an_action_outside_an_append_runs_at_once() -> None:
    session = new_session()
    told: list[int] = []
    session.after_append(lambda: told.append(len(session.events)))
    assert told == [0]


def test_actions_run_although_an_observer_failed(caplog: pytest.LogCaptureFixture) -> None:
    session = new_session()
    told: list[int] = []

    def fail(event: Event) -> None:
        session.after_append(lambda: told.append(event.seq))
        raise ValueError("no")

    session.observe(fail)
    notes(session, 1, 2)
    assert told == [0, 1]
    assert len(errors(caplog)) == 2


def test_an_action_that_fails_does_not_hold_up_the_others() -> None:
    """`after_append` runs an action "when the append in progress has returned": all of them."""
    session = new_session()
    told: list[str] = []

    def observer(event: Event) -> None:
        def fail() -> None:
            raise ValueError("no")

        session.after_append(fail)
        session.after_append(lambda: told.append(f"after {event.seq}"))

    session.observe(observer)
    with pytest.raises(ValueError, match="no"):
        session.append(note(1))
    assert told == ["after 0"]


# --- threads --------------------------------------------------------------------------------


def in_a_thread(act: Callable[[], object]) -> BaseException | None:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return caught[0] if caught else None


@pytest.mark.parametrize("how", ["append", "draft", "record", "replace"])
def test_another_thread_is_refused_before_anything_changes(how: str) -> None:
    """DESIGN 1: plain methods belong to the Trio thread."""
    session = new_session()
    session.append(TurnStart(1))
    session.append(StepStart(1, 1))
    node = session.append(UserMessageEvent(UserMessage("a")), APPEND).seq
    acts: dict[str, Callable[[], object]] = {
        "append": lambda: session.append(note()),
        "draft": lambda: session.append_draft(Draft(note())),
        "record": lambda: session.record("app/note", {}),
        "replace": lambda: session.replace(node, node, [UserMessage("b")]),
    }
    before = observed(session)
    error = in_a_thread(acts[how])
    assert isinstance(error, WrongThread)
    assert observed(session) == before


def test_another_thread_is_told_so_during_an_append_too() -> None:
    """DESIGN 1: the thread is what is wrong, not an observer."""
    session = new_session()
    found: list[BaseException | None] = []
    session.observe(lambda event: found.append(in_a_thread(lambda: session.append(note()))))
    session.append(note())
    assert [type(error) for error in found] == [WrongThread]
    assert len(session.events) == 1


# --- record ---------------------------------------------------------------------------------

NOT_LOSSLESS: dict[str, Callable[[], Any]] = {
    "nan": lambda: math.nan,
    "infinity": lambda: math.inf,
    "minus infinity": lambda: -math.inf,
    "minus zero": lambda: -0.0,
    "high surrogate": lambda: "a\ud83d",
    "low surrogate": lambda: "\ude00b",
    "surrogate key": lambda: {"\ud800": 1},
    "int key": lambda: {1: "a"},
    "None key": lambda: {None: "a"},
    "bytes key": lambda: {b"a": 1},
    "bytes": lambda: b"a",
    "bytearray": lambda: bytearray(b"a"),
    "set": lambda: {1},
    "object": object,
    "complex": lambda: 1j,
    "generator": lambda: (n for n in "ab"),
    "exception": lambda: ValueError("x"),
    "function": lambda: len,
    "cyclic list": lambda: _cyclic_list(),
    "cyclic dict": lambda: _cyclic_dict(),
    "too deep": lambda: _deep(201),
}


def _cyclic_list() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def _cyclic_dict() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["self"] = [found]
    return found


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("what", NOT_LOSSLESS)
@pytest.mark.parametrize("where", ["value", "in a list", "in an object"])
def test_record_refuses_what_json_would_lose(what: str, where: str) -> None:
    """C148, C151: and leaves the log untouched."""
    session = new_session()
    notes(session, 1)
    before = observed(session)
    wrong = NOT_LOSSLESS[what]()
    data = {
        "value": {"x": wrong},
        "in a list": {"x": [0, wrong]},
        "in an object": {"x": {"y": wrong}},
    }
    with pytest.raises(InvalidValue):
        session.record("app/note", data[where])
    assert observed(session) == before


@pytest.mark.parametrize("data", [[], "text", 1, None, [("a", 1)]], ids=repr)
def test_record_takes_objects_only(data: Any) -> None:
    """C151."""
    session = new_session()
    with pytest.raises(InvalidValue):
        session.record("app/note", data)
    assert len(session.events) == 0


@pytest.mark.parametrize("name", sorted(TAGS.values()))
def test_record_refuses_the_names_of_the_format(name: str) -> None:
    """C155, C158: nobody forges a fact of the engine."""
    session = new_session()
    with pytest.raises(InvalidValue):
        session.record(name, {})
    with pytest.raises(InvalidValue):
        session.record(f"{name.partition('/')[0]}/of-mine", {})
    assert len(session.events) == 0


def test_record_refuses_an_empty_name() -> None:
    session = new_session()
    with pytest.raises(InvalidValue):
        session.record("", {})
    assert len(session.events) == 0


@given(extensions(), st.booleans())
def test_what_record_takes_is_in_the_log_as_it_was(extension: Extension, ignorable: bool) -> None:
    """C151, C155."""
    session = new_session()
    name = f"app/{extension.name}"
    event = session.record(name, dict(extension.data), ignorable=ignorable)
    assert event.data == Extension(name, extension.data)
    assert event.ignorable is ignorable
    assert event.surface_op is None
    assert list(session.events) == [event]
    assert session.history() == []
    record = dumps_event(event)
    assert loads_event(record, seq_hint=0, extensions=[name]) == event


@given(json_values())
def test_recorded_data_is_detached_and_immutable(value: Any) -> None:
    """C151: what the caller does to its containers afterwards changes nothing."""
    session = new_session()
    mine = {"plain": _thawed(value), "nested": {"list": [1, {"a": "b"}]}}
    event = session.record("app/note", mine)
    assert isinstance(event.data, Extension)
    before = dumps_event(event)
    _spoil(mine)
    assert dumps_event(event) == before
    assert not list(_mutable_parts(event.data.data))
    data: Any = event.data.data
    with pytest.raises(TypeError):
        data["x"] = 1


def _thawed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _thawed(item) for key, item in value.items()}
    return [_thawed(item) for item in value] if isinstance(value, tuple) else value


def _spoil(value: Any) -> None:
    if isinstance(value, dict):
        for item in value.values():
            _spoil(item)
        value.clear()
    elif isinstance(value, list):
        for item in value:
            _spoil(item)
        value.append("spoiled")


def _mutable_parts(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list, set)):
        yield value
    elif isinstance(value, JsonObject):
        for item in value.values():
            yield from _mutable_parts(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _mutable_parts(item)


def test_a_recorded_bool_stays_a_bool() -> None:
    """C151: equal in Python is not the same in JSON."""
    session = new_session()
    event = session.record("app/note", {"a": True, "b": 1, "c": 1.0, "d": None, "e": ""})
    assert b'{"a":true,"b":1,"c":1.0,"d":null,"e":""}' in dumps_event(event)


HAND_MADE: dict[str, Callable[[], JsonObject]] = {
    "nan": lambda: JsonObject({"x": math.nan}),
    "minus zero": lambda: JsonObject({"x": -0.0}),
    "surrogate": lambda: JsonObject({"x": "\ud800"}),
    "surrogate key": lambda: JsonObject({"\ud800": 1}),
    "bytes": lambda: JsonObject({"x": b"a"}),
    "int key": lambda: JsonObject(cast(Any, {1: 2})),
}


@pytest.mark.parametrize("what", HAND_MADE)
@pytest.mark.parametrize("nested", [False, True])
def test_a_hand_made_object_is_checked_like_any_other(what: str, nested: bool) -> None:
    """C148, C151: whether it is refused when it is made or when it is recorded."""
    session = new_session()
    before = observed(session)
    with pytest.raises(InvalidValue):
        made: Any = HAND_MADE[what]()
        session.record("app/note", {"in": made} if nested else made)
    assert observed(session) == before


def test_a_hand_made_object_is_detached_too() -> None:
    """C151."""
    session = new_session()
    items: Any = [1]
    event = session.record("app/note", {"in": JsonObject({"items": items})})
    before = dumps_event(event)
    items.append(2)
    assert dumps_event(event) == before


def test_depth_is_counted_through_what_was_frozen_before() -> None:
    """C148: each event may quote the one before it, and the log stays writable."""
    session = new_session()
    quoted: Any = {}
    with suppress(InvalidValue):
        for _ in range(500):
            event = session.record("app/note", {"before": quoted})
            assert isinstance(event.data, Extension)
            quoted = event.data.data
    assert len(session.events) > 100
    assert all(dumps_event(event) for event in session.events)


@pytest.mark.parametrize("levels", range(190, 210))
def test_what_is_not_too_deep_to_record_is_not_too_deep_to_write(levels: int) -> None:
    """C148: one limit for both, at its edge."""
    session = new_session()
    with suppress(InvalidValue):
        session.record("app/note", {"x": _deep(levels)})
    assert all(dumps_event(event) for event in session.events)


def test_a_name_that_cannot_be_written_is_refused_or_cleaned() -> None:
    """C148: UTF-8 has no lone surrogates."""
    session = new_session()
    with suppress(InvalidValue):
        session.record("app/\ud800", {})
    assert all(dumps_event(event) for event in session.events)


def test_subclasses_of_plain_values_are_written_as_what_they_are() -> None:
    """C151: a log holds JSON, not somebody's classes."""

    class Name(str):
        __slots__ = ()

    class Size(int):
        pass

    session = new_session()
    event = session.record("app/note", {"name": Name("n"), "size": Size(3)})
    assert dumps_event(event).endswith(b'"data":{"name":"n","size":3}}')


# --- reading ------------------------------------------------------------------------------


@given(open_logs(splitting=True), st.slices(30), st.integers(-40, 40))
def test_events_are_a_read_only_sequence(log: Log, part: slice, index: int) -> None:
    """C151."""
    events = replayed(log).events
    assert len(events) == len(log)
    assert list(events) == list(log)
    assert events[part] == list(log[part])
    if -len(log) <= index < len(log):
        assert events[index] == log[index]
    else:
        with pytest.raises(IndexError):
            events[index]
    events[part].clear()
    assert list(events) == list(log)
    changeable: Any = events
    with pytest.raises(TypeError):
        changeable[0] = None


def test_events_grow_with_the_log() -> None:
    session = new_session()
    events = session.events
    assert len(events) == 0
    notes(session, 1, 2)
    assert numbers(events) == [1, 2]
    assert events[-1].seq == 1


async def test_read_gives_a_range() -> None:
    session = new_session()
    notes(session, *range(5))
    assert numbers(await session.read()) == [0, 1, 2, 3, 4]
    assert numbers(await session.read(2)) == [2, 3, 4]
    assert numbers(await session.read(1, 3)) == [1, 2]
    assert numbers(await session.read(3, 99)) == [3, 4]
    assert await session.read(4, 2) == []
    assert await session.read(9) == []
    (await session.read()).clear()
    assert len(session.events) == 5


@pytest.mark.parametrize("name", RECORDED)
def test_last_ending_is_that_of_the_last_closed_turn(name: str) -> None:
    log = recorded()[name]
    endings = [event.data for event in log if isinstance(event.data, TurnEnd)]
    assert last_ending(replayed(log)) == (endings[-1] if endings else None)


# --- follow ---------------------------------------------------------------------------------


class Readers:
    """Tasks that follow one session; slow ones wait for a permit after each event."""

    def __init__(self, session: Session, nursery: trio.Nursery) -> None:
        self.session = session
        self.nursery = nursery
        self.got: list[list[Event]] = []
        self.start: list[int] = []
        self.permits: list[trio.Semaphore | None] = []
        self.ended = 0

    def add(self, from_seq: int, *, slow: bool) -> None:
        permits = trio.Semaphore(0) if slow else None
        self.got.append([])
        self.start.append(from_seq)
        self.permits.append(permits)
        self.nursery.start_soon(self._read, self.got[-1], from_seq, permits)

    async def _read(self, got: list[Event], seq: int, permits: trio.Semaphore | None) -> None:
        async for event in self.session.follow(seq):
            got.append(event)
            if permits is not None:
                await permits.acquire()
        self.ended += 1

    def release(self, count: int) -> None:
        for permits in self.permits:
            for _ in range(count if permits is not None else 0):
                assert permits is not None
                permits.release()


PLANS = st.lists(
    st.tuples(st.just("append"), st.integers(1, 3))
    | st.tuples(st.sampled_from(["fast", "slow"]), st.integers(0, 8))
    | st.tuples(st.just("release"), st.integers(1, 3))
    | st.tuples(st.just("settle"), st.just(0)),
    max_size=12,
)


@given(PLANS, st.booleans())
@settings(max_examples=60)
def test_every_reader_gets_every_event_once_and_in_order(
    plan: list[tuple[str, int]], detach_early: bool
) -> None:
    """C158: late readers, slow readers, several; nobody is held up; all end at detach."""

    async def main() -> None:
        session = live_session()
        async with trio.open_nursery() as nursery:
            readers = Readers(session, nursery)
            for act, n in plan:
                match act:
                    case "append":
                        notes(session, *range(n))
                    case "release":
                        readers.release(n)
                    case "settle":
                        await wait_all_tasks_blocked()
                        check(session, readers)
                    case kind:
                        readers.add(n, slow=kind == "slow")
            if not detach_early:
                await wait_all_tasks_blocked()
            session.detach()
            readers.release(100)
            await wait_all_tasks_blocked()
            ended = readers.ended
            nursery.cancel_scope.cancel()
        assert ended == len(readers.got)
        for start, got in zip(readers.start, readers.got, strict=True):
            assert got == session.events[start:]

    def check(session: Session, readers: Readers) -> None:
        for start, got, permits in zip(readers.start, readers.got, readers.permits, strict=True):
            assert got == session.events[start : start + len(got)]
            if permits is None:
                assert got == session.events[start:]

    trio.run(main)


async def test_a_follower_wakes_for_an_event_appended_while_it_waits() -> None:
    session = live_session()
    follower = session.follow()
    got: list[Event] = []

    async def read() -> None:
        got.append(await anext(follower))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert got == []
        event = session.append(note())
        await wait_all_tasks_blocked()
        assert got == [event]


async def test_a_cancelled_read_loses_nothing() -> None:
    """A reader may be cancelled while it waits and go on with the same follower."""
    session = live_session()
    follower = session.follow()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(anext, follower)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    notes(session, 1, 2)
    assert numbers([await anext(follower), await anext(follower)]) == [1, 2]


async def test_a_follower_of_a_detached_session_reads_to_the_end_and_stays_ended() -> None:
    session = live_session()
    notes(session, 1, 2)
    session.detach()
    follower = session.follow()
    assert numbers([event async for event in follower]) == [1, 2]
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await anext(follower)


async def test_every_step_of_a_follower_is_a_checkpoint() -> None:
    """A public async function always is one: a long log must not hold up the program."""
    session = live_session()
    notes(session, *range(100))
    follower = session.follow()
    with trio.testing.assert_checkpoints():
        await anext(follower)


async def test_reading_a_long_log_can_be_cancelled() -> None:
    """Nobody else runs, and no deadline is seen, between events that are there already."""
    session = live_session()
    notes(session, *range(100))
    got = 0
    with trio.CancelScope() as scope:
        async for _ in session.follow():
            got += 1
            scope.cancel()
            if got == 100:
                break
    assert got == 1


async def test_read_is_a_checkpoint() -> None:
    session = live_session()
    with trio.testing.assert_checkpoints():
        await session.read()


@pytest.mark.parametrize("seq", [-1, -100])
def test_follow_refuses_a_negative_seq(seq: int) -> None:
    with pytest.raises(InvalidValue, match="from_seq"):
        live_session().follow(seq)


async def test_nobody_waits_for_a_session_that_is_not_live() -> None:
    session = new_session()
    notes(session, 1)
    follower = session.follow()
    assert numbers([await anext(follower)]) == [1]
    with pytest.raises(InvalidValue, match="not live"):
        await anext(follower)


async def test_durable_followers_see_what_the_store_has() -> None:
    """C147: `follow()` shows what is logged, `follow(durable=True)` what is durable."""
    session = live_session()
    stored = -1
    session.durable = lambda: stored
    got: list[Event] = []
    ended: list[bool] = []

    async def collect() -> None:
        async for event in session.follow(1, durable=True):
            assert event.seq <= stored
            got.append(event)
        ended.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect)
        notes(session, 0, 1, 2, 3)
        await wait_all_tasks_blocked()
        assert got == []
        stored = 2
        session.bell.ring()
        await wait_all_tasks_blocked()
        assert numbers(got) == [1, 2]
        session.detach()
        await wait_all_tasks_blocked()
        assert ended
        nursery.cancel_scope.cancel()
    assert numbers(got) == [1, 2]
    assert session.durable_seq == 2


def test_without_a_store_nothing_is_durable() -> None:
    session = new_session()
    notes(session, 1)
    assert session.durable_seq == -1


def test_a_detached_session_has_no_observers() -> None:
    """C29: late completions stay silent."""
    session = live_session()
    seen: list[Event] = []
    registration = session.observe(seen.append)
    session.detach()
    session.detach()
    with pytest.raises(ScopeClosed):
        session.observe(seen.append)
    registration.remove()
    assert len(session.events) == 0
    assert not session.attached


# --- fork -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
def test_a_fork_ends_outside_an_open_turn(name: str) -> None:
    """C154."""
    log = recorded()[name]
    for stop in range(len(log) + 1):
        word = letters(log[:stop])
        if word.count("T") == word.count("t"):
            assert fork_prefix(log, stop) == list(log[:stop])
        else:
            with pytest.raises(ForkError) as caught:
                fork_prefix(log, stop)
            assert caught.value.code == "OPEN_TURN"
    assert fork_prefix(log) == list(log)


@pytest.mark.parametrize("stop", [-1, -100, 4, 100])
def test_a_boundary_outside_the_log_is_invalid(stop: int) -> None:
    """C154."""
    session = new_session()
    notes(session, 1, 2, 3)
    with pytest.raises(ForkError) as caught:
        fork_prefix(session.events, stop)
    assert caught.value.code == "INVALID_BOUNDARY"
    assert str(stop) in str(caught.value)


def test_a_fork_of_an_open_log_is_refused_whole() -> None:
    """C154."""
    session = new_session()
    notes(session, 1)
    session.append(TurnStart(1))
    with pytest.raises(ForkError) as caught:
        fork_prefix(session.events)
    assert caught.value.code == "OPEN_TURN"
    assert fork_prefix(session.events, 1) == [session.events[0]]
    assert fork_prefix(session.events, 0) == []
    assert fork_prefix([]) == []


def test_a_fork_is_a_list_of_its_own() -> None:
    session = new_session()
    notes(session, 1)
    prefix = fork_prefix(session.events)
    notes(session, 2)
    assert numbers(prefix) == [1]
    prefix.clear()
    assert len(session.events) == 2


# --- refusals -------------------------------------------------------------------------------


@given(open_logs(splitting=True))
def test_a_refused_append_changes_nothing_anywhere_in_a_log(log: Log) -> None:
    """C151: every kind of refusal, at every kind of place."""
    session = replayed(log)
    before = observed(session)
    turn = session.place.last_turn
    refused: list[Draft] = [
        Draft(TurnStart(turn + 2)),
        Draft(TurnEnd(turn + 1, Completed())),
        Draft(StepStart(turn, session.place.last_step + 2)),
        Draft(UserMessageEvent(UserMessage("x"))),
        Draft(UserMessageEvent(UserMessage("x")), Replace(10**6, 10**6), (0,)),
        Draft(CompactionStart("x"), APPEND),
        Draft(note(), None, (len(log),)),
    ]
    for draft in refused:
        with pytest.raises(IllegalEvent) as caught:
            session.append_draft(draft)
        assert caught.value.seq == len(log)
        assert observed(session) == before
    event = session.append(note())
    assert event.seq == len(log)
