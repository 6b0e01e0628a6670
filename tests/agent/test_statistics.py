"""What statistics tell of an engine and of an agent, while it happens."""

from __future__ import annotations

import threading
from typing import Any

import attrs
import pytest
import trio
from tests.agent.kit import codes, engine_on, played, settled
from tests.agent.rig import one

from terzetto import (
    AgentStatistics,
    EngineStatistics,
    OverdueCall,
    WrongThread,
    tool,
)
from terzetto.llm.scripted import Gate, ScriptedModel, answer, call, say
from terzetto.vocabulary import texts

NOTHING = EngineStatistics(
    agents_living=0,
    agents_running=0,
    turns_open=0,
    tool_bodies_running=0,
    messages_pending=0,
    threads_borrowed=0,
    calls_overdue=(),
)
IDLE = AgentStatistics(
    status="idle", turn_open=False, tool_bodies_running=0, messages_pending=0, calls_overdue=()
)
LIVING = attrs.evolve(IDLE, tasks_living=1)
"""An agent is one task, as long as it runs no tools."""


@played
async def test_an_engine_without_agents_does_nothing() -> None:
    """Before, and after it was left."""
    async with engine_on(ScriptedModel()) as engine:
        assert engine.statistics() == NOTHING
        async with engine.open_agent(provider="scripted", model="m") as agent:
            assert engine.statistics() == attrs.evolve(NOTHING, agents_living=1, tasks_living=1)
            assert agent.statistics() == LIVING
        assert engine.statistics() == NOTHING
    assert engine.statistics() == NOTHING
    assert agent.statistics() == IDLE


def test_statistics_can_be_read_after_the_run() -> None:
    async def main() -> Any:
        async with engine_on(ScriptedModel()) as engine:
            return engine

    assert trio.run(main).statistics() == NOTHING


@played
async def test_running_agents_open_turns_and_pending_messages_are_counted() -> None:
    """C7 C12: a status, a turn and a claim each change at their own moment."""
    gated = [answer(say("a"), Gate("hold")), "next"]
    async with one(gated) as life:
        other = await life.engine.agents.create(provider="scripted", model="m")
        life.agent.followup("first")
        # Woken and not yet driven: running, and no turn is open.
        assert life.agent.statistics() == attrs.evolve(LIVING, status="running", messages_pending=1)
        await life.model.gates.wait_reached("hold")
        for how in ("followup", "steer", "inject"):
            getattr(life.agent, how)(how)
        other.agent.inject("parked")
        assert life.agent.statistics() == attrs.evolve(
            LIVING, status="running", turn_open=True, messages_pending=3
        )
        assert life.engine.statistics() == attrs.evolve(
            NOTHING,
            agents_living=2,
            agents_running=1,
            turns_open=1,
            messages_pending=4,
            tasks_living=2,
        )
        life.agent.cancel()
        await life.agent.wait_idle()
        assert life.agent.statistics() == LIVING
        assert other.agent.statistics().messages_pending == 1
        await other.dispose()
        assert life.engine.statistics() == attrs.evolve(NOTHING, agents_living=1, tasks_living=1)


@played
async def test_children_calls_and_tasks_are_counted_once() -> None:
    """C173: a child's tasks are below its parent's, and no sum counts them twice."""
    gated = [answer(call("wait", id="c1"), call("wait", id="c2"))]
    go_on = trio.Event()

    @tool(parallel=True)
    async def wait() -> str:
        await go_on.wait()
        return "waited"

    async with one(gated, [wait]) as life:
        child = await life.engine.agents.create(
            provider="scripted", model="m", parent=life.agent, session_id="child"
        )
        life.agent.followup("go")
        await settled()
        mine, theirs = life.agent.statistics(), child.agent.statistics()
        assert (mine.calls_running, mine.tasks_living) == (2, 4)
        assert (theirs.calls_running, theirs.tasks_living) == (0, 1)
        total = life.engine.statistics()
        assert (total.agents_living, total.children_living) == (2, 1)
        assert (total.calls_running, total.tasks_living) == (2, 4)
        go_on.set()
        await life.agent.wait_idle()
        await child.dispose()
        assert life.engine.statistics().tasks_living == 1


@played
async def test_bodies_are_counted_from_their_begin_to_their_end() -> None:
    """C120: not while policy is asked, not while the result waits for earlier ones."""
    seen: list[int] = []

    @tool(parallel=True)
    async def nap(seconds: float) -> str:
        await trio.sleep(seconds)
        return "ok"

    async def around(hook: Any, proceed: Any) -> Any:
        await trio.sleep(1)
        outcome = await proceed()
        await trio.sleep(1)
        return outcome

    script = [answer(*(call("nap", id=f"c{n}", seconds=n) for n in (3, 1, 2))), "done"]
    async with one(script, [nap]) as life:
        life.hooks.tool_execute.listen(around)
        life.agent.followup("go")
        for _ in range(6):
            await trio.sleep(0.5)
            seen.append(life.engine.statistics().tool_bodies_running)
            await trio.sleep(0.5)
        await life.agent.wait_idle()
        assert seen == [0, 3, 2, 1, 0, 0]
        assert life.engine.statistics().tool_bodies_running == 0


