"""The laws of stores about reading back: ranges, both kinds of handles, writers beside them."""

from __future__ import annotations

from typing import Any, cast

import trio

from ..stores import ReadHandle, WriteHandle
from ..vocabulary import (
    CorruptLog,
    Event,
    Extension,
    InvalidValue,
    SessionNotFound,
    UsageError,
)
from ._store_bench import Bench, Law, expect, fill, header, refused, turn, turns

_LONG = 700
"""Events of a log that a store may want to remember places in."""


async def a_range_is_read(bench: Bench) -> None:
    writer = await bench.filled(4)
    reader = await bench.other.open("s", "read")
    expect(reader.header, header(), "the header of a read handle is")
    whole = turns(4)
    kinds: tuple[tuple[str, ReadHandle | WriteHandle], ...] = (
        ("write", writer),
        ("read", reader),
    )
    for kind, handle in kinds:
        expect(await handle.read(), whole, f"read() of a {kind} handle gives")
        for start in range(6):
            what = f"read({start}) of a {kind} handle gives"
            expect(await handle.read(start), whole[start:], what)
            for stop in range(7):
                what = f"read({start}, {stop}) of a {kind} handle gives"
                expect(await handle.read(start, stop), whole[start:stop], what)
        for bad in ((-1, None), (0, -1), ("0", None), (0, 1.0), (True, None)):
            with refused(InvalidValue, f"read{bad} of a {kind} handle"):
                await handle.read(*cast(Any, bad))
        (await handle.read(1, 3)).clear()
        expect(await handle.read(), whole, f"after a list was cleared, a {kind} handle reads")
    await reader.close()
    await writer.close()


async def a_long_log_is_read_in_pages(bench: Bench) -> None:
    writer = await bench.store.create(header())
    for stop in (300, 301, _LONG):
        fill(writer, writer.durable_seq + 1, stop)
        await writer.flush()
    await writer.close()
    reopened = await bench.other.open("s")
    fill(reopened, _LONG, _LONG + 1)
    await reopened.flush()
    whole = turns(_LONG + 1)
    reader = await bench.other.open("s", "read")
    for start in (*range(0, _LONG + 100, 97), 5, 600, 299):
        for kind, handle in (("first", writer), ("reopened", reopened), ("read", reader)):
            there = whole[:_LONG] if handle is writer else whole
            what = f"of {len(there)} events, read({start}, {start + 97}) of a {kind} handle gives"
            expect(await handle.read(start, start + 97), there[start : start + 97], what)
    await reader.close()
    await reopened.close()


async def a_handle_reads_what_it_has_made_durable(bench: Bench) -> None:
    handle = await bench.filled(2)
    fill(handle, 2, 4)
    await handle.flush()
    fill(handle, 4, 6)
    expect(handle.durable_seq, 3, "after append, durable_seq is")
    expect(await handle.read(), turns(4), "with two events not flushed, a handle reads")
    expect(await handle.read(3, 6), turns(4)[3:], "and from the third on")
    await handle.close()


async def what_a_handle_appended_it_can_read(bench: Bench) -> None:
    """Whoever appends an event knows it, whatever the store was told."""
    handle = await bench.filled(1)
    handle.append(Event(1, 1001, Extension("nobody/knows")))
    await handle.flush()
    expect([event.seq for event in await handle.read()], [0, 1], "its own events, a handle reads")
    await handle.close()
    expect([event.seq for event in await handle.read(1)], [1], "and after close")


async def a_closed_handle_still_reads_its_own(bench: Bench) -> None:
    first = await bench.filled(2)
    fill(first, 2, 3)
    await first.close()
    expect(await first.read(), turns(3), "after close, a handle reads")
    second = await bench.other.open("s")
    fill(second, 3, 5)
    await second.flush()
    expect(first.durable_seq, 2, "after somebody else has written on, durable_seq is")
    expect(await first.read(1), turns(3)[1:], "after somebody else has written on, it reads")
    await second.close()
    expect(await second.read(2), turns(5)[2:], "and its successor, closed too,")


