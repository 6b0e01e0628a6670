"""The store of JSON-lines files: `JsonlStore`, one file a session."""

from ._jsonl import (
    JsonlHandle as JsonlHandle,
    JsonlReader as JsonlReader,
    JsonlStore as JsonlStore,
)
