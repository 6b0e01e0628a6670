"""Creation is one transaction: its order, and its rollback from every stage."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio
from tests.agent.kit import (
    ROUTE,
    Faults,
    check,
    codes,
    ending_kinds,
    engine_on,
    kinds,
    pending,
    play,
    played,
    settled,
    tasks,
    texts_of,
)
from tests.whole import whole

from terzetto import (
    Agent,
    AgentView,
    Engine,
    InvalidValue,
    JsonlStore,
    MemoryStore,
    Session,
    StoreError,
    TurnFailed,
    WouldDeadlock,
    current_agent,
    tool,
)
from terzetto.agent import AgentRegistry, LoopDriver
from terzetto.llm.scripted import Hang, ScriptedModel, answer, call, say
from terzetto.session import replay
from terzetto.vocabulary import (
    AgentBusy,
    AgentDisposed,
    AgentExists,
    AssistantMessageEvent,
    CorruptLog,
    DuplicateName,
    EndSeed,
    Event,
    Extension,
    IllegalEvent,
    InboxSpliced,
    NoDriver,
    SessionExists,
    SessionHeader,
    SessionId,
    SessionLocked,
    SessionNotFound,
    StepStart,
    TurnStart,
    UsageError,
    UserMessage,
    texts,
)


def talking() -> ScriptedModel:
    return ScriptedModel(lambda request: "fine")


def announced(engine: Engine) -> list[str]:
    """Every announcement of a life, by name."""
    heard: list[str] = []
    hooks = engine.scope.hooks

    async def created(view: object) -> None:
        heard.append("agent created")

    hooks.session_created.listen(lambda v: heard.append("session created"))
    hooks.agent_created.listen(created)
    hooks.session_started.listen(lambda v: heard.append(f"session started {v.source}"))
    hooks.agent_disposed.listen(lambda v: heard.append("agent disposed"))
    hooks.session_disposed.listen(lambda v: heard.append("session disposed"))
    hooks.status.listen(lambda v: heard.append(v.status))
    return heard


# --- options --------------------------------------------------------------------------


BAD_OPTIONS: list[dict[str, Any]] = [
    {"provider": "scripted"},
    {"model": "m"},
    {"provider": "", "model": "m"},
    {"provider": "scripted", "model": ""},
    {**ROUTE, "effort": ""},
    {**ROUTE, "effort": 3},
    {**ROUTE, "max_tokens": 0},
    {**ROUTE, "max_tokens": -1},
    {**ROUTE, "max_tokens": 1.5},
    {**ROUTE, "max_tokens": True},
    {**ROUTE, "max_tokens": "10"},
    {**ROUTE, "cwd": "relative/path"},
    {**ROUTE, "session_id": "a/b"},
    {**ROUTE, "meta": {"x": float("nan")}},
    {**ROUTE, "resume": "a", "cwd": "/tmp"},
    {**ROUTE, "resume": "a", "session_id": "b"},
    {**ROUTE, "resume": "a", "meta": {}},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=repr)
def test_options_that_cannot_be_meant_are_refused_before_anything_happens(
    options: dict[str, Any],
) -> None:
    """C9 C10 C11 C8: nothing is created, nothing announced, the id stays free."""

    @played
    async def run() -> None:
        store = Faults()
        async with engine_on(talking(), store=store) as engine:
            heard = announced(engine)
            with pytest.raises(InvalidValue):
                async with engine.open_agent(**options):
                    pass
            assert heard == []
            assert engine.agents.list() == []
            assert await store.list() == []
            await engine.agents.create(**ROUTE, session_id="a")

    run()


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None])
def test_the_cap_of_parallel_calls_is_a_positive_integer(value: Any) -> None:
    """C12: refused when configured and when edited; the old value stays."""

    @played
    async def run() -> None:
        with pytest.raises(InvalidValue):
            async with engine_on(talking(), max_parallel_tool_calls=value):
                pass
        async with engine_on(talking()) as engine:
            with pytest.raises(InvalidValue):
                engine.settings.max_parallel_tool_calls = value
            assert engine.settings.max_parallel_tool_calls == 10

    run()


@played
async def test_an_edit_of_the_cap_applies_to_the_next_batch() -> None:
    """C12 C174: the batch in flight keeps the value it began with."""
    running: list[int] = []
    most: list[int] = []

    @tool(parallel=True)
    async def slow() -> str:
        """Slow."""
        running.append(1)
        most.append(len(running))
        engine.settings.max_parallel_tool_calls = 1
        await trio.sleep(1)
        running.pop()
        return ""

    batch = [call("slow", id=f"c{n}") for n in range(4)]
    async with (
        engine_on(
            ScriptedModel([answer(*batch), answer(*batch), "ok"]), [slow], max_parallel_tool_calls=3
        ) as engine,
        engine.open_agent(**ROUTE) as agent,
    ):
        await agent.ask("go")
    assert max(most[:4]) == 3
    assert max(most[4:]) == 1


@played
async def test_an_agent_without_a_route_fails_its_turn_before_assembly() -> None:
    """C9: no step, no assembly, no request; selecting one later works."""
    assembled: list[object] = []

    async def assemble(value: Any, proceed: Any) -> Any:
        assembled.append(value)
        return await proceed()

    model = talking()
    async with engine_on(model) as engine, engine.open_agent() as agent:
        engine.scope.hooks.assemble.listen(assemble)
        with pytest.raises(TurnFailed) as caught:
            await agent.ask("go")
        assert caught.value.code == texts.NO_ROUTE
        assert (assembled, model.attempts) == ([], 0)
        assert "StepStart" not in kinds(agent.session)
        agent.model.select("scripted", "m")
        assert (await agent.ask("go")).text == "fine"
        check(agent.session)


@played
async def test_the_workspace_is_stored_with_a_fresh_session() -> None:
    """C11: in the header, and there again on resume."""
    store = MemoryStore()
    async with engine_on(talking(), store=store) as engine:
        async with engine.open_agent(**ROUTE, session_id="a", cwd="/work", meta={"k": 1}) as agent:
            assert agent.session.header.cwd == "/work"
        async with engine.open_agent(resume="a") as agent:
            assert agent.session.header.cwd == "/work"
            assert dict(agent.session.header.meta) == {"k": 1}


# --- the driver slot --------------------------------------------------------------------


@played
async def test_without_a_driver_nothing_is_made() -> None:
    """C1: creation rejects before the store is asked; a second driver is refused."""
    store = Faults()
    async with engine_on(talking(), store=store) as engine:
        with pytest.raises(DuplicateName):
            engine.agents.register_driver(LoopDriver())
        registry = AgentRegistry()
        with pytest.raises(NoDriver):
            registry.driver()
        slot = registry.register_driver(LoopDriver())
        slot.remove()
        slot.remove()
        registry.register_driver(LoopDriver())


# --- order ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async", "plain with commit", "async with commit"])
def test_the_order_of_a_creation(kind: str) -> None:
    """C19 C20 C21 C26: store, session/created, setup, commit, registry, agent/created,
    session start, then the held input."""

    @played
    async def run() -> None:
        store = Faults()
        order: list[str] = []

        def note(name: str, agent: AgentView) -> None:
            listed = engine.agents.get("a") is agent
            order.append(f"{name}{' (listed)' if listed else ''}")

        def commit(agent: Agent) -> Callable[[], None]:
            return lambda: note("commit", agent)

        def plain(agent: Agent) -> Any:
            note("setup", agent)
            agent.followup("held")
            return commit(agent) if "commit" in kind else None

        async def later(agent: Agent) -> Any:
            note("setup", agent)
            agent.followup("held")
            await trio.sleep(1)
            return commit(agent) if "commit" in kind else None

        async def created(view: Any) -> None:
            note("created", view)
            await trio.sleep(1)
            order.append("created listener done")
            assert view.status == "idle"

        async def stored() -> None:
            order.append("stored")

        store.at["created"] = stored
        model = talking()
        async with engine_on(model, store=store) as engine:
            hooks = engine.scope.hooks
            hooks.session_created.listen(lambda session: order.append("session created"))
            hooks.agent_created.listen(created)
            hooks.session_started.listen(lambda v: note(f"started {v.source}", v.agent))
            hooks.status.listen(lambda v: order.append(v.status))
            setup = later if "async" in kind else plain
            async with engine.open_agent(**ROUTE, session_id="a", setup=setup) as agent:
                await agent.wait_idle()
                done = order.copy()
        commits = ["commit"] if "commit" in kind else []
        assert done == [
            "stored",
            "session created",
            "setup",
            *commits,
            "created (listed)",
            "created listener done",
            "started startup (listed)",
            "running",
            "idle",
        ]
        assert texts_of(agent.history())[-2:] == ["held", "fine"]

    run()


@played
async def test_setup_composes_before_anybody_sees_the_agent() -> None:
    """C20 C19: what setup registers is there for agent/created and for the first assembly; the
    session is writable, live, and stored (C22)."""
    store = MemoryStore()
    seen: list[Event] = []
    heard: list[str] = []

    @tool
    async def special() -> str:
        """Special."""
        return ""

    async def own_listener(view: object) -> None:
        heard.append("own created listener")

    def setup(agent: Agent) -> None:
        agent.scope.add_tool(special)
        agent.scope.add_section("s", "Be special.")
        agent.scope.hooks.agent_created.listen(own_listener)
        agent.session.observe(seen.append)
        agent.session.record("mine/composed", {"x": 1}, ignorable=True)

    model = talking()
    async with engine_on(model, store=store) as engine:
        async with engine.open_agent(**ROUTE, session_id="a", setup=setup) as agent:
            assert heard == ["own created listener"]
            await agent.ask("go")
        assert isinstance(seen[0].data, Extension)
        assert "special" in [t.name for t in model.requests[0].tools]
        assert "Be special." in texts_of(model.requests[0].messages)
    _, events = await store.read("a")
    assert isinstance(events[0].data, Extension)


@pytest.mark.parametrize("when", ["setup", "created", "session started"])
@pytest.mark.parametrize("how", ["followup", "steer", "inject"])
def test_input_during_creation_is_held_and_runs_afterwards(when: str, how: str) -> None:
    """C18 C19: nothing runs before the created listeners are done; an injection wakes nobody."""

    @played
    async def run() -> None:
        async def setup(agent: Agent) -> None:
            agents.append(agent)
            if when == "setup":
                getattr(agent, how)("early")
            await settled()
            assert agent.status == "idle"
            with pytest.raises(AgentBusy):
                await agent.run_maintenance(trio.sleep, 0)

        async def created(view: Any) -> None:
            if when == "created":
                getattr(view, how)("early")
            await settled()
            assert view.status == "idle"
            assert not model.requests

        def started(value: Any) -> None:
            if when == "session started":
                getattr(value.agent, how)("early")
            assert value.agent.status == "idle"

        agents: list[Agent] = []
        model = talking()
        async with engine_on(model) as engine:
            engine.scope.hooks.agent_created.listen(created)
            engine.scope.hooks.session_started.listen(started)
            async with engine.open_agent(**ROUTE, setup=setup) as agent:
                assert agents == [agent]
                await agent.wait_idle()
                if how == "inject":
                    assert pending(agent) == ["early"]
                    assert "TurnStart" not in kinds(agent.session)
                else:
                    assert texts_of(agent.history())[-2:] == ["early", "fine"]
                    assert ending_kinds(agent.session) == ["Completed"]

    run()


@pytest.mark.parametrize("keep_inbox", [True, False])
def test_a_cancel_during_creation_acts_on_held_input(keep_inbox: bool) -> None:
    """C126 C18: it clears what is held, or keeps it, and arms nothing later."""

    @played
    async def run() -> None:
        def setup(agent: Agent) -> None:
            agent.followup("early")
            agent.cancel(keep_inbox=keep_inbox)

        async with engine_on(talking()) as engine:
            async with engine.open_agent(**ROUTE, setup=setup) as agent:
                await agent.wait_idle()
                assert ending_kinds(agent.session) == (["Completed"] if keep_inbox else [])
                assert (await agent.ask("later")).reason == "completed"

    run()


@pytest.mark.parametrize("where", ["setup", "created"])
@pytest.mark.parametrize("what", ["ask", "wait_idle"])
def test_waiting_for_the_agent_inside_its_own_creation_is_refused(where: str, what: str) -> None:
    """DESIGN 1: wait_idle and ask "from inside its own ... hooks" raise WouldDeadlock at once;
    C20: driving the agent is allowed only after creation resolves."""

    @played
    async def run() -> None:
        raised: list[str] = []

        async def wait(agent: Any) -> None:
            if what == "wait_idle":
                agent.followup("x")
            try:
                await (agent.ask("x") if what == "ask" else agent.wait_idle())
            except WouldDeadlock:
                raised.append(where)

        async def setup(agent: Agent) -> None:
            if where == "setup":
                await wait(agent)

        async def created(view: Any) -> None:
            if where == "created":
                await wait(view)

        async with engine_on(talking()) as engine:
            engine.scope.hooks.agent_created.listen(created)
            async with engine.open_agent(**ROUTE, setup=setup):
                pass
        assert raised == [where]

    run()


# --- rollback -------------------------------------------------------------------------


STAGES = ["create", "created", "setup", "async setup", "commit", "agent created", "2nd listener"]
HEARD = {
    "create": [],
    "created": [],
    "setup": ["session created", "session disposed"],
    "async setup": ["session created", "session disposed"],
    "commit": ["session created", "session disposed"],
    "agent created": [
        "session created",
        "agent created",
        "agent disposed",
        "session disposed",
    ],
    "2nd listener": [
        "session created",
        "agent created",
        "agent disposed",
        "session disposed",
    ],
}


class Staged:
    """Something to do at one stage of a creation."""

    def __init__(self, engine: Engine, store: Faults, stage: str, act: Any) -> None:
        self.stage = stage
        self.act = act
        self.agents: list[Agent] = []
        self.sessions: list[Session] = []
        if stage in ("create", "created"):
            store.at[stage] = act
        engine.scope.hooks.session_created.listen(self.sessions.append)
        engine.scope.hooks.agent_created.listen(self.created)

    def setup(self, agent: Agent) -> Any:
        self.agents.append(agent)
        agent.followup("held")
        if self.stage == "setup":
            self.plain()
        if self.stage == "async setup":
            return self.act()
        return self.plain if self.stage == "commit" else None

    def plain(self) -> None:
        raise KeyError("mine")

    async def created(self, view: object) -> None:
        if self.stage in ("agent created", "2nd listener"):
            await self.act()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("resumed", [False, True], ids=["create", "resume"])
def test_a_failure_at_every_stage_rolls_everything_back(stage: str, resumed: bool) -> None:
    """C23 C24 C36: the error arrives after entry, scope and handle are gone; what was announced
    is announced as disposed; the same id can be opened at once."""

    @played
    async def run() -> None:
        store = Faults()
        async with engine_on(talking(), store=store) as engine:
            before = tasks()
            if resumed:
                async with engine.open_agent(**ROUTE, session_id="a") as agent:
                    await agent.ask("first")
                    await agent.ask("second")

            async def fail() -> None:
                await trio.lowlevel.checkpoint()
                raise KeyError("mine")

            heard = announced(engine)
            point = {"create": "open", "created": "opened"}.get(stage, stage) if resumed else stage
            staged = Staged(engine, store, stage, fail)
            if point in ("open", "opened"):
                store.at[point] = fail
            with pytest.raises(KeyError):
                if resumed:
                    await engine.agents.resume("a", setup=staged.setup)
                else:
                    await engine.agents.create(**ROUTE, session_id="a", setup=staged.setup)
            store.at.clear()
            assert heard == HEARD[stage]
            assert engine.agents.list() == []
            for agent in staged.agents:
                assert agent.scope.closed
                assert agent.disposed
                assert agent.status == "idle"
                assert not agent.session.attached
                assert pending(agent) == ["held"], "stored events stay"
            assert tasks() == before
            staged.stage = "none"
            assert not await _locked(store, "a")
            async with _open_again(engine, store, "a") as again:
                assert (await again.ask("now?")).text == "fine"
        assert engine.unsaved == {}

    run()


async def _locked(store: Faults, session_id: str) -> bool:
    if session_id not in {header.id for header in await store.list()}:
        return False
    return store.owned(session_id)


def _open_again(engine: Engine, store: Faults, session_id: str) -> Any:
    exists = session_id in store.inner._sessions
    if exists:
        return engine.open_agent(**ROUTE, resume=session_id)
    return engine.open_agent(**ROUTE, session_id=session_id)


def _checkpoints_of_a_creation() -> int:
    """How many task steps a creation takes, by running one to its end."""
    counted: list[int] = []

    async def run() -> None:
        async with engine_on(talking(), store=Faults()) as engine:

            async def setup(agent: Agent) -> None:
                await trio.lowlevel.checkpoint()

            async def created(view: object) -> None:
                await trio.lowlevel.checkpoint()

            engine.scope.hooks.agent_created.listen(created)
            counter = Counter()
            trio.lowlevel.add_instrument(counter)
            await engine.agents.create(**ROUTE, session_id="a", setup=setup)
            trio.lowlevel.remove_instrument(counter)
            counted.append(counter.steps)

    play(run)
    return counted[0]


class Counter(trio.abc.Instrument):
    def __init__(self, at: int = -1, act: Callable[[], None] | None = None) -> None:
        self.steps = 0
        self.at = at
        self.act = act

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.steps == self.at and self.act is not None:
            self.act()
        self.steps += 1


@pytest.mark.parametrize("at", range(_checkpoints_of_a_creation() + 2))
@pytest.mark.parametrize("slow", [False, True], ids=["quick store", "slow store"])
def test_a_creation_cancelled_at_every_checkpoint_leaves_nothing(at: int, slow: bool) -> None:
    """C23 C25 C24: cancelled wherever it waits, it rolls back whole, or hands over an agent that
    runs; the session can be opened again; announcements come in pairs."""

    @played
    async def run() -> None:
        store = Faults()
        if slow:

            async def wait() -> None:
                for _ in range(2):
                    await trio.lowlevel.checkpoint()

            store.at.update(create=wait, created=wait, close=wait)
        async with engine_on(talking(), store=store) as engine:
            before = tasks()
            heard = announced(engine)

            async def setup(agent: Agent) -> None:
                agent.inject("kept")
                await trio.lowlevel.checkpoint()

            async def created(view: object) -> None:
                await trio.lowlevel.checkpoint()

            engine.scope.hooks.agent_created.listen(created)
            handle = None
            with trio.CancelScope() as scope:
                counter = Counter(at, scope.cancel)
                trio.lowlevel.add_instrument(counter)
                try:
                    handle = await engine.agents.create(**ROUTE, session_id="a", setup=setup)
                finally:
                    trio.lowlevel.remove_instrument(counter)
            if handle is None:
                assert scope.cancelled_caught
                assert engine.agents.list() == []
                await settled()  # it may reject early; the late handle is closed all the same
                assert tasks() == before
                assert not await _locked(store, "a")
            else:
                assert engine.agents.list() == [handle.agent]
                assert (await handle.agent.ask("do you run?")).text == "fine"
                await handle.dispose()
            for begun, ended in (
                ("session created", "session disposed"),
                ("agent created", "agent disposed"),
            ):
                assert heard.count(begun) == heard.count(ended) <= 1
            async with _open_again(engine, store, "a"):
                pass
        assert engine.unsaved == {}

    run()


@pytest.mark.parametrize("resumed", [False, True], ids=["create", "resume"])
def test_a_slow_store_under_cancellation_leaks_no_handle(resumed: bool) -> None:
    """C25: rejecting early or late, the handle that comes is closed when creation settles."""

    @played
    async def run() -> None:
        store = Faults()
        async with engine_on(talking(), store=store) as engine:
            heard = announced(engine)
            if resumed:
                async with engine.open_agent(**ROUTE, session_id="a"):
                    pass
                heard.clear()

            async def slow() -> None:
                await trio.sleep(10)

            store.at.update(created=slow, opened=slow, read=slow)
            with trio.move_on_after(1) as scope:
                if resumed:
                    await engine.agents.resume("a")
                else:
                    await engine.agents.create(**ROUTE, session_id="a")
            assert scope.cancelled_caught
            await trio.sleep(100)
            assert heard == []
            assert not store.owned("a")
            assert engine.agents.list() == []
            store.at.clear()
            async with engine.open_agent(**ROUTE, resume="a"):
                pass

    run()


@pytest.mark.parametrize("point", ["create", "created"])
def test_a_store_that_never_answers_does_not_outlast_the_hosts_cancel(point: str) -> None:
    """C176 and STYLE 8 "shielded *and* bounded": a deadline over a creation whose store hangs
    must come through, within the engine's own bound."""

    @played
    async def run() -> None:
        store = Faults()
        store.at[point] = trio.sleep_forever
        start = trio.current_time()
        with trio.move_on_after(10) as scope:
            async with engine_on(talking(), store=store, shutdown_timeout=3) as engine:
                async with engine.open_agent(**ROUTE, session_id="a"):
                    pass
        assert scope.cancelled_caught
        assert trio.current_time() - start <= 10 + 3

    run()


