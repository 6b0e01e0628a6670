"""Turns and steps from end to end: what is entered, asked, run, retried, and how it ends."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import evolve
from tests.agent.kit import Faults, check, codes, ending_kinds, endings, play, played, results
from tests.agent.rig import Fussy, log, one, show, shown
from tests.whole import whole

import terzetto
from terzetto import (
    AgentErrorNotice,
    End,
    Enter,
    PreStep,
    Reject,
    RequestFailed,
    Retry,
    StreamCall,
    ToolError,
    ToolRun,
    TurnFailed,
    TurnStopping,
    UserMessage,
    tool,
)
from terzetto.llm.scripted import (
    Answer,
    Gate,
    ScriptedModel,
    Throw,
    answer,
    call,
    finish_error,
    refuse,
    say,
    think,
)
from terzetto.testing._invariants import history_is_valid
from terzetto.tools import BatchResult, ToolBatch, ToolResultHook
from terzetto.vocabulary import (
    AbortedFinish,
    AssistantChunk,
    AssistantMessageEvent,
    BlockEnd,
    BlockStart,
    Failed,
    Failure,
    Finish,
    InboxSpliced,
    MaxTokens,
    MessageId,
    PluginSource,
    ProviderError,
    RetryPolicy,
    Stop,
    StoreError,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolCallEvent,
    ToolCalls,
    Usage,
    UsageChunk,
    UserMessageEvent,
    texts,
)

PLAIN = ["assistant/message", "step/end"]
HEAD = ["request/header initial", "request/context"]


@tool(parallel=True)
async def echo(x: str = "x") -> str:
    """Echo."""
    return x


@tool
async def boom() -> str:
    """Fail."""
    raise ToolError("no such file", "ENOENT")


@tool
async def finish(run: ToolRun) -> str:
    """Conclude the turn."""
    run.conclude_turn()
    return "finished"


TOOLS = [echo, boom, finish]


def asked(*parts: Any, **options: Any) -> Answer:
    """An answer that calls ``echo`` once, after *parts*."""
    return answer(*parts, call("echo", x="1", id="c1"), **options)


# --- zero-step turns ---------------------------------------------------------------------


@played
async def test_a_turn_whose_first_batch_is_rejected_opens_no_step() -> None:
    """C61 C65 C71: blocked; the message is consumed, and the next one runs normally."""
    async with one(["fine"]) as life:

        async def reject(value: PreStep, proceed: Any) -> Any:
            return Reject() if value.turn == 1 else await proceed()

        life.hooks.pre_step.listen(reject)
        turn = await life.agent.ask("no")
        assert (turn.reason, turn.messages, turn.text) == ("blocked", (), "")
        await life.say("yes")
        assert life.request() == [
            "user: yes",
        ]
        assert log(life.session)[:2] == ["turn/start", "turn/end Blocked"]
        check(life.session)


@played
async def test_a_first_batch_rewritten_to_nothing_costs_no_request() -> None:
    """C61 C71, also when a runtime context is owed: a snapshot alone is no input."""
    async with one(["never"]) as life:
        life.agent.scope.add_context("place", "here")

        async def empty(value: PreStep, proceed: Any) -> Any:
            return Enter(())

        life.hooks.pre_step.listen(empty)
        turn = await life.agent.ask("go")
        assert turn.reason == "completed"
        assert life.model.requests == []
        assert log(life.session) == ["turn/start", "turn/end Completed"]
        check(life.session)


@played
async def test_the_queue_goes_on_after_a_turn_without_a_step() -> None:
    """C66, REFERENCE 2.5: "a normal turn end continues with the queue"."""
    async with one(["two"]) as life:

        async def empty(value: PreStep, proceed: Any) -> Any:
            return Enter(()) if value.turn == 1 else await proceed()

        life.hooks.pre_step.listen(empty)
        life.agent.followup("one")
        life.agent.followup("two")
        await life.agent.wait_idle()
        assert ending_kinds(life.session) == ["Completed", "Completed"]
        assert life.request() == ["user: two"]


@played
async def test_input_injected_while_the_batch_is_emptied_waits() -> None:
    """C50 C57: messages inserted after the claim stay pending; an injection wakes nobody."""
    async with one(["later"]) as life:

        async def empty(value: PreStep, proceed: Any) -> Any:
            if value.turn > 1:
                return await proceed()
            life.agent.inject("note")
            return Enter(())

        life.hooks.pre_step.listen(empty)
        await life.say("first")
        assert life.model.requests == []
        assert [m.text for m in life.agent.inbox.next_step] == ["note"]
        await life.say("second")
        assert life.request() == ["user: note", "user: second"]


@pytest.mark.parametrize("kept", [[], ["context"]], ids=["emptied", "only a snapshot is left"])
def test_steering_while_the_batch_is_emptied_is_not_stranded(kept: list[str]) -> None:
    """BC-08 C49: a running driver consumes it; nobody has to wake the agent again."""

    @played
    async def run() -> None:
        async with one(["about that"]) as life:
            if kept:
                life.agent.scope.add_context("place", "here")

            async def empty(value: PreStep, proceed: Any) -> Any:
                decision = await proceed()
                if "about this" in [m.text for m in value.messages]:
                    return decision
                life.agent.steer("about this")
                return Enter(decision.messages[len(value.messages) :])

            life.hooks.pre_step.listen(empty)
            await life.say("go")
            assert len(life.model.requests) == 1
            assert "user: about this" in life.request()
            assert life.agent.status == "idle"
            check(life.session)

    run()


@played
async def test_steering_while_a_later_batch_is_emptied_is_not_stranded() -> None:
    """BC-08 C49 C64: after a stop as well."""
    async with one(["one", "two", "three"]) as life:
        steered: list[str] = []

        async def stopping(value: TurnStopping) -> None:
            if not steered:
                steered.append("drop me")
                life.agent.steer("drop me")

        async def empty(value: PreStep, proceed: Any) -> Any:
            if [m.text for m in value.messages] != ["drop me"]:
                return await proceed()
            life.agent.steer("keep me")
            return Enter(())

        life.hooks.turn_stopping.listen(stopping)
        life.hooks.pre_step.listen(empty)
        await life.say("go")
        assert life.request() == ["user: go", "assistant: one", "user: keep me"]


@played
async def test_a_batch_that_is_emptied_and_steered_for_ever_can_be_cancelled() -> None:
    """C69 BC-50: no budget, but other tasks run: a driver that never parks starves the host."""
    visits: list[int] = []
    async with one(["never"]) as life, trio.open_nursery() as nursery:

        async def empty(value: PreStep, proceed: Any) -> Any:
            visits.append(value.step)
            if len(visits) >= 2000:
                return Reject()  # so that this test ends
            life.agent.steer("again")
            return Enter(())

        async def stop() -> None:
            while not visits:
                await trio.lowlevel.checkpoint()
            life.agent.cancel()

        life.hooks.pre_step.listen(empty)
        nursery.start_soon(stop)
        await life.say("go")
        assert len(visits) < 2000
        assert ending_kinds(life.session) == ["Aborted UserCause"]
        check(life.session)


@played
async def test_steering_while_the_batch_is_rejected_stays_parked() -> None:
    """C49: "after a rejected step it stays parked until the next wake"."""
    async with one(["ok"]) as life:

        async def reject(value: PreStep, proceed: Any) -> Any:
            if value.turn > 1:
                return await proceed()
            life.agent.steer("parked")
            return Reject()

        life.hooks.pre_step.listen(reject)
        await life.say("no")
        assert life.model.requests == []
        assert [m.text for m in life.agent.inbox.next_step] == ["parked"]
        await life.say("yes")
        assert life.request() == ["user: parked", "user: yes"]


@played
async def test_a_turn_without_a_route_fails_before_assembly() -> None:
    """C9, DESIGN 5: without a step; a later choice lets the next turn run."""
    assembled: list[int] = []
    async with one(["ok"], provider=None, model=None) as life:

        async def assemble(value: Any, proceed: Any) -> Any:
            assembled.append(1)
            return await proceed()

        life.hooks.assemble.listen(assemble)
        await life.say("lost")
        (ending,) = endings(life.session)
        assert isinstance(ending, Failed)
        assert ending.error.code == texts.NO_ROUTE
        assert assembled == []
        assert log(life.session) == ["turn/start", "turn/end Failed"]
        life.agent.model.select("scripted", "m")
        await life.say("found")
        assert life.request() == ["user: found"]


# --- what streams may look like ----------------------------------------------------------


def test_streams_of_odd_shapes_become_messages() -> None:
    """C106 C108, REFERENCE 2.8 and 2.9, runs 004 to 009 and their neighbours."""
    shapes: dict[str, tuple[Answer, str]] = {
        "nothing at all": (Answer(()), ""),
        "a finish alone": (answer(Finish(Stop())), ""),
        "text without a finish": (Answer((TextDelta(0, "half"),)), "half"),
        "an open block": (Answer((BlockStart(0, "text"), TextDelta(0, "open"))), "open"),
        "usage alone": (Answer((UsageChunk(Usage(input_tokens=1, output_tokens=0)),)), ""),
        "text after the finish": (Answer((Finish(Stop()), TextDelta(0, "late"))), "late"),
        "deltas after the end": (
            answer(BlockEnd(0, TextBlock("final")), TextDelta(0, "ghost"), Finish(Stop())),
            "final",
        ),
        "interleaved": (
            answer(TextDelta(0, "a"), TextDelta(1, "x"), TextDelta(0, "b"), Finish(Stop())),
            "ab|x",
        ),
        "reasoning alone": (answer(think("hm")), "<hm>"),
        "tool-calls without calls": (answer("no calls", finish=ToolCalls()), "no calls"),
        "blank text": (answer(say("\n\n")), "\n\n"),
    }
    for name, (given, wanted) in shapes.items():

        @played
        async def run(given: Answer = given, wanted: str = wanted, name: str = name) -> None:
            async with one([given, "next"], TOOLS) as life:
                turn = await life.agent.ask("go")
                assert turn.reason == "completed", name
                (event,) = [
                    e for e in life.session.events if isinstance(e.data, AssistantMessageEvent)
                ]
                assert isinstance(event.data, AssistantMessageEvent)
                assert show(event.data.message) == f"assistant: {wanted}", name
                chunk_seqs = tuple(
                    e.seq for e in life.session.events if isinstance(e.data, AssistantChunk)
                )
                assert event.sources == chunk_seqs, name
                await life.say("more")
                history = [f"assistant: {wanted}"] if wanted else []
                assert life.request() == ["user: go", *history, "user: more"], name
                check(life.session)

        run()


@played
async def test_the_last_finish_and_the_last_usage_win() -> None:
    """REFERENCE 2.9."""
    first, second = Usage(input_tokens=1, output_tokens=1), Usage(input_tokens=2, output_tokens=2)
    given = Answer(
        (
            TextDelta(0, "a"),
            UsageChunk(first),
            Finish(Stop()),
            UsageChunk(second),
            Finish(MaxTokens()),
        )
    )
    async with one([given]) as life:
        turn = await life.agent.ask("go")
        assert (turn.reason, turn.usage) == ("max-tokens", second)


@played
async def test_a_stop_with_calls_runs_them() -> None:
    """BC-17, REFERENCE 2.8: two requests in all."""
    async with one([asked("Let me look.", finish=Stop()), "done"], TOOLS) as life:
        turn = await life.agent.ask("go")
        assert turn.text == "done"
        assert life.request() == [
            "user: go",
            'assistant: Let me look.|c1=echo{"x": "1"}',
            "result c1: 1",
        ]
        assert len(life.model.requests) == 2


@played
async def test_two_tool_steps_in_one_turn() -> None:
    """C60 C63: the order of the facts, steps from 1."""
    second = answer(call("echo", x="2", id="c2"), call("boom", id="c3"))
    async with one([asked(think("hm")), second, "done"], TOOLS) as life:
        await life.say()
        assert log(life.session) == [
            "turn/start",
            *("step/start", "system/message", "user/message", *HEAD),
            *("finish ToolCalls", "assistant/message", "tool/call", "tool/result", "step/end"),
            *("step/start", "finish ToolCalls", "assistant/message"),
            *("tool/call", "tool/result", "tool/call", "tool/result ENOENT", "step/end"),
            *("step/start", "finish Stop", "assistant/message", "step/end"),
            "turn/end Completed",
        ]
        assert life.request()[-3:] == [
            'assistant: c2=echo{"x": "2"}|c3=boom{}',
            "result c2: 2",
            "result c3!: Error: no such file",
        ]
        check(life.session)


# --- max-tokens --------------------------------------------------------------------------


CUT = MaxTokens()


@played
async def test_an_answer_cut_in_text_ends_the_turn_max_tokens() -> None:
    """C65 C110."""
    async with one([answer("as far as", finish=CUT), "next"]) as life:
        turn = await life.agent.ask("go")
        assert (turn.reason, turn.text) == ("max-tokens", "as far as")
        assert (await life.agent.ask("again")).reason == "completed"


@pytest.mark.parametrize("text", ["", "I will write."])
def test_calls_of_a_cut_answer_are_dropped_and_not_run(text: str) -> None:
    """BC-18 C110: also those that look complete; the next request is valid; no re-ask."""
    ran: list[str] = []

    @tool
    async def write(path: str) -> str:
        ran.append(path)
        return "ok"

    @played
    async def run() -> None:
        parts = [say(text)] if text else []
        cut = answer(
            *parts,
            call("write", path="/a", id="c1"),
            call("write", '{"path":"/home/user/proj', id="c2"),
            finish=CUT,
        )
        async with one([cut, "retrying smaller"], [write]) as life:
            turn = await life.agent.ask("go")
            assert turn.reason == "max-tokens"
            assert len(life.model.requests) == 1
            assert ran == []
            await life.say("again")
            kept = [f"assistant: {text}"] if text else []
            assert life.request() == ["user: go", *kept, "user: again"]
            assert history_is_valid(life.agent.history()) == []
            check(life.session)

    run()


@played
async def test_replay_state_loses_the_entries_of_dropped_calls() -> None:
    """C111."""
    state = {"blocks": ["text", "call"], "other": 1}
    cut = answer("kept", call("echo", id="c1"), Finish(MaxTokens(), state))
    async with one([cut], TOOLS) as life:
        turn = await life.agent.ask("go")
        (message,) = [m for m in turn.messages if isinstance(m, terzetto.AssistantMessage)]
        replay: Any = message.source.replay_state
        assert (replay["blocks"], replay["other"]) == (("text",), 1)


@played
async def test_max_tokens_sticks_over_an_ordinary_step() -> None:
    """C65: "a later normal step does not downgrade it"."""
    async with one([answer("cut", finish=CUT), "whole"]) as life:

        async def stopping(value: TurnStopping) -> None:
            if len(life.model.requests) == 1:
                life.agent.steer("go on")

        life.hooks.turn_stopping.listen(stopping)
        turn = await life.agent.ask("go")
        assert (turn.reason, turn.text) == ("max-tokens", "whole")


@played
async def test_tools_after_max_tokens_give_their_results_to_the_model() -> None:
    """DESIGN 12: `turn_stopping` runs only when nothing is owed; the ending stays."""
    stops: list[int] = []
    async with one([answer("cut", finish=CUT), asked(), "read it"], TOOLS) as life:

        async def stopping(value: TurnStopping) -> None:
            stops.append(len(life.model.requests))
            if len(stops) == 1:
                life.agent.steer("go on")

        life.hooks.turn_stopping.listen(stopping)
        turn = await life.agent.ask("go")
        assert (turn.reason, turn.text) == ("max-tokens", "read it")
        assert stops == [1, 3]
        assert life.request()[-1] == "result c1: 1"


@played
async def test_a_cut_answer_after_tools_ends_the_turn() -> None:
    """C65 C110: no automatic re-ask."""
    async with one([asked(), answer("cut", finish=CUT)], TOOLS) as life:
        assert (await life.agent.ask("go")).reason == "max-tokens"
        assert len(life.model.requests) == 2


@played
async def test_a_failure_after_max_tokens_is_a_failure() -> None:
    """C65: the error of the request ends the turn."""
    async with one([answer("cut", finish=CUT), refuse(500)]) as life:
        life.hooks.turn_stopping.listen(_steer_once(life))
        await life.say()
        assert ending_kinds(life.session) == ["Failed"]


def _steer_once(life: Any) -> Any:
    done: list[int] = []

    async def stopping(value: TurnStopping) -> None:
        if not done:
            done.append(1)
            life.agent.steer("go on")

    return stopping


# --- concluding --------------------------------------------------------------------------


@played
async def test_a_concluding_tool_ends_the_turn_at_its_step() -> None:
    """C64, run 044: no further request."""
    async with one([answer(call("finish", id="c1")), "never"], TOOLS) as life:
        turn = await life.agent.ask("go")
        assert turn.reason == "completed"
        assert len(life.model.requests) == 1
        await life.say("more")
        assert life.request()[-2:] == ["result c1: finished", "user: more"]


@pytest.mark.parametrize("first", ["finish", "echo"])
def test_one_concluding_call_of_two_is_enough_and_both_run(first: str) -> None:
    """REFERENCE 2.13, run 045 and its mirror image."""

    @played
    async def run() -> None:
        second = "echo" if first == "finish" else "finish"
        batch = answer(call(first, id="c1"), call(second, id="c2"))
        async with one([batch, "never"], TOOLS) as life:
            await life.say()
            assert len(life.model.requests) == 1
            assert sorted(results(life.session).values()) == ["finished", "x"]

    run()


@played
async def test_a_conclusion_counts_on_success_only() -> None:
    """C118, REFERENCE 2.13: a body that concludes and then fails owes the model its error."""

    @tool
    async def fails(run: ToolRun) -> str:
        run.conclude_turn()
        raise ValueError("after all not")

    async with one([answer(call("fails", id="c1")), "I see"], [fails]) as life:
        turn = await life.agent.ask("go")
        assert turn.text == "I see"
        assert life.request()[-1] == "result c1!: Error: after all not"


@played
async def test_a_conclusion_that_a_listener_makes_an_error_does_not_count() -> None:
    """C118, C119: what is committed decides, not what the body asked for."""

    async def spoil(hook: ToolResultHook, proceed: Any) -> Any:
        return evolve(await proceed(), is_error=True)

    async with one([answer(call("finish", id="c1")), "I see"], TOOLS) as life:
        life.hooks.tool_post_execute.listen(spoil)
        turn = await life.agent.ask("go")
        assert turn.text == "I see"
        assert life.request()[-1] == "result c1!: finished"


@played
async def test_a_conclusion_does_not_stop_next_step_input() -> None:
    """C64: steering, injections and the tool's own contexts still get a step."""

    @tool
    async def talkative(run: ToolRun) -> str:
        run.conclude_turn()
        run.defer_context("from the tool")
        life.agent.inject("from elsewhere")
        return "ok"

    async with one([answer(call("talkative", id="c1")), "read"], [talkative]) as life:
        turn = await life.agent.ask("go")
        assert turn.text == "read"
        assert life.request()[-3:] == [
            "result c1: ok",
            "user: from elsewhere",
            "user: from the tool",
        ]


