"""Sessions as files of JSON lines, one file a session.

Readable with any tool, appended to only, and safe against the death of the process at any
byte. Flushes of one session share one write and one sync. For POSIX systems and local file
systems: ownership is ``flock``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from ..vocabulary import Event, SessionHeader, UsageError
from ._base import Buffer, Events, Store, WriteHandle, check_start
from ._files import give_up, require_posix
from ._jsonl_file import (
    Opened,
    create_log,
    delete_log,
    file_name,
    open_log,
    read_again,
    read_headers,
    read_log,
    write_events,
)

logger = logging.getLogger("terzetto")
_THREADS = 8
"""Most logs of one store that are read or written at once. A disk gains little from more."""


class JsonlHandle:
    """The `WriteHandle` of a log file."""

    def __init__(
        self, opened: Opened, extensions: Collection[str], limiter: trio.CapacityLimiter
    ) -> None:
        found = opened.scan
        self._fd: int | None = opened.fd
        self._owner = opened.owner
        self._header = found.header
        self._repaired = found.torn
        self._read_length = self._length = found.length
        self._at_open: Events | None = found.events
        self._buffer = Buffer(len(found.events))
        self._extensions = extensions
        self._limiter = limiter
        self._writing = trio.Lock()
        self._closed = False

    @property
    def header(self) -> SessionHeader:
        return self._header

    @property
    def repaired(self) -> str | None:
        return self._repaired

    @property
    def durable_seq(self) -> int:
        return self._buffer.durable_seq

    async def read(self) -> Events:
        events, self._at_open = self._at_open, None
        if events is not None:  # the first time; kept no longer than that
            await trio.lowlevel.checkpoint()
            return events
        async with self._writing:
            return await trio.to_thread.run_sync(
                read_again,
                self._owned(),
                self._read_length,
                self.header.id,
                self._extensions,
                limiter=self._limiter,
            )

    def append(self, event: Event) -> None:
        if self._closed:
            raise UsageError(f"the write handle of session {self.header.id!r} is closed")
        self._buffer.append(event)

    async def flush(self) -> None:
        wanted = self._buffer.next_seq - 1
        if self.durable_seq >= wanted:
            await trio.lowlevel.checkpoint()
            return
        async with self._writing:
            # Whoever had the lock before may have written ours with its own.
            if self.durable_seq < wanted:
                await self._write()

    async def _write(self) -> None:
        events = self._buffer.pending()
        # Uncancellable once the thread runs; no checkpoint between its end and the books.
        length = await trio.to_thread.run_sync(
            write_events,
            self._owned(),
            self._length,
            events,
            self.header.id,
            limiter=self._limiter,
        )
        self._settle(len(events), length)

    @trio.lowlevel.enable_ki_protection
    def _settle(self, count: int, length: int) -> None:
        self._buffer.settle(count)
        self._length = length

    async def close(self) -> None:
        self._closed = True
        if self._fd is None:
            await trio.lowlevel.checkpoint()
            return
        try:
            await self.flush()
        finally:
            # Not bounded by a timeout: it waits for a write in a thread, which none can end.
            with trio.CancelScope(shield=True):
                async with self._writing:
                    await self._release()

    async def _release(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            await trio.to_thread.run_sync(give_up, fd, self._owner, limiter=self._limiter)

    def _owned(self) -> int:
        if self._fd is None:
            raise UsageError(f"the write handle of session {self.header.id!r} is closed")
        return self._fd


class JsonlStore:
    """A folder of sessions. It is made, for its owner only, with the first session.

    Args:
        directory: Where the files are. Nothing else should be kept there.
        extensions: Names of the `Extension` events that the program knows. A log with
            others opens only when they are ignorable.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, extensions: Collection[str] = ()
    ) -> None:
        require_posix("JsonlStore")
        self._directory = Path(directory).absolute()
        self._extensions = frozenset(extensions)
        self._limiter = trio.CapacityLimiter(_THREADS)

    def __repr__(self) -> str:
        return f"JsonlStore({str(self._directory)!r})"

    async def create(self, header: SessionHeader) -> JsonlHandle:
        path = self._directory / file_name(header.id)
        return self._handle(
            await trio.to_thread.run_sync(create_log, path, header, limiter=self._limiter)
        )

    async def open(self, session_id: str) -> JsonlHandle:
        path = self._directory / file_name(session_id)
        return self._handle(
            await trio.to_thread.run_sync(
                open_log, path, session_id, self._extensions, limiter=self._limiter
            )
        )

    def _handle(self, opened: Opened) -> JsonlHandle:
        return JsonlHandle(opened, self._extensions, self._limiter)

    async def read(self, session_id: str, start: int = 0) -> tuple[SessionHeader, Events]:
        path = self._directory / file_name(session_id)
        check_start(start)
        found = await trio.to_thread.run_sync(
            read_log, path, session_id, self._extensions, start, limiter=self._limiter
        )
        return found.header, found.events

    async def delete(self, session_id: str) -> None:
        path = self._directory / file_name(session_id)
        await trio.to_thread.run_sync(delete_log, path, session_id, limiter=self._limiter)

    def locate(self, session_id: str) -> str:
        """The path of the session's file, which need not exist."""
        return str(self._directory / file_name(session_id))

    async def list(self) -> list[SessionHeader]:
        headers, faults = await trio.to_thread.run_sync(
            read_headers, self._directory, limiter=self._limiter
        )
        for fault in faults:
            logger.warning("%r: %s", self, fault)
        return sorted(headers, key=lambda header: (header.created_ms, header.id))


if TYPE_CHECKING:

    def _is_store(store: JsonlStore) -> Store:
        return store

    def _is_handle(handle: JsonlHandle) -> WriteHandle:
        return handle
