"""Shipped scenarios of lives: maintenance, children, handles, resuming."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import trio

from .. import Request, ToolRun, tool
from ..llm.scripted import Answer, Delay, ScriptedModel, answer, call, say
from ._life import Scenario
from ._recording import Answers, MakeAdapter
from ._scenarios_turns import REFUSED, nursery_of_the_host, slowly
from ._stage import Stage


async def maintenance(stage: Stage) -> None:
    """A job between two turns; waking input comes during it."""
    async with stage.open_engine() as engine, stage.open_agent(engine) as agent:

        async def job() -> None:
            stage.send("inject", "a note")
            await trio.sleep(0.1)
            stage.send("followup", "wake")
            await trio.sleep(0.1)

        stage.send("followup", "first")
        await agent.wait_idle()
        with suppress(*REFUSED):
            await agent.run_maintenance(job)
        await agent.wait_idle()


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


LIVES: Mapping[str, tuple[Scenario, MakeAdapter | Answers]] = {
    "maintenance": (maintenance, slowly("first", "second")),
    "resumed": (resumed, slowly("first", "second")),
    "family": (family, family_model),
    "disposed": (disposed, [call("stubborn")]),
}
