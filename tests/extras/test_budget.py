"""Budgets: a turn ends cooperatively, says why, and the session goes on (BC-51, C69)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.agent.kit import ROUTE, check, ending_kinds, engine_on, pending, played
from tests.agent.rig import one
from tests.llm.strict import judge
from tests.whole import whole

import terzetto
from terzetto import HookCause, RequestFailed, Retry, ToolRun, Usage, tool
from terzetto.extras.budget import Budget, Spent
from terzetto.llm.loopback import serve_openai
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import (
    Delay,
    Gate,
    ScriptedModel,
    answer,
    call,
    finish_error,
    say,
)
from terzetto.testing import SOURCES, Source, Stage, explore
from terzetto.vocabulary import Aborted, Completed, InvalidValue, Request, TurnEnd, UsageChunk


@tool(parallel=True)
async def echo(x: str = "x") -> str:
    """Echo."""
    await trio.lowlevel.checkpoint()
    return x


def used(tokens: int) -> UsageChunk:
    return UsageChunk(Usage(input_tokens=tokens - 1, output_tokens=1))


def endless(*parts: Any) -> Callable[[Request], Any]:
    """Always one more call."""
    return lambda request: answer(*parts, call("echo"))


def stopped(reason: str) -> Aborted:
    return Aborted(HookCause(f"budget: {reason}"))


# --- the case ------------------------------------------------------------------------------


async def test_reaching_the_step_limit_leaves_a_usable_session(tmp_path: Path) -> None:
    """BC-51: limit 2, a model that always calls; then `go on` with the limit raised."""
    answers = [answer(call("echo", x=str(n), id=f"c{n}")) for n in range(4)]
    with trio.fail_after(30):
        async with serve_openai([*answers, "done"], judge=judge) as server:
            budget = Budget(steps=2)
            adapter = OpenAIChat(api_key="k", base_url=server.base_url)
            async with terzetto.open_engine(
                adapters=[adapter], tools=[echo], store=terzetto.JsonlStore(tmp_path)
            ) as engine:
                budget.attach(engine.scope)
                async with engine.open_agent(provider="openai", model="m") as agent:
                    turn = await agent.ask("start")
                    assert turn.ending == stopped("2 of 2 steps used in this turn")
                    ends = [e for e in agent.session.events if isinstance(e.data, TurnEnd)]
                    assert len(ends) == 1
                    assert len(server.requests) == 2
                    budget.steps = 3
                    turn = await agent.ask("go on")
                    assert (turn.reason, turn.text) == ("completed", "done")
                    check(agent.session)
    assert [r.violations for r in server.requests] == [()] * 5
    roles = [m["role"] for m in server.requests[2].body["messages"]]  # type: ignore[index, call-overload, union-attr]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "user"]


# --- each limit ----------------------------------------------------------------------------


@played
async def test_each_turn_has_all_of_it() -> None:
    async with one(endless(), [echo]) as life:
        Budget(steps=3).attach(life.agent.scope)
        for _ in range(2):
            turn = await life.agent.ask("go")
            assert turn.ending == stopped("3 of 3 steps used in this turn")
        assert life.model.attempts == 6
        check(life.session)


@played
async def test_tokens_are_those_of_every_attempt() -> None:
    """A failed attempt was paid for too."""
    script = [
        answer(say("half"), used(400), finish_error()),
        answer(call("echo"), used(500)),
        answer(call("echo"), used(200)),
        "never asked",
    ]
    async with one(script, [echo]) as life:
        budget = Budget(tokens=1100)
        budget.attach(life.agent.scope)

        async def retry(failed: RequestFailed, proceed: Any) -> Retry:
            return Retry()

        life.hooks.request_error.listen(retry)
        turn = await life.agent.ask("go")
        assert turn.ending == stopped("1100 of 1100 tokens used in this turn")
        assert life.model.attempts == 3
        check(life.session)


@played
async def test_an_answer_that_was_cut_counts() -> None:
    async with one([answer(say("a"), used(70), Gate("never")), "b"]) as life:
        budget = Budget(tokens=1000, per="session")
        budget.attach(life.agent.scope)
        life.agent.followup("go")
        await life.model.gates.wait_reached("never")
        life.agent.cancel()
        await life.agent.wait_idle()
        assert budget.spent(life.session).tokens == 70


@played
async def test_seconds_are_looked_at_between_steps() -> None:
    clock = [0]

    def now_ms() -> int:
        return clock[0]

    @tool
    async def slow() -> str:
        """Take two seconds."""
        await trio.sleep(2)
        clock[0] += 2000
        return "slept"

    model = ScriptedModel(lambda request: answer(call("slow")))
    async with terzetto.open_engine(adapters=[model], tools=[slow], now_ms=now_ms) as engine:
        Budget(seconds=5).attach(engine.scope)
        async with engine.open_agent(**ROUTE) as agent:
            turn = await agent.ask("go")
            assert turn.ending == stopped("6 of 5 seconds used in this turn")
            assert "slept" in str(turn.messages[-1])
            check(agent.session)


@played
async def test_cost_is_counted_with_the_price() -> None:
    asked: list[tuple[str, str]] = []

    def price(provider: str, model: str, usage: Usage) -> float:
        asked.append((provider, model))
        return usage.input_tokens * 0.001

    async with one(endless(used(101)), [echo]) as life:
        budget = Budget(cost=0.25, price=price)
        budget.attach(life.agent.scope)
        turn = await life.agent.ask("go")
        assert turn.ending == stopped("0.3 of 0.25 cost used in this turn")
        assert asked == [("scripted", "m")] * 3


@played
async def test_a_price_that_fails_counts_nothing_twice() -> None:
    """Its error is the caller's; what was used is counted once, when the price is back."""
    broken = True

    def price(provider: str, model: str, usage: Usage) -> float:
        if broken and usage.input_tokens == 10:
            raise LookupError("no price for m")
        return 1.0

    async with one([answer(used(101), "one"), answer(used(11), "two")]) as life:
        budget = Budget(cost=100, price=price, per="session")
        await life.say()
        await life.say()
        for _ in range(3):
            with pytest.raises(LookupError):
                budget.spent(life.session)
        broken = False
        spent = budget.spent(life.session)
        assert (spent.steps, spent.tokens, spent.cost) == (2, 112, 2.0)


