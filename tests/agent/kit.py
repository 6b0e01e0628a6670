"""What the tests of agents share: a run that cannot hang, a store that can be made to fail.

A run under `play` has a virtual clock and fails, at once, when every task is blocked for
ever: a lost wake, or a shielded wait for something that cannot happen any more.
"""

from __future__ import annotations

import functools
import itertools
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import trio
import trio.testing
from tests.whole import whole

import terzetto
from terzetto import Agent, Engine, Event, MemoryStore, Session, WriteHandle, testing
from terzetto.llm.scripted import ScriptedModel
from terzetto.session import replay
from terzetto.testing import BodyRecord, Evidence, check_invariants
from terzetto.vocabulary import (
    AssistantMessage,
    InboxSpliced,
    Message,
    SessionHeader,
    ToolResultBlock,
    ToolResultEvent,
    TurnEnd,
    TurnEnding,
    UserMessage,
)

T = TypeVar("T")

ROUTE: dict[str, Any] = {"provider": "scripted", "model": "m"}


# --- running --------------------------------------------------------------------------


def play(main: Callable[..., Awaitable[T]], *args: Any, seed: int = 0) -> T:
    """`trio.run` with a virtual clock and a repeatable scheduler; a hang is a failure."""
    try:
        return testing.play(main, *args, seed=seed)
    except testing.Hung as hung:
        pytest.fail(str(hung), pytrace=False)


