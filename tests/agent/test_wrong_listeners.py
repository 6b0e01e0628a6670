"""Listeners that give what no hook takes: the error says whose, what came and what to do."""

from __future__ import annotations

import logging
import types
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from attrs import evolve
from tests.agent.kit import ROUTE, engine_on, play

from terzetto import Engine, MemoryStore, ToolOutcome, TurnFailed, UserMessage, tool
from terzetto.agent._hooks import _KINDS, Hooks
from terzetto.hooks import Notification
from terzetto.llm.scripted import ScriptedModel, answer, call, finish_error
from terzetto.vocabulary import (
    Finish,
    InvalidValue,
    Stop,
    TextBlock,
    TextDelta,
    ToolResultBlock,
    ToolResultEvent,
)

WATERFALLS = ("pre_step", "assemble", "request", "stream")
NOTIFICATIONS = [name for name, kind in _KINDS.items() if kind is Notification]


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def forgets(value: object, proceed: Any) -> None:
    """A listener that looks, and forgets to return what it was given."""
    await proceed()


async def passes_on(value: object, proceed: Any) -> object:
    return await proceed()


def plain(value: object, proceed: Any) -> None:
    """A listener somebody forgot to make async."""


def told(listen: Any, *script: Any) -> str:
    """How the turn of an agent fails, whose engine *listen* has listened to."""

    async def run() -> str:
        async with engine_on(ScriptedModel(script or ["Hi."]), tools=[look]) as engine:
            listen(engine)
            async with engine.open_agent(**ROUTE) as agent:
                with pytest.raises(TurnFailed) as failed:
                    await agent.ask("go")
                # The next turn is another one; the agent lives.
                assert agent.status == "idle"
                return str(failed.value)

    return play(run)


@pytest.mark.parametrize("point", WATERFALLS)
def test_a_listener_that_returns_nothing_is_named(point: str) -> None:
    """C68: with what was expected, what came, and what it has to end with."""

    def listen(engine: Engine) -> None:
        getattr(engine.scope.hooks, point).listen(forgets)

    text = told(listen)
    assert f"a listener of {point} returned NoneType, expected" in text
    assert ": tests.agent.test_wrong_listeners.forgets; " in text
    assert "return await proceed()" in text


@pytest.mark.parametrize("point", WATERFALLS)
def test_of_several_listeners_each_is_named_outermost_first(point: str) -> None:
    def listen(engine: Engine) -> None:
        hook = getattr(engine.scope.hooks, point)
        hook.listen(passes_on)
        hook.listen(partial(forgets))

    text = told(listen)
    assert ".passes_on, or it came to it from a listener inside: " in text
    assert "inside: tests.agent.test_wrong_listeners.forgets;" in text


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("point", [*WATERFALLS, "turn_stopping"])
def test_a_plain_function_where_an_async_one_belongs_is_named(point: str, several: bool) -> None:
    def listen(engine: Engine) -> None:
        hook = getattr(engine.scope.hooks, point)
        if point == "turn_stopping":
            hook.listen(lambda value: None)
        else:
            if several:
                hook.listen(passes_on)
            hook.listen(plain)

    text = told(listen)
    assert f"{point}: expected an async function as its listener, and tests.agent." in text
    assert "is a plain one that returned NoneType; write `async def`" in text


def test_whatever_can_be_awaited_is_a_decision() -> None:
    """A function need not be written with `async def`, as long as it gives what can be awaited."""

    class Later:
        def __init__(self, decision: Any) -> None:
            self.decision = decision

        def __await__(self) -> Any:
            return self.decision.__await__()

    @types.coroutine
    def old(value: object, proceed: Any) -> Any:
        return (yield from proceed().__await__())

    async def run() -> None:
        async with engine_on(ScriptedModel(["Hi."])) as engine:
            engine.scope.hooks.pre_step.listen(lambda value, proceed: proceed())
            engine.scope.hooks.pre_step.listen(lambda value, proceed: Later(proceed()))
            engine.scope.hooks.pre_step.listen(old)
            async with engine.open_agent(**ROUTE) as agent:
                assert (await agent.ask("go")).text == "Hi."

    play(run)


@pytest.mark.parametrize("gives", ["no stream", "no chunks"])
def test_a_stream_of_something_else_is_named(gives: str) -> None:
    """C112: what a `stream` listener opens is entered, and what it gives is iterated over."""

    @asynccontextmanager
    async def empty_handed() -> Any:
        yield None

    async def answers(value: object, proceed: Any) -> Any:
        return "Hi." if gives == "no stream" else empty_handed()

    text = told(lambda engine: engine.scope.hooks.stream.listen(answers))
    if gives == "no stream":
        assert "a listener of stream returned str, expected an async context manager" in text
    else:
        assert "stream returned NoneType, expected a stream that gives an async iterable" in text
    assert "answers" in text


def test_a_stream_may_give_what_can_only_be_iterated_over() -> None:
    """C112: in a turn, and in a request outside the log."""

    class Chunks:
        async def __aiter__(self) -> Any:
            yield TextDelta(0, "Of my own.")
            yield Finish(Stop())

    @asynccontextmanager
    async def opened() -> Any:
        yield Chunks()

    async def answers(value: object, proceed: Any) -> Any:
        return opened()

    async def run() -> None:
        async with engine_on(ScriptedModel(["Hi."])) as engine:
            engine.scope.hooks.stream.listen(answers)
            async with engine.open_agent(**ROUTE) as agent:
                assert (await agent.ask("go")).text == "Of my own."
                assert (await agent.complete("a title, please")).text == "Of my own."

    play(run)