@played
async def test_a_turn_that_ends_by_itself_is_not_touched() -> None:
    async with one([answer(call("echo")), "done"], [echo]) as life:
        Budget(steps=2).attach(life.agent.scope)
        turn = await life.agent.ask("go")
        assert turn.ending == Completed()


@played
async def test_a_limit_can_be_raised_while_the_turn_runs() -> None:
    script = [answer(call("echo")), answer(call("echo"), Gate("g")), answer(call("echo")), "done"]
    async with one(script, [echo]) as life:
        budget = Budget(steps=2)
        budget.attach(life.agent.scope)
        life.agent.followup("go")
        await life.model.gates.wait_reached("g")
        budget.steps = 4
        life.model.gates.open("g")
        await life.agent.wait_idle()
        assert ending_kinds(life.session) == ["Completed"]


# --- input ---------------------------------------------------------------------------------


@played
async def test_steering_that_had_not_entered_waits() -> None:
    """Nothing that was said is lost: claimed, put back, and part of the next turn."""

    @tool
    async def steered(run: ToolRun) -> str:
        """Steer, as a user may at any time."""
        run.agent.steer("wait")
        return "ok"

    async with one([answer(call("steered")), "then"], [steered]) as life:
        budget = Budget(steps=1)
        budget.attach(life.agent.scope)
        turn = await life.agent.ask("go")
        assert turn.ending == stopped("1 of 1 steps used in this turn")
        assert pending(life.agent) == ["wait"]
        await life.say("go on")
        assert life.request()[-2:] == ["user: wait", "user: go on"]
        check(life.session)


@played
async def test_the_queue_waits_for_the_next_wake() -> None:
    async with one(endless(), [echo]) as life:
        Budget(steps=1).attach(life.agent.scope)
        life.agent.followup("one")
        life.agent.followup("two")
        await life.agent.wait_idle()
        assert ending_kinds(life.session) == ["Aborted HookCause"]
        assert pending(life.agent) == ["two"]


# --- a session's budget --------------------------------------------------------------------


