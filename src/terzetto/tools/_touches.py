"""What a call touches: `Read` and `Write`, when two calls conflict, and who holds what.

A touched resource is a fair readers-writer lock that nobody ever waits for by itself: the
batch asks `Held` before each start, in model order, so no cycle of waiting calls can arise.
Starting belongs to the batch; what a tool declares, to the tool.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import TypeAlias

from attrs import define, field, frozen

from ..vocabulary import InvalidValue

MAX_TOUCHES = 10_000
"""Most touches of one call; with more, or without an end, it is exclusive."""


def _key(value: object) -> str:
    """The text that names a resource."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise InvalidValue(
            f"a resource is named by a str or a path of str, got {type(value).__name__}; "
            "give its name as text"
        )
    return str.__str__(text)


@frozen
class Read:
    """The call reads *resource*: it may overlap other reads of it, never a `Write`.

    *resource* is a text of your choice, or a path, which stands for its text. Two names are
    the same resource if and only if their texts are equal: nothing is resolved, looked up or
    folded, so where ``a`` and ``./a`` are one file, resolve the path yourself.
    Raises `InvalidValue` for any other type.
    """

    resource: str = field(converter=_key)


@frozen
class Write:
    """The call changes *resource*: it overlaps no other call that touches it.

    *resource* is named as for `Read`.
    """

    resource: str = field(converter=_key)


Touch: TypeAlias = Read | Write
Toucher: TypeAlias = Callable[[Mapping[str, object]], Iterable[Touch] | None]
"""Given the checked arguments of a call: what it touches, or None for an exclusive call."""


@frozen
class Claim:
    """What one call touches, each resource once: one that is written is not also read."""

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()


NOTHING = Claim()
"""The claim of a call that conflicts with none."""


def claim_of(touches: object) -> Claim | None:
    """The claim of what a tool's ``touches`` gave; None, for exclusive, if it is ill-typed.

    Ill-typed is all but an iterable of at most `MAX_TOUCHES` `Read` and `Write`. A coroutine
    is closed. Raises what the iterable raises.
    """
    if isinstance(touches, Coroutine):
        with suppress(Exception):  # a finally block of the tool's
            touches.close()
    if isinstance(touches, (str, bytes)) or not isinstance(touches, Iterable):
        return None
    found = list(islice(touches, MAX_TOUCHES + 1))
    if len(found) > MAX_TOUCHES or not all(isinstance(touch, (Read, Write)) for touch in found):
        return None
    writes = frozenset(touch.resource for touch in found if isinstance(touch, Write))
    return Claim(frozenset(touch.resource for touch in found) - writes, writes)


@define(eq=False)
class Held:
    """What the running calls of one batch touch. Every step costs the call's own touches."""

    _readers: dict[str, int] = field(factory=dict)
    _written: set[str] = field(factory=set)

    def conflicts(self, claim: Claim) -> bool:
        """Whether a call with *claim* conflicts with a running one."""
        return (
            not self._written.isdisjoint(claim.reads)
            or not self._written.isdisjoint(claim.writes)
            or any(resource in self._readers for resource in claim.writes)
        )

    def take(self, claim: Claim) -> None:
        """A call that conflicts with none starts."""
        self._written |= claim.writes
        for resource in claim.reads:
            self._readers[resource] = self._readers.get(resource, 0) + 1

    def release(self, claim: Claim) -> None:
        """It does not run any more."""
        self._written -= claim.writes
        for resource in claim.reads:
            self._readers[resource] -= 1
            if not self._readers[resource]:
                del self._readers[resource]
