"""How the blocks of engines and agents are left: what is closed, and what is raised."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import trio

from .agent import Agent, AgentHandle
from .llm import Adapter
from .vocabulary import (
    AgentCrashed,
    DisposedCause,
    ParentCause,
    StoreError,
    chain_text,
    single,
    without,
)

logger = logging.getLogger("terzetto")


async def close_adapters(adapters: Iterable[Adapter], seconds: float) -> None:
    """Close each within *seconds*; what they raise is logged."""
    for adapter in adapters:
        try:
            with trio.move_on_after(seconds, shield=True):
                await adapter.aclose()
        except Exception as error:  # an adapter: somebody else's code
            name = getattr(adapter, "provider", None)
            served = name if isinstance(name, str) else type(adapter).__name__
            logger.warning("closing the adapter of %s failed: %s", served, chain_text(error))


async def dispose(handle: AgentHandle, body: BaseException | None) -> None:
    """Tear the agent of a block down, whatever *body* its block raised."""
    # A tool of the parent holds a child in a block: cut with its turn, the child says so.
    stopped = _host_stops(body)
    cut_with_parent = stopped and handle.agent.parent is not None
    cause = ParentCause() if cut_with_parent else DisposedCause()
    handle._life.begin_disposal(cause, keep_inbox=stopped)
    with trio.CancelScope(shield=True):
        await handle._life.wait_end()


def leave_agent(agent: Agent, body: BaseException | None) -> None:
    """Raise what the block raised, as itself; a crash beside it makes a group."""
    if agent._crash is not None:
        crashed = AgentCrashed(f"the driver of {agent.id!r} failed")
        crashed.__cause__ = agent._crash
        if without(body, trio.Cancelled) is None:
            raise crashed
        assert body is not None
        raise BaseExceptionGroup("an agent crashed and its block failed", [body, crashed])
    if body is not None:
        raise body


def leave_engine(
    body: BaseException | None, ours: BaseException | None, unsaved: dict[str, str]
) -> None:
    """Raise what is to be raised: one exception as itself, several as a group."""
    failures: list[BaseException] = []
    if body is not None and without(body, trio.Cancelled) is not None:
        failures.append(body)  # the very object, whatever it is
    own = without(ours, trio.Cancelled)
    if own is not None and not (failures and body and single(own) is single(body)):
        failures.append(single(own))
    if unsaved and not _host_stops(body) and not _host_stops(ours):
        names = ", ".join(f"{name} ({reason})" for name, reason in unsaved.items())
        failures.append(StoreError(f"not saved: {names}"))
    stops = [failure for failure in failures if isinstance(failure, KeyboardInterrupt)]
    failures = [f for f in failures if f not in stops[1:]]  # a second Ctrl-C says no more
    if len(failures) > 1:
        raise BaseExceptionGroup("several things failed while an engine was left", failures)
    if failures:
        raise failures[0]
    if stopping := body or ours:
        raise stopping


def _host_stops(error: BaseException | None) -> bool:
    """Whether *error* is a cancellation or a KeyboardInterrupt, alone or in a group."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup((trio.Cancelled, KeyboardInterrupt)) is not None
    return isinstance(error, (trio.Cancelled, KeyboardInterrupt))


def both(first: BaseException | None, second: BaseException) -> BaseException:
    """Two that came at once, if there are two."""
    if first is None:
        return second
    return BaseExceptionGroup("two things failed while an engine was left", [first, second])
