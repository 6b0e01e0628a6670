"""What the tests of stores share: one of each kind, and sessions in them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from terzetto.stores import JsonlStore, MemoryStore, SqliteStore, Store, WriteHandle
from terzetto.testing import SimulatedDisk
from terzetto.vocabulary import Event, SessionHeader, SessionId, TurnStart

LAYOUTS = ["packed", "zstd"]
"""Of `JsonlStore`, besides the one that "jsonl" stands for."""
KINDS = ["memory", "jsonl", *LAYOUTS, "sqlite", "simulated"]
BAD_IDS = ["../evil", "/etc/passwd", "a/b", "..", ".", "", "a\x00b", "a\\b", "\n", "x" * 300]
HEADER = SessionHeader(id=SessionId("s"), created_ms=5)


@contextmanager
def fresh(kind: str, **options: Any) -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder:
        yield made_in(Path(folder) / "in", kind, **options)


def made_in(folder: Path, kind: str, **options: Any) -> Store:
    """A store whose files are in *folder*, which it makes itself; or in memory."""
    match kind:
        case "memory":
            return MemoryStore(**options)
        case "simulated":
            return SimulatedDisk(**options)
        case "jsonl":
            return JsonlStore(folder, **options)
        case "packed" | "zstd":
            return JsonlStore(folder, layout=kind, **options)
        case "sqlite":
            return SqliteStore(folder / "sessions.db", **options)
    raise AssertionError(kind)


def turn(seq: int) -> Event:
    return Event(seq, 1000 + seq, TurnStart(seq))


async def filled(store: Store, count: int, header: SessionHeader = HEADER) -> WriteHandle:
    handle = await store.create(header)
    for seq in range(count):
        handle.append(turn(seq))
    await handle.flush()
    return handle
