"""What runs the tool calls of one step: the replaceable part, what it is given, what it gives."""

from __future__ import annotations

from typing import Protocol

from attrs import frozen

from ..vocabulary import InvalidValue, ToolCallBlock
from ._pipeline import ToolPipeline
from ._tool import ToolOutcome


class BatchLog(Protocol):
    """Where a batch is recorded. The plain methods append synchronously."""

    def call(self, call: ToolCallBlock) -> int:
        """Record that *call* starts; returns the seq its result cites."""
        ...

    def result(self, call: ToolCallBlock, call_seq: int, outcome: ToolOutcome) -> None:
        """Record the outcome, then hand its contexts to the next step."""
        ...

    def must_flush(self, read_only: bool = False) -> bool:
        """Whether recorded calls are not durable yet, and have to be before a body runs.
        One that is *read_only* may be repeated after a crash."""
        ...

    async def flush(self) -> None:
        """Return once every recorded call is durable, as far as the store promises."""
        ...

    def must_catch_up(self) -> bool:
        """Whether `catch_up` has to be awaited before more is recorded: asked after each
        result."""
        ...

    async def catch_up(self) -> None:
        """Wait for a store that is too far behind."""
        ...


@frozen(kw_only=True)
class ToolBatch:
    """The raw calls of one answer, in the order the model wrote them.

    *capacity*: most bodies running at once, at least 1, for this batch alone.
    """

    calls: tuple[ToolCallBlock, ...]
    capacity: int
    pipeline: ToolPipeline
    log: BatchLog

    def __attrs_post_init__(self) -> None:
        if isinstance(self.capacity, bool) or self.capacity < 1:
            raise InvalidValue(f"capacity: expected a positive integer, got {self.capacity!r}")


@frozen
class BatchResult:
    """*concludes*: a call that succeeded asked to end the turn."""

    concludes: bool


class ToolExecutor(Protocol):
    """The replaceable part that runs batches (C4)."""

    async def execute(self, batch: ToolBatch) -> BatchResult:
        """Run *batch*; return when every call has its result in the log, in model order.

        Cancellation: returns normally all the same, every started body ended and every
        call answered; the caller asks for the cancel itself.
        """
        ...
