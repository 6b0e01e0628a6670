"""Sessions run again, from their logs alone (C84 C162)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pytest
from attrs import evolve
from hypothesis import example, given, settings

from terzetto import vocabulary as v
from terzetto.commands._rerun import Rerun, rerun
from terzetto.commands._tape import Tape, not_rerunnable
from terzetto.extras.budget import Budget
from terzetto.llm.scripted import Delay, ScriptedModel, answer, call, finish_error, say, think
from terzetto.timeline import Timeline, read_timeline
from tests import shown
from tests.agent.kit import play, played
from tests.agent.rig import Life, one
from tests.agent.test_requests_equal_log import Place, Scenario
from tests.prefix import Plan, plans, played as play_plan
from tests.shown import busy_session, cut_session


def again(header: v.SessionHeader, events: Sequence[v.Event]) -> Rerun:
    return play(rerun, Tape(header, list(events)))


async def same(life: Life) -> None:
    """The life so far runs again, all of it."""
    events = list(life.session.events)
    assert not_rerunnable(events) is None
    found = await rerun(Tape(life.session.header, events))
    assert found == Rerun(events=len(events), requests=len(life.model.requests))


CUT_BEFORE_A_WORD = Plan(
    scenario=Scenario(
        replies=(),
        changes=dict.fromkeys(get_args(Place), ()),
        batches=(),
        turns=1,
        cancel_at=None,
        resume_after=None,
        capable=False,
    ),
    waits=(),
    streams=("interrupt",),
    lives=(),
    cuts=(0, 0, 0),
)
"""An answer that is interrupted when its first block has begun, and nothing is in it."""


# --- the law -----------------------------------------------------------------------------------


@settings(max_examples=25)
@given(plans())
@example(CUT_BEFORE_A_WORD)
def test_whatever_happened_happens_again(plan: Plan) -> None:
    """Over steering, interruption, cancels, retries, replacements at any time, policies that
    rewrite and reject, resumes, crashes and forks."""
    for header, events, _ in play_plan(plan).logs:
        found = again(header, events)
        assert found.difference is None
        assert found.events >= len(events) - header.seed_length - 1


# --- what is hard to feed ----------------------------------------------------------------------


@played
async def test_a_listener_that_fails_fails_again_where_it_did() -> None:
    """At each place where a turn can fail by somebody else's code."""

    async def broken(*arguments: Any) -> Any:
        raise ValueError("broken")

    for name in ("assemble", "pre_step", "request", "stream", "request_error", "turn_stopping"):
        script = [answer(say("lost"), finish_error())] if name == "request_error" else ["one"]
        async with one([*script, "two"]) as life:
            with getattr(life.hooks, name).listen(broken):
                await life.say("one")
            await life.say("two")
            endings = [e.data.ending for e in life.session.events if isinstance(e.data, v.TurnEnd)]
            assert [type(ending) for ending in endings] == [v.Failed, v.Completed]
            await same(life)


@played
async def test_an_answer_of_a_type_and_its_repair_run_again() -> None:
    """Nobody waits for the answer any more, and the turn ends in the same way."""
    script = ["prose", answer(call("answer", value="no number")), answer(call("answer", value=3))]
    async with one(script) as life:
        with pytest.raises(Exception, match="without an answer"):
            await life.agent.ask("how many?", returns=int)
        assert (await life.agent.ask("how many?", returns=int)).value == 3
        await same(life)


@played
async def test_a_budget_that_ends_turns_runs_again() -> None:
    script = [answer(call("nothing")), "never"]
    async with one(script) as life:
        Budget(steps=1).attach(life.agent.scope)
        await life.say("go")
        assert any(
            isinstance(e.data, v.TurnEnd) and isinstance(e.data.ending, v.Aborted)
            for e in life.session.events
        )
        await same(life)


