"""Coming back to a session: open it or make it, see its last turn, run what waits."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import given, settings
from tests.agent.kit import (
    ROUTE,
    Faults,
    check,
    ending_kinds,
    engine_on,
    pending,
    play,
    played,
)
from tests.agent.rig import one
from tests.strategies_logs import legal_logs, recorded_logs
from tests.whole import whole

import terzetto
from terzetto import (
    AgentDisposed,
    AgentExists,
    InboxNotice,
    InvalidValue,
    SessionExists,
    SessionNotFound,
    StoreError,
    UserCause,
    tool,
)
from terzetto.agent._turn import last_turn
from terzetto.llm.scripted import Gate, ScriptedModel, answer, call, refuse, say
from terzetto.session import Session, replay
from terzetto.vocabulary import SessionHeader, SessionId, TurnEnd, TurnStart

# --- open it or make it ----------------------------------------------------------------------


@played
async def test_a_session_is_made_the_first_time_and_resumed_after() -> None:
    """C7: one identity over the lives of a program."""
    store, model = Faults(), ScriptedModel(lambda request: "fine")
    for life in range(3):
        async with engine_on(model, store=store) as engine:
            options: dict[str, Any] = {"session_id": "job-7", "if_stored": "resume", **ROUTE}
            async with engine.open_agent(**options, cwd="/work", meta={"a": 1}) as agent:
                assert (await agent.ask(f"{life}")).number == life + 1
                assert agent.session.header.cwd == "/work"
    assert len(model.requests[-1].messages) == 5
    assert store.seen.count("create") == 1


@played
async def test_what_is_stored_and_cannot_be_loaded_is_an_error() -> None:
    """C7: it is never made anew over a session that is there."""

    async def broken() -> None:
        raise StoreError("a damaged record")

    store = Faults()
    options: dict[str, Any] = {"session_id": "job-7", "if_stored": "resume", **ROUTE}
    async with engine_on(ScriptedModel(["fine"]), store=store) as engine:
        async with engine.open_agent(**options) as agent:
            await agent.ask("go")
        store.at["read"] = broken
        with pytest.raises(StoreError, match="a damaged record"):
            async with engine.open_agent(**options):
                raise AssertionError
        assert store.seen.count("create") == 1
        del store.at["read"]
        async with engine.open_agent(**options) as agent:
            with pytest.raises(AgentExists):  # one that lives is not opened twice
                async with engine.open_agent(**options):
                    raise AssertionError


@played
async def test_another_session_that_is_not_found_while_composing_is_the_error() -> None:
    """C7: what *setup* misses says nothing of the session itself."""

    def compose(agent: terzetto.Agent) -> None:
        raise SessionNotFound("no session 'the child'")

    store = Faults()
    options: dict[str, Any] = {"session_id": "job-7", "if_stored": "resume", **ROUTE}
    async with engine_on(ScriptedModel(["fine"]), store=store) as engine:
        async with engine.open_agent(**options) as agent:
            await agent.ask("go")
        with pytest.raises(SessionNotFound, match="the child"):
            async with engine.open_agent(**options, setup=compose):
                pass
        assert store.seen.count("create") == 1
        with pytest.raises(SessionNotFound, match="the child"):
            async with engine.open_agent(**{**options, "session_id": "new"}, setup=compose):
                pass
        async with engine.open_agent(**options) as agent:
            assert len(agent.history()) == 2


@played
async def test_without_a_store_there_is_nothing_to_resume() -> None:
    async with engine_on(ScriptedModel(["fine"])) as engine:
        async with engine.open_agent(session_id="x", if_stored="resume", **ROUTE) as agent:
            assert (await agent.ask("go")).text == "fine"


@played
async def test_refusing_is_the_default() -> None:
    store = Faults()
    async with engine_on(store=store) as engine:
        async with engine.open_agent(session_id="x", **ROUTE):
            pass
        with pytest.raises(SessionExists):
            async with engine.open_agent(session_id="x", **ROUTE):
                raise AssertionError
        with pytest.raises(SessionNotFound):
            async with engine.open_agent(resume="y"):
                raise AssertionError


@played
async def test_senseless_combinations_are_refused() -> None:
    async with engine_on() as engine:
        for options in (
            {"if_stored": "maybe", "session_id": "x"},
            {"if_stored": "resume"},
            {"if_stored": "resume", "session_id": "x", "resume": "x"},
        ):
            with pytest.raises(InvalidValue):
                async with engine.open_agent(**options):  # type: ignore[arg-type]
                    raise AssertionError
        assert engine.agents.list() == []


# --- the last turn ------------------------------------------------------------------------------


@played
async def test_the_last_turn_is_what_ask_gave() -> None:
    """Live and in the next life, input that was put back included."""
    store = Faults()
    async with one(["fine", refuse(500)], engine={"store": store}) as life:
        assert life.agent.last_turn() is None
        turn = await life.agent.ask("go")
        assert life.agent.last_turn() == turn
        with pytest.raises(terzetto.TurnFailed) as failed:
            await life.agent.ask("again")
        assert life.agent.last_turn() == failed.value.turn
        name = life.agent.id
    async with one(engine={"store": store}, resume=name, provider=None, model=None) as life:
        assert life.agent.last_turn() == failed.value.turn


@played
async def test_input_that_was_put_back_is_not_consumed() -> None:
    async with one(["never"]) as life:

        async def hold(value: object, proceed: object) -> object:
            await trio.sleep_forever()

        life.hooks.pre_step.listen(hold)
        life.agent.followup("go")
        await trio.testing.wait_all_tasks_blocked()
        life.agent.cancel(keep_inbox=True)
        await life.agent.wait_idle()
        turn = life.agent.last_turn()
        assert turn is not None
        assert (turn.reason, turn.consumed, turn.messages) == ("aborted", (), ())
        assert pending(life.agent) == ["go"]


@pytest.mark.parametrize("keep", [True, False])
def test_a_turn_cancelled_before_it_entered_its_input_consumed_none(keep: bool) -> None:
    """Put back, and without *keep* discarded: `ask` and the log say the same."""

    @played
    async def run() -> None:
        async with one(["never"]) as life:

            async def hold(value: object, proceed: object) -> object:
                await trio.sleep_forever()

            async def ask() -> None:
                turns.append(await life.agent.ask("go"))

            turns: list[terzetto.Turn] = []
            life.hooks.pre_step.listen(hold)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                life.agent.cancel(keep_inbox=keep)
            assert turns == [life.agent.last_turn()]
            assert turns[0].consumed == ()

    run()


@settings(max_examples=60)
@given(legal_logs() | recorded_logs())
def test_the_last_turn_of_any_log_is_its_last_turn_end(log: Any) -> None:
    session = Session(SessionHeader(id=SessionId("s"), created_ms=0), now_ms=lambda: 0)
    replay(session, log)
    turn = last_turn(session)
    ends = [event for event in log if isinstance(event.data, TurnEnd)]
    if not ends:
        assert turn is None
        return
    assert turn is not None
    assert (turn.number, turn.ending) == (ends[-1].data.turn, ends[-1].data.ending)
    starts = [e.seq for e in log if isinstance(e.data, TurnStart) and e.data.turn == turn.number]
    inside = [e for e in log if starts[-1] <= e.seq <= ends[-1].seq]
    shown = [e.data.message for e in inside if hasattr(e.data, "message")]
    assert list(turn.messages) == shown


# --- wake -----------------------------------------------------------------------------------------


@played
async def test_what_a_resume_found_pending_runs_when_woken() -> None:
    store = Faults()
    async with one(engine={"store": store}) as life:
        with trio.CancelScope() as scope:  # what is pending outlives a host's cancel
            async with life.engine.open_agent(session_id="other", **ROUTE) as other:
                other.inbox.append("next-turn", terzetto.UserMessage("wait"))
                scope.cancel()
                await trio.sleep_forever()
    async with one(["fine"], engine={"store": store}, resume="other") as life:
        assert pending(life.agent) == ["wait"]
        assert life.agent.wake()
        assert life.agent.status == "running"
        await life.agent.wait_idle()
        assert life.request() == ["user: wait"]


@played
async def test_with_nothing_pending_it_does_nothing() -> None:
    async with one() as life:
        before = whole(life.session)
        assert not life.agent.wake()
        assert (life.agent.status, whole(life.session)) == ("idle", before)


@played
async def test_a_parked_queue_goes_on() -> None:
    """After a failure and after a cancel that kept the inbox (C68)."""
    async with one([refuse(401), answer(say("a"), Gate("mid")), "done"]) as life:
        life.agent.followup("one")
        life.agent.followup("two")
        life.agent.followup("three")
        await life.agent.wait_idle()
        assert pending(life.agent) == ["two", "three"]
        assert life.agent.wake()
        await life.model.gates.wait_reached("mid")
        life.agent.cancel(UserCause(), keep_inbox=True)
        await life.agent.wait_idle()
        assert pending(life.agent) == ["three"]
        assert life.agent.wake()
        await life.agent.wait_idle()
        assert ending_kinds(life.session) == ["Failed", "Aborted UserCause", "Completed"]
        check(life.session)


@played
async def test_while_a_cancel_converges_it_is_latched() -> None:
    """BC-07: as any waking input."""
    async with one([answer(say("a"), Gate("mid")), "done"]) as life:
        life.agent.followup("one")
        life.agent.followup("two")
        await life.model.gates.wait_reached("mid")
        life.agent.cancel(keep_inbox=True)
        assert life.agent.wake()
        await life.agent.wait_idle()
        assert ending_kinds(life.session) == ["Aborted UserCause", "Completed"]


@played
async def test_during_a_turn_it_makes_injected_input_count() -> None:
    """What `inject` added would wait for a step that happens; woken, it gets one."""
    async with one([answer(say("a"), Gate("mid")), "done"]) as life:
        life.agent.followup("one")
        await life.model.gates.wait_reached("mid")
        life.agent.inject("a note")
        assert life.agent.wake()
        life.model.gates.open("mid")
        await life.agent.wait_idle()
        assert life.request() == ["user: one", "assistant: a", "user: a note"]


@played
async def test_during_maintenance_it_waits_for_its_end() -> None:
    async with one(["done"]) as life:
        life.agent.inbox.append("next-turn", terzetto.UserMessage("go"))

        async def job() -> None:
            assert life.agent.wake()
            await trio.sleep(1)
            assert life.model.requests == []

        await life.agent.run_maintenance(job)
        await life.agent.wait_idle()
        assert life.request() == ["user: go"]


@played
async def test_a_disposed_agent_refuses() -> None:
    async with one() as life:
        pass
    with pytest.raises(AgentDisposed):
        life.agent.wake()


# --- what a stop leaves pending -------------------------------------------------------------------


@pytest.mark.parametrize("waits", ["wait_idle", "ask", "wait_status"])
@pytest.mark.parametrize("struck", ["body", "listener"])
def test_a_ctrl_c_keeps_pending_input_whoever_hears_of_it_first(waits: str, struck: str) -> None:
    """Who waits for the agent may be told that the turn is over, and leave its block, before
    the interrupt reaches him. The scheduler's choice must not decide what is kept."""

    @tool
    async def strike() -> str:
        """Be interrupted."""
        if struck == "body":
            raise KeyboardInterrupt
        return "struck"

    async def main(store: Faults) -> None:
        async with one([answer(call("strike"))], [strike], engine={"store": store}) as life:

            def listener(value: object) -> None:
                raise KeyboardInterrupt

            if struck == "listener":
                life.hooks.tool_result.listen(listener)
            agent = life.agent
            if waits == "ask":

                def queue(notice: InboxNotice) -> None:
                    agent.inbox.append("next-turn", terzetto.UserMessage("later"))

                life.hooks.inbox_claimed.listen(queue)
                await agent.ask("go")
            else:
                agent.followup("go")
                agent.followup("later")
                await (agent.wait_idle() if waits == "wait_idle" else agent.wait_status("idle"))

    for seed in range(12):
        store = Faults()
        with pytest.raises(BaseException) as stopped:  # noqa: PT011
            play(main, store, seed=seed)
        assert "KeyboardInterrupt" in repr(stopped.value)
        (header,) = store.inner._sessions
        session = Session(SessionHeader(id=SessionId("s"), created_ms=0), now_ms=lambda: 0)
        replay(session, store.stored(header))
        assert [m.text for m in session.pending.lists["next-turn"]] == ["later"]
        assert ending_kinds(session) == ["Aborted DisposedCause"]
