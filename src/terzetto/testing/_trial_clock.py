"""The clock of a trial: it jumps, but never while somebody waits for the world.

Virtual time alone makes a socket, a child process or a thread look like idle time. Here time
jumps only when every task of the trial waits for time or for each other; while one of them
waits for a socket, a process or a thread, time is real.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType

import trio
from attrs import define, field

from ._places import called_from
from ._virtual import _keep, _runner
from ._workers import Threads, Worker

_WORLD = {"wait_readable", "wait_writable", "_epoll_wait", "wait_kevent", "wait_overlapped"}
_TRIOS_IO = "trio._core."
_PAUSE = 0.2
"""Seconds that the run stands still for one thread that sleeps before it looks at the others;
one that computes gets twice as many."""


def waits_for_world(task: trio.lowlevel.Task) -> bool:
    """Whether *task* waits for a socket, a pipe or a process."""
    return any(
        frame.f_code.co_name in _WORLD and frame.f_globals.get("__name__", "").startswith(_TRIOS_IO)
        for frame, _ in task.iter_await_frames()
    )


@define(eq=False)
class Work(Worker):
    """One function in a worker thread. It begins when the run is idle, so that what happens
    before and after it is the same in every run. *by* is the task that waits for it."""

    by: trio.lowlevel.Task | None = None
    place: str | None = None
    gate: threading.Event = field(factory=threading.Event)

    def work(self, fn: Callable[[], object]) -> object:
        self.gate.wait()
        return Worker.work(self, fn)

    @property
    def holds_time(self) -> bool:
        """Whether it works, and somebody still waits for it."""
        if self.delivered.is_set() or not self.gate.is_set():
            return False
        frames = () if self.by is None else self.by.iter_await_frames()
        return any(frame.f_code.co_name == "to_thread_run_sync" for frame, _ in frames)


@define(eq=False)
class Gated(Threads):
    """The worker threads of a trial."""

    works: list[Work] = field(factory=list)

    def __exit__(self, *error: object) -> None:
        Threads.__exit__(self, *error)
        for work in self.works:
            work.gate.set()

    def begin(self) -> Worker:
        inside = trio.lowlevel.in_trio_task()
        by = trio.lowlevel.current_task() if inside else None
        work = Work(by=by, place=_asked_by_user())
        self.works.append(work)
        return work

    def open_one(self) -> bool:
        """Let the next one begin; whether there was one."""
        for work in self.works:
            if not work.gate.is_set():
                work.gate.set()
                work.stand_still(_PAUSE)
                return True
        return False

    def unfinished(self, seconds: float) -> list[Work]:
        """Let all end; those that still have not after *seconds*."""
        for work in self.works:
            work.gate.set()
        return [work for work in self.works if not work.ends_within(seconds)]


def _asked_by_user() -> str | None:
    """Who asked Trio for a thread; None where Trio did so for itself, as for a name look-up."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and frame.f_code.co_name != "to_thread_run_sync":
        frame = frame.f_back
    asker = None if frame is None else frame.f_back
    if asker is None or asker.f_globals.get("__name__", "").startswith("trio."):
        return None
    return called_from(asker)


@define(eq=False)
class TrialClock(trio.abc.Clock):
    """Time of a trial. *owned* gives the tasks that count; *give_up* ends a run that never
    ends, and says whether there was anything left to try. *jumped* are the virtual seconds
    that nobody had to wait for; *patience* the real seconds that a run may take."""

    threads: Gated
    owned: Callable[[], Iterable[trio.lowlevel.Task]]
    give_up: Callable[[str], bool]
    patience: float = 60.0
    max_seconds: float = 100_000.0
    jumped: float = 0.0
    waited: bool = False
    beyond_help: str | None = None
    _now: float = 0.0
    _world_since: float | None = None
    _began: float = field(factory=time.monotonic)
    _polled: bool = False
    _news: tuple[int, int] = (0, 0)

    def start_clock(self) -> None:
        return None

    def current_time(self) -> float:
        if self.beyond_help is not None and not trio.lowlevel.in_trio_task():
            self._stop(self.beyond_help)
        since = self._world_since
        return self._now if since is None else self._now + time.monotonic() - since

    def stepping(self) -> None:
        """A task makes a step: real time that passed has passed."""
        self._polled = False
        if self._world_since is not None:
            self._now = self.current_time()
            self._world_since = None

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Nothing can run. Poll once, let a thread begin, wait for the world, or jump."""
        now = self.current_time()
        if deadline <= now:
            return 0.0
        if not self._polled:
            self._polled, self._news = True, self.threads.news
            return 0.0
        if self.threads.open_one():
            self._polled = False
            return 0.0
        if _runner().waiting_for_idle:
            return 1.0
        working = any(work.holds_time for work in self.threads.works)
        if self.threads.news != self._news:
            self._polled = False  # a thread may have left a result since the poll
            return 0.0
        waiting = any(map(waits_for_world, self.owned()))
        self.waited = self.waited or waiting
        if working or waiting:
            if self._world_since is None:
                self._world_since = time.monotonic()
            if time.monotonic() - self._began > self.patience:
                self._end(f"it still waits after {self.patience:g} s of real time")
                return 0.0
            return min(deadline - now, 0.005 if working else 0.2)
        self._world_since = None
        if math.isinf(deadline) or deadline > self.max_seconds:
            self._end("it waits for ever")
            return 0.0
        self.jumped += deadline - now
        self._now = deadline
        return 0.0

    def _end(self, reason: str) -> None:
        self._began, self._polled = time.monotonic(), False
        if not self.give_up(reason):
            self._stop(reason)

    def _stop(self, reason: str) -> None:
        """Leave the run as it stands: nothing else can end it."""
        runner = _runner()
        _keep([runner, *((task, task.coro) for task in runner.tasks)])
        raise Unending(reason)


class Unending(Exception):
    """A run that nothing can end; it was given up as it stood."""
