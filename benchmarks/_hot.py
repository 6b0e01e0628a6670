"""One agent whose batches, or requests, are timed from inside: what the engine itself takes.

The time of a batch is that of the executor, a part of the engine that anyone may replace: from
the calls of an answer to the last of their results in the log. With a store the clock also
waits until all of it is written. Nothing here waits for anything else, so the clock is the
processor's: that of Trio's thread, which costs little to look at, or with a store that of all
threads, which may cost more than a step.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field, frozen

import terzetto
from terzetto import Agent, JsonlStore, Tool, tool
from terzetto.tools import BatchResult, PoolExecutor, ToolBatch
from terzetto.vocabulary import Durability, StreamChunk

from ._measure import Clock, Sample
from ._places import folder, places
from ._work import Load, WorkModel, nap, note


@tool
async def alone(n: int) -> str:
    """Do nothing, with nobody beside it."""
    return "ok"


@tool(parallel=True)
async def asleep(n: int) -> str:
    """Wait for good."""
    await trio.sleep_forever()


def one_by_one(calls: int) -> Tool:
    """A tool whose *calls* calls of one batch end in their order, each in a pass of its own."""
    turn = 1
    waiting: dict[int, trio.Event] = {}

    async def chained(n: int) -> str:
        """End after the call before."""
        nonlocal turn
        if n == turn:
            await trio.lowlevel.checkpoint()
        else:
            event = waiting[n] = trio.Event()
            await event.wait()
        turn = n + 1 if n < calls else 1
        if (following := waiting.pop(turn, None)) is not None:
            following.set()
        return "ok"

    return tool(parallel=True)(chained)


@define(eq=False)
class Watch:
    """The built-in executor with a clock. *settled* is awaited before a batch, when the clock
    does not run, and after it, when it does. Without a *clock* nothing is timed."""

    clock: Clock | None
    settled: Callable[[], Awaitable[None]] | None = None
    seconds: float = field(default=0.0, init=False)
    calls: int = field(default=0, init=False)
    _pool: PoolExecutor = field(factory=PoolExecutor, init=False)

    async def execute(self, batch: ToolBatch) -> BatchResult:
        if self.clock is None:
            return await self._pool.execute(batch)
        if self.settled is not None:
            await self.settled()
        began = self.clock()
        result = await self._pool.execute(batch)
        if self.settled is not None:
            await self.settled()
        self.seconds += self.clock() - began
        self.calls += len(batch.calls)
        return result


@define(eq=False)
class TimedModel(WorkModel):
    """A model that remembers when it was asked, if that is *timed*. Asking the system for the
    time of a thread may take a tenth of a step."""

    timed: bool = field(default=False, kw_only=True)
    asked: list[float] = field(factory=list, init=False)

    def chunks(self, session_id: str) -> Iterator[StreamChunk]:
        if self.timed:
            self.asked.append(time.thread_time())
        return WorkModel.chunks(self, session_id)


@frozen
class Engaged:
    """An agent that has done nothing yet, and what times it."""

    agent: Agent
    watch: Watch
    model: TimedModel
    clock: Clock


@asynccontextmanager
async def engaged(
    load: Load,
    *,
    cap: int = 10,
    sessions: Path | None = None,
    tools: Sequence[Tool] = (),
    watched: bool = True,
    asked: bool = False,
    durability: Durability = "lazy",
) -> AsyncIterator[Engaged]:
    """One agent for *load*, of whom each batch is timed if it is *watched*, and each request
    with *asked*; with *sessions*, on a `JsonlStore` there."""
    clock = time.thread_time if sessions is None else time.process_time
    watch, model = Watch(clock if watched else None), TimedModel(load, timed=asked)
    async with (
        terzetto.open_engine(
            adapters=[model],
            tools=[note, nap, alone, asleep, *tools],
            store=None if sessions is None else JsonlStore(sessions),
            executor=watch if watched else None,
            max_parallel_tool_calls=cap,
            durability=durability,
        ) as engine,
        engine.open_agent(provider="work", model="m") as agent,
    ):
        if sessions is not None:
            watch.settled = agent.flush
        yield Engaged(agent, watch, model, clock)


Work = Callable[[Engaged], Awaitable[float]]
"""Has the agent do something and gives the seconds for one unit of it."""


@frozen
class Hot:
    """How an agent is engaged, and what it does: a sample, called."""

    work: Work
    load: Load
    cap: int = 10
    tools: Callable[[], Sequence[Tool]] = tuple
    watched: bool = True
    asked: bool = False

    async def run(self, sessions: Path | None = None) -> float:
        async with engaged(
            self.load,
            cap=self.cap,
            sessions=sessions,
            tools=self.tools(),
            watched=self.watched,
            asked=self.asked,
        ) as one:
            return await self.work(one)

    def __call__(self) -> float:
        return trio.run(self.run)


def on_disk(hot: Hot) -> Sample:
    """The same on a lazy store, in memory where there is a file system in it: what is
    written is counted, a disk's mood is not."""

    def sample() -> float:
        with folder(places()[-1]) as path:
            return trio.run(hot.run, path / "sessions")

    return sample


async def batches_of(one: Engaged) -> float:
    """A turn; seconds a call, of its batches alone."""
    await one.agent.ask("Work.")
    return one.watch.seconds / one.watch.calls


async def turn_of(one: Engaged) -> float:
    """Seconds of a whole turn, until it is written if it is stored."""
    began = one.clock()
    await one.agent.ask("Work.")
    await one.agent.flush()
    return one.clock() - began
