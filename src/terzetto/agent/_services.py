"""What an engine lends to each of its agents."""

from __future__ import annotations

import trio
from attrs import define, field

from ..llm import ModelRuntime
from ..tools import Approver, Spill, ToolExecutor
from ..vocabulary import InvalidValue


def _positive(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidValue(f"max_parallel_tool_calls: expected a positive integer, got {value!r}")
    return value


@define(eq=False)
class Settings:
    """Live settings of an engine. An edit applies to the next batch (C12)."""

    max_parallel_tool_calls: int = field(
        default=10,
        converter=_positive,
        on_setattr=lambda settings, attribute, value: _positive(value),
    )
    """Most tool bodies of one batch at once; 1 means one after the other."""


@define(eq=False)
class Services:
    """The shared parts: the models, the executor, the approver, the thread limiter, the spill."""

    runtime: ModelRuntime
    executor: ToolExecutor
    settings: Settings
    approver: Approver | None
    thread_limiter: trio.CapacityLimiter
    spill: Spill | None = None
