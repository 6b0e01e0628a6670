"""The suite that every store passes: run it on yours.

A law is a promise of `terzetto.Store` or `terzetto.WriteHandle`, and a small program that
finds out whether a store keeps it (`_store_laws.py`, `_store_laws_of_all.py`,
`_store_laws_of_reading.py`, `_store_cancelling.py`). Here they are run, and here is what is
said of a store that breaks one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

import trio
from attrs import frozen

from ..stores import Store
from ..vocabulary import InvalidValue, chain_text, single
from . import _store_cancelling, _store_laws, _store_laws_of_all, _store_laws_of_reading
from ._store_bench import Bench, Failing, Law, Reopen, Tear

MakeStore: TypeAlias = Callable[[], Store]
_ALL = (
    *_store_laws.LAWS,
    *_store_laws_of_all.LAWS,
    *_store_laws_of_reading.LAWS,
    *_store_cancelling.LAWS,
)
_LAWS: dict[str, Law] = {law.__name__: law for law in _ALL}
STORE_LAWS: tuple[str, ...] = tuple(_LAWS)
"""The names of all laws, each saying what it is about, in the order in which they are checked."""


@frozen
class BrokenLaw:
    """A promise that a store does not keep: the *law*'s name, and the *problem* in words."""

    law: str
    problem: str

    def __str__(self) -> str:
        return f"{self.law}: {self.problem}"


class BrokenStore(AssertionError):
    """What `check_store` raises: *broken* are the laws that the store breaks, in words."""

    def __init__(self, broken: tuple[BrokenLaw, ...], kept: int) -> None:
        lines = "\n".join(f"- {law}" for law in broken)
        super().__init__(f"{kept} laws kept, {len(broken)} broken:\n{lines}")
        self.broken = broken


@frozen
class StoreVerdict:
    """What `check_store` returns: names of the laws that were *kept*, and of those that were
    *skipped* for want of what they need."""

    kept: tuple[str, ...]
    skipped: tuple[str, ...]

    def __str__(self) -> str:
        skipped = f", skipped: {', '.join(self.skipped)}" if self.skipped else ""
        return f"{len(self.kept)} laws kept{skipped}"


async def check_store(
    make_store: MakeStore,
    *,
    reopen: Reopen | None = None,
    tear: Tear | None = None,
    failing: Failing | None = None,
    only: Collection[str] | None = None,
    seconds: float = 60.0,
) -> StoreVerdict:
    """Check that a store keeps the laws of `terzetto.Store`, each on a fresh one.

    Args:
        make_store: Makes an empty store, without `Extension` names; called once for each law.
        reopen: Another store over the storage of the given one, as another process would
            make it. With it, what is stored is read there, and ownership is tried there.
        tear: Damages a session that nobody owns as a process would that died while it was
            writing one more record; the store to go on with. Absent for a store that has no
            torn ends.
        failing: A block in which every write of the given store fails.
        only: Names of laws (`STORE_LAWS`) to check; all when absent.
        seconds: How long one law may take.

    Raises:
        BrokenStore: laws are broken; it says which, and how. All of them are checked first.
        InvalidValue: there is no law of a name in *only*.

    Works with any clock, but a clock that jumps only suits stores without threads.
    """
    wanted = _LAWS if only is None else only
    if unknown := sorted(set(wanted) - _LAWS.keys()):
        raise InvalidValue(f"only: there is no law {unknown[0]!r}; STORE_LAWS has all names")
    given = {"tear": tear, "failing": failing}
    kept: list[str] = []
    skipped: list[str] = []
    broken: list[BrokenLaw] = []
    for name in (name for name in _LAWS if name in wanted):
        if given.get(_store_laws_of_all.NEEDS.get(name, ""), ...) is None:
            skipped.append(name)
            continue
        bench = Bench(make_store(), reopen, tear, failing)
        problem = await _problem(_LAWS[name], bench, seconds)
        if problem is None:
            kept.append(name)
        else:
            broken.append(BrokenLaw(name, problem))
    if broken:
        raise BrokenStore(tuple(broken), len(kept))
    return StoreVerdict(tuple(kept), tuple(skipped))


async def _problem(function: Law, bench: Bench, seconds: float) -> str | None:
    try:
        with trio.fail_after(seconds):
            if found := await bench.store.list():
                return f"make_store has to give an empty store; it has session {found[0].id!r}"
            await function(bench)
    except trio.TooSlowError:
        return f"it did not come to an end within {seconds:g} s"
    except Exception as error:  # a store: somebody else's code
        inner = single(error)
        if isinstance(inner, AssertionError):
            return str(inner) or "an assertion of the store's own failed"
        return f"{type(inner).__name__} was raised: {chain_text(inner)}"
    return None
