"""Reading the database of a `SqliteStore`: events by their seqs, headers, and what is wrong.

Blocking; runs in threads. Each read has a connection of its own, which sees one moment of
the database, whoever writes to it.
"""

from __future__ import annotations

import sqlite3
import sys
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TypeVar

from ..session._codec import decode_header, loads_json
from ..vocabulary import (
    CorruptLog,
    Event,
    InvalidValue,
    SessionHeader,
    SessionNotFound,
    StoreError,
)
from ._records import check_record, read_record
from ._sqlite_file import Row, called, failing, find, reading

T = TypeVar("T")


def _each(
    connection: sqlite3.Connection,
    row: Row,
    start: int,
    stop: int | None,
    judge: Callable[[bytes, int], T],
) -> Iterator[T]:
    """What *judge* says of each record with *start* <= seq < *stop*, one after the other.

    Raises `CorruptLog` with session and event.
    """
    query = (
        "SELECT seq, crc, record FROM event WHERE session = ? AND seq >= ? AND seq < ? ORDER BY seq"
    )
    expected = min(start, sys.maxsize)
    end = sys.maxsize if stop is None else min(stop, sys.maxsize)
    try:
        for seq, crc, record in connection.execute(query, (row.number, expected, end)):
            if seq != expected:
                raise InvalidValue(f"seq {seq} where {expected} comes next")
            if zlib.crc32(record) != crc:
                raise InvalidValue(f"event {seq} is not what was written: its checksum is wrong")
            yield judge(record, seq)
            expected += 1
    except InvalidValue as error:
        raise CorruptLog(str(error), f"{called(row.header.id)}, event {expected}") from error


def look_through(connection: sqlite3.Connection, row: Row, extensions: Collection[str]) -> int:
    """How many events a session has, after a look at each record."""
    return sum(
        1 for _ in _each(connection, row, 0, None, lambda r, seq: check_record(r, seq, extensions))
    )


def events_of(
    connection: sqlite3.Connection,
    row: Row,
    extensions: Collection[str],
    start: int = 0,
    stop: int | None = None,
) -> list[Event]:
    """The events with *start* <= seq < *stop*. Raises `CorruptLog` with session and event."""
    return list(_each(connection, row, start, stop, lambda r, seq: read_record(r, seq, extensions)))


def look_at(path: Path, session_id: str) -> Row:
    """The row of a session that somebody may be writing to."""
    with failing(called(session_id), "reading"), reading(path) as connection:
        return find(connection, session_id)


def read_session(
    path: Path, session_id: str, extensions: Collection[str], start: int
) -> tuple[SessionHeader, list[Event]]:
    with failing(called(session_id), "reading"), reading(path) as connection:
        row = find(connection, session_id)
        assert connection is not None
        return row.header, events_of(connection, row, extensions, start)


def read_range(
    path: Path, row: Row, extensions: Collection[str], start: int, stop: int | None
) -> list[Event]:
    """The events in a range. Raises `SessionNotFound` if *row* is not there any more."""
    session_id = row.header.id
    with failing(called(session_id), "reading"), reading(path) as connection:
        query = "SELECT 1 FROM session WHERE number = ? AND id = ?"
        known = connection and connection.execute(query, (row.number, session_id)).fetchone()
        if connection is None or known is None:
            raise SessionNotFound(f"there is no session {session_id!r} any more")
        return events_of(connection, row, extensions, start, stop)


def read_whole_range(
    path: Path, row: Row, extensions: Collection[str], start: int, stop: int
) -> list[Event]:
    """As `read_range`, of events that were durable: none may be missing."""
    events = read_range(path, row, extensions, start, stop)
    if len(events) < stop - start:
        seq = start + len(events)
        raise CorruptLog(f"there is no event {seq}", f"{called(row.header.id)}, event {seq}")
    return events


def read_headers(path: Path) -> tuple[list[SessionHeader], list[str]]:
    """The headers of all sessions, and in words what is wrong with others."""
    headers, faults = [], []
    with failing("the sessions", "listing"), reading(path) as connection:
        rows = connection.execute("SELECT id, header FROM session") if connection else ()
        for session_id, data in rows:
            try:
                header = decode_header(loads_json(data))
                if header.id != session_id:
                    raise InvalidValue(f"it has the header of session {header.id!r}")
                headers.append(header)
            except (InvalidValue, StoreError) as error:
                faults.append(f"{called(session_id)} cannot be read: {error}")
    return headers, faults
