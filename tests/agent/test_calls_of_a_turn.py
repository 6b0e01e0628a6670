"""The calls of a turn have one nursery. Nobody may be able to tell, but by what it costs."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import pytest
import trio
from tests.agent.kit import check, codes, ending_kinds, pending, play, played, results, settled
from tests.agent.rig import Life, one

from terzetto import Turn, TurnStopping, tool
from terzetto.hooks import Proceed
from terzetto.llm.scripted import answer, call
from terzetto.tools import BatchResult, PoolExecutor, ToolBatch
from terzetto.vocabulary import Event, StepEnd, texts

parents: list[trio.Nursery | None] = []


@tool(parallel=True)
async def look() -> str:
    """Look, and note whose task this is."""
    parents.append(trio.lowlevel.current_task().parent_nursery)
    return "seen"


@tool(parallel=True)
async def slow() -> str:
    """Take a while."""
    await trio.sleep(10)
    return "done"


def nurseries(life: Life) -> int:
    """Those that the agent's task has open."""
    task = life.agent._task
    assert task is not None
    return len(task.child_nurseries)


@played
async def test_the_batches_of_a_turn_share_a_nursery_that_ends_with_it() -> None:
    parents.clear()
    script = [answer(call("look")), answer(call("look"), call("look")), "done"] * 2
    async with one(script, [look]) as life:
        for _ in range(2):
            await life.say()
            await settled()
            assert nurseries(life) == 0
        assert len(parents) == 6
        assert parents[0] is parents[1] is parents[2] is not None
        assert parents[3] is parents[4] is parents[5] is not parents[0]
        assert set(codes(life.session).values()) == {None}
        check(life.session)


@played
async def test_a_turn_without_calls_opens_none() -> None:
    found: list[int] = []

    async def stopping(value: TurnStopping) -> None:
        found.append(nurseries(life))

    async with one(["one", "two"], [look]) as life:
        life.hooks.turn_stopping.listen(stopping)
        await life.say()
    assert found == [1], "the agent's own, that of its children"


@pytest.mark.parametrize("seed", range(8))
def test_steering_that_comes_as_a_turn_ends_is_answered(seed: int) -> None:
    """C61: closing the nursery lets others run; what they send then is seen before the turn
    ends, or wakes the agent after it."""

    async def main() -> None:
        steps = 0

        def look_on(event: Event) -> None:
            nonlocal steps
            steps += isinstance(event.data, StepEnd)
            if isinstance(event.data, StepEnd) and steps == 2:
                nursery.start_soon(steer)

        async def steer() -> None:
            life.agent.steer("and this?")

        script = [answer(call("look")), "so it is", "that too"]
        async with one(script, [look]) as life:
            async with trio.open_nursery() as nursery:
                life.session.observe(look_on)
                await life.say()
            await life.agent.wait_idle()
            assert pending(life.agent) == []
            assert life.request()[-1] == "user: and this?"
            assert set(ending_kinds(life.session)) == {"Completed"}
            check(life.session)

    play(main, seed=seed)


@played
async def test_after_an_interruption_the_calls_have_another() -> None:
    parents.clear()
    script = [answer(call("look"), call("slow")), answer(call("look")), "done"]
    async with one(script, [look, slow]) as life:
        life.agent.followup("go")
        await settled()
        life.agent.interrupt("sooner, please")
        await life.agent.wait_idle()
        assert len(set(map(id, parents))) == len(parents) == 2
        assert sorted(str(code) for code in codes(life.session).values()) == [
            texts.ABORTED,
            "None",
            "None",
        ]
        assert ending_kinds(life.session) == ["Completed"]
        assert nurseries(life) == 0
        check(life.session)


@played
async def test_a_body_that_leaves_a_scope_open_harms_neither_its_turn_nor_the_next() -> None:
    kept: list[trio.CancelScope] = []

    @tool(parallel=True)
    async def careless() -> str:
        """Enter a scope and leave it open."""
        kept.append(trio.CancelScope())
        kept[-1].__enter__()
        return "left it open"

    script = [answer(call("careless")), answer(call("careless"), call("look")), "done"] * 2
    async with one(script, [careless, look]) as life:
        for _ in range(2):
            await life.say()
        assert len(kept) == 4
        assert ending_kinds(life.session) == ["Completed", "Completed"]
        assert set(codes(life.session).values()) == {None}
        check(life.session)


@played
async def test_a_scope_that_an_executor_puts_around_ours_cancels_the_bodies() -> None:
    """C4: whoever wraps the built-in executor has its batches where he put them."""

    class Bounded:
        async def execute(self, batch: ToolBatch) -> BatchResult:
            with trio.move_on_after(1):
                return await PoolExecutor().execute(batch)
            raise AssertionError("it returns, cancelled or not")

    script = [answer(call("look")), answer(call("slow", id="c1")), answer(call("look")), "done"]
    async with one(script, [look, slow], engine={"executor": Bounded()}) as life:
        began = trio.current_time()
        await life.say()
        assert trio.current_time() - began < 5
        assert codes(life.session)["c1"] == texts.ABORTED
        assert ending_kinds(life.session) == ["Completed"]
        check(life.session)


@played
async def test_a_call_sees_the_context_of_its_own_batch_and_changes_nobodys() -> None:
    """C117: the nursery is older than the batch, the context is not."""
    number: ContextVar[int] = ContextVar("number", default=0)
    seen: list[int] = []

    @tool(parallel=True)
    async def count() -> str:
        """Count."""
        seen.append(number.get())
        number.set(100)
        return "counted"

    script = [answer(call("count"), call("count")), answer(call("count")), "done"]
    async with one(script, [count]) as life:
        turn: Turn = await life.agent.ask("go")
        assert turn.text == "done"
        assert seen == [0, 0, 0]
        assert set(results(life.session).values()) == {"counted"}


@played
async def test_a_scope_that_a_listener_leaves_open_cancels_the_calls_of_its_step() -> None:
    """Its nursery is older than that scope, so the scope is not around it."""

    @tool(parallel=True)
    async def endless() -> str:
        """Take for ever."""
        await trio.sleep_forever()
        raise AssertionError("it ends in its cancellation")

    steps: list[int] = []

    async def pre_step(step: object, proceed: Proceed[Any, Any]) -> Any:
        steps.append(len(steps))
        if len(steps) == 2:
            trio.CancelScope(deadline=trio.current_time() + 2).__enter__()
        return await proceed()

    script = [answer(call("look")), answer(call("endless", id="c1")), "done"]
    async with one(script, [look, endless]) as life:
        life.agent.scope.hooks.pre_step.listen(pre_step)
        began = trio.current_time()
        await life.say()
        assert trio.current_time() - began == 2
        assert codes(life.session)["c1"] is not None
        check(life.session)
