"""Who owns what, and in which order it ends: agents, engines, children, stores."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import pytest
import trio
import trio.testing
from tests.agent.kit import (
    ROUTE,
    Faults,
    check,
    codes,
    discarded,
    ending_kinds,
    endings,
    engine_on,
    kinds,
    pending,
    played,
    settled,
    sigint,
    tasks,
    texts_of,
)
from tests.whole import whole

from terzetto import (
    Agent,
    AgentDisposed,
    Engine,
    Event,
    InvalidValue,
    MemoryStore,
    MessageDiscarded,
    Session,
    StoreError,
    ToolRun,
    UserMessage,
    WouldDeadlock,
    current_agent,
    tool,
)
from terzetto.agent import Driven, LoopDriver
from terzetto.agent._initiator import initiated_by, require_agent
from terzetto.llm.scripted import Delay, Gate, Hang, ScriptedModel, answer, call, say
from terzetto.vocabulary import (
    Aborted,
    AgentExists,
    DisposedCause,
    ParentCause,
    ScopeClosed,
    SessionLocked,
    UsageError,
)


def hanging(text: str = "I am ") -> ScriptedModel:
    """A model that says *text* and then nothing more."""
    return ScriptedModel(lambda request: answer(say(text), Hang()))


def talking() -> ScriptedModel:
    return ScriptedModel(lambda request: "fine")


def announcements(engine: Engine) -> list[str]:
    """What the engine's listeners hear of status and of the ends of agents and sessions."""
    heard: list[str] = []
    hooks = engine.scope.hooks
    hooks.status.listen(lambda v: heard.append(f"{v.agent.id} {v.status}"))
    hooks.agent_disposed.listen(lambda v: heard.append(f"{v.id} agent disposed"))
    hooks.session_disposed.listen(lambda v: heard.append(f"{v.id} session disposed"))
    return heard


# --- order ----------------------------------------------------------------------------


@played
async def test_teardown_goes_from_the_inside_to_the_outside() -> None:
    """C27: driver, scope, write path, agent, session; the id is free after all of it."""
    store = Faults()
    order: list[str] = []
    async with engine_on(hanging(), store=store) as engine:
        registry = engine.agents

        async def closing() -> None:
            assert ending_kinds(agent.session) == ["Aborted DisposedCause"], "the driver first"
            assert agent.scope.closed, "then the scope"
            assert registry.get("a") is agent, "and it is still listed"
            order.append("write path")

        def agent_gone(view: object) -> None:
            assert not store.owned("a"), "the handle is released before the announcement"
            assert registry.get("a") is None
            assert agent.session.attached, "the session is detached after the agent"
            order.append("agent")

        def session_gone(session: object) -> None:
            assert not agent.session.attached
            with pytest.raises(AgentExists):  # not yet: cleanup is in progress
                registry.reserve(agent.id)
            order.append("session")

        store.at["close"] = closing
        engine.scope.hooks.agent_disposed.listen(agent_gone)
        engine.scope.hooks.session_disposed.listen(session_gone)
        async with engine.open_agent(**ROUTE, session_id="a") as agent:
            agent.followup("go")
            await settled()
        assert order == ["write path", "agent", "session"]
        registry.reserve(agent.id)
        registry.release(agent.id)


@played
async def test_idle_is_announced_before_the_agents_end() -> None:
    """C27 and REFERENCE 2.28: idle, agent/disposed, session/disposed."""
    async with engine_on(hanging()) as engine:
        heard = announcements(engine)
        async with engine.open_agent(**ROUTE, session_id="a") as agent:
            agent.followup("go")
            await settled()
    assert heard == ["a running", "a idle", "a agent disposed", "a session disposed"]


@pytest.mark.parametrize(
    "way", ["disposed", "engine left", "host cancel", "host deadline", "KeyboardInterrupt", "crash"]
)
def test_a_disposed_agent_is_idle_whoever_ended_it(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C27 C161 and `wait_status`: "a disposed agent is idle", also after the host's stop; and
    who listens hears of it, before the agent's end."""
    agents: list[Agent] = []
    heard: list[str] = []

    class Crashing(LoopDriver):
        async def run(self, agent: Driven) -> None:
            await agent.state.wait(lambda: agent.state.activity is not None)
            raise ValueError("a defect")

    async def run() -> None:
        driver = Crashing() if way == "crash" else None
        with trio.CancelScope() as host:
            async with engine_on(hanging(), driver=driver) as engine:
                heard.append("")
                engine.scope.hooks.status.listen(lambda v: heard.append(v.status))
                engine.scope.hooks.agent_disposed.listen(lambda v: heard.append("disposed"))
                handle = await engine.agents.create(**ROUTE, session_id="a")
                agents.append(handle.agent)
                handle.agent.followup("go")
                await settled()
                if way == "disposed":
                    await handle.dispose()
                elif way == "host cancel":
                    host.cancel()
                elif way == "host deadline":
                    host.deadline = trio.current_time() + 1
                    await trio.sleep_forever()
                elif way == "KeyboardInterrupt":
                    sigint()
                    await trio.sleep_forever()

    if way == "KeyboardInterrupt":
        with pytest.raises(KeyboardInterrupt):
            played(run)()
    else:
        played(run)()
    (agent,) = agents
    assert agent.disposed
    assert agent.status == "idle"
    assert heard == ["", "running", "idle", "disposed"]


@played
async def test_no_task_is_left_after_an_agents_block_and_after_an_engines_block() -> None:
    """C173 and invariant 7: the count of living tasks is back at what it was, each time."""
    before = tasks()
    async with engine_on(hanging()) as engine:
        with_engine = tasks()
        assert with_engine == before, "an engine without agents needs no task"
        for _ in range(3):
            async with engine.open_agent(**ROUTE) as agent:
                agent.followup("go")
                await settled()
                assert tasks() > with_engine
            assert tasks() == with_engine
        handles = [await engine.agents.create(**ROUTE) for _ in range(3)]
        for handle in handles:
            handle.agent.followup("go")
        await settled()
    assert tasks() == before


@played
async def test_a_block_that_is_left_has_no_stream_and_no_body_alive() -> None:
    """C173 BC-04: streams are closed and bodies have ended when the block is left."""
    alive: list[str] = []

    @tool
    async def slow() -> str:
        """Slow."""
        alive.append("body")
        try:
            await trio.sleep_forever()
        finally:
            alive.remove("body")
        return ""

    model = ScriptedModel([answer(call("slow", id="c")), answer("never", Hang())])
    async with engine_on(model, [slow]) as engine:
        async with engine.open_agent(**ROUTE) as agent:
            agent.followup("go")
            await settled()
            assert alive == ["body"]
        assert alive == []
        async with engine.open_agent(**ROUTE) as agent:
            agent.followup("go")
            await settled()
            assert model.open_streams == 1
        assert model.open_streams == 0


# --- dispose --------------------------------------------------------------------------


@played
async def test_dispose_is_one_boundary_for_all_who_ask() -> None:
    """C28: concurrent and repeated calls await one teardown; it is announced once."""
    store = Faults()
    async with engine_on(hanging(), store=store) as engine:
        heard = announcements(engine)
        handle = await engine.agents.create(**ROUTE, session_id="a")
        handle.agent.followup("go")
        await settled()
        gate = trio.Event()
        store.at["close"] = gate.wait
        returned: list[int] = []

        async def dispose(index: int) -> None:
            await handle.dispose()
            assert engine.agents.get("a") is None
            assert not store.owned("a")
            returned.append(index)

        async with trio.open_nursery() as nursery:
            for index in range(3):
                nursery.start_soon(dispose, index)
            await settled()
            assert returned == []
            gate.set()
        assert sorted(returned) == [0, 1, 2]
        await handle.dispose()
        handle.begin_disposal()
    assert store.seen.count("close") == 1
    assert heard.count("a agent disposed") == heard.count("a session disposed") == 1
    assert ending_kinds(handle.agent.session) == ["Aborted DisposedCause"]


@played
async def test_a_cancelled_dispose_leaves_the_teardown_running() -> None:
    """C28: the teardown belongs to the agent, not to the caller."""
    store = Faults()
    async with engine_on(talking(), store=store) as engine:
        handle = await engine.agents.create(**ROUTE, session_id="a")
        gate = trio.Event()
        store.at["close"] = gate.wait
        with trio.move_on_after(1) as scope:
            await handle.dispose()
        assert scope.cancelled_caught
        assert store.owned("a")
        gate.set()
        await settled()
        assert handle.agent.disposed
        assert not store.owned("a")


@played
async def test_dispose_waits_for_a_tool_that_ignores_it() -> None:
    """C29: signal-ignoring bodies are waited for before the registry lets go."""

    @tool
    async def deaf(run: ToolRun) -> str:
        """Deaf."""
        with trio.CancelScope(shield=True):
            await release.wait()
        return "done all the same"

    release = trio.Event()
    async with engine_on(ScriptedModel([call("deaf", id="c")]), [deaf]) as engine:
        handle = await engine.agents.create(**ROUTE, session_id="a")
        handle.agent.followup("go")
        await settled()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handle.dispose)
            await settled()
            assert engine.agents.get("a") is handle.agent
            assert not handle.agent.disposed
            release.set()
        assert handle.agent.disposed
    session = handle.agent.session
    assert ending_kinds(session) == ["Aborted DisposedCause"]
    assert codes(session) == {"c": None}, "it returned, so its real result is kept"
    check(session)


