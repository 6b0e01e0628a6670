"""Chunks that came together, appended together.

What `Session.append` looks at for each event is the same for all of them, as long as nobody is
told of an event and so nobody can change it in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident

from ..vocabulary import Event, Finish, StreamChunk
from ..vocabulary._opening import opened
from ..vocabulary._quick import assistant_chunk
from ._log import Session, _no_sink

_OpenEvent = opened(Event)


def append_chunks(session: Session, turn: int, step: int, chunks: Sequence[StreamChunk]) -> int:
    """Append the first of *chunks*, and return how many: 0 if it takes `Session.append`.

    The log is then as if each had been appended by itself, at one time. That is done while an
    attempt is open, nobody observes the session, and up to a `Finish`.

    Raises what the store raises that takes the events; those before are appended.
    """
    place = session.place
    attempt = place.attempt
    if (
        attempt.first < 0
        or place.seeded
        or place.open_step != step
        or place.open_turn != turn
        or place.answered
        or session.observers._listeners
        or session._deferred
        or session._publishing
        or session.pending.claiming
        or not session.attached
        or get_ident() != session._thread
    ):
        return 0
    sink = session.sink
    seq, last = place.next_seq, place.last_time_ms
    now = session.now_ms()
    time_ms = now if now > last else last
    events: list[Event] = []
    for chunk in chunks:
        if type(chunk) is Finish:
            break
        made = _OpenEvent()
        made.seq = seq
        made.time_ms = time_ms
        made.data = assistant_chunk(turn, step, chunk)
        made.surface_op = None
        made.sources = None
        made.ignorable = False
        made.__class__ = Event
        events.append(made)
        seq += 1
    if not events:
        return 0
    if sink is _no_sink:
        attempt.take_all(place.next_seq, chunks[: len(events)])
        place.next_seq, place.last_time_ms = seq, time_ms
        session.held.tail += events
    else:
        try:
            for event, chunk in zip(events, chunks, strict=False):
                sink(event)
                attempt.take(event.seq, chunk)
                place.next_seq, place.last_time_ms = event.seq + 1, time_ms
                session.held.tail.append(event)
        except BaseException:
            session.bell.ring()
            raise
    session.bell.ring()
    return len(events)
