"""The laws of stores that are cancelled, at each place where they can notice it.

A *point* is a suspension of the calling task: the call is cancelled right before it, at its
first suspension, its second, and so on, until it is through before it is struck.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio
from attrs import define, frozen

from ..stores import WriteHandle
from ..vocabulary import SessionExists, SessionNotFound
from ._store_bench import Bench, Law, expect, fill, header, turns

T = TypeVar("T")
_MOST_POINTS = 200


@define(eq=False)
class _Strike(trio.abc.Instrument):
    """Cancels *scope* at the suspension of *task* that is *left* away."""

    task: trio.lowlevel.Task
    scope: trio.CancelScope
    left: int

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()


@frozen
class _Struck(Generic[T]):
    """How a call ended that was struck: with *value* if it returned all the same."""

    point: int
    value: T | None


async def _struck(call: Callable[[], Awaitable[T]], point: int) -> tuple[_Struck[T], bool]:
    """Run *call*, cancelled at *point*; whether it came to be struck."""
    value: T | None = None
    with trio.CancelScope() as scope:
        strike = _Strike(trio.lowlevel.current_task(), scope, point)
        if point == 0:
            scope.cancel()
        trio.lowlevel.add_instrument(strike)
        try:
            value = await call()
        finally:
            trio.lowlevel.remove_instrument(strike)
    return _Struck(point, value), scope.cancel_called


async def _at_every_point(
    prepare: Callable[[int], Awaitable[Callable[[], Awaitable[T]]]],
    check: Callable[[_Struck[T]], Awaitable[None]],
) -> None:
    """The call that *prepare* gives for each point, struck there and then looked at, until
    one gets through."""
    for point in range(_MOST_POINTS):
        call = await prepare(point)
        outcome, was_struck = await _struck(call, point)
        await check(outcome)
        if not was_struck:
            return
    raise AssertionError(f"it was suspended {_MOST_POINTS} times and more")


def _at(point: int) -> str:
    return f"cancelled at its {point}. suspension" if point else "cancelled before its start"


async def a_cancelled_create_leaves_nobody_owning(bench: Bench) -> None:
    async def prepare(point: int) -> Callable[[], Awaitable[WriteHandle]]:
        return lambda: bench.store.create(header(f"s{point}"))

    async def check(struck: _Struck[WriteHandle]) -> None:
        name = f"s{struck.point}"
        if struck.value is not None:
            await struck.value.close()
        if struck.point == 0:
            expect(await bench.store.list(), [], f"of a create() {_at(0)}, list() gives")
        try:
            handle = await bench.store.create(header(name))
        except SessionExists:
            handle = await bench.other.open(name)
        what = f"of a session whose create() was {_at(struck.point)}, a handle reads"
        expect(await handle.read(), [], what)
        fill(handle, 0, 1)
        await handle.close()
        await bench.expect_stored(1, f"after a create() {_at(struck.point)}", name)

    await _at_every_point(prepare, check)


async def a_cancelled_open_leaves_nobody_owning(bench: Bench) -> None:
    await (await bench.filled(2)).close()

    async def prepare(point: int) -> Callable[[], Awaitable[WriteHandle]]:
        return lambda: bench.store.open("s")

    stored = 2

    async def check(struck: _Struck[WriteHandle]) -> None:
        nonlocal stored
        if struck.value is not None:
            await struck.value.close()
        handle = await bench.other.open("s")
        what = f"after an open() {_at(struck.point)}, a handle reads"
        expect(await handle.read(), turns(stored), what)
        fill(handle, stored, stored + 1)
        await handle.close()
        stored += 1

    await _at_every_point(prepare, check)


async def a_cancelled_flush_loses_and_repeats_nothing(bench: Bench) -> None:
    handles: list[WriteHandle] = []

    async def prepare(point: int) -> Callable[[], Awaitable[None]]:
        handle = await bench.filled(1, f"s{point}")
        fill(handle, 1, 4)
        handles.append(handle)
        return handle.flush

    async def check(struck: _Struck[None]) -> None:
        name, handle = f"s{struck.point}", handles[-1]
        when = f"after a flush {_at(struck.point)}"
        stored = handle.durable_seq + 1
        await bench.expect_stored(stored, f"{when}, with durable_seq {stored - 1}", name)
        fill(handle, 4, 5)
        await handle.flush()
        expect(handle.durable_seq, 4, f"{when} and another one, durable_seq is")
        await bench.expect_stored(5, f"{when} and another one", name)
        await handle.close()
        await bench.expect_stored(5, f"{when}, another one, and close", name)

    await _at_every_point(prepare, check)


async def a_cancelled_flush_does_not_stop_others(bench: Bench) -> None:
    async def flush(handle: WriteHandle) -> None:
        await handle.flush()
        if handle.durable_seq < 2:
            raise AssertionError("a flush returned before its events were durable")

    for point in range(_MOST_POINTS):
        handle = await bench.filled(1, f"s{point}")
        fill(handle, 1, 3)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(flush, handle)
            _, was_struck = await _struck(handle.flush, point)
        when = f"after four flushes, of which one was {_at(point)}"
        expect(handle.durable_seq, 2, f"{when}, durable_seq is")
        await bench.expect_stored(3, when, f"s{point}")
        await handle.close()
        if not was_struck:
            return


async def a_cancelled_close_gives_ownership_up(bench: Bench) -> None:
    handles: list[WriteHandle] = []

    async def prepare(point: int) -> Callable[[], Awaitable[None]]:
        handle = await bench.filled(1, f"s{point}")
        fill(handle, 1, 3)
        handles.append(handle)
        return handle.close

    async def check(struck: _Struck[None]) -> None:
        name, when = f"s{struck.point}", f"after a close {_at(struck.point)}"
        stored = handles[-1].durable_seq + 1
        again = await bench.other.open(name)
        what = f"{when}, with durable_seq {stored - 1}, a new handle reads"
        expect(await again.read(), turns(stored), what)
        await handles[-1].close()  # the second time nothing happens
        fill(again, stored, stored + 1)
        await again.close()
        await bench.expect_stored(stored + 1, f"{when} and one more event", name)

    await _at_every_point(prepare, check)


async def a_cancelled_delete_is_whole_or_nothing(bench: Bench) -> None:
    async def prepare(point: int) -> Callable[[], Awaitable[None]]:
        await (await bench.filled(2, f"s{point}")).close()
        return lambda: bench.store.delete(f"s{point}")

    async def check(struck: _Struck[None]) -> None:
        name = f"s{struck.point}"
        try:
            handle = await bench.other.open(name)
        except SessionNotFound:
            if struck.point == 0:
                raise AssertionError(f"a delete() {_at(0)} deleted") from None
            return
        what = f"after a delete() {_at(struck.point)}, what is left is"
        expect(await handle.read(), turns(2), what)
        await handle.close()
        await bench.store.delete(name)

    await _at_every_point(prepare, check)
    expect(await bench.store.list(), [], "after all these deletes, list() gives")


async def a_cancelled_read_changes_nothing(bench: Bench) -> None:
    handle = await bench.filled(2)

    async def prepare(point: int) -> Callable[[], Awaitable[object]]:
        async def look() -> object:
            await bench.store.read("s")
            await bench.store.list()
            reader = await bench.store.open("s", "read")
            await reader.read(0, 1)
            await reader.close()
            return await handle.read(1, 2)

        return look

    async def check(_: _Struck[object]) -> None:
        pass

    await _at_every_point(prepare, check)
    fill(handle, 2, 3)
    await handle.close()
    await bench.expect_stored(3, "after reads that were cancelled")


LAWS: tuple[Law, ...] = (
    a_cancelled_create_leaves_nobody_owning,
    a_cancelled_open_leaves_nobody_owning,
    a_cancelled_flush_loses_and_repeats_nothing,
    a_cancelled_flush_does_not_stop_others,
    a_cancelled_close_gives_ownership_up,
    a_cancelled_delete_is_whole_or_nothing,
    a_cancelled_read_changes_nothing,
)
