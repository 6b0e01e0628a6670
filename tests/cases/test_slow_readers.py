"""BC-54 on stores on disk: readers that are slow, gone or broken cost the run nothing.

Chunks have left memory by the time a slow reader comes to them, and are read back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.agent.kit import ROUTE, engine_on
from tests.cases.kit import case
from tests.stores.kit import made_in

from terzetto import Agent, Event, tool
from terzetto.llm.scripted import ScriptedModel, answer, call, say
from terzetto.session import PAGE
from terzetto.vocabulary import AssistantChunk, StoreError

DELTAS = 50_000
TEXT = "8 bytes."


@tool(parallel=True)
async def look(what: str) -> str:
    """Look."""
    return what


Reader = Callable[[Agent, list[Event]], Awaitable[None]]


async def _never(agent: Agent, got: list[Event]) -> None:
    """(a)"""
    agent.session.follow()
    await trio.sleep_forever()


async def _slowly(agent: Agent, got: list[Event]) -> None:
    """(b): one event a second; here each waits until everybody else waits for something."""
    async for event in agent.session.follow():
        got.append(event)
        if len(got) < 40:
            await trio.sleep(0.05)


async def _three(agent: Agent, got: list[Event]) -> None:
    """(c): then it goes away in the middle of the turn."""
    async for event in agent.session.follow():
        got.append(event)
        if len(got) == 3:
            return


async def _raising(agent: Agent, got: list[Event]) -> None:
    """(d)"""

    def observer(event: Event) -> None:
        raise ValueError("an observer's own")

    agent.session.observe(observer)
    await trio.sleep_forever()


READERS: dict[str, Reader] = {
    "never-reads": _never,
    "one-a-second": _slowly,
    "closes-after-three": _three,
    "raises": _raising,
}


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
@case(54, *READERS)
def test_a_reader_that_does_not_read_harms_nobody(
    variant: str, kind: str, tmp_path: Path, forgotten: None, caplog: Any
) -> None:
    """BC-54: the turn and the log are complete, memory holds no chunk, a slow reader gets every
    event, others are unaffected, and cancelling works. Real clock: the store has threads."""
    caplog.set_level("CRITICAL", "terzetto")
    deltas = DELTAS if (variant, kind) == ("never-reads", "jsonl") else 3_000

    async def main() -> None:
        model = ScriptedModel(
            [
                answer(
                    say(TEXT * deltas, pieces=deltas),
                    call("look", what="a"),
                    call("look", what="b"),
                ),
                answer("done"),
                answer(say("b" * 5_000, pieces=5_000)),
            ]
        )
        async with engine_on(model, tools=[look], store=made_in(tmp_path, kind)) as engine:
            async with engine.open_agent(**ROUTE) as agent, trio.open_nursery() as nursery:
                got: list[Event] = []
                seen: list[int] = []

                async def witness() -> None:
                    async for event in agent.session.follow():
                        seen.append(event.seq)

                nursery.start_soon(witness)
                nursery.start_soon(READERS[variant], agent, got)
                turn = await agent.ask("go")
                assert (turn.reason, turn.text) == ("completed", "done")
                kept = [e for e in agent.session.events if isinstance(e.data, AssistantChunk)]
                assert kept == [], "what is durable and settled has left"
                assert len(agent.session.events) > deltas
                agent.followup("and now?")
                await agent.wait_status("running")
                while not any(isinstance(e.data, AssistantChunk) for e in agent.session.events):
                    await trio.lowlevel.checkpoint()
                agent.cancel()
                await agent.wait_idle()
                length = len(agent.session.events)
                with trio.fail_after(60):
                    while len(seen) < length:
                        await trio.sleep(0.01)
                    while variant == "one-a-second" and len(got) < length:
                        await trio.sleep(0.01)
                assert seen == list(range(length))
                stored = await agent.session.read()
                assert [event.seq for event in stored] == seen
                assert got == stored[: len(got)]
                nursery.cancel_scope.cancel()

    trio.run(main)


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_a_reader_whose_log_was_deleted_is_told_and_the_agent_goes_on(
    kind: str, tmp_path: Path, forgotten: None
) -> None:
    """A reader needs what is gone and gets a StoreError; who follows what comes is unharmed."""

    async def main() -> None:
        store = made_in(tmp_path, kind)
        model = ScriptedModel([answer(say("a" * 3_000, pieces=3_000)), answer("two")])
        async with engine_on(model, store=store) as engine:
            async with engine.open_agent(**ROUTE, session_id="s") as agent:
                await agent.ask("go")
                late = agent.session.follow()
            assert (await late.__anext__()).seq == 0
            await store.delete("s")
            with pytest.raises(StoreError, match="no session 's'"):
                async for event in late:
                    assert event.seq < PAGE
            with pytest.raises(StoreError):
                await agent.session.read(20, 30)
            assert agent.history()[-1].text == "a" * 3_000
            async with engine.open_agent(**ROUTE, session_id="s") as again:
                assert (await again.ask("go")).text == "two"

    trio.run(main)
