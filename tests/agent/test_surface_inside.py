"""Calls from the wrong place: inside the agent's own work, an observer, or after its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from tests.agent.kit import (
    ROUTE,
    check,
    ending_kinds,
    engine_on,
    pending,
    played,
    settled,
    texts_of,
)
from tests.agent.rig import one
from tests.whole import whole

from terzetto import (
    Agent,
    AgentBusy,
    AgentDisposed,
    IllegalEvent,
    MemoryStore,
    ToolRun,
    UserMessage,
    WouldDeadlock,
    tool,
)
from terzetto.agent import AgentHandle
from terzetto.llm.scripted import Gate, ScriptedModel, answer, call
from terzetto.vocabulary import (
    ActivityCancelled,
    Event,
    ReentrantAppend,
    ScopeClosed,
    TurnEnd,
)

# --- waiting for oneself --------------------------------------------------------------------

WAITS: dict[str, Callable[[Agent, AgentHandle], Awaitable[Any]]] = {
    "ask": lambda agent, handle: agent.ask("me"),
    "typed ask": lambda agent, handle: agent.ask("me", returns=int),
    "wait_idle": lambda agent, handle: agent.wait_idle(),
    "dispose": lambda agent, handle: handle.dispose(),
}


@pytest.mark.parametrize("nested", [False, True], ids=["job", "job in a job"])
@pytest.mark.parametrize("where", ["job", "job's task", "child's tool"])
@pytest.mark.parametrize("wait", WAITS)
def test_a_maintenance_job_may_not_wait_for_its_own_agent(
    wait: str, where: str, nested: bool
) -> None:
    """C67: waking input waits until the job has settled, so the job would wait for itself:
    WouldDeadlock at once, and the job goes on."""

    @played
    async def run() -> None:
        refused: list[str] = []

        async def attempt() -> None:
            before = len(agent.session.events)
            with pytest.raises(WouldDeadlock):
                await WAITS[wait](agent, handle)
            assert len(agent.session.events) == before
            refused.append(where)

        @tool
        async def act() -> str:
            """Act."""
            await attempt()
            return "ok"

        async def job() -> str:
            if where == "job":
                await attempt()
            elif where == "job's task":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(attempt)
            else:
                async with engine.open_agent(**ROUTE, parent=agent, tools=[act]) as child:
                    await child.ask("go")
            return "done"

        async def outer() -> str:
            return await other.run_maintenance(job)

        async with engine_on(ScriptedModel([call("act"), "ok"])) as engine:
            handle = await engine.agents.create(**ROUTE)
            agent = handle.agent
            other = (await engine.agents.create(**ROUTE)).agent
            if nested:
                result = await agent.run_maintenance(outer)
            else:
                result = await agent.run_maintenance(job)
            assert (result, refused) == ("done", [where])
            assert agent.status == "idle"
            await agent.wait_idle()

    run()


@played
async def test_a_task_that_outlives_its_job_may_wait_again() -> None:
    """What was started inside a job is not inside of it when it is over."""
    over = trio.Event()

    async def later() -> None:
        await over.wait()
        assert (await agent.ask("go")).text == "ok"

    async with engine_on(ScriptedModel(["ok"])) as engine, engine.open_agent(**ROUTE) as agent:
        async with trio.open_nursery() as nursery:

            async def job() -> None:
                nursery.start_soon(later)
                await trio.lowlevel.checkpoint()

            await agent.run_maintenance(job)
            over.set()


@played
async def test_a_job_may_wait_for_another_agent() -> None:
    """Only waiting for oneself is refused."""
    async with engine_on(ScriptedModel(["ok"])) as engine, engine.open_agent(**ROUTE) as agent:
        async with engine.open_agent(**ROUTE) as other:
            assert (await agent.run_maintenance(other.ask, "go")).text == "ok"


# --- maintenance from inside ----------------------------------------------------------------


@pytest.mark.parametrize("where", ["tool", "pre_step", "turn_stopping", "child's tool", "job"])
def test_maintenance_from_inside_its_own_work_is_busy(where: str) -> None:
    """C67: it needs true idle, so it never waits and never deadlocks: AgentBusy, the job not
    begun."""

    @played
    async def run() -> None:
        refused: list[str] = []
        began: list[str] = []

        async def inner() -> None:
            began.append("began")

        async def attempt() -> None:
            with pytest.raises(AgentBusy, match="idle"):
                await agent.run_maintenance(inner)
            refused.append(where)

        @tool
        async def act(run: ToolRun) -> str:
            """Act."""
            if where == "child's tool" and run.agent.id == agent.id:
                async with engine.open_agent(**ROUTE, parent=agent) as child:
                    await child.ask("act")
            elif "tool" in where:
                await attempt()
            return "ok"

        async def hook(value: Any, proceed: Any = None) -> Any:
            if not refused:
                await attempt()
            return await proceed() if proceed else None

        def model(request: Any) -> Any:
            return call("act") if texts_of(request.messages)[-1] == "act" else "done"

        async with engine_on(ScriptedModel(model), [act]) as engine:
            async with engine.open_agent(**ROUTE) as agent:
                if where == "job":
                    await agent.run_maintenance(attempt)
                elif where in ("pre_step", "turn_stopping"):
                    getattr(agent.scope.hooks, where).listen(hook)
                if where != "job":
                    await agent.ask("act")
                assert (refused, began) == ([where], [])
                check(agent.session)

    run()


@played
async def test_what_a_job_raises_is_raised_and_the_agent_goes_on() -> None:
    """C67: as itself, no group; a wake that came meanwhile runs."""

    async def job() -> None:
        agent.followup("meanwhile")
        raise ValueError("mine")

    async with engine_on(ScriptedModel(["ok"])) as engine, engine.open_agent(**ROUTE) as agent:
        with pytest.raises(ValueError, match=r"^mine$"):
            await agent.run_maintenance(job)
        await agent.wait_idle()
        assert ending_kinds(agent.session) == ["Completed"]
        assert pending(agent) == []


@played
async def test_a_job_that_is_cancelled_raises_and_leaves_no_trace_of_a_turn() -> None:
    """C67 C126: ActivityCancelled is the caller's; the log has no turn."""
    async with engine_on(ScriptedModel()) as engine, engine.open_agent(**ROUTE) as agent:
        async with trio.open_nursery() as nursery:

            async def caller() -> None:
                with pytest.raises(ActivityCancelled):
                    await agent.run_maintenance(trio.sleep_forever)

            nursery.start_soon(caller)
            await settled()
            assert agent.status == "idle"
            agent.cancel()
        assert whole(agent.session) == []


