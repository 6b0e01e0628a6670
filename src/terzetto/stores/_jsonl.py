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
from typing import TYPE_CHECKING, Literal, overload

import trio

from ..vocabulary import InvalidValue, SessionHeader, StoreError
from ._base import EVERY, Events, OpenMode, ReadHandle, Store, WriteHandle, check_mode
from ._files import give_up, require_posix
from ._handles import FileHandle, Reading, check_start
from ._jsonl_file import (
    Opened,
    Range,
    create_log,
    delete_log,
    file_name,
    look_at,
    open_log,
    read_headers,
    read_log,
    read_range,
    write_events,
)
from ._jsonl_layouts import LayoutName, Packed
from ._jsonl_lines import LAYOUTS, First
from ._jsonl_zstd import require_zstd
from ._records import Index
from ._slots import slots

logger = logging.getLogger("terzetto")
_THREADS = 8
"""Most logs of one store that are read or written at once. A disk gains little from more."""


class JsonlHandle(FileHandle):
    """The `WriteHandle` of a log file."""

    def __init__(self, path: Path, opened: Opened, limiter: trio.CapacityLimiter) -> None:
        super().__init__(opened.first.header, opened.survey.end.seq)
        self._path = path
        self._first = opened.first
        self._fd: int | None = opened.fd
        self._owner = opened.owner
        self._index = opened.survey.index
        self._end = opened.survey.end
        self._repaired = opened.survey.torn
        self._limiter = limiter
        self._writing = trio.Lock()

    @property
    def repaired(self) -> str | None:
        return self._repaired

    async def _stored(self, start: int, stop: int) -> Events:
        # By its path, not by our descriptor: that may be closed while a thread reads.
        wanted = Range(self._index.before(start), start, stop, self._end.offset)
        found = await trio.to_thread.run_sync(
            read_range, self._path, self._first, EVERY, wanted, limiter=self._limiter
        )
        return found.events

    async def _write(self) -> None:
        wanted = self._buffer.next_seq - 1
        try:  # mostly nobody else writes, and the thread is checkpoint enough
            self._writing.acquire_nowait()
        except trio.WouldBlock:
            await self._writing.acquire()
        try:
            if self.durable_seq >= wanted:
                return  # whoever had the lock before has written ours with its own
            if self._fd is None:
                raise self._is_closed()
            events = self._buffer.pending()
            # Uncancellable once the thread runs; no checkpoint between its end and the books.
            packed = await trio.to_thread.run_sync(
                write_events,
                self._fd,
                self._path,
                self._first,
                self._end,
                events,
                limiter=self._limiter,
            )
            self._settle(packed)
        finally:
            self._writing.release()

    @trio.lowlevel.enable_ki_protection
    def _settle(self, packed: Packed) -> None:
        self._buffer.settle(packed.end.seq - self._end.seq)
        self._end = packed.end
        for place in packed.places:
            self._index.add(place)

    @property
    def _owns(self) -> bool:
        return self._fd is not None

    async def _give_up(self) -> None:
        async with self._writing:
            fd, self._fd = self._fd, None
            if fd is not None:
                await trio.to_thread.run_sync(give_up, fd, self._owner, limiter=self._limiter)


class JsonlReader(Reading):
    """The `ReadHandle` of a log file. It remembers where some of the events are."""

    def __init__(
        self,
        path: Path,
        first: First,
        extensions: Collection[str],
        limiter: trio.CapacityLimiter,
    ) -> None:
        super().__init__(first.header)
        self._path = path
        self._first = first
        self._extensions = extensions
        self._limiter = limiter
        self._index = Index.beginning(first.place)

    async def _stored(self, start: int, stop: int | None) -> Events:
        try:
            return await self._found(start, stop)
        except StoreError:
            if len(self._index) == 1:
                raise
        # What was seen before it was durable may have been lost, and others have written
        # there since: no place counts that lies behind it. If it is damage, it is met again.
        self._index = Index.beginning(self._first.place)
        return await self._found(start, stop)

    async def _found(self, start: int, stop: int | None) -> Events:
        wanted = Range(self._index.before(start), start, stop)
        found = await trio.to_thread.run_sync(
            read_range, self._path, self._first, self._extensions, wanted, limiter=self._limiter
        )
        for place in found.places:
            self._index.add(place)
        return found.events


class JsonlStore:
    """A folder of sessions. It is made, for its owner only, with the first session.

    Args:
        directory: Where the files are. Nothing else should be kept there.
        layout: How new sessions are kept. ``"plain"`` is one event a line, for `grep` and for
            programs that know nothing of Terzetto. ``"packed"`` has the chunks of an answer
            in few lines, and a checksum in each line. ``"zstd"`` is packed and compressed,
            with checksums; it needs the extra ``zstd``. Each file says its own layout: a
            store opens all of them, and goes on in the one that the file has.
        extensions: Names of the `Extension` events that the program knows. A log with
            others opens only when they are ignorable.

    Raises:
        InvalidValue: there is no such layout.
        UsageError: it is not installed; or this system locks no files.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        layout: LayoutName = "plain",
        extensions: Collection[str] = (),
    ) -> None:
        require_posix("JsonlStore")
        if layout not in LAYOUTS:
            raise InvalidValue(f"layout: expected one of {', '.join(LAYOUTS)}, got {layout!r}")
        if layout == "zstd":
            require_zstd()
        self._layout: LayoutName = layout
        self._directory = Path(directory).absolute()
        self._extensions = frozenset(extensions)
        self._limiter = slots(_THREADS)

    def __repr__(self) -> str:
        layout = "" if self._layout == "plain" else f", layout={self._layout!r}"
        return f"JsonlStore({str(self._directory)!r}{layout})"

    async def create(self, header: SessionHeader) -> JsonlHandle:
        path = self._directory / file_name(header.id)
        return JsonlHandle(
            path,
            await trio.to_thread.run_sync(
                create_log, path, header, LAYOUTS[self._layout], limiter=self._limiter
            ),
            self._limiter,
        )

    @overload
    async def open(self, session_id: str, mode: Literal["write"] = "write") -> JsonlHandle: ...

    @overload
    async def open(self, session_id: str, mode: Literal["read"]) -> JsonlReader: ...

    async def open(self, session_id: str, mode: OpenMode = "write") -> JsonlHandle | JsonlReader:
        path = self._directory / file_name(session_id)
        check_mode(mode)
        if mode == "read":
            first = await trio.to_thread.run_sync(look_at, path, session_id, limiter=self._limiter)
            return JsonlReader(path, first, self._extensions, self._limiter)
        opened = await trio.to_thread.run_sync(
            open_log, path, session_id, self._extensions, limiter=self._limiter
        )
        return JsonlHandle(path, opened, self._limiter)

    async def read(self, session_id: str, start: int = 0) -> tuple[SessionHeader, Events]:
        path = self._directory / file_name(session_id)
        check_start(start)
        return await trio.to_thread.run_sync(
            read_log, path, session_id, self._extensions, start, limiter=self._limiter
        )

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

    def _is_reader(handle: JsonlReader) -> ReadHandle:
        return handle
