"""The database: what is in it, damage, other programs' and versions' files, and ownership.

What all stores promise is tested in `test_stores.py`, failing disks in `test_sqlite_faults.py`.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.stores.kit import BAD_IDS, HEADER, filled, turn

import terzetto
from terzetto.session._codec import dumps_event
from terzetto.stores import _sqlite_file
from terzetto.stores.sqlite import SqliteStatistics, SqliteStore
from terzetto.vocabulary import (
    CorruptLog,
    InvalidValue,
    SessionExists,
    SessionHeader,
    SessionId,
    SessionLocked,
    SessionNotFound,
    StoreError,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "in" / "sessions.db"


@pytest.fixture
def store(file: Path) -> SqliteStore:
    return SqliteStore(file)


@contextmanager
def sql(file: Path) -> Iterator[sqlite3.Connection]:
    """The database as another program sees it."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        yield connection


async def test_what_is_in_the_database(store: SqliteStore, file: Path) -> None:
    await (await filled(store, 2)).close()
    with sql(file) as db:
        assert db.execute("SELECT id, created_ms, header FROM session").fetchall() == [
            ("s", 5, b'{"formatVersion":1,"id":"s","createdMs":5,"durability":"step"}')
        ]
        assert db.execute("SELECT seq, record FROM event ORDER BY seq").fetchall() == [
            (0, dumps_event(turn(0))),
            (1, dumps_event(turn(1))),
        ]
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        assert db.execute("PRAGMA application_id").fetchone() == (int.from_bytes(b"tert", "big"),)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []


async def test_only_the_owner_of_the_files_may_read_them(store: SqliteStore, file: Path) -> None:
    before = os.umask(0)
    try:
        handle = await filled(store, 1)
    finally:
        os.umask(before)
    found = {
        path.relative_to(file.parent).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in file.parent.rglob("*")
    }
    assert found == {
        "sessions.db": 0o600,
        "sessions.db-wal": 0o600,
        "sessions.db-shm": 0o600,
        "sessions.db-locks": 0o700,
        "sessions.db-locks/.making": 0o600,
        "sessions.db-locks/s.lock": 0o600,
    }
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    await handle.close()
    assert {path.name for path in file.parent.rglob("*")} == {
        "sessions.db",
        "sessions.db-locks",
        ".making",
    }


async def test_making_a_store_and_looking_touch_nothing(store: SqliteStore, tmp_path: Path) -> None:
    assert await store.list() == []
    for attempt in (store.open, store.read, store.delete):
        with pytest.raises(SessionNotFound):
            await attempt("s")
    assert store.locate("A b") == f"{tmp_path / 'in' / 'sessions.db'}#A b"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a?mode=memory&x#y", "100% %41", "s\u00e9\u20ac s", "'; --"])
async def test_any_name_of_a_file_will_do(tmp_path: Path, name: str) -> None:
    store = SqliteStore(tmp_path / name)
    await (await filled(store, 1)).close()
    assert sorted(os.listdir(tmp_path)) == sorted([name, f"{name}-locks"])
    assert await store.list() == [HEADER]


@pytest.mark.parametrize(
    "odd", ["'; DROP TABLE session; --", "%", "a_b", "S", "s ", "\u00e9", "e\u0301", "-- ", '"x"']
)
async def test_ids_are_values_and_never_sql(store: SqliteStore, file: Path, odd: str) -> None:
    """BC-48"""
    await (await filled(store, 1)).close()
    header = SessionHeader(id=SessionId(odd), created_ms=9)
    handle = await filled(store, 2, header)
    with pytest.raises(SessionLocked):
        await store.open(odd)
    await (await store.open("s")).close()
    await handle.close()
    assert await store.list() == [HEADER, header]
    assert (await store.read(odd))[1] == [turn(0), turn(1)]
    await store.delete(odd)
    assert await store.list() == [HEADER]
    assert {path.parent for path in file.parent.rglob("*.lock")} <= {
        file.with_name("sessions.db-locks")
    }


