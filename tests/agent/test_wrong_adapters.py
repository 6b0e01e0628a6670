"""Adapters that give what is no chunk and no prepared call: the turn fails and says so, and
what is in the log can still be saved and resumed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, evolve, field

import terzetto
from terzetto import CallConfig, Enter, JsonlStore, ModelInfo, TurnFailed, Usage, UserMessage
from terzetto.llm.scripted import ScriptedModel
from terzetto.vocabulary import (
    BlockEnd,
    CallId,
    Finish,
    InvalidValue,
    Request,
    Stop,
    TextDelta,
    ToolCallBlock,
    ToolCalls,
    UsageChunk,
)

ROUTE: dict[str, Any] = {"provider": "own", "model": "m"}
PLAIN = (TextDelta(0, "Fine."), Finish(Stop()))


@define(eq=False)
class _Call:
    config: Any
    chunks: tuple[Any, ...]
    adapter_defaults: Any = frozenset()
    info: Any = ModelInfo()

    @asynccontextmanager
    async def open_stream(self, request: Request) -> AsyncIterator[AsyncIterator[Any]]:
        async with aclosing(self._each()) as chunks:
            yield chunks

    async def _each(self) -> AsyncGenerator[Any, None]:
        for chunk in self.chunks:
            yield chunk() if callable(chunk) else chunk


@define(eq=False)
class _Own:
    """The first call is made wrong by *wrong*, or streams *chunks*; later ones are plain."""

    chunks: tuple[Any, ...] = PLAIN
    wrong: Callable[[Any], Any] = lambda call: call
    provider: str = "own"
    _calls: int = field(default=0, init=False)

    async def prepare(self, config: CallConfig) -> Any:
        self._calls += 1
        if self._calls > 1:
            return _Call(config, PLAIN)
        return self.wrong(_Call(config, self.chunks))

    async def aclose(self) -> None: ...


class _Forever(_Own):
    """Every call streams *chunks*."""

    async def prepare(self, config: CallConfig) -> Any:
        return _Call(config, self.chunks)


def failing(adapter: _Own, folder: Path, listen: Callable[[terzetto.Agent], object] = id) -> str:
    """How the first turn fails. The second is saved, and so is all that was before it."""

    async def run() -> str:
        async with terzetto.open_engine(adapters=[adapter], store=JsonlStore(folder)) as engine:
            async with engine.open_agent(**ROUTE, session_id="s") as agent:
                heard: Any = listen(agent)
                with pytest.raises(TurnFailed) as failed:
                    await agent.ask("one")
                if hasattr(heard, "remove"):
                    heard.remove()
                assert (await agent.ask("two")).text == "Fine."
                assert agent.health is None
                history = list(agent.history())
        model = ScriptedModel(["again"], provider="own")
        async with terzetto.open_engine(adapters=[model], store=JsonlStore(folder)) as engine:
            async with engine.open_agent(resume="s") as agent:
                assert list(agent.history()) == history
        return str(failed.value)

    return trio.run(run)


@pytest.mark.parametrize("given", [None, "Hi.", {"type": "text-delta"}, 5, TextDelta])
def test_an_adapter_that_streams_no_chunk_fails_its_turn_and_the_log_is_whole(
    given: object, tmp_path: Path
) -> None:
    """C109. Before, no event after it could be saved."""
    chunks = (TextDelta(0, "a"), (lambda: given), Finish(Stop()))
    said = failing(_Own(chunks), tmp_path)
    kind = type(given).__name__
    assert said == f"the adapter gave {kind}, expected a chunk such as TextDelta or Finish"


def test_usage_without_numbers_fails_the_turn_and_not_the_driver(tmp_path: Path) -> None:
    def unsaid() -> object:
        nothing: Any = None
        return UsageChunk(Usage(input_tokens=nothing, output_tokens=1))

    said = failing(_Own((TextDelta(0, "a"), unsaid, Finish(Stop()))), tmp_path)
    assert said == "Usage: input_tokens: expected an integer, got None"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda call: None, "prepared NoneType, whose config is NoneType; expected a CallConfig"),
        (lambda call: evolve(call, config=None), "whose config is NoneType"),
        (lambda call: evolve(call, info=None), "whose info is NoneType; expected a ModelInfo"),
        (lambda call: evolve(call, adapter_defaults={"x"}), "whose adapter_defaults is set"),
        (
            lambda call: evolve(call, adapter_defaults=frozenset({"x"})),
            "expected a frozenset of ['maxTokens', 'reasoningEffort']",
        ),
    ],
)
def test_a_prepared_call_that_is_none_is_refused_before_anything_is_logged_of_it(
    wrong: Callable[[Any], Any], said: str, tmp_path: Path
) -> None:
    """C79, C130."""
    assert said in failing(_Own(wrong=wrong), tmp_path)


def test_a_stream_listener_that_gives_no_chunk_is_named(tmp_path: Path) -> None:
    """C112."""

    @asynccontextmanager
    async def stream() -> AsyncIterator[AsyncIterator[Any]]:
        async def chunks() -> AsyncGenerator[Any, None]:
            yield "text"

        async with aclosing(chunks()) as given:
            yield given

    async def answers(value: object, proceed: object) -> Any:
        return stream()

    said = failing(_Own(), tmp_path, lambda agent: agent.scope.hooks.stream.listen(answers))
    assert "a listener of stream" in said
    assert "answers" in said
    assert "a stream of chunks, such as TextDelta and Finish" in said


def test_one_message_enters_a_step_once() -> None:
    """C70: the batch is complete and identified; invariant 6."""
    note = UserMessage("note")
    with pytest.raises(InvalidValue, match=r"are there twice; a message enters once"):
        Enter((note, UserMessage("other"), note))
    assert len(Enter((note, UserMessage("note"))).messages) == 2


def test_a_series_is_declared_by_true_or_false() -> None:
    one: Any = 1
    with pytest.raises(InvalidValue, match="starts_series: expected True or False, got int"):
        Enter((), starts_series=one)


@pytest.mark.parametrize(
    ("name", "ignorable", "said"),
    [
        ("my/\ud800", False, "name: expected valid Unicode"),
        (5, False, "name: expected one of your own"),
        ("my/note", "yes", "ignorable: expected True or False, got str"),
    ],
)
def test_what_is_recorded_can_be_saved_and_read_again(
    name: Any, ignorable: Any, said: str, tmp_path: Path
) -> None:
    """C151, C155."""

    async def run() -> None:
        async with terzetto.open_engine(adapters=[_Own()], store=JsonlStore(tmp_path)) as engine:
            async with engine.open_agent(**ROUTE) as agent:
                with pytest.raises(InvalidValue, match=said):
                    agent.session.record(name, {}, ignorable=ignorable)
                await agent.flush()

    trio.run(run)


# --- whoever is asked while a request is put together ------------------------------------------


async def _asks(turns: int, adapter: _Own, cancel_at: int) -> list[int]:
    """How many calls of the model there had been, each time one was opened. A function of the
    context cancels when it is asked the *cancel_at*-th time; the model calls a tool for ever."""
    opened: list[int] = []
    asked = 0

    @terzetto.tool
    async def look() -> str:
        """Look."""
        return "seen"

    def call() -> BlockEnd:
        opened.append(asked)
        return BlockEnd(0, ToolCallBlock(CallId(f"c{len(opened)}"), "look", "{}"))

    adapter.chunks = (call, Finish(ToolCalls()))
    adapter.wrong = lambda made: made
    async with terzetto.open_engine(adapters=[adapter], tools=[look]) as engine:
        async with engine.open_agent(**ROUTE) as agent:

            def context(view: object) -> str:
                nonlocal asked
                asked += 1
                if asked == cancel_at:
                    agent.cancel()
                return "the same"

            agent.scope.add_context("c", context)
            for _ in range(turns):
                await agent.ask("go")
    return opened


@pytest.mark.parametrize("cancel_at", [1, 2, 3, 4, 5])
def test_nothing_is_asked_after_a_function_of_the_context_cancelled(cancel_at: int) -> None:
    """Also where the request has nothing to append; the adapter itself never waits."""
    opened = trio.run(_asks, 1, _Forever(), cancel_at)
    assert all(asked < cancel_at for asked in opened)