# --- inside an append -----------------------------------------------------------------------

REENTRANT: dict[str, Callable[[Agent], object]] = {
    "followup": lambda agent: agent.followup("x"),
    "steer": lambda agent: agent.steer("x"),
    "inject": lambda agent: agent.inject("x"),
    "send": lambda agent: agent.send("x", "next-turn", True),
    "interrupt": lambda agent: agent.interrupt("x"),
    "append": lambda agent: agent.inbox.append("next-turn", UserMessage("x")),
    "prepend": lambda agent: agent.inbox.prepend("next-turn", UserMessage("x")),
    "replace": lambda agent: agent.inbox.replace(agent.inbox.next_step[0].id, UserMessage("x")),
    "remove": lambda agent: agent.inbox.remove(agent.inbox.next_step[0].id),
    "clear": lambda agent: agent.inbox.clear(),
    "splice": lambda agent: agent.inbox.splice("next-step", 0, 1),
    "record": lambda agent: agent.session.record("mine/note", {}),
    "session replace": lambda agent: agent.session.replace(
        _user_node(agent), _user_node(agent), [UserMessage("x")]
    ),
    "select": lambda agent: agent.model.select("scripted", "other"),
}


def _user_node(agent: Agent) -> int:
    return next(node.seq for node in agent.session.surface.nodes if node.message == _entered(agent))


