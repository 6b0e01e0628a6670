"""Requests from the log alone, and how much each repeats of the one before (C84 C162 C166)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve
from hypothesis import given, settings
from tests.agent.kit import play, played
from tests.agent.rig import Life, headers, one, shown
from tests.commands import environment
from tests.prefix import Plan, plans, played as play_plan, violations

from terzetto import MemoryStore, ModelInfo, Retry, UserMessage
from terzetto.llm.deepseek import DeepSeek
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import Delay, Hang, ScriptedModel, answer, call, finish_error, say
from terzetto.session import Growth, SentRequest, canonical, growths, rebuild
from terzetto.session._codec import dumps_json, encode_request
from terzetto.tools import raw_tool
from terzetto.vocabulary import (
    APPEND,
    AssistantMessage,
    AssistantMessageEvent,
    CallConfig,
    Event,
    IllegalEvent,
    JsonObject,
    ModelSource,
    PluginSource,
    Replace,
    Request,
    RequestHeaderEvent,
    SessionHeader,
    SessionId,
    StepStart,
    SystemMessage,
    TextBlock,
    ToolCallBlock,
    ToolResultEvent,
    ToolSchema,
    TurnStart,
)

HEADER = SessionHeader(id=SessionId("a"), created_ms=1)
EMPTY_SCHEMA = {"type": "object", "properties": {}}


def sent(life: Life) -> list[SentRequest]:
    return list(rebuild(life.session.header, life.session.events))


def measured(life: Life) -> list[Growth]:
    return list(growths(life.session.header, life.session.events))


def whole(request: Request) -> bytes:
    return dumps_json(encode_request(request))


def same(life: Life) -> None:
    """What is rebuilt is what the model was asked."""
    assert [whole(s.request) for s in sent(life)] == [whole(r) for r in life.model.requests]


def tool(name: str = "look", **parameters: Any) -> Any:
    async def body(arguments: object) -> str:
        return "seen"

    schema = parameters or EMPTY_SCHEMA
    return raw_tool(name=name, description=name, parameters=schema, body=body)


# --- the law ---------------------------------------------------------------------------------


@settings(max_examples=30)
@given(plans())
def test_requests_equal_their_rebuild_and_prefixes_break_for_a_reason(plan: Plan) -> None:
    """C84 C94 C96 C166: over changing prompts, tools and routes, steering, interruption,
    replacement at any time, retries, resumes, crashes and forks."""
    assert violations(play_plan(plan)) == []


# --- what was on its way while the log moved on ----------------------------------------------


@pytest.mark.parametrize("when", ["before it is admitted", "while it waits", "while it streams"])
@played
async def test_a_replacement_counts_from_the_next_request_on(when: str) -> None:
    """C96: the request that was frozen before the replacement is rebuilt without it."""

    async def slowly(value: Any, proceed: Any) -> Any:
        await trio.sleep(1)
        return await proceed()

    second = answer(say("sec"), Delay(1), say("ond"))
    async with one(["first", second, "third"]) as life:
        await life.say("a long story")
        if when == "before it is admitted":
            life.hooks.request.listen(slowly)
        elif when == "while it waits":
            life.hooks.stream.listen(slowly)
        life.agent.followup("two")
        await trio.sleep(0.5)
        node = life.session.surface.nodes[1]
        life.session.replace(node.seq, node.seq, [UserMessage("shorter")])
        await life.agent.wait_idle()
        await life.say("three")
        same(life)
        early = "shorter" if when == "before it is admitted" else "a long story"
        texts = [shown(s.request.messages)[0] for s in sent(life)]
        assert texts == ["user: a long story", f"user: {early}", "user: shorter"]
        broken = [growth for growth in measured(life) if growth.broken]
        (cause,) = broken[0].causes
        assert (cause.type, cause.what) == ("user/message", "1 message was replaced")
        assert len(broken) == 1
        assert broken[0].sent.turn == (2 if when == "before it is admitted" else 3)


@played
async def test_each_attempt_is_a_request() -> None:
    """A retry repeats its request, unless what it answers has changed meanwhile."""
    script = [finish_error(), answer(say("lost"), finish_error()), "done"]
    async with one(script) as life:

        async def again(value: Any, proceed: Any) -> Any:
            if value.attempt == 2:
                node = life.session.surface.nodes[1]
                life.session.replace(node.seq, node.seq, [UserMessage("summary")])
            return Retry()

        life.hooks.request_error.listen(again)
        await life.say()
        same(life)
        assert [(s.step, s.attempt, s.answered) for s in sent(life)] == [
            (1, 1, True),
            (1, 2, True),
            (1, 3, True),
        ]
        assert [growth.broken for growth in measured(life)] == [False, False, True]


@played
async def test_a_request_without_an_answer_is_in_doubt() -> None:
    """Nothing in the log says whether it went out; if it did, it was this one."""
    async with one([answer(Hang()), "done"]) as life:
        life.agent.followup("one")
        await trio.testing.wait_all_tasks_blocked()
        assert [s.answered for s in sent(life)] == [False]  # it is on its way
        life.agent.cancel()
        await life.say("two")
        assert [s.answered for s in sent(life)] == [False, True]
        same(life)
        assert [growth.shared for growth in measured(life)] == [0, 0]  # nobody counts on it


@played
async def test_a_failure_that_was_not_retried_leaves_no_doubt() -> None:
    async with one([finish_error(), "done"]) as life:
        await life.say("one")
        await life.say("two")
        assert [s.answered for s in sent(life)] == [True, True]


@played
async def test_a_step_that_failed_before_its_first_header_asked_nothing() -> None:
    async with one(["done"], effort="no such") as life:

        async def refuse(value: Any, proceed: Any) -> Any:
            raise ValueError("not today")

        with life.hooks.request.listen(refuse):
            await life.say("one")
        assert sent(life) == []


@played
async def test_a_fork_tells_its_own_requests_from_those_it_inherited() -> None:
    """C154: its first request extends the last of its source."""
    store = MemoryStore()
    async with one(["first", "second"], engine={"store": store}, session_id="source") as life:
        await life.say("one")
        async with life.engine.open_agent(
            fork=life.agent, session_id="fork", provider="scripted", model="m"
        ) as fork:
            await fork.ask("two")
        header, events = await store.read("fork")
        found = list(rebuild(header, events))
        assert [(s.inherited, s.request.session_id) for s in found] == [
            (True, "source"),
            (False, "fork"),
        ]
        assert [whole(s.request) for s in found] == [whole(r) for r in life.model.requests]
        _, own = growths(header, events)
        assert not own.broken
        assert own.shared == len(canonical(life.model.requests[0]))


def test_a_log_with_a_hole_is_refused() -> None:
    """The pieces of an answer may have left a session's memory; a store has them."""
    start = Event(0, 0, TurnStart(1))
    with pytest.raises(IllegalEvent, match="expected event 1 of a whole log"):
        list(rebuild(HEADER, [start, Event(2, 0, StepStart(1, 1))]))


