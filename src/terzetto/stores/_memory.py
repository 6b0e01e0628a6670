"""Sessions in memory: for tests, and for agents that nobody resumes after the process ends.

The simplest store there is, and the one that the others must agree with.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from ..vocabulary import (
    Event,
    SessionExists,
    SessionHeader,
    SessionLocked,
    SessionNotFound,
    UsageError,
)
from ._base import Buffer, Events, Store, WriteHandle, check_extensions, check_start, escape_id


@define(eq=False)
class _Stored:
    header: SessionHeader
    events: Events = field(factory=list)
    owner: MemoryHandle | None = None


@define(eq=False)
class MemoryHandle:
    """A `WriteHandle` whose `flush` returns at once, without a checkpoint."""

    _stored: _Stored
    repaired: None = field(default=None, init=False)
    _at_open: int = field(init=False)
    _buffer: Buffer = field(init=False)
    _closed: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._at_open = len(self._stored.events)
        self._buffer = Buffer(self._at_open)
        self._stored.owner = self

    @property
    def header(self) -> SessionHeader:
        return self._stored.header

    @property
    def durable_seq(self) -> int:
        return self._buffer.durable_seq

    async def read(self) -> Events:
        await trio.lowlevel.checkpoint()
        return self._stored.events[: self._at_open]

    def append(self, event: Event) -> None:
        if self._closed:
            raise UsageError(f"the write handle of session {self.header.id!r} is closed")
        self._buffer.append(event)

    async def flush(self) -> None:
        pending = self._buffer.pending()
        self._stored.events.extend(pending)
        self._buffer.settle(len(pending))

    async def close(self) -> None:
        if not self._closed:
            await self.flush()
            self._closed = True
            self._stored.owner = None
        await trio.lowlevel.checkpoint()


class MemoryStore:
    """Keeps sessions as long as it lives itself. Belongs to one Trio run at a time.

    Args:
        extensions: Names of the `Extension` events that the program knows. Others may be
            opened and read only when they are ignorable, as with the stores on disk.
    """

    def __init__(self, *, extensions: Collection[str] = ()) -> None:
        self._extensions = frozenset(extensions)
        self._sessions: dict[str, _Stored] = {}

    async def create(self, header: SessionHeader) -> MemoryHandle:
        escape_id(header.id)
        await trio.lowlevel.checkpoint()
        if header.id in self._sessions:
            raise SessionExists(f"there is a session {header.id!r} already")
        stored = self._sessions[header.id] = _Stored(header)
        return MemoryHandle(stored)

    async def open(self, session_id: str) -> MemoryHandle:
        stored = await self._find(session_id)
        self._refuse_if_owned(stored)
        check_extensions(stored.events, self._extensions)
        return MemoryHandle(stored)

    async def read(self, session_id: str, start: int = 0) -> tuple[SessionHeader, Events]:
        check_start(start)
        stored = await self._find(session_id)
        events = stored.events[start:]
        check_extensions(events, self._extensions)
        return stored.header, events

    async def delete(self, session_id: str) -> None:
        stored = await self._find(session_id)
        self._refuse_if_owned(stored)
        del self._sessions[session_id]

    def locate(self, session_id: str) -> None:
        """None: there is nothing to look at outside this process."""
        escape_id(session_id)

    def _refuse_if_owned(self, stored: _Stored) -> None:
        if stored.owner is not None:
            raise SessionLocked(
                f"session {stored.header.id!r} is open for writing in this process ({os.getpid()})"
            )

    async def _find(self, session_id: str) -> _Stored:
        escape_id(session_id)
        await trio.lowlevel.checkpoint()
        if session_id not in self._sessions:
            raise SessionNotFound(f"there is no session {session_id!r}")
        return self._sessions[session_id]

    async def list(self) -> list[SessionHeader]:
        await trio.lowlevel.checkpoint()
        headers = (stored.header for stored in self._sessions.values())
        return sorted(headers, key=lambda header: (header.created_ms, header.id))


if TYPE_CHECKING:

    def _is_store(store: MemoryStore) -> Store:
        return store

    def _is_handle(handle: MemoryHandle) -> WriteHandle:
        return handle
