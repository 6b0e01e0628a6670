"""Compaction of live agents: when, how, how often, and what is left of it (C164-C166, BC-46)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from tests.agent.kit import ROUTE, check, ending_kinds, engine_on, play, played
from tests.agent.rig import Life, headers, one, shown
from tests.whole import whole

from terzetto import (
    AgentBusy,
    AgentDisposed,
    ModelInfo,
    ModelSelection,
    ProviderError,
    StreamCall,
    ToolRun,
    TurnFailed,
    Usage,
    UserMessage,
    tool,
)
from terzetto.extras.compaction import INSTRUCTIONS, STALLED, Compaction, estimate_tokens
from terzetto.llm.scripted import (
    Delay,
    Gate,
    ScriptedModel,
    answer,
    call,
    overflow,
    refuse,
    say,
)
from terzetto.session import replay
from terzetto.testing import SOURCES, Source, Stage, explore, history_is_valid
from terzetto.vocabulary import (
    ActivityCancelled,
    CodedError,
    CompactionEnd,
    CompactionStart,
    CompactionSummary,
    Extension,
    InvalidValue,
    Request,
    UsageChunk,
    UsageError,
    UserMessageEvent,
)

WINDOW = ModelInfo(context_window=1000)
LONG = "word " * 500
"""About 625 tokens."""


@tool(parallel=True)
async def read(size: int = 10) -> str:
    """Read something of that size."""
    await trio.lowlevel.checkpoint()
    return "r" * size


def is_summary(request: Request) -> bool:
    last = request.messages[-1]
    return isinstance(last, UserMessage) and last.text == INSTRUCTIONS


def summaries(model: ScriptedModel) -> list[Request]:
    return [request for request in model.requests if is_summary(request)]


def bracket(life: Life) -> list[str]:
    """The compactions of the log, in few words; and every replacement."""
    found = []
    for event in life.session.events:
        match event.data:
            case CompactionStart():
                found.append("start")
            case CompactionSummary(text=text):
                found.append(f"summary {text}")
            case CompactionEnd(outcome=outcome):
                found.append(f"end {outcome}")
            case Extension(name=name):
                found.append(name)
            case UserMessageEvent() if type(event.surface_op).__name__ == "Replace":
                found.append("replacement")
            case _:
                if type(event.surface_op).__name__ == "Replace":
                    found.append("pruning")
    return found


SUMMARY = "Summary of the earlier conversation, which was removed to save context:\n\n"
WHOLE = ["start", "summary SUM", "replacement", "end completed"]


def answers(*texts: str, summary: str = "SUM") -> Callable[[Request], Any]:
    """A model that answers *texts* in turn, and every request for a summary alike."""
    waiting = list(texts)

    def reply(request: Request) -> Any:
        if is_summary(request):
            return summary
        return waiting.pop(0) if waiting else "ok"

    return reply


async def fill(life: Life, turns: int = 3) -> None:
    for number in range(turns):
        await life.say(f"question {number}")


# --- pressure -----------------------------------------------------------------------------


@played
async def test_pressure_compacts_before_the_step() -> None:
    """C164 C165: the bracket in order, one replacement, then the request that fits."""
    model = ScriptedModel(answers("a" * 1600, "b" * 1600, "c"), info=WINDOW)
    async with one(model, system="be brief") as life:
        Compaction(keep_rounds=1).attach(life.agent.scope)
        await fill(life)
        assert bracket(life) == WHOLE
        [asked] = summaries(model)
        assert shown(asked.messages)[:3] == [
            "system: be brief",
            "user: question 0",
            "assistant: " + "a" * 1600,
        ]
        assert shown(model.requests[-1].messages) == [
            "system: be brief",
            f"user: {SUMMARY}SUM",
            "assistant: " + "b" * 1600,
            "user: question 2",
        ]
        assert headers(life.session)[-1] == "request/header series"
        assert ending_kinds(life.session) == ["Completed"] * 3
        check(life.session)


@played
async def test_the_summary_is_asked_with_the_same_tools_and_is_no_part_of_the_log() -> None:
    """The prefix of its request is that of the conversation, so the cache is used."""
    model = ScriptedModel(answers("a" * 1600, "b" * 1600), info=WINDOW)
    async with one(model, [read]) as life:
        Compaction(keep_rounds=1, summary_tokens=77).attach(life.engine.scope)
        await fill(life)
        [asked] = summaries(model)
        assert asked.tools == model.requests[0].tools
        assert asked.config.max_tokens == 77
        assert not any(INSTRUCTIONS in line for line in shown(life.agent.history()))
        assert asked.messages[:-1] == tuple(model.requests[1].messages)[: len(asked.messages) - 1]


@played
async def test_below_the_limit_nothing_happens() -> None:
    model = ScriptedModel(answers("a" * 100), info=WINDOW)
    async with one(model) as life:
        Compaction().attach(life.agent.scope)
        await fill(life, 5)
        assert (bracket(life), summaries(model)) == ([], [])


@played
async def test_what_the_provider_reported_counts() -> None:
    """C164: short texts, but a request that was large all the same."""
    usage = UsageChunk(Usage(input_tokens=850, output_tokens=10))
    model = ScriptedModel(info=WINDOW, answers=answers_with(usage))
    async with one(model) as life:
        compaction = Compaction(keep_rounds=1)
        compaction.attach(life.agent.scope)
        await life.say("one " * 30)
        await life.say("two")
        assert compaction.pressure(life.session) == 860
        await life.say("three")
        assert bracket(life)[:1] == ["start"]


def answers_with(usage: UsageChunk) -> Callable[[Request], Any]:
    def reply(request: Request) -> Any:
        return "SUM" if is_summary(request) else answer(say("ok " * 40), usage)

    return reply


@played
async def test_the_figure_is_recomputed_after_a_compaction() -> None:
    """BC-46: what was reported for the longer history is not used for the shorter one."""
    usage = UsageChunk(Usage(input_tokens=700, output_tokens=10))
    model = ScriptedModel(answers_with(usage), info=WINDOW)
    async with one(model) as life:
        compaction = Compaction(keep_rounds=1)
        await fill(life, 4)
        before = compaction.pressure(life.session)
        assert before == 710
        assert await compaction.compact(life.agent) == "SUM"
        after = compaction.pressure(life.session)
        estimated = sum(estimate_tokens(n.message) for n in life.session.surface.nodes)
        assert after == estimated < before


@played
async def test_old_results_are_shortened_before_anything_is_asked() -> None:
    """C164: without a request; only content changes; the newest rounds stay."""
    model = ScriptedModel(
        [answer(call("read", size=2400, id="c1")), "one", "two", "three"], info=WINDOW
    )
    async with one(model, [read]) as life:
        Compaction(keep_rounds=1, prune_over=100).attach(life.agent.scope)
        await life.say("read it")
        await life.say("x" * 800)
        assert bracket(life) == ["pruning"]
        results = [line for line in shown(model.requests[-1].messages) if "result" in line]
        assert results == [
            "result c1: " + "r" * 100 + "\n[2300 of 2400 characters were removed to save context]"
        ]
        assert history_is_valid(model.requests[-1].messages) == []
        check(life.session)


@played
async def test_without_a_window_only_refusals_count() -> None:
    async with one(answers("a" * 9000)) as life:
        Compaction().attach(life.agent.scope)
        await fill(life, 4)
        assert bracket(life) == []


@played
async def test_the_window_of_another_model_is_not_used() -> None:
    model = ScriptedModel(answers("a" * 1600, "b" * 1600, "c"), info=WINDOW)
    async with one(model) as life:
        Compaction(keep_rounds=1).attach(life.agent.scope)
        await fill(life, 2)
        life.agent.model.select("scripted", "larger")
        await life.say("question 2")
        assert bracket(life) == []
        await life.say("question 3")
        assert bracket(life) == WHOLE


@played
async def test_a_removed_registration_does_nothing() -> None:
    model = ScriptedModel(answers("a" * 1600, "b" * 1600), info=WINDOW)
    async with one(model) as life:
        with Compaction(keep_rounds=1).attach(life.agent.scope):
            await fill(life, 2)
        await life.say("three")
        assert bracket(life) == []


# --- what does not help --------------------------------------------------------------------


@played
async def test_a_huge_prompt_costs_no_request_for_a_summary(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """BC-46, first set-up: a window of 10,000, a prompt of 9,500, three short messages."""
    model = ScriptedModel(answers(), info=ModelInfo(context_window=10_000))
    async with one(model, system="p" * 38_000) as life:
        Compaction().attach(life.agent.scope)
        with caplog.at_level(logging.ERROR):
            await fill(life)
        assert summaries(model) == []
        assert bracket(life) == [STALLED]
        assert [r for r in caplog.records if "pauses" in r.message] != []
        assert ending_kinds(life.session) == ["Completed"] * 3
        assert "user: question 2" in life.request()


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_figure_that_does_not_move_ends_the_attempts(attempts: int) -> None:
    """BC-46, second set-up: the model goes on to report 9,900 tokens."""

    async def main() -> None:
        usage = UsageChunk(Usage(input_tokens=9_900, output_tokens=0))
        model = ScriptedModel(answers_with(usage), info=ModelInfo(context_window=10_000))
        async with one(model) as life:
            Compaction(attempts=attempts, keep_rounds=1, keep=0.01).attach(life.agent.scope)
            await fill(life, 12)
            assert len(summaries(model)) == attempts
            assert bracket(life).count(STALLED) == 1
            assert ending_kinds(life.session) == ["Completed"] * 12
            assert "user: question 11" in life.request()
            check(life.session)

    play(main)


@played
async def test_a_summary_that_does_not_shrink_is_refused() -> None:
    """C166: the history stays as it was, and the turn goes on."""
    model = ScriptedModel(answers("a" * 1600, "b" * 1600, summary="s" * 9000), info=WINDOW)
    async with one(model) as life:
        Compaction(keep_rounds=1).attach(life.agent.scope)
        await fill(life)
        assert bracket(life) == ["start", "end failed"]
        assert "user: question 0" in life.request()
        assert ending_kinds(life.session) == ["Completed"] * 3
        with pytest.raises(CodedError, match="was refused") as caught:
            await Compaction(keep_rounds=1).compact(life.agent)
        assert caught.value.code == "COMPACTION_REFUSED"


@pytest.mark.parametrize(
    "reply",
    [refuse(500), "  ", answer(call("read", id="c9")), refuse(400, code="CONTEXT_OVERFLOW")],
    ids=["500", "blank", "calls a tool", "overflow"],
)
def test_a_summary_that_fails_leaves_the_turn_alone(reply: Any) -> None:
    """Bounded: one bracket for each attempt, then the pause."""

    async def main() -> None:
        def script(request: Request) -> Any:
            return reply if is_summary(request) else "a" * 1600

        model = ScriptedModel(script, info=WINDOW)
        async with one(model, [read]) as life:
            Compaction(keep_rounds=1, attempts=2).attach(life.agent.scope)
            await fill(life, 6)
            assert ending_kinds(life.session) == ["Completed"] * 6
            assert bracket(life) == ["start", "end failed", "start", "end failed", STALLED]
            check(life.session)

    play(main)


@played
async def test_a_stream_listener_sees_the_request_and_its_defect_is_not_hidden() -> None:
    model = ScriptedModel(answers("a" * 1600, "b" * 1600), info=WINDOW)
    async with one(model) as life:
        Compaction(keep_rounds=1).attach(life.agent.scope)
        seen: list[tuple[int, int, int]] = []

        async def listen(value: StreamCall, proceed: Any) -> Any:
            seen.append((value.turn, value.step, value.attempt))
            if value.attempt == 0:
                raise RuntimeError("a defect of a listener")
            return await proceed()

        life.hooks.stream.listen(listen)
        await fill(life, 2)
        with pytest.raises(TurnFailed, match="a defect of a listener"):
            await life.agent.ask("three")
        assert seen == [(1, 1, 1), (2, 1, 1), (3, 0, 0)]
        assert bracket(life) == ["start", "end failed"]
        check(life.session)


# --- overflow ------------------------------------------------------------------------------


def too_large(limit: int) -> Callable[[Request], Any]:
    """A provider that counts as we do."""

    def reply(request: Request) -> Any:
        if sum(map(estimate_tokens, request.messages)) > limit:
            return overflow()
        return "SUM" if is_summary(request) else "a" * 800

    return reply


@played
async def test_an_overflow_is_compacted_and_retried() -> None:
    """C133 C164: without any window declared; one attempt more, in the same step."""
    model = ScriptedModel(too_large(1000))
    async with one(model) as life:
        Compaction(keep_rounds=1).attach(life.agent.scope)
        await fill(life, 9)
        assert ending_kinds(life.session) == ["Completed"] * 9
        assert bracket(life)[: len(WHOLE)] == WHOLE
        for request in model.requests:
            assert history_is_valid(request.messages) == []
        check(life.session)


@played
async def test_an_overflow_without_anything_to_cut_ends_the_turn_as_itself() -> None:
    """C133: the surface did not advance, so there is no retry; the error is the provider's."""
    async with one([overflow()]) as life:
        Compaction().attach(life.agent.scope)
        with pytest.raises(TurnFailed) as caught:
            await life.agent.ask("one")
        assert caught.value.code == "CONTEXT_OVERFLOW"
        assert life.model.attempts == 1


