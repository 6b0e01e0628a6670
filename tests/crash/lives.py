"""Kills processes that write, and looks at what they leave (`kill_writers.py` is the command).

A *life* is a process with four writers on one store: three go on with sessions that earlier
lives wrote, one makes new sessions. It ends by SIGKILL: from outside, when so many events
have been confirmed, or aimed, at a moment inside a write. Then this process opens what is
there, as nobody's heir, and compares it with what the life had noted in a shared file:
how many events it had appended to each session, and how many were confirmed.

What must hold: what was confirmed is there; nothing is there that was not appended; every
event is the one that was written, in its place; nobody is locked out; and it goes on.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import os
import random
import signal
import sqlite3
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, field
from tests.crash.aims import MOMENTS, Aim, take_aim

from terzetto.stores import JsonlStore, SqliteStore, Store, WriteHandle
from terzetto.stores._files import lock, unlock
from terzetto.vocabulary import (
    Event,
    MessageId,
    SessionHeader,
    SessionId,
    SessionNotFound,
    TextBlock,
    UserMessage,
    UserMessageEvent,
)

SESSIONS = ("a", "b", "c")
BIRTHS = len(SESSIONS)
"""The slot of the notes that counts new sessions."""
LONGEST_LIFE = 3_000
"""Events after which a life gives up being killed."""

MOST_BIRTHS = 6


def make_store(kind: str, folder: Path) -> Store:
    if kind == "sqlite":
        return SqliteStore(folder / "logs.db")
    layout: Any = "plain" if kind == "jsonl" else kind
    return JsonlStore(folder / "logs", layout=layout)


def header(name: str) -> SessionHeader:
    return SessionHeader(id=SessionId(name), created_ms=0)


def event(name: str, seq: int) -> Event:
    """The one event that may stand there: some are short, some are longer than a page."""
    text = f"{name} {seq} \u20ac " * (1 + seq % 7 * (seq % 3) * 60)
    return Event(
        seq, seq, UserMessageEvent(UserMessage((TextBlock(text),), id=MessageId(f"m{seq}")))
    )


class Notes:
    """How many events of each session were appended, and how many confirmed: numbers in a
    file that outlives whoever wrote them."""

    def __init__(self, path: Path) -> None:
        size = 16 * (BIRTHS + 1)
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)

    def appended(self, slot: int) -> int:
        return self._get(slot * 16)

    def confirmed(self, slot: int) -> int:
        return self._get(slot * 16 + 8)

    def append(self, slot: int, count: int) -> None:
        struct.pack_into("<q", self._map, slot * 16, count)

    def confirm(self, slot: int, count: int) -> None:
        struct.pack_into("<q", self._map, slot * 16 + 8, count)

    def total(self) -> int:
        return sum(self.confirmed(slot) for slot in range(len(SESSIONS)))

    def _get(self, place: int) -> int:
        (found,) = struct.unpack_from("<q", self._map, place)
        return int(found)


# --- a life -----------------------------------------------------------------------------


def live(
    kind: str, folder: Path, life: int, seed: int, aim: Aim | None, defect: str | None
) -> None:
    """One life. It never returns if all goes well."""
    take_aim(aim)
    trio.run(write_on, make_store(kind, folder), Notes(folder / "notes"), life, seed, defect)


async def write_on(store: Store, notes: Notes, life: int, seed: int, defect: str | None) -> None:
    async with trio.open_nursery() as nursery:
        for slot, name in enumerate(SESSIONS):
            chance = random.Random(f"{seed} {name}")
            nursery.start_soon(go_on, store, notes, slot, name, chance, defect)
        nursery.start_soon(give_birth, store, notes, life)


async def go_on(
    store: Store,
    notes: Notes,
    slot: int,
    name: str,
    chance: random.Random,
    defect: str | None,
) -> None:
    handle = await open_or_create(store, name)
    seq = first = handle.durable_seq + 1
    while seq < first + LONGEST_LIFE:
        for _ in range(chance.randint(1, 4)):
            notes.append(slot, seq + 1)
            handle.append(event(name if defect != "other text" else name * 2, seq))
            seq += 1
        if defect == "early":  # what a flush would be that does not wait
            notes.confirm(slot, seq)
        await handle.flush()
        notes.confirm(slot, seq)


async def give_birth(store: Store, notes: Notes, life: int) -> None:
    for number in range(MOST_BIRTHS):
        notes.append(BIRTHS, number + 1)
        handle = await store.create(header(f"born {life} {number}"))
        handle.append(event("born", 0))
        await handle.close()
        notes.confirm(BIRTHS, number + 1)


async def open_or_create(store: Store, name: str) -> WriteHandle:
    try:
        return await store.open(name)
    except SessionNotFound:
        return await store.create(header(name))


# --- what it leaves ---------------------------------------------------------------------


@define
class Findings:
    kills: int = 0
    aimed: int = 0
    confirmed: int = 0
    unconfirmed: int = 0
    repaired: int = 0
    born: int = 0
    violations: list[str] = field(factory=list)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.confirmed} acknowledged events, "
            f"{len(self.violations)} violations"
        )


@define
class Sweep:
    """Lives on one store, one after the other."""

    kind: str
    folder: Path
    seed: int
    defect: str | None = None
    found: Findings = field(factory=Findings)
    _stored: dict[str, int] = field(factory=lambda: dict.fromkeys(SESSIONS, 0))

    def run(self, kills: int) -> None:
        chance = random.Random(self.seed)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.crash.lives"])
        for life in range(kills):
            aim = None
            if life % 2:
                aim = Aim(chance.choice(MOMENTS[self.kind]), chance.randint(1, 40))
                self.found.aimed += 1
            notes = self._fresh_notes()
            child = context.Process(
                target=live,
                args=(self.kind, self.folder, life, self.seed + life, aim, self.defect),
            )
            child.start()
            if aim is None:
                wait_until(partial(self._has_confirmed, notes, chance.randint(0, 60)), child)
                child.kill()
            child.join(60)
            if child.exitcode != -signal.SIGKILL:
                child.kill()
                child.join()
                self._tell(life, aim, f"the process was not killed: exit code {child.exitcode}")
            self.found.kills += 1
            trio.run(self._look, life, aim, notes)
        self._check_whole()

    def _fresh_notes(self) -> Notes:
        path = self.folder / "notes"
        path.unlink(missing_ok=True)
        notes = Notes(path)
        for slot, name in enumerate(SESSIONS):
            notes.append(slot, self._stored[name])
            notes.confirm(slot, self._stored[name])
        return notes

    def _has_confirmed(self, notes: Notes, count: int) -> bool:
        return notes.total() >= sum(self._stored.values()) + count

    async def _look(self, life: int, aim: Aim | None, notes: Notes) -> None:
        store = make_store(self.kind, self.folder)
        for slot, name in enumerate(SESSIONS):
            try:
                await self._look_at(store, name, notes.confirmed(slot), notes.appended(slot))
            except Exception as error:  # whatever it is, it must not be
                self._tell(life, aim, f"session {name}: {type(error).__name__}: {error}")
        try:
            await self._look_at_births(store, life, notes)
        except Exception as error:
            self._tell(life, aim, f"new sessions: {type(error).__name__}: {error}")

    async def _look_at(self, store: Store, name: str, confirmed: int, appended: int) -> None:
        try:
            handle = await store.open(name)
        except SessionNotFound:
            assert confirmed == 0, f"{confirmed} events were confirmed, and the session is gone"
            return
        try:
            events = await handle.read()
            count, before = len(events), self._stored[name]
            self._stored[name] = count
            assert confirmed <= count, f"{confirmed} events were confirmed, {count} are there"
            assert count <= appended, f"{appended} events were appended, {count} are there"
            wanted = [event(name, seq) for seq in range(count)]
            assert events == wanted, "an event is not the one that was written"
            self.found.repaired += handle.repaired is not None
            self.found.confirmed += confirmed - before
            self.found.unconfirmed += count - confirmed
            handle.append(event(name, count))  # it goes on
        finally:
            await handle.close()
            self._stored[name] = handle.durable_seq + 1
        _, again = await store.read(name, count)
        assert again == [event(name, count)], "what was appended afterwards is not there"

    async def _look_at_births(self, store: Store, life: int, notes: Notes) -> None:
        confirmed, begun = notes.confirmed(BIRTHS), notes.appended(BIRTHS)
        listed = {str(one.id) for one in await store.list()} - set(SESSIONS)
        names = [f"born {life} {number}" for number in range(begun)]
        assert listed <= set(names), f"nobody made {sorted(listed - set(names))}"
        missing = set(names[:confirmed]) - listed
        assert not missing, f"{sorted(missing)} were confirmed, and are gone"
        for number, name in enumerate(names):
            if name in listed:
                handle = await store.open(name)
                found = await handle.read()
                await handle.close()
                assert found == [event("born", 0)][: len(found)], f"{name} has {found}"
                assert len(found) == 1 or number >= confirmed, f"{name} lost its event"
                await store.delete(name)
        self.found.born += confirmed
        left = {str(one.id) for one in await store.list()} - set(SESSIONS)
        assert not left, f"{sorted(left)} were deleted"

    def _check_whole(self) -> None:
        """The storage itself, as something else reads it."""
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.folder / "logs.db")) as db:
                for pragma, good in (("integrity_check", [("ok",)]), ("foreign_key_check", [])):
                    found = db.execute(f"PRAGMA {pragma}").fetchall()
                    if found != good:
                        self.found.violations.append(f"{pragma}: {found}")
        for path in self.folder.rglob("*"):
            if path.suffix in (".lock", ".owner") and not self._is_free(path):
                self.found.violations.append(f"{path.name} is still locked")

    def _is_free(self, path: Path) -> bool:
        """What a killed creation left behind, and nobody owns."""
        fd = os.open(path, os.O_RDWR)
        try:
            return lock(fd)
        finally:
            unlock(fd)

    def _tell(self, life: int, aim: Aim | None, problem: str) -> None:
        how = f"aimed at {aim.moment!r}, {aim.nth}." if aim else "from outside"
        self.found.violations.append(f"seed {self.seed}, life {life} ({how}): {problem}")


def wait_until(reached: Callable[[], bool], child: Any) -> None:
    while not reached() and child.is_alive():
        time.sleep(0.0005)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.kill_writers", description=__doc__)
    parser.add_argument("--store", choices=sorted(MOMENTS), required=True)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    # Seeded defects: does the sweep see them?
    parser.add_argument("--defect", choices=("early", "other text"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    # A killed process leaves its writes to the system: no disk is needed, nor its slowness.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        sweep = Sweep(options.store, Path(folder), options.seed, options.defect)
        sweep.run(options.kills)
    found = sweep.found
    for violation in found.violations:
        print(violation)
    print(
        f"{found.aimed} of the kills aimed, {found.repaired} torn ends cut, "
        f"{found.unconfirmed} events found that were not acknowledged, "
        f"{found.born} sessions made"
    )
    print(found)
    return 1 if found.violations else 0
