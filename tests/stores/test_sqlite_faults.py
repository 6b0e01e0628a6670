"""A database whose disk fails, is full, or goes away; sharing of commits; cancellation."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import define, field
from tests.stores.kit import HEADER, filled, turn

from terzetto.stores import WriteHandle, _sqlite_file, _sqlite_jobs
from terzetto.stores.sqlite import SqliteStore
from terzetto.vocabulary import (
    Event,
    SessionHeader,
    SessionId,
    SessionNotFound,
    StoreError,
    TextBlock,
    TurnStart,
    UsageError,
    UserMessage,
    UserMessageEvent,
)

REAL_COMMIT, REAL_SYNC = _sqlite_jobs.commit, _sqlite_file.sync


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "in" / "sessions.db"


@pytest.fixture
def store(file: Path) -> SqliteStore:
    return SqliteStore(file)


def fill(handle: WriteHandle, *seqs: int) -> None:
    for seq in seqs:
        handle.append(turn(seq))


def header(name: str) -> SessionHeader:
    return SessionHeader(id=SessionId(name), created_ms=1)


async def stored(store: SqliteStore, session_id: str = "s") -> list[int]:
    """The seqs that another store reads, each with what was appended for it."""
    _, events = await SqliteStore(store.locate("x").removesuffix("#x")).read(session_id)
    assert events == [turn(event.seq) for event in events]
    return [event.seq for event in events]


@define
class Disk:
    """Stands before the commit: counts, fails before or after it, or stops until told."""

    commits: int = 0
    fail_before: Exception | None = None
    fail_after: Exception | None = None
    fails_once: bool = False
    hold: bool = False
    interrupt: bool = False
    entered: trio.Event = field(factory=trio.Event)
    leave: threading.Event = field(factory=threading.Event)

    def commit(self, connection: sqlite3.Connection) -> None:
        self.commits += 1
        if self.hold:
            trio.from_thread.run_sync(self.entered.set)
            assert self.leave.wait(30)
        if self.interrupt:
            self.interrupt = False
            os.kill(os.getpid(), signal.SIGINT)
        before, after = self.fail_before, self.fail_after
        if self.fails_once:
            self.heal()
        if before is not None:
            raise before
        REAL_COMMIT(connection)
        if after is not None:
            raise after

    def heal(self) -> None:
        self.fail_before = self.fail_after = None


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(_sqlite_jobs, "commit", disk.commit)
    yield disk
    disk.leave.set()


def full() -> Exception:
    return sqlite3.OperationalError("database or disk is full")


def broken() -> Exception:
    return OSError(errno.EIO, os.strerror(errno.EIO))


# --- failures ---------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["fail_before", "fail_after"])
@pytest.mark.parametrize("fault", [full, broken])
async def test_a_failed_commit_is_told_and_made_good_later(
    store: SqliteStore, disk: Disk, when: str, fault: Callable[[], Exception]
) -> None:
    """BC-47. What was committed although the commit failed is not stored twice."""
    handle = await filled(store, 2)
    fill(handle, 2, 3)
    setattr(disk, when, fault())
    for _ in range(3):
        with pytest.raises(StoreError, match=r"^session 's': writing failed: ") as caught:
            await handle.flush()
        assert isinstance(caught.value.__cause__, type(fault()))
        assert handle.durable_seq == 1
        fill(handle, handle._buffer.next_seq)
    assert await stored(store) == ([0, 1] if when == "fail_before" else [0, 1, 2, 3, 4, 5])
    disk.heal()
    await handle.flush()
    assert handle.durable_seq == 6
    assert await stored(store) == list(range(7))
    fill(handle, 7)
    await handle.close()
    again = await store.open("s")
    assert [event.seq for event in await again.read()] == list(range(8))
    await again.close()


async def test_what_a_failed_commit_stored_is_synced_anew(
    store: SqliteStore, file: Path, disk: Disk, tmp_path: Path
) -> None:
    """C148: found done, it may be in a cache whose sync failed; so it is copied once more."""
    handle = await filled(store, 2)
    with closing(sqlite3.connect(file)) as other:  # the last one to close would copy it, too
        other.execute("SELECT count(*) FROM event").fetchone()
        fill(handle, 2, 3)
        disk.fail_after = broken()
        with pytest.raises(StoreError):
            await handle.flush()
        disk.heal()
        await handle.flush()
        assert handle.durable_seq == 3
        alone = tmp_path / "without the log.db"
        shutil.copy(file, alone)
        with closing(sqlite3.connect(alone)) as copy:
            assert copy.execute("SELECT count(*) FROM event").fetchone() == (4,)
    await handle.close()


async def test_closing_reports_a_failure_and_lets_go(store: SqliteStore, disk: Disk) -> None:
    handle = await filled(store, 1)
    fill(handle, 1)
    disk.fail_before = full()
    with pytest.raises(StoreError):
        await handle.close()
    assert handle.durable_seq == 0
    await handle.close()
    with pytest.raises(UsageError):
        await handle.flush()
    disk.heal()
    again = await store.open("s")
    assert await again.read() == [turn(0)]
    await again.close()


async def test_a_creation_or_deletion_that_fails_can_be_tried_again(
    store: SqliteStore, disk: Disk
) -> None:
    disk.fail_before = full()
    with pytest.raises(StoreError, match="session 's': writing failed"):
        await store.create(HEADER)
    assert await store.list() == []
    with pytest.raises(SessionNotFound):
        await store.open("s")
    disk.heal()
    await (await store.create(HEADER)).close()
    disk.fail_before = broken()
    with pytest.raises(StoreError):
        await store.delete("s")
    disk.heal()
    assert await store.read("s") == (HEADER, [])
    await store.delete("s")
    assert await store.list() == []


async def test_one_sessions_fault_is_not_the_others(store: SqliteStore, disk: Disk) -> None:
    """They shared a commit."""
    good, odd, gone = [await filled(store, 1, header(name)) for name in ("good", "odd", "gone")]
    with closing(sqlite3.connect(store._path)) as db, db:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("DELETE FROM session WHERE id = 'gone'")
    fill(good, 1)
    odd.append(Event(1, 0, TurnStart("one")))  # type: ignore[arg-type]
    fill(gone, 1)
    outcomes: dict[str, str] = {}

    async def flush(handle: WriteHandle) -> None:
        try:
            await handle.flush()
            outcomes[handle.header.id] = "durable"
        except StoreError as error:
            outcomes[handle.header.id] = str(error)

    disk.commits = 0
    async with trio.open_nursery() as nursery:
        for handle in (good, odd, gone):
            nursery.start_soon(flush, handle)
    assert disk.commits == 1
    assert outcomes["good"] == "durable"
    assert "event 1 (TurnStart) cannot be written" in outcomes["odd"]
    assert "removed the session" in outcomes["gone"]
    assert await stored(store, "good") == [0, 1]
    assert await stored(store, "odd") == [0]
    await good.close()
    for handle in (odd, gone):
        with pytest.raises(StoreError):
            await handle.close()


@pytest.mark.parametrize("what", ["file", "folder", "log", "index"])
async def test_what_is_moved_away_is_missed_and_may_come_back(
    store: SqliteStore, file: Path, tmp_path: Path, what: str
) -> None:
    """BC-47: a write to a file that nobody can find does not count."""
    source = {
        "file": file,
        "folder": file.parent,
        "log": file.with_name("sessions.db-wal"),
        "index": file.with_name("sessions.db-shm"),
    }[what]
    handle = await filled(store, 2)
    source.rename(tmp_path / "elsewhere")
    fill(handle, 2)
    with pytest.raises(StoreError, match=r"session 's'.*somebody has removed"):
        await handle.flush()
    assert handle.durable_seq == 1
    if what in ("file", "folder"):
        with pytest.raises(StoreError, match="somebody has removed the database"):
            await handle.flush()
        assert not file.exists()  # no second database is begun
        (tmp_path / "elsewhere").rename(source)
    fill(handle, 3)
    await handle.flush()
    assert handle.durable_seq == 3
    assert await stored(store) == [0, 1, 2, 3]
    await handle.close()
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_another_database_in_its_place_is_not_written_to(
    store: SqliteStore, file: Path, tmp_path: Path
) -> None:
    handle = await filled(store, 2)
    shutil.rmtree(file.parent)
    second = await filled(SqliteStore(file), 1, header("t"))
    fill(handle, 2)
    for _ in range(2):
        with pytest.raises(StoreError, match="session 's': somebody has removed"):
            await handle.flush()
    with pytest.raises(StoreError):
        await handle.close()
    fill(second, 1)
    await second.close()
    assert await stored(store, "t") == [0, 1]


async def test_a_changed_log_is_not_written_to(store: SqliteStore, file: Path) -> None:
    """Somebody who does not respect the locks has appended."""
    handle = await filled(store, 1)
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("INSERT INTO event SELECT session, 1, crc, record FROM event")
    fill(handle, 1)
    with pytest.raises(StoreError, match="had 1 events and has 2; somebody else has changed it"):
        await handle.flush()
    with pytest.raises(StoreError):
        await handle.close()


async def test_a_writer_that_never_ends_is_named(
    store: SqliteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sqlite_file, "BUSY_SECONDS", 0.01)
    handle = await filled(store, 1)
    fill(handle, 1)
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        store._writer.close()  # so that it opens with the shorter patience
        with pytest.raises(StoreError, match="another process is writing all the time"):
            await handle.flush()
        db.execute("ROLLBACK")
    await handle.close()
    assert await stored(store) == [0, 1]


async def test_a_database_that_may_not_be_written_to(store: SqliteStore, disk: Disk) -> None:
    handle = await filled(store, 1)
    fill(handle, 1)
    store._writer._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(
        StoreError, match="session 's': writing failed: attempt to write a readonly"
    ):
        await handle.flush()
    await handle.flush()  # on a new connection
    await handle.close()
    assert await stored(store) == [0, 1]


def long(seq: int) -> Event:
    return Event(seq, 0, UserMessageEvent(UserMessage((TextBlock("x" * 3000),), id=f"m{seq}")))


async def fill_the_disk(store: SqliteStore, handle: WriteHandle) -> int:
    """Append and flush until it fails; how many events are durable."""
    for seq in range(10_000):
        handle.append(long(seq))
        try:
            await handle.flush()
        except StoreError as error:
            assert "session 's': " in str(error)
            return seq
        assert handle.durable_seq == seq
    raise AssertionError("it was never full")


async def check_after(store: SqliteStore, handle: WriteHandle, durable: int) -> None:
    """There is room again, and everything goes on where it stopped."""
    assert handle.durable_seq == durable - 1
    _, events = await store.read("s")
    assert [event.seq for event in events][:durable] == list(range(durable))
    handle.append(long(durable + 1))
    await handle.flush()
    assert handle.durable_seq == durable + 1
    await handle.close()
    assert await store.read("s") == (HEADER, [long(seq) for seq in range(durable + 2)])
    with closing(sqlite3.connect(store._path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_a_limit_of_the_system_is_a_full_disk(store: SqliteStore, file: Path) -> None:
    """BC-47, for real: the system refuses to let the files grow."""
    handle = await store.create(HEADER)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))
    try:
        durable = await fill_the_disk(store, handle)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert durable > 10
    await check_after(store, handle, durable)


async def test_a_small_disk_that_is_full(tmp_path: Path) -> None:
    """BC-47, for real: a file system of 256 KB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if (await trio.run_process(mount, capture_stderr=True, check=False)).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        (disk / "ballast").write_bytes(bytes(100_000))
        store = SqliteStore(disk / "sessions.db")
        handle = await store.create(HEADER)
        durable = await fill_the_disk(store, handle)
        assert durable > 3
        with pytest.raises(StoreError):
            await handle.flush()
        (disk / "ballast").unlink()
        await check_after(store, handle, durable)
    finally:
        await trio.run_process(["umount", str(disk)])


