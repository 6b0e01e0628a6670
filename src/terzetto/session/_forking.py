"""Where a log can be forked, and what its fork begins with. Pure.

A fork inherits a prefix of its source's events that ends between two turns. It is a
session of its own from then on: both logs only grow, and neither knows of the other.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from ..vocabulary import (
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

    Raises `ForkError`: ``INVALID_BOUNDARY`` outside the log, ``OPEN_TURN`` inside a turn.
    """
    whole = len(events) if boundary is None else boundary
    return list(events[: fork_point(events, boundary=whole)])


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
    if turn is not None and boundary is not None:
        raise InvalidValue("a fork begins at a turn or at a boundary; give one of them")
    stop = len(events)
    if boundary is not None:
        if type(boundary) is not int or not 0 <= boundary <= stop:
            raise ForkError(
                "INVALID_BOUNDARY",
                f"boundary: expected 0 to {stop}, the seq of the first event that is not "
                f"inherited, got {boundary!r}",
            )
        stop = boundary
    wanted = turn if type(turn) is int else None
    last, begins = 0, None  # the latest turn, and where it begins while it is open
    for index in range(stop):
        match events[index].data:
            case TurnStart(turn=last):
                begins = index
            case TurnEnd():
                begins = None
                if last == wanted:
                    return index + 1
            case _:
                pass
    if begins is not None and (boundary is not None or (wanted is not None and wanted == last)):
        where = "the log ends" if boundary is None else f"event {boundary} is"
        better = f"boundary={begins}" + (f" or turn={last - 1}" if last > 1 else "")
        raise ForkError(
            "OPEN_TURN", f"{where} inside turn {last}; a fork begins between turns: {better}"
        )
    if turn is not None:
        there = f"1 to {last}" if last else "none, for the log has no turn"
        raise ForkError("INVALID_BOUNDARY", f"turn: expected {there}, got {turn!r}")
    return stop if begins is None else begins


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
) -> SessionHeader:
    """The header of a fork that inherits *length* events of *source*.

    Its folder and meta are the source's unless others are given. It promises what it
    keeps itself, whatever the source's durability was: inherited turns are closed.
    """
    return SessionHeader(
        id=SessionId(session_id),
        created_ms=created_ms,
        cwd=source.cwd if cwd is None else cwd,
        parent_id=source.id,
        seed_length=length,
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
