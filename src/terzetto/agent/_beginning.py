"""How a session begins: fresh, seeded with another's events, or restored from its store.

Every one of these gives a session whose appends reach the store's buffer, and the write
handle, or gives the handle up and raises.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from ..session import CRASH, Session, closers, replay, unfinished_seed, withdrawn
from ..stores import Store, WriteHandle
from ..vocabulary import (
    CorruptLog,
    EndSeed,
    Event,
    ForkError,
    ModelSelected,
    ModelSelection,
    SessionExists,
    SessionHeader,
)


async def seeded(
    session: Session,
    store: Store | None,
    seed: Sequence[Event],
    selection: ModelSelection | None = None,
) -> WriteHandle | None:
    """Begin *session* with the events of another, and create it in *store*.

    The seed, its marker and *selection*, a choice for what follows, are durable when this
    returns: a session that inherits is whole, or is not taken up again.
    """
    replay(session, seed)
    if session.place.open_turn is not None:
        raise ForkError("OPEN_TURN", "the seed ends inside a turn; cut it at a turn's end")
    handle = await store.create(session.header) if store is not None else None
    try:
        attach(session, handle)
        for event in seed:
            session.sink(event)
        if seed:
            session.append(EndSeed(inherited=True))
        if selection is not None and selection != session.folds.selection:
            session.append(ModelSelected(selection))
        if handle is not None and seed:
            await handle.flush()
    except BaseException:
        if handle is not None:
            await handle.close()
        raise
    return handle


async def forked(
    session: Session,
    store: Store | None,
    seed: Sequence[Event],
    selection: ModelSelection | None,
) -> WriteHandle | None:
    """As `seeded`, and an id that is taken is a `ForkError`."""
    try:
        return await seeded(session, store, seed, selection)
    except SessionExists as error:
        raise ForkError("SESSION_ALREADY_EXISTS", str(error)) from error


async def restored(session: Session, handle: WriteHandle) -> None:
    """Take *session*, empty, to where its log ends; close what a crash left open."""
    events = await handle.read()
    check_whole(session.header, events)
    replay(session, events)
    attach(session, handle)
    _repair(session)


def check_whole(header: SessionHeader, events: Sequence[Event]) -> None:
    """Raise `CorruptLog` for a fork whose creation was not finished."""
    if missing := unfinished_seed(header, len(events)):
        raise CorruptLog(missing, f"event {len(events)}")


def attach(session: Session, handle: WriteHandle | None) -> None:
    """From here on every append reaches the store's buffer."""
    if handle is None:
        session.durable = lambda: session.place.next_seq - 1
    else:
        session.sink = handle.append
        session.durable = lambda: handle.durable_seq


def _repair(session: Session) -> None:
    """Close a crashed log and mark where its history ends (C145)."""
    closing = evolve(CRASH, uncertain=session.header.durability == "lazy")
    time_ms = session.place.last_time_ms
    for draft in closers(session.place, session.pending, session.folds, closing):
        session.append_draft(draft, time_ms)
    for draft in withdrawn(session.pending):
        session.append_draft(draft, time_ms)
    if not session.place.seeded:
        session.append(EndSeed())


def initial_selection(session: Session, selection: ModelSelection | None) -> ModelSelection | None:
    """Saved history wins over the options an agent is rebuilt with (C14)."""
    header = session.folds.header
    if header is None:
        return selection
    route = header.config.selection
    return evolve(route, effort=None) if "reasoningEffort" in header.adapter_defaults else route