def played(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a plain test of an async one, run by `play`."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        play(functools.partial(test, *args, **kwargs))

    return run


async def settled() -> None:
    """Return once every other task waits for something, at the same virtual time."""
    await trio.testing.wait_all_tasks_blocked()


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


def sigint() -> None:
    """What Ctrl-C does in the main thread, now."""
    signal.raise_signal(signal.SIGINT)


# --- a store that can be made to wait and to fail --------------------------------------


class Faults:
    """A `MemoryStore` with a point before and after each of its operations.

    Points: ``create``, ``created``, ``open``, ``opened``, ``read``, ``flush``, ``close``,
    ``closed``. *at* maps a point to an async function; what it raises is what the operation
    raises. An operation that fails or is cancelled leaves nobody owning the session.
    """

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.at: dict[str, Callable[[], Awaitable[None]]] = {}
        self.seen: list[str] = []

    async def reach(self, point: str) -> None:
        self.seen.append(point)
        if point in self.at:
            await self.at[point]()

    async def create(self, header: SessionHeader) -> WriteHandle:
        await self.reach("create")
        return await self._given(FaultyHandle(self, await self.inner.create(header)), "created")

    async def open(self, session_id: str, mode: Any = "write") -> Any:
        await self.reach("open")
        if mode == "read":
            return await self.inner.open(session_id, mode)
        return await self._given(FaultyHandle(self, await self.inner.open(session_id)), "opened")

    async def _given(self, handle: FaultyHandle, point: str) -> FaultyHandle:
        try:
            await self.reach(point)
        except BaseException:
            handle.give_up()
            raise
        return handle

    async def read(self, session_id: str, start: int = 0) -> tuple[SessionHeader, list[Event]]:
        return await self.inner.read(session_id, start)

    async def list(self) -> list[SessionHeader]:
        return await self.inner.list()

    def owned(self, session_id: str) -> bool:
        """Whether somebody holds the session's write handle."""
        return self.inner._sessions[session_id].owner is not None

    def stored(self, session_id: str) -> Sequence[Event]:
        return list(self.inner._sessions[session_id].held.everything())


class FaultyHandle:
    def __init__(self, store: Faults, inner: Any) -> None:
        self.store = store
        self.inner = inner

    @property
    def header(self) -> SessionHeader:
        return self.inner.header

    @property
    def repaired(self) -> str | None:
        return None

    @property
    def durable_seq(self) -> int:
        return self.inner.durable_seq

    async def read(self, start: int = 0, stop: int | None = None) -> list[Event]:
        await self.store.reach("read")
        return await self.inner.read(start, stop)

    def append(self, event: Event) -> None:
        self.inner.append(event)

    async def flush(self) -> None:
        await self.store.reach("flush")
        await self.inner.flush()

    async def close(self) -> None:
        if self.inner._closed:
            return
        try:
            await self.store.reach("close")
            await self.inner.flush()
        finally:
            self.give_up()
        await self.store.reach("closed")

    def give_up(self) -> None:
        self.inner._closed = True
        self.inner._kept.owner = None


# --- opening --------------------------------------------------------------------------


@asynccontextmanager
async def engine_on(
    model: terzetto.Adapter | None = None, tools: Iterable[terzetto.Tool] = (), **options: Any
) -> AsyncIterator[Engine]:
    """An engine whose log has a clock that only goes forward by being asked."""
    ticks = itertools.count(1)
    async with terzetto.open_engine(
        adapters=[model if model is not None else ScriptedModel()],
        tools=tools,
        now_ms=lambda: next(ticks),
        **options,
    ) as engine:
        yield engine


# --- looking --------------------------------------------------------------------------


def endings(session: Session) -> list[TurnEnding]:
    return [e.data.ending for e in session.events if isinstance(e.data, TurnEnd)]


def ending_kinds(session: Session) -> list[str]:
    """``completed``, ``aborted UserCause`` ..., one for each turn."""
    return [kind_of(ending) for ending in endings(session)]


def kind_of(ending: TurnEnding) -> str:
    cause = getattr(ending, "cause", None)
    name = type(ending).__name__
    return f"{name} {type(cause).__name__}" if cause is not None else name


def kinds(session: Session) -> list[str]:
    return [type(event.data).__name__ for event in session.events]


def codes(session: Session) -> dict[str, str | None]:
    """The code of each tool result, by call id; None for one without an error code."""
    found: dict[str, str | None] = {}
    for event in session.events:
        if isinstance(event.data, ToolResultEvent):
            block = event.data.message.content[0]
            assert isinstance(block, ToolResultBlock)
            found[block.tool_call_id] = event.data.error.code if event.data.error else None
    return found


def results(session: Session) -> dict[str, str]:
    """The text of each tool result, by call id."""
    found: dict[str, str] = {}
    for event in session.events:
        if isinstance(event.data, ToolResultEvent):
            block = event.data.message.content[0]
            assert isinstance(block, ToolResultBlock)
            found[block.tool_call_id] = "".join(part.text for part in block.content)
    return found


def discarded(session: Session) -> list[str]:
    """The texts that were discarded on the record, in order."""
    pending: dict[str, list[UserMessage]] = {"next-step": [], "next-turn": []}
    found: list[str] = []
    for event in session.events:
        if isinstance(event.data, InboxSpliced):
            splice, at = event.data, pending[event.data.target]
            gone = at[splice.start : splice.start + splice.removed_count]
            at[splice.start : splice.start + splice.removed_count] = splice.inserted
            if splice.outcome == "canceled":
                found += [text_of(m) for m in gone if m not in splice.inserted]
    return found


def text_of(message: Message) -> str:
    if isinstance(message, AssistantMessage):
        return message.text
    return "".join(getattr(block, "text", "") for block in message.content)


def texts_of(messages: Iterable[Message]) -> list[str]:
    return [text_of(message) for message in messages]


def pending(agent: Agent) -> list[str]:
    """The texts pending, next-step before next-turn."""
    return texts_of([*agent.inbox.next_step, *agent.inbox.next_turn])


def check(session: Session, bodies: Sequence[BodyRecord] | None = None) -> None:
    """The invariants hold for this log, and its history is what is derived from scratch.

    Without *bodies* nothing is known of what ran, so 4 and 5 say nothing.
    """
    assert check_invariants(Evidence(whole(session), bodies)) == []
    again = Session(session.header, now_ms=lambda: 0)
    replay(again, whole(session))
    assert list(again.history()) == list(session.history())
    assert again.place.open_turn is None


def called(log: list[str], name: str) -> Callable[[object], None]:
    """A listener that writes its name down."""
    return lambda value: log.append(name)
