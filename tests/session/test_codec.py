"""The codec: the reference's JSON exactly, nothing lost, nothing wrong let through."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from tests.strategies import events, messages, requests, session_headers

from terzetto.session._codec import (
    FORMAT_VERSION,
    TAGS,
    decode_event,
    decode_header,
    decode_message,
    dumps_event,
    encode_event,
    encode_failure,
    encode_header,
    encode_message,
    encode_request,
    loads_event,
)
from terzetto.vocabulary import (
    AssistantChunk,
    CallConfig,
    Event,
    EventData,
    Extension,
    Failure,
    Finish,
    InvalidValue,
    JsonObject,
    ModelSelected,
    ModelSelection,
    Request,
    RequestHeader,
    RequestHeaderEvent,
    SessionHeader,
    SessionId,
    Stop,
    StoreError,
    TextDelta,
    ToolSchema,
    TurnStart,
    freeze_object,
)

RUNS = Path(
    os.environ.get("TERZETTO_CONFORMANCE") or Path(__file__).parent.parent / "conformance" / "runs"
)
TIME = 1_700_000_000_000
DELTA = Event(12, TIME, AssistantChunk(1, 1, TextDelta(0, "hi")))


def known(event: Event) -> tuple[str, ...]:
    return (event.data.name,) if isinstance(event.data, Extension) else ()


def event_json(data: object, type: str, **more: object) -> dict[str, Any]:
    return {"type": type, "seq": 7, "time": TIME, "data": data, **more}


def refusal(obj: object, *, seq_hint: int = 99) -> str:
    with pytest.raises(InvalidValue) as caught:
        decode_event(obj, seq_hint=seq_hint)
    return str(caught.value)


# --- the reference's logs ---------------------------------------------------------------


@pytest.mark.parametrize("run", sorted(RUNS.glob("[0-9]*.json")), ids=lambda run: run.stem)
def test_reference_runs_are_given_back_unchanged(run: Path) -> None:
    scenario = json.loads(run.read_text())
    for log in (scenario["log"], scenario.get("start", {}).get("log", [])):
        for seq, without_time in enumerate(log):
            written = {"time": TIME + seq, **without_time}
            event = decode_event(written, seq_hint=seq)
            assert encode_event(event) == written
            assert json.loads(dumps_event(event)) == written
            assert loads_event(dumps_event(event), seq_hint=seq) == event
    for request in scenario["requests"]:
        assert encode_request(request_of(request)) == request


def request_of(obj: dict[str, Any]) -> Request:
    return Request(
        session_id=SessionId(obj["sessionId"]),
        config=CallConfig(
            provider=obj["provider"], model=obj["model"], max_tokens=obj.get("maxTokens")
        ),
        messages=tuple(decode_message(message) for message in obj["messages"]),
        tools=tuple(
            ToolSchema(**{**tool, "parameters": freeze_object(tool["parameters"])})
            for tool in obj.get("tools", ())
        ),
    )


def test_reference_runs_are_there() -> None:
    assert len(list(RUNS.glob("[0-9]*.json"))) > 0


# --- laws -------------------------------------------------------------------------------


@given(events())
def test_an_event_comes_back_equal_from_json_and_from_bytes(event: Event) -> None:
    written = encode_event(event)
    assert decode_event(written, seq_hint=0, extensions=known(event)) == event
    record = dumps_event(event)
    assert b"\n" not in record
    assert json.loads(record) == written
    assert loads_event(record, seq_hint=0, extensions=known(event)) == event
    assert encode_event(decode_event(written, seq_hint=0, extensions=known(event))) == written


@given(events())
def test_encoding_gives_fresh_plain_containers(event: Event) -> None:
    def spoil(value: Any) -> None:
        for item in list(value.values()) if isinstance(value, dict) else value:
            if isinstance(item, (dict, list)):
                spoil(item)
        value.clear()

    before = dumps_event(event)
    spoil(encode_event(event))
    assert dumps_event(event) == before


@given(messages())
def test_a_message_comes_back_equal(message: Any) -> None:
    assert decode_message(encode_message(message)) == message


@given(session_headers())
def test_a_header_comes_back_equal(header: SessionHeader) -> None:
    written = encode_header(header)
    assert decode_header(json.loads(json.dumps(written))) == header
    assert next(iter(written)) == "formatVersion"


@given(requests())
def test_a_request_keeps_its_options_beside_its_own_keys(request: Request) -> None:
    written = encode_request(request)
    assert written.keys() >= set(request.config.options)
    assert written["messages"] == [encode_message(message) for message in request.messages]
    assert ("tools" in written) == bool(request.tools)


def test_every_payload_has_its_own_type() -> None:
    assert len(set(TAGS.values())) == len(TAGS)
    assert {*TAGS, Extension} == set(EventData.__args__)


# --- shapes -----------------------------------------------------------------------------


def test_a_text_delta_is_written_as_the_reference_does() -> None:
    assert dumps_event(DELTA) == (
        b'{"type":"assistant/chunk","seq":12,"time":1700000000000,"data":{"turn":1,"step":1,'
        b'"chunk":{"type":"text-delta","index":0,"text":"hi"}}}'
    )


def test_options_are_flattened_and_defaults_marked() -> None:
    header = RequestHeader(
        config=CallConfig(
            provider="p", model="m", effort="high", max_tokens=5, options={"self": 1, "top_k": None}
        ),
        adapter_defaults=frozenset({"maxTokens"}),
    )
    event = Event(0, TIME, RequestHeaderEvent(header, "initial", starts_series=True))
    written = encode_event(event)
    assert written["data"] == {
        "header": {
            "config": {
                "provider": "p",
                "model": "m",
                "reasoningEffort": "high",
                "maxTokens": 5,
                "self": 1,
                "top_k": None,
            },
            "adapterDefaults": {"maxTokens": True},
        },
        "reason": "initial",
        "startsSeries": True,
    }
    assert decode_event(written, seq_hint=0) == event


def test_a_selection_is_the_data_itself() -> None:
    event = Event(0, TIME, ModelSelected(ModelSelection("p", "m", "low")))
    assert encode_event(event)["data"] == {"provider": "p", "model": "m", "reasoningEffort": "low"}


def test_absent_and_empty_sources_differ() -> None:
    empty = Event(0, TIME, TurnStart(1), None, ())
    assert encode_event(empty)["sourceEventSeqs"] == []
    assert decode_event(encode_event(empty), seq_hint=0).sources == ()
    assert "sourceEventSeqs" not in encode_event(Event(0, TIME, TurnStart(1)))


def test_spelled_out_defaults_are_read() -> None:
    obj = event_json({"inherited": False}, "session/end-seed", ignorable=False)
    assert decode_event(obj, seq_hint=7).ignorable is False


def test_falsy_replay_states_are_kept() -> None:
    for state in (False, 0, "", (), JsonObject({})):
        event = Event(0, TIME, AssistantChunk(1, 1, Finish(Stop(), state)))
        again = decode_event(encode_event(event), seq_hint=0)
        assert again == event
        assert isinstance(again.data, AssistantChunk)
        assert isinstance(again.data.chunk, Finish)
        assert type(again.data.chunk.replay_state) is type(state)


def test_a_failure_always_has_its_code() -> None:
    assert encode_failure(Failure(message="no")) == {"message": "no", "code": "UNKNOWN"}
    full = Failure(message="slow", code="X", status=429, provider_retry_after_ms=9, request_id="r")
    assert encode_failure(full) == {
        "message": "slow",
        "code": "X",
        "status": 429,
        "providerRetryAfterMs": 9,
        "requestId": "r",
    }


@pytest.mark.parametrize("name", ["messages", "tools", "sessionId", "provider", "maxTokens"])
def test_an_option_cannot_hide_the_messages_of_a_request(name: str) -> None:
    with pytest.raises(InvalidValue, match="fields of a request"):
        CallConfig(provider="p", model="m", options=freeze_object({name: []}))


def test_an_unknown_type_is_refused_with_seq_name_and_advice() -> None:
    text = refusal(event_json({"a": 1}, "weather/rain"))
    assert re.search(r"event 7: \$\.type: 'weather/rain' .*not ignorable.*extensions=", text)


def test_a_surface_op_of_another_type_is_refused_with_the_seq() -> None:
    event = Event(7, TIME, Extension("weather/rain"), surface_op=False)  # type: ignore[arg-type]
    for written in (encode_event, dumps_event):
        with pytest.raises(InvalidValue, match=r"event 7 .*expected Append or Replace, got False"):
            written(event)


def test_an_unknown_ignorable_type_is_an_extension() -> None:
    obj = event_json({"a": [1]}, "weather/rain", ignorable=True)
    event = decode_event(obj, seq_hint=7)
    assert event == Event(
        7, TIME, Extension("weather/rain", freeze_object({"a": [1]})), ignorable=True
    )
    assert encode_event(event) == obj


def test_a_known_extension_loads_without_being_ignorable() -> None:
    event = decode_event(event_json({}, "weather/rain"), seq_hint=7, extensions={"weather/rain"})
    assert event.data == Extension("weather/rain")
    assert not event.ignorable


def test_an_extension_cannot_take_a_name_of_terzettos() -> None:
    with pytest.raises(InvalidValue, match=r"event 3 .*'turn/start'"):
        encode_event(Event(3, TIME, Extension("turn/start")))


@pytest.mark.parametrize(("version", "age"), [(FORMAT_VERSION + 1, "newer"), (0, "older")])
def test_another_format_is_refused_naming_the_direction(version: int, age: str) -> None:
    header = {"formatVersion": version, "what": "ever"}
    with pytest.raises(StoreError, match=f"written by an? {age} terzetto: format {version}"):
        decode_header(header)
    with pytest.raises(InvalidValue, match="format"):
        encode_header(SessionHeader(id=SessionId("s"), created_ms=0, format_version=version))


def test_a_damaged_header_is_refused_with_its_path() -> None:
    good = encode_header(SessionHeader(id=SessionId("s"), created_ms=0))
    for change, text in (
        ({"formatVersion": True}, r"\$\.formatVersion: expected an integer"),
        ({"durability": "most"}, r"\$\.durability: expected one of"),
        ({"colour": 1}, "unknown keys"),
    ):
        with pytest.raises(InvalidValue, match=text):
            decode_header({**good, **change})
    with pytest.raises(InvalidValue, match=r"\$\.id: missing"):
        decode_header({key: value for key, value in good.items() if key != "id"})
