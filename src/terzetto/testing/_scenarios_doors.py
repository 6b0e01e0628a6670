"""Shipped scenarios of ways in and out: forks, what is stored, what does not open or hangs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import trio

from .. import Agent, Enter, PreStep, UsageError, open_engine
from ..llm.scripted import Delay, Gate, Hang, ScriptedModel, answer, say
from ..vocabulary import CorruptLog, DuplicateName, SessionHeader, SessionId, StoreError
from ._disk import SimulatedDisk
from ._life import Scenario
from ._recording import Answers, MakeAdapter
from ._scenarios_turns import nursery_of_the_host
from ._script_acts import REFUSED
from ._stage import Stage


async def forking(stage: Stage) -> None:
    """Forks of what lives and of what is stored; and a past that finds the disk full."""
    async with stage.open_engine() as engine:
        async with stage.open_agent(engine) as agent:
            stage.send("followup", "one")
            await agent.wait_idle()
            with suppress(*REFUSED):
                async with engine.open_agent(
                    fork=agent, session_id="beside", if_stored="resume"
                ) as fork:
                    await fork.ask("two")
            for name in (agent.id, "beside"):
                await engine.agents.fork(name, session_id=f"of {name}")
        past = await agent.session.read()
    # A disk of its own: what is full must not be in the way of a second life.
    full = SimulatedDisk(room=0)
    async with open_engine(adapters=[stage.adapter], store=full) as engine:
        with suppress(StoreError):
            await engine.agents.create(seed=past)
            stage.problems.append("a session was made on a full disk")


async def doors(stage: Stage) -> None:
    """Engines and sessions that do not open, one that is deleted, and one being made at the end."""
    with suppress(DuplicateName):
        async with open_engine(adapters=[stage.adapter, stage.adapter]):
            stage.problems.append("one provider was given two adapters")
    half = SessionHeader(id=SessionId("half"), created_ms=0, seed_length=1)
    await (await stage.store.create(half)).close()

    async with nursery_of_the_host() as nursery, stage.open_engine() as engine:

        async def slow(agent: Agent) -> None:
            await trio.sleep(0.1)

        async def late() -> None:
            with suppress(UsageError):
                await engine.agents.create(session_id="late", setup=slow)
                stage.problems.append("an agent was made by an engine that was left")

        with suppress(CorruptLog):
            async with engine.open_agent(session_id="half", if_stored="resume"):
                pass
            stage.problems.append("a fork without its past was resumed")
        brief = await engine.agents.create(provider="scripted", model="m", setup=slow)
        stage.agent, stage.session = brief.agent, brief.agent.session
        await brief.dispose()
        await brief.dispose()
        await stage.store.read(brief.agent.id)
        await stage.store.delete("half")
        if [header.id for header in await stage.store.list()] != [brief.agent.id]:
            stage.problems.append("what was deleted is still there")
        nursery.start_soon(late)
        await trio.sleep(0.05)


async def held(stage: Stage) -> None:
    """An answer held at a gate, and one that passes it and hangs until it is cancelled."""
    model = stage.adapter.adapter
    assert isinstance(model, ScriptedModel)

    async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
        stage.send("followup", "wait")
        with trio.move_on_after(1):  # a turn that was cut never comes to the gate
            await model.gates.wait_reached("door")
        model.gates.open("door")
        stage.send("followup", "hang")
        with trio.move_on_after(1):
            await agent.wait_idle()
        agent.cancel()
        await agent.wait_idle()


async def unsaved(stage: Stage) -> None:
    """An agent without a store and a queue of turns that never wait: all input is set aside."""
    turns = 0

    async def set_aside(value: PreStep, proceed: object) -> Enter:
        nonlocal turns
        turns += 1
        return Enter(())

    stage.set_aside = True
    stage.expect(lambda: stage.struck or turns == 26, "not every message had its turn")
    async with open_engine(adapters=[stage.adapter]) as engine:
        engine.scope.hooks.session_created.listen(stage.sessions.append)
        engine.scope.hooks.pre_step.listen(set_aside)
        async with engine.open_agent(provider="scripted", model="m", session_id="u") as agent:
            stage.agent = agent
            for number in range(26):
                stage.send("followup", f"{number}")
            await agent.wait_idle()


HELD: Answers = [
    answer(Gate("door"), say("In.")),
    answer(Gate("door"), say("And then "), Hang()),
]


DOORS: Mapping[str, tuple[Scenario, MakeAdapter | Answers]] = {
    "forking": (forking, ["one", answer(Delay(0.1), say("two"))]),
    "doors": (doors, []),
    "held": (held, HELD),
    "unsaved": (unsaved, []),
}
