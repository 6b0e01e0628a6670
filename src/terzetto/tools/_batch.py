"""The executor: runs the tool calls of one step.

Owns start order, capacity, barriers, touches and the order of commits. Two ordered lanes,
starts and commits, both in model order; only bodies overlap. Policy belongs to the
pipeline, the log to the caller, behind `BatchLog`.

Source: a rolling pool refilled as bodies end, with exclusive calls as the writers of
a fair readers-writer lock; "slot first, then the task", so that only as many tasks
are alive as there are slots.

A call touches its resources from its start (its `tool/call`) until its body has ended,
not until its result is committed. That is enough, because touches order *effects*, and
all effects of a call, those of ``execute`` listeners around it and of a worker thread
included, are over by then. Waiting for the commit would be wrong: results are committed
in model order, so a call would wait for every earlier one, also for those that it does
not conflict with. Where it makes no difference the commit comes first all the same: a
result that is ready and whose turn it is is committed before anything else starts.
Whoever changes a resource in a ``post_execute`` listener works outside of the touch.
"""

from __future__ import annotations

from typing import Protocol

import trio
from attrs import define, field, frozen

from ..vocabulary import InvalidValue, ToolCallBlock
from ._pipeline import ToolPipeline, cancelled_here
from ._running import PreparedTool
from ._tool import ToolOutcome, aborted_before_dispatch
from ._touches import Held


class BatchLog(Protocol):
    """Where a batch is recorded. The plain methods append synchronously."""

    def call(self, call: ToolCallBlock) -> int:
        """Record that *call* starts; returns the seq its result cites."""
        ...

    def result(self, call: ToolCallBlock, call_seq: int, outcome: ToolOutcome) -> None:
        """Record the outcome, then hand its contexts to the next step."""
        ...

    def must_flush(self, read_only: bool = False) -> bool:
        """Whether recorded calls are not durable yet, and have to be before a body runs.
        One that is *read_only* may be repeated after a crash."""
        ...

    async def flush(self) -> None:
        """Return once every recorded call is durable, as far as the store promises."""
        ...

    def must_catch_up(self) -> bool:
        """Whether `catch_up` has to be awaited before more is recorded: asked after each
        result."""
        ...

    async def catch_up(self) -> None:
        """Wait for a store that is too far behind."""
        ...


@frozen(kw_only=True)
class ToolBatch:
    """The raw calls of one answer, in the order the model wrote them.

    *capacity*: most bodies running at once, at least 1, for this batch alone.
    """

    calls: tuple[ToolCallBlock, ...]
    capacity: int
    pipeline: ToolPipeline
    log: BatchLog

    def __attrs_post_init__(self) -> None:
        if isinstance(self.capacity, bool) or self.capacity < 1:
            raise InvalidValue(f"capacity: expected a positive integer, got {self.capacity!r}")


@frozen
class BatchResult:
    """*concludes*: a call that succeeded asked to end the turn."""

    concludes: bool


class ToolExecutor(Protocol):
    """The replaceable part that runs batches (C4)."""

    async def execute(self, batch: ToolBatch) -> BatchResult:
        """Run *batch*; return when every call has its result in the log, in model order.

        Cancellation: returns normally all the same, every started body ended and every
        call answered; the caller asks for the cancel itself.
        """
        ...


class PoolExecutor:
    """The built-in executor: a rolling pool with exclusive barriers and touched resources."""

    async def execute(self, batch: ToolBatch) -> BatchResult:
        run = _Run(batch)
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            try:
                await run.coordinate(nursery)
            except Exception as error:  # ours or the log's: bodies that started end first (C125)
                failure = error
        if run.interrupt is not None:
            raise run.interrupt
        if (failure := failure or run.failure) is not None:
            raise failure
        return BatchResult(run.concludes)


@define(eq=False)
class _Slot:
    """One call on its way. *ready*: it has an outcome to commit."""

    call: ToolCallBlock
    prepared: PreparedTool
    seq: int
    ready: bool = False