@played
async def test_a_provider_that_always_overflows_is_asked_a_bounded_number_of_times() -> None:
    """BC-31: "the turn ends with a clear overflow error after a bounded number of tries"."""
    waiting = ["a" * 1600] * 4

    def reply(request: Request) -> Any:
        if is_summary(request):
            return "SUM"
        return waiting.pop(0) if waiting else overflow()

    async with one(ScriptedModel(reply)) as life:
        Compaction(keep_rounds=1, attempts=2).attach(life.agent.scope)
        await fill(life, 4)
        with pytest.raises(TurnFailed) as caught:
            await life.agent.ask("five")
        assert caught.value.code == "CONTEXT_OVERFLOW"
        tries = [r for r in life.model.requests if not is_summary(r)]
        assert 5 < len(tries) <= 4 + 1 + 2
        check(life.session)


@played
async def test_a_summary_that_overflows_is_asked_of_less() -> None:
    """The history to be replaced is itself too large for one request."""
    waiting = ["a" * 1600] * 5

    def reply(request: Request) -> Any:
        size = sum(map(estimate_tokens, request.messages))
        if is_summary(request):
            return "SUM" if size < 1200 else overflow()
        if waiting:
            return waiting.pop(0)
        return "fits" if size < 1400 else overflow()

    async with one(ScriptedModel(reply)) as life:
        Compaction(keep_rounds=1).attach(life.agent.scope)
        await fill(life, 5)
        turn = await life.agent.ask("six")
        assert turn.text == "fits"
        assert bracket(life).count("start") == bracket(life).count("end completed")
        assert len(summaries(life.model)) > bracket(life).count("start")
        check(life.session)


