"""Trio's choice among runnable tasks, pinned to a seed. The only place that knows how.

Trio runs the tasks that can run in batches, and reverses each batch by the toss of a coin, so
that nobody relies on an order. The coin is a private `random.Random` of its module; there is
also a private switch, made for hypothesis, that sorts each batch by the age of its tasks and
then shuffles it with that same `Random`. With both the order follows from a seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import trio
from trio._core import _run

_COIN = "_r"
_SWITCH = "_ALLOW_DETERMINISTIC_SCHEDULING"


def can_be_pinned() -> bool:
    """Whether this Trio has its coin and its switch where they are looked for."""
    return isinstance(getattr(_run, _COIN, None), random.Random) and hasattr(_run, _SWITCH)


def why_not() -> str:
    """What to tell somebody whose Trio cannot be pinned."""
    return (
        f"this Trio ({trio.__version__}) chooses among its tasks in a way that cannot be "
        f"repeated: expected trio._core._run.{_COIN} and .{_SWITCH}; Trio 0.32 to 0.35 have them"
    )


@contextmanager
def pinned(seed: int) -> Iterator[None]:
    """Let the scheduler of Trio runs in this block follow from *seed*.

    Afterwards Trio has its own coin again, unmoved. A Trio that cannot be pinned runs as it
    likes; ask `can_be_pinned` where that matters.
    """
    before = {name: getattr(_run, name) for name in (_COIN, _SWITCH) if hasattr(_run, name)}
    if isinstance(before.get(_COIN), random.Random):
        setattr(_run, _COIN, random.Random(seed))
    if _SWITCH in before:
        setattr(_run, _SWITCH, True)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(_run, name, value)
