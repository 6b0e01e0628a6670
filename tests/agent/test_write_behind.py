"""What nobody waits for reaches the store in windows, by one task of the engine (C149)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.agent.kit import ROUTE, Faults, check, ending_kinds, engine_on, played, settled, tasks
from tests.agent.rig import Life, one
from tests.whole import whole

from terzetto import (
    Agent,
    Durability,
    MemoryStore,
    SqliteStore,
    StoreError,
    TurnFailed,
    WrongThread,
    tool,
)
from terzetto.agent._backlog import rough_size
from terzetto.llm.scripted import Delay, Hang, ScriptedModel, answer, call, say
from terzetto.testing import Latency, SimulatedDisk
from terzetto.vocabulary import (
    AssistantChunk,
    AssistantMessage,
    AssistantMessageEvent,
    BlockEnd,
    CallId,
    Event,
    EventData,
    Extension,
    Finish,
    InboxSpliced,
    MessageId,
    ModelSource,
    ReasoningBlock,
    Stop,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    UserMessage,
    UserMessageEvent,
    UserSource,
    freeze_object,
)

LEVELS: list[Durability] = ["step", "lazy", "each"]


class Timed(Faults):
    """A store that notes when it is flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    async def reach(self, point: str) -> None:
        if point == "flush":
            self.times.append(round(trio.current_time(), 6))
        await super().reach(point)


def raising(error: Exception) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail


NO_SPACE = raising(StoreError("no space left"))


def all_saved(agent: Agent) -> bool:
    return agent.session.durable_seq == agent.session.place.next_seq - 1


# --- windows -------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["step", "lazy"])
@played
async def test_a_window_is_fixed_and_nothing_makes_it_longer(level: Durability) -> None:
    store = Timed()
    async with one(engine={"store": store, "durability": level}) as life:
        start = trio.current_time()
        for at in (0.0, 0.1, 0.2, 0.24, 0.3, 1.0):
            await trio.sleep_until(start + at)
            life.agent.inject(f"at {at}")
        await trio.sleep(1)
        assert [round(t - start, 6) for t in store.times] == [0.25, 0.55, 1.25]
        assert all_saved(life.agent)


@pytest.mark.parametrize("window", [0, 0.01, 3])
@played
async def test_the_window_is_the_engines(window: float) -> None:
    store = Timed()
    options = {"store": store, "durability": "lazy", "write_window": window}
    async with one(engine=options) as life:
        start = trio.current_time()
        life.agent.inject("a note")
        await trio.sleep(10)
        assert [round(t - start, 6) for t in store.times] == [window]


@played
async def test_each_has_no_window() -> None:
    """What is recorded while the agent is idle is saved as soon as that is possible."""
    store = Timed()
    async with one(engine={"store": store, "durability": "each"}) as life:
        start = trio.current_time()
        life.agent.inject("a note")
        assert not all_saved(life.agent)
        await settled()
        assert all_saved(life.agent)
        assert trio.current_time() == start


@pytest.mark.parametrize("level", ["step", "lazy"])
@played
async def test_what_was_flushed_meanwhile_is_not_flushed_again(level: Durability) -> None:
    """And the next event begins a window of its own."""
    store = Timed()
    async with one(engine={"store": store, "durability": level}) as life:
        start = trio.current_time()
        life.agent.inject("a note")
        await trio.sleep(0.1)
        await life.agent.flush()
        await trio.sleep(0.1)
        life.agent.inject("another")
        await trio.sleep(5)
        assert [round(t - start, 6) for t in store.times] == [0.1, 0.45]


@played
async def test_a_store_in_memory_has_no_windows() -> None:
    """It is flushed where that is free, and there is no task for it."""
    for store in (None, MemoryStore()):
        before = tasks()
        async with engine_on(ScriptedModel(["fine"]), store=store, durability="lazy") as engine:
            await settled()
            assert tasks() == before
            async with engine.open_agent(**ROUTE) as agent:
                with_agent = tasks()
                agent.inject("a note")
                await agent.ask("go")
                await settled()
                assert tasks() == with_agent
                assert all_saved(agent)


