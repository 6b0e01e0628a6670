"""What a store is: the two protocols, and what every store shares.

A store keeps logs; it knows nothing of turns. Whoever holds a session's write handle owns
the session: no second handle exists, in this process or another on the same machine.
Durability is *flush*: an append only buffers, so that recording is synchronous.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, TypeAlias

from attrs import define, field

from ..vocabulary import (
    CorruptLog,
    Event,
    Extension,
    IllegalEvent,
    InvalidValue,
    SessionHeader,
    has_surrogate,
)

Events: TypeAlias = list[Event]  # `Store.list` hides the builtin in the protocol's body

LONGEST_NAME = 200
"""Bytes that an escaped session id may have; file systems stop at 255 with the suffix."""


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

    async def read(self) -> Events:
        """The events that were stored when the handle was opened; what was appended since
        is not among them. A fresh list.

        Raises:
            StoreError: they cannot be read again.
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

        Callers at the same time share one write. A checkpoint only where there may be
        something to wait for: the memory store has none.

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
    `terzetto.testing.check_store` runs what is promised here and in `WriteHandle`.
    """

    async def create(self, header: SessionHeader) -> WriteHandle:
        """Begin a session; when this returns it exists durably, without events.

        Raises:
            InvalidValue: the id cannot name a session, or the header cannot be written.
            SessionExists: there is one of this id.
            StoreError: the storage failed.
        """
        ...

    async def open(self, session_id: str) -> WriteHandle:
        """Take ownership of a stored session, and cut a torn end off.

        Raises:
            InvalidValue: the id cannot name a session.
            SessionNotFound: there is none of this id.
            SessionLocked: somebody owns it; the message says which process.
            CorruptLog: it is damaged before its end, or holds events that nobody here knows.
            StoreError: the storage failed, or another version of Terzetto wrote it.
        """
        ...

    async def read(self, session_id: str, start: int = 0) -> tuple[SessionHeader, Events]:
        """The header and the intact events of a session, as far as they are stored now,
        from seq *start* on: none when it has not got so far.

        Takes no ownership and changes nothing: the session may be in use. Raises as `open`
        does, but never `SessionLocked`. Earlier events than *start* are not judged.
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


@define(eq=False)
class Buffer:
    """Events handed over and not yet durable. Pure."""

    next_seq: int
    _pending: list[Event] = field(factory=list, init=False)

    @property
    def durable_seq(self) -> int:
        return self.next_seq - len(self._pending) - 1

    def append(self, event: Event) -> None:
        if event.seq != self.next_seq:
            raise IllegalEvent(event.seq, f"seq {event.seq}", f"seq {self.next_seq}")
        self._pending.append(event)
        self.next_seq += 1

    def pending(self) -> Sequence[Event]:
        """A copy, in order."""
        return tuple(self._pending)

    def settle(self, count: int) -> None:
        """The first *count* are durable."""
        del self._pending[:count]


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


def check_start(start: int) -> None:
    """Refuse what no event can have as its seq.

    Raises:
        InvalidValue: it is no int, or less than 0.
    """
    if type(start) is not int or start < 0:
        raise InvalidValue(f"start: expected the seq of an event, 0 or more, got {start!r}")


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
