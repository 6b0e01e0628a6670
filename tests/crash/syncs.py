"""What a power cut takes: bytes that were written, and not synced.

A kill leaves all that was written to the system, a power cut only what was synced. So a
process notes how long each file was when it was last synced, and after its death the file
is cut there, or a little later: some of the rest may have been written as well.

The databases' log is never carried over here, so that it only grows. That SQLite syncs it
with every commit is taken for granted: nothing can stand before its own calls.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from tests.crash.ledger import Ledger

from terzetto.stores import _sqlite_file, _sqlite_jobs


def note_syncs(ledger: Ledger) -> None:
    """Note each sync of this process, when it is done."""
    real_sync, real_commit, real_connect = os.fdatasync, _sqlite_jobs.commit, _sqlite_file.connect

    def fdatasync(fd: int) -> None:
        size = os.fstat(fd).st_size
        real_sync(fd)
        ledger.synced(os.readlink(f"/proc/self/fd/{fd}"), size)

    def commit(connection: sqlite3.Connection) -> None:
        real_commit(connection)
        (_, _, path) = connection.execute("PRAGMA database_list").fetchone()
        ledger.synced(f"{path}-wal", Path(f"{path}-wal").stat().st_size)

    def connect(path: Path) -> sqlite3.Connection:
        connection = real_connect(path)
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    os.fdatasync = fdatasync
    _sqlite_jobs.commit = commit
    _sqlite_file.connect = connect


def files_of(folder: Path) -> dict[Path, int]:
    """The files that are cut, and how long they are."""
    found = [*folder.rglob("*.jsonl"), *folder.rglob("*-wal")]
    return {path: path.stat().st_size for path in found}


def cut_power(
    folder: Path, before: Mapping[Path, int], synced: Mapping[str, int], chance: random.Random
) -> int:
    """Cut what a killed process had written and not synced; how many bytes that were.

    Args:
        before: The files and sizes that it found, all of which was durable.
        synced: The sizes that it synced.
    """
    lost = 0
    for path, size in files_of(folder).items():
        kept = synced.get(str(path), before.get(path, 0))
        if kept < size:
            end = chance.choice((kept, kept, chance.randint(kept, size)))
            os.truncate(path, end)
            lost += size - end
    return lost