@played
async def test_dispose_from_inside_is_refused_at_once() -> None:
    """DESIGN 1: `dispose` from the agent's own tools and hooks raises WouldDeadlock."""
    raised: list[str] = []

    @tool
    async def suicide() -> str:
        """Try."""
        try:
            await handle.dispose()
        except WouldDeadlock:
            raised.append("tool")
        return "alive"

    async def stopping(value: object) -> None:
        try:
            await handle.dispose()
        except WouldDeadlock:
            raised.append("hook")

    async with engine_on(ScriptedModel([call("suicide", id="c"), "ok"]), [suicide]) as engine:
        engine.scope.hooks.turn_stopping.listen(stopping)
        handle = await engine.agents.create(**ROUTE)
        turn = await handle.agent.ask("go")
    assert raised == ["tool", "hook"]
    assert turn.reason == "completed"


# --- identities -----------------------------------------------------------------------


@played
async def test_a_stale_handle_cannot_touch_the_next_agent_of_its_id() -> None:
    """C30: every detach is bound to the object that was entered."""
    async with engine_on(talking()) as engine:
        first = await engine.agents.create(**ROUTE, session_id="a")
        await first.dispose()
        second = await engine.agents.create(**ROUTE, session_id="a")
        first.begin_disposal()
        await first.dispose()
        engine.agents.detach(first.agent)
        first.agent.cancel()
        assert engine.agents.get("a") is second.agent
        assert (await second.agent.ask("still there?")).text == "fine"


@played
async def test_an_id_is_free_only_after_private_cleanup() -> None:
    """C27 C30: while the write path closes, the id is taken; afterwards it is free."""
    store = Faults()
    async with engine_on(talking(), store=store) as engine:
        handle = await engine.agents.create(**ROUTE, session_id="a")
        gate = trio.Event()
        store.at["close"] = gate.wait
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handle.dispose)
            await settled()
            for attempt in (engine.agents.create, engine.agents.resume):
                with pytest.raises(AgentExists):
                    await attempt(session_id="a", **ROUTE)
            gate.set()
        again = await engine.agents.resume("a")
        assert engine.agents.list() == [again.agent]


@played
async def test_registry_lists_are_fresh_and_in_registration_order() -> None:
    """C33 C34 C35: get, list, roots, is_owned_by; none of them gives the power to dispose."""
    async with engine_on(talking()) as engine:
        first = (await engine.agents.create(**ROUTE, session_id="z")).agent
        child = (await engine.agents.create(**ROUTE, session_id="c", parent=first)).agent
        last = (await engine.agents.create(**ROUTE, session_id="a")).agent
        agents = engine.agents.list()
        assert agents == [first, child, last]
        agents.clear()
        assert engine.agents.list() == [first, child, last]
        assert engine.agents.roots() == [first, last]
        assert engine.agents.is_owned_by("c", first)
        assert not engine.agents.is_owned_by("c", last)
        assert not engine.agents.is_owned_by("nobody", first)
        found = engine.agents.get("z")
        assert found is first
        assert not any(hasattr(found, name) for name in ("dispose", "begin_disposal", "aclose"))
        assert engine.agents.get("nobody") is None


@played
async def test_a_dead_child_is_owned_by_nobody() -> None:
    """C34: ownership is true only while the exact child entry is live."""
    async with engine_on(talking()) as engine:
        parent = (await engine.agents.create(**ROUTE, session_id="p")).agent
        child = await engine.agents.create(**ROUTE, session_id="c", parent=parent)
        await child.dispose()
        assert not engine.agents.is_owned_by("c", parent)
        await engine.agents.create(**ROUTE, session_id="c")
        assert not engine.agents.is_owned_by("c", parent)


# --- scopes and initiators ------------------------------------------------------------


@played
async def test_an_agents_scope_ends_with_it_and_takes_nothing_afterwards() -> None:
    """C37 C38 C31: registrations are unwound, later ones are refused, twice is once."""

    @tool
    async def mine() -> str:
        """Mine."""
        return ""

    async with engine_on(talking()) as engine:
        async with engine.open_agent(**ROUTE) as agent:
            await agent.ask("x")
            registration = agent.scope.add_tool(mine)
            section = agent.scope.add_section("s", "text")
            agent.scope.hooks.status.listen(lambda v: None)
        assert not registration.active
        assert not section.active
        agent.scope.close()
        registration.remove()
        for register in (
            lambda: agent.scope.add_tool(mine),
            lambda: agent.scope.restrict(deny=["x"]),
            lambda: agent.scope.guard(lambda call: None),
            lambda: agent.scope.add_section("t", "text"),
            lambda: agent.scope.set_variable("v", "text"),
            lambda: agent.scope.add_context("c", "text"),
            lambda: agent.scope.order_tools(["x"]),
            lambda: agent.scope.hooks.status.listen(lambda v: None),
        ):
            with pytest.raises(ScopeClosed):
                register()
        assert agent.session.events, "the log stays readable"
    with pytest.raises(ScopeClosed):
        engine.scope.add_section("t", "text")


