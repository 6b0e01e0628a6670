"""Very many short lives of agents, ended in every way, and what they leave: nothing.

One Trio run. Every kind of life asserts what it did, so that none passes by doing nothing.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field, frozen
from trio._core._run import GLOBAL_RUN_CONTEXT

import terzetto
from terzetto import JsonlStore, MemoryStore, ToolRun, tool
from terzetto.agent import Agent
from terzetto.engine import Engine, open_engine
from terzetto.llm import ChunkStream, PreparedCall
from terzetto.testing import Living, Orphan, OrphanMeter, living
from terzetto.vocabulary import (
    Aborted,
    AssistantChunk,
    BlockEnd,
    CallConfig,
    CallId,
    Event,
    Finish,
    ModelInfo,
    Request,
    Stop,
    StreamChunk,
    TextDelta,
    ToolCallBlock,
    ToolCallEvent,
    ToolCalls,
    TurnEnd,
    UserMessage,
)

MIB = 1024 * 1024
ROOM = 8 * MIB
"""What the allocator may come to keep in half-empty pools. Blocks and objects are exact."""
PATIENCE = 10.0
OBJECTS = 300
"""Tracked objects that caches of the standard library may come to hold."""
BLOCKS = 3_000
"""Allocated blocks, likewise: numbers and texts are not tracked, and are blocks."""


# --- a model that keeps nothing -------------------------------------------------------------


@frozen
class _Call:
    config: CallConfig
    info: ModelInfo = ModelInfo()
    adapter_defaults: frozenset[str] = frozenset()

    def open_stream(self, request: Request) -> ChunkStream:
        return _stream(request)


@asynccontextmanager
async def _stream(request: Request) -> AsyncIterator[AsyncIterator[StreamChunk]]:
    yield _chunks(request)


class _chunks:
    """Asks for the tools that the input names; after their results, says so."""

    def __init__(self, request: Request) -> None:
        last = request.messages[-1]
        words = last.text.split() if isinstance(last, UserMessage) else []
        self.parts: list[StreamChunk] = []
        self.hangs = words[:1] == ["hang"]
        if words[:1] == ["call"]:
            for number, name in enumerate(words[1:]):
                block = ToolCallBlock(CallId(f"c{number}"), name, "{}")
                self.parts.append(BlockEnd(number, block))
            self.parts.append(Finish(ToolCalls()))
        elif self.hangs:
            self.parts.append(TextDelta(0, "so far"))
        else:
            self.parts += [TextDelta(0, "done"), Finish(Stop())]
        self.parts.reverse()

    def __aiter__(self) -> _chunks:
        return self

    async def __anext__(self) -> StreamChunk:
        await trio.lowlevel.checkpoint()
        if self.parts:
            return self.parts.pop()
        if self.hangs:
            await trio.sleep_forever()
        raise StopAsyncIteration


class Model:
    """An adapter without memory."""

    provider = "soak"

    async def prepare(self, config: CallConfig) -> PreparedCall:
        return _Call(config)  # type: ignore[return-value]

    async def aclose(self) -> None:
        return None


# --- tools ----------------------------------------------------------------------------------


@tool(parallel=True)
async def quick() -> str:
    """Give way once."""
    await trio.lowlevel.checkpoint()
    return "quick"


@tool
async def slow() -> str:
    """Wait until it is cancelled."""
    await trio.sleep_forever()
    return "never"


@tool
def threaded() -> str:
    """Run in a thread."""
    return "threaded"


@tool
async def child(run: ToolRun) -> str:
    """Ask a child agent."""
    engine, parent = _ENGINES[-1], run.agent
    assert isinstance(parent, Agent)
    async with engine.open_agent(provider="soak", model="m", parent=parent) as agent:
        return (await agent.ask("hello")).text


@tool
async def forsaken(run: ToolRun) -> str:
    """Open a child agent that hangs, and wait for it."""
    engine, parent = _ENGINES[-1], run.agent
    assert isinstance(parent, Agent)
    async with engine.open_agent(provider="soak", model="m", parent=parent) as agent:
        return (await agent.ask("hang")).text


TOOLS = (quick, slow, threaded, child, forsaken)
_ENGINES: list[Engine] = []


# --- lives ----------------------------------------------------------------------------------

Life = Callable[[Engine], Awaitable[None]]


async def answered(engine: Engine) -> None:
    """A turn with two tools at once, then the agent's block is left."""
    async with engine.open_agent(provider="soak", model="m") as agent:
        assert (await agent.ask("call quick quick")).text == "done"


