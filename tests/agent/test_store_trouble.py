"""Every fault of a store at every point of an agent's life, on a virtual clock (BC-47).

What of it needs a real disk is in `tests/stores/test_failures.py`; the words for it in
`tests/agent/trouble.py`.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio
from attrs import define, field, frozen
from tests.agent.kit import ROUTE, check, ending_kinds, engine_on, play, played, settled, tasks
from tests.agent.trouble import (
    POINTS,
    SCRIPT,
    Life,
    Point,
    check_crash_now,
    check_resumes,
    marking,
    meets,
    stored,
)
from tests.whole import whole

from terzetto import (
    Agent,
    AgentErrorNotice,
    Durability,
    Engine,
    Event,
    MemoryStore,
    StoreError,
    TurnFailed,
    tool,
)
from terzetto.llm.scripted import Delay, Hang, ScriptedModel, answer, call, say
from terzetto.testing import (
    Fault,
    FaultEffect,
    FaultyStore,
    SimulatedDisk,
    StoreCall,
    StoreOperation,
    history_is_valid,
)
from terzetto.vocabulary import CorruptLog, ForkError, SessionExists, SessionNotFound, ToolCallEvent


@frozen
class Trouble:
    """A way to fail, and what is said of it."""

    error: int | Exception
    effect: FaultEffect = "none"
    said: str = "No space left on device"

    @property
    def raised(self) -> str:
        """What is said by what leaves a call that has no agent yet: it is the store's own."""
        return "both" if isinstance(self.error, ExceptionGroup) else self.said

    def strike(self, store: FaultyStore, operation: StoreOperation, **options: Any) -> Fault:
        return store.fail(operation, self.error, effect=self.effect, **options)

    def arm(self, store: FaultyStore, when: Callable[[StoreCall], bool]) -> Callable[[], None]:
        return self.strike(store, "flush", times=None, when=when).mend


TROUBLES = {
    "full": Trouble(errno.ENOSPC),
    "full, half of it written": Trouble(errno.ENOSPC, "part"),
    "written, and reported as broken": Trouble(errno.EIO, "all", "Input/output error"),
    "denied": Trouble(errno.EACCES, said="Permission denied"),
    "an error of somebody's own": Trouble(RuntimeError("odd"), said="odd"),
    "an error of the system, bare": Trouble(OSError(errno.ESTALE, "stale"), said="stale"),
    "a group": Trouble(ExceptionGroup("both", [OSError("one"), ValueError("two")]), said="one"),
}
WHOLE = {name: trouble for name, trouble in TROUBLES.items() if trouble.effect != "part"}


def troubles(which: dict[str, Trouble]) -> Any:
    return pytest.mark.parametrize("trouble", which.values(), ids=which)


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


# --- in a turn ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MemoryStore, SimulatedDisk])
@pytest.mark.parametrize("once", [True, False], ids=["once", "until mended"])
@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
@troubles(TROUBLES)
def test_a_flush_that_fails_in_a_turn(
    trouble: Trouble, point: Point, once: bool, kind: Any
) -> None:
    """BC-47 C139 C147: told when it happens, nothing starts unsaved, nothing is lost."""

    @played
    async def run() -> None:
        await meets(FaultyStore(kind()), point, trouble.arm, once=once, said=trouble.said)

    run()


# --- at every level -------------------------------------------------------------------------

LEVELS: list[Durability] = ["step", "lazy", "each"]
SLOWLY = (
    answer(
        say("let me see", pieces=["let ", "me ", "see"]),
        Delay(1),
        call("mark", name="a"),
        Delay(1),
        call("mark", name="b"),
    ),
    answer(say("done"), Delay(1)),
)


@define(eq=False)
class Watched:
    """A life in which nothing may show outside that its level promised to be stored."""

    store: FaultyStore
    level: Durability
    agent: Agent | None = None
    ran: list[str] = field(factory=list)
    heard: list[AgentErrorNotice] = field(factory=list)
    wrong: list[str] = field(factory=list)
    model: ScriptedModel = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.model = ScriptedModel(self.answered)

    def answered(self, request: object) -> Any:
        self.look(len(self.events))
        number = len(self.model.requests) - 1
        return SLOWLY[number] if number < len(SLOWLY) else "again"

    @property
    def events(self) -> list[Event]:
        return whole(self.agent.session) if self.agent else []

    def look(self, stored: int) -> None:
        """No request and no body in trouble; and so much of the log is stored by then."""
        assert self.agent is not None
        # Collected: what is raised in a body is the model's to see, not ours.
        if self.agent.health is not None:
            self.wrong.append(f"in trouble at {len(self.events)}")
        if self.level != "lazy" and self.agent.session.durable_seq < stored - 1:
            self.wrong.append(f"{stored} events have to be stored")

    def tool(self) -> Any:
        @tool(parallel=True)
        async def mark(name: str) -> str:
            """Leave a mark."""
            (recorded,) = [
                event.seq
                for event in self.events
                if isinstance(event.data, ToolCallEvent) and f'"{name}"' in event.data.arguments
            ]
            self.look(recorded + 1)
            self.ran.append(name)
            await trio.sleep(1)
            return "marked"

        return mark


