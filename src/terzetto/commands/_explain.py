"""``terzetto explain``: what each request of a session repeats, and why a prefix broke.

Measuring is `session`'s business; here is what is said about it. A break that no event of the
log explains is a defect of the engine or of the log, and the exit code is 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

from ..session import Cause, Growth, growths
from ..vocabulary import Event, IllegalEvent, ModelSelection, PlainJson, SessionHeader
from ._lines import Line, line
from ._shelf import decoded, find
from ._table import count
from ._terminal import CommandError, Terminal, one_line

VERSION = 1
"""Of the document's shape. It grows when a key changes its meaning or goes."""
_COLUMNS = (("#", 4), ("turn", 6), ("step", 6), ("try", 5), ("bytes", 13), ("reused", 13))


@frozen(kw_only=True)
class ExplainOptions:
    session: str
    folder: Path
    json: bool = False
    turns: range | None = None


@frozen(kw_only=True)
class Explained:
    """A session's requests, numbered from 1, and their sums.

    Inherited requests and those without an answer are shown, and not counted.
    """

    header: SessionHeader
    growths: Sequence[Growth]

    @property
    def counted(self) -> list[Growth]:
        return [g for g in self.growths if g.sent.answered and not g.sent.inherited]

    @property
    def size(self) -> int:
        return sum(growth.size for growth in self.counted)

    @property
    def shared(self) -> int:
        return sum(growth.shared for growth in self.counted)

    @property
    def unexplained(self) -> int:
        return sum(growth.unexplained for growth in self.growths)


def run_explain(options: ExplainOptions, terminal: Terminal) -> int:
    """Explain the session; the exit code: 1 if a break has no explanation.

    Raises `CommandError` if there is no such session, or if it is damaged.
    """
    stored, _ = find(options.session, options.folder)
    header, events = decoded(stored)
    explained = explain(header, events)
    if options.json:
        terminal.write(json.dumps(document(explained, options.turns), indent=2) + "\n")
    else:
        for one in lines(explained, options.turns):
            terminal.write(one.within(terminal.look.width).painted(terminal.style) + "\n")
    return 1 if explained.unexplained else 0


def explain(header: SessionHeader, events: Sequence[Event]) -> Explained:
    """Raises `CommandError` for a log that no engine can have written."""
    try:
        return Explained(header=header, growths=list(growths(header, events)))
    except IllegalEvent as error:
        raise CommandError(
            f"the requests of {header.id!r} cannot be told: {error}; see terzetto verify"
        ) from error


# --- for people -------------------------------------------------------------------------


def lines(explained: Explained, turns: range | None = None) -> Iterator[Line]:
    """A line for each request, under its route where that is another; its breaks; the sums."""
    route: ModelSelection | None = None
    shown = [
        (number, growth)
        for number, growth in enumerate(explained.growths, 1)
        if turns is None or growth.sent.turn in turns
    ]
    if shown:
        head = "".join(f"{name:>{width}}" for name, width in _COLUMNS)
        yield line((f"{head}{'new':>13}", ("dim",)))
    for number, growth in shown:
        now = growth.sent.request.config.selection
        if now != route:
            yield line((said_route(now), ("cyan",)))
            route = now
        yield _request(number, growth)
        yield from map(_cause, growth.causes)
        if growth.unexplained:
            yield line((" " * 10 + "broken, and no event explains it", ("red", "bold")))
    yield line((_sums(explained), ("red",) if explained.unexplained else ("bold",)))


def _request(number: int, growth: Growth) -> Line:
    counts = (growth.size, growth.shared)
    return request_line(number, growth, _COLUMNS, counts, f"{growth.new:>13,}")


def request_line(
    number: int,
    growth: Growth,
    columns: Sequence[tuple[str, int]],
    counts: Sequence[int],
    rest: str,
) -> Line:
    """The line of one request in a table whose *columns* are its place, then *counts*."""
    sent = growth.sent
    cells = [f"{number}", f"{sent.turn}", f"{sent.step}", f"{sent.attempt}"]
    cells += [f"{count:,}" for count in counts]
    text = "".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, columns, strict=True))
    text += rest
    if sent.inherited or not sent.answered:
        return line((f"{text}  {'inherited' if sent.inherited else 'no answer came'}", ("dim",)))
    return line(text)


def _cause(cause: Cause) -> Line:
    said = one_line(f"broken by {cause.type} {cause.seq}: {cause.what}")
    return line((" " * 10 + said, ("yellow",)))


def said_route(route: ModelSelection) -> str:
    """*route* in words."""
    effort = f", effort {route.effort}" if route.effort is not None else ""
    return one_line(f"{route.provider}, {route.model}{effort}")


def _sums(explained: Explained) -> str:
    size, shared = explained.size, explained.shared
    reused = 100 * shared / size if size else 0.0
    breaks = count(explained.unexplained, "unexplained break")
    requests = len(explained.counted)
    return (
        f"{requests:,} request{'' if requests == 1 else 's'}, {size:,} bytes, "
        f"{reused:.1f}% reused, {breaks}"
    )


# --- for programs -----------------------------------------------------------------------


def document(explained: Explained, turns: range | None = None) -> dict[str, PlainJson]:
    """One JSON object; see the reference page of the commands."""
    return {
        "explainVersion": VERSION,
        "session": {
            "id": explained.header.id,
            "parentId": explained.header.parent_id,
            "seedLength": explained.header.seed_length,
        },
        "requests": [
            _entry(number, growth)
            for number, growth in enumerate(explained.growths, 1)
            if turns is None or growth.sent.turn in turns
        ],
        "total": {
            "requests": len(explained.counted),
            "bytes": explained.size,
            "reusedBytes": explained.shared,
            "newBytes": explained.size - explained.shared,
            "unexplainedBreaks": explained.unexplained,
        },
    }


def _entry(number: int, growth: Growth) -> PlainJson:
    sent = growth.sent
    return {
        **place(number, growth),
        "headerSeq": sent.header_seq,
        "bytes": growth.size,
        "reusedBytes": growth.shared,
        "newBytes": growth.new,
        "broken": growth.broken,
        "causes": [
            {"type": cause.type, "seq": cause.seq, "what": cause.what} for cause in growth.causes
        ],
        "unexplained": growth.unexplained,
    }


def place(number: int, growth: Growth) -> dict[str, PlainJson]:
    """Which request it is: the keys that `explain` and `replay` share."""
    sent = growth.sent
    route = sent.request.config.selection
    return {
        "number": number,
        "turn": sent.turn,
        "step": sent.step,
        "attempt": sent.attempt,
        "route": {"provider": route.provider, "model": route.model, "effort": route.effort},
        "seq": sent.seq,
        "answered": sent.answered,
        "inherited": sent.inherited,
    }
