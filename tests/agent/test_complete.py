"""`Agent.complete`: one request outside the log (C112)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from tests.agent.kit import ROUTE, check, engine_on, played, tasks
from tests.agent.rig import Fussy, one, shown
from tests.whole import whole

from terzetto import (
    AgentDisposed,
    CodedError,
    InvalidValue,
    ModelSelection,
    PluginSource,
    ProviderError,
    StreamCall,
    TextBlock,
    ToolRun,
    Usage,
    UserMessage,
    WrongThread,
    tool,
)
from terzetto.llm.scripted import Cut, Gate, ScriptedModel, answer, call, refuse, say, think
from terzetto.testing import SOURCES, Source, Stage, explore
from terzetto.vocabulary import Finish, MaxTokens, Stop, SystemMessage, ToolSchema, UsageChunk


@played
async def test_nothing_of_it_enters_the_log() -> None:
    usage = UsageChunk(Usage(input_tokens=3, output_tokens=2))
    async with one(["hello", answer(think("hm"), say("a title"), usage)]) as life:
        await life.say("go")
        before = whole(life.session)
        completion = await life.agent.complete("Give it a title.")
        assert completion.text == "a title"
        assert (completion.finish, completion.usage) == (Stop(), usage.usage)
        assert completion.message.source.model == "m"
        assert whole(life.session) == before
        assert life.request() == ["user: Give it a title."]
        assert life.model.requests[-1].session_id == life.agent.id
        check(life.session)


@played
async def test_the_whole_request_is_the_callers() -> None:
    schema = ToolSchema(name="t", description="d", parameters={"type": "object"})
    prompt = SystemMessage((TextBlock("be brief"),), PluginSource("mine"))
    model = Fussy(["first", answer(call("t", id="c1")), "x"])
    async with one(model, system="unseen") as life:
        await life.say("go")
        completion = await life.agent.complete(
            [prompt, UserMessage("judge this")],
            selection=ModelSelection("scripted", "other", "low"),
            tools=[schema],
            max_tokens=5,
        )
        assert [c.name for c in completion.message.tool_calls] == ["t"]
        asked = model.requests[-1]
        assert shown(asked.messages) == ["system: be brief", "user: judge this"]
        assert asked.tools == (schema,)
        assert (asked.config.model, asked.config.effort, asked.config.max_tokens) == (
            "other",
            "low",
            5,
        )
        await life.say("again")
        assert model.requests[-1].config.model == "m"


@played
async def test_an_answer_that_the_limit_cut_says_so() -> None:
    from terzetto.llm.scripted import Answer
    from terzetto.vocabulary import TextDelta

    async with one([Answer((TextDelta(0, "half"), Finish(MaxTokens())))]) as life:
        completion = await life.agent.complete("go", max_tokens=1)
        assert (completion.text, completion.finish) == ("half", MaxTokens())


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (refuse(401), "AUTH"),
        (refuse(429), "RATE_LIMIT"),
        (answer("half").stop(Cut(), chunks=1), "TRANSPORT"),
    ],
)
def test_failures_are_raised_with_their_facts(reply: Any, code: str) -> None:
    @played
    async def run() -> None:
        async with one([reply, "fine"]) as life:
            with pytest.raises(ProviderError) as caught:
                await life.agent.complete("go")
            assert caught.value.code == code
            await life.say("and on")
            check(life.session)

    run()


@played
async def test_what_cannot_be_asked_is_refused() -> None:
    model = ScriptedModel()
    async with engine_on(model) as engine:
        async with engine.open_agent() as agent:
            with pytest.raises(CodedError) as caught:
                await agent.complete("go")
            assert caught.value.code == "NO_ROUTE"
            with pytest.raises(ProviderError) as unserved:
                await agent.complete("go", selection=ModelSelection("nobody", "m"))
            assert unserved.value.code == "NO_ADAPTER"
        with pytest.raises(AgentDisposed):
            await agent.complete("go", selection=ModelSelection("scripted", "m"))
    assert model.attempts == 0


@pytest.mark.parametrize(
    "given",
    [
        {"messages": ["text"]},
        {"messages": UserMessage("alone")},
        {"messages": b"bytes"},
        {"messages": "go", "tools": ["read"]},
        {"messages": "go", "selection": "m"},
    ],
)
def test_what_is_no_request_is_refused_before_an_adapter_sees_it(given: dict[str, Any]) -> None:
    @played
    async def run() -> None:
        async with one(["fine"]) as life:
            with pytest.raises(InvalidValue, match=r"expected .*, got"):
                await life.agent.complete(**given)
            assert life.model.attempts == 0

    run()


async def test_it_belongs_to_the_thread() -> None:
    async with engine_on() as engine, engine.open_agent(**ROUTE) as agent:
        caught: list[BaseException] = []

        def elsewhere() -> None:
            assert threading.current_thread() is not threading.main_thread()
            try:
                agent.complete("go").send(None)
            except WrongThread as error:
                caught.append(error)

        await trio.to_thread.run_sync(elsewhere)
        assert len(caught) == 1


@played
async def test_stream_listeners_see_it_as_attempt_0_and_may_own_the_route() -> None:
    """C112: "around every call"."""
    async with one(["one", "unused"]) as life:
        seen: list[tuple[int, int, int]] = []
        cached = ScriptedModel(["cached"])

        async def listen(value: StreamCall, proceed: Any) -> Any:
            seen.append((value.turn, value.step, value.attempt))
            if value.attempt == 0:
                prepared = await cached.prepare(value.request.config)
                return prepared.open_stream(value.request)
            return await proceed()

        life.hooks.stream.listen(listen)
        await life.say("go")
        assert (await life.agent.complete("title")).text == "cached"
        assert seen == [(1, 1, 1), (0, 0, 0)]
        assert life.model.attempts == 1


@played
async def test_a_tool_may_ask_in_the_middle_of_a_turn() -> None:
    @tool
    async def digest(run: ToolRun) -> str:
        """Ask a model."""
        return (await run.agent.complete("digest")).text

    async with one([answer(call("digest", id="c1")), "digested", "done"], [digest]) as life:
        turn = await life.agent.ask("go")
        assert turn.text == "done"
        assert "result c1: digested" in life.request()
        check(life.session)


@played
async def test_cancelled_it_leaves_nothing_behind() -> None:
    async with one([answer("a", Gate("never"))]) as life:
        before = tasks()
        with trio.move_on_after(1) as scope:
            await life.agent.complete("go")
        assert scope.cancelled_caught
        assert (life.model.open_streams, tasks()) == (0, before)


async def asking(stage: Stage) -> None:
    """A tool asks a model of its own; so does the host, beside the turn."""

    @tool
    async def digest(run: ToolRun) -> str:
        """Ask a model."""
        async with stage.body(run):
            text = (await run.agent.complete("digest")).text
        return text

    async with stage.open_engine([digest]) as engine, stage.open_agent(engine) as agent:
        stage.send("followup", "go")
        try:
            await agent.complete("beside")
        except AgentDisposed:
            pass
        await agent.wait_idle()


def asking_model() -> ScriptedModel:
    def reply(request: Any) -> Any:
        text = str(request.messages[-1])
        if "digest" in text and "c1" not in text:
            return answer(say("di"), say("gest"))
        if "beside" in text:
            return "beside"
        return answer(call("digest", id="c1")) if "text='go'" in text else "done"

    return ScriptedModel(reply)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_cut_short_anywhere(source: Source) -> None:
    """C112 C179: the log, the tasks and the next request, from every source."""
    report = explore(asking, asking_model, name="asking", sources=[source])
    assert report.violations == []
    assert report.points >= 1
