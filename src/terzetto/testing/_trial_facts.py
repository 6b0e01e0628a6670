"""What is noted of a trial: when it was struck, who heard of it, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import trio
from attrs import field, frozen

from ..vocabulary import chain_text
from ._places import raised_at

How: TypeAlias = Literal["cancel", "deadline"]


@frozen
class Strike:
    """Cancel before or after a step: at the *moment*-th one, counted from 1."""

    moment: int
    how: How = "cancel"


@frozen
class Ending:
    """How the function ended. *cancelled*: with its cancellation, alone or in a group;
    *rest*: what else it raised, in words, and *place*, where. *group*: both at once."""

    returned: bool = False
    value: object = None
    cancelled: bool = False
    rest: str | None = None
    kind: str = ""
    place: str | None = None


@frozen
class Delivery:
    """The cancellation reached *task* when it waited at *place*; *effects* had happened."""

    task: trio.lowlevel.Task | None = field(repr=False)
    place: str | None
    effects: int
    seen: object = None
    main: bool = True


def has_cancelled(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None
    return isinstance(error, trio.Cancelled)


def cancelled_part(error: BaseException) -> BaseException:
    if isinstance(error, BaseExceptionGroup):
        part = error.subgroup(trio.Cancelled)
        assert part is not None
        return part
    return error


def ended(error: BaseException) -> Ending:
    cancelled = has_cancelled(error)
    rest: BaseException | None = error
    if cancelled:
        split = error.split(trio.Cancelled)[1] if isinstance(error, BaseExceptionGroup) else None
        rest = split
    if rest is None:
        return Ending(cancelled=True)
    inner: BaseException = rest
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return Ending(
        cancelled=cancelled,
        rest=f"{type(inner).__name__}: {chain_text(inner)}"[:300],
        kind=type(inner).__name__,
        place=raised_at(inner.__traceback__) or raised_at(error.__traceback__),
    )


def strikes(moments: int, limit: int, hows: Sequence[How]) -> Iterator[Strike]:
    """Strikes at *moments*, evenly at most *limit* of them."""
    stride = max(1, -(-moments * len(hows) // limit))
    every = [Strike(m, how) for m in range(1, moments + 1) for how in hows]
    return iter(every[::stride])