@pytest.mark.parametrize("trouble", ["hangs", "raises StoreError", "raises a defect"])
@pytest.mark.parametrize("resumed", [False, True], ids=["create", "resume"])
def test_a_late_handle_whose_close_is_in_trouble_harms_nobody(
    trouble: str, resumed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """C25 and DESIGN 4: nobody waits for the late handle any more, so its trouble is logged; the
    engine goes on, and its end is bounded."""

    async def run() -> None:
        store = Faults()

        async def slow() -> None:
            await trio.sleep(1)

        async def close() -> None:
            if trouble == "hangs":
                await trio.sleep_forever()
            raise StoreError("disk full") if "Store" in trouble else RuntimeError("defect")

        with trio.CancelScope() as whole:
            async with engine_on(talking(), store=store, shutdown_timeout=3) as engine:
                if resumed:
                    async with engine.open_agent(**ROUTE, session_id="a"):
                        pass
                store.at.update(created=slow, opened=slow, close=close)
                with trio.move_on_after(0.5) as scope:
                    if resumed:
                        await engine.agents.resume("a")
                    else:
                        await engine.agents.create(**ROUTE, session_id="a")
                assert scope.cancelled_caught
                await trio.sleep(10)
                store.at.clear()
                other = (await engine.agents.create(**ROUTE, session_id="b")).agent
                assert (await other.ask("x")).text == "fine"
                start = trio.current_time()
        assert trio.current_time() - start <= 3.1
        assert not whole.cancelled_caught

    played(run)()


@pytest.mark.parametrize("resumed", [False, True], ids=["create", "resume"])
def test_a_caller_whose_store_is_struck_is_told(resumed: bool) -> None:
    """C23: whatever the store raises, also what is no `Exception`, comes out of the creation."""

    @played
    async def run() -> None:
        class Odd(BaseException):
            pass

        async def odd() -> None:
            raise Odd

        store = Faults()
        with pytest.raises((Odd, BaseExceptionGroup)):
            async with engine_on(talking(), store=store) as engine:
                if resumed:
                    async with engine.open_agent(**ROUTE, session_id="a"):
                        pass
                store.at.update(create=odd, open=odd)
                with trio.fail_after(1):
                    if resumed:
                        await engine.agents.resume("a")
                    else:
                        await engine.agents.create(**ROUTE, session_id="a")

    run()


# --- seeds ------------------------------------------------------------------------------


async def _a_log(*texts: str) -> list[Event]:
    async with engine_on(talking()) as engine, engine.open_agent(**ROUTE) as agent:
        for text in texts:
            await agent.ask(text)
        return whole(agent.session)


@played
async def test_a_seed_is_stored_before_the_session_is_announced() -> None:
    """C17 C19 C22 C143: constructor history and its marker come first and are stored."""
    store = Faults()
    events = await _a_log("one", "two")
    at_announcement: list[int] = []
    async with engine_on(talking(), store=store) as engine:
        engine.scope.hooks.session_created.listen(lambda s: at_announcement.append(len(s.events)))
        async with engine.open_agent(**ROUTE, session_id="a", seed=events) as agent:
            assert at_announcement == [len(events) + 1]
            assert isinstance(agent.session.events[len(events)].data, EndSeed)
            turn = await agent.ask("three")
            assert turn.number == 3
        assert store.stored("a") == whole(agent.session)
        check(agent.session)


@played
async def test_the_pending_input_of_a_seed_stays_behind() -> None:
    """C58 C17: the inbox is rebuilt after the seed boundary."""
    async with engine_on(talking()) as engine, engine.open_agent(**ROUTE) as agent:
        agent.inject("of the other")
        events = whole(agent.session)
    async with engine_on(talking()) as engine, engine.open_agent(**ROUTE, seed=events) as fork:
        assert pending(fork) == []


@pytest.mark.parametrize("fault", ["open turn", "gap", "not from the start"])
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "memory"])
def test_a_seed_that_cannot_stand_leaves_no_session_locked(fault: str, stored: bool) -> None:
    """C23: a creation that fails on its seed releases the handle it acquired: the id is not left
    behind locked, for ever, by nobody."""

    @played
    async def run() -> None:
        store = Faults() if stored else None
        events = await _a_log("one", "two")
        opened = next(e.seq for e in events if isinstance(e.data, StepStart))
        seed = {
            "open turn": events[: opened + 1],
            "gap": events[:2] + events[3:],
            "not from the start": events[3:],
        }[fault]
        async with engine_on(talking(), store=store) as engine:
            heard = announced(engine)
            with pytest.raises((IllegalEvent, UsageError)):
                await engine.agents.create(**ROUTE, session_id="a", seed=seed)
            assert heard == []
            assert engine.agents.list() == []
            if store is not None:
                assert not await _locked(store, "a")
                async with _open_again(engine, store, "a"):
                    pass

    run()


