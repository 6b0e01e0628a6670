"""The codec refuses what is wrong, both ways, and says where."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from terzetto.session._codec import (
    decode_event,
    dumps_event,
    loads_event,
)
from terzetto.vocabulary import (
    AssistantMessageEvent,
    Event,
    Extension,
    InvalidValue,
    StepStart,
    Stop,
    ToolCallEvent,
    TurnEnd,
    TurnStart,
    UserMessage,
    UserMessageEvent,
    freeze_object,
)

TIME = 1_700_000_000_000


def event_json(data: object, type: str, **more: object) -> dict[str, Any]:
    return {"type": type, "seq": 7, "time": TIME, "data": data, **more}


def refusal(obj: object, *, seq_hint: int = 99) -> str:
    with pytest.raises(InvalidValue) as caught:
        decode_event(obj, seq_hint=seq_hint)
    return str(caught.value)


USER = {"role": "user", "content": [], "source": {"kind": "user"}, "id": "m"}
CHUNK = {"turn": 1, "step": 1}
USAGE = {"inputTokens": 1.5, "outputTokens": 1}


@pytest.mark.parametrize(
    ("type", "data", "text"),
    [
        ("turn/start", {"turn": "3"}, r"\$\.data\.turn: expected an integer, got '3' \(str\)"),
        ("turn/start", {"turn": True}, r"\$\.data\.turn: expected an integer, got True"),
        ("turn/start", {"turn": 3.0}, r"\$\.data\.turn: expected an integer, got 3\.0"),
        ("turn/start", {"turn": None}, r"\$\.data\.turn: expected an integer, got None"),
        ("turn/start", {}, r"\$\.data\.turn: missing"),
        ("turn/start", {"turn": 1, "x": 2, 3: 4}, r"\$\.data: unknown keys \[3, 'x'\]"),
        ("turn/start", [], r"\$\.data: expected an object, got \[\]"),
        ("turn/end", {"turn": 1, "reason": {"kind": "bored"}}, r"\$\.data\.reason: .*'bored'"),
        ("turn/end", {"turn": 1, "reason": {}}, r"\$\.data\.reason: expected kind in"),
        ("turn/end", {"turn": 1, "reason": "completed"}, r"\$\.data\.reason: expected an object"),
        (
            "turn/end",
            {"turn": 1, "reason": {"kind": "aborted", "reason": {"kind": "hook", "reason": 4}}},
            r"\$\.data\.reason\.reason\.reason: expected a text, got 4",
        ),
        (
            "turn/end",
            {"turn": 1, "reason": {"kind": "error", "error": {"message": "m"}}},
            r"\$\.data\.reason\.error\.code: missing",
        ),
        ("user/message", {**USER, "role": "system"}, r"expected role 'user', got 'system'"),
        ("user/message", {**USER, "content": ""}, r"\$\.data\.content: expected an array"),
        ("user/message", {**USER, "content": {}}, r"\$\.data\.content: expected an array"),
        (
            "user/message",
            {**USER, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": None}]},
            r"\$\.data\.content\[1\]\.text: expected a text, got None",
        ),
        ("user/message", {k: x for k, x in USER.items() if k != "id"}, r"\$\.data\.id: missing"),
        ("user/message", {k: x for k, x in USER.items() if k != "source"}, "source: missing"),
        ("user/message", {**USER, "id": "\ud800"}, r"\$\.data\.id: lone surrogate"),
        (
            "user/message",
            {**USER, "content": [{"type": "tool-result", "toolCallId": "c", "content": []}]},
            r"\$\.data\.content\[0\]\.isError: missing",
        ),
        ("session/end-seed", {"inherited": 1}, r"\$\.data\.inherited: expected true or false"),
        ("session/end-seed", {"inherited": None}, r"\$\.data\.inherited: expected true or false"),
        (
            "agent/inbox/spliced",
            {"target": "next-week", "start": 0, "inserted": []},
            r"\$\.data\.target: expected one of .*'next-week'",
        ),
        ("agent/inbox/spliced", {"target": "next-turn", "start": 0}, "inserted: missing"),
        (
            "assistant/chunk",
            {**CHUNK, "chunk": {"type": "usage", "usage": USAGE}},
            r"\$\.data\.chunk\.usage\.inputTokens: expected an integer, got 1\.5",
        ),
        (
            "assistant/chunk",
            {**CHUNK, "chunk": {"type": ["finish"]}},
            r"\$\.data\.chunk: expected type in",
        ),
        (
            "assistant/chunk",
            {
                **CHUNK,
                "chunk": {
                    "type": "finish",
                    "reason": {"kind": "stop"},
                    "replayState": {"a": [math.nan]},
                },
            },
            r"\$\.data\.chunk\.replayState: nan at \$\.a\[0\]",
        ),
        (
            "assistant/chunk",
            {
                **CHUNK,
                "chunk": {"type": "finish", "reason": {"kind": "stop"}, "replayState": None},
            },
            r"\$\.data\.chunk\.replayState: null does not stand for an absent key",
        ),
        (
            "request/header",
            {
                "header": {
                    "config": {"provider": "p", "model": "m"},
                    "adapterDefaults": {"maxTokens": 1},
                },
                "reason": "initial",
            },
            r"\$\.data\.header\.adapterDefaults: expected true",
        ),
        (
            "request/header",
            {
                "header": {"config": {"provider": "p", "model": "m", "t": -0.0}},
                "reason": "initial",
            },
            r"\$\.data\.header\.config: -0\.0 at \$\.t",
        ),
        (
            "request/header",
            {
                "header": {"config": {"provider": "p", "model": "m", "maxTokens": 0}},
                "reason": "initial",
            },
            r"\$\.data\.header\.config: max_tokens: expected a positive integer",
        ),
    ],
)
def test_wrong_data_is_refused_with_seq_and_path(type: str, data: object, text: str) -> None:
    message = refusal(event_json(data, type))
    assert message.startswith("event 7: ")
    assert re.search(text, message), message


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seq": "7"}, r"event 99: \$\.seq: expected an integer, got '7'"),
        ({"time": 1.5}, r"event 7: \$\.time: expected an integer"),
        ({"colour": 1}, r"event 7: \$: unknown keys \['colour'\]"),
        ({"type": 5}, r"event 7: \$\.type: expected a text, got 5"),
        ({"surfaceOp": "prepend"}, r"\$\.surfaceOp: expected an object, got 'prepend'"),
        ({"surfaceOp": {"op": "replace", "start": 1}}, r"\$\.surfaceOp\.end: missing"),
        ({"surfaceOp": None}, r"\$\.surfaceOp: expected an object, got None"),
        ({"sourceEventSeqs": [1, True]}, r"\$\.sourceEventSeqs\[1\]: expected an integer"),
        ({"sourceEventSeqs": None}, r"\$\.sourceEventSeqs: expected an array"),
        ({"ignorable": 1}, r"\$\.ignorable: expected true or false"),
    ],
)
def test_a_wrong_envelope_is_refused(change: dict[str, object], text: str) -> None:
    assert re.search(text, refusal({**event_json({"turn": 1}, "turn/start"), **change}))


@pytest.mark.parametrize("key", ["type", "seq", "time", "data"])
def test_a_missing_key_of_the_envelope_is_named(key: str) -> None:
    obj = event_json({"turn": 1}, "turn/start")
    del obj[key]
    assert f"$.{key}: missing" in refusal(obj)


def test_every_fault_is_told_at_once() -> None:
    text = refusal(event_json({"turn": "1", "step": None}, "step/start"))
    assert "$.data.turn: " in text
    assert "$.data.step: " in text


@pytest.mark.parametrize("obj", [None, 3, "text", [], [("type", "turn/start")]])
def test_what_is_no_object_is_refused(obj: object) -> None:
    assert refusal(obj).startswith("event 99: $: expected an object")


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"a":NaN}',
        b'"\xff"',
        b'{"a":"\\ud800"}',
        b"{}{}",
        b"[" * 100_000,
        b"1e400",
    ],
)
def test_bytes_that_are_not_json_are_refused(record: bytes) -> None:
    with pytest.raises(InvalidValue):
        loads_event(record, seq_hint=0)


@pytest.mark.parametrize(
    "event",
    [
        Event(3, TIME, TurnStart("1")),  # type: ignore[arg-type]
        Event(3, TIME, TurnStart(True)),
        Event(3, TIME, StepStart(1, 1.0)),  # type: ignore[arg-type]
        Event(3, TIME, TurnEnd(1, Stop())),  # type: ignore[arg-type]
        Event(3, TIME, Stop()),  # type: ignore[arg-type]
        Event(3, TIME, AssistantMessageEvent(1, 1, UserMessage("no"))),  # type: ignore[arg-type]
        Event(3, TIME, UserMessageEvent("no")),  # type: ignore[arg-type]
    ],
)
def test_what_could_not_be_read_back_is_not_written(event: Event) -> None:
    with pytest.raises(InvalidValue, match=r"event 3 \(\w+\) cannot be written: "):
        dumps_event(event)


@pytest.mark.parametrize("value", [{"a": math.nan}, {"\udfff": 1}, {"a": object()}, {1: 2}, 5])
def test_values_that_are_not_json_cannot_be_built(value: Any) -> None:
    with pytest.raises(InvalidValue):
        Extension("x", value)


def test_call_ids_and_names_of_models_are_made_writable() -> None:
    event = Event(3, TIME, ToolCallEvent(1, 1, "\ud800", "n\udfff", "{}"))
    assert loads_event(dumps_event(event), seq_hint=3) == event


def test_json_nests_as_deep_as_a_log_allows() -> None:
    value: Any = None
    for _ in range(199):
        value = [value]
    event = Event(0, TIME, Extension("x", freeze_object({"deep": value})), ignorable=True)
    assert loads_event(dumps_event(event), seq_hint=0) == event
    with pytest.raises(InvalidValue, match="nested deeper"):
        decode_event(event_json({"deep": [value]}, "x", ignorable=True), seq_hint=7)
    with pytest.raises(InvalidValue, match="nested deeper"):
        Extension("x", freeze_object({"deep": [value]}))
