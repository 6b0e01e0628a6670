"""Cuts stored logs at every place that matters (`sweep.py` is the command).

A cut is made of bytes alone, by what the format of the file says of itself: lines for
JSONL, frames and commits for SQLite's write-ahead log. The stores are asked nothing about
where their records end. What is left is judged by `second_lives.py`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sqlite3
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import trio
import zstandard
from attrs import evolve, field, frozen
from tests.crash.logs import RICH, Log, logs_of
from tests.crash.second_lives import go_on, live_again, look

from terzetto.session import _recovery
from terzetto.stores import JsonlStore, SqliteStore, Store, _jsonl_file, _sqlite_file, _sqlite_read
from terzetto.stores._jsonl_layouts import LayoutName
from terzetto.testing._shipped import SHIPPED
from terzetto.vocabulary import Event, SessionHeader, SessionNotFound

PAGE = 512
"""The database's pages: as small as they get, so that a record fills more than one."""
RESUMED, CONTINUED = 32, 8
"""Of SQLite's cuts between commits, which are many, each is read, every 8th is written on by
a store, and every 32nd is resumed by an engine. At a commit each is resumed."""
Judge: TypeAlias = Callable[
    [Store, Store, SessionHeader, Sequence[Event], bool], Awaitable[list[str]]
]


# --- what is cut ------------------------------------------------------------------------


@frozen
class Cut:
    """The first *size* bytes, in which *events* events are whole; None: no session is.

    *torn*: whether there is more behind them, which the store must say it repaired.
    *judge*: what is done with it. Where another cut has the same events, not all need an engine.
    """

    size: int
    events: int | None
    torn: bool
    judge: Judge = live_again


@frozen
class Stored:
    """A stored log. *data* is the file that is cut, *beside* what is copied as it is."""

    data: bytes
    cuts: Sequence[Cut]
    beside: bytes = b""


# --- JSONL ------------------------------------------------------------------------------