@pytest.mark.parametrize("bad", BAD_IDS)
async def test_ids_that_no_file_can_have_are_refused_first(
    store: SqliteStore, tmp_path: Path, bad: str
) -> None:
    """BC-48"""
    for attempt in (
        lambda: store.create(SessionHeader(id=SessionId(bad), created_ms=0)),
        lambda: store.open(bad),
        lambda: store.read(bad),
        lambda: store.delete(bad),
    ):
        with pytest.raises(InvalidValue, match="session id") as caught:
            await attempt()
        assert str(tmp_path) not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# --- laws held by the database itself ---------------------------------------------------


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ("INSERT INTO event VALUES (1, 2, 0, x'')", "UNIQUE|not the next one"),
        ("INSERT INTO event VALUES (1, 4, 0, x'')", "not the next one"),
        ("INSERT INTO event VALUES (1, 1, 0, x'')", "UNIQUE|not the next one"),
        ("INSERT INTO event VALUES (1, -1, 0, x'')", "not the next one|CHECK"),
        ("INSERT INTO event VALUES (1, 3, 0, 'text')", "CHECK"),
        ("INSERT INTO event VALUES (9, 0, 0, x'')", "FOREIGN KEY"),
        ("UPDATE event SET record = x''", "never changed"),
        ("DELETE FROM event WHERE seq = 2", "with their session only"),
        ("INSERT INTO session VALUES (2, 's', 0, x'')", "UNIQUE"),
    ],
)
async def test_the_database_refuses_what_no_log_does(
    store: SqliteStore, file: Path, change: str, law: str
) -> None:
    """C148: append-only, contiguous seq."""
    await (await filled(store, 3)).close()
    with sql(file) as db:
        db.execute("PRAGMA foreign_keys = ON")
        with pytest.raises(sqlite3.IntegrityError, match=law):
            db.execute(change)
    assert (await store.read("s"))[1] == [turn(seq) for seq in range(3)]


async def test_a_new_session_of_an_old_id_is_another_one(store: SqliteStore, file: Path) -> None:
    """A writer whose session was removed under it cannot write into its successor."""
    handle = await filled(store, 1)
    with sql(file) as db:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("DELETE FROM session")
        db.execute("INSERT INTO session (id, created_ms, header) VALUES ('s', 5, x'00')")
    handle.append(turn(1))
    with pytest.raises(StoreError, match="session 's': somebody has removed the session"):
        await handle.flush()
    with pytest.raises(StoreError):
        await handle.close()
    with sql(file) as db:
        assert db.execute("SELECT count(*) FROM event").fetchone() == (0,)


# --- damage, and what is not ours -------------------------------------------------------


def rewrite(file: Path, change: str, *values: object) -> None:
    """Change what the triggers forbid to change."""
    with sql(file) as db:
        for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            db.execute(f"DROP TRIGGER {trigger}")
        db.execute(change, values)


RENAMED = """UPDATE session SET header = CAST(replace(header, '"s"', '"S"') AS BLOB)"""


@pytest.mark.parametrize(
    ("change", "text", "place"),
    [
        ("UPDATE event SET record = x'7b7d' WHERE seq = 1", "checksum", "event 1"),
        ("UPDATE event SET record = x'7b7d', crc = 2745614147 WHERE seq = 2", "type", "event 2"),
        ("DELETE FROM event WHERE seq = 1", "seq 2 where 1 comes next", "event 1"),
        ("DELETE FROM event WHERE seq = 0 AND session = 1", "seq 1 where 0 comes next", "event 0"),
        ("UPDATE session SET header = x'7b' WHERE id = 's'", "not JSON", "header"),
        (RENAMED, "'S'", "header"),
    ],
)
async def test_damage_is_refused_with_its_session_and_event(
    store: SqliteStore, file: Path, change: str, text: str, place: str
) -> None:
    other = SessionHeader(id=SessionId("t"), created_ms=6)
    await (await filled(store, 3)).close()
    await (await filled(store, 1, other)).close()
    rewrite(file, change)
    for attempt in (store.open, store.read):
        with pytest.raises(CorruptLog, match=text) as caught:
            await attempt("s")
        assert caught.value.position == f"session 's', {place}"
    handle = await store.open("t")  # nobody else is harmed
    handle.append(turn(1))
    await handle.close()
    await store.delete("s")
    assert await store.list() == [other]
    assert not list(file.parent.rglob("*.lock"))


async def test_a_flipped_bit_in_a_text_is_seen(store: SqliteStore, file: Path) -> None:
    """It is still JSON, and only the checksum tells."""
    await (await filled(store, 2)).close()
    data = file.read_bytes()
    assert data.count(b'"time":1001') == 1
    file.write_bytes(data.replace(b'"time":1001', b'"time":1003'))
    with pytest.raises(CorruptLog, match=r"session 's', event 1: .* checksum"):
        await store.read("s")


