"""Writer: what is appended reaches the store soon, although nobody waits for it.

One task for all agents of an engine. The first event that is not durable begins a window of
fixed length; who appends during it joins, and nothing makes it longer. At its end all of
them are saved at the same time, so that stores which write for many at once can do so.

Whether and what is to be saved, and what becomes of a failure, is each one's own affair.
Source: fixed batching windows, as in the reference's session persistence (C149).
"""

from __future__ import annotations

import math
from typing import Protocol

import trio
from attrs import define, field

from ..vocabulary import InvalidValue


class Behind(Protocol):
    """Something with events that its store does not have."""

    def window_ended(self) -> bool:
        """The window is over: whether there is something to save by `save_behind`."""
        ...

    async def save_behind(self) -> None:
        """Save it, in a task of the writer's. Contains the failures of the store."""
        ...


@define(eq=False)
class Writer:
    """The write-behind of one engine. All methods but `run` are plain and cheap.

    *window*: seconds from the first event that is not durable to the flush. *needed*: whether
    anybody can be behind at all; a store in memory is flushed without waiting for anything.
    """

    window: float
    needed: bool
    _waiting: dict[Behind, None] = field(factory=dict, init=False)
    _at_once: dict[Behind, None] = field(factory=dict, init=False)
    _ends: float = field(default=math.inf, init=False)
    _sleeps_until: float = field(default=-math.inf, init=False)
    _wake: trio.Event = field(factory=trio.Event, init=False)
    _life: trio.CancelScope = field(factory=lambda: trio.CancelScope(shield=True), init=False)

    def begin(self, one: Behind) -> None:
        """Save *one* at the end of the window that runs, or of one that begins now."""
        if not self._waiting:
            self._ends = trio.current_time() + self.window
            # Whoever is saved often ends a window and begins the next: the task sleeps on,
            # if it wakes in time, and looks again then.
            if self._ends < self._sleeps_until:
                self._wake.set()
        self._waiting[one] = None

    def hurry(self, one: Behind) -> None:
        """Save *one* as soon as the writer's task runs."""
        self._waiting.pop(one, None)
        self._at_once[one] = None
        self._wake.set()

    def forget(self, one: Behind) -> None:
        """Nothing of *one* is to be saved any more, or not until it begins again."""
        self._waiting.pop(one, None)
        self._at_once.pop(one, None)

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """The task. Shielded, so that it serves agents that are being torn down, until `stop`."""
        with self._life:
            async with trio.open_nursery() as nursery:
                while True:
                    self._sleeps_until = self._ends if self._waiting else math.inf
                    with trio.move_on_at(self._sleeps_until):
                        await self._wake.wait()
                    self._wake = trio.Event()
                    for one in self._due():
                        if one.window_ended():
                            nursery.start_soon(one.save_behind, name="terzetto saves")

    def _due(self) -> list[Behind]:
        due, self._at_once = self._at_once, {}
        if self._waiting and trio.current_time() >= self._ends:
            due |= self._waiting
            self._waiting = {}
        return list(due)

    def stop(self) -> None:
        """End the task. Who is behind is saved when his write path closes, not here."""
        self._life.cancel(reason="the engine has ended")


def checked_window(seconds: float) -> float:
    """*seconds*, if they can be the length of a window."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidValue(f"write_window: expected seconds, got {seconds!r}")
    if not 0 <= seconds < math.inf:
        raise InvalidValue(f"write_window: expected a finite time of 0 or more, got {seconds!r}")
    return seconds
