"""Seeded defects: what the engine and the stores must not do. Does anybody see it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import define

from terzetto import Durability
from terzetto.agent import _beginning, _step
from terzetto.session import _recovery
from terzetto.stores import Store, WriteHandle, _jsonl_file
from terzetto.vocabulary import Event, SessionHeader


def seed_defect(name: str) -> None:
    """Plant it in this process, for its whole life."""
    DEFECTS[name]()


def starts_early() -> None:
    """Bodies start while their calls are not saved."""
    _step.StepLog.must_flush = lambda self, *args: False  # type: ignore[method-assign]


def forgets_starts() -> None:
    """Recovery says of recorded calls that they never started."""
    _recovery._UNKNOWN = _recovery._NOT_STARTED


def trusts_lazy() -> None:
    """Recovery takes a lazy store for one that had promised something about starts."""
    _beginning.evolve = lambda closing, **changes: closing  # type: ignore[attr-defined]


def no_sync() -> None:
    """Logs are written, and never synced."""
    _jsonl_file.sync = lambda fd: None


def nothing() -> None:
    """The store does it: see `lying`."""


DEFECTS: dict[str, Callable[[], None]] = {
    "starts early": starts_early,
    "forgets starts": forgets_starts,
    "trusts lazy": trusts_lazy,
    "no sync": no_sync,
    "says saved": nothing,
}

SEEDED: Sequence[tuple[str, str, Durability, bool, str]] = (
    ("says saved", "jsonl", "step", False, "was durable"),
    ("says saved", "sqlite", "lazy", False, "was durable"),
    ("says saved", "sqlite", "each", False, "was durable"),
    ("starts early", "jsonl", "step", False, "is in no log"),
    ("starts early", "sqlite", "step", False, "is in no log"),
    ("forgets starts", "sqlite", "each", False, "began, and its result says TOOL_NOT_STARTED"),
    ("trusts lazy", "jsonl", "lazy", False, "a lazy log says that a call was not started"),
    ("no sync", "jsonl", "step", True, "was durable"),
)
"""Each with a store, a level, whether the power is cut, and what must be said of it."""


def lying(store: Store) -> Any:
    """*store*, which acknowledges without writing: it writes every fifth time only."""
    return _Liar(store)


@define
class _Liar:
    store: Any

    async def create(self, header: SessionHeader) -> _Lie:
        return _Lie(await self.store.create(header))

    async def open(self, *args: Any, **options: Any) -> _Lie:
        return _Lie(await self.store.open(*args, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class _Lie:
    def __init__(self, handle: WriteHandle) -> None:
        self._handle = handle
        self.durable_seq = handle.durable_seq
        self._next = handle.durable_seq + 1
        self._flushes = 0

    def append(self, event: Event) -> None:
        self._handle.append(event)
        self._next = event.seq + 1

    async def flush(self) -> None:
        self._flushes += 1
        if self._flushes % 5 == 0:
            await self._handle.flush()
        self.durable_seq = self._next - 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)