@played
async def test_a_concluded_turn_asks_turn_stopping_which_may_object() -> None:
    """C64 C159."""
    async with one([answer(call("finish", id="c1")), "going on"], TOOLS) as life:
        life.hooks.turn_stopping.listen(_steer_once(life))
        turn = await life.agent.ask("go")
        assert turn.text == "going on"
        assert life.request()[-1] == "user: go on"


@played
async def test_a_conclusion_belongs_to_its_step() -> None:
    """C64: a later step without one owes the model its results again."""
    async with one([answer(call("finish", id="c1")), asked(), "done"], TOOLS) as life:
        life.hooks.turn_stopping.listen(_steer_once(life))
        turn = await life.agent.ask("go")
        assert turn.text == "done"
        assert len(life.model.requests) == 3


@played
async def test_a_policy_may_conclude_for_a_tool() -> None:
    """C118: the outcome that post-execute returns counts."""

    async def conclude(hook: ToolResultHook, proceed: Any) -> Any:
        return evolve(await proceed(), concludes=True)

    async with one([asked(), "never"], TOOLS) as life:
        life.hooks.tool_post_execute.listen(conclude)
        await life.say()
        assert len(life.model.requests) == 1


# --- turn_stopping -----------------------------------------------------------------------


@played
async def test_an_objection_by_followup_runs_in_the_next_turn() -> None:
    """C64 C159, neighbour of runs 084 and 085: only next-step input keeps the turn open."""
    async with one(["one", "two"]) as life:

        async def stopping(value: TurnStopping) -> None:
            if value.turn == 1:
                life.agent.followup("later")

        life.hooks.turn_stopping.listen(stopping)
        await life.say()
        assert ending_kinds(life.session) == ["Completed", "Completed"]
        assert life.request() == ["user: go", "assistant: one", "user: later"]


