"""``terzetto verify``: whether what is stored can be read, resumed and trusted.

The shelf reads, `_checks` judges; here is what is said about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

from ..vocabulary import StoreError
from ._checks import MOST, Checked, Finding, check
from ._shelf import Shelf, database_fault, find, open_shelf
from ._terminal import Terminal, one_line


@frozen(kw_only=True)
class VerifyOptions:
    """*sessions*: ids or paths; all in *folder* when there are none."""

    sessions: Sequence[str]
    folder: Path
    extensions: frozenset[str] = frozenset()


def run_verify(options: VerifyOptions, terminal: Terminal) -> int:
    """Check sessions; the exit code: 1 if anything is wrong.

    Raises `CommandError` if there is nothing of such a name.
    """
    sessions = events = problems = 0
    for one in _checked(options):
        sessions += bool(one.name)
        events += one.events
        problems += one.problems
        _tell(one, terminal)
    terminal.write(
        f"{_count(sessions, 'session')}, {_count(events, 'event')}, {_count(problems, 'problem')}\n"
    )
    return 1 if problems else 0


def _checked(options: VerifyOptions) -> Iterator[Checked]:
    shelves: list[Shelf] = []
    if not options.sessions:
        shelves.append(open_shelf(options.folder))
    for session in options.sessions:
        stored, shelf = find(session, options.folder)
        if shelf not in shelves:
            shelves.append(shelf)
            yield from _files(shelf)
        yield check(stored, options.extensions)
    if options.sessions:
        return
    yield from _files(shelves[0])
    try:
        for stored in shelves[0].all():
            yield check(stored, options.extensions)
    except StoreError as error:
        yield Checked("", 0, (Finding(str(options.folder), str(error)),))


def _files(shelf: Shelf) -> Iterator[Checked]:
    """What is wrong with the database as a whole."""
    fault = database_fault(shelf.path) if shelf.database else None
    if fault is not None:
        yield Checked("", 0, (Finding(*fault),))


def _tell(one: Checked, terminal: Terminal) -> None:
    told = sorted(one.findings, key=lambda finding: not finding.problem)
    for finding in told[:MOST]:
        name = f"{one.name}: " if one.name else ""
        text = one_line(f"{name}{finding.where}: {finding.what}")
        terminal.write(terminal.style(text, "red" if finding.problem else "dim") + "\n")
    if len(told) > MOST:
        terminal.write(one_line(f"{one.name}: and {len(told) - MOST} more") + "\n")


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