@played
async def test_other_failures_are_left_to_others() -> None:
    async with one(["a" * 1600, "b" * 1600, refuse(500)]) as life:
        Compaction(keep_rounds=1).attach(life.agent.scope)
        await fill(life)
        assert ending_kinds(life.session)[-1] == "Failed"
        assert bracket(life) == []


# --- by hand -------------------------------------------------------------------------------


@played
async def test_by_hand_from_idle() -> None:
    async with one(answers(*["a" * 400] * 4)) as life:
        await fill(life, 4)
        compaction = Compaction(keep_rounds=1)
        assert await compaction.compact(life.agent) == "SUM"
        assert bracket(life) == WHOLE
        await life.say("go on")
        assert life.request()[0].startswith("user: Summary of")
        assert life.request()[-1] == "user: go on"
        assert await Compaction(keep_rounds=9).compact(life.agent) is None
        check(life.session)


@played
async def test_by_hand_of_a_busy_agent_is_refused() -> None:
    async with one([answer("a", Gate("g"), "b")]) as life:
        life.agent.followup("go")
        await life.model.gates.wait_reached("g")
        with pytest.raises(AgentBusy):
            await Compaction().compact(life.agent)
        life.model.gates.open("g")


@played
async def test_by_hand_with_another_model_that_fails() -> None:
    small = ScriptedModel([refuse(503)], provider="small")
    model = ScriptedModel(answers(*["a" * 400] * 4))
    async with engine_on(model) as engine:
        async with engine.open_agent(**ROUTE) as agent:
            for _ in range(4):
                await agent.ask("go")
            route = ModelSelection("small", "s")
            with pytest.raises(ProviderError) as caught:
                await Compaction(keep_rounds=1, selection=route).compact(agent)
            assert caught.value.code == "NO_ADAPTER"
    async with trio.open_nursery():
        pass
    assert small.attempts == 0


