"""Group commit: whoever waits for a write shares it with all others who wait.

There is no task and no thread of its own. Of those who wait, one leads: it takes everybody's
work to a thread, as one batch, while the others wait and newcomers gather for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import trio
from attrs import define, field

from ._slots import slots

J = TypeVar("J")
J_contra = TypeVar("J_contra", contravariant=True)


class Worker(Protocol[J_contra]):
    """What does the work. Its methods block and are called in threads, one at a time."""

    @property
    def open(self) -> bool:
        """Whether there is something to close. Asked in the Trio thread."""
        ...

    def transact(self, jobs: Sequence[J_contra], /) -> list[Exception | None]: ...

    def close(self) -> None: ...


@define(eq=False)
class Entry(Generic[J]):
    """Somebody's place in a batch.

    *make* is called when the batch begins, *settle* when the job it made has succeeded; both
    in the Trio thread. One entry has one place in a batch, however many wait for it.
    """

    make: Callable[[], J]
    settle: Callable[[J], None]


@define(eq=False)
class _Batch(Generic[J]):
    waiting: dict[Entry[J], int] = field(factory=dict)
    begun: bool = False
    ended: trio.Event = field(factory=trio.Event)
    failures: dict[Entry[J], Exception] = field(factory=dict)

    def join(self, entry: Entry[J]) -> None:
        self.waiting[entry] = self.waiting.get(entry, 0) + 1

    def leave(self, entry: Entry[J]) -> None:
        self.waiting[entry] -= 1
        if not self.waiting[entry]:
            del self.waiting[entry]


@define(eq=False)
class Group(Generic[J]):
    """Whoever writes with *worker*. A user counts between `enter` and `leave`; the worker is
    closed when the last one has left. Belongs to one Trio run at a time.

    *commits* counts the batches in which something succeeded.
    """

    worker: Worker[J]
    commits: int = 0
    _users: int = field(default=0, init=False)
    _next: _Batch[J] = field(factory=lambda: _Batch(), init=False)
    _busy: trio.Event | None = field(default=None, init=False)
    _limiter: trio.CapacityLimiter = field(factory=lambda: slots(1), init=False)

    @trio.lowlevel.enable_ki_protection
    async def perform(self, entry: Entry[J]) -> None:
        """Return once the job of *entry* is done and settled, in a batch with others.

        Raises what it failed with. Cancelled before its batch begins, the entry leaves it;
        from then on the batch is waited for.
        """
        batch = self._next
        batch.join(entry)
        try:
            while not batch.begun:
                if not await self._freed():
                    await self._lead(batch)
        except trio.Cancelled:
            if not batch.begun:
                batch.leave(entry)
                raise
            # Begun, it cannot be left: the cancel is met again at the caller's next checkpoint.
        if not batch.ended.is_set():  # it is, for the leader
            with trio.CancelScope(shield=True):
                await batch.ended.wait()
        if entry in batch.failures:
            raise batch.failures[entry]

    async def _freed(self) -> bool:
        """Wait for what is at work, once; whether anything was. No checkpoint if not."""
        if self._busy is None:
            return False
        await self._busy.wait()
        return True

    async def _lead(self, batch: _Batch[J]) -> None:
        self._busy = busy = trio.Event()
        try:
            # Others who are about to wait, in this very tick, still join.
            await trio.lowlevel.checkpoint()
            self._next = _Batch()
            batch.begun = True
            await self._do(batch)
        finally:
            self._busy = None
            busy.set()
            if batch.begun:
                batch.ended.set()

    async def _do(self, batch: _Batch[J]) -> None:
        entries = list(batch.waiting)
        jobs = [entry.make() for entry in entries]
        failures: list[Exception | None] = []
        try:
            with trio.CancelScope(shield=True):
                failures = await trio.to_thread.run_sync(
                    self.worker.transact, jobs, limiter=self._limiter
                )
        except Exception as error:
            batch.failures.update(dict.fromkeys(entries, error))
            return
        self.commits += None in failures
        for entry, job, failure in zip(entries, jobs, failures, strict=True):
            if failure is None:
                entry.settle(job)
            else:
                batch.failures[entry] = failure

    def enter(self) -> None:
        self._users += 1

    @trio.lowlevel.enable_ki_protection
    async def leave(self) -> None:
        """Shielded: waits at most for a write in progress."""
        self._users -= 1
        with trio.CancelScope(shield=True):
            while self._users == 0 and self.worker.open:
                if await self._freed():
                    continue
                self._busy = busy = trio.Event()
                try:
                    await trio.to_thread.run_sync(self.worker.close, limiter=self._limiter)
                finally:
                    self._busy = None
                    busy.set()