def _entered(agent: Agent) -> Any:
    return next(m for m in agent.history() if isinstance(m, UserMessage))


@pytest.mark.parametrize("name", REENTRANT)
def test_an_observer_may_change_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """C151: ReentrantAppend, what it saw stands, nothing else is recorded or taken; and an
    observer that does not catch it is contained."""

    @played
    async def run() -> None:
        caught: list[type] = []

        async with engine_on(ScriptedModel(["ok", "ok"])) as engine:
            async with engine.open_agent(**ROUTE) as agent:
                agent.followup("first")
                await agent.wait_idle()
                agent.inject("pending")

                def observer(event: Event) -> None:
                    if type(event.data).__name__ == "Extension":
                        try:
                            REENTRANT[name](agent)
                        except ReentrantAppend as error:
                            caught.append(type(error))
                            raise

                agent.session.observe(observer)
                before = len(agent.session.events)
                agent.session.record("mine/first", {})
                assert caught == [ReentrantAppend]
                assert len(agent.session.events) == before + 1
                assert pending(agent) == ["pending"]
                assert agent.status == "idle"
                check(agent.session)
                assert (await agent.ask("second")).text == "ok"

    run()
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert "inside an observer" in caplog.text


@pytest.mark.parametrize("keep_inbox", [True, False])
def test_a_cancel_from_an_observer_counts_and_clears_afterwards(keep_inbox: bool) -> None:
    """C126 C151: it takes effect at once, and clears when the append has returned."""

    @played
    async def run() -> None:
        def observer(event: Event) -> None:
            if type(event.data).__name__ == "StepStart":
                agent.cancel(keep_inbox=keep_inbox)
                seen.append(len(pending(agent)))

        seen: list[int] = []
        async with engine_on(ScriptedModel(["ok"])) as engine:
            async with engine.open_agent(**ROUTE) as agent:
                agent.session.observe(observer)
                agent.followup("first")
                agent.followup("second")
                await agent.wait_idle()
                assert seen == [1], "nothing is cleared inside the append"
                assert ending_kinds(agent.session) == ["Aborted UserCause"]
                # The claimed message was not admitted: put back, or discarded too.
                assert pending(agent) == (["first", "second"] if keep_inbox else [])
                check(agent.session)

    run()


# --- after the end --------------------------------------------------------------------------


@tool
def spare() -> str:
    """Spare."""
    return ""


