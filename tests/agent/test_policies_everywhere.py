"""A batch with policies at every stage, struck at every point from every source.

The rich scenario has no tool listeners; this one has all of them, waiting, deaf, slow and
failing, with timeouts, a rolling pool, a barrier and contexts.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from terzetto import Deny, ToolRun, tool
from terzetto.llm.scripted import ScriptedModel, answer, call
from terzetto.testing import SOURCES, Source, Stage, explore


def make_model() -> ScriptedModel:
    names = ["plain", "deaf", "refused", "late", "alone", "absent", "broken", "plain"]
    batch = answer(*(call(name, id=f"c{n}") for n, name in enumerate(names)))
    return ScriptedModel([batch, "read", "more", "more"])


async def policies(stage: Stage) -> None:
    """Eight calls, three slots."""

    @tool(parallel=True)
    async def plain(run: ToolRun) -> str:
        async with stage.body(run):
            run.defer_context("from plain")
            await trio.sleep(0.2)
        return "plain"

    @tool(parallel=True)
    async def deaf(run: ToolRun) -> str:
        async with stage.body(run):
            await trio.sleep(0.1)
        return "deaf"

    @tool(parallel=True)
    async def refused(run: ToolRun) -> str:
        async with stage.body(run):
            raise AssertionError("policy let it through")

    @tool(parallel=True, timeout=0.15)
    async def late(run: ToolRun) -> str:
        async with stage.body(run):
            try:
                await trio.sleep(1)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.2)
        return "late"

    @tool
    async def alone(run: ToolRun) -> str:
        async with stage.body(run):
            await trio.sleep(0.1)
        return "alone"

    @tool(parallel=True)
    async def broken(run: ToolRun) -> str:
        async with stage.body(run):
            await trio.sleep(0.05)
            raise ValueError("as designed")

    async def before(hook: Any, proceed: Any) -> Any:
        with trio.CancelScope(shield=hook.call.name == "deaf"):
            await trio.sleep(0.05)
        return Deny("no") if hook.call.name == "refused" else await proceed()

    async def around(hook: Any, proceed: Any) -> Any:
        await trio.sleep(0.01)
        outcome = await proceed()
        await trio.sleep(0.01)
        return outcome

    async def after(hook: Any, proceed: Any) -> Any:
        # What returned must be kept (invariant 5), so this review does not give way.
        with trio.CancelScope(shield=True):
            await trio.sleep(0.03)
        return await proceed()

    tools = [plain, deaf, refused, late, alone, broken]
    async with stage.open_engine(tools, max_parallel_tool_calls=3) as engine:
        hooks = engine.scope.hooks
        hooks.tool_pre_execute.listen(before)
        hooks.tool_execute.listen(around)
        hooks.tool_post_execute.listen(after)
        engine.scope.guard(lambda hook: None)
        async with stage.open_agent(engine) as agent:
            stage.send("followup", "go")
            await agent.wait_idle()


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_every_point_of_a_batch_with_policies_keeps_the_invariants(source: Source) -> None:
    """C113 C116 C119 C124 C173, the eight invariants of DESIGN 6."""
    stride = 1 if source.inside else 2
    report = explore(policies, make_model, name="policies", sources=[source], stride=stride)
    assert report.violations == []
    assert report.steps >= 100, "the scenario must not end before it has begun"
