"""Maintenance: one job that is no turn, from true idle, in its caller's task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

import trio

from ..vocabulary import ActivityCancelled, AgentBusy, SessionId
from ._activity import Activity
from ._initiator import inside_job
from ._run_state import RunState

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def maintain(
    state: RunState, agent_id: SessionId, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts
) -> T:
    """See `Agent.run_maintenance`."""
    await trio.lowlevel.checkpoint()
    if not state.quiescent or state.held or state.closing:
        raise AgentBusy(f"maintenance needs an idle agent; {agent_id!r} is busy")
    activity = state.activity = Activity("maintenance")
    result: list[T] = []
    try:
        with activity.scope, inside_job(activity):
            result.append(await fn(*args))
    finally:
        state.finish_maintenance(activity)
    if not result:
        raise ActivityCancelled(f"maintenance of {agent_id!r} was cancelled")
    return result[0]
