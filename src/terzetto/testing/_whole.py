"""Whole logs, for who judges a run when it is over: chunks have left memory by then."""

from __future__ import annotations

from ..session import Session
from ..stores import Store
from ..vocabulary import Event
from ._disk import SimulatedDisk
from ._virtual import play


def whole_log(session: Session, store: Store) -> list[Event]:
    """All events of *session*, which *store* keeps.

    Of a `SimulatedDisk` at any moment, without its time or its power. Of another store when
    no Trio run is under way.
    """
    events = session.events
    found = {event.seq: event for event in events}
    if len(found) == len(events):
        return list(events)
    if not isinstance(store, SimulatedDisk):
        return play(session.read)
    for event in store.stored(session.id):
        found.setdefault(event.seq, event)
    return [found[seq] for seq in range(len(events))]
