"""SimulatedDisk: a store that is slow, full or without power, and all in virtual time.

No threads and no files, so it works under a clock that jumps. A session's events are in the
store's cache when they are appended, and on the platter when a flush has ended. What the
cache holds is lost when the power is cut, but for a prefix that happened to be written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal, TypeAlias, overload

import trio
from attrs import define, field, frozen

from ..stores import ReadHandle, Store, WriteHandle
from ..stores._base import OpenMode, check_extensions, check_mode, escape_id
from ..stores._handles import Reading, Writing, check_start
from ..vocabulary import (
    Event,
    InvalidValue,
    SessionExists,
    SessionHeader,
    SessionLocked,
    SessionNotFound,
)
from ._faults import failed

Events: TypeAlias = list[Event]


@frozen(kw_only=True)
class Latency:
    """Virtual seconds that operations take. *event* is added to a flush for each of its events.

    Each operation is a checkpoint, however short.
    """

    create: float = 0.0
    open: float = 0.0
    read: float = 0.0
    flush: float = 0.0
    event: float = 0.0
    close: float = 0.0
    delete: float = 0.0

    @classmethod
    def of(cls, seconds: float) -> Latency:
        """Each operation takes *seconds*."""
        names = ("create", "open", "read", "flush", "close", "delete")
        return cls(**dict.fromkeys(names, seconds))


@define(eq=False)
class _File:
    """One session. *torn*: the power was cut inside a record after the last event."""

    header: SessionHeader
    events: Events = field(factory=list)
    torn: bool = False
    owner: DiskHandle | None = None
    deleted: bool = False

    def slice(self, start: int, stop: int | None) -> Events:
        if self.deleted:
            raise SessionNotFound(f"there is no session {self.header.id!r} any more")
        return self.events[start:stop]


class DiskHandle(Writing):
    """A `WriteHandle` of a `SimulatedDisk`."""

    def __init__(self, disk: SimulatedDisk, file: _File, repaired: str | None = None) -> None:
        super().__init__(file.header, len(file.events))
        self._disk = disk
        self._file = file
        self._repaired = repaired
        self._busy: trio.Event | None = None
        file.owner = self

    @property
    def repaired(self) -> str | None:
        return self._repaired

    @property
    def unflushed(self) -> tuple[Event, ...]:
        """What a crash would lose now, oldest first."""
        return tuple(self._buffer.pending())

    async def _stored(self, start: int, stop: int) -> Events:
        await self._disk._take("read", self.header.id, self._disk.latency.read)
        return self._file.slice(start, stop)

    async def flush(self) -> None:
        wanted = self._buffer.next_seq - 1
        if self._closed and self.durable_seq < wanted:
            raise self._is_closed()
        await trio.lowlevel.checkpoint()
        while self.durable_seq < wanted:
            if self._busy is None:
                await self._write()
            else:
                await self._busy.wait()

    async def _write(self) -> None:
        """One write of all there is. Once begun it ends, whoever is cancelled."""
        self._busy = trio.Event()
        try:
            pending = self._buffer.pending()
            latency = self._disk.latency
            with trio.CancelScope(shield=True):
                seconds = latency.flush + latency.event * len(pending)
                await self._disk._take("flush", self.header.id, seconds)
            fitting = pending if self._disk.room is None else pending[: self._disk.room]
            self._file.events.extend(fitting)
            self._buffer.settle(len(fitting))
            if self._disk.room is not None:
                self._disk.room -= len(fitting)
            if len(fitting) < len(pending):
                raise failed(self.header.id, "flush", os.strerror(errno.ENOSPC))
        finally:
            self._busy.set()
            self._busy = None

    async def close(self) -> None:
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        try:
            await self.flush()
            await self._disk._take("close", self.header.id, self._disk.latency.close)
        finally:
            with trio.CancelScope(shield=True):
                while self._busy is not None:
                    await self._busy.wait()
            self._closed = True
            if self._file.owner is self:
                self._file.owner = None


class DiskReader(Reading):
    """A `ReadHandle` of a `SimulatedDisk`."""

    def __init__(self, disk: SimulatedDisk, file: _File) -> None:
        super().__init__(file.header)
        self._disk = disk
        self._file = file

    async def _stored(self, start: int, stop: int | None) -> Events:
        await self._disk._take("read", self.header.id, self._disk.latency.read)
        events = self._file.slice(start, stop)
        check_extensions(events, self._disk.extensions)
        return events


@define(eq=False)
class SimulatedDisk:
    """A store whose operations take virtual time, and which can be full or lose its power.

    Single operations are made to fail by a `FaultyStore` over it.

    Args:
        latency: Of each operation.
        cache: Most events of a session that wait for a flush in the cache; older ones are
            written without being asked, and survive a crash. Absent: it holds everything.
        room: Events that still fit; a flush that is given more stores what fits and fails
            like a full disk. Absent: endless. May be changed at any time.
        extensions: As for `MemoryStore`.

    Belongs to one Trio run at a time. It may outlive a run that was given up, as a disk does.
    """

    latency: Latency = field(factory=Latency)
    cache: int | None = field(default=None, kw_only=True)
    room: int | None = field(default=None, kw_only=True)
    extensions: Collection[str] = field(default=(), kw_only=True)
    powered: bool = field(default=True, init=False)
    _files: dict[str, _File] = field(factory=dict, init=False)

    # --- trouble ------------------------------------------------------------------------

    def crash(self, keep: int = 0, *, torn: bool = False) -> SimulatedDisk:
        """Cut the power; the disk as it is found when the power is back.

        Args:
            keep: Events of each session that were written although nobody had flushed them.
                More than there are is all of them.
            torn: Whether the next event was being written: part of it is there, and is
                cut off when the session is opened.

        Flushed events and finished creations are all there, and nobody owns a session. Every
        operation on this disk fails from now on.
        """
        found = self.after_crash(keep, torn=torn)
        self.powered = False
        return found

    def after_crash(self, keep: int = 0, *, torn: bool = False) -> SimulatedDisk:
        """What `crash` would give, without cutting the power."""
        if keep < 0:
            raise InvalidValue(f"keep: expected 0 or more events, got {keep}")
        found = SimulatedDisk(
            self.latency, cache=self.cache, room=self.room, extensions=self.extensions
        )
        for session_id, file in self._files.items():
            waiting = file.owner.unflushed if file.owner is not None else ()
            written = 0 if self.cache is None else max(0, len(waiting) - self.cache)
            kept = waiting[: max(keep, written)]
            tail = torn and len(kept) < len(waiting)
            found._files[session_id] = _File(file.header, [*file.events, *kept], tail)
        return found

    def unflushed(self, session_id: str) -> tuple[Event, ...]:
        """What a crash would lose now of a session, oldest first."""
        file = self._files[session_id]
        return file.owner.unflushed if file.owner is not None else ()

    def stored(self, session_id: str) -> tuple[Event, ...]:
        """What is on the platter now of a session, oldest first."""
        return tuple(self._files[session_id].events)

    @property
    def lengths(self) -> dict[str, int]:
        """How many events of each session are on the platter."""
        return {session_id: len(file.events) for session_id, file in self._files.items()}

    # --- the store ----------------------------------------------------------------------

    async def create(self, header: SessionHeader) -> DiskHandle:
        escape_id(header.id)
        await self._take("create", header.id, self.latency.create)
        if header.id in self._files:
            raise SessionExists(f"there is a session {header.id!r} already")
        file = self._files[header.id] = _File(header)
        return DiskHandle(self, file)

    @overload
    async def open(self, session_id: str, mode: Literal["write"] = "write") -> DiskHandle: ...

    @overload
    async def open(self, session_id: str, mode: Literal["read"]) -> DiskReader: ...

    async def open(self, session_id: str, mode: OpenMode = "write") -> DiskHandle | DiskReader:
        check_mode(mode)
        file = await self._find("open", session_id, self.latency.open)
        if mode == "read":
            return DiskReader(self, file)
        _refuse_if_owned(file)
        check_extensions(file.events, self.extensions)
        repaired = "cut an unfinished record" if file.torn else None
        file.torn = False
        return DiskHandle(self, file, repaired)

    async def read(self, session_id: str, start: int = 0) -> tuple[SessionHeader, Events]:
        check_start(start)
        file = await self._find("read", session_id, self.latency.read)
        events = file.slice(start, None)
        check_extensions(events, self.extensions)
        return file.header, events

    async def delete(self, session_id: str) -> None:
        escape_id(session_id)
        await trio.lowlevel.checkpoint()
        with trio.CancelScope(shield=True):
            file = await self._find("delete", session_id, self.latency.delete)
            _refuse_if_owned(file)
            file.deleted = True
            del self._files[session_id]

    def locate(self, session_id: str) -> None:
        """None: there is nothing to look at outside this process."""
        escape_id(session_id)

    async def list(self) -> list[SessionHeader]:
        await self._take("read", "", self.latency.read)
        headers = (file.header for file in self._files.values())
        return sorted(headers, key=lambda header: (header.created_ms, header.id))

    async def _find(self, operation: str, session_id: str, seconds: float) -> _File:
        escape_id(session_id)
        await self._take(operation, session_id, seconds)
        if session_id not in self._files:
            raise SessionNotFound(f"there is no session {session_id!r}")
        return self._files[session_id]

    async def _take(self, operation: str, session_id: str, seconds: float) -> None:
        """Spend the time of *operation*, then fail without power."""
        await trio.sleep(seconds)
        if not self.powered:
            raise failed(session_id, operation, "the power is cut")


def _refuse_if_owned(file: _File) -> None:
    if file.owner is not None:
        raise SessionLocked(
            f"session {file.header.id!r} is open for writing in this process ({os.getpid()})"
        )


if TYPE_CHECKING:

    def _is_store(store: SimulatedDisk) -> Store:
        return store

    def _is_handle(handle: DiskHandle) -> WriteHandle:
        return handle

    def _is_reader(handle: DiskReader) -> ReadHandle:
        return handle
