"""Activity: one turn or maintenance job, from its wake to its end.

Made at the moment of the wake and entered later by the driver; it carries the cancel
scope, the first cancel cause and the wake latch.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import trio
from attrs import define, field

from ..vocabulary import (
    CancelCause,
    DisposedCause,
    HookCause,
    LegacyCause,
    ParentCause,
    UserCause,
)

ActivityKind: TypeAlias = Literal["turn", "maintenance"]


@define(eq=False)
class Activity:
    """One turn or maintenance job, from its wake to its end."""

    kind: ActivityKind
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    cause: CancelCause | None = None
    fallback: CancelCause | None = None
    discard_claimed: bool = False
    latched: bool = False

    @property
    def cancelled(self) -> bool:
        """Whether its end was asked for, by whomever."""
        return self.cause is not None or self.fallback is not None

    def cancel(self, cause: CancelCause, *, keep_inbox: bool) -> None:
        """Ask for the end. The first cause stands; a clearing cancel drops the latch."""
        if self.cause is None:
            self.cause = fresh_cause(cause)
        if not keep_inbox:
            self.discard_claimed = True
            self.latched = False
        self.scope.cancel(reason=f"agent cancelled: {type(cause).__name__}")

    def withdraw(self, cause: CancelCause) -> None:
        """Ask for the end on behalf of a caller who was cancelled himself.

        If the host stops the agent in the same tick, that is why the turn ends: *cause*
        counts only when nothing else does.
        """
        self.fallback = self.fallback or cause
        self.scope.cancel(reason="who waited for the turn was cancelled")


def fresh_cause(cause: CancelCause) -> CancelCause:
    """A plain copy: kind, and the reason text of a hook; nothing a caller hung on it."""
    match cause:
        case HookCause(reason=reason):
            return HookCause(reason)
        case ParentCause():
            return ParentCause()
        case DisposedCause():
            return DisposedCause()
        case LegacyCause():
            return LegacyCause()
        case _:
            return UserCause()
