"""Statistics: what an agent, and an engine, are doing at this moment.

Read from counters and short lists that are kept anyway; no log is read, and nothing is
remembered between two calls.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio
from attrs import frozen

from ..session import AgentStatus
from ..tools import OverdueCall
from ._run_state import RunState


@frozen(kw_only=True)
class AgentStatistics:
    """What one agent is doing (`Agent.statistics`).

    *status*: as `Agent.status`. *turn_open*: whether a turn has begun and not ended.
    *tool_bodies_running*: bodies that have begun and not ended, those in threads included.
    *calls_running*: tool calls whose body may begin, runs, or has ended while a listener or a
    clean-up around it has not. *tasks_living*: the agent's own task and all below it, those of
    its children included; 0 once it is gone. *messages_pending*: in both lists of the inbox;
    what a turn has claimed is not.
    *calls_overdue*: in no particular order.
    """

    status: AgentStatus
    turn_open: bool
    tool_bodies_running: int
    messages_pending: int
    calls_overdue: tuple[OverdueCall, ...]
    calls_running: int = 0
    tasks_living: int = 0


@frozen(kw_only=True)
class EngineStatistics:
    """What an engine is doing (`Engine.statistics`): the sums over its live agents.

    *agents_living*: listed by ``engine.agents``; *agents_running*: whose status is
    ``running``; *children_living*: those with a parent; *turns_open*, *tool_bodies_running*,
    *calls_running*, *messages_pending* and *calls_overdue*: as in `AgentStatistics`.
    *tasks_living*: of all agents, each counted once. *threads_borrowed*: worker threads of the
    engine's limiter in use, by plain tool bodies and by a plain ``spill``.
    """

    agents_living: int
    agents_running: int
    turns_open: int
    tool_bodies_running: int
    messages_pending: int
    threads_borrowed: int
    calls_overdue: tuple[OverdueCall, ...]
    calls_running: int = 0
    children_living: int = 0
    tasks_living: int = 0


def statistics_of(state: RunState, task: trio.lowlevel.Task | None) -> AgentStatistics:
    """The statistics of the agent with these run controls, and this task once it has run."""
    # An agent that is handed over has a task, which may not have had its first step.
    started = not (state.gone or state.held)
    tasks = tasks_below(task) if started and task is not None else int(started)
    return AgentStatistics(
        status=state.status,
        turn_open=state.turn_open,
        tool_bodies_running=sum(call.in_body for call in state.calls),
        messages_pending=sum(map(len, state.session.pending.lists.values())),
        calls_overdue=tuple(overdue for call in state.calls if (overdue := call.overdue())),
        calls_running=len(state.calls),
        tasks_living=tasks,
    )


def tasks_below(task: trio.lowlevel.Task) -> int:
    """*task* and all that its nurseries hold, however deep."""
    count, waiting = 0, [task]
    while waiting:
        task = waiting.pop()
        count += 1
        for nursery in task.child_nurseries:
            waiting += nursery.child_tasks
    return count


def sum_of(
    roots: Iterable[AgentStatistics],
    children: Iterable[AgentStatistics],
    *,
    threads_borrowed: int,
) -> EngineStatistics:
    """The statistics of an engine with these agents; the tasks of *children*, which have a
    parent, are among those of the others."""
    every = [*roots]
    tasks = sum(agent.tasks_living for agent in every)
    owned = [*children]
    every += owned
    return EngineStatistics(
        agents_living=len(every),
        agents_running=sum(agent.status == "running" for agent in every),
        turns_open=sum(agent.turn_open for agent in every),
        tool_bodies_running=sum(agent.tool_bodies_running for agent in every),
        messages_pending=sum(agent.messages_pending for agent in every),
        threads_borrowed=threads_borrowed,
        calls_overdue=tuple(overdue for agent in every for overdue in agent.calls_overdue),
        calls_running=sum(agent.calls_running for agent in every),
        children_living=len(owned),
        tasks_living=tasks,
    )
