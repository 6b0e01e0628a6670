"""What wakes an agent, when it idles, and what a cancel does to both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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

from terzetto import (
    Agent,
    AgentBusy,
    Engine,
    HookCause,
    InvalidValue,
    PreStep,
    UserCause,
    UserMessage,
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
    Aborted,
    ActivityCancelled,
    AgentDisposed,
    DisposedCause,
    ParentCause,
    TurnEnd,
    TurnStart,
    UserMessageEvent,
)


def echo(request: Any) -> str:
    return f"<{texts_of(request.messages)[-1]}>"


def statuses_of(engine: Engine) -> list[str]:
    heard: list[str] = []
    engine.scope.hooks.status.listen(lambda v: heard.append(v.status))
    return heard


def entered(agent: Agent) -> list[str]:
    """The texts of all user input that entered, in order."""
    return [
        texts_of([e.data.message])[0]
        for e in agent.session.events
        if isinstance(e.data, UserMessageEvent)
    ]


@asynccontextmanager
async def agent_on(model: ScriptedModel, **options: Any) -> AsyncIterator[tuple[Engine, Agent]]:
    async with engine_on(model, **options) as engine, engine.open_agent(**ROUTE) as agent:
        yield engine, agent


# --- the drain interval ------------------------------------------------------------------


@played
async def test_running_covers_consecutive_turns() -> None:
    """C66 C62: one running and one idle around several queued turns, each with its own scope."""
    async with agent_on(ScriptedModel(echo)) as (engine, agent):
        heard = statuses_of(engine)
        for text in ("a", "b", "c"):
            agent.followup(text)
        assert agent.status == "running", "at once"
        await agent.wait_idle()
        assert heard == ["running", "idle"]
        assert entered(agent) == ["a", "b", "c"]
        assert ending_kinds(agent.session) == ["Completed"] * 3


@played
async def test_sends_of_one_stretch_land_before_the_driver_starts() -> None:
    """DESIGN 12: all sends of one synchronous stretch are in the first claim."""
    async with agent_on(ScriptedModel(echo)) as (_, agent):
        agent.followup("prompt")
        agent.steer("steer")
        agent.inject("inject")
        await agent.wait_idle()
        assert entered(agent) == ["steer", "inject", "prompt"]
        assert len(ending_kinds(agent.session)) == 1


@played
async def test_a_wake_always_opens_its_turn() -> None:
    """C62: also when its message was cleared before the driver came to it."""
    model = ScriptedModel(echo)
    async with agent_on(model) as (engine, agent):
        heard = statuses_of(engine)
        message_id = agent.followup("gone")
        assert agent.inbox.remove(message_id)
        await agent.wait_idle()
        assert heard == ["running", "idle"]
        assert ending_kinds(agent.session) == ["Completed"]
        assert model.attempts == 0


@played
async def test_an_injection_wakes_nobody_and_goes_with_the_next_wake() -> None:
    """C50."""
    async with agent_on(ScriptedModel(echo)) as (engine, agent):
        heard = statuses_of(engine)
        agent.inject("note")
        await settled()
        await agent.wait_idle()
        assert (heard, pending(agent)) == ([], ["note"])
        await agent.ask("prompt")
        assert entered(agent) == ["note", "prompt"]


@pytest.mark.parametrize("target", ["next-turn", "next-step"])
@pytest.mark.parametrize("wakeup", [True, False])
def test_send_is_the_primitive_of_the_three(target: Any, wakeup: bool) -> None:
    """C51: target and wakeup are independent."""

    @played
    async def run() -> None:
        async with agent_on(ScriptedModel(echo)) as (_, agent):
            agent.send("x", target, wakeup)
            await settled()
            assert pending(agent) == ([] if wakeup else ["x"])
            for wrong in ("next", "", None):
                with pytest.raises(InvalidValue):
                    agent.send("x", wrong, True)  # type: ignore[arg-type]
            with pytest.raises(InvalidValue):
                agent.followup(3)  # type: ignore[arg-type]

    run()


# --- status --------------------------------------------------------------------------------


@played
async def test_every_listener_hears_every_change_in_order() -> None:
    """C161 C62: "a transition to the same status is a defect", for each listener, also for the
    second one of an idle from which the first one wakes the agent again."""
    async with agent_on(ScriptedModel(echo)) as (engine, agent):
        first: list[str] = []
        second: list[str] = []
        true: list[bool] = []

        def again(value: Any) -> None:
            first.append(value.status)
            if value.status == "idle" and len(first) < 5:
                agent.followup("again")

        def look(value: Any) -> None:
            second.append(value.status)
            true.append(agent.status == value.status)

        engine.scope.hooks.status.listen(again)
        engine.scope.hooks.status.listen(look)
        agent.followup("go")
        await agent.wait_idle()
        assert first == ["running", "idle"] * 3
        assert second == first, "in the order in which it happened"
        assert len(entered(agent)) == 3


@played
async def test_a_cancel_from_the_running_listener_opens_no_turn() -> None:
    """REFERENCE 2.14 and DESIGN 4: an activity cancelled before its turn opened opens none."""
    async with agent_on(ScriptedModel(echo)) as (engine, agent):
        heard = statuses_of(engine)
        engine.scope.hooks.status.listen(
            lambda v: agent.cancel() if v.status == "running" else None
        )
        agent.followup("go")
        await agent.wait_idle()
        assert heard == ["running", "idle"]
        assert "TurnStart" not in kinds(agent.session)
        assert pending(agent) == []
        assert discarded(agent.session) == ["go"]


@played
async def test_wait_status_sees_a_status_that_does_not_last() -> None:
    """`wait_status`: once the status is or was the wanted one."""
    async with agent_on(ScriptedModel(echo)) as (engine, agent):
        await agent.wait_status("idle")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.wait_status, "running")
            await settled()
            agent.followup("quick")
            await agent.wait_idle()
        with pytest.raises(InvalidValue):
            await agent.wait_status("busy")  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_wait_idle_follows_replacement_work(seed: int) -> None:
    """C66: it resolves when the whole agent is quiescent, not at an idle that is passed."""

    async def run() -> None:
        async with agent_on(ScriptedModel(lambda r: answer(Delay(1), echo(r)))) as (engine, agent):
            count: list[int] = []

            def again(value: Any) -> None:
                if value.status == "idle" and len(count) < 3:
                    count.append(1)
                    agent.followup("again")

            engine.scope.hooks.status.listen(again)
            agent.followup("go")
            await agent.wait_idle()
            assert agent.status == "idle"
            assert len(ending_kinds(agent.session)) == 4

    play(run, seed=seed)


# --- BC-06: a cancel belongs to one turn --------------------------------------------------


@pytest.mark.parametrize("keep_inbox", [True, False])
def test_a_cancel_of_an_idle_agent_arms_nothing(keep_inbox: bool) -> None:
    """BC-06 (a) C126: pending work is cleared unless kept; the next turn runs."""

    @played
    async def run() -> None:
        model = ScriptedModel(echo)
        async with agent_on(model) as (engine, agent):
            heard = statuses_of(engine)
            agent.inject("parked")
            agent.cancel(keep_inbox=keep_inbox)
            agent.cancel(keep_inbox=keep_inbox)
            assert pending(agent) == (["parked"] if keep_inbox else [])
            assert heard == []
            turn = await agent.ask("a")
            assert (turn.reason, model.attempts) == ("completed", 1)

    run()


@pytest.mark.parametrize("seed", range(3))
def test_two_cancels_and_a_followup_at_once(seed: int) -> None:
    """BC-06 (b) C127: the second is a no-op, the first cause stands, the follow-up runs."""

    async def run() -> None:
        model = ScriptedModel([answer(say("x"), Hang()), "b"])
        async with agent_on(model) as (_, agent):
            agent.followup("a")
            await settled()
            agent.cancel(HookCause("first"))
            agent.cancel(UserCause())
            agent.followup("b")
            await agent.wait_idle()
            ends = [e.data.ending for e in agent.session.events if isinstance(e.data, TurnEnd)]
            assert ends[0] == Aborted(HookCause("first"))
            assert ending_kinds(agent.session)[1:] == ["Completed"]
            assert model.attempts == 2
            check(agent.session)

    play(run, seed=seed)


@pytest.mark.parametrize(
    "where", ["observer of turn/end", "idle listener", "follower", "status waiter"]
)
def test_a_cancel_as_the_turn_ends_leaves_it_completed(where: str) -> None:
    """BC-06 (c): the turn stays completed, what follows runs to its completion."""

    @played
    async def run() -> None:
        model = ScriptedModel(echo)
        async with agent_on(model) as (engine, agent), trio.open_nursery() as nursery:

            def on_event(event: Any) -> None:
                if isinstance(event.data, TurnEnd) and event.data.turn == 1:
                    agent.cancel()

            async def follow() -> None:
                async for event in agent.session.follow():
                    if isinstance(event.data, TurnEnd):
                        agent.cancel()
                        return

            async def wait() -> None:
                await agent.wait_status("running")
                await agent.wait_status("idle")
                agent.cancel()

            if where == "observer of turn/end":
                agent.session.observe(on_event)
            elif where == "idle listener":
                engine.scope.hooks.status.listen(
                    lambda v: agent.cancel() if v.status == "idle" else None
                )
            elif where == "follower":
                nursery.start_soon(follow)
            else:
                nursery.start_soon(wait)
            await settled()
            agent.followup("a")
            await agent.wait_idle()
            await settled()
            agent.followup("c")
            await agent.wait_idle()
            assert ending_kinds(agent.session) == ["Completed", "Completed"]
            assert model.attempts == 2
            assert entered(agent) == ["a", "c"]

    run()


@played
async def test_a_cancel_from_the_observer_of_turn_end_and_a_followup_in_the_same_tick() -> None:
    """BC-06 (c) and C129: the follow-up is latched and runs without another wake."""
    model = ScriptedModel(echo)
    async with agent_on(model) as (_, agent), trio.open_nursery() as nursery:

        def on_event(event: Any) -> None:
            if isinstance(event.data, TurnEnd) and event.data.turn == 1:
                agent.cancel()
                nursery.start_soon(later)

        async def later() -> None:
            agent.followup("c")

        agent.session.observe(on_event)
        agent.followup("a")
        await settled()
        await agent.wait_idle()
        assert ending_kinds(agent.session) == ["Completed", "Completed"]
        assert entered(agent) == ["a", "c"]


# --- BC-07: a cancel that converges ------------------------------------------------------


def slow_close() -> tuple[Any, trio.Event]:
    """A tool that ends its cancelled body only when the event is set."""
    release = trio.Event()

    @tool
    async def slow() -> str:
        """Slow."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await release.wait()
        return ""

    return slow, release