async def cancelled(engine: Engine) -> None:
    """A turn that is cancelled while a tool runs."""
    async with engine.open_agent(provider="soak", model="m") as agent:
        agent.followup("call quick slow")
        await running(agent, ToolCallEvent, 2)
        agent.cancel()
        await agent.wait_idle()
        assert ending(agent) == "UserCause"


async def streaming(engine: Engine) -> None:
    """A turn that is cancelled while an answer streams, and another one after it."""
    async with engine.open_agent(provider="soak", model="m") as agent:
        agent.followup("hang")
        await running(agent, AssistantChunk)
        agent.cancel()
        await agent.wait_idle()
        assert ending(agent) == "UserCause"
        assert (await agent.ask("hello")).text == "done"


async def disposed(engine: Engine) -> None:
    """The block is left while a tool runs."""
    async with engine.open_agent(provider="soak", model="m") as agent:
        agent.followup("call slow")
        await running(agent, ToolCallEvent)
    assert ending(agent) == "DisposedCause"


async def killed(engine: Engine) -> None:
    """The host cancels all around the agent."""
    agent = None
    with trio.CancelScope() as scope:
        async with engine.open_agent(provider="soak", model="m") as agent:
            agent.followup("call slow")
            await running(agent, ToolCallEvent)
            scope.cancel()
            await trio.sleep_forever()
    assert agent is not None
    assert ending(agent) == "DisposedCause"


async def unborn(engine: Engine) -> None:
    """The creation is cancelled halfway."""

    async def setup(agent: Agent) -> None:
        scope.cancel()
        await trio.lowlevel.checkpoint()

    with trio.CancelScope() as scope:
        async with engine.open_agent(provider="soak", model="m", setup=setup):
            raise AssertionError("it was created")
    assert scope.cancelled_caught


async def held(engine: Engine) -> None:
    """Created and disposed of by a handle, with input pending."""
    handle = await engine.agents.create(provider="soak", model="m")
    handle.agent.inject("later")
    await handle.dispose()
    assert handle.agent.disposed


async def family(engine: Engine) -> None:
    """A tool runs a child agent."""
    async with engine.open_agent(provider="soak", model="m") as agent:
        assert (await agent.ask("call child")).text == "done"


async def orphaned(engine: Engine) -> None:
    """A child is at work when its parent is disposed of."""
    async with engine.open_agent(provider="soak", model="m") as agent:
        agent.followup("call forsaken")
        while len(engine.agents.list()) < 2:
            await trio.lowlevel.checkpoint()
    assert engine.agents.list() == []


async def borrowing(engine: Engine) -> None:
    """A tool runs in a thread."""
    async with engine.open_agent(provider="soak", model="m") as agent:
        assert (await agent.ask("call threaded")).text == "done"


async def stored(engine: Engine) -> None:
    """An engine of its own with a store in memory; the session is resumed."""
    async with open_engine(adapters=[Model()], tools=[quick], store=MemoryStore()) as inner:
        async with inner.open_agent(provider="soak", model="m", session_id="s") as agent:
            assert (await agent.ask("call quick")).text == "done"
        async with inner.open_agent(resume="s") as agent:
            assert (await agent.ask("hello")).text == "done"


