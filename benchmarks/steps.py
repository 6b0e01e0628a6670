"""Steps: ``python -m benchmarks.steps``, or ``--only step``.

- ``step.cost``: a turn of many steps, a request and a call each.
- ``step.durable``: the same at "step", with syncs that take no time.
- ``step.growth``: a step late in a long turn against one early in it.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import trio

from ._hot import Engaged, Hot, engaged, on_disk, turn_of
from ._measure import Scale, Series, alternate, counting, no_syncs
from ._places import folder, places
from ._rows import Ratio, Row
from ._run import Parts, main
from ._work import Load
from .floors import logged_steps, timed_with_log

Figure: TypeAlias = Callable[[Sequence[float]], float]


def cost(scale: Scale) -> Iterable[Row]:
    """Nine events a step, four of them of the stream; the floor logs four altogether."""
    steps = scale.pick(200, 5)

    async def turn(one: Engaged) -> float:
        return await turn_of(one) / steps

    hot = Hot(turn, Load(steps, 0), watched=False)
    found = alternate(
        {
            "ours": hot,
            "stored": on_disk(hot),
            "logged": timed_with_log(steps, logged_steps, steps),
        },
        scale,
    )
    for name, what, budget in (("ours", "no store", 1.2), ("stored", "jsonl lazy", 1.5)):
        yield Ratio(
            name=f"{steps} steps of one call, {what}",
            unit="step",
            ours=found[name],
            against="with a log",
            floor=found["logged"],
            budget=budget,
        )


def durable(scale: Scale) -> Iterable[Row]:
    """Two syncs a step, none of which takes time: what is left is a log, and a hop to a thread
    and back for each flush that has something to write."""
    steps = scale.pick(200, 5)
    flushes: list[int] = []

    async def step(sessions: Path) -> float:
        load = Load(steps, 0)
        async with engaged(load, sessions=sessions, watched=False, durability="step") as one:
            with counting() as counted:
                took = await turn_of(one) / steps
            flushes.append(counted.hops)
            return took

    def sample() -> float:
        with folder(places()[-1]) as path, no_syncs():
            return trio.run(step, path / "sessions")

    found = alternate(
        {"ours": sample, "logged": timed_with_log(steps, logged_steps, steps), "hop": _hop}, scale
    )
    most = max(flushes) / steps
    allowed = [
        log + 1.3 * most * hop
        for log, hop in zip(found["logged"].values, found["hop"].values, strict=True)
    ]
    yield Ratio(
        name=f"{steps} steps of one call, jsonl step, {most:.2f} flushes each",
        unit="step",
        ours=found["ours"],
        against="with a log, and 1.3 hops a flush",
        floor=Series(tuple(allowed)),
        budget=1.0,
    )


def _hop() -> float:
    """What a call in a thread costs, in all threads together."""

    async def main() -> float:
        await trio.to_thread.run_sync(_nothing)
        began = time.process_time()
        for _ in range(400):
            await trio.to_thread.run_sync(_nothing)
        return (time.process_time() - began) / 400

    return trio.run(main)


def _nothing() -> None:
    return None


def growth(scale: Scale) -> Iterable[Row]:
    """Whether a step looks at what was before it: one turn, in which every step is timed."""
    late, early, window = scale.pick((5_000, 50, 500), (12, 2, 5))
    asked: list[float] = []

    async def turn(one: Engaged) -> float:
        took = await turn_of(one)
        asked[:] = one.model.asked
        return took

    hot = Hot(turn, Load(late + window + 1, 0), watched=False, asked=True)
    rounds: list[list[float]] = []
    for _ in range(scale.rounds):
        gc.collect()
        hot()
        rounds.append([later - sooner for sooner, later in itertools.pairwise(asked)])

    def at(step: int, figure: Figure) -> Series:
        return Series(tuple(figure(steps[step - 1 : step - 1 + window]) for steps in rounds))

    for name, figure, budget in (
        ("median", statistics.median, 1.1),
        ("mean", statistics.fmean, 1.1),
        ("longest", max, None),
    ):
        yield Ratio(
            name=f"a step at {late:,}, {name} of {window}",
            unit="step",
            ours=at(late, figure),
            against=f"at {early}",
            floor=at(early, figure),
            budget=budget,
        )


PARTS: Parts = {"step.cost": cost, "step.durable": durable, "step.growth": growth}

if __name__ == "__main__":
    main(PARTS)
