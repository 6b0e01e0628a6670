"""What happened outside the log: a file that outlives whoever wrote it.

A tool's effect is a line in it, and so is whatever a process was told is saved. A line is
one `write` to a file opened for appending, so a killed process leaves whole lines only.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from attrs import define, field, frozen

from terzetto.session._codec import dumps_event
from terzetto.vocabulary import CallId, Event

_write = os.write  # before anybody stands before it


@define(eq=False)
class Ledger:
    """The writing end. *told*: a pipe that gets one byte for each line."""

    path: Path
    told: int | None = None
    _fd: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def begins(self, session: str, call: str, effect: str, tool: str) -> None:
        """The effect itself: it has happened as soon as this returns."""
        self._note("began", session, call, effect, tool)

    def ends(self, session: str, call: str) -> None:
        self._note("ended", session, call)

    def acknowledged(self, session: str, event: Event) -> None:
        """*session* was told that *event* is durable."""
        self._note("durable", session, event.seq, checksum(event))

    def turn(self, session: str, number: int) -> None:
        """Who asked was told that this turn is over, and that all is well with the store."""
        self._note("turn", session, number)

    def synced(self, path: str, size: int) -> None:
        self._note("synced", size, path)

    def problem(self, text: str) -> None:
        self._note("problem", text)

    def _note(self, *words: object) -> None:
        _write(self._fd, (" ".join(map(str, words)) + "\n").encode())
        if self.told is not None:
            _write(self.told, b".")


def checksum(event: Event) -> int:
    """Of the bytes that a store keeps of it."""
    return zlib.crc32(dumps_event(event))


@frozen
class Effect:
    """A tool body that began. *tool* is its tool's name."""

    session: str
    call: CallId
    name: str
    tool: str


@define
class Story:
    """A ledger as it is read. It is read on where it was left."""

    path: Path
    effects: list[Effect] = field(factory=list)
    ended: set[tuple[str, str]] = field(factory=set)
    durable: dict[str, dict[int, int]] = field(factory=dict)
    turns: dict[str, set[int]] = field(factory=dict)
    synced: dict[str, int] = field(factory=dict)
    problems: list[str] = field(factory=list)
    _read: int = 0

    def read_on(self) -> None:
        for line in self._lines():
            kind, _, rest = line.partition(" ")
            match kind, rest.split(" "):
                case "began", [session, call, name, tool]:
                    self.effects.append(Effect(session, CallId(call), name, tool))
                case "ended", [session, call]:
                    self.ended.add((session, call))
                case "durable", [session, seq, crc]:
                    self.durable.setdefault(session, {})[int(seq)] = int(crc)
                case "turn", [session, number]:
                    self.turns.setdefault(session, set()).add(int(number))
                case "synced", [size, *path]:
                    self.synced[" ".join(path)] = int(size)
                case "problem", _:
                    self.problems.append(rest)
                case _:
                    raise AssertionError(line)

    def _lines(self) -> Iterator[str]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        yield from data.decode().splitlines()