@played
async def test_turn_stopping_runs_after_the_step_has_ended() -> None:
    """REFERENCE 2.24: and its failure changes the ending of a finished answer."""
    seen: list[str] = []
    async with one(["one"]) as life:

        async def stopping(value: TurnStopping) -> None:
            seen.extend(log(life.session)[-2:])
            raise RuntimeError("objection!")

        life.hooks.turn_stopping.listen(stopping)
        await life.say()
        assert seen == ["assistant/message", "step/end"]
        assert ending_kinds(life.session) == ["Failed"]
        await life.say("again")
        assert "assistant: one" in shown(life.agent.history())


# --- pre_step ----------------------------------------------------------------------------


@played
async def test_pre_step_is_asked_for_every_path_with_what_was_claimed() -> None:
    """C72 C74 C85: first step, tool continuation, steering; next-step input comes first."""
    seen: list[tuple[int, int, list[str], str]] = []
    async with one([asked(), "two", "three"], TOOLS) as life:

        async def look(value: PreStep, proceed: Any) -> Any:
            found = [m.text for m in value.messages]
            seen.append((value.turn, value.step, found, value.selection.model))
            if (value.turn, value.step) == (1, 2):
                life.agent.steer("steered")
            return await proceed()

        life.hooks.pre_step.listen(look)
        life.agent.inject("note")
        await life.say("go")
        assert seen == [
            (1, 1, ["note", "go"], "m"),
            (1, 2, [], "m"),
            (1, 3, ["steered"], "m"),
        ]


