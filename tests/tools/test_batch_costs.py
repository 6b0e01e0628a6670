"""What a batch costs, counted without a clock; and that its quick ways end as its slow ones.

With no listener a call is classified, admitted, reviewed and committed without a wait, and
policy is asked by one task for many calls. The properties play the same batch with listeners
that only pass on, and want the same to come of it.
"""

from __future__ import annotations

import contextvars
import gc
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, evolve, field
from attrs.exceptions import FrozenInstanceError
from benchmarks._measure import counting
from benchmarks._work import Load, WorkModel, note
from hypothesis import given, settings, strategies as st
from tests.strategies_batches import BatchPlan, batch_plans
from tests.tools.rig import (
    NOBODY,
    FakeLog,
    Timeline,
    a_call,
    calls_of,
    execute,
    made,
    pipeline,
    run,
    told,
)
from tests.tools.test_batch import Play, problems_of

import terzetto
from terzetto import JsonlStore
from terzetto.tools import (
    BatchResult,
    PoolExecutor,
    ToolBatch,
    ToolCallHook,
    ToolOutcome,
    ToolPipeline,
    ToolResultHook,
    tool,
)
from terzetto.tools._apart import Apart
from terzetto.tools._encode import text_block
from terzetto.tools._hooks import call_hook, result_hook
from terzetto.tools._outcome import success
from terzetto.tools._schema import json_text
from terzetto.vocabulary import (
    StoreError,
    TextBlock,
    ToolCallBlock,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    ToolSource,
    UserMessage,
)

Proceed = Callable[..., Awaitable[Any]]


async def passing(value: Any, proceed: Proceed) -> Any:
    return await proceed()


async def passing_it_on(value: Any, proceed: Proceed) -> Any:
    return await proceed(value)


# --- the same comes of it --------------------------------------------------------------------


@define(eq=False)
class Heard(Play):
    """A plan whose policy and review are not played, but *listeners* on every hook."""

    listeners: int = 0
    listener: Any = passing

    def _pipeline(self) -> ToolPipeline:
        tools = [self._tool(name) for name in self.names if self.of(name).mode != "unknown"]
        every = [self.listener] * self.listeners
        results = [lambda hook: None] * self.listeners
        return pipeline(*tools, pre=every, around=every, post=every, results=results)


def came_of(play: Heard) -> dict[str, object]:
    """What is the same however many turns of the scheduler it takes."""
    line = play.timeline
    facts: dict[str, object] = {
        "result": play.result,
        "error": play.error,
        "calls": line.order("call"),
        "results": line.order("result"),
        "outcomes": play.log.outcomes,
        "bodies": sorted(line.order("body>")),
        "ended": sorted(line.order("body<")),
    }
    if not play.plan.flush:  # who shares a flush may depend on it
        kinds = ("call", "result", "body>", "body<", "end")
        facts["times"] = sorted((e.at, e.kind, e.who) for e in line.of(*kinds))
    return facts


def heard_alike(plan: BatchPlan) -> None:
    plan = evolve(plan, pre=False, post=False)
    plain = Heard(plan)
    plain.run()
    expected = came_of(plain)
    for listeners, listener in ((1, passing), (1, passing_it_on), (2, passing)):
        play = Heard(plan, listeners=listeners, listener=listener)
        play.run()
        assert came_of(play) == expected


@settings(max_examples=40)
@given(batch_plans(calm=True), st.integers(0, 1))
def test_listeners_that_pass_on_change_nothing(plan: BatchPlan, flush: int) -> None:
    """C113 C120 C122 C156."""
    heard_alike(evolve(plan, flush=flush))


@settings(max_examples=40)
@given(batch_plans(calm=True), st.integers(0, 8))
def test_listeners_that_pass_on_change_nothing_of_a_cancel(plan: BatchPlan, at: int) -> None:
    """C116 C124: the cancel falls between two ticks, where nothing else happens."""
    heard_alike(evolve(plan, cancel=at + 0.25))


@settings(max_examples=40)
@given(batch_plans())
def test_a_policy_with_nobody_beside_it_keeps_the_laws(plan: BatchPlan) -> None:
    """C113 C114 C120 C124: of a plan with all its listeners, one call at a time."""
    play = Play(evolve(plan, pre=True, capacity=1))
    play.run()
    assert play.error is None
    assert problems_of(play) == [], play.timeline.order_all()