@played
async def test_scoped_listeners_hear_their_own_agent_only() -> None:
    """C41 C42: unscoped listeners see all, scoped ones theirs."""
    async with engine_on(talking()) as engine:
        one = (await engine.agents.create(**ROUTE, session_id="one")).agent
        two = (await engine.agents.create(**ROUTE, session_id="two")).agent
        all_heard: list[str] = []
        one_heard: list[str] = []
        engine.scope.hooks.status.listen(lambda v: all_heard.append(v.agent.id))
        one.scope.hooks.status.listen(lambda v: one_heard.append(v.agent.id))
        await two.ask("x")
        assert (all_heard, one_heard) == (["two", "two"], [])
        await one.ask("x")
        assert one_heard == ["one", "one"]


@played
async def test_the_initiator_is_the_agent_in_all_that_its_driver_starts() -> None:
    """C43 C44 C45 C46: tools and hooks see it, the outside does not, blocks can hide it."""
    seen: dict[str, Agent | None] = {}

    @tool
    async def look() -> str:
        """Look."""
        seen["tool"] = current_agent()
        with initiated_by(None):
            seen["hidden"] = current_agent()

        def setup(child: Agent) -> None:
            seen["child's setup"] = current_agent()

        await engine.agents.create(**ROUTE, session_id="c", setup=setup, parent=agent)
        return ""

    async def hook(value: Any, proceed: Any) -> Any:
        seen[f"hook of {value.agent.id}"] = current_agent()
        return await proceed()

    async with engine_on(ScriptedModel([call("look"), "ok", "child ok"]), [look]) as engine:
        engine.scope.hooks.pre_step.listen(hook)
        agent = (await engine.agents.create(**ROUTE, session_id="p")).agent
        assert current_agent() is None
        with pytest.raises(UsageError):
            require_agent()
        await agent.ask("go")
        child = engine.agents.get("c")
        assert child is not None
        await child.ask("go")
    assert current_agent() is None
    assert seen == {
        "hook of p": agent,
        "tool": agent,
        "hidden": None,
        "child's setup": agent,
        "hook of c": child,
    }


# --- who waits, who sends -------------------------------------------------------------


@played
async def test_waiters_learn_how_it_ended() -> None:
    """DESIGN 4 and 1: a claimed ask gets its aborted turn, a pending one is discarded."""
    outcomes: dict[str, object] = {}

    async def ask(agent: Agent, text: str) -> None:
        try:
            outcomes[text] = (await agent.ask(text)).reason
        except (AgentDisposed, MessageDiscarded) as error:
            outcomes[text] = type(error)

    async with engine_on(hanging()) as engine, trio.open_nursery() as nursery:
        handle = await engine.agents.create(**ROUTE)
        nursery.start_soon(ask, handle.agent, "claimed")
        await settled()
        nursery.start_soon(ask, handle.agent, "pending")
        await settled()
        await handle.dispose()
    assert outcomes == {"claimed": "aborted", "pending": MessageDiscarded}


@played
async def test_a_pending_ask_of_an_engine_that_is_left_gets_agent_disposed() -> None:
    """DESIGN 1 and 4: leaving the engine keeps the message, so it was not discarded."""
    outcomes: dict[str, object] = {}

    async def ask(agent: Agent, text: str) -> None:
        try:
            outcomes[text] = (await agent.ask(text)).reason
        except (AgentDisposed, MessageDiscarded) as error:
            outcomes[text] = type(error)

    async with trio.open_nursery() as nursery, engine_on(hanging()) as engine:
        agent = (await engine.agents.create(**ROUTE)).agent
        nursery.start_soon(ask, agent, "claimed")
        await settled()
        nursery.start_soon(ask, agent, "pending")
        nursery.start_soon(agent.wait_idle)
        nursery.start_soon(agent.wait_status, "idle")
        await settled()
    assert outcomes == {"claimed": "aborted", "pending": AgentDisposed}
    assert pending(agent) == ["pending"]


@played
async def test_a_disposed_agent_takes_no_input_and_minds_no_stop() -> None:
    """DESIGN 4: sends and edits raise AgentDisposed; dispose, cancel, wait_idle are no-ops."""
    store = Faults()
    async with engine_on(hanging(), store=store) as engine:
        handle = await engine.agents.create(**ROUTE)
        agent = handle.agent
        await handle.dispose()
        before = whole(agent.session)
        for send in (agent.followup, agent.steer, agent.inject):
            with pytest.raises(AgentDisposed):
                send("too late")
        with pytest.raises(AgentDisposed):
            await agent.ask("too late")
        with pytest.raises(AgentDisposed):
            await agent.run_maintenance(trio.sleep, 0)
        await handle.dispose()
        handle.begin_disposal()
        agent.cancel()
        await agent.wait_idle()
        await agent.wait_status("idle")
        await agent.wait_status("running")
        assert whole(agent.session) == before


EDITS = {
    "append": lambda agent: agent.inbox.append("next-turn", UserMessage("x")),
    "prepend": lambda agent: agent.inbox.prepend("next-step", UserMessage("x")),
    "replace": lambda agent: agent.inbox.replace(agent.inbox.next_turn[0].id, UserMessage("x")),
    "remove": lambda agent: agent.inbox.remove(agent.inbox.next_turn[0].id),
    "clear": lambda agent: agent.inbox.clear(),
    "splice": lambda agent: agent.inbox.splice("next-turn", 0, 1, [UserMessage("x")]),
}
APPENDS = {
    "select": lambda agent: agent.model.select("other", "n"),
    "record": lambda agent: agent.session.record("mine/note", {"a": 1}, ignorable=True),
}


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "memory"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_after_disposal_is_refused_and_changes_nothing(edit: str, stored: bool) -> None:
    """DESIGN 4: "after disposal sends and edits raise AgentDisposed"; a refused append changes
    nothing, so the log in memory stays the log in the store."""

    @played
    async def run() -> None:
        agent = await _disposed_with_pending_input(Faults() if stored else None)
        before = whole(agent.session)
        with pytest.raises(AgentDisposed):
            EDITS[edit](agent)
        assert whole(agent.session) == before
        assert pending(agent) == ["pending"]

    run()


@pytest.mark.parametrize("append", APPENDS)
def test_an_append_after_the_write_path_closed_is_refused_whole(append: str) -> None:
    """`Session.append`: "nothing changes when it is refused"; `durable_seq` is not the last seq
    of a log that grew without its store."""

    @played
    async def run() -> None:
        agent = await _disposed_with_pending_input(Faults())
        before = whole(agent.session)
        with pytest.raises(UsageError):
            APPENDS[append](agent)
        assert whole(agent.session) == before

    run()


