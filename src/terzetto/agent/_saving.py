"""Saving: how one session's events become durable, and what is in the way of it."""

from __future__ import annotations

from typing import Protocol

from attrs import define

from ..llm import failure_of
from ..session import Session
from ..vocabulary import Failure, StoreError, UsageError, chain_text, texts


class WritePath(Protocol):
    """How a session's events reach its store, and how that ends."""

    async def flush(self) -> None: ...

    async def close(self) -> None: ...


class NoStore:
    """Memory-only sessions: nothing to wait for."""

    async def flush(self) -> None:
        return None

    async def close(self) -> None:
        return None


@define(eq=False)
class Saving:
    """The write path of one agent. *trouble* stands from a flush that failed to the next
    that succeeds."""

    session: Session
    path: WritePath
    trouble: Failure | None = None

    async def flush(self) -> None:
        """Return once everything in the log is durable, as far as the store promises.

        Raises `StoreError`, whatever the store failed with.
        """
        try:
            await self.path.flush()
        except (StoreError, UsageError) as error:
            self.trouble = store_failure(error)
            raise
        except Exception as error:  # a store: somebody else's code
            raised = StoreError(f"the store failed: {chain_text(error)}")
            self.trouble = store_failure(raised)
            raise raised from error
        self.trouble = None
        self.session.bell.ring()


def store_failure(error: Exception) -> Failure:
    """The facts of *error*, under the code ``STORE``."""
    return Failure(message=failure_of(error).message, code=texts.STORE)
