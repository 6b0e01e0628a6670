"""Bound: how long closing a family of agents may take."""

from __future__ import annotations

import math

import trio
from attrs import define


@define(eq=False)
class Bound:
    """One deadline for an agent and all that it owns.

    Counted from the last driver among them that ended: draining tools is not bounded,
    a store that hangs is, and once for all of them.
    """

    seconds: float
    deadline: float = -math.inf

    def extend(self) -> None:
        """Something of the family ended as it should: count from now."""
        self.deadline = trio.current_time() + self.seconds
