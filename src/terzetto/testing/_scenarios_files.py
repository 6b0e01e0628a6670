"""Shipped scenarios of the stores that keep files: in a folder of their own.

Their threads take no virtual time (`play`), so that every run is the same. When the power is cut
there is a `SimulatedDisk` instead: what these stores owe then is the business of the kill runs.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shutil import rmtree

import trio
from attrs import evolve

from .. import SessionExists, SessionNotFound, StoreError, tool
from ..llm.scripted import Delay, answer, call, say
from ..stores import JsonlStore, Store, WriteHandle
from ..stores._records import STRIDE
from ..stores.sqlite import SqliteStore
from ..vocabulary import Event, SessionHeader, SessionId
from ._disk import SimulatedDisk
from ._life import Scenario
from ._recording import Answers, MakeAdapter
from ._scenarios_turns import nursery_of_the_host
from ._stage import Stage

_IN_MEMORY = Path("/dev/shm")


def _on_files(stage: Stage, make: Callable[[Path], Store]) -> None:
    if isinstance(stage.store, SimulatedDisk):
        return
    usable = _IN_MEMORY.is_dir() and os.access(_IN_MEMORY, os.W_OK)
    folder = Path(tempfile.mkdtemp(prefix="terzetto-", dir=_IN_MEMORY if usable else None))
    stage.store = make(folder)
    weakref.finalize(stage.store, rmtree, folder, ignore_errors=True)


async def files(stage: Stage) -> None:
    """A life in a file; other files written by two at once, read, truncated, refused, deleted."""
    _on_files(stage, lambda folder: JsonlStore(folder / "sessions"))
    await _live(stage)
    await _keep(stage.store, _events(stage, STRIDE + 2))


async def database(stage: Stage) -> None:
    """A life in a database; other sessions in it written together, read, refused, deleted."""
    _on_files(stage, lambda folder: SqliteStore(folder / "sessions.db"))
    await _live(stage)
    await _keep(stage.store, _events(stage, 3))


async def _live(stage: Stage) -> None:
    @tool
    async def act() -> str:
        """Act."""
        return "done"

    async with stage.open_engine([act]) as engine, stage.open_agent(engine) as agent:
        stage.send("followup", "go")
        await agent.wait_idle()
        with suppress(StoreError):
            await agent.session.read()


def _events(stage: Stage, count: int) -> list[Event]:
    assert stage.session is not None
    first = stage.session.events[0]
    return [evolve(first, seq=seq) for seq in range(count)]


@asynccontextmanager
async def _created(store: Store, name: str) -> AsyncIterator[WriteHandle]:
    handle = await store.create(SessionHeader(id=SessionId(name), created_ms=0))
    try:
        yield handle
    finally:
        await _closed(handle)


async def _keep(store: Store, events: list[Event]) -> None:
    async with _created(store, "long") as long, _created(store, "short") as short:
        for event in events:
            long.append(event)
        short.append(events[0])
        async with nursery_of_the_host() as nursery:
            for handle in (long, long, short):
                nursery.start_soon(handle.flush)
            await trio.lowlevel.checkpoint()
            short.append(events[1])
            nursery.start_soon(short.flush)
        await long.flush()
        await long.read(1, 2)
    await store.list()
    reader = await store.open("long", "read")
    try:
        await reader.read()
        _truncate(store.locate("long"))
        await reader.read(len(events) - 2)
    finally:
        with trio.CancelScope(shield=True):
            await reader.close()
    await store.read("short")
    with suppress(SessionExists):
        await store.create(SessionHeader(id=SessionId("short"), created_ms=0))
    await store.delete("short")
    with suppress(SessionNotFound):
        await store.open("short")


async def _closed(handle: WriteHandle) -> None:
    with trio.CancelScope(shield=True):
        await handle.close()
        await handle.close()  # closed already


def _truncate(place: str | None) -> None:
    """What was read may not have been durable: a file loses its end behind a reader's back."""
    if place is not None and (path := Path(place)).is_file():
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:2]))


KEPT: Answers = [answer(say("Well"), call("act")), answer(Delay(0.1), "Done.")]

FILES: Mapping[str, tuple[Scenario, MakeAdapter | Answers]] = {
    "files": (files, KEPT),
    "database": (database, KEPT),
}
