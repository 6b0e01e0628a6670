"""Sequences of which mostly there is nothing: thousands of sessions are at rest in a program,
and each list of one is one more object for the garbage collector to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_FEW = 4


def appended(items: Sequence[T], item: T) -> list[T]:
    """*items* with *item* at the end: the same list, or the first one in the place of ``()``."""
    if isinstance(items, list):
        items.append(item)
        return items
    return [*items, item]


def added(items: Sequence[T], item: T) -> Sequence[T]:
    """As `appended`, and as long as there are few a tuple: half of a list, and if it holds
    numbers nothing for the collector."""
    if isinstance(items, list) or len(items) >= _FEW:
        return appended(items, item)
    return (*items, item)
