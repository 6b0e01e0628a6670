"""What the page asks for: JSON in and out, and one stream of server-sent events a page.

    GET  /                          the page
    GET  /api/health                {"sessions", "streams", "tasks"}: how many there are
    GET  /api/events                the list of sessions, whenever it changes
    POST /api/sessions              {"text"}: begin a session with this message
    GET  /api/sessions/ID/events    the same list, and this session's log as it grows
    POST /api/sessions/ID/messages  {"text"}: a prompt if it is idle, else steering
    POST /api/sessions/ID/interrupt {"text"}: end this step, go on with the message
    POST /api/sessions/ID/stop      {}: end the turn

Every error is ``{"error": {"code", "message"}}``.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import trio
from attrs import asdict
from hub import Hub, HubClosed, Room
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from view import for_page

import terzetto
from terzetto.vocabulary import SessionLocked, SessionNotFound, UsageError

PAGE = Path(__file__).with_name("page.html").read_text("utf-8")
LONGEST_BODY = 64 * 1024
HEARTBEAT = 15
"""Seconds. Proxies take a stream that is silent for longer for dead, and a client that went
away without a word is noticed when something is sent to it."""
BOOT = secrets.token_hex(8)
"""This run of the server. After a crash a log may be shorter than what a page has seen of
it, so a page that meets another run begins anew."""

SECURITY = {
    # The page is one file and talks to this server only.
    "content-security-policy": (
        "default-src 'none'; connect-src 'self'; img-src data:; "
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class ApiError(Exception):
    """A request that cannot be served; what the page is told."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def build_app(hub: Hub) -> Starlette:
    """The ASGI application over *hub*, which outlives it."""

    async def page(request: Request) -> Response:
        return HTMLResponse(PAGE, headers=SECURITY)

    async def health(request: Request) -> Response:
        tasks = trio.lowlevel.current_statistics().tasks_living
        rows = len(hub.rows())
        return JSONResponse({"sessions": rows, "streams": hub.streams, "tasks": tasks})

    async def overview(request: Request) -> Response:
        return EventStream(hub)

    async def events(request: Request) -> Response:
        after = last_seen(request)
        return EventStream(hub, session_id(request), after + 1)

    async def begin(request: Request) -> Response:
        agent = await hub.begin(await text_of(request))
        return JSONResponse({"id": agent.id}, 201)

    async def message(request: Request) -> Response:
        text = await text_of(request)
        async with hub.visit(session_id(request)) as room:
            # Decided here and not in the page, which may not know yet that the turn has
            # ended: between this look and the send nothing else runs.
            running = room.agent.status == "running"
            sent = room.agent.steer(text) if running else room.agent.followup(text)
        return JSONResponse({"id": sent, "steered": running}, 202)

    async def interrupt(request: Request) -> Response:
        text = await text_of(request)
        async with hub.visit(session_id(request)) as room:
            return JSONResponse({"id": room.agent.interrupt(text)}, 202)

    async def stop(request: Request) -> Response:
        await json_of(request)
        async with hub.visit(session_id(request)) as room:
            room.agent.cancel()
        return JSONResponse({}, 202)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/api/health", health),
            Route("/api/events", overview),
            Route("/api/sessions", begin, methods=["POST"]),
            Route("/api/sessions/{id}/events", events),
            Route("/api/sessions/{id}/messages", message, methods=["POST"]),
            Route("/api/sessions/{id}/interrupt", interrupt, methods=["POST"]),
            Route("/api/sessions/{id}/stop", stop, methods=["POST"]),
        ],
        # Against other sites that point a name of theirs at this machine. Add your own host.
        middleware=[Middleware(TrustedHostMiddleware, ["127.0.0.1", "localhost"])],
        exception_handlers=dict.fromkeys(
            (ApiError, HTTPException, HubClosed, terzetto.TerzettoError, Exception), tell
        ),
    )


# --- requests -----------------------------------------------------------------------------


async def json_of(request: Request) -> dict[str, object]:
    """The object that was sent."""
    # A form of another site cannot send this type, and its scripts must ask first.
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise ApiError(415, "NOT_JSON", "expected content-type: application/json")
    body = b""
    async with aclosing(request.stream()) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > LONGEST_BODY:
                raise ApiError(413, "TOO_LONG", f"expected at most {LONGEST_BODY} bytes")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):  # the second for brackets in brackets in brackets
        raise ApiError(400, "NOT_JSON", "expected a JSON object, got no JSON") from None
    if not isinstance(value, dict):
        raise ApiError(400, "NOT_JSON", f"expected a JSON object, got {type(value).__name__}")
    return value