# --- policy, asked by one task ---------------------------------------------------------------


def test_what_a_policy_sets_of_context_variables_nobody_else_sees() -> None:
    """C113: neither the next call's policy nor a body, whether the listener waits or not."""
    seen: list[tuple[str, str | None]] = []
    mark: contextvars.ContextVar[str | None] = contextvars.ContextVar("mark", default=None)

    async def marking(hook: Any, proceed: Proceed) -> Any:
        seen.append(("policy", mark.get()))
        mark.set(hook.call.id)
        if hook.call.id == "b":
            await trio.sleep(1)
        assert mark.get() == hook.call.id
        return await proceed()

    async def body() -> str:
        seen.append(("body", mark.get()))
        return "ok"

    async def main() -> None:
        tools = pipeline(*(made(name, body) for name in "abc"), pre=[marking])
        await execute(tools, calls_of(*"abc"), FakeLog(Timeline()))
        assert mark.get() is None

    run(main)
    assert sorted(seen) == [("body", None)] * 3 + [("policy", None)] * 3


def test_a_policy_may_open_nurseries_and_be_cut_by_a_scope_of_its_own() -> None:
    """C113: it runs within a task that asks about others as well."""
    log = FakeLog(Timeline())

    async def busy(hook: Any, proceed: Proceed) -> Any:
        with trio.move_on_after(1) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
        assert scope.cancelled_caught
        return await proceed()

    async def body() -> str:
        return "ok"

    async def main() -> None:
        tools = pipeline(*(made(name, body) for name in "ab"), pre=[busy])
        await execute(tools, calls_of(*"ab"), log)
        assert trio.current_time() == 2

    run(main)
    assert [told(log.outcomes[name]) for name in "ab"] == ["ok", "ok"]


def test_a_call_that_cannot_be_recorded_behind_a_policy_fails_the_batch_as_itself() -> None:
    """C125: not in a group, and nothing starts, the call before it neither."""
    timeline, failure = Timeline(), StoreError("the log refuses")
    ran: list[str] = []

    class Log(FakeLog):
        def call(self, call: ToolCallBlock) -> int:
            if call.id == "b":
                raise failure
            return super().call(call)

    async def body() -> str:
        ran.append("a body")
        return "ok"

    async def main() -> None:
        tools = pipeline(*(made(name, body) for name in "abc"), pre=[passing])
        with pytest.raises(StoreError) as caught:
            await execute(tools, calls_of(*"abc"), Log(timeline))
        assert caught.value is failure

    run(main)
    assert timeline.order("call") == ["call a"]
    assert ran == []