async def on_disk(engine: Engine) -> None:
    """An engine of its own with a store on disk; left while a tool runs."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        store = JsonlStore(folder)
        async with open_engine(adapters=[Model()], tools=[slow], store=store) as inner:
            async with inner.open_agent(provider="soak", model="m", durability="lazy") as agent:
                agent.followup("call slow")
                await running(agent, ToolCallEvent)
        assert ending(agent) == "DisposedCause"
    finally:
        shutil.rmtree(folder)


OFTEN: tuple[Life, ...] = (
    answered,
    cancelled,
    streaming,
    disposed,
    killed,
    unborn,
    held,
    family,
    orphaned,
)
SELDOM: tuple[tuple[int, Life], ...] = ((50, borrowing), (40, stored), (1_000, on_disk))
"""Every how many lives one of these comes: threads and disks are slow."""
KINDS = (*OFTEN, *(life for _, life in SELDOM))


async def running(agent: Agent, kind: type, times: int = 1) -> None:
    """Return once the log has *times* events of *kind* from here on; nothing ran yet."""
    seen = trio.Event()
    left = times

    def note(event: Event) -> None:
        nonlocal left
        left -= type(event.data) is kind
        if not left:
            seen.set()

    with agent.session.observe(note):
        await seen.wait()


def ending(agent: Agent) -> str:
    """The cause of the latest ending."""
    last = next(e.data for e in reversed(agent.session.events) if isinstance(e.data, TurnEnd))
    assert isinstance(last.ending, Aborted)
    return type(last.ending.cause).__name__


# --- the soak -------------------------------------------------------------------------------


@frozen
class Measure:
    """What is there at one moment, garbage collected."""

    living: Living
    objects: int
    blocks: int
    rss: int

    @classmethod
    def now(cls) -> Measure:
        # Deadlines that are over stay in Trio's heap until there are a thousand of them.
        GLOBAL_RUN_CONTEXT.runner.deadlines._prune()
        for _ in range(3):
            gc.collect()
        return cls(living(), len(gc.get_objects()), sys.getallocatedblocks(), resident())


def resident() -> int:
    """Bytes of memory that the process has, 0 where nobody says."""
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@define
class Soaked:
    """What came of it."""

    lifetimes: int
    kinds: Counter[str] = field(factory=Counter)
    before: Measure = field(factory=Measure.now)
    after: Measure = field(factory=Measure.now)
    left: list[Orphan] = field(factory=list)
    unfinished: terzetto.EngineStatistics | None = None
    lines: list[str] = field(factory=list)

    def counts(self) -> list[tuple[str, int, int]]:
        before, after = self.before, self.after
        names = ("tasks", "threads", "processes", "files")
        rows = [(n, getattr(before.living, n), getattr(after.living, n)) for n in names]
        rows.append(("tracked objects", before.objects, after.objects))
        rows.append(("allocated blocks", before.blocks, after.blocks))
        rows.append(("memory, KiB", before.rss // 1024, after.rss // 1024))
        return rows

    @property
    def grown(self) -> int:
        """Bytes that the process has now and had not."""
        return self.after.rss - self.before.rss

    @property
    def clean(self) -> bool:
        few = self.after.objects - self.before.objects <= OBJECTS
        few = few and self.after.blocks - self.before.blocks <= BLOCKS
        return few and not self.left and self.grown <= ROOM and self.unfinished is None

    def __str__(self) -> str:
        objects = self.after.objects - self.before.objects
        more = f", {objects:+,} objects" if objects > OBJECTS else ""
        mib = self.grown / MIB
        return f"{self.lifetimes:,} lifetimes, {len(self.left)} left, {mib:+.1f} MiB{more}"


def soak(lifetimes: int, warm_up: int = 2_000, *, trace: bool = False) -> Soaked:
    """Live *warm_up* lives, measure, live *lifetimes* more, measure again."""
    return trio.run(_soak, lifetimes, warm_up, trace)


async def _soak(lifetimes: int, warm_up: int, trace: bool) -> Soaked:
    await lives(warm_up, Counter())
    async with open_engine(adapters=[Model()], tools=TOOLS) as engine:
        _ENGINES.append(engine)
        for life in KINDS:  # each of them at least twice, for what is made once
            await life(engine)
            await life(engine)
        _ENGINES.pop()
    if trace:
        tracemalloc.start(8)
    first = tracemalloc.take_snapshot() if trace else None
    soaked = Soaked(lifetimes)
    meter = OrphanMeter()
    soaked.before = Measure.now()
    statistics = await lives(lifetimes, soaked.kinds)
    soaked.after = Measure.now()
    soaked.left = meter.left(PATIENCE)
    busy = statistics.agents_living or statistics.tool_bodies_running or statistics.turns_open
    soaked.unfinished = statistics if busy or statistics.threads_borrowed else None
    if first is not None:
        grown = tracemalloc.take_snapshot().compare_to(first, "lineno")
        soaked.lines = [str(one) for one in grown[:15] if one.size_diff > 0]
        tracemalloc.stop()
    return soaked


async def lives(count: int, kinds: Counter[str]) -> terzetto.EngineStatistics:
    """*count* lives in one engine, in a mixed order that is always the same."""
    order = random.Random(count)
    async with open_engine(adapters=[Model()], tools=TOOLS) as engine:
        _ENGINES.append(engine)
        try:
            for number in range(1, count + 1):
                life = order.choice(OFTEN)
                for every, other in SELDOM:
                    if number % every == 0:
                        life = other
                await life(engine)
                kinds[life.__name__] += 1
        finally:
            _ENGINES.pop()
    return engine.statistics()