@define(eq=False)
class _Run:
    """One batch in progress. The parent task alone starts and commits."""

    batch: ToolBatch
    slots: list[_Slot] = field(factory=list)
    committed: int = 0
    running: int = 0
    concludes: bool = False
    draining: bool = False
    interrupt: KeyboardInterrupt | None = None
    opening: _Slot | None = None
    launching: int = 0
    failure: Exception | None = None
    _exclusive: bool = False
    _held: Held = field(factory=Held)
    _wave: list[_Slot] = field(factory=list)
    _flushed: list[_Slot] = field(factory=list)
    _changed: trio.Event = field(factory=trio.Event)

    async def coordinate(self, nursery: trio.Nursery) -> None:
        """Commit what is ready, start what may start, wait; until all is committed.

        Ready results are committed before freed slots are filled again; what capacity
        and barriers allow at the outset is started before the first commit.
        """
        total = len(self.batch.calls)
        while True:
            while self.committed < len(self.slots) and self.slots[self.committed].ready:
                await self._commit(self.slots[self.committed], nursery)
            if self.committed == total:
                return
            if not self.draining and cancelled_here():
                self._drain()
                continue
            for slot in self._take_flushed():
                nursery.start_soon(self._body, slot, nursery)
            if self.failure is not None:
                return
            if self.draining and self.committed == len(self.slots):
                self._skip_rest()
            if self.committed == total:
                return
            if not self.draining and await self._start(nursery):
                continue
            await self._wait()

    # --- starts -------------------------------------------------------------------------

    async def _start(self, nursery: trio.Nursery) -> bool:
        """Open and start all that may start now. True if something is ready to commit."""
        pipeline = self.batch.pipeline
        while self._has_room() and self._may_open() and (prepared := self._next()) is not None:
            slot = _Slot(prepared.call, prepared, self.batch.log.call(prepared.call))
            self.slots.append(slot)
            self.running += 1
            self._exclusive = prepared.claim is None
            if prepared.claim is not None:
                self._held.take(prepared.claim)
            if pipeline.waits_before:
                self.opening = slot
                nursery.start_soon(self._open, slot, nursery)
                # Two turns of the scheduler: a listener that does not wait is done by then.
                await trio.lowlevel.cancel_shielded_checkpoint()
                await trio.lowlevel.cancel_shielded_checkpoint()
            else:
                pipeline.admit_now(prepared)
                self._check_interrupt(slot, nursery)
                self._opened(slot)
        self._launch(nursery)
        return self.committed < len(self.slots) and self.slots[self.committed].ready

    def _take_flushed(self) -> list[_Slot]:
        flushed, self._flushed = self._flushed, []
        return flushed

    def _has_room(self) -> bool:
        """Whether a call is left, and a slot: asked first, for it costs the least."""
        return len(self.slots) < len(self.batch.calls) and self.running < self.batch.capacity

    def _may_open(self) -> bool:
        return self.opening is None and not self.launching and not cancelled_here()

    def _next(self) -> PreparedTool | None:
        """The next call of those left, classified now, if barriers and touches let it start."""
        index = len(self.slots)
        if self._exclusive:
            return None
        prepared = self.batch.pipeline.classify(self.batch.calls[index])
        if prepared.claim is None:  # a barrier: after all those before it
            return prepared if self.committed == index else None
        # After those it conflicts with; the ones behind it wait as well, for their order.
        return None if self._held.conflicts(prepared.claim) else prepared

    @trio.lowlevel.enable_ki_protection
    async def _open(self, slot: _Slot, nursery: trio.Nursery) -> None:
        if cancelled_here():
            slot.prepared.outcome = aborted_before_dispatch()
        else:
            await self.batch.pipeline.admit(slot.prepared)
        self._check_interrupt(slot, nursery)
        self.opening = None
        self._opened(slot)
        self._changed.set()

    def _opened(self, slot: _Slot) -> None:
        if slot.prepared.outcome is None and self.draining:
            slot.prepared.outcome = aborted_before_dispatch()
        if slot.prepared.outcome is None:
            self._wave.append(slot)
        else:
            self._settle(slot)

    def _launch(self, nursery: trio.Nursery) -> None:
        """Start the bodies of the wave; those that may not be lost, once they are durable."""
        wave, self._wave = self._wave, []
        waiting: list[_Slot] = []
        for slot in wave:
            tool = slot.prepared.tool
            if not self.batch.log.must_flush(tool is not None and tool.read_only):
                nursery.start_soon(self._body, slot, nursery)
            else:
                waiting.append(slot)
        if waiting:
            # In a task of its own: a commit never waits for a start.
            self.launching += 1
            nursery.start_soon(self._flush, waiting, nursery)

    @trio.lowlevel.enable_ki_protection
    async def _flush(self, wave: list[_Slot], nursery: trio.Nursery) -> None:
        try:
            await self.batch.log.flush()
        except trio.Cancelled:
            for slot in wave:
                slot.prepared.outcome = aborted_before_dispatch()
                self._settle(slot)
        except Exception as error:  # the store's: nothing more may start
            self.failure = error
        else:
            # The parent starts them: never during a commit.
            self._flushed += wave
            if self.draining:
                self._drain()
        self.launching -= 1
        self._changed.set()

    @trio.lowlevel.enable_ki_protection
    async def _body(self, slot: _Slot, nursery: trio.Nursery) -> None:
        await self.batch.pipeline.execute(slot.prepared)
        self._check_interrupt(slot, nursery)
        self._settle(slot)
        self._changed.set()

    def _settle(self, slot: _Slot) -> None:
        slot.ready = True
        self.running -= 1
        if slot.prepared.claim is not None:
            self._held.release(slot.prepared.claim)

    def _check_interrupt(self, slot: _Slot, nursery: trio.Nursery) -> None:
        """Ctrl-C inside a call ends the batch; it is raised when all is answered."""
        if slot.prepared.interrupt is not None:
            self.interrupt = slot.prepared.interrupt
            nursery.cancel_scope.cancel(reason="KeyboardInterrupt inside a tool call")

    # --- commits ------------------------------------------------------------------------

    async def _commit(self, slot: _Slot, nursery: trio.Nursery) -> None:
        outcome = await self.batch.pipeline.review(slot.prepared)
        self._check_interrupt(slot, nursery)
        self.batch.log.result(slot.call, slot.seq, outcome)
        self.committed += 1
        self._exclusive = self._exclusive and self.committed < len(self.slots)
        self.concludes = self.concludes or (outcome.concludes and not outcome.is_error)
        if not self.draining and self.batch.log.must_catch_up():
            await self._catch_up()

    async def _catch_up(self) -> None:
        try:
            await self.batch.log.catch_up()
        except trio.Cancelled:
            self._drain()
        except Exception as error:  # the store's: nothing more may start
            self.failure = error

    def _drain(self) -> None:
        """Start nothing any more; calls opened but not launched are unstarted."""
        self.draining = True
        for slot in (*self._wave, *self._take_flushed()):
            slot.prepared.outcome = aborted_before_dispatch()
            self._settle(slot)
        self._wave = []

    def _skip_rest(self) -> None:
        """A pair for every call that was never opened: recorded, not run."""
        for call in self.batch.calls[len(self.slots) :]:
            seq = self.batch.log.call(call)
            self.batch.log.result(call, seq, aborted_before_dispatch())
            self.committed += 1

    async def _wait(self) -> None:
        """Wait for something to settle or open."""
        try:
            if self.draining:
                # Started bodies are asked to stop and waited for; that wait cannot be cut.
                with trio.CancelScope(shield=True):
                    await self._changed.wait()
            else:
                await self._changed.wait()
        except trio.Cancelled:
            self._drain()
            return
        self._changed = trio.Event()