def test_a_request_outside_the_log_tells_the_same() -> None:
    async def run() -> None:
        async with engine_on(ScriptedModel(["Hi."])) as engine:
            engine.scope.hooks.stream.listen(forgets)  # type: ignore[arg-type]
            async with engine.open_agent(**ROUTE) as agent:
                with pytest.raises(InvalidValue, match=r"a listener of stream .*\.forgets; "):
                    await agent.complete("a title, please")

    play(run)


@pytest.mark.parametrize("point", ["tool_pre_execute", "tool_execute", "tool_post_execute"])
@pytest.mark.parametrize("listener", [forgets, plain])
def test_a_listener_around_a_tool_is_named_in_the_calls_result(point: str, listener: Any) -> None:
    """C114: and a policy that decides nothing lets no call through."""

    async def run() -> str:
        script = [answer(call("look", id="c1")), "done"]
        async with engine_on(ScriptedModel(script), tools=[look]) as engine:
            getattr(engine.scope.hooks, point).listen(listener)
            async with engine.open_agent(**ROUTE) as agent:
                await agent.ask("go")
                results = [
                    e.data for e in agent.session.events if isinstance(e.data, ToolResultEvent)
                ]
                (result,) = results
                return repr(result)

    text = play(run)
    assert point in text
    assert f"test_wrong_listeners.{listener.__name__}" in text
    assert "expected" in text


class _Text(TextBlock):
    """A subclass may hold more than is written."""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"content": (_Text("x"),)}, "tuple of TextBlock as its content"),
        ({"content": [TextBlock("x")]}, "tuple of TextBlock as its content"),
        ({"contexts": ("x",)}, "tuple of UserMessage as its contexts"),
        ({"is_error": 1}, "bool as its is_error"),
        ({"is_error": None}, "bool as its is_error"),
        ({"error": "E_CODE"}, "ToolErrorInfo or None as its error"),
    ],
)
@pytest.mark.parametrize("point", ["tool_execute", "tool_post_execute"])
def test_an_outcome_that_no_log_could_hold_is_an_error_result(
    point: str, change: dict[str, Any], expected: str
) -> None:
    """C117: what is after it can be saved, and the next turn is another one."""

    async def changes(value: object, proceed: Any) -> ToolOutcome:
        return evolve(await proceed(), **change)

    async def run() -> tuple[str, bool]:
        script = [answer(call("look", id="c1")), "done", "again"]
        async with engine_on(
            ScriptedModel(script), tools=[look], store=MemoryStore(), durability="each"
        ) as engine:
            getattr(engine.scope.hooks, point).listen(changes)
            async with engine.open_agent(**ROUTE) as agent:
                await agent.ask("go")
                await agent.flush()
                found = [
                    e.data for e in agent.session.events if isinstance(e.data, ToolResultEvent)
                ]
                (result,) = (block for block in found[0].message.content)
                assert isinstance(result, ToolResultBlock)
                return repr(result.content), result.is_error

    text, is_error = play(run)
    assert is_error
    assert point in text
    assert expected in text


class _Message(UserMessage):
    """A subclass, of which more might be lost than it says."""


def test_a_message_of_another_class_is_refused_where_it_is_sent() -> None:
    async def run() -> None:
        async with engine_on(ScriptedModel(["Hi."]), tools=[look]) as engine:
            async with engine.open_agent(**ROUTE) as agent:
                for send in (agent.followup, agent.steer, agent.inject):
                    with pytest.raises(InvalidValue, match="got _Message"):
                        send(_Message("x"))
                with pytest.raises(InvalidValue, match="got _Message"):
                    agent.inbox.append("next-turn", _Message("x"))
                assert list(agent.session.events) == []

    play(run)


def test_no_decision_about_a_failed_request_ends_the_turn_with_its_own_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C132: unhandled is terminal; the listener is told in the log."""
    with caplog.at_level(logging.ERROR, "terzetto"):
        text = told(
            lambda e: e.scope.hooks.request_error.listen(forgets),
            answer(finish_error("SERVER", "it burns")),
        )
    assert "it burns" in text
    assert "forgets" not in text
    (found,) = [r for r in caplog.records if "request_error" in r.getMessage()]
    assert "expected Retry or End: tests.agent.test_wrong_listeners.forgets" in found.getMessage()


@pytest.mark.parametrize("point", NOTIFICATIONS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_async_function_cannot_be_told_of_anything(point: str, wrapped: bool) -> None:
    """C156: nobody would await it; so it is refused as it is registered."""

    async def hears(value: object) -> None:
        raise AssertionError("never called")

    hook = getattr(Hooks.over(None), point)
    with pytest.raises(InvalidValue, match=rf"{point}: expected a plain function, and .*hears"):
        hook.listen(partial(hears) if wrapped else hears)
    assert not hook


def test_every_kind_of_point_was_tried() -> None:
    tried = {*WATERFALLS, *NOTIFICATIONS, "turn_stopping", "request_error", "agent_created"}
    assert tried | {n for n in _KINDS if n.startswith("tool_")} == set(_KINDS)


async def test_a_plain_function_cannot_hear_of_a_creation() -> None:
    """C36: it vetoes, as any failure of one of these does, and says why."""
    async with engine_on(ScriptedModel([])) as engine:
        engine.scope.hooks.agent_created.listen(print)  # type: ignore[arg-type]
        with pytest.raises(
            InvalidValue, match=r"agent_created: expected an async function .*print"
        ):
            await engine.agents.create(**ROUTE)
        assert engine.agents.list() == []
        await trio.lowlevel.checkpoint()
