"""One log file: what it looks like, and the blocking work on it. Runs in threads.

The first line is the header, every further line one event. A line counts once its newline
is there. All writing is appending; a file only becomes shorter by what never counted.
Ownership is ``flock`` on the log itself, so death gives it up; the pid in the file beside it
only serves to name the owner. Owns no state: the handle does (`_jsonl.py`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import frozen

from ..session._codec import (
    decode_event,
    decode_header,
    dumps_event,
    dumps_json,
    encode_header,
    loads_json,
)
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
from ._base import escape_id
from ._files import (
    closing_if_it_fails,
    failing,
    lock,
    make_directory,
    owner,
    still_there,
    sync,
    sync_directory,
    write_all,
)

SUFFIX = ".jsonl"
_BEGINNING = b'{"formatVersion":'
"""How every log begins; a file that stops before its first newline and begins otherwise is
not ours to finish."""


def file_name(session_id: str) -> str:
    """Raises `InvalidValue` as `escape_id` does."""
    return escape_id(session_id) + SUFFIX


@frozen
class Scan:
    """What is in a log: *length* is where its last counting line ends, *torn* what follows."""

    header: SessionHeader
    events: list[Event]
    length: int
    torn: str | None = None


def scan(data: bytes, extensions: Collection[str], first: int = 0) -> Scan | None:
    """Read a whole log; None for a file whose creation was never finished.

    What follows the last newline is torn off, and so is a last line that is not JSON: a
    record that never became durable. Anything else is damage. Events before seq *first* are
    only counted.

    Raises:
        CorruptLog: with line and byte.
        StoreError: another version of Terzetto wrote it.
    """
    if unfinished(data):
        return None
    end = data.find(b"\n") + 1
    with _placed(1, 0):
        header = decode_header(loads_json(data[: end - 1]))
    events: list[Event] = []
    seq = -1
    while end < len(data):
        start, seq = end, seq + 1
        end = data.find(b"\n", start) + 1
        if seq < first and end not in (0, len(data)):
            continue
        try:
            if not end:
                raise InvalidValue("no newline")
            obj = loads_json(data[start : end - 1])
        except InvalidValue as error:
            if end not in (0, len(data)):
                raise CorruptLog(str(error), f"line {seq + 2}, byte {start}") from error
            torn = f"cut {len(data) - start} bytes of an unfinished record, line {seq + 2}"
            return Scan(header, events, start, torn)
        if seq < first:
            break
        try:  # and not `_placed`: this runs for every event of a log
            event = decode_event(obj, seq_hint=seq, extensions=extensions)
            if event.seq != seq:
                raise InvalidValue(f"seq {event.seq} where {seq} comes next")
        except InvalidValue as error:
            raise CorruptLog(str(error), f"line {seq + 2}, byte {start}") from error
        events.append(event)
    return Scan(header, events, end)


def unfinished(data: bytes) -> bool:
    """Whether *data* is the beginning of a log whose creation was cut off."""
    return b"\n" not in data and data[: len(_BEGINNING)] == _BEGINNING[: len(data)]


@contextmanager
def _placed(line: int, byte: int) -> Iterator[None]:
    try:
        yield
    except InvalidValue as error:
        raise CorruptLog(str(error), f"line {line}, byte {byte}") from error


@frozen
class Opened:
    """A log that is owned by whoever holds *fd*."""

    fd: int
    owner: Path
    scan: Scan


def create_log(path: Path, header: SessionHeader) -> Opened:
    """Write a log that has a header only. Durable when this returns, name and all."""
    line = dumps_json(encode_header(header)) + b"\n"
    exists = SessionExists(f"there is a session {header.id!r} already")
    with failing(header.id, "creating"):
        make_directory(path.parent)
        fd = _open_locked(path, os.O_CREAT)
        if fd is None:
            raise exists
        with closing_if_it_fails(fd):
            if not unfinished(_content(fd)):
                raise exists
            # A creation that died halfway leaves a beginning.
            os.ftruncate(fd, 0)
            write_all(fd, line)
            sync(fd)
            sync_directory(path.parent)
    return Opened(fd, _claim(path), Scan(header, [], len(line)))


def open_log(path: Path, session_id: str, extensions: Collection[str]) -> Opened:
    """Lock a log, read it, cut a torn end off, and make sure of the rest."""
    with failing(session_id, "opening"):
        fd = _own(path, session_id)
        with closing_if_it_fails(fd):
            found = _scan_of(_content(fd), session_id, extensions)
            if found.torn is not None:
                os.ftruncate(fd, found.length)
            # A writer may have died between its write and its sync: only now it is durable.
            sync(fd)
    return Opened(fd, _claim(path), found)


def delete_log(path: Path, session_id: str) -> None:
    """Remove a log that nobody owns, damaged or not. Durable when this returns."""
    with failing(session_id, "deleting"):
        fd = _own(path, session_id)
        try:
            beginning = os.pread(fd, len(_BEGINNING), 0)
            if unfinished(_content(fd)):
                raise _not_found(session_id, ": its creation was not finished")
            if beginning != _BEGINNING:
                raise CorruptLog("no log begins like this; remove it by hand", "line 1, byte 0")
            path.unlink()
            with suppress(OSError):
                _note(path).unlink()
            sync_directory(path.parent)
        finally:
            os.close(fd)


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
        os.close(fd)
        if there:
            return None
        # Its owner deleted it between our open and our lock: what is there now?


def _not_found(session_id: str, why: str = "") -> SessionNotFound:
    return SessionNotFound(f"there is no session {session_id!r}{why}")


def read_log(path: Path, session_id: str, extensions: Collection[str], first: int) -> Scan:
    """Read a log that somebody may be writing to; a torn end is left alone."""
    with failing(session_id, "reading"):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise _not_found(session_id) from None
    return _scan_of(data, session_id, extensions, first)


def read_again(fd: int, length: int, session_id: str, extensions: Collection[str]) -> list[Event]:
    """The events in the first *length* bytes."""
    with failing(session_id, "reading"):
        data = _content(fd)
    return _scan_of(data[:length], session_id, extensions).events


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
            with failing(path.stem, "reading"), path.open("rb") as file:
                found = scan(file.readline(), ())
            if found is None:
                continue
            if path.name != file_name(found.header.id):
                raise InvalidValue(f"it belongs to session {found.header.id!r}")
            headers.append(found.header)
        except (InvalidValue, StoreError) as error:
            faults.append(f"{path.name} is no session: {error}")
    return headers, faults


def _scan_of(data: bytes, session_id: str, extensions: Collection[str], first: int = 0) -> Scan:
    found = scan(data, extensions, first)
    if found is None:
        raise _not_found(session_id, ": its creation was not finished")
    if found.header.id != session_id:
        raise CorruptLog(
            f"the log of session {found.header.id!r} in the place of {session_id!r}",
            "line 1, byte 0",
        )
    return found


def write_events(fd: int, length: int, events: Sequence[Event], session_id: str) -> int:
    """Append *events* after byte *length* and make them durable; the new length.

    What an earlier failure left behind is cut first and all is written anew: after a failed
    sync, the kernel may have forgotten pages that it could not write.
    """
    try:
        data = b"".join(dumps_event(event) + b"\n" for event in events)
    except InvalidValue as error:
        raise StoreError(f"session {session_id!r}: {error}") from error
    with failing(session_id, "writing"):
        state = os.fstat(fd)
        if not state.st_nlink:  # writing would succeed, and nobody could ever read it
            raise StoreError(f"session {session_id!r}: somebody has removed the log")
        if (size := state.st_size) < length:
            raise StoreError(
                f"session {session_id!r}: the log had {length} bytes and has {size}; "
                "somebody else has changed it"
            )
        if size > length:
            os.ftruncate(fd, length)
        try:
            write_all(fd, data)
            sync(fd)
        except OSError:
            with suppress(OSError):  # the next write begins with it in any case
                os.ftruncate(fd, length)
            raise
    return length + len(data)


def _content(fd: int) -> bytes:
    """The whole file, whatever its descriptor's position."""
    content = bytearray()
    while part := os.pread(fd, 1 << 24, len(content)):
        content += part
    return bytes(content)


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
