"""Agents: ``python -m benchmarks.agents``, or ``--only agent``.

- ``agent.idle``: what each of ten thousand idle agents is in memory.
- ``agent.create``: making one and disposing of it.
- ``agent.wake``: how soon an idle one asks its model, among busy ones.
- ``agent.share``: whether one that streams without end leaves the others their share.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import trio

import terzetto

from ._measure import Scale, alternate
from ._rows import Count, Ratio, Row
from ._run import Parts, main
from ._work import Load, WorkModel

Status: TypeAlias = "trio.TaskStatus[None]"
ROOT = Path(__file__).resolve().parents[1]


def _apart(what: str, agents: int) -> object:
    command = [sys.executable, "-m", "benchmarks._idle", what, str(agents)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def _figures(what: str, agents: int) -> list[float]:
    found = _apart(what, agents)
    assert isinstance(found, list)
    return [float(value) for value in found]


def idle(scale: Scale) -> Iterable[Row]:
    """The process, and the objects that the garbage collector looks at, for each agent."""
    agents = scale.pick(10_000, 50)
    found = _apart("memory", agents)
    assert isinstance(found, dict)
    for when, kib, objects in (("fresh", 8, 60), ("after a turn", 12, 110)):
        name = f"{agents:,} idle agents, {when}"
        yield Count(
            name=f"{name}: memory",
            value=found[f"{when}: bytes"] / 1024,
            unit="KiB an agent",
            limit=None if scale.quick else kib,
        )
        yield Count(
            name=f"{name}: tracked objects",
            value=found[f"{when}: objects"],
            unit="an agent",
            limit=None if scale.quick else objects,
        )


def create(scale: Scale) -> Iterable[Row]:
    """One after the other; the floor starts a task in a scope, and ends it."""
    agents = scale.pick(500, 5)
    found = alternate(
        {
            "ours": lambda: trio.run(_created, agents),
            "bare": lambda: trio.run(_started, agents),
        },
        scale,
    )
    yield Ratio(
        name="an agent is created and disposed of",
        unit="agent",
        ours=found["ours"],
        against="a task, a scope and a list",
        floor=found["bare"],
        budget=4,
    )


async def _created(agents: int) -> float:
    async with terzetto.open_engine(adapters=[WorkModel(Load(1, 1))]) as engine:
        began = time.thread_time()
        for _ in range(agents):
            handle = await engine.agents.create(provider="work", model="m")
            await handle.dispose()
        return (time.thread_time() - began) / agents


async def _started(agents: int) -> float:
    async def body(
        scope: trio.CancelScope, log: list[str], ended: trio.Event, *, task_status: Status
    ) -> None:
        with scope:
            log.append("created")
            task_status.started()
            await trio.sleep_forever()
        ended.set()

    async with trio.open_nursery() as nursery:
        began = time.thread_time()
        for _ in range(agents):
            scope, log, ended = trio.CancelScope(), list[str](), trio.Event()
            await nursery.start(partial(body, scope, log, ended))
            scope.cancel()
            await ended.wait()
        return (time.thread_time() - began) / agents


def wake(scale: Scale) -> Iterable[Row]:
    """From `Agent.followup` to the request, with the collector set as suits a program of this
    size, and as Python sets it."""
    agents = scale.pick(10_000, 50)
    for how, kind, judged in (("frozen", "wake", True), ("defaults", "wake-defaults", False)):
        times = sorted(_figures(kind, agents))
        for what, at, limit in (
            ("median", 0.5, None),
            ("99 of 100", 0.99, 50),
            ("longest", 1, None),
        ):
            yield Count(
                name=f"an agent wakes, {agents:,} idle, 100 busy, {how}: {what}",
                value=times[min(len(times) - 1, int(at * len(times)))] * 1000,
                unit="ms",
                limit=limit if judged and not scale.quick else None,
            )


def share(scale: Scale) -> Iterable[Row]:
    """Jain's index, 1 if all get the same, is told as what is lost of it.

    What counts is progress: how often each gets to run, and what the others get done. Time
    with the garbage collector's is shown to tell how much of it the collector decides: it is
    counted for whoever happens to wake it.
    """
    agents = scale.pick(1_000, 10)
    found = _apart("share", agents)
    assert isinstance(found, dict)
    name = f"{agents:,} busy agents, one streams without end"
    for what, key, limit in (
        ("passes of the scheduler", "passes", 0.05),
        ("steps of the others", "steps of the others", 0.05),
        ("processor time", "time", 0.05),
        ("the same, collections included", "time and collections", None),
    ):
        yield Count(
            name=f"{name}: {what}",
            value=1 - found[key],
            unit="less than alike",
            limit=None if scale.quick else limit,
        )
    yield Count(
        name=f"{name}: its time",
        value=found["the streaming one"],
        unit="x the average",
        limit=None if scale.quick else 4,
    )


PARTS: Parts = {
    "agent.idle": idle,
    "agent.create": create,
    "agent.wake": wake,
    "agent.share": share,
}

if __name__ == "__main__":
    main(PARTS)
