"""The past that a fork inherits: where it ends, and its events a page at a time.

Of a live source the session gives them, of a stored one a read handle, which asks for no
ownership. The source only grows meanwhile, so a page is the same whenever it is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import trio
from attrs import define, field

from ..session import PAGE, ForkSearch, checked
from ..stores import ReadHandle, Store
from ..vocabulary import Event, ForkError, ModelSelection, SessionHeader, SessionNotFound
from ._agent import Agent
from ._beginning import check_whole


@define(eq=False)
class Past:
    """What may be inherited of one session. Use it in an ``async with`` block.

    *route*: the model of a source that lives.
    """

    header: SessionHeader
    route: ModelSelection | None
    read: Callable[[int, int], Awaitable[list[Event]]]
    _agent: Agent | None = None
    _handle: ReadHandle | None = field(default=None, repr=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._handle is not None:
            with trio.CancelScope(shield=True):
                await self._handle.close()

    async def point(self, turn: int | None, boundary: int | None) -> int:
        """How many events are inherited. Raises as `fork_point` does."""
        search = ForkSearch(turn, boundary)
        if self._agent is not None:  # chunks do not matter, so nothing is read back
            await trio.lowlevel.checkpoint()
            events = self._agent.session.events
            for event in events:
                search.take(event)
            return search.point(len(events))
        length = 0
        while True:
            page = await self.read(length, length + PAGE)
            # A store that gives the same page again and again would be asked for ever.
            count = min(len(page), PAGE) if isinstance(page, list) else PAGE
            for event in checked(self.header.id, page, length, length + count):
                search.take(event)
            length += len(page)
            if len(page) < PAGE:
                break
        check_whole(self.header, length)
        return search.point(length)


def living(agent: Agent) -> Past:
    """The past of an agent that lives."""
    agent.session.check_thread()
    return Past(agent.session.header, agent.model.current(), agent.session.read, agent)


async def stored(store: Store | None, session_id: str) -> Past:
    """The past of a stored session. Raises `ForkError` without a store, or a session."""
    if store is None:
        raise ForkError(
            "SESSION_NOT_LIVE", f"no agent {session_id!r} is live, and there is no store"
        )
    try:
        handle = await store.open(session_id, "read")
    except SessionNotFound as error:
        raise ForkError("SESSION_NOT_FOUND", str(error)) from error
    return Past(handle.header, None, handle.read, None, handle)