def test_an_answer_without_a_header_is_refused() -> None:
    message = AssistantMessage((TextBlock("x"),), ModelSource("p", "m"))
    events = [
        Event(0, 0, TurnStart(1)),
        Event(1, 0, StepStart(1, 1)),
        Event(2, 0, AssistantMessageEvent(1, 1, message), APPEND),
    ]
    with pytest.raises(IllegalEvent, match="expected a request/header"):
        list(rebuild(HEADER, events))


# --- to the byte -----------------------------------------------------------------------------


@played
async def test_a_schema_with_its_keys_in_another_order_is_the_same_on_the_wire() -> None:
    """C84: what was logged is what is sent, also where the two are equal for Python."""
    one_way = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    other = {"properties": {"b": {"type": "string"}, "a": {"type": "string"}}, "type": "object"}
    async with one(["first", "second"]) as life:
        with life.agent.scope.add_tool(tool(**one_way)):
            await life.say("one")
        with life.agent.scope.add_tool(tool(**other)):
            await life.say("two")
        assert headers(life.session) == ["request/header initial"]
        assert [whole(s.request) for s in sent(life)] == [whole(r) for r in life.model.requests]
        assert not any(growth.broken for growth in measured(life))


@pytest.mark.parametrize(
    ("was", "now"), [(1, 1.0), (1, True), ([0], [False]), ({"a": 1}, {"a": 1.0})]
)
def test_numbers_that_are_written_differently_are_different(was: Any, now: Any) -> None:
    """C80: a switch that was 1 and is true is a change, and gets its header."""

    async def main() -> None:
        async with one(["first", "second"]) as life:
            values = iter([was, now])

            async def option(value: Any, proceed: Any) -> Any:
                return (await proceed()).with_options(x=next(values))

            life.hooks.request.listen(option)
            await life.say("one")
            await life.say("two")
            assert headers(life.session) == ["request/header initial", "request/header change"]
            assert [whole(s.request) for s in sent(life)] == [whole(r) for r in life.model.requests]

    play(main)
    assert JsonObject({"x": was}) != JsonObject({"x": now})


REQUEST = Request(
    session_id=SessionId("s"),
    config=CallConfig(
        provider="p",
        model="m",
        effort="none",
        max_tokens=5,
        options={"z": 1, "a": {"y": 2, "b": 3}},
    ),
    messages=(
        SystemMessage((TextBlock("Be nice."),), PluginSource("prompt")),
        UserMessage("go"),
        AssistantMessage(
            (TextBlock("x"), ToolCallBlock("id" * 30, "look", "{}")), ModelSource("p", "m")
        ),
    ),
    tools=tuple(
        ToolSchema(name=name, description="", parameters=EMPTY_SCHEMA) for name in ("look", "act")
    ),
)