@played
async def test_side_requests_leave_no_trace() -> None:
    async with one(["one", "aside", "two"]) as life:
        await life.say("one")
        await life.agent.complete("a title, please")
        await life.say("two")
        events = list(life.session.events)
        found = await rerun(Tape(life.session.header, events))
        assert found == Rerun(events=len(events), requests=2)


@pytest.mark.parametrize("make", [busy_session, cut_session])
def test_sessions_with_everything_in_them(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second ends in the middle of an answer, with input pending."""
    seen: list[list[v.Event]] = []

    def reading(events: Sequence[v.Event]) -> Timeline:
        seen.append(list(events))
        return read_timeline(events)

    monkeypatch.setattr(shown, "read_timeline", reading)
    header = play(make).header
    found = again(header, seen[0])
    assert found.difference is None
    assert found.events == len(seen[0]) > 50


# --- what differs ------------------------------------------------------------------------------


async def talk() -> tuple[v.SessionHeader, list[v.Event]]:
    script = [answer(think("Hm."), say("Let me "), Delay(1), say("see.")), "Done."]
    async with one(ScriptedModel(script), system="Be nice.") as life:
        await life.say("one")
        await life.say("two")
        return life.session.header, list(life.session.events)


def changed(events: Sequence[v.Event], kind: type, number: int = 0, **changes: Any) -> int:
    """Change the data of an event of this kind in place; its seq."""
    found = [event.seq for event in events if isinstance(event.data, kind)][number]
    event = events[found]
    events[found] = evolve(event, data=evolve(event.data, **changes))  # type: ignore[index]
    return found


def test_an_answer_that_was_not_streamed_is_found() -> None:
    header, events = play(talk)
    message = v.AssistantMessage((v.TextBlock("forged"),), v.ModelSource("scripted", "m"))
    seq = changed(events, v.AssistantMessageEvent, 1, message=message)
    found = again(header, events)
    assert found.events == seq
    assert found.difference is not None
    assert found.difference.startswith(f"event {seq} is " + '{"type":"assistant/message"')
    assert "would be" in found.difference
    assert "Done." in found.difference


def test_another_header_than_the_request_needs_is_found() -> None:
    header, events = play(talk)
    seq = changed(events, v.RequestHeaderEvent, reason="change")
    found = again(header, events)
    assert found.difference is not None
    assert found.difference.startswith(f"event {seq} is ")


def test_a_turn_that_nothing_woke_or_that_ended_early_is_found() -> None:
    header, events = play(talk)
    seq = changed(events, v.TurnEnd, 1, ending=v.EndedAtMaxTokens())
    found = again(header, events)
    assert (found.events, found.requests) == (seq, 2)


def test_a_log_that_waits_for_ever_is_told() -> None:
    """The engine waits for nobody: what the log has next, nothing can bring about."""
    header, events = play(talk)
    ends = [event.seq for event in events if isinstance(event.data, v.TurnEnd)]
    cut = events[: ends[0] + 1]
    extra = v.Event(len(cut), cut[-1].time_ms, v.StepStart(2, 1))
    found = again(header, [*cut, extra])
    assert found.difference is not None
    assert found.difference.startswith("the engine waits, where the log has ")


def test_a_log_of_an_older_engine_is_not_pretended_to_run() -> None:
    """C138: closed steps with calls that nobody answered."""
    blocks = (v.ToolCallBlock("c", "t", "{}"),)
    message = v.AssistantMessage(blocks, v.ModelSource("p", "m"))
    events = [
        v.Event(0, 0, v.TurnStart(1)),
        v.Event(1, 0, v.StepStart(1, 1)),
        v.Event(2, 0, v.AssistantMessageEvent(1, 1, message), v.APPEND),
        v.Event(3, 0, v.StepEnd(1, 1)),
    ]
    why = not_rerunnable(events)
    assert why is not None
    assert why.startswith("event 3: StepEnd of turn 1, step 1 cannot come here")
    assert why.endswith("only older engines wrote that")