@pytest.mark.parametrize("effect", ["none", "part", "all"])
@pytest.mark.parametrize("once", [True, False], ids=["once", "until mended"])
@pytest.mark.parametrize("level", LEVELS)
def test_whichever_flush_fails_at_any_level(
    level: Durability, once: bool, effect: FaultEffect
) -> None:
    """BC-47 C147 C149: whatever was to be written, by whom and when, somebody is told; nothing
    shows outside that is not stored; and nothing is lost, doubled, or tried for ever."""
    nth = 1
    while play(fails_at, nth, level, once, effect):
        nth += 1
    assert nth > {"step": 4, "lazy": 4, "each": 12}[level]


async def fails_at(nth: int, level: Durability, once: bool, effect: FaultEffect) -> bool:
    """Whether there was such a flush in a turn and a second after it."""
    store = FaultyStore(MemoryStore())
    life = Watched(store, level)
    options: dict[str, Any] = {"store": store, "durability": level}
    async with engine_on(life.model, [life.tool()], **options) as engine:
        async with engine.open_agent(**ROUTE, session_id="a") as agent:
            life.agent = agent
            agent.scope.hooks.agent_error.listen(life.heard.append)
            fault = store.fail(
                "flush", errno.ENOSPC, nth=nth, times=1 if once else None, effect=effect
            )
            await tried(life, "go")
            await trio.sleep(1)
            if fault.hits:
                await after_a_failure(life, once)
            check(agent.session)
            await check_crash_now(life, store)
            fault.mend()
            while (await agent.ask("once more")).text != "again":
                pass  # what was left of the script
            await agent.flush()
            assert agent.health is None
            assert await stored(store) == life.events
            assert history_is_valid(life.model.requests[-1].messages) == []
            check(agent.session)
    assert await stored(store) == life.events
    assert engine.unsaved == {}
    assert life.wrong == []
    return fault.hits > 0


async def tried(life: Watched, text: str) -> None:
    assert life.agent is not None
    try:
        await life.agent.ask(text)
    except TurnFailed as failed:
        assert failed.code == "STORE"
        assert "No space left" in failed.failure.message


async def after_a_failure(life: Watched, once: bool) -> None:
    agent = life.agent
    assert agent is not None
    assert life.heard, "somebody is told"
    assert {notice.failure.code for notice in life.heard} == {"STORE"}
    if once:
        return
    assert agent.health is not None
    before = (len(life.model.requests), len(life.ran))
    await tried(life, "and now?")
    assert ending_kinds(agent.session)[-1] == "Failed"
    assert (len(life.model.requests), len(life.ran)) == before
    await trio.sleep(1)
    calls, told = len(life.store.calls), len(life.heard)
    await trio.sleep(1000)
    assert len(life.store.calls) == calls, "not retried before there is something new (C149)"
    agent.inject("something new")
    await trio.sleep(1)
    assert len(life.store.calls) > calls
    assert len(life.heard) == told, "the same trouble is told once"
    with pytest.raises(StoreError, match="No space left"):
        await agent.flush()
    assert agent.health is not None


# --- creating -------------------------------------------------------------------------------


@troubles(WHOLE)
def test_a_creation_that_fails_leaves_nothing(trouble: Trouble) -> None:
    """C23 C143: no agent, no task, no owner; and it can be tried again."""

    @played
    async def run() -> None:
        store = FaultyStore(MemoryStore())
        model = ScriptedModel(["fine"])
        announced: list[object] = []
        async with engine_on(model, store=store) as engine:
            engine.scope.hooks.session_created.listen(announced.append)
            before = tasks()
            trouble.strike(store, "create")
            with pytest.raises(Exception, match=trouble.raised) as caught:
                await engine.agents.create(**ROUTE, session_id="a")
            await settled()
            assert (tasks(), engine.agents.list(), announced) == (before, [], [])
            if isinstance(trouble.error, int):
                assert type(caught.value) is StoreError
            how: dict[str, Any] = {"session_id": "a"}
            if trouble.effect == "all":  # it happened all the same, and nobody owns it
                with pytest.raises(SessionExists):
                    await engine.agents.create(**ROUTE, session_id="a")
                how = {"resume": "a"}
            async with engine.open_agent(**ROUTE, **how) as agent:
                assert (await agent.ask("go")).text == "fine"
                check(agent.session)
        assert await stored(store) == whole(agent.session)
        assert engine.unsaved == {}

    run()


