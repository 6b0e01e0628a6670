"""A scripted model behind a real HTTP server on a loopback address, in OpenAI's format.

Owns the listener, the connections and how an answer goes out as bytes. Which answer is
the script's business (`scripted`), the JSON is `_openai_stream`'s and `_openai_asked`'s,
and HTTP/1.1 itself is h11's.

    async with serve_openai([answer("Hello."), refuse(429, retry_after=1)]) as server:
        ...  # POST {server.base_url}/chat/completions
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Final, TypeAlias

import h11
import trio
from attrs import define, field, frozen

from ..vocabulary import (
    AbortedFinish,
    ErrorFinish,
    Failure,
    Finish,
    InvalidValue,
    PlainJson,
    ProviderError,
    StreamChunk,
    error_code,
)
from ._answer import (
    Action,
    Answer,
    Comment,
    Cut,
    Delay,
    Done,
    End,
    Ending,
    Gate,
    Hang,
    Headers,
    Malformed,
    Raw,
    Refuse,
    Reset,
    Throw,
    Truncate,
)
from ._loopback_http import Body, Connection, Fields
from ._openai_asked import Asked, read_request
from ._openai_stream import (
    DONE,
    ChunkEncoder,
    completion_body,
    error_body,
    error_status,
    models_body,
)
from ._script import ScriptSource
from .scripted import Gates, ScriptedModel, pause

Judge: TypeAlias = Callable[[bytes], list[str]]
"""Looks at a request body before the script does and names what is wrong with it."""

BLANK: Final = "***"
"""What stands in `RecordedRequest.headers` for a credential."""

_CREDENTIALS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "api-key", "x-api-key", "x-goog-api-key"}
)
_JSON: Final[Fields] = (("content-type", "application/json"),)
_EVENTS: Final[Fields] = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
)


@frozen(kw_only=True)
class RecordedRequest:
    """A chat request that was understood, in the order of arrival.

    *headers* have lower-case names and credentials blanked; *raw* is the body as it came,
    *violations* what the judge said of it: not empty means that it was refused.
    """

    headers: Mapping[str, str]
    body: dict[str, PlainJson]
    raw: bytes = field(repr=False)
    violations: tuple[str, ...] = ()


@define(eq=False)
class LoopbackServer:
    """A running server, made by `serve_openai`.

    Attributes:
        base_url: ``http://ADDRESS:PORT/v1``.
        model: Whose script it plays.
        judge: What each chat request is shown to first.
        requests: The chat requests that were understood, in order of arrival.
    """

    base_url: str
    model: ScriptedModel
    judge: Judge | None = None
    requests: list[RecordedRequest] = field(factory=list, init=False)
    _connections: int = field(default=0, init=False)
    _changed: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    @property
    def gates(self) -> Gates:
        """The model's gates."""
        return self.model.gates

    @property
    def connections(self) -> int:
        """How many connections are open; each is one task."""
        return self._connections

    async def wait_connections(self, count: int) -> None:
        """Wait until exactly *count* connections are open."""
        await trio.lowlevel.checkpoint()
        while self._connections != count:
            await self._changed.park()

    async def _serve(self, stream: trio.SocketStream) -> None:
        self._count(1)
        try:
            await Connection(stream, partial(_route, self), _reject).run()
        finally:
            stream.socket.close()  # no await: nothing after it can be skipped by a cancel
            self._count(-1)

    def _count(self, step: int) -> None:
        self._connections += step
        self._changed.unpark_all()


