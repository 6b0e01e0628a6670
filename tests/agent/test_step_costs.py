"""What a step costs, counted without a clock: turns of the scheduler, what it leaves in memory,
hops to threads and syncs (C147, C149). The bounds are the counts of today,
with room for what Trio's random order of tasks decides."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from benchmarks._measure import Counted, counting
from benchmarks._work import Load, one_turn, working
from tests.counted import counted

from terzetto import JsonlStore, Store

T = TypeVar("T")

STEP_TURNS = 3.2
"""Of the scheduler: to begin the call, to go on after it, and to leave the batch; and one in
fifty for others."""
STEP_OBJECTS = 36
"""That the collector looks at: nine events, their data and messages."""
STEP_BLOCKS = 64
STEP_CALLS = 470
"""Of Python and of C, by our own code, in a step with a call that nobody listens to."""
BATCH_CALLS = 230
"""The same for a call of a large batch, with its three chunks."""


class Steps(trio.abc.Instrument):
    """Counts how often Trio runs a task on."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


def of_a_turn(load: Load, measure: Callable[[], T], store: Store | None = None) -> tuple[T, T]:
    """What *measure* says before one agent's turn of *load*, and after it."""

    async def main() -> tuple[T, T]:
        # Nothing is written behind: what is counted is what the agent waits for.
        async with working(store, load, write_window=600) as agents:
            before = measure()
            await one_turn(agents)
            return before, measure()

    return trio.run(main)


def turns_of_the_scheduler(load: Load) -> int:
    steps = Steps()

    async def main() -> int:
        async with working(None, load) as agents:
            trio.lowlevel.add_instrument(steps)
            await one_turn(agents)
            return steps.count

    return trio.run(main)


def further(count: Callable[[Load], int], few: Load, many: Load) -> int:
    """How much more of *many* than of *few*: what a turn costs in any case is in both."""
    count(few)  # what is made once is made now
    return count(many) - count(few)


def test_a_step_with_a_call_takes_few_turns_of_the_scheduler() -> None:
    """The driver goes on when the call has ended; all else happens in the same breath."""
    assert further(turns_of_the_scheduler, Load(50, 0), Load(150, 0)) <= 100 * STEP_TURNS


def calls_of_our_code(load: Load) -> int:
    async def main() -> int:
        async with working(None, load) as agents:
            with counted() as work:
                await one_turn(agents)
            return work.calls

    return trio.run(main)


def test_a_step_and_a_call_take_few_calls_of_functions() -> None:
    """A step that repeats the one before finds out nothing anew, whatever its turn's length."""
    assert further(calls_of_our_code, Load(20, 0), Load(120, 0)) <= 100 * STEP_CALLS
    assert further(calls_of_our_code, Load(2, 0, 100), Load(2, 0, 600)) <= 500 * BATCH_CALLS


def test_deltas_take_one_turn_of_the_scheduler_in_fifty() -> None:
    """Two thousand more take 40, and the order in which Trio runs its tasks decides about one
    at each end of a turn."""
    assert further(turns_of_the_scheduler, Load(1, 1_000), Load(1, 3_000)) <= 2 * 20 + 10


def kept() -> tuple[int, int]:
    gc.collect()
    return len(gc.get_objects()), sys.getallocatedblocks()


def further_kept(few: Load, many: Load) -> tuple[int, int]:
    """How many more objects and blocks a turn of *many* leaves than one of *few*."""
    of_a_turn(few, kept)  # what is made once is made now
    (before, few_left), (begun, many_left) = of_a_turn(few, kept), of_a_turn(many, kept)
    objects, blocks = (
        (many_left[what] - begun[what]) - (few_left[what] - before[what]) for what in (0, 1)
    )
    return objects, blocks


def test_a_step_leaves_its_events_and_nothing_else() -> None:
    objects, blocks = further_kept(Load(100, 0), Load(800, 0))
    assert objects <= 700 * STEP_OBJECTS
    assert blocks <= 700 * STEP_BLOCKS


def test_a_delta_leaves_a_few_bytes_of_columns() -> None:
    objects, _ = further_kept(Load(5, 1_000, 0), Load(25, 1_000, 0))
    assert objects <= 20_000 * 0.05


@pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="syncs are counted where there is it")
def test_a_durable_step_syncs_twice_and_hops_twice(tmp_path: Path) -> None:
    """C149: before its request and before its call; a flush with nothing to write is none."""
    number = 0

    def of(load: Load) -> Counted:
        nonlocal number
        number += 1
        with counting() as counted:
            marks = of_a_turn(
                load,
                lambda: (counted.syncs, counted.hops),
                JsonlStore(tmp_path / str(number)),
            )
        (syncs, hops), (later_syncs, later_hops) = marks
        return Counted(later_syncs - syncs, later_hops - hops)

    few, many = of(Load(2, 4)), of(Load(12, 4))
    assert many.syncs - few.syncs <= 10 * 2
    assert many.hops - few.hops <= 10 * 2
    assert few.syncs >= 3
