"""`Effects`: where the stand-ins of a test say that something has happened in the world."""

from __future__ import annotations

import threading
from typing import Literal, TypeAlias

import trio
from attrs import define, field, frozen

from ..tools import Read, Touch, Write

Sort: TypeAlias = Literal["note", "undo"]


@frozen
class Effect:
    """One thing that happened. *actor* is the task that did it, or the thread's number."""

    what: str
    sort: Sort
    touch: Touch | None
    actor: object = field(repr=False, eq=False)


@define(eq=False)
class Effects:
    """What a tool did to the world, as your test's stand-ins tell it.

    Put one into the function that stands in for the mail server, the database, the robot's
    arm, and give it to `check_tool` or `check_hook`, which clear it before every run. Its
    methods never block, and may be called from any task or thread.
    """

    _entries: list[Effect] = field(factory=list, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    @property
    def entries(self) -> tuple[str, ...]:
        """What happened so far, in order; cleaning up included."""
        return tuple(effect.what for effect in self._entries)

    def note(self, what: str) -> None:
        """Something happened that cannot be taken back by forgetting it: *what*, in words."""
        self._add(what, "note", None)

    def undo(self, what: str) -> None:
        """Something was cleaned up. It may happen after a cancellation, unlike an effect."""
        self._add(what, "undo", None)

    def read(self, resource: str) -> None:
        """*resource* was read, which is no effect, but must be among the tool's touches."""
        self._add(f"read {resource}", "undo", Read(resource))

    def wrote(self, resource: str) -> None:
        """*resource* was changed: an effect, and to be among the tool's touches."""
        self._add(f"wrote {resource}", "note", Write(resource))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()

    def _add(self, what: str, sort: Sort, touch: Touch | None) -> None:
        actor: object = threading.get_ident()
        if trio.lowlevel.in_trio_task():
            actor = trio.lowlevel.current_task()
        with self._lock:
            self._entries.append(Effect(what, sort, touch, actor))
