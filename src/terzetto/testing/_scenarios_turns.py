"""Shipped scenarios of turns: streams, input that comes meanwhile, listeners that decide."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import trio

from .. import (
    End,
    Enter,
    PreStep,
    Reject,
    RequestFailed,
    Retry,
    StreamCall,
    ToolRun,
    UserMessage,
    tool,
)
from ..llm import ChunkStream
from ..llm.scripted import Delay, answer, call, finish_error, say, think
from ._life import Scenario
from ._recording import Answers, MakeAdapter
from ._script_acts import REFUSED
from ._stage import Stage


@asynccontextmanager
async def nursery_of_the_host() -> AsyncIterator[trio.Nursery]:
    """A nursery of the scenario's own; a KeyboardInterrupt leaves it as itself, also beside the
    host's own cancel, so that a group around one is the engine's."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        interrupts, others = group.split(KeyboardInterrupt)
        if interrupts is None or (others and others.split(trio.Cancelled)[1]):
            raise
        raise KeyboardInterrupt from None


def slowly(*texts: str) -> Answers:
    """Answers that take their time, before each text and after it."""
    return [answer(Delay(0.1), say(text), Delay(0.1)) for text in texts]


async def plain(stage: Stage) -> None:
    """Two prompts, two answers; the second is waiting while the first is answered."""
    async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
        stage.send("followup", "first")
        stage.send("followup", "second")
        await agent.wait_idle()


async def reasoning(stage: Stage) -> None:
    """An answer that reasons in two pieces before it speaks."""
    async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
        stage.send("followup", "think")
        await agent.wait_idle()


REASONED: Answers = [
    answer(
        think("Let me see. "), Delay(0.1), think("There."), Delay(0.1), say("It is"), say(" so.")
    )
]


async def asked(stage: Stage) -> None:
    """What most programs do: ask, and ask again."""
    async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
        with suppress(*REFUSED):
            await agent.ask("first")
            await agent.ask("second")


async def asking(stage: Stage) -> None:
    """Three asks behind a prompt; one gives up while it is pending, one while claimed."""
    async with stage.open_engine() as engine, stage.open_agent(engine) as agent:

        async def ask(text: str, after: float, patience: float) -> None:
            await trio.sleep(after)
            with suppress(*REFUSED), trio.move_on_after(patience):
                await agent.ask(text)

        stage.send("followup", "first")
        async with nursery_of_the_host() as nursery:
            nursery.start_soon(ask, "claimed", 0.01, 0.3)
            nursery.start_soon(ask, "patient", 0.02, 100)
            nursery.start_soon(ask, "pending", 0.03, 0.1)
        await agent.wait_idle()


async def steered(stage: Stage) -> None:
    """Steering while an answer streams, while a tool runs, and at the end of the turn."""

    @tool
    async def dig() -> str:
        """Dig."""
        stage.send("steer", "deeper")
        await trio.sleep(0.1)
        return "dug"

    async def once_more(value: object) -> None:
        if len(stage.sent) < 4:
            stage.send("steer", "once more")
        await trio.lowlevel.checkpoint()

    async def before_asking(
        value: StreamCall, proceed: Callable[[], Awaitable[ChunkStream]]
    ) -> ChunkStream:
        await trio.lowlevel.checkpoint()
        return await proceed()

    async with stage.open_engine([dig]) as engine, stage.open_agent(engine) as agent:
        agent.scope.hooks.turn_stopping.listen(once_more)
        agent.scope.hooks.stream.listen(before_asking)
        stage.send("followup", "dig")
        await trio.sleep(0.05)
        stage.send("steer", "here")
        await agent.wait_idle()


STEERED: Answers = [answer(Delay(0.1), call("dig")), answer(Delay(0.1), "Done."), "And more."]


async def interrupted(stage: Stage) -> None:
    """A message that cuts the answer short, one that cuts the tools, one between turns."""

    @tool(parallel=True)
    async def dig() -> str:
        """Dig."""
        await trio.sleep(0.2)
        return "dug"

    async with stage.open_engine([dig]) as engine, stage.open_agent(engine) as agent:
        stage.send("followup", "talk")
        await trio.sleep(0.1)
        stage.send("interrupt", "dig instead")
        await trio.sleep(0.1)
        stage.send("interrupt", "stop digging")
        await agent.wait_idle()
        stage.send("interrupt", "are you there?")
        await agent.wait_idle()


INTERRUPTED: Answers = [
    answer(think("Hm."), say("It all began "), Delay(0.2), say("long ago")),
    answer(call("dig"), call("dig")),
    answer(Delay(0.1), "Stopped."),
]


async def failing(stage: Stage) -> None:
    """A rejection, a failure that is retried, one that is not, and a queue behind them."""
    async with stage.open_engine() as engine:

        async def reject_first(
            value: PreStep, proceed: Callable[[], Awaitable[Enter | Reject]]
        ) -> Enter | Reject:
            await trio.lowlevel.checkpoint()
            return Reject() if value.turn == 1 else await proceed()

        async def retry_once(
            value: RequestFailed, proceed: Callable[[], Awaitable[Retry | End]]
        ) -> Retry | End:
            await trio.sleep(0.1)
            return Retry() if value.attempt == 1 else await proceed()

        engine.scope.hooks.pre_step.listen(reject_first)
        engine.scope.hooks.request_error.listen(retry_once)
        async with stage.open_agent(engine) as agent:
            for text in ("rejected", "retried", "failed"):
                stage.send("inject", f"a note on {text}")
                stage.send("followup", text)
                await agent.wait_idle()
            stage.send("followup", "last")
            await agent.wait_idle()


_BAD = answer(think("hm"), Delay(0.1), say("half"), finish_error())
FAILING: Answers = [_BAD, answer(Delay(0.1), "ok"), _BAD, _BAD, "last"]


async def rewriting(stage: Stage) -> None:
    """A listener that sets input aside: another message instead, or nothing but the results."""

    @tool
    async def dig(run: ToolRun) -> str:
        """Dig."""
        stage.send("steer", "never mind")
        return "dug"

    async def rewrite(
        value: PreStep, proceed: Callable[[], Awaitable[Enter | Reject]]
    ) -> Enter | Reject:
        await trio.lowlevel.checkpoint()
        instead = (UserMessage("dig, please"),) if value.step == 1 else ()
        return Enter(instead)

    async with stage.open_engine([dig]) as engine, stage.open_agent(engine) as agent:
        agent.scope.hooks.pre_step.listen(rewrite)
        stage.send("followup", "DIG")
        await agent.wait_idle()


REWRITTEN: Answers = [answer(Delay(0.1), call("dig")), answer(Delay(0.1), "Done.")]


TURNS: Mapping[str, tuple[Scenario, MakeAdapter | Answers]] = {
    "plain": (plain, slowly("first", "second")),
    "reasoning": (reasoning, REASONED),
    "asked": (asked, slowly("first", "second")),
    "asking": (asking, slowly("first", "a", "b", "c")),
    "steered": (steered, STEERED),
    "interrupted": (interrupted, INTERRUPTED),
    "failing": (failing, FAILING),
    "rewriting": (rewriting, REWRITTEN),
}
