"""``python -m benchmarks._idle {memory,wake,share} AGENTS``: many agents, in a process of
their own. Prints JSON.

- ``memory``: what each idle agent is, fresh and after one turn: bytes, tracked objects.
- ``wake``: seconds from a message to the request for it, of idle agents among busy ones.
- ``share``: the processor's time of each of many busy agents, of which one only streams.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import trio
from attrs import define, field

import terzetto
from terzetto import Agent, Engine
from terzetto.vocabulary import StreamChunk

from ._memory import resident
from ._work import Load, WorkModel, note, one_turn

BUSY = 100
ENDLESS = 1_000_000_000


@define(eq=False)
class Noting(WorkModel):
    asked: dict[str, float] = field(factory=dict, init=False)

    def chunks(self, session_id: str) -> Iterator[StreamChunk]:
        self.asked.setdefault(session_id, time.perf_counter())
        return WorkModel.chunks(self, session_id)


@define(eq=False)
class Models:
    """A model for each kind of work, and when it was asked by which session."""

    short: Noting = field(factory=lambda: Noting(Load(1, 1), "short"))
    busy: WorkModel = field(factory=lambda: WorkModel(Load(ENDLESS, 20), "busy"))
    stream: WorkModel = field(factory=lambda: WorkModel(Load(1, ENDLESS), "stream"))


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Engine, Models]]:
    models = Models()
    async with terzetto.open_engine(
        adapters=[models.short, models.busy, models.stream], tools=[note]
    ) as engine:
        yield engine, models


async def made(engine: Engine, provider: str, count: int) -> list[Agent]:
    create = engine.agents.create
    return [
        (await create(provider=provider, model="m", session_id=f"{provider}{number}")).agent
        for number in range(count)
    ]


# --- what an idle agent is ------------------------------------------------------------------


async def memory(count: int) -> dict[str, float]:
    async with opened() as (engine, _):
        (first,) = await made(engine, "stream", 1)  # what only the first one makes
        gc.collect()
        size, tracked = resident(), len(gc.get_objects())
        agents = await made(engine, "short", count)
        found: dict[str, float] = {}
        for when in ("fresh", "after a turn"):
            if when != "fresh":
                for agent in agents:
                    await one_turn([agent])
            gc.collect()
            found[f"{when}: bytes"] = (resident() - size) / count
            found[f"{when}: objects"] = (len(gc.get_objects()) - tracked) / count
        assert first.status == "idle"
        return found


# --- how soon one wakes ---------------------------------------------------------------------


async def wake(count: int) -> list[float]:
    """A tenth of the idle agents, at most a thousand, woken over two seconds."""
    async with opened() as (engine, models):
        idle, busy = await made(engine, "short", count), await made(engine, "busy", BUSY)
        # What a host of this size does; the engine changes no setting of the whole process.
        gc.collect()
        gc.freeze()
        gc.set_threshold(5_000, 5, 1_000)
        for agent in busy:
            agent.followup("Work.")
        await trio.sleep(0.2)
        woken = random.Random(0).sample(idle, min(1_000, max(1, count // 10)))
        sent: dict[str, float] = {}
        for agent in woken:
            await trio.sleep(2 / len(woken))
            sent[agent.id] = time.perf_counter()
            agent.followup("Work.")
        for agent in woken:
            await agent.wait_idle()
        for agent in busy:
            agent.cancel()
        return [models.short.asked[name] - began for name, began in sent.items()]


# --- who gets what --------------------------------------------------------------------------


class Stopwatch(trio.abc.Instrument):
    """The processor's time of every agent, its tools' tasks included."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._began = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = time.thread_time() - self._began
        looked: trio.lowlevel.Task | None = task
        while looked is not None and not looked.name.startswith("terzetto agent "):
            above = looked.parent_nursery
            looked = above.parent_task if above is not None else None
        if looked is not None:
            self.spent[looked.name] = self.spent.get(looked.name, 0.0) + took


async def share(count: int) -> list[float]:
    """For as long as it takes that everybody has had some turns of the loop."""
    async with opened() as (engine, _):
        agents = await made(engine, "busy", count - 1) + await made(engine, "stream", 1)
        for agent in agents:
            agent.followup("Work.")
        for _ in range(50):  # past the beginnings of turns, which are not alike
            await trio.lowlevel.checkpoint()
        gc.collect()
        watch = Stopwatch()
        trio.lowlevel.add_instrument(watch)
        for _ in range(200):
            await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(watch)
        for agent in agents:
            agent.cancel()
        assert len(watch.spent) == count
        return list(watch.spent.values())


if __name__ == "__main__":
    what = {"memory": memory, "wake": wake, "share": share}[sys.argv[1]]
    print(json.dumps(trio.run(what, int(sys.argv[2]))))
