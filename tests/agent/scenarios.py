"""A rich scenario: everything that can be cut short, in one life of one agent."""

from __future__ import annotations

from typing import Any

import trio

from terzetto import RequestFailed, Retry, ToolRun, tool
from terzetto.llm.scripted import Delay, ScriptedModel, answer, call, finish_error, say, think
from terzetto.testing import Stage


def make_model() -> ScriptedModel:
    """Reasoning, text and a batch; a failure that is retried; a plain end; another turn."""
    return ScriptedModel(
        [
            answer(
                think("let me see"),
                Delay(0.1),
                say("I will look at both files now."),
                call("look", id="c1", path="a"),
                call("look", id="c2", path="b"),
                call("write", id="c3", path="c"),
                call("stubborn", id="c4"),
                call("broken", id="c5"),
                call("absent", id="c6"),
            ),
            answer(say("half an ans"), finish_error(code="SERVER", message="overloaded")),
            answer(Delay(0.1), say("Both are short."), Delay(0.1)),
            answer(say("Steered, then."), Delay(0.1), say(" Done.")),
            answer(Delay(0.1), say("The second turn.")),
            answer(say("more")),
            answer(say("more")),
            answer(say("more")),
        ]
    )


async def rich(stage: Stage) -> None:
    """One agent, two turns, steering, injection, a batch of every kind, a retry."""

    @tool(parallel=True)
    async def look(path: str, run: ToolRun) -> str:
        """Look at a file."""
        async with stage.body(run):
            await trio.sleep(0.1 if path == "a" else 0.2)
        run.defer_context(f"looked at {path}")
        return path

    @tool
    async def write(path: str, run: ToolRun) -> str:
        """Write a file, alone."""
        async with stage.body(run):
            await trio.sleep(0.1)
        return "written"

    @tool(parallel=True)
    async def stubborn(run: ToolRun) -> str:
        """Cleans up under a shield, and returns all the same."""
        async with stage.body(run):
            with trio.CancelScope(shield=True):
                await trio.sleep(0.3)
        return "finished anyway"

    @tool(parallel=True)
    async def broken(run: ToolRun) -> str:
        """Fails."""
        async with stage.body(run):
            await trio.sleep(0.05)
            raise ValueError("broken as designed")

    async def retry(failed: RequestFailed, proceed: Any) -> Retry:
        await trio.sleep(0.1)
        return Retry()

    async def review(value: object, proceed: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return await proceed()

    async def reflect(value: object) -> None:
        await trio.lowlevel.checkpoint()

    async with stage.open_engine([look, write, stubborn, broken], max_parallel_tool_calls=2) as e:
        hooks = e.scope.hooks
        hooks.request_error.listen(retry)
        hooks.pre_step.listen(review)
        hooks.request.listen(review)
        hooks.turn_stopping.listen(reflect)
        async with stage.open_agent(e) as agent:
            agent.scope.add_context("place", "here")
            stage.send("inject", "by the way")
            stage.send("followup", "look at both")
            stage.send("followup", "and then this")
            with trio.move_on_after(5):
                await agent.session.follow().__anext__()
                await trio.sleep(0.25)
                if not agent.disposed:
                    stage.send("steer", "hurry")
            await agent.wait_idle()
