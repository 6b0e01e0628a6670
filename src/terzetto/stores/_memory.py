"""Sessions in memory: for tests, and for agents that nobody resumes after the process ends.

The simplest store there is, and the one that the others must agree with.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal, overload

import trio
from attrs import define, field

from ..session import Held
from ..vocabulary import SessionExists, SessionHeader, SessionLocked, SessionNotFound
from ._base import (
    Events,
    OpenMode,
    ReadHandle,
    Store,
    WriteHandle,
    check_extensions,
    check_mode,
    escape_id,
)
from ._handles import Reading, Writing, check_start

_MANY = 256
"""Events that gather before they are packed: a flush may bring one alone."""


@define(eq=False)
class _Stored:
    header: SessionHeader
    held: Held = field(factory=Held)
    owner: MemoryHandle | None = None
    deleted: bool = False

    def slice(self, start: int, stop: int | None) -> Events:
        if self.deleted:
            raise SessionNotFound(f"there is no session {self.header.id!r} any more")
        length = len(self.held)
        return self.held.between(start, length if stop is None else min(stop, length))


class MemoryHandle(Writing):
    """A `WriteHandle` whose `flush` returns at once, without a checkpoint."""

    def __init__(self, stored: _Stored) -> None:
        super().__init__(stored.header, len(stored.held))
        self._kept = stored
        stored.owner = self

    async def _stored(self, start: int, stop: int) -> Events:
        await trio.lowlevel.checkpoint()
        return self._kept.slice(start, stop)

    async def flush(self) -> None:
        pending = self._buffer.pending()
        held = self._kept.held
        held.tail.extend(pending)
        self._buffer.settle(len(pending))
        if len(held.tail) >= _MANY:
            held.pack(len(held))

    async def close(self) -> None:
        if not self._closed:
            await self.flush()
            self._closed = True
            self._kept.owner = None
        await trio.lowlevel.checkpoint()


class MemoryReader(Reading):
    """A `ReadHandle` of a session in memory."""

    def __init__(self, stored: _Stored, extensions: Collection[str]) -> None:
        super().__init__(stored.header)
        self._kept = stored
        self._extensions = extensions

    async def _stored(self, start: int, stop: int | None) -> Events:
        await trio.lowlevel.checkpoint()
        events = self._kept.slice(start, stop)
        check_extensions(events, self._extensions)
        return events


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

    @overload
    async def open(self, session_id: str, mode: Literal["write"] = "write") -> MemoryHandle: ...

    @overload
    async def open(self, session_id: str, mode: Literal["read"]) -> MemoryReader: ...

    async def open(self, session_id: str, mode: OpenMode = "write") -> MemoryHandle | MemoryReader:
        check_mode(mode)
        stored = await self._find(session_id)
        if mode == "read":
            return MemoryReader(stored, self._extensions)
        self._refuse_if_owned(stored)
        check_extensions(stored.held.whole(), self._extensions)
        return MemoryHandle(stored)

    async def read(self, session_id: str, start: int = 0) -> tuple[SessionHeader, Events]:
        check_start(start)
        stored = await self._find(session_id)
        events = stored.slice(start, None)
        check_extensions(events, self._extensions)
        return stored.header, events

    async def delete(self, session_id: str) -> None:
        stored = await self._find(session_id)
        self._refuse_if_owned(stored)
        stored.deleted = True
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

    def _is_reader(handle: MemoryReader) -> ReadHandle:
        return handle
