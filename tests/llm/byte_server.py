"""A server that plays bytes: what a provider, a proxy or a bad line may send.

It knows no HTTP beyond the head and length of a request, so it can break every rule of
it. Tokens are those of the case list: `T`, `R`, `TC`, `F`, `U`, `D` make events, `EOF`,
`CUT`, `RST` and `HANG` end an answer.

    async with open_byte_server(reply(T("hi"), F("stop"), D, EOF)) as server:
        ...  # POST {server.url}/chat/completions
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import TypeAlias

import trio
from attrs import define, field, frozen

_LINGER = struct.pack("ii", 1, 0)
GAP_SECONDS = 0.02


class End(Enum):
    EOF = auto()
    """The correct end of the body; the connection stays open for the next request."""
    CLOSE = auto()
    """The correct end of the body, and the connection closes without announcing it."""
    CUT = auto()
    """Close without ending the body."""
    RST = auto()
    """Close with a reset."""
    HANG = auto()
    """Send nothing more, until the client leaves."""


class Gap(Enum):
    GAP = auto()
    """A separate write, a little later."""


EOF, CLOSE, CUT, RST, HANG = End.EOF, End.CLOSE, End.CUT, End.RST, End.HANG
GAP = Gap.GAP


@frozen
class Pause:
    seconds: float


Step: TypeAlias = bytes | End | Gap | Pause


def event(payload: object, *, name: str = "") -> bytes:
    """One server-sent event with *payload*: JSON, or a text as it is."""
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode()


def delta(value: object, finish: str | None = None, **extra: object) -> bytes:
    choice = {"index": 0, "delta": value, "finish_reason": finish}
    head = {"id": "r1", "object": "chat.completion.chunk", "model": "m"}
    return event({**head, "choices": [choice], **extra})


def T(text: str) -> bytes:
    return delta({"content": text})


def R(text: str) -> bytes:
    return delta({"reasoning_content": text})


ABSENT = object()


def TC(index: object, id_: object, name: object, arguments: object) -> bytes:
    """A fragment of a tool call; `ABSENT` leaves a field out."""
    function = {"name": name, "arguments": arguments}
    function = {key: value for key, value in function.items() if value is not ABSENT}
    call = {"index": index, "id": id_, "type": "function", "function": function}
    return delta({"tool_calls": [{k: v for k, v in call.items() if v is not ABSENT}]})


def F(reason: str) -> bytes:
    return delta({}, reason)


def U(prompt: int, completion: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event({"choices": [], "usage": {**counts, "total_tokens": prompt + completion}})


D = b"data: [DONE]\n\n"


@frozen(kw_only=True)
class Reply:
    """One answer. *head* False sends no head at all; *chunked* False has no length, so
    that the close ends it; *single* sends every byte as a chunk of its own."""

    steps: tuple[Step, ...]
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "text/event-stream"),)
    head: bool = True
    chunked: bool = True
    single: bool = False


def reply(*steps: Step, head: bool = True, chunked: bool = True, single: bool = False) -> Reply:
    return Reply(steps=steps, head=head, chunked=chunked, single=single)


def refuse(status: int, body: object, **headers: str) -> Reply:
    """An answer of *status* with *body*, JSON or bytes; ``_`` in a name means ``-``."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [(name.replace("_", "-"), value) for name, value in headers.items()]
    given = (("content-type", "application/json"), *lines)
    return Reply(steps=(data, EOF), status=status, headers=given)


@frozen
class Captured:
    """A request as it came, header names in lower case."""

    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> object:
        return json.loads(self.body)


@define(eq=False)
class ByteServer:
    """Plays *replies* in order of the requests; the last one again and again."""

    replies: Sequence[Reply]
    url: str = ""
    requests: list[Captured] = field(factory=list)
    connections: int = 0
    open: int = 0
    left: int = 0
    """Answers during which the client closed."""
    _changed: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    async def wait_until(self, condition: object) -> None:
        """Wait for *condition* (a callable) to hold; fails after a minute."""
        assert callable(condition)
        with trio.fail_after(60):
            while not condition():
                await self._changed.park()

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        self.open += 1
        number = self.connections
        try:
            reader = _Reader(stream)
            while (request := await reader.request(number)) is not None:
                index = min(len(self.requests), len(self.replies) - 1)
                self.requests.append(request)
                self._changed.unpark_all()
                if not await self._play(stream, self.replies[index]):
                    return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.left += 1
        finally:
            self.open -= 1
            with trio.CancelScope(shield=True):
                await stream.aclose()
            self._changed.unpark_all()

    async def _play(self, stream: trio.SocketStream, answer: Reply) -> bool:
        """Whether the connection takes another request."""
        if answer.head:
            await stream.send_all(_head(answer))
        for step in answer.steps:
            match step:
                case bytes():
                    for piece in _pieces(step, answer):
                        await stream.send_all(piece)
                case Gap.GAP:
                    await trio.sleep(GAP_SECONDS)
                case Pause(seconds=seconds):
                    await trio.sleep(seconds)
                case End.EOF | End.CLOSE:
                    if answer.chunked:
                        await stream.send_all(b"0\r\n\r\n")
                    return step is EOF and answer.chunked
                case End.CUT:
                    return False
                case End.RST:
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
                    return False
                case End.HANG:
                    while await stream.receive_some():
                        pass
                    self.left += 1
                    return False
        raise AssertionError("a reply needs an end")


def _head(answer: Reply) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} X", *(f"{n}: {v}" for n, v in answer.headers)]
    lines.append("transfer-encoding: chunked" if answer.chunked else "connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _pieces(data: bytes, answer: Reply) -> Iterable[bytes]:
    parts = [data[i : i + 1] for i in range(len(data))] if answer.single else [data]
    if not answer.chunked:
        return parts
    return [b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part]


@define(eq=False)
class _Reader:
    stream: trio.SocketStream
    buffer: bytearray = field(factory=bytearray)

    async def request(self, connection: int) -> Captured | None:
        while (end := self.buffer.find(b"\r\n\r\n")) < 0:
            if not await self._more():
                return None
        lines = self.buffer[:end].decode("latin-1").split("\r\n")
        del self.buffer[: end + 4]
        pairs = [line.split(":", 1) for line in lines[1:]]
        headers = {name.lower(): value.strip() for name, value in pairs}
        size = int(headers.get("content-length", "0"))
        while len(self.buffer) < size:
            if not await self._more():
                return None
        body = bytes(self.buffer[:size])
        del self.buffer[:size]
        return Captured(lines[0].split(" ")[1], headers, body, connection)

    async def _more(self) -> bool:
        data = await self.stream.receive_some()
        self.buffer += data
        return bool(data)


@asynccontextmanager
async def open_byte_server(*replies: Reply) -> AsyncIterator[ByteServer]:
    """A server on a loopback port; leaving drops its connections."""
    server = ByteServer(replies)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listeners[0].socket.getsockname()
    server.url = f"http://{host}:{port}/v1"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.serve, listeners)
        yield server
        nursery.cancel_scope.cancel(reason="the test is over")
