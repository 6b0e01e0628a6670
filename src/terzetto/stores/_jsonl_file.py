"""One log file: what it looks like, and the blocking work on it. Runs in threads.

The first line is the header, what follows are events, in one of the layouts of
`_jsonl_layouts.py`. All writing is appending; a file only becomes shorter by what never counted.
Ownership is ``flock`` on the log itself, so death gives it up; the pid in the file beside it
only serves to name the owner. Owns no state: the handle does (`_jsonl.py`). What is in the
lines is judged in `_jsonl_lines.py`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import frozen

from ..vocabulary import (
    CorruptLog,
    Event,
    InvalidValue,
    SessionExists,
    SessionHeader,
    SessionLocked,
    SessionNotFound,
    StoreError,
)
from ._base import EVERY, escape_id
from ._files import (
    closing_if_it_fails,
    failing,
    lock,
    make_directory,
    owner,
    size_there,
    still_there,
    sync,
    sync_directory,
    unlock,
    write_all,
)
from ._jsonl_layouts import Layout, Packed
from ._jsonl_lines import (
    BEGINNINGS,
    Everything,
    First,
    Passage,
    Survey,
    events_from,
    everything,
    first_of,
    survey,
)
from ._records import Index, Place

SUFFIX = ".jsonl"
_MOST = max(map(len, BEGINNINGS))
_NOT_FINISHED = ": its creation was not finished"


def file_name(session_id: str) -> str:
    """Raises `InvalidValue` as `escape_id` does."""
    return escape_id(session_id) + SUFFIX


@frozen
class Opened:
    """A log that is owned by whoever holds *fd*."""

    fd: int
    owner: Path
    first: First
    survey: Survey


def create_log(path: Path, header: SessionHeader, layout: Layout) -> Opened:
    """Write a log that has a header only. Durable when this returns, name and all."""
    begin = layout.begin(header)
    exists = SessionExists(f"there is a session {header.id!r} already")
    with failing(header.id, "creating"):
        make_directory(path.parent)
        fd = _open_locked(path, os.O_CREAT)
        if fd is None:
            raise exists
        with closing_if_it_fails(fd):
            if not _unfinished(fd):
                raise exists
            # A creation that died halfway leaves a beginning.
            os.ftruncate(fd, 0)
            write_all(fd, begin)
            with _emptied_if_it_fails(fd):
                sync(fd)
                sync_directory(path.parent)
    first = First(begin, header, layout)
    found = Survey(Index.beginning(first.place), first.place)
    return Opened(fd, _claim(path), first, found)


@contextmanager
def _emptied_if_it_fails(fd: int) -> Iterator[None]:
    """A whole header that nobody could make durable: the next try must not find a session."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            os.ftruncate(fd, 0)
        raise


def open_log(path: Path, session_id: str, extensions: Collection[str]) -> Opened:
    """Lock a log, look through it, cut a torn end off, and make sure of the rest."""
    with failing(session_id, "opening"):
        fd = _own(path, session_id)
        with closing_if_it_fails(fd):
            size = os.fstat(fd).st_size
            first = _first_of(fd, size, session_id)
            found = survey(fd, size, first, extensions)
            if found.torn is not None:
                os.ftruncate(fd, found.end.offset)
            # A writer may have died between its write and its sync: only now it is durable.
            sync(fd)
    return Opened(fd, _claim(path), first, found)


def delete_log(path: Path, session_id: str) -> None:
    """Remove a log that nobody owns, damaged or not. Durable when this returns."""
    with failing(session_id, "deleting"):
        fd = _own(path, session_id)
        try:
            if _unfinished(fd):
                raise _not_found(session_id, _NOT_FINISHED)
            if not os.pread(fd, _MOST, 0).startswith(BEGINNINGS):
                raise CorruptLog("no log begins like this; remove it by hand", "line 1, byte 0")
            path.unlink()
            with suppress(OSError):
                _note(path).unlink()
            sync_directory(path.parent)
        finally:
            unlock(fd)


def _own(path: Path, session_id: str) -> int:
    try:
        fd = _open_locked(path)
    except FileNotFoundError:
        raise _not_found(session_id) from None
    if fd is None:
        raise SessionLocked(
            f"session {session_id!r} is open for writing in {owner(_note(path))}; "
            "close it there, or end that process"
        )
    return fd