def digests() -> list[str]:
    """Of what is sent for one request, in three forms."""
    bodies = [adapter(api_key=None).body(REQUEST) for adapter in (DeepSeek, OpenAIChat)]
    return [hashlib.sha256(body).hexdigest() for body in (canonical(REQUEST), *bodies)]


def test_a_request_is_the_same_bytes_in_every_process() -> None:
    """C84: no times, no ids of the moment, no order of a set or of a hash."""
    program = "from tests.session.test_rebuild import digests; print(*digests())"
    path = os.pathsep.join(sys.path)
    for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo")):
        other = subprocess.run(
            [sys.executable, "-c", program],
            env=environment(PYTHONHASHSEED=seed, TZ=zone) | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        assert other.stdout.split() == digests()
    assert len(set(digests())) == 3


def test_the_canonical_sequence_is_tools_then_messages_without_ids() -> None:
    lines = canonical(REQUEST).decode().splitlines()
    heads = ['{"name":"loo', '{"name":"act', '{"role":"sys', '{"role":"use', '{"role":"ass']
    assert [line[:12] for line in lines] == heads
    other = evolve(REQUEST, messages=(REQUEST.messages[0], UserMessage("go"), REQUEST.messages[2]))
    assert other != REQUEST  # the message has an id of its own
    assert canonical(other) == canonical(REQUEST)


# --- what breaks a prefix --------------------------------------------------------------------


@pytest.mark.parametrize("capable", [True, False])
@played
async def test_another_prompt_breaks_the_prefix_where_the_route_cannot_append_it(
    capable: bool,
) -> None:
    """C92 C93."""
    info = ModelInfo(system_prompt_update="in-history" if capable else None)
    model = ScriptedModel(["first", "second"], info=info)
    async with one(model, system="Be nice.") as life:
        await life.say("one")
        life.agent.scope.add_section("more", "And brief.")
        await life.say("two")
        _, second = measured(life)
        assert second.broken is not capable
        said = [(cause.type, cause.what) for cause in second.causes]
        assert said == ([] if capable else [("system/message", "the prompt was rewritten")])


@played
async def test_tools_that_change_are_named() -> None:
    """C100."""
    async with one(["first", "second", "third"], [tool("stays")]) as life:
        with life.agent.scope.add_tool(tool("goes")):
            await life.say("one")
        with life.agent.scope.add_tool(tool("comes")):
            await life.say("two")
        life.agent.scope.add_tool(tool("stays", type="object", properties={"x": {}}))
        await life.say("three")
        _, second, third = measured(life)
        (cause,) = second.causes
        assert (cause.type, cause.what) == ("request/header", "tools +comes -goes")
        assert isinstance(life.session.events[cause.seq].data, RequestHeaderEvent)
        assert third.causes[0].what == "tools -comes ~stays"
        assert 0 < second.shared < second.size


@played
async def test_a_pruned_result_and_a_compaction_are_told_apart() -> None:
    """C166."""
    script = [answer(call("look")), "first", "second", "third"]
    async with one(script, [tool()]) as life:
        await life.say("one")
        session = life.session
        (node,) = [n for n in session.surface.nodes if isinstance(n.data, ToolResultEvent)]
        (block,) = node.data.message.content  # type: ignore[union-attr]
        short = UserMessage((evolve(block, content=()),))  # type: ignore[arg-type]
        session.replace(node.seq, node.seq, [short])
        await life.say("two")
        start, end = (session.surface.nodes[at].seq for at in (1, -1))
        with session.compacting() as compacting:
            compacting.commit(start, end, UserMessage("summary"), "summary")
        await life.say("three")
        *_, third, fourth = measured(life)
        assert [c.what for c in third.causes] == ["a tool result was replaced"]
        assert [c.what for c in fourth.causes] == ["6 messages were replaced by a summary"]
        event = session.events[fourth.causes[0].seq]
        assert isinstance(event.surface_op, Replace)


@played
async def test_a_replacement_by_the_same_breaks_nothing() -> None:
    async with one(["first", "second"]) as life:
        await life.say("one")
        node = life.session.surface.nodes[1]
        life.session.replace(node.seq, node.seq, [UserMessage("one")])
        await life.say("two")
        first, second = measured(life)
        assert not second.broken
        assert second.shared == first.size


@played
async def test_a_change_of_the_model_keeps_the_prefix() -> None:
    async with one(["first", "second"]) as life:
        await life.say("one")
        life.agent.model.select("scripted", "other", "high")
        await life.say("two")
        first, second = measured(life)
        assert (second.broken, second.shared) == (False, first.size)