# --- resume -----------------------------------------------------------------------------


async def _stored(store: Faults, session_id: str = "a") -> list[Event]:
    async with engine_on(talking(), store=store) as engine:
        async with engine.open_agent(**ROUTE, session_id=session_id) as agent:
            await agent.ask("one")
            await agent.ask("two")
        return whole(agent.session)


@played
async def test_resume_rebuilds_the_agent_and_starts_nothing() -> None:
    """C16 C26 C144 C150: same history, same route, source `resume`, idle until woken."""
    store = Faults()
    events = await _stored(store)
    model = talking()
    async with engine_on(model, store=store) as engine:
        heard = announced(engine)
        async with engine.open_agent(resume="a") as agent:
            assert heard == ["session created", "agent created", "session started resume"]
            assert whole(agent.session)[: len(events)] == events
            assert isinstance(agent.session.events[len(events)].data, EndSeed)
            assert len(agent.session.events) == len(events) + 1
            await settled()
            assert model.attempts == 0
            turn = await agent.ask("three")
            assert turn.number == 3
            assert model.requests[0].config.model == "m"
        async with engine.open_agent(resume="a", provider="other", model="n") as agent:
            current = agent.model.current()
            assert current is not None
            assert (current.provider, current.model) == ("scripted", "m"), "saved history wins"