@played
async def test_a_rewritten_batch_is_authoritative() -> None:
    """C70: the original is consumed, neither in history nor pending nor discarded."""
    async with one(["ok"]) as life:
        gone: list[str] = []

        async def rewrite(value: PreStep, proceed: Any) -> Any:
            return Enter((UserMessage("instead", PluginSource("policy")),))

        life.hooks.pre_step.listen(rewrite)
        life.hooks.inbox_discarded.listen(lambda notice: gone.append(notice.message.text))
        turn = await life.agent.ask("original")
        assert life.request() == ["user: instead"]
        assert turn.reason == "completed"
        assert gone == []
        assert len(life.agent.inbox) == 0


@played
async def test_listeners_wrap_each_other_outermost_first() -> None:
    """C70: a wrapping listener keeps the inner batch and the declaration of a series."""
    async with one(["ok"]) as life:

        def adding(text: str) -> Any:
            async def listener(value: PreStep, proceed: Any) -> Any:
                decision = await proceed()
                return evolve(decision, messages=(*decision.messages, UserMessage(text)))

            return listener

        async def series(value: PreStep, proceed: Any) -> Any:
            return evolve(await proceed(), starts_series=True)

        life.engine.scope.hooks.pre_step.listen(adding("outer"))
        life.hooks.pre_step.listen(adding("inner"))
        life.hooks.pre_step.listen(series)
        await life.say()
        assert life.request() == ["user: go", "user: inner", "user: outer"]
        assert "request/header initial series" in log(life.session)


@played
async def test_a_later_step_may_be_rejected_with_results_owed() -> None:
    """C71, run 076: the results stay in history, and the next turn gives them to the model."""
    async with one([asked(), "next"], TOOLS) as life:

        async def reject(value: PreStep, proceed: Any) -> Any:
            return Reject() if (value.turn, value.step) == (1, 2) else await proceed()

        life.hooks.pre_step.listen(reject)
        turn = await life.agent.ask("go")
        assert turn.reason == "blocked"
        await life.say("go on")
        assert life.request()[-2:] == ["result c1: 1", "user: go on"]
        check(life.session)


@played
async def test_a_later_batch_rewritten_to_nothing_with_results_owed_runs() -> None:
    """REFERENCE 2.15, run 078: the step runs with no new messages."""
    async with one([asked(), "read"], TOOLS) as life:

        async def rewrite(value: PreStep, proceed: Any) -> Any:
            return Enter(()) if value.step == 2 else await proceed()

        def steer(hook: ToolResultHook) -> None:
            life.agent.steer("set aside")

        life.hooks.pre_step.listen(rewrite)
        life.hooks.tool_result.listen(steer)
        turn = await life.agent.ask("go")
        assert turn.text == "read"
        assert life.request()[-1] == "result c1: 1"
        assert "user: set aside" not in shown(life.agent.history())
        check(life.session)


@played
async def test_a_later_batch_rewritten_to_nothing_after_a_stop_ends_the_turn() -> None:
    """REFERENCE 2.15: without a step; `max-tokens` sticks there too."""
    async with one([answer("cut", finish=CUT)]) as life:

        async def rewrite(value: PreStep, proceed: Any) -> Any:
            return Enter(()) if value.step == 2 else await proceed()

        life.hooks.pre_step.listen(rewrite)
        life.hooks.turn_stopping.listen(_steer_once(life))
        turn = await life.agent.ask("go")
        assert turn.reason == "max-tokens"
        assert len(life.model.requests) == 1


@played
async def test_a_batch_may_grow_at_a_later_step() -> None:
    """C70."""
    async with one([asked(), "read"], TOOLS) as life:

        async def append(value: PreStep, proceed: Any) -> Any:
            decision = await proceed()
            if value.step != 2:
                return decision
            return Enter((*decision.messages, UserMessage("hint", PluginSource("policy"))))

        life.hooks.pre_step.listen(append)
        await life.say()
        assert life.request()[-2:] == ["result c1: 1", "user: hint"]


@played
async def test_input_that_comes_during_pre_step_waits_for_the_next_boundary() -> None:
    """C57: "messages inserted after the claim stay pending for a later boundary"."""
    async with one(["one", "two"]) as life:

        async def slow(value: PreStep, proceed: Any) -> Any:
            if value.step == 1:
                life.agent.steer("during")
            return await proceed()

        life.hooks.pre_step.listen(slow)
        await life.say()
        assert life.request(0) == ["user: go"]
        assert life.request(1) == ["user: go", "assistant: one", "user: during"]


@played
async def test_a_pre_step_that_fails_consumes_its_input() -> None:
    """C68 C132, REFERENCE 2.6: the turn fails without a step, recovery is not asked."""
    asked_for: list[int] = []
    async with one(["ok"]) as life:

        async def fail(value: PreStep, proceed: Any) -> Any:
            if value.turn == 1:
                raise RuntimeError("pre-step")
            return await proceed()

        async def recover(value: RequestFailed, proceed: Any) -> Any:
            asked_for.append(1)
            return Retry()

        life.hooks.pre_step.listen(fail)
        life.hooks.request_error.listen(recover)
        await life.say("lost")
        assert log(life.session) == ["turn/start", "turn/end Failed"]
        await life.say("next")
        assert life.request() == ["user: next"]
        assert asked_for == []


# --- retries -----------------------------------------------------------------------------


def retrying(life: Any, seen: list[RequestFailed] | None = None, times: int = 99) -> None:
    async def recover(value: RequestFailed, proceed: Any) -> Any:
        if seen is not None:
            seen.append(value)
        return Retry() if value.attempt <= times else await proceed()

    life.hooks.request_error.listen(recover)


@played
async def test_a_retry_discards_all_that_the_failed_attempt_said() -> None:
    """C133 BC-28: reasoning, text and half a call; one assembly, one admission, one answer."""
    half = answer(
        think("I should"),
        say("Here is the plan"),
        ToolCallDelta(2, ToolCallBlock(id="c1", name="", arguments="").id, '{"x":', "echo"),  # type: ignore[arg-type]
        finish_error("SERVER", "overloaded", status=503),
    )
    counted: list[str] = []
    failures: list[RequestFailed] = []
    async with one([half, "Here is the plan."], TOOLS) as life:

        def count(name: str) -> Any:
            async def listener(value: Any, proceed: Any) -> Any:
                counted.append(name)
                return await proceed()

            return listener

        for name in ("assemble", "pre_step", "request", "stream"):
            getattr(life.hooks, name).listen(count(name))
        retrying(life, failures)
        turn = await life.agent.ask("go")
        assert turn.text == "Here is the plan."
        assert life.request(0) == life.request(1) == ["user: go"]
        assert counted == ["assemble", "pre_step", "request", "stream", "request", "stream"]
        assert [(f.attempt, f.failure.status, f.provider) for f in failures] == [
            (1, 503, "scripted")
        ]
        assert log(life.session) == [
            *("turn/start", "step/start", "system/message", "user/message", *HEAD),
            *("finish ErrorFinish", "finish Stop", "assistant/message", "step/end"),
            "turn/end Completed",
        ]
        await life.say("more")
        assert shown(life.agent.history())[:2] == ["user: go", "assistant: Here is the plan."]
        check(life.session)


@played
async def test_the_answer_cites_the_chunks_of_its_own_attempt() -> None:
    """C106."""
    async with one([answer("bad", finish_error()), "good"]) as life:
        retrying(life)
        await life.say()
        events = whole(life.session)
        failed = next(
            e.seq
            for e in events
            if isinstance(e.data, AssistantChunk)
            and isinstance(e.data.chunk, Finish)
            and not isinstance(e.data.chunk.reason, Stop)
        )
        (message,) = [e for e in events if isinstance(e.data, AssistantMessageEvent)]
        assert message.sources == tuple(range(failed + 1, message.seq))


