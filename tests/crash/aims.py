"""Where a process kills itself: at the nth time that it comes to a moment.

Some moments are inside the stores' own calls, and are found by standing before these; others
are named by whoever passes them, with `Aimed.at`.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, frozen

from terzetto.stores import _sqlite_jobs

_OF_FILES = ("half written", "written", "synced")
MOMENTS: dict[str, Sequence[str]] = {
    "jsonl": _OF_FILES,
    "packed": _OF_FILES,
    "zstd": _OF_FILES,
    "sqlite": ("inserted", "before the commit", "after the commit"),
}
"""The moments inside each store; two are layouts of files."""


@frozen
class Aim:
    """The *nth* time that a process comes to *moment* is its end."""

    moment: str
    nth: int


@define
class Aimed:
    """What is left of an aim; without one nobody dies."""

    aim: Aim | None
    _passed: int = 0

    def comes_to(self, moment: str) -> bool:
        """Whether this is where it ends."""
        if self.aim is None or moment != self.aim.moment:
            return False
        self._passed += 1
        return self._passed == self.aim.nth

    def at(self, moment: str) -> None:
        if self.comes_to(moment):
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def take_aim(aim: Aim | None) -> Aimed:
    """Stand before the stores' calls, in this process, for its whole life."""
    aimed = Aimed(aim)
    if aim is None:
        return aimed

    def then_die(moment: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            result = real(*args)
            aimed.at(moment)
            return result

        return call

    real_write, real_commit = os.write, _sqlite_jobs.commit

    def write(fd: int, data: Any) -> int:
        if aimed.comes_to("half written"):
            real_write(fd, data[: len(data) // 2])
            die()
        written = real_write(fd, data)
        aimed.at("written")
        return written

    def commit(connection: sqlite3.Connection) -> None:
        aimed.at("before the commit")
        real_commit(connection)
        aimed.at("after the commit")

    os.write = write
    os.fdatasync = then_die("synced", os.fdatasync)
    _sqlite_jobs.commit = commit
    _sqlite_jobs.Append.run = then_die("inserted", _sqlite_jobs.Append.run)  # type: ignore[method-assign]
    return aimed
