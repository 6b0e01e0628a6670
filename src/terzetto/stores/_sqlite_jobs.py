"""What is written to the database of a `SqliteStore`: jobs, and the transaction they share.

Blocking; runs in threads, one at a time for each store. A job fails alone, unless the
transaction does.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias

from attrs import define, field

from ..session._codec import dumps_event, dumps_json, encode_header
from ..vocabulary import (
    CorruptLog,
    Event,
    InvalidValue,
    SessionExists,
    SessionHeader,
    StoreError,
)
from ._sqlite_file import called, failing, not_found, open_to_write, places

Failures: TypeAlias = list[Exception | None]
_ALL = "the database"
_STATE = (
    "SELECT (SELECT coalesce(max(seq) + 1, 0) FROM event WHERE session = ?)"
    " FROM session WHERE number = ? AND id = ?"
)
_STORED = "SELECT record FROM event WHERE session = ? AND seq >= ? ORDER BY seq"
_MISPLACED = "somebody has removed or replaced the database; what was stored before is in its file"


class Job(Protocol):
    """A change of one session."""

    @property
    def session_id(self) -> str: ...

    def prepare(self) -> None:
        """What can be done before the database is locked.

        Raises:
            StoreError, InvalidValue: it cannot be done at all.
        """
        ...

    def run(self, connection: sqlite3.Connection) -> None:
        """Inside the transaction. What it raises undoes this job only."""
        ...

    @property
    def suspect(self) -> bool:
        """Whether it found done what was never acknowledged, and so may not be durable."""
        ...


@define(eq=False)
class Create:
    """A session without events. *number* is its row's once it has run."""

    header: SessionHeader
    number: int = field(default=0, init=False)
    suspect: bool = field(default=False, init=False)
    _data: bytes = field(default=b"", init=False)

    @property
    def session_id(self) -> str:
        return self.header.id

    def prepare(self) -> None:
        self._data = dumps_json(encode_header(self.header))

    def run(self, connection: sqlite3.Connection) -> None:
        query = "INSERT INTO session (id, created_ms, header) VALUES (?, ?, ?)"
        values = (self.header.id, self.header.created_ms, self._data)
        try:
            number = connection.execute(query, values).lastrowid
        except sqlite3.IntegrityError as error:
            exists = f"there is a session {self.header.id!r} already"
            raise SessionExists(exists) from error
        assert number is not None
        self.number = number


@define(eq=False)
class Delete:
    """The end of a session, its events included."""

    session_id: str
    suspect: bool = field(default=False, init=False)

    def prepare(self) -> None:
        pass

    def run(self, connection: sqlite3.Connection) -> None:
        query = "DELETE FROM session WHERE id = ?"
        if connection.execute(query, (self.session_id,)).rowcount == 0:
            raise not_found(self.session_id)


@define(eq=False)
class Append:
    """*events* for the session in row *number*, after the *durable* ones that it has.

    Done again it does nothing: a commit of which nobody knew how it ended may have stored
    them, or some of them.
    """

    session_id: str
    number: int
    durable: int
    events: Sequence[Event]
    suspect: bool = field(default=False, init=False)
    _records: list[bytes] = field(factory=list, init=False)

    def prepare(self) -> None:
        try:
            self._records = [dumps_event(event) for event in self.events]
        except InvalidValue as error:
            raise StoreError(f"{called(self.session_id)}: {error}") from error

    def run(self, connection: sqlite3.Connection) -> None:
        row = connection.execute(_STATE, (self.number, self.number, self.session_id)).fetchone()
        if row is None:
            raise StoreError(f"{called(self.session_id)}: somebody has removed the session")
        (count,) = row
        found: list[bytes] = []
        if count > self.durable:
            values = (self.number, self.durable)
            found = [record for (record,) in connection.execute(_STORED, values)]
        if count != self.durable + len(found) or found != self._records[: len(found)]:
            raise StoreError(
                f"{called(self.session_id)}: the log had {self.durable} events and has {count}; "
                "somebody else has changed it"
            )
        self.suspect = bool(found)
        connection.executemany(
            "INSERT INTO event (session, seq, crc, record) VALUES (?, ?, ?, ?)",
            (
                (self.number, seq, zlib.crc32(record), record)
                for seq, record in enumerate(self._records[len(found) :], count)
            ),
        )


