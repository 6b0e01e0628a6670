"""Agents that are going: who may still join them, and who is told."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from terzetto import Agent, AgentDisposed, open_engine, tool
from terzetto.llm.scripted import ScriptedModel, answer, call


async def test_nobody_joins_an_agent_whose_driver_has_ended(
    autojump_clock: trio.abc.Clock,
) -> None:
    """C34: a child's clean-up, for which its parent waits, cannot open a sibling any more: the
    creation would wait for the parent, and the parent for the clean-up."""
    found: list[BaseException | str] = []
    family: dict[str, Agent] = {}

    @tool
    async def work() -> str:
        """Work."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.05)
                try:
                    async with engine.open_agent(
                        provider="scripted", model="m", parent=family["parent"]
                    ):
                        found.append("a sibling")
                except AgentDisposed as error:
                    found.append(error)
        raise AssertionError("it was not cancelled")

    def stop(change: object) -> None:
        raise SystemExit(3)

    model = ScriptedModel([answer(call("work", id="c1")), "never"])
    with pytest.raises(SystemExit):
        async with open_engine(adapters=[model], tools=[work]) as engine:
            parent = await engine.agents.create(provider="scripted", model="m")
            family["parent"] = parent.agent
            child = await engine.agents.create(provider="scripted", model="m", parent=parent.agent)
            child.agent.followup("go")
            await trio.testing.wait_all_tasks_blocked()
            assert child.agent.statistics().calls_running == 1
            parent.agent.scope.hooks.status.listen(stop)
            with trio.fail_after(10):
                parent.agent.followup("boom")
                await trio.sleep_forever()
    (error,) = found
    assert isinstance(error, AgentDisposed)


async def test_a_stop_in_a_listener_of_what_is_discarded_does_not_lose_the_disposal(
    autojump_clock: trio.abc.Clock,
) -> None:
    """C28: who disposes once more is not left waiting."""

    def stop(notice: object) -> None:
        raise SystemExit(3)

    async with open_engine(adapters=[ScriptedModel([])]) as engine:
        handle = await engine.agents.create(provider="scripted", model="m")
        await trio.testing.wait_all_tasks_blocked()
        handle.agent.inject("a note")
        handle.agent.scope.hooks.inbox_discarded.listen(stop)
        with pytest.raises(SystemExit):
            handle.begin_disposal()
        with trio.fail_after(5):
            await handle.dispose()
        assert engine.agents.list() == []
