"""``python -m benchmarks._idle {memory,wake,wake-defaults,share} AGENTS``: many agents, in
a process of their own. Prints JSON.

- ``memory``: what each idle agent is, fresh and after one turn: bytes, tracked objects.
- ``wake``: seconds of the processor from a message to the request for it, of idle agents among
  busy ones; with the garbage collector as a host of this size sets it, or with its defaults.
- ``share``: how alike many busy agents are in what they get, of which one only streams.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
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
        self.asked.setdefault(session_id, time.thread_time())
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
    """With the collector set as suits a program of this size."""
    return await woken(count, suited=True)


async def wake_defaults(count: int) -> list[float]:
    """With the collector as Python sets it."""
    return await woken(count, suited=False)


async def woken(count: int, *, suited: bool) -> list[float]:
    """A tenth of the idle agents, at most a thousand, woken over two seconds; of a handful
    over less."""
    async with opened() as (engine, models):
        idle, busy = await made(engine, "short", count), await made(engine, "busy", BUSY)
        gc.collect()
        if suited:  # by the host: the engine changes no setting of the whole process
            gc.freeze()
            gc.set_threshold(5_000, 5, 1_000)
        for agent in busy:
            agent.followup("Work.")
        await trio.sleep(0.2)
        chosen = random.Random(0).sample(idle, min(1_000, max(1, count // 10)))
        sent: dict[str, float] = {}
        for agent in chosen:
            await trio.sleep(min(2 / len(chosen), 0.05))
            sent[agent.id] = time.thread_time()
            agent.followup("Work.")
        for agent in chosen:
            await agent.wait_idle()
        for agent in busy:
            agent.cancel()
        return [models.short.asked[name] - began for name, began in sent.items()]


# --- who gets what --------------------------------------------------------------------------


class Stopwatch(trio.abc.Instrument):
    """What every agent has had, its tools' tasks included: passes of the scheduler in which its
    driver ran, and the processor's time with and without the garbage collector's.

    A collection is counted for whoever made the object too many, and looks at everybody's.
    """

    def __init__(self) -> None:
        self.passes: dict[str, int] = {}
        self.spent: dict[str, float] = {}
        self.worked: dict[str, float] = {}
        self._began = self._collecting = self._collected = 0.0

    def __enter__(self) -> Stopwatch:
        gc.callbacks.append(self._collector)
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *_: object) -> None:
        trio.lowlevel.remove_instrument(self)
        gc.callbacks.remove(self._collector)

    def _collector(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self._collected += time.thread_time() - self._collecting

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._collected = 0.0
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = time.thread_time() - self._began
        looked: trio.lowlevel.Task | None = task
        while looked is not None and not looked.name.startswith("terzetto agent "):
            above = looked.parent_nursery
            looked = above.parent_task if above is not None else None
        if looked is not None:
            name = looked.name
            self.passes[name] = self.passes.get(name, 0) + (looked is task)
            self.spent[name] = self.spent.get(name, 0.0) + took
            self.worked[name] = self.worked.get(name, 0.0) + took - self._collected


def jain(values: Iterable[float]) -> float:
    """Jain's index: 1 if all have the same, one divided by their number if one has it all."""
    found = list(values)
    return sum(found) ** 2 / (len(found) * sum(value * value for value in found))


async def share(count: int) -> dict[str, float]:
    """All but one do steps without end, one streams without end; what each gets of so many
    passes of the scheduler as it takes for everybody to do some steps."""
    async with opened() as (engine, _):
        agents = await made(engine, "busy", count - 1) + await made(engine, "stream", 1)
        for agent in agents:
            agent.followup("Work.")
        for _ in range(20):  # past the beginnings of turns, which are not alike
            await trio.lowlevel.checkpoint()
        gc.collect()
        done = [agent.session.place.last_step for agent in agents[:-1]]
        with Stopwatch() as watch:
            for _ in range(80):
                await trio.lowlevel.checkpoint()
        steps = [
            agent.session.place.last_step - before
            for agent, before in zip(agents[:-1], done, strict=True)
        ]
        for agent in agents:
            agent.cancel()
        assert len(watch.spent) == count
        streams = watch.worked[f"terzetto agent {agents[-1].id}"]
        return {
            "passes": jain(watch.passes.values()),
            "steps of the others": jain(steps),
            "time": jain(watch.worked.values()),
            "time and collections": jain(watch.spent.values()),
            "the streaming one": streams * count / sum(watch.worked.values()),
        }


if __name__ == "__main__":
    kinds = {"memory": memory, "wake": wake, "wake-defaults": wake_defaults, "share": share}
    what = kinds[sys.argv[1]]
    print(json.dumps(trio.run(what, int(sys.argv[2]))))
