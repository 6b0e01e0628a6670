"""The provider of a checked adapter: it plays the bytes of one answer, in any pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing
from attrs import define, field, frozen

_HEAD_END = b"\r\n\r\n"


@frozen
class Plan:
    """How one answer is played. *split*: its first bytes come alone. *cut*: its first bytes
    come, and then the connection ends. *reply*: instead of the answer. *leave*: a part of it
    comes, and the adapter's stream is left after its first chunk."""

    split: int | None = None
    cut: int | None = None
    reply: bytes | None = None
    leave: bool = False
    called: str = "an answer"


@define(eq=False)
class Player:
    """A server of one answer. *asked* are the requests, as they came; *left* is set when a client
    has closed its connection."""

    reply: bytes
    plan: Plan
    port: int = 0
    asked: list[bytes] = field(factory=list)
    left: trio.Event = field(factory=trio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, stream: trio.SocketStream) -> None:
        try:
            async with stream:
                request = await read_request(stream)
                if request is None:
                    return
                self.asked.append(request)
                reply = self.reply if self.plan.reply is None else self.plan.reply
                await self._play(stream, reply)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.left.set()

    async def _play(self, stream: trio.SocketStream, reply: bytes) -> None:
        plan = self.plan
        if plan.leave:
            await stream.send_all(reply[: part_of(reply)])
            while await stream.receive_some():
                pass
            self.left.set()
            return
        end = len(reply) if plan.cut is None else plan.cut
        if plan.split is not None:
            await stream.send_all(reply[: plan.split])
            await trio.testing.wait_all_tasks_blocked()
            await stream.send_all(reply[plan.split : end])
        elif end:
            await stream.send_all(reply[:end])


def part_of(reply: bytes) -> int:
    """How much of *reply* comes before a stream is left."""
    return len(reply) * 2 // 3


async def read_request(stream: trio.SocketStream) -> bytes | None:
    """One HTTP request, whole; None when the client leaves before its end."""
    received = b""
    length: int | None = None
    while length is None or len(received) < length:
        data = await stream.receive_some()
        if not data:
            return None
        received += data
        if length is None and _HEAD_END in received:
            head, _, _ = received.partition(_HEAD_END)
            length = len(head) + len(_HEAD_END) + _content_length(head)
    return received


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


@asynccontextmanager
async def playing(player: Player) -> AsyncIterator[None]:
    """Serve *player* on a loopback address for the length of the block."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        player.port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, player.serve, listeners)
        yield
        nursery.cancel_scope.cancel(reason="the adapter was checked")


@asynccontextmanager
async def relaying(port: int, heard: bytearray) -> AsyncIterator[int]:
    """A relay to *port* on loopback that keeps what the server answers; gives its own port."""

    async def relay(client: trio.SocketStream) -> None:
        async with client, await trio.open_tcp_stream("127.0.0.1", port) as server:

            async def up() -> None:
                async for data in client:
                    await server.send_all(data)
                await server.send_eof()

            async with trio.open_nursery() as both:
                both.start_soon(up)
                async for data in server:
                    heard.extend(data)
                    await client.send_all(data)
                both.cancel_scope.cancel(reason="the server has answered")

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, relay, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel(reason="the answer is known")
