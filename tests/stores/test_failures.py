"""Disks that really fail under an agent: what `tests/agent/trouble.py` asks, of real files.

The matrix on a virtual clock is `tests/agent/test_store_trouble.py`; what a store does
without an agent is in `test_jsonl_faults.py` and `test_sqlite_faults.py`.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define
from tests.agent.kit import ROUTE, check, ending_kinds, engine_on
from tests.agent.trouble import POINTS, Point, check_resumes, meets, stored
from tests.stores.kit import made_in
from tests.whole import whole

from terzetto import StoreError, TurnFailed
from terzetto.llm.scripted import ScriptedModel
from terzetto.stores import Store, _sqlite_jobs
from terzetto.testing import FaultyStore, StoreCall

REAL = {"write": os.write, "fdatasync": os.fdatasync, "commit": _sqlite_jobs.commit}


@define
class Broken:
    """One call of the system or of SQLite that fails while `on`, for real."""

    on: bool = False
    hits: int = 0

    def strikes(self) -> bool:
        self.hits += self.on
        return self.on

    def arm(self, store: FaultyStore, when: Callable[[StoreCall], bool]) -> Callable[[], None]:
        def switch(call: StoreCall) -> bool:
            self.on = when(call)
            return False

        watch = store.slow("flush", 0, when=switch)

        def mend() -> None:
            watch.mend()
            self.on = False

        return mend


def half_a_write(broken: Broken) -> Callable[..., int]:
    """The disk is full in the middle of a record."""

    def write(fd: int, data: Any) -> int:
        if broken.strikes():
            REAL["write"](fd, bytes(data)[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return REAL["write"](fd, data)

    return write


def no_sync(broken: Broken) -> Callable[..., None]:
    """The pages are written, and their sync fails: what the disk has is anybody's guess."""

    def fdatasync(fd: int) -> None:
        if broken.strikes():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        REAL["fdatasync"](fd)

    return fdatasync


def commit_fails(broken: Broken, *, done: bool) -> Callable[..., None]:
    """As SQLite tells of a sync that failed; *done*: and other readers see the commit."""

    def commit(connection: sqlite3.Connection) -> None:
        struck = broken.strikes()
        if not struck or done:
            REAL["commit"](connection)
        if struck:
            raise sqlite3.OperationalError("disk I/O error")

    return commit


DISKS: dict[str, tuple[str, Any, str, Callable[[Broken], Any], str]] = {
    "jsonl: half a record": ("jsonl", os, "write", half_a_write, "No space left on device"),
    "jsonl: no sync": ("jsonl", os, "fdatasync", no_sync, "Input/output error"),
    "sqlite: no commit": (
        "sqlite",
        _sqlite_jobs,
        "commit",
        lambda broken: commit_fails(broken, done=False),
        "disk I/O error",
    ),
    "sqlite: commit, and an error": (
        "sqlite",
        _sqlite_jobs,
        "commit",
        lambda broken: commit_fails(broken, done=True),
        "disk I/O error",
    ),
}