@played
async def test_an_overdue_call_is_named_until_its_body_has_ended() -> None:
    """BC-13 (e): 0.2 s, and a `finally` that shields 10 s. Decided when the deadline fires,
    committed when the body has ended; until then statistics name the call. The turn goes on."""

    @tool(timeout=0.2, parallel=True)
    async def slow() -> str:
        try:
            await trio.sleep(5)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(10)
        return "never"

    @tool(timeout=0.2, parallel=True)
    async def quick() -> str:
        return "ok"

    script = [answer(call("slow", id="c1"), call("quick", id="c2")), "done"]
    async with one(script, [slow, quick]) as life:
        life.agent.followup("go")
        await trio.sleep(0.1)
        assert life.engine.statistics().calls_overdue == ()
        await trio.sleep(0.6)
        (overdue,) = life.engine.statistics().calls_overdue
        assert overdue == OverdueCall(
            agent_id=life.agent.id, call_id="c1", tool="slow", seconds=overdue.seconds
        )
        assert overdue.seconds == pytest.approx(0.5)
        assert life.agent.statistics().calls_overdue[0].call_id == "c1"
        assert codes(life.session) == {}, "decided, and not committed"
        await trio.sleep(9)
        (overdue,) = life.engine.statistics().calls_overdue
        assert overdue.seconds == pytest.approx(9.5)
        await life.agent.wait_idle()
        assert trio.current_time() == pytest.approx(10.2)
        assert codes(life.session) == {"c1": texts.TOOL_TIMEOUT, "c2": None}
        assert life.engine.statistics().calls_overdue == ()
        assert life.request()[-2:] == [
            "result c1!: Error: tool call timed out after 0.2 s",
            "result c2: ok",
        ]


@played
async def test_a_cancelled_call_is_not_overdue_however_long_it_cleans_up() -> None:
    """BC-13 (c): a cancel is no timeout, and stays none when the deadline passes later."""

    @tool(timeout=2)
    async def tidy() -> str:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(10)
        return "never"

    async with one([call("tidy", id="c1")], [tidy]) as life:
        life.agent.followup("go")
        await trio.sleep(1)
        life.agent.cancel()
        await trio.sleep(5)
        assert life.engine.statistics().calls_overdue == ()
        assert life.engine.statistics().tool_bodies_running == 1
        await life.agent.wait_idle()
        assert codes(life.session) == {"c1": texts.ABORTED}


@played
async def test_an_overdue_call_stays_overdue_when_a_cancel_follows() -> None:
    """BC-13 (e): decided when the deadline fired, whoever stops the turn afterwards."""

    @tool(timeout=1)
    async def tidy() -> str:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(10)
        return "never"

    async with one([call("tidy", id="c1")], [tidy]) as life:
        life.agent.followup("go")
        await trio.sleep(2)
        life.agent.cancel()
        await trio.sleep(5)
        (overdue,) = life.engine.statistics().calls_overdue
        assert overdue.seconds == pytest.approx(6)
        await life.agent.wait_idle()
        assert codes(life.session) == {"c1": texts.TOOL_TIMEOUT}
        assert life.agent.statistics() == LIVING


@played
async def test_overdue_calls_of_several_agents_are_told_apart() -> None:
    @tool(timeout=1)
    async def stubborn() -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(9)
        return "late"

    def reply(request: Any) -> Any:
        return call("stubborn", id="c1") if len(request.messages) == 1 else "done"

    async with one(reply, [stubborn]) as life:
        other = await life.engine.agents.create(provider="scripted", model="m", session_id="o")
        life.agent.followup("go")
        await trio.sleep(3)
        other.agent.followup("go")
        await trio.sleep(3)
        await settled()
        found = {one.agent_id: one.seconds for one in life.engine.statistics().calls_overdue}
        assert found == {life.agent.id: pytest.approx(5), "o": pytest.approx(2)}
        assert [one.agent_id for one in other.agent.statistics().calls_overdue] == ["o"]


def test_borrowed_threads_are_counted_and_an_overdue_thread_is_named() -> None:
    """BC-13 (e) BC-34: a thread cannot be stopped, so it is overdue until it ends."""
    release = threading.Event()

    @tool(timeout=0.01)
    def block() -> str:
        assert release.wait(20)
        return "late"

    async def main() -> None:
        async with one([call("block", id="c1"), "done"], [block]) as life:
            life.agent.followup("go")
            while not (overdue := life.engine.statistics().calls_overdue):
                await trio.sleep(0.001)
            assert [(one.call_id, one.tool) for one in overdue] == [("c1", "block")]
            assert overdue[0].seconds >= 0
            assert life.engine.statistics().threads_borrowed == 1
            assert life.engine.statistics().tool_bodies_running == 1
            release.set()
            await life.agent.wait_idle()
            assert codes(life.session) == {"c1": texts.TOOL_TIMEOUT}
            assert life.engine.statistics() == attrs.evolve(
                NOTHING, agents_living=1, tasks_living=1
            )

    async def bounded() -> None:
        with trio.fail_after(20):
            await main()

    trio.run(bounded)


def test_statistics_belong_to_the_trio_thread() -> None:
    async def main() -> None:
        async with one() as life:
            for ask in (life.engine.statistics, life.agent.statistics):
                with pytest.raises(WrongThread):
                    await trio.to_thread.run_sync(ask)

    trio.run(main)


@played
async def test_statistics_are_frozen_and_remember_nothing() -> None:
    async with one() as life:
        before = life.engine.statistics()
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            before.agents_living = 2  # type: ignore[misc]
        life.agent.inject("a note")
        assert before.messages_pending == 0
        assert life.engine.statistics().messages_pending == 1