@played
async def test_cancelled_by_hand_it_says_so() -> None:
    def reply(request: Request) -> Any:
        return answer(say("S"), Gate("never")) if is_summary(request) else "a" * 400

    model = ScriptedModel(reply)
    async with one(model) as life:
        await fill(life, 4)
        async with trio.open_nursery() as nursery:

            async def compact() -> None:
                with pytest.raises(ActivityCancelled):
                    await Compaction(keep_rounds=1).compact(life.agent)

            nursery.start_soon(compact)
            await model.gates.wait_reached("never")
            life.agent.cancel()
        assert bracket(life) == ["start", "end canceled"]
        assert model.open_streams == 0
        assert not life.session.compaction.live
        await life.say("go on")
        check(life.session)


# --- the bracket ---------------------------------------------------------------------------


@played
async def test_a_live_bracket_is_a_lock() -> None:
    """C165: busy for everybody else; a step goes on without."""
    model = ScriptedModel(answers("a" * 1600, "b" * 1600), info=WINDOW)
    async with one(model) as life:
        Compaction(keep_rounds=1).attach(life.agent.scope)
        await fill(life, 2)
        with life.session.compacting():
            with pytest.raises(AgentBusy):
                life.session.compacting().__enter__()
            await life.say("three")
        assert bracket(life) == ["start", "end failed"]
        assert ending_kinds(life.session) == ["Completed"] * 3
        await life.say("four")
        assert bracket(life)[2:] == WHOLE


