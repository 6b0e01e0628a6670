"""The database of a `SqliteStore`: how it is opened, what is in it, and finding sessions.

Blocking; runs in threads. Sessions are rows of ``session``, events are rows of ``event``
with the same bytes that a line of a JSON-lines log has, and their checksum. Triggers hold
the laws of a log against everybody who writes: seqs are contiguous from 0, and an event is
never changed, nor removed without its session. Writing is in `_sqlite_jobs.py`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from attrs import frozen

from ..session._codec import decode_header, loads_json
from ..vocabulary import (
    CorruptLog,
    InvalidValue,
    SessionHeader,
    SessionNotFound,
    StoreError,
)
from ._files import alone, make_directory, sync, sync_directory

FORMAT = 1
"""Version of the tables. The format of what is in them is each header's own."""
BUSY_SECONDS = 5.0
"""How long another process's write is waited for."""
CHECKED_BYTES = 256 * 1024 * 1024
"""Databases up to this size are checked as a whole when a store first opens a session."""
_WAL_BYTES = 16 * 1024 * 1024
_APPLICATION = 0x74657274  # "tert"

TABLES = (
    """CREATE TABLE session (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE CHECK (typeof(id) = 'text'),
        created_ms INTEGER NOT NULL CHECK (typeof(created_ms) = 'integer'),
        header BLOB NOT NULL CHECK (typeof(header) = 'blob')
    )""",
    """CREATE TABLE event (
        session INTEGER NOT NULL REFERENCES session (number) ON DELETE CASCADE,
        seq INTEGER NOT NULL CHECK (typeof(seq) = 'integer' AND seq >= 0),
        crc INTEGER NOT NULL CHECK (typeof(crc) = 'integer'),
        record BLOB NOT NULL CHECK (typeof(record) = 'blob'),
        PRIMARY KEY (session, seq)
    ) WITHOUT ROWID""",
    """CREATE TRIGGER event_is_next BEFORE INSERT ON event
    WHEN NEW.seq <> (SELECT coalesce(max(seq) + 1, 0) FROM event WHERE session = NEW.session)
    BEGIN SELECT RAISE(ABORT, 'the seq of an event is not the next one'); END""",
    """CREATE TRIGGER event_never_changes BEFORE UPDATE ON event
    BEGIN SELECT RAISE(ABORT, 'an event is never changed'); END""",
    # A session's own deletion removes its row first, then this trigger fires.
    """CREATE TRIGGER event_stays BEFORE DELETE ON event
    WHEN EXISTS (SELECT 1 FROM session WHERE number = OLD.session)
    BEGIN SELECT RAISE(ABORT, 'events go with their session only'); END""",
)

_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
Places: TypeAlias = tuple[tuple[int, int] | None, ...]


@contextmanager
def failing(whose: str, what: str) -> Iterator[None]:
    """The world's failures as `StoreError`, damage as `CorruptLog` at *whose*."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _DAMAGE:
            raise CorruptLog(f"the database is damaged: {error}", whose) from error
        text = "another process is writing all the time" if code in _BUSY else str(error)
        raise StoreError(f"{whose}: {what} failed: {text}") from error
    except OSError as error:
        text = error.strerror or type(error).__name__
        raise StoreError(f"{whose}: {what} failed: {text}") from error


def called(session_id: str) -> str:
    """How errors name a session."""
    return f"session {session_id!r}"


def not_found(session_id: str) -> SessionNotFound:
    return SessionNotFound(f"there is no session {session_id!r}")


# --- opening ----------------------------------------------------------------------------


def connect(path: Path) -> sqlite3.Connection:
    """A connection to a file that exists; it may be used by one thread at a time."""
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",
        uri=True,
        isolation_level=None,
        timeout=BUSY_SECONDS,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """One consistent view of a database that somebody may be writing to. None for one that
    does not exist, or whose creation was never finished.

    Raises `StoreError` for one that is not ours to read.
    """
    if not path.exists():
        yield None
        return
    if not os.access(path.parent, os.W_OK) and not os.path.exists(f"{path}-wal"):
        with looking(path) as found:  # nobody has it open, and SQLite could not make its files
            yield found
        return
    with closing(connect(path)) as connection:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        yield connection if _is_ours(connection, path) else None


@contextmanager
def looking(path: Path) -> Iterator[sqlite3.Connection | None]:
    """As `reading`, for who only looks and leaves every file as it is.

    With nothing in SQLite's log the database alone is read, past all locks; else only the
    index of that log (``-shm``), which is no data, may be made anew.
    """
    alone_enough = not has_log(path)
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if alone_enough else ''}"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        yield connection if _is_ours(connection, path) else None


def has_log(path: Path) -> bool:
    """Whether there is anything in SQLite's log of the database at *path*."""
    try:
        return os.stat(f"{path}-wal").st_size > 0
    except FileNotFoundError:
        return False


