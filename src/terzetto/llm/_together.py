"""Chunks that came together: iterators that can give them all at once.

A chunk that is handed on alone passes every layer between the bytes and the log by itself, and
that costs more than reading it. Bytes come in pieces, and a piece has the chunks of many events.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Self

from ..vocabulary import StreamChunk


class Together:
    """Chunks of one answer, one by one or several at once. For one task at a time.

    Both ways draw from the same answer, and may take turns. An `AsyncIterator`, but not by
    its class: whether something is a `Together` is asked for every answer, and a plain class
    answers soonest.
    """

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> StreamChunk:
        raise NotImplementedError

    @abstractmethod
    async def together(self) -> Sequence[StreamChunk]:
        """The chunks that are there, or else those that come next; none at the end."""
        raise NotImplementedError


def several(
    chunks: AsyncIterator[StreamChunk],
) -> Callable[[], Awaitable[Sequence[StreamChunk]]]:
    """What gives the next of *chunks* when it is called: one, or several if they come so; none
    at the end."""
    return chunks.together if isinstance(chunks, Together) else partial(_one, chunks)


async def _one(chunks: AsyncIterator[StreamChunk]) -> Sequence[StreamChunk]:
    try:
        return (await chunks.__anext__(),)
    except StopAsyncIteration:
        return ()


class Grouped(Together):
    """Chunks that come in groups."""

    def __init__(self) -> None:
        self._ready: deque[StreamChunk] = deque()

    @abstractmethod
    async def _more(self) -> Sequence[StreamChunk]:
        """The group that comes next, of at least one; empty at the end, however often asked."""
        raise NotImplementedError

    async def __anext__(self) -> StreamChunk:
        if not self._ready:
            self._ready.extend(await self._more())
            if not self._ready:
                raise StopAsyncIteration
        return self._ready.popleft()

    async def together(self) -> Sequence[StreamChunk]:
        if not self._ready:
            return await self._more()
        ready = tuple(self._ready)
        self._ready.clear()
        return ready
