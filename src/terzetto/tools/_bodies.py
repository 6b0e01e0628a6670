"""The frames under which bodies of tools run, in a task or in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import trio

from ._run import ToolRun
from ._spill import await_spill, call_spill
from ._tool import Tool


class _SlotTaken:
    """A limiter for a thread whose slot is held already: no checkpoint, so that nothing
    can come between the check for cancellation and the start."""

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        return None

    def release_on_behalf_of(self, borrower: object) -> None:
        return None


SLOT_TAKEN = cast(trio.CapacityLimiter, _SlotTaken())


# The engine gives these two back the KeyboardInterrupt that its own frames hold off.
async def await_body(tool: Tool, arguments: object, run: ToolRun | None) -> object:
    """Run an async body in this task."""
    began: Any = tool.call(arguments, run)
    return await began


def call_body(tool: Tool, arguments: object, run: ToolRun | None) -> tuple[object]:
    """Run a plain body, in a worker thread. In a tuple, for Trio raises over a coroutine."""
    return (tool.call(arguments, run),)


def unprotected_frames() -> tuple[Callable[..., object], ...]:
    """The frames under which tool bodies and spills run: they stay interruptible."""
    return (await_body, call_body, await_spill, call_spill)
