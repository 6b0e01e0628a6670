"""Retries: what is made again, after how long, and what the log says of it (C140-C142, C133)."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given, strategies as st
from tests.agent.kit import ROUTE, check, engine_on, played, settled

from terzetto import Agent, RequestFailed, Retry, TurnFailed
from terzetto.extras.retry import Retries
from terzetto.hooks import Proceed
from terzetto.llm.scripted import ScriptedModel, answer, finish_error, say
from terzetto.testing import SOURCES, Stage, explore
from terzetto.vocabulary import (
    AssistantMessageEvent,
    InvalidValue,
    LlmRetry,
    LlmRetryStarted,
    ModelInfo,
    RetryPolicy,
)

STEADY = RetryPolicy(jitter=0)
ENDLESS = RetryPolicy(max_retries=None, jitter=0)


def fails(code: str = "SERVER", after_ms: int | None = None) -> Any:
    return answer(say("half an ans"), finish_error(code, "no luck", retry_after_ms=after_ms))


@asynccontextmanager
async def retrying(
    *script: Any, policy: RetryPolicy | None = STEADY, **options: Any
) -> AsyncIterator[tuple[Agent, ScriptedModel]]:
    model = ScriptedModel(script)
    async with engine_on(model) as engine:
        Retries(policy=policy, **options).attach(engine.scope)
        async with engine.open_agent(**ROUTE) as agent:
            yield agent, model
            check(agent.session)


def retries(agent: Agent) -> list[LlmRetry]:
    return [e.data for e in agent.session.events if isinstance(e.data, LlmRetry)]


def started(agent: Agent) -> list[LlmRetryStarted]:
    return [e.data for e in agent.session.events if isinstance(e.data, LlmRetryStarted)]


@played
async def test_five_retries_with_waits_that_double_up_to_the_cap() -> None:
    """C140: then the failure is the turn's own."""
    async with retrying(*[fails()] * 6, "never") as (agent, model):
        began = trio.current_time()
        with pytest.raises(TurnFailed, match="no luck"):
            await agent.ask("go")
        assert [r.delay_ms for r in retries(agent)] == [500, 1000, 2000, 4000, 8000]
        assert trio.current_time() - began == pytest.approx(15.5)
        assert [r.attempt for r in retries(agent)] == [1, 2, 3, 4, 5]
        assert len(model.requests) == 6


@played
async def test_no_wait_is_longer_than_the_cap() -> None:
    """C140: ten seconds unless the policy says otherwise; without a limit it never gives up."""
    async with retrying(*[fails()] * 9, "at last", policy=ENDLESS) as (agent, _):
        assert (await agent.ask("go")).text == "at last"
        assert [r.delay_ms for r in retries(agent)][4:] == [8000, 10_000, 10_000, 10_000, 10_000]


@pytest.mark.parametrize("code", sorted(RetryPolicy().codes))
def test_what_may_pass_is_retried(code: str) -> None:
    """C140 C133: in the same step, and what came of the failed attempt is not in history."""

    @played
    async def run() -> None:
        async with retrying(fails(code), "whole") as (agent, model):
            turn = await agent.ask("go")
            assert (turn.text, turn.number) == ("whole", 1)
            answers = [e for e in agent.session.events if isinstance(e.data, AssistantMessageEvent)]
            assert len(answers) == 1
            assert model.requests[0].messages == model.requests[1].messages
            (retry,) = retries(agent)
            assert (retry.turn, retry.step, retry.failure.code) == (1, 1, code)

    run()


@pytest.mark.parametrize(
    "code", ["AUTH", "QUOTA", "CONTEXT_OVERFLOW", "INVALID_REQUEST", "UNKNOWN"]
)
def test_what_stays_is_not_retried(code: str) -> None:
    """C140: the listeners inside may know better, and are asked."""

    @played
    async def run() -> None:
        async with retrying(fails(code), fails(code), "never") as (agent, model):
            asked: list[str] = []

            async def inner(failed: RequestFailed, proceed: Proceed[Any, Any]) -> Any:
                asked.append(failed.failure.code)
                return await proceed()

            agent.scope.hooks.request_error.listen(inner)
            with pytest.raises(TurnFailed, match="no luck"):
                await agent.ask("go")
            assert asked == [code]
            assert retries(agent) == []
            assert len(model.requests) == 1

    run()


