"""What a real server received is what the stored log gives, byte for byte (C84, C75, C162).

And bodies are functions of the request: how its dictionaries were made does not matter.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, strategies as st
from tests import wire

from terzetto.llm.openai_chat import OpenAIChat
from terzetto.vocabulary import (
    AssistantMessage,
    CallConfig,
    JsonObject,
    ModelSource,
    PluginSource,
    Request,
    SessionId,
    SystemMessage,
    TextBlock,
    ToolCallBlock,
    ToolHistory,
    ToolResultBlock,
    ToolSchema,
    ToolSource,
    UserMessage,
)


@pytest.mark.parametrize("kind", wire.KINDS)
@pytest.mark.parametrize("name", wire.WIRES)
async def test_what_was_received_is_what_the_log_gives(
    name: wire.Wire, kind: wire.Kept, tmp_path: Path
) -> None:
    """C84: read from the disk, in this process and in one with another hash seed and zone."""
    received = await wire.played(name, kind, tmp_path)
    assert len(received) == len(wire.SCRIPT)
    assert await wire.rebuilt(name, kind, tmp_path) == received
    assert wire.elsewhere(name, kind, tmp_path, hash_seed=len(name)) == received


async def test_the_session_is_as_rich_as_it_claims(tmp_path: Path) -> None:
    """What the comparison stands on: each kind of thing was on the wire at least once."""
    bodies = [json.loads(body) for body in await wire.played("deepseek", "jsonl", tmp_path)]
    roles = {message["role"] for body in bodies for message in body["messages"]}
    assert roles == {"system", "user", "assistant", "tool"}
    assert {len(body.get("tools", ())) for body in bodies} == {3}
    tools = {tuple(tool["function"]["name"] for tool in body["tools"]) for body in bodies}
    assert tools == {("look", "wait", "weigh"), ("listen", "look", "wait")}
    everything = json.dumps(bodies, ensure_ascii=False)
    for what in (
        "reasoning_content",
        "Hm. ",  # interrupted reasoning
        "I would",
        "Never mi",
        "Faster, please.",
        "No, not that one.",
        "How much, in short?",
        "deepseek-flash",
        '"thinking": {"type": "disabled"}',
        '"temperature": 0.5',
        '"max_tokens": 77',
        "Working directory: /kitchen é",
        "dawn",
        "noon",
        "Branch.",
        "🎻",
    ):
        assert what in everything, what


def test_differences_are_counted() -> None:
    assert wire.differences([b"a", b"b"], [b"a", b"b"]) == 0
    assert wire.differences([b"a", b"b"], [b"a", b"c"]) == 1
    assert wire.differences([b"a", b"b"], [b"a"]) == 1
    assert wire.differences([b"a"], [b"b", b"c"]) == 2


# --- a function of the request ----------------------------------------------------------------


LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4) | st.just(0.5)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
OPTIONS = st.dictionaries(st.text(max_size=4).map("x_{}".format), VALUES, max_size=5)
SCHEMAS = st.dictionaries(st.text(max_size=4), VALUES, max_size=5)


def built(options: Any, schema: Any) -> Request:
    return Request(
        session_id=SessionId("s"),
        config=CallConfig(provider="p", model="m", effort="low", max_tokens=5, options=options),
        messages=(
            SystemMessage((TextBlock("Be nice."),), PluginSource("prompt")),
            UserMessage("go"),
            AssistantMessage(
                (TextBlock("x"), ToolCallBlock("c1", "look", '{"b":1,"a":2}')),
                ModelSource("p", "m", JsonObject({"z": 1, "a": options})),
            ),
            UserMessage((ToolResultBlock("c1", (TextBlock("y"),)),), ToolSource("c1")),
        ),
        tools=tuple(
            ToolSchema(name=name, description=name, parameters=schema) for name in ("look", "act")
        ),
    )


def bodies(request: Request) -> list[bytes]:
    return [wire.adapter(name).body(request) for name in wire.WIRES]


@given(OPTIONS, SCHEMAS, st.data())
def test_the_order_in_which_options_were_given_is_not_on_the_wire(
    options: Any, schema: Any, data: st.DataObject
) -> None:
    """C84, C172: a listener that sets the same options in another order breaks no prefix."""
    names = data.draw(st.permutations(list(options)))
    again = built({name: options[name] for name in names}, schema)
    assert bodies(again) == bodies(built(options, schema))


@given(OPTIONS, SCHEMAS)
def test_asking_twice_and_reading_back_give_the_same_bytes(options: Any, schema: Any) -> None:
    """C84: nothing of a request but its value counts, not even which objects it is made of."""
    one, other = built(options, schema), built(json.loads(json.dumps(options)), schema)
    # There is one empty object; all others are made anew.
    assert not options or one.config.options is not other.config.options
    assert bodies(one) == bodies(one) == bodies(other)


def test_the_order_within_a_schema_and_within_an_option_is_content() -> None:
    """Models fill in fields in the order in which they are described."""
    one_way = {"properties": {"why": {"type": "string"}, "answer": {"type": "string"}}}
    other_way = {"properties": dict(reversed(one_way["properties"].items()))}
    for one, other in (
        (built({}, one_way), built({}, other_way)),
        (built({"response_format": one_way}, {}), built({"response_format": other_way}, {})),
    ):
        for body, swapped in zip(bodies(one), bodies(other), strict=True):
            assert body.index(b'"why"') < body.index(b'"answer"')
            assert swapped.index(b'"answer"') < swapped.index(b'"why"')


def test_what_is_beside_the_request_is_not_on_the_wire() -> None:
    """Ids, the session, replay state of another provider, and what was declared long ago."""
    request = built({"x": 1}, {"type": "object"})
    other = evolve(
        request,
        session_id=SessionId("t"),
        messages=tuple(evolve(m, id=f"other-{n}") for n, m in enumerate(request.messages)),
        tool_history=ToolHistory(declared=request.tools),
    )
    assert bodies(other) == bodies(request)


def test_adapters_keep_nothing_of_the_requests_before() -> None:
    """C84: the same adapter, asked for other things in between."""
    model = OpenAIChat(api_key=None)
    one, other = built({"x": 1}, {"a": 1}), built({"y": [1, {"b": 2}]}, {})
    digests = [hashlib.sha256(model.body(r)).hexdigest() for r in (one, other, one, other)]
    assert digests[:2] == digests[2:]
    assert len(set(digests)) == 2
