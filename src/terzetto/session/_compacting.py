"""The bracket of a compaction: start, summary, one replacement, end (C165).

An unmatched start is a lock while its bracket lives. One that a crash or a stop of the
program left behind is an orphan: the next compaction closes it on the record first.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from attrs import define, field

from ..vocabulary import (
    AgentBusy,
    CompactionEnd,
    CompactionStart,
    CompactionSummary,
    Event,
    UsageError,
    UserMessage,
)
from ._replacing import planned

if TYPE_CHECKING:
    from ._log import Session


COMPACTED = frozenset({CompactionStart, CompactionEnd})
"""The events that move a `CompactionLock`."""


@define(eq=False)
class CompactionLock:
    """The compaction of one log: which start has no end yet, and whether it lives."""

    open_id: str | None = None
    live: bool = False

    def move(self, event: Event) -> None:
        match event.data:
            case CompactionStart(id=started):
                self.open_id = started
            case CompactionEnd():
                self.open_id = None
            case _:
                pass


@define(eq=False)
class Compacting:
    """One compaction, made by `Session.compacting`. Use it in a ``with`` block.

    Entering appends ``compaction/start``, leaving appends ``compaction/end``: completed
    after `commit`, canceled when a cancellation or a stop of the program leaves the block,
    failed otherwise. No method waits, so a cancelled block closes its bracket. Of an agent
    that is disposed of meanwhile the log stays as it is: a block that ends by itself then
    raises `AgentDisposed`.
    """

    _session: Session
    id: str
    _entered: bool = field(default=False, init=False)
    _committed: bool = field(default=False, init=False)

    def __enter__(self) -> Self:
        lock = self._session.compaction
        if self._entered:
            raise UsageError("a compaction has one block; ask the session for another one")
        if lock.live:
            raise AgentBusy(f"session {self._session.id!r} is being compacted already")
        if lock.open_id is not None:
            self._session.append(CompactionEnd(lock.open_id, "failed"))
        lock.live = True
        try:
            self._session.append(CompactionStart(self.id))
            self._entered = True
        except BaseException:
            lock.live = False
            raise
        return self

    def commit(self, start: int, end: int, message: UserMessage, summary: str) -> list[Event]:
        """Append ``compaction/summary`` and replace the nodes *start* to *end* by *message*.

        At most once. Raises as `Session.replace` does, and then appends nothing.
        """
        lock = self._session.compaction
        if self._committed or not lock.live or lock.open_id != self.id:
            raise UsageError("a compaction commits once, inside its block")
        drafts = planned(self._session.surface, start, end, (message,))
        self._session.append(CompactionSummary(self.id, summary))
        self._committed = True
        return [self._session.append_draft(draft) for draft in drafts]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        outcome: Literal["completed", "failed", "canceled"] = "failed"
        if self._committed:
            outcome = "completed"
        elif error is not None and not isinstance(error, Exception):
            outcome = "canceled"
        self._session.compaction.live = False
        try:
            self._session.append(CompactionEnd(self.id, outcome))
        except UsageError:
            # Its agent is gone: an orphan is left. What leaves the block, a cancellation
            # above all, says more.
            if error is None:
                raise
