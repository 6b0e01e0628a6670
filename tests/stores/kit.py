"""What the tests of stores share: one of each kind, and sessions in them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from terzetto.stores import JsonlStore, MemoryStore, Store, WriteHandle
from terzetto.testing import SimulatedDisk
from terzetto.vocabulary import Event, SessionHeader, SessionId, TurnStart

KINDS = ["memory", "jsonl", "simulated"]
BAD_IDS = ["../evil", "/etc/passwd", "a/b", "..", ".", "", "a\x00b", "a\\b", "\n", "x" * 300]
HEADER = SessionHeader(id=SessionId("s"), created_ms=5)


@contextmanager
def fresh(kind: str, **options: Any) -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder:
        match kind:
            case "memory":
                yield MemoryStore(**options)
            case "simulated":
                yield SimulatedDisk(**options)
            case _:
                yield JsonlStore(folder, **options)


def turn(seq: int) -> Event:
    return Event(seq, 1000 + seq, TurnStart(seq))


async def filled(store: Store, count: int, header: SessionHeader = HEADER) -> WriteHandle:
    handle = await store.create(header)
    for seq in range(count):
        handle.append(turn(seq))
    await handle.flush()
    return handle
