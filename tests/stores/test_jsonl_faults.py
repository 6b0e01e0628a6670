"""Disks that fail, callers that are cancelled, and flushes that share a write."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field

from terzetto.stores import WriteHandle
from terzetto.stores.jsonl import JsonlStore
from terzetto.vocabulary import (
    Event,
    SessionHeader,
    SessionId,
    SessionNotFound,
    StoreError,
    TurnStart,
    UsageError,
)

HEADER = SessionHeader(id=SessionId("s"), created_ms=5)
REAL_WRITE, REAL_SYNC, REAL_TRUNCATE = os.write, os.fdatasync, os.ftruncate


def turn(seq: int) -> Event:
    return Event(seq, 1000 + seq, TurnStart(seq))


def fill(handle: WriteHandle, *seqs: int) -> None:
    for seq in seqs:
        handle.append(turn(seq))


@pytest.fixture
def store(tmp_path: Path) -> JsonlStore:
    return JsonlStore(tmp_path)


@define
class Disk:
    """Stands before `os`: counts, fails, or stops until told to go on."""

    writes: int = 0
    syncs: int = 0
    fail_write: OSError | None = None
    fail_sync: OSError | None = None
    fail_truncate: OSError | None = None
    fails_once: bool = False
    at_most: int = 1 << 30
    hold: bool = False
    entered: trio.Event = field(factory=trio.Event)
    leave: threading.Event = field(factory=threading.Event)

    def write(self, fd: int, data: Any) -> int:
        self.writes += 1
        if self.fail_write is not None:
            REAL_WRITE(fd, data[: len(data) // 2])
            raise self.fail_write
        return REAL_WRITE(fd, data[: self.at_most])

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1
        if self.hold:
            trio.from_thread.run_sync(self.entered.set)
            assert self.leave.wait(30)
        error = self.fail_sync
        if self.fails_once:
            self.heal()
        if error is not None:
            raise error
        REAL_SYNC(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        if self.fail_truncate is not None:
            raise self.fail_truncate
        REAL_TRUNCATE(fd, length)

    def heal(self) -> None:
        self.fail_write = self.fail_sync = self.fail_truncate = None


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(os, "write", disk.write)
    monkeypatch.setattr(os, "fdatasync", disk.fdatasync)
    monkeypatch.setattr(os, "ftruncate", disk.ftruncate)
    yield disk
    disk.leave.set()


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


# --- failures ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [
        {"fail_write": full},
        {"fail_sync": broken},
        {"fail_sync": full},
        {"fail_write": full, "fail_truncate": broken},
        {"fail_sync": broken, "fail_truncate": broken},
    ],
    ids=lambda faults: "+".join(faults),
)
async def test_a_failed_write_is_told_and_made_good_later(
    store: JsonlStore, disk: Disk, tmp_path: Path, faults: dict[str, Callable[[], OSError]]
) -> None:
    handle = await store.create(HEADER)
    fill(handle, 0, 1)
    await handle.flush()
    before = (tmp_path / "s.jsonl").read_bytes()
    fill(handle, 2, 3)
    for name, fault in faults.items():
        setattr(disk, name, fault())
    for _ in range(2):
        with pytest.raises(StoreError, match="session 's': writing failed: ") as caught:
            await handle.flush()
        assert isinstance(caught.value.__cause__, OSError)
        assert handle.durable_seq == 1
    if "fail_truncate" not in faults:
        assert (tmp_path / "s.jsonl").read_bytes() == before
    fill(handle, 4)
    disk.heal()
    await handle.flush()
    assert handle.durable_seq == 4
    await handle.close()
    assert (await store.read("s"))[1] == [turn(seq) for seq in range(5)]
    again = await store.open("s")
    assert again.repaired is None
    await again.close()


async def test_short_writes_are_gone_on_with(store: JsonlStore, disk: Disk) -> None:
    disk.at_most = 7
    handle = await store.create(HEADER)
    fill(handle, 0, 1, 2)
    await handle.close()
    assert await store.read("s") == (HEADER, [turn(0), turn(1), turn(2)])


async def test_closing_a_full_disk_reports_and_lets_go(store: JsonlStore, disk: Disk) -> None:
    handle = await store.create(HEADER)
    fill(handle, 0)
    await handle.flush()
    fill(handle, 1)
    disk.fail_write = full()
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


async def test_a_creation_that_fails_can_be_tried_again(store: JsonlStore, disk: Disk) -> None:
    disk.fail_write = full()
    with pytest.raises(StoreError, match="creating failed"):
        await store.create(HEADER)
    with pytest.raises(SessionNotFound):
        await store.open("s")
    disk.heal()
    await (await store.create(HEADER)).close()
    assert await store.read("s") == (HEADER, [])


async def test_an_event_that_cannot_be_written_is_a_store_error(store: JsonlStore) -> None:
    handle = await store.create(HEADER)
    handle.append(Event(0, 0, TurnStart("one")))  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=r"event 0 \(TurnStart\) cannot be written"):
        await handle.flush()
    with pytest.raises(StoreError):
        await handle.close()
    assert await store.read("s") == (HEADER, [])


async def test_a_log_that_shrank_is_not_written_to(store: JsonlStore, tmp_path: Path) -> None:
    handle = await store.create(HEADER)
    fill(handle, 0)
    await handle.flush()
    os.truncate(tmp_path / "s.jsonl", 90)
    fill(handle, 1)
    with pytest.raises(StoreError, match="somebody else has changed it"):
        await handle.close()
    assert (tmp_path / "s.jsonl").stat().st_size == 90


async def test_a_log_that_was_removed_is_not_written_to(store: JsonlStore, tmp_path: Path) -> None:
    handle = await store.create(HEADER)
    fill(handle, 0)
    (tmp_path / "s.jsonl").unlink()
    with pytest.raises(StoreError, match="removed"):
        await handle.flush()
    assert handle.durable_seq == -1
    with pytest.raises(StoreError):
        await handle.close()


# --- sharing and cancellation -----------------------------------------------------------


async def test_a_flush_is_one_write_and_one_sync(store: JsonlStore, disk: Disk) -> None:
    handle = await store.create(HEADER)
    disk.writes = disk.syncs = 0
    fill(handle, *range(100))
    await handle.flush()
    await handle.flush()
    assert (disk.writes, disk.syncs) == (1, 1)
    await handle.close()
    assert (disk.writes, disk.syncs) == (1, 1)


async def test_what_is_found_at_open_is_made_durable(store: JsonlStore, disk: Disk) -> None:
    await (await store.create(HEADER)).close()
    disk.syncs = 0
    handle = await store.open("s")
    assert disk.syncs == 1
    await handle.close()
    disk.fail_sync = broken()
    with pytest.raises(StoreError, match="opening failed"):
        await store.open("s")
    disk.heal()
    await (await store.open("s")).close()


async def test_a_name_that_comes_or_goes_is_made_durable(
    store: JsonlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C143: a log whose folder does not know it is no session after a power cut."""
    real, synced, failing = os.fsync, list[bool](), False

    def fsync(fd: int) -> None:
        synced.append(os.path.samestat(os.fstat(fd), tmp_path.stat()))
        if failing:
            raise broken()
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    handle = await store.create(HEADER)
    assert synced == [True]
    await handle.close()
    await store.delete("s")
    assert synced == [True, True]
    failing = True
    with pytest.raises(StoreError, match="creating failed"):
        await store.create(HEADER)
    assert await store.list() == []
    failing = False
    await (await store.create(HEADER)).close()
    assert [one.id for one in await store.list()] == ["s"]


