"""FaultyStore: what is struck, how much of it was done, and what stays true of the store."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from tests.stores.kit import HEADER, KINDS, filled, made_in, turn

from terzetto.stores import MemoryStore
from terzetto.testing import (
    STORE_LAWS,
    FaultEffect,
    FaultyStore,
    SimulatedDisk,
    StoreOperation,
    check_store,
    play,
)
from terzetto.vocabulary import InvalidValue, SessionNotFound, StoreError, UsageError

OPERATIONS: list[StoreOperation] = ["create", "open", "read", "list", "flush", "close", "delete"]
MORE = [turn(2), turn(3), turn(4)]


async def begin(store: FaultyStore) -> Any:
    """A handle with two durable events and three that wait."""
    handle = await filled(store, 2)  # type: ignore[arg-type]
    for event in MORE:
        handle.append(event)
    return handle


async def performed(store: FaultyStore, operation: StoreOperation) -> Any:
    """*operation* on a session of five events of which two are durable before it."""
    handle: Any = await begin(store) if operation in ("flush", "close") else None
    if operation not in ("create", "flush", "close"):
        await (await filled(store, 5)).close()  # type: ignore[arg-type]
    match operation:
        case "create":
            return await store.create(HEADER)
        case "list":
            return await store.list()
        case "flush" | "close":
            return await getattr(handle, operation)()
    return await getattr(store, operation)("s")


@pytest.mark.parametrize("kind", KINDS)
async def test_without_faults_it_keeps_the_laws_of_its_store(kind: str, tmp_path: Path) -> None:
    folders = iter(tmp_path / str(number) for number in range(len(STORE_LAWS)))
    verdict = await check_store(lambda: FaultyStore(made_in(next(folders), kind)))
    assert len(verdict.kept) >= 20


@pytest.mark.parametrize("effect", ["none", "all"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_fails_before_or_after_its_effect(
    operation: StoreOperation, effect: FaultEffect
) -> None:
    async def main() -> None:
        store = FaultyStore(MemoryStore())
        nth = 2 if operation == "flush" else 1  # the first one is that of `filled`
        fault = store.fail(operation, errno.EACCES, nth=nth, effect=effect)
        with pytest.raises(StoreError, match=f"{operation} failed: Permission denied") as caught:
            await performed(store, operation)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.EACCES
        assert fault.hits == 1
        assert [call.outcome for call in store.calls if call.outcome != "done"] == ["failed"]
        assert store.calls[-1].operation == operation
        done = effect == "all"
        stored = {header.id for header in await store.inner.list()}
        if operation in ("create", "delete"):
            assert ("s" in stored) == (done if operation == "create" else not done)
        else:
            _, events = await store.inner.read("s")
            writes = operation in ("flush", "close")
            assert len(events) == (5 if done or not writes else 2)
        if "s" in stored and operation != "flush":
            await (await store.open("s")).close()  # nobody owns it

    play(main)


@pytest.mark.parametrize("effect", ["none", "part", "all"])
def test_who_is_told_of_a_failure_is_not_told_of_what_was_written(effect: FaultEffect) -> None:
    """BC-47: and the next flush leaves no gap and writes nothing twice."""

    async def main() -> None:
        store = FaultyStore(MemoryStore())
        handle = await begin(store)
        full = store.fail("flush", errno.ENOSPC, times=None, effect=effect)
        for written in ({"none": 2, "part": 3, "all": 5}[effect], None):
            with pytest.raises(StoreError, match="'s': flush failed: No space left"):
                await handle.flush()
            assert handle.durable_seq == 1
            if written is not None:
                assert len((await store.inner.read("s"))[1]) == written
        full.mend()
        handle.append(turn(5))
        await handle.flush()
        assert handle.durable_seq == 5
        await handle.close()
        assert (await store.read("s"))[1] == [turn(seq) for seq in range(6)]
        assert full.hits == 2

    play(main)


@pytest.mark.parametrize("effect", ["none", "part", "all"])
def test_a_close_that_fails_gives_up_ownership(effect: FaultEffect) -> None:
    async def main() -> None:
        store = FaultyStore(MemoryStore())
        handle = await begin(store)
        store.fail("close", errno.EIO, effect=effect)
        with pytest.raises(StoreError, match="close failed: Input/output error"):
            await handle.close()
        await handle.close()
        assert handle.durable_seq == 1
        with pytest.raises(UsageError, match="is closed"):
            await handle.flush()
        with pytest.raises(UsageError, match="is closed"):
            handle.append(turn(5))
        again = await store.open("s")
        assert len(await again.read()) == {"none": 2, "part": 3, "all": 5}[effect]
        assert again.durable_seq == {"none": 1, "part": 2, "all": 4}[effect]

    play(main)


@pytest.mark.parametrize("effect", ["none", "part", "all"])
@pytest.mark.parametrize("operation", ["flush", "close"])
def test_what_hangs_goes_on_when_it_is_mended(
    operation: StoreOperation, effect: FaultEffect
) -> None:
    async def main() -> None:
        store = FaultyStore(MemoryStore())
        handle = await begin(store)
        stuck = store.hang(operation, effect=effect)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(getattr(handle, operation))
            await stuck.wait_hit()
            await trio.testing.wait_all_tasks_blocked()
            assert [call.outcome for call in store.calls][-1] == "running"
            assert handle.durable_seq == 1
            assert len((await store.inner.read("s"))[1]) == {"none": 2, "part": 3, "all": 5}[effect]
            stuck.mend()
        assert store.calls[-1].outcome == "done"
        assert handle.durable_seq == 4
        assert (await store.inner.read("s"))[1] == [turn(seq) for seq in range(5)]

    play(main)


@pytest.mark.parametrize("effect", ["none", "all"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_hangs_can_be_cancelled_and_nobody_owns_the_session(
    operation: StoreOperation, effect: FaultEffect
) -> None:
    async def main() -> None:
        store = FaultyStore(MemoryStore())
        stuck = store.hang(operation, nth=2 if operation == "flush" else 1, effect=effect)
        with trio.move_on_after(5) as bound:
            await performed(store, operation)
        assert bound.cancelled_caught
        assert trio.current_time() == 5
        assert stuck.hits == 1
        assert store.calls[-1].outcome == "cancelled"
        if operation != "flush" and {h.id for h in await store.inner.list()}:
            await store.inner.open("s")

    play(main)


def test_a_slow_operation_takes_the_clocks_time_and_then_happens() -> None:
    async def main() -> float:
        store = FaultyStore(SimulatedDisk())
        slow = store.slow("flush", 3)
        handle = await begin(store)
        assert trio.current_time() == 3
        await handle.flush()
        slow.mend()
        handle.append(turn(5))
        await handle.flush()
        assert (await store.read("s"))[1] == [turn(seq) for seq in range(6)]
        return trio.current_time()

    assert play(main) == 6


def test_which_operation_is_struck_is_counted() -> None:
    async def main() -> None:
        store = FaultyStore(MemoryStore())
        handle = await store.create(HEADER)
        fault = store.fail("flush", OSError("odd"), nth=2, times=2)
        outcomes = []
        for _ in range(5):
            try:
                await handle.flush()
                outcomes.append("done")
            except OSError as error:
                assert error.args == ("odd",)
                outcomes.append("failed")
        assert outcomes == ["done", "failed", "failed", "done", "done"]
        assert [c.outcome for c in store.calls if c.operation == "flush"] == outcomes
        assert [c.number for c in store.calls if c.operation == "flush"] == [1, 2, 3, 4, 5]
        assert fault.hits == 2

        picky = store.fail("flush", errno.EIO, times=None, when=lambda call: len(call.events) > 1)
        other = store.fail("flush", errno.EIO, times=None, session_id="t")
        handle.append(turn(0))
        await handle.flush()
        handle.append(turn(1))
        handle.append(turn(2))
        with pytest.raises(StoreError):
            await handle.flush()
        assert (picky.hits, other.hits) == (1, 0)
        store.mend()
        await handle.close()

    play(main)


def test_one_operation_meets_several_faults_in_their_order() -> None:
    async def main() -> None:
        store = FaultyStore(MemoryStore())
        store.slow("create", 2)
        store.fail("create", errno.ENOSPC)
        store.fail("create", errno.EIO)
        with pytest.raises(StoreError, match="No space"):
            await store.create(HEADER)
        assert trio.current_time() == 2
        await (await store.create(HEADER)).close()
        assert trio.current_time() == 4

    play(main)


def test_callers_at_the_same_time_have_one_log() -> None:
    """One of them fails after its part; the others' events are there once, in order."""

    async def main() -> None:
        store = FaultyStore(SimulatedDisk())
        handle = await begin(store)
        store.fail("flush", errno.ENOSPC, nth=2, effect="part")
        told: list[str] = []

        async def flush() -> None:
            try:
                await handle.flush()
                told.append("done")
            except StoreError:
                told.append("failed")

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(flush)
        assert sorted(told) == ["done", "done", "done", "failed"]
        assert (await store.read("s"))[1] == [turn(seq) for seq in range(5)]

    play(main)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"operation": "sync"}, "operation: expected one of create, open, read, list"),
        ({"effect": "half"}, "effect: expected one of none, part, all, got 'half'"),
        ({"operation": "open", "effect": "part"}, "only 'flush' and 'close' have parts"),
        ({"error": 0}, "error: expected an errno or an exception, got 0"),
        ({"error": None}, "error: expected an errno or an exception, got None"),
        ({"error": True}, "error: expected an errno or an exception, got True"),
        ({"error": "ENOSPC"}, "error: expected an errno or an exception, got 'ENOSPC'"),
        ({"nth": 0}, "nth: expected an int of 1 or more, got 0"),
        ({"times": 0}, "times: expected an int of 1 or more, got 0"),
    ],
)
def test_wrong_use_is_refused(wrong: dict[str, Any], says: str) -> None:
    store = FaultyStore(MemoryStore())
    with pytest.raises(InvalidValue, match=says):
        store.fail(**{"operation": "flush", "error": errno.EIO, **wrong})
    with pytest.raises(InvalidValue, match="seconds: expected 0 or more"):
        store.slow("flush", -1)
    assert not store._trouble.faults


def test_what_the_store_itself_refuses_is_told_as_it_is() -> None:
    async def main() -> None:
        store = FaultyStore(SimulatedDisk(room=3))
        with pytest.raises(SessionNotFound):
            await store.open("s")
        assert store.calls[-1].outcome == "failed"
        handle = await begin(store)
        for attempt in (handle.flush, partial(handle.close)):
            with pytest.raises(StoreError, match="No space left"):
                await attempt()
            assert handle.durable_seq == 2
        assert store.locate("s") is None

    play(main)
