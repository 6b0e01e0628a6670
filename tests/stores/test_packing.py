"""Packed lines: nothing is lost, nothing is added, and no changed byte is taken for written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings, strategies as st
from tests.strategies import chunks, logs

from terzetto import vocabulary as v
from terzetto.session._codec import decode_event, dumps_event, encode_event, loads_json
from terzetto.stores._packing import MOST, count_of, is_run, pack, seal, unpack, unseal


def odd_times() -> st.SearchStrategy[int]:
    """Later, earlier, equal, and far away."""
    return st.integers(1_000, 1_030) | st.sampled_from([0, 1, 2**52, 2**53, 2**62])


@st.composite
def streams(draw: st.DrawFn) -> list[v.Event]:
    """Chunks of every kind, often alike, of few steps, at odd times, with other events between."""
    like = st.builds(v.TextDelta, st.integers(0, 1), st.text(max_size=3)) | st.builds(
        v.ToolCallDelta,
        st.just(0),
        st.just(v.CallId("c")),
        st.text(max_size=3),
        st.none() | st.just("f"),
    )
    steps = st.sampled_from([1, 1, 1, 2])
    data = st.builds(v.AssistantChunk, st.just(1), steps, like | like | chunks())
    found = draw(st.lists(st.tuples(odd_times(), data), max_size=12))
    events = [v.Event(0, at, one) for at, one in found]
    events += draw(logs(3))
    events = draw(st.permutations(events))
    return [evolve(event, seq=seq) for seq, event in enumerate(events)]


def packed(events: list[v.Event]) -> list[tuple[int, bytes]]:
    return list(pack(encode_event(event) for event in events))


def unpacked(lines: list[tuple[int, bytes]]) -> list[v.Event]:
    events: list[v.Event] = []
    for count, line in lines:
        record = unseal(line)
        objects: list[Any] = unpack(record) if is_run(record) else [loads_json(record)]
        assert len(objects) == count
        if is_run(record):
            assert count_of(record, len(events)) == count
        events += (decode_event(obj, seq_hint=len(events)) for obj in objects)
    return events


few = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@few
@given(streams() | logs(4))
def test_nothing_is_lost(events: list[v.Event]) -> None:
    lines = packed(events)
    assert unpacked(lines) == events
    assert all(b"\n" not in line for _, line in lines)


@few
@given(streams())
def test_what_was_unpacked_is_packed_the_same(events: list[v.Event]) -> None:
    """And each record is the one that the plain layout has, byte for byte."""
    lines = packed(events)
    assert packed(unpacked(lines)) == lines
    records = [
        json.dumps(obj, ensure_ascii=False, separators=(",", ":")).encode()
        for _, line in lines
        for obj in (unpack(unseal(line)) if is_run(line) else [loads_json(unseal(line))])
    ]
    assert [json.loads(one) for one in records] == [json.loads(dumps_event(e)) for e in events]


def deltas(count: int, start: int = 0) -> list[v.Event]:
    return [
        v.Event(seq, 1_000 + seq, v.AssistantChunk(1, 1, v.TextDelta(0, f"w{seq} ")))
        for seq in range(start, start + count)
    ]


def test_successive_chunks_of_a_step_share_a_line() -> None:
    [(count, line)] = packed(deltas(100))
    assert count == 100
    assert loads_json(unseal(line)) == {
        "run": "assistant/chunk",
        "seq": 0,
        "time": 1000,
        "turn": 1,
        "step": 1,
        "gaps": [1] * 99,
        "chunks": [{"type": "text-delta", "index": 0, "text": [f"w{seq} " for seq in range(100)]}],
    }


def test_a_run_has_an_end() -> None:
    assert [count for count, _ in packed(deltas(2 * MOST + 1))] == [MOST, MOST, 1]


def test_what_is_not_like_its_neighbours_ends_a_run() -> None:
    first = deltas(9)
    first[3] = evolve(first[3], data=v.AssistantChunk(1, 2, v.TextDelta(0, "x")))
    first[6] = evolve(first[6], ignorable=True)
    first[8] = evolve(first[8], time_ms=2**60)
    assert [count for count, _ in packed(first)] == [3, 1, 2, 1, 1, 1]
    assert unpacked(packed(first)) == first
    apart = [*deltas(2), *deltas(2, start=7)]
    assert [count for count, _ in packed(apart)] == [2, 2]


@settings(max_examples=100)
@given(st.binary(max_size=40) | st.just(b'"seq":1'), st.data())
def test_a_changed_byte_of_a_line_is_noticed(body: bytes, data: st.DataObject) -> None:
    record = b"{" + body + b"}"
    line = seal(record)
    assert unseal(line) == record
    at = data.draw(st.integers(0, len(line) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != line[at]))
    with pytest.raises(v.InvalidValue, match="checksum"):
        unseal(line[:at] + bytes([byte]) + line[at + 1 :])
    with pytest.raises(v.InvalidValue, match="checksum"):
        unseal(line[:at] + line[at + 1 :])


GOOD: dict[str, Any] = {
    "run": "assistant/chunk",
    "seq": 3,
    "time": 5,
    "turn": 1,
    "step": 1,
    "gaps": [1],
    "chunks": [{"type": "text-delta", "index": 0, "text": ["a", "b"]}],
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chunks": [{"type": "text-delta", "index": 0, "text": ["a"]}]}, "1 chunks at 2 times"),
        ({"chunks": [{"type": "text-delta", "index": 0, "text": "ab"}]}, "expected a list as"),
        ({"chunks": ["a", "b"]}, "a chunk is no object"),
        ({"chunks": {}}, "of another type"),
        ({"gaps": ["1"]}, "a time is no integer"),
        ({"time": 1.5}, "a time is no integer"),
        ({"seq": "3"}, "of another type"),
        ({"run": "turn/start"}, "not a run of chunks"),
        ({"more": 1}, "not a run of chunks"),
    ],
)
def test_what_is_no_run_is_refused(changes: dict[str, Any], words: str) -> None:
    """Its checksum may be right: somebody else can have written it."""
    good = json.dumps(GOOD).encode()
    assert len(unpack(good)) == 2
    with pytest.raises(v.InvalidValue, match=words):
        unpack(json.dumps(GOOD | changes).encode())


def test_what_is_counted_as_a_run_is_looked_at() -> None:
    assert count_of(json.dumps(GOOD).encode(), 3) == 2
    for changes, words in (
        ({"seq": 4}, "seq 4 where 3 comes next"),
        ({"run": "x"}, "expected one of 'assistant/chunk'"),
        ({"gaps": 1}, "not a run of chunks"),
    ):
        with pytest.raises(v.InvalidValue, match=words):
            count_of(json.dumps(GOOD | changes).encode(), 3)
