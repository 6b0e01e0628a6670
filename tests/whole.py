"""Whole logs at any moment, without waiting: what has left memory is remembered here.

For tests that look at a session from a plain function, or whose store is in trouble. What a
program has is `Session.read`.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import pytest

from terzetto.session import Held, Session
from terzetto.vocabulary import Event

_LEFT: WeakKeyDictionary[Held, dict[int, Event]] = WeakKeyDictionary()
RELEASE = Held.release


def _release(held: Held, stop: int) -> None:
    before = held.tail[: max(0, stop - held.start)]
    RELEASE(held, stop)
    if before:
        left = _LEFT.setdefault(held, {})
        left.update((event.seq, event) for event in before if held.get(event.seq) is None)


def whole(session: Session) -> list[Event]:
    """Every event of the log of *session*."""
    found = {**_LEFT.get(session.held, {}), **{event.seq: event for event in session.events}}
    return [found[seq] for seq in range(len(session.events))]


setattr(Held, "release", _release)  # noqa: B010 - a method cannot be assigned to


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory go after all, in this test."""
    monkeypatch.setattr(Held, "release", RELEASE)