async def test_callers_that_wait_share_the_next_write(store: JsonlStore, disk: Disk) -> None:
    handle = await store.create(HEADER)
    disk.writes = disk.syncs = 0
    disk.hold = True
    fill(handle, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle.flush)
        await disk.entered.wait()
        for seq in range(1, 11):
            fill(handle, seq)
            nursery.start_soon(handle.flush)
        await trio.testing.wait_all_tasks_blocked()
        disk.leave.set()
    assert disk.syncs == 2
    assert handle.durable_seq == 10
    await handle.close()
    assert (await store.read("s"))[1] == [turn(seq) for seq in range(11)]


async def test_a_write_that_began_is_finished_and_counted(store: JsonlStore, disk: Disk) -> None:
    handle = await store.create(HEADER)
    fill(handle, 0, 1)
    disk.hold = True
    disk.syncs = 0

    async def cancel_in_the_middle(scope: trio.CancelScope) -> None:
        await disk.entered.wait()
        scope.cancel()
        disk.leave.set()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(cancel_in_the_middle, scope)
            await handle.flush()
            assert handle.durable_seq == 1  # counted before the cancellation arrives
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
    fill(handle, 2)
    await handle.close()
    assert disk.syncs == 2
    assert (await store.read("s"))[1] == [turn(0), turn(1), turn(2)]


async def test_a_cancelled_caller_takes_nothing_with_it(store: JsonlStore, disk: Disk) -> None:
    handle = await store.create(HEADER)
    disk.syncs = 0
    fill(handle, 0)
    with trio.CancelScope() as scope:
        scope.cancel()
        await handle.flush()
    assert scope.cancelled_caught
    assert (disk.syncs, handle.durable_seq) == (0, -1)

    disk.hold = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle.flush)
        await disk.entered.wait()
        fill(handle, 1)
        with trio.CancelScope() as waiting:
            nursery.start_soon(cancel_when_all_wait, waiting)
            await handle.flush()
        assert waiting.cancelled_caught
        disk.leave.set()
    assert handle.durable_seq == 0
    await handle.close()
    assert (await store.read("s"))[1] == [turn(0), turn(1)]


async def cancel_when_all_wait(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def test_a_cancelled_close_waits_for_the_write_in_progress(
    store: JsonlStore, disk: Disk
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

        nursery.start_soon(close_cancelled)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(StoreError):
            await store.open("s")
        disk.leave.set()
    assert handle.durable_seq == 0
    again = await store.open("s")
    assert await again.read() == [turn(0)]
    await again.close()


async def test_a_failed_write_does_not_fail_those_that_waited(
    store: JsonlStore, disk: Disk
) -> None:
    handle = await store.create(HEADER)
    fill(handle, 0)
    disk.hold = True
    disk.fail_sync = broken()
    disk.fails_once = True
    outcomes: list[str] = []

    async def flush(name: str) -> None:
        try:
            await handle.flush()
        except StoreError:
            outcomes.append(f"{name} failed")
        else:
            outcomes.append(f"{name} durable")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flush, "first")
        await disk.entered.wait()
        nursery.start_soon(flush, "second")
        await trio.testing.wait_all_tasks_blocked()
        disk.leave.set()
    assert outcomes == ["first failed", "second durable"]
    await handle.close()
    assert (await store.read("s"))[1] == [turn(0)]
