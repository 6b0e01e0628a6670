"""Saving: how one session's events become durable, when that is waited for, and what is in
the way of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import trio
from attrs import define, field

from ..llm import failure_of
from ..session import Session
from ..stores import WriteHandle
from ..vocabulary import Durability, Event, Failure, StoreError, UsageError, chain_text, texts
from ._backlog import LOOK_EVERY, Backlog
from ._writer import Writer

logger = logging.getLogger("terzetto")


@define(eq=False)
class Saving:
    """The write path of one agent. *trouble* stands from a flush that failed to the next
    that succeeds; *on_trouble* is told of what nobody else would hear. *look_at* is the seq
    from which on it has to be asked whether to catch up.

    Without a *handle* there is nothing to wait for. Where the *writer* is not
    needed nothing is written behind: flushes take no time, or there is no store.
    """

    session: Session
    handle: WriteHandle | None
    writer: Writer
    level: Durability = field(init=False)
    trouble: Failure | None = field(default=None, init=False)
    on_trouble: Callable[[Exception, Failure], None] = field(
        default=lambda error, failure: None, init=False
    )
    look_at: float = field(default=math.inf, init=False)
    _hand_over: Callable[[Event], None] = field(init=False)
    _quiet: bool = field(default=True, init=False)
    _backlog: Backlog = field(init=False)
    _flushing: int = field(default=0, init=False)
    _listening: int = field(default=0, init=False)
    _failures: int = field(default=0, init=False)
    _told: bool = field(default=False, init=False)
    _waiting: trio.lowlevel.ParkingLot | None = field(default=None, init=False)
    _task: trio.CancelScope | None = field(default=None, init=False)
    _again: bool = field(default=False, init=False)
    _closing: bool = field(default=False, init=False)
    _closed: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.level = self.session.header.durability
        if self.handle is None:
            return  # there is nothing to be behind of
        self._backlog = Backlog(self.session.durable_seq + 1)
        if self.level == "each":
            self.look_at = 0
        elif self.writer.needed:
            self.look_at = self.session.place.next_seq + LOOK_EVERY

    def attach(self) -> None:
        """From here on what is appended is written behind, as is what has been already."""
        if self.writer.needed:
            self._hand_over, self.session.sink = self.session.sink, self._append
            if self.unsaved:
                self._begin()

    # --- behind -------------------------------------------------------------------------

    def _append(self, event: Event) -> None:
        self._hand_over(event)
        if self._quiet and self.session.durable_seq < event.seq:
            self._begin()

    def _begin(self) -> None:
        self._quiet = False
        if self._closing:
            return
        if self.level == "each":
            self.writer.hurry(self)
        else:
            self.writer.begin(self)

    def _pause(self) -> None:
        """Nothing is to be written until something is appended."""
        self._again = False
        if not self._quiet:
            self._quiet = True
            self.writer.forget(self)

    def window_ended(self) -> bool:
        """The writer asks: whether `save_behind` has something to do."""
        self._quiet = True
        if self._task is not None or self._flushing:
            self._again = True
            return False
        if not self.unsaved:
            self._flush_ended()
            return False
        self._task = trio.CancelScope()
        return True

    @trio.lowlevel.enable_ki_protection
    async def save_behind(self) -> None:
        """One flush, in a task of the writer's. Trouble is told once, and not retried before
        something is appended, or somebody flushes (C149)."""
        assert self._task is not None
        try:
            with self._task:
                await self._flush()
        except (StoreError, UsageError) as error:
            if not self._told and not self._listening:
                self._told = True
                failure = store_failure(error)
                logger.error("%s is not saved: %s", self.session.id, failure.message)
                self.on_trouble(error, failure)
        finally:
            self._task = None
            self._flush_ended()
            self._go_on()

    def _go_on(self) -> None:
        """A flush has ended: save at once what was due meanwhile and is not of it."""
        if self._again and self._task is None and not self._flushing:
            self._again = False
            if self._quiet and self.unsaved and not self._closing:
                self._quiet = False
                self.writer.hurry(self)

    # --- waiting ------------------------------------------------------------------------

    @property
    def unsaved(self) -> bool:
        """Whether anything in the log is not durable."""
        return self.session.durable_seq < self.session.place.next_seq - 1

    async def flush(self) -> None:
        """Return once everything in the log is durable, as far as the store promises.

        Raises `StoreError`, whatever the store failed with. The last write is `close`'s: from
        there on this waits for it.
        """
        wanted = self.session.place.next_seq - 1
        if not self._closing:
            self._flushing += 1
            self._listening += 1
            try:
                await self._flush()
                return
            except (StoreError, UsageError) as error:
                self._told = True
                if not self._closing or isinstance(error, StoreError):
                    raise  # otherwise `close` took the handle away meanwhile
            finally:
                self._flushing -= 1
                self._listening -= 1
                self._flush_ended()
                self._go_on()
        await self._last_write(wanted)

    @property
    def waits(self) -> bool:
        """Whether `barrier` has anything to wait for, or to try once more."""
        if self.handle is None:
            return False
        if self.trouble is not None:
            return True
        return (self.level != "lazy" or not self.writer.needed) and self.unsaved

    def _flush_ended(self) -> None:
        if self._waiting is not None:
            self._waiting.unpark_all()

    async def _next_end(self) -> None:
        """Return when a flush has ended; rarely does anybody wait for that."""
        if self._waiting is None:
            self._waiting = trio.lowlevel.ParkingLot()
        await self._waiting.park()

    async def barrier(self) -> None:
        """`flush` where this session's level wants it: before a request, at a turn's end.

        Awaits nothing when nothing is to be written.
        """
        if self.waits:
            await self.flush()

    def must_flush(self, read_only: bool) -> bool:
        """Whether a tool's body has to wait for a flush. What is *read_only* can be repeated."""
        if self.handle is None or not self.unsaved:
            return False
        if self.level == "each" or self.trouble is not None:
            return True
        return not read_only and (self.level == "step" or not self.writer.needed)

    @property
    def must_catch_up(self) -> bool:
        """Whether `catch_up` has to be awaited before more is recorded. Cheap."""
        return self.session.place.next_seq >= self.look_at and self._too_far_behind()

    @property
    def must_catch_up_now(self) -> bool:
        """As `must_catch_up`, of what may be large: looks in any case."""
        return self.look_at < math.inf and self._too_far_behind()

    def _too_far_behind(self) -> bool:
        session = self.session
        if self.level == "each":
            return self.unsaved
        next_seq, durable_seq = session.place.next_seq, session.durable_seq
        begin = max(self._backlog.measured, durable_seq + 1)
        self._backlog.grow(session.held.between(begin, next_seq), next_seq)
        self.look_at = next_seq + LOOK_EVERY
        return self._backlog.too_long(durable_seq)

    async def catch_up(self) -> None:
        """Wait until the store is no longer too far behind. Raises `StoreError`."""
        if self.level == "each":
            await self.flush()
            return
        # In the writer's task, so that a cancel need not wait for a disk that hangs.
        failures = self._failures
        self._listening += 1
        try:
            while True:  # woken, too, when somebody gives up a flush of his own
                self._quiet = False
                self.writer.hurry(self)
                await self._next_end()
                if self._failures != failures and self.trouble is not None:
                    self._told = True
                    raise StoreError(self.trouble.message)
                if not self._too_far_behind():
                    return
        finally:
            self._listening -= 1

    async def _flush(self) -> None:
        if self.handle is None:
            return
        began_at = self.session.place.next_seq
        try:
            await self.handle.flush()
        except BaseException as error:
            if (trouble := _trouble(error)) is not None:
                self._failures += 1
                self.trouble = store_failure(trouble)
                if self.session.place.next_seq == began_at:
                    self._pause()
            if isinstance(error, BaseExceptionGroup) and not isinstance(error, Exception):
                raise _cancel_in(error, self.session.id) from None
            if trouble is None or trouble is error:
                raise
            raise trouble from error
        self.trouble, self._told = None, False
        if not self.unsaved:
            self._pause()
        self.session.saved()

    # --- the end ------------------------------------------------------------------------

    async def close(self) -> None:
        """Flush what is left and give the session up. A write behind ends first."""
        self._closing = True
        self._pause()
        try:
            while self._task is not None:
                self._task.cancel(reason="the session is being closed")
                await self._next_end()
        finally:
            try:
                if self.handle is not None:
                    await self.handle.close()
            finally:
                self._closed = True
                self._flush_ended()

    async def _last_write(self, wanted: int) -> None:
        """Return once `close` has ended. Raises `StoreError` unless *wanted* is durable then."""
        if self.handle is None:
            return
        while not self._closed:
            await self._next_end()
        durable = self.session.durable_seq
        if durable < wanted:
            raise StoreError(
                f"session {self.session.id!r} was closed before events {durable + 1} to {wanted} "
                "were saved; they are in memory, so read them from `session.events` while you can"
            )


def store_failure(error: Exception) -> Failure:
    """The facts of *error*, under the code ``STORE``."""
    return Failure(message=failure_of(error).message, code=texts.STORE)


def _trouble(error: BaseException) -> StoreError | UsageError | None:
    """What *error* says of the store, less a cancellation or Ctrl-C in it; None if nothing."""
    if isinstance(error, (StoreError, UsageError)):
        return error
    if isinstance(error, BaseExceptionGroup) and not isinstance(error, Exception):
        rest = error.split(Exception)[0]
        return None if rest is None else _trouble(rest)
    if isinstance(error, Exception):  # a store: somebody else's code
        return StoreError(f"the store failed: {chain_text(error)}")
    return None


def _cancel_in(error: BaseExceptionGroup, session_id: str) -> BaseException:
    """What of *error* goes on: the cancellation alone, however a store has wrapped it."""
    failed, stops = error.split(Exception)
    if failed is not None:
        logger.warning("hidden by a cancel of %s: %s", session_id, chain_text(failed))
    assert stops is not None
    if stops.split(trio.Cancelled)[1] is not None:
        return stops
    first: BaseException = stops
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
