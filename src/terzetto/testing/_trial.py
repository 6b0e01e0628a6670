"""A trial: one function run once, under watch, and cancelled at one moment of it.

A *moment* lies before or after a step of a task of the trial: before it the task is on its
way out of a wait, after it the task waits. What happened is noted in a `Trial`; what is wrong
about it is judged by those who asked for it.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from types import FrameType
from typing import Any, TypeAlias

import trio
from attrs import define, evolve, field

from ..vocabulary import single
from ._effects import Effect, Effects
from ._leftovers import GRACE
from ._pinned import pinned
from ._places import is_users, now_at, place, shield_at, users_frames, waits_at
from ._stopwatch import Stopwatch
from ._trial_clock import Gated, TrialClock, Unending
from ._trial_facts import Delivery, Ending, Strike, cancelled_part, ended, has_cancelled

Around: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]
Body: TypeAlias = Callable[[], Awaitable[object]]

_TIMEOUTS = "trio._timeouts"
MAX_STEPS = 50_000
MAX_STEPS_CANCELLED = 5_000
_MOST = 100
"""Deliveries that are remembered."""
_NOT_OURS = {"decimal_context", "current_async_library_cvar", "sniffio"}


@define(eq=False, repr=False)
class Trial(trio.abc.Instrument):
    """What is run, and what was seen. Times are virtual seconds, unless they are said to be
    real ones. *first_seen* and *last_seen* are what the *probe* gave before and after."""

    body: Body
    around: Around
    strike: Strike | None = None
    effects: Effects = field(factory=Effects)
    probe: Callable[[], object] | None = None
    seed: int = 0
    patience: float = 60.0
    grace: float = GRACE
    sample_after: float | None = None
    find_swallow: bool = False

    ending: Ending | None = None
    moments: int = 0
    struck_at: str | None = None
    struck: bool = False
    gave_way_after: float = 0.0
    went_on: int = 0
    seconds: float = 0.0
    deliveries: list[Delivery] = field(factory=list)
    shields: list[str] = field(factory=list)
    tasks_left: list[str] = field(factory=list)
    threads_left: list[str] = field(factory=list)
    late_effects: list[Effect] = field(factory=list)
    context: list[str] = field(factory=list)
    hung: str | None = None
    unended: bool = False
    waited: bool = False
    swallowed_at: str | None = None
    slow_steps: list[float] = field(factory=list)
    slow_at: str | None = None
    first_seen: object = None
    last_seen: object = None

    _task: trio.lowlevel.Task | None = None
    _owned: dict[trio.lowlevel.Task, None] = field(factory=dict)
    _trios: set[trio.lowlevel.Task] = field(factory=set)
    _scope: trio.CancelScope = field(factory=trio.CancelScope)
    _threads: Gated = field(factory=Gated)
    _clock: TrialClock = field(init=False)
    _jumped_at_strike: float = 0.0
    _steps: int = 0
    _steps_left: int = MAX_STEPS
    watch: Stopwatch = field(factory=Stopwatch)
    _ours: bool = False
    _thread: int = 0
    _last: FrameType | None = None

    def __attrs_post_init__(self) -> None:
        self._clock = TrialClock(self._threads, self._living, self._force, self.patience)

    @property
    def heard(self) -> Delivery | None:
        """The first time that the function's own task was told of the strike."""
        return next((heard for heard in self.deliveries if heard.main), None)

    # --- running ------------------------------------------------------------------------

    def run(self) -> Trial:
        """Do it. Raises what *around* raises, and KeyboardInterrupt."""
        self.effects.clear()
        hooks = sys.get_asyncgen_hooks()
        self._thread = threading.get_ident()
        with pinned(self.seed), self._threads, self._sampled():
            try:
                trio.run(self._main, clock=self._clock, instruments=[self])
            except trio.TrioInternalError as error:
                if not isinstance(error.__cause__, Unending):
                    raise
                self.unended = True
                self.hung = self.hung or str(error.__cause__)
                sys.set_asyncgen_hooks(*hooks)
            except BaseExceptionGroup as group:
                inner = single(group)
                if not isinstance(inner, KeyboardInterrupt):
                    raise
                raise inner from None  # somebody wants to stop
        self.waited = self._clock.waited
        self._forget()
        return self

    async def _main(self) -> None:
        async with self.around():
            if self.probe is not None:
                self.first_seen = self.probe()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run, name="<checked>")
            if any(not work.ended.is_set() for work in self._threads.works):
                for work in self._threads.unfinished(min(self.patience, self.grace)):
                    if work.place is not None:
                        self.threads_left.append(f"a thread that was begun at {work.place}")
                await trio.lowlevel.checkpoint()
            self.late_effects = list(self._late())
            if self.probe is not None:
                self.last_seen = self.probe()

    async def _run(self) -> None:
        self._task = trio.lowlevel.current_task()
        self._owned[self._task] = None
        self._ours = True
        before = dict(contextvars.copy_context().items())
        with self._scope:
            error: BaseException | None = None
            try:
                value = await self.body()
                self.ending = Ending(returned=True, value=value)
            except BaseException as raised:
                error = raised
                self.ending = ended(raised)
            # No checkpoint from here on: what is looked at is as the function left it.
            self._ended(before)
            stop = isinstance(error, KeyboardInterrupt)
            if error is not None and (stop or self.ending.cancelled):
                try:
                    raise error if stop else cancelled_part(error)
                finally:
                    del error

    def _ended(self, before: dict[contextvars.ContextVar[Any], object]) -> None:
        self.gave_way_after = self._clock.jumped - self._jumped_at_strike if self.struck else 0.0
        self.seconds = self._clock.jumped
        for variable, value in contextvars.copy_context().items():
            known = before.get(variable, before)
            if known is not value and variable.name not in _NOT_OURS:
                self.context.append(variable.name)
        for task in self._living():
            if task is not self._task and task not in self._trios:
                where_begun = place(task.coro.cr_code.co_filename, task.coro.cr_code.co_firstlineno)
                self.tasks_left.append(f"{task.name.rpartition('.')[2]} ({where_begun})")
        self._task = None

    def _living(self) -> Iterator[trio.lowlevel.Task]:
        """The tasks of the trial that still run."""
        return (task for task in list(self._owned) if task.coro.cr_frame is not None)

    def _forget(self) -> None:
        """Let go of tasks and frames, so that what they hold is freed before it is counted."""
        self._owned.clear()
        self._trios.clear()
        self._threads.works.clear()
        self.deliveries = [evolve(heard, task=None) for heard in self.deliveries]
        self._last = None

    # --- what the instrument sees ---------------------------------------------------------

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        if self._task is None or not trio.lowlevel.in_trio_task():
            return
        if trio.lowlevel.current_task() in self._owned:
            self._owned[task] = None
            if _spawned_by_trio():
                self._trios.add(task)

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self._owned.pop(task, None)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._clock.stepping()
        self._ours = task in self._owned
        self.watch.start()
        if task not in self._owned or self._task is None:
            return
        self._steps += 1
        if self._steps > self._steps_left:
            self._steps, before = 0, self._steps
            self._steps_left = MAX_STEPS_CANCELLED
            if not self._force(f"it goes on after {before - 1:,} steps"):
                self._clock.beyond_help = "it goes on and on"
        if self.heard is not None and task is self._task:
            self.went_on += 1
        self._look_at(task)
        self._moment(task, "on the way out of")

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = self.watch.stop()
        if self._ours:
            self.slow_steps.append(took)
        if task in self._owned and self._task is not None:
            self._moment(task, "at")

    def _moment(self, task: trio.lowlevel.Task, where: str) -> None:
        self.moments += 1
        if self.strike is None or self.struck or self.moments != self.strike.moment:
            return
        at = waits_at(task)
        self.struck_at = "before it began" if at is None else f"{where} {at}"
        self.struck = True
        self._jumped_at_strike = self._clock.jumped
        self._steps, self._steps_left = 0, MAX_STEPS_CANCELLED
        if self.strike.how == "cancel":
            self._scope.cancel(reason="checked")
        else:
            self._scope.deadline = self._clock.current_time() - 1

    def _look_at(self, task: trio.lowlevel.Task) -> None:
        """Whether *task* is about to hear that it is cancelled; and what shields it."""
        thrown = getattr(getattr(task, "_next_send", None), "error", None)
        told = self.struck and isinstance(thrown, trio.Cancelled) and self._reaches(task)
        if told and len(self.deliveries) < _MOST:
            seen = None if self.probe is None else self.probe()
            heard = Delivery(
                task, waits_at(task), len(self.effects._entries), seen, task is self._task
            )
            self.deliveries.append(heard)
            if self.find_swallow and sys.gettrace() is None:
                sys.settrace(self._traced)
        self._look_for_shields(task)

    def _look_for_shields(self, task: trio.lowlevel.Task) -> None:
        if self._shielded_for_ever(task):
            at = shield_at(users_frames(task))
            if at is not None and at not in self.shields:
                self.shields.append(at)

    def _statuses(self, task: trio.lowlevel.Task) -> Iterator[Any]:
        """The cancel scopes around *task*, inside the trial's own, innermost first."""
        status: Any = getattr(task, "_cancel_status", None)
        while status is not None and status._scope is not self._scope:
            yield status
            status = status._parent

    def _reaches(self, task: trio.lowlevel.Task) -> bool:
        return not any(status._scope.shield for status in self._statuses(task))

    def _shielded_for_ever(self, task: trio.lowlevel.Task) -> bool:
        bounded = False
        statuses = list(self._statuses(task))
        if any(status._scope.shield for status in statuses) and _sleeps(task):
            statuses = statuses[1:]  # a sleep is a scope of its own, and bounds nothing else
        for status in statuses:
            bounded = (
                bounded or status._scope.deadline < float("inf") or status._scope.cancel_called
            )
            if status._scope.shield:
                return not bounded
        return False

    def _force(self, reason: str) -> bool:
        """End what does not end: cancel it, and take its shields away."""
        again = self.hung is not None
        waiting = [at for task in self._living() if (at := waits_at(task)) is not None]
        if not again:
            self.hung = "; ".join([reason, *(f"waits at {at}" for at in dict.fromkeys(waiting))])
        self._scope.cancel(reason="given up")
        for task in list(self._living()):
            self._look_for_shields(task)
            for status in self._statuses(task):
                status._scope.shield = False
        return not again

    def _late(self) -> Iterator[Effect]:
        """Effects of a task, or of its thread, after it heard that it is cancelled."""
        threads = {w.thread: w.by for w in self._threads.works if w.thread is not None}
        heard: dict[object, int] = {}
        for delivery in self.deliveries:
            heard.setdefault(delivery.task, delivery.effects)
        first = min(heard.values(), default=None)
        for index, effect in enumerate(self.effects._entries):
            actor = threads.get(effect.actor, effect.actor)  # type: ignore[call-overload]
            since = heard.get(actor, first if isinstance(actor, int) else None)
            if effect.sort == "note" and since is not None and index >= since:
                yield effect

    # --- where it was swallowed, where it is slow -------------------------------------------

    def _traced(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._inside if is_users(frame.f_code) and self._task is not None else None

    def _inside(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self._task is None:
            return None
        if event == "exception" and has_cancelled(arg[1]):
            self._last, self.swallowed_at = frame, None
        elif event == "line" and frame is self._last and self.swallowed_at is None:
            self.swallowed_at = place(frame.f_code.co_filename, frame.f_lineno)
        return self._inside

    @contextmanager
    def _sampled(self) -> Iterator[None]:
        """A thread that looks where a step has been for more than *sample_after* seconds."""
        if self.sample_after is None:
            with _no_trace_left():
                yield
            return
        ended = threading.Event()
        limit = self.sample_after

        def look() -> None:
            while not ended.wait(limit / 4):
                began = self.watch.running_since
                if began and time.monotonic() - began > limit and self.slow_at is None:
                    self.slow_at = now_at(self._thread)

        looker = threading.Thread(target=look, name="terzetto check", daemon=True)
        looker.start()
        try:
            yield
        finally:
            ended.set()
            looker.join()


@contextmanager
def _no_trace_left() -> Iterator[None]:
    before = sys.gettrace()
    try:
        yield
    finally:
        if sys.gettrace() is not before:
            sys.settrace(before)


def _sleeps(task: trio.lowlevel.Task) -> bool:
    return any(
        frame.f_code.co_name == "sleep_until" and frame.f_globals.get("__name__") == _TIMEOUTS
        for frame, _ in task.iter_await_frames()
    )


def _spawned_by_trio() -> bool:
    """Whether Trio began the task that is being spawned for itself, and not for its caller."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("trio._core."):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("trio.")