@pytest.mark.parametrize("how", ["followup", "steer"])
@pytest.mark.parametrize("keep_inbox", [True, False])
@pytest.mark.parametrize("removed", [False, True], ids=["kept", "removed again"])
def test_a_wake_while_a_cancel_converges_runs_afterwards(
    how: str, keep_inbox: bool, removed: bool
) -> None:
    """BC-07 C129: to next-turn, latched, replayed at idle if still pending, strictly after the
    cancelled turn's end; queued prompts keep their order, each once."""

    @played
    async def run() -> None:
        slow, release = slow_close()
        model = ScriptedModel([call("slow", id="c"), "1", "2", "3", "4"])
        async with agent_on(model, tools=[slow]) as (engine, agent):
            heard = statuses_of(engine)
            agent.followup("go")
            await settled()
            agent.followup("queued 1")
            agent.followup("queued 2")
            agent.cancel(keep_inbox=keep_inbox)
            await settled()
            message_id = getattr(agent, how)("next")
            assert agent.inbox.next_turn[-1].id == message_id, "steering too goes to next-turn"
            if removed:
                agent.inbox.remove(message_id)
            release.set()
            await agent.wait_idle()
            queued = ["queued 1", "queued 2"] if keep_inbox else []
            if removed and not keep_inbox:
                assert entered(agent) == ["go"], "no empty turn"
                assert heard == ["running", "idle"]
            elif removed:
                # What is pending is the queue: the latch was set by a wake.
                assert entered(agent)[1:] in ([], queued)
            else:
                assert entered(agent) == ["go", *queued, "next"]
                assert heard == ["running", "idle", "running", "idle"]
            assert pending(agent) == ([] if entered(agent)[1:] or not keep_inbox else queued)
            starts = [e.seq for e in agent.session.events if isinstance(e.data, TurnStart)]
            ends = [e.seq for e in agent.session.events if isinstance(e.data, TurnEnd)]
            assert all(end < start for end, start in zip(ends, starts[1:], strict=False))
            check(agent.session)

    run()


