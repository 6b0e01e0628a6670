"""Reasoning goes back to DeepSeek, in every later request of a conversation (BC-32).

The server is the project's own, with a judge who refuses (400) what DeepSeek refuses: a
message with tool calls that has lost its ``reasoning_content``. For OpenAI's adapter the
judge refuses the field itself.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import terzetto
from terzetto import Agent, tool
from terzetto.llm.deepseek import DeepSeek
from terzetto.llm.loopback import LoopbackServer, serve_openai
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import Gate, ScriptSource, answer, call, say, think
from terzetto.vocabulary import AssistantChunk, Event, ReasoningDelta, TextDelta

from .strict import Reasoning, judge

THOUGHT = "I should call echo."
ROUND = answer(think("I should "), think("call echo."), call("echo", text="é🎻"))
SECOND = answer(
    think(" Once\nmore. "), say("Wait."), call("echo", text="2"), call("echo", text="3")
)
DONE = answer(think("Fine."), say("done"))
UNTHOUGHT = answer(call("echo", text="no thought"))


@tool
async def echo(text: str) -> str:
    """Say it again."""
    return text


Make = Callable[[str], OpenAIChat]


def deepseek(url: str, **options: Any) -> DeepSeek:
    return DeepSeek(api_key="sk-x-y-z-1234", base_url=url, **options)


def openai(url: str) -> OpenAIChat:
    return OpenAIChat(api_key="sk-x-y-z-1234", base_url=url)


@asynccontextmanager
async def strict(script: ScriptSource, reasoning: Reasoning) -> AsyncIterator[LoopbackServer]:
    with trio.fail_after(30):
        async with serve_openai(script, judge=partial(judge, reasoning=reasoning)) as server:
            yield server


@asynccontextmanager
async def living(
    server: LoopbackServer, folder: Path, make: Make = deepseek, **options: Any
) -> AsyncIterator[Agent]:
    """An agent on a fresh engine, as after a restart when it resumes."""
    adapter = make(server.base_url)
    route = {} if "resume" in options else {"provider": adapter.provider, "model": "m"}
    async with (
        terzetto.open_engine(
            adapters=[adapter], tools=[echo], store=terzetto.JsonlStore(folder)
        ) as engine,
        engine.open_agent(**route, **options) as agent,
    ):
        yield agent


def sent(server: LoopbackServer, number: int = -1) -> list[tuple[object, object]]:
    """Reasoning and number of calls of each assistant message; None stands for no field."""
    messages = server.requests[number].body["messages"]
    assert isinstance(messages, list)
    return [
        (message.get("reasoning_content"), len(message.get("tool_calls", [])))  # type: ignore[arg-type]
        for message in messages
        if isinstance(message, dict) and message["role"] == "assistant"
    ]


async def test_reasoning_accompanies_its_calls_for_good(tmp_path: Path) -> None:
    """BC-32: the next step, a follow-up, a resume, a second round of tools, and after it."""
    script = [ROUND, DONE, DONE, DONE, SECOND, ROUND, DONE, DONE]
    async with strict(script, "with-calls") as server:
        async with living(server, tmp_path, session_id="s") as agent:
            assert (await agent.ask("go")).text == "done"
            assert sent(server) == [(THOUGHT, 1)]
            assert (await agent.ask("and now?")).text == "done"
            assert sent(server) == [(THOUGHT, 1), ("Fine.", 0)]
        async with living(server, tmp_path, resume="s") as agent:
            assert (await agent.ask("again")).text == "done"
            assert sent(server) == [(THOUGHT, 1), ("Fine.", 0), ("Fine.", 0)]
            assert (await agent.ask("two rounds")).text == "done"
        async with living(server, tmp_path, resume="s") as agent:
            assert (await agent.ask("bye")).text == "done"
    assert sent(server) == [
        (THOUGHT, 1),
        ("Fine.", 0),
        ("Fine.", 0),
        ("Fine.", 0),
        (" Once\nmore. ", 2),
        (THOUGHT, 1),
        ("Fine.", 0),
    ]
    assert [request.violations for request in server.requests] == [()] * len(script)


async def test_turn_without_reasoning_sends_no_field(tmp_path: Path) -> None:
    """BC-32: neither an empty text nor null."""
    async with strict([answer(say("hi")), UNTHOUGHT, DONE], "any") as server:
        async with living(server, tmp_path, session_id="s") as agent:
            await agent.ask("hello")
        async with living(server, tmp_path, resume="s") as agent:
            assert (await agent.ask("go")).text == "done"
    assert sent(server) == [(None, 0), (None, 1)]
    assert b"reasoning_content" not in server.requests[-1].raw


async def test_calls_that_never_had_reasoning_get_an_empty_one_when_asked_for(
    tmp_path: Path,
) -> None:
    """A session that another model began, taken over in thinking mode."""
    async with strict([answer(say("hi")), UNTHOUGHT, DONE], "field-with-calls") as server:
        make = partial(deepseek, fill_reasoning=True)
        async with living(server, tmp_path, make, session_id="s") as agent:
            await agent.ask("hello")
            assert (await agent.ask("go")).text == "done"
    assert sent(server) == [(None, 0), ("", 1)]


async def test_openai_gets_no_reasoning(tmp_path: Path) -> None:
    """BC-32: for a server that refuses the field, live and after a resume."""
    async with strict([ROUND, DONE, SECOND, DONE, DONE], "forbidden") as server:
        async with living(server, tmp_path, openai, session_id="s") as agent:
            await agent.ask("go")
        async with living(server, tmp_path, openai, resume="s") as agent:
            assert (await agent.ask("more")).text == "done"
            assert (await agent.ask("and more")).text == "done"
    assert sent(server) == [(None, 1), (None, 0), (None, 2), (None, 0)]
    assert b"reasoning" not in server.requests[-1].raw


@pytest.mark.parametrize(("make", "reasoning"), [(openai, "with-calls"), (deepseek, "forbidden")])
async def test_judge_refuses_the_wrong_adapter(
    make: Make, reasoning: Reasoning, tmp_path: Path
) -> None:
    """What the tests above lean on."""
    async with strict([ROUND, DONE], reasoning) as server, living(server, tmp_path, make) as agent:
        with pytest.raises(terzetto.TurnFailed, match="reasoning_content") as caught:
            await agent.ask("go")
        assert caught.value.code == "INVALID_REQUEST"
        assert len(server.requests[-1].violations) == 1


async def test_reasoning_survives_a_crash_between_the_call_and_its_result(tmp_path: Path) -> None:
    """BC-32: the log as a killed process leaves it while the tool runs."""
    running, release = trio.Event(), trio.Event()

    @tool
    async def slow() -> str:
        running.set()
        await release.wait()
        return "late"

    async with strict([answer(think(THOUGHT), call("slow")), DONE, DONE], "with-calls") as server:
        async with living(server, tmp_path / "a", session_id="s", tools=[slow]) as agent:
            agent.followup("go")
            await running.wait()
            (tmp_path / "b").mkdir()
            shutil.copy(tmp_path / "a" / "s.jsonl", tmp_path / "b")
            release.set()
            await agent.wait_idle()
        async with living(server, tmp_path / "b", resume="s") as agent:
            assert (await agent.ask("what happened?")).text == "done"
    assert sent(server) == [(THOUGHT, 1)]
    assert [request.violations for request in server.requests] == [()] * 3


@pytest.mark.parametrize(
    ("cut", "last", "kept"),
    [
        ([think("Hm. "), Gate("x"), say("never")], "Hm. ", []),
        ([think("Hm. "), say("Part"), Gate("x"), call("echo", text="1")], "Part", [("Hm. ", 0)]),
    ],
    ids=["while it thinks", "while it speaks"],
)
async def test_interrupted_thought_leaves_a_history_that_is_taken(
    cut: list[Any], last: str, kept: list[object], tmp_path: Path
) -> None:
    """BC-01 BC-32: thought goes with what had been said; alone it is not sent."""
    heard = trio.Event()

    def listen(event: Event) -> None:
        match event.data:
            case AssistantChunk(chunk=TextDelta(text=text) | ReasoningDelta(text=text)):
                if text == last:
                    heard.set()

    async with strict([answer(*cut), DONE], "with-calls") as server:
        async with living(server, tmp_path, session_id="s") as agent:
            agent.session.observe(listen)
            agent.followup("go")
            await heard.wait()
            agent.cancel()
            await agent.wait_idle()
        async with living(server, tmp_path, resume="s") as agent:
            assert (await agent.ask("go on")).text == "done"
    assert sent(server) == kept
    assert [request.violations for request in server.requests] == [()] * 2