@define(eq=False)
class Writer:
    """The one writing connection of a store. Opened when it is needed, dropped after a
    transaction that failed: what then is true is what the next one finds."""

    path: Path
    checked: bool = False
    _connection: sqlite3.Connection | None = field(default=None, init=False)
    _places: tuple[object, ...] = field(default=(), init=False)

    @property
    def open(self) -> bool:
        return self._connection is not None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):  # everything that counts is committed
                connection.close()

    def transact(self, jobs: Sequence[Job]) -> Failures:
        """Do *jobs* in one transaction, durably; for each what it failed with, or None."""
        failures: Failures = [self._prepare(job) for job in jobs]
        if None not in failures:
            return failures
        for index, failure in enumerate(self._written(jobs, failures)):
            failures[index] = failure
        return failures

    def _prepare(self, job: Job) -> Exception | None:
        try:
            job.prepare()
        except (StoreError, InvalidValue) as error:
            return error
        return None

    def _written(self, jobs: Sequence[Job], failures: Failures) -> Failures:
        try:
            with failing(_ALL, "opening"):
                connection = self._open(any(isinstance(job, Create) for job in jobs))
            with failing(_ALL, "writing"):
                found = self._committed(connection, jobs, failures)
                if places(self.path) != self._places:
                    raise StoreError(_MISPLACED)
        except StoreError as error:
            self.close()
            return [_told(job, error, own) for job, own in zip(jobs, failures, strict=True)]
        except BaseException:
            self.close()
            raise
        return found

    def _open(self, create: bool) -> sqlite3.Connection:
        if self._connection is None:
            opened = open_to_write(self.path, create=create, check=not self.checked)
            self.checked = True
            self._connection = opened
            self._places = places(self.path)
        return self._connection

    def _committed(
        self, connection: sqlite3.Connection, jobs: Sequence[Job], failures: Failures
    ) -> Failures:
        found = list(failures)
        todo = [index for index, failure in enumerate(failures) if failure is None]
        connection.execute("BEGIN IMMEDIATE")
        try:
            for index in todo:
                _run(connection, jobs[index])
        except StoreError as error:
            if _ends_all(connection, error):
                raise
            # Rare, so that nobody pays for it before: all again, each undone by itself.
            connection.execute("ROLLBACK")
            connection.execute("BEGIN IMMEDIATE")
            for index in todo:
                found[index] = _alone(connection, jobs[index])
        commit(connection)
        if any(job.suspect for job in jobs):
            # Their pages may be in a cache whose sync failed; copied, they are synced anew.
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            if busy:
                raise StoreError("the database: somebody reads what has to be copied")
        return found


def commit(connection: sqlite3.Connection) -> None:
    """Where a transaction becomes durable: one sync, however many jobs are in it."""
    connection.execute("COMMIT")


def _run(connection: sqlite3.Connection, job: Job) -> None:
    with failing(called(job.session_id), "writing"):
        job.run(connection)


def _alone(connection: sqlite3.Connection, job: Job) -> Exception | None:
    """Run *job*; what it failed with after being undone. Raises what ended the transaction."""
    connection.execute("SAVEPOINT job")
    try:
        _run(connection, job)
    except StoreError as error:
        if _ends_all(connection, error):
            raise
        connection.execute("ROLLBACK TO job")
        connection.execute("RELEASE job")
        return error
    connection.execute("RELEASE job")
    return None


def _ends_all(connection: sqlite3.Connection, error: StoreError) -> bool:
    """Whether it is the disk that failed, and not what one job asked for."""
    cause = error.__cause__
    return (
        not connection.in_transaction
        or isinstance(cause, OSError)
        or (
            isinstance(cause, sqlite3.DatabaseError)
            and not isinstance(cause, sqlite3.IntegrityError | sqlite3.DataError)
        )
    )


def _told(job: Job, error: StoreError, own: Exception | None) -> Exception:
    """The failure of a whole transaction, for one of its sessions."""
    if own is not None:
        return own
    text = str(error).removeprefix(f"{_ALL}: ")
    if isinstance(error, CorruptLog):
        told: StoreError = CorruptLog(text, called(job.session_id))
    else:
        told = StoreError(f"{called(job.session_id)}: {text}")
    told.__cause__ = error.__cause__ or error
    return told
