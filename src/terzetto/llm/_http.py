"""Streaming requests over httpx: the one module that knows httpx.

Owns the client, its connections, every limit of time, and how a stream is left.
What the bytes mean belongs to the decoders, which report *progress*: silence is
time without progress, so keep-alive comments do not count as an answer.

HTTP/1.1 only: httpx never resets a cancelled HTTP/2 stream, so the server would go
on answering, and after a hundred of them the connection refuses every request.

The pool's own queue is not used. A request cancelled while it waits in it can leave a
connection that is neither used nor closed (encode/httpcore #1093, #822); a semaphore of
ours in front of an unlimited pool has no such state. `_Probe` covers the two other
places where a cancel would lose a socket.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Protocol, cast

import httpx
import trio
from attrs import define, field

from ..vocabulary import Failure, ProviderError
from ._failures import INVALID_REQUEST, TIMEOUT, TRANSPORT, redact
from ._http_limits import HttpLimits as HttpLimits
from ._pieces import Pieces
from ._silence import Silence, Silent
from ._unpacking import Unpacker

_KEEPALIVE_SECONDS = 15.0
_TAIL_SECONDS = 0.1
_TAIL_BYTES = 64 * 1024
_ERROR_BODY_SECONDS = 5.0
_ERROR_BODY_BYTES = 64 * 1024
_CLOSE_SECONDS = 5.0
_PIECE = 64 * 1024


async def unwind(iterator: AsyncIterator[object]) -> None:
    """End *iterator* at once, every layer of it, without waiting for the other side.

    Reads on under a cancelled scope: the innermost layer meets the cancel at its next
    wait, and each layer around it cleans up as it would for any cancel. Closing the
    outermost generator would only abandon the others.
    """
    with trio.CancelScope(shield=True) as scope:
        scope.cancel(reason="the stream was left")
        with suppress(httpx.HTTPError, httpx.StreamError):
            async for _ in iterator:
                pass


@define(eq=False)
class HttpAnswer:
    """An answer whose head has come. For one task at a time.

    *headers* have lower-case names.
    """

    status: int
    headers: Mapping[str, str]
    complete: bool = field(default=False, init=False)
    """Set by the caller who has all it wants, so that the connection may be kept."""
    _pieces: Pieces = field(repr=False)
    _client: HttpClient = field(repr=False)
    _silence: Silence = field(repr=False)
    _begun: bool = field(default=False, init=False, repr=False)
    _unpack: Unpacker | None = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        # httpx would unpack too, but abandons its inner generators if that fails.
        packed = self.headers.get("content-encoding", "").strip().lower() in ("gzip", "deflate")
        self._unpack = Unpacker() if packed else None

    async def read(self) -> bytes:
        """The next bytes, as they came but unpacked; ``b""`` at the end.

        Raises:
            ProviderError: ``TIMEOUT`` for silence, ``TRANSPORT`` for a broken
                connection, which is closed by then, or for damaged compression.
        """
        while (data := await self._read_raw()) and self._unpack is not None:
            try:
                if unpacked := self._unpack(data):
                    return unpacked
            except zlib.error as error:
                message = f"the body is not what its content-encoding says: {error}"
                raise ProviderError(Failure(message=message, code=TRANSPORT)) from error
        return data

    async def _read_raw(self) -> bytes:
        failure: Failure | None = None
        silence = self._silence
        try:
            if silence.watches:
                return await self._pieces.together()
            before, left = trio.current_time(), silence.left
            with trio.move_on_after(max(0.0, left)):
                data = await self._pieces.__anext__()
                silence.left = left - (trio.current_time() - before)
                return data
            failure = Failure(message=self._silent(), code=TIMEOUT)
        except StopAsyncIteration:
            return b""
        except Silent:
            failure = Failure(message=self._silent(), code=TIMEOUT)
        except (httpx.HTTPError, httpx.StreamError) as error:
            failure = self._client.failure(error, "the connection broke in mid-answer")
        # Raised out here, the exception carries no httpx one, which knows every header.
        raise ProviderError(failure)

    def progress(self) -> None:
        """The answer got on: silence is counted from here."""
        self._begun = True
        self._silence.left = self._client.limits.idle_timeout

    def limit_silence(self, seconds: float) -> None:
        """Wait at most *seconds* for what may still come."""
        self._silence.left = min(self._silence.left, seconds)

    async def error_body(self) -> bytes:
        """What comes of the body within bounds of size and time; never raises for the
        rest."""
        self._silence.left = _ERROR_BODY_SECONDS
        body = bytearray()
        with suppress(ProviderError):
            while len(body) < _ERROR_BODY_BYTES and (data := await self.read()):
                body += data
        return bytes(body[:_ERROR_BODY_BYTES])

    async def _tail(self) -> None:
        """Give the end of the body a moment to come: only then can the connection be
        used again, and a new one costs more."""
        size = 0
        with trio.move_on_after(_TAIL_SECONDS), suppress(httpx.HTTPError):
            async for data in self._pieces:
                size += len(data)
                if size > _TAIL_BYTES:
                    return

    def _silent(self) -> str:
        limits = self._client.limits
        if self._begun:
            return f"the answer did not get on for {limits.idle_timeout:g} s"
        return f"no answer began within {limits.first_byte_timeout:g} s"


class _Closable(Protocol):
    async def aclose(self) -> None: ...


@define(eq=False)
class _Probe:
    """Watches one attempt from inside, through httpx's ``trace`` extension.

    It tells whether the connection is a fresh one, starts the first-byte clock when
    the request is out, and closes sockets that httpcore 1.0 forgets when a cancel
    meets it during a TLS handshake or between connecting and sending.
    """

    limits: HttpLimits
    fresh: bool = False
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    _socket: _Closable | None = None

    async def __call__(self, name: str, info: Mapping[str, object]) -> None:
        match name.partition(".")[2]:
            case "connect_tcp.started":
                self.fresh = True
            case "connect_tcp.complete" | "start_tls.complete":
                made = info.get("return_value")
                self._socket = cast(_Closable, made) if hasattr(made, "aclose") else None
                # Here a pending cancel can still be told; at the next checkpoint the
                # pool would keep a connection that nobody uses.
                try:
                    await trio.lowlevel.checkpoint_if_cancelled()
                except trio.Cancelled:
                    await self._close()
                    raise
            case "start_tls.failed":
                await self._close()
            case "receive_response_headers.started":
                self.scope.deadline = trio.current_time() + self.limits.first_byte_timeout

    def left(self) -> float:
        return self.scope.deadline - trio.current_time()

    async def _close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            with trio.move_on_after(_CLOSE_SECONDS, shield=True):
                await socket.aclose()


@define(eq=False)
class HttpClient:
    """One httpx client, made when first needed.

    Args:
        secrets: Texts that no failure may show.
        network: Where connections come from instead of sockets; for tests.
    """

    limits: HttpLimits = field(factory=HttpLimits)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    network: object | None = field(default=None, repr=False)
    _client: httpx.AsyncClient | None = field(default=None, init=False, repr=False)
    _slots: trio.Semaphore = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._slots = trio.Semaphore(self.limits.max_connections)

    @asynccontextmanager
    async def stream(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[HttpAnswer]:
        """POST *body* and give the answer once its head has come, whatever its status.

        A request that meets a dead connection of the pool is sent once more, if
        nothing of an answer had come. Leaving closes the connection at once, unless
        the answer is `HttpAnswer.complete`; then its end may take a tenth of a second.

        Raises:
            ProviderError: ``TIMEOUT`` or ``TRANSPORT``.
        """
        await self._acquire()
        try:
            response, left = await self._send(url, headers, body)
            silence = Silence(left)
            # aiter_raw only counts
            pieces = Pieces(aiter(cast(httpx.AsyncByteStream, response.stream)), silence)
            answer = HttpAnswer(response.status_code, dict(response.headers), pieces, self, silence)
            silence.watch(response.extensions.get("network_stream"))
            try:
                yield answer
                if answer.complete:
                    silence.end()
                    await answer._tail()
            finally:
                silence.end()
                await unwind(pieces)
                with trio.move_on_after(_CLOSE_SECONDS, shield=True):
                    await response.aclose()
        finally:
            self._slots.release()

    async def aclose(self) -> None:
        """Close every connection; streams still open fail. A later use opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            with trio.move_on_after(_CLOSE_SECONDS, shield=True):
                await client.aclose()
        await trio.lowlevel.checkpoint()

    def failure(self, error: Exception, what: str) -> Failure:
        """*error* as a failure, without anything that httpx knows of the request."""
        if isinstance(error, httpx.LocalProtocolError):
            # Its text quotes the header that was refused.
            return Failure(message="the request is not valid HTTP", code=INVALID_REQUEST)
        if isinstance(error, httpx.UnsupportedProtocol):
            return Failure(message="the URL is neither http nor https", code=INVALID_REQUEST)
        text = redact(str(error), self.secrets)[:300] or "no details"
        message = f"{what}: {type(error).__name__}: {text}"
        timed_out = isinstance(error, httpx.TimeoutException)
        return Failure(message=message, code=TIMEOUT if timed_out else TRANSPORT)

    async def _acquire(self) -> None:
        limit = self.limits.pool_timeout
        with trio.move_on_after(float("inf") if limit is None else limit) as waiting:
            await self._slots.acquire()
        if waiting.cancelled_caught:
            busy = f"{self.limits.max_connections} streams are open (max_connections)"
            message = f"no connection became free within {limit:g} s: {busy}"
            raise ProviderError(Failure(message=message, code=TIMEOUT))

    async def _send(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[httpx.Response, float]:
        """The response, and how much of the first-byte time is left."""
        retry = True
        while True:
            client = self._open()
            probe = _Probe(self.limits)
            request = client.build_request(
                "POST", url, headers=dict(headers), content=body, extensions={"trace": probe}
            )
            request.stream = _Body(body)
            failure: Failure | None = None
            try:
                with probe.scope:
                    response = await client.send(request, stream=True)
                    return response, probe.left()
            except httpx.HTTPError as error:
                if retry and not probe.fresh and _died_unanswered(error):
                    retry = False
                    continue
                failure = self.failure(error, "the request failed")
            if failure is None:
                text = f"no answer began within {self.limits.first_byte_timeout:g} s"
                failure = Failure(message=text, code=TIMEOUT)
            raise ProviderError(failure)

    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = self.limits
            network = None if self.network is None else _transport_over(self.network)
            self._client = httpx.AsyncClient(
                transport=network,
                http2=False,
                follow_redirects=False,
                timeout=httpx.Timeout(
                    connect=limits.connect_timeout,
                    # Reading is timed here, by progress; one read says nothing.
                    read=None,
                    write=limits.write_timeout,
                    pool=None,
                ),
                limits=httpx.Limits(
                    max_connections=None,
                    max_keepalive_connections=limits.max_connections,
                    keepalive_expiry=_KEEPALIVE_SECONDS,
                ),
            )
        return self._client


def _transport_over(network: object) -> httpx.AsyncHTTPTransport:
    """httpx's own transport on a network backend of httpcore's; httpx takes none."""
    transport = httpx.AsyncHTTPTransport(verify=False)
    vars(transport._pool)["_network_backend"] = network
    return transport


class _Body(httpx.AsyncByteStream):
    """A request body in pieces, so that a write timeout means no progress.

    An object and not a generator: a cancel in mid-write would abandon a generator.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Pieces(self._body)


class _Pieces:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        piece = self._body[self._at : self._at + _PIECE]
        if not piece:
            raise StopAsyncIteration
        self._at += _PIECE
        return piece


def _died_unanswered(error: httpx.HTTPError) -> bool:
    """Whether the other side had closed before it read the request.

    httpx has one class for a closed connection and for a garbled head; only the text
    tells them apart. A changed text costs the retry, not correctness.
    """
    if isinstance(error, httpx.RemoteProtocolError):
        return str(error).startswith("Server disconnected")
    return isinstance(error, (httpx.ReadError, httpx.WriteError))
