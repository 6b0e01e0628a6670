"""The store in one SQLite database: `SqliteStore`."""

from ._sqlite import (
    SqliteHandle as SqliteHandle,
    SqliteReader as SqliteReader,
    SqliteStatistics as SqliteStatistics,
    SqliteStore as SqliteStore,
)
