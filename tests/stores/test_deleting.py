"""Deleting sessions, saying where they are, and reading them from an event on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from tests.stores.kit import BAD_IDS, HEADER, KINDS, filled, fresh, made_in, turn

from terzetto.stores import JsonlStore, MemoryStore, Store, _jsonl_file
from terzetto.vocabulary import (
    CorruptLog,
    Event,
    Extension,
    InvalidValue,
    SessionHeader,
    SessionId,
    SessionLocked,
    SessionNotFound,
    StoreError,
    UsageError,
)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with fresh(request.param) as made:
        yield made


async def test_a_deleted_session_is_gone_and_its_id_is_free(store: Store) -> None:
    await (await filled(store, 3)).close()
    other = SessionHeader(id=SessionId("t"), created_ms=6)
    await (await filled(store, 1, other)).close()
    await store.delete("s")
    assert await store.list() == [other]
    for attempt in (store.open, store.read, store.delete):
        with pytest.raises(SessionNotFound, match="'s'"):
            await attempt("s")
    again = await filled(store, 2, SessionHeader(id=HEADER.id, created_ms=9))
    await again.close()
    assert (await store.read("s"))[1] == [turn(0), turn(1)]
    assert (await store.read("t"))[1] == [turn(0)]


async def test_an_owned_session_is_not_deleted(store: Store) -> None:
    """BC-43: nothing is taken from under its writer."""
    handle = await filled(store, 1)
    with pytest.raises(SessionLocked, match="'s' is open for writing in this process"):
        await store.delete("s")
    handle.append(turn(1))
    await handle.close()
    assert (await store.read("s"))[1] == [turn(0), turn(1)]
    await store.delete("s")
    assert await store.list() == []


async def test_reading_from_an_event_on(store: Store) -> None:
    handle = await filled(store, 4)
    for start in range(6):
        header, events = await store.read("s", start)
        assert header == HEADER
        assert events == [turn(seq) for seq in range(start, 4)]
    for bad in (-1, True, "1", 1.0, None):
        with pytest.raises(InvalidValue, match="start: expected the seq"):
            await store.read("s", bad)
    with pytest.raises(SessionNotFound):
        await store.read("t", 3)
    await handle.close()


async def test_only_what_is_read_is_judged(store: Store) -> None:
    handle = await store.create(HEADER)
    handle.append(Event(0, 0, Extension("weather/rain")))
    handle.append(turn(1))
    await handle.close()
    with pytest.raises(CorruptLog):
        await store.read("s")
    assert await store.read("s", 1) == (HEADER, [turn(1)])


@pytest.mark.parametrize("bad", BAD_IDS)
async def test_bad_ids_are_refused_here_too(store: Store, bad: str) -> None:
    """BC-48"""
    with pytest.raises(InvalidValue, match="session id"):
        await store.delete(bad)
    with pytest.raises(InvalidValue, match="session id"):
        store.locate(bad)


def test_where_a_session_is(tmp_path: Path) -> None:
    assert MemoryStore().locate("s") is None
    assert JsonlStore(tmp_path).locate("A b") == str(tmp_path / "%41%20b.jsonl")
    assert list(tmp_path.iterdir()) == []


async def test_a_cancelled_deletion_has_not_begun(store: Store) -> None:
    await (await filled(store, 1)).close()
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.delete("s")
    assert scope.cancelled_caught
    assert await store.list() == [HEADER]


async def test_a_deleted_log_leaves_no_file(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path)
    await (await filled(store, 1)).close()
    (tmp_path / "s.owner").write_text("1\n")  # of an owner that was killed
    await store.delete("s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"formatVersion":9}\n'])
async def test_damaged_and_newer_logs_can_be_deleted(tmp_path: Path, line: bytes) -> None:
    store = JsonlStore(tmp_path)
    await (await filled(store, 2)).close()
    header, *events = (tmp_path / "s.jsonl").read_bytes().splitlines(keepends=True)
    whole = line + b"".join(events) if b"format" in line else header + line + events[1]
    (tmp_path / "s.jsonl").write_bytes(whole)
    with pytest.raises(StoreError):
        await store.read("s")
    await store.delete("s")
    assert list(tmp_path.iterdir()) == []


async def test_what_is_no_log_is_not_deleted(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path)
    (tmp_path / "notes.jsonl").write_text("mine\n")
    with pytest.raises(CorruptLog, match="remove it by hand"):
        await store.delete("notes")
    (tmp_path / "half.jsonl").write_text('{"formatVersion":1,"id":"ha')
    with pytest.raises(SessionNotFound, match="not finished"):
        await store.delete("half")
    assert sorted(os.listdir(tmp_path)) == ["half.jsonl", "notes.jsonl"]


async def test_a_log_deleted_while_it_is_being_opened_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of a file that is gone is the lock of nothing."""
    store, real = JsonlStore(tmp_path), _jsonl_file.lock
    await (await filled(store, 1)).close()

    def deleted_before(fd: int) -> bool:
        (tmp_path / "s.jsonl").unlink(missing_ok=True)
        return real(fd)

    monkeypatch.setattr(_jsonl_file, "lock", deleted_before)
    with pytest.raises(SessionNotFound):
        await store.open("s")
    monkeypatch.undo()
    handle = await filled(store, 1)
    with pytest.raises(SessionLocked):
        await store.open("s")
    await handle.close()


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_where_files_cannot_be_locked_a_store_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UsageError, match="locks files as POSIX systems do; Windows cannot"):
        made_in(tmp_path, kind)