@pytest.mark.parametrize("fresh_store", [True, False])
async def test_a_broken_page_is_found_before_anything_is_written(
    store: SqliteStore, file: Path, fresh_store: bool
) -> None:
    for name in "abcdefgh":
        header = SessionHeader(id=SessionId(name), created_ms=1)
        await (await filled(store, 40, header)).close()
    size = file.stat().st_size
    with file.open("r+b") as opened:  # the last page: the events of the last sessions
        opened.seek(size - 4096)
        opened.write(b"\xff" * 4096)
    if fresh_store:
        store = SqliteStore(file)
    damaged = file.read_bytes()
    with pytest.raises(CorruptLog, match="damaged"):
        await store.open("h")
    if fresh_store:
        with pytest.raises(CorruptLog, match="damaged"):
            await store.open("a")
        with pytest.raises(CorruptLog, match="damaged"):
            await store.create(HEADER)
    assert (await store.read("a"))[1] == [turn(seq) for seq in range(40)]  # what can be saved
    assert file.read_bytes() == damaged
    assert not list(file.parent.rglob("*.lock"))


async def test_large_databases_are_not_checked_as_a_whole(
    file: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await filled(store, 3)).close()
    asked: list[str] = []
    real = sqlite3.connect

    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = real(*args, **options)
        connection.set_trace_callback(asked.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect)
    again = SqliteStore(file)
    for _ in range(2):
        await (await again.open("s")).close()
    assert sum("quick_check" in text for text in asked) == 1
    monkeypatch.setattr(_sqlite_file, "CHECKED_BYTES", 1)
    await (await SqliteStore(file).open("s")).close()
    assert sum("quick_check" in text for text in asked) == 1


async def test_what_is_no_database_is_left_alone(store: SqliteStore, file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"something of somebody else's\n" * 100)
    before = file.read_bytes()
    for attempt in (
        lambda: store.open("s"),
        lambda: store.read("s"),
        lambda: store.delete("s"),
        lambda: store.create(HEADER),
    ):
        with pytest.raises(CorruptLog, match="not a database"):
            await attempt()
    with pytest.raises(StoreError):
        await store.list()
    assert file.read_bytes() == before


async def test_another_programs_database_is_left_alone(store: SqliteStore, file: Path) -> None:
    file.parent.mkdir()
    with sql(file) as db:
        db.execute("CREATE TABLE session (id)")
    before = file.read_bytes()
    for attempt in (
        lambda: store.open("s"),
        lambda: store.read("s"),
        lambda: store.create(HEADER),
        store.list,
    ):
        with pytest.raises(StoreError, match=r"sessions\.db is the database of another program"):
            await attempt()
    assert file.read_bytes() == before


@pytest.mark.parametrize(("version", "age"), [(2, "newer"), (0, "older"), (-1, "older")])
async def test_another_version_of_the_tables_is_refused_naming_the_direction(
    store: SqliteStore, file: Path, version: int, age: str
) -> None:
    """C155"""
    await (await filled(store, 1)).close()
    with sql(file) as db:
        db.execute(f"PRAGMA user_version = {version}")
    store = SqliteStore(file)
    for attempt in (lambda: store.open("s"), lambda: store.create(HEADER), store.list):
        with pytest.raises(StoreError, match=f"written by a {age} terzetto: format") as caught:
            await attempt()
        assert not isinstance(caught.value, CorruptLog)


@pytest.mark.parametrize(("version", "age"), [(2, "newer"), (0, "older")])
async def test_another_format_of_a_session_is_no_damage(
    store: SqliteStore, file: Path, caplog: pytest.LogCaptureFixture, version: int, age: str
) -> None:
    """C155"""
    await (await filled(store, 1)).close()
    with sql(file) as db:
        db.execute("UPDATE session SET header = ?", (b'{"formatVersion":%d}' % version,))
    with pytest.raises(StoreError, match=f"written by an? {age} terzetto") as caught:
        await store.open("s")
    assert not isinstance(caught.value, CorruptLog)
    assert await store.list() == []
    (told,) = caplog.messages
    assert "session 's' cannot be read: written by a" in told
    assert f"{age} terzetto" in told
    await store.delete("s")


async def test_a_creation_that_died_early_is_no_obstacle(store: SqliteStore, file: Path) -> None:
    file.parent.mkdir()
    file.touch()
    assert await store.list() == []
    with pytest.raises(SessionNotFound):
        await store.open("s")
    await (await filled(store, 1)).close()
    assert (await store.read("s"))[1] == [turn(0)]


# --- ownership --------------------------------------------------------------------------