@played
async def test_a_follower_can_tell_that_a_text_was_superseded_before_the_new_one_comes() -> None:
    """BC-28: by the documented rule - a failed finish ends an attempt."""
    async with one([answer("old", finish_error()), "new"]) as life:
        retrying(life)
        await life.say()
        text = ""
        for event in life.session.events:
            match event.data:
                case AssistantChunk(chunk=TextDelta(text=delta)):
                    text += delta
                case AssistantChunk(chunk=Finish(reason=reason)) if not isinstance(reason, Stop):
                    text = ""
                case _:
                    pass
        assert text == "new"


@pytest.mark.parametrize("decision", ["end", "none", "no listener"])
def test_an_unhandled_failure_ends_the_turn_and_keeps_nothing_of_it(decision: str) -> None:
    """C132 C133 C137: the turn's error is the adapter's failure."""

    @played
    async def run() -> None:
        heard: list[AgentErrorNotice] = []
        bad = answer("part of", finish_error("RATE_LIMIT", "slow down", status=429))
        async with one([bad, "next"]) as life:

            async def give_up(value: RequestFailed, proceed: Any) -> Any:
                return End() if decision == "end" else None

            if decision != "no listener":
                life.hooks.request_error.listen(give_up)
            life.hooks.agent_error.listen(heard.append)
            with pytest.raises(TurnFailed) as caught:
                await life.agent.ask("go")
            assert caught.value.failure == Failure(
                message="slow down", code="RATE_LIMIT", status=429
            )
            assert isinstance(caught.value.__cause__, ProviderError)
            assert [(n.turn, n.step, n.failure.code) for n in heard] == [(1, 1, "RATE_LIMIT")]
            await life.say("more")
            assert life.request() == ["user: go", "user: more"]
            check(life.session)

    run()


@played
async def test_attempts_are_counted_within_their_step() -> None:
    """C132: 1, 2, 3 in a step; 1 again in the next."""
    failures: list[RequestFailed] = []
    script = [refuse(500), refuse(500), asked(), refuse(500), "done"]
    async with one(script, TOOLS) as life:
        retrying(life, failures)
        await life.say()
        assert [(f.step, f.attempt) for f in failures] == [(1, 1), (1, 2), (2, 1)]
        assert ending_kinds(life.session) == ["Completed"]


@played
async def test_an_aborted_finish_is_a_failure() -> None:
    """REFERENCE 2.22: offered to recovery; unhandled it ends as an error."""
    gone = Failure(message="they stopped", code="SERVER")
    failures: list[RequestFailed] = []
    async with one(
        [answer("x", Finish(AbortedFinish(gone))), answer(Finish(AbortedFinish(gone)))]
    ) as life:
        retrying(life, failures, times=1)
        await life.say()
        assert [f.failure for f in failures] == [gone, gone]
        assert ending_kinds(life.session) == ["Failed"]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("broken"), "UNKNOWN", "broken"),
        (ProviderError(Failure(message="m", code="TIMEOUT")), "TIMEOUT", "m"),
        (
            ExceptionGroup("n", [ProviderError(Failure(message="m", code="TIMEOUT"))]),
            "TIMEOUT",
            "m",
        ),
        (ExceptionGroup("two", [ValueError("a"), ValueError("b")]), "UNKNOWN", "two: a; b"),
    ],
    ids=["foreign", "typed", "typed in a group", "a group of two"],
)
@pytest.mark.parametrize("moment", ["at once", "after text"])
def test_what_an_adapter_raises_is_a_logged_failure_that_can_be_retried(
    error: Exception, code: str, message: str, moment: str
) -> None:
    """C109 C132, REFERENCE 2.22 and 2.23."""

    @played
    async def run() -> None:
        failures: list[RequestFailed] = []
        parts = [] if moment == "at once" else [say("half")]
        async with one([answer(*parts, Throw(error)), "good"]) as life:
            retrying(life, failures)
            turn = await life.agent.ask("go")
            assert turn.text == "good"
            assert [(f.failure.code, f.failure.message) for f in failures] == [(code, message)]
            assert "finish ErrorFinish" in log(life.session)

    run()


@pytest.mark.parametrize("stage", ["assemble", "pre_step", "request", "stream"])
def test_failures_before_the_adapter_are_not_offered_to_recovery(stage: str) -> None:
    """C132, REFERENCE 2.22: extensions bypass it and close the turn."""

    @played
    async def run() -> None:
        failures: list[RequestFailed] = []
        async with one(["ok", "ok"]) as life:
            broken = [True]

            async def fail(value: Any, proceed: Any) -> Any:
                if broken:
                    broken.clear()
                    raise RuntimeError("an extension")
                return await proceed()

            getattr(life.hooks, stage).listen(fail)
            retrying(life, failures)
            with pytest.raises(TurnFailed) as caught:
                await life.agent.ask("go")
            assert caught.value.failure.message == "an extension"
            assert failures == []
            assert life.model.requests == []
            entered = "user/message" in log(life.session)
            assert entered == (stage == "stream")
            await life.say("again")
            assert ending_kinds(life.session) == ["Failed", "Completed"]
            check(life.session)

    run()


@played
async def test_a_listener_that_fails_in_the_middle_of_a_stream_commits_nothing() -> None:
    """C107 C109 C132: middleware defects stay thrown; no content of the failed step."""
    failures: list[RequestFailed] = []

    @asynccontextmanager
    async def tapped(stream: Any) -> AsyncIterator[Any]:
        async with stream as chunks:

            async def tap() -> AsyncIterator[Any]:
                async for chunk in chunks:
                    yield chunk
                    if isinstance(chunk, TextDelta):
                        raise LookupError("the tap")

            yield tap()

    async with one(["some text", "good"]) as life:
        broken = [True]

        async def listener(value: StreamCall, proceed: Any) -> Any:
            stream = await proceed()
            return tapped(stream) if broken.pop() else stream

        broken = [False, True]
        life.hooks.stream.listen(listener)
        retrying(life, failures)
        with pytest.raises(TurnFailed) as caught:
            await life.agent.ask("go")
        assert isinstance(caught.value.__cause__, LookupError)
        assert failures == []
        assert life.model.open_streams == 0
        await life.say("more")
        assert life.request() == ["user: go", "user: more"]


@played
async def test_a_recovery_that_fails_ends_the_turn_with_its_own_error() -> None:
    """C132, run 064."""
    async with one([refuse(500)]) as life:

        async def recover(value: RequestFailed, proceed: Any) -> Any:
            raise RuntimeError("recovery")

        life.hooks.request_error.listen(recover)
        with pytest.raises(TurnFailed) as caught:
            await life.agent.ask("go")
        assert caught.value.failure.message == "recovery"


@played
async def test_a_recovery_that_cancels_and_retries_makes_no_further_attempt() -> None:
    """C128 C133, REFERENCE 2.12: nothing of the failed attempt is kept."""
    async with one([answer("part", finish_error()), "never"]) as life:

        async def recover(value: RequestFailed, proceed: Any) -> Any:
            life.agent.cancel()
            return Retry()

        life.hooks.request_error.listen(recover)
        turn = await life.agent.ask("go")
        assert turn.reason == "aborted"
        assert len(life.model.requests) == 1
        assert "assistant/message" not in log(life.session)
        check(life.session)


@played
async def test_a_retry_keeps_the_tools_results_of_the_step_before() -> None:
    """C133: a retry sees the surface as it is."""
    async with one([asked(), refuse(500), "read"], TOOLS) as life:
        retrying(life)
        await life.say()
        assert life.request(1) == life.request(2)
        assert life.request(2)[-1] == "result c1: 1"


# --- routes without an adapter -----------------------------------------------------------