def test_who_walks_what_a_task_awaits_sees_the_policy_that_it_waits_for() -> None:
    found: list[str] = []

    async def slow(hook: Any, proceed: Proceed) -> Any:
        await trio.sleep(1)
        return await proceed()

    async def main() -> None:
        async def look() -> None:
            await trio.testing.wait_all_tasks_blocked()
            for task in nursery.child_tasks:
                for frame, _ in task.iter_await_frames():
                    found.append(frame.f_code.co_name)
                for inner in task.child_nurseries:
                    for child in inner.child_tasks:
                        found.extend(f.f_code.co_name for f, _ in child.iter_await_frames())

        async def body() -> str:
            return "ok"

        async def batch() -> None:
            tools = pipeline(made("a", body), pre=[slow])
            await execute(tools, calls_of("a"), FakeLog(Timeline()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(batch)
            await look()

    run(main)
    assert "slow" in found
    assert "sleep" in found


def test_apart_is_what_it_runs() -> None:
    mark: contextvars.ContextVar[int] = contextvars.ContextVar("mark", default=0)
    ended: list[int] = []

    async def work(error: Exception | None) -> int:
        mark.set(1)
        try:
            await trio.lowlevel.checkpoint()
        finally:
            ended.append(mark.get())
        if error is not None:
            raise error
        return 5

    async def main() -> None:
        assert await Apart(work(None)) == 5
        with pytest.raises(ValueError, match="no"):
            await Apart(work(ValueError("no")))
        with trio.CancelScope() as scope:
            scope.cancel(reason="test")
            await Apart(work(None))
        assert scope.cancelled_caught
        assert mark.get() == 0

    run(main)
    assert ended == [1, 1, 1]
    alone = Apart(work(None))
    alone.close()
    assert ended == [1, 1, 1]


# --- what is built quickly is what the constructors build ------------------------------------

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)


@given(ANY_TEXT, st.booleans())
def test_outcomes_and_hook_values_are_those_of_the_constructors(text: str, concludes: bool) -> None:
    """C118: a tool may return what UTF-8 cannot carry."""
    block = text_block(text)
    assert (block, hash(block)) == (TextBlock(text), hash(TextBlock(text)))
    outcome = success((block,), concludes=concludes)
    assert outcome == ToolOutcome((block,), False, None, (), concludes)
    call = a_call("c", "t", text)
    for quick, slow in (
        (call_hook(NOBODY, call, None), ToolCallHook(NOBODY, call, None)),
        (result_hook(NOBODY, call, None, outcome), ToolResultHook(NOBODY, call, None, outcome)),
    ):
        assert (type(quick), quick) == (type(slow), slow)
        with pytest.raises(FrozenInstanceError):
            quick.call = call  # type: ignore[misc]


@given(st.one_of(ANY_TEXT, ANY_TEXT.map(lambda text: "{" + text)))
def test_arguments_that_look_harmless_are_read_as_all_others(text: str) -> None:
    """C117: a blank in front sends the same text the long way."""
    long_way = json_text(" " + text)
    assert json_text(text) == (long_way if long_way == "{}" else long_way[1:])


async def test_a_call_is_recorded_as_the_constructors_would_have_it() -> None:
    """C118 C122."""
    contents = ["plain", "\ud800 half", "\U0001f600"]

    @tool(parallel=True)
    async def odd(n: int) -> str:
        """Odd."""
        if n == len(contents):
            raise ValueError("\udc00")
        return contents[n]

    async with (
        terzetto.open_engine(
            adapters=[WorkModel(Load(2, 0, len(contents), tools=("odd",)))], tools=[odd]
        ) as engine,
        engine.open_agent(provider="work", model="m") as agent,
    ):
        await agent.ask("Work.")
        events = list(agent.session.events)
    calls = [e.data for e in events if isinstance(e.data, ToolCallEvent)]
    results = [e.data for e in events if isinstance(e.data, ToolResultEvent)]
    assert len(calls) == len(results) == len(contents)
    for event in calls:
        assert event == ToolCallEvent(
            event.turn, event.step, event.call_id, event.name, event.arguments
        )
    for event_ in results:
        message = event_.message
        (block,) = message.content
        assert isinstance(block, ToolResultBlock)
        assert isinstance(message.source, ToolSource)
        rebuilt = ToolResultBlock(block.tool_call_id, block.content, block.is_error)
        source = ToolSource(message.source.call_id)
        assert message == UserMessage((rebuilt,), source, message.id)
        assert event_ == ToolResultEvent(event_.turn, event_.step, message, event_.error)
    assert len({result.message.id for result in results}) == len(results)


def test_ids_are_apart_in_a_process_that_was_forked() -> None:
    """A process has a random number of its own, also one that was forked."""
    code = (
        "import os\n"
        "from terzetto.vocabulary import new_message_id as new\n"
        "def tell():\n"
        "    os.write(1, f'{new()}\\n'.encode())\n"
        "tell()\n"
        "child = os.fork() if hasattr(os, 'fork') else None\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"
        "tell()\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    ids = shown.stdout.split()
    assert len(set(ids)) == len(ids) >= 2
    assert {len(one) for one in ids} == {24}


# --- counted ---------------------------------------------------------------------------------


class Steps(trio.abc.Instrument):
    """Every step of every task, and the most tasks that lived at one."""

    def __init__(self) -> None:
        self.steps = 0
        self.most = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        self.most = max(self.most, trio.lowlevel.current_statistics().tasks_living)


def steps_of(calls: int, capacity: int, **listeners: Any) -> tuple[int, int]:
    """Steps of a batch that does nothing, and how many tasks lived beside those there were."""
    told: list[tuple[int, int]] = []

    class Free(FakeLog):
        def must_flush(self, read_only: bool = False) -> bool:
            return False

    async def nothing() -> str:
        return "ok"

    async def main() -> None:
        tools = pipeline(made("t", nothing), **listeners)
        blocks = tuple(a_call(f"c{n}") for n in range(calls))
        batch = ToolBatch(calls=blocks, capacity=capacity, pipeline=tools, log=Free(Timeline()))
        before = trio.lowlevel.current_statistics().tasks_living
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await PoolExecutor().execute(batch)
        trio.lowlevel.remove_instrument(steps)
        told.append((steps.steps, steps.most - before))

    run(main)
    return told[0]


@pytest.mark.parametrize("capacity", [10, 100])
def test_a_call_is_one_step_of_a_task_and_its_share_of_one_of_the_parent(capacity: int) -> None:
    """C120: never more tasks than slots; a listener that waits for nothing is no step."""
    calls = 200
    waves = calls // capacity
    steps, tasks = steps_of(calls, capacity)
    assert calls + waves <= steps <= calls + waves + 3
    assert tasks <= capacity
    heard = {"around": [passing], "post": [passing], "results": [lambda hook: None]}
    assert steps_of(calls, capacity, **heard)[0] <= calls + waves + 3


@pytest.mark.parametrize("capacity", [10, 100])
def test_policy_costs_steps_for_a_wave_and_none_for_a_call(capacity: int) -> None:
    """C113 C120: one task asks about all that may start, and the parent looks after it."""
    calls = 200
    waves = calls // capacity
    steps, tasks = steps_of(calls, capacity, pre=[passing])
    assert calls + waves <= steps <= calls + 5 * waves + 3
    assert tasks <= capacity + 1


@define(eq=False)
class Kept:
    """The built-in executor, looked at: what a batch left for the collector, and blocks."""

    tracked: list[float] = field(factory=list)
    blocks: list[float] = field(factory=list)
    _pool: PoolExecutor = field(factory=PoolExecutor)

    async def execute(self, batch: ToolBatch) -> BatchResult:
        await trio.lowlevel.checkpoint()
        gc.collect()
        tracked, blocks = len(gc.get_objects()), sys.getallocatedblocks()
        result = await self._pool.execute(batch)
        gc.collect()
        self.tracked.append((len(gc.get_objects()) - tracked) / len(batch.calls))
        self.blocks.append((sys.getallocatedblocks() - blocks) / len(batch.calls))
        return result


async def test_a_call_keeps_few_objects() -> None:
    """Two events with what they tell, a node of the surface, and nothing of how it ran."""
    kept = Kept()
    async with (
        terzetto.open_engine(
            adapters=[WorkModel(Load(4, 0, 300))], tools=[note], executor=kept
        ) as e,
        e.open_agent(provider="work", model="m") as agent,
    ):
        await agent.ask("Work.")
    print("KEPT", kept)
    assert len(kept.tracked) == 3
    assert min(kept.tracked) <= TRACKED
    assert min(kept.blocks) <= BLOCKS


TRACKED, BLOCKS = 12, 22


async def test_a_batch_needs_a_sync_for_each_wave_and_a_hop_for_each_sync(tmp_path: Path) -> None:
    """C145: calls that end together, at "step"."""
    calls, cap = 40, 10
    counts: list[tuple[int, int]] = []

    @define(eq=False)
    class Counted:
        async def execute(self, batch: ToolBatch) -> BatchResult:
            with counting() as counted:
                result = await PoolExecutor().execute(batch)
            counts.append((counted.syncs, counted.hops))
            return result

    async with (
        terzetto.open_engine(
            adapters=[WorkModel(Load(2, 0, calls))],
            tools=[note],
            store=JsonlStore(tmp_path),
            executor=Counted(),
            max_parallel_tool_calls=cap,
            durability="step",
            write_window=3600,
        ) as engine,
        engine.open_agent(provider="work", model="m") as agent,
    ):
        await agent.ask("Work.")
    assert counts == [(calls // cap, calls // cap)]