def _open_locked(path: Path, flags: int = 0) -> int | None:
    """The descriptor of a log that is locked now; None while somebody else has it locked."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | flags, 0o600)
        with closing_if_it_fails(fd):
            locked = lock(fd)
            there = still_there(fd, path)
        if locked and there:
            return fd
        unlock(fd)
        if there:
            return None
        # Its owner deleted it between our open and our lock: what is there now?


def _not_found(session_id: str, why: str = "") -> SessionNotFound:
    return SessionNotFound(f"there is no session {session_id!r}{why}")


def look_at(path: Path, session_id: str) -> First:
    """The first line of a log that somebody may be writing to."""
    with _looking(path, session_id) as fd:
        return _first_of(fd, os.fstat(fd).st_size, session_id)


@frozen
class Range:
    """What is read of a log: *start* <= seq < *stop*, all from *start* on without *stop*.

    *place* is where the lines begin that are looked at, *size* is where the bytes end that
    count, or None for all that are there.
    """

    place: Place
    start: int
    stop: int | None
    size: int | None = None


def read_range(path: Path, first: First, extensions: Collection[str], wanted: Range) -> Passage:
    """The events in a range. A torn end is left alone.

    Raises:
        SessionNotFound: the log is not there any more, or it is another one.
        StoreError: it became shorter than it was.
    """
    session_id = first.header.id
    with _looking(path, session_id) as fd:
        size = os.fstat(fd).st_size
        if os.pread(fd, len(first.raw), 0) != first.raw:
            raise _not_found(session_id, " any more; another one has its place")
        if size < max(wanted.place.offset, wanted.size or 0):
            raise _shorter(session_id, wanted.size or wanted.place.offset, size)
        return events_from(
            fd,
            size if wanted.size is None else wanted.size,
            first.layout,
            wanted.place,
            wanted.start,
            wanted.stop,
            extensions,
            torn=wanted.size is None,
        )


def read_log(
    path: Path, session_id: str, extensions: Collection[str], start: int
) -> tuple[SessionHeader, list[Event]]:
    """The header, and the events from *start* on."""
    with _looking(path, session_id) as fd:
        size = os.fstat(fd).st_size
        first = _first_of(fd, size, session_id)
        found = events_from(fd, size, first.layout, first.place, start, None, extensions)
    return first.header, found.events


@frozen
class Loaded:
    """What is in a file: *torn* bytes follow what counts."""

    header: SessionHeader
    events: list[Event]
    torn: int


def load_records(path: Path) -> tuple[First, Everything, int] | None:
    """The log at *path*, whatever its name and state, as records, and its size; None for one
    whose creation was not finished.

    Raises:
        CorruptLog, StoreError: its header cannot be read.
        OSError: nor can the file.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        first = first_of(fd, size)
        return None if first is None else (first, everything(fd, size, first), size)
    finally:
        os.close(fd)


def load(path: Path) -> Loaded | None:
    """What is in the log at *path*, whatever its name, extensions included; None for one
    whose creation was not finished.

    Raises:
        CorruptLog, StoreError: as opening and reading do.
        OSError: it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        first = first_of(fd, size)
        if first is None:
            return None
        found = events_from(fd, size, first.layout, first.place, 0, None, EVERY)
    finally:
        os.close(fd)
    return Loaded(first.header, found.events, size - found.end)


@contextmanager
def _looking(path: Path, session_id: str) -> Iterator[int]:
    """A descriptor of a log, for reading. That it is closed ends nobody's lock."""
    with failing(session_id, "reading"):
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise _not_found(session_id) from None
        try:
            yield fd
        finally:
            os.close(fd)


def read_headers(directory: Path) -> tuple[list[SessionHeader], list[str]]:
    """The headers of all logs in *directory*, and in words what is wrong with other files."""
    headers, faults = [], []
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:  # made with the first session
        names = []
    except OSError as error:
        raise StoreError(f"listing the sessions failed: {error.strerror}") from error
    for path in (directory / name for name in names if name.endswith(SUFFIX)):
        try:
            with _looking(path, path.stem) as fd:
                found = first_of(fd, os.fstat(fd).st_size)
            if found is None:
                continue
            if path.name != file_name(found.header.id):
                raise InvalidValue(f"it belongs to session {found.header.id!r}")
            headers.append(found.header)
        except SessionNotFound:  # deleted meanwhile
            continue
        except (InvalidValue, StoreError) as error:
            faults.append(f"{path.name} is no session: {error}")
    return headers, faults


def _first_of(fd: int, size: int, session_id: str) -> First:
    first = first_of(fd, size)
    if first is None:
        raise _not_found(session_id, _NOT_FINISHED)
    if first.header.id != session_id:
        raise CorruptLog(
            f"the log of session {first.header.id!r} in the place of {session_id!r}",
            "line 1, byte 0",
        )
    return first


def write_events(fd: int, path: Path, first: First, end: Place, events: Sequence[Event]) -> Packed:
    """Append *events* at *end*, where the log ends, and make them durable; what was appended.

    What an earlier failure left behind is cut first and all is written anew: after a failed
    sync, the kernel may have forgotten pages that it could not write.
    """
    session_id, length = first.header.id, end.offset
    try:
        packed = first.layout.pack(events, end)
    except InvalidValue as error:
        raise StoreError(f"session {session_id!r}: {error}") from error
    with failing(session_id, "writing"):
        size = size_there(fd, path)
        if size is None:  # writing would succeed, and nobody would find it
            raise StoreError(f"session {session_id!r}: somebody has removed or moved the log")
        if size < length:
            raise _shorter(session_id, length, size)
        if size > length:
            os.ftruncate(fd, length)
        try:
            write_all(fd, packed.data)
            sync(fd)
        except OSError:
            with suppress(OSError):  # the next write begins with it in any case
                os.ftruncate(fd, length)
            raise
    return packed


def _shorter(session_id: str, length: int, size: int) -> StoreError:
    return StoreError(
        f"session {session_id!r}: the log had {length} bytes and has {size}; "
        "somebody else has changed it"
    )


def _unfinished(fd: int) -> bool:
    """Whether a log's creation was cut off; not of what is no log at all."""
    size = os.fstat(fd).st_size
    try:
        return first_of(fd, size) is None
    except StoreError:  # whatever it is, it is there
        return False


def _claim(path: Path) -> Path:
    """Note who owns the log. Only a hint: a full disk must not forbid to open a session."""
    note = _note(path)
    with suppress(OSError):
        fd = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "w") as file:
            file.write(f"{os.getpid()}\n")
    return note


def _note(path: Path) -> Path:
    return path.with_suffix(".owner")
