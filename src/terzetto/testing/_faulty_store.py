"""The store and the handle that `_faults.py` strikes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias, overload

import trio
from attrs import define, field

from ..stores import ReadHandle, Store, WriteHandle
from ..stores._base import OpenMode, check_mode
from ..stores._handles import Buffer, check_range
from ..vocabulary import Event, SessionHeader, UsageError
from ._faults import (
    Fault,
    FaultEffect,
    StoreCall,
    StoreOperation,
    Strike,
    Trouble,
    check_error,
)

Events: TypeAlias = list[Event]
When: TypeAlias = Callable[[StoreCall], bool]


@define(eq=False)
class FaultyHandle:
    """A `WriteHandle` of a `FaultyStore`.

    Keeps what is appended until a flush takes it to the handle below, so that a flush which
    fails has written nothing, a part, or all of it, as its fault says.
    """

    _trouble: Trouble
    _inner: WriteHandle
    _waiting: Buffer = field(init=False)
    _told: int = field(init=False)
    _closed: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._told = self._inner.durable_seq
        self._waiting = Buffer(self._told + 1)

    @property
    def header(self) -> SessionHeader:
        return self._inner.header

    @property
    def repaired(self) -> str | None:
        return self._inner.repaired

    @property
    def durable_seq(self) -> int:
        """As far as the callers were told: what a flush has written that reported a failure
        does not count."""
        return self._told

    async def read(self, start: int = 0, stop: int | None = None) -> Events:
        check_range(start, stop)
        with self._trouble.call("read", self.header.id) as strike:
            await strike.at("none")
            told = self._told + 1
            events = await self._inner.read(start, told if stop is None else min(stop, told))
            await strike.at("all")
        return events

    def append(self, event: Event) -> None:
        if self._closed:
            raise self._is_closed()
        self._waiting.append(event)

    async def flush(self) -> None:
        if self._closed and self._told < self._waiting.next_seq - 1:
            raise self._is_closed()
        with self._trouble.call("flush", self.header.id, self._waiting.pending()) as strike:
            await self._first_half(strike)
            await self._write(self._inner.flush)
            await strike.at("all")
            self._told = self._inner.durable_seq

    async def close(self) -> None:
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        with self._trouble.call("close", self.header.id, self._waiting.pending()) as strike:
            try:
                await self._first_half(strike)
            except BaseException:
                await let_go(self._inner)
                raise
            await self._write(self._inner.close)
            await strike.at("all")
            self._told = self._inner.durable_seq

    async def _first_half(self, strike: Strike) -> None:
        await strike.at("none")
        if strike.parts:
            await self._write(self._inner.flush, len(strike.call.events) // 2)
            await strike.at("part")

    async def _write(self, write: Callable[[], Awaitable[None]], count: int | None = None) -> None:
        """Hand the oldest *count* events over, or all, and *write* them."""
        events = self._waiting.pending()[:count]
        for event in events:
            self._inner.append(event)
        self._waiting.settle(len(events))
        try:
            await write()
        except BaseException:
            self._told = self._inner.durable_seq
            raise

    def _is_closed(self) -> UsageError:
        return UsageError(f"the write handle of session {self.header.id!r} is closed")


@define(eq=False)
class FaultyReader:
    """A `ReadHandle` of a `FaultyStore`. Closing it has no trouble."""

    _trouble: Trouble
    _inner: ReadHandle

    @property
    def header(self) -> SessionHeader:
        return self._inner.header

    async def read(self, start: int = 0, stop: int | None = None) -> Events:
        with self._trouble.call("read", self.header.id) as strike:
            await strike.at("none")
            events = await self._inner.read(start, stop)
            await strike.at("all")
        return events

    async def close(self) -> None:
        await self._inner.close()


async def let_go(handle: WriteHandle) -> None:
    """Give up ownership; the failure that led here is the one to be told."""
    with trio.CancelScope(shield=True), suppress(Exception):
        await handle.close()


class FaultyStore:
    """A store that has trouble when it is told to, over *store*, which has none.

    Made for tests of programs and of stores. Everything that no fault strikes is done by
    *store*, but that events reach it in flushes only. Belongs to one Trio run at a time.

    For example, every flush fails from the third on until the disk is mended::

        store = FaultyStore(terzetto.MemoryStore())
        full = store.fail("flush", errno.ENOSPC, nth=3, times=None)
        ...
        full.mend()

    `fail`, `hang` and `slow` take the same options:

    Args:
        nth: The first operation that is struck, counted from now: 1 is the next one.
        times: How many operations are struck, one after the other; None: all, until mended.
        effect: What has been done when it fails or hangs: ``none`` of it; ``part``, which is
            the first half of a flush's events, rounded down; or ``all``.
            Those who call learn nothing of it: `durable_seq` stays.
        session_id: Only operations on this session are counted.
        when: Only operations for which it is true are counted. Called once for each when it
            begins; for example
            ``lambda call: any(isinstance(e.data, TurnEnd) for e in call.events)``.

    One operation may meet several faults; they strike in the order in which they were made.
    Each `Fault` can be mended, `mend` mends all.
    """

    def __init__(self, store: Store) -> None:
        self.inner: Store = store
        self._trouble = Trouble()

    def __repr__(self) -> str:
        return f"FaultyStore({self.inner!r})"

    # --- trouble ------------------------------------------------------------------------

    def fail(
        self,
        operation: StoreOperation,
        error: int | Exception,
        *,
        nth: int = 1,
        times: int | None = 1,
        effect: FaultEffect = "none",
        session_id: str | None = None,
        when: When | None = None,
    ) -> Fault:
        """Let *operation* fail.

        Args:
            error: An ``errno``, such as ``errno.ENOSPC``: callers see a `StoreError` with the
                `OSError` as its cause, as from the stores on disk. Or what to raise instead,
                as it is.

        A ``close`` that fails gives up ownership nevertheless; without its effect, what was
        not flushed before is lost. A ``create`` or ``open`` that fails after its effect
        leaves nobody owning the session.
        """
        check_error(error)
        return self._trouble.add(
            operation,
            error=error,
            nth=nth,
            times=times,
            effect=effect,
            session_id=session_id,
            when=when,
        )

    def hang(
        self,
        operation: StoreOperation,
        *,
        nth: int = 1,
        times: int | None = 1,
        effect: FaultEffect = "none",
        session_id: str | None = None,
        when: When | None = None,
    ) -> Fault:
        """Let *operation* hang until `Fault.mend`, and then go on as if nothing had been.

        A caller that hangs can be cancelled; what it has not done by then is not done.
        """
        return self._trouble.add(
            operation,
            hangs=True,
            nth=nth,
            times=times,
            effect=effect,
            session_id=session_id,
            when=when,
        )

    def slow(
        self,
        operation: StoreOperation,
        seconds: float,
        *,
        nth: int = 1,
        times: int | None = None,
        session_id: str | None = None,
        when: When | None = None,
    ) -> Fault:
        """Let *operation* take *seconds* of the run's clock before it begins."""
        return self._trouble.add(
            operation,
            seconds=seconds,
            nth=nth,
            times=times,
            effect="none",
            session_id=session_id,
            when=when,
        )

    def mend(self) -> None:
        """Mend all faults."""
        for fault in self._trouble.faults:
            fault.mend()

    @property
    def calls(self) -> Sequence[StoreCall]:
        """All operations so far, in the order in which they began."""
        return tuple(self._trouble.calls)

    # --- the store ----------------------------------------------------------------------

    async def create(self, header: SessionHeader) -> FaultyHandle:
        with self._trouble.call("create", header.id) as strike:
            await strike.at("none")
            handle = await self.inner.create(header)
            try:
                await strike.at("all")
            except BaseException:
                await let_go(handle)
                raise
        return FaultyHandle(self._trouble, handle)

    @overload
    async def open(self, session_id: str, mode: Literal["write"] = "write") -> FaultyHandle: ...

    @overload
    async def open(self, session_id: str, mode: Literal["read"]) -> FaultyReader: ...

    async def open(self, session_id: str, mode: OpenMode = "write") -> FaultyHandle | FaultyReader:
        check_mode(mode)
        with self._trouble.call("open", session_id) as strike:
            await strike.at("none")
            if mode == "read":
                reader = await self.inner.open(session_id, "read")
                await strike.at("all")
                return FaultyReader(self._trouble, reader)
            handle = await self.inner.open(session_id)
            try:
                await strike.at("all")
            except BaseException:
                await let_go(handle)
                raise
        return FaultyHandle(self._trouble, handle)

    async def read(self, session_id: str, start: int = 0) -> tuple[SessionHeader, Events]:
        with self._trouble.call("read", session_id) as strike:
            await strike.at("none")
            found = await self.inner.read(session_id, start)
            await strike.at("all")
        return found

    async def delete(self, session_id: str) -> None:
        with self._trouble.call("delete", session_id) as strike:
            await strike.at("none")
            await self.inner.delete(session_id)
            await strike.at("all")

    def locate(self, session_id: str) -> str | None:
        return self.inner.locate(session_id)

    async def list(self) -> list[SessionHeader]:
        with self._trouble.call("list", "") as strike:
            await strike.at("none")
            found = await self.inner.list()
            await strike.at("all")
        return found


if TYPE_CHECKING:

    def _is_store(store: FaultyStore) -> Store:
        return store

    def _is_handle(handle: FaultyHandle) -> WriteHandle:
        return handle

    def _is_reader(handle: FaultyReader) -> ReadHandle:
        return handle
