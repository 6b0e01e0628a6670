"""The judge must be able to find something: each rule, broken once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .strict import judge

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWER = {"role": "tool", "tool_call_id": "a", "content": "1"}
USER = {"role": "user", "content": "hi"}


def body(*messages: object, **fields: object) -> bytes:
    frame = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    return json.dumps({**frame, "messages": messages, **fields}).encode()


def asked(**changes: Any) -> dict[str, Any]:
    function = {**CALL["function"], **changes.pop("function", {})}  # type: ignore[dict-item]
    return {**ASKED, "tool_calls": [{**CALL, "function": function, **changes}]}


def test_flawless_request_passes() -> None:
    assert judge(body(USER, ASKED, ANSWER, USER)) == []


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff",
        b"{",
        b"[]",
        body(USER)[:-1] + b', "x": NaN}',
        body(USER)[:-1] + b', "model": "again"}',
        body({"role": "user", "content": "\ud800"}),
        body(USER, stream=False),
        body(USER, model=""),
        body(USER, tools=[]),
        body({"role": "developer", "content": "x"}),
        body({"role": "user", "content": " "}),
        body({"role": "user", "content": [{"type": "text", "text": ""}]}),
        body({"role": "user", "content": []}),
        body({"role": "assistant", "content": ""}),
        body({"role": "assistant", "content": None}),
        body({"role": "assistant", "content": "x", "tool_calls": []}),
        body({**ASKED, "content": " "}, ANSWER),
        body({**ASKED, "reasoning_content": ""}, ANSWER),
        body(ASKED),
        body(ASKED, USER, ANSWER),
        body(ASKED, ANSWER, ANSWER),
        body(ANSWER),
        body(ASKED, {**ANSWER, "tool_call_id": "b"}),
        body({**ASKED, "tool_calls": [CALL, CALL]}, ANSWER, ANSWER),
        body(
            {**ASKED, "tool_calls": [CALL, {**CALL, "id": "b"}]},
            {**ANSWER, "tool_call_id": "b"},
            ANSWER,
        ),
        body(asked(id=""), {**ANSWER, "tool_call_id": ""}),
        body(asked(id="a" * 41), {**ANSWER, "tool_call_id": "a" * 41}),
        body(asked(function={"name": ""}), ANSWER),
        body(asked(function={"name": "a.b"}), ANSWER),
        body(asked(function={"arguments": ""}), ANSWER),
        body(asked(function={"arguments": "[1]"}), ANSWER),
        body(asked(function={"arguments": '{"x":1}{}'}), ANSWER),
        body(asked(function={"arguments": '{"x": NaN}'}), ANSWER),
        body(asked(function={"arguments": '{"x": "\\ud800"}'}), ANSWER),
    ],
)
def test_each_fault_is_found(bad: bytes) -> None:
    assert judge(bad)


def test_reasoning_rules() -> None:
    thought = {**ASKED, "reasoning_content": "hm"}
    assert judge(body(thought, ANSWER), reasoning="forbidden")
    assert judge(body(ASKED, ANSWER), reasoning="with-calls")
    assert judge(body(thought, ANSWER), reasoning="with-calls") == []