@played
async def test_a_clearing_cancel_drops_the_latch_and_a_later_wake_sets_it_again() -> None:
    """REFERENCE 4 Wakes: cleared by cancel without keepInbox."""
    slow, release = slow_close()
    async with agent_on(ScriptedModel([call("slow", id="c"), "1"]), tools=[slow]) as (_, agent):
        agent.followup("go")
        await settled()
        agent.cancel()
        agent.followup("dropped")
        agent.cancel()
        assert pending(agent) == []
        agent.inject("note")
        release.set()
        await agent.wait_idle()
        assert pending(agent) == ["note"], "an injection does not wake"
        assert entered(agent) == ["go"]


@played
async def test_a_keeping_cancel_keeps_the_latch() -> None:
    """REFERENCE 4 Wakes: only a clearing cancel drops it."""
    slow, release = slow_close()
    async with agent_on(ScriptedModel([call("slow", id="c"), "1"]), tools=[slow]) as (_, agent):
        agent.followup("go")
        await settled()
        agent.cancel()
        agent.followup("next")
        agent.cancel(keep_inbox=True)
        release.set()
        await agent.wait_idle()
        assert entered(agent) == ["go", "next"]


@played
async def test_a_disposed_cancel_never_latches() -> None:
    """C129: input that comes after it is parked."""
    slow, release = slow_close()
    async with agent_on(ScriptedModel([call("slow", id="c"), "1"]), tools=[slow]) as (_, agent):
        agent.followup("go")
        await settled()
        agent.cancel(DisposedCause())
        agent.followup("late")
        agent.steer("late steer")
        release.set()
        await agent.wait_idle()
        assert pending(agent) == ["late steer", "late"], "and steering keeps its list"
        assert ending_kinds(agent.session) == ["Aborted DisposedCause"]


@pytest.mark.parametrize("cause", [UserCause(), ParentCause(), HookCause("x")], ids=repr)
def test_the_other_causes_latch(cause: Any) -> None:
    """C127 C129: user, parent and hook."""

    @played
    async def run() -> None:
        slow, release = slow_close()
        async with agent_on(ScriptedModel([call("slow", id="c"), "1"]), tools=[slow]) as (_, agent):
            agent.followup("go")
            await settled()
            agent.cancel(cause)
            agent.followup("next")
            release.set()
            await agent.wait_idle()
            assert entered(agent) == ["go", "next"]
            ends = [e.data.ending for e in agent.session.events if isinstance(e.data, TurnEnd)]
            assert ends[0] == Aborted(cause)

    run()


@played
async def test_a_cause_that_a_caller_extended_stays_appendable() -> None:
    """C127: the log has a fresh cause, kind and hook's reason, nothing that hangs on the object."""

    class Extended(HookCause):
        stack = "a stack trace"

    async with agent_on(ScriptedModel(lambda r: answer(say("x"), Hang()))) as (_, agent):
        agent.followup("go")
        await settled()
        agent.cancel(Extended("why"))
        await agent.wait_idle()
        (end,) = [e.data for e in agent.session.events if isinstance(e.data, TurnEnd)]
        assert end.ending == Aborted(HookCause("why"))
        assert type(end.ending.cause) is HookCause