@played
async def test_all_turns_of_a_session_share_it_over_a_resume() -> None:
    store = terzetto.MemoryStore()
    model = ScriptedModel(["one", "two", "three", "four"])
    budget = Budget(steps=2, per="session")
    async with engine_on(model, store=store) as engine:
        budget.attach(engine.scope)
        async with engine.open_agent(**ROUTE, session_id="s") as agent:
            await agent.ask("1")
    async with engine_on(model, store=store) as engine:
        budget.attach(engine.scope)
        async with engine.open_agent(resume="s") as agent:
            assert (await agent.ask("2")).reason == "completed"
            turn = await agent.ask("3")
            assert turn.ending == stopped("2 of 2 steps used in this session")
            assert (turn.consumed, pending(agent)) == ((), ["3"])
            budget.steps = 5
            assert (await agent.ask("4")).text == "four"
            assert ending_kinds(agent.session) == [
                "Completed",
                "Completed",
                "Aborted HookCause",
                "Completed",
                "Completed",
            ]
            check(agent.session)


@played
async def test_a_fork_begins_with_nothing_spent() -> None:
    async with one([answer("a", used(50)), answer("b", used(7))]) as life:
        await life.say("1")
        budget = Budget(tokens=40, per="session")
        assert budget.spent(life.session).tokens == 50
        seed = whole(life.session)
        async with life.engine.open_agent(**ROUTE, seed=seed) as fork:
            assert budget.spent(fork.session) == Spent()
            assert (await fork.ask("2")).reason == "completed"
            assert budget.spent(fork.session).tokens == 7


@played
async def test_agents_do_not_share_one() -> None:
    async with engine_on(ScriptedModel(endless()), [echo]) as engine:
        Budget(steps=2).attach(engine.scope)
        async with engine.open_agent(**ROUTE) as one_, engine.open_agent(**ROUTE) as other:
            turns = [await one_.ask("go"), await other.ask("go")]
            assert [t.ending for t in turns] == [stopped("2 of 2 steps used in this turn")] * 2


@played
async def test_a_removed_budget_bounds_nothing() -> None:
    async with one([answer(call("echo")), "done"], [echo]) as life:
        with Budget(steps=1).attach(life.agent.scope):
            pass
        assert (await life.agent.ask("go")).reason == "completed"


# --- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("steps", -1),
        ("steps", True),
        ("steps", 1.5),
        ("tokens", 0),
        ("tokens", 2.0),
        ("seconds", 0),
        ("seconds", float("nan")),
        ("seconds", float("inf")),
        ("cost", -1),
        ("per", "hour"),
    ],
)
def test_limits_are_checked(name: str, value: Any) -> None:
    with pytest.raises(InvalidValue, match=f"{name}: expected"):
        Budget(**{name: value}, price=lambda provider, model, usage: 0.0)


def test_limits_are_checked_when_they_are_changed() -> None:
    budget = Budget(steps=1)
    with pytest.raises(InvalidValue):
        budget.steps = 0
    assert budget.steps == 1


def test_a_cost_needs_a_price() -> None:
    with pytest.raises(InvalidValue, match="price="):
        Budget(cost=1.0)


# --- cut short anywhere --------------------------------------------------------------------


async def bounded(stage: Stage) -> None:
    """A turn that runs into its budget while steering waits; then one that does not."""

    @tool(name="echo")
    async def slowly(run: ToolRun) -> str:
        """Take a moment."""
        async with stage.body(run):
            await trio.sleep(0.1)
        return "x"

    async with stage.open_engine([slowly]) as engine:
        Budget(steps=2).attach(engine.scope)
        async with stage.open_agent(engine) as agent:
            stage.send("followup", "go")
            await trio.sleep(0.15)
            if not agent.disposed:
                stage.send("steer", "hurry")
            await agent.wait_idle()
            if not agent.disposed:
                stage.send("followup", "go on")
            await agent.wait_idle()


def bounded_model() -> ScriptedModel:
    return ScriptedModel(
        [answer(call("echo")), answer(call("echo")), answer("done", Delay(0.1)), *["more"] * 4]
    )


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_cut_short_anywhere(source: Source) -> None:
    """C69 C127 C179: the budget's own cancel beside everybody else's."""
    report = explore(bounded, bounded_model, name="bounded", sources=[source])
    assert report.violations == []
    assert report.points >= 2