@played
async def test_a_route_that_nobody_serves_is_offered_to_recovery() -> None:
    """C79 C132, REFERENCE 2.22: after header and context are logged."""
    failures: list[RequestFailed] = []
    async with one(["never"], provider="nobody") as life:
        retrying(life, failures, times=0)
        await life.say()
        assert [f.failure.code for f in failures] == [texts.NO_ADAPTER]
        assert failures[0].policy is None
        assert log(life.session) == [
            *("turn/start", "step/start", "system/message", "user/message", *HEAD),
            *("finish ErrorFinish", "step/end", "turn/end Failed"),
        ]


class Canned:
    """A stream of a listener's own."""

    def __init__(self, *chunks: Any) -> None:
        self.chunks = list(chunks)

    async def __aenter__(self) -> Canned:
        return self

    async def __aexit__(self, *args: object) -> None:
        return None

    def __aiter__(self) -> Canned:
        return self

    async def __anext__(self) -> Any:
        if not self.chunks:
            raise StopAsyncIteration
        return self.chunks.pop(0)


@played
async def test_a_listener_may_own_a_route_that_nobody_serves() -> None:
    """C79 C112: "middleware may still own and short-circuit an unregistered route"."""
    async with one(["never"], provider="nobody") as life:

        async def own(value: StreamCall, proceed: Any) -> Any:
            assert value.request.config.provider == "nobody"
            return Canned(TextDelta(0, "from the cache"), Finish(Stop()))

        life.hooks.stream.listen(own)
        turn = await life.agent.ask("go")
        assert turn.text == "from the cache"
        assert life.model.requests == []


POLICY = RetryPolicy(max_retries=2)


@pytest.mark.parametrize("served", [True, False])
def test_the_retry_policy_is_the_serving_adapters(served: bool) -> None:
    """C132: "captured with the serving adapter (absent when middleware owned the route)"."""

    @played
    async def run() -> None:
        failures: list[RequestFailed] = []
        model = ScriptedModel([refuse(500)], info=terzetto.ModelInfo(retry_policy=POLICY))
        async with one(model, provider="scripted" if served else "nobody") as life:

            async def own(value: StreamCall, proceed: Any) -> Any:
                return await proceed() if served else Canned(finish_error())

            life.hooks.stream.listen(own)
            retrying(life, failures, times=0)
            await life.say()
            assert [f.policy for f in failures] == [POLICY if served else None]

    run()


# --- a cancel before admission -----------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("phase", ["request", "prepare"])
def test_a_cancel_before_admission_commits_nothing(phase: str, keep: bool) -> None:
    """C76 C130, invariant 6, neighbour of runs 157 and 159: put back, or discarded on record."""

    @played
    async def run() -> None:
        at = trio.Event()

        class Slow(ScriptedModel):
            async def prepare(self, config: Any) -> Any:
                if phase == "prepare" and not at.is_set():
                    at.set()
                    await trio.sleep_forever()
                return await super().prepare(config)

        async with one(Slow(["ok"]), system="be brief") as life:

            async def wait(value: Any, proceed: Any) -> Any:
                if phase == "request" and not at.is_set():
                    at.set()
                    await trio.sleep_forever()
                return await proceed()

            life.hooks.request.listen(wait)
            message = life.agent.followup("go")
            await at.wait()
            life.agent.cancel(keep_inbox=keep)
            await life.agent.wait_idle()
            entries = log(life.session, splices=True)
            assert "user/message" not in entries
            assert "system/message" not in entries
            pending = [m.id for m in life.agent.inbox.next_turn]
            assert pending == ([message] if keep else [])
            check(life.session)
            await life.say("again")
            assert life.request(0)[0] == "system: be brief"

    run()


# --- tools in turns ----------------------------------------------------------------------


@played
async def test_steering_during_a_batch_never_splits_a_call_from_its_result() -> None:
    """BC-09 C64: results first, then what was sent meanwhile, in the order sent."""
    entered, release = trio.Event(), trio.Event()

    @tool(parallel=True)
    async def slow() -> str:
        entered.set()
        await release.wait()
        return "slow"

    batch = answer(call("slow", id="c1"), call("echo", id="c2"))
    async with one([batch, "ok"], [slow, echo]) as life:
        life.agent.followup("go")
        await entered.wait()
        life.agent.steer("use B")
        life.agent.inject("note")
        release.set()
        await life.agent.wait_idle()
        assert life.request()[-4:] == [
            *("result c1: slow", "result c2: x"),
            *("user: use B", "user: note"),
        ]
        check(life.session)


@pytest.mark.parametrize("text", ['{"x": "He said "hi""}', "{", "[1]", '"str"', '{"x":1}{"x":2}'])
def test_malformed_arguments_are_one_error_result_and_stay_in_the_log(text: str) -> None:
    """BC-23 C117."""

    @played
    async def run() -> None:
        async with one([answer(call("echo", text, id="c1")), "sorry", "more"], TOOLS) as life:
            await life.say()
            assert codes(life.session) == {"c1": texts.INVALID_ARGS}
            assert f"assistant: c1=echo{text}" in life.request()
            await life.say("more")
            assert ending_kinds(life.session) == ["Completed"] * 2
            check(life.session)

    run()


@played
async def test_the_ids_of_deferred_contexts_come_from_the_engine() -> None:
    """DESIGN 11: "a seed and a virtual clock give byte-identical logs"."""

    @tool
    async def noting(run: ToolRun) -> str:
        run.defer_context("noted")
        return "ok"

    ids: list[list[str]] = []
    for _ in range(2):
        count = iter(range(1000))
        options = {"new_id": lambda count=count: MessageId(f"id-{next(count)}")}
        async with one([answer(call("noting", id="c1")), "ok"], [noting], engine=options) as life:
            await life.say()
            ids.append([message.id for message in life.agent.history()])
    assert ids[0] == ids[1]
    assert all(message_id.startswith("id-") for message_id in ids[0])


@pytest.mark.parametrize("where", ["one body", "two bodies", "the policy"])
def test_a_context_that_is_deferred_twice_does_not_lose_the_batch(where: str) -> None:
    """BC-33 C118: a constant message, as a module may have; the results are recorded."""
    constant = UserMessage("remember the style guide", PluginSource("style"))

    @tool(parallel=True)
    async def noting(run: ToolRun) -> str:
        run.defer_context(constant)
        if where == "one body":
            run.defer_context(constant)
        return "ok"

    @played
    async def run() -> None:
        batch = answer(call("noting", id="c1"), call("noting", id="c2"), call("echo", id="c3"))
        async with one([batch, "read"], [noting, echo]) as life:

            async def policy(hook: ToolResultHook, proceed: Any) -> Any:
                return hook.replaced("seen", (constant,))

            if where == "the policy":
                life.hooks.tool_post_execute.listen(policy)
            turn = await life.agent.ask("go")
            assert turn.text == "read"
            assert all(code is None for code in codes(life.session).values())
            assert len(codes(life.session)) == 3
            assert "user: remember the style guide" in life.request()
            check(life.session)

    run()


@played
async def test_a_context_that_is_deferred_in_every_step_enters_every_step() -> None:
    """C118, invariant 6 ("entered at most once"): a constant message, after it has entered."""
    constant = UserMessage("remember the style guide", PluginSource("style"))

    @tool
    async def noting(run: ToolRun) -> str:
        run.defer_context(constant)
        return "ok"

    script = [answer(call("noting", id="c1")), answer(call("noting", id="c2")), "read"]
    async with one(script, [noting]) as life:
        await life.say()
        assert life.request().count("user: remember the style guide") == 2
        entered = [message.id for message in life.agent.history()]
        assert len(set(entered)) == len(entered)
        check(life.session)