async def _disposed_with_pending_input(store: Faults | None) -> Agent:
    async with engine_on(hanging(), store=store) as engine:
        agent = (await engine.agents.create(**ROUTE, session_id="a")).agent
        agent.followup("running")
        agent.followup("pending")
        await settled()
    assert pending(agent) == ["pending"]
    return agent


@played
async def test_input_that_comes_while_a_tool_drains_is_parked() -> None:
    """DESIGN 4: sends park while draining; a disposed cancel never latches (C129)."""

    @tool
    async def deaf() -> str:
        """Deaf."""
        with trio.CancelScope(shield=True):
            await release.wait()
        return ""

    release = trio.Event()
    store = Faults()
    model = ScriptedModel([call("deaf", id="c")])
    async with engine_on(model, [deaf], store=store) as engine:
        handle = await engine.agents.create(**ROUTE, session_id="a")
        agent = handle.agent
        agent.followup("go")
        agent.followup("queued")
        await settled()
        handle.begin_disposal()
        agent.steer("late steer")
        agent.followup("late prompt")
        agent.inject("late note")
        release.set()
        await handle.dispose()
        assert model.attempts == 1
        check(agent.session)
        assert discarded(agent.session) == ["queued"]
        assert pending(agent) == ["late steer", "late note", "late prompt"]
        assert store.stored("a") == whole(agent.session)


@pytest.mark.parametrize("point", ["close", "closed"])
def test_input_that_comes_while_the_write_path_closes_is_parked_or_refused(point: str) -> None:
    """DESIGN 4: sends park while draining; what the store cannot take any more is refused as
    AgentDisposed. Never half: the log in memory stays the log in the store."""

    @played
    async def run() -> None:
        store = Faults()
        async with engine_on(talking(), store=store) as engine:
            handle = await engine.agents.create(**ROUTE, session_id="a")
            agent = handle.agent
            gate = trio.Event()
            store.at[point] = gate.wait
            async with trio.open_nursery() as nursery:
                nursery.start_soon(handle.dispose)
                await settled()
                try:
                    agent.followup("late")
                except AgentDisposed:
                    expected = []
                else:
                    expected = ["late"]
                gate.set()
            assert pending(agent) == expected
            assert store.stored("a") == whole(agent.session)
            assert engine.unsaved == {}

    run()


# --- children -------------------------------------------------------------------------


@played
async def test_children_end_before_their_parent_with_cause_parent() -> None:
    """C170: a child whose parent is torn down ends `parent`, and is gone before it."""
    async with engine_on(hanging()) as engine:
        heard = announcements(engine)
        parent = await engine.agents.create(**ROUTE, session_id="p")
        child = await engine.agents.create(**ROUTE, session_id="c", parent=parent.agent)
        grandchild = await engine.agents.create(**ROUTE, session_id="g", parent=child.agent)
        for handle in (parent, child, grandchild):
            handle.agent.followup("go")
        await settled()
        heard.clear()
        await parent.dispose()
        assert engine.agents.list() == []
        for handle in (child, grandchild):
            assert endings(handle.agent.session) == [Aborted(ParentCause())]
            check(handle.agent.session)
        assert endings(parent.agent.session) == [Aborted(DisposedCause())]
    assert [line for line in heard if "agent disposed" in line] == [
        "g agent disposed",
        "c agent disposed",
        "p agent disposed",
    ]


@pytest.mark.parametrize("waiting", ["asks", "waits"])
@pytest.mark.parametrize("way", ["turn cancelled", "disposed"])
def test_a_child_in_a_tools_block_ends_with_its_parents_turn(way: str, waiting: str) -> None:
    """DESIGN 4: "a child whose parent's turn or agent is torn down ends `parent`" - also when
    the tool was waiting for the child's answer."""

    @played
    async def run() -> None:
        children: list[Agent] = []

        @tool
        async def delegate(run: ToolRun) -> str:
            """Ask a child."""
            parent = engine.agents.get(run.agent.id)
            async with engine.open_agent(
                provider="scripted", model="child", session_id="c", parent=parent
            ) as child:
                children.append(child)
                if waiting == "asks":
                    return (await child.ask("do it")).text
                child.followup("do it")
                await trio.sleep_forever()
            return ""

        model = ScriptedModel([call("delegate", id="d"), answer("thinking", Hang())])
        async with engine_on(model, [delegate]) as engine:
            handle = await engine.agents.create(**ROUTE, session_id="p")
            handle.agent.followup("go")
            await settled()
            if way == "disposed":
                await handle.dispose()
            else:
                handle.agent.cancel()
                await handle.agent.wait_idle()
            assert engine.agents.get("c") is None
        assert endings(children[0].session) == [Aborted(ParentCause())]
        check(children[0].session)
        check(handle.agent.session)

    run()


@pytest.mark.parametrize("way", ["a is left", "b is left"])
def test_a_parent_of_another_engine_owns_nothing_here(way: str) -> None:
    """C173 C177: an agent ends with its engine's block; so a parent from another engine is
    refused, or takes nothing away from that."""

    @played
    async def run() -> None:
        async with engine_on(talking()) as b:
            parent = (await b.agents.create(**ROUTE, session_id="p")).agent
            before = tasks()
            async with engine_on(talking()) as a:
                try:
                    handle = await a.agents.create(**ROUTE, session_id="c", parent=parent)
                except (InvalidValue, UsageError):
                    return
                if way == "b is left":
                    await b.agents.get("p").wait_idle()  # type: ignore[union-attr]
            assert handle.agent.disposed, "its engine was left"
            assert tasks() == before

    run()


@played
async def test_a_child_cannot_be_made_for_a_parent_that_is_gone() -> None:
    """C23 C34: a disposed parent owns nothing; the id stays free."""
    async with engine_on(talking()) as engine:
        parent = await engine.agents.create(**ROUTE, session_id="p")
        await parent.dispose()
        with pytest.raises(AgentDisposed):
            await engine.agents.create(**ROUTE, session_id="c", parent=parent.agent)
        await engine.agents.create(**ROUTE, session_id="c")


@pytest.mark.parametrize("stage", ["create", "setup", "created"])
def test_a_parent_that_goes_during_a_childs_creation_takes_the_child_along(stage: str) -> None:
    """C23: owner disposal rolls the creation back: no entry, no wake, no owned handle, and
    what was announced is announced as disposed. The error says what happened."""

    @played
    async def run() -> None:
        store = Faults()
        async with engine_on(talking(), store=store) as engine:
            heard = announcements(engine)
            parent = await engine.agents.create(**ROUTE, session_id="p")
            errors: list[BaseException] = []
            children: list[Agent] = []

            async def owner_goes() -> None:
                await parent.dispose()

            async def setup(agent: Agent) -> None:
                children.append(agent)
                agent.followup("held")
                if stage == "setup":
                    await owner_goes()

            async def created(view: object) -> None:
                if stage == "created" and len(children) == 1:
                    await owner_goes()

            if stage == "create":
                store.at["created"] = owner_goes
            engine.scope.hooks.agent_created.listen(created)
            try:
                handle = await engine.agents.create(
                    **ROUTE, session_id="c", parent=parent.agent, setup=setup
                )
            except UsageError as error:
                errors.append(error)
            else:
                assert handle.agent.disposed, "an agent that is handed over runs"
            await settled()
            assert engine.agents.get("c") is None
            assert not store.owned("c")
            assert [type(error) for error in errors] == [AgentDisposed]
            assert not [line for line in heard if line in ("c running", "c idle")]
            for agent in children:
                assert agent.status == "idle"
            async with engine.open_agent(resume="c", **ROUTE):
                pass

    run()