CHILD = """
import sys, trio
from terzetto.stores.sqlite import SqliteStore
from terzetto.vocabulary import Event, TurnStart

async def main():
    handle = await SqliteStore(sys.argv[1]).open("s")
    handle.append(Event(handle.durable_seq + 1, 0, TurnStart(1)))
    await handle.flush()
    print("ready", flush=True)
    sys.stdin.read()

trio.run(main)
"""


async def line_of(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes]:
    part = b""
    while not part.endswith(b"\n"):
        part = await stream.receive_some()
        assert part, "the child died"
        yield part


async def test_two_processes_never_own_one_session(store: SqliteStore, file: Path) -> None:
    """BC-43"""
    await (await filled(store, 1)).close()
    child = await trio.lowlevel.open_process(
        [sys.executable, "-c", CHILD, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(terzetto.__file__).parents[1])},
    )
    try:
        assert child.stdout is not None
        assert [part async for part in line_of(child.stdout)]
        for attempt in (store.open, store.delete):
            with pytest.raises(SessionLocked, match=f"open for writing in process {child.pid};"):
                await attempt("s")
        with pytest.raises(SessionExists):
            await store.create(HEADER)
        assert len((await store.read("s"))[1]) == 2
        # Other sessions of the same database are free.
        other = await filled(store, 3, SessionHeader(id=SessionId("t"), created_ms=6))
        await other.close()
    finally:
        child.kill()
        await child.wait()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            await pipe.aclose()
    assert list(file.parent.rglob("s.lock"))  # nobody was left to remove it
    handle = await store.open("s")
    assert handle.durable_seq == 1
    with pytest.raises(SessionLocked, match=rf"in this process \({os.getpid()}\)"):
        await store.open("s")
    await handle.close()
    assert not list(file.parent.rglob("*.lock"))


async def test_two_stores_of_one_process_share_locks_and_the_database(
    store: SqliteStore, file: Path
) -> None:
    await (await filled(store, 1)).close()
    second = SqliteStore(file)
    handle = await second.open("s")
    with pytest.raises(SessionLocked):
        await store.open("s")
    other = await filled(store, 1, SessionHeader(id=SessionId("t"), created_ms=6))
    handle.append(turn(1))
    other.append(turn(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle.flush)
        nursery.start_soon(other.flush)
    await handle.close()
    other.append(turn(2))  # the first store's connection outlived the second's
    await other.close()
    assert len((await second.read("t"))[1]) == 3
    assert len((await store.read("s"))[1]) == 2


async def test_ten_stores_make_one_database(file: Path) -> None:
    async def create(number: int) -> None:
        header = SessionHeader(id=SessionId(f"s{number}"), created_ms=number)
        await (await filled(SqliteStore(file), 1, header)).close()

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(create, number)
    assert [header.created_ms for header in await SqliteStore(file).list()] == list(range(10))


async def test_of_many_who_open_at_once_one_gets_it(store: SqliteStore) -> None:
    await (await filled(store, 1)).close()
    handles = []

    async def try_it() -> None:
        try:
            handles.append(await store.open("s"))
        except SessionLocked:
            pass

    for _ in range(5):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(try_it)
        assert len(handles) == 1
        await handles.pop().close()


async def test_nothing_is_left_open(store: SqliteStore, file: Path) -> None:
    async def use() -> None:
        handles = [
            await filled(store, 2, SessionHeader(id=SessionId(name), created_ms=1))
            for name in "abc"
        ]
        for handle in handles:
            await handle.close()
        with pytest.raises(SessionExists):
            await store.create(SessionHeader(id=SessionId("a"), created_ms=1))
        with pytest.raises(SessionNotFound):
            await store.open("x")
        await store.list()
        for name in "abc":
            await store.read(name)
            await store.delete(name)

    await use()  # Trio's own descriptors and threads are there now
    before = sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in descriptors())
    await use()
    assert sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in descriptors()) == before
    assert not file.with_name("sessions.db-wal").exists()
    kept = {thread.name for thread in threading.enumerate()} - {"MainThread"}
    assert all("Trio" in name or "trio" in name for name in kept), kept


def descriptors() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


async def test_statistics_count_commits_and_events(store: SqliteStore) -> None:
    assert store.statistics() == SqliteStatistics(commits=0, events=0)
    handle = await filled(store, 3)
    assert store.statistics() == SqliteStatistics(commits=2, events=3)
    await handle.flush()
    await handle.close()
    assert store.statistics() == SqliteStatistics(commits=2, events=3)
