"""The laws of stores about listing, reading and deleting, and about trouble."""

from __future__ import annotations

from ..vocabulary import (
    CorruptLog,
    Event,
    Extension,
    InvalidValue,
    SessionNotFound,
    StoreError,
)
from ._store_bench import Bench, Law, expect, fill, header, refused, turns

# --- listing, reading, deleting ---------------------------------------------------------


async def sessions_are_listed_oldest_first(bench: Bench) -> None:
    for name, ms in (("b", 2), ("C", 1), ("c", 1), ("a", 3)):
        await (await bench.store.create(header(name, ms))).close()
    found = [one.id for one in await bench.other.list()]
    expect(found, ["C", "c", "b", "a"], "by age, then id, list() gives")


async def reading_begins_where_it_is_asked_to(bench: Bench) -> None:
    handle = await bench.filled(4)
    for start in range(6):
        found = await bench.other.read("s", start)
        expect(found, (header(), turns(4)[start:]), f"read('s', {start}) gives")
    with refused(InvalidValue, "read('s', -1)"):
        await bench.store.read("s", -1)
    await handle.close()


async def a_list_that_was_read_is_the_callers_own(bench: Bench) -> None:
    handle = await bench.filled(2)
    (await bench.store.read("s"))[1].clear()
    (await bench.store.list()).clear()
    await handle.close()
    await bench.expect_stored(2, "after the list of an earlier read() was cleared")


async def unknown_events_are_refused_unless_ignorable(bench: Bench) -> None:
    data = Extension("nobody/knows")
    handle = await bench.store.create(header())
    handle.append(Event(0, 0, data, ignorable=True))
    await handle.close()
    expect((await bench.other.read("s"))[1][0].data, data, "an ignorable unknown event is read as")
    handle = await bench.store.open("s")
    handle.append(Event(1, 0, data))
    await handle.close()
    for store in (bench.store, bench.other):
        for _ in range(2):  # a refused open owns nothing, or the second would be SessionLocked
            with refused(CorruptLog, "open() of a session with an unknown event, then read()"):
                handle = await store.open("s")
                try:
                    await handle.read()
                finally:
                    await handle.close()
        with refused(CorruptLog, "read() of a session with an unknown event"):
            await store.read("s")
    expect(await bench.store.list(), [header()], "list() gives")
    await bench.store.delete("s")


async def a_deleted_session_is_gone(bench: Bench) -> None:
    await (await bench.filled(3)).close()
    await (await bench.filled(1, "t")).close()
    await bench.store.delete("s")
    for store in (bench.store, bench.other):
        expect([one.id for one in await store.list()], ["t"], "after delete, list() gives")
        for what, attempt in (("open", store.open), ("read", store.read), ("delete", store.delete)):
            with refused(SessionNotFound, f"{what}() of a deleted session"):
                await attempt("s")
    handle = await bench.other.create(header(created_ms=9))
    fill(handle, 0, 2)
    await handle.close()
    expect(await bench.store.read("s"), (header(created_ms=9), turns(2)), "created anew, it has")
    await bench.expect_stored(1, "of a session whose neighbour was deleted", "t")


# --- trouble ----------------------------------------------------------------------------


async def a_torn_end_is_cut_and_told(bench: Bench) -> None:
    assert bench.tear is not None
    await (await bench.filled(3)).close()
    store = await bench.tear(bench.store, "s")
    expect((await store.read("s"))[1], turns(3), "of a torn session, read() gives")
    handle = await store.open("s")
    if not handle.repaired:
        raise AssertionError("opening a torn session is not told: repaired is empty")
    expect(await handle.read(), turns(3), "a handle on a torn session reads")
    fill(handle, 3, 4)
    await handle.close()
    handle = await store.open("s")
    expect(handle.repaired, None, "the second time, repaired is")
    expect(await handle.read(), turns(4), "after the repair and one more event, a handle reads")
    await handle.close()


async def a_failed_flush_loses_nothing(bench: Bench) -> None:
    assert bench.failing is not None
    handle = await bench.filled(2)
    fill(handle, 2, 4)
    with bench.failing(bench.store):
        for _ in range(2):
            with refused(StoreError, "a flush that cannot write"):
                await handle.flush()
            expect(handle.durable_seq, 1, "after a failed flush, durable_seq is")
        fill(handle, 4, 5)
    await handle.flush()
    expect(handle.durable_seq, 4, "after the flush that worked again, durable_seq is")
    await bench.expect_stored(5, "after a failed flush and one that worked")
    await handle.close()
    await bench.expect_stored(5, "after close")


async def a_close_that_fails_gives_ownership_up(bench: Bench) -> None:
    assert bench.failing is not None
    handle = await bench.filled(2)
    fill(handle, 2, 4)
    with bench.failing(bench.store), refused(StoreError, "a close that cannot write"):
        await handle.close()
    expect(handle.durable_seq, 1, "after a failed close, durable_seq is")
    again = await bench.other.open("s")
    expect((await again.read())[:2], turns(2), "after a failed close, a handle reads first")
    await again.close()


LAWS: tuple[Law, ...] = (
    sessions_are_listed_oldest_first,
    reading_begins_where_it_is_asked_to,
    a_list_that_was_read_is_the_callers_own,
    unknown_events_are_refused_unless_ignorable,
    a_deleted_session_is_gone,
    a_torn_end_is_cut_and_told,
    a_failed_flush_loses_nothing,
    a_close_that_fails_gives_ownership_up,
)
NEEDS = {
    "a_torn_end_is_cut_and_told": "tear",
    "a_failed_flush_loses_nothing": "failing",
    "a_close_that_fails_gives_ownership_up": "failing",
}
"""Laws that can be checked only when an option of `check_store` was given."""