@pytest.mark.parametrize("once", [True, False], ids=["once", "until mended"])
@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
@pytest.mark.parametrize("disk", DISKS)
async def test_a_disk_that_fails_in_a_turn(
    disk: str, point: Point, once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BC-47 C148: told when it happens, nothing starts unsaved, no gap, no duplicate, and no
    half record is left."""
    kind, module, name, make, said = DISKS[disk]
    broken = Broken()
    monkeypatch.setattr(module, name, make(broken))
    store = FaultyStore(made_in(tmp_path / "in", kind))
    await meets(store, point, broken.arm, once=once, said=said)
    assert broken.hits >= 1
    again = await made_in(tmp_path / "in", kind).open("a")
    assert again.repaired is None
    await again.close()


# --- what is taken away ---------------------------------------------------------------------


@pytest.fixture(params=["jsonl", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return made_in(tmp_path / "in", request.param)


@contextmanager
def moved_away(folder: Path) -> Iterator[None]:
    folder.rename(folder.with_name("elsewhere"))
    try:
        yield
    finally:
        folder.with_name("elsewhere").rename(folder)


@contextmanager
def forbidden(folder: Path) -> Iterator[None]:
    """The folder may not be entered any more; root needs to become somebody else for that."""
    mode = folder.stat().st_mode
    folder.chmod(0)
    if root := os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(mode)


TAKEN = {"moved away": moved_away, "forbidden": forbidden}


@pytest.mark.parametrize("how", TAKEN)
async def test_nothing_begins_where_nothing_can_be_stored(
    store: Store, how: str, tmp_path: Path
) -> None:
    """BC-47, C23: create and resume are refused, and work again when the folder is back."""
    async with engine_on(ScriptedModel(["one", "two"]), store=store) as engine:
        async with engine.open_agent(**ROUTE, session_id="a") as agent:
            await agent.ask("go")
        before = (await store.read("a"))[1]
        with TAKEN[how](tmp_path / "in"):
            with pytest.raises(StoreError):
                await engine.agents.resume("a")
            if how == "forbidden":
                with pytest.raises(StoreError):
                    await engine.agents.create(**ROUTE, session_id="b")
            assert engine.agents.list() == []
        assert (await store.read("a"))[1] == before
        async with engine.open_agent(**ROUTE, resume="a") as agent:
            assert (await agent.ask("go on")).text == "two"
        async with engine.open_agent(**ROUTE, session_id="b"):
            pass


async def test_a_folder_that_is_moved_away_and_back(store: Store, tmp_path: Path) -> None:
    """BC-47: what is written where nobody can find it does not count."""
    async with engine_on(ScriptedModel(["one", "two"]), store=store) as engine:
        async with engine.open_agent(**ROUTE, session_id="a") as agent:
            await agent.ask("go")
            told = agent.session.durable_seq
            with moved_away(tmp_path / "in"):
                with pytest.raises(TurnFailed) as caught:
                    await agent.ask("and now?")
                assert caught.value.code == "STORE"
                assert agent.session.durable_seq == told
                assert not (tmp_path / "in").exists()
                assert agent.health is not None
            assert (await agent.ask("go on")).text == "two"
            assert agent.health is None
            check(agent.session)
    assert (await store.read("a"))[1] == whole(agent.session)


async def test_a_log_that_another_took_the_place_of(tmp_path: Path) -> None:
    """BC-47: neither is written to, and the session goes on when its own log is back."""
    store, log = made_in(tmp_path, "jsonl"), tmp_path / "a.jsonl"
    async with engine_on(ScriptedModel(["one", "two"]), store=store) as engine:
        async with engine.open_agent(**ROUTE, session_id="a") as agent:
            await agent.ask("go")
            log.rename(tmp_path / "mine")
            log.write_bytes(b"not yours\n")
            before = (tmp_path / "mine").read_bytes()
            with pytest.raises(TurnFailed) as caught:
                await agent.ask("and now?")
            assert "somebody has removed or moved the log" in caught.value.failure.message
            assert log.read_bytes() == b"not yours\n"
            assert (tmp_path / "mine").read_bytes() == before
            (tmp_path / "mine").rename(log)
            assert (await agent.ask("go on")).text == "two"
    assert (await store.read("a"))[1] == whole(agent.session)


async def test_a_log_that_is_removed_for_good(store: Store, tmp_path: Path) -> None:
    """BC-47: it is told at the next flush and at the end; what is in memory can be kept."""
    copy = FaultyStore(made_in(tmp_path / "copy", "jsonl"))
    with pytest.raises(StoreError, match="not saved"):
        async with engine_on(ScriptedModel(["one", "two"]), store=store) as engine:
            async with engine.open_agent(**ROUTE, session_id="a") as agent:
                await agent.ask("go")
                for file in sorted((tmp_path / "in").iterdir(), reverse=True):
                    if file.is_file():
                        file.unlink()
                with pytest.raises(TurnFailed) as caught:
                    await agent.ask("and now?")
                assert "removed" in caught.value.failure.message
                handle = await copy.create(agent.session.header)
                for event in whole(agent.session):
                    handle.append(event)
                await handle.close()
    assert set(engine.unsaved) == {"a"}
    assert ending_kinds(agent.session) == ["Completed", "Failed"]
    await check_resumes(await stored(copy), agent.session.header)


@pytest.mark.parametrize("disk", [name for name in DISKS if "and an error" not in name])
async def test_a_creation_whose_disk_fails_can_be_tried_again(
    disk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BC-47 C23 C143: what failed does not exist, for nobody, and its id is free."""
    kind, module, name, make, said = DISKS[disk]
    broken = Broken(on=True)
    monkeypatch.setattr(module, name, make(broken))
    store = made_in(tmp_path / "in", kind)
    async with engine_on(ScriptedModel(["fine"]), store=store) as engine:
        for _ in range(2):
            with pytest.raises(StoreError, match=said):
                await engine.agents.create(**ROUTE, session_id="a")
            assert await store.list() == []
        broken.on = False
        assert await made_in(tmp_path / "in", kind).list() == []
        async with engine.open_agent(**ROUTE, session_id="a") as agent:
            assert (await agent.ask("go")).text == "fine"
    assert (await store.read("a"))[1] == whole(agent.session)
