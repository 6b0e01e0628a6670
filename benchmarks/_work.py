"""The work that agents do in a benchmark: a model that answers at once, a tool without work.

Made so that as little as possible of what is measured is its own: chunks are made when they
are asked for, nothing waits, and nothing is remembered but how far each session has come.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING

import trio
from attrs import define, field, frozen

import terzetto
from terzetto import Agent, CallConfig, Engine, ModelInfo, Request, SqliteStore, Store, tool
from terzetto.llm import Adapter
from terzetto.vocabulary import (
    BlockEnd,
    BlockStart,
    CallId,
    DefaultField,
    Durability,
    Finish,
    Stop,
    StreamChunk,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolCalls,
)

from ._measure import Clock, Counted, counting

WORD = "word "
_CALLS, _DONE = Finish(ToolCalls()), Finish(Stop())


@frozen
class Load:
    """What one turn does: *steps* requests, the last without calls, of *deltas* pieces of text
    and *calls* calls each, of *tools* in turn. *apart*: the calls take a while, and end one
    by one."""

    steps: int
    deltas: int
    calls: int = 1
    apart: bool = False
    tools: tuple[str, ...] = ("note",)


@tool(parallel=True)
async def note(n: int) -> str:
    """Do nothing."""
    return "ok"


@tool(parallel=True)
async def nap(n: int) -> str:
    """Take between 10 and 60 ms, another time for each *n* up to 100."""
    await trio.sleep(0.01 + n * 37 % 100 / 2000)
    return "ok"


@define(eq=False)
class WorkModel:
    """Answers every turn of every session with *load*."""

    load: Load
    provider: str = "work"
    _steps: dict[str, int] = field(factory=dict, init=False)

    async def prepare(self, config: CallConfig) -> _Prepared:
        return _Prepared(self, config)

    async def aclose(self) -> None:
        return None

    def chunks(self, session_id: str) -> Iterator[StreamChunk]:
        step = self._steps[session_id] = self._steps.get(session_id, 0) % self.load.steps + 1
        if self.load.deltas:
            yield BlockStart(0, "text")
            for _ in range(self.load.deltas):
                yield TextDelta(0, WORD)
            yield BlockEnd(0, TextBlock(WORD * self.load.deltas))
        calls = self.load.calls if step < self.load.steps else 0
        for number in range(1, calls + 1):
            name = "nap" if self.load.apart else self.load.tools[number % len(self.load.tools)]
            call = ToolCallBlock(CallId(f"call-{step}-{number}"), name, f'{{"n":{number}}}')
            yield BlockStart(number, "tool-call")
            yield ToolCallDelta(number, call.id, call.arguments, call.name)
            yield BlockEnd(number, call)
        yield _CALLS if calls else _DONE


@define(eq=False)
class _Prepared:
    _model: WorkModel
    config: CallConfig
    adapter_defaults: frozenset[DefaultField] = frozenset()
    info: ModelInfo = ModelInfo()

    def open_stream(self, request: Request) -> _Stream:
        return _Stream(self._model.chunks(request.session_id))


@define(eq=False)
class _Stream(AbstractAsyncContextManager[AsyncIterator[StreamChunk]]):
    """A class, and not two generators, which would cost as much as all that is asked of it."""

    _chunks: Iterator[StreamChunk]

    async def __aenter__(self) -> AsyncIterator[StreamChunk]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def __aiter__(self) -> AsyncIterator[StreamChunk]:
        return self

    async def __anext__(self) -> StreamChunk:
        for chunk in self._chunks:
            return chunk
        raise StopAsyncIteration


if TYPE_CHECKING:
    _: Adapter = WorkModel(Load(1, 1))


@asynccontextmanager
async def working(
    store: Store | None,
    load: Load,
    agents: int = 1,
    *,
    cap: int = 10,
    durability: Durability = "step",
    write_window: float = 0.25,
) -> AsyncIterator[list[Agent]]:
    """So many agents over *store* that have done nothing yet."""
    async with (
        terzetto.open_engine(
            adapters=[WorkModel(load)],
            tools=[note, nap],
            store=store,
            max_parallel_tool_calls=cap,
            durability=durability,
            write_window=write_window,
        ) as engine,
        AsyncExitStack() as stack,
    ):
        yield [await _opened(engine, stack, number) for number in range(agents)]


async def _opened(engine: Engine, stack: AsyncExitStack, number: int) -> Agent:
    opening = engine.open_agent(provider="work", model="m", session_id=f"s{number}")
    return await stack.enter_async_context(opening)


async def one_turn(agents: Sequence[Agent]) -> int:
    """Every agent does its turn, all at the same time, until it is durable; how many events
    that took."""
    before = sum(len(agent.session.events) for agent in agents)
    async with trio.open_nursery() as nursery:
        for agent in agents:
            nursery.start_soon(_one_turn, agent)
    return sum(len(agent.session.events) for agent in agents) - before


async def _one_turn(agent: Agent) -> None:
    await agent.ask("Work.")
    await agent.flush()


@frozen
class Work:
    """What was done in a measured stretch: *groups* is how often something was synced."""

    seconds: float
    events: int
    groups: int


class Meter:
    """Looks at *store* and *clock* from now on."""

    def __init__(self, store: Store, counted: Counted, clock: Clock) -> None:
        self._store, self._counted, self._clock = store, counted, clock
        self._before = counted.syncs + self._commits()
        self._began = clock()

    def work(self, events: int) -> Work:
        took = self._clock() - self._began
        return Work(took, events, self._counted.syncs + self._commits() - self._before)

    def _commits(self) -> int:
        return self._store.statistics().commits if isinstance(self._store, SqliteStore) else 0


async def turns(agents: int, load: Load, level: Durability, store: Store, clock: Clock) -> Work:
    """So many agents do their turn on a new *store*."""
    async with working(store, load, agents, durability=level) as workers:
        with counting() as counted:
            meter = Meter(store, counted, clock)
            return meter.work(await one_turn(workers))