def _steps_of_a_childs_creation() -> int:
    counted: list[int] = []

    async def run() -> None:
        async with engine_on(talking(), store=Faults()) as engine:
            parent = (await engine.agents.create(**ROUTE, session_id="p")).agent
            counter = Steps()
            trio.lowlevel.add_instrument(counter)
            await engine.agents.create(**ROUTE, session_id="c", parent=parent)
            trio.lowlevel.remove_instrument(counter)
            counted.append(counter.steps)

    played(run)()
    return counted[0]


class Steps(trio.abc.Instrument):
    """Counts task steps; acts before one of them."""

    def __init__(self, at: int = -1, act: Any = None) -> None:
        self.steps = 0
        self.at = at
        self.act = act

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.steps == self.at:
            self.act()
        self.steps += 1


@pytest.mark.parametrize("at", range(_steps_of_a_childs_creation() + 3))
@pytest.mark.parametrize("slow", [False, True], ids=["quick store", "slow store"])
def test_a_parent_that_goes_at_any_step_of_a_childs_creation(at: int, slow: bool) -> None:
    """C23 C24 C28 C30: one teardown, whoever comes to it first: announcements in pairs, never
    twice; no entry, no handle, no task left; the caller is told, or given an agent that ends."""

    @played
    async def run() -> None:
        store = Faults()
        if slow:

            async def wait() -> None:
                for _ in range(3):
                    await trio.lowlevel.checkpoint()

            store.at.update(close=wait, closed=wait)
        heard: list[str] = []
        async with engine_on(talking(), store=store) as engine:
            before = tasks()
            hooks = engine.scope.hooks

            async def created(view: Any) -> None:
                heard.append(f"{view.id} created")
                await trio.lowlevel.checkpoint()

            hooks.agent_created.listen(created)
            hooks.session_created.listen(lambda v: heard.append(f"{v.id} session"))
            hooks.agent_disposed.listen(lambda v: heard.append(f"{v.id} disposed"))
            hooks.session_disposed.listen(lambda v: heard.append(f"{v.id} session disposed"))
            parent = await engine.agents.create(**ROUTE, session_id="p")
            steps = Steps(at, parent.begin_disposal)
            trio.lowlevel.add_instrument(steps)

            def setup(agent: Agent) -> None:
                agent.followup("held")

            try:
                await engine.agents.create(
                    **ROUTE, session_id="c", parent=parent.agent, setup=setup
                )
            except AgentDisposed:
                pass
            finally:
                trio.lowlevel.remove_instrument(steps)
            await parent.dispose()
            await settled()
            assert engine.agents.list() == []
            assert tasks() == before
            for name in "pc":
                sessions = heard.count(f"{name} session")
                assert heard.count(f"{name} session disposed") == sessions <= 1
                assert heard.count(f"{name} disposed") == heard.count(f"{name} created") <= 1
            if "c" in store.inner._sessions:
                assert not store.owned("c")
            assert store.seen.count("close") <= 2
        assert engine.unsaved == {}

    run()


# --- what leaving keeps and discards ----------------------------------------------------


async def _occupied(engine: Engine) -> Agent:
    """An agent with a turn that has claimed two messages, not admitted them, and one queued."""

    async def wait(value: Any, proceed: Any) -> Any:
        await trio.sleep_forever()

    agent = (await engine.agents.create(**ROUTE, session_id="a")).agent
    agent.scope.hooks.pre_step.listen(wait)
    agent.inject("claimed note")
    agent.followup("claimed prompt")
    agent.followup("queued")
    await settled()
    assert pending(agent) == ["queued"]
    return agent


ALL = ["claimed note", "claimed prompt", "queued"]


@pytest.mark.parametrize("way", ["left", "raised", "host cancel", "host deadline"])
def test_leaving_the_engine_keeps_all_input_for_the_next_life(way: str) -> None:
    """DESIGN 4: ends turns `disposed`, keeps pending input, claimed-unadmitted included."""

    @played
    async def run() -> None:
        store = MemoryStore()
        with trio.CancelScope() as host:
            try:
                async with engine_on(talking(), store=store) as engine:
                    agent = await _occupied(engine)
                    if way == "raised":
                        raise KeyError("mine")
                    if way == "host cancel":
                        host.cancel()
                    if way == "host deadline":
                        host.deadline = trio.current_time() + 1
                        await trio.sleep_forever()
            except KeyError:
                assert way == "raised"
        assert endings(agent.session) == [Aborted(DisposedCause())]
        assert pending(agent) == ALL
        check(agent.session)
        async with engine_on(talking(), store=store) as engine:
            async with engine.open_agent(resume="a", **ROUTE) as again:
                assert pending(again) == ALL
                again.followup("and more")
                await again.wait_idle()
                assert pending(again) == []
                assert [m.text for m in again.history() if hasattr(m, "tool_calls")] == [
                    "fine",
                    "fine",
                    "fine",
                ]

    run()


@pytest.mark.parametrize("way", ["left", "raised", "disposed"])
def test_leaving_an_agents_block_discards_pending_input_on_the_record(way: str) -> None:
    """DESIGN 4: disposing an agent discards pending input on the record, claimed included."""

    @played
    async def run() -> None:
        async with engine_on(talking()) as engine:

            async def wait(value: Any, proceed: Any) -> Any:
                await trio.sleep_forever()

            async def occupy(agent: Agent) -> None:
                agent.scope.hooks.pre_step.listen(wait)
                agent.inject("claimed note")
                agent.followup("claimed prompt")
                agent.followup("queued")
                await settled()

            if way == "disposed":
                handle = await engine.agents.create(**ROUTE)
                agent = handle.agent
                await occupy(agent)
                await handle.dispose()
            else:
                try:
                    async with engine.open_agent(**ROUTE) as agent:
                        await occupy(agent)
                        if way == "raised":
                            raise KeyError("mine")
                except KeyError:
                    assert way == "raised"
            assert endings(agent.session) == [Aborted(DisposedCause())]
            assert pending(agent) == []
            assert sorted(discarded(agent.session)) == sorted(ALL)
            check(agent.session)

    run()


