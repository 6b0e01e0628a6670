"""The threads of a store: as many as there are slots, and no turn of the scheduler for one."""

from __future__ import annotations

import queue
import threading

import pytest
import trio
import trio.testing
from tests.stores.kit import HEADER, fresh, turn

from terzetto.stores import WriteHandle
from terzetto.stores._slots import slots

PATIENCE = 60.0


class Turns(trio.abc.Instrument):
    """How often *task* was run on."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.task = task
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task is self.task


async def turns_of_a_flush(handle: WriteHandle, seq: int) -> int:
    handle.append(turn(seq))
    watch = Turns(trio.lowlevel.current_task())
    trio.lowlevel.add_instrument(watch)
    await handle.flush()
    trio.lowlevel.remove_instrument(watch)
    assert handle.durable_seq == seq
    return watch.count


async def test_a_flush_waits_for_its_thread_and_for_nothing_else() -> None:
    """Counted: once the task is run on, when the thread is done."""
    with fresh("jsonl") as store:
        handle = await store.create(HEADER)
        assert [await turns_of_a_flush(handle, seq) for seq in range(20)] == [1] * 20
        await handle.close()


async def test_no_more_threads_run_than_there_are_slots_and_all_come_to_their_turn() -> None:
    limiter = slots(2)
    begun: queue.Queue[int] = queue.Queue()
    go_on = threading.Semaphore(0)
    done: list[int] = []

    def work(number: int) -> None:
        begun.put(number)
        assert go_on.acquire(timeout=PATIENCE)

    async def one(number: int) -> None:
        await trio.to_thread.run_sync(work, number, limiter=limiter)
        done.append(number)

    async def next_begun() -> int:
        return await trio.to_thread.run_sync(lambda: begun.get(timeout=PATIENCE))

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(one, number)
        first = {await next_begun(), await next_begun()}
        assert begun.empty()
        go_on.release()
        last = await next_begun()
        assert {*first, last} == {0, 1, 2}
        go_on.release(2)
    assert sorted(done) == [0, 1, 2]


async def test_who_waits_for_a_slot_is_cancelled_at_once() -> None:
    limiter = slots(1)
    begun, go_on = threading.Event(), threading.Event()
    ran: list[str] = []

    def work() -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: trio.to_thread.run_sync(work, limiter=limiter))
        assert await trio.to_thread.run_sync(begun.wait, PATIENCE)
        with trio.CancelScope() as scope:
            scope.cancel()
            await trio.to_thread.run_sync(ran.append, "cancelled before", limiter=limiter)
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_soon, scope)
            await trio.to_thread.run_sync(ran.append, "cancelled meanwhile", limiter=limiter)
        assert scope.cancelled_caught
        go_on.set()
    await trio.to_thread.run_sync(ran.append, "after", limiter=limiter)
    assert ran == ["after"]


async def _cancel_soon(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def test_what_a_thread_raises_gives_its_slot_back() -> None:
    limiter = slots(1)

    def fails() -> None:
        raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await trio.to_thread.run_sync(fails, limiter=limiter)
    assert await trio.to_thread.run_sync(lambda: "free", limiter=limiter) == "free"
