"""How a session begins: fresh, seeded with another's events, or restored from its store.

Every one of these gives a session whose appends reach the store's buffer, and the write
handle, or gives the handle up and raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from attrs import evolve

from ..session import (
    CRASH,
    PAGE,
    Reader,
    Session,
    checked,
    closers,
    replay,
    unfinished_seed,
    withdrawn,
)
from ..stores import MemoryHandle, Store, WriteHandle
from ..vocabulary import (
    CorruptLog,
    EndSeed,
    Event,
    ForkError,
    IllegalEvent,
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

    async def fill() -> None:
        attach(session, handle)
        for event in seed:
            session.sink(event)

    await _begun(session, handle, fill, selection)
    return handle


async def inherited(
    session: Session, store: Store | None, read: Reader, selection: ModelSelection | None
) -> WriteHandle | None:
    """As `seeded`, in pages: with the ``seed_length`` first events that *read* gives. An id
    that is taken is a `ForkError`."""
    length = session.header.seed_length
    try:
        handle = await store.create(session.header) if store is not None else None
    except SessionExists as error:
        raise ForkError("SESSION_ALREADY_EXISTS", str(error)) from error

    async def fill() -> None:
        attach(session, handle)
        for start in range(0, length, PAGE):
            stop = min(start + PAGE, length)
            events = checked(session.id, await read(start, stop), start, stop)
            _replayed(session, events)
            for event in events:
                session.sink(event)
            if handle is not None:  # what was taken over may leave memory
                await handle.flush()
                session.saved()

    await _begun(session, handle, fill, selection)
    return handle


async def _begun(
    session: Session,
    handle: WriteHandle | None,
    fill: Callable[[], Awaitable[None]],
    selection: ModelSelection | None,
) -> None:
    """Take the seed over, mark where it ends, and make it durable. Or give *handle* up."""
    try:
        await fill()
        seeded = session.place.next_seq > 0
        if seeded:
            session.append(EndSeed(inherited=True))
        if selection is not None and selection != session.folds.selection:
            session.append(ModelSelected(selection))
        if handle is not None and seeded:
            await handle.flush()
            session.saved()
    except BaseException:
        if handle is not None:
            await handle.close()
        raise


async def restored(session: Session, handle: WriteHandle) -> None:
    """Take *session*, empty, to where its log ends; close what a crash left open."""
    length = handle.durable_seq + 1
    check_whole(session.header, length)
    attach(session, handle)
    for start in range(0, length, PAGE):
        stop = min(start + PAGE, length)
        _replayed(session, checked(session.id, await handle.read(start, stop), start, stop))
    _repair(session)


def check_whole(header: SessionHeader, length: int) -> None:
    """Raise `CorruptLog` for a fork whose creation was not finished."""
    if missing := unfinished_seed(header, length):
        raise CorruptLog(missing, f"event {length}")


def _replayed(session: Session, events: Iterable[Event]) -> None:
    """Take over what a store has kept: an order that cannot be is damage, and no misuse."""
    try:
        replay(session, events)
    except IllegalEvent as error:
        raise CorruptLog(
            f"{error.got} cannot come here; expected {error.expected}", f"event {error.seq}"
        ) from error


def attach(session: Session, handle: WriteHandle | None) -> None:
    """From here on every append reaches the store's buffer, and what the store has can be
    read back from it. A store in memory has the very same events, so all of them stay."""
    if handle is None:
        session.durable = None
    else:
        session.sink = handle.append
        session.durable = lambda: handle.durable_seq
        session.reader = None if isinstance(handle, MemoryHandle) else handle.read


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
