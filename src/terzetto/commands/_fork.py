"""``terzetto fork``: a new session on the past of another, without a model or an engine.

The source is only read. The fork is written by the store of the same folder or database.
"""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from ..agent._beginning import check_whole, inherited
from ..engine import wall_clock_ms
from ..session import Session, fork_header, fork_point, fresh_id
from ..timeline import read_timeline
from ..vocabulary import Event, ForkError
from ._shelf import decoded, find
from ._table import count
from ._terminal import CommandError, Terminal, one_line


@frozen(kw_only=True)
class ForkOptions:
    """*turn*: after which turn; the last completed one, and what followed it, when absent."""

    session: str
    folder: Path
    turn: int | None = None
    name: str | None = None


async def run_fork(options: ForkOptions, terminal: Terminal) -> int:
    """Make the fork; the exit code, 0. Raises `CommandError` if it cannot be made."""
    stored, shelf = find(options.session, options.folder)
    source, events = decoded(stored)
    check_whole(source, len(events))
    try:
        length = fork_point(events, turn=options.turn)
        header = fork_header(source, options.name or fresh_id(), wall_clock_ms(), length)
        session = Session(header, wall_clock_ms)

        async def inherits(start: int, stop: int) -> list[Event]:
            return events[start:stop]

        handle = await inherited(session, shelf.store(stored.layout), inherits, None)
    except ForkError as error:
        raise CommandError(_said(error, options)) from error
    if handle is not None:
        await handle.close()
    turns = len(read_timeline(events[:length]).turns)
    past = f"{count(turns, 'turn')}, {count(length, 'event')}"
    said = f"{header.id}: a fork of {source.id} with {past}"
    terminal.write(one_line(said) + "\n")
    return 0


def _said(error: ForkError, options: ForkOptions) -> str:
    """*error* in the words of the command line."""
    if error.code == "OPEN_TURN":
        return (
            f"--at: turn {options.turn} is open; name an earlier one, or none for what was "
            "before it"
        )
    if error.code == "INVALID_BOUNDARY":
        return str(error).replace("turn:", "--at:", 1)
    return str(error)
