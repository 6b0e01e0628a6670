"""Shipped scenarios of lives: maintenance, children, handles, resuming."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import trio

from .. import Request, RequestFailed, Retry, Tool, ToolRun, tool
from ..agent import Driven, LoopDriver
from ..llm.scripted import Answer, Delay, ScriptedModel, answer, call, finish_error, say, think
from ..vocabulary import TurnEnd
from ._disk import Latency, SimulatedDisk
from ._life import Scenario
from ._recording import Answers, MakeAdapter
from ._scenarios_turns import nursery_of_the_host, slowly
from ._script_acts import REFUSED
from ._stage import Stage

D = TypeVar("D")


async def maintenance(stage: Stage) -> None:
    """A job between two turns that asks the model something else; waking input comes during it."""
    async with stage.open_engine() as engine, stage.open_agent(engine) as agent:

        async def job() -> None:
            stage.send("inject", "a note")
            await agent.complete("What was said?")
            stage.send("followup", "wake")
            await trio.sleep(0.1)

        stage.send("followup", "first")
        await agent.wait_idle()
        with suppress(*REFUSED):
            await agent.run_maintenance(job)
        await agent.wait_idle()


MAINTAINED: Answers = [
    answer(say("first"), Delay(0.1)),
    answer(say("A lot."), Delay(0.1), *map(say, "once more" * 6)),
    answer(Delay(0.1), say("second")),
]
"""The job is answered in more pieces than are taken without letting others run."""


async def stopping(stage: Stage) -> None:
    """An agent is left while somebody else's maintenance job, slow to stop, is at work."""

    async def job() -> None:
        try:
            await trio.sleep(10)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.1)

    async with nursery_of_the_host() as nursery, stage.open_engine() as engine:
        async with stage.open_agent(engine) as agent:

            async def maintain() -> None:
                with suppress(*REFUSED):
                    await agent.run_maintenance(job)

            nursery.start_soon(maintain)
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel(reason="its agent is gone")


async def resumed(stage: Stage) -> None:
    """A first life with a turn and pending input, then a second in the same run."""
    async with stage.open_engine() as engine:
        handle = await engine.agents.create(provider="scripted", model="m", session_id="r")
        stage.agent, stage.session = handle.agent, handle.agent.session
        stage.send("followup", "first")
        await handle.agent.wait_idle()
        stage.send("inject", "pending")
    async with stage.open_engine() as engine, stage.open_agent(engine, resume="r") as agent:
        stage.send("followup", "second")
        await agent.wait_idle()


async def family(stage: Stage) -> None:
    """A tool asks a child that lives in its block; another child lives beside the turn."""

    @tool
    async def delegate(run: ToolRun) -> str:
        """Delegate."""
        parent = engine.agents.get(run.agent.id)
        try:
            async with engine.open_agent(
                provider="scripted", model="m", parent=parent, session_id="child"
            ) as child:
                return (await child.ask("do it")).text
        except REFUSED as error:
            return f"refused: {type(error).__name__}"

    async with stage.open_engine([delegate]) as engine, stage.open_agent(engine) as agent:
        with suppress(*REFUSED):
            side = await engine.agents.create(
                provider="scripted", model="m", parent=agent, session_id="side"
            )
            side.agent.followup("aside")
        stage.send("followup", "delegate")
        stage.send("followup", "then")
        await agent.wait_idle()


def family_model() -> ScriptedModel:
    """Delegates when asked to; the children have the same model."""

    def reply(request: Request) -> Answer:
        last = request.messages[-1]
        texts = [getattr(block, "text", "") for block in last.content]
        if "".join(texts) == "delegate":
            return answer(Delay(0.1), call("delegate"))
        return answer(Delay(0.1), say("fine"), Delay(0.1))

    return ScriptedModel(reply)


async def disposed(stage: Stage) -> None:
    """Disposal by a handle, twice, from other tasks, while a tool cleans up under a shield."""

    @tool
    async def stubborn() -> str:
        """Stubborn."""
        with trio.CancelScope(shield=True):
            await trio.sleep(0.3)
        return "all the same"

    async with stage.open_engine([stubborn]) as engine, nursery_of_the_host() as nursery:
        handle = await engine.agents.create(provider="scripted", model="m", session_id="d")
        stage.agent, stage.session = handle.agent, handle.agent.session
        stage.send("followup", "go")
        await trio.sleep(0.1)
        nursery.start_soon(handle.dispose)
        nursery.start_soon(handle.dispose)
        await trio.sleep(0.1)
        stage.send("followup", "while it drains")


