"""`ask`: which turn it returns, what it raises, and how it keeps the driver awake."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.agent.kit import (
    ROUTE,
    Faults,
    check,
    discarded,
    ending_kinds,
    engine_on,
    kinds,
    pending,
    play,
    played,
    settled,
    texts_of,
)
from tests.whole import whole

from terzetto import (
    Agent,
    AgentDisposed,
    CodedError,
    HookCause,
    MessageDiscarded,
    PreStep,
    ProviderError,
    ToolRun,
    Turn,
    TurnFailed,
    Usage,
    UserMessage,
    WouldDeadlock,
    WrongThread,
    tool,
)
from terzetto.agent import Enter, Reject
from terzetto.llm.scripted import (
    Delay,
    Gate,
    Hang,
    ScriptedModel,
    answer,
    call,
    finish_error,
    say,
)
from terzetto.vocabulary import (
    DisposedCause,
    DuplicateMessage,
    InvalidValue,
    MaxTokens,
    TurnStart,
    UserMessageEvent,
)


def echo(request: Any) -> str:
    """A model that answers with the last text it was sent."""
    return f"<{texts_of(request.messages)[-1]}>"


async def pass_on(value: Any, proceed: Any) -> Any:
    return await proceed()


# --- which turn -------------------------------------------------------------------------


@played
async def test_ask_returns_the_turn_that_claimed_its_message() -> None:
    """DESIGN 1: number, reason, text, messages, usage, consumed; whatever else entered it."""
    usage = Usage(input_tokens=3, output_tokens=2)
    model = ScriptedModel([answer("one", usage=usage), answer("two", usage=usage)])
    async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
        note = agent.inject("a note")
        turn = await agent.ask("first")
        assert (turn.number, turn.reason, turn.text) == (1, "completed", "one")
        assert texts_of(turn.messages) == ["", "a note", "first", "one"]
        assert turn.usage == usage
        assert turn.consumed[0] == note
        assert len(turn.consumed) == 2
        turn = await agent.ask(UserMessage("second"))
        assert (turn.number, turn.text) == (2, "two")
        assert texts_of(turn.messages) == ["second", "two"]


@played
async def test_ask_waits_behind_the_queue_and_takes_its_own_turn() -> None:
    """C48 C56: prompts keep their order, one a turn; steering of that turn is part of it."""
    model = ScriptedModel(lambda r: answer(Delay(1), echo(r)))
    async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
        agent.followup("before")
        turns: list[Turn] = []

        async def ask() -> None:
            turns.append(await agent.ask("mine"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await settled()
            agent.followup("after")
            await trio.sleep(1.5)
            agent.steer("steered into it")
        assert turns[0].number == 2
        assert texts_of(turns[0].messages) == [
            "mine",
            "<mine>",
            "steered into it",
            "<steered into it>",
        ]
        await agent.wait_idle()
        assert ending_kinds(agent.session) == ["Completed"] * 3


@pytest.mark.parametrize("seed", range(4))
def test_several_asks_at_once_each_get_their_own_turn(seed: int) -> None:
    """DESIGN 1: concurrent asks, in the order in which they were sent."""

    async def run() -> None:
        got: dict[str, Turn] = {}

        async def ask(agent: Agent, text: str) -> None:
            got[text] = await agent.ask(text)

        async with engine_on(ScriptedModel(lambda r: answer(Delay(1), echo(r)))) as engine:
            async with engine.open_agent(**ROUTE) as agent, trio.open_nursery() as nursery:
                for index in range(5):
                    nursery.start_soon(ask, agent, f"q{index}")
            sent = [
                texts_of([e.data.message])[0]
                for e in agent.session.events
                if isinstance(e.data, UserMessageEvent)
            ]
        assert sorted(got) == [f"q{index}" for index in range(5)]
        for number, text in enumerate(sent, start=1):
            assert (got[text].number, got[text].text) == (number, f"<{text}>")

    play(run, seed=seed)


@played
async def test_a_prompt_moved_by_an_edit_is_still_the_prompt_that_is_asked() -> None:
    """DESIGN 1 and C55: MessageDiscarded is for a message that was removed; one that a splice
    only moves is pending all the time, and its asker still waits."""
    model = ScriptedModel(lambda r: answer(Gate("go"), echo(r)))
    async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
        agent.followup("running")
        await settled()
        got: list[Turn] = []

        async def ask() -> None:
            got.append(await agent.ask("mine"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await settled()
            agent.followup("other")
            mine, other = agent.inbox.next_turn
            agent.inbox.splice("next-turn", 0, 2, [other, mine])
            assert pending(agent) == ["other", "mine"]
            model.gates.open("go")
        assert (got[0].number, got[0].text) == (3, "<mine>")


@played
async def test_a_prompt_moved_to_next_step_is_asked_there() -> None:
    """C55: replaced by itself in the other list in two edits, it was removed in between."""
    model = ScriptedModel(lambda r: answer(Gate("go"), echo(r)))
    async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
        agent.followup("running")
        await settled()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_raises, MessageDiscarded, agent.ask, "mine")
            await settled()
            (mine,) = agent.inbox.next_turn
            assert agent.inbox.remove(mine.id)
            agent.inbox.append("next-step", mine)
            model.gates.open("go")
        await agent.wait_idle()


async def _raises(kind: type[BaseException], fn: Any, *args: Any) -> None:
    with pytest.raises(kind):
        await fn(*args)


@pytest.mark.parametrize("moment", ["pending", "claimed", "put back"])
def test_a_second_ask_with_the_same_message_takes_nothing_from_the_first(moment: str) -> None:
    """C54 and DESIGN 1: the second raises DuplicateMessage, or is answered by a turn of its own;
    the first ask still gets its turn."""

    @played
    async def run() -> None:
        message = UserMessage("mine")
        got: list[Turn] = []
        refused: list[type] = []
        model = ScriptedModel(lambda r: answer(Gate("go"), echo(r)))
        async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:

            async def first() -> None:
                got.append(await agent.ask(message))

            async def second() -> None:
                try:
                    await agent.ask(message)
                except DuplicateMessage as error:
                    refused.append(type(error))

            if moment == "pending":
                agent.followup("running")
                await settled()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first)
                await settled()
                nursery.start_soon(second)
                await settled()
                if moment == "pending":
                    assert refused == [DuplicateMessage]
                if moment == "put back":
                    agent.cancel(keep_inbox=True)
                    await settled()
                model.gates.open("go")
            assert got[0].number == (2 if moment == "pending" else 1)

    run()


@played
async def test_a_duplicate_sent_by_hand_does_not_disturb_an_ask() -> None:
    """C54: inserting a pending id raises and changes nothing."""
    message = UserMessage("mine")
    model = ScriptedModel(lambda r: answer(Gate("go"), "ok"))
    async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
        agent.followup("running")
        await settled()
        async with trio.open_nursery() as nursery:
            got: list[Turn] = []

            async def ask() -> None:
                got.append(await agent.ask(message))

            nursery.start_soon(ask)
            await settled()
            before = len(agent.session.events)
            for send in (agent.followup, agent.steer, agent.inject):
                with pytest.raises(DuplicateMessage):
                    send(message)
            assert len(agent.session.events) == before
            model.gates.open("go")
        assert got[0].number == 2


# --- how it ended -----------------------------------------------------------------------


@played
async def test_a_failed_turn_raises_with_the_turn_and_the_typed_error() -> None:
    """C137 and DESIGN 1: TurnFailed carries the turn and the failure; its cause is the error."""
    model = ScriptedModel([answer(say("half"), finish_error("QUOTA", "no money", status=402))])
    async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
        with pytest.raises(TurnFailed) as caught:
            await agent.ask("go")
        error = caught.value
        assert error.code == "QUOTA"
        assert error.turn.reason == "error"
        assert error.turn.number == 1
        assert error.failure.status == 402
        assert isinstance(error.__cause__, ProviderError)
        assert error.__cause__.failure == error.failure
        assert texts_of(error.turn.messages)[-1] == "go", "nothing of a failed attempt is content"
        assert not isinstance(error, ExceptionGroup)


@pytest.mark.parametrize("error", [ValueError("mine"), CodedError("mine", "MINE")], ids=repr)
def test_a_hooks_own_error_is_the_cause(error: Exception, caplog: Any) -> None:
    """C68 C137: an extension failure closes the turn with an error; the driver goes on."""

    async def fail(value: object) -> None:
        raise error

    async def run() -> None:
        async with engine_on(ScriptedModel(echo)) as engine, engine.open_agent(**ROUTE) as agent:
            with agent.scope.hooks.turn_stopping.listen(fail):
                with pytest.raises(TurnFailed) as caught:
                    await agent.ask("go")
            assert caught.value.__cause__ is error
            assert caught.value.code == getattr(error, "code", "UNKNOWN")
            assert caught.value.turn.text == "<go>", "the answer was committed before"
            assert (await agent.ask("again")).text == "<again>"
            check(agent.session)

    played(run)()


@played
async def test_a_rejected_message_gives_a_blocked_turn() -> None:
    """C61 C71: blocked, without a step; the message is consumed."""

    async def reject(value: PreStep, proceed: Any) -> Reject:
        return Reject()

    async with engine_on(ScriptedModel(echo)) as engine, engine.open_agent(**ROUTE) as agent:
        with agent.scope.hooks.pre_step.listen(reject):
            turn = await agent.ask("go")
        assert (turn.reason, turn.messages, turn.text) == ("blocked", (), "")
        assert len(turn.consumed) == 1
        assert pending(agent) == []
        assert kinds(agent.session)[-1] == "TurnEnd"
        check(agent.session)


@played
async def test_an_emptied_batch_gives_a_completed_turn_without_a_step() -> None:
    """C61 C71: no model call is spent."""

    async def empty(value: PreStep, proceed: Any) -> Enter:
        return Enter(())

    model = ScriptedModel(echo)
    async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
        agent.scope.hooks.pre_step.listen(empty)
        turn = await agent.ask("go")
        assert (turn.reason, turn.messages, model.attempts) == ("completed", (), 0)


@played
async def test_max_tokens_is_returned_not_raised() -> None:
    """C65 and DESIGN 1."""
    model = ScriptedModel([answer("long", finish=MaxTokens())])
    async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
        turn = await agent.ask("go")
        assert (turn.reason, turn.text) == ("max-tokens", "long")


@pytest.mark.parametrize("keep_inbox", [True, False])
@pytest.mark.parametrize("point", ["before admission", "streaming"])
def test_a_cancelled_turn_is_returned_as_aborted(keep_inbox: bool, point: str) -> None:
    """C127 and DESIGN 6: with what was delivered; consumed names what was not put back."""

    @played
    async def run() -> None:
        async def wait(value: PreStep, proceed: Any) -> Any:
            await trio.sleep_forever()

        model = ScriptedModel(lambda r: answer(say("part of it"), Hang()))
        async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
            if point == "before admission":
                agent.scope.hooks.pre_step.listen(wait)
            got: list[Turn] = []

            async def ask() -> None:
                got.append(await agent.ask("go"))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await settled()
                agent.cancel(HookCause("enough"), keep_inbox=keep_inbox)
            (turn,) = got
            assert turn.reason == "aborted"
            assert ending_kinds(agent.session) == ["Aborted HookCause"]
            if point == "streaming":
                assert turn.text == "part of it"
                assert len(turn.consumed) == 1
                assert pending(agent) == []
            elif keep_inbox:
                assert turn.consumed == ()
                assert pending(agent) == ["go"]
            else:
                assert pending(agent) == []
                assert discarded(agent.session) == ["go"]
            check(agent.session)

    run()


@pytest.mark.parametrize("how", ["remove", "clear", "cancel", "replace"])
def test_a_message_removed_before_any_turn_claims_it_is_discarded(how: str) -> None:
    """DESIGN 1: MessageDiscarded, whoever removed it."""

    @played
    async def run() -> None:
        model = ScriptedModel(lambda r: answer(Gate("go"), "ok"))
        async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
            agent.followup("running")
            await settled()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_raises, MessageDiscarded, agent.ask, "mine")
                await settled()
                (mine,) = agent.inbox.next_turn
                if how == "remove":
                    assert agent.inbox.remove(mine.id)
                elif how == "clear":
                    agent.inbox.clear()
                elif how == "replace":
                    agent.inbox.replace(mine.id, UserMessage("another"))
                else:
                    agent.cancel()
            assert discarded(agent.session) == ["mine"]

    run()


@played
async def test_asking_a_disposed_agent_raises_at_once() -> None:
    """DESIGN 4."""
    async with engine_on(ScriptedModel(echo)) as engine:
        async with engine.open_agent(**ROUTE) as agent:
            pass
        with pytest.raises(AgentDisposed):
            await agent.ask("too late")


# --- a standing wake --------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["error", "blocked", "cancel keeping the inbox"])
def test_the_driver_does_not_idle_over_a_pending_ask(ending: str, caplog: Any) -> None:
    """DESIGN 1: "while it waits, its pending message is a standing wake". Failure, rejection and
    a cancel that keeps the inbox park the queue; not over an ask."""

    async def run() -> None:
        rejected: list[int] = []

        async def decide(value: PreStep, proceed: Any) -> Any:
            if ending == "blocked" and not rejected:
                rejected.append(value.turn)
                await gate.wait()
                return Reject()
            return await proceed()

        gate = trio.Event()
        first = answer(Gate("go"), finish_error()) if ending == "error" else answer("x", Hang())
        model = ScriptedModel([first, "a", "b", "c"] if ending != "blocked" else ["a", "b", "c"])
        statuses: list[str] = []
        async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
            agent.scope.hooks.pre_step.listen(decide)
            agent.scope.hooks.status.listen(lambda v: statuses.append(v.status))
            agent.followup("first")
            await settled()
            agent.followup("queued")
            got: list[Turn] = []

            async def ask() -> None:
                got.append(await agent.ask("asked"))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await settled()
                if ending == "error":
                    model.gates.open("go")
                elif ending == "blocked":
                    gate.set()
                else:
                    agent.cancel(keep_inbox=True)
            assert got[0].number == 3, "the queue keeps its order"
            assert got[0].reason == "completed"
            await agent.wait_idle()
            assert statuses == ["running", "idle"], "it did not idle before the ask was answered"
            check(agent.session)

    played(run)()


@played
async def test_a_failure_without_an_ask_parks_the_queue() -> None:
    """REFERENCE 2.5: the difference that a standing wake makes."""
    model = ScriptedModel([answer(Gate("go"), finish_error()), "a", "b"])
    async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
        agent.followup("first")
        agent.followup("queued")
        await settled()
        model.gates.open("go")
        await agent.wait_idle()
        assert pending(agent) == ["queued"]
        turn = await agent.ask("asked")
        assert turn.number == 3
        assert pending(agent) == []


@played
async def test_an_ask_that_is_over_wakes_nobody() -> None:
    """DESIGN 1: "while it waits": a cancelled ask that left its message is no standing wake."""
    model = ScriptedModel([answer(Gate("go"), finish_error()), "a", "b"])
    async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
        agent.followup("first")
        await settled()
        with trio.move_on_after(1) as scope:
            await agent.ask("asked", on_cancel="leave")
        assert scope.cancelled_caught
        assert pending(agent) == ["asked"]
        model.gates.open("go")
        await agent.wait_idle()
        assert pending(agent) == ["asked"]


@played
async def test_an_ask_during_maintenance_runs_when_it_has_settled() -> None:
    """C67: waking input waits in the inbox until it settles."""
    async with engine_on(ScriptedModel(echo)) as engine, engine.open_agent(**ROUTE) as agent:
        gate = trio.Event()
        got: list[Turn] = []

        async def ask() -> None:
            got.append(await agent.ask("asked"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.run_maintenance, gate.wait)
            await settled()
            nursery.start_soon(ask)
            await settled()
            assert (agent.status, pending(agent)) == ("idle", ["asked"])
            gate.set()
        assert got[0].text == "<asked>"


@pytest.mark.parametrize("keep_inbox", [True, False])
def test_an_ask_during_a_maintenance_that_is_cancelled(keep_inbox: bool) -> None:
    """C67 C126: kept, it runs afterwards; cleared, it is discarded."""

    @played
    async def run() -> None:
        from terzetto.vocabulary import ActivityCancelled

        async with engine_on(ScriptedModel(echo)) as engine, engine.open_agent(**ROUTE) as agent:
            got: list[object] = []

            async def ask() -> None:
                try:
                    got.append((await agent.ask("asked")).text)
                except MessageDiscarded:
                    got.append("discarded")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    _raises, ActivityCancelled, agent.run_maintenance, trio.sleep_forever
                )
                await settled()
                nursery.start_soon(ask)
                await settled()
                agent.cancel(keep_inbox=keep_inbox)
            assert got == ["<asked>" if keep_inbox else "discarded"]

    run()


# --- cancelled asks ---------------------------------------------------------------------


@played
async def test_a_cancelled_ask_removes_its_pending_message() -> None:
    """DESIGN 1: cancelled while pending: the message goes, the running turn does not."""
    model = ScriptedModel(lambda r: answer(Gate("go"), echo(r)))
    async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
        agent.followup("running")
        agent.followup("queued")
        await settled()
        with trio.move_on_after(1) as scope:
            await agent.ask("asked")
        assert scope.cancelled_caught
        assert pending(agent) == ["queued"]
        assert discarded(agent.session) == ["asked"]
        model.gates.open("go")
        await agent.wait_idle()
        assert ending_kinds(agent.session) == ["Completed", "Completed"]


@pytest.mark.parametrize("point", ["before admission", "streaming", "tool"])
def test_a_cancelled_ask_cancels_the_turn_that_claimed_its_message(point: str) -> None:
    """DESIGN 1: with keep_inbox; `Cancelled` goes on at once, without waiting for the turn."""

    @played
    async def run() -> None:
        @tool
        async def stubborn() -> str:
            """Ends when it likes."""
            with trio.CancelScope(shield=True):
                await trio.sleep(10)
            return "done"

        async def wait(value: PreStep, proceed: Any) -> Any:
            if point == "before admission":
                await trio.sleep_forever()
            return await proceed()

        first = call("stubborn", id="c") if point == "tool" else answer(say("part"), Hang())
        async with engine_on(ScriptedModel([first, "later"]), [stubborn]) as engine:
            async with engine.open_agent(**ROUTE) as agent:
                waiting = agent.scope.hooks.pre_step.listen(wait)
                start = trio.current_time()
                with trio.move_on_after(1) as scope:
                    await agent.ask("asked")
                assert scope.cancelled_caught
                assert trio.current_time() - start == pytest.approx(1), "at once"
                agent.inject("kept")
                waiting.remove()
                await agent.wait_idle()
                assert ending_kinds(agent.session)[0].startswith("Aborted")
                expected = ["kept", "asked"] if point == "before admission" else ["kept"]
                assert pending(agent) == expected
                check(agent.session)

    run()


@pytest.mark.parametrize("state", ["pending", "claimed"])
def test_a_cancelled_ask_can_leave_everything_as_it_is(state: str) -> None:
    """DESIGN 1: on_cancel="leave" neither removes nor cancels."""

    @played
    async def run() -> None:
        model = ScriptedModel(lambda r: answer(Gate("go"), echo(r)))
        async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
            if state == "pending":
                agent.followup("running")
                await settled()
            with trio.move_on_after(1) as scope:
                await agent.ask("asked", on_cancel="leave")
            assert scope.cancelled_caught
            assert discarded(agent.session) == []
            model.gates.open("go")
            await agent.wait_idle()
            assert set(ending_kinds(agent.session)) == {"Completed"}
            assert texts_of(agent.history())[-1] == "<asked>"

    run()


@played
async def test_an_ask_cancelled_before_it_began_sends_nothing() -> None:
    """STYLE 8: a cancelled caller changes nothing."""
    async with engine_on(ScriptedModel(echo)) as engine, engine.open_agent(**ROUTE) as agent:
        with trio.CancelScope() as scope:
            scope.cancel()
            await agent.ask("asked")
        assert scope.cancelled_caught
        assert whole(agent.session) == []
        assert agent.status == "idle"


@played
async def test_an_ask_cancelled_in_the_tick_of_its_answer_takes_nothing_back() -> None:
    """DESIGN 1: the turn it claimed is over; a later turn is not its to cancel."""
    async with engine_on(ScriptedModel(lambda r: answer(Delay(1), echo(r)))) as engine:
        async with engine.open_agent(**ROUTE) as agent:
            with trio.CancelScope() as scope:
                agent.scope.hooks.status.listen(
                    lambda v: scope.cancel() if v.status == "idle" else None
                )
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(agent.ask, "asked")
            agent.followup("later")
            await agent.wait_idle()
            assert ending_kinds(agent.session) == ["Completed", "Completed"]


@played
async def test_an_ask_cancelled_while_the_agents_log_is_closed_is_just_cancelled() -> None:
    """The write path takes no edit any more, so what is pending stays for the next resume."""
    store, asking, cut = Faults(), trio.CancelScope(), []

    async def closing() -> None:
        asking.cancel()
        await settled()

    async def ask(agent: Agent) -> None:
        with asking:
            await agent.ask("mine")
        cut.append(asking.cancelled_caught)

    async with trio.open_nursery() as nursery:
        async with engine_on(ScriptedModel([answer(Hang())]), store=store) as engine:
            agent = (await engine.agents.create(**ROUTE)).agent
            agent.followup("running")
            nursery.start_soon(ask, agent)
            await settled()
            store.at["close"] = closing
    assert cut == [True]
    assert pending(agent) == ["mine"]


@played
async def test_one_cancelled_ask_of_two_leaves_the_other_its_turn() -> None:
    """DESIGN 1: the inbox is kept, so a cancelled claimed ask costs only its own turn."""
    model = ScriptedModel([answer("x", Hang()), "second"])
    async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
        got: list[Turn] = []

        async def ask() -> None:
            got.append(await agent.ask("two"))

        async with trio.open_nursery() as nursery:
            with trio.move_on_after(1):
                async with trio.open_nursery() as inner:
                    inner.start_soon(agent.ask, "one")
                    await settled()
                    nursery.start_soon(ask)
        assert [turn.text for turn in got] == ["second"]
        assert ending_kinds(agent.session)[1:] == ["Completed"]


@played
async def test_on_cancel_is_checked_before_anything_is_sent() -> None:
    """STYLE 7: a value that cannot be meant is refused; a typo must not silently leave."""
    async with engine_on(ScriptedModel(echo)) as engine, engine.open_agent(**ROUTE) as agent:
        with pytest.raises(InvalidValue):
            await agent.ask("x", on_cancel="keep")  # type: ignore[call-overload]
        assert whole(agent.session) == []


# --- from inside --------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["ask", "wait_idle"])
@pytest.mark.parametrize(
    "where", ["tool", "tool's task", "pre_step", "stream", "turn_stopping", "child"]
)
def test_waiting_for_oneself_is_refused_at_once(what: str, where: str) -> None:
    """DESIGN 1: from inside its own tools, hooks or children it raises WouldDeadlock."""

    @played
    async def run() -> None:
        refused: list[str] = []

        async def attempt() -> None:
            before = len(agent.session.events)
            try:
                await (agent.ask("me") if what == "ask" else agent.wait_idle())
            except WouldDeadlock:
                refused.append(where)
            assert len(agent.session.events) == before, "nothing was sent"

        @tool
        async def act(run: ToolRun) -> str:
            """Act."""
            if where == "tool":
                await attempt()
            elif where == "tool's task":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(attempt)
            elif where == "child" and run.agent.id == agent.id:
                async with engine.open_agent(**ROUTE, parent=agent) as child:
                    await child.ask("act, child")
            elif where == "child":
                await attempt()
            return ""

        async def hook(value: Any, proceed: Any = None) -> Any:
            if not refused:
                await attempt()
            return await proceed() if proceed else None

        def model(request: Any) -> Any:
            last = texts_of(request.messages)[-1]
            return call("act") if last.startswith("act") else "done"

        async with engine_on(ScriptedModel(model), [act]) as engine:
            async with engine.open_agent(**ROUTE) as agent:
                if where in ("pre_step", "stream", "turn_stopping"):
                    getattr(agent.scope.hooks, where).listen(hook)
                await agent.ask("act")
        assert refused == [where]

    run()


@played
async def test_engine_wait_idle_from_inside_an_agent_is_refused() -> None:
    """DESIGN 1: it waits for every agent, so for the one it is called from."""
    refused: list[str] = []

    @tool
    async def act() -> str:
        """Act."""
        try:
            await engine.wait_idle()
        except WouldDeadlock:
            refused.append("refused")
        return ""

    def model(request: Any) -> Any:
        last = texts_of(request.messages)[-1]
        return {"act": call("act"), "slow": answer(Delay(1), "ok")}.get(last, "done")

    async with engine_on(ScriptedModel(model), [act]) as engine:
        other = (await engine.agents.create(**ROUTE)).agent
        other.followup("slow")
        async with engine.open_agent(**ROUTE) as agent:
            await agent.ask("act")
    assert refused == ["refused"]


@played
async def test_a_parent_may_ask_its_child() -> None:
    """C46: the initiator of the child's own work is the child."""

    @tool
    async def delegate(run: ToolRun) -> str:
        """Delegate."""
        parent = engine.agents.get(run.agent.id)
        async with engine.open_agent(**ROUTE, parent=parent) as child:
            return (await child.ask("from the parent")).text

    def model(request: Any) -> Any:
        last = texts_of(request.messages)[-1]
        return call("delegate") if last == "go" else f"<{last}>"

    async with engine_on(ScriptedModel(model), [delegate]) as engine:
        async with engine.open_agent(**ROUTE) as agent:
            turn = await agent.ask("go")
            assert turn.reason == "completed"
            assert len([e for e in agent.session.events if isinstance(e.data, TurnStart)]) == 1


