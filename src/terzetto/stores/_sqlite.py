"""Sessions in one SQLite database.

For many sessions at once: flushes that wait at the same time share one transaction and one
sync, whichever sessions they are of. Ownership is a locked file beside the database, so
that it ends with its process; the database itself knows nothing of owners.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, TypeVarTuple, Unpack, overload

import trio
from attrs import frozen

from ..vocabulary import SessionExists, SessionHeader, SessionLocked
from ._base import EVERY, Events, OpenMode, ReadHandle, Store, WriteHandle, check_mode, escape_id
from ._files import give_up, make_directory, owner, require_posix, take
from ._group import Entry, Group
from ._handles import FileHandle, Reading, check_start
from ._slots import slots
from ._sqlite_file import (
    Row,
    called,
    check_whole,
    failing,
    find,
    locks_of,
    reading,
    require,
    sync_log,
)
from ._sqlite_jobs import Append, Create, Delete, Job, Writer
from ._sqlite_read import (
    look_at,
    look_through,
    read_headers,
    read_range,
    read_session,
    read_whole_range,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

logger = logging.getLogger("terzetto")
_THREADS = 8
"""Most reads of one store at once."""


@frozen
class SqliteStatistics:
    """What a store has done so far: *commits* is how often it wrote, each time with one
    sync; *events* is how many became durable."""

    commits: int
    events: int


@frozen
class _Owned:
    """A session that is ours while *fd* is open."""

    lock: Path
    fd: int

    def give_up(self) -> None:
        give_up(self.fd, self.lock)


class SqliteHandle(FileHandle):
    """The `WriteHandle` of a session in a database."""

    def __init__(self, store: SqliteStore, owned: _Owned, row: Row, count: int) -> None:
        super().__init__(row.header, count)
        self._store = store
        self._owned: _Owned | None = owned
        self._row = row
        self._entry: Entry[Job] = Entry(self._job, self._settle)

    @property
    def repaired(self) -> None:
        """None: SQLite itself leaves out a transaction that was cut off."""
        return None

    async def _stored(self, start: int, stop: int) -> Events:
        return await self._store._run(
            read_whole_range, self._store._path, self._row, EVERY, start, stop
        )

    async def _write(self) -> None:
        if self._owned is None:
            raise self._is_closed()
        await self._store._group.perform(self._entry)

    def _job(self) -> Append:
        return Append(
            self.header.id, self._row.number, self.durable_seq + 1, self._buffer.pending()
        )

    def _settle(self, job: Job) -> None:
        assert isinstance(job, Append)
        self._buffer.settle(len(job.events))
        self._store._count += len(job.events)

    @property
    def _owns(self) -> bool:
        return self._owned is not None

    async def _give_up(self) -> None:
        owned, self._owned = self._owned, None
        if owned is not None:
            await self._store._run(owned.give_up)
            await self._store._group.leave()


class SqliteReader(Reading):
    """The `ReadHandle` of a session in a database."""

    def __init__(self, store: SqliteStore, row: Row) -> None:
        super().__init__(row.header)
        self._store = store
        self._row = row

    async def _stored(self, start: int, stop: int | None) -> Events:
        store = self._store
        return await store._run(read_range, store._path, self._row, store._extensions, start, stop)


class SqliteStore:
    """A database of sessions. The file is made, for its owner only, with the first session.

    Args:
        path: The database's file. SQLite keeps two more beside it while it is in use
            (``-wal`` and ``-shm``), and this store a folder of lock files (``-locks``).
        extensions: Names of the `Extension` events that the program knows. A session with
            others opens only when they are ignorable.

    For local file systems on POSIX systems. It has no thread of its own, and nothing is open
    while no session is.
    """

    def __init__(self, path: str | os.PathLike[str], *, extensions: Collection[str] = ()) -> None:
        require_posix("SqliteStore")
        self._path = Path(path).absolute()
        self._extensions = frozenset(extensions)
        self._limiter = slots(_THREADS)
        self._writer = Writer(self._path)
        self._group: Group[Job] = Group(self._writer)
        self._count = 0

    def __repr__(self) -> str:
        return f"SqliteStore({str(self._path)!r})"

    def statistics(self) -> SqliteStatistics:
        """How much was written, in how many commits."""
        return SqliteStatistics(self._group.commits, self._count)

    @trio.lowlevel.enable_ki_protection
    async def create(self, header: SessionHeader) -> SqliteHandle:
        lock = self._lock(header.id)
        job = Create(header)
        self._group.enter()
        try:
            owned = await self._run(self._own_new, lock, header.id)
            try:
                await self._group.perform(Entry(lambda: job, lambda job: None))
            except BaseException:
                owned.give_up()
                raise
        except BaseException:
            await self._group.leave()
            raise
        return SqliteHandle(self, owned, Row(job.number, header), 0)

    @overload
    async def open(self, session_id: str, mode: Literal["write"] = "write") -> SqliteHandle: ...

    @overload
    async def open(self, session_id: str, mode: Literal["read"]) -> SqliteReader: ...

    @trio.lowlevel.enable_ki_protection
    async def open(self, session_id: str, mode: OpenMode = "write") -> SqliteHandle | SqliteReader:
        lock = self._lock(session_id)
        check_mode(mode)
        if mode == "read":
            return SqliteReader(self, await self._run(look_at, self._path, session_id))
        self._group.enter()
        try:
            owned, row, count = await self._run(self._open, lock, session_id)
        except BaseException:
            await self._group.leave()
            raise
        return SqliteHandle(self, owned, row, count)

    async def read(self, session_id: str, start: int = 0) -> tuple[SessionHeader, Events]:
        escape_id(session_id)
        check_start(start)
        return await self._run(read_session, self._path, session_id, self._extensions, start)

    async def list(self) -> list[SessionHeader]:
        headers, faults = await self._run(read_headers, self._path)
        for fault in faults:
            logger.warning("%r: %s", self, fault)
        return sorted(headers, key=lambda header: (header.created_ms, header.id))

    @trio.lowlevel.enable_ki_protection
    async def delete(self, session_id: str) -> None:
        lock = self._lock(session_id)
        self._group.enter()
        try:
            owned = await self._run(self._own_existing, lock, session_id)
            try:
                job = Delete(session_id)
                await self._group.perform(Entry(lambda: job, lambda job: None))
            finally:
                owned.give_up()
        finally:
            await self._group.leave()

    def locate(self, session_id: str) -> str:
        """The database's path, ``#``, and the id."""
        escape_id(session_id)
        return f"{self._path}#{session_id}"

    async def _run(self, fn: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        return await trio.to_thread.run_sync(fn, *args, limiter=self._limiter)

    def _lock(self, session_id: str) -> Path:
        return locks_of(self._path) / f"{escape_id(session_id)}.lock"

    # --- in threads ---------------------------------------------------------------------

    def _own_new(self, lock: Path, session_id: str) -> _Owned:
        with failing(called(session_id), "creating"):
            make_directory(self._path.parent)
            make_directory(lock.parent)
            fd = take(lock)
        if fd is None:
            raise SessionExists(f"there is a session {session_id!r} already")
        return _Owned(lock, fd)

    def _own_existing(self, lock: Path, session_id: str) -> _Owned:
        with failing(called(session_id), "opening"):
            with reading(self._path) as connection:
                require(connection, session_id)
            make_directory(lock.parent)
            fd = take(lock)
        if fd is None:
            raise SessionLocked(
                f"session {session_id!r} is open for writing in {owner(lock)}; "
                "close it there, or end that process"
            )
        return _Owned(lock, fd)

    def _open(self, lock: Path, session_id: str) -> tuple[_Owned, Row, int]:
        owned = self._own_existing(lock, session_id)
        try:
            with failing(called(session_id), "opening"):
                with reading(self._path) as connection:
                    # Found again: its former owner may have deleted it, or written on.
                    row = find(connection, session_id)
                    assert connection is not None
                    if not self._writer.checked:
                        check_whole(connection)
                        self._writer.checked = True
                    count = look_through(connection, row, self._extensions)
                sync_log(self._path)
        except BaseException:
            owned.give_up()
            raise
        return owned, row, count


if TYPE_CHECKING:

    def _is_store(store: SqliteStore) -> Store:
        return store

    def _is_handle(handle: SqliteHandle) -> WriteHandle:
        return handle

    def _is_reader(handle: SqliteReader) -> ReadHandle:
        return handle
