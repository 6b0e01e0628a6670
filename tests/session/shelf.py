"""A store in a few lines, for sessions whose chunks leave memory: it keeps what is flushed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from tests.session.oracle import START_MS, Log

from terzetto.agent import TrioBell
from terzetto.session import Session
from terzetto.vocabulary import (
    AssistantChunk,
    Event,
    SessionHeader,
    SessionId,
    new_message_id,
)


class Shelf:
    """The stored events of one session. *before* may wait or fail, *pages* tells what was
    asked for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.waiting: list[Event] = []
        self.pages: list[tuple[int, int]] = []
        self.before: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint

    async def read(self, start: int, stop: int) -> list[Event]:
        self.pages.append((start, stop))
        await self.before()
        return self.events[start:stop]

    def flush(self, session: Session, count: int | None = None) -> None:
        """Make the next *count* events durable; all when None."""
        stored = self.waiting[:count]
        self.events += stored
        del self.waiting[: len(stored)]
        session.saved()

    def session(self) -> Session:
        """An empty session that is kept here."""
        header = SessionHeader(id=SessionId("s"), created_ms=START_MS)
        session = Session(header, lambda: START_MS, new_message_id, TrioBell())
        session.sink = self.waiting.append
        session.durable = lambda: len(self.events) - 1
        session.reader = self.read
        return session


def fed(session: Session, log: Log) -> list[Event]:
    """Append what *log* holds; the events as they are now."""
    return [
        session.append(event.data, event.surface_op, event.sources, event.ignorable)
        for event in log
    ]


def chunks_in(session: Session) -> int:
    """How many chunk events are in memory."""
    return sum(isinstance(event.data, AssistantChunk) for event in session.events)
