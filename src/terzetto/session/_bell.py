"""The bell of a session: how who waits for its log to grow is woken."""

from __future__ import annotations

from typing import Protocol

from ..vocabulary import InvalidValue


class Bell(Protocol):
    """Wakes who waits for the log to grow. Floor 2 and up bring Trio's."""

    def ring(self) -> None: ...

    async def wait(self) -> None: ...

    async def checkpoint(self) -> None:
        """Let others run, and let a cancel be noticed."""
        ...


class SilentBell:
    """For logs that nobody follows."""

    def ring(self) -> None:
        return None

    async def wait(self) -> None:
        raise InvalidValue("this session is not live; read its events instead")

    async def checkpoint(self) -> None:
        return None
