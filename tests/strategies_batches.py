"""Strategies for batches of tool calls: what each call's policy, body and review do, and when.

Times are in ticks of a virtual clock. Bodies and listeners end on whole ticks, timeouts fall
on halves, a cancel on either: so that the same instant is met, and told from the moment before.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import frozen
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from terzetto import Read, Write
from terzetto.tools import Touch

Mode: TypeAlias = Literal[
    "parallel", "touches", "exclusive", "raises", "truthy", "unknown", "invalid"
]
"""How a call is classified: ``raises`` and ``truthy`` (1, not True) are exclusive, and so are
calls of unknown tools and calls with arguments that do not fit."""
Ending: TypeAlias = Literal["return", "raise", "swallow", "shield", "reraise"]
"""What a body does when it is through, or is cancelled: ``swallow`` returns, ``reraise`` raises
an error of its own, ``shield`` is deaf to both."""
Policy: TypeAlias = Literal["allow", "deny", "raise"]
Review: TypeAlias = Literal["keep", "replace", "block", "raise"]


@frozen(kw_only=True)
class CallPlan:
    """One call. *pre* and *post* are the ticks that its listeners wait, *timeout* in half ticks."""

    mode: Mode = "parallel"
    touches: tuple[Touch, ...] = ()
    """What a call of mode ``touches`` touches."""
    ticks: int = 0
    ending: Ending = "return"
    timeout: float | None = None
    pre: int = 0
    deaf: bool = False
    """Whether its pre-execute listener waits under a shield."""
    policy: Policy = "allow"
    post: int = 0
    review: Review = "keep"

    @property
    def parallel(self) -> bool:
        return self.mode in ("parallel", "touches")

    def conflicts(self, other: CallPlan) -> bool:
        """Whether both touch one resource and one of them writes it."""
        if not self.mode == other.mode == "touches":
            return False
        return any(
            mine.resource == theirs.resource and Write in (type(mine), type(theirs))
            for mine in self.touches
            for theirs in other.touches
        )


@frozen(kw_only=True)
class BatchPlan:
    """A batch. *pre* and *post*: whether there are listeners at all. *cancel*: when, or never."""

    calls: tuple[CallPlan, ...]
    capacity: int
    pre: bool
    post: bool
    flush: int = 0
    cancel: float | None = None


def touches(resources: str = "abc") -> SearchStrategy[Touch]:
    """One read or write of one of few resources."""
    return st.builds(
        lambda kind, resource: kind(resource),
        st.sampled_from([Read, Read, Write]),
        st.sampled_from(resources),
    )


def call_plans(*, calm: bool = False) -> SearchStrategy[CallPlan]:
    """One call; *calm*: nothing of it waits but its body, which ends by returning or raising."""
    modes: list[Mode] = ["parallel"] * 3 + ["touches"] * 5
    modes += ["exclusive", "raises", "truthy", "unknown", "invalid"]
    endings: list[Ending] = ["return", "raise", "swallow", "shield", "reraise"]
    waits = st.just(0) if calm else st.sampled_from([0, 0, 1, 2])
    return st.builds(
        CallPlan,
        mode=st.sampled_from(modes),
        touches=st.lists(touches(), max_size=3).map(tuple),
        ticks=st.integers(0, 4),
        ending=st.sampled_from(endings[:2] if calm else endings),
        timeout=st.none() if calm else st.none() | st.sampled_from([0.5, 1.5, 2.5]),
        pre=waits,
        deaf=st.just(False) if calm else st.booleans(),
        policy=st.sampled_from(["allow", "allow", "allow", "deny", "raise"]),
        post=waits,
        review=st.sampled_from(["keep", "keep", "replace", "block", "raise"]),
    )


def batch_plans(*, calm: bool = False) -> SearchStrategy[BatchPlan]:
    """Batches of 0 to 7 calls, capacities from 1 to more than there are calls."""
    cancels = st.none() if calm else st.none() | st.integers(0, 16).map(lambda n: n / 2)
    return st.builds(
        BatchPlan,
        calls=st.lists(call_plans(calm=calm), max_size=7).map(tuple),
        capacity=st.integers(1, 8),
        pre=st.booleans(),
        post=st.booleans(),
        flush=st.just(0) if calm else st.integers(0, 1),
        cancel=cancels,
    )
