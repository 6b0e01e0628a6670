"""The worker threads of one run, as the run sees them: by facts, and not by the time they take.

Whether a function has ended, whether its result was delivered, and whether it waits for an
answer of the run are known exactly. What else a thread may wait for nobody can know, so it is
given some time; but what counts of it is what the thread did, not what it was kept from doing.
So a machine with too much to do makes a run take longer, and changes nothing about it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from attrs import define, field
from trio import _threads

SLICE = 0.005
"""Real seconds between two looks at a thread."""
_NET = 60.0
"""Real seconds after which nobody stands still for a thread, whatever it does."""


@define(eq=False)
class Worker:
    """One function in a worker thread. *ended*: the function is over; *delivered*: and its run
    was told. *questions* counts what it asked of the run and began to wait for."""

    ended: threading.Event = field(factory=threading.Event)
    delivered: threading.Event = field(factory=threading.Event)
    questions: int = 0
    thread: int | None = None
    _native: int | None = None
    _busy: tuple[float, float] = (0.0, 0.0)
    _question: _Answer | None = None

    @property
    def needs_run(self) -> bool:
        """Whether it waits for an answer of the run, which knows the question."""
        asked = self._question
        return asked is not None and asked.awaited and not asked.given

    def spent(self) -> float:
        """Seconds since the last look that count against it: all of them if it slept, half
        of those that it computed, and none that it was kept waiting for a processor or a disk.
        Where the system does not tell, it slept."""
        if self.thread is None:
            return 0.0  # not even begun
        of = f"/proc/self/task/{self._native}"
        with suppress(OSError, ValueError):
            computing, waiting = map(int, Path(of, "schedstat").read_bytes().split()[:2])
            before, self._busy = self._busy, (computing / 1e9, waiting / 1e9)
            computed, waited = self._busy[0] - before[0], self._busy[1] - before[1]
            if computed + waited > SLICE / 2:
                return computed / 2
            # Who is still kept from a processor has not been told of it yet.
            if Path(of, "stat").read_bytes().rpartition(b") ")[2][:1] in b"DR":
                return computed / 2
        return SLICE

    def stand_still(self, seconds: float) -> None:
        """Wait until its result is delivered or it needs the run; or until it has spent
        *seconds*, since it may be waiting for something that the run would do."""
        self._waits_for(self.delivered, seconds)

    def ends_within(self, seconds: float) -> bool:
        """Whether its function ends before it has spent *seconds*."""
        return self._waits_for(self.ended, seconds)

    def _waits_for(self, event: threading.Event, seconds: float) -> bool:
        spent, end = 0.0, time.monotonic() + _NET
        while not event.wait(SLICE):
            if self.needs_run or spent >= seconds or time.monotonic() > end:
                return event.is_set()
            spent += self.spent()
        return True

    def work(self, fn: Callable[[], object]) -> object:
        """Call *fn*, in the thread."""
        self.thread, self._native = threading.get_ident(), threading.get_native_id()
        _here.worker = self
        try:
            return fn()
        finally:
            _here.worker = None
            self.ended.set()

    def deliver(self, tell: Callable[[Any], None], outcome: object) -> None:
        """Tell the run, in the thread; a run that is over needs not be told."""
        try:
            with suppress(trio.RunFinishedError, OSError):
                tell(outcome)
        finally:
            self.delivered.set()

    def ask(self, question: Any, send: Callable[[], Any]) -> Any:
        """Have *send* put a question to the run, in the thread, and wait for the answer."""
        self._question = _Answer(self)
        object.__setattr__(question, "queue", self._question)  # it is frozen
        try:
            return send()
        finally:
            self._question = None


@define(eq=False)
class _Answer:
    """Stands where Trio has the queue of one answer. *awaited* is written by the thread that
    waits, when its question is in the run's hands, and *given* by the run."""

    by: Worker
    awaited: bool = False
    given: bool = False
    _queue: queue.SimpleQueue[Any] = field(factory=queue.SimpleQueue)

    def get(self) -> Any:
        self.by.questions += 1
        self.awaited = True
        return self._queue.get()

    def put_nowait(self, answer: Any) -> None:
        self.given = True
        self._queue.put_nowait(answer)


_here = threading.local()


@define(eq=False)
class Threads:
    """A block: inside it Trio starts its worker threads through us. *start* begins one."""

    workers: list[Worker] = field(factory=list)
    _before: dict[str, Any] = field(factory=dict, init=False)

    def __enter__(self) -> None:
        ours = {"start_thread_soon": self._started, "_send_message_to_trio": self._asked}
        for name, function in ours.items():
            if hasattr(_threads, name):
                self._before[name] = getattr(_threads, name)
                setattr(_threads, name, function)

    def __exit__(self, *error: object) -> None:
        for name, function in self._before.items():
            setattr(_threads, name, function)

    @property
    def news(self) -> tuple[int, int]:
        """What a poll of the run would see: as long as this is the same, nothing was added."""
        workers = list(self.workers)
        delivered = sum(worker.delivered.is_set() for worker in workers)
        return delivered, sum(worker.questions for worker in workers)

    def begin(self) -> Worker:
        """A worker, in the run's thread, before its thread is asked for."""
        return Worker()

    def begun(self, worker: Worker) -> None:
        """Its thread was asked for."""

    def _started(
        self, fn: Callable[[], object], deliver: Callable[[Any], None], *args: Any
    ) -> None:
        worker = self.begin()
        self.workers.append(worker)
        start = self._before["start_thread_soon"]
        start(lambda: worker.work(fn), lambda outcome: worker.deliver(deliver, outcome), *args)
        self.begun(worker)

    def _asked(self, token: Any, question: Any) -> Any:
        worker: Worker | None = getattr(_here, "worker", None)
        send = self._before["_send_message_to_trio"]
        if worker is None:
            return send(token, question)
        return worker.ask(question, lambda: send(token, question))
