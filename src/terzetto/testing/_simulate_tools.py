"""The simulated tools: bodies that do what their call says, however bad that is.

What a body does is in the arguments of its call, so the log of a simulation tells all of it.
Threads are modelled: a body that nobody can cancel, and that ends in its own time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import trio

from ..agent import Agent, TurnFailed
from ..tools import Read, Tool, ToolRun, Write, tool
from ..vocabulary import (
    AgentDisposed,
    AgentExists,
    HookCause,
    MessageDiscarded,
    SessionExists,
    StoreError,
    TerzettoError,
    UsageError,
    UserCause,
    WouldDeadlock,
)
from ._simulate_plan import seconds
from ._simulate_world import PLANNED, World

LONGEST = 300
"""Bytes of a result that are kept."""
GONE = (AgentDisposed, MessageDiscarded, TurnFailed, AgentExists, SessionExists)


class _Returned(Exception):
    """The body returns now, although it was cancelled."""


def make_tools(world: World) -> list[Tool]:
    """One of each kind, and those that the caller brought; all of them watched."""

    @tool(parallel=True, max_result_bytes=LONGEST)
    async def note(effect: str, does: list[str], run: ToolRun) -> str:
        """Do something beside others."""
        return await act_out(world, run, effect, does)

    @tool(max_result_bytes=LONGEST)
    async def alone(effect: str, does: list[str], run: ToolRun) -> str:
        """Do something beside no other."""
        return await act_out(world, run, effect, does)

    @tool(parallel=True, read_only=True, max_result_bytes=LONGEST)
    async def look(effect: str, does: list[str], run: ToolRun) -> str:
        """Look at something. It has no effect."""
        return await act_out(world, run, effect, does)

    @tool(touches=lambda args: {Write(args["place"]), Read("all")}, max_result_bytes=LONGEST)
    async def change(effect: str, does: list[str], place: str, run: ToolRun) -> str:
        """Change a place."""
        return await act_out(world, run, effect, does)

    @tool(parallel=True, timeout=0.15, max_result_bytes=LONGEST)
    async def brief(effect: str, does: list[str], run: ToolRun) -> str:
        """Do something within 0.15 seconds."""
        return await act_out(world, run, effect, does)

    @tool(parallel=True, max_result_bytes=LONGEST)
    async def thread(effect: str, does: list[str], run: ToolRun) -> str:
        """Do something that nobody can stop, as a thread does."""
        world.began(run, effect)
        with trio.CancelScope(shield=True):
            await trio.sleep(0.05 * len(does))
        return effect

    own: list[Tool] = [note, alone, look, change, brief, thread]
    return [world.stage.watch(each) for each in (*own, *world.given)]


async def act_out(world: World, run: ToolRun, effect: str, does: Sequence[str]) -> str:
    """A body: the effect, then what it *does*, then its name as the result."""
    world.began(run, effect)
    try:
        for each in does:
            kind, _, value = each.partition(":")
            if kind == "long":
                return effect + " and on" * LONGEST
            await _do(world, run, effect, kind, value)
    except _Returned:
        pass
    return effect


async def _do(world: World, run: ToolRun, effect: str, kind: str, value: str) -> None:
    match kind:
        case "sleep":
            await trio.sleep(seconds(value))
        case "hang":
            await trio.sleep_forever()
        case "raise":
            raise ValueError(PLANNED)
        case "exit":
            raise SystemExit(PLANNED)
        case "ctrl-c":
            world.ended_by, world.interrupted = world.ended_by or "ctrl-c", True
            raise KeyboardInterrupt
        case "power cut":
            if world.power_cut is not None and not world.dead:
                world.power_cut()
            await trio.sleep_forever()
        case "shield":
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds(value))
        case "swallow":
            with trio.CancelScope() as mine:
                try:
                    await trio.sleep(seconds(value))
                except trio.Cancelled:
                    mine.cancel()
                    raise _Returned from None
        case "replace":
            try:
                await trio.sleep(seconds(value))
            except trio.Cancelled:
                raise OSError(PLANNED) from None
        case "group":
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(_fail, seconds(value))
        case "defer":
            run.defer_context(f"a note on {effect}")
        case "conclude":
            run.conclude_turn()
        case _:
            agent = world.agent(run.agent.id)
            if agent is not None:
                await _with_agent(world, agent, effect, kind)


async def _fail(after: float) -> None:
    await trio.sleep(after)
    raise ValueError(PLANNED)


async def _with_agent(world: World, agent: Agent, effect: str, kind: str) -> None:
    match kind:
        case "cancel":
            world.cancelling(agent)
            agent.cancel(UserCause())
        case "cancel by hook":
            world.cancelling(agent)
            agent.cancel(HookCause(PLANNED), keep_inbox=True)
        case "complete":
            with suppress(TerzettoError):
                await agent.complete("What else?")
        case "ask":
            try:
                await agent.ask("And me?")
            except WouldDeadlock:
                pass
            except UsageError as error:
                if not agent.disposed:
                    world.problem(f"asking oneself raised {type(error).__name__}")
            else:
                world.problem("a tool asked its own agent and was answered")
        case "child":
            await _child(world, agent, f"{agent.id}.{effect}")
        case _:
            world.say(agent, kind)


async def _child(world: World, agent: Agent, name: str) -> None:
    assert world.engine is not None
    route = {"provider": "scripted", "model": "m"}
    try:
        async with world.engine.open_agent(parent=agent, session_id=name, **route) as child:  # type: ignore[arg-type]
            world.tell(child, await child.ask("Do it."))
    except GONE:
        pass
    except StoreError as error:
        if not world.troubled:
            world.problem(f"the child {name} met {error}, and the store has no trouble")
