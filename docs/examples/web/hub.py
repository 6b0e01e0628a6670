"""The agents behind the page: who holds them, and for how long.

A `Hub` owns a nursery with one task for each open session, and that task holds the agent
in its block. So the lifetime of an agent is no request's: it begins when somebody writes
to a session or looks at it, and ends when nobody has looked at it for a while and nothing
runs in it. What is closed is on disk; the next look opens it again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio
from attrs import define, field, frozen

import terzetto
from terzetto.vocabulary import SessionHeader

logger = logging.getLogger("web")
TITLE_LENGTH = 60


class HubClosed(Exception):
    """No session is opened any more: the server is stopping."""


class Bell:
    """Wakes who waits for a change. Look first, then wait: nothing can be missed, because
    no other task runs in between."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        await self._event.wait()


@define(eq=False)
class Room:
    """An open session. *visitors* counts the requests that use it, whoever opened it being
    the first; *moved* rings when one leaves, and when the agent's status changes."""

    agent: terzetto.Agent
    moved: Bell = field(factory=Bell, init=False)
    visitors: int = field(default=1, init=False)
    closing: bool = field(default=False, init=False)
    gone: trio.Event = field(factory=trio.Event, init=False)

    def leave(self) -> None:
        self.visitors -= 1
        self.moved.ring()


@frozen
class Row:
    """A session in the list. *status* is ``running``, ``idle`` or ``closed``."""

    id: str
    title: str
    created_ms: int
    status: str


@define(eq=False)
class Hub:
    """Every session that the page can show. Made by `open_hub`."""

    engine: terzetto.Engine
    provider: str
    model: str
    system: str
    linger: float
    """Seconds that a session stays open after its last visitor has left it."""
    _nursery: trio.Nursery
    _headers: dict[str, SessionHeader]
    _rooms: dict[str, Room] = field(factory=dict, init=False)
    _opening: trio.Lock = field(factory=trio.Lock, init=False)
    changed: Bell = field(factory=Bell, init=False)
    """Rings when `rows` may have changed."""
    streams: int = field(default=0, init=False)
    """Pages that are told of changes."""
    closing: bool = field(default=False, init=False)

    def rows(self) -> list[Row]:
        """All sessions, the newest first."""
        rows = []
        for header in self._headers.values():
            room = self._rooms.get(header.id)
            status = room.agent.status if room is not None else "closed"
            title = str(header.meta.get("title", header.id))
            rows.append(Row(header.id, title, header.created_ms, status))
        return sorted(rows, key=lambda row: (-row.created_ms, row.id))

    async def begin(self, text: str) -> terzetto.Agent:
        """A new session, with *text* as its first message."""
        title = " ".join(text.split())
        if len(title) > TITLE_LENGTH:
            title = title[: TITLE_LENGTH - 1] + "…"
        opening = self.engine.open_agent(
            provider=self.provider, model=self.model, system=self.system, meta={"title": title}
        )
        room = await self._enter(opening)
        room.agent.followup(text)
        room.leave()
        return room.agent

    @asynccontextmanager
    async def visit(self, session_id: str) -> AsyncIterator[Room]:
        """The session of this id; it stays open for the length of the block at least.

        One that is closed is opened. Raises `SessionNotFound`, and what `Engine.open_agent`
        raises.
        """
        room = await self._find(session_id)
        try:
            yield room
        finally:
            room.leave()

    async def _find(self, session_id: str) -> Room:
        """The room, with one visitor more."""
        if (room := self._if_open(session_id)) is not None:
            return room
        # One at a time: two pages that look at a closed session must not both open it.
        async with self._opening:
            if (room := self._if_open(session_id)) is not None:
                return room
            if (closing := self._rooms.get(session_id)) is not None:
                await closing.gone.wait()
            return await self._enter(self.engine.open_agent(resume=session_id, system=self.system))

    def _if_open(self, session_id: str) -> Room | None:
        room = self._rooms.get(session_id)
        if room is None or room.closing:
            return None
        room.visitors += 1
        return room

    async def _enter(self, opening: AbstractAsyncContextManager[terzetto.Agent]) -> Room:
        if self.closing:
            raise HubClosed
        room: Room = await self._nursery.start(self._hold, opening)
        return room

    async def _hold(
        self,
        opening: AbstractAsyncContextManager[terzetto.Agent],
        task_status: trio.TaskStatus[Room] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Hold one agent until its session is deserted, or the hub is left."""
        room: Room | None = None
        try:
            async with opening as agent:
                room = self._rooms[agent.id] = Room(agent)
                self._headers[agent.id] = agent.session.header
                self.changed.ring()
                task_status.started(room)
                await self._until_deserted(room)
                room.closing = True
        except terzetto.AgentCrashed:
            # One agent's defect is not the end of all others; its log is closed.
            logger.exception("a session was closed")
        finally:
            if room is not None:
                del self._rooms[room.agent.id]
                room.gone.set()
                self.changed.ring()

    async def _until_deserted(self, room: Room) -> None:
        while True:
            with trio.move_on_after(self.linger) as quiet:
                await room.moved.wait()
            if quiet.cancelled_caught and not room.visitors and room.agent.status == "idle":
                return

    def _status_changed(self, change: terzetto.StatusChanged) -> None:
        if (room := self._rooms.get(change.agent.id)) is not None:
            room.moved.ring()
        self.changed.ring()


@asynccontextmanager
async def open_hub(
    engine: terzetto.Engine,
    store: terzetto.Store,
    *,
    provider: str,
    model: str,
    system: str,
    linger: float = 300,
) -> AsyncIterator[Hub]:
    """The sessions of *store*, on *engine*, for the length of the block.

    Leaving closes every session: running turns end as ``disposed``, pending input is kept
    for the next time, the logs are complete and on disk.
    """
    headers: dict[str, SessionHeader] = {header.id: header for header in await store.list()}
    async with trio.open_nursery() as nursery:
        hub = Hub(engine, provider, model, system, linger, nursery, headers)
        with engine.scope.hooks.status.listen(hub._status_changed):
            yield hub
        hub.closing = True
        hub.changed.ring()
        nursery.cancel_scope.cancel(reason="the hub was left")
