"""A life that meets a failing store at one point, and what must be true of it whatever fails.

The trouble is somebody else's: a function that is given a condition, asked before each flush.
So one life serves faults that are made up and disks that really fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest
from attrs import define, field, frozen
from tests.agent.kit import ROUTE, check, ending_kinds, engine_on
from tests.whole import whole

from terzetto import Agent, AgentErrorNotice, Event, MemoryStore, Store, Tool, TurnFailed, tool
from terzetto.llm.scripted import ScriptedModel, answer, call
from terzetto.testing import FaultyStore, StoreCall, history_is_valid

Arm: TypeAlias = Callable[[FaultyStore, Callable[[StoreCall], bool]], Callable[[], None]]
SCRIPT = (answer(call("mark", name="a"), call("mark", name="b")), "done")


@frozen(kw_only=True)
class Point:
    """Where the store is asked to flush, and what has happened if it cannot: requests sent,
    bodies run, and how the turn ends."""

    reached: Callable[[Life], bool]
    requests: int
    bodies: int
    ending: str


@define(eq=False)
class Life:
    """One agent on a store with trouble."""

    agent: Agent
    model: ScriptedModel
    ran: list[str]
    heard: list[AgentErrorNotice] = field(factory=list)

    @property
    def saved(self) -> int:
        return self.agent.session.durable_seq + 1

    @property
    def events(self) -> list[Event]:
        return whole(self.agent.session)


POINTS = {
    "the first request": Point(
        reached=lambda life: in_turn(life) and not life.model.requests and not owed(life),
        requests=0,
        bodies=0,
        ending="Failed",
    ),
    "the bodies": Point(reached=lambda life: owed(life), requests=1, bodies=0, ending="Failed"),
    "the second request": Point(
        reached=lambda life: in_turn(life) and len(life.model.requests) == 1 and not owed(life),
        requests=1,
        bodies=2,
        ending="Failed",
    ),
    "the end of the turn": Point(
        reached=lambda life: not in_turn(life) and life.agent.session.place.last_turn == 1,
        requests=2,
        bodies=2,
        ending="Completed",
    ),
}


def in_turn(life: Life) -> bool:
    return life.agent.session.place.open_turn is not None


def owed(life: Life) -> bool:
    return bool(life.agent.session.place.owed())


def marking(ran: list[str]) -> Tool:
    @tool(parallel=True)
    async def mark(name: str) -> str:
        """Leave a mark."""
        ran.append(name)
        return "marked"

    return mark


async def meets(
    store: FaultyStore,
    point: Point,
    arm: Arm,
    *,
    once: bool,
    said: str,
    **options: Any,
) -> None:
    """A turn that meets trouble at *point*, is told of it, and an agent that goes on.

    Args:
        arm: Makes the flushes of the store fail that the condition is true of; gives what
            mends it.
        once: Whether the trouble is over after that flush, or only when it is mended.
        said: What every failure says.
        options: Those of `open_agent`.
    """
    ran: list[str] = []
    model = ScriptedModel([*SCRIPT, *["again"] * 4])
    struck: list[int] = []
    async with engine_on(model, [marking(ran)], store=store) as engine:
        async with engine.open_agent(**ROUTE, session_id="a", **options) as agent:
            life = Life(agent, model, ran)
            agent.scope.hooks.agent_error.listen(life.heard.append)

            def strikes(_: StoreCall) -> bool:
                if struck:
                    return not once
                if point.reached(life):
                    struck.append(len(agent.session.events))
                return bool(struck)

            mend = arm(store, strikes)
            await struck_turn(life, point, once, said)
            assert struck, "the point was never reached"
            await check_crash_now(life, store)
            if not once:
                await refused_turn(life, said)
            mend()
            await good_turn(life, store)
    assert await stored(store) == whole(agent.session)
    assert engine.unsaved == {}


async def struck_turn(life: Life, point: Point, once: bool, said: str) -> None:
    agent = life.agent
    if point.ending == "Failed":
        with pytest.raises(TurnFailed) as caught:
            await agent.ask("go")
        assert caught.value.code == "STORE"
        assert said in caught.value.failure.message
    else:
        assert (await agent.ask("go")).text == "done"
    assert ending_kinds(agent.session) == [point.ending]
    assert len(life.model.requests) == point.requests
    assert len(life.ran) == point.bodies
    closing_failed = point.ending != "Failed" or not once
    expected = (point.ending == "Failed") + closing_failed
    assert [notice.failure.code for notice in life.heard] == ["STORE"] * expected
    assert all(said in notice.failure.message for notice in life.heard)
    if closing_failed:
        assert agent.health is not None
        assert said in agent.health.message
        assert life.saved < len(life.events)
    else:
        assert agent.health is None
        assert life.saved == len(life.events)
    check(agent.session)


async def refused_turn(life: Life, said: str) -> None:
    """While the trouble stands, nothing is sent and nothing starts."""
    before = (len(life.model.requests), len(life.ran))
    with pytest.raises(TurnFailed) as caught:
        await life.agent.ask("and now?")
    assert caught.value.code == "STORE"
    assert said in caught.value.failure.message
    assert (len(life.model.requests), len(life.ran)) == before
    check(life.agent.session)


async def good_turn(life: Life, store: FaultyStore) -> None:
    """The trouble is over: everything is saved, in order, once."""
    while (await life.agent.ask("once more")).text != "again":
        pass  # what was left of the script
    assert life.agent.health is None
    assert life.saved == len(life.events)
    assert await stored(store) == life.events
    assert history_is_valid(life.model.requests[-1].messages) == []
    check(life.agent.session)


async def stored(store: FaultyStore, session_id: str = "a") -> list[Event]:
    """As somebody else reads it, whom no trouble strikes."""
    return (await store.inner.read(session_id))[1]


async def check_crash_now(life: Any, store: FaultyStore) -> None:
    """BC-47: if the process died here, a resume has what was told to be saved, and goes on."""
    found, session = await stored(store), life.agent.session
    assert found == whole(session)[: len(found)]
    assert len(found) > session.durable_seq
    await check_resumes(found, session.header)


async def check_resumes(events: Sequence[Event], header: Any) -> None:
    """A log of these *events* is taken up, and its next request is a valid one."""
    copy: Store = MemoryStore()
    handle = await copy.create(header)
    for event in events:
        handle.append(event)
    await handle.close()
    ran: list[str] = []
    model = ScriptedModel(lambda request: "back")
    async with engine_on(model, [marking(ran)], store=copy) as engine:
        async with engine.open_agent(**ROUTE, resume=header.id) as agent:
            assert whole(agent.session)[: len(events)] == list(events)
            assert (await agent.ask("go on")).text == "back"
            check(agent.session)
    assert ran == [], "nothing runs twice"
    assert history_is_valid(model.requests[-1].messages) == []