def open_to_write(path: Path, *, create: bool, check: bool) -> sqlite3.Connection:
    """A connection for the writer; every commit through it is durable.

    Args:
        create: Whether to make the database, for its owner only, if there is none.
        check: Whether to look for damage first.

    Raises:
        StoreError, CorruptLog, sqlite3.Error, OSError: it cannot be opened.
    """
    if create:
        make_directory(path.parent)
        _make_file(path)
    elif not path.exists():
        raise StoreError("somebody has removed the database")
    connection = connect(path)
    try:
        if not _is_ours(connection, path):
            if not create:
                raise StoreError("somebody has emptied the database")
            _make_tables(connection, path)
        elif check:
            check_whole(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # these two: where fsync stops at a cache
        connection.execute("PRAGMA checkpoint_fullfsync = ON")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _make_file(path: Path) -> None:
    """An empty file, unless there is one. Never opened again by us: closing it would end
    the locks that SQLite has on it in this process."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        sync_directory(path.parent)


def _is_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """False for an empty database; raises `StoreError` for another program's or version's."""
    # In one snapshot: whoever makes the tables at this moment commits all three at once.
    inside = connection.in_transaction
    if not inside:
        connection.execute("BEGIN")
    try:
        application = _pragma(connection, "application_id")
        version = _pragma(connection, "user_version")
        schema = _pragma(connection, "schema_version")
    finally:
        if not inside:
            connection.execute("ROLLBACK")
    if application == _APPLICATION:
        if version == FORMAT:
            return True
        raise StoreError(_other_format(version))
    if application == version == schema == 0:
        return False
    raise StoreError(f"{path.name} is the database of another program; name another file")


def _other_format(version: int) -> str:
    age, remedy = (
        ("newer", "upgrade terzetto")
        if version > FORMAT
        else ("older", "convert it with the version that wrote it")
    )
    return (
        f"the database was written by a {age} terzetto: format {version}, this one reads "
        f"{FORMAT}; {remedy}"
    )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    found: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return found


def _make_tables(connection: sqlite3.Connection, path: Path) -> None:
    # One process at a time: SQLite does not wait when two switch to the log ahead at once.
    with alone(locks_of(path) / ".making"):
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{path.name}: SQLite cannot keep a write-ahead log here")
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not _is_ours(connection, path):
                for table in TABLES:
                    connection.execute(table)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def locks_of(path: Path) -> Path:
    """The folder of the lock files, one for each session that is owned."""
    return path.with_name(f"{path.name}-locks")


def places(path: Path) -> Places:
    """What the three files of an open database are, on their disk: another file in the
    place of one, or none, and nobody will ever read what is written to it."""
    found: list[tuple[int, int] | None] = []
    for suffix in ("", "-wal", "-shm"):
        try:
            state = os.stat(f"{path}{suffix}")
        except OSError:
            found.append(None)
        else:
            found.append((state.st_dev, state.st_ino))
    return tuple(found)


def sync_log(path: Path) -> None:
    """Make sure of what was found committed: a writer may have died before its sync.

    The log alone is enough, for SQLite syncs the database itself before it reuses the log.
    SQLite has no lock on the log that closing it here could end.
    """
    try:
        fd = os.open(f"{path}-wal", os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        sync(fd)
    finally:
        os.close(fd)


def check_whole(connection: sqlite3.Connection) -> None:
    """Raises `CorruptLog` with the place of the first damage, unless the database is large."""
    size = _pragma(connection, "page_count") * _pragma(connection, "page_size")
    if size > CHECKED_BYTES:
        return
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        place, _, text = found.removeprefix("*** in database main ***\n").partition(": ")
        raise CorruptLog(f"the database is damaged: {text or found}", place if text else "page ?")


# --- reading ----------------------------------------------------------------------------


@frozen
class Row:
    """A session as its row has it."""

    number: int
    header: SessionHeader


def find(connection: sqlite3.Connection | None, session_id: str) -> Row:
    """Raises `SessionNotFound`, `CorruptLog`, or `StoreError` for another format."""
    query = "SELECT number, header FROM session WHERE id = ?"
    row = connection.execute(query, (session_id,)).fetchone() if connection else None
    if row is None:
        raise not_found(session_id)
    number, data = row
    try:
        header = decode_header(loads_json(data))
        if header.id != session_id:
            raise InvalidValue(f"the header of session {header.id!r}")
    except InvalidValue as error:
        raise CorruptLog(str(error), f"{called(session_id)}, header") from error
    return Row(number, header)


def require(connection: sqlite3.Connection | None, session_id: str) -> None:
    """As `find`, but of a session that may be unreadable."""
    query = "SELECT 1 FROM session WHERE id = ?"
    if connection is None or connection.execute(query, (session_id,)).fetchone() is None:
        raise not_found(session_id)