@played
async def test_an_orphan_is_closed_by_the_next_compaction() -> None:
    """C165: "a crash leaves a detectable orphan", which does not lock the next life."""
    model = ScriptedModel(answers(*["a" * 400] * 4))
    async with one(model) as life:
        await fill(life, 4)
        life.session.append(CompactionStart("orphan"))
        events = whole(life.session)
        async with engine_on(ScriptedModel(answers())) as engine:
            async with engine.open_agent(**ROUTE, seed=events) as agent:
                lock = agent.session.compaction
                assert (lock.open_id, lock.live) == ("orphan", False)
                await Compaction(keep_rounds=1).compact(agent)
                other = Life(engine, agent, model)
                assert bracket(other) == ["start", "end failed", *WHOLE]
                assert lock.open_id is None
                check(agent.session)


@played
async def test_a_bracket_commits_once_and_refuses_a_wrong_range() -> None:
    async with one(answers()) as life:
        await fill(life, 2)
        nodes = life.session.surface.nodes
        with pytest.raises(InvalidValue):
            with life.session.compacting() as bracket_:
                bracket_.commit(nodes[0].seq, nodes[-1].seq + 9, UserMessage("x"), "x")
        with pytest.raises(CodedError):
            with life.session.compacting():
                raise CodedError("no")
        with life.session.compacting() as bracket_:
            bracket_.commit(nodes[1].seq, nodes[2].seq, UserMessage("x"), "x")
            with pytest.raises(Exception, match="commits once"):
                bracket_.commit(nodes[1].seq, nodes[2].seq, UserMessage("x"), "x")
        assert bracket(life) == [
            *["start", "end failed"] * 2,
            "start",
            "summary x",
            "replacement",
            "end completed",
        ]
        replay(type(life.session)(life.session.header, lambda: 0), whole(life.session))