@asynccontextmanager
async def serve_openai(
    script_or_model: ScriptedModel | ScriptSource,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    judge: Judge | None = None,
) -> AsyncIterator[LoopbackServer]:
    """Serve a script at ``POST /v1/chat/completions``, and ``GET /v1/models``.

    Args:
        script_or_model: A model shares its script, requests and gates with uses of it in
            process; anything else is what `ScriptedModel` takes.
        host: A loopback address, or ``localhost``, which means 127.0.0.1.
        port: 0 means any free one.
        judge: Called with the body of each chat request; if it names anything, the
            request is refused (400) and takes no answer.

    Raises:
        InvalidValue: *host* is not a loopback address.
        OSError: The address cannot be bound; one line says which and why.
        ExceptionGroup: While the block runs: a function of the script, or the judge, raised.

    A request whose client leaves ends at once, at a gate or in a `Hang` too; closing the
    sending half counts as leaving. Usage is sent if the request asks for it. Unstreamed
    answers wait as streamed ones do and are sent in one piece, of which `Truncate`, `Cut`
    and `Reset` leave the first half; comments, raw bytes and markers have no place in them.

    The context manager owns the nursery of all connections. Entering binds; leaving stops
    every task and closes every socket without waiting for anyone. An exception of the
    block leaves as itself.
    """
    model = (
        script_or_model
        if isinstance(script_or_model, ScriptedModel)
        else ScriptedModel(script_or_model)
    )
    address = _loopback(host)
    try:
        listeners = await trio.open_tcp_listeners(port, host=str(address))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno, f"cannot listen on {address} port {port}: {reason}") from None
    name = f"[{address}]" if address.version == 6 else str(address)
    bound: int = listeners[0].socket.getsockname()[1]
    server = LoopbackServer(f"http://{name}:{bound}/v1", model, judge)
    raised: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            serve = partial(trio.serve_listeners, handler_nursery=nursery)
            nursery.start_soon(serve, server._serve, listeners)
            try:
                yield server
            except BaseException as error:
                raised = error
                raise
            finally:
                nursery.cancel_scope.cancel(reason="the block of serve_openai was left")
    except BaseExceptionGroup as group:
        if group.exceptions != (raised,):
            raise
    if raised is not None:
        raise raised


