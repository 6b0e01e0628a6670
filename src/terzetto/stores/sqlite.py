"""The store in one SQLite database: `SqliteStore`."""

from ._sqlite import (
    SqliteHandle as SqliteHandle,
    SqliteStatistics as SqliteStatistics,
    SqliteStore as SqliteStore,
)