@pytest.mark.parametrize("way", ["host cancel", "host deadline", "KeyboardInterrupt"])
def test_an_agents_block_that_the_host_stops_keeps_pending_input(way: str) -> None:
    """DESIGN 4: a host's cancellation, a deadline and Ctrl-C keep pending input."""

    async def run() -> None:
        with trio.CancelScope() as host:
            async with engine_on(talking()) as engine, engine.open_agent(**ROUTE) as agent:
                sessions.append(agent)

                async def wait(value: Any, proceed: Any) -> Any:
                    await trio.sleep_forever()

                agent.scope.hooks.pre_step.listen(wait)
                agent.inject("claimed note")
                agent.followup("claimed prompt")
                agent.followup("queued")
                await settled()
                if way == "host cancel":
                    host.cancel()
                elif way == "host deadline":
                    host.deadline = trio.current_time() + 1
                else:
                    sigint()
                await trio.sleep_forever()

    sessions: list[Agent] = []
    if way == "KeyboardInterrupt":
        with pytest.raises(KeyboardInterrupt):
            played(run)()
    else:
        played(run)()
    (agent,) = sessions
    assert endings(agent.session) == [Aborted(DisposedCause())]
    assert pending(agent) == ALL
    check(agent.session)


@pytest.mark.parametrize("seed", range(6))
def test_a_host_that_stops_an_asking_program_ends_the_turn_disposed(seed: int) -> None:
    """DESIGN 4: a host's cancellation ends the turn `disposed`. That the asker is cancelled in
    the same tick, and may be scheduled first, is no second cause."""
    from tests.agent.kit import play

    async def run() -> None:
        with trio.move_on_after(5) as host:
            async with engine_on(hanging()) as engine, engine.open_agent(**ROUTE) as agent:
                sessions.append(agent)
                await agent.ask("go")
        assert host.cancelled_caught

    sessions: list[Agent] = []
    play(run, seed=seed)
    assert ending_kinds(sessions[0].session) == ["Aborted DisposedCause"]


@pytest.mark.parametrize("where", ["pre_step", "stream", "tool"])
def test_a_cleanup_that_fails_under_the_hosts_cancel_does_not_replace_it(where: str) -> None:
    """BC-12 and DESIGN 5: "the reason of an ending comes from the scope, not from the
    exception's type": the turn ends `disposed`, claimed input is put back."""

    @played
    async def run() -> None:
        async def fail(value: Any, proceed: Any) -> Any:
            try:
                await trio.sleep_forever()
            finally:
                raise RuntimeError("cleanup failed")

        @tool
        async def failing() -> str:
            """Fails when cancelled."""
            try:
                await trio.sleep_forever()
            finally:
                raise RuntimeError("cleanup failed")

        with trio.CancelScope() as host:
            async with engine_on(ScriptedModel([call("failing", id="c")]), [failing]) as engine:
                if where != "tool":
                    getattr(engine.scope.hooks, where).listen(fail)
                async with engine.open_agent(**ROUTE) as agent:
                    agent.followup("go")
                    await settled()
                    host.cancel()
                    await trio.sleep_forever()
        assert host.cancelled_caught
        assert endings(agent.session) == [Aborted(DisposedCause())]
        assert pending(agent) == (["go"] if where == "pre_step" else [])
        check(agent.session)

    run()


# --- engines --------------------------------------------------------------------------


@played
async def test_two_engines_side_by_side_do_not_meet() -> None:
    """C177: same ids, same store type, own registries, own scopes, own settings."""
    before = tasks()
    async with engine_on(talking()) as one, engine_on(ScriptedModel(lambda r: "other")) as two:
        a = (await one.agents.create(**ROUTE, session_id="a")).agent
        b = (await two.agents.create(**ROUTE, session_id="a")).agent
        one.settings.max_parallel_tool_calls = 3
        assert two.settings.max_parallel_tool_calls == 10
        heard = announcements(two)
        assert (await a.ask("x")).text == "fine"
        assert heard == []
        assert (await b.ask("x")).text == "other"
        assert (one.agents.list(), two.agents.list()) == ([a], [b])
    assert tasks() == before


@played
async def test_two_engines_on_one_store_exclude_each_other_per_session() -> None:
    """C144 C177: the second finds the session locked, and free when the first let go."""
    store = MemoryStore()
    async with engine_on(talking(), store=store) as one, engine_on(talking(), store=store) as two:
        handle = await one.agents.create(**ROUTE, session_id="a")
        with pytest.raises(SessionLocked):
            await two.agents.resume("a")
        assert two.agents.list() == []
        await handle.dispose()
        again = await two.agents.resume("a")
        assert again.agent.id == "a"


@played
async def test_an_engine_that_is_left_makes_no_more_agents() -> None:
    """C1: after the end creation rejects, and nothing is made."""
    store = Faults()
    async with engine_on(talking(), store=store) as engine:
        pass
    with pytest.raises(UsageError):
        await engine.agents.create(**ROUTE, session_id="late")
    assert store.seen == []


@played
async def test_engine_wait_idle_waits_for_all_agents_and_their_followers() -> None:
    """C66: replacement work and new agents included."""
    model = ScriptedModel(lambda request: answer(Delay(1), "fine"))
    async with engine_on(model) as engine:
        one = (await engine.agents.create(**ROUTE)).agent
        two = (await engine.agents.create(**ROUTE)).agent

        def again(value: Any) -> None:
            if value.agent is one and value.status == "idle" and model.attempts < 3:
                two.followup("from the listener")

        engine.scope.hooks.status.listen(again)
        one.followup("x")
        two.followup("x")
        await engine.wait_idle()
        assert one.status == two.status == "idle"
        assert model.attempts == 3


# --- shutdown is honest ---------------------------------------------------------------


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.parametrize("where", ["agent's block", "engine's block"])
def test_a_close_that_hangs_is_bounded_and_reported(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """DESIGN 4, BC-10: `engine.unsaved`, one ERROR record, `StoreError` after the timeout."""

    async def run() -> None:
        store = Faults()
        store.at["close"] = trio.sleep_forever
        start = trio.current_time()
        with pytest.raises(StoreError, match="a"):
            async with engine_on(talking(), store=store, shutdown_timeout=3) as engine:
                if where == "agent's block":
                    async with engine.open_agent(**ROUTE, session_id="a") as agent:
                        agent.followup("never run")
                        agent.inject("pending")
                    assert trio.current_time() - start == pytest.approx(3)
                    assert agent.disposed
                    assert not store.owned("a")
                    assert set(engine.unsaved) == {"a"}
                else:
                    handle = await engine.agents.create(**ROUTE, session_id="a")
                    handle.agent.inject("pending")
        assert trio.current_time() - start == pytest.approx(3)
        assert set(engine.unsaved) == {"a"}
        assert len(errors_of(caplog)) == 1

    played(run)()


def test_many_agents_share_one_bound(caplog: pytest.LogCaptureFixture) -> None:
    """DESIGN 4: one shield, one timeout; agents close side by side, children included."""

    async def run() -> None:
        store = Faults()
        store.at["close"] = store.at["flush"] = trio.sleep_forever
        start = trio.current_time()
        with pytest.raises(StoreError):
            async with engine_on(talking(), store=store, shutdown_timeout=3) as engine:
                parent = None
                for name in "abcd":
                    handle = await engine.agents.create(**ROUTE, session_id=name, parent=parent)
                    handle.agent.inject("pending")
                    parent = handle.agent
                await engine.agents.create(**ROUTE, session_id="alone")
        assert trio.current_time() - start == pytest.approx(3), "the bound is the engine's"
        assert set(engine.unsaved) >= {"a", "b", "c", "d"}

    played(run)()


def test_one_bound_holds_on_a_clock_that_moves(caplog: pytest.LogCaptureFixture) -> None:
    """DESIGN 4: as above, where every close takes a moment more than it was given: the bound is
    still one, not one for each of a family."""

    async def run() -> None:
        async def close() -> None:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.01)

        store = Faults()
        store.at["close"] = close
        start = trio.current_time()
        with pytest.raises(StoreError):
            async with engine_on(talking(), store=store, shutdown_timeout=3) as engine:
                parent = None
                for name in "abcd":
                    handle = await engine.agents.create(**ROUTE, session_id=name, parent=parent)
                    handle.agent.inject("pending")
                    parent = handle.agent
        assert trio.current_time() - start == pytest.approx(3, abs=0.1)

    played(run)()


