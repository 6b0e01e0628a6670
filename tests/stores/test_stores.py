"""What every store promises, run on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.stores.kit import BAD_IDS, HEADER, KINDS, filled, fresh, made_in, turn

from terzetto.stores import Store
from terzetto.vocabulary import (
    CorruptLog,
    Event,
    Extension,
    IllegalEvent,
    InvalidValue,
    SessionExists,
    SessionHeader,
    SessionId,
    SessionLocked,
    SessionNotFound,
    UsageError,
)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with fresh(request.param) as made:
        yield made


async def test_a_created_session_exists_and_is_empty(store: Store) -> None:
    handle = await store.create(HEADER)
    assert handle.header == HEADER
    assert handle.repaired is None
    assert handle.durable_seq == -1
    assert await handle.read() == []
    assert await store.read("s") == (HEADER, [])
    assert await store.list() == [HEADER]
    await handle.close()


async def test_events_are_stored_by_flush_in_order(store: Store) -> None:
    handle = await store.create(HEADER)
    handle.append(turn(0))
    handle.append(turn(1))
    assert handle.durable_seq == -1
    assert (await store.read("s"))[1] == []
    await handle.flush()
    assert handle.durable_seq == 1
    handle.append(turn(2))
    assert handle.durable_seq == 1
    assert (await store.read("s"))[1] == [turn(0), turn(1)]
    await handle.close()
    assert (await store.read("s"))[1] == [turn(0), turn(1), turn(2)]


async def test_a_reopened_session_goes_on(store: Store) -> None:
    await (await filled(store, 2)).close()
    handle = await store.open("s")
    assert handle.header == HEADER
    assert handle.durable_seq == 1
    handle.append(turn(2))
    await handle.flush()
    handle.append(turn(3))
    for _ in range(2):
        assert await handle.read() == [turn(0), turn(1), turn(2)]
    assert await handle.read(1, 2) == [turn(1)]
    await handle.close()
    assert (await store.read("s"))[1] == [turn(0), turn(1), turn(2), turn(3)]


async def test_a_list_that_was_read_is_the_callers_own(store: Store) -> None:
    handle = await filled(store, 2)
    (await store.read("s"))[1].clear()
    await handle.close()
    handle = await store.open("s")
    (await handle.read()).clear()
    assert await handle.read() == [turn(0), turn(1)]
    await handle.close()


async def test_a_session_has_one_owner(store: Store) -> None:
    first = await filled(store, 1)
    with pytest.raises(SessionLocked, match="'s' is open for writing in this process"):
        await store.open("s")
    with pytest.raises(SessionExists):
        await store.create(HEADER)
    assert (await store.read("s"))[1] == [turn(0)]
    await first.close()
    second = await store.open("s")
    await first.close()  # closing again does not take the session from its new owner
    with pytest.raises(SessionLocked):
        await store.open("s")
    await second.close()


async def test_what_does_not_exist_is_not_found(store: Store) -> None:
    with pytest.raises(SessionNotFound, match="'t'"):
        await store.open("t")
    with pytest.raises(SessionNotFound, match="'t'"):
        await store.read("t")
    assert await store.list() == []


async def test_an_existing_session_is_not_created_again(store: Store) -> None:
    await (await filled(store, 1)).close()
    with pytest.raises(SessionExists, match="'s'"):
        await store.create(SessionHeader(id=HEADER.id, created_ms=6))
    assert await store.read("s") == (HEADER, [turn(0)])


async def test_gaps_and_duplicates_are_refused_at_once(store: Store) -> None:
    handle = await filled(store, 1)
    for seq in (0, 2):
        with pytest.raises(IllegalEvent):
            handle.append(turn(seq))
    handle.append(turn(1))
    await handle.close()
    assert (await store.read("s"))[1] == [turn(0), turn(1)]


async def test_closing_flushes_and_happens_once(store: Store) -> None:
    handle = await filled(store, 1)
    handle.append(turn(1))
    await handle.close()
    await handle.close()
    assert handle.durable_seq == 1
    with pytest.raises(UsageError, match="closed"):
        handle.append(turn(2))
    await handle.flush()
    assert (await store.read("s"))[1] == [turn(0), turn(1)]


async def test_many_flushes_at_once_all_return(store: Store) -> None:
    handle = await store.create(HEADER)

    seqs = count()

    async def append_and_flush() -> None:
        seq = next(seqs)  # here: the order in which a nursery starts its tasks is unspecified
        handle.append(turn(seq))
        await handle.flush()
        assert handle.durable_seq >= seq

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(append_and_flush)
    await handle.close()
    assert (await store.read("s"))[1] == [turn(seq) for seq in range(20)]


async def test_sessions_are_listed_oldest_first(store: Store) -> None:
    headers = [
        SessionHeader(id=SessionId(name), created_ms=ms)
        for name, ms in [("b", 2), ("C", 1), ("c", 1), ("a", 3)]
    ]
    for header in headers:
        await (await store.create(header)).close()
    assert [header.id for header in await store.list()] == ["C", "c", "b", "a"]


@pytest.mark.parametrize("bad", BAD_IDS)
@pytest.mark.parametrize("kind", KINDS)
async def test_ids_that_cannot_be_names_are_refused_before_any_file(
    bad: str, kind: str, tmp_path: Path
) -> None:
    made = made_in(tmp_path / "inner" / "sessions", kind)
    for attempt in (
        lambda: made.create(SessionHeader(id=SessionId(bad), created_ms=0)),
        lambda: made.open(bad),
        lambda: made.read(bad),
    ):
        with pytest.raises(InvalidValue, match="session id") as caught:
            await attempt()
        assert str(tmp_path) not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_unknown_extensions_must_be_ignorable_or_declared(kind: str) -> None:
    data = Extension("weather/rain")
    with fresh(kind) as made:
        handle = await made.create(HEADER)
        handle.append(Event(0, 0, data, ignorable=True))
        await handle.close()
        assert (await made.read("s"))[1][0].data == data
        handle = await made.open("s")
        handle.append(Event(1, 0, data))
        await handle.close()
        with pytest.raises(CorruptLog, match=r"event 1.*weather/rain.*extensions="):
            await made.open("s")
        with pytest.raises(CorruptLog):
            await made.read("s")
        with pytest.raises(CorruptLog):  # and the refused open left nobody locked out
            await made.open("s")
    with fresh(kind, extensions=["weather/rain"]) as made:
        handle = await made.create(HEADER)
        handle.append(Event(0, 0, data))
        await handle.close()
        handle = await made.open("s")
        assert (await handle.read())[0].data == data
        await handle.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_only_writing_to_a_disk_makes_flush_a_checkpoint(kind: str) -> None:
    """With nothing to write nobody else gets to run, but a cancel is noticed all the same."""
    with fresh(kind) as made:
        handle = await made.create(HEADER)
        others: list[str] = []

        async def other() -> None:
            others.append("ran")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await handle.flush()
            assert not others or kind == "simulated"  # whose callers meet others at every call
        memory = kind == "memory"
        with trio.CancelScope() as scope:
            scope.cancel()
            await handle.flush()
        assert scope.cancelled_caught is not memory
        handle.append(turn(0))
        with trio.testing.assert_no_checkpoints() if memory else trio.testing.assert_checkpoints():
            await handle.flush()
        with trio.testing.assert_checkpoints():
            await handle.close()
        with trio.testing.assert_checkpoints():
            await handle.close()


async def test_a_cancelled_close_still_gives_ownership_up(store: Store) -> None:
    handle = await filled(store, 1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await handle.close()
    assert scope.cancelled_caught
    again = await store.open("s")
    assert await again.read() == [turn(0)]
    await again.close()


async def test_cancelled_before_the_start_nothing_is_created(store: Store) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.create(HEADER)
    assert await store.list() == []
    await (await store.create(HEADER)).close()
