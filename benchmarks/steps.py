"""Steps: ``python -m benchmarks.steps``, or ``--only step``.

- ``step.cost``: a turn of many steps, a request and a call each.
- ``step.growth``: a step late in a long turn against one early in it.
"""

from __future__ import annotations

import gc
import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from ._hot import Engaged, Hot, on_disk, turn_of
from ._measure import Scale, Series, alternate
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


def growth(scale: Scale) -> Iterable[Row]:
    """Whether a step looks at what was before it: one turn, in which every step is timed."""
    late, early, window = scale.pick((5_000, 50, 500), (12, 2, 5))
    asked: list[float] = []

    async def turn(one: Engaged) -> float:
        took = await turn_of(one)
        asked[:] = one.model.asked
        return took

    hot = Hot(turn, Load(late + window + 1, 0), watched=False)
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


PARTS: Parts = {"step.cost": cost, "step.growth": growth}

if __name__ == "__main__":
    main(PARTS)
