"""The pieces of a body, and as many of them at once as need no wait.

A server writes one event at a time, and each is a piece of its own. What has come together from
the network is many of those, and to hand on each by itself costs more than to read it.

Nothing tells whether the next piece is there or would have to be waited for, but `Silence` is
asked for every wait. So pieces are asked for one more each time, and when the network would be
read from next, `Silence.read` says so before it begins. The step that came so far is kept as it
is and goes on with whoever asks next, as if it had been awaited from its beginning. httpx and
httpcore enter no cancel scope around a read; theirs are inside of it, and so not entered yet.
"""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Generator
from typing import Any

import trio
from attrs import define, field

from ._silence import AT_THE_NETWORK, Silence

TOGETHER = 16 * 1024
"""Bytes after which nothing is added any more: reading on is work that nobody interrupts."""


@define(eq=False)
class Pieces(AsyncIterator[bytes]):
    """*source*, piece by piece or several at once. For one task at a time.

    What ends or breaks *source* is met by whoever asks after the pieces that came before it.
    """

    source: AsyncIterator[bytes]
    silence: Silence
    _step: Generator[Any, Any, bytes] | None = field(default=None, init=False)
    _end: BaseException | None = field(default=None, init=False)

    # A step that Ctrl-C made us lose could not be ended any more, nor what it reads from.
    @trio.lowlevel.enable_ki_protection
    async def __anext__(self) -> bytes:
        if (end := self._end) is not None:
            self._end = None  # it knows the frames it went through, and with them this object
            raise end
        if (step := self._step) is not None:
            self._step = None
            return await _rest(step)
        return await self.source.__anext__()

    async def together(self) -> bytes:
        """The next piece and what can be had with it, not empty.

        Raises StopAsyncIteration at the end, and what *source* raises.
        """
        first = await self.__anext__()
        if not self.silence.watches or len(first) >= TOGETHER:
            return first
        found = [first]
        await self._at_hand(found, TOGETHER - len(first))
        return first if len(found) == 1 else b"".join(found)

    @trio.lowlevel.enable_ki_protection
    @types.coroutine
    def _at_hand(self, found: list[bytes], room: int) -> Generator[Any, Any, None]:
        """Add to *found* what needs no wait for the network, until there is no more *room*."""
        silence, following = self.silence, self.source.__anext__
        while room > 0:
            step = following().__await__()
            silence.announces = True
            try:
                said = step.send(None)
                # Any other wait is the clean-up after an error, and goes on as usual.
                while said is not AT_THE_NETWORK:
                    try:
                        answer = yield said
                    except BaseException as struck:
                        said = step.throw(struck)
                    else:
                        said = step.send(answer)
            except StopIteration as done:
                piece: bytes = done.value
            except (Exception, StopAsyncIteration) as end:
                self._end = end
                return
            else:
                self._step = step
                return
            finally:
                silence.announces = False
            found.append(piece)
            room -= len(piece)


@types.coroutine
def _rest(step: Generator[Any, Any, bytes]) -> Generator[Any, Any, bytes]:
    return (yield from step)
