"""One life of a simulation: an engine, its agents, and everybody who does something to them."""

from __future__ import annotations

import errno
import math
import signal
import threading
from collections.abc import Callable
from typing import Any

import trio
from attrs import define, field

from ..agent import Agent, AgentHandle, NoAnswer, TurnFailed
from ..engine import Engine, open_engine
from ..extras.compaction import Compaction
from ..tools import ToolCallHook
from ..vocabulary import (
    ActivityCancelled,
    AgentBusy,
    AgentDisposed,
    AgentExists,
    CancelCause,
    CodedError,
    CorruptLog,
    ForkError,
    HookCause,
    MessageDiscarded,
    ParentCause,
    ProviderError,
    SessionExists,
    SessionLocked,
    SessionNotFound,
    StoreError,
    UsageError,
    UserCause,
    UserMessage,
    chain_text,
)
from ._faulty_store import FaultyStore
from ._scenarios_turns import nursery_of_the_host
from ._simulate_listeners import register
from ._simulate_plan import END_ACTS, TASK_ACTS, Act, Life, Trouble
from ._simulate_tools import make_tools
from ._simulate_world import PLANNED, World

PATIENCE = 60.0
"""Virtual seconds that agents get to finish what nobody cancels."""
GIVE_WAY = 5.0
"""Virtual seconds after which whoever was cancelled has given way."""
ROUTE: dict[str, Any] = {"provider": "scripted", "model": "m"}
REFUSED = (
    AgentDisposed,
    MessageDiscarded,
    ActivityCancelled,
    AgentBusy,
    AgentExists,
    SessionExists,
    SessionLocked,
    SessionNotFound,
    ForkError,
)
"""What whoever does something may be told instead."""


