"""``terzetto replay``: the requests of a session once more, from its log alone.

No key, no network: what is printed is what was sent. Running the session again, with the log
in the place of the model and the tools, is `_rerun`'s business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import trio
from attrs import frozen

from ..llm.deepseek import DeepSeek
from ..llm.openai_chat import OpenAIChat
from ..session import Growth, canonical
from ..session._codec import dumps_json, encode_request
from ..vocabulary import Event, InvalidValue, ModelSelection, PlainJson, Request, SessionHeader
from ._explain import explain, place, request_line, said_route
from ._lines import Line, line
from ._rerun import rerun
from ._shelf import decoded, find
from ._table import count
from ._tape import Tape, not_rerunnable
from ._terminal import CommandError, Terminal, one_line

VERSION = 1
"""Of the document's shape. It grows when a key changes its meaning or goes."""
WIRES: Mapping[str, Callable[[Request], bytes]] = {
    "openai_chat": lambda request: OpenAIChat(api_key=None).body(request),
    "deepseek": lambda request: DeepSeek(api_key=None).body(request),
}
"""What writes the body of a request, with the options that an adapter has by default."""
_COLUMNS = (("#", 4), ("turn", 6), ("step", 6), ("try", 5), ("tools", 6), ("messages", 10))


@frozen(kw_only=True)
class ReplayOptions:
    """*number*: one request only, *wire*: as the bytes of this adapter. *verify*: run the
    session again instead."""

    session: str
    folder: Path
    json: bool = False
    number: int | None = None
    wire: str | None = None
    verify: bool = False


def run_replay(options: ReplayOptions, terminal: Terminal) -> int:
    """Print the requests, or run the session again; the exit code: 1 if that differs.

    Raises `CommandError` if there is no such session or request, or if it is damaged.
    """
    if options.wire is not None and options.number is None:
        raise CommandError("--wire: name the request with --request, as explain numbers them", 2)
    if options.verify and (options.json or options.number is not None):
        raise CommandError("--verify runs the whole session; it prints no requests", 2)
    stored, _ = find(options.session, options.folder)
    header, events = decoded(stored)
    if options.verify:
        return _verify(header, events, terminal)
    growths = explain(header, events).growths
    if options.number is not None:
        _print_one(_numbered(growths, options.number, header), options.wire, terminal)
    elif options.json:
        for text in document(header, growths):
            terminal.write(text)
    else:
        for one in lines(growths):
            terminal.write(one.within(terminal.look.width).painted(terminal.style) + "\n")
    return 0


def _verify(header: SessionHeader, events: Sequence[Event], terminal: Terminal) -> int:
    """Run the session again, and say how far it went the same way."""
    explain(header, events)  # a log that is none is refused in words
    if (why := not_rerunnable(events)) is not None:
        terminal.write(terminal.style(one_line(f"not re-runnable: {why}"), "red") + "\n")
        return 1
    found = trio.run(rerun, Tape(header, events))
    requests = count(found.requests, "request")
    same = f"{found.events:,} event{'' if found.events == 1 else 's'} and {requests}"
    if found.difference is None:
        terminal.write(f"run again: {same}, all the same\n")
        return 0
    said = one_line(f"run again: {same} the same, then a difference: {found.difference}")
    terminal.write(terminal.style(said, "red") + "\n")
    return 1


def _numbered(growths: Sequence[Growth], number: int, header: SessionHeader) -> Request:
    if not 1 <= number <= len(growths):
        there = f"requests 1 to {len(growths)}" if growths else "no requests"
        raise CommandError(f"--request: {header.id!r} has {there}, not {number}")
    return growths[number - 1].sent.request


def _print_one(request: Request, wire: str | None, terminal: Terminal) -> None:
    """As JSON for programs; or as the very bytes of a body, which on a terminal, that would
    obey some of them, are written in ASCII."""
    if wire is None:
        terminal.write(json.dumps(encode_request(request), indent=2) + "\n")
        return
    try:
        body = WIRES[wire](request)
    except InvalidValue as error:
        raise CommandError(f"--wire {wire}: {error}") from error
    buffer = getattr(terminal.stream, "buffer", None)
    if buffer is not None and not terminal.stream.isatty():
        terminal.stream.flush()
        buffer.write(body)
        buffer.flush()
    else:
        terminal.write(json.dumps(json.loads(body)) + "\n")


# --- for people -------------------------------------------------------------------------


def lines(growths: Sequence[Growth]) -> Iterator[Line]:
    """A line for each request: how much there is in it, and a digest of all of it."""
    route: ModelSelection | None = None
    if growths:
        head = "".join(f"{name:>{width}}" for name, width in _COLUMNS)
        yield line((f"{head}{'bytes':>12}  sha256", ("dim",)))
    for number, growth in enumerate(growths, 1):
        request = growth.sent.request
        now = request.config.selection
        if now != route:
            yield line((said_route(now), ("cyan",)))
            route = now
        yield _row(number, growth)
    yield line((f"{len(growths):,} request{'' if len(growths) == 1 else 's'}", ("bold",)))


def _row(number: int, growth: Growth) -> Line:
    sent = growth.sent.request
    counts = (len(sent.tools), len(sent.messages))
    rest = f"{growth.size:>12,}  {digest(sent)[:12]}"
    return request_line(number, growth, _COLUMNS, counts, rest)


def digest(request: Request) -> str:
    """SHA-256 of all of *request*: its configuration, its canonical sequence, the session's id.

    Equal for equal requests, in every process and on every machine.
    """
    envelope: dict[str, PlainJson] = encode_request(request)
    del envelope["messages"]
    envelope.pop("tools", None)
    return hashlib.sha256(dumps_json(envelope) + b"\n" + canonical(request)).hexdigest()


# --- for programs -----------------------------------------------------------------------


def document(header: SessionHeader, growths: Sequence[Growth]) -> Iterator[str]:
    """One JSON object, in pieces: all requests of a long session are more than fits in one."""
    head = json.dumps({"replayVersion": VERSION, "session": {"id": header.id}}, indent=2)
    yield head.removesuffix("\n}") + ',\n  "requests": ['
    for number, growth in enumerate(growths, 1):
        entry: dict[str, PlainJson] = place(number, growth)
        request = growth.sent.request
        entry |= {"sha256": digest(request), "request": encode_request(request)}
        yield (",\n    " if number > 1 else "\n    ") + json.dumps(entry)
    yield ("\n  ]" if growths else "]") + "\n}\n"