@played
async def test_a_bracket_that_is_over_cannot_commit_into_another() -> None:
    """C165: one summary, one replacement, one block for each."""
    async with one(answers()) as life:
        await fill(life, 2)
        first, last = life.session.surface.nodes[1].seq, life.session.surface.nodes[2].seq
        early = life.session.compacting()
        with early:
            pass
        with life.session.compacting():
            with pytest.raises(UsageError, match="inside its block"):
                early.commit(first, last, UserMessage("x"), "x")
        with pytest.raises(UsageError, match="one block"):
            with early:
                raise AssertionError("entered again")
        assert bracket(life) == ["start", "end failed"] * 2
        with life.session.compacting() as late:
            late.commit(first, last, UserMessage("x"), "x")
        check(life.session)


@played
async def test_a_bracket_whose_agent_is_gone_hides_no_cancellation() -> None:
    """The log is over, and stays as it was: an orphan, as a crash leaves it."""
    async with engine_on(ScriptedModel(answers())) as engine:
        handle = await engine.agents.create(**ROUTE)
        session = handle.agent.session
        with trio.CancelScope() as scope:
            with session.compacting():
                await handle.dispose()
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert session.compaction.open_id is not None
        assert not session.compaction.live

        handle = await engine.agents.create(**ROUTE)
        with pytest.raises(AgentDisposed):
            with handle.agent.session.compacting():
                await handle.dispose()


# --- cut short anywhere --------------------------------------------------------------------


def compacting_model() -> ScriptedModel:
    waiting = [
        answer(say("a" * 1200), call("read", size=900, id="c1")),
        answer(Delay(0.1), say("b" * 1200)),
        answer(say("c" * 1200)),
    ]
    overflows = [overflow()]

    def reply(request: Request) -> Any:
        if is_summary(request):
            return answer(say("The "), Delay(0.1), say("summary."))
        if overflows and sum(map(estimate_tokens, request.messages)) > 600:
            return overflows.pop()
        return waiting.pop(0) if waiting else answer(say("more"), Delay(0.1))

    return ScriptedModel(reply, info=WINDOW)


async def compacting(stage: Stage) -> None:
    """Pressure in a step, an overflow in another, and once by hand."""

    @tool(name="read")
    async def reading(size: int, run: ToolRun) -> str:
        """Read."""
        async with stage.body(run):
            await trio.sleep(0.1)
        return "r" * size

    compaction = Compaction(keep_rounds=1, prune_over=100)
    async with stage.open_engine([reading]) as engine:
        compaction.attach(engine.scope)
        async with stage.open_agent(engine) as agent:
            for text in ("one", "two", "three"):
                with suppress(AgentDisposed):
                    stage.send("followup", text)
                await agent.wait_idle()
            with suppress(AgentDisposed, ActivityCancelled, AgentBusy, CodedError):
                await compaction.compact(agent)


def test_the_scenario_compacts_in_all_three_ways() -> None:
    """What is explored must happen."""
    report = explore(compacting, compacting_model, name="compacting", sources=[])
    assert report.violations == []

    async def main() -> None:
        stage = Stage(Recorder(compacting_model()))  # type: ignore[arg-type]
        await compacting(stage)
        assert stage.session is not None
        life = Life(None, None, None)  # type: ignore[arg-type]
        life.agent = type("A", (), {"session": stage.session})()  # type: ignore[assignment]
        assert bracket(life).count("start") == 3
        assert bracket(life).count("end completed") == 3
        assert "pruning" in bracket(life)

    play(main)


def Recorder(model: ScriptedModel) -> Any:
    from terzetto.testing._stage import Recording

    return Recording(model)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_cut_short_anywhere_the_log_is_valid(source: Source) -> None:
    """C124 C165 C175 C179: every point of a compaction, from every source."""
    report = explore(compacting, compacting_model, name="compacting", sources=[source])
    assert report.violations == []
    assert report.points >= (0 if source.inside == "body" else 3)