@define(eq=False)
class Living:
    """Plays one `Life`. *scope* is the host's."""

    world: World
    life: Life
    store: FaultyStore = field(init=False)
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    left_at: float | None = None
    _handles: dict[str, AgentHandle] = field(factory=dict)
    _compaction: Compaction = field(factory=lambda: Compaction(window=200, keep_rounds=1))
    _nursery: trio.Nursery | None = None

    def __attrs_post_init__(self) -> None:
        self.store = FaultyStore(self.world.disk)
        for trouble in self.life.troubles:
            _cause(self.store, trouble)

    async def run(self) -> None:
        """The whole life. Raises what an application would see."""
        world = self.world
        before = trio.lowlevel.current_statistics().tasks_living
        try:
            with self.scope:
                async with nursery_of_the_host() as self._nursery:
                    await self._with_engine()
        finally:
            if self.left_at is not None and not world.dead:
                took = trio.current_time() - self.left_at
                if took > self._most():
                    world.problem(f"7. leaving took {took:.1f} virtual seconds")
            left = trio.lowlevel.current_statistics().tasks_living - before
            if left:
                world.problem(f"7. {left} tasks are alive after the engine was left")

    async def _with_engine(self) -> None:
        world, plan = self.world, self.world.plan
        async with open_engine(
            adapters=[world.stage.adapter],
            tools=make_tools(world),
            store=self.store,
            approver=_approve,
            max_parallel_tool_calls=plan.cap,
            durability=plan.level,
            write_window=plan.window,
            now_ms=world.now_ms,
            new_id=world.new_id,
        ) as engine:
            world.engine = engine
            world.power_cut = lambda: self._end(Act(do="power cut"))
            world.left, world.unsaved = engine.statistics, engine.unsaved
            engine.scope.hooks.session_created.listen(world.opened_session)
            register(world, engine.scope, self.life.listeners, "")
            try:
                await self._act_all(engine)
                self.store.mend()
                if self.life.patient:
                    await self._finish(engine)
            finally:
                self.store.mend()
                self.left_at = trio.current_time()

    def _most(self) -> float:
        """Virtual seconds that leaving may take; twice the engine's patience with a bad store."""
        return GIVE_WAY + (10 * len(self.life.troubles)) + 20 * self.world.plan.latency

    # --- the host -------------------------------------------------------------------------

    async def _act_all(self, engine: Engine) -> None:
        for act in sorted(self.life.acts, key=lambda act: act.at):
            await trio.sleep_until(act.at)
            for _ in range(act.steps):
                await trio.lowlevel.checkpoint()
            self._act(engine, act)
            if act.do in END_ACTS:
                await trio.sleep_forever()

    @trio.lowlevel.enable_ki_protection
    def _act(self, engine: Engine, act: Act) -> None:
        world = self.world
        if act.do in END_ACTS:
            self._end(act)
        elif act.do in TASK_ACTS:
            assert self._nursery is not None
            self._nursery.start_soon(self._task, engine, act, name=f"{act.do} {act.who}")
        elif act.do == "cap":
            engine.settings.max_parallel_tool_calls = max(1, round(act.value))
        elif (agent := engine.agents.get(act.who)) is not None:
            world.note(act.who, f"<- {act.do}")
            try:
                self._at_once(agent, act)
            except UsageError as error:
                world.note(act.who, f"refused: {error}")

    def _end(self, act: Act) -> None:
        world = self.world
        world.ended_by = act.do
        world.note("host", act.do)
        self.left_at = trio.current_time()
        match act.do:
            case "host cancel":
                self.scope.cancel(reason="simulated")
            case "host deadline":
                self.scope.deadline = -math.inf
            case "ctrl-c" if threading.current_thread() is not threading.main_thread():
                world.ended_by = "host cancel"  # a signal would strike somebody else
                self.scope.cancel(reason="simulated")
            case "ctrl-c":
                world.interrupted = True
                signal.raise_signal(signal.SIGINT)
            case _:
                world.cut_power(min(max(act.value, 0.0), 1.0))
                self.store.mend()
                self.scope.cancel(reason="the power is cut")

    def _at_once(self, agent: Agent, act: Act) -> None:
        world, inbox = self.world, agent.inbox
        pending = [*inbox.next_step, *inbox.next_turn]
        chosen = pending[round(act.value) % len(pending)].id if pending else None
        match act.do:
            case "cancel" | "cancel, keep" | "cancel by parent" | "cancel by hook":
                world.cancelling(agent)
                causes: dict[str, CancelCause] = {
                    "cancel by parent": ParentCause(),
                    "cancel by hook": HookCause(PLANNED),
                }
                cause = causes.get(act.do, UserCause())
                agent.cancel(cause, keep_inbox=act.do == "cancel, keep")
            case "append" | "prepend":
                message = UserMessage(act.do, id=world.new_id())
                target: Any = ("next-turn", "next-step")[round(act.value) % 2]
                getattr(inbox, act.do)(target, message)
                world.remember(agent.id, message.id)
            case "replace" if chosen is not None:
                message = UserMessage("instead", id=world.new_id())
                if inbox.replace(chosen, message):
                    world.remember(agent.id, message.id)
            case "remove" if chosen is not None:
                inbox.remove(chosen)
            case "clear":
                inbox.clear()
            case "wake":
                agent.wake()
            case "select":
                agent.model.select("scripted", f"m{round(act.value)}")
            case "begin disposal":
                if (handle := self._handles.get(act.who)) is not None:
                    assert self._nursery is not None
                    self._nursery.start_soon(handle.dispose)
            case "followup" | "steer" | "inject" | "interrupt":
                world.say(agent, act.do)
            case _:
                pass

    # --- tasks of others ------------------------------------------------------------------

    async def _task(self, engine: Engine, act: Act) -> None:
        world, told = self.world, "done"
        world.note(act.who, f"<- {act.do}")
        try:
            told = await self._wait(engine, act) or told
        except REFUSED as error:
            told = f"refused: {type(error).__name__}"
        except Exception as error:
            told = f"{type(error).__name__}: {chain_text(error)}"
            if not (self._was_planned(error) or world.dead):
                world.problem(f"{act.do} {act.who} raised {told}")
        finally:
            if not world.dead:
                world.note(act.who, f"{act.do} -> {told}")

    def _was_planned(self, error: BaseException) -> bool:
        if isinstance(error, CorruptLog):  # a fork that a crash cut short
            return "creation was not finished" in str(error)
        if isinstance(error, StoreError):
            return self.world.troubled
        if isinstance(error, UsageError):
            # Left, or given up, meanwhile.
            return "the engine" in str(error) or "write handle" in str(error)
        return PLANNED in chain_text(error) or isinstance(error, (CodedError, ProviderError))

    async def _wait(self, engine: Engine, act: Act) -> str | None:
        world, who = self.world, act.who
        if act.do == "open":
            await self._open(engine, who)
            return None
        agent = engine.agents.get(who)
        if agent is None:
            return "nobody is there"
        match act.do:
            case "child" | "fork":
                name = f"{who}.{act.do[0]}{sum(s.id.startswith(who) for s in world.every)}"
                await self._open(engine, name, agent, forked=act.do == "fork")
            case "dispose":
                if (handle := self._handles.get(who)) is not None:
                    await handle.dispose()
            case "ask" | "ask int":
                return await self._ask(agent, act.value or math.inf, act.do == "ask int")
            case "maintain":
                await agent.run_maintenance(trio.sleep, act.value or 0.1)
            case "compact":
                await self._compaction.compact(agent)
            case "complete":
                await agent.complete("And on the side?")
            case _:
                await agent.flush()
        return None

    async def _ask(self, agent: Agent, patience: float, typed: bool) -> str:
        world, message = self.world, UserMessage("ask", id=self.world.new_id())
        with trio.move_on_after(patience):
            try:
                if typed:  # the simulated model never gives one, so it is asked again
                    return f"answered: {await agent.ask(message, returns=int)}"
                turn = await agent.ask(message)
            except (TurnFailed, NoAnswer, MessageDiscarded):
                world.remember(agent.id, message.id)
                raise
            world.remember(agent.id, message.id)
            world.tell(agent, turn)
            return f"turn {turn.number}: {turn.reason}"
        return "gave up"

    async def _open(
        self, engine: Engine, name: str, source: Agent | None = None, *, forked: bool = False
    ) -> None:
        world = self.world
        world.opens[name] += 1
        setup = self._composing(name)
        if forked:
            assert source is not None
            handle = await engine.agents.fork(source, session_id=name, setup=setup)
        elif name in world.disk.lengths:
            handle = await engine.agents.resume(name, setup=setup, parent=source, **ROUTE)
        else:
            handle = await engine.agents.create(
                session_id=name, setup=setup, parent=source, system="Be careful.", **ROUTE
            )
        self._handles[name] = handle
        world.handed[handle.agent.id] = handle.agent.session
        if source is not None:
            world.say(handle.agent, "followup")

    def _composing(self, name: str) -> Callable[[Agent], None]:
        def setup(agent: Agent) -> None:
            agent.scope.add_context("place", f"at home with {name}")
            register(self.world, agent.scope, self.life.listeners, name)

        return setup

    # --- the end --------------------------------------------------------------------------

    async def _finish(self, engine: Engine) -> None:
        """Let the agents finish; who does not is cancelled, and then has to give way."""
        with trio.move_on_after(PATIENCE) as patience:
            await engine.wait_idle()
        if not patience.cancelled_caught:
            return
        self.world.note("host", "lost patience")
        for agent in engine.agents.list():
            self.world.cancelling(agent)
            agent.cancel()
        with trio.move_on_after(self._most()) as patience:
            await engine.wait_idle()
        if patience.cancelled_caught:
            self.world.problem("7. who was cancelled does not give way")


async def _approve(hook: ToolCallHook, reason: str) -> bool:
    await trio.sleep(0.05)
    return len(hook.call.id) % 2 == 0


def _cause(store: FaultyStore, trouble: Trouble) -> None:
    operation: Any = trouble.operation
    effect: Any = trouble.effect
    if effect == "part" and operation not in ("flush", "close"):
        effect = "none"
    options: dict[str, Any] = {"nth": trouble.nth, "times": trouble.times}
    match trouble.does:
        case "fail":
            store.fail(operation, errno.ENOSPC, effect=effect, **options)
        case "hang":
            store.hang(operation, effect=effect, **options)
        case _:
            store.slow(operation, trouble.seconds, **options)
