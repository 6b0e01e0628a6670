"""``terzetto sessions``: which sessions there are, the newest first.

Each log is read once, and no more of it is understood than is shown.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from attrs import evolve, frozen

from ..session._codec import decode_event, decode_header, loads_json
from ..stores._base import EVERY
from ..timeline import TurnSpan
from ..vocabulary import InvalidValue, PlainJson, SessionHeader, StoreError, TurnEnd
from ._shelf import open_shelf
from ._stored import Stored
from ._terminal import Terminal, columns, one_line, shorten

VERSION = 1
"""Of the document's shape. It grows when a key changes its meaning or goes."""


@frozen(kw_only=True)
class SessionsOptions:
    folder: Path
    json: bool = False


@frozen(kw_only=True)
class Summary:
    """What is told of one session; *fault* is what is wrong with it."""

    stored: Stored
    header: SessionHeader | None = None
    turns: int = 0
    ending: str | None = None
    reason: str = ""
    fault: str | None = None

    @property
    def title(self) -> str | None:
        """The title that the program has given it in ``meta``, if it has."""
        title = self.header.meta.get("title") if self.header else None
        return title if isinstance(title, str) and title else None


def run_sessions(options: SessionsOptions, terminal: Terminal) -> int:
    """List the sessions; the exit code, 0. Raises `CommandError` for a wrong place."""
    found = [summary(one) for one in open_shelf(options.folder).all()]
    found.sort(key=_age)
    if options.json:
        document = {"sessionsVersion": VERSION, "sessions": [_entry(one) for one in found]}
        terminal.write(json.dumps(document, indent=2) + "\n")
        return 0
    if not found:
        terminal.write(one_line(f"there are no sessions in {str(options.folder)!r}") + "\n")
        return 0
    for line in table(found, terminal.look.width):
        terminal.write(line + "\n")
    return 0


def _age(one: Summary) -> tuple[bool, int, str]:
    """Newest first; those whose age nobody knows last."""
    created = one.header.created_ms if one.header else 0
    return one.header is None, -created, one.stored.name


def summary(stored: Stored) -> Summary:
    """*stored* in short. Never raises: what is damaged is said to be."""
    now = Summary(stored=stored)
    try:
        now = evolve(now, header=decode_header(loads_json(stored.header)))
    except StoreError as error:
        return evolve(now, fault=str(error))
    except InvalidValue as error:
        fault = stored.faults[0][1] if stored.faults else str(error)
        return evolve(now, fault=fault)
    if stored.faults:
        now = evolve(now, fault=": ".join(stored.faults[0]))
    turns, ending, reason = 0, None, ""
    for seq, record in enumerate(stored.records):
        try:
            event = loads_json(record)
            if not isinstance(event, dict) or event.get("seq") != seq:
                raise InvalidValue(f"expected event {seq}")
            if event.get("type") == "turn/start":
                turns, ending, reason = turns + 1, None, "open"
            elif event.get("type") == "turn/end":
                data = decode_event(event, seq_hint=seq, extensions=EVERY).data
                assert isinstance(data, TurnEnd)
                span = TurnSpan(number=turns, seq=seq, started_ms=0, ending=data.ending)
                ending, reason = _kind(event), span.reason
        except InvalidValue as error:
            now = evolve(now, fault=now.fault or f"{stored.place(seq)}: {error}")
            break
    return evolve(now, turns=turns, ending=ending, reason=reason)


def _kind(event: dict[str, PlainJson]) -> str | None:
    match event:
        case {"data": {"reason": {"kind": str(kind)}}}:
            return kind
        case _:
            return None


def table(found: list[Summary], width: int) -> list[str]:
    """A heading and a line for each; ids are whole, whatever the width."""
    rows = [("SESSION", "CREATED (UTC)", "TURNS", "LAST TURN", "SIZE", "")]
    for one in found:
        created = _when(one.header.created_ms) if one.header else "?"
        turns = str(one.turns) if one.header else ""
        rows.append(
            (
                one_line(one.stored.name),
                created,
                turns,
                one_line(one.reason),
                _size(one),
                _notes(one),
            )
        )
    widths = [max(columns(row[n]) for row in rows) for n in range(5)]
    lines = []
    for row in rows:
        cells = [
            row[n].rjust(widths[n]) if n in (2, 4) else _padded(row[n], widths[n]) for n in range(5)
        ]
        line = "  ".join(cells)
        room = max(width - columns(line) - 2, 20)
        lines.append(f"{line}  {shorten(row[5], room)}".rstrip())
    return lines


def _padded(text: str, width: int) -> str:
    return text + " " * (width - columns(text))


def _notes(one: Summary) -> str:
    notes = []
    if one.fault is not None:
        notes.append(f"damaged: {one.fault}")
    elif one.stored.torn and one.stored.owner is None:
        notes.append("torn at its end")
    if one.stored.owner is not None:
        notes.append(f"in use by process {one.stored.owner}")
    if one.header is not None and one.header.parent_id is not None:
        notes.append(f"fork of {one.header.parent_id}")
    if one.header is not None and one.header.durability != "step":
        notes.append(f"durability {one.header.durability}")
    if one.title is not None:
        notes.append(one.title)
    return one_line("; ".join(notes))


def _when(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):  # a clock that is not a clock
        return f"{ms} ms"


def _size(one: Summary) -> str:
    size = float(one.stored.size)
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _entry(one: Summary) -> PlainJson:
    header = one.header
    return {
        "id": one.stored.name,
        "where": one.stored.where,
        "createdMs": header.created_ms if header else None,
        "cwd": header.cwd if header else None,
        "parentId": header.parent_id if header else None,
        "durability": header.durability if header else None,
        "title": one.title,
        "turns": one.turns,
        "ending": one.ending,
        "events": len(one.stored.records),
        "bytes": one.stored.size,
        "tornBytes": one.stored.torn,
        "ownerPid": one.stored.owner,
        "fault": one.fault,
    }
