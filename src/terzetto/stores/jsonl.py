"""The store of JSON-lines files: `JsonlStore`, one file a session."""

from ._jsonl import JsonlHandle as JsonlHandle, JsonlStore as JsonlStore
