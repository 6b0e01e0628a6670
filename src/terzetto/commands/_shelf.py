"""Sessions where they are kept: a folder of logs or a database, as raw records.

Only reads: no session is owned, no byte of a log changes, nothing is repaired, and what is
damaged is handed on with what is wrong with it. Judging is for `_verify`, meaning for others.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from ..session._codec import decode_header, loads_event, loads_json
from ..stores import JsonlStore, SqliteStore, Store
from ..stores._base import EVERY, escape_id
from ..stores._files import failing
from ..stores._jsonl_file import SUFFIX, file_name
from ..stores._jsonl_layouts import LayoutName
from ..stores._sqlite_file import (
    TABLES,
    failing as failing_in_database,
    has_log,
    locks_of,
    looking,
)
from ..vocabulary import Event, InvalidValue, SessionHeader, StoreError
from ._stored import Fault, Stored, owner_of, read_log_file, unreadable
from ._terminal import CommandError

_SQLITE = b"SQLite format 3\0"


@frozen
class Shelf:
    """Where sessions are kept."""

    path: Path
    database: bool

    def all(self) -> Iterator[Stored]:
        """Every session, and every file that should be one."""
        if self.database:
            yield from _rows(self.path, None)
            return
        with failing(str(self.path), "reading"):
            names = sorted(name for name in os.listdir(self.path) if name.endswith(SUFFIX))
        for name in names:
            try:
                yield read_log_file(self.path / name)
            except FileNotFoundError:  # deleted meanwhile
                continue
            except StoreError as error:
                yield unreadable(self.path / name, error)

    def ids(self) -> list[str]:
        """The ids, as far as their names tell."""
        if self.database:
            return [one.name for one in self.all()]
        return sorted(one.stem for one in self.path.glob(f"*{SUFFIX}"))

    def find(self, session_id: str) -> Stored:
        """Raises `CommandError` if there is none of this id."""
        try:
            name = file_name(session_id)
        except InvalidValue as error:
            raise CommandError(str(error), 2) from error
        if not self.database:
            with suppress(FileNotFoundError):
                return read_log_file(self.path / name)
        for one in _rows(self.path, session_id) if self.database else ():
            return one
        raise CommandError(self._missing(session_id))

    def _missing(self, session_id: str) -> str:
        said = f"there is no session {session_id!r} in {str(self.path)!r}"
        names = self.ids()
        if not names:
            return f"{said}, nor any other"
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        return f"{said}; there are: {', '.join(names[:5])}{more}"

    def store(self, layout: LayoutName = "plain") -> Store:
        """The store that writes here, log files in this *layout*."""
        if self.database:
            return SqliteStore(self.path)
        return JsonlStore(self.path, layout=layout)


def open_shelf(path: Path) -> Shelf:
    """The folder or the database at *path*. Raises `CommandError` if it is neither."""
    if path.is_dir():
        return Shelf(path, database=False)
    if not path.exists():
        raise CommandError(
            f"there is no folder {str(path)!r} to look for sessions in; "
            "name it, or a database, with --log, or give the path of a log"
        )
    if not is_database(path):
        raise CommandError(f"--log: expected a folder or a database, got the file {str(path)!r}")
    return Shelf(path, database=True)


def is_database(path: Path) -> bool:
    """Whether *path* is a file of SQLite."""
    with failing(str(path), "reading"):
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE


def is_path(session: str) -> bool:
    """Whether *session* is the path of a log, not an id."""
    return "/" in session or session.endswith(SUFFIX)


def find(session: str, folder: Path) -> tuple[Stored, Shelf]:
    """The session that *session* names, an id or a path, and where it is kept.

    A path is that of a log file, or a database's with ``#`` and the id.
    """
    if not is_path(session):
        shelf = open_shelf(folder)
        return shelf.find(session), shelf
    path = Path(session)
    database, hash_sign, session_id = session.rpartition("#")
    if hash_sign and not path.exists() and is_database(Path(database)):
        shelf = Shelf(Path(database), database=True)
        return shelf.find(session_id), shelf
    if path.is_dir():
        raise CommandError(f"expected a log, got the folder {session!r}")
    if is_database(path):
        raise CommandError(f"{session!r} is a database; name a session of it with --log {session}")
    try:
        return read_log_file(path), Shelf(path.parent, database=False)
    except FileNotFoundError:
        raise CommandError(f"there is no file {session!r}") from None


# --- databases --------------------------------------------------------------------------


def _rows(path: Path, session_id: str | None) -> list[Stored]:
    """All sessions in the database at *path*, or the one of this id."""
    alone = not has_log(path)
    found = _read_rows(path, session_id)
    if alone and has_log(path):  # somebody has begun to write: what was read may be half of it
        found = _read_rows(path, session_id)
    return found


def _read_rows(path: Path, session_id: str | None) -> list[Stored]:
    query = "SELECT number, id, header FROM session"
    found = []
    with failing_in_database(str(path), "reading"), looking(path) as connection:
        if connection is None:
            return []
        some, values = (" WHERE id = ?", (session_id,)) if session_id is not None else ("", ())
        for number, name, head in connection.execute(query + some, values).fetchall():
            header = head if isinstance(head, bytes) else b""
            rows = connection.execute(
                "SELECT seq, crc, record FROM event WHERE session = ? ORDER BY seq", (number,)
            )
            found.append(_row(path, str(name), header, rows))
    return found


def _row(path: Path, name: str, header: bytes, rows: Iterator[tuple[int, int, bytes]]) -> Stored:
    records: list[bytes] = []
    seqs: list[int] = []
    faults: list[Fault] = []
    for seq, crc, row in rows:
        record = row if isinstance(row, bytes) else b""  # of a damaged page it may be anything
        if seq != len(records):
            faults.append((f"event {seq}", f"event {len(records)} should come here"))
        if zlib.crc32(record) != crc:
            faults.append((f"event {seq}", "it is not what was written: its checksum is wrong"))
        records.append(record)
        seqs.append(seq)
    with suppress(InvalidValue, StoreError):
        found = decode_header(loads_json(header)).id
        if found != name:
            faults.insert(0, ("header", f"the header of session {found!r} in this place"))
    try:
        owner = owner_of(locks_of(path) / f"{escape_id(name)}.lock")
    except InvalidValue as error:
        owner = None
        faults.append(("header", str(error)))
    return Stored(
        name=name,
        where=f"{path}#{name}",
        header=header,
        records=records,
        place=lambda index: f"event {seqs[index] if index < len(seqs) else len(seqs)}",
        size=len(header) + sum(map(len, records)),
        faults=tuple(faults),
        owner=owner,
    )


def database_fault(path: Path) -> Fault | None:
    """What SQLite itself finds wrong with the whole file."""
    try:
        with failing_in_database(str(path), "reading"), looking(path) as connection:
            if connection is not None:
                (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
                if found != "ok":
                    return "database", str(found)
                query = (
                    "SELECT sql FROM sqlite_schema "
                    "WHERE sql IS NOT NULL AND name <> 'sqlite_sequence'"
                )
                if {sql for (sql,) in connection.execute(query)} != set(TABLES):
                    return "database", "its tables and triggers are not as a store makes them"
    except StoreError as error:
        return "database", str(error)
    return None


# --- what is in it ----------------------------------------------------------------------


def decoded(stored: Stored) -> tuple[SessionHeader, list[Event]]:
    """The header and the intact events. Raises `CommandError` where it is damaged."""
    what = f"{stored.where!r} is damaged, or no log of Terzetto"
    for where, fault in stored.faults:
        raise CommandError(f"{what}: {where}: {fault}")
    where = "line 1, byte 0" if stored.where.endswith(SUFFIX) else "header"
    events: list[Event] = []
    try:
        header = decode_header(loads_json(stored.header))
        for seq, record in enumerate(stored.records):
            where = stored.place(seq)
            event = loads_event(record, seq_hint=seq, extensions=EVERY)
            if event.seq != seq:
                raise InvalidValue(f"seq {event.seq} where {seq} comes next")
            events.append(event)
    except InvalidValue as error:
        raise CommandError(f"{what}: {where}: {error}") from error
    return header, events