# --- sharing ----------------------------------------------------------------------------


async def test_many_agents_that_wait_share_one_commit(store: SqliteStore, disk: Disk) -> None:
    handles = [await filled(store, 1, header(f"s{n}")) for n in range(50)]
    disk.commits = 0
    for round_ in range(1, 4):
        async with trio.open_nursery() as nursery:
            for handle in handles:
                fill(handle, round_)
                nursery.start_soon(handle.flush)
        assert disk.commits == round_
    for handle in handles:
        await handle.close()
    assert disk.commits == 3
    for number in range(50):
        assert await stored(store, f"s{number}") == [0, 1, 2, 3]


async def test_a_flush_is_one_commit_and_a_commit_syncs(store: SqliteStore) -> None:
    handle = await filled(store, 1)
    before = store.statistics().commits
    fill(handle, *range(1, 50))
    await handle.flush()
    await handle.flush()
    assert store.statistics().commits == before + 1
    (found,) = store._writer._connection.execute("PRAGMA synchronous").fetchone()
    assert found == 2  # FULL: SQLite syncs the log with each commit
    await handle.close()
    assert store.statistics().commits == before + 1


async def test_creations_share_commits_too(store: SqliteStore, disk: Disk) -> None:
    disk.hold = True
    handles: list[WriteHandle] = []

    async def create(name: str) -> None:
        handles.append(await store.create(header(name)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(create, "first")
        await disk.entered.wait()
        for number in range(20):
            nursery.start_soon(create, f"s{number}")
        while len(store._group._next.waiting) < 20:  # they come out of threads of their own
            await trio.sleep(0.001)
        disk.leave.set()
    assert disk.commits == 2
    for handle in handles:
        await handle.close()
    assert len(await store.list()) == 21


async def test_callers_that_come_meanwhile_share_the_next_commit(
    store: SqliteStore, disk: Disk
) -> None:
    handle = await store.create(HEADER)
    disk.commits = 0
    disk.hold = True
    fill(handle, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle.flush)
        await disk.entered.wait()
        for seq in range(1, 11):
            fill(handle, seq)
            nursery.start_soon(handle.flush)
        await trio.testing.wait_all_tasks_blocked()
        assert handle.durable_seq == -1
        disk.leave.set()
    assert disk.commits == 2
    assert handle.durable_seq == 10
    await handle.close()
    assert await stored(store) == list(range(11))


async def test_a_failed_commit_does_not_fail_those_that_came_meanwhile(
    store: SqliteStore, disk: Disk
) -> None:
    first, second = [await filled(store, 1, header(name)) for name in ("a", "b")]
    fill(first, 1)
    disk.hold = disk.fails_once = True
    disk.fail_before = broken()
    outcomes: list[str] = []

    async def flush(name: str, handle: WriteHandle) -> None:
        try:
            await handle.flush()
        except StoreError:
            outcomes.append(f"{name} failed")
        else:
            outcomes.append(f"{name} durable")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flush, "first", first)
        await disk.entered.wait()
        fill(second, 1)
        nursery.start_soon(flush, "again", first)
        nursery.start_soon(flush, "second", second)
        await trio.testing.wait_all_tasks_blocked()
        disk.leave.set()
    assert outcomes[0] == "first failed"
    assert sorted(outcomes[1:]) == ["again durable", "second durable"]
    for handle in (first, second):
        await handle.close()
        assert await stored(store, handle.header.id) == [0, 1]


# --- cancellation -----------------------------------------------------------------------


async def test_a_write_that_began_is_finished_and_counted(store: SqliteStore, disk: Disk) -> None:
    handle = await store.create(HEADER)
    fill(handle, 0, 1)
    disk.hold = True

    async def cancel_in_the_middle(scopes: list[trio.CancelScope]) -> None:
        await disk.entered.wait()
        for scope in scopes:
            scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert handle.durable_seq == -1
        disk.leave.set()

    async def flush(scope: trio.CancelScope) -> None:
        with scope:
            await handle.flush()  # whoever leads, and whoever waits for that one
            assert handle.durable_seq == 1  # counted before the cancellation arrives
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught

    scopes = [trio.CancelScope() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_in_the_middle, scopes)
        for scope in scopes:
            nursery.start_soon(flush, scope)
    fill(handle, 2)
    await handle.close()
    assert await stored(store) == [0, 1, 2]


def test_ctrl_c_in_a_write_is_heard_after_it(store: SqliteStore, disk: Disk) -> None:
    async def main() -> None:
        handle = await filled(store, 1)
        fill(handle, 1)
        disk.interrupt = True
        with trio.fail_after(30), pytest.raises(KeyboardInterrupt):
            await handle.flush()
            assert handle.durable_seq == 1
            await trio.sleep_forever()
        assert handle.durable_seq == 1
        fill(handle, 2)
        await handle.close()
        assert not store._writer.open
        assert await stored(store) == [0, 1, 2]

    trio.run(main)


async def test_a_cancelled_caller_takes_nothing_with_it(store: SqliteStore, disk: Disk) -> None:
    handle, other = [await filled(store, 1, header(name)) for name in ("a", "b")]
    disk.commits = 0
    fill(handle, 1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await handle.flush()
    assert scope.cancelled_caught
    assert (disk.commits, handle.durable_seq) == (0, 0)

    disk.hold = True
    fill(other, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.flush)
        await disk.entered.wait()
        with trio.CancelScope() as waiting:
            nursery.start_soon(cancel_when_all_wait, waiting)
            await handle.flush()
        assert waiting.cancelled_caught
        disk.leave.set()
    assert handle.durable_seq == 0
    assert await stored(store, "a") == [0]
    for one in (handle, other):
        await one.close()
        assert await stored(store, one.header.id) == [0, 1]


async def test_a_cancelled_leader_leaves_the_others_their_commit(
    store: SqliteStore, disk: Disk
) -> None:
    handles = [await filled(store, 1, header(name)) for name in "abc"]
    disk.commits = 0
    scopes = [trio.CancelScope() for _ in handles]
    batch = store._group._next

    async def flush(handle: WriteHandle, scope: trio.CancelScope) -> None:
        with scope:
            await handle.flush()

    async with trio.open_nursery() as nursery:
        for handle, scope in zip(handles, scopes, strict=True):
            fill(handle, 1)
            nursery.start_soon(flush, handle, scope)
        while len(batch.waiting) < len(handles):  # one of them leads, or is about to
            await trio.lowlevel.cancel_shielded_checkpoint()
        waiting = len(batch.waiting)
        for scope in scopes[:-1]:
            scope.cancel()
    assert waiting == len(handles)
    assert disk.commits == 1
    assert handles[-1].durable_seq == 1
    for handle in handles:
        await handle.close()
        assert await stored(store, handle.header.id) == [0, 1]


async def cancel_when_all_wait(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def test_a_cancelled_close_waits_for_the_write_in_progress(
    store: SqliteStore, disk: Disk
) -> None:
    handle = await store.create(HEADER)
    fill(handle, 0)
    disk.hold = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle.flush)
        await disk.entered.wait()
        fill(handle, 1)

        async def close_cancelled() -> None:
            with trio.CancelScope() as scope:
                scope.cancel()
                await handle.close()
            assert scope.cancelled_caught
            assert not store._writer.open

        nursery.start_soon(close_cancelled)
        await trio.testing.wait_all_tasks_blocked()
        disk.leave.set()
    assert handle.durable_seq == 0
    again = await store.open("s")
    assert await again.read() == [turn(0)]
    await again.close()


async def test_a_cancelled_creation_that_began_gives_its_handle(
    store: SqliteStore, disk: Disk
) -> None:
    """C25: no handle is lost."""
    disk.hold = True

    async def cancel(scope: trio.CancelScope) -> None:
        await disk.entered.wait()
        scope.cancel()
        disk.leave.set()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(cancel, scope)
            handle = await store.create(HEADER)
            await handle.close()
    assert scope.cancelled_caught  # at a later checkpoint: the handle's own
    await (await store.open("s")).close()
    assert not store._writer.open


async def test_what_is_found_at_open_is_made_durable(
    store: SqliteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer may have died between its commit and the sync."""
    first = await filled(store, 1)
    await (await filled(store, 2, header("t"))).close()
    synced: list[int] = []

    def sync(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        REAL_SYNC(fd)

    monkeypatch.setattr(_sqlite_file, "sync", sync)
    await (await store.open("t")).close()
    assert synced == [file.with_name("sessions.db-wal").stat().st_ino]

    def fail(fd: int) -> None:
        raise broken()

    monkeypatch.setattr(_sqlite_file, "sync", fail)
    with pytest.raises(StoreError, match="session 't': opening failed"):
        await store.open("t")
    monkeypatch.undo()
    await (await store.open("t")).close()
    await first.close()