def test_a_child_whose_close_hangs_does_not_cost_its_parent_its_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """DESIGN 4 and C32: what could have been saved within the bound is saved: one session whose
    store hangs is one session that is unsaved."""

    async def run() -> None:
        store = Faults()
        names = iter(["c", "p"])

        async def close() -> None:
            if next(names) == "c":
                await trio.sleep_forever()

        store.at["close"] = close
        with pytest.raises(StoreError):
            async with engine_on(hanging(), store=store, shutdown_timeout=3) as engine:
                parent = (await engine.agents.create(**ROUTE, session_id="p")).agent
                child = (await engine.agents.create(**ROUTE, session_id="c", parent=parent)).agent
                parent.followup("go")
                child.followup("go")
                await settled()
        assert set(engine.unsaved) == {"c"}
        assert store.stored("p") == whole(parent.session)

    played(run)()


FAILURES = [StoreError("disk full"), OSError("disk full"), RuntimeError("a bug in the store")]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["agent's block", "engine's block"])
def test_a_close_that_raises_is_reported_and_hangs_nobody(
    where: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """DESIGN 4: what was not durable is reported. A store's defect may leave as itself, but
    teardown goes on to its end: the agent is detached, the waiters are told, the id is free."""

    async def run() -> None:
        store = Faults()

        async def fail() -> None:
            raise error

        store.at["close"] = fail
        with pytest.raises((type(error), StoreError, ExceptionGroup)):
            async with engine_on(talking(), store=store) as engine:
                if where == "agent's block":
                    async with engine.open_agent(**ROUTE, session_id="a") as agent:
                        agent.inject("pending")
                else:
                    handle = await engine.agents.create(**ROUTE, session_id="a")
                    agent = handle.agent
                    agent.inject("pending")
        assert agent.disposed
        assert not agent.session.attached
        assert engine.agents.get("a") is None
        assert set(engine.unsaved) == {"a"}
        assert errors_of(caplog)

    played(run)()


@pytest.mark.parametrize("way", ["host cancel", "KeyboardInterrupt", "user error"])
def test_what_was_not_saved_never_hides_the_hosts_stop(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """DESIGN 4: StoreError is not raised over Cancelled or KeyboardInterrupt; a user's own
    error leaves in a group with it."""
    engines: list[Engine] = []

    async def run() -> None:
        store = Faults()

        async def fail() -> None:
            raise StoreError("disk full")

        store.at["close"] = fail
        with trio.CancelScope() as host:
            async with engine_on(talking(), store=store) as engine:
                engines.append(engine)
                async with engine.open_agent(**ROUTE, session_id="a") as agent:
                    agent.inject("pending")
                    if way == "host cancel":
                        host.cancel()
                    elif way == "KeyboardInterrupt":
                        sigint()
                    else:
                        raise mine
                    await trio.sleep_forever()
        assert host.cancelled_caught

    mine = KeyError("mine")
    if way == "host cancel":
        played(run)()
    elif way == "KeyboardInterrupt":
        with pytest.raises(KeyboardInterrupt):
            played(run)()
    else:
        with pytest.raises(ExceptionGroup) as caught:
            played(run)()
        assert mine in caught.value.exceptions
        assert [type(e) for e in caught.value.exceptions] == [KeyError, StoreError]
    assert set(engines[0].unsaved) == {"a"}
    assert len(errors_of(caplog)) == 1


def test_a_close_that_hangs_when_all_is_durable_loses_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """DESIGN 4: "what was not durable by then is reported" - and nothing else."""

    async def run() -> None:
        store = Faults()
        async with engine_on(talking(), store=store, shutdown_timeout=3) as engine:
            async with engine.open_agent(**ROUTE, session_id="a") as agent:
                await agent.ask("go")
                assert store.stored("a") == whole(agent.session)
                store.at["closed"] = trio.sleep_forever
        assert store.stored("a") == whole(agent.session)
        assert engine.unsaved == {}
        assert errors_of(caplog) == []

    played(run)()


@pytest.mark.parametrize("way", ["left", "disposed", "host cancel"])
def test_an_ending_that_is_being_flushed_does_not_hold_up_the_end(way: str) -> None:
    """DESIGN 4, BC-10: leaving while the flush of `turn/end` hangs is bounded, and honest."""

    @played
    async def run() -> None:
        store = Faults()
        model = ScriptedModel(lambda request: "fine")
        start = trio.current_time()
        with (
            trio.CancelScope() as host,
            pytest.raises(StoreError) if way != "host cancel" else (trio.CancelScope()),
        ):
            async with engine_on(model, store=store, shutdown_timeout=3) as engine:
                handle = await engine.agents.create(**ROUTE, session_id="a")
                agent = handle.agent
                agent.followup("go")
                # The flush before the request passes; the one of the ending hangs.
                passed: list[int] = []

                async def flush() -> None:
                    passed.append(1)
                    if len(passed) > 1:
                        await trio.sleep_forever()

                store.at["flush"] = flush
                store.at["close"] = trio.sleep_forever
                await settled()
                assert kinds(agent.session)[-1] == "TurnEnd"
                assert agent.status == "running"
                if way == "disposed":
                    await handle.dispose()
                elif way == "host cancel":
                    host.cancel()
        assert trio.current_time() - start == pytest.approx(3)
        assert set(engine.unsaved) == {"a"}
        assert ending_kinds(agent.session) == ["Completed"]

    run()


@pytest.mark.parametrize("source", ["user", "dispose", "engine left", "host cancel"])
def test_the_final_turn_end_is_in_the_store_after_every_exit(source: str) -> None:
    """C32 BC-10: the reference's gap, closed: also through a store that waits at each write."""

    @played
    async def run() -> None:
        store = Faults()

        async def slow() -> None:
            await trio.sleep(0.5)

        store.at.update(flush=slow, close=slow)
        with trio.CancelScope() as host:
            async with engine_on(hanging(), store=store) as engine:
                handle = await engine.agents.create(**ROUTE, session_id="a")
                handle.agent.followup("go")
                await trio.sleep(1)
                if source == "user":
                    handle.agent.cancel()
                    await handle.agent.wait_idle()
                elif source == "dispose":
                    await handle.dispose()
                elif source == "host cancel":
                    host.cancel()
        session = handle.agent.session
        assert store.stored("a") == whole(session)
        check(session)
        assert len(endings(session)) == 1
        assert texts_of(session.history())[-1] == "I am "
        assert engine.unsaved == {}

    run()


def test_a_close_that_is_refused_a_second_time_is_asked_only_once() -> None:
    """C28: the write handle is closed once, also when creation fails after it was closed."""

    @played
    async def run() -> None:
        store = Faults()
        async with engine_on(talking(), store=store) as engine:

            def setup(agent: Agent) -> None:
                raise KeyError("no")

            with pytest.raises(KeyError):
                await engine.agents.create(**ROUTE, session_id="a", setup=setup)
            assert store.seen.count("close") == 1
            async with engine.open_agent(resume="a", **ROUTE):
                pass
        assert store.seen.count("close") == 2

    run()


@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_shutdown_timeout_is_a_positive_number(value: float) -> None:
    """DESIGN 1: options are checked when the engine is opened."""

    @played
    async def run() -> None:
        with pytest.raises(InvalidValue):
            async with engine_on(talking(), shutdown_timeout=value):
                pass

    run()


# --- maintenance and the end ----------------------------------------------------------


@pytest.mark.parametrize("way", ["disposed", "engine left"])
def test_a_maintenance_job_has_ended_before_its_agent_is_gone(way: str) -> None:
    """C67 C128 C29: started work is asked to stop and then waited for, whoever ends it."""

    @played
    async def run() -> None:
        order: list[str] = []

        async def job() -> None:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(2)
                agent.session.record("mine/cleaned", {}, ignorable=True)
                order.append("job ended")

        async def maintain() -> None:
            with pytest.raises(UsageError):
                await agent.run_maintenance(job)
            order.append("caller told")

        store = Faults()
        async with trio.open_nursery() as nursery:
            async with engine_on(talking(), store=store) as engine:
                engine.scope.hooks.agent_disposed.listen(lambda v: order.append("agent gone"))
                handle = await engine.agents.create(**ROUTE, session_id="a")
                agent = handle.agent
                nursery.start_soon(maintain)
                await settled()
                if way == "disposed":
                    await handle.dispose()
            order.append("engine left")
        assert order.index("job ended") < order.index("agent gone"), order
        assert store.stored("a") == whole(agent.session)

    run()


@played
async def test_a_gate_that_opens_as_the_block_is_left_changes_nothing_afterwards() -> None:
    """C29: late completions stay silent: nothing is appended once the agent is gone."""
    model = ScriptedModel(lambda request: answer("a", Gate("go"), "b"))
    async with engine_on(model) as engine:
        async with engine.open_agent(**ROUTE) as agent:
            agent.followup("go")
            await settled()
            model.gates.open("go")
        length = len(agent.session.events)
        await settled()
        assert len(agent.session.events) == length
    check(agent.session)


# --- followers, checkpoints, leaks --------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True], ids=["live", "durable"])
def test_a_follower_ends_with_the_session_and_has_seen_all_of_it(durable: bool) -> None:
    """DESIGN 1: "it ends when the session is detached"; a reader outside the block misses
    nothing, the last `turn/end` included."""

    @played
    async def run() -> None:
        store = Faults()
        seen: list[Event] = []

        async def follow(session: Session) -> None:
            async for event in session.follow(durable=durable):
                seen.append(event)

        async with trio.open_nursery() as nursery:
            async with engine_on(hanging(), store=store) as engine:
                agent = (await engine.agents.create(**ROUTE, session_id="a")).agent
                nursery.start_soon(follow, agent.session)
                agent.followup("go")
                await settled()
        assert seen == whole(agent.session)

    run()


@pytest.mark.parametrize("how", ["break", "raise", "cancel", "elsewhere", "dropped"])
def test_a_reader_may_leave_a_follow_as_it_likes(how: str) -> None:
    """BC-11: nothing to close, nothing that breaks; the user's exception is unchanged."""

    @played
    async def run() -> None:
        mine = ValueError("mine")
        model = ScriptedModel(lambda r: answer(say("a b c"), Hang()))
        async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
            agent.followup("go")
            if how == "break":
                async for _ in agent.session.follow():
                    break
            elif how == "raise":
                with pytest.raises(ValueError) as caught:  # noqa: PT011
                    async for _ in agent.session.follow():
                        raise mine
                assert caught.value is mine
            elif how == "cancel":
                with trio.move_on_after(1) as scope:
                    async for _ in agent.session.follow():
                        pass
                assert scope.cancelled_caught
            else:
                follower = agent.session.follow()
                await follower.__anext__()
                if how == "elsewhere":
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(follower.__anext__)
                del follower
                gc.collect()
        assert ending_kinds(agent.session) == ["Aborted DisposedCause"]
        check(agent.session)

    run()


@played
async def test_every_public_async_function_is_a_checkpoint() -> None:
    """STYLE 8: "a public async def may block and is always a checkpoint"."""
    store = Faults()
    async with engine_on(talking(), store=store) as engine:
        with trio.testing.assert_checkpoints():
            handle = await engine.agents.create(**ROUTE, session_id="a")
        agent = handle.agent

        async def nothing() -> None:
            return None

        for call in (
            lambda: agent.ask("x"),
            agent.wait_idle,
            lambda: agent.wait_status("idle"),
            lambda: agent.run_maintenance(nothing),
            agent.session.read,
            agent.session.follow().__anext__,
            engine.wait_idle,
            handle.dispose,
            handle.dispose,
            agent.wait_idle,
            lambda: agent.wait_status("running"),
            lambda: engine.agents.resume("a"),
        ):
            with trio.testing.assert_checkpoints():
                await call()


def test_nothing_keeps_a_disposed_agent_alive() -> None:
    """C177 "no global state": an engine that runs for months makes many agents."""
    gone: list[weakref.ref[Agent]] = []

    async def run() -> None:
        async with engine_on(talking(), store=Faults()) as engine:
            for _ in range(3):
                async with engine.open_agent(**ROUTE) as agent:
                    await agent.ask("x")
                    gone.append(weakref.ref(agent))
                del agent
            await settled()
            gc.collect()
            assert [ref() for ref in gone] == [None] * 3

    played(run)()


@pytest.mark.parametrize("trouble", ["hangs", "raises"])
def test_an_adapter_that_cannot_be_closed_holds_nobody_up(
    trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`open_engine`: "seconds that closing a store or an adapter may take"."""

    class Troubled(ScriptedModel):
        async def aclose(self) -> None:
            closed.append(self.provider)
            if trouble == "raises":
                raise OSError("reset")
            await trio.sleep_forever()

    closed: list[str] = []

    async def run() -> None:
        start = trio.current_time()
        async with engine_on(Troubled(), shutdown_timeout=3):
            pass
        assert closed == ["scripted"]
        assert trio.current_time() - start <= 3

    played(run)()
