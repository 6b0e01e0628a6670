"""Whole logs, for who judges a run when it is over: chunks have left memory by then."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from ..session import Session
from ..stores import MemoryStore, Store
from ..vocabulary import Event, SessionId
from ._disk import SimulatedDisk
from ._virtual import play


def whole_log(session: Session, store: Store) -> list[Event]:
    """All events of *session*, which *store* keeps.

    Of a `SimulatedDisk` or a `MemoryStore` at any moment, without its time or its power. Of
    another store when no Trio run is under way.
    """
    events = session.events
    found = {event.seq: event for event in events}
    if len(found) == len(events):
        return list(events)
    stored = _stored(session.id, store)
    if stored is None:
        return play(session.read)
    for event in stored:
        found.setdefault(event.seq, event)
    return [found[seq] for seq in range(len(events))]


def _stored(session_id: SessionId, store: Store) -> Iterable[Event] | None:
    """What *store* has of it, if that can be seen without a run."""
    if isinstance(store, SimulatedDisk):
        return store.stored(session_id)
    if type(store) is MemoryStore and session_id in store._sessions:
        return store._sessions[session_id].slice(0, None)
    return None


def fingerprint(store: Store, session_id: SessionId) -> Hashable | None:
    """All that opening the session in *store* can depend on; None where nobody can tell.

    A session that somebody still owns has none: whoever opens it now is refused.
    """
    if type(store) is MemoryStore:
        kept = store._sessions.get(session_id)
        if kept is None or kept.owner is not None:
            return None
        return kept.header, tuple(kept.slice(0, None)), store._extensions
    if type(store) is SimulatedDisk:
        file = store._files.get(session_id)
        if file is None or file.owner is not None:
            return None
        disk = (store.latency, store.cache, store.room, store.powered, frozenset(store.extensions))
        return file.header, tuple(file.events), file.torn, disk
    return None
