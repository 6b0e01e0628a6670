"""Batches that have their tasks in one nursery: the laws are the same, and nothing is left."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, settings, strategies as st
from tests.strategies_batches import BatchPlan, batch_plans
from tests.tools.rig import FakeLog, Timeline, calls_of, code, execute, made, pipeline, run
from tests.tools.test_batch import Bodies, Play, problems_of

from terzetto.tools import ToolPipeline
from terzetto.tools._running import RunningCall
from terzetto.vocabulary import StoreError, texts


@settings(max_examples=60)
@given(batch_plans())
def test_every_batch_keeps_the_laws_in_a_nursery_that_stays(plan: BatchPlan) -> None:
    """C4 C12 C113 C116 C120 C121 C122 C123 C124 C174: as in a nursery of its own."""
    play = Play(plan, shared=True)
    play.run()
    assert play.error is None
    assert problems_of(play) == [], play.timeline.order_all()
    assert play.left == 0


@settings(max_examples=40)
@given(batch_plans(), st.integers(1, 4))
def test_a_batch_that_fails_leaves_no_body_behind(plan: BatchPlan, fails_at: int) -> None:
    """C125: it raises once the last of its bodies has ended, and the nursery goes on."""
    play = Play(plan, shared=True)
    play.log.fails_at, play.log.failure = fails_at, StoreError("the disk is full")
    play.run()
    if play.log.flushes >= fails_at and not play.cancelled:
        assert play.error is play.log.failure
    started = {entry.who for entry in play.timeline.of("body>")}
    assert started == {entry.who for entry in play.timeline.of("body<")}
    assert play.left == 0


def test_a_failed_flush_waits_for_the_bodies_of_the_wave_before() -> None:
    bodies = Bodies(a=1, b=50, c=1)
    bodies.log.fails_at, bodies.log.failure = 2, StoreError("the disk is full")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with pytest.raises(StoreError, match="full"):
                await execute(
                    pipeline(*bodies.tools()),
                    calls_of(*"abc"),
                    bodies.log,
                    capacity=2,
                    nursery=nursery,
                )
            assert not nursery.child_tasks
            assert not nursery.cancel_scope.cancel_called

    run(main)
    assert {entry.who for entry in bodies.timeline.of("body>")} == {"a", "b"}
    assert {entry.who for entry in bodies.timeline.of("body<")} == {"a", "b"}


def test_an_interrupt_inside_a_body_is_raised_as_itself_and_cancels_the_nursery() -> None:
    """Whoever keeps the nursery has nothing more to run: the program is being stopped."""
    bodies = Bodies(a=30)
    raised = KeyboardInterrupt("Ctrl-C")

    async def interrupted() -> str:
        await trio.sleep(1)
        raise raised

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with pytest.raises(KeyboardInterrupt) as caught:
                await execute(
                    pipeline(bodies.tool("a"), made("b", interrupted)),
                    calls_of(*"ab"),
                    bodies.log,
                    nursery=nursery,
                )
            assert caught.value is raised
            assert not nursery.child_tasks
            assert nursery.cancel_scope.cancel_called

    run(main)
    assert bodies.timeline.order("result") == ["result a", "result b"]
    assert {code(outcome) for outcome in bodies.log.outcomes.values()} == {texts.ABORTED}


def test_a_body_that_leaves_a_scope_open_harms_no_batch_behind_it() -> None:
    """Its task ends with it; a batch is no place to look for it."""
    log = FakeLog(Timeline())
    kept: list[trio.CancelScope] = []

    async def careless() -> str:
        kept.append(trio.CancelScope())
        kept[-1].__enter__()
        return "left it open"

    async def careful() -> str:
        await trio.sleep(1)
        return "fine"

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                for name in ("careless", "careful"):
                    log.outcomes.clear()
                    tools = pipeline(made("careless", careless), made("careful", careful))
                    await execute(tools, calls_of(name), log, nursery=nursery)
                    assert not log.outcomes[name].is_error
                    assert not nursery.child_tasks

    run(main)
    assert len(kept) == 3


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("where", ["body", "policy"])
def test_a_defect_of_ours_is_raised_and_hangs_nothing(
    where: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call would never be ready; what else runs ends first."""
    bodies = Bodies(a=1, b=20)

    async def broken(self: ToolPipeline, call: RunningCall) -> None:
        if call.call.name == "b":
            await trio.sleep(5)
            raise AssertionError("a defect")
        await real(self, call)

    method = "execute" if where == "body" else "admit"
    real = getattr(ToolPipeline, method)
    monkeypatch.setattr(ToolPipeline, method, broken)

    async def passing(hook: object, proceed: object) -> object:
        return await proceed()  # type: ignore[operator]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with pytest.raises(AssertionError, match="a defect"):
                await execute(
                    pipeline(*bodies.tools(), pre=[passing]),
                    calls_of(*"ab"),
                    bodies.log,
                    nursery=nursery if shared else None,
                )
            assert not nursery.child_tasks

    run(main)
    assert bodies.timeline.order("result") == ["result a"]


def test_a_cancel_as_policy_is_asked_waits_for_who_asks() -> None:
    """The task that would have gone on to the next call has ended before the batch returns."""
    seen = 0
    for _ in range(30):  # which of two tasks of a pass runs first is Trio's to say
        bodies = Bodies(a=0, b=0, c=0)
        scope = trio.CancelScope()

        async def stops(hook: object, proceed: object, scope: trio.CancelScope = scope) -> object:
            scope.cancel(reason="by policy")
            return await proceed()  # type: ignore[operator]

        async def main(bodies: Bodies = bodies, scope: trio.CancelScope = scope) -> None:
            nonlocal seen
            with scope:
                async with trio.open_nursery() as nursery:
                    await execute(
                        pipeline(*bodies.tools(), pre=[stops]),
                        calls_of(*"abc"),
                        bodies.log,
                        nursery=nursery,
                    )
                    assert not nursery.child_tasks
                    seen += 1

        run(main)
        results = ["result a", "result b", "result c"]
        assert bodies.timeline.order("result") == results
        assert bodies.timeline.order("body>") == []
    assert seen == 30


@pytest.mark.parametrize("beside", [False, True])
def test_a_wave_with_nothing_beside_it_needs_no_task_for_its_flush(beside: bool) -> None:
    """Nothing could be committed meanwhile. With a body beside it, its result could."""
    bodies = Bodies(a=1, b=50, c=1)
    flushed_by: list[trio.lowlevel.Task] = []

    class Log(FakeLog):
        async def flush(self) -> None:
            flushed_by.append(trio.lowlevel.current_task())
            await super().flush()

    log = Log(bodies.timeline)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            names = "abc" if beside else "ab"
            await execute(
                pipeline(*bodies.tools()), calls_of(*names), log, capacity=2, nursery=nursery
            )
            ours = trio.lowlevel.current_task()
            assert [task is ours for task in flushed_by] == ([True, False] if beside else [True])

    run(main)
    assert {code(outcome) for outcome in log.outcomes.values()} == {None}