GONE: dict[str, tuple[Callable[[Agent], Any], type[Exception] | tuple[type[Exception], ...]]] = {
    "send": (lambda agent: agent.send("x", "next-turn", True), AgentDisposed),
    "interrupt": (lambda agent: agent.interrupt("x"), AgentDisposed),
    "ask": (lambda agent: agent.ask("x"), AgentDisposed),
    "typed ask": (lambda agent: agent.ask("x", returns=int), AgentDisposed),
    "run_maintenance": (lambda agent: agent.run_maintenance(trio.sleep, 0), AgentDisposed),
    "complete": (lambda agent: agent.complete("x"), AgentDisposed),
    "add_tool": (lambda agent: agent.scope.add_tool(spare), ScopeClosed),
    "restrict": (lambda agent: agent.scope.restrict(allow=[]), ScopeClosed),
    "guard": (lambda agent: agent.scope.guard(lambda hook: None), ScopeClosed),
    "add_section": (lambda agent: agent.scope.add_section("x", "x"), ScopeClosed),
    "set_variable": (lambda agent: agent.scope.set_variable("x", "x"), ScopeClosed),
    "add_context": (lambda agent: agent.scope.add_context("x", "x"), ScopeClosed),
    "order_tools": (lambda agent: agent.scope.order_tools([]), ScopeClosed),
    "listen": (lambda agent: agent.scope.hooks.status.listen(print), ScopeClosed),
    "observe": (lambda agent: agent.session.observe(print), ScopeClosed),
    "record": (lambda agent: agent.session.record("mine/note", {}), AgentDisposed),
    "session replace": (
        lambda agent: agent.session.replace(
            _user_node(agent), _user_node(agent), [UserMessage("x")]
        ),
        AgentDisposed,
    ),
    "select": (lambda agent: agent.model.select("other", "n"), AgentDisposed),
}


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "memory"])
@pytest.mark.parametrize("name", GONE)
def test_a_disposed_agent_refuses_it_and_stays_as_it_was(name: str, stored: bool) -> None:
    """C37: every call that would change it says that it is gone; with a store or without."""

    @played
    async def run() -> None:
        store = {"store": MemoryStore()} if stored else {}
        async with engine_on(ScriptedModel(["ok"]), **store) as engine:
            async with engine.open_agent(**ROUTE) as agent:
                await agent.ask("go")
            before = whole(agent.session)
            act, error = GONE[name]
            with pytest.raises(error):
                if (made := act(agent)) is not None and hasattr(made, "__await__"):
                    await made
            assert whole(agent.session) == before
            assert agent.disposed

    run()


@played
async def test_what_a_disposed_agent_still_tells() -> None:
    """C31: handles that were kept stay readable."""
    async with engine_on(ScriptedModel(["ok"])) as engine:
        async with engine.open_agent(**ROUTE) as agent:
            await agent.ask("go")
        assert agent.status == "idle"
        assert texts_of(agent.history())[-2:] == ["go", "ok"]
        assert len(await agent.session.read()) == len(agent.session.events)
        assert [event async for event in agent.session.follow()] == whole(agent.session)
        assert agent.inbox.next_turn == ()
        assert agent.model.current() is not None
        assert agent.statistics().status == "idle"
        assert isinstance(agent.session.events[-1].data, TurnEnd)


@played
async def test_input_parks_while_a_turn_drains_and_is_discarded_at_the_end() -> None:
    """C129: a disposed cancel never latches; what came late is on the record as discarded."""
    gate = trio.Event()

    @tool
    async def slow() -> str:
        """Slow."""
        with trio.CancelScope(shield=True):
            await gate.wait()
        return "done"

    async with engine_on(ScriptedModel([call("slow")]), [slow]) as engine:
        handle = await engine.agents.create(**ROUTE)
        agent = handle.agent
        agent.followup("go")
        await settled()
        handle.begin_disposal()
        for send in (agent.followup, agent.steer, agent.inject, agent.interrupt):
            send("late")
        assert pending(agent) == ["late", "late", "late", "late"]
        with pytest.raises(AgentBusy):
            await agent.run_maintenance(trio.sleep, 0)
        gate.set()
        await handle.dispose()
        assert ending_kinds(agent.session) == ["Aborted DisposedCause"]
        with pytest.raises(AgentDisposed):
            agent.followup("too late")


@played
async def test_no_user_can_write_the_engines_own_events() -> None:
    """C151: an event that the order does not allow is refused whole, whoever appends it."""
    async with one(["ok"]) as life:
        await life.say()
        before = whole(life.session)
        with pytest.raises(IllegalEvent):
            life.session.append(before[-1].data)
        assert whole(life.session) == before


@played
async def test_a_gate_is_no_reason_to_wait_for_another_turn() -> None:
    """`ask` from a task that has nothing to do with the agent waits behind its turn."""
    async with one(ScriptedModel(lambda r: answer(Gate("go"), "ok"))) as life:
        life.agent.followup("running")
        await settled()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                assert (await life.agent.ask("mine")).number == 2

            nursery.start_soon(ask)
            await settled()
            life.model.gates.open("go")
