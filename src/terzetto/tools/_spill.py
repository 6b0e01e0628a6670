"""`spill`: where the full text of a result goes that is cut before it enters history.

Owns what a spill is given and what it may give back, and the words that the model reads of
it. When there is something to spill is the pipeline's business.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeAlias, cast

import trio
from attrs import field, frozen

from ..session import AgentView
from ..vocabulary import CallId, InvalidValue, clean_text
from ._signature import either

logger = logging.getLogger("terzetto")

MAX_REFERENCE_BYTES = 1024
"""Most bytes of UTF-8 in a reference; a longer one would take the place of the result."""

NOT_KEPT = "; the full text could not be kept"


@frozen(kw_only=True)
class LongResult:
    """A result that is longer than its tool allows, as ``open_engine(spill=...)`` gets it.

    *text* is all of it, without lone surrogates. *tool* is the name of a registered tool.
    *call_id* is what the model's provider wrote: it may occur twice, and holds whatever it
    likes, so make no file name of it.
    """

    agent: AgentView = field(repr=False)
    call_id: CallId
    tool: str
    text: str = field(repr=False)


Reference: TypeAlias = str | os.PathLike[str] | None
Spill: TypeAlias = Callable[[LongResult], Awaitable[Reference] | Reference]
"""Keeps a long result, and may say where: one line, for the model to ask for it.

An async function is awaited, in the task that commits results; a plain one runs in a worker
thread, under the engine's thread limiter, and cannot be stopped from outside.
"""


def check_spill(spill: object) -> None:
    """Refuse what can never be a `Spill`."""
    yields = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if not callable(spill) or any(either(test, spill) for test in yields):
        raise InvalidValue(
            "spill: expected a function, async or plain, that takes a LongResult, "
            f"got {type(spill).__name__}"
        )


async def spilled(spill: Spill, result: LongResult, limiter: trio.CapacityLimiter) -> str:
    """Let *spill* keep *result*; what the line in the cut text says of it.

    Raises what *spill* raises, and `InvalidValue` for a coroutine that nobody awaits.
    """
    if either(inspect.iscoroutinefunction, spill):
        given = await await_spill(cast(Awaitable[object], spill(result)))
    else:
        (given,) = await trio.to_thread.run_sync(call_spill, spill, result, limiter=limiter)
    if isinstance(given, Coroutine):
        given.close()
        raise InvalidValue("spill: expected a reference, got a coroutine; make it an async def")
    if given is None:
        return ""
    reference = _reference(given)
    if reference is None:
        logger.warning(
            "spill gave a reference that cannot be shown for a call of %r: expected one line of "
            "at most %d bytes, a path or None, got %s; the model is not told where the text is",
            result.tool,
            MAX_REFERENCE_BYTES,
            type(given).__name__,
        )
        return ""
    return f"; full text: {reference}"


def _reference(given: object) -> str | None:
    """The line that names where the text is, or None if *given* is none."""
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str):
        return None
    text = clean_text(str.__str__(text))
    if len(text.splitlines()) != 1 or text.isspace() or min(text) < " ":
        return None
    return text if len(text.encode()) <= MAX_REFERENCE_BYTES else None


# The engine gives these two back the KeyboardInterrupt that its own frames hold off.
async def await_spill(awaitable: Awaitable[object]) -> object:
    """Run an async spill in this task."""
    return await awaitable


def call_spill(spill: Spill, result: LongResult) -> tuple[object]:
    """Run a plain spill, in a worker thread. In a tuple, for Trio raises over a coroutine."""
    return (spill(result),)