@played
async def test_an_idle_engine_costs_one_task_that_waits() -> None:
    before = tasks()
    async with engine_on(ScriptedModel(), store=SimulatedDisk()) as engine:
        await settled()
        assert tasks() == before + 1
        steps = Steps()
        async with engine.open_agent(**ROUTE, session_id="a"):
            await settled()
            trio.lowlevel.add_instrument(steps)
            await trio.sleep(1000)
            trio.lowlevel.remove_instrument(steps)
    assert steps.names == {trio.lowlevel.current_task().name}
    assert tasks() == before


class Steps(trio.abc.Instrument):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if not task.name.startswith("<"):
            self.names.add(task.name)


@played
async def test_many_agents_are_flushed_at_the_same_time() -> None:
    """Fifty agents that write at any time: all in the windows of one engine."""
    store = Timed()
    model = ScriptedModel(
        lambda request: answer(*[p for _ in range(9) for p in (say("x"), Delay(0.1))])
    )
    async with engine_on(model, store=store, durability="lazy") as engine:
        agents = []
        for number in range(50):
            handle = await engine.agents.create(**ROUTE, session_id=f"a{number}")
            agents.append(handle.agent)
        start = trio.current_time()
        for number, agent in enumerate(agents):
            await trio.sleep_until(start + number * 0.007)
            agent.followup("go")
        await engine.wait_idle()
        await trio.sleep(1)
        assert all(map(all_saved, agents))
        spent = trio.current_time() - start
        assert len(store.times) > 150
        assert len(set(store.times)) <= spent / 0.25
        for agent in agents:
            check(agent.session)


