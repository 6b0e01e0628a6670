"""The initiator: which agent started the running task (C43-C46).

Attribution only. It is inherited by every task that an agent's driver starts, proves
neither liveness nor permission, and does not cross processes or the wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

from ..vocabulary import UsageError

if TYPE_CHECKING:
    from ._agent import Agent

_initiator: ContextVar[Agent | None] = ContextVar("terzetto_initiator", default=None)


_created: ContextVar[Agent | None] = ContextVar("terzetto_created", default=None)


@contextmanager
def being_created(agent: Agent) -> Iterator[None]:
    """The block composes *agent*, and must not wait for it."""
    token = _created.set(agent)
    try:
        yield
    finally:
        _created.reset(token)


def agent_being_created() -> Agent | None:
    return _created.get()


_jobs: ContextVar[tuple[object, ...]] = ContextVar("terzetto_jobs", default=())


@contextmanager
def inside_job(activity: object) -> Iterator[None]:
    """The block is the maintenance *activity*, and must not wait for its agent."""
    token = _jobs.set((*_jobs.get(), activity))
    try:
        yield
    finally:
        _jobs.reset(token)


def is_inside_job(activity: object) -> bool:
    """Whether the running task is in the maintenance *activity*, or was started in it."""
    return any(job is activity for job in _jobs.get())


def current_agent() -> Agent | None:
    """The agent that started the running task, or None. For attribution only."""
    return _initiator.get()


def require_agent() -> Agent:
    """`current_agent`, or `UsageError` outside every agent."""
    agent = _initiator.get()
    if agent is None:
        raise UsageError("this task was started by no agent")
    return agent


def initiate(agent: Agent) -> Token[Agent | None]:
    """`initiated_by` for a whole task, of which there are thousands; until `end_initiating`."""
    return _initiator.set(agent)


def end_initiating(token: Token[Agent | None]) -> None:
    _initiator.reset(token)


@contextmanager
def initiated_by(agent: Agent | None) -> Iterator[None]:
    """Attribute the block, and the tasks it starts, to *agent*; to nobody with None."""
    token = _initiator.set(agent)
    try:
        yield
    finally:
        _initiator.reset(token)