async def a_read_handle_follows_what_is_stored(bench: Bench) -> None:
    writer = await bench.filled(1)
    readers = [await store.open("s", "read") for store in (bench.store, bench.other)]
    for count in (1, 2, 40):
        fill(writer, writer.durable_seq + 1, count)
        await writer.flush()
        for reader in readers:
            expect(await reader.read(), turns(count), "while it is written, a read handle reads")
    await writer.close()
    owner = await bench.other.open("s")  # no read handle is in the way
    fill(owner, 40, 41)
    await owner.close()
    for reader in readers:
        expect(await reader.read(39), turns(41)[39:], "under another owner, a read handle reads")
        await reader.close()
    await bench.expect_stored(41, "after two read handles were closed")


async def a_closed_read_handle_is_refused(bench: Bench) -> None:
    await (await bench.filled(2)).close()
    reader = await bench.store.open("s", "read")
    await reader.close()
    await reader.close()
    expect(reader.header, header(), "after close, the header of a read handle is")
    with refused(UsageError, "read() of a closed read handle"):
        await reader.read()
    await (await bench.other.open("s")).close()


async def a_deleted_session_is_read_no_more(bench: Bench) -> None:
    writer = await bench.filled(3)
    reader = await bench.other.open("s", "read")
    await writer.close()
    await bench.store.delete("s")
    for when in ("of a deleted session", "of a session that is another one now"):
        for kind, handle in (("closed write", writer), ("read", reader)):
            with refused(SessionNotFound, f"read() by a {kind} handle {when}"):
                await handle.read(0, 1)
        if when == "of a deleted session":
            anew = await bench.store.create(header(created_ms=77))
            fill(anew, 0, 5)
            await anew.close()
    await reader.close()
    expect(await bench.other.read("s"), (header(created_ms=77), turns(5)), "the other one has")


async def reading_beside_writing_gives_what_is_durable(bench: Bench) -> None:
    writer = await bench.filled(1)
    reader = await bench.other.open("s", "read")
    done = False

    async def look(handle: ReadHandle | WriteHandle, kind: str) -> None:
        while not done:
            known = writer.durable_seq
            found = await handle.read()
            expect(found, turns(len(found)), f"beside a writer, a {kind} handle reads")
            if len(found) <= known:
                raise AssertionError(
                    f"a {kind} handle read {len(found)} events after event {known} was durable"
                )
            middle = known // 2
            what = f"beside a writer, read({middle}, {known + 1}) of a {kind} handle gives"
            expect(await handle.read(middle, known + 1), turns(known + 1)[middle:], what)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look, writer, "write")
        nursery.start_soon(look, reader, "read")
        for seq in range(1, 60):
            writer.append(turn(seq))
            if seq % 3 == 0:
                await writer.flush()
        await writer.close()
        done = True
    expect(await writer.read(), turns(60), "afterwards, closed, it reads")


async def what_is_no_mode_is_refused(bench: Bench) -> None:
    await (await bench.filled(1)).close()
    for bad in ("append", "", None):
        with refused(InvalidValue, f"open('s', {bad!r})"):
            await bench.store.open("s", cast(Any, bad))
    with refused(SessionNotFound, "open() for reading, of a session that does not exist"):
        await bench.store.open("t", "read")
    with refused(InvalidValue, "open() for reading, of a session '../s'"):
        await bench.store.open("../s", "read")
    with refused(CorruptLog, "a read handle on an unknown event"):
        writer = await bench.store.open("s")
        writer.append(Event(1, 1001, Extension("nobody/knows")))
        await writer.close()
        await (await bench.other.open("s", "read")).read()


LAWS: tuple[Law, ...] = (
    a_range_is_read,
    a_long_log_is_read_in_pages,
    a_handle_reads_what_it_has_made_durable,
    what_a_handle_appended_it_can_read,
    a_closed_handle_still_reads_its_own,
    a_read_handle_follows_what_is_stored,
    a_closed_read_handle_is_refused,
    a_deleted_session_is_read_no_more,
    reading_beside_writing_gives_what_is_durable,
    what_is_no_mode_is_refused,
)