async def test_a_database_writes_once_for_all_of_a_window(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    async with engine_on(ScriptedModel(), store=store, durability="lazy") as engine:
        agents = []
        for number in range(50):
            agents.append((await engine.agents.create(**ROUTE, session_id=f"a{number}")).agent)
        with trio.fail_after(60):
            while not all(map(all_saved, agents)):
                await trio.sleep(0.01)
            before = store.statistics()
            for agent in agents:
                agent.inject("a note")
            while not all(map(all_saved, agents)):
                await trio.sleep(0.01)
        after = store.statistics()
    assert after.events - before.events == 50
    assert after.commits - before.commits <= 3


@played
async def test_a_follower_of_what_is_durable_gets_on_although_nobody_waits() -> None:
    got: list[int] = []
    options = {"store": SimulatedDisk(Latency.of(0.01)), "durability": "lazy"}
    async with one([answer(say("a"), Delay(5), say("b"))], engine=options) as life:

        async def follow() -> None:
            async for event in life.session.follow(durable=True):
                assert event.seq <= life.session.durable_seq
                got.append(event.seq)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            life.agent.followup("go")
            await trio.sleep(1)
            middle = len(got)
            assert middle == len(life.session.events) > 3, "in the middle of a stream"
            await life.agent.wait_idle()
            await trio.sleep(1)
            assert len(got) == len(life.session.events) > middle
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("level", LEVELS)
@played
async def test_what_repair_appends_is_saved_as_well(level: Durability) -> None:
    disk = SimulatedDisk()
    async with one([Hang()], engine={"store": disk, "durability": level}, session_id="s") as life:
        life.agent.followup("go")
        await trio.sleep(1)
        found = disk.after_crash()
    async with engine_on(ScriptedModel(), store=found) as engine:
        async with engine.open_agent(resume="s") as agent:
            assert ending_kinds(agent.session) == ["Interrupted"]
            await trio.sleep(1)
            assert all_saved(agent)
            assert found.lengths["s"] == len(agent.session.events)


# --- failures ------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["step", "lazy"])
@played
async def test_a_failed_write_waits_for_a_new_event(level: Durability) -> None:
    """Told once, in order, and not tried again by itself."""
    store = Timed()
    async with one(engine={"store": store, "durability": level}) as life:
        heard: list[Any] = []
        life.hooks.agent_error.listen(heard.append)
        store.at["flush"] = NO_SPACE
        start = trio.current_time()
        life.agent.inject("first")
        await trio.sleep(100)
        assert [round(t - start, 6) for t in store.times] == [0.25]
        assert life.agent.health is not None
        assert life.agent.health.code == "STORE"
        assert [(n.turn, n.step, n.failure) for n in heard] == [(0, 0, life.agent.health)]
        assert isinstance(heard[0].error, StoreError)

        life.agent.inject("second")
        await trio.sleep(100)
        assert [round(t - start, 6) for t in store.times] == [0.25, 100.25]
        assert len(heard) == 1, "the same trouble is told once"

        del store.at["flush"]
        await trio.sleep(100)
        assert len(store.times) == 2
        life.agent.inject("third")
        await trio.sleep(1)
        assert life.agent.health is None
        assert list(store.stored(life.agent.id)) == whole(life.session)

        store.at["flush"] = NO_SPACE
        life.agent.inject("fourth")
        await trio.sleep(1)
        assert len(heard) == 2, "another trouble is told again"
        del store.at["flush"]


@played
async def test_an_explicit_flush_is_tried_at_once_and_raises() -> None:
    store = Timed()
    async with one(engine={"store": store, "durability": "lazy"}) as life:
        heard: list[Any] = []
        life.hooks.agent_error.listen(heard.append)
        store.at["flush"] = raising(OSError(28, "no space left"))
        life.agent.inject("first")
        with pytest.raises(StoreError, match="no space left"):
            await life.agent.flush()
        assert life.agent.health is not None
        await trio.sleep(100)
        assert len(store.times) == 1, "the window of what failed is over"
        assert heard == [], "who called was told"
        del store.at["flush"]
        await life.agent.flush()
        assert life.agent.health is None
        assert all_saved(life.agent)


@played
async def test_an_event_that_came_during_a_failed_write_is_a_new_one() -> None:
    store = Timed()
    async with one(engine={"store": store, "durability": "lazy"}) as life:

        async def slow() -> None:
            await trio.sleep(1)
            raise StoreError("no space left")

        store.at["flush"] = slow
        start = trio.current_time()
        life.agent.inject("first")
        await trio.sleep(0.5)
        life.agent.inject("second")
        await trio.sleep(0.6)
        del store.at["flush"]
        await trio.sleep(10)
        assert [round(t - start, 6) for t in store.times] == [0.25, 1.25]
        assert all_saved(life.agent)


@played
async def test_teardown_tries_again_and_says_what_is_lost() -> None:
    store = Timed()
    async with one(engine={"store": store, "durability": "lazy"}) as life:
        store.at["flush"] = NO_SPACE
        life.agent.inject("first")
        await trio.sleep(1)
    assert all_saved(life.agent), "closing wrote it"
    assert not life.engine.unsaved

    store = Timed()
    with pytest.raises(StoreError, match="not saved"):
        async with one(engine={"store": store, "durability": "lazy"}) as life:
            store.at["flush"] = store.at["close"] = NO_SPACE
            life.agent.inject("first")
            await trio.sleep(1)
    assert list(life.engine.unsaved) == [life.agent.id]


@pytest.mark.parametrize("level", ["step", "lazy"])
@played
async def test_a_write_behind_that_fails_in_a_stream_ends_no_turn(level: Durability) -> None:
    """It is told; who waits for the store next is told as well, and that may be nobody."""
    store = Timed()
    script = [answer(say("a"), Delay(1), say("b"))]
    async with one(script, engine={"store": store, "durability": level}) as life:
        heard: list[Any] = []
        life.hooks.agent_error.listen(heard.append)
        life.agent.followup("go")
        await trio.sleep(0.1)
        store.at["flush"] = NO_SPACE
        await trio.sleep(0.5)
        assert [(n.turn, n.step) for n in heard] == [(1, 1)]
        del store.at["flush"]
        await life.agent.wait_idle()
        assert ending_kinds(life.session) == ["Completed"]
        assert life.agent.health is None


@played
async def test_one_that_hangs_holds_nobody_up() -> None:
    store = Timed()
    async with engine_on(ScriptedModel(), store=store, durability="lazy") as engine:
        bad = (await engine.agents.create(**ROUTE, session_id="bad")).agent
        good = (await engine.agents.create(**ROUTE, session_id="good")).agent
        first = True

        async def hang_once() -> None:
            nonlocal first
            if first:
                first = False
                await trio.sleep(50)

        store.at["flush"] = hang_once
        bad.inject("x")
        await trio.sleep(1)
        for number in range(20):
            bad.inject(f"{number}")
            good.inject(f"{number}")
            await trio.sleep(1)
            assert all_saved(good)
        assert not all_saved(bad)
        assert len(store.times) == 21, "what hangs is not asked again meanwhile"
        await trio.sleep(60)
        assert all_saved(bad)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_a_listener_stops_the_program_with_leaves_the_engine(stop: type) -> None:
    store = Timed()

    @played
    async def run() -> None:
        async with one(engine={"store": store, "durability": "lazy"}, session_id="s") as life:

            def listener(notice: object) -> None:
                raise stop("enough")

            life.hooks.agent_error.listen(listener)
            store.at["flush"] = NO_SPACE
            life.agent.inject("first")
            await trio.sleep_forever()

    with pytest.raises(stop):
        run()
    assert not store.owned("s")


# --- stores that wrap a cancellation -------------------------------------------------------


def grouping(*others: Exception) -> Callable[[], Awaitable[None]]:
    """What a store with a nursery of its own raises when it is cancelled in a clean-up."""

    async def hang() -> None:
        async def fail() -> None:
            try:
                await trio.sleep_forever()
            finally:
                for other in others:
                    raise other

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(fail)
            nursery.start_soon(trio.sleep_forever)

    return hang


@pytest.mark.parametrize("others", [(), (OSError(5, "it broke"),)], ids=["alone", "with trouble"])
@pytest.mark.parametrize("when", ["request", "body", "ending", "catching up"])
@pytest.mark.parametrize("how", ["cancel", "dispose", "host"])
@played
async def test_a_store_that_wraps_a_cancellation_is_no_crash(
    others: tuple[Exception, ...], when: str, how: str
) -> None:
    """Raised as a group with the store's own failure or without, it is a cancel all the same."""
    store = Timed()
    level: Durability = "each" if when == "catching up" else "step"
    ran: list[str] = []

    @tool
    async def act() -> str:
        """Act."""
        ran.append("act")
        return "done"

    def due(life: Life) -> bool:
        place, data = life.session.place, [e.data for e in life.session.events]
        match when:
            case "request":
                return place.open_turn is not None
            case "body":
                return bool(place.owed())
            case "ending":
                return bool(data) and place.open_turn is None and place.last_turn == 1
            case _:
                chunk = data[-1]
                return isinstance(chunk, AssistantChunk) and not isinstance(chunk.chunk, Finish)

    script = [answer(say("Now."), call("act")), "ok"]
    reached = trio.Event()
    with trio.CancelScope() as host:
        async with one(script, [act], engine={"store": store, "durability": level}) as life:
            wrapped = grouping(*others)

            async def wrap() -> None:
                if due(life):
                    reached.set()
                    await wrapped()

            store.at["flush"] = wrap
            life.agent.followup("go")
            await reached.wait()
            await settled()
            if how == "cancel":
                life.agent.cancel()
                store.at.clear() if when != "ending" else None
                if when == "ending":
                    # A cancel of a turn that has ended changes nothing: the store must answer.
                    host.cancel()
                    await trio.sleep_forever()
                await life.agent.wait_idle()
                assert ending_kinds(life.session) == ["Aborted UserCause"]
            elif how == "host":
                store.at.clear()
                host.cancel()
                await trio.sleep_forever()
            else:
                store.at.clear()
    assert life.agent._crash is None
    (ending,) = ending_kinds(life.session)
    assert ending == "Completed" or ending.startswith("Aborted")
    assert (ran == ["act"]) is (when == "ending")
    assert not life.engine.unsaved
    check(life.session)


# --- the end -------------------------------------------------------------------------------


@played
async def test_an_agent_that_is_left_while_it_is_written_leaves_nothing() -> None:
    """A write in progress ends first; nothing of the agent is left then, no task and no owner."""
    disk = SimulatedDisk(Latency.of(1))
    async with engine_on(ScriptedModel(), store=disk, durability="lazy") as engine:
        await settled()
        before = tasks()
        async with engine.open_agent(**ROUTE, session_id="s") as agent:
            agent.inject("first")
            await trio.sleep(0.5)
            agent.inject("second")
        assert tasks() == before
        assert disk.lengths["s"] == len(agent.session.events)
        async with engine.open_agent(resume="s"):
            pass


@played
async def test_a_write_behind_that_hangs_is_given_up_before_its_agent_is_closed() -> None:
    """One call of a handle at a time is all that closing needs."""
    store = Timed()
    async with engine_on(ScriptedModel(), store=store, durability="lazy") as engine:
        await settled()
        before = tasks()
        async with engine.open_agent(**ROUTE, session_id="s") as agent:
            writing: list[str] = []

            async def hang() -> None:
                writing.append("begun")
                try:
                    await trio.sleep_forever()
                finally:
                    writing.append("given up")

            async def closing() -> None:
                writing.append("closed")

            store.at.update(flush=hang, close=closing)
            agent.inject("first")
            await trio.sleep(1)
            assert writing == ["begun"]
        assert writing == ["begun", "given up", "closed"]
        assert tasks() == before
        assert all_saved(agent)


@pytest.mark.parametrize("level", LEVELS)
@played
async def test_a_hanging_store_is_left_within_the_bound(level: Durability) -> None:
    store = Timed()
    with pytest.raises(StoreError, match="not durable within 3 s"):
        async with engine_on(
            ScriptedModel(), store=store, durability=level, shutdown_timeout=3
        ) as engine:
            agent = (await engine.agents.create(**ROUTE, session_id="s")).agent
            store.at["flush"] = store.at["close"] = trio.sleep_forever
            agent.inject("first")
            await trio.sleep(1)
            start = trio.current_time()
    assert trio.current_time() - start == pytest.approx(3)
    assert list(engine.unsaved) == ["s"]
    assert not store.owned("s")


# --- far behind ----------------------------------------------------------------------------


def endless(text: str = "x") -> Any:
    """An answer that never ends and never waits."""

    def parts() -> Any:
        return answer(*[say(text)] * 30_000)

    return [parts()]


@pytest.mark.parametrize("level", ["step", "lazy"])
@played
async def test_a_disk_that_hangs_bounds_what_waits_in_memory(level: Durability) -> None:
    """The stream is not read on; a cancel ends the turn at once, the exit is bounded."""
    store = Timed()
    with pytest.raises(StoreError):
        async with one(
            endless(), engine={"store": store, "durability": level, "shutdown_timeout": 3}
        ) as life:

            async def hang_in_the_stream() -> None:
                if any(isinstance(e.data, AssistantChunk) for e in life.session.events[-1:]):
                    await trio.sleep_forever()

            store.at["flush"] = store.at["close"] = hang_in_the_stream
            life.agent.followup("go")
            await trio.sleep(1000)
            waiting = len(life.session.events) - 1 - life.session.durable_seq
            assert 5_000 < waiting < 5_100
            assert life.agent.status == "running"
            store.at["flush"] = store.at["close"] = trio.sleep_forever
            before = trio.current_time()
            life.agent.cancel()
            await settled()
            assert ending_kinds(life.session) == ["Aborted UserCause"]
            assert trio.current_time() == before
            start = trio.current_time()
    assert trio.current_time() - start == pytest.approx(3)
    assert list(life.engine.unsaved) == [life.agent.id]
    check(life.session)


@played
async def test_who_gives_up_waiting_does_not_let_the_stream_go_on() -> None:
    """The bound holds however often somebody begins to wait for a disk that hangs, and stops."""
    store = Timed()
    async with one(endless(), engine={"store": store, "durability": "lazy"}) as life:
        store.at["flush"] = trio.sleep_forever
        life.agent.followup("go")
        await trio.sleep(10)
        length = len(life.session.events)
        assert length > 5_000
        for _ in range(20):
            with trio.move_on_after(1) as scope:
                await life.agent.flush()
            assert scope.cancelled_caught
        assert len(life.session.events) == length
        del store.at["flush"]
        life.agent.cancel()
        await life.agent.wait_idle()


@played
async def test_a_cancel_does_not_wait_for_a_write_under_pressure() -> None:
    """A write that has begun cannot be cancelled; so the driver never is the one who began it."""
    disk = SimulatedDisk(Latency(flush=100))
    options = {"store": disk, "durability": "lazy", "write_window": 10_000}
    async with one(endless(), engine=options) as life:
        life.agent.followup("go")
        await trio.sleep(1)
        assert len(life.session.events) > 5_000
        life.agent.cancel()
        await settled()
        assert ending_kinds(life.session) == ["Aborted UserCause"]
        assert trio.current_time() < 2
        await trio.sleep(150)
        assert life.session.durable_seq > 5_000, "it ended without him"


@played
async def test_a_few_large_events_are_too_much_as_well() -> None:
    """Not their number counts alone: of results, one is looked at after another."""
    store = Timed()
    size = 3 * 2**20

    @tool(parallel=True, max_result_bytes=None)
    async def dump() -> str:
        """Dump."""
        return "x" * size

    script = [answer(*[call("dump")] * 9), "ok"]
    async with one(script, [dump], engine={"store": store, "durability": "lazy"}) as life:
        hanging = trio.Event()

        async def hang() -> None:
            await hanging.wait()

        store.at["flush"] = hang
        life.agent.followup("go")
        await trio.sleep(1000)
        results = [e for e in life.session.events if "ToolResult" in type(e.data).__name__]
        assert len(results) == 3
        hanging.set()
        await life.agent.wait_idle()
        assert ending_kinds(life.session) == ["Completed"]
        check(life.session)


@played
async def test_large_events_of_a_programs_own_are_too_much_as_well() -> None:
    """Whatever type an event has: its texts wait in memory."""
    store = Timed()
    agents: list[Agent] = []

    @tool(read_only=True)
    async def note() -> str:
        """Note."""
        data: dict[str, object] = {"deep": [{"text": "x" * (3 * 2**20)}]}
        agents[0].session.record("my/note", data, ignorable=True)
        return "ok"

    script = [answer(call("note")) for _ in range(20)]
    async with one([*script, "ok"], [note], engine={"store": store, "durability": "lazy"}) as life:
        agents.append(life.agent)
        await life.agent.flush()
        hanging = trio.Event()

        async def hang() -> None:
            await hanging.wait()

        store.at["flush"] = hang
        life.agent.followup("go")
        await trio.sleep(1000)
        assert sum(isinstance(e.data, Extension) for e in life.session.events) == 3
        hanging.set()
        await life.agent.wait_idle()
        assert ending_kinds(life.session) == ["Completed"]
        check(life.session)


TEXT = UserMessage((TextBlock("x" * 2000),), UserSource(), MessageId("m"))
SIZED: dict[str, EventData] = {
    "extension": Extension("my/x", freeze_object({"a": ["x" * 1000, {"b": "x" * 1000}]})),
    "chunk": AssistantChunk(1, 1, TextDelta(0, "x" * 2000)),
    "arguments": AssistantChunk(1, 1, ToolCallDelta(0, CallId("c"), "x" * 2000)),
    "end of a block": AssistantChunk(1, 1, BlockEnd(0, TextBlock("x" * 2000))),
    "replay state": AssistantChunk(1, 1, Finish(Stop(), freeze_object({"a": "x" * 2000}))),
    "call": ToolCallEvent(1, 1, CallId("c"), "t", "x" * 2000),
    "input": InboxSpliced("next-turn", 0, 0, (TEXT,)),
    "message": UserMessageEvent(TEXT),
    "result": ToolResultEvent(
        1, 1, UserMessage((ToolResultBlock(CallId("c"), (TextBlock("x" * 2000),)),))
    ),
    "result in words": ToolResultEvent(1, 1, TEXT),
    "answer": AssistantMessageEvent(
        1,
        1,
        AssistantMessage(
            (
                TextBlock("x" * 500),
                ReasoningBlock("x" * 500),
                ToolCallBlock(CallId("c"), "t", "x" * 1000),
            ),
            ModelSource("p", "m"),
        ),
    ),
}


@pytest.mark.parametrize("name", SIZED)
def test_the_size_of_an_event_is_that_of_its_texts(name: str) -> None:
    size = rough_size(Event(0, 0, SIZED[name]))
    assert 2000 <= size < 2400


@played
async def test_a_slow_disk_slows_a_lazy_agent_down_and_no_more() -> None:
    disk = SimulatedDisk(Latency(flush=1, event=0.001))
    most: list[int] = []
    async with one(
        [answer(*[say("x")] * 20_000)], engine={"store": disk, "durability": "lazy"}
    ) as life:
        life.session.observe(lambda event: most.append(event.seq - life.session.durable_seq))
        turn = await life.agent.ask("go")
        assert len(turn.text) == 20_000
    assert 4_000 < max(most) < 5_100
    assert disk.lengths[life.agent.id] == len(life.session.events)


@played
async def test_a_disk_that_fails_under_pressure_ends_the_turn() -> None:
    store = Timed()
    heard: list[int] = []
    async with one(endless(), engine={"store": store, "durability": "lazy"}) as life:
        life.hooks.agent_error.listen(lambda notice: heard.append(notice.step))
        store.at["flush"] = NO_SPACE
        with pytest.raises(TurnFailed) as failed:
            await life.agent.ask("go")
        assert failed.value.failure.code == "STORE"
        # The turn that failed, and its ending: the writer leaves it to who waits for it.
        assert len(heard) == 2
        assert len(life.session.events) < 5_200
        del store.at["flush"]
        check(life.session)


@played
async def test_pressure_during_a_batch_is_cancelled_with_it() -> None:
    store = Timed()
    ran: list[int] = []

    @tool(parallel=True, max_result_bytes=None)
    async def dump() -> str:
        """Dump."""
        ran.append(1)
        return "x" * (9 * 2**20)

    script = [answer(*[call("dump")] * 30), "ok"]
    async with one(script, [dump], engine={"store": store, "durability": "lazy"}) as life:
        store.at["flush"] = trio.sleep_forever
        life.agent.followup("go")
        await trio.sleep(100)
        assert life.agent.status == "running"
        assert len(ran) < 30
        life.agent.cancel()
        await life.agent.wait_idle()
        del store.at["flush"]
        assert ending_kinds(life.session) == ["Aborted UserCause"]
        check(life.session)


# --- the barrier for users -----------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@played
async def test_flush_is_a_barrier_at_every_level(level: Durability) -> None:
    disk = SimulatedDisk(Latency.of(0.1))
    async with one([Hang()], engine={"store": disk, "durability": level}) as life:
        life.agent.followup("go")
        await trio.sleep(0.05)
        wanted = life.session.place.next_seq - 1
        assert life.session.durable_seq < wanted
        await life.agent.flush()
        assert life.session.durable_seq >= wanted
        life.agent.cancel()
        await life.agent.wait_idle()


@played
async def test_flush_without_a_store_after_the_end_and_from_a_thread() -> None:
    async with one() as life:
        with trio.CancelScope() as scope:
            scope.cancel()
            await life.agent.flush()
        assert scope.cancelled_caught, "it is a checkpoint"
        await life.agent.flush()
        with pytest.raises(WrongThread):
            await trio.to_thread.run_sync(lambda: life.agent.flush().send(None))
    async with one(engine={"store": SimulatedDisk()}) as life:
        life.agent.inject("a note")
    await life.agent.flush()  # all of it is stored
