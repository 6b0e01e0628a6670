"""The orphan meter: what is alive now that was not before, and whose it is.

Tasks are told by ancestry and belong to the agent that started them (`current_agent`, which
every task of an agent inherits). What the operating system keeps - threads, child processes,
file descriptors and so sockets - belongs to nobody, so it is told by the difference.

On Linux all of it is seen; elsewhere tasks and threads are.
"""

from __future__ import annotations

import gc
import os
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Final, Literal, TypeAlias

import trio
from attrs import define, field, frozen
from trio._core._thread_cache import THREAD_CACHE

from ..agent._initiator import _initiator

OrphanKind: TypeAlias = Literal["task", "thread", "process", "file"]

PATIENCE: Final = 10.0
"""Most seconds that `OrphanMeter.left` waits for what is ending at that very moment."""
_FDS: Final = "/proc/self/fd"
_THREADS: Final = "/proc/self/task"


@frozen
class Orphan:
    """Something that is left.

    *what* names it: a task, a thread, a command with its pid, a descriptor with its target.
    *where*: the lines its stack stands at, innermost last; empty for a process and a file.
    *agent* is the id of the agent whose task it is, None for what is nobody's.
    """

    kind: OrphanKind
    what: str
    where: tuple[str, ...] = ()
    agent: str | None = None

    def __str__(self) -> str:
        whose = f" of agent {self.agent}" if self.agent is not None else ""
        lines = "".join(f"\n    {line}" for line in self.where)
        return f"{self.kind} {self.what}{whose}{lines}"


@frozen
class Living:
    """How many tasks, threads at work, child processes and descriptors there are."""

    tasks: int
    threads: int
    processes: int
    files: int


@define(eq=False)
class OrphanMeter:
    """Remembers what is alive when it is made; `left` says what has come since and stays.

    Made and asked inside a Trio run it counts tasks too; those of the run's own machinery and
    the asking task's ancestors are there before and after. A snapshot costs some 0.1 ms.
    """

    _tasks: frozenset[trio.lowlevel.Task] = field(init=False)
    _threads: frozenset[threading.Thread] = field(init=False)
    _processes: frozenset[int] = field(init=False)
    _files: Mapping[int, str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._tasks = frozenset(live_tasks())
        self._threads = frozenset(live_threads())
        self._processes = frozenset(child_processes())
        self._files = open_files()

    def left(self, patience: float = PATIENCE) -> list[Orphan]:
        """What is alive and was not when the meter was made; an empty list is a pass.

        Where something is found, garbage is collected, and for at most *patience* seconds of
        the real clock it is waited for what is about to end: a thread that has just delivered,
        a process that has just been waited for. It blocks meanwhile, also the Trio run.
        """
        found = list(self._found())
        if not found:
            return found
        gc.collect()
        deadline = time.monotonic() + patience
        while (found := list(self._found())) and time.monotonic() < deadline:
            if all(orphan.kind == "task" for orphan in found):
                break  # they cannot go on while this blocks
            time.sleep(0.01)
        return found

    def _found(self) -> Iterator[Orphan]:
        for task in live_tasks():
            if task not in self._tasks:
                yield _of_task(task)
        for thread in live_threads():
            if thread not in self._threads:
                yield _of_thread(thread)
        for pid in child_processes():
            if pid not in self._processes:
                yield Orphan("process", f"{command_of(pid)!r} (pid {pid})")
        for fd, target in open_files().items():
            if self._files.get(fd) != target:
                yield Orphan("file", f"{target} (descriptor {fd})")


def living() -> Living:
    """How much is alive now. Outside of a Trio run there are no tasks."""
    return Living(
        tasks=len(live_tasks()),
        threads=len(live_threads()),
        processes=len(child_processes()),
        files=len(open_files()),
    )


# --- what is alive --------------------------------------------------------------------------


def live_tasks() -> list[trio.lowlevel.Task]:
    """Every task of the Trio run that this is called in."""
    if not trio.lowlevel.in_trio_run():
        return []
    root = trio.lowlevel.current_root_task()
    waiting = [] if root is None else [root]
    found = []
    while waiting:
        task = waiting.pop()
        found.append(task)
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found


def live_threads() -> list[threading.Thread]:
    """Threads at work; those that Trio keeps for the next job are not."""
    idle = {worker._thread for worker in list(THREAD_CACHE._idle_workers)}
    return [thread for thread in threading.enumerate() if thread not in idle]


def child_processes() -> list[int]:
    """The pids of this process's children, those that nobody has waited for included."""
    found: list[int] = []
    try:
        for thread in os.listdir(_THREADS):
            try:
                with open(f"{_THREADS}/{thread}/children", encoding="ascii") as file:
                    found += map(int, file.read().split())
            except OSError:  # the thread has ended meanwhile
                continue
    except OSError:  # this is no Linux
        return []
    return found


def open_files() -> dict[int, str]:
    """The open descriptors, and what each of them is: a path, ``socket:[...]``, ``pipe:[...]``."""
    found: dict[int, str] = {}
    try:
        for name in os.listdir(_FDS):
            try:
                found[int(name)] = os.readlink(f"{_FDS}/{name}")
            except OSError:  # that of the listing itself
                continue
    except OSError:  # this is no Linux
        return {}
    return found


# --- in words -------------------------------------------------------------------------------


def _of_task(task: trio.lowlevel.Task) -> Orphan:
    agent = task.context.get(_initiator)
    lines = tuple(
        f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
        for frame, line in task.iter_await_frames()
    )
    return Orphan("task", task.name, lines, None if agent is None else str(agent.id))


def _of_thread(thread: threading.Thread) -> Orphan:
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    lines = tuple(
        f"{one.filename}:{one.lineno} in {one.name}" for one in traceback.extract_stack(frame)
    )
    return Orphan("thread", thread.name, lines if frame is not None else ())


def command_of(pid: int) -> str:
    """What the process *pid* runs, as one would type it; the beginning of a long one."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")
        return shlex.join(word for word in words if word)[:200] or "(ended)"
    except OSError:
        return "(ended)"