@pytest.mark.parametrize(
    ("policy", "asked_ms", "waits_ms"),
    [
        pytest.param(RetryPolicy(jitter=1), 0, 0, id="at once"),
        pytest.param(RetryPolicy(jitter=1), 7001, 7001, id="without jitter"),
        pytest.param(STEADY, 10_000, 10_000, id="the cap itself"),
        pytest.param(STEADY, -5, 500, id="no delay at all"),
        pytest.param(STEADY, 10_001, None, id="too long"),
        pytest.param(ENDLESS, 10_001, 500, id="too long for who never gives up"),
        pytest.param(ENDLESS, 10_000, 10_000, id="not too long"),
    ],
)
def test_the_delay_that_a_provider_asks_for(
    policy: RetryPolicy, asked_ms: int, waits_ms: int | None
) -> None:
    """C141: kept to the millisecond up to the cap; a longer one is for somebody else."""

    @played
    async def run() -> None:
        async with retrying(fails("RATE_LIMIT", asked_ms), "ok", policy=policy) as (agent, model):
            began = trio.current_time()
            if waits_ms is None:
                with pytest.raises(TurnFailed, match="no luck"):
                    await agent.ask("go")
                assert retries(agent) == []
                assert len(model.requests) == 1
            else:
                assert (await agent.ask("go")).text == "ok"
                assert [r.delay_ms for r in retries(agent)] == [waits_ms]
                assert trio.current_time() - began == pytest.approx(waits_ms / 1000)

    run()


@played
async def test_without_a_limit_the_listeners_inside_are_asked_first() -> None:
    """C140: what they recover is not retried here, and counts for nothing."""
    async with retrying(fails(), fails(), "ok", policy=ENDLESS) as (agent, _):
        recovers = [Retry()]

        async def inner(failed: RequestFailed, proceed: Proceed[Any, Any]) -> Any:
            return recovers.pop() if recovers else await proceed()

        agent.scope.hooks.request_error.listen(inner)
        assert (await agent.ask("go")).text == "ok"
        assert [(r.attempt, r.delay_ms) for r in retries(agent)] == [(1, 500)]


@played
async def test_both_records_of_a_retry_share_its_id_and_nobody_shows_them_to_the_model() -> None:
    """C142: one before the wait, the other right before the attempt."""
    async with retrying(fails(), fails(), "ok") as (agent, model):
        agent.followup("go")
        await settled()
        assert len(retries(agent)) == 1
        assert started(agent) == []
        await agent.wait_idle()
        ids = [r.retry_id for r in retries(agent)]
        assert [s.retry_id for s in started(agent)] == ids
        assert len(set(ids)) == 2
        events = agent.session.events
        first = next(e.seq for e in events if isinstance(e.data, LlmRetry))
        after = next(e.seq for e in events if isinstance(e.data, LlmRetryStarted))
        assert after == first + 1
        assert events[after].time_ms >= events[first].time_ms
        for request in model.requests:
            assert not any(i in repr(request.messages) for i in ids)


@pytest.mark.parametrize("way", ["cancel", "host", "dispose"])
def test_a_cancel_ends_the_wait_and_writes_no_start(way: str) -> None:
    """C142 BC-05: at once, however long the wait is."""

    @played
    async def run() -> None:
        model = ScriptedModel([fails(), "next"])
        async with engine_on(model) as engine:
            Retries(policy=RetryPolicy(first_delay_ms=9_000_000, max_delay_ms=9_000_000)).attach(
                engine.scope
            )
            began = trio.current_time()
            with trio.CancelScope() as host:
                async with engine.open_agent(**ROUTE) as agent:
                    agent.followup("go")
                    await settled()
                    assert len(retries(agent)) == 1
                    if way == "cancel":
                        agent.cancel()
                        await agent.wait_idle()
                        assert started(agent) == []
                        assert (await agent.ask("next")).text == "next"
                    elif way == "host":
                        host.cancel()
                        await trio.sleep_forever()
            assert trio.current_time() == began
            assert started(agent) == []
            check(agent.session)

    run()


@played
async def test_numbers_begin_anew_in_each_step_and_under_another_policy() -> None:
    """C142: they continue across one provider and one complete policy."""
    model = ScriptedModel([fails(), fails(), fails(), "one", fails(), "two"])
    async with engine_on(model) as engine:
        policy = Retries(policy=STEADY)
        policy.attach(engine.scope)
        async with engine.open_agent(**ROUTE) as agent:

            def change(event: Any) -> None:
                if len(retries(agent)) == 2:
                    policy.policy = RetryPolicy(jitter=0, max_retries=4)

            agent.session.observers.listen(change)
            await agent.ask("go")
            await agent.ask("go on")
            found = [(r.turn, r.attempt) for r in retries(agent)]
            assert found == [(1, 1), (1, 2), (1, 1), (2, 1)]


@pytest.mark.parametrize("advises", [None, RetryPolicy(jitter=0, max_retries=1, first_delay_ms=7)])
def test_the_policy_of_the_adapter_is_followed(advises: RetryPolicy | None) -> None:
    """C140: it is the provider's; of who advises nothing, nothing is made again."""

    @played
    async def run() -> None:
        model = ScriptedModel([fails(), fails(), "never"], info=ModelInfo(retry_policy=advises))
        async with engine_on(model) as engine:
            Retries().attach(engine.scope)
            async with engine.open_agent(**ROUTE) as agent:
                policies: list[RetryPolicy | None] = []

                async def inner(failed: RequestFailed, proceed: Proceed[Any, Any]) -> Any:
                    policies.append(failed.policy)
                    return await proceed()

                agent.scope.hooks.request_error.listen(inner)
                with pytest.raises(TurnFailed):
                    await agent.ask("go")
                assert policies == [advises]  # asked of the last one alone
                assert [r.delay_ms for r in retries(agent)] == ([7] if advises else [])

    run()


