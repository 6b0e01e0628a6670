"""Levels of durability: what is on the disk at each moment that somebody outside could see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
import trio
from attrs import define, field
from tests.agent.kit import Faults, engine_on, played
from tests.agent.rig import Life, one

from terzetto import (
    Durability,
    Event,
    InvalidValue,
    MemoryStore,
    Session,
    StoreError,
    Tool,
    ToolRun,
    TurnFailed,
    open_engine,
    tool,
)
from terzetto.llm.scripted import Delay, ScriptedModel, answer, call, say
from terzetto.testing import Latency, SimulatedDisk
from terzetto.vocabulary import AssistantChunk, SessionId, ToolCallEvent, ToolResultEvent, texts

LEVELS: list[Durability] = ["step", "lazy", "each"]


def unsaved(session: Session) -> int:
    """How many events a crash would lose now."""
    return session.place.next_seq - 1 - session.durable_seq


def lost_call(session: Session, call_id: str) -> int:
    """1 if a crash would lose the record that this call began."""
    (seq,) = [
        event.seq
        for event in session.events
        if isinstance(event.data, ToolCallEvent) and event.data.call_id == call_id
    ]
    return int(seq > session.durable_seq)


@define
class Seen:
    """How many events were not durable at each moment that shows outside.

    Of a *body*: whether the record of its own call was not.
    """

    request: list[int] = field(factory=list)
    body: dict[str, list[int]] = field(factory=dict)
    read: list[int] = field(factory=list)
    committed: list[int] = field(factory=list)
    ended: list[int] = field(factory=list)


async def observed(
    level: Durability, store: Any, write_window: float = 100.0, pause: float = 0.001
) -> Seen:
    """One turn of two requests and three calls, looked at where it meets the world."""
    seen = Seen()
    life: Life

    @tool(parallel=True, read_only=True)
    async def look(run: ToolRun) -> str:
        """Look."""
        seen.body.setdefault("look", []).append(lost_call(life.session, run.call_id))
        return "seen"

    @tool(parallel=True)
    async def act(run: ToolRun) -> str:
        """Act."""
        seen.body.setdefault("act", []).append(lost_call(life.session, run.call_id))
        return "done"

    async def around(value: Any, proceed: Callable[[Any], Awaitable[Any]]) -> Any:
        seen.request.append(unsaved(life.session))
        return await proceed(value)

    async def after(value: Any, proceed: Callable[[], Awaitable[Any]]) -> Any:
        # Asked before a result is recorded: the one before it is durable by now, or not.
        seen.committed.append(unsaved(life.session))
        return await proceed()

    def script(request: Any) -> Any:
        if len(life.model.requests) == 1:
            parts = (say("a"), Delay(pause), say("b"), Delay(pause))
            return answer(*parts, call("look"), call("act"), call("act"))
        return answer(say("done"))

    options = {"store": store, "durability": level, "write_window": write_window}
    async with one(ScriptedModel(script), [look, act], engine=options) as opened:
        life = opened
        hooks = life.agent.scope.hooks
        hooks.stream.listen(around)
        hooks.tool_post_execute.listen(after)
        hooks.status.listen(
            lambda change: (
                seen.ended.append(unsaved(life.session)) if change.status == "idle" else None
            )
        )

        async def reading() -> None:
            async for event in life.session.follow():
                if isinstance(event.data, AssistantChunk):
                    seen.read.append(life.session.durable_seq - event.seq)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reading)
            await life.agent.ask("go")
            nursery.cancel_scope.cancel()
    return seen


STORES = [
    pytest.param(lambda: SimulatedDisk(Latency.of(0.01)), id="slow disk"),
    pytest.param(SimulatedDisk, id="fast disk"),
]


@pytest.mark.parametrize("store", STORES)
@played
async def test_step_is_durable_before_requests_bodies_and_idleness(store: Any) -> None:
    """Not before a body that may be repeated; and nobody waits while an answer streams."""
    seen = await observed("step", store())
    assert seen.request == [0, 0]
    assert seen.body["act"] == [0, 0]
    assert seen.body["look"][0] > 0, "read_only does not wait"
    assert seen.ended == [0]
    assert min(seen.read) < 0, "the stream was not waited for"


@pytest.mark.parametrize("store", STORES)
@played
async def test_lazy_waits_for_nothing(store: Any) -> None:
    """With a window that does not end nothing is written at all."""
    seen = await observed("lazy", store())
    assert all(seen.request)
    assert all(seen.body["act"] + seen.body["look"])
    assert all(seen.ended)
    assert seen.committed == sorted(set(seen.committed)), "it only grows"


@pytest.mark.parametrize("store", STORES)
@played
async def test_each_is_durable_whenever_it_shows(store: Any) -> None:
    """Every chunk before the next is read, every result before the next is recorded, and
    before every body, ``read_only`` or not."""
    seen = await observed("each", store())
    assert seen.request == [0, 0]
    assert seen.body == {"look": [0], "act": [0, 0]}
    assert seen.committed == [0, 0, 0]
    assert seen.ended == [0]


@played
async def test_each_is_durable_before_the_next_chunk_is_read() -> None:
    lost: list[int] = []
    life: Life

    class Watched(ScriptedModel):
        pass

    async def watched(value: Any, proceed: Callable[[Any], Awaitable[Any]]) -> Any:
        inner = await proceed(value)

        class Around:
            async def __aenter__(self) -> Any:
                chunks = await inner.__aenter__()

                async def passing() -> Any:
                    async for chunk in chunks:
                        lost.append(unsaved(life.session))
                        yield chunk

                return passing()

            async def __aexit__(self, *error: Any) -> Any:
                return await inner.__aexit__(*error)

        return Around()

    options = {"store": SimulatedDisk(Latency.of(0.01)), "durability": "each"}
    async with one([answer(say("a"), say("b"), say("c"))], engine=options) as opened:
        life = opened
        life.hooks.stream.listen(watched)
        await life.say()
    assert len(lost) > 4
    assert set(lost) == {0}


# --- chosen, stored, kept ------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@played
async def test_a_session_keeps_its_level_for_ever(level: Durability) -> None:
    """Of the engine, of the agent, of a fork, and after a resume by an engine of another."""
    store = MemoryStore()
    route = {"provider": "scripted", "model": "m"}
    async with engine_on(ScriptedModel(["a", "b"]), store=store, durability=level) as engine:
        async with engine.open_agent(**route, session_id="engine's") as agent:
            assert agent.session.header.durability == level
            await agent.ask("go")
    other: Durability = "each" if level == "lazy" else "lazy"
    async with engine_on(ScriptedModel(["c"] * 9), store=store, durability=other) as engine:
        async with engine.open_agent(resume="engine's") as agent:
            assert agent.session.header.durability == level
            assert agent._saving.level == level
            async with engine.open_agent(fork=agent) as fork:
                assert fork.session.header.durability == level
            async with engine.open_agent(fork=agent, durability="step") as fork:
                assert fork.session.header.durability == "step"
        async with engine.open_agent(**route, durability=level) as agent:
            assert agent.session.header.durability == level
        async with engine.open_agent(**route) as agent:
            assert agent.session.header.durability == other
        async with engine.open_agent(
            session_id="engine's", if_stored="resume", durability=other
        ) as agent:
            assert agent.session.header.durability == level, "it is for a fresh one"
        handle = await engine.agents.create(**route, durability=level)
        assert handle.agent.session.header.durability == level
        forked = await engine.agents.fork("engine's", durability=other)
        assert forked.agent.session.header.durability == other
    headers = {header.id: header.durability for header in await store.list()}
    assert headers[SessionId("engine's")] == level


WRONG = ["Step", "", None, 1, ["step"], "every"]


@pytest.mark.parametrize("level", WRONG)
@played
async def test_a_level_that_there_is_not_is_refused(level: Any) -> None:
    expected = "durability: expected 'step', 'lazy' or 'each', got "
    with pytest.raises(InvalidValue, match=expected):
        async with open_engine(adapters=[], durability=level):
            pytest.fail("it opened")
    if level is None:  # for a session: the engine's
        return
    store = MemoryStore()
    async with engine_on(ScriptedModel(), store=store) as engine:
        for opening in (
            engine.open_agent(durability=level),
            engine.open_agent(fork="x", durability=level),
        ):
            with pytest.raises(InvalidValue, match=expected):
                async with opening:
                    pytest.fail("it opened")
        assert engine.agents.list() == []
    assert await store.list() == []


@pytest.mark.parametrize("window", [-0.1, float("inf"), float("nan"), "1", None, True])
@played
async def test_a_window_that_is_no_time_is_refused(window: Any) -> None:
    with pytest.raises(InvalidValue, match="write_window: expected"):
        async with open_engine(adapters=[], write_window=window):
            pytest.fail("it opened")


@played
async def test_a_resumed_session_cannot_change_its_level() -> None:
    async with engine_on(ScriptedModel(), store=MemoryStore()) as engine:
        with pytest.raises(InvalidValue, match="durability are for fresh ones"):
            async with engine.open_agent(resume="a", durability="step"):
                pytest.fail("it opened")


# --- trouble -------------------------------------------------------------------------------


def failing() -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise StoreError("no space left")

    return fail


@played
async def test_a_lazy_agent_in_trouble_sends_nothing_until_a_flush_succeeds() -> None:
    store = Faults()
    options = {"store": store, "durability": "lazy"}
    async with one(["fine", "again", "third"], engine=options) as life:
        heard: list[Any] = []
        life.hooks.agent_error.listen(heard.append)
        store.at["flush"] = failing()
        assert (await life.agent.ask("go")).text == "fine", "nobody asked the store"
        await trio.sleep(1)
        assert life.agent.health is not None
        assert [(n.turn, n.failure.code) for n in heard] == [(1, "STORE")]
        with pytest.raises(TurnFailed) as failed:
            await life.agent.ask("more")
        assert failed.value.failure.code == "STORE"
        assert len(life.model.requests) == 1
        del store.at["flush"]
        assert (await life.agent.ask("more")).text == "again"
        assert life.agent.health is None
        flushes = store.seen.count("flush")
        assert (await life.agent.ask("more")).text == "third"
        assert store.seen.count("flush") == flushes, "and then it waits for nothing again"


@pytest.mark.parametrize("level", LEVELS)
@played
async def test_no_body_starts_in_trouble(level: Durability) -> None:
    """At any level, and not one that is ``read_only`` either."""
    store = Faults()
    ran: list[str] = []

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    script = [answer(say("Let me see."), Delay(1), call("look"))]
    options = {"store": store, "durability": level}
    async with one(script, [look], engine=options) as life:
        life.agent.followup("go")
        await trio.sleep(0.1)
        store.at["flush"] = failing()
        await life.agent.wait_idle()
        assert life.agent.health is not None
        assert ran == []
        codes = [e.data.error for e in life.session.events if isinstance(e.data, ToolResultEvent)]
        assert all(code is not None for code in codes)
        del store.at["flush"]


# --- recovery ------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", range(40))
@played
async def test_a_lazy_log_never_says_that_a_call_did_not_run(keep: int) -> None:
    """Wherever the power is cut: its calls may have run, recorded or not."""
    ran: list[str] = []

    @tool(parallel=True)
    async def act() -> str:
        """Act."""
        ran.append("act")
        await trio.sleep(5)
        return "done"

    disk = SimulatedDisk()
    options: dict[str, Any] = {"store": disk, "durability": "lazy", "write_window": 100}
    script = [answer(say("Now."), *[call("act")] * 3)]
    async with one(script, [act], engine=options, session_id="s") as life:
        life.agent.followup("go")
        await trio.sleep(1)
        assert len(ran) == 3, "nobody waited for the disk"
        assert disk.lengths["s"] == 0
        found = disk.after_crash(keep)
        before = [e for e in life.session.events if e.seq < keep]
    async with engine_on(ScriptedModel(["ok"]), store=found) as engine:
        async with engine.open_agent(resume="s") as agent:
            results = [e.data for e in agent.session.events if isinstance(e.data, ToolResultEvent)]
            asked = any(type(e.data).__name__ == "AssistantMessageEvent" for e in before) or any(
                isinstance(e.data, AssistantChunk) and type(e.data.chunk).__name__ == "Finish"
                for e in before
            )
            assert len(results) == (3 if asked else 0)
            for result in results:
                assert result.error is not None
                assert result.error.code == texts.TOOL_OUTCOME_UNKNOWN


def kinds_of(events: Iterable[Event]) -> list[str]:
    return [type(event.data).__name__ for event in events]


@pytest.mark.parametrize("level", ["step", "each"])
@played
async def test_a_call_that_is_not_recorded_did_not_run(level: Durability) -> None:
    """So that *not started* is the truth (C151)."""
    disk = SimulatedDisk(Latency.of(0.1))
    stored: list[list[str]] = []

    @tool(parallel=True)
    async def act() -> str:
        """Act."""
        found = disk.after_crash(0)
        stored.append(kinds_of((await found.read("s"))[1]))
        return "done"

    tools: list[Tool] = [act]
    options = {"store": disk, "durability": level}
    script = [answer(call("act"), call("act")), "ok"]
    async with one(script, tools, engine=options, session_id="s") as life:
        await life.say()
    assert len(stored) == 2
    for number, kinds in enumerate(stored):
        assert kinds.count(ToolCallEvent.__name__) > number
