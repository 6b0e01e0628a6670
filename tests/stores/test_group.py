"""Group commit, where the threads stand still for as long as a test says."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from terzetto.stores._group import Entry, Group


@define(eq=False)
class Slow:
    """A worker whose first batch takes until *go* is set."""

    began: trio.Event = field(factory=trio.Event)
    go: threading.Event = field(factory=threading.Event)
    done: list[str] = field(factory=list)
    open: bool = False

    def transact(self, jobs: Sequence[str], /) -> list[Exception | None]:
        trio.from_thread.run_sync(self.began.set)
        assert self.go.wait(60)
        self.done += jobs
        return [None for _ in jobs]

    def close(self) -> None:
        self.open = False


async def test_who_is_cancelled_in_a_batch_that_has_begun_waits_for_its_end() -> None:
    """Whoever leads it: nobody is told that work has ended that a thread is at."""
    worker, settled, ended = Slow(), list[str](), list[str]()
    group: Group[str] = Group(worker)
    scopes = {name: trio.CancelScope() for name in ("one", "two", "three")}

    async def write(name: str) -> None:
        with scopes[name]:
            await group.perform(Entry(lambda: name, settled.append))
            assert name in settled
        ended.append(name)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for name in scopes:
                nursery.start_soon(write, name)
            await worker.began.wait()
            for scope in scopes.values():
                scope.cancel(reason="a test")
            await wait_all_tasks_blocked()
            assert ended == []
            worker.go.set()
    assert sorted(ended) == sorted(settled) == sorted(worker.done) == ["one", "three", "two"]
    assert group.commits == 1


async def test_who_is_cancelled_before_its_batch_begins_is_not_in_it() -> None:
    worker, settled = Slow(), list[str]()
    group: Group[str] = Group(worker)
    late = trio.CancelScope()

    async def write(name: str, scope: trio.CancelScope) -> None:
        with scope:
            await group.perform(Entry(lambda: name, settled.append))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, "first", trio.CancelScope())
            await worker.began.wait()
            nursery.start_soon(write, "late", late)
            await wait_all_tasks_blocked()
            late.cancel(reason="a test")
            await wait_all_tasks_blocked()
            worker.go.set()
    assert settled == worker.done == ["first"]
