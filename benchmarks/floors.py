"""Floors: the least that a program without Terzetto would do for the same work.

A *bare* floor is plain Trio. A *logged* floor also does what no engine with a log can leave
out: it parses the arguments, looks the tool up, and writes one line of JSON for everything
that happens. Ratios are told against these, because microseconds mean nothing on another
machine. ``python -m benchmarks --only floors`` shows what the log alone costs here.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeAlias, TypeVar

import trio
from attrs import define, field

from ._measure import Clock, Sample, Scale, alternate
from ._rows import Ratio, Row

T = TypeVar("T")
Fields: TypeAlias = dict[str, object]

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
"""Kept: `json.dumps` with options of its own makes an encoder at each call."""


def line(event: Fields) -> bytes:
    """*event* as one line of JSON, by the standard library."""
    return f"{_encode(event)}\n".encode()


# --- writing --------------------------------------------------------------------------------


async def write_lines(
    folder: Path, logs: Sequence[Sequence[Fields]], groups: int, clock: Clock
) -> float:
    """What *clock* says of writing each of *logs* to a file of its own, in *groups* groups
    altogether, one after the other.

    One write and one sync for each group; in a thread, for a program with Trio cannot wait
    for a disk anywhere else.
    """
    descriptors = [
        os.open(folder / f"{number}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number in range(len(logs))
    ]
    each = max(1, round(groups / len(logs)))
    began = clock()
    try:
        for fd, events in zip(descriptors, logs, strict=True):
            for group in in_groups(events, each):
                await trio.to_thread.run_sync(_write_group, fd, group)
        return clock() - began
    finally:
        for fd in descriptors:
            os.close(fd)


def _write_group(fd: int, group: Sequence[Fields]) -> None:
    os.write(fd, b"".join([line(event) for event in group]))
    # As careful as the stores are, but on a Mac, where they wait for the drive as well.
    getattr(os, "fdatasync", os.fsync)(fd)


async def write_rows(
    path: Path, logs: Sequence[Sequence[Fields]], groups: int, clock: Clock
) -> float:
    """The same with one table of a database and *groups* transactions, each with its share
    of every log. A write-ahead log, synced at each commit."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute(
            "CREATE TABLE event (log INTEGER, seq INTEGER, record BLOB, PRIMARY KEY (log, seq))"
            " WITHOUT ROWID"
        )
        rows = [(n, seq, event) for n, log in enumerate(logs) for seq, event in enumerate(log)]
        rows.sort(key=lambda row: row[1])
        began = clock()
        for group in in_groups(rows, groups):
            await trio.to_thread.run_sync(_insert_group, database, group)
        return clock() - began


def _insert_group(database: sqlite3.Connection, group: Sequence[tuple[int, int, Fields]]) -> None:
    database.execute("BEGIN IMMEDIATE")
    database.executemany(
        "INSERT INTO event VALUES (?, ?, ?)",
        [(log, seq, line(event)) for log, seq, event in group],
    )
    database.execute("COMMIT")