async def text_of(request: Request) -> str:
    """The message that was sent."""
    text = (await json_of(request)).get("text")
    if not isinstance(text, str) or not text.strip():
        raise ApiError(400, "NO_TEXT", "text: expected a message, got none")
    return text


def session_id(request: Request) -> str:
    """The session that the path names."""
    name = str(request.path_params["id"])
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", name):
        raise ApiError(400, "BAD_ID", "session id: expected up to 80 letters, digits, '-' or '_'")
    return name


def last_seen(request: Request) -> int:
    """The seq of the last event that the page has, -1 for none."""
    seq = request.headers.get("last-event-id", "-1")
    if not re.fullmatch(r"-1|[0-9]{1,15}", seq):
        raise ApiError(400, "BAD_SEQ", "Last-Event-ID: expected the seq of an event")
    return int(seq)


def tell(request: Request, error: Exception) -> Response:
    """*error* as JSON. What is not the caller's to know stays in the server's log."""
    match error:
        case ApiError():
            status, code, message = error.status, error.code, str(error)
        case HTTPException():
            status, code, message = error.status_code, "HTTP", error.detail
        case SessionNotFound():
            status, code, message = 404, "NOT_FOUND", "there is no such session"
        case SessionLocked():
            status, code, message = 409, "LOCKED", "another program has this session open"
        case terzetto.StoreError():
            status, code, message = 503, "STORE", "the session cannot be read or written"
        case HubClosed() | UsageError():
            status, code, message = 503, "CLOSED", "the session or the server is closing"
        case _:
            status, code, message = 500, "INTERNAL", "something is wrong here; try again"
    return JSONResponse({"error": {"code": code, "message": message}}, status)


# --- server-sent events -------------------------------------------------------------------

Write = Callable[[str], Awaitable[None]]


class EventStream(Response):
    """One page's stream: the list of sessions when it changes, and a log from *start* on.

    The log is the queue. When a page reads slowly, `send` waits and this task with it;
    nothing is kept for it meanwhile, and no agent waits.
    """

    background = None

    def __init__(self, hub: Hub, session: str | None = None, start: int = 0) -> None:
        self.hub, self.session, self.start = hub, session, start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.session is None:
            await self._stream(None, receive, send)
            return
        async with self.hub.visit(self.session) as room:  # what it raises is still told as JSON
            await self._stream(room, receive, send)

    async def _stream(self, room: Room | None, receive: Receive, send: Send) -> None:
        one_at_a_time = trio.Lock()

        async def write(text: str) -> None:
            async with one_at_a_time:
                body = text.encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})

        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self.hub.streams += 1
        try:
            # The request's own nursery. Whatever ends first ends the rest: the page goes away,
            # the log ends, the server stops. So nothing of a stream outlives it.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(until_gone, receive, nursery.cancel_scope)
                await write(f"retry: 1000\nevent: hello\ndata: {json.dumps(BOOT)}\n\n")
                if room is None:
                    await self._tell_sessions(write)
                else:
                    nursery.start_soon(self._tell_sessions, write)
                    await self._tell_log(room, write)
                nursery.cancel_scope.cancel(reason="the stream has ended")
        finally:
            self.hub.streams -= 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell_log(self, room: Room, write: Write) -> None:
        # Past and future in one loop, without a gap: `follow` ends with the session. The id
        # of each is its seq, which a page that comes back names in Last-Event-ID.
        async for event in room.agent.session.follow(self.start):
            if (shown := for_page(event)) is not None:
                await write(f"id: {event.seq}\ndata: {json.dumps(shown)}\n\n")

    async def _tell_sessions(self, write: Write) -> None:
        told = None
        while not self.hub.closing:
            rows = self.hub.rows()
            if rows != told:  # what changed while the page was slow is told once, as it is now
                told = rows
                data = json.dumps([asdict(row) for row in rows])
                await write(f"event: sessions\ndata: {data}\n\n")
                continue
            with trio.move_on_after(HEARTBEAT) as silence:
                await self.hub.changed.wait()
            if silence.cancelled_caught:
                await write(": still here\n\n")


async def until_gone(receive: Receive, scope: trio.CancelScope) -> None:
    """Cancel *scope* when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel(reason="the page went away")
