"""Sequences of which mostly there is nothing: thousands of sessions are at rest in a program,
and each list of one is one more object for the garbage collector to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def appended(items: Sequence[T], item: T) -> list[T]:
    """*items* with *item* at the end: the same list, or the first one in the place of ``()``."""
    if isinstance(items, list):
        items.append(item)
        return items
    return [*items, item]