@played
async def test_resume_without_a_store_is_refused() -> None:
    """C16: it rejects when persistence is not configured."""
    async with engine_on(talking()) as engine:
        with pytest.raises(UsageError):
            await engine.agents.resume("a")
        await engine.agents.create(**ROUTE, session_id="a")


@played
async def test_a_session_that_is_not_there_leaves_the_id_free() -> None:
    """C8 C16: SessionNotFound; nothing is created silently."""
    store = Faults()
    async with engine_on(talking(), store=store) as engine:
        heard = announced(engine)
        with pytest.raises(SessionNotFound):
            await engine.agents.resume("a")
        assert heard == []
        assert await store.list() == []
        async with engine.open_agent(**ROUTE, session_id="a") as agent:
            assert (await agent.ask("x")).text == "fine"


@played
async def test_a_session_that_exists_is_not_created_again() -> None:
    """C143 C7: SessionExists; the stored one is untouched and free."""
    store = Faults()
    events = await _stored(store)
    async with engine_on(talking(), store=store) as engine:
        with pytest.raises(SessionExists):
            await engine.agents.create(**ROUTE, session_id="a")
        assert store.stored("a") == events
        async with engine.open_agent(resume="a"):
            pass


@played
async def test_a_locked_session_is_refused_and_free_later() -> None:
    """C144: exclusive among engines on one store."""
    store = Faults()
    await _stored(store)
    other = await store.inner.open("a")
    async with engine_on(talking(), store=store) as engine:
        heard = announced(engine)
        with pytest.raises(SessionLocked):
            await engine.agents.resume("a")
        assert heard == []
        await other.close()
        async with engine.open_agent(resume="a"):
            pass


