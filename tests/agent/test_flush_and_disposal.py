"""`Agent.flush` while its agent is being disposed of, and after: saved, or a `StoreError`."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

import pytest
import trio
from tests.agent.kit import ROUTE, engine_on, play, settled, tasks

from terzetto import Agent, AgentHandle, MemoryStore, StoreError
from terzetto.llm.scripted import ScriptedModel
from terzetto.testing import FaultyStore, Latency, SimulatedDisk

Stores = dict[str, Callable[[], FaultyStore]]
STORES: Stores = {
    "memory": lambda: FaultyStore(MemoryStore()),
    "disk": lambda: FaultyStore(SimulatedDisk(Latency.of(0.1))),
}


def on(
    store: FaultyStore, act: Callable[[Agent, AgentHandle], Awaitable[None]], timeout: float = 5
) -> None:
    """*act* with an agent that has something to save, and its handle."""

    async def run() -> None:
        living = tasks()
        with trio.fail_after(60):
            async with engine_on(
                ScriptedModel([]), store=store, durability="lazy", shutdown_timeout=timeout
            ) as engine:
                handle = await engine.agents.create(**ROUTE, session_id="a")
                await settled()
                handle.agent.inject("a note that nobody waits for")
                await act(handle.agent, handle)
        assert tasks() == living

    play(run)


def saved(agent: Agent) -> bool:
    return agent.session.durable_seq == len(agent.session.events) - 1


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("later", [0.0, 0.05, 0.15, 0.5, 0.95, 2.0])
def test_a_flush_waits_for_the_last_write_of_a_disposal(kind: str, later: float) -> None:
    """C29 C147: a barrier that comes while the write path closes, or after that, says what it
    always says; that the handle is closed is nobody's mistake."""
    store = STORES[kind]()
    store.slow("close", 0.3)
    store.slow("flush", 0.3)

    async def act(agent: Agent, handle: AgentHandle) -> None:
        handle.begin_disposal()
        await trio.sleep(later)
        await agent.flush()
        assert saved(agent)
        assert agent.health is None
        await handle.dispose()
        await agent.flush()
        assert saved(agent)

    on(store, act)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("later", [0.0, 0.05, 0.15, 0.35])
def test_a_flush_that_is_on_its_way_as_a_disposal_begins(kind: str, later: float) -> None:
    store = STORES[kind]()
    store.slow("close", 0.3)
    store.slow("flush", 0.3)
    ended: list[bool] = []

    async def act(agent: Agent, handle: AgentHandle) -> None:
        async def flush() -> None:
            await agent.flush()
            ended.append(saved(agent))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flush)
            await trio.sleep(later)
            handle.begin_disposal()

    on(store, act)
    assert len(ended) == 1


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("trouble", ["full", "hangs"])
def test_a_flush_says_that_a_disposal_did_not_save(kind: str, trouble: str) -> None:
    """While the write path closes, and whenever it is asked afterwards."""
    store = STORES[kind]()
    store.slow("close", 0.3)
    if trouble == "full":
        store.fail("close", errno.ENOSPC)
    else:
        store.hang("close")
    found: list[str] = []

    async def act(agent: Agent, handle: AgentHandle) -> None:
        handle.begin_disposal()
        await trio.sleep(0.1)
        for _ in range(2):
            with pytest.raises(
                StoreError, match=r"'a' was closed before events \d to \d were"
            ) as e:
                await agent.flush()
            found.append(str(e.value))
            await handle.dispose()
        assert not saved(agent)

    with pytest.raises(StoreError, match=r"not durable|No space"):
        on(store, act, timeout=1)
    assert len(found) == 2
    assert "in memory" in found[0]


def test_a_flush_that_waits_for_a_disposal_can_be_cancelled() -> None:
    store = STORES["memory"]()
    store.slow("close", 3)

    async def act(agent: Agent, handle: AgentHandle) -> None:
        handle.begin_disposal()
        await trio.sleep(1)
        with trio.move_on_after(1) as scope:
            await agent.flush()
        assert scope.cancelled_caught
        assert not agent.disposed
        await handle.dispose()
        assert saved(agent)

    on(store, act)