@played
async def test_the_classification_is_taken_before_the_insertion() -> None:
    """C129: a cancel from the observer of the insertion does not make the wake a converging one:
    the message is cleared with the rest, and the wake it was opens nothing new."""
    async with agent_on(ScriptedModel(lambda r: answer(Gate("go"), echo(r)))) as (_, agent):
        agent.followup("running")
        await settled()
        seen: list[str] = []

        def on_event(event: Any) -> None:
            if getattr(event.data, "inserted", ()) and not seen:
                seen.append("cancelled")
                agent.cancel()

        agent.session.observe(on_event)
        agent.steer("steered")
        assert pending(agent) == [], "the clear comes when that append returns"
        await agent.wait_idle()
        assert entered(agent) == ["running"]
        assert discarded(agent.session) == ["steered"]
        check(agent.session)


@played
async def test_a_message_is_announced_as_inserted_before_it_is_announced_as_discarded() -> None:
    """C53: also when an observer of the insertion cancels: a listener that keeps a list of what
    is pending must not end with a ghost."""
    known: set[str] = set()
    async with agent_on(ScriptedModel(echo)) as (engine, agent):
        hooks = engine.scope.hooks
        hooks.inbox_inserted.listen(lambda v: known.add(v.message.id))
        hooks.inbox_discarded.listen(lambda v: known.discard(v.message.id))
        hooks.inbox_claimed.listen(lambda v: known.discard(v.message.id))
        seen: list[int] = []

        def on_event(event: Any) -> None:
            if getattr(event.data, "inserted", ()) and not seen:
                seen.append(event.seq)
                agent.cancel()

        agent.session.observe(on_event)
        agent.inject("x")
        assert pending(agent) == []
        assert known == set()


# --- late wakes: between turn/end and idle -----------------------------------------------


class SlowEnding:
    """A store whose flush waits once the log's last event is a turn's end."""

    def __init__(self) -> None:
        self.store = Faults()
        self.store.at["flush"] = self.flush
        self.release = trio.Event()
        self.agent: Agent | None = None

    async def flush(self) -> None:
        if self.agent and isinstance(self.agent.session.events[-1].data, TurnEnd):
            await self.release.wait()


@asynccontextmanager
async def ending(model: ScriptedModel) -> AsyncIterator[tuple[Engine, Agent, SlowEnding]]:
    """An agent whose first turn has ended and is being flushed."""
    slow = SlowEnding()
    async with engine_on(model, store=slow.store) as engine:
        async with engine.open_agent(**ROUTE) as agent:
            slow.agent = agent
            agent.followup("go")
            await settled()
            assert isinstance(agent.session.events[-1].data, TurnEnd)
            assert agent.status == "running"
            yield engine, agent, slow


@pytest.mark.parametrize("how", ["followup", "steer", "ask"])
@pytest.mark.parametrize("first", ["completed", "error"])
def test_a_wake_while_the_ending_is_flushed_runs(how: str, first: str, caplog: Any) -> None:
    """BC-07 BC-08 and DESIGN "no wake can be lost": whatever the turn ended with."""

    async def run() -> None:
        opening = "fine" if first == "completed" else answer(finish_error())
        async with ending(ScriptedModel([opening, "second"])) as (engine, agent, slow):
            heard = statuses_of(engine)
            async with trio.open_nursery() as nursery:
                if how == "ask":
                    nursery.start_soon(agent.ask, "late")
                else:
                    getattr(agent, how)("late")
                await settled()
                slow.release.set()
                await agent.wait_idle()
            assert entered(agent) == ["go", "late"]
            assert heard == ["idle"], "it did not idle in between"
            assert pending(agent) == []
            check(agent.session)

    played(run)()


@pytest.mark.parametrize("keep_inbox", [True, False])
@pytest.mark.parametrize("order", ["wake, cancel", "cancel, wake", "wake, cancel, wake"])
def test_a_cancel_while_the_ending_is_flushed(order: str, keep_inbox: bool) -> None:
    """BC-06 C129: the ended turn stays as it ended; what the cancel parked or cleared stays so;
    what woke after it runs."""

    @played
    async def run() -> None:
        async with ending(ScriptedModel(["fine", "2", "3", "4"])) as (_, agent, slow):
            for index, what in enumerate(order.split(", ")):
                if what == "wake":
                    agent.followup(f"late {index}")
                else:
                    agent.cancel(keep_inbox=keep_inbox)
            slow.release.set()
            await agent.wait_idle()
            assert ending_kinds(agent.session)[0] == "Completed"
            if order == "wake, cancel":
                assert entered(agent) == ["go"]
                assert pending(agent) == (["late 0"] if keep_inbox else [])
            elif order == "cancel, wake":
                assert entered(agent) == ["go", "late 1"]
            else:
                kept = ["late 0"] if keep_inbox else []
                assert entered(agent) == ["go", *kept, "late 2"]
            assert (await agent.ask("at last")).reason == "completed"
            check(agent.session)

    run()