@pytest.mark.parametrize(
    "fault", ["read fails", "unknown extension", "illegal order", "impossible splice"]
)
def test_a_log_that_cannot_be_read_leaves_the_id_free_and_the_lock_open(fault: str) -> None:
    """C23 C58 C144: the error comes out after the handle is closed; nothing was announced."""

    @played
    async def run() -> None:
        store = Faults()
        events = await _stored(store)
        stored = store.inner._sessions["a"].held.tail
        last = events[-1]
        if fault == "unknown extension":
            stored.append(Event(last.seq + 1, last.time_ms, Extension("theirs/thing", {})))
        elif fault == "illegal order":
            stored.append(Event(last.seq + 1, last.time_ms, TurnStart(17)))
        elif fault == "impossible splice":
            stored.append(Event(last.seq + 1, last.time_ms, InboxSpliced("next-turn", 5, 2)))
        else:

            async def fail() -> None:
                raise StoreError("bad sector")

            store.at["read"] = fail
        async with engine_on(talking(), store=store) as engine:
            heard = announced(engine)
            for _ in range(2):
                with pytest.raises((CorruptLog, IllegalEvent, StoreError)) as caught:
                    await engine.agents.resume("a")
                assert not isinstance(caught.value, (SessionLocked, AgentExists))
                if fault in ("illegal order", "impossible splice"):
                    assert str(last.seq + 1) in str(caught.value), "it names the position"
                assert heard == []
                assert engine.agents.list() == []
                assert not store.owned("a")
            del stored[len(events) :]
            store.at.clear()
            async with engine.open_agent(resume="a") as agent:
                assert (await agent.ask("three")).number == 3

    run()


