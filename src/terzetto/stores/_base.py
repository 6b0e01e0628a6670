"""What a store is: the protocols, and the rules that every store shares.

A store keeps logs; it knows nothing of turns. Whoever holds a session's write handle owns
the session: no second one exists, in this process or another on the same machine.
Durability is *flush*: an append only buffers, so that recording is synchronous.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Literal, Protocol, TypeAlias, get_args, overload

from ..vocabulary import (
    CorruptLog,
    Event,
    Extension,
    InvalidValue,
    SessionHeader,
    has_surrogate,
)

Events: TypeAlias = list[Event]  # `Store.list` hides the builtin in the protocol's body
OpenMode: TypeAlias = Literal["write", "read"]

LONGEST_NAME = 200
"""Bytes that an escaped session id may have; file systems stop at 255 with the suffix."""


class ReadHandle(Protocol):
    """A stored session to read in pages, from ``Store.open(id, "read")``.

    It owns nothing and changes nothing: the session may be in use, here or elsewhere. Between
    calls it keeps no descriptor, lock or thread; at most it remembers where events are.
    """

    @property
    def header(self) -> SessionHeader: ...

    async def read(self, start: int = 0, stop: int | None = None) -> Events:
        """The intact events with *start* <= seq < *stop*, as far as they are stored now; all
        from *start* on when *stop* is None. In order, a fresh list, empty for a range that
        is empty or lies behind the end.

        The cost follows the range, not the log. Earlier events are not judged.

        Raises:
            InvalidValue: a seq is no int, or less than 0.
            SessionNotFound: it was deleted, even if there is a new session of its id.
            CorruptLog: it is damaged in the range, or has events there that nobody knows.
            StoreError: the storage failed.
            UsageError: the handle is closed.

        Cancellation: nothing has happened. Several reads at once are independent.
        """
        ...

    async def close(self) -> None:
        """End the use of the handle. The second time nothing happens. Never fails."""
        ...


class WriteHandle(Protocol):
    """Exclusive ownership of one session, from `Store.create` or `Store.open` to `close`."""

    @property
    def header(self) -> SessionHeader: ...

    @property
    def repaired(self) -> str | None:
        """What opening had to cut from a torn end, in words; None for an intact log."""
        ...

    @property
    def durable_seq(self) -> int:
        """Seq of the last durable event, -1 for none. Still answers after `close`."""
        ...

    async def read(self, start: int = 0, stop: int | None = None) -> Events:
        """The events with *start* <= seq < *stop* that are durable when it is called: what
        the session had when it was opened, and what was flushed through this handle since.
        All from *start* on when *stop* is None. In order, a fresh list, empty for a range
        that is empty or lies behind the end.

        Still answers after `close`, up to this handle's `durable_seq`, as long as the session
        is stored. The cost follows the range, not the log. Events of unknown names are no
        fault here: opening refuses them, and whoever appends one knows it.

        Raises:
            InvalidValue: a seq is no int, or less than 0.
            SessionNotFound: it was deleted, even if there is a new session of its id.
            CorruptLog: it is damaged in the range.
            StoreError: they cannot be read.

        Cancellation: nothing has happened. It may run beside `flush`, `close` and others.
        """
        ...

    def append(self, event: Event) -> None:
        """Hand *event* over, to be stored after all earlier ones. Never blocks.

        Raises:
            IllegalEvent: its seq is not the next one; nothing was taken.
            UsageError: the handle is closed; nothing was taken.
        """
        ...

    async def flush(self) -> None:
        """Return once everything appended before this call is durable.

        Callers at the same time share one write. A checkpoint only where there is something
        to wait for: the memory store has none, and the others, with nothing to write, only
        look whether they are cancelled.

        Raises:
            StoreError: it could not be stored. Nothing is lost: all of it stays buffered in
                order, and the next `flush` stores it without gap or duplicate.
            UsageError: the handle was closed with events that never became durable.

        Cancellation: before the write begins, nothing happens; a write that has begun is
        finished and counted first.
        """
        ...

    async def close(self) -> None:
        """Flush, then give up ownership. The second time nothing happens.

        Ownership is given up in every case. What is not durable after a failure or a
        cancellation is lost; `durable_seq` says where that begins.

        Raises:
            StoreError: as `flush` does.

        Cancellation: as `flush`; giving up ownership is shielded, and waits at most for a
        write that has begun.
        """
        ...


class Store(Protocol):
    """Where sessions are kept. Ids that no file name could hold are refused by all stores.

    An engine itself calls `create` and `open`, and `read` to fork what is not its own.
    `terzetto.testing.check_store` runs what is promised here and in the two handles.
    """

    async def create(self, header: SessionHeader) -> WriteHandle:
        """Begin a session; when this returns it exists durably, without events.

        Raises:
            InvalidValue: the id cannot name a session, or the header cannot be written.
            SessionExists: there is one of this id.
            StoreError: the storage failed.
        """
        ...

    @overload
    async def open(self, session_id: str, mode: Literal["write"] = "write") -> WriteHandle: ...

    @overload
    async def open(self, session_id: str, mode: Literal["read"]) -> ReadHandle: ...

    async def open(self, session_id: str, mode: OpenMode = "write") -> WriteHandle | ReadHandle:
        """With ``"write"`` take ownership of a stored session, and cut a torn end off. With
        ``"read"`` only look: no ownership is taken, none is asked for, and nothing changes.

        Memory does not follow the log: its events are looked through one by one, and decoded
        when they are read.

        Raises:
            InvalidValue: the id cannot name a session, or there is no such mode.
            SessionNotFound: there is none of this id.
            SessionLocked: somebody owns it, and *mode* is ``"write"``; it says which process.
            CorruptLog: with ``"write"``: it is damaged before its end, or holds events that
                nobody here knows. Damage inside of one event may only be met when that is
                read; then `WriteHandle.read` raises it.
            StoreError: the storage failed, or another version of Terzetto wrote it.
        """
        ...

    async def read(self, session_id: str, start: int = 0) -> tuple[SessionHeader, Events]:
        """The header and the intact events of a session, as far as they are stored now,
        from seq *start* on: none when it has not got so far.

        `open` with ``"read"``, one `ReadHandle.read` and `ReadHandle.close` in one call: it
        takes no ownership, changes nothing, and raises what these raise.
        """
        ...

    async def delete(self, session_id: str) -> None:
        """Remove a session for good. The id may be used again.

        Damaged sessions, and those of another version, can be deleted as well.

        Raises:
            InvalidValue: the id cannot name a session.
            SessionNotFound: there is none of this id.
            SessionLocked: somebody owns it; nothing was removed.
            StoreError: the storage failed.

        Cancellation: before it begins, nothing happens; once begun it is finished first.
        """
        ...

    def locate(self, session_id: str) -> str | None:
        """Where a session of this id is kept, for people to look there: a path, or
        ``path#id``. None if there is no such place. Looks nothing up.

        Raises:
            InvalidValue: the id cannot name a session.
        """
        ...

    async def list(self) -> list[SessionHeader]:
        """The headers of all sessions, oldest first. Files that hold none are logged and
        left out, as are sessions whose creation was never finished.

        Raises:
            StoreError: the storage failed.
        """
        ...


_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")


def escape_id(session_id: str) -> str:
    """A file name, without suffix, for *session_id*: no two ids have the same.

    Lower-case letters, digits, ``-``, ``_`` and all dots but a leading one stand for
    themselves; every other byte of the UTF-8 is ``%`` and two digits. Capitals too: there
    are file systems that do not tell them from small letters.

    Raises:
        InvalidValue: an empty id, ``.``, ``..``, one with a separator or a control
            character, or one whose name is longer than `LONGEST_NAME` bytes.
    """
    if not isinstance(session_id, str):
        raise InvalidValue(f"session id: expected a str, got {type(session_id).__name__}")
    shown = repr(session_id if len(session_id) <= 40 else session_id[:40] + "...")
    if session_id in {"", ".", ".."}:
        raise InvalidValue(f"session id {shown} cannot name a session")
    if has_surrogate(session_id) or any(c in "/\\\x7f" or c < " " for c in session_id):
        raise InvalidValue(
            f"session id {shown}: expected no '/', no backslash and no control characters"
        )
    name = "".join(chr(b) if b in _PLAIN else f"%{b:02x}" for b in session_id.encode())
    name = f"%2e{name[1:]}" if name.startswith(".") else name
    if len(name) > LONGEST_NAME:
        raise InvalidValue(
            f"session id {shown} is too long: {len(name)} bytes as a file name, where each "
            f"character but a-z, 0-9, '-', '_', '.' takes three or more; at most {LONGEST_NAME}"
        )
    return name


def check_extensions(events: Iterable[Event], known: Collection[str]) -> None:
    """Refuse *events* if one is an extension that is neither ignorable nor *known*.

    Raises:
        CorruptLog: at the first such event.
    """
    for event in events:
        match event:
            case Event(data=Extension(name=name), ignorable=False) if name not in known:
                raise CorruptLog(
                    f"{name!r} is unknown and not ignorable; name it in extensions= of the "
                    "store if you know what it means",
                    f"event {event.seq}",
                )


def check_mode(mode: str) -> None:
    """Raises `InvalidValue` for what is no mode of `Store.open`."""
    if mode not in get_args(OpenMode):
        raise InvalidValue(f"mode: expected 'write' or 'read', got {mode!r}")


class _Every(Collection[str]):
    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


EVERY: Collection[str] = _Every()
"""All names of extensions: for reading where what they mean does not matter."""
