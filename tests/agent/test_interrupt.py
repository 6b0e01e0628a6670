"""`agent.interrupt`: the step that runs is cut, and its turn goes on with the message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from tests.agent.kit import Faults, check, codes, ending_kinds, pending, played, results, settled
from tests.agent.rig import log, one

import terzetto
from terzetto import (
    AgentDisposed,
    HookCause,
    InboxNotice,
    Retry,
    StreamCall,
    TurnStopping,
    UserMessage,
    tool,
)
from terzetto.llm.scripted import Gate, ScriptedModel, answer, call, finish_error, say, think
from terzetto.testing._invariants import history_is_valid
from terzetto.tools import BatchResult, ToolBatch
from terzetto.vocabulary import Completed, EndedAtMaxTokens, MaxTokens

HEAD = ["request/header initial", "request/context"]


@tool(parallel=True)
async def slow() -> str:
    """Take a while."""
    await trio.sleep(10)
    return "done"


@tool(parallel=True)
async def quick() -> str:
    """Take no time."""
    return "quick result"


# --- a stream ------------------------------------------------------------------------------


@played
async def test_delivered_text_is_kept_and_the_turn_goes_on() -> None:
    model = ScriptedModel(
        [answer(think("hm"), say("One. Two. "), Gate("mid"), say("Three.")), "as you wish"]
    )
    async with one(model) as life:
        life.agent.followup("count")
        await model.gates.wait_reached("mid")
        message_id = life.agent.interrupt("stop at two")
        assert life.agent.status == "running"
        await life.agent.wait_idle()
        assert life.agent.session.history()[-2].id == message_id
        assert life.request(1) == [
            "user: count",
            "assistant: <hm>|One. Two. ",
            "user: stop at two",
        ]
        assert ending_kinds(life.session) == ["Completed"]
        assert log(life.session) == [
            "turn/start",
            "step/start", "system/message", "user/message", *HEAD, "assistant/message", "step/end",
            "step/start", "user/message", "finish Stop", "assistant/message", "step/end",
            "turn/end Completed",
        ]  # fmt: skip
        check(life.session)


@played
async def test_before_the_first_chunk_nothing_is_anchored() -> None:
    async with one([answer(Gate("silent"), "never"), "sooner"]) as life:
        life.agent.followup("go")
        await life.model.gates.wait_reached("silent")
        life.agent.interrupt("never mind")
        await life.agent.wait_idle()
        assert life.request(1) == ["user: go", "user: never mind"]
        assert not life.model.open_streams
        check(life.session)


@played
async def test_an_answer_whose_finish_arrived_is_complete_and_its_calls_do_not_run() -> None:
    """Interrupted between the finish and the end of the stream."""
    ran = []

    @tool
    async def touch() -> str:
        """Leave a mark."""
        ran.append("touch")
        return "touched"

    async with one([answer("Let me see.", call("touch")), "fine"], [touch]) as life:

        @asynccontextmanager
        async def lingering(stream: object) -> AsyncIterator[AsyncIterator[object]]:
            async with stream as chunks:  # type: ignore[attr-defined]

                async def then_wait() -> AsyncIterator[object]:
                    async for chunk in chunks:
                        yield chunk
                    await life.model.gates.wait("ended")

                yield then_wait()

        async def listener(value: StreamCall, proceed: object) -> object:
            return lingering(await proceed())  # type: ignore[operator]

        life.hooks.stream.listen(listener)
        life.agent.followup("go")
        await life.model.gates.wait_reached("ended")
        life.agent.interrupt("do not touch")
        life.model.gates.open("ended")
        await life.agent.wait_idle()
        assert ran == []
        assert list(codes(life.session).values()) == ["ABORTED_BEFORE_DISPATCH"]
        assert life.request(1)[-1] == "user: do not touch"
        assert [history_is_valid(r.messages) for r in life.model.requests] == [[], []]
        assert ending_kinds(life.session) == ["Completed"]
        check(life.session)


@played
async def test_a_complete_answer_at_the_output_limit_stays_one() -> None:
    """C65: the ending remembers the limit, also when the step was interrupted after it."""
    async with one([answer("cut", finish=MaxTokens()), "fine"]) as life:

        async def interrupting(value: StreamCall, proceed: object) -> object:
            stream = await proceed()  # type: ignore[operator]

            @asynccontextmanager
            async def wrapped() -> AsyncIterator[object]:
                async with stream as chunks:
                    yield chunks
                if value.step == 1:
                    life.agent.interrupt("shorter")

            return wrapped()

        life.hooks.stream.listen(interrupting)
        turn = await life.agent.ask("go")
        assert isinstance(turn.ending, EndedAtMaxTokens)
        assert life.request(1)[-2:] == ["assistant: cut", "user: shorter"]


@played
async def test_a_clean_up_that_fails_while_it_gives_way_does_not_fail_the_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """BC-12: the error is recorded, and does not take the place of what was asked for."""
    async with one([answer(say("One."), Gate("mid")), "fine"]) as life:

        async def listener(value: StreamCall, proceed: object) -> object:
            stream = await proceed()  # type: ignore[operator]

            @asynccontextmanager
            async def wrapped() -> AsyncIterator[object]:
                try:
                    async with stream as chunks:
                        yield chunks
                finally:
                    if value.step == 1:
                        raise RuntimeError("the tap leaks")

            return wrapped()

        life.hooks.stream.listen(listener)
        life.agent.followup("go")
        await life.model.gates.wait_reached("mid")
        life.agent.interrupt("next")
        await life.agent.wait_idle()
        assert ending_kinds(life.session) == ["Completed"]
        assert life.request(1) == ["user: go", "assistant: One.", "user: next"]
        assert "the tap leaks" in caplog.text


@played
async def test_a_task_that_fails_while_it_gives_way_does_not_fail_the_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """BC-12: the same of a listener that has a nursery, whose group holds `Cancelled` too."""
    async with one([answer(say("One."), Gate("mid")), "fine"]) as life:

        async def leak() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise RuntimeError("the tap leaks")

        async def listener(value: StreamCall, proceed: object) -> object:
            stream = await proceed()  # type: ignore[operator]

            @asynccontextmanager
            async def wrapped() -> AsyncIterator[object]:
                async with trio.open_nursery() as nursery, stream as chunks:
                    if value.step == 1:
                        nursery.start_soon(leak)
                    yield chunks

            return wrapped()

        life.hooks.stream.listen(listener)
        life.agent.followup("go")
        await life.model.gates.wait_reached("mid")
        life.agent.interrupt("next")
        await life.agent.wait_idle()
        assert ending_kinds(life.session) == ["Completed"]
        assert life.request(1) == ["user: go", "assistant: One.", "user: next"]
        assert "the tap leaks" in caplog.text
        check(life.session)


@played
async def test_a_listener_that_fails_uninterrupted_fails_the_turn() -> None:
    """The other side of the test above: nothing is hidden without an interruption."""
    async with one([answer(say("One."))]) as life:

        async def listener(value: StreamCall, proceed: object) -> object:
            raise RuntimeError("the tap leaks")

        life.hooks.stream.listen(listener)
        await life.say()
        assert ending_kinds(life.session) == ["Failed"]


@played
async def test_each_interruption_cuts_one_step() -> None:
    parts = [answer(say(f"{n} "), Gate(f"mid {n}"), "never") for n in range(4)]
    async with one([*parts, "at last"]) as life:
        life.agent.followup("go")
        for n in range(4):
            await life.model.gates.wait_reached(f"mid {n}")
            life.agent.interrupt(f"again {n}")
            if n == 2:
                life.agent.interrupt("twice")
        await life.agent.wait_idle()
        assert life.request() == [
            "user: go",
            "assistant: 0 ", "user: again 0",
            "assistant: 1 ", "user: again 1",
            "assistant: 2 ", "user: again 2", "user: twice",
            "assistant: 3 ", "user: again 3",
        ]  # fmt: skip
        assert ending_kinds(life.session) == ["Completed"]
        check(life.session)


# --- a batch -------------------------------------------------------------------------------


@played
async def test_a_batch_is_settled_as_under_cancel() -> None:
    """BC-02: what returned keeps its result, what ran gave way, what waited never starts."""
    asks = answer(call("quick"), call("slow"), call("slow"), call("slow"))
    async with one([asks, "fine"], [slow, quick]) as life:
        life.engine.settings.max_parallel_tool_calls = 2
        life.agent.followup("go")
        await trio.sleep(1)
        life.agent.interrupt("enough")
        await life.agent.wait_idle()
        assert trio.current_time() < 5
        first, *rest = codes(life.session).values()
        assert first is None
        assert next(iter(results(life.session).values())) == "quick result"
        assert rest == ["ABORTED", "ABORTED", "ABORTED_BEFORE_DISPATCH"]
        assert life.request(1)[-1] == "user: enough"
        assert history_is_valid(life.model.requests[1].messages) == []
        assert ending_kinds(life.session) == ["Completed"]
        check(life.session)


@played
async def test_a_body_that_returns_all_the_same_keeps_its_result() -> None:
    """BC-03: and the tools of the next step run."""

    @tool
    async def absorb() -> str:
        """Give no way."""
        try:
            await trio.sleep(30)
        except BaseException:
            pass
        return "absorbed"

    script = [answer(call("absorb")), answer(call("quick")), "fine"]
    async with one(script, [absorb, quick]) as life:
        life.agent.followup("go")
        await trio.sleep(1)
        life.agent.interrupt("enough")
        await life.agent.wait_idle()
        assert list(results(life.session).values()) == ["absorbed", "quick result"]
        assert ending_kinds(life.session) == ["Completed"]
        check(life.session)


@played
async def test_a_tool_that_concluded_does_not_end_the_turn_over_the_message() -> None:
    @tool
    async def finish_up(run: terzetto.ToolRun) -> str:
        """Conclude."""
        run.conclude_turn()
        life.agent.interrupt("one more thing")
        return "concluded"

    async with one([answer(call("finish_up")), "fine"], [finish_up]) as life:
        await life.say()
        assert life.request(1)[-1] == "user: one more thing"
        assert list(results(life.session).values()) == ["concluded"]


@played
async def test_an_executor_that_leaves_calls_open_is_answered_for() -> None:
    """A replaced executor (C4) may simply give way."""

    class Careless:
        async def execute(self, batch: ToolBatch) -> BatchResult:
            batch.log.call(batch.calls[0])
            await trio.sleep_forever()
            raise AssertionError

    script = [answer(call("quick"), call("quick")), "fine"]
    async with one(script, [quick], engine={"executor": Careless()}) as life:
        life.agent.followup("go")
        await settled()
        life.agent.interrupt("enough")
        await life.agent.wait_idle()
        found = list(codes(life.session).values())
        assert found == ["TOOL_OUTCOME_UNKNOWN", "ABORTED_BEFORE_DISPATCH"]
        assert ending_kinds(life.session) == ["Completed"]


@played
async def test_an_executor_that_breaks_while_it_gives_way_fails_the_turn() -> None:
    """C125: its failure is ours, and is not hidden."""

    class Broken:
        async def execute(self, batch: ToolBatch) -> BatchResult:
            try:
                await trio.sleep_forever()
            finally:
                raise RuntimeError("broken")

    script = [answer(call("quick")), "fine"]
    async with one(script, [quick], engine={"executor": Broken()}) as life:
        life.agent.followup("go")
        await settled()
        life.agent.interrupt("enough")
        await life.agent.wait_idle()
        assert ending_kinds(life.session) == ["Failed"]
        assert pending(life.agent) == ["enough"]
        check(life.session)


# --- any other moment: steer -----------------------------------------------------------------


@played
async def test_an_idle_agent_is_woken() -> None:
    async with one(["hello"]) as life:
        life.agent.interrupt("hi")
        assert life.agent.status == "running"
        await life.agent.wait_idle()
        assert life.request() == ["user: hi"]


@pytest.mark.parametrize("where", ["pre_step", "assemble", "request", "turn_stopping"])
def test_in_hooks_it_steers(where: str) -> None:
    """Nothing is cut: every step of the turn has a whole answer."""

    @played
    async def run() -> None:
        async with one(["one", "two", "three"]) as life:
            done: list[str] = []

            async def listener(value: object, proceed: object) -> object:
                if not done:
                    done.append(life.agent.interrupt("also"))
                return await proceed()  # type: ignore[operator]

            async def stopping(value: TurnStopping) -> None:
                if not done:
                    done.append(life.agent.interrupt("also"))

            point = getattr(life.hooks, where)
            point.listen(stopping if where == "turn_stopping" else listener)
            await life.say()
            assert life.request(1) == ["user: go", "assistant: one", "user: also"]
            assert log(life.session).count("finish Stop") == 2
            assert ending_kinds(life.session) == ["Completed"]

    run()


@played
async def test_while_a_retry_waits_it_steers() -> None:
    """The attempt is over and the next has not begun: nothing runs that could be cut."""
    async with one([finish_error(code="SERVER"), "second try", "third"]) as life:

        async def patient(value: object, proceed: object) -> Retry:
            await trio.sleep(5)
            return Retry()

        life.hooks.request_error.listen(patient)
        life.agent.followup("go")
        await trio.sleep(1)
        life.agent.interrupt("hurry")
        await life.agent.wait_idle()
        assert trio.current_time() >= 5
        assert life.request(1) == ["user: go"]
        assert life.request(2) == ["user: go", "assistant: second try", "user: hurry"]


@played
async def test_while_a_cancel_converges_it_waits_for_the_next_turn() -> None:
    """BC-07: as any waking input."""
    async with one([answer(say("One."), Gate("mid")), "fine"]) as life:
        life.agent.followup("go")
        await life.model.gates.wait_reached("mid")
        life.agent.cancel(keep_inbox=True)
        life.agent.interrupt("next")
        await life.agent.wait_idle()
        assert ending_kinds(life.session) == ["Aborted UserCause", "Completed"]
        assert life.request(1) == ["user: go", "assistant: One.", "user: next"]


@played
async def test_a_cancel_of_the_turn_wins() -> None:
    """In one stretch, either order: the turn ends, and the message goes as the cancel says."""
    for keep, left in ((False, []), (True, ["next"])):
        async with one([answer(say("One."), Gate("mid")), "fine"]) as life:
            life.agent.followup("go")
            await life.model.gates.wait_reached("mid")
            life.agent.interrupt("next")
            life.agent.cancel(HookCause("enough"), keep_inbox=keep)
            await life.agent.wait_idle()
            assert ending_kinds(life.session) == ["Aborted HookCause"]
            assert pending(life.agent) == left
            check(life.session)


@played
async def test_a_listener_that_cancels_when_it_hears_of_the_message_wins() -> None:
    async with one([answer(say("One."), Gate("mid")), "fine"]) as life:
        life.agent.followup("go")
        await life.model.gates.wait_reached("mid")

        def heard(notice: InboxNotice) -> None:
            life.agent.cancel()

        life.hooks.inbox_inserted.listen(heard)
        life.agent.interrupt("next")
        await life.agent.wait_idle()
        assert ending_kinds(life.session) == ["Aborted UserCause"]
        assert pending(life.agent) == []
        check(life.session)


@played
async def test_a_message_that_is_taken_back_leaves_a_turn_that_ends() -> None:
    async with one([answer(say("One."), Gate("mid")), "never asked"]) as life:
        life.agent.followup("go")
        await life.model.gates.wait_reached("mid")
        taken = life.agent.interrupt("next")
        life.agent.inbox.remove(taken)
        await life.agent.wait_idle()
        assert len(life.model.requests) == 1
        assert isinstance(life.session.events[-1].data.ending, Completed)
        check(life.session)


@played
async def test_maintenance_is_not_interrupted() -> None:
    async with one(["fine"]) as life:

        async def job() -> str:
            life.agent.interrupt("next")
            await trio.sleep(1)
            return "done"

        assert await life.agent.run_maintenance(job) == "done"
        await life.agent.wait_idle()
        assert life.request() == ["user: next"]


# --- refusals, stores, lives -------------------------------------------------------------------


@played
async def test_a_disposed_agent_refuses() -> None:
    async with one() as life:
        pass
    with pytest.raises(AgentDisposed):
        life.agent.interrupt("hello?")


@played
async def test_a_message_of_another_kind_cuts_nothing() -> None:
    async with one([answer(say("One."), Gate("mid"), "Two.")]) as life:
        life.agent.followup("go")
        await life.model.gates.wait_reached("mid")
        with pytest.raises(terzetto.InvalidValue, match="expected a str or a UserMessage"):
            life.agent.interrupt(7)  # type: ignore[arg-type]
        life.model.gates.open("mid")
        await life.agent.wait_idle()
        assert life.session.history()[-1].text == "One.Two."  # type: ignore[union-attr]


@played
async def test_what_an_interrupted_step_left_is_what_a_resume_sends() -> None:
    """Invariant 8, over a second life."""
    store = Faults()
    async with one([answer(say("One."), Gate("mid")), "fine"], engine={"store": store}) as life:
        life.agent.followup("go")
        await life.model.gates.wait_reached("mid")
        life.agent.interrupt(UserMessage("next"))
        await life.agent.wait_idle()
        name, seen = life.agent.id, [*life.request(1), "assistant: fine", "user: more"]
    async with one(["ok"], engine={"store": store}, resume=name, provider=None, model=None) as life:
        await life.say("more")
        assert life.request() == seen