async def test_damage_in_a_file_is_refused_with_its_position(tmp_path: Any) -> None:
    """C23 C148: a real file with damage before its end: CorruptLog, and the lock is free."""
    store = JsonlStore(tmp_path)
    async with engine_on(talking(), store=store) as engine:
        async with engine.open_agent(**ROUTE, session_id="a") as agent:
            await agent.ask("one")
        (path,) = [
            p for p in tmp_path.rglob("*") if p.is_file() and b"turn/start" in p.read_bytes()
        ]
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b'"turn/start"', b'"turn/xxxxx"', 1))
        for _ in range(2):
            with pytest.raises(CorruptLog):
                await engine.agents.resume("a")
            assert engine.agents.list() == []
        path.write_bytes(whole)
        async with engine.open_agent(resume="a") as agent:
            assert (await agent.ask("two")).number == 2


@played
async def test_a_crashed_log_is_repaired_before_anyone_sees_it() -> None:
    """C145 C19: closers are an ordinary batch, in the log before session/created."""
    store = Faults()
    events = await _stored(store)
    cut = next(e.seq for e in reversed(events) if isinstance(e.data, AssistantMessageEvent))
    stored = store.inner._sessions["a"].held.tail
    del stored[cut:]
    seen: list[list[str]] = []
    async with engine_on(talking(), store=store) as engine:
        engine.scope.hooks.session_created.listen(lambda s: seen.append(kinds(s)))
        async with engine.open_agent(resume="a") as agent:
            assert seen[0][-4:] == ["AssistantMessageEvent", "StepEnd", "TurnEnd", "EndSeed"]
            check(agent.session)
            assert (await agent.ask("three")).number == 3
        assert store.stored("a") == whole(agent.session)


