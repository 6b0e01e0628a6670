"""Reading a log whole, from memory and from its store; and following it.

What was released comes back in pages, so a reader holds one page however far behind it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from attrs import define, field

from ..vocabulary import Event, InvalidValue, StoreError, chain_text

if TYPE_CHECKING:
    from ._log import Session

PAGE = 1024
"""Events that are read back at once."""

Reader: TypeAlias = Callable[[int, int], Awaitable[list[Event]]]
"""Gives the durable events from one seq to before another."""


def check_seq(name: str, seq: object) -> int:
    """Refuse what no seq can be."""
    if type(seq) is not int or seq < 0:
        raise InvalidValue(f"{name}: expected a seq, 0 or more, got {seq!r}")
    return seq


async def page(session: Session, start: int, stop: int) -> list[Event]:
    """The events *start* to before *stop*, all of which the log has.

    Waits for the store, and only then, if some of them have left memory.
    """
    held = session.held
    here, missing = held.between(start, stop), held.missing(start, stop)
    if missing is None:
        return here
    first, last = missing
    found = {event.seq: event for event in await _fetched(session, first, last)}
    found.update((event.seq, event) for event in here)
    return [found[seq] for seq in range(start, stop)]


async def _fetched(session: Session, start: int, stop: int) -> list[Event]:
    assert session.reader is not None
    what = f"session {session.id!r}: reading events {start} to {stop - 1} back"
    try:
        events = await session.reader(start, stop)
    except StoreError:
        raise
    except Exception as error:  # a store: somebody else's code
        raise StoreError(f"{what} failed: {chain_text(error)}") from error
    return checked(session.id, events, start, stop)


def checked(session_id: str, events: list[Event], start: int, stop: int) -> list[Event]:
    """*events*, if they are those that a store was asked for. Raises `StoreError`."""
    try:
        seqs = [event.seq for event in events]
    except (AttributeError, TypeError):  # a store: somebody else's code
        wrong = f"expected a list of events from the store's read(), got {type(events).__name__}"
        if isinstance(events, (list, tuple)):
            wrong += f" with {sorted({type(event).__name__ for event in events})} in it"
    else:
        if seqs == list(range(start, stop)):
            return events
        wrong = "the store has other events than it was given"
        if not seqs:
            wrong = "the store gives none of them, although it says that it has them"
    raise StoreError(
        f"session {session_id!r}: reading events {start} to {stop - 1} back failed: {wrong}"
    )


@define(eq=False)
class Follower:
    """One reader's position in a log.

    Raises `StoreError` where a store cannot give back what has left memory. The position
    stays: the next attempt goes on with the same event.
    """

    _session: Session
    _next: int
    _durable: bool
    _page: list[Event] = field(factory=list, init=False, repr=False)

    def __aiter__(self) -> Follower:
        return self

    async def __anext__(self) -> Event:
        session = self._session
        await session.bell.checkpoint()
        while True:
            length = len(session.held)
            end = min(length, session.durable_seq + 1) if self._durable else length
            if self._next < end:
                event = self._in_page() or session.held.get(self._next)
                if event is not None:
                    self._next += 1
                    return event
                # Somebody else may go on with this follower meanwhile: look again.
                start, stop = self._next, min(self._next + PAGE, end)
                self._page = checked(session.id, await page(session, start, stop), start, stop)
            elif not session.attached:
                raise StopAsyncIteration
            else:
                await session.bell.wait()

    def _in_page(self) -> Event | None:
        if not self._page:
            return None
        index = self._next - self._page[0].seq
        if 0 <= index < len(self._page):
            return self._page[index]
        self._page = []
        return None
