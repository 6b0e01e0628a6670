"""Tool batches: ``python -m benchmarks.batches``, or ``--only batch``.

- ``batch.parallel``: a thousand calls that do nothing.
- ``batch.exclusive``: the same with every tenth call alone.
- ``batch.apart``: calls that end one by one, many against few.
- ``batch.cancel``: a hundred sleeping calls that are cancelled.
- ``batch.hooks``: a listener that does nothing on every hook of a tool.

Of a turn only the batch is timed: from the calls to the last of their results in the log.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import trio
import trio.testing

from terzetto import Registration, ToolCallHook, ToolOutcome, ToolResultHook
from terzetto.hooks import Proceed
from terzetto.tools import PreExecute

from ._hot import Engaged, Hot, batches_of, on_disk, one_by_one
from ._measure import Scale, alternate
from ._rows import Ratio, Row
from ._run import Parts, main
from ._work import Load
from .floors import bare_batch, logged_batch, timed, timed_with_log

CAPS = (10, 100)
ALL_CAPS = (1, *CAPS)
MIXED = ("alone", *["note"] * 9)


def parallel(scale: Scale) -> Iterable[Row]:
    """Without a store against bare Trio, with one against Trio and a log, for each cap (C178).

    With a cap of 1 nothing overlaps, and what is around a call is paid call by call: budgets
    of its own.
    """
    calls = scale.pick(1_000, 20)
    for cap in ALL_CAPS:
        hot = Hot(batches_of, Load(2, 0, calls), cap)
        found = alternate(
            {
                "ours": hot,
                "stored": on_disk(hot),
                "bare": timed(calls, bare_batch, calls, cap),
                "logged": timed_with_log(calls, logged_batch, calls, cap),
            },
            scale,
        )
        yield Ratio(
            name=f"{calls:,} calls, cap {cap}, no store",
            unit="call",
            ours=found["ours"],
            against="bare Trio",
            floor=found["bare"],
            budget=1.6 if cap > 1 else 3.0,
        )
        yield Ratio(
            name=f"{calls:,} calls, cap {cap}, jsonl lazy",
            unit="call",
            ours=found["stored"],
            against="with a log",
            floor=found["logged"],
            budget=1.0 if cap > 1 else 1.6,
        )


def exclusive(scale: Scale) -> Iterable[Row]:
    """What a barrier costs: it waits until nothing else runs."""
    calls = scale.pick(1_000, 20)
    for cap, budget in zip(CAPS, (1.15, 1.25), strict=True):
        found = alternate(
            {
                "mixed": Hot(batches_of, Load(2, 0, calls, tools=MIXED), cap),
                "parallel": Hot(batches_of, Load(2, 0, calls), cap),
            },
            scale,
        )
        yield Ratio(
            name=f"{calls:,} calls, every 10th exclusive, cap {cap}",
            unit="call",
            ours=found["mixed"],
            against="all parallel",
            floor=found["parallel"],
            budget=budget,
        )


def apart(scale: Scale) -> Iterable[Row]:
    """Whether a call costs more among many, when each ends by itself."""
    many, few = scale.pick((5_000, 100), (40, 10))

    def chained(calls: int) -> Hot:
        steps = max(1, many // 5 // calls)
        load = Load(steps + 1, 0, calls, tools=("chained",))
        return Hot(batches_of, load, tools=lambda: [one_by_one(calls)])

    found = alternate({"many": chained(many), "few": chained(few)}, scale)
    yield Ratio(
        name=f"calls that end one by one, {many:,} in a batch, cap 10",
        unit="call",
        ours=found["many"],
        against=f"{few:,} in a batch",
        floor=found["few"],
        budget=1.2,
    )


# --- cancelling -----------------------------------------------------------------------------


def cancel(scale: Scale) -> Iterable[Row]:
    """From the cancel until the agent is idle and every call has its result."""
    calls = scale.pick(100, 10)
    found = alternate(
        {
            "ours": Hot(_cancelled, Load(2, 0, calls, tools=("asleep",)), calls),
            "bare": lambda: trio.run(_bare_cancelled, calls),
        },
        scale,
    )
    yield Ratio(
        name=f"{calls} sleeping calls are cancelled",
        unit="batch",
        ours=found["ours"],
        against="bare Trio",
        floor=found["bare"],
        budget=2.0,
    )


async def _cancelled(one: Engaged) -> float:
    one.agent.followup("Work.")
    await _until_asleep()
    before = len(one.agent.session.events)
    began = time.thread_time()
    one.agent.cancel()
    await one.agent.wait_idle()
    took = time.thread_time() - began
    assert one.agent.statistics().tool_bodies_running == 0
    assert len(one.agent.session.events) >= before + one.model.load.calls
    return took


async def _bare_cancelled(calls: int) -> float:
    async with trio.open_nursery() as nursery:
        for _ in range(calls):
            nursery.start_soon(trio.sleep_forever)
        await _until_asleep()
        began = time.thread_time()
        nursery.cancel_scope.cancel()
    return time.thread_time() - began


async def _until_asleep() -> None:
    await trio.testing.wait_all_tasks_blocked(0.01)


# --- hooks ----------------------------------------------------------------------------------


def hooks(scale: Scale) -> Iterable[Row]:
    """One listener on each of the four hooks of a tool; and listeners that are gone again."""
    calls = scale.pick(1_000, 20)
    load = Load(2, 0, calls)
    for cap in CAPS:
        found = alternate(
            {
                "heard": Hot(_heard, load, cap),
                "gone": Hot(_gone, load, cap),
                "none": Hot(batches_of, load, cap),
            },
            scale,
        )
        for name, what, budget in (
            ("heard", "a listener on every tool hook", 1.3),
            ("gone", "listeners that were removed", 1.03),
        ):
            yield Ratio(
                name=f"{calls:,} calls, cap {cap}, {what}",
                unit="call",
                ours=found[name],
                against="without",
                floor=found["none"],
                budget=budget,
            )


async def _heard(one: Engaged) -> float:
    _listen(one)
    return await batches_of(one)


async def _gone(one: Engaged) -> float:
    for registration in _listen(one):
        registration.remove()
    return await batches_of(one)


def _listen(one: Engaged) -> list[Registration]:
    hooks = one.agent.scope.hooks
    return [
        hooks.tool_pre_execute.listen(_decision),
        hooks.tool_execute.listen(_outcome),
        hooks.tool_post_execute.listen(_review),
        hooks.tool_result.listen(lambda result: None),
    ]


async def _decision(hook: ToolCallHook, proceed: Proceed[ToolCallHook, PreExecute]) -> PreExecute:
    return await proceed()


async def _outcome(hook: ToolCallHook, proceed: Proceed[ToolCallHook, ToolOutcome]) -> ToolOutcome:
    return await proceed()


async def _review(
    hook: ToolResultHook, proceed: Proceed[ToolResultHook, ToolOutcome]
) -> ToolOutcome:
    return await proceed()


PARTS: Parts = {
    "batch.parallel": parallel,
    "batch.exclusive": exclusive,
    "batch.apart": apart,
    "batch.cancel": cancel,
    "batch.hooks": hooks,
}

if __name__ == "__main__":
    main(PARTS)
