"""A network without sockets: the real HTTP client and the loopback server, back to back.

Sockets look like idle time to a virtual clock, so what the explorer runs over HTTP runs over
pipes in memory. Everything above them is the code that is shipped: the adapter, httpx, h11.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpcore
import trio
from attrs import define, field, frozen

from ..llm.loopback import LoopbackServer, serve_openai
from ..llm.openai_chat import OpenAIChat
from ..llm.scripted import ScriptedModel
from ..vocabulary import single, without
from ._recording import Recording
from ._stage import Stage

_CONNECTING = 0.05
"""Virtual seconds."""


@define(eq=False)
class _Pipe:
    """Bytes on their way from one end to the other."""

    data: bytearray = field(factory=bytearray)
    ended: bool = False
    broken: bool = False
    _waiting: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    async def send(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if self.ended:
            raise trio.BrokenResourceError("the other end is closed")
        self.data += data
        self._waiting.unpark_all()

    async def receive(self, most: int) -> bytes:
        if self.data or self.ended:
            await trio.lowlevel.checkpoint()
        while not self.data and not self.ended:
            await self._waiting.park()
        if self.broken:
            raise trio.BrokenResourceError("the connection was reset")
        found = bytes(self.data[:most])
        del self.data[:most]
        return found

    def end(self, *, broken: bool = False) -> None:
        self.ended, self.broken = True, self.broken or broken
        self._waiting.unpark_all()


@define(eq=False)
class ServerEnd:
    """What the loopback server needs of a `trio.SocketStream`, and of its socket."""

    _from_client: _Pipe
    _to_client: _Pipe
    _reset: bool = field(default=False, init=False)

    @property
    def socket(self) -> ServerEnd:
        return self

    async def send_all(self, data: bytes) -> None:
        await self._to_client.send(data)

    async def receive_some(self, most: int) -> bytes:
        return await self._from_client.receive(most)

    def setsockopt(self, *option: object) -> None:
        """Only one is ever set: to close with a reset."""
        self._reset = True

    def close(self) -> None:
        self._to_client.end(broken=self._reset)
        self._from_client.end()


@define(eq=False)
class ClientEnd(httpcore.AsyncNetworkStream):
    """The other end, as httpx's connections take it."""

    _to_server: _Pipe
    _from_server: _Pipe
    _handshake: Callable[[], None]

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        try:
            return await self._from_server.receive(max_bytes)
        except trio.BrokenResourceError as error:
            raise httpcore.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        if buffer:
            try:
                await self._to_server.send(buffer)
            except trio.BrokenResourceError as error:
                raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        self._to_server.end()
        self._from_server.end()
        await trio.lowlevel.checkpoint()

    async def start_tls(
        self,
        ssl_context: object,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> ClientEnd:
        await trio.sleep(_CONNECTING)
        self._handshake()
        return self

    def get_extra_info(self, info: str) -> Any:
        return self._from_server.ended if info == "is_readable" else None


@frozen(eq=False)
class MemoryNetwork:
    """What stands for sockets. *trouble* has what the next attempts to connect meet, in order:
    ``"refused"``, ``"handshake"``, or a function, called in the tick in which one is made."""

    server: LoopbackServer
    _nursery: trio.Nursery
    trouble: list[str | Callable[[], object]] = field(factory=list)

    async def connect_tcp(self, host: str, port: int, **options: object) -> ClientEnd:
        up, down = _Pipe(), _Pipe()
        accepted = trio.Event()
        self._nursery.start_soon(self._serve, ServerEnd(up, down), accepted)
        try:
            await accepted.wait()
            self._meet("refused")
        except BaseException:
            up.end()
            raise
        meet = self.trouble[0] if self.trouble else ""
        if not isinstance(meet, str):
            del self.trouble[0]
            meet()
        return ClientEnd(up, down, lambda: self._meet("handshake"))

    async def _serve(self, end: Any, accepted: trio.Event) -> None:
        # A server is not in the cancel scope of its clients: it goes on until they have left.
        with trio.CancelScope(shield=True):
            await trio.sleep(_CONNECTING)
            accepted.set()
            await self.server._serve(end)

    def _meet(self, what: str) -> None:
        if self.trouble[:1] == [what]:
            del self.trouble[0]
            raise httpcore.ConnectError(f"{what}, as designed")


@asynccontextmanager
async def in_memory(model: ScriptedModel) -> AsyncIterator[MemoryNetwork]:
    """The loopback server of *model*, reached through memory.

    Leaving waits until every connection has been closed by its client: one that was forgotten
    keeps its task for ever, and the run hangs.
    """
    try:
        async with serve_openai(model) as server, trio.open_nursery() as nursery:
            yield MemoryNetwork(server, nursery)
    except BaseExceptionGroup as group:
        # Only nurseries of the stand-ins are here: what leaves the block, leaves as itself.
        raise single(without(group, trio.Cancelled) or group) from None


@asynccontextmanager
async def over_http(
    stage: Stage,
    adapter: type[OpenAIChat] = OpenAIChat,
    *,
    scheme: str = "http",
    max_connections: int = 100,
) -> AsyncIterator[MemoryNetwork]:
    """Puts a real *adapter* and a server before the scripted model of *stage*."""
    model = stage.adapter.adapter
    assert isinstance(model, ScriptedModel)
    async with in_memory(model) as network:
        real = adapter(
            provider=model.provider,
            base_url=f"{scheme}://model.test/v1",
            api_key="not-a-real-credential",
            max_connections=max_connections,
        )
        real._http.network = network
        stage.adapter = Recording(real, stage.adapter.requests)
        yield network