@played
async def test_contexts_enter_the_next_step_in_the_order_of_the_calls() -> None:
    """C118 C122: whichever body was done first."""

    @tool(parallel=True)
    async def noting(seconds: int, run: ToolRun) -> str:
        await trio.sleep(seconds)
        run.defer_context(f"after {seconds}")
        return "ok"

    batch = answer(call("noting", seconds=2, id="c1"), call("noting", seconds=1, id="c2"))
    async with one([batch, "read"], [noting]) as life:
        await life.say()
        assert life.request()[-2:] == ["user: after 2", "user: after 1"]


@played
async def test_contexts_accepted_before_a_cancel_are_cleared_by_it() -> None:
    """REFERENCE 2.4: those of results finalised after it are parked and enter the next turn."""
    at = trio.Event()

    @tool(parallel=True)
    async def noting(wait: bool, run: ToolRun) -> str:
        run.defer_context(f"wait {wait}")
        if wait:
            at.set()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                return "kept"
        return "ok"

    batch = answer(call("noting", wait=False, id="c1"), call("noting", wait=True, id="c2"))
    async with one([batch, "next"], [noting]) as life:
        life.agent.followup("go")
        await at.wait()
        while "c1" not in codes(life.session):
            await trio.sleep(1)
        life.agent.cancel()
        await life.agent.wait_idle()
        assert [m.text for m in life.agent.inbox.next_step] == ["wait True"]
        await life.say("more")
        assert life.request()[-2:] == ["user: wait True", "user: more"]
        check(life.session)


@played
async def test_an_edit_of_the_cap_leaves_the_running_batch_alone() -> None:
    """C12 C174: and counts for the next one."""
    most = [0, 0]
    running = [0]
    step = [0]

    @tool(parallel=True)
    async def counted() -> str:
        running[0] += 1
        most[step[0]] = max(most[step[0]], running[0])
        await trio.sleep(1)
        life.engine.settings.max_parallel_tool_calls = 1
        running[0] -= 1
        return "ok"

    def batch(name: str) -> Answer:
        return answer(*(call("counted", id=f"{name}{n}") for n in range(6)))

    async with one(
        [batch("a"), batch("b"), "done"], [counted], engine={"max_parallel_tool_calls": 3}
    ) as life:

        async def next_batch(value: PreStep, proceed: Any) -> Any:
            step[0] = value.step - 1
            return await proceed()

        life.hooks.pre_step.listen(next_batch)
        await life.say()
        assert most == [3, 1]


@played
async def test_the_executor_gets_the_raw_batch_and_the_cap() -> None:
    """C4 C12: and owns dispatch."""
    got: list[tuple[list[str], int]] = []

    class Serial:
        async def execute(self, batch: ToolBatch) -> BatchResult:
            got.append(([call.id for call in batch.calls], batch.capacity))
            for each in batch.calls:
                prepared = batch.pipeline.classify(each)
                seq = batch.log.call(each)
                await batch.pipeline.admit(prepared)
                await batch.log.flush()
                if prepared.outcome is None:
                    await batch.pipeline.execute(prepared)
                batch.log.result(each, seq, await batch.pipeline.review(prepared))
            return BatchResult(concludes=False)

    batch = answer(call("echo", id="c1"), call("nobody", id="c2"))
    options = {"executor": Serial(), "max_parallel_tool_calls": 7}
    async with one([batch, "done"], TOOLS, engine=options) as life:
        turn = await life.agent.ask("go")
        assert turn.text == "done"
        assert got == [(["c1", "c2"], 7)]


@pytest.mark.parametrize("after", ["nothing", "a call", "a result"])
def test_a_failing_executor_leaves_every_call_answered(after: str) -> None:
    """C125 C134 C135 C136: the turn keeps the executor's error; the next turn is valid."""

    class Broken:
        async def execute(self, batch: ToolBatch) -> BatchResult:
            first = batch.calls[0]
            if after != "nothing":
                seq = batch.log.call(first)
            if after == "a result":
                prepared = batch.pipeline.classify(first)
                await batch.pipeline.execute(prepared)
                batch.log.result(first, seq, await batch.pipeline.review(prepared))
            raise RuntimeError("the scheduler broke")

    wanted: dict[str, list[str | None]] = {
        "nothing": [texts.TOOL_NOT_STARTED, texts.TOOL_NOT_STARTED],
        "a call": [texts.TOOL_OUTCOME_UNKNOWN, texts.TOOL_NOT_STARTED],
        "a result": [None, texts.TOOL_NOT_STARTED],
    }

    @played
    async def run() -> None:
        batch = answer(call("echo", id="c1"), call("echo", id="c2"))
        async with one([batch, "done"], TOOLS, engine={"executor": Broken()}) as life:
            with pytest.raises(TurnFailed) as caught:
                await life.agent.ask("go")
            assert caught.value.failure.message == "the scheduler broke"
            assert list(codes(life.session).values()) == wanted[after]
            await life.say("more")
            assert ending_kinds(life.session) == ["Failed", "Completed"]
            assert history_is_valid(life.agent.history()) == []
            check(life.session)

    run()


@played
async def test_closed_history_is_not_rewritten() -> None:
    """C138: recovery answers the open step alone."""

    class Broken:
        async def execute(self, batch: ToolBatch) -> BatchResult:
            raise RuntimeError("broken")

    async with one([asked(), asked()], TOOLS, engine={"executor": Broken()}) as life:
        await life.say()
        before = whole(life.session)
        await life.say("again")
        assert whole(life.session)[: len(before)] == before
        assert log(life.session).count(f"tool/result {texts.TOOL_NOT_STARTED}") == 2


@played
async def test_a_store_that_fails_before_the_tools_starts_none() -> None:
    """DESIGN 9 C125 C134: the turn ends with code STORE; every call is answered."""
    ran: list[str] = []

    @tool
    async def write() -> str:
        ran.append("it")
        return "ok"

    store = Faults()
    async with one(
        [answer(call("write", id="c1"), call("write", id="c2")), "next"],
        [write],
        engine={"store": store},
    ) as life:

        async def fail() -> None:
            if "tool/call" in log(life.session) and "c1" not in codes(life.session):
                raise StoreError("the disk is full")

        store.at["flush"] = fail
        with pytest.raises(TurnFailed) as caught:
            await life.agent.ask("go")
        assert caught.value.failure.code == texts.STORE
        assert ran == []
        assert len(codes(life.session)) == 2
        await life.say("again")
        assert ending_kinds(life.session) == ["Failed", "Completed"]
        check(life.session)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_call_is_durable_before_its_body_runs(read_only: bool) -> None:
    """DESIGN 9 BC-41: "start records are durable before the body runs", but for read-only
    tools, which do not wait."""

    @played
    async def run() -> None:
        store = Faults()
        flushing = [False]
        seen: list[tuple[bool, bool]] = []

        @tool(read_only=read_only)
        async def look() -> str:
            calls = [e for e in store.stored(life.session.id) if type(e.data) is ToolCallEvent]
            seen.append((bool(calls), flushing[0]))
            return "ok"

        async def slow() -> None:
            flushing[0] = True
            await trio.sleep(1)
            flushing[0] = False

        script = [answer(call("look", id="c1")), "done"]
        async with one(script, [look], engine={"store": store}) as life:
            store.at["flush"] = slow
            await life.say()
            assert seen == [(not read_only, False)]
            assert list(codes(life.session).values()) == [None]

    run()