@pytest.mark.parametrize("stage", ["setup", "agent created"])
def test_a_failed_resume_keeps_restored_input(stage: str) -> None:
    """C23: "failed initialization preserves restored inbox input and any events stored"."""

    @played
    async def run() -> None:
        store = Faults()
        async with engine_on(talking(), store=store) as engine:
            handle = await engine.agents.create(**ROUTE, session_id="a")
            handle.agent.inject("restored")
        async with engine_on(talking(), store=store) as engine:

            async def fail() -> None:
                raise KeyError("mine")

            staged = Staged(engine, store, stage, fail)
            with pytest.raises(KeyError):
                await engine.agents.resume("a", setup=staged.setup)
        async with engine_on(talking(), store=store) as engine:
            async with engine.open_agent(resume="a", **ROUTE) as agent:
                assert pending(agent) == ["restored", "held"]

    run()


# --- two at once ------------------------------------------------------------------------


@played
async def test_the_second_of_two_creations_of_one_id_is_refused() -> None:
    """C30 C33: the id is reserved from the start of the first creation."""
    store = Faults()
    gate = trio.Event()
    store.at["create"] = gate.wait
    async with engine_on(talking(), store=store) as engine, trio.open_nursery() as nursery:
        made: list[Agent] = []

        async def create() -> None:
            made.append((await engine.agents.create(**ROUTE, session_id="a")).agent)

        nursery.start_soon(create)
        await settled()
        with pytest.raises(AgentExists):
            await engine.agents.create(**ROUTE, session_id="a")
        gate.set()
        await settled()
        assert engine.agents.list() == made


@pytest.mark.parametrize("stage", ["created", "async setup", "agent created"])
def test_an_engine_that_is_left_during_a_creation_takes_it_along(stage: str) -> None:
    """C23 C35 C173: owner disposal rolls the creation of another task back, with an error that
    says so; no agent, no handle and no task of the engine is left."""

    @played
    async def run() -> None:
        store = Faults()
        before = tasks()
        gate = trio.Event()
        errors: list[BaseException] = []

        async def create(engine: Engine, setup: Any) -> None:
            try:
                await engine.agents.create(**ROUTE, session_id="a", setup=setup)
            except Exception as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            async with engine_on(talking(), store=store) as engine:
                heard = announced(engine)
                staged = Staged(engine, store, stage, gate.wait)
                nursery.start_soon(create, engine, staged.setup)
                await settled()
            gate.set()
        assert tasks() == before
        assert engine.agents.list() == []
        assert not store.owned("a")
        assert heard.count("session created") == heard.count("session disposed")
        assert heard.count("agent created") == heard.count("agent disposed")
        assert [isinstance(error, UsageError) for error in errors] == [True], errors

    run()


@played
async def test_others_may_wait_while_an_agent_is_being_created() -> None:
    """C66 and DESIGN 1: WouldDeadlock is for who waits from inside; a task that has nothing to do
    with the creation waits, and gets what it waited for."""
    gate = trio.Event()
    async with engine_on(talking()) as engine, trio.open_nursery() as nursery:
        done: list[str] = []

        async def created(view: Any) -> None:
            await gate.wait()

        def setup(agent: Agent) -> None:
            agent.followup("held")

        async def create() -> None:
            await engine.agents.create(**ROUTE, session_id="a", setup=setup)

        async def wait_engine() -> None:
            await engine.wait_idle()
            done.append("engine")

        async def wait_agent() -> None:
            agent = engine.agents.get("a")
            assert agent is not None
            await agent.wait_idle()
            done.append("agent")

        async def ask() -> None:
            agent = engine.agents.get("a")
            assert agent is not None
            done.append((await agent.ask("asked")).text)

        engine.scope.hooks.agent_created.listen(created)
        nursery.start_soon(create)
        await settled()
        for waiter in (wait_engine, wait_agent, ask):
            nursery.start_soon(waiter)
        await settled()
        assert done == []
        gate.set()
    assert sorted(done) == ["agent", "engine", "fine"]


