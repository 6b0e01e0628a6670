"""Runs on a virtual clock that end: also when what they run never does.

Time jumps to the next deadline whenever nothing can run, so a run takes no longer than
its steps. A run without a next deadline is blocked for ever, one that only ever spins or
lets time pass is no better; both are given up, with a list of who waits where.

Threads that Trio starts - `trio.to_thread`, `trio.Path`, plain tools - take no virtual time:
the run stands still until they have ended, so they end at the same moment in every run.
A loaded machine does not change that: what counts is what a thread does, not how long it takes.
Sockets and processes look like idle time here; give such code a stand-in.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar, TypeVarTuple

import trio
from attrs import define
from trio._core import _run

from ._pinned import pinned
from ._workers import SLICE, Threads, Worker

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_SECONDS = 3_600.0
MAX_STEPS = 100_000

_TRIO = (trio.__name__ + ".", "trio_util.")
_PATIENCE = 0.2
"""Seconds that a run stands still for a thread that sleeps, which may be waiting for the run;
one that computes gets twice as many, and none is hurried on a machine that is busy."""
_LONG = 10.0
"""The same where nothing else is left that could happen: from then on the run is blocked."""


class Hung(Exception):
    """A run that never ends: why it was given up, and *parked*, where each task of it waits."""

    def __init__(self, reason: str, parked: Sequence[str]) -> None:
        super().__init__(reason)
        self.parked = tuple(parked)

    def __str__(self) -> str:
        return "; ".join([super().__str__(), *self.parked])


def play(
    main: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    seed: int = 0,
    instruments: Sequence[trio.abc.Instrument] = (),
    max_seconds: float = MAX_SECONDS,
    max_steps: int = MAX_STEPS,
) -> T:
    """`trio.run` on a virtual clock, with a repeatable scheduler, that ends in every case.

    Args:
        main: Called with *args*, as `trio.run` does.
        seed: Of the scheduler's choice among runnable tasks; one seed, one run.
        instruments: As for `trio.run`.
        max_seconds: Virtual seconds that the run may take.
        max_steps: Task steps that it may take.

    Raises whatever *main* raises, and `Hung` when every task is blocked for ever or a
    limit is reached. Nothing of a run that hangs is unwound: it is given up as it stands.
    A loop without a checkpoint cannot be ended from outside, here as in any Trio program.
    """
    threads = _Standing()
    clock = _Clock(max_seconds, max_steps, threads)
    hooks = sys.get_asyncgen_hooks()
    with pinned(seed), threads:
        try:
            return trio.run(
                main,
                *args,
                clock=clock,
                instruments=[clock, *instruments],
                strict_exception_groups=True,
            )
        except trio.TrioInternalError as error:
            if clock.hung is None:
                raise
            _keep(error)
            sys.set_asyncgen_hooks(*hooks)
    raise clock.hung


def _keep(run: object) -> None:
    """Never collect *run*, not even at exit: its clean-up would run without its run."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(run))


@define(eq=False)
class _Clock(trio.abc.Clock, trio.abc.Instrument):
    """Virtual time, and the watch over it. Trio asks it how long to wait for events."""

    max_seconds: float
    max_steps: int
    threads: _Standing
    hung: Hung | None = None
    _now: float = 0.0
    _steps: int = 0
    _idle_at: int = -1

    def start_clock(self) -> None:
        return None

    def current_time(self) -> float:
        if self._steps > self.max_steps and not trio.lowlevel.in_trio_task():
            self._give_up(f"it goes on after {self.max_steps:,} task steps")
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Called when no task can run: poll once for Ctrl-C and the like, then jump."""
        if deadline <= self._now:
            return 0.0
        if self._idle_at != self._steps:
            self._idle_at = self._steps
            self.threads.look()
            return 0.0
        if _runner().waiting_for_idle:
            return 1.0  # `wait_all_tasks_blocked` comes before a jump of the clock
        if self.threads.hold(_LONG if math.isinf(deadline) else _PATIENCE):
            return SLICE
        if math.isinf(deadline):
            self._give_up("every task is blocked for ever")
        if deadline > self.max_seconds:
            self._give_up(f"it goes on after {self.max_seconds:,.0f} virtual seconds")
        self._now = deadline
        return 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._steps += 1

    def _give_up(self, reason: str) -> None:
        runner = _runner()
        _keep([runner, *((task, task.coro) for task in runner.tasks)])
        self.hung = Hung(reason, [where(task) for task in tasks() if not _is_trios(task)])
        raise self.hung


def _runner() -> Any:
    """Trio's own object for this run: only it knows who waits until all are blocked."""
    return getattr(_run.GLOBAL_RUN_CONTEXT, "runner", None)


# --- who waits where ------------------------------------------------------------------


def tasks() -> Iterator[trio.lowlevel.Task]:
    """Every task of the run, Trio's own as well, parents first."""
    root = trio.lowlevel.current_root_task()
    pending = [] if root is None else [root]
    while pending:
        task = pending.pop()
        yield task
        for nursery in task.child_nurseries:
            pending += sorted(nursery.child_tasks, key=lambda child: child._counter, reverse=True)


def where(task: trio.lowlevel.Task) -> str:
    """The task's name, and the innermost place outside of Trio that it waits at."""
    at = "?"
    for frame, line in task.iter_await_frames():
        if not frame.f_globals.get("__name__", "").startswith(_TRIO):
            folders = frame.f_code.co_filename.replace("\\", "/").split("/")
            at = f"{'/'.join(folders[-2:])}:{line}"
    return f"{task.name} waits at {at}"


def _is_trios(task: trio.lowlevel.Task) -> bool:
    return task.name.startswith("<")


# --- threads --------------------------------------------------------------------------


@define(eq=False)
class _Standing(Threads):
    """Lets the run stand still while a thread of Trio's works.

    A thread that asks the run for something - `trio.from_thread` - is not waited for, and
    neither is one that sleeps on; but time does not jump until it has ended or waits for us.
    """

    _news: tuple[int, int] = (0, 0)
    _over: tuple[int, int] = (0, 0)
    _spent: float = 0.0

    def begun(self, worker: Worker) -> None:
        worker.stand_still(_PATIENCE)

    @property
    def news(self) -> tuple[int, int]:
        """As in all runs; but what is over is counted once, and let go of."""
        for worker in [worker for worker in self.workers if worker.delivered.is_set()]:
            self.workers.remove(worker)
            self._over = self._over[0] + 1, self._over[1] + worker.questions
        delivered, questions = Threads.news.__get__(self)
        return self._over[0] + delivered, self._over[1] + questions

    def look(self) -> None:
        """The run is about to be polled, because there may be something new."""
        self._news, self._spent = self.news, 0.0

    def hold(self, patience: float) -> bool:
        """Whether the run, in which nothing moves, still has to wait for one of them."""
        working = [worker for worker in self.workers if not worker.needs_run]
        working = [worker for worker in working if not worker.delivered.is_set()]
        if self.news != self._news:  # and not before: what is over by now may not be known yet
            self._news = self.news
            return True
        self._spent += min([worker.spent() for worker in working], default=0.0)
        return bool(working) and self._spent < patience
