"""The engine: what an application opens inside its own Trio program.

No threads beyond Trio's, no signal handlers, no global state; several engines may
live side by side. Leaving the block tears everything down before it returns, and an
exception raised in the block leaves as itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import trio
from attrs import define, field

from ._entering import check_parts
from ._leaving import both, close_adapters, dispose, leave_agent, leave_engine
from .agent import (
    Agent,
    AgentHandle,
    Agents,
    AgentScope,
    Commit,
    Driver,
    EngineStatistics,
    LoopDriver,
    Services,
    Settings,
    Setup,
    TrioBell,
    Writer,
    checked_durability,
    checked_window,
    several,
    sum_of,
)
from .hooks import await_listener, call_listener
from .llm import Adapter, ModelRuntime
from .session import Compacting, Session
from .stores import MemoryStore, Store
from .tools import (
    Approver,
    PoolExecutor,
    Spill,
    Tool,
    ToolExecutor,
    check_spill,
    unprotected_frames,
)
from .vocabulary import (
    Durability,
    Event,
    InvalidValue,
    MessageId,
    SessionId,
    SessionNotFound,
    new_message_id,
    without,
)

logger = logging.getLogger("terzetto")


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


@define(eq=False)
class Engine:
    """Runs agents. Made by `open_engine`.

    *scope* is where tools, prompt sections, guards and listeners for all agents are
    registered; *agents* knows who lives and makes more; *settings* are live; *unsaved*
    names the sessions whose end did not reach the store, with the reason.
    """

    agents: Agents = field(repr=False)
    scope: AgentScope = field(repr=False)
    settings: Settings
    unsaved: dict[str, str] = field(factory=dict)

    @asynccontextmanager
    async def open_agent(
        self,
        *,
        provider: str | None = None,
        model: str | None = None,
        effort: str | None = None,
        system: str | None = None,
        tools: Iterable[Tool] = (),
        max_tokens: int | None = None,
        cwd: str | None = None,
        session_id: str | None = None,
        if_stored: Literal["refuse", "resume"] = "refuse",
        resume: str | None = None,
        fork: str | Agent | None = None,
        turn: int | None = None,
        boundary: int | None = None,
        seed: Sequence[Event] = (),
        parent: Agent | None = None,
        meta: Mapping[str, object] | None = None,
        durability: Durability | None = None,
        setup: Setup | None = None,
    ) -> AsyncIterator[Agent]:
        """An agent for the length of the block: fresh, with ``resume=id`` a stored one, or
        with ``fork=`` on a copy of another's past.

        With ``if_stored="resume"`` the session *session_id* is resumed if it is stored, and
        else made; *seed*, *fork*, *cwd*, *meta* and *durability* are for a fresh one. One that
        is stored and cannot be loaded is an error, never made anew.

        Leaving disposes: a running turn is aborted; ``await agent.wait_idle()`` first to
        let it finish. Left by `trio.Cancelled` or KeyboardInterrupt, pending input is kept
        for the next resume, else it is discarded on the record. Arguments are those of
        `Agents.create`, `Agents.resume` and `Agents.fork`. Raises `AgentCrashed`, cancelling
        the block, if the agent's driver fails.
        """
        if if_stored not in ("refuse", "resume"):
            raise InvalidValue(f"if_stored: expected 'refuse' or 'resume', got {if_stored!r}")
        if if_stored == "resume" and session_id is None:
            raise InvalidValue("if_stored='resume' needs the session_id= to look for")
        if fork is None and (turn is not None or boundary is not None):
            raise InvalidValue("turn and boundary say where a fork begins; name it with fork=")
        if fork is not None and seed:
            raise InvalidValue("fork= names where the seed comes from; give one of the two")

        async def make() -> AgentHandle:
            if fork is not None:
                return await self.agents.fork(
                    fork,
                    turn=turn,
                    boundary=boundary,
                    provider=provider,
                    model=model,
                    effort=effort,
                    system=system,
                    tools=tools,
                    max_tokens=max_tokens,
                    cwd=cwd,
                    session_id=session_id,
                    parent=parent,
                    meta=meta,
                    durability=durability,
                    setup=setup,
                )
            return await self.agents.create(
                provider=provider,
                model=model,
                effort=effort,
                system=system,
                tools=tools,
                max_tokens=max_tokens,
                cwd=cwd,
                session_id=session_id,
                seed=seed,
                parent=parent,
                meta=meta,
                durability=durability,
                setup=setup,
            )

        loaded = False

        def composed(agent: Agent) -> Awaitable[Commit | None] | Commit | None:
            nonlocal loaded
            loaded = True
            return setup(agent) if setup is not None else None

        async def stored(name: str) -> AgentHandle:
            return await self.agents.resume(
                name,
                provider=provider,
                model=model,
                effort=effort,
                system=system,
                tools=tools,
                max_tokens=max_tokens,
                parent=parent,
                setup=composed,
            )

        if resume is not None:
            if seed or any(g is not None for g in (session_id, cwd, meta, durability, fork)):
                raise InvalidValue(
                    "resume= names a stored session, which keeps what it was made with; "
                    "session_id, seed, fork, cwd, meta and durability are for fresh ones"
                )
            handle = await stored(resume)
        elif if_stored == "resume" and session_id is not None and self.agents.store is not None:
            try:
                handle = await stored(session_id)
            except SessionNotFound:
                if loaded:  # it is stored: another session was not found, while composing
                    raise
                handle = await make()
        else:
            handle = await make()
        body: BaseException | None = None
        with trio.CancelScope() as scope:
            handle._life.on_crash = lambda: scope.cancel(reason="the agent crashed")
            if handle.agent._crash is not None:
                scope.cancel(reason="the agent crashed")
            try:
                yield handle.agent
            except BaseException as error:  # kept, and raised as itself after teardown
                body = error
        await dispose(handle, body)
        leave_agent(handle.agent, body)

    def statistics(self) -> EngineStatistics:
        """What the engine is doing at this moment, and which tool calls are overdue.

        Costs a few steps for each live agent, task and running call, and reads no log.
        Raises `WrongThread` outside of the Trio thread while agents live.
        """
        every = self.agents.list()
        return sum_of(
            (agent.statistics() for agent in every if agent.parent is None),
            (agent.statistics() for agent in every if agent.parent is not None),
            threads_borrowed=self.agents.services.thread_limiter.borrowed_tokens,
        )

    async def wait_idle(self) -> None:
        """Return once every live agent is quiescent."""
        await trio.lowlevel.checkpoint()
        while busy := [a for a in self.agents.list() if not a._state.quiescent]:
            await busy[0].wait_idle()


@asynccontextmanager
async def open_engine(
    *,
    adapters: Iterable[Adapter],
    tools: Iterable[Tool] = (),
    store: Store | None = None,
    executor: ToolExecutor | None = None,
    driver: Driver | None = None,
    approver: Approver | None = None,
    spill: Spill | None = None,
    max_parallel_tool_calls: int = 10,
    shutdown_timeout: float = 5.0,
    durability: Durability = "step",
    write_window: float = 0.25,
    now_ms: Callable[[], int] = wall_clock_ms,
    new_id: Callable[[], MessageId] = new_message_id,
) -> AsyncIterator[Engine]:
    """Open an engine for the length of the block.

    Args:
        adapters: The models; each serves one provider name. The engine closes them.
        tools: For every agent.
        store: Where sessions are kept; in memory only when absent.
        executor: Runs tool batches; a bounded rolling pool when absent.
        driver: Runs agents; the built-in loop when absent.
        approver: Asked by policies that answer `Ask`; without one they deny.
        spill: Given the `LongResult` of every tool result that is cut, before its commit; may
            return a path or another one-line reference, which the model is shown. Async, or
            plain and then run in a worker thread. Cancelled with the turn; bounded by nothing
            else. If it fails, the cut result stands and says that the text was not kept.
            With a spill, hooks and ``finalize`` see results whole; without, already cut.
        max_parallel_tool_calls: Most bodies of one batch at once (live in ``settings``).
        shutdown_timeout: Seconds that closing a store or an adapter may take.
        durability: When agents wait for the store (`Durability`); for sessions that are made
            without a level of their own. Those that are stored keep theirs.
        write_window: Seconds after which the store is given what nobody waits for, counted
            from the first such event of any agent; with 0 at once.
        now_ms: The clock of the log, in milliseconds since the epoch.
        new_id: The source of message ids.

    Leaving it cancels every agent: turns end ``disposed``, pending input is kept. The
    body's exception leaves as itself; a group leaves only when something of ours failed
    too. What did not reach the store is named in ``engine.unsaved`` and raised as
    `StoreError`, unless a cancellation or KeyboardInterrupt is on its way out.
    """
    check_parts(shutdown_timeout, store, executor, driver, approver, now_ms, new_id)
    _give_interrupts_back()
    level, window = checked_durability(durability), checked_window(write_window)
    writer = Writer(window, needed=store is not None and not isinstance(store, MemoryStore))
    settings = Settings(max_parallel_tool_calls)
    runtime = ModelRuntime()
    scope = AgentScope("the engine")
    unsaved: dict[str, str] = {}

    def report_unsaved(session_id: SessionId, reason: str) -> None:
        unsaved[session_id] = reason
        logger.error("session %s is not saved: %s", session_id, reason)

    services = Services(
        runtime, executor or PoolExecutor(), settings, approver, trio.CapacityLimiter(40), spill
    )
    agents = Agents(
        services=services,
        scope=scope,
        store=store,
        shutdown_timeout=shutdown_timeout,
        now_ms=now_ms,
        new_id=new_id,
        make_bell=TrioBell,
        report_unsaved=report_unsaved,
        writer=writer,
        durability=level,
    )
    given, common = several("adapters", adapters), several("tools", tools)
    try:
        if spill is not None:
            check_spill(spill)
        for adapter in given:
            runtime.register(adapter)
        for tool in common:
            scope.add_tool(tool)
        agents.register_driver(driver or LoopDriver())
    except BaseException:  # they were handed over, whether or not the engine opens
        await close_adapters(given, shutdown_timeout)
        raise
    engine = Engine(agents, scope, settings, unsaved)

    body: BaseException | None = None
    ours: BaseException | None = None
    try:
        async with trio.open_nursery() as outer:
            if writer.needed:
                outer.start_soon(writer.run, name="terzetto writes behind")
            try:
                async with trio.open_nursery() as nursery:
                    agents.nursery = nursery
                    try:
                        yield engine
                    except BaseException as error:  # kept, and raised as itself after teardown
                        body = error
                    agents.nursery = None
                    nursery.cancel_scope.cancel(reason="the engine's block was left")
                    await agents.cancel_creations()
            except BaseException as error:  # agents end with outcomes; what leaves is the host's
                ours = error
            writer.stop()  # nobody is left who could be behind
    except BaseException as error:  # what a listener stopped the program with, told by the writer
        ours = error if without(ours, trio.Cancelled) is None else both(ours, error)
    scope.close()
    await close_adapters(runtime.adapters(), shutdown_timeout)
    leave_engine(body, ours, unsaved)


def _give_interrupts_back() -> None:
    """Mark the frames that hold off Ctrl-C, and those of others' code that must not.

    Idempotent: it marks code objects. Floors 0 and 1 do not name Trio, so it is done here.
    """
    trio.lowlevel.enable_ki_protection(Session.append)
    for held in (Compacting.__enter__, Compacting.commit, Compacting.__exit__):
        trio.lowlevel.enable_ki_protection(held)
    for frame in (call_listener, await_listener, *unprotected_frames()):
        trio.lowlevel.disable_ki_protection(frame)
