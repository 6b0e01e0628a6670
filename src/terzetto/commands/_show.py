"""``terzetto show``: a session's log for people, or for programs.

Reads the file and nothing else: no lock is taken, nothing is repaired, and a session that
is in use at this moment can be shown as far as it is stored.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from attrs import evolve, frozen

from ..stores._files import failing
from ..stores._jsonl_file import SUFFIX, Loaded, file_name, load
from ..timeline import read_timeline
from ..vocabulary import CorruptLog, Event, InvalidValue, SessionHeader
from ._shelf import decoded, find, is_database, is_path
from ._show_json import document
from ._show_lines import Shown, render
from ._show_options import FOLDER
from ._terminal import CommandError, Terminal


@frozen(kw_only=True)
class ShowOptions:
    """What the command line says. *session* is an id in *folder*, or the path of a log."""

    session: str
    folder: Path = Path(FOLDER)
    json: bool = False
    turns: range | None = None
    width: int | None = None
    color: bool | None = None
    """None: as the terminal is."""


def options_of(arguments: argparse.Namespace) -> ShowOptions:
    """The options that *arguments* stand for."""
    return ShowOptions(
        session=arguments.session,
        folder=arguments.log,
        json=arguments.json,
        turns=arguments.turn,
        width=arguments.width,
        color={"auto": None, "always": True, "never": False}[arguments.color],
    )


def run_show(options: ShowOptions, terminal: Terminal) -> int:
    """Show the session; the exit code, 0.

    Raises `CommandError` if there is no such log or turn, `CorruptLog` for a damaged one,
    OSError if nobody reads *terminal*.
    """
    shown = read(options)
    if options.json:
        # Nothing but ASCII: what a model wrote cannot reach the terminal as itself.
        terminal.write(json.dumps(document(shown), indent=2) + "\n")
        return 0
    look = terminal.look
    look = evolve(look, width=options.width or look.width)
    look = evolve(look, color=look.color if options.color is None else options.color)
    terminal.look = look
    lines = render(shown, look)
    terminal.write("".join(one.painted(terminal.style) + "\n" for one in lines))
    return 0


def read(options: ShowOptions) -> Shown:
    """What *options* ask for, from the file."""
    with _without_collections():
        header, events, torn = _in_database(options) or _in_file(options)
        timeline = read_timeline(events)
    shown = Shown(
        header=header,
        timeline=timeline,
        torn=torn,
        turns=options.turns,
    )
    if options.turns is not None and not shown.wanted():
        there = f"turns 1 to {len(timeline.turns)}" if timeline.turns else "no turns"
        raise CommandError(f"--turn: the session has {there}, not {_said(options.turns)}")
    return shown


_Loaded: TypeAlias = tuple[SessionHeader, list[Event], int]
"""A header, the events, and the bytes of an unfinished record after them."""


def _in_database(options: ShowOptions) -> _Loaded | None:
    """None if what is asked for is not in a database."""
    path = Path(options.session.rpartition("#")[0]) if is_path(options.session) else options.folder
    if not is_database(path):
        return None
    stored, _ = find(options.session, options.folder)
    return *decoded(stored), 0


def _in_file(options: ShowOptions) -> _Loaded:
    path = _path(options)
    with failing(options.session, "reading"):
        try:
            found = _load(path)
        except FileNotFoundError:
            raise CommandError(_not_there(options, path)) from None
        except IsADirectoryError:
            raise CommandError(f"expected a log, got the folder {str(path)!r}") from None
    return found.header, found.events, found.torn


def _said(turns: range) -> str:
    return str(turns.start) if len(turns) == 1 else f"{turns.start} and later"


def _path(options: ShowOptions) -> Path:
    if "/" in options.session or options.session.endswith(SUFFIX):
        return Path(options.session)
    try:
        return options.folder / file_name(options.session)
    except InvalidValue as error:
        raise CommandError(str(error), 2) from error


def _not_there(options: ShowOptions, path: Path) -> str:
    if path == Path(options.session):
        return f"there is no file {str(path)!r}"
    if not options.folder.is_dir():
        return (
            f"there is no folder {str(options.folder)!r} to look for sessions in; "
            "name it with --log, or give the path of a log"
        )
    said = f"there is no session {options.session!r} in {str(options.folder)!r}"
    names = sorted(one.stem for one in options.folder.glob(f"*{SUFFIX}"))
    if not names:
        return f"{said}, nor any other"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{said}; there are: {', '.join(names[:5])}{more}"


def _load(path: Path) -> Loaded:
    try:
        found = load(path)
    except CorruptLog as error:
        raise CommandError(f"{str(path)!r} is damaged, or no log of Terzetto: {error}") from error
    if found is None:
        raise CommandError(f"{str(path)!r} holds no session: its creation was not finished")
    return found


@contextmanager
def _without_collections() -> Iterator[None]:
    """All that is made here is kept: looking for garbage again and again finds none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
