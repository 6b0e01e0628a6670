"""What `pre_step` set aside is consumed once its step is admitted (DESIGN 6.6, C70, C126)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from trio.testing import wait_all_tasks_blocked

import terzetto
from terzetto import Enter, PreStep
from terzetto.agent import Agent
from terzetto.agent._hooks import StepDecision
from terzetto.hooks import Proceed
from terzetto.llm.scripted import Gate, ScriptedModel, answer, say
from terzetto.vocabulary import UserMessage


@asynccontextmanager
async def stalled(kind: str) -> AsyncIterator[Agent]:
    """An agent whose second turn is admitted, and whose answer has not begun.

    The header of the second request is that of the first, so none is written: after the
    entered messages nothing in the log says that the batch is complete.
    """
    model = ScriptedModel([answer(say("one")), answer(Gate("never")), answer(say("three"))])
    async with (
        terzetto.open_engine(adapters=[model]) as engine,
        engine.open_agent(provider="scripted", model="m") as agent,
    ):
        await agent.ask("first")

        async def decide(value: PreStep, proceed: Proceed[PreStep, StepDecision]) -> StepDecision:
            if kind == "rewritten":
                return Enter(tuple(UserMessage(f"{m.text}, rewritten") for m in value.messages))
            return Enter(value.messages[:1])

        with agent.scope.hooks.pre_step.listen(decide):
            agent.inject("kept")
            agent.followup("set aside")
            await wait_all_tasks_blocked()
            yield agent


@pytest.mark.parametrize("kind", ["rewritten", "dropped"])
async def test_input_of_an_admitted_step_is_not_put_back(kind: str) -> None:
    """DESIGN 6.6: entered or consumed, and not pending again beside it."""
    async with stalled(kind) as agent:
        history = list(agent.session.history())
        agent.cancel(keep_inbox=True)
        await agent.wait_idle()
        assert [m.text for m in agent.inbox.next_step] == []
        assert [m.text for m in agent.inbox.next_turn] == []
        assert list(agent.session.history()) == history


@pytest.mark.parametrize("kind", ["rewritten", "dropped"])
async def test_input_of_an_admitted_step_is_not_discarded(kind: str) -> None:
    """DESIGN 6.6: consumed is not discarded; nobody is told that it was."""
    async with stalled(kind) as agent:
        discarded: list[str] = []
        agent.scope.hooks.inbox_discarded.listen(
            lambda notice: discarded.append(notice.message.text)
        )
        agent.cancel()
        await agent.wait_idle()
        assert discarded == []


async def test_input_is_put_back_when_the_step_was_not_admitted() -> None:
    """DESIGN 6: the same cancel, one moment earlier."""
    model = ScriptedModel([answer(say("one"))])
    async with (
        terzetto.open_engine(adapters=[model]) as engine,
        engine.open_agent(provider="scripted", model="m") as agent,
    ):

        async def stop(value: PreStep, proceed: Proceed[PreStep, StepDecision]) -> StepDecision:
            agent.cancel(keep_inbox=True)
            return await proceed()

        agent.scope.hooks.pre_step.listen(stop)
        agent.inject("kept")
        agent.followup("asked")
        await agent.wait_idle()
        assert [m.text for m in agent.inbox.next_step] == ["kept"]
        assert [m.text for m in agent.inbox.next_turn] == ["asked"]
        assert list(agent.session.history()) == []
