"""Where stores are put: on the disk, and in memory, where a sync costs nothing.

On the disk the time is the disk's, and no two moments agree on it; so those rows are shown
and never judged. In memory everything that is left is the processor's time, and that is what
is taken there, of all threads together.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

from terzetto import JsonlStore, SqliteStore, Store

from ._measure import Clock

Kind: TypeAlias = Literal["jsonl", "sqlite"]
Where: TypeAlias = Literal["disk", "memory"]

KINDS: tuple[Kind, ...] = ("jsonl", "sqlite")
MAKE: Mapping[Kind, Callable[[Path], Store]] = {
    "jsonl": lambda folder: JsonlStore(folder / "sessions"),
    "sqlite": lambda folder: SqliteStore(folder / "sessions.db"),
}
CLOCKS: Mapping[Where, Clock] = {"disk": time.perf_counter, "memory": time.process_time}
_MEMORY = Path("/dev/shm")


def places() -> list[Where]:
    """Both, or the disk alone where there is no file system in memory that we know of."""
    return ["disk", "memory"] if os.access(_MEMORY, os.W_OK) else ["disk"]


@contextmanager
def folder(where: Where) -> Iterator[Path]:
    """A new, empty folder, removed with everything in it. ``TMPDIR`` says which disk."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=_MEMORY if where == "memory" else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)