@played
async def test_an_engine_that_is_left_during_a_tools_creation_ends_the_tool_as_aborted() -> None:
    """DESIGN 4 and 6.5: leaving stops the turn first: its tool is not told of an error that the
    model could act on, and no further request is sent."""
    store = Faults()

    async def slow() -> None:
        await trio.sleep(2)

    @tool
    async def delegate() -> str:
        """Delegate."""
        await engine.agents.create(**ROUTE, session_id="c")
        return "made"

    model = ScriptedModel([call("delegate", id="d"), "after", "after"])
    async with engine_on(model, [delegate], store=store) as engine:
        agent = (await engine.agents.create(**ROUTE, session_id="p")).agent
        store.at["create"] = slow
        agent.followup("go")
        await settled()
    assert model.attempts == 1
    assert codes(agent.session) == {"d": texts.ABORTED}
    assert ending_kinds(agent.session) == ["Aborted DisposedCause"]
    check(agent.session)


# --- what is said of failures -------------------------------------------------------------


@pytest.mark.parametrize("error", [StoreError("disk full"), RuntimeError("defect")], ids=repr)
def test_a_rollback_whose_close_fails_still_ends_with_the_first_error(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """C23: the error of the stage arrives, the entry and the announcements are undone; the
    store's own trouble is reported."""

    async def run() -> None:
        store = Faults()

        async def fail() -> None:
            raise error

        store.at["close"] = fail
        with pytest.raises((StoreError, type(error))):
            async with engine_on(talking(), store=store) as engine:
                heard = announced(engine)

                def setup(agent: Agent) -> None:
                    agent.inject("not durable")
                    raise KeyError("mine")

                with pytest.raises(KeyError):
                    await engine.agents.create(**ROUTE, session_id="a", setup=setup)
                assert heard == ["session created", "session disposed"]
                assert set(engine.unsaved) == {"a"}
                engine.agents.reserve(SessionId("a"))
        assert [r for r in caplog.records if r.levelno >= logging.ERROR]

    played(run)()


@played
async def test_a_listener_of_the_end_that_fails_is_contained() -> None:
    """C36: disposal listeners' failures are contained, the others still hear."""
    heard: list[str] = []

    def fail(value: object) -> None:
        raise KeyError("mine")

    async with engine_on(talking()) as engine:
        hooks = engine.scope.hooks
        for hook in (hooks.session_created, hooks.agent_disposed, hooks.session_disposed):
            hook.listen(fail)
        hooks.agent_disposed.listen(lambda v: heard.append("agent"))
        hooks.session_disposed.listen(lambda v: heard.append("session"))
        async with engine.open_agent(**ROUTE, session_id="a"):
            pass
        assert engine.agents.get("a") is None
    assert heard == ["agent", "session"]


@played
async def test_a_parent_that_goes_while_the_store_creates_takes_the_child_along() -> None:
    """C23 C25: it is never composed nor announced, and its handle is closed."""
    store, heard = Faults(), list[str]()
    begun, go_on = trio.Event(), trio.Event()

    async def wait() -> None:
        begun.set()
        await go_on.wait()

    async def create(engine: Engine, parent: Agent) -> None:
        with pytest.raises(AgentDisposed):
            await engine.agents.create(
                **ROUTE, session_id="child", parent=parent, setup=lambda agent: heard.append("set")
            )

    async with engine_on(talking(), store=store) as engine, trio.open_nursery() as nursery:
        parent = await engine.agents.create(**ROUTE, session_id="parent")
        engine.scope.hooks.session_created.listen(lambda session: heard.append(session.id))
        store.at["create"] = wait
        nursery.start_soon(create, engine, parent.agent)
        await begun.wait()
        await parent.dispose()
        go_on.set()
        await settled()
        assert heard == []
        assert not store.owned("child")
        assert engine.agents.get("child") is None


@played
async def test_creations_by_agents_see_their_causal_parent() -> None:
    """C46: in setup the initiator is who causes the creation, at top level nobody."""
    seen: list[object] = []
    async with engine_on(talking()) as engine:
        await engine.agents.create(**ROUTE, setup=lambda agent: seen.append(current_agent()))
    assert seen == [None]


@played
async def test_the_inbox_is_there_before_the_agent_runs_and_one_driver_has_the_session() -> None:
    """C2 C3: readable in setup; an open turn is replayed as one; no second agent on the session."""
    seen: list[int] = []
    store = Faults()
    model = ScriptedModel(lambda request: answer(say("x"), Hang()))

    def setup(agent: Agent) -> None:
        seen.append(len(agent.inbox))

    async with engine_on(model, store=store) as engine:
        handle = await engine.agents.create(**ROUTE, session_id="a", setup=setup)
        handle.agent.followup("x")
        await settled()
        again = Session(SessionHeader(id=SessionId("x"), created_ms=0), now_ms=lambda: 0)
        replay(again, whole(handle.agent.session))
        assert again.place.open_turn == 1
        with pytest.raises(AgentExists):
            await engine.agents.resume("a")
    assert seen == [0]


@played
async def test_the_message_of_a_string_is_from_the_user() -> None:
    """C59: one source per message; an object keeps its own id."""
    async with engine_on(talking()) as engine, engine.open_agent(**ROUTE) as agent:
        message = UserMessage("mine")
        assert agent.inject(message) == message.id
        assert agent.inbox.next_step == (message,)
