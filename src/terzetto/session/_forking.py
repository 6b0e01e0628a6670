"""Where a log can be forked, and what its fork begins with. Pure.

A fork inherits a prefix of its source's events that ends between two turns. It is a
session of its own from then on: both logs only grow, and neither knows of the other.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from attrs import define, field

from ..vocabulary import (
    Durability,
    Event,
    ForkError,
    InvalidValue,
    SessionHeader,
    SessionId,
    TurnEnd,
    TurnStart,
    freeze_object,
)


def fork_prefix(events: Sequence[Event], boundary: int | None = None) -> list[Event]:
    """The events before *boundary* (default: all), for a fork's seed.

    Raises:
        ForkError: ``INVALID_BOUNDARY`` outside the log, ``OPEN_TURN`` inside a turn.
        InvalidValue: Some of them have left memory; ``await session.read()`` gives all.
    """
    whole = len(events) if boundary is None else boundary
    point = fork_point(events, boundary=whole)
    prefix = list(events[:point])
    if len(prefix) < point:
        raise InvalidValue(
            f"events: expected all {point}, and {point - len(prefix)} have left memory; "
            "use await session.read()"
        )
    return prefix


def fork_point(
    events: Sequence[Event], *, turn: int | None = None, boundary: int | None = None
) -> int:
    """How many of *events*, a log from its start, a fork inherits.

    Args:
        turn: Up to the end of this turn.
        boundary: Up to the event before this seq.

    Without both: all of a log between two turns; of one with an open turn, whatever was
    before that turn.

    Raises:
        ForkError: ``INVALID_BOUNDARY`` for what is not in the log; ``OPEN_TURN`` inside a
            turn, naming the last place before it.
        InvalidValue: both were given.
    """
    search = ForkSearch(turn, boundary)
    for event in events:
        if search.take(event):
            break
    return search.point(len(events))


@define(eq=False)
class ForkSearch:
    """`fork_point` for a log that is read in parts: give it all events in order, then ask.

    Chunks may be left out.
    """

    turn: int | None = None
    boundary: int | None = None
    _last: int = field(default=0, init=False)
    _begins: int | None = field(default=None, init=False)
    _found: int | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        if self.turn is not None and self.boundary is not None:
            raise InvalidValue("a fork begins at a turn or at a boundary; give one of them")

    def take(self, event: Event) -> bool:
        """Look at the next event; true when no further one matters."""
        boundary = self.boundary
        if type(boundary) is int and event.seq >= boundary:
            return False  # the log's length is still needed
        match event.data:
            case TurnStart(turn=number):
                self._last, self._begins = number, event.seq
            case TurnEnd():
                self._begins = None
                if type(self.turn) is int and self._last == self.turn:
                    self._found = event.seq + 1
            case _:
                pass
        return self._found is not None

    def point(self, length: int) -> int:
        """How many events are inherited of a log of *length* events. Raises as
        `fork_point` does."""
        if self._found is not None:
            return self._found
        turn, boundary, last, begins = self.turn, self.boundary, self._last, self._begins
        if boundary is not None and (type(boundary) is not int or not 0 <= boundary <= length):
            raise ForkError(
                "INVALID_BOUNDARY",
                f"boundary: expected 0 to {length}, the seq of the first event that is not "
                f"inherited, got {boundary!r}",
            )
        wanted = type(turn) is int and turn == last
        if begins is not None and (boundary is not None or wanted):
            where = "the log ends" if boundary is None else f"event {boundary} is"
            better = f"boundary={begins}" + (f" or turn={last - 1}" if last > 1 else "")
            raise ForkError(
                "OPEN_TURN", f"{where} inside turn {last}; a fork begins between turns: {better}"
            )
        if turn is not None:
            there = f"1 to {last}" if last else "none, for the log has no turn"
            raise ForkError("INVALID_BOUNDARY", f"turn: expected {there}, got {turn!r}")
        if boundary is not None:
            return boundary
        return length if begins is None else begins


def fresh_id() -> SessionId:
    """An id that no session has."""
    return SessionId(f"session-{secrets.token_hex(8)}")


def fork_header(
    source: SessionHeader,
    session_id: str,
    created_ms: int,
    length: int,
    *,
    cwd: str | None = None,
    meta: Mapping[str, object] | None = None,
    durability: Durability | None = None,
) -> SessionHeader:
    """The header of a fork that inherits *length* events of *source*.

    Its folder, meta and durability are the source's unless others are given. Any level is
    right for it: what it inherits has ended, and needs no repair.
    """
    return SessionHeader(
        id=SessionId(session_id),
        created_ms=created_ms,
        cwd=source.cwd if cwd is None else cwd,
        parent_id=source.id,
        seed_length=length,
        durability=source.durability if durability is None else durability,
        meta=source.meta if meta is None else freeze_object(meta),
    )


def unfinished_seed(header: SessionHeader, length: int) -> str | None:
    """In words, what is missing of a session of *length* events that begins with others'.

    A seed is stored before anybody sees its session, and its marker is the event after it.
    """
    if not header.seed_length or length > header.seed_length:
        return None
    return (
        f"its creation was not finished: {length} of {header.seed_length} inherited events are "
        "stored; delete it and fork again"
    )
