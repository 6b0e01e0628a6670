"""FaultyStore: any store, with the failures that a test chooses.

The store below stays what it is; what fails is the way to it. Which operation is struck is
counted, never drawn or timed, so the same test meets the same trouble each time. No threads
and no files of its own, so it works under a clock that jumps if the store below does.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias, get_args

import trio
from attrs import define, field

from ..vocabulary import Event, InvalidValue, StoreError

StoreOperation: TypeAlias = Literal["create", "open", "read", "list", "flush", "close", "delete"]
"""What a store is asked for. ``read`` is that of the store and that of a handle."""
FaultEffect: TypeAlias = Literal["none", "part", "all"]
"""How much of an operation has happened when it fails or hangs."""


@define(eq=False)
class StoreCall:
    """One operation of a `FaultyStore`.

    *number* counts the calls of the same *operation*, from 1. *session_id* is empty for
    ``list``. *events* are those that a ``flush`` or ``close`` was to hand to the store below.
    *outcome* is ``running`` until it ends.
    """

    operation: StoreOperation
    session_id: str
    number: int
    events: Sequence[Event] = field(default=(), repr=lambda events: str(len(events)))
    outcome: Literal["running", "done", "failed", "cancelled"] = "running"


@define(eq=False, kw_only=True)
class Fault:
    """One trouble of a `FaultyStore`, from its `fail`, `hang` or `slow`.

    *hits* counts the operations that it has struck or is going to, once they get so far.
    """

    operation: StoreOperation
    effect: FaultEffect
    hits: int = field(default=0, init=False)
    _error: int | Exception | None = field(alias="error")
    _seconds: float = field(alias="seconds")
    _hangs: bool = field(alias="hangs")
    _nth: int = field(alias="nth")
    _times: int | None = field(alias="times")
    _session_id: str | None = field(alias="session_id")
    _when: Callable[[StoreCall], bool] | None = field(alias="when", repr=False)
    _seen: int = field(default=0, init=False)
    _mended: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _struck: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )

    def mend(self) -> None:
        """Strike no more; operations that hang because of this go on."""
        self._mended.set()

    async def wait_hit(self, hits: int = 1) -> None:
        """Return once `hits` has reached *hits*."""
        await trio.lowlevel.checkpoint()
        while self.hits < hits:
            await self._struck.park()

    def _takes(self, call: StoreCall) -> bool:
        """Whether it strikes *call*; counts it."""
        if self._mended.is_set() or call.operation != self.operation:
            return False
        if self._session_id not in (None, call.session_id):
            return False
        if self._when is not None and not self._when(call):
            return False
        self._seen += 1
        last = None if self._times is None else self._nth + self._times - 1
        if self._seen < self._nth or (last is not None and self._seen > last):
            return False
        self.hits += 1
        self._struck.unpark_all()
        return True

    async def _strike(self, call: StoreCall) -> None:
        if self._seconds:
            await trio.sleep(self._seconds)
        if self._hangs:
            await self._mended.wait()
        if isinstance(self._error, Exception):
            raise self._error.with_traceback(None)
        if self._error is not None:
            why = os.strerror(self._error)
            raise failed(call.session_id, call.operation, why) from OSError(self._error, why)


@define(eq=False)
class Strike:
    """The faults that one operation meets."""

    call: StoreCall
    _faults: list[Fault]

    @property
    def parts(self) -> bool:
        """Whether one of them strikes when a part has been done."""
        return any(fault.effect == "part" for fault in self._faults)

    async def at(self, effect: FaultEffect) -> None:
        """So much has been done: the faults that wait for this strike."""
        for fault in self._faults:
            if fault.effect == effect:
                await fault._strike(self.call)


@define(eq=False)
class Trouble:
    """Which faults there are, and what was asked of the store. `FaultyStore` is its door."""

    faults: list[Fault] = field(factory=list)
    calls: list[StoreCall] = field(factory=list)
    _numbers: Counter[StoreOperation] = field(factory=Counter, init=False)

    def add(
        self,
        operation: StoreOperation,
        *,
        error: int | Exception | None = None,
        seconds: float = 0.0,
        hangs: bool = False,
        nth: int,
        times: int | None,
        effect: FaultEffect,
        session_id: str | None,
        when: Callable[[StoreCall], bool] | None,
    ) -> Fault:
        _one_of("operation", operation, get_args(StoreOperation))
        _one_of("effect", effect, get_args(FaultEffect))
        if effect == "part" and operation not in ("flush", "close"):
            raise InvalidValue(f"effect: only 'flush' and 'close' have parts, not {operation!r}")
        if not seconds >= 0:
            raise InvalidValue(f"seconds: expected 0 or more, got {seconds!r}")
        for name, number in (("nth", nth), ("times", times)):
            if number is not None and (type(number) is not int or number < 1):
                raise InvalidValue(f"{name}: expected an int of 1 or more, got {number!r}")
        fault = Fault(
            operation=operation,
            effect=effect,
            error=error,
            seconds=seconds,
            hangs=hangs,
            nth=nth,
            times=times,
            session_id=session_id,
            when=when,
        )
        self.faults.append(fault)
        return fault

    @contextmanager
    def call(
        self, operation: StoreOperation, session_id: str, events: Sequence[Event] = ()
    ) -> Iterator[Strike]:
        """Write one operation down, and how it ends; gives the faults that it meets."""
        self._numbers[operation] += 1
        call = StoreCall(operation, session_id, self._numbers[operation], events)
        self.calls.append(call)
        strike = Strike(call, [fault for fault in self.faults if fault._takes(call)])
        try:
            yield strike
        except Exception:
            call.outcome = "failed"
            raise
        except BaseException:
            call.outcome = "cancelled"
            raise
        call.outcome = "done"


def check_error(error: object) -> None:
    if not (isinstance(error, Exception) or (type(error) is int and error > 0)):
        raise InvalidValue(f"error: expected an errno or an exception, got {error!r}")


def failed(session_id: str, operation: str, why: str) -> StoreError:
    """In the words of all stores here."""
    what = f"session {session_id!r}" if session_id else "the sessions"
    return StoreError(f"{what}: {operation} failed: {why}")


def _one_of(name: str, value: object, known: Collection[str]) -> None:
    if value not in known:
        raise InvalidValue(f"{name}: expected one of {', '.join(known)}, got {value!r}")
