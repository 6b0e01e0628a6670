"""One HTTP/1.1 server connection on a Trio stream, and response bodies that can go wrong.

Knows nothing of models. h11 keeps the protocol; this is the shell that waits: it reads
requests, watches for the client's leaving while one is answered, and writes.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeAlias

import h11
import trio
from attrs import define, field

from ._answer import Wire

Fields: TypeAlias = tuple[tuple[str, str], ...]
"""Header names and values, in order."""

_LARGEST_BODY: Final = 64 * 2**20
_LARGEST_PIPELINE: Final = 2**20
_RECEIVE: Final = 64 * 2**10
# On, zero seconds: closing sends RST and forgets what was not sent.
_LINGER: Final = struct.pack("ii", 1, 0)


@define(eq=False)
class Connection:
    """One client: requests one after the other, until either side closes.

    *handler* answers a request, given its head and body; *reject* answers what is not
    HTTP, given a status and a message. The stream belongs to the caller, who closes it.
    """

    stream: trio.SocketStream
    handler: Callable[[Connection, h11.Request, bytes], Awaitable[None]]
    reject: Callable[[Connection, int, str], Awaitable[None]]
    http: h11.Connection = field(factory=lambda: h11.Connection(h11.SERVER), init=False)
    over: bool = field(default=False, init=False)
    """Nothing more is read or written: the client left, or the answer said so."""

    async def run(self) -> None:
        """Answer requests; returns when the stream is to be closed."""
        with suppress(trio.BrokenResourceError):  # the client left while we were writing
            await self._serve()

    async def _serve(self) -> None:
        try:
            while (asked := await self._read()) is not None:
                await self._answer(*asked)
                if self.over or self.http.our_state is not h11.DONE:
                    return
                self.http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if self.http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                await self.reject(self, error.error_status_hint, str(error))

    async def send(self, event: h11.Event) -> None:
        """Raises `trio.BrokenResourceError` if the client has left."""
        if data := self.http.send(event):
            await self.stream.send_all(data)

    async def respond(self, status: int, content: bytes, headers: Fields) -> None:
        """A whole response at once."""
        length = ("content-length", str(len(content)))
        await self.send(h11.Response(status_code=status, headers=[*headers, length]))
        await self.send(h11.Data(data=content))
        await self.send(h11.EndOfMessage())

    def reset(self) -> None:
        """Make the closing of the stream a reset."""
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        self.over = True

    async def _receive(self) -> bytes:
        """What came; empty when the client has left, in whatever way."""
        try:
            return bytes(await self.stream.receive_some(_RECEIVE))
        except trio.BrokenResourceError:
            return b""

    async def _read(self) -> tuple[h11.Request, bytes] | None:
        """The next request and its body; None when the client sends no more."""
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                if self.http.they_are_waiting_for_100_continue:
                    await self.send(h11.InformationalResponse(status_code=100, headers=[]))
                self.http.receive_data(await self._receive())
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > _LARGEST_BODY:
                    raise h11.RemoteProtocolError("the body is too large", error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                return head, bytes(body)
            else:
                return None

    async def _answer(self, head: h11.Request, body: bytes) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope)
            try:
                await self.handler(self, head, body)
            except trio.BrokenResourceError:
                self.over = True
            nursery.cancel_scope.cancel(reason="the request was answered")

    async def _watch(self, scope: trio.CancelScope) -> None:
        """Cancel *scope* when the client leaves; what it sends is kept for its next request."""
        kept = 0
        while (data := await self._receive()) and kept < _LARGEST_PIPELINE:
            kept += len(data)
            self.http.receive_data(data)
        self.over = True
        scope.cancel(reason="the client left")


@define(eq=False)
class Body:
    """A 200 response of unknown length: its head on demand, split and stopped as *wire* says."""

    connection: Connection
    wire: Wire
    headers: Fields
    started: bool = field(default=False, init=False)
    room: int | None = field(init=False)
    """Bytes that may still be sent; None: any number."""

    def __attrs_post_init__(self) -> None:
        self.room = self.wire.stop_after_bytes

    async def start(self) -> None:
        """Send the head, once."""
        if self.started:
            return
        self.started = True
        if self.wire.close_delimited:
            # To a client of HTTP/1.0, h11 sends no chunks and no length, and then closes.
            self.connection.http.their_http_version = b"1.0"
        fields = [*self.headers, *self.wire.headers]
        await self.connection.send(h11.Response(status_code=200, headers=fields))

    async def write(self, data: bytes) -> bool:
        """Send *data*, or what there is room for. Whether there is room for more."""
        await self.start()
        if self.room is not None:
            data = data[: self.room]
            self.room -= len(data)
        step = self.wire.bytes_per_write or len(data) or 1
        for at in range(0, len(data), step):
            await self.connection.send(h11.Data(data=data[at : at + step]))
        return self.room != 0

    async def finish(self) -> None:
        """End the body correctly."""
        await self.start()
        await self.connection.send(h11.EndOfMessage())

    def cut(self, *, reset: bool = False) -> None:
        """Leave it as it is and have the connection closed, or reset."""
        self.connection.over = True
        if reset:
            self.connection.reset()
