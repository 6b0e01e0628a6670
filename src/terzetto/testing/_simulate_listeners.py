"""The simulated listeners: some look on, some are slow, deaf, wrong, or stop the program."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import trio
from attrs import define, evolve, field

from ..agent import Agent, AgentScope, Assembly, Enter, Reject, RequestFailed, Retry
from ..tools import Ask, Deny, ToolOutcome, ToolResultHook
from ..vocabulary import HookCause, SessionId, TextBlock
from ._simulate_plan import NOTICES, SERIALS, Listener
from ._simulate_world import PLANNED, Planned, World

Proceed: TypeAlias = Callable[..., Awaitable[Any]]
A_WHILE = 0.1
"""Seconds that a slow listener takes."""


def register(world: World, scope: AgentScope, listeners: tuple[Listener, ...], who: str) -> None:
    """Those of *listeners* that listen to *who*: an agent, or the engine for ``""``."""
    for listener in listeners:
        if listener.who != who:
            continue
        world.points.add(listener.point)
        acting = _Acting(world, listener)
        point: Any = getattr(scope.hooks, listener.point)
        if listener.point in NOTICES:
            point.listen(acting.notice)
        elif listener.point in SERIALS:
            point.listen(acting.serial)
        else:
            point.listen(acting.waterfall)


@define(eq=False)
class _Acting:
    """One listener at work."""

    world: World
    plan: Listener
    _heard: int = field(default=0, init=False)

    def _now(self, value: object) -> str | None:
        """What to do at this call, if anything."""
        self._heard += 1
        if not self.plan.nth <= self._heard < self.plan.nth + self.plan.times:
            return None
        if not self.world.dead:
            self.world.note(_name(value), f"a listener of {self.plan.point}: {self.plan.does}")
        return self.plan.does

    def notice(self, value: Any) -> None:
        self._at_once(value, self._now(value))

    async def serial(self, value: Any) -> None:
        does = self._now(value)
        await self._before(does)
        self._at_once(value, does)
        await self._after(does)

    async def waterfall(self, value: Any, proceed: Proceed) -> Any:
        does = self._now(value)
        await self._before(does)
        self._at_once(value, does)
        if does == "wrong":
            return None
        if does == "decide":
            return await _decided(self.plan, value, proceed)
        decision = await proceed()
        await self._after(does)
        return decision

    async def _before(self, does: str | None) -> None:
        match does:
            case "look":
                await trio.lowlevel.checkpoint()
            case "wait":
                await trio.sleep(A_WHILE)
            case "shield":
                with trio.CancelScope(shield=True):
                    await trio.sleep(A_WHILE)
            case "swallow":
                with trio.CancelScope() as mine:
                    try:
                        await trio.sleep(A_WHILE)
                    except trio.Cancelled:
                        mine.cancel()
            case "hang":
                await trio.sleep_forever()
            case _:
                pass

    async def _after(self, does: str | None) -> None:
        if does in ("after", "raise after"):
            await trio.sleep(A_WHILE)
        if does == "raise after":
            raise Planned

    def _at_once(self, value: object, does: str | None) -> None:
        world = self.world
        if does == "raise":
            raise Planned
        if does == "ctrl-c":
            world.ended_by, world.interrupted = world.ended_by or "ctrl-c", True
            raise KeyboardInterrupt
        agent = world.agent(_name(value)) if does in ("cancel", "steer") else None
        if agent is None:
            return
        if does == "cancel":
            world.cancelling(agent)
            agent.cancel(HookCause(PLANNED), keep_inbox=bool(self.plan.nth % 2))
        else:
            world.say(agent, "steer")


def _name(value: Any) -> SessionId:
    """Of the agent that *value* is about."""
    subject: Agent = getattr(value, "agent", value)
    return subject.id


async def _decided(plan: Listener, value: Any, proceed: Proceed) -> Any:
    """What a listener of this point is for."""
    odd = plan.nth % 2 == 1
    match plan.point:
        case "pre_step":
            return Reject() if odd else Enter(())
        case "assemble":
            assembly: Assembly = await proceed()
            return evolve(assembly, system=f"{assembly.system} Be brief.")
        case "request":
            return evolve(await proceed(), max_tokens=77)
        case "request_error":
            failed: RequestFailed = value
            return Retry() if failed.attempt < 3 else await proceed()
        case "tool_pre_execute":
            return Deny(PLANNED) if odd else Ask(PLANNED)
        case "tool_execute":
            return ToolOutcome((TextBlock("done by somebody else"),), False)
        case "tool_post_execute":
            outcome: ToolResultHook = value
            return outcome.replaced("redacted")
        case _:
            return await proceed()
