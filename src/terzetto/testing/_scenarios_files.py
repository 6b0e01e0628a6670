"""Shipped scenarios of the stores that keep files: in a folder of their own.

Their threads take no virtual time (`play`), so that every run is the same. When the power is cut
there is a `SimulatedDisk` instead: what these stores owe then is the business of the kill runs.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from .. import SessionExists, SessionNotFound, StoreError, tool
from ..llm.scripted import Delay, answer, call, say
from ..stores import JsonlStore, Store, WriteHandle
from ..stores._group import Entry, Group
from ..stores._records import STRIDE
from ..stores.sqlite import SqliteStore
from ..vocabulary import Event, SessionHeader, SessionId, TurnStart
from ._disk import SimulatedDisk
from ._life import Scenario
from ._recording import Answers, MakeAdapter
from ._scenarios_turns import nursery_of_the_host
from ._script_acts import REFUSED
from ._stage import Stage

_IN_MEMORY = Path("/dev/shm")


def _on_files(stage: Stage, make: Callable[[Path], Store]) -> None:
    """Its store is one on files: in a folder that goes when the store goes."""
    if not isinstance(stage.store, SimulatedDisk):
        folder = _folder()
        stage.store = make(Path(folder.name))
        weakref.finalize(stage.store, folder.cleanup)


def _folder() -> tempfile.TemporaryDirectory[str]:
    usable = _IN_MEMORY.is_dir() and os.access(_IN_MEMORY, os.W_OK)
    place = _IN_MEMORY if usable else None
    return tempfile.TemporaryDirectory(prefix="terzetto-", dir=place, ignore_cleanup_errors=True)


async def files(stage: Stage) -> None:
    """A life in a file."""
    _on_files(stage, lambda folder: JsonlStore(folder / "sessions"))
    await _live(stage)


async def database(stage: Stage) -> None:
    """A life in a database."""
    _on_files(stage, lambda folder: SqliteStore(folder / "sessions.db"))
    await _live(stage)


async def in_files(stage: Stage) -> None:
    """A job with files, two at once: written, read, truncated, refused, deleted."""
    with _folder() as folder:
        await _at_work(stage, JsonlStore(Path(folder) / "sessions"), STRIDE + 2)


async def in_database(stage: Stage) -> None:
    """A job with sessions in a database: written together, read, refused, deleted."""
    with _folder() as folder:
        await _at_work(stage, SqliteStore(Path(folder) / "sessions.db"), 3)


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


async def _at_work(stage: Stage, store: Store, count: int) -> None:
    """An agent's job with *store*, in which *count* events are written."""
    async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
        events = [Event(seq=seq, time_ms=0, data=TurnStart(turn=1)) for seq in range(count)]
        with suppress(*REFUSED):
            await agent.run_maintenance(_keep, store, events)


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
        short.append(events[2])  # nobody waits for it: it is written as the handle is closed
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


class _Shelf:
    """What a group writes with: nothing is written."""

    open = True

    def transact(self, jobs: Sequence[str]) -> list[Exception | None]:
        return [None for _ in jobs]

    def close(self) -> None:
        self.open = False


async def together(stage: Stage) -> None:
    """A tool whose two tasks write as one, and give up as their batch begins: both have written."""
    counts = Counter[str]()
    stage.expect(lambda: counts["settled"] == counts["begun"], "a write that began is not settled")

    @tool
    async def write() -> str:
        """Write."""
        group = Group[str](_Shelf())
        group.enter()
        try:
            with trio.CancelScope() as writing:

                def begin() -> str:
                    counts["begun"] += 1
                    writing.cancel(reason="they give up")
                    return "job"

                def settle(job: str) -> None:
                    counts["settled"] += 1

                async with trio.open_nursery() as nursery:
                    for _ in range(2):
                        nursery.start_soon(group.perform, Entry(begin, settle))
        finally:
            await group.leave()
        return f"{counts['settled']} settled"

    async with stage.open_engine([write]) as engine, stage.open_agent(engine) as agent:
        stage.send("followup", "go")
        await agent.wait_idle()


KEPT: Answers = [answer(say("Well"), call("act")), answer(Delay(0.1), "Done.")]

FILES: Mapping[str, tuple[Scenario, MakeAdapter | Answers]] = {
    "files": (files, KEPT),
    "database": (database, KEPT),
    "in files": (in_files, ()),
    "in a database": (in_database, ()),
    "together": (together, [call("write"), "Done."]),
}
