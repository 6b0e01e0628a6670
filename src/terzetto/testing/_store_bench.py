"""What the laws of stores run on, and how they say what is wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from attrs import frozen

from ..stores import Store, WriteHandle
from ..vocabulary import Event, SessionHeader, SessionId, TurnStart

Reopen: TypeAlias = Callable[[Store], Store]
Tear: TypeAlias = Callable[[Store, str], Awaitable[Store]]
Failing: TypeAlias = Callable[[Store], AbstractContextManager[object]]


@frozen
class Bench:
    """What a law runs on: an empty *store*, and what was given for damaging it."""

    store: Store
    reopen: Reopen | None
    tear: Tear | None
    failing: Failing | None

    @property
    def other(self) -> Store:
        """A second store over the same storage, or the store itself."""
        return self.store if self.reopen is None else self.reopen(self.store)

    async def filled(self, count: int, name: str = "s") -> WriteHandle:
        """A new session with so many events, flushed."""
        handle = await self.store.create(header(name))
        fill(handle, 0, count)
        await handle.flush()
        return handle

    async def expect_stored(self, count: int, when: str, name: str = "s") -> None:
        """Both stores read exactly the first *count* events."""
        for store in (self.store, self.other):
            _, events = await store.read(name)
            expect(events, turns(count), f"{when}, read() gives")


Law: TypeAlias = Callable[[Bench], Awaitable[None]]
"""A promise, called what it promises. It raises `AssertionError` with what is wrong."""


def header(name: str = "s", created_ms: int = 5) -> SessionHeader:
    return SessionHeader(id=SessionId(name), created_ms=created_ms)


def turn(seq: int) -> Event:
    return Event(seq, 1000 + seq, TurnStart(seq))


def turns(count: int) -> list[Event]:
    return [turn(seq) for seq in range(count)]


def fill(handle: WriteHandle, start: int, stop: int) -> None:
    for seq in range(start, stop):
        handle.append(turn(seq))


def expect(found: object, wanted: object, what: str) -> None:
    """*what* is a sentence without its end: ``after X, durable_seq is``."""
    if found != wanted:
        raise AssertionError(f"{what} {shown(found)}, expected {shown(wanted)}")


def shown(value: object) -> str:
    """Events by their seqs, everything else as it is."""
    if isinstance(value, list) and value and all(isinstance(one, Event) for one in value):
        seqs = ", ".join(str(event.seq) for event in value)
        return f"events {seqs}" if len(value) < 40 else f"{len(value)} events"
    if isinstance(value, list) and not value:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


@contextmanager
def refused(kind: type[Exception], what: str) -> Iterator[None]:
    """The block raises *kind*. *what* is a sentence: ``a second open``."""
    try:
        yield
    except kind:
        return
    except AssertionError:
        raise
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise AssertionError(f"{what}: expected {kind.__name__}, got {got}") from error
    raise AssertionError(f"{what}: expected {kind.__name__}, and it was accepted")
