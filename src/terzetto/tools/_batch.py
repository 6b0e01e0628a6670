"""The executor: runs the tool calls of one step.

Owns start order, capacity, barriers, touches and the order of commits. Two ordered lanes,
starts and commits, both in model order; only bodies overlap. Policy belongs to the
pipeline, the log to the caller, behind `BatchLog`; what an executor is, to ``_executing``.

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

from collections.abc import Awaitable, Callable

import trio
from attrs import define, field

from ._apart import Apart
from ._executing import BatchResult, ToolBatch
from ._running import RunningCall
from ._tool import aborted_before_dispatch
from ._touches import NOTHING, Held


def run_in(
    nursery: trio.Nursery, batch: ToolBatch, spoilt: Callable[[], None] | None = None
) -> Awaitable[BatchResult]:
    """`PoolExecutor.execute` in a *nursery* that is there: many batches may share one.

    It was opened by this task. What cancels the task cancels the bodies; for that *nursery* is
    cancelled, as it is when a KeyboardInterrupt inside a call is raised, and takes no further
    batch: *spoilt* is called. No task of the batch is left when this returns or raises.
    """
    return _Run(batch, nursery, spoilt).coordinate()


@define(eq=False)
class _Run:
    """One batch in progress. The parent task alone commits and starts bodies."""

    batch: ToolBatch
    nursery: trio.Nursery
    spoilt: Callable[[], None] | None
    tasks: int = 0
    """Those that this batch started in the nursery and that have not ended."""
    opened: list[RunningCall] = field(factory=list)
    """The calls that are recorded, in model order, the committed ones among them."""
    committed: int = 0
    running: int = 0
    concludes: bool = False
    draining: bool = False
    interrupt: KeyboardInterrupt | None = None
    opening: bool = False
    """A task asks policy about calls, one after the other."""
    launching: int = 0
    failure: BaseException | None = None
    _exclusive: bool = False
    _held: Held | None = None
    _wave: list[RunningCall] = field(factory=list)
    _flushed: list[RunningCall] = field(factory=list)
    _left_alone: bool = False
    _stirred: bool = False
    _parked: trio.lowlevel.Task | None = None

    async def coordinate(self) -> BatchResult:
        """Commit what is ready, start what may start, wait; until all is committed, or it has
        failed, and no task is left."""
        over = False
        while True:
            if not over:
                try:
                    over = await self._advance()
                except Exception as error:  # ours or the log's: what started ends first (C125)
                    self.failure, over = error, True
                except BaseException:
                    self._cancel("who runs the batch was stopped")
                    raise
                self.draining = self.draining or over
            if over and not self.tasks:
                break
            await self._wait()
        if self.interrupt is not None:
            raise self.interrupt
        if self.failure is not None:
            raise self.failure
        return BatchResult(self.concludes)

    async def _advance(self) -> bool:
        """Commit and start what can be; whether it is over.

        Ready results are committed before freed slots are filled again; what capacity
        and barriers allow at the outset is started before the first commit.
        """
        opened, total = self.opened, len(self.batch.calls)
        while True:
            if self.committed < len(opened) and opened[self.committed].ready:
                await self._commit()
            if self.committed == total:
                return True
            if not self.draining:
                try:  # what `cancelled_here` says, at a tenth of its price
                    await trio.lowlevel.checkpoint_if_cancelled()
                except trio.Cancelled:
                    self._drain()
                    continue
            for call in self._take_flushed() if self._flushed else ():
                self._begin(call)
            if self.failure is not None:
                return True
            if self.draining and self.committed == len(opened):
                self._skip_rest()
            if self.committed == total:
                return True
            if self.draining or not await self._start():
                return False

    # --- starts -------------------------------------------------------------------------

    async def _start(self) -> bool:
        """Open and start all that may start now. True if something is ready to commit."""
        pipeline = self.batch.pipeline
        try:
            call = self._next() if self._may_open() else None
            while call is not None:
                if pipeline.hooks.pre_execute:
                    await self._ask_policy(call)
                    break
                pipeline.admit_now(call)
                if call.interrupt is not None:
                    self._interrupted(call)
                self._opened(call)
                if not self._may_open():
                    break
                await trio.lowlevel.checkpoint_if_cancelled()  # by whom a guard or the log told
                call = self._next()
        except trio.Cancelled:
            pass  # no more is opened; what is, drains
        if self._wave and self.failure is None:
            await self._launch()
        return self.committed < len(self.opened) and self.opened[self.committed].ready

    def _take_flushed(self) -> list[RunningCall]:
        flushed, self._flushed = self._flushed, []
        return flushed

    def _may_open(self) -> bool:
        """Whether a call is left, and a slot, and no other start is on its way."""
        return (
            len(self.opened) < len(self.batch.calls)
            and self.running < self.batch.capacity
            and not self.opening
            and not self.launching
            and self.failure is None
        )

    def _next(self) -> RunningCall | None:
        """The next call of those left, classified now and recorded, if barriers and touches
        let it start."""
        index = len(self.opened)
        if self._exclusive:
            return None
        call = self.batch.pipeline.classify(self.batch.calls[index])
        claim = call.claim
        if claim is None:  # a barrier: after all those before it
            if self.committed != index:
                return None
            self._exclusive = True
        elif claim is not NOTHING:
            # After those it conflicts with; the ones behind it wait as well, for their order.
            held = self._held = self._held or Held()
            if held.conflicts(claim):
                return None
            held.take(claim)
        call.seq = self.batch.log.call(call.call)
        self.opened.append(call)
        self.running += 1
        return call

    async def _ask_policy(self, first: RunningCall) -> None:
        """Have *first*, and all behind it that may start, opened by a task that asks policy.

        Returns when it is through, or waits for something: then it holds up no commit.
        """
        self.opening, self._left_alone = True, False
        self.tasks += 1
        self.nursery.start_soon(self._open, first, name="terzetto opens tool calls")
        last = 0
        while self.opening and last != len(self.opened):
            last = len(self.opened)
            # Two turns of the scheduler: a listener that does not wait is done by then.
            await trio.lowlevel.cancel_shielded_checkpoint()
            if self.opening:
                await trio.lowlevel.cancel_shielded_checkpoint()
        self._left_alone = True

    @trio.lowlevel.enable_ki_protection
    async def _open(self, call: RunningCall | None) -> None:
        """Open *call* and all behind it that may start, each in a context of its own."""
        try:
            while call is not None:
                try:  # by who watches the log, or in this very instant
                    await trio.lowlevel.checkpoint_if_cancelled()
                except trio.Cancelled:
                    call.outcome = aborted_before_dispatch()
                else:
                    await Apart(self.batch.pipeline.admit(call))
                if call.interrupt is not None:
                    self._interrupted(call)
                self.opening = False
                self._opened(call)
                # Left alone, for it waited: meanwhile something may be ready; that comes first.
                call = None if self._left_alone else await self._further()
                self.opening = call is not None
        except Exception as error:  # a defect of ours, as in `_body`
            self.failure = error
        finally:
            self._ended()

    async def _further(self) -> RunningCall | None:
        """The call behind the one that policy was asked about, if it may be opened."""
        if not self._may_open():
            return None
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            return self._next()
        except trio.Cancelled:
            return None
        except Exception as error:  # the log's: nothing more may start
            self.failure = error
            return None

    def _opened(self, call: RunningCall) -> None:
        if call.outcome is None and self.draining:
            call.outcome = aborted_before_dispatch()
        if call.outcome is None:
            self._wave.append(call)
        else:
            self._settle(call)

    async def _launch(self) -> None:
        """Start the bodies of the wave; those that may not be lost, once they are durable."""
        wave, self._wave = self._wave, []
        waiting: list[RunningCall] = []
        must_flush = self.batch.log.must_flush
        flush = must_flush()
        for call in wave:
            tool = call.tool
            if not flush or (tool is not None and tool.read_only and not must_flush(True)):
                self._begin(call)
            else:
                waiting.append(call)
        if not waiting:
            return
        self.launching += 1
        self.tasks += 1
        if len(self.opened) - self.committed == len(waiting):
            await self._flush(waiting)  # there is nothing else that could have to be committed
        else:  # in a task of its own: a commit never waits for a start
            self.nursery.start_soon(self._flush, waiting)

    @trio.lowlevel.enable_ki_protection
    async def _flush(self, wave: list[RunningCall]) -> None:
        try:
            await self.batch.log.flush()
        except trio.Cancelled:
            for call in wave:
                call.outcome = aborted_before_dispatch()
                self._settle(call)
        except BaseException as error:  # the store's: nothing more may start
            self.failure = error
        else:
            # The parent starts them: never during a commit.
            self._flushed += wave
            if self.draining:
                self._drain()
        finally:
            self.launching -= 1
            self._ended()

    def _begin(self, call: RunningCall) -> None:
        self.tasks += 1
        self.nursery.start_soon(self._body, call, name="terzetto runs a tool")

    @trio.lowlevel.enable_ki_protection
    async def _body(self, call: RunningCall) -> None:
        try:
            await self.batch.pipeline.execute(call)
            if call.interrupt is not None:
                self._interrupted(call)
            self._settle(call)
        except Exception as error:  # a defect of ours, with which nothing would be ready again
            self.failure = error
        finally:
            self._ended()

    def _settle(self, call: RunningCall) -> None:
        call.ready = True
        self.running -= 1
        claim = call.claim
        if claim is not None and claim is not NOTHING and self._held is not None:
            self._held.release(claim)

    def _interrupted(self, call: RunningCall) -> None:
        """Ctrl-C inside a call ends the batch; it is raised when all is answered."""
        self.interrupt = call.interrupt
        self._cancel("KeyboardInterrupt inside a tool call")

    def _cancel(self, reason: str) -> None:
        """Cancel the bodies, and with them the nursery for good."""
        if self.spoilt is not None:
            self.spoilt()
        self.nursery.cancel_scope.cancel(reason=reason)

    # --- commits ------------------------------------------------------------------------

    async def _commit(self) -> None:
        """Commit all that is ready and whose turn it is."""
        opened, log, pipeline = self.opened, self.batch.log, self.batch.pipeline
        while self.committed < len(opened) and (call := opened[self.committed]).ready:
            outcome = pipeline.review_now(call)
            if outcome is None:
                outcome = await pipeline.review(call)
            if call.interrupt is not None:
                self._interrupted(call)
            log.result(call.call, call.seq, outcome)
            self.committed += 1
            if self._exclusive:
                self._exclusive = self.committed < len(opened)
            if outcome.concludes and not outcome.is_error:
                self.concludes = True
            if not self.draining and log.must_catch_up():
                await self._catch_up()

    async def _catch_up(self) -> None:
        try:
            await self.batch.log.catch_up()
        except trio.Cancelled:
            self._drain()
        except Exception as error:  # the store's: nothing more may start
            self.failure = error

    def _drain(self) -> None:
        """Cancelled: start nothing any more; calls opened but not launched are unstarted."""
        self.draining = True
        # A listener's scope, entered since the nursery was opened and left open, is not around it.
        self._cancel("who runs the batch was cancelled")
        for call in (*self._wave, *self._take_flushed()):
            call.outcome = aborted_before_dispatch()
            self._settle(call)
        self._wave = []

    def _skip_rest(self) -> None:
        """A pair for every call that was never opened: recorded, not run."""
        for call in self.batch.calls[len(self.opened) :]:
            seq = self.batch.log.call(call)
            self.batch.log.result(call, seq, aborted_before_dispatch())
            self.committed += 1

    # --- waiting ------------------------------------------------------------------------

    def _ended(self) -> None:
        """The last that a task of the batch does: the parent looks, now or before it waits."""
        self.tasks -= 1
        self._stirred = True
        parked, self._parked = self._parked, None
        if parked is not None:
            trio.lowlevel.reschedule(parked)

    async def _wait(self) -> None:
        """Wait for something to settle or open."""
        if not self._stirred:
            self._parked = trio.lowlevel.current_task()
            try:
                await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
            except trio.Cancelled:
                self._drain()
                return
        self._stirred = False

    def _stop_waiting(self, raise_cancel: object) -> trio.lowlevel.Abort:
        if self.draining:
            # Started bodies are asked to stop and waited for; that wait cannot be cut.
            return trio.lowlevel.Abort.FAILED
        self._parked = None
        return trio.lowlevel.Abort.SUCCEEDED
