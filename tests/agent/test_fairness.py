"""One agent that streams without end gives way to the others, although nothing ever waits.

What is counted is passes of the scheduler and events, never time: how long a pass takes is
the machine's affair, and a collection of garbage is counted for whoever wakes it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
from attrs import define, field

import terzetto
from terzetto import Agent, CallConfig, ModelInfo, Request, tool
from terzetto.agent._step import FAIR_AFTER
from terzetto.vocabulary import (
    AssistantChunk,
    BlockEnd,
    BlockStart,
    CallId,
    DefaultField,
    Event,
    Finish,
    StreamChunk,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolCalls,
)

MOST = 64
"""Chunks in the log between two passes of the scheduler, at most."""
PASSES = 60
MANY = 20_000
"""Chunks of a stream without end: one that nothing stops ends, and fails its test."""
BEGINNING = 10
"""Passes, and events, that the beginning of a turn takes, at most."""


@define(eq=False)
class Ready:
    """A model whose chunks are all there: an answer without end, or calls step by step."""

    provider: str
    endless: bool

    async def prepare(self, config: CallConfig) -> ReadyCall:
        return ReadyCall(self, config)

    async def aclose(self) -> None:
        return None

    async def chunks(self) -> AsyncGenerator[StreamChunk, None]:
        yield BlockStart(0, "text")
        for number in range(MANY if self.endless else 3):
            yield TextDelta(0, f"{number} ")
        call = ToolCallBlock(CallId("c"), "note", "{}")
        yield BlockStart(1, "tool-call")
        yield ToolCallDelta(1, call.id, call.arguments, call.name)
        yield BlockEnd(1, call)
        yield Finish(ToolCalls())


@define(eq=False)
class ReadyCall:
    model: Ready
    config: CallConfig
    adapter_defaults: frozenset[DefaultField] = frozenset()
    info: ModelInfo = field(factory=ModelInfo)

    @asynccontextmanager
    async def open_stream(self, request: Request) -> AsyncIterator[AsyncIterator[StreamChunk]]:
        async with aclosing(self.model.chunks()) as chunks:
            yield chunks


@tool(parallel=True)
async def note() -> str:
    """Do nothing."""
    return "ok"


def is_chunk(event: Event) -> bool:
    return isinstance(event.data, AssistantChunk)


class Passes(trio.abc.Instrument):
    """How long the logs of *agents* are at every pass of the scheduler."""

    def __init__(self, agents: list[Agent]) -> None:
        self.agents = agents
        self.lengths: list[list[int]] = []

    def before_io_wait(self, timeout: float) -> None:
        self.lengths.append([len(agent.session.events) for agent in self.agents])

    def grown(self, which: int) -> list[int]:
        """By how many events the log of one agent grew from pass to pass."""
        return [after[which] - before[which] for before, after in pairwise(self.lengths)]


async def watched(others: int, streaming: int, **engine: Any) -> Passes:
    """*others* do steps without end, the agents after them stream; for so many passes."""
    async with terzetto.open_engine(
        adapters=[Ready("steps", False), Ready("stream", True)], tools=[note], **engine
    ) as opened:
        agents = [
            (await opened.agents.create(provider=provider, model="m")).agent
            for provider in [*["steps"] * others, *["stream"] * streaming]
        ]
        passes = Passes(agents)
        for agent in agents:
            agent.followup("Go on.")
        trio.lowlevel.add_instrument(passes)
        for _ in range(PASSES):
            await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(passes)
        return passes


@pytest.mark.parametrize("level", ["step", "lazy"])
async def test_between_two_passes_there_are_few_chunks(level: str) -> None:
    """Without a bound the first stream would never end, and nobody else begin."""
    assert FAIR_AFTER <= MOST
    passes = await watched(3, 1, durability=level)
    grown = passes.grown(-1)
    assert max(grown[BEGINNING:]) <= MOST
    assert max(grown) <= MOST + BEGINNING
    chunks = [event for event in passes.agents[-1].session.events if is_chunk(event)]
    assert len(chunks) > PASSES // 2 * FAIR_AFTER


async def test_everybody_gets_on_all_the_time() -> None:
    """Among ten, nobody waits longer than a step of his own takes for passes."""
    passes = await watched(9, 1)
    for which in range(10):
        grown = passes.grown(which)[BEGINNING:]
        assert all(sum(grown[at : at + 4]) for at in range(len(grown) - 3))


async def test_the_others_do_as_many_steps_as_without_it() -> None:
    """In as many passes of the scheduler. What they lose is time, and that is bounded."""
    beside, alone = await watched(9, 1), await watched(9, 0)
    steps = [agent.session.place.last_step for agent in beside.agents[:9]]
    without = [agent.session.place.last_step for agent in alone.agents]
    assert min(steps) >= PASSES // 5
    assert max(without) - min(steps) <= 2
    assert max(steps) - min(steps) <= 2
