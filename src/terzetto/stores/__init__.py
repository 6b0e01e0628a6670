"""Floor 2: where logs are kept."""

from ._base import ReadHandle as ReadHandle, Store as Store, WriteHandle as WriteHandle
from ._jsonl import JsonlStore as JsonlStore
from ._memory import MemoryHandle as MemoryHandle, MemoryStore as MemoryStore
from ._sqlite import SqliteStore as SqliteStore
