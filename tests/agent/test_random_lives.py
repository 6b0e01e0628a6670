"""Whatever is called whenever: random lives of one agent, and what must hold after each.

A seed decides what the model answers, how long tools take, what the user calls and when, and
what listeners call back. Two lives on one store: the second resumes what the first has left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest
import trio
from attrs import define, field
from tests.agent.kit import ROUTE, check, play
from tests.agent.rig import log
from tests.whole import whole

import terzetto
from terzetto import (
    Agent,
    AgentDisposed,
    Engine,
    LongResult,
    MemoryStore,
    MessageDiscarded,
    NoAnswer,
    Retry,
    Tool,
    ToolRun,
    TurnFailed,
    Write,
    tool,
)
from terzetto.extras.budget import Budget
from terzetto.extras.compaction import INSTRUCTIONS, Compaction
from terzetto.llm.scripted import Delay, ScriptedModel, answer, call, finish_error, say, think
from terzetto.session import asks_again
from terzetto.testing import history_is_valid
from terzetto.vocabulary import MaxTokens, Request

SEEDS = 40
ASKED = (TurnFailed, NoAnswer, MessageDiscarded, AgentDisposed)


@define(eq=False)
class Chance:
    """One seed's decisions."""

    seed: int
    random: Random = field(init=False)
    bodies: Counter[str] = field(factory=Counter)
    happened: Counter[str] = field(factory=Counter)
    depth: int = 0

    def __attrs_post_init__(self) -> None:
        self.random = Random(self.seed)

    def often(self, share: float) -> bool:
        return self.random.random() < share

    # --- the model and the tools ------------------------------------------------------------

    def reply(self, request: Request) -> Any:
        if getattr(request.messages[-1], "text", "") == INSTRUCTIONS:
            texts = [answer(Delay(0.1), say("Short.")), answer(say("long " * 500))]
            return self.random.choice([*texts, finish_error(code="SERVER")])
        kind = self.random.random()
        if kind < 0.1:
            return finish_error(code=self.random.choice(["SERVER", "CONTEXT_OVERFLOW"]))
        if kind < 0.2:
            return answer(say("cut "), Delay(0.05), say("off"), finish=MaxTokens())
        if kind < 0.6:
            names = [*(schema.name for schema in request.tools), "nobody"]
            calls = [
                self._call(self.random.choice(names)) for _ in range(self.random.randint(1, 5))
            ]
            return answer(Delay(0.05), say("hm"), Delay(0.05), *calls)
        words = say("some " * self.random.randint(1, 60))
        return answer(think("t"), Delay(self.random.choice([0, 0.1])), words, Delay(0.05), say("x"))

    def _call(self, name: str) -> Any:
        if name.startswith("answer"):
            return call(name, value=self.random.choice([1, "no number"]))
        if name in ("delegate", "nobody"):
            return call(name)
        return call(name, seconds=self.random.choice([0, 0.1, 0.3]))

    async def body(self, run: ToolRun, seconds: float, *, shield: bool) -> str:
        self.bodies["running"] += 1
        try:
            with trio.CancelScope(shield=shield):
                await trio.sleep(seconds)
            if self.often(0.2):
                raise ValueError("broken")
            if self.often(0.1):
                run.conclude_turn()
        finally:
            self.bodies["running"] -= 1
        return "x" * self.random.choice([1, 50])

    def tools(self) -> list[Tool]:
        @tool(parallel=True)
        async def beside(run: ToolRun, seconds: float) -> str:
            """Run beside others."""
            return await self.body(run, seconds, shield=False)

        @tool
        async def alone(run: ToolRun, seconds: float) -> str:
            """Run alone."""
            return await self.body(run, seconds, shield=True)

        @tool(touches=lambda _: {Write(str(self.random.randint(0, 2)))}, timeout=0.15)
        async def touching(run: ToolRun, seconds: float) -> str:
            """Touch something."""
            return await self.body(run, seconds, shield=self.often(0.3))

        return [beside, alone, touching]

    async def keep(self, result: LongResult) -> str:
        await trio.sleep(self.random.choice([0, 0.1]))
        return "kept"

    # --- whoever calls ----------------------------------------------------------------------

    def act(self, agent: Agent) -> None:
        """One plain call."""
        number = self.random.randint(0, 8)
        name = self.random.choice(["followup", "steer", "inject", "interrupt", "interrupt"])
        if number < 5:
            getattr(agent, name)(name)
        elif number == 5:
            agent.cancel(keep_inbox=self.often(0.5))
        elif number == 6:
            agent.inbox.clear()
        else:
            agent.wake()
            agent.last_turn()
            agent.statistics()

    def called_back(self, agent: Agent) -> None:
        """A listener that may do something, too; not for ever."""
        if self.depth < 3 and self.often(0.05):
            self.depth += 1
            with suppress(AgentDisposed):
                self.act(agent)
            self.depth -= 1

    async def ask(self, agent: Agent) -> None:
        with trio.move_on_after(self.random.choice([0.05, 0.3, 1, 100])), suppress(*ASKED):
            if self.often(0.6):
                assert (await agent.ask("typed", returns=int)).value == 1
            else:
                await agent.ask("plain")

    def compose(self, engine: Engine, agent: Agent) -> None:
        """Policies, extras and listeners of this seed."""
        hooks = agent.scope.hooks

        async def slow(value: Any, proceed: Any) -> Any:
            if self.often(0.3):
                await trio.sleep(0.05)
            return await proceed()

        async def retry(value: Any, proceed: Any) -> Any:
            await slow(value, proceed)
            return Retry() if value.attempt < 3 and self.often(0.5) else await proceed()

        async def stream(value: Any, proceed: Any) -> Any:
            self.called_back(agent)
            return tapped(await proceed())

        @asynccontextmanager
        async def tapped(stream: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
            async with stream as chunks:
                yield chunks
                self.called_back(agent)

        async def stopping(value: Any) -> None:
            self.called_back(agent)

        @tool(parallel=True)
        async def delegate(run: ToolRun) -> str:
            """Let a child answer."""
            async with engine.open_agent(**ROUTE, parent=agent) as child:
                with suppress(*ASKED):
                    await child.ask("do it", returns=int)
            check(child.session)
            return "done"

        agent.scope.tools.add(delegate)
        hooks.pre_step.listen(slow)
        hooks.request_error.listen(retry)
        hooks.stream.listen(stream)
        hooks.turn_stopping.listen(stopping)
        for told in (hooks.inbox_inserted, hooks.inbox_claimed, hooks.inbox_discarded):
            told.listen(lambda _: self.called_back(agent))
        for other in (hooks.status, hooks.tool_result, hooks.agent_error):
            other.listen(lambda _: self.called_back(agent))
        agent.session.observe(lambda _: agent.cancel() if self.often(0.001) else None)
        if self.seed % 3 == 0:
            Budget(steps=self.random.randint(1, 4)).attach(agent.scope)
        if self.seed % 5 < 2:
            Compaction(window=1500, keep_rounds=1).attach(agent.scope)
        if self.seed % 4 == 0:
            hooks.tool_pre_execute.listen(slow)
            hooks.tool_post_execute.listen(slow)


async def live(chance: Chance) -> None:
    model, store = ScriptedModel(chance.reply), MemoryStore()
    spill = chance.keep if chance.seed % 2 else None
    for _ in range(2):
        with trio.CancelScope() as host:
            async with terzetto.open_engine(
                adapters=[model], tools=chance.tools(), store=store, spill=spill
            ) as engine:
                options: dict[str, Any] = {**ROUTE, "session_id": "s", "if_stored": "resume"}
                async with engine.open_agent(**options) as agent:
                    chance.compose(engine, agent)
                    async with trio.open_nursery() as nursery:
                        for _ in range(chance.random.randint(5, 25)):
                            await trio.sleep(chance.random.choice([0, 0, 0.01, 0.05, 0.1, 0.5]))
                            if chance.often(0.3):
                                nursery.start_soon(chance.ask, agent)
                            else:
                                chance.act(agent)
                        if chance.often(0.3):
                            host.cancel()
                        with trio.move_on_after(500) as patience:
                            await agent.wait_idle()
                        assert not patience.cancelled_caught
                        assert not any(map(asks_again, agent.inbox.next_step))
                        agent.cancel()
                        await agent.wait_idle()
                        nursery.cancel_scope.cancel()
                    assert nothing_is_left_of(agent) == []
        assert +chance.bodies == Counter()
        check(agent.session)
        _, stored = await store.read("s")
        assert stored == whole(agent.session)
        chance.happened.update(log(agent.session))
    for request in model.requests:
        assert history_is_valid(request.messages) == []


def nothing_is_left_of(agent: Agent) -> list[object]:
    """What an idle agent still holds of turns and asks that are over."""
    state = agent._state
    tools = [name for name in agent.scope.tools.visible() if name.startswith("answer")]
    return [*tools, *state.calls, *state.waiters._by_message, *filter(None, [state.owed._by])]


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_random_lives_keep_the_invariants(first: int) -> None:
    """The eight invariants; nothing hangs, runs on or is left behind; the store has it all."""
    happened: Counter[str] = Counter()
    for seed in range(first, first + 10):
        chance = Chance(seed)
        try:
            play(live, chance, seed=seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        happened += chance.happened
    wanted = {"turn/end Completed", "turn/end Aborted", "tool/result", "tool/result ABORTED"}
    assert wanted | {"tool/result ABORTED_BEFORE_DISPATCH", "compaction/end"} <= happened.keys()
