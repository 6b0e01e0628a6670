"""The laws of stores about one session: making it, writing it, closing it, owning it."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import trio

from ..stores import Store
from ..vocabulary import (
    Event,
    Extension,
    IllegalEvent,
    InvalidValue,
    MessageId,
    SessionExists,
    SessionHeader,
    SessionId,
    SessionLocked,
    SessionNotFound,
    TextBlock,
    UsageError,
    UserMessage,
    UserMessageEvent,
    freeze_object,
)
from ._store_bench import Bench, Law, expect, fill, header, refused, turn, turns

_BAD_IDS = ("", ".", "..", "../evil", "/etc/passwd", "a/b", "a\\b", "a\x00b", "\n", "x" * 300)
_ODD_IDS = ("a", "A", "a.b", "a b", "%41", "\u00e9", "e\u0301", "'; DROP TABLE session; --", "-")

# --- creating and finding ---------------------------------------------------------------


async def a_created_session_exists(bench: Bench) -> None:
    handle = await bench.store.create(header())
    expect(handle.header, header(), "the header of a new handle is")
    expect(handle.repaired, None, "a new handle's repaired is")
    expect(handle.durable_seq, -1, "the durable_seq of a session without events is")
    expect(await handle.read(), [], "a new handle reads")
    for store in (bench.store, bench.other):
        expect(await store.read("s"), (header(), []), "read() of a new session gives")
        expect(await store.list(), [header()], "list() gives")
    await handle.close()
    expect(await bench.other.list(), [header()], "after close, list() gives")


async def a_session_is_created_once(bench: Bench) -> None:
    handle = await bench.filled(1)
    for store in (bench.store, bench.other):
        with refused(SessionExists, "create() of a session in use"):
            await store.create(header(created_ms=6))
    await handle.close()
    for store in (bench.store, bench.other):
        with refused(SessionExists, "create() of a stored session"):
            await store.create(header(created_ms=6))
        expect(await store.read("s"), (header(), turns(1)), "after a refused create, read() gives")
    await (await bench.other.open("s")).close()


async def what_is_not_there_is_not_found(bench: Bench) -> None:
    for what, attempt in (
        ("open", bench.store.open),
        ("read", bench.store.read),
        ("delete", bench.store.delete),
    ):
        with refused(SessionNotFound, f"{what}() of a session that does not exist"):
            await attempt("s")
    expect(await bench.store.list(), [], "after these, list() gives")
    await (await bench.store.create(header())).close()


async def ids_that_cannot_be_names_are_refused(bench: Bench) -> None:
    for bad in _BAD_IDS:
        with refused(InvalidValue, f"create() with the id {bad[:20]!r}"):
            await bench.store.create(SessionHeader(id=SessionId(bad), created_ms=0))
        for what, attempt in (
            ("open", bench.store.open),
            ("read", bench.store.read),
            ("delete", bench.store.delete),
        ):
            with refused(InvalidValue, f"{what}() with the id {bad[:20]!r}"):
                await attempt(bad)
        with refused(InvalidValue, f"locate() with the id {bad[:20]!r}"):
            bench.store.locate(bad)
    expect(await bench.store.list(), [], "after these, list() gives")


async def different_ids_are_different_sessions(bench: Bench) -> None:
    for number, name in enumerate(_ODD_IDS):
        await (await bench.filled(number, name)).close()
    for number, name in enumerate(_ODD_IDS):
        await bench.expect_stored(number, f"of session {name!r}", name)
    found = sorted(one.id for one in await bench.other.list())
    expect(found, sorted(_ODD_IDS), "list() gives the ids")
    for name in _ODD_IDS:
        where = bench.store.locate(name)
        if where is not None and not (isinstance(where, str) and where):
            raise AssertionError(f"locate() gives {where!r}, expected a text or None")


# --- appending and flushing -------------------------------------------------------------


async def append_only_buffers(bench: Bench) -> None:
    handle = await bench.filled(1)
    fill(handle, 1, 3)
    expect(handle.durable_seq, 0, "after append, durable_seq is")
    await bench.expect_stored(1, "after append without flush")
    await handle.close()


async def flush_returns_when_all_is_stored(bench: Bench) -> None:
    handle = await bench.store.create(header())
    for stop in (1, 2, 30, 31):
        fill(handle, handle.durable_seq + 1, stop)
        await handle.flush()
        expect(handle.durable_seq, stop - 1, "after flush, durable_seq is")
        await bench.expect_stored(stop, "after flush")
    await handle.flush()
    await bench.expect_stored(31, "after a flush with nothing to store")
    await handle.close()
    await bench.expect_stored(31, "after close")


async def what_is_appended_during_a_flush_waits_for_the_next(bench: Bench) -> None:
    handle = await bench.store.create(header())
    fill(handle, 0, 3)

    async def flush() -> None:
        wanted = seq - 1
        await handle.flush()
        if handle.durable_seq < wanted:
            raise AssertionError(
                f"flush returned with durable_seq {handle.durable_seq}; event {wanted} was "
                "appended before it was called"
            )

    seq = 3
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(flush)
            await trio.lowlevel.checkpoint()
            fill(handle, seq, seq + 1)
            seq += 1
    await handle.flush()
    await bench.expect_stored(13, "after flushes with appends between them")
    await handle.close()


async def many_flushes_at_once_all_return(bench: Bench) -> None:
    handle = await bench.store.create(header())
    seqs = count()

    async def append_and_flush() -> None:
        seq = next(seqs)
        handle.append(turn(seq))
        await handle.flush()
        if handle.durable_seq < seq:
            raise AssertionError(f"flush returned before event {seq} was durable")

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(append_and_flush)
    await bench.expect_stored(20, "after 20 flushes at once")
    await handle.close()


async def sessions_do_not_mix(bench: Bench) -> None:
    names = [f"s{number}" for number in range(10)]

    async def live(name: str) -> None:
        handle = await bench.store.create(header(name))
        for seq in range(5):
            handle.append(turn(seq))
            await handle.flush()
        await handle.close()

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(live, name)
    for name in names:
        await bench.expect_stored(5, f"of session {name!r} among ten", name)


async def gaps_and_duplicates_are_refused(bench: Bench) -> None:
    handle = await bench.filled(2)
    for seq in (0, 1, 3, -1):
        with refused(IllegalEvent, f"append of event {seq} where 2 comes next"):
            handle.append(turn(seq))
    fill(handle, 2, 3)
    with refused(IllegalEvent, "append of event 2, which is there already"):
        handle.append(turn(2))
    await handle.close()
    await bench.expect_stored(3, "after refused appends and close")


async def what_is_read_equals_what_was_written(bench: Bench) -> None:
    meta = freeze_object({"\u20ac": [1, 2.5, True, None, "\U0001f600\n"], "": {}})
    whole = SessionHeader(id=SessionId("s"), created_ms=2**40, meta=meta, durability="lazy")
    text = TextBlock("a \u00e9 \u20ac \U0001f600 \u2028 \" \\ ' ; \t\n" * 200)
    events = [
        Event(0, 0, UserMessageEvent(UserMessage((text,), id=MessageId("m")))),
        Event(1, 2**40, Extension("some/thing", {"deep": [[["x"]]]}), ignorable=True),
        turn(2),
    ]
    handle = await bench.store.create(whole)
    for event in events:
        handle.append(event)
    await handle.close()
    for store in (bench.store, bench.other):
        expect(await store.read("s"), (whole, events), "read() gives")
        expect(await store.list(), [whole], "list() gives")


# --- closing and reopening --------------------------------------------------------------


async def closing_flushes_and_happens_once(bench: Bench) -> None:
    handle = await bench.filled(1)
    fill(handle, 1, 4)
    await handle.close()
    expect(handle.durable_seq, 3, "after close, durable_seq is")
    await bench.expect_stored(4, "after close, which flushes")
    await handle.close()
    with refused(UsageError, "append to a closed handle"):
        handle.append(turn(4))
    await bench.expect_stored(4, "after a second close")


async def a_reopened_session_goes_on(bench: Bench) -> None:
    await (await bench.filled(2)).close()
    for done in (2, 3, 4):
        handle = await bench.other.open("s")
        expect(handle.header, header(), "the header of a reopened handle is")
        expect(handle.repaired, None, "repaired of an intact session is")
        expect(handle.durable_seq, done - 1, "the durable_seq of a reopened handle is")
        fill(handle, done, done + 1)
        await handle.flush()
        for _ in range(2):
            found = await handle.read()
            expect(found, turns(done + 1), "a reopened handle, after one more event, reads")
            found.clear()
        await handle.close()
        await bench.expect_stored(done + 1, "after reopening, appending and closing")


async def a_session_has_one_owner(bench: Bench) -> None:
    first = await bench.filled(1)
    for store in (bench.store, bench.other):
        with refused(SessionLocked, "open() of a session in use"):
            await store.open("s")
        with refused(SessionLocked, "delete() of a session in use"):
            await store.delete("s")
    await first.close()
    second = await bench.other.open("s")
    await first.close()  # must not take the session from its new owner
    for store in (bench.store, bench.other):
        with refused(SessionLocked, "open() after the former owner's second close"):
            await store.open("s")
    await second.close()
    await (await bench.store.open("s")).close()
    await bench.expect_stored(1, "after these")


async def of_many_who_open_at_once_one_gets_it(bench: Bench) -> None:
    await (await bench.filled(1)).close()
    handles = []

    async def attempt(store: Store) -> None:
        with suppress(SessionLocked):
            handles.append(await store.open("s"))

    for _ in range(3):
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(attempt, bench.other if number % 2 else bench.store)
        expect(len(handles), 1, "of eight who open a session at once, as owners end up")
        await handles.pop().close()


async def reading_needs_no_ownership(bench: Bench) -> None:
    handle = await bench.filled(2)
    for store in (bench.store, bench.other):
        expect(await store.read("s"), (header(), turns(2)), "read() of a session in use gives")
        expect(await store.list(), [header()], "list() gives of a session in use")
    fill(handle, 2, 3)
    await handle.flush()
    expect(handle.durable_seq, 2, "for a writer whose session was read, durable_seq is")
    await handle.close()
    await bench.expect_stored(3, "after reading in between")


LAWS: tuple[Law, ...] = (
    a_created_session_exists,
    a_session_is_created_once,
    what_is_not_there_is_not_found,
    ids_that_cannot_be_names_are_refused,
    different_ids_are_different_sessions,
    append_only_buffers,
    flush_returns_when_all_is_stored,
    what_is_appended_during_a_flush_waits_for_the_next,
    many_flushes_at_once_all_return,
    sessions_do_not_mix,
    gaps_and_duplicates_are_refused,
    what_is_read_equals_what_was_written,
    closing_flushes_and_happens_once,
    a_reopened_session_goes_on,
    a_session_has_one_owner,
    of_many_who_open_at_once_one_gets_it,
    reading_needs_no_ownership,
)
