"""What the stores on a file system share: locks that death gives up, folders, and syncs.

Blocking; runs in threads. Ownership is ``flock``: the system gives it up with its process,
however that ends, and nobody has to clean up after it. A lock file may be unlinked by
whoever holds it, and by nobody else; so a lock counts only while its file is still there.
A forked child has copies of all descriptors, and a lock lasts as long as one of them: so a
child lets go of its parent's at once, and who gives one up ends it for all copies.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from ..vocabulary import StoreError, UsageError

if sys.platform != "win32":  # there a store refuses to be made; importing it is harmless
    import fcntl


def require_posix(store: str) -> None:
    """Raises `UsageError` where files cannot be locked as here."""
    if sys.platform == "win32":
        raise UsageError(f"{store} locks files as POSIX systems do; Windows cannot")


@contextmanager
def failing(session_id: str, what: str) -> Iterator[None]:
    """The world's failures as `StoreError`."""
    try:
        yield
    except OSError as error:
        text = f"session {session_id!r}: {what} failed: {error.strerror or type(error).__name__}"
        raise StoreError(text) from error


@contextmanager
def closing_if_it_fails(fd: int) -> Iterator[None]:
    """Close the descriptor of a lock, or of what may be one, if the block fails."""
    try:
        yield
    except BaseException:
        unlock(fd)
        raise


_locks: set[int] = set()
"""The descriptors of locks in this process, for its forked children alone."""


def lock(fd: int, *, wait: bool = False) -> bool:
    """Lock the file of *fd*, to be closed with `unlock`; False while somebody else has it."""
    _look_after_forks()
    _locks.add(fd)  # before it is one: another thread may fork in between
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """Close *fd*, and end its lock, whoever else has a copy of it."""
    _locks.discard(fd)
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


@cache
def _look_after_forks() -> None:
    os.register_at_fork(after_in_child=_disown)


def _disown() -> None:
    """In a forked child: own nothing. What it has of handles reads and writes nothing now,
    and no file that it opens gets the number of one of theirs."""
    null = os.open(os.devnull, os.O_RDONLY)
    for fd in _locks:
        os.dup2(null, fd, inheritable=False)
    _locks.clear()
    os.close(null)


def still_there(fd: int, path: Path) -> bool:
    """Whether *path* is the file of *fd*: not once its owner has removed it."""
    return size_there(fd, path) is not None


def size_there(fd: int, path: Path) -> int | None:
    """The bytes of the file of *fd*, None if it is not `still_there`."""
    state = os.fstat(fd)
    try:
        return state.st_size if os.path.samestat(state, os.stat(path)) else None
    except FileNotFoundError:
        return None


def take(path: Path) -> int | None:
    """Own the lock file at *path*, which is made; its descriptor, None while it is owned.

    The pid in it only serves to name the owner.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with closing_if_it_fails(fd):
            if lock(fd) and still_there(fd, path):
                with suppress(OSError):  # a full disk must not forbid to own a session
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                return fd
            owned = still_there(fd, path)
        unlock(fd)
        if owned:
            return None


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One at a time, of all who use the lock file at *path*; it waits, and stays."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock(fd, wait=True)
        yield
    finally:
        unlock(fd)


def give_up(fd: int, path: Path) -> None:
    """End the ownership of *fd*. The file goes first, while it is still ours."""
    with suppress(OSError):
        path.unlink()
    with suppress(OSError):
        unlock(fd)


def owner(note: Path) -> str:
    """In words, whose pid stands in *note*."""
    try:
        pid = int(note.read_text())
    except (OSError, ValueError):
        return "another process"
    return f"this process ({pid})" if pid == os.getpid() else f"process {pid}"


def make_directory(directory: Path) -> None:
    """Make *directory*, for its owner only, if there is none."""
    if not directory.is_dir():
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync(fd: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync alone stops at the drive's cache there
    else:
        os.fdatasync(fd)