async def slow_disk(stage: Stage) -> None:
    """Every write takes its time; the agent is left while an ending is being flushed."""
    if not isinstance(stage.store, SimulatedDisk):
        stage.store = SimulatedDisk(Latency.of(0.1))

    @tool(parallel=True)
    async def look() -> str:
        """Look."""
        await trio.sleep(0.1)
        return "seen"

    async with stage.open_engine([look]) as engine, stage.open_agent(engine) as agent:
        stage.send("followup", "look")
        stage.send("followup", "then")
        await agent.wait_status("running")
        with trio.move_on_after(10):  # a turn that was cut before it opened never ends
            async for event in agent.session.follow():
                if isinstance(event.data, TurnEnd):
                    stage.send("steer", "late")
                    break


SLOW_DISK: Answers = [
    answer(say("Looking."), call("look"), call("look")),
    answer(Delay(0.1), "Ok."),
]


async def everything(stage: Stage) -> None:
    """One life with a batch of every kind, a retry, steering, listeners and two turns."""

    @tool(parallel=True)
    async def look(path: str, run: ToolRun) -> str:
        """Look at a file."""
        await trio.sleep(0.1 if path == "a" else 0.2)
        run.defer_context(f"looked at {path}")
        return path

    @tool
    async def write(path: str) -> str:
        """Write a file, alone."""
        await trio.sleep(0.1)
        return "written"

    @tool(parallel=True)
    async def stubborn() -> str:
        """Clean up under a shield, and return all the same."""
        with trio.CancelScope(shield=True):
            await trio.sleep(0.3)
        return "finished anyway"

    @tool(parallel=True)
    async def broken() -> str:
        """Fail."""
        await trio.sleep(0.05)
        raise ValueError("broken as designed")

    async def retry(failed: RequestFailed, proceed: object) -> Retry:
        await trio.sleep(0.1)
        return Retry()

    async def review(value: object, proceed: Callable[[], Awaitable[D]]) -> D:
        await trio.lowlevel.checkpoint()
        return await proceed()

    async def reflect(value: object) -> None:
        await trio.lowlevel.checkpoint()

    tools: list[Tool] = [look, write, stubborn, broken]
    async with stage.open_engine(tools, max_parallel_tool_calls=2) as engine:
        hooks = engine.scope.hooks
        hooks.request_error.listen(retry)
        hooks.pre_step.listen(review)
        hooks.assemble.listen(review)
        hooks.request.listen(review)
        hooks.stream.listen(review)
        hooks.turn_stopping.listen(reflect)
        async with stage.open_agent(engine) as agent:
            agent.scope.add_context("place", "here")
            stage.send("inject", "by the way")
            stage.send("followup", "look at both")
            stage.send("followup", "and then this")
            with trio.move_on_after(5):
                await agent.session.follow().__anext__()
                await trio.sleep(0.25)
                stage.send("steer", "hurry")
            await engine.wait_idle()


async def wrapped(stage: Stage) -> None:
    """A driver of the host's own, around the built-in one, with a child beside its turns."""

    class Wrapping:
        async def run(self, agent: Driven) -> None:
            await trio.lowlevel.checkpoint()
            await LoopDriver().run(agent)

    async with (
        stage.open_engine(driver=Wrapping()) as engine,
        stage.open_agent(engine) as agent,
    ):
        with suppress(*REFUSED):
            side = await engine.agents.create(
                provider="scripted", model="m", parent=agent, session_id="side"
            )
            side.agent.followup("aside")
        stage.send("followup", "first")
        await agent.wait_idle()
        stage.send("followup", "second")
        await agent.wait_idle()


def slow_model() -> ScriptedModel:
    """The same answer for everybody, in two pieces."""
    return ScriptedModel(lambda request: answer(Delay(0.1), say("fine"), Delay(0.1)))


EVERYTHING: Answers = [
    answer(
        think("let me see"),
        Delay(0.1),
        say("I will look at both files now."),
        call("look", path="a"),
        call("look", path="b"),
        call("write", path="c"),
        call("stubborn"),
        call("broken"),
        call("absent"),
    ),
    answer(say("half an ans"), finish_error(code="SERVER", message="overloaded")),
    answer(Delay(0.1), say("Both are short."), Delay(0.1)),
    answer(say("Steered, then."), Delay(0.1), say(" Done.")),
    answer(Delay(0.1), say("The second turn.")),
]


LIVES: Mapping[str, tuple[Scenario, MakeAdapter | Answers]] = {
    "maintenance": (maintenance, MAINTAINED),
    "stopping": (stopping, ()),
    "resumed": (resumed, slowly("first", "second")),
    "family": (family, family_model),
    "disposed": (disposed, [call("stubborn")]),
    "slow disk": (slow_disk, SLOW_DISK),
    "everything": (everything, EVERYTHING),
    "wrapped": (wrapped, slow_model),
}