@played
async def test_a_store_that_fails_before_the_request_sends_none() -> None:
    """DESIGN 9: a request is flushed before it is sent; not offered to recovery."""
    store = Faults()
    failures: list[RequestFailed] = []
    async with one(["ok"], engine={"store": store}) as life:
        broken = [True]

        async def fail() -> None:
            if broken and "user/message" in log(life.session):
                broken.clear()
                raise StoreError("the disk is full")

        store.at["flush"] = fail
        retrying(life, failures)
        with pytest.raises(TurnFailed) as caught:
            await life.agent.ask("go")
        assert caught.value.failure.code == texts.STORE
        assert life.model.requests == []
        assert failures == []
        check(life.session)


@played
async def test_nested_agents_cannot_deadlock_the_pool() -> None:
    """BC-40: pool size 2, depth 3; the cap is per batch."""
    depth: contextvars.ContextVar[int] = contextvars.ContextVar("depth", default=0)

    @tool(parallel=True)
    async def delegate(run: ToolRun) -> str:
        level = depth.get() + 1
        parent: Any = run.agent
        depth.set(level)
        async with engine.open_agent(
            provider="scripted", model=f"level{level}", parent=parent
        ) as child:
            return (await child.ask("do it")).text

    def reply(request: Any) -> Any:
        level = int(request.config.model[5:])
        if shown(request.messages)[-1].startswith("result"):
            return f"done at {level}"
        calls = [call("echo", id="e1"), call("echo", id="e2")] if level else []
        if level < 3:
            calls += (
                [call("delegate", id="d1")]
                if level
                else [
                    call("delegate", id="d1"),
                    call("delegate", id="d2"),
                ]
            )
        return answer(*calls)

    options = {"max_parallel_tool_calls": 2}
    async with one(reply, [echo, delegate], engine=options, model="level0") as life:
        engine = life.engine
        turn = await life.agent.ask("go")
        assert turn.text == "done at 0"
        assert list(results(life.session).values()) == ["done at 1", "done at 1"]


def test_context_variables_of_the_creator_reach_async_tools_and_nothing_leaks() -> None:
    """BC-35: each agent's tools see the context of its creation; no call sees another's."""
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")

    @tool
    async def who() -> str:
        seen = tenant.get()
        tenant.set("leak")
        return seen

    def reply(request: Any) -> Any:
        if shown(request.messages)[-1].startswith("result"):
            return shown(request.messages)[-1].rpartition(": ")[2]
        return answer(call("who", id="c1"), call("who", id="c2"))

    @played
    async def run() -> None:
        async with one(reply, [who]) as life:
            agents = {}
            for name in "AB":
                tenant.set(name)
                handle = await life.engine.agents.create(provider="scripted", model="m")
                agents[name] = handle.agent
            tenant.set("sender")
            for _ in range(3):
                for name, agent in agents.items():
                    turn = await agent.ask("who?")
                    assert turn.text == name
                    assert set(results(agent.session).values()) == {name}

    run()


# --- cancelled in mid-stream -------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ([say("whole. "), say("half")], "whole. |half"),
        ([say("text"), call("echo", id="c1")], "text"),
        ([think("hm"), call("echo", id="c1")], "<hm>"),
        ([call("echo", id="c1")], None),
        ([say("  \n")], None),
        ([say("  \n"), say("x")], "x"),
    ],
    ids=["two blocks", "text and a whole call", "reasoning and a call", "a call", "blank", "mixed"],
)
def test_the_delivered_prefix_is_kept(parts: list[Any], kept: str | None) -> None:
    """C107 BC-01, neighbours of runs 116 to 126: text and reasoning, never a call; with usage."""

    @played
    async def run() -> None:
        usage = Usage(input_tokens=3, output_tokens=2)
        stream = answer(*parts, UsageChunk(usage), Gate("hang"))
        async with one([Answer(stream.actions), "next"], TOOLS) as life:
            life.agent.followup("go")
            await life.model.gates.wait_reached("hang")
            life.agent.cancel()
            await life.agent.wait_idle()
            found = [
                e.data for e in life.session.events if isinstance(e.data, AssistantMessageEvent)
            ]
            assert [show(event.message) for event in found] == (
                [] if kept is None else [f"assistant: {kept}"]
            )
            assert all(event.interrupted and event.usage == usage for event in found)
            assert ending_kinds(life.session) == ["Aborted UserCause"]
            await life.say("more")
            history = [] if kept is None else [f"assistant: {kept}"]
            assert life.request() == ["user: go", *history, "user: more"]
            check(life.session)

    run()


@played
async def test_a_cancelled_batch_end_to_end() -> None:
    """BC-02 C124: finished, running, queued; distinguishable; the next request is valid."""
    entered = trio.Event()

    @tool(parallel=True)
    async def slow() -> str:
        entered.set()
        await trio.sleep(30)
        return "never"

    batch = answer(
        call("echo", id="c1"), call("slow", id="c2"), call("slow", id="c3"), call("slow", id="c4")
    )
    async with one([batch, "next"], [echo, slow], engine={"max_parallel_tool_calls": 2}) as life:
        life.agent.followup("go")
        await entered.wait()
        await trio.sleep(0.1)
        life.agent.cancel()
        await life.agent.wait_idle()
        assert list(codes(life.session).items()) == [
            ("c1", None),
            ("c2", texts.ABORTED),
            ("c3", texts.ABORTED),
            ("c4", texts.ABORTED_BEFORE_DISPATCH),
        ]
        await life.say("hi")
        assert history_is_valid(life.model.requests[-1].messages) == []
        check(life.session)


# --- many in a row -----------------------------------------------------------------------


def test_a_long_turn_of_every_kind_is_valid_throughout() -> None:
    """C60 C84: twenty steps; numbering contiguous, every request valid."""

    @played
    async def run() -> None:
        script: list[Any] = []
        for n in range(20):
            script += [refuse(500)] if n % 5 == 4 else []
            script.append(
                answer(
                    think("hm"),
                    *(call("echo" if k % 2 else "boom", id=f"c{n}.{k}") for k in range(n % 4 + 1)),
                )
            )
        async with one([*script, "done"], TOOLS) as life:
            retrying(life)
            turn = await life.agent.ask("go")
            assert turn.text == "done"
            for request in life.model.requests:
                assert history_is_valid(request.messages) == []
            check(life.session)

    run()


def test_an_adapter_that_raises_a_foreign_base_exception_fails_its_turn_alone() -> None:
    """C68 C109: the driver returns to idle and accepts the next wake; the host goes on."""

    class Foreign(BaseException):
        pass

    async def main() -> list[str]:
        class Odd(Fussy):
            async def prepare(self, config: Any) -> Any:
                prepared = await super().prepare(config)
                if len(self.prepared) > 1:
                    return prepared
                real = prepared

                class Broken:
                    config, info = real.config, real.info
                    adapter_defaults = real.adapter_defaults

                    def open_stream(self, request: Any) -> Any:
                        raise Foreign("not an Exception")

                return Broken()

        async with one(Odd(["fine"])) as life:
            await life.say("one")
            await life.say("two")
            return ending_kinds(life.session)

    assert play(main) == ["Failed", "Completed"]


def test_splices_and_users_are_in_the_log_of_every_turn() -> None:
    """C56 C63: opened, claimed, entered - next-step first, then the prompt, then the context."""

    @played
    async def run() -> None:
        async with one(["ok"]) as life:
            life.agent.scope.add_context("place", "here")
            life.agent.inject("note")
            await life.say("go")
            entered = [
                show(e.data.message)
                for e in life.session.events
                if isinstance(e.data, UserMessageEvent)
            ]
            assert entered == ["user: note", "user: go", "context: here"]
            claims = [
                (e.data.target, e.data.removed_count)
                for e in life.session.events
                if isinstance(e.data, InboxSpliced) and e.data.removed_count
            ]
            assert claims == [("next-step", 1), ("next-turn", 1)]

    run()