@played
async def test_an_adapter_that_advises_nonsense_is_logged_and_hides_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    advises = RetryPolicy(jitter=math.nan, codes=frozenset({"SERVER"}))
    model = ScriptedModel([fails(), "never"], info=ModelInfo(retry_policy=advises))
    async with engine_on(model) as engine:
        Retries().attach(engine.scope)
        async with engine.open_agent(**ROUTE) as agent:
            with pytest.raises(TurnFailed) as caught:
                await agent.ask("go")
            assert retries(agent) == []
    assert caught.value.code == "SERVER"
    assert "expected a jitter from 0 to 1, got nan; not retried" in caplog.text


@pytest.mark.parametrize("asked", [2.5, True, "3", math.nan])
def test_a_delay_that_is_no_number_of_milliseconds_is_not_obeyed(asked: Any) -> None:
    assert Retries().delay_ms(STEADY, 0, asked) == STEADY.first_delay_ms


@played
async def test_two_agents_of_one_engine_are_counted_apart() -> None:
    model = ScriptedModel([fails()] * 6 + ["a", "b"])
    async with engine_on(model) as engine:
        Retries(policy=STEADY).attach(engine.scope)
        async with engine.open_agent(**ROUTE) as one, engine.open_agent(**ROUTE) as other:
            one.followup("go")
            other.followup("go")
            await one.wait_idle()
            await other.wait_idle()
            for agent in (one, other):
                assert [r.attempt for r in retries(agent)] == [1, 2, 3]


@given(
    st.integers(0, 10_000),
    st.integers(0, 100_000),
    st.floats(0, 1),
    st.integers(0, 10**6),
    st.integers(),
)
def test_every_wait_is_within_its_jitter(
    first: int, more: int, jitter: float, retries: int, seed: int
) -> None:
    """C140: symmetric around the doubled delay, whatever the number of the retry."""
    policy = RetryPolicy(first_delay_ms=first, max_delay_ms=first + more, jitter=jitter)
    delay = Retries(random=Random(seed)).delay_ms(policy, retries, None)
    assert delay is not None
    steady = min(first * 2 ** min(retries, 40), first + more)
    assert steady * (1 - jitter) - 1 <= delay <= steady * (1 + jitter) + 1


def test_jitter_goes_both_ways() -> None:
    policy = RetryPolicy(first_delay_ms=1000)
    found = [Retries(random=Random(n)).delay_ms(policy, 0, None) or 0 for n in range(50)]
    assert 900 <= min(found) < 1000 < max(found) <= 1100


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (5, "expected a RetryPolicy or None, got int"),
        (RetryPolicy(max_retries=-1), "max_retries of 0 or more, or None, got -1"),
        (RetryPolicy(first_delay_ms=-1), "got -1 and 10000"),
        (RetryPolicy(max_delay_ms=10), "got 500 and 10"),
        (RetryPolicy(jitter=2), "a jitter from 0 to 1, got 2"),
        (RetryPolicy(jitter=math.nan), "a jitter from 0 to 1, got nan"),
        (RetryPolicy(first_delay_ms=math.nan), "got nan and 10000"),  # type: ignore[arg-type]
        (RetryPolicy(max_delay_ms=math.inf), "got 500 and inf"),  # type: ignore[arg-type]
        (RetryPolicy(max_retries=True), "max_retries of 0 or more, or None, got True"),
    ],
)
def test_what_is_no_policy_is_refused(policy: Any, told: str) -> None:
    with pytest.raises(InvalidValue, match=told):
        Retries(policy=policy)
    retrying = Retries()
    with pytest.raises(InvalidValue, match=told):
        retrying.policy = policy


def test_cut_short_anywhere_the_eight_invariants_hold() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.open_engine() as engine:
            Retries(policy=STEADY).attach(engine.scope)
            async with stage.open_agent(engine) as agent:
                stage.send("followup", "go")
                await agent.wait_idle()

    report = explore(scenario, [fails(), fails("TIMEOUT", 50), "ok"], sources=SOURCES, stride=7)
    assert report.points > 20
    assert report.violations == []


def test_it_can_be_taken_away_again() -> None:
    @played
    async def run() -> None:
        async with engine_on(ScriptedModel([fails(), "never"])) as engine:
            with Retries(policy=STEADY).attach(engine.scope):
                pass
            async with engine.open_agent(**ROUTE) as agent:
                with pytest.raises(TurnFailed):
                    await agent.ask("go")
                assert retries(agent) == []

    run()