def store_jsonl(log: Log, folder: Path, layout: LayoutName = "plain") -> Stored:
    """Every flush is three events, which matters to frames only."""

    async def write() -> bytes:
        store = JsonlStore(folder, layout=layout)
        handle = await store.create(log.header)
        for event in log.events:
            handle.append(event)
            if event.seq % 3 == 2:
                await handle.flush()
        await handle.close()
        return Path(store.locate(log.header.id)).read_bytes()

    data = trio.run(write)
    known = dict(ends_of_frames(data) if layout == "zstd" else ends_of_lines(data))
    assert max(known.items()) == (len(data), len(log.events))
    ends = sorted(known)
    halves = [(start + end) // 2 for start, end in pairwise([0, *ends])]
    cuts = []
    for size in sorted({0, *halves, *ends, *range(ends[-3], len(data) + 1)}):
        whole = [known[end] for end in ends if end <= size]
        cuts.append(Cut(size, whole[-1] if whole else None, size not in known))
    return Stored(data, cuts)


def ends_of_lines(data: bytes) -> Iterator[tuple[int, int]]:
    """Where each line ends, and how many events there are up to there."""
    end, events = 0, -1
    for line in data.splitlines(keepends=True):
        end += len(line)
        events += len(json.loads(line).get("gaps", ())) + 1
        yield end, events


def ends_of_frames(data: bytes) -> Iterator[tuple[int, int]]:
    """As `ends_of_lines`, of frames that each have another before them, which says how long
    they are."""
    end, lines = 0, b""
    while end < len(data):
        (length,) = struct.unpack_from("<I", data, end + 8)
        frame = data[end + 16 : end + 16 + length]
        lines += zstandard.ZstdDecompressor().decompress(frame)
        end += 16 + length
        *_, (_, events) = ends_of_lines(lines)
        yield end, events


def lay_jsonl(stored: Stored, cut: Cut, log: Log, folder: Path) -> Callable[[], Store]:
    path = Path(JsonlStore(folder).locate(log.header.id))
    path.write_bytes(stored.data[: cut.size])
    return partial(JsonlStore, folder)


# --- SQLite -----------------------------------------------------------------------------


def store_sqlite(log: Log, folder: Path) -> Stored:
    """Every flush is one event, but each fifth, which goes with the next one."""
    path = folder / "logs.db"
    commits: list[tuple[int, int]] = []

    def wal() -> int:
        return Path(f"{path}-wal").stat().st_size

    async def write() -> Stored:
        handle = await SqliteStore(path).create(log.header)
        commits.append((wal(), 0))
        for event in log.events:
            handle.append(event)
            if event.seq % 5 != 3 or event is log.events[-1]:
                await handle.flush()
                commits.append((wal(), event.seq + 1))
        left = Path(f"{path}-wal").read_bytes(), path.read_bytes()
        await handle.close()
        return Stored(left[0], cuts_of_a_wal(left[0], commits), left[1])

    with keeping_its_wal():
        return trio.run(write)


def cuts_of_a_wal(data: bytes, commits: Sequence[tuple[int, int]]) -> list[Cut]:
    """*commits*: when so many bytes were there, so many events had been acknowledged."""
    (page,) = struct.unpack_from(">I", data, 8)
    assert page == PAGE
    ends = list(range(32, len(data) + 1, PAGE + 24))
    assert ends[-1] == len(data), "the log of SQLite ends inside a frame"
    # SQLite's own mark of a commit: a frame that has the size of the database.
    marked = {end for start, end in pairwise(ends) if struct.unpack_from(">I", data, start + 4)[0]}
    assert {size for size, _ in commits} <= marked, "a flush ended without a commit"
    cuts = []
    for nth, size in enumerate(sorted({0, 16, *ends, *range(ends[-3], len(data) + 1)})):
        acknowledged = [events for end, events in commits if end <= size]
        known = acknowledged[-1] if acknowledged else None
        if size in marked or nth % RESUMED == 0:
            judge: Judge = live_again
        else:
            judge = look if nth % CONTINUED else go_on
        # Not "torn": to leave out what was not committed is no repair to SQLite.
        cuts.append(Cut(size, known, torn=False, judge=judge))
    return cuts


@contextmanager
def keeping_its_wal() -> Iterator[None]:
    """Databases with small pages, whose write-ahead log is never carried over."""
    real = _sqlite_file.connect

    def connect(path: Path) -> sqlite3.Connection:
        connection = real(path)
        connection.execute(f"PRAGMA page_size = {PAGE}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    with replaced(_sqlite_file, "connect", connect):
        yield


def lay_sqlite(stored: Stored, cut: Cut, log: Log, folder: Path) -> Callable[[], Store]:
    path = folder / "logs.db"
    path.write_bytes(stored.beside)
    Path(f"{path}-wal").write_bytes(stored.data[: cut.size])
    return partial(SqliteStore, path)


STORES: dict[str, tuple[Any, Any]] = {
    "jsonl": (store_jsonl, lay_jsonl),
    "packed": (partial(store_jsonl, layout="packed"), lay_jsonl),
    "zstd": (partial(store_jsonl, layout="zstd"), lay_jsonl),
    "sqlite": (store_sqlite, lay_sqlite),
}
SPARSE = {"packed": 4, "zstd": 4}
"""Every n-th cut only: what an engine makes of what is left is the same in each layout."""


# --- seeded defects ---------------------------------------------------------------------


@contextmanager
def replaced(where: Any, name: str, value: Any) -> Iterator[None]:
    real = getattr(where, name)
    setattr(where, name, value)
    try:
        yield
    finally:
        setattr(where, name, real)


def fuse() -> Any:
    """A store that leaves a torn record where it is, and appends right behind it."""
    like = SimpleNamespace(**{**vars(os), "ftruncate": lambda fd, length: None})
    return replaced(_jsonl_file, "os", like)


def not_started() -> Any:
    """Closers that say of recorded calls that they never started."""
    return replaced(_recovery, "_UNKNOWN", _recovery._NOT_STARTED)


def forgetful() -> Any:
    """A database that keeps the last commit to itself."""
    real = _sqlite_read.events_of

    def events_of(*args: Any) -> list[Event]:
        found = real(*args)
        return found[:-1] if found and found[-1].seq == 9 else found

    return replaced(_sqlite_read, "events_of", events_of)


DEFECTS = {"fuse": fuse, "not started": not_started, "forgetful": forgetful}


# --- the sweep --------------------------------------------------------------------------


@frozen
class Swept:
    """What came of one log in one store."""

    kind: str
    log: Log
    cuts: int
    resumed: int
    violations: list[str] = field(repr=False)

    def __str__(self) -> str:
        return (
            f"{self.kind:6} {self.log.name:20} {len(self.log.events):4} events "
            f"{self.cuts:6,} cuts {self.resumed:5,} resumed {len(self.violations):4} violations"
        )


def sweep(
    kind: str,
    log: Log,
    *,
    part: slice = slice(None),
    thorough: bool = False,
    defect: str | None = None,
) -> Swept:
    """Cut *log* in a store of *kind*, at that *part* of its cuts.

    *thorough*: engines resume all of them.
    """
    store, _ = STORES[kind]
    with scratch() as folder:
        stored = store(log, folder)
    cuts = stored.cuts[part]
    if thorough:
        cuts = [evolve(cut, judge=live_again) for cut in cuts]
    with scratch() as folder:
        seeded = DEFECTS[defect]() if defect else scratch()
        with seeded:
            violations = trio.run(_sweep, kind, log, stored, cuts, folder)
    return Swept(kind, log, len(cuts), sum(cut.judge is live_again for cut in cuts), violations)


async def _sweep(
    kind: str, log: Log, stored: Stored, cuts: Sequence[Cut], folder: Path
) -> list[str]:
    violations = []
    for cut in cuts:
        place = folder / str(cut.size)
        place.mkdir()
        found = await _try(kind, log, stored, cut, place)
        where = f"{kind}, {log.name}, the first {cut.size} of {len(stored.data)} bytes"
        violations += [f"{where}, {cut.events} events: {problem}" for problem in found]
        shutil.rmtree(place)
    return violations


async def _try(kind: str, log: Log, stored: Stored, cut: Cut, folder: Path) -> list[str]:
    _, lay = STORES[kind]
    make = lay(stored, cut, log, folder)
    try:
        if cut.events is None:
            return await _unborn(make(), log.header)
        return await cut.judge(make(), make(), log.header, log.events[: cut.events], cut.torn)
    except Exception as error:  # whatever leaves a second life must not
        return [f"{type(error).__name__}: {error}"]


async def _unborn(store: Store, header: SessionHeader) -> list[str]:
    """A session whose creation was cut: nobody has it, and it can be made."""
    try:
        await store.open(header.id)
    except SessionNotFound:
        await (await store.create(header)).close()
        again, events = await store.read(header.id)
        return [] if again == header and not events else ["it cannot be created anew"]
    return ["a session is there whose creation had not ended"]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory, if there is one: what is cut are bytes, no disk is needed."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def _job(kind: str, log: Log, options: argparse.Namespace) -> Swept:
    logging.getLogger("terzetto").addHandler(logging.NullHandler())
    sparse = 1 if options.thorough else SPARSE.get(kind, 1)
    part = slice(None, None, options.stride * sparse)
    return sweep(kind, log, part=part, thorough=options.thorough, defect=options.defect)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.sweep", description=__doc__)
    parser.add_argument("--store", choices=sorted(STORES), action="append")
    parser.add_argument("--scenario", choices=list(SHIPPED), action="append")
    parser.add_argument("--stride", type=int, default=1, help="try every n-th cut only")
    parser.add_argument("--thorough", action="store_true", help="engines resume every cut")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    # Seeded defects: does the sweep see them?
    parser.add_argument("--defect", choices=sorted(DEFECTS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    logging.getLogger("terzetto").addHandler(logging.NullHandler())
    logs = logs_of(options.scenario or RICH)
    jobs = [(kind, log) for kind in options.store or STORES for log in logs]
    began = time.monotonic()
    cuts, violations = 0, []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("forkserver")) as pool:
        running = [pool.submit(_job, kind, log, options) for kind, log in jobs]
        for each in running:
            swept = each.result()
            print(swept, flush=True)
            cuts += swept.cuts
            violations += swept.violations
    for violation in violations:
        print(violation)
    print(f"{len(logs)} logs, {len(jobs)} swept in {time.monotonic() - began:.0f} s")
    print(f"{cuts:,} cuts, {len(violations)} violations")
    return 1 if violations else 0