def _loopback(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        address = ipaddress.ip_address("0.0.0.0")
    if not address.is_loopback:
        raise InvalidValue(
            f"host: expected a loopback address such as 127.0.0.1 or ::1, got {host!r}"
        )
    return address


async def _route(server: LoopbackServer, http: Connection, head: h11.Request, raw: bytes) -> None:
    method, path = head.method.decode(), head.target.decode().partition("?")[0]
    match method, path:
        case "POST", "/v1/chat/completions":
            await _chat(server, http, head, raw)
        case "GET", "/v1/models":
            await http.respond(200, models_body((server.model.provider,)), _JSON)
        case _, "/v1/chat/completions" | "/v1/models":
            await _reject(http, 405, f"{method} is not allowed for {path}")
        case _:
            await _reject(http, 404, f"there is nothing at {path}")


async def _chat(server: LoopbackServer, http: Connection, head: h11.Request, raw: bytes) -> None:
    try:
        asked = read_request(raw)
    except InvalidValue as error:
        await _reject(http, 400, str(error))
        return
    violations = tuple(server.judge(raw)) if server.judge else ()
    server.requests.append(
        RecordedRequest(headers=_readable(head), body=asked.body, raw=raw, violations=violations)
    )
    if violations:
        await _reject(http, 400, "; ".join(violations))
        return
    try:
        answer = server.model.take(asked.request)
    except ProviderError as error:
        await _refuse(http, _refusal(error))
        return
    await _Reply(server, http, asked, answer).play()


def _readable(head: h11.Request) -> Mapping[str, str]:
    names = [(name.decode(), value.decode("latin-1")) for name, value in head.headers]
    return MappingProxyType(
        {name: BLANK if name in _CREDENTIALS else value for name, value in names}
    )


async def _reject(http: Connection, status: int, message: str) -> None:
    failure = Failure(message=message, code="INVALID_REQUEST", status=status)
    await _refuse(http, Refuse(failure=failure))


async def _refuse(http: Connection, refusal: Refuse) -> None:
    failure, headers = refusal.failure, refusal.headers
    names = {name.lower() for name, _ in headers}
    if failure.provider_retry_after_ms is not None and "retry-after" not in names:
        whole, rest = divmod(failure.provider_retry_after_ms, 1000)
        headers += (("retry-after", f"{whole}.{rest:03}" if rest else f"{whole}"),)
    if failure.request_id is not None and "x-request-id" not in names:
        headers += (("x-request-id", failure.request_id),)
    if "content-type" not in names:
        headers += _JSON
    content = refusal.body
    if content is None:
        content = error_body(failure, refusal.provider_code)
    await http.respond(error_status(failure), content, headers)


def _refusal(error: Exception) -> Refuse:
    if isinstance(error, ProviderError):
        return Refuse(failure=error.failure)
    return Refuse(failure=Failure(message=str(error), code="SERVER"))


@define(eq=False)
class _Reply:
    """One answer on its way out."""

    server: LoopbackServer
    http: Connection
    asked: Asked
    answer: Answer
    encoder: ChunkEncoder = field(init=False)
    body: Body = field(init=False)
    chunks: list[StreamChunk] = field(factory=list, init=False)
    """What an unstreamed answer is made of."""
    marked: bool = field(default=False, init=False)
    """``[DONE]`` was sent before the end."""
    broken: bool = field(default=False, init=False)
    """An unstreamed answer is not to be JSON."""

    def __attrs_post_init__(self) -> None:
        name, model = f"chatcmpl-{self.server.model.attempts}", self.asked.request.config.model
        self.encoder = ChunkEncoder(name, model, self.asked.include_usage)
        headers = _EVENTS if self.asked.stream else _JSON
        self.body = Body(self.http, self.answer.wire, (*headers, ("x-request-id", name)))

    async def play(self) -> None:
        for action in self.answer.actions:
            match action:
                case Gate() | Delay():
                    await pause(self.server.gates, action)
                case Headers():
                    await self.body.start()
                case _ if self.asked.stream:
                    if not await self._write(self._events(action)):
                        break
                case _:
                    self._collect(action)
        await (self._end if self.asked.stream else self._end_unstreamed)(self.answer.ending)

    def _events(self, action: Action) -> list[bytes]:
        match action:
            case Raw(data):
                return [data]
            case Comment(text):
                events = [f": {text}\n\n".encode()]
            case Malformed(text):
                events = [f"data: {text}\n\n".encode()]
            case Done():
                self.marked = True
                events = [DONE]
            case Gate() | Delay() | Headers():
                events = []
            case chunk:
                events = self.encoder.encode(chunk)
        return self._lines(events)

    def _lines(self, events: list[bytes]) -> list[bytes]:
        crlf = self.answer.wire.crlf
        return [event.replace(b"\n", b"\r\n") for event in events] if crlf else events

    async def _write(self, events: list[bytes]) -> bool:
        """Send *events*; whether there is room for more."""
        for event in events:
            if not await self.body.write(event):
                return False
        return True

    async def _end(self, ending: Ending) -> None:
        match ending:
            case End():
                if self.asked.stream and not self.marked:
                    await self._write(self._lines(self.encoder.end()))
                await self.body.finish()
            case Hang():
                await trio.sleep_forever()
            case Truncate():
                await self.body.finish()
            case Refuse() if not self.body.started:
                await _refuse(self.http, ending)
            case Throw(error) if not self.body.started and error_code(error) != "TRANSPORT":
                await _refuse(self.http, _refusal(error))
            case Cut() | Refuse() | Throw():
                self.body.cut()
            case Reset():
                self.body.cut(reset=True)

    def _collect(self, action: Action) -> None:
        match action:
            case Malformed():
                self.broken = True
            case Comment() | Done() | Raw() | Gate() | Delay() | Headers():
                pass
            case chunk:
                self.chunks.append(chunk)

    async def _end_unstreamed(self, ending: Ending) -> None:
        for chunk in self.chunks:
            match chunk:
                case Finish(ErrorFinish(failure) | AbortedFinish(failure)):
                    await self._end(Throw(ProviderError(failure)))
                    return
        bounded = self.body.room is not None
        if not isinstance(ending, (Throw, Refuse)) and (bounded or not isinstance(ending, Hang)):
            content = completion_body(self.encoder.id, self.encoder.model, self.chunks)
            whole = not self.broken and (bounded or isinstance(ending, End))
            await self.body.write(content if whole else content[: len(content) // 2])
        await self._end(ending)
