"""Lifetime: one agent's task, its nursery, and its teardown.

Nesting is the teardown order (C27): the driver stops, the nursery with children and
background jobs ends, the scope unwinds, the write path closes, the agent is detached,
then the session. Everything after the driver's last append runs under one bounded
shield.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio
from attrs import define, field

from ..session import Closing, closers
from ..vocabulary import (
    AgentDisposed,
    CancelCause,
    DisposedCause,
    Failed,
    Failure,
    InboxSpliced,
    SessionId,
    chain_text,
    single,
    texts,
)
from ._agent import Agent
from ._bound import Bound
from ._driver import Driven, Driver, Loop, LoopDriver
from ._initiator import end_initiating, initiate
from ._registry import AgentRegistry
from ._saving import Saving
from ._scope import AgentScope

logger = logging.getLogger("terzetto")


@define(eq=False)
class Lifetime:
    """Runs and tears down one agent. *done*: nothing of it is left."""

    agent: Agent
    driven: Driven
    driver: Driver
    saving: Saving
    registry: AgentRegistry
    engine_scope: AgentScope
    bound: Bound
    report_unsaved: Callable[[SessionId, str], None]
    done: bool = False
    on_crash: Callable[[], None] | None = None
    session_announced: bool = False
    agent_announced: bool = False
    _stops: tuple[BaseException, ...] = ()

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """The agent's task, in its owner's nursery. It may be told to end before its first step."""
        self.agent._task = trio.lowlevel.current_task()
        token = initiate(self.agent)
        try:
            await self._drive()
        except BaseExceptionGroup as group:
            self._sort_out(group)
        except Exception as error:
            self._crash(error)
        finally:
            end_initiating(token)
            try:
                await self.tear_down()
            finally:
                if self.agent.parent is not None:
                    self.agent.parent._state.child_ended()

    async def _drive(self) -> None:
        """Rest and be awake, until it is over. A driver of somebody else's is always awake."""
        state, driver, over = self.agent._state, self.driver, False
        loop = driver.loop(self.driven) if isinstance(driver, LoopDriver) else None
        while not over:
            if loop is not None:
                try:
                    await state.wait(state.is_wanted)
                    over = state.is_over()
                except BaseException:
                    over = True
                    raise
                finally:
                    if over:
                        self.bound.extend()
            if not over:
                over = await self._awake(loop)

    async def _awake(self, loop: Loop | None) -> bool:
        """The nursery of the agent, which is there while a turn runs, or a child lives or is
        being made: thousands of agents may be at rest. Returns whether it is over."""
        agent, over = self.agent, True
        async with trio.open_nursery() as nursery:
            agent._nursery = nursery
            agent._state.changed()
            try:
                if loop is None:
                    await self.driver.run(self.driven)
                else:
                    over = await self._turns(loop)
            finally:
                agent._nursery = None
                # A child that failed as it ended takes this agent with it.
                over = over or nursery.cancel_scope.cancel_called
                if over:
                    self.bound.extend()
                    agent._state.leave()
            if over:
                nursery.cancel_scope.cancel(reason="the agent was disposed of")
        return over

    async def _turns(self, loop: Loop) -> bool:
        """Run turns for as long as there are any, or children; returns whether it is over."""
        state = self.agent._state
        while True:
            if state.is_over():
                return True
            if state.is_due():
                await loop.drain()
            elif state.has_family:
                await state.wait(lambda: state.is_due() or not state.has_family)
            else:
                return False

    def _sort_out(self, group: BaseExceptionGroup) -> None:
        """A defect stays here, as a crash; the host's own goes on, alone if it is alone."""
        defects, others = group.split(Exception)
        if defects is not None:
            self._crash(single(defects))
        if others is not None:
            raise single(others) from None

    def _crash(self, error: BaseException) -> None:
        self.agent._crash = error
        logger.error(
            "the driver of %s failed: %s", self.agent.id, chain_text(error), exc_info=error
        )
        if self.on_crash is not None:
            self.on_crash()

    def begin_disposal(self, cause: CancelCause, *, keep_inbox: bool) -> None:
        self.agent._state.begin_closing(cause, keep_inbox=keep_inbox)

    @trio.lowlevel.enable_ki_protection
    async def tear_down(self) -> None:
        """Unwind what creation built, in order: once, by its own task, or by its creator if it
        was never handed over.

        What a listener stops the program with, and Ctrl-C, is raised when all is done.
        """
        agent, state = self.agent, self.agent._state
        state.begin_closing(DisposedCause(), keep_inbox=True)
        # A maintenance job belongs to somebody's task; it was asked to stop.
        await self._patiently(
            lambda: state.wait(
                lambda: state.activity is None or state.activity.kind != "maintenance"
            )
        )
        for act in (self._close_turn, state.end):
            self._kept(act)
        agent.scope.close()
        state.sealed = True
        await self._patiently(self._close_path)
        state.gone = True
        self.registry.detach(agent)
        hooks = self.engine_scope.hooks
        if self.agent_announced:
            self._kept(lambda: hooks.agent_disposed.notify(agent))
        agent.session.detach()
        if self.session_announced:
            self._kept(lambda: hooks.session_disposed.notify(agent.session))
        self.registry.release(agent.id)
        self.done = True
        state.changed()
        state.waiters.abandon(lambda: self._end_of(agent))
        if self._stops:
            raise self._stops[0]

    async def wait_end(self) -> None:
        """Return once nothing of the agent is left."""
        await self.agent._state.wait_moment(lambda: self.done)

    async def _patiently(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Await *wait* under a shield; a Ctrl-C that comes meanwhile is kept."""
        while True:
            try:
                with trio.CancelScope(shield=True):
                    await wait()
            except KeyboardInterrupt as error:
                self._stops += (error,)
            else:
                return

    def _kept(self, act: Callable[[], None]) -> None:
        """Call *act*; what stops the program in it is kept."""
        try:
            act()
        except BaseException as error:
            self._stops += (error,)

    def _close_turn(self) -> None:
        """Balance the log of a driver that broke inside a turn."""
        session, crash = self.agent.session, self.agent._crash
        message = chain_text(crash) if crash is not None else "the driver left its turn open"
        ending = Failed(Failure(message=message, code=texts.DEFECT))
        closing = Closing(cut="crash", ending=ending)
        for draft in closers(session.place, session.pending, session.folds, closing):
            if isinstance(draft.data, InboxSpliced):
                self.agent._state.splice(draft.data)
            else:
                session.append_draft(draft)

    async def _close_path(self) -> None:
        """Close the write path within the bound; say what did not reach the store."""
        session = self.agent.session
        problem: str | None = None
        # Outside of the scope, which takes its own `Cancelled` out of a store's group.
        bound = trio.CancelScope(shield=True, deadline=self.bound.deadline)
        try:
            with bound:
                await self.saving.close()
        except Exception as error:  # a store: whatever it fails with, teardown goes on
            problem = chain_text(error)
        if bound.cancelled_caught:
            problem = f"not durable within {self.bound.seconds} s"
        if problem is not None and session.durable_seq < session.place.next_seq - 1:
            self.report_unsaved(session.id, problem)

    def _end_of(self, agent: Agent) -> BaseException:
        try:
            agent._check_crash()
        except Exception as crash:
            return crash
        return AgentDisposed(f"agent {agent.id!r} was disposed of before a turn ended")


@define(eq=False)
class AgentHandle:
    """The power to tear an agent down. Only its holder has it (C35)."""

    agent: Agent
    _life: Lifetime = field(repr=False)

    @trio.lowlevel.enable_ki_protection
    def begin_disposal(self, *, keep_inbox: bool = False) -> None:
        """Cancel what runs and stop the driver; `dispose` waits for the end."""
        self.agent._check_thread()
        if not self._life.done:
            self._life.begin_disposal(DisposedCause(), keep_inbox=keep_inbox)

    async def dispose(self) -> None:
        """Tear the agent down; return when nothing of it is left.

        A running turn ends ``disposed``, started tools are waited for, pending input is
        discarded on the record. Every call awaits the one teardown. Raises
        `WouldDeadlock` from inside the agent's own work. Cancellation: the teardown
        goes on without the caller.
        """
        if self._life.done:
            await trio.lowlevel.checkpoint()
            return
        self.agent._check_outside("dispose")
        self.begin_disposal()
        await self._life.wait_end()