# --- resuming -------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["open", "read", "flush"])
@troubles(WHOLE)
def test_a_resume_that_fails_changes_nothing_and_can_be_tried_again(
    trouble: Trouble, operation: StoreOperation
) -> None:
    """C144 C145: of a log that was cut inside a turn; its repair is written later, once."""

    @played
    async def run() -> None:
        store = FaultyStore(MemoryStore())
        await leave_cut(store)
        before = await stored(store)
        async with engine_on(ScriptedModel(["back"]), store=store) as engine:
            trouble.strike(store, operation)
            if operation == "flush":  # nobody asks for the repair before a request
                async with engine.open_agent(**ROUTE, resume="a") as agent:
                    assert await stored(store) == before
                    agent.followup("go")
                    await agent.wait_idle()
                    assert ending_kinds(agent.session) == ["Interrupted", "Failed"]
                    assert agent.health is None
                    assert (await agent.ask("go on")).text == "back"
            else:
                with pytest.raises(Exception, match=trouble.raised):
                    await engine.agents.resume("a")
                assert engine.agents.list() == []
                assert await stored(store) == before
                async with engine.open_agent(**ROUTE, resume="a") as agent:
                    assert (await agent.ask("go on")).text == "back"
            check(agent.session)
        assert await stored(store) == whole(agent.session)
        assert whole(agent.session)[: len(before)] == before

    run()


async def leave_cut(store: FaultyStore) -> None:
    """A session ``a`` that died in a tool: its process never closed anything."""
    disk, never = SimulatedDisk(), trio.Event()
    ran: list[str] = []
    async with trio.open_nursery() as nursery:

        async def live() -> None:
            model = ScriptedModel([answer(call("mark", name="a"), call("wait"))])
            async with engine_on(model, [marking(ran), waiting(never)], store=disk) as engine:
                async with engine.open_agent(**ROUTE, session_id="a") as agent:
                    agent.followup("go")
                    await settled()
                    header, events = await disk.after_crash().read("a")
                    assert agent.session.place.open_turn is not None
                    handle = await store.create(header)
                    for event in events:
                        handle.append(event)
                    await handle.close()
                    nursery.cancel_scope.cancel()

        nursery.start_soon(live)
    assert ran == ["a"]


def waiting(event: trio.Event) -> Any:
    @tool(name="wait", parallel=True)
    async def wait() -> str:
        """Wait."""
        await event.wait()
        return "waited"

    return wait


# --- forking --------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["read", "create", "flush"])
@troubles(TROUBLES)
def test_a_fork_that_fails_is_none(trouble: Trouble, operation: StoreOperation) -> None:
    """C143: the source stands, half a past is refused, and the next try is a fork."""
    if operation != "flush" and trouble.effect == "part":
        return check_has_no_parts(operation)

    @played
    async def run() -> None:
        store = FaultyStore(MemoryStore())
        async with engine_on(ScriptedModel(["one"]), store=store) as engine:
            async with engine.open_agent(**ROUTE, session_id="a") as agent:
                await agent.ask("go")
        source = await stored(store)
        async with engine_on(ScriptedModel(["two", "three"]), store=store) as engine:
            trouble.strike(store, operation)
            with pytest.raises(Exception, match=trouble.raised):
                await engine.agents.fork("a", session_id="b")
            assert engine.agents.list() == []
            assert await stored(store) == source
            await check_half(store, engine, source)
            async with engine.open_agent(**ROUTE, fork="a", session_id="c") as agent:
                assert (await agent.ask("go on")).text in ("two", "three")
                check(agent.session)
        assert await stored(store, "c") == whole(agent.session)
        assert (await stored(store, "c"))[: len(source)] == source

    run()


def check_has_no_parts(operation: StoreOperation) -> None:
    with pytest.raises(Exception, match="have parts"):
        FaultyStore(MemoryStore()).fail(operation, errno.ENOSPC, effect="part")