@played
async def test_an_injection_while_the_ending_is_flushed_wakes_nobody() -> None:
    """C50."""
    async with ending(ScriptedModel(["fine"])) as (_, agent, slow):
        agent.inject("note")
        slow.release.set()
        await agent.wait_idle()
        assert pending(agent) == ["note"]


@played
async def test_a_late_wake_whose_message_was_removed_opens_no_turn() -> None:
    """BC-07: if the message was removed, no empty turn starts."""
    async with ending(ScriptedModel(["fine"])) as (engine, agent, slow):
        heard = statuses_of(engine)
        message_id = agent.steer("late")
        agent.inbox.remove(message_id)
        slow.release.set()
        await agent.wait_idle()
        assert ending_kinds(agent.session) == ["Completed"]
        assert heard == ["idle"]


@played
async def test_maintenance_is_refused_while_the_ending_is_flushed() -> None:
    """C67: from true idle only."""
    async with ending(ScriptedModel(["fine"])) as (_, agent, slow):
        with pytest.raises(AgentBusy):
            await agent.run_maintenance(trio.sleep, 0)
        slow.release.set()
        await agent.wait_idle()
        await agent.run_maintenance(trio.sleep, 0)


# --- BC-08: steering at the last moment ----------------------------------------------------


POINTS = [
    "before the last delta",
    "after the last delta",
    "after the finish",
    "turn_stopping",
    "idle listener",
    "follower of turn/end",
    "one checkpoint later",
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("point", POINTS)
def test_steering_at_the_last_moment_is_in_exactly_one_later_request(point: str, seed: int) -> None:
    """BC-08 C64: after the assistant's `done`, once, never lost."""

    async def run() -> None:
        sent: list[str] = []

        def steer() -> None:
            if not sent:
                sent.append("wait")
                agent.steer("wait")

        class Tap:
            """Steers around the chunks of a stream, outside of any append."""

            def __init__(self, stream: Any) -> None:
                self.stream = stream

            async def __aenter__(self) -> Any:
                chunks = await self.stream.__aenter__()

                async def tapped() -> AsyncIterator[Any]:
                    async for chunk in chunks:
                        name = type(chunk).__name__
                        if (point, name) == ("before the last delta", "TextDelta"):
                            steer()
                        yield chunk
                        if (point, name) in (
                            ("after the last delta", "TextDelta"),
                            ("after the finish", "Finish"),
                        ):
                            steer()

                return tapped()

            async def __aexit__(self, *args: Any) -> Any:
                return await self.stream.__aexit__(*args)

        async def tap(value: Any, proceed: Any) -> Any:
            return Tap(await proceed())

        async def stopping(value: Any) -> None:
            steer()

        async def follow() -> None:
            async for event in agent.session.follow():
                if isinstance(event.data, TurnEnd):
                    steer()
                    return

        async def later() -> None:
            await agent.wait_status("running")
            await agent.wait_status("idle")
            await trio.lowlevel.checkpoint()
            steer()

        model = ScriptedModel(["done", "continued", "never"])
        async with agent_on(model) as (engine, agent), trio.open_nursery() as nursery:
            if point == "turn_stopping":
                agent.scope.hooks.turn_stopping.listen(stopping)
            elif point == "idle listener":
                agent.scope.hooks.status.listen(lambda v: steer() if v.status == "idle" else None)
            elif point == "follower of turn/end":
                nursery.start_soon(follow)
            elif point == "one checkpoint later":
                nursery.start_soon(later)
            else:
                agent.scope.hooks.stream.listen(tap)
            await settled()
            agent.followup("go")
            await settled()
            await agent.wait_idle()
            assert sent == ["wait"]
            with_it = [r for r in model.requests if "wait" in texts_of(r.messages)]
            assert with_it == model.requests[1:2]
            assert texts_of(with_it[0].messages)[-3:] == ["go", "done", "wait"]
            assert model.attempts == 2
            check(agent.session)

    play(run, seed=seed)


@played
async def test_steering_from_an_observer_is_refused_and_says_so() -> None:
    """DESIGN 3: observers may not append; the refusal is not a loss: nothing was taken."""
    from terzetto.vocabulary import ReentrantAppend

    refused: list[type] = []
    async with agent_on(ScriptedModel(echo)) as (_, agent):

        def on_event(event: Any) -> None:
            if isinstance(event.data, TurnEnd):
                try:
                    agent.steer("wait")
                except ReentrantAppend as error:
                    refused.append(type(error))

        agent.session.observe(on_event)
        agent.followup("go")
        await agent.wait_idle()
        assert refused == [ReentrantAppend]
        assert agent.status == "idle"
        assert pending(agent) == []
        check(agent.session)


# --- parked queues --------------------------------------------------------------------------


@pytest.mark.parametrize("ending_with", ["error", "blocked"])
def test_a_failed_or_rejected_turn_parks_the_queue_until_the_next_wake(
    ending_with: str, caplog: Any
) -> None:
    """C49 and REFERENCE 2.5: the next wake runs the oldest first."""

    async def run() -> None:
        async def decide(value: PreStep, proceed: Any) -> Any:
            await gate.wait()
            if value.turn == 1 and ending_with == "blocked":
                return Reject()
            return await proceed()

        gate = trio.Event()
        model = ScriptedModel(
            [answer(finish_error())] * (ending_with == "error") + ["a", "b", "c", "d"]
        )
        async with agent_on(model) as (engine, agent):
            agent.scope.hooks.pre_step.listen(decide)
            heard = statuses_of(engine)
            agent.followup("first")
            await settled()
            agent.followup("queued")
            agent.steer("steered")
            gate.set()
            await agent.wait_idle()
            assert pending(agent) == ["steered", "queued"]
            assert heard == ["running", "idle"]
            agent.followup("wake")
            await agent.wait_idle()
            assert entered(agent)[-3:] == ["steered", "queued", "wake"]
            check(agent.session)

    played(run)()


# --- maintenance ---------------------------------------------------------------------------


@played
async def test_maintenance_runs_one_job_and_gives_back_its_result() -> None:
    """C67: in the caller's task, with its arguments; the status stays idle."""
    async with agent_on(ScriptedModel(echo)) as (engine, agent):
        heard = statuses_of(engine)

        async def job(a: int, b: int) -> int:
            assert agent.status == "idle"
            await trio.sleep(1)
            return a + b

        assert await agent.run_maintenance(job, 2, 3) == 5
        assert heard == []

        async def fail() -> None:
            raise KeyError("mine")

        with pytest.raises(KeyError):
            await agent.run_maintenance(fail)
        assert (await agent.ask("x")).text == "<x>"

        async def nothing() -> None:
            return None

        assert await agent.run_maintenance(nothing) is None


@played
async def test_maintenance_is_refused_unless_the_agent_is_truly_idle() -> None:
    """C67: AgentBusy while a turn runs, is about to, or another job runs."""
    async with agent_on(ScriptedModel(lambda r: answer(Delay(1), "ok"))) as (_, agent):
        agent.followup("x")
        with pytest.raises(AgentBusy):
            await agent.run_maintenance(trio.sleep, 0)
        await settled()
        with pytest.raises(AgentBusy):
            await agent.run_maintenance(trio.sleep, 0)
        await agent.wait_idle()

        async def nested() -> None:
            with pytest.raises(AgentBusy):
                await agent.run_maintenance(trio.sleep, 0)

        await agent.run_maintenance(nested)
        agent.inject("parked input does not make it busy")
        await agent.run_maintenance(trio.sleep, 0)


@pytest.mark.parametrize("how", ["followup", "steer"])
@pytest.mark.parametrize("outcome", ["returns", "raises"])
def test_waking_input_waits_until_maintenance_has_settled(how: str, outcome: str) -> None:
    """C67 and REFERENCE 2.27: latched, and run at the end, however the job ended."""

    @played
    async def run() -> None:
        async with agent_on(ScriptedModel(echo)) as (engine, agent):
            heard = statuses_of(engine)

            async def job() -> None:
                agent.inject("note")
                getattr(agent, how)("wake")
                await settled()
                assert (heard, agent.status) == ([], "idle")
                if outcome == "raises":
                    raise KeyError("mine")

            if outcome == "raises":
                with pytest.raises(KeyError):
                    await agent.run_maintenance(job)
            else:
                await agent.run_maintenance(job)
            await agent.wait_idle()
            assert sorted(entered(agent)) == ["note", "wake"]
            assert heard == ["running", "idle"]

    run()


@played
async def test_wait_idle_waits_for_maintenance_too() -> None:
    """C66: the whole agent is quiescent."""
    async with agent_on(ScriptedModel(echo)) as (_, agent), trio.open_nursery() as nursery:
        nursery.start_soon(agent.run_maintenance, trio.sleep, 3)
        await settled()
        start = trio.current_time()
        await agent.wait_idle()
        assert trio.current_time() - start == pytest.approx(3)


@pytest.mark.parametrize("keep_inbox", [True, False])
def test_a_cancel_ends_maintenance(keep_inbox: bool) -> None:
    """C67 C128: ActivityCancelled for its caller; a latched wake runs, or was cleared."""

    @played
    async def run() -> None:
        async with agent_on(ScriptedModel(echo)) as (_, agent):

            async def job() -> None:
                agent.followup("wake")
                agent.cancel(keep_inbox=keep_inbox)
                await trio.sleep_forever()

            with pytest.raises(ActivityCancelled):
                await agent.run_maintenance(job)
            await agent.wait_idle()
            assert entered(agent) == (["wake"] if keep_inbox else [])
            assert pending(agent) == []
            assert (await agent.ask("x")).text == "<x>"

    run()


@played
async def test_a_wake_after_the_cancel_of_maintenance_goes_to_next_turn_and_runs() -> None:
    """C129: converging, so latched."""
    async with agent_on(ScriptedModel(echo)) as (_, agent):

        async def job() -> None:
            agent.cancel()
            agent.steer("late")
            assert [m.content[0].text for m in agent.inbox.next_turn] == ["late"]
            await trio.sleep_forever()

        with pytest.raises(ActivityCancelled):
            await agent.run_maintenance(job)
        await agent.wait_idle()
        assert entered(agent) == ["late"]


@played
async def test_a_job_that_finishes_although_cancelled_gives_its_result() -> None:
    """DESIGN 6 by analogy: what returned keeps its result."""
    async with agent_on(ScriptedModel(echo)) as (_, agent):

        async def job() -> int:
            agent.cancel()
            return 7

        assert await agent.run_maintenance(job) == 7


@played
async def test_maintenance_under_the_callers_own_cancel() -> None:
    """C176: `Cancelled` of the host goes on, and the agent is idle again."""
    async with agent_on(ScriptedModel(echo)) as (_, agent):
        with trio.move_on_after(1) as scope:
            await agent.run_maintenance(trio.sleep_forever)
        assert scope.cancelled_caught
        await agent.wait_idle()
        assert (await agent.ask("x")).text == "<x>"


@played
async def test_disposal_during_maintenance_waits_for_the_job() -> None:
    """C128 C29 and REFERENCE 4: cancelled by disposal it no longer replays its latch."""
    model = ScriptedModel(echo)
    order: list[str] = []
    async with engine_on(model) as engine:
        handle = await engine.agents.create(**ROUTE)
        agent = handle.agent

        async def job() -> None:
            agent.followup("latched")
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(2)
                order.append("job")

        async def maintain() -> None:
            with pytest.raises(ActivityCancelled):
                await agent.run_maintenance(job)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(maintain)
            await settled()
            await handle.dispose()
            order.append("disposed")
        assert order == ["job", "disposed"]
        assert model.attempts == 0
        assert discarded(agent.session) == ["latched"]
        with pytest.raises(AgentDisposed):
            await agent.run_maintenance(trio.sleep, 0)


@played
async def test_a_queue_edited_in_maintenance_is_what_runs() -> None:
    """C67 C55: the point of maintenance: the log and the inbox hold still meanwhile."""
    async with agent_on(ScriptedModel(echo)) as (_, agent):

        async def job() -> None:
            agent.followup("old")
            agent.inbox.clear()
            agent.inject("new")

        await agent.run_maintenance(job)
        await agent.wait_idle()
        # The wake was given and something is pending: it runs (REFERENCE 4, Wakes).
        assert entered(agent) == ["new"]


# --- listeners that edit what the closers put back ---------------------------------------


@pytest.mark.parametrize("keep_inbox", [True, False])
@pytest.mark.parametrize("edit", ["remove", "clear", "prepend", "replace", "cancel"])
def test_a_listener_that_edits_put_back_input_does_not_break_the_closers(
    edit: str, keep_inbox: bool, caplog: Any
) -> None:
    """DESIGN 6: per list one splice puts back and one removes "exactly those"; C55: the inbox is
    anyone's to edit, at every notification; C68: an extension cannot break the loop."""

    async def run() -> None:
        async def wait(value: PreStep, proceed: Any) -> Any:
            armed.append(1)
            await trio.sleep_forever()

        def on_inserted(notice: Any) -> None:
            if not armed or notice.message.id in mine:
                return
            if edit == "remove":
                agent.inbox.remove(notice.message.id)
            elif edit == "clear":
                agent.inbox.clear()
            elif edit == "cancel":
                agent.cancel()
            else:
                message = UserMessage("mine")
                mine.append(message.id)
                if edit == "prepend":
                    agent.inbox.prepend("next-turn", message)
                else:
                    agent.inbox.replace(notice.message.id, message)

        armed: list[int] = []
        mine: list[str] = []
        async with agent_on(ScriptedModel(echo)) as (engine, agent):
            engine.scope.hooks.inbox_inserted.listen(on_inserted)
            waiting = engine.scope.hooks.pre_step.listen(wait)
            agent.followup("claimed")
            await settled()
            agent.cancel(keep_inbox=keep_inbox)
            await agent.wait_idle()
            waiting.remove()
            assert ending_kinds(agent.session) == ["Aborted UserCause"]
            check(agent.session)
            if edit == "prepend":
                kept = ["mine", "claimed"] if keep_inbox else ["mine"]
                assert pending(agent) == kept
            if edit == "replace":
                assert pending(agent) == ["mine"]
            armed.clear()
            assert (await agent.ask("again")).reason == "completed"

    played(run)()


@pytest.mark.parametrize("running", [False, True], ids=["idle", "running"])
@pytest.mark.parametrize("hook", ["inbox_inserted", "inbox_discarded"])
def test_what_a_listener_sends_after_its_cancel_is_not_cleared_by_it(
    hook: str, running: bool
) -> None:
    """C126 BC-06 (b): a cancel clears what is pending; a message that is sent after `cancel`
    returned is a new one, and runs."""

    @played
    async def run() -> None:
        done: list[str] = []

        def act(notice: Any) -> None:
            if not done and texts_of([notice.message]) == ["stop"]:
                done.append("cancelled")
                agent.cancel()
                agent.followup("after")

        model = ScriptedModel([*([answer(say("x"), Hang())] * running), "1", "2"])
        async with agent_on(model) as (engine, agent):
            if running:
                agent.followup("running")
                await settled()
            agent.inject("before")
            getattr(engine.scope.hooks, hook).listen(act)
            message_id = agent.inject("stop")
            if hook == "inbox_discarded":
                agent.inbox.remove(message_id)
            await agent.wait_idle()
            assert done == ["cancelled"]
            assert entered(agent)[-1] == "after"
            assert sorted(discarded(agent.session)) == ["before", "stop"]
            assert pending(agent) == []
            check(agent.session)

    run()


@pytest.mark.parametrize("hook", ["inbox_claimed", "inbox_inserted", "inbox_discarded", "status"])
@pytest.mark.parametrize("what", ["cancel", "followup", "steer", "clear", "remove"])
def test_listeners_may_send_edit_and_cancel_at_every_notification(
    hook: str, what: str, caplog: Any
) -> None:
    """C53 C68: reentrant use of the public surface leaves a valid log and a living agent."""

    async def run() -> None:
        count: list[int] = []

        def act(value: Any) -> None:
            if len(count) >= 2:
                return
            count.append(1)
            if what == "cancel":
                agent.cancel()
            elif what == "clear":
                agent.inbox.clear()
            elif what == "remove":
                for message in (*agent.inbox.next_step, *agent.inbox.next_turn):
                    agent.inbox.remove(message.id)
            else:
                getattr(agent, what)(f"extra {len(count)}")

        async with agent_on(ScriptedModel(lambda r: answer(Delay(1), echo(r)))) as (engine, agent):
            getattr(engine.scope.hooks, hook).listen(act)
            agent.inject("note")
            agent.followup("go")
            agent.followup("queued")
            await trio.sleep(0.5)
            agent.inbox.append("next-turn", UserMessage("to be removed"))
            if agent.inbox.next_turn:
                agent.inbox.remove(agent.inbox.next_turn[-1].id)
            await trio.sleep(20)
            await agent.wait_idle()
            check(agent.session)
            assert (await agent.ask("alive?")).reason == "completed"
            check(agent.session)

    played(run)()


@pytest.mark.parametrize("kind", ["note", "prompt"])
def test_a_cancel_from_the_observer_of_a_claim(kind: str, caplog: Any) -> None:
    """DESIGN 3: "a cancel called from an observer takes effect at once and clears when that
    append returns"; between the two splices of one claim it hides no error and breaks none."""

    async def run() -> None:
        seen: list[int] = []

        def on_event(event: Any) -> None:
            target = "next-step" if kind == "note" else "next-turn"
            data = event.data
            if getattr(data, "removed_count", 0) and data.target == target and not seen:
                seen.append(event.seq)
                agent.cancel()

        async with agent_on(ScriptedModel(echo)) as (_, agent):
            agent.session.observe(on_event)
            agent.inject("note")
            agent.followup("prompt")
            agent.followup("queued")
            await agent.wait_idle()
            assert ending_kinds(agent.session) == ["Aborted UserCause"]
            assert sorted(discarded(agent.session)) == ["note", "prompt", "queued"]
            assert pending(agent) == []
            check(agent.session)
            assert [r.getMessage() for r in caplog.records] == [], "nothing failed"

    played(run)()


# --- no turn budget ------------------------------------------------------------------------


@played
async def test_steering_goes_on_without_a_limit_until_a_policy_cancels() -> None:
    """C69: a policy bounds runaways from turn_stopping."""
    stops: list[int] = []

    async def stopping(value: Any) -> None:
        stops.append(1)
        if len(stops) == 30:
            value.agent.cancel(HookCause("budget"))
            await trio.lowlevel.checkpoint()
        value.agent.steer("more")

    model = ScriptedModel(echo)
    async with agent_on(model) as (_, agent):
        agent.scope.hooks.turn_stopping.listen(stopping)
        turn = await agent.ask("go")
        assert turn.reason == "aborted"
        assert model.attempts == 30
        assert len(ending_kinds(agent.session)) == 1
        check(agent.session)


@played
async def test_turns_that_never_wait_leave_room_for_others() -> None:
    """DESIGN 5 and C69: there is no budget, so what bounds a runaway is a cancel from outside; a
    driver that spends turn after turn without waiting must let the others run."""
    turns: list[int] = []

    async def empty(value: PreStep, proceed: Any) -> Enter:
        turns.append(value.turn)
        if len(turns) < 3000:
            value.agent.followup("again")
        return Enter(())

    async with agent_on(ScriptedModel(echo)) as (_, agent):
        agent.scope.hooks.pre_step.listen(empty)
        agent.followup("go")
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        assert len(turns) < 3000, "it ran to its end without letting anybody run"
        agent.cancel()
        await agent.wait_idle()
        assert len(turns) < 3000


@pytest.mark.parametrize("seed", range(3))
def test_a_cancelled_ask_and_the_hosts_own_cause_in_one_tick(seed: int) -> None:
    """C127: a cause that somebody gave counts before the one of a caller who only went away."""

    async def run() -> None:
        async with agent_on(ScriptedModel(lambda r: answer(say("x"), Hang()))) as (_, agent):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(agent.ask, "go")
                    await settled()
                    scope.cancel()
                    agent.cancel(HookCause("policy"), keep_inbox=True)
            await agent.wait_idle()
            assert ending_kinds(agent.session) == ["Aborted HookCause"]

    play(run, seed=seed)


async def test_a_turn_whose_asker_went_away_says_that_the_user_ended_it() -> None:
    """C127: who asked and was cancelled is the user, not somebody who disposed of the agent."""
    async with agent_on(ScriptedModel(lambda r: answer(say("x"), Hang()))) as (_, agent):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(agent.ask, "go")
                await settled()
                scope.cancel()
        await agent.wait_idle()
        assert ending_kinds(agent.session) == ["Aborted UserCause"]
