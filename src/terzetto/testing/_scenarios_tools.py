"""Shipped scenarios of tools: how bodies end, and who waits for whom."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

import trio

from .. import (
    Allow,
    Ask,
    Deny,
    LongResult,
    Read,
    Tool,
    ToolCallHook,
    ToolOutcome,
    ToolResultHook,
    ToolRun,
    Write,
    tool,
)
from ..llm.scripted import Delay, answer, call, say
from ._life import Scenario
from ._recording import Answers, MakeAdapter
from ._stage import Stage


async def batch(stage: Stage) -> None:
    """Five calls, two slots, a barrier between them, results in another order."""
    inside: list[str] = []

    @contextmanager
    def within(name: str) -> Iterator[None]:
        """Never more bodies than slots; whoever is exclusive is alone."""
        inside.append(name)
        if len(inside) > 2 or (len(inside) > 1 and "alone" in inside):
            stage.problems.append(f"together in two slots: {', '.join(inside)}")
        try:
            yield
        finally:
            inside.remove(name)

    @tool(parallel=True)
    async def look(ticks: int) -> str:
        """Look."""
        with within("look"):
            await trio.sleep(ticks / 10)
        return "seen"

    @tool
    async def alone() -> str:
        """Alone."""
        with within("alone"):
            await trio.sleep(0.1)
        return "done"

    async with (
        stage.open_engine([look, alone], max_parallel_tool_calls=2) as engine,
        stage.open_agent(engine) as agent,
    ):
        stage.send("followup", "go")
        await agent.wait_idle()


_LOOKS = [call("look", ticks=3), call("look", ticks=1), call("look", ticks=1)]
BATCH: Answers = [answer(say("Looking."), *_LOOKS, call("alone"), call("look", ticks=1)), "Done."]


async def touching(stage: Stage) -> None:
    """Readers and writers of two files, three at once; no two bodies that conflict overlap."""
    inside: dict[str, list[str]] = {}

    @tool(parallel=lambda arguments: arguments["path"] == "both")
    async def stat(path: str) -> str:
        """Look at the folder."""
        await trio.sleep(0.1)
        return path

    @tool(touches=lambda arguments: [Read(str(arguments["path"]))])
    async def read(path: str) -> str:
        """Read a file."""
        return await use("read", path)

    @tool(touches=lambda arguments: {Write(str(arguments["path"]))})
    async def write(path: str) -> str:
        """Write a file, and clean up under a shield."""
        return await use("write", path)

    async def use(how: str, path: str) -> str:
        others = inside.setdefault(path, [])
        if others and (how == "write" or "write" in others):
            stage.problems.append(f"a {how} of {path} during {others}")
        others.append(how)
        try:
            await trio.sleep(0.1)
        finally:
            if how == "write":
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.1)
            others.remove(how)
        return path

    tools: list[Tool] = [stat, read, write]
    async with (
        stage.open_engine(tools, max_parallel_tool_calls=3) as engine,
        stage.open_agent(engine) as agent,
    ):
        stage.send("followup", "go")
        await agent.wait_idle()


_PLAN = ["read a", "read a", "write a", "write b", "read a", "stat both", "read b", "stat c"]
TOUCHING: Answers = [
    answer(*(call(name, path=path) for name, path in map(str.split, _PLAN))),
    "Done.",
]


async def spilling(stage: Stage) -> None:
    """Two long results at once, each kept by a spill that takes its time and cleans up."""

    @tool(parallel=True, max_result_bytes=200)
    async def dump() -> str:
        """Dump."""
        await trio.sleep(0.1)
        return "long " * 100

    async def spill(result: LongResult) -> str:
        if result.text != "long " * 100:
            stage.problems.append(f"spilled {result.text!r}")
        try:
            await trio.sleep(0.1)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.1)
        return f"kept/{result.call_id}"

    async with (
        stage.open_engine([dump], spill=spill) as engine,
        stage.open_agent(engine) as agent,
    ):
        stage.send("followup", "go")
        await agent.wait_idle()


SPILLING: Answers = [answer(call("dump"), call("dump")), answer(Delay(0.1), "Done.")]


async def broken(stage: Stage) -> None:
    """A body that raises, one that is too slow, wrong arguments, and a tool that is not there."""

    @tool(parallel=True)
    async def fails() -> str:
        """Fails."""
        await trio.sleep(0.05)
        raise ValueError("as designed")

    @tool(parallel=True, timeout=0.15)
    async def late() -> str:
        """Late, and slow to give up."""
        try:
            await trio.sleep(1)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.1)
        return "late"

    @tool(parallel=True)
    async def counts(number: int) -> str:
        """Count."""
        return str(number)

    async with (
        stage.open_engine([fails, late, counts]) as engine,
        stage.open_agent(engine) as agent,
    ):
        stage.send("followup", "go")
        await agent.wait_idle()


BROKEN: Answers = [
    answer(call("fails"), call("late"), call("counts", number="many"), call("absent")),
    "Sorry.",
]


async def swallowing(stage: Stage) -> None:
    """A body that swallows its cancel and returns, and one that raises in its place."""

    @tool(parallel=True)
    async def swallow() -> str:
        """Swallow."""
        with trio.CancelScope() as mine:
            try:
                await trio.sleep(0.2)
            except trio.Cancelled:
                mine.cancel()
                return "swallowed"
        return "slept"

    @tool(parallel=True)
    async def replaces() -> str:
        """Raise something else."""
        try:
            await trio.sleep(0.1)
        except trio.Cancelled:
            raise OSError("lost the connection") from None
        return "slept"

    async with (
        stage.open_engine([swallow, replaces]) as engine,
        stage.open_agent(engine) as agent,
    ):
        stage.send("followup", "go")
        await agent.wait_idle()


SWALLOWING: Answers = [answer(call("swallow"), call("replaces")), answer(Delay(0.1), "Done.")]


async def shielding(stage: Stage) -> None:
    """A body that finishes under a shield beside one that gives way; two more behind them."""

    @tool(parallel=True)
    async def stubborn() -> str:
        """Stubborn."""
        with trio.CancelScope(shield=True):
            await trio.sleep(0.3)
        return "all the same"

    @tool(parallel=True)
    async def meek() -> str:
        """Meek."""
        await trio.sleep(0.2)
        return "done"

    async with (
        stage.open_engine([stubborn, meek], max_parallel_tool_calls=2) as engine,
        stage.open_agent(engine) as agent,
    ):
        stage.send("followup", "go")
        await agent.wait_idle()


SHIELDING: Answers = [answer(call("stubborn"), call("meek"), call("meek"), call("meek")), "Done."]


async def context(stage: Stage) -> None:
    """Tools that add context to the next step, input that waits, and one that ends the turn."""

    @tool(parallel=True)
    async def note(run: ToolRun) -> str:
        """Note."""
        run.defer_context("noted")
        await trio.sleep(0.1)
        run.defer_context("noted again")
        return "ok"

    @tool
    async def finish(run: ToolRun) -> str:
        """Finish."""
        stage.send("inject", "for the next turn")
        await trio.sleep(0.1)
        run.conclude_turn()
        return "finished"

    async with stage.open_engine([note, finish]) as engine, stage.open_agent(engine) as agent:
        agent.scope.add_context("place", "here")
        stage.send("inject", "by the way")
        stage.send("followup", "go")
        await agent.wait_idle()
        stage.send("followup", "and now?")
        await agent.wait_idle()


CONTEXT: Answers = [answer(call("note"), call("note")), answer(call("finish")), "Well."]


async def threaded(stage: Stage) -> None:
    """Plain functions, in threads: two tools behind an awaited one, and the spill of its result."""

    @tool(parallel=True)
    def count(number: int) -> str:
        """Count."""
        return str(number + 1)

    @tool(max_result_bytes=200)
    async def alone() -> str:
        """Alone."""
        await trio.sleep(0.1)
        return "long " * 100

    def spill(result: LongResult) -> str:
        return f"kept/{result.call_id}"

    async with (
        stage.open_engine([count, alone], spill=spill) as engine,
        stage.open_agent(engine) as agent,
    ):
        stage.send("followup", "go")
        await agent.wait_idle()


THREADED: Answers = [answer(call("alone"), call("count", number=1), call("count", number=2)), "Ok."]


async def reviewed(stage: Stage) -> None:
    """Listeners at every stage of a call, deaf, refusing, asking; three slots, a barrier."""

    @tool(parallel=True)
    async def plain(run: ToolRun) -> str:
        """Plain."""
        run.defer_context("from plain")
        await trio.sleep(0.2)
        return "plain"

    @tool(parallel=True)
    async def deaf() -> str:
        """Deaf."""
        await trio.sleep(0.1)
        return "deaf"

    @tool(parallel=True)
    async def refused() -> str:
        """Refused."""
        raise AssertionError("policy let it through")

    @tool
    async def alone() -> str:
        """Alone."""
        await trio.sleep(0.1)
        return "alone"

    async def before(
        hook: ToolCallHook, proceed: Callable[[], Awaitable[Allow | Deny | Ask]]
    ) -> Allow | Deny | Ask:
        if hook.call.name != "plain":
            with trio.CancelScope(shield=hook.call.name == "deaf"):
                await trio.sleep(0.05)
        match hook.call.name:
            case "refused":
                return Deny("no")
            case "alone":
                return Ask("alone?")
            case _:
                return await proceed()

    async def approver(hook: ToolCallHook, reason: str) -> bool:
        await trio.sleep(0.1)
        return True

    async def around(
        hook: ToolCallHook, proceed: Callable[[], Awaitable[ToolOutcome]]
    ) -> ToolOutcome:
        await trio.sleep(0.01)
        outcome = await proceed()
        await trio.sleep(0.01)
        return outcome

    async def through(
        hook: ToolCallHook, proceed: Callable[[], Awaitable[ToolOutcome]]
    ) -> ToolOutcome:
        return await proceed()

    async def after(
        hook: ToolResultHook, proceed: Callable[[], Awaitable[ToolOutcome]]
    ) -> ToolOutcome:
        # What returned must be kept (invariant 5), so this review does not give way.
        with trio.CancelScope(shield=True):
            await trio.sleep(0.03)
        return await proceed()

    tools: list[Tool] = [plain, deaf, refused, alone]
    async with stage.open_engine(tools, max_parallel_tool_calls=3, approver=approver) as engine:
        hooks = engine.scope.hooks
        hooks.tool_pre_execute.listen(before)
        hooks.tool_execute.listen(around)
        hooks.tool_execute.listen(through)
        hooks.tool_post_execute.listen(after)
        async with stage.open_agent(engine) as agent:
            stage.send("followup", "go")
            await agent.wait_idle()


REVIEWED: Answers = [answer(*map(call, ["plain", "deaf", "refused", "alone", "plain"])), "Done."]


TOOLS: Mapping[str, tuple[Scenario, MakeAdapter | Answers]] = {
    "batch": (batch, BATCH),
    "touching": (touching, TOUCHING),
    "spilling": (spilling, SPILLING),
    "broken": (broken, BROKEN),
    "swallowing": (swallowing, SWALLOWING),
    "shielding": (shielding, SHIELDING),
    "context": (context, CONTEXT),
    "threaded": (threaded, THREADED),
    "reviewed": (reviewed, REVIEWED),
}
