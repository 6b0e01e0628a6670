"""Shipped scenarios of saving: levels of durability, and a store that is far behind."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import trio

from .. import StoreError, Tool, tool
from ..llm.scripted import Delay, answer, call, say
from ..vocabulary import Durability
from ._disk import Latency, SimulatedDisk
from ._life import Scenario
from ._recording import Answers, MakeAdapter
from ._scenarios_turns import nursery_of_the_host
from ._stage import Stage


def _on_a_slow_disk(stage: Stage) -> None:
    if not isinstance(stage.store, SimulatedDisk):
        stage.store = SimulatedDisk(Latency.of(0.1))


def _tools() -> list[Tool]:
    @tool(parallel=True, read_only=True)
    async def look() -> str:
        """Look."""
        await trio.sleep(0.1)
        return "seen"

    @tool(parallel=True)
    async def act() -> str:
        """Act."""
        await trio.sleep(0.1)
        return "done"

    return [look, act]


async def _turns(stage: Stage, durability: Durability, *prompts: str) -> None:
    _on_a_slow_disk(stage)
    async with (
        stage.open_engine(_tools(), durability=durability) as engine,
        stage.open_agent(engine) as agent,
    ):
        for prompt in prompts:
            stage.send("followup", prompt)
        await agent.wait_idle()


async def lazy(stage: Stage) -> None:
    """Two turns that never wait for a slow disk; what they leave is written behind."""
    await _turns(stage, "lazy", "go", "and then")


async def each(stage: Stage) -> None:
    """A turn that waits for a slow disk after all it records."""
    await _turns(stage, "each", "go")


async def behind(stage: Stage) -> None:
    """A disk that is too far behind, a barrier, and one as the agent is left to be saved."""
    _on_a_slow_disk(stage)
    async with (
        stage.open_engine(_tools(), durability="lazy") as engine,
        nursery_of_the_host() as nursery,
        stage.open_agent(engine) as agent,
    ):

        async def late_barrier() -> None:
            await trio.sleep(0.35)  # of the 0.3 before the end, and 0.1 that closing takes
            with suppress(StoreError):
                await agent.flush()

        agent._saving._backlog.most_events = 3
        stage.send("followup", "talk")
        await agent.wait_idle()
        with suppress(StoreError):
            await agent.flush()
        stage.send("inject", "a note that nobody waits for")
        nursery.start_soon(late_barrier)
        await trio.sleep(0.3)


async def reading_back(stage: Stage) -> None:
    """Followed and read from its start, when its chunks are in the store alone."""
    _on_a_slow_disk(stage)
    async with stage.open_engine(_tools()) as engine, stage.open_agent(engine) as agent:
        stage.send("followup", "go")
        await agent.wait_idle()
        with suppress(StoreError):
            last = len(await agent.session.read()) - 1
            async for event in agent.session.follow(durable=True):
                if event.seq >= last:
                    break


CALLS: Answers = [
    answer(say("One"), Delay(0.1), say(" moment."), call("look"), call("act"), call("act")),
    answer(Delay(0.1), "Ok."),
    answer(Delay(0.2), say("Well, "), Delay(0.2), say("well.")),
]
BRIEF: Answers = [answer(say("One"), call("look"), call("act")), answer(Delay(0.1), "Ok.")]
MUCH: Answers = [
    answer(*map(say, "much to say "), call("act"), call("act")),
    answer(Delay(0.1), "Ok."),
]


SAVING: Mapping[str, tuple[Scenario, MakeAdapter | Answers]] = {
    "lazy": (lazy, CALLS),
    "each": (each, [answer(say("One"), call("act")), "Ok."]),
    "behind": (behind, MUCH),
    "reading back": (reading_back, BRIEF),
}
