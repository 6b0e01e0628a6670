"""Floor 2: where logs are kept."""

from .._lazy import at_first_use
from ._base import ReadHandle as ReadHandle, Store as Store, WriteHandle as WriteHandle
from ._memory import MemoryHandle as MemoryHandle, MemoryStore as MemoryStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._jsonl import JsonlStore as JsonlStore
    from ._sqlite import SqliteStore as SqliteStore
else:
    __getattr__, __dir__ = at_first_use(
        __name__,
        {
            "._jsonl": "JsonlStore",
            "._sqlite": "SqliteStore",
        },
    )