def in_groups(items: Sequence[T], groups: int) -> Iterator[Sequence[T]]:
    """*items* in order, in so many groups of nearly the same size; none is empty."""
    groups = max(1, min(groups, len(items)))
    for number in range(groups):
        yield items[number * len(items) // groups : (number + 1) * len(items) // groups]


# --- tool calls, with Trio ------------------------------------------------------------------


@define(eq=False)
class Log:
    """The floor's log: a line for each thing that happens, written at once and never synced."""

    _fd: int
    seq: int = field(default=0, init=False)

    def add(self, kind: str, **data: object) -> None:
        event = {"type": kind, "seq": self.seq, "time": time.time_ns() // 1_000_000, "data": data}
        os.write(self._fd, line(event))
        self.seq += 1


async def note(text: str) -> str:
    """The tool that does nothing."""
    return text


TOOLS: dict[str, Callable[..., Awaitable[str]]] = {"note": note}


async def bare_batch(calls: int, cap: int) -> list[str | None]:
    """So many calls, *cap* at once: a task for each, a limiter, results in their order."""
    limiter = trio.CapacityLimiter(cap)
    results: list[str | None] = [None] * calls

    async def one(index: int) -> None:
        async with limiter:
            results[index] = await note("ok")

    async with trio.open_nursery() as nursery:
        for index in range(calls):
            nursery.start_soon(one, index)
    return results


async def logged_batch(calls: int, cap: int, log: Log) -> list[str | None]:
    """`bare_batch`, with arguments, tools and scopes, and two lines in the log for a call."""
    limiter = trio.CapacityLimiter(cap)
    results: list[str | None] = [None] * calls
    asked = [(f"call-{index}", "note", '{"text":"ok"}') for index in range(calls)]

    async def one(index: int, call_id: str, name: str, arguments: str) -> None:
        known = json.loads(arguments)
        with trio.CancelScope():
            async with limiter:
                log.add("tool/call", id=call_id, name=name, arguments=arguments)
                results[index] = await TOOLS[name](**known)
        log.add("tool/result", id=call_id, content=results[index], isError=False)

    async with trio.open_nursery() as nursery:
        for index, call in enumerate(asked):
            nursery.start_soon(one, index, *call)
    return results


async def bare_steps(steps: int) -> None:
    """A request and one call, so many times."""
    history: list[object] = []
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
        history += ["call", *await bare_batch(1, 1)]


async def logged_steps(steps: int, log: Log) -> None:
    """`bare_steps` with four lines a step."""
    history: list[object] = []
    for step in range(steps):
        log.add("step/start", turn=0, step=step)
        await trio.lowlevel.checkpoint()
        log.add("assistant/message", turn=0, step=step, calls=[{"id": "call-0", "name": "note"}])
        history += ["call", *await logged_batch(1, 1, log)]


async def _pieces(deltas: int) -> AsyncIterator[str]:
    for _ in range(deltas):
        await trio.lowlevel.checkpoint()
        yield "word "


async def bare_stream(deltas: int) -> int:
    """So many deltas, from an iterator that lets others run, put together."""
    return len("".join([piece async for piece in _pieces(deltas)]))


async def logged_stream(deltas: int, log: Log) -> int:
    """`bare_stream` with a line for each delta, and each handed on to somebody who looks."""
    seen: list[str] = []
    send, receive = trio.open_memory_channel[str](256)

    async def produce() -> None:
        async with send:
            async for piece in _pieces(deltas):
                log.add("assistant/chunk", chunk={"type": "text-delta", "index": 0, "text": piece})
                await send.send(piece)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        seen += [piece async for piece in receive]
    return len(seen)


# --- what they cost here --------------------------------------------------------------------


def measure(scale: Scale) -> Iterable[Row]:
    """What a log alone costs on this machine, for work of three kinds."""
    calls, steps, deltas = scale.pick((1_000, 200, 20_000), (10, 2, 50))
    rows = (
        (f"{calls:,} calls, cap 10", "call", calls, bare_batch, logged_batch, (calls, 10)),
        (f"{steps:,} steps of one call", "step", steps, bare_steps, logged_steps, (steps,)),
        (f"{deltas:,} deltas", "delta", deltas, bare_stream, logged_stream, (deltas,)),
    )
    for name, unit, units, bare, logged, sizes in rows:
        found = alternate(
            {
                "bare": timed(units, bare, *sizes),
                "logged": timed_with_log(units, logged, *sizes),
            },
            scale,
        )
        yield Ratio(
            name=name, unit=unit, ours=found["logged"], against="bare Trio", floor=found["bare"]
        )


def timed(units: int, work: Callable[..., Awaitable[object]], *args: object) -> Sample:
    """A sample: processor's seconds for each of *units*, of *work* in a Trio run of its own."""

    async def main() -> float:
        began = time.thread_time()
        await work(*args)
        return (time.thread_time() - began) / units

    return lambda: trio.run(main)


def timed_with_log(units: int, work: Callable[..., Awaitable[object]], *args: object) -> Sample:
    """The same; *work* also gets a `Log` in a new file."""

    def sample() -> float:
        with tempfile.TemporaryFile(buffering=0) as file:
            return timed(units, work, *args, Log(file.fileno()))()

    return sample


PARTS = {"floors": measure}
