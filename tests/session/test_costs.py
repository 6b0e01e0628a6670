"""What an event costs to read, write, replay and append, counted without a clock.

The bounds are the counts of today, with nothing to spare but for headers, whose options
cattrs reads: whoever needs one more call for every chunk of every stream says so here.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import terzetto
from terzetto.session import Session, _log, replay
from terzetto.session._codec import dumps_event, loads_event
from terzetto.vocabulary import (
    APPEND,
    AssistantChunk,
    AssistantMessage,
    AssistantMessageEvent,
    BlockEnd,
    BlockStart,
    CallConfig,
    CallId,
    Completed,
    Event,
    Finish,
    InboxSpliced,
    MessageId,
    ModelSource,
    Replace,
    RequestHeader,
    RequestHeaderEvent,
    SessionHeader,
    SessionId,
    StepEnd,
    StepStart,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallEvent,
    ToolCalls,
    ToolResultBlock,
    ToolResultEvent,
    ToolSource,
    TurnEnd,
    TurnStart,
    Usage,
    UsageChunk,
    UserMessage,
    UserMessageEvent,
)

TIME = 1_700_000_000_000


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """What the profiler is told meanwhile. The collector rests: who hooks into it calls too."""
    seen: Counter[str] = Counter()

    def profile(frame: FrameType, what: str, _: object) -> None:
        seen[what] += 1

    before, collecting = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(profile)
    try:
        yield seen
    finally:
        sys.setprofile(before)
        if collecting:
            gc.enable()


def calls(work: Callable[[], object]) -> int:
    """How many Python functions run while *work* does."""
    with counting() as nothing:
        (lambda: None)()
    with counting() as seen:
        work()
    return seen["call"] - nothing["call"]


def session() -> Session:
    return Session(SessionHeader(id=SessionId("s"), created_ms=1), now_ms=lambda: TIME)


def turn(log: Session, number: int) -> None:
    """One turn with a tool call: every event that a usual turn has."""
    message = UserMessage("go on", id=MessageId(f"in-{number}"))
    log.append(InboxSpliced("next-turn", 0, 0, (message,)))
    log.append(TurnStart(number))
    log.append(InboxSpliced("next-turn", 0, 1))
    log.append(StepStart(number, 1))
    log.append(UserMessageEvent(message), APPEND)
    header = RequestHeader(config=CallConfig(provider="p", model="m"))
    log.append(RequestHeaderEvent(header, "initial"))
    call = ToolCallBlock(CallId(f"call-{number}"), "tool", "{}")
    first = log.place.next_seq
    log.append(AssistantChunk(number, 1, BlockStart(0, "text")))
    for _ in range(5):
        log.append(AssistantChunk(number, 1, TextDelta(0, "some text")))
    log.append(AssistantChunk(number, 1, BlockEnd(1, call)))
    usage = Usage(input_tokens=1, output_tokens=1)
    log.append(AssistantChunk(number, 1, UsageChunk(usage)))
    log.append(AssistantChunk(number, 1, Finish(ToolCalls())))
    answer = AssistantMessage(
        (TextBlock("some text" * 5), call), ModelSource("p", "m"), MessageId(f"out-{number}")
    )
    cited = tuple(range(first, log.place.next_seq))
    log.append(AssistantMessageEvent(number, 1, answer, usage), APPEND, cited)
    started = log.append(ToolCallEvent(number, 1, call.id, call.name, call.arguments))
    result = UserMessage(
        (ToolResultBlock(call.id, (TextBlock("done"),)),),
        ToolSource(call.id),
        MessageId(f"result-{number}"),
    )
    log.append(ToolResultEvent(number, 1, result), APPEND, (started.seq,))
    log.append(StepEnd(number, 1))
    log.append(TurnEnd(number, Completed()))


def recorded(turns: int) -> list[Event]:
    log = session()
    for number in range(1, turns + 1):
        turn(log, number)
    return list(log.events)


CHUNK = Event(1000, TIME, AssistantChunk(1, 1, TextDelta(0, "some text")))
TURN = recorded(1)


def of_each(events: Iterable[Event], most: dict[type, int], cost: Callable[[Event], int]) -> None:
    told = {type(event.data).__name__: (cost(event), most[type(event.data)]) for event in events}
    assert not {name: both for name, both in told.items() if both[0] > both[1]}


READING = {
    InboxSpliced: 11,
    TurnStart: 5,
    StepStart: 5,
    UserMessageEvent: 11,
    RequestHeaderEvent: 30,
    AssistantChunk: 7,
    AssistantMessageEvent: 16,
    ToolCallEvent: 5,
    ToolResultEvent: 16,
    StepEnd: 5,
    TurnEnd: 6,
}
"""Calls to read one record: three to begin with, then one for every object in it."""


def test_reading_an_event_calls_one_function_for_each_object_in_it() -> None:
    records = [dumps_event(event) for event in TURN]
    for record in records:  # the functions are made at first use
        loads_event(record, seq_hint=0)

    def cost(event: Event) -> int:
        record = dumps_event(event)
        return calls(lambda: loads_event(record, seq_hint=0))

    assert cost(CHUNK) <= 6
    of_each(TURN, READING, cost)


WRITING = {
    InboxSpliced: 6,
    TurnStart: 2,
    StepStart: 2,
    UserMessageEvent: 6,
    RequestHeaderEvent: 14,
    AssistantChunk: 4,
    AssistantMessageEvent: 7,
    ToolCallEvent: 2,
    ToolResultEvent: 8,
    StepEnd: 2,
    TurnEnd: 3,
}
"""Calls to write one event: two for itself and what it always is made of, then one for every
object that might be of several classes, and for every list of them."""


def test_writing_an_event_calls_a_function_where_its_objects_may_differ() -> None:
    for event in TURN:
        dumps_event(event)
    assert calls(lambda: dumps_event(CHUNK)) <= 3
    of_each(TURN, WRITING, lambda event: calls(lambda: dumps_event(event)))


def test_appending_a_chunk_makes_few_calls_however_long_the_log_is() -> None:
    log = session()
    for number in range(1, 40):
        turn(log, number)
    log.append(TurnStart(40))
    log.append(StepStart(40, 1))
    data = AssistantChunk(40, 1, TextDelta(0, "some text"))
    log.append(data)
    counted = {calls(lambda: log.append(data)) for _ in range(500)}
    assert len(counted) == 1
    assert counted.pop() <= 15


def test_replaying_a_turn_costs_the_same_at_the_end_of_a_long_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Now and then a thousand events are packed together: that is not counted here.
    monkeypatch.setattr(_log, "_FEW", sys.maxsize)
    events = recorded(60)
    marks: list[int] = []

    def counted() -> Iterable[Event]:
        for event in events:
            if type(event.data) is TurnStart:
                marks.append(seen["call"])
            yield event

    copy = session()
    with counting() as seen:
        replay(copy, counted())
    turns = {later - earlier for earlier, later in pairwise(marks[1:])}
    assert len(turns) == 1
    assert turns.pop() <= 12.2 * len(TURN)
    assert list(copy.events) == events


def test_a_chunk_that_was_read_keeps_its_three_objects_and_nothing_of_the_reading() -> None:
    records = [
        dumps_event(Event(1000 + i, TIME + i, AssistantChunk(1, 1, TextDelta(0, f"text {i}"))))
        for i in range(2000)
    ]
    loads_event(records[0], seq_hint=0)
    kept: list[Any] = [None] * len(records)
    gc.collect()
    tracked, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    for i, record in enumerate(records):
        kept[i] = loads_event(record, seq_hint=0)
    gc.collect()
    assert len(gc.get_objects()) - tracked <= 3 * len(records) + 20
    # The objects, the text, the seq and the time.
    assert sys.getallocatedblocks() - blocks <= 6 * len(records) + 200


def test_importing_makes_no_function_of_the_codec() -> None:
    code = (
        "from terzetto.session import _codec as c\n"
        "s = c._STRAIGHT\n"
        "print(len(s.decoders) + len(s.encoders) + len(s.events))"
    )
    source = Path(terzetto.__file__).parents[1]  # what is tested, whatever is installed
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint(c.__file__)"],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        check=True,
        text=True,
    )
    made, where = shown.stdout.splitlines()
    assert made == "0"
    assert Path(where).is_relative_to(source)


@pytest.mark.parametrize("size", [10, 1000])
def test_citations_are_read_and_written_without_a_call_for_each(size: int) -> None:
    event = Event(5000, TIME, TURN[1].data, sources=tuple(range(100, 100 + size)))
    record = dumps_event(event)
    assert loads_event(record, seq_hint=0) == event
    assert calls(lambda: dumps_event(event)) <= 6
    assert calls(lambda: loads_event(record, seq_hint=0)) <= 12


def test_shortening_a_node_costs_the_same_on_a_long_surface() -> None:
    def cost(size: int) -> int:
        log = session()
        log.append(TurnStart(1))
        log.append(StepStart(1, 1))
        nodes = [log.append(UserMessageEvent(UserMessage(f"{i}")), APPEND) for i in range(size)]
        middle = nodes[size // 2].seq
        short = UserMessageEvent(UserMessage("short"))
        counted = calls(lambda: log.append(short, Replace(middle, middle), (middle,)))
        texts = [message.text for message in log.history() if isinstance(message, UserMessage)]
        assert texts == [
            *map(str, range(size // 2)),
            "short",
            *map(str, range(size // 2 + 1, size)),
        ]
        return counted

    assert cost(500) == cost(10)
