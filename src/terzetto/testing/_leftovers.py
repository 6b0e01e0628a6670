"""What a run leaves behind in its process: children, threads, files, sockets, warnings.

Counted from outside, by what the operating system and the interpreter know; where a system
cannot say it (open files without ``/proc``), nothing is found there.
"""

from __future__ import annotations

import gc
import os
import shlex
import signal
import subprocess
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attrs import define, field

from ._orphans import command_of, open_files

MARK = "TERZETTO_CHECK"
"""An environment variable that tells the descendants of a run from other processes."""

GRACE = 1.0
"""Real seconds that what was told to end has for it."""


@define(eq=False)
class Leftovers:
    """What is there after a run and was not there before. A block around the run."""

    processes: list[str] = field(factory=list)
    threads: list[str] = field(factory=list)
    sockets: list[str] = field(factory=list)
    files: list[str] = field(factory=list)
    not_awaited: list[str] = field(factory=list)
    collect: bool = False
    grace: float = GRACE
    _started: list[tuple[subprocess.Popen[Any], str]] = field(factory=list)
    _threads_before: set[threading.Thread] = field(factory=set)
    _open: Counter[str] = field(factory=Counter)
    _block: Any = None

    def __enter__(self) -> Leftovers:
        self._block = self._watch()
        self._block.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._block.__exit__(*error)

    @contextmanager
    def _watch(self) -> Iterator[None]:
        self._threads_before = set(threading.enumerate())
        self._open = _open_files()
        mark = uuid.uuid4().hex
        os.environ[MARK] = mark
        with (
            warnings.catch_warnings(record=True) as warned,
            _popens(self._started),
            _only_new_garbage(),
        ):
            for category in (ResourceWarning, RuntimeWarning):
                warnings.simplefilter("always", category)
            try:
                yield
                if self.collect:
                    gc.collect()
                self._find(mark)
            finally:
                os.environ.pop(MARK, None)
                self._started.clear()
        for each in warned:
            text = str(each.message)
            if issubclass(each.category, ResourceWarning) and text.startswith("unclosed "):
                told = text.removeprefix("unclosed ").removeprefix("file ")
                if "name=" not in told or not told.partition("name=")[2][:1].isdigit():
                    (self.sockets if "socket" in told else self.files).append(_named(told))
            elif "was never awaited" in text:
                self.not_awaited.append(text)

    def _find(self, mark: str) -> None:
        for popen, command in self._started:
            if _alive(popen, self.grace):
                self.processes.append(f"{popen.pid} ({command})")
                _end(popen.pid)
                with suppress(Exception):
                    popen.wait(60.0)
        if self._started:
            for pid in _marked(mark):
                self.processes.append(f"{pid} ({command_of(pid)})")
                _end(pid)
        for thread in set(threading.enumerate()) - self._threads_before:
            if not _is_trios(thread):
                thread.join(self.grace)
                if thread.is_alive():
                    self.threads.append(f"thread {thread.name!r}")
        left = _open_files() - self._open
        if left:
            gc.collect()  # cycles of exceptions and frames hold files, too
            left = _open_files() - self._open
        for what in left:
            if what.startswith("socket:"):
                self.sockets.append("a socket")
            elif not what.startswith(("anon_inode:", "/dev/", "/proc/")):
                self.files.append("a pipe" if what.startswith("pipe:") else what)


@contextmanager
def _only_new_garbage() -> Iterator[None]:
    """A collection looks at what was made in the block: it is quick, and finds nobody else's."""
    ours = not gc.get_freeze_count()
    if ours:
        gc.freeze()
    else:
        gc.collect()  # somebody has frozen what is there for good; the rest is little
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


@contextmanager
def _popens(started: list[tuple[subprocess.Popen[Any], str]]) -> Iterator[None]:
    """Note every process that Python starts, Trio's included."""
    before = subprocess.Popen.__init__

    def noted(self: subprocess.Popen[Any], args: Any, *rest: Any, **options: Any) -> None:
        before(self, args, *rest, **options)
        started.append((self, args if isinstance(args, str) else shlex.join(map(os.fspath, args))))

    subprocess.Popen.__init__ = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        subprocess.Popen.__init__ = before  # type: ignore[method-assign]


def _alive(popen: subprocess.Popen[Any], grace: float) -> bool:
    end = time.monotonic() + grace
    while popen.poll() is None:
        if time.monotonic() > end:
            return True
        time.sleep(0.01)
    return False


def _marked(mark: str) -> Iterator[int]:
    """Processes that have the mark in their environment, besides ours."""
    wanted = f"{MARK}={mark}".encode()
    with suppress(OSError):
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            with suppress(OSError):
                if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    yield int(name)


def _end(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))


def _is_trios(thread: threading.Thread) -> bool:
    """A worker that Trio keeps for later is no leftover; its work is watched by the trial."""
    target = getattr(thread, "_target", None)
    return (getattr(target, "__module__", "") or "").startswith(("trio.", "terzetto."))


def _open_files() -> Counter[str]:
    return Counter(open_files().values())


def _named(told: str) -> str:
    """``<socket.socket fd=9, laddr=...>`` as it is in every run."""
    if "socket" in told:
        return "a socket, closed only by the garbage collector"
    name = told.partition("name=")[2].partition(" ")[0].strip("'\">")
    return f"{name or told}, closed only by the garbage collector"