async def test_asking_from_another_thread_is_refused() -> None:
    """DESIGN 1: plain methods raise WrongThread before anything changes."""
    async with engine_on(ScriptedModel(echo)) as engine, engine.open_agent(**ROUTE) as agent:
        refused: list[str] = []

        def elsewhere() -> None:
            for name, call_it in {
                "followup": lambda: agent.followup("x"),
                "steer": lambda: agent.steer("x"),
                "inject": lambda: agent.inject("x"),
                "cancel": agent.cancel,
                "append": lambda: agent.inbox.append("next-turn", UserMessage("x")),
                "record": lambda: agent.session.record("mine/x", {}),
                "select": lambda: agent.model.select("scripted", "n"),
            }.items():
                try:
                    call_it()
                except WrongThread:
                    refused.append(name)

        before = whole(agent.session)
        await trio.to_thread.run_sync(elsewhere)
        assert refused == ["followup", "steer", "inject", "cancel", "append", "record", "select"]
        assert whole(agent.session) == before
        turn = await trio.to_thread.run_sync(
            lambda: trio.from_thread.run(agent.ask, "from a thread")
        )
        assert turn.reason == "completed"


@played
async def test_a_disposed_cause_given_by_hand_is_an_ordinary_end_for_the_asker() -> None:
    """C127: causes are the caller's; the asker gets the aborted turn."""
    async with engine_on(ScriptedModel(lambda r: answer("x", Hang()))) as engine:
        async with engine.open_agent(**ROUTE) as agent:
            got: list[Turn] = []

            async def ask() -> None:
                got.append(await agent.ask("go"))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await settled()
                agent.cancel(DisposedCause())
            assert got[0].reason == "aborted"
            assert not agent.disposed
