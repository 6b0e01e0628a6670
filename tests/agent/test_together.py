"""Chunks that came together get into the log as if they had come one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

import pytest
import trio
from attrs import define, field
from hypothesis import given, settings, strategies as st

import terzetto
from terzetto import Agent, CallConfig, Event, ModelInfo, Request, tool
from terzetto.agent._step import FAIR_AFTER
from terzetto.llm._together import Grouped, Together, several
from terzetto.testing.strategies import streams
from terzetto.vocabulary import (
    AssistantChunk,
    AssistantMessageEvent,
    BlockStart,
    DefaultField,
    Finish,
    Stop,
    StreamChunk,
    TextDelta,
    ToolResultEvent,
    TurnEnd,
)

Groups: TypeAlias = Sequence[Sequence[StreamChunk]]
Way: TypeAlias = Literal["together", "singly", "through a listener"]


class Coming(Grouped):
    def __init__(self, groups: Groups) -> None:
        super().__init__()
        self.groups = list(groups)
        self.handed = 0

    async def _more(self) -> Sequence[StreamChunk]:
        await trio.lowlevel.checkpoint()
        if not self.groups:
            return ()
        group = self.groups.pop(0)
        self.handed += len(group)
        return group


@define(eq=False)
class Model:
    """Answers the first request with *groups*, in this way, and all later ones shortly."""

    groups: Groups
    way: Way = "together"
    provider: str = "grouped"
    asked: int = 0
    coming: Coming | None = None

    async def prepare(self, config: CallConfig) -> Call:
        return Call(self, config)

    async def aclose(self) -> None:
        return None


@define(eq=False)
class Call:
    model: Model
    config: CallConfig
    adapter_defaults: frozenset[DefaultField] = frozenset()
    info: ModelInfo = field(factory=ModelInfo)

    @asynccontextmanager
    async def open_stream(self, request: Request) -> AsyncIterator[AsyncIterator[StreamChunk]]:
        model = self.model
        model.asked += 1
        if model.asked > 1:
            yield Coming([[BlockStart(0, "text"), TextDelta(0, "later"), Finish(Stop())]])
            return
        model.coming = Coming(model.groups)
        yield model.coming if model.way == "together" else Alone(model.coming)


class Alone(AsyncIterator[StreamChunk]):
    """Chunks one by one: an iterator that knows of no groups."""

    def __init__(self, chunks: AsyncIterator[StreamChunk]) -> None:
        self.chunks = chunks

    async def __anext__(self) -> StreamChunk:
        return await anext(self.chunks)


async def listener(value: object, proceed: Any) -> Any:
    @asynccontextmanager
    async def wrapped() -> AsyncIterator[AsyncIterator[StreamChunk]]:
        async with await proceed() as chunks:
            yield Alone(chunks)

    return wrapped()


@tool
async def look() -> str:
    """Look."""
    return "looked"


def told(event: Event) -> object:
    """What of an event has to be the same, without the ids that every session makes."""
    match event.data:
        case AssistantChunk():
            return event.data
        case AssistantMessageEvent(message=message, interrupted=interrupted, usage=usage):
            return message.content, interrupted, usage, event.sources
        case ToolResultEvent(message=message):
            return message.content
        case TurnEnd(turn=turn, ending=ending):
            return turn, type(ending)
        case data:
            return type(data)


async def played(groups: Groups, way: Way, strike: bool, at: int) -> list[object]:
    """The log of an agent that who saw chunk number *at* cancelled, with *strike*."""
    model = Model(groups, way)
    async with terzetto.open_engine(adapters=[model], tools=[look]) as engine:
        async with engine.open_agent(provider="grouped", model="m") as agent:
            if way == "through a listener":
                agent.scope.hooks.stream.listen(listener)
            seen = 0

            def observe(event: Event) -> None:
                nonlocal seen
                if isinstance(event.data, AssistantChunk):
                    seen += 1
                    if seen == at:
                        agent.cancel()

            if strike:
                agent.session.observe(observe)
            agent.followup("Go on.")
            await agent.wait_idle()
            return [told(event) for event in agent.session.events]


@settings(max_examples=40, deadline=None)
@given(streams(cut=True), st.data(), st.booleans())
def test_the_log_is_the_same_however_chunks_came(
    chunks: tuple[StreamChunk, ...], data: st.DataObject, strike: bool
) -> None:
    """C109 C113: also when who is told of a chunk cancels."""
    groups: list[list[StreamChunk]] = []
    rest = list(chunks)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        groups, rest = [*groups, rest[:size]], rest[size:]
    at = data.draw(st.integers(1, len(chunks) + 1))
    singly = trio.run(played, [[chunk] for chunk in chunks], "singly", strike, at)
    assert trio.run(played, groups, "together", strike, at) == singly
    assert trio.run(played, groups, "through a listener", strike, at) == singly


def deltas(agent: Agent) -> list[str]:
    return [
        event.data.chunk.text
        for event in agent.session.events
        if isinstance(event.data, AssistantChunk) and isinstance(event.data.chunk, TextDelta)
    ]


@pytest.mark.parametrize("observed", [False, True])
async def test_a_long_group_gives_way_and_a_cancel_in_its_middle_is_prompt(observed: bool) -> None:
    """The prefix that was kept is what the log had; the rest was not delivered."""
    many = 100 * FAIR_AFTER
    group: list[StreamChunk] = [BlockStart(0, "text")]
    group += [TextDelta(0, f"{n} ") for n in range(many)]
    model = Model([group, [Finish(Stop())]])
    async with terzetto.open_engine(adapters=[model]) as engine:
        async with engine.open_agent(provider="grouped", model="m") as agent:
            if observed:
                agent.session.observe(lambda event: None)
            agent.followup("Go on.")
            while len(deltas(agent)) < FAIR_AFTER:
                await trio.lowlevel.checkpoint()
            agent.cancel()
            before = deltas(agent)
            await agent.wait_idle()
            kept = deltas(agent)
            assert FAIR_AFTER <= len(before) <= len(kept) < many
            assert len(kept) - len(before) <= 2 * FAIR_AFTER
            anchors = [
                event.data.message.text
                for event in agent.session.events
                if isinstance(event.data, AssistantMessageEvent)
            ]
            assert anchors == ["".join(kept)]


@given(st.lists(st.integers(1, 4), max_size=6), st.lists(st.booleans(), max_size=30))
def test_both_ways_of_reading_draw_from_the_same_answer(sizes: list[int], ways: list[bool]) -> None:
    """In turns they give everything once and in order, and after the end nothing."""
    count = sum(sizes)
    chunks: list[StreamChunk] = [TextDelta(0, str(number)) for number in range(count)]
    groups = [chunks[sum(sizes[:at]) : sum(sizes[: at + 1])] for at in range(len(sizes))]

    async def read() -> list[StreamChunk]:
        coming: Together = Coming(groups)
        found: list[StreamChunk] = []
        for together in [*ways, *[True] * (len(sizes) + 1)]:
            if together:
                found += await several(coming)()
            elif (chunk := await anext(coming, None)) is not None:
                found.append(chunk)
        assert await several(coming)() == ()
        assert await anext(coming, None) is None
        return found

    assert trio.run(read) == chunks