async def check_half(store: FaultyStore, engine: Engine, source: list[Any]) -> None:
    """What is left of the fork ``b``: nothing, a whole one, or a part that is refused."""
    try:
        found = await stored(store, "b")
    except SessionNotFound:
        return
    with pytest.raises(ForkError):
        await engine.agents.fork("a", session_id="b")
    if len(found) > len(source):
        async with engine.open_agent(**ROUTE, resume="b") as agent:
            assert (await agent.ask("go on")).text == "two"
    else:
        assert found == source[: len(found)]
        with pytest.raises(CorruptLog):
            await engine.agents.resume("b")
        await store.delete("b")


# --- leaving --------------------------------------------------------------------------------

LEAVING = ["dispose", "agent's block", "engine's block"]


async def life_that_is_left(engine: Engine, way: str) -> Any:
    """An agent with one turn that is saved, and a pending message that is not; left."""
    if way == "agent's block":
        async with engine.open_agent(**ROUTE, session_id="a") as agent:
            await agent.ask("go")
            agent.inject("pending")
        return agent
    handle = await engine.agents.create(**ROUTE, session_id="a")
    await handle.agent.ask("go")
    handle.agent.inject("pending")
    if way == "dispose":
        await handle.dispose()
    return handle.agent


@pytest.mark.parametrize("way", LEAVING)
@troubles(TROUBLES)
def test_leaving_a_store_that_fails_is_reported(
    trouble: Trouble, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C28 C32 BC-47: `engine.unsaved`, one ERROR record, `StoreError`; the disk is resumable."""

    @played
    async def run() -> None:
        store = FaultyStore(MemoryStore())
        trouble.strike(store, "close")
        with pytest.raises(StoreError, match="not saved") as caught:
            async with engine_on(ScriptedModel(["fine"]), store=store) as engine:
                agent = await life_that_is_left(engine, way)
        assert trouble.said in str(caught.value)
        assert set(engine.unsaved) == {"a"}
        assert trouble.said in engine.unsaved["a"]
        assert len(errors_of(caplog)) == 1
        found, events = await stored(store), whole(agent.session)
        assert found == events[: len(found)]
        assert agent.session.durable_seq + 1 <= len(found)
        assert agent.session.durable_seq + 1 < len(events)
        await check_resumes(found, agent.session.header)
        async with engine_on(ScriptedModel(["back"]), store=store) as again:
            async with again.open_agent(**ROUTE, resume="a") as agent:  # nobody owns it
                assert (await agent.ask("go on")).text == "back"

    run()


@pytest.mark.parametrize("way", LEAVING)
@troubles(TROUBLES)
def test_leaving_saves_what_a_flush_could_not(trouble: Trouble, way: str) -> None:
    """C32: the closing flush failed, the store recovered, and the end is on disk."""

    @played
    async def run() -> None:
        store = FaultyStore(MemoryStore())
        trouble.strike(store, "flush", nth=2)
        async with engine_on(ScriptedModel(["fine"]), store=store) as engine:
            agent = await life_that_is_left(engine, way)
        assert engine.unsaved == {}
        assert await stored(store) == whole(agent.session)
        assert ending_kinds(agent.session) == ["Completed"]

    run()


# --- hanging --------------------------------------------------------------------------------

ENDS = ["dispose", "agent's block", "engine's block", "host's deadline"]


@pytest.mark.parametrize("effect", ["none", "part", "all"])
@pytest.mark.parametrize("way", ENDS)
@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_a_store_that_hangs_is_left_within_the_bound(
    point: Point, way: str, effect: FaultEffect
) -> None:
    """BC-10: whatever hangs, the log is closed in memory and the exit takes the timeout."""

    @played
    async def run() -> None:
        store, ran = FaultyStore(MemoryStore()), list[str]()
        model = ScriptedModel(SCRIPT)
        start, before = trio.current_time(), tasks()
        with trio.CancelScope() as host, expected(way):
            async with engine_on(model, [marking(ran)], store=store, shutdown_timeout=3) as engine:
                handle = await engine.agents.create(**ROUTE, session_id="a")
                agent = handle.agent
                life = Life(agent, model, ran)
                stuck = store.hang(
                    "flush", times=None, effect=effect, when=lambda call: point.reached(life)
                )
                store.hang("close", times=None, effect=effect)
                agent.followup("go")
                await stuck.wait_hit()
                await settled()
                assert (len(model.requests), len(ran)) == (point.requests, point.bodies)
                assert agent.status == "running"
                if way == "dispose":
                    await handle.dispose()
                elif way == "agent's block":
                    handle.begin_disposal()
                    await agent.wait_idle()
                elif way == "host's deadline":
                    host.deadline = trio.current_time() + 1
                    await trio.sleep_forever()
        assert trio.current_time() - start <= 3 + (way == "host's deadline")
        await settled()
        assert tasks() == before
        # A flush that hung is left as its turn is closed; if another one comes before the close,
        # that one says what is saved.
        last = whole(agent.session)[-1].seq
        assert set(engine.unsaved) == ({"a"} if agent.session.durable_seq < last else set())
        check(agent.session)
        kind = "Completed" if point.ending == "Completed" else "Aborted DisposedCause"
        assert ending_kinds(agent.session) == [kind]
        found = await stored(store)
        assert found == whole(agent.session)[: len(found)]
        assert len(found) >= agent.session.durable_seq + 1
        await check_resumes(found, agent.session.header)

    run()


def expected(way: str) -> Any:
    return trio.CancelScope() if way == "host's deadline" else pytest.raises(StoreError)


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_a_turn_whose_store_hangs_can_be_cancelled_and_ends_when_it_answers(point: Point) -> None:
    """BC-47: the turn is closed at once; idle is when its end is durable."""

    @played
    async def run() -> None:
        store, ran = FaultyStore(MemoryStore()), list[str]()
        model = ScriptedModel(SCRIPT)
        async with engine_on(model, [marking(ran)], store=store) as engine:
            async with engine.open_agent(**ROUTE, session_id="a") as agent:
                life = Life(agent, model, ran)
                stuck = store.hang("flush", times=None, when=lambda call: point.reached(life))
                agent.followup("go")
                await stuck.wait_hit()
                agent.cancel()
                await settled()
                kind = "Completed" if point.ending == "Completed" else "Aborted UserCause"
                assert ending_kinds(agent.session) == [kind]
                assert (len(model.requests), len(ran)) == (point.requests, point.bodies)
                stuck.mend()
                await agent.wait_idle()
                assert await stored(store) == whole(agent.session)
                check(agent.session)

    run()


@pytest.mark.parametrize("effect", ["none", "all"])
@pytest.mark.parametrize("operation", ["create", "open", "read"])
def test_a_beginning_that_hangs_can_be_given_up(
    operation: StoreOperation, effect: FaultEffect
) -> None:
    """C25: whoever waits is let go within the bound; the late handle is closed when it comes."""

    @played
    async def run() -> None:
        store = FaultyStore(MemoryStore())
        if operation != "create":
            await leave_cut(store)
        async with engine_on(ScriptedModel(["fine"]), store=store) as engine:
            stuck = store.hang(operation, effect=effect)
            with trio.move_on_after(2) as patience:
                if operation == "create":
                    await engine.agents.create(**ROUTE, session_id="a")
                else:
                    await engine.agents.resume("a")
            assert patience.cancelled_caught
            assert trio.current_time() == 2 + 5, "most stores answer soon, so it waits a little"
            assert engine.agents.list() == []
            stuck.mend()
            await settled()
            async with engine.open_agent(**ROUTE, resume="a") as agent:
                assert (await agent.ask("go")).text == "fine"
        assert await stored(store) == whole(agent.session)

    run()


# --- one agent's trouble --------------------------------------------------------------------


@played
async def test_the_trouble_of_a_stream_is_met_where_somebody_waits() -> None:
    """What is streamed is buffered; the bodies of its calls are what must not start."""
    store, ran = FaultyStore(MemoryStore()), list[str]()
    calls = answer(say("let me see"), call("mark", name="a"), Hang())
    model = ScriptedModel([calls, "again"])
    heard: list[AgentErrorNotice] = []
    async with engine_on(model, [marking(ran)], store=store) as engine:
        async with engine.open_agent(**ROUTE, session_id="a") as agent:
            agent.scope.hooks.agent_error.listen(heard.append)
            agent.followup("go")
            await settled()
            full = store.fail("flush", errno.ENOSPC, times=None)
            with pytest.raises(StoreError, match="No space left"):
                await agent.flush()
            assert agent.health is not None
            assert agent.status == "running"
            assert heard == []
            agent.cancel()
            await agent.wait_idle()
            assert ending_kinds(agent.session) == ["Aborted UserCause"]
            assert [notice.failure.code for notice in heard] == ["STORE"]
            full.mend()
            await agent.flush()
            assert agent.health is None
            assert await stored(store) == whole(agent.session)
            assert (await agent.ask("go on")).text == "again"
            check(agent.session)
