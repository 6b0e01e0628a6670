"""Every fork of a turn, as a function of values.

The driver asks, these answer; nothing here waits or writes.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import frozen

from ..vocabulary import (
    Aborted,
    Blocked,
    CallConfig,
    Completed,
    DeveloperBlock,
    DisposedCause,
    EndedAtMaxTokens,
    Failed,
    FinishReason,
    HeaderReason,
    MaxTokens,
    ModelSelection,
    RequestHeader,
    ToolAdditionBlock,
    ToolRemovalBlock,
    TurnEnding,
)

NextMove: TypeAlias = Literal["step", "stopping"]


@frozen
class StepResult:
    """How a step came out. *owes*: tool results that no request has carried yet.

    *finish* is None for a step that was interrupted before its answer was complete.
    """

    finish: FinishReason | None
    owes: bool


def after_step(result: StepResult, next_step_pending: bool) -> NextMove:
    """Another step runs when tools owe a request or next-step input waits (C64)."""
    return "step" if result.owes or next_step_pending else "stopping"


def sticky_max_tokens(before: bool, finish: FinishReason | None) -> bool:
    """Once the limit cut an answer the turn cannot look complete any more (C65)."""
    return before or isinstance(finish, MaxTokens)


def natural_ending(hit_max_tokens: bool) -> TurnEnding:
    return _AT_THE_LIMIT if hit_max_tokens else _COMPLETED


# Kept in every log that is in memory, and there may be thousands.
_AT_THE_LIMIT, _COMPLETED = EndedAtMaxTokens(), Completed()


def opens_step(entered: int, owes: bool) -> bool:
    """An emptied batch spends no request, unless tool results wait for one (C71)."""
    return entered > 0 or owes


@frozen(kw_only=True)
class Convergence:
    """What the driver knows when a turn has ended.

    *latched*: waking input came after the cancel. *late_wake*: it came after `turn/end`.
    *asked*: somebody waits for a pending message.
    """

    ending: TurnEnding | None
    queued: bool
    pending: bool
    latched: bool
    late_wake: bool
    asked: bool
    closing: bool


NextState: TypeAlias = Literal["turn", "idle", "idle, then turn"]


def after_turn(state: Convergence) -> NextState:
    """Whether the queue goes on, parks, or is woken again.

    A normal end goes on with the queue; failure, rejection and cancellation park it
    until the next wake. A latched wake shows its own idle and running.
    """
    if state.closing:
        return "idle"
    if state.asked:
        return "turn"
    match state.ending:
        case Completed() | EndedAtMaxTokens():
            goes_on = state.queued or (state.late_wake and state.pending)
            return "turn" if goes_on else "idle"
        case Blocked() | Failed():
            return "turn" if state.late_wake and state.pending else "idle"
        case Aborted(cause=DisposedCause()):
            return "idle"
        case _:
            return "idle, then turn" if state.latched and state.pending else "idle"


def next_config(
    last: RequestHeader | None, selection: ModelSelection, max_tokens: int | None
) -> CallConfig:
    """The configuration that `request` listeners start from (C82).

    Explicit settings of the last header persist, adapter defaults are dropped so that
    the route resolves them anew; the route is the selection's.
    """
    options: dict[str, object] = {}
    if last is not None:
        options = dict(last.config.options)
        if max_tokens is None and "maxTokens" not in last.adapter_defaults:
            max_tokens = last.config.max_tokens
    return CallConfig(
        provider=selection.provider,
        model=selection.model,
        effort=selection.effort,
        max_tokens=max_tokens,
        options=options,
    )


def route_change(proposed: CallConfig, selection: ModelSelection) -> str | None:
    """What a `request` listener changed that it may not, in words (C78)."""
    for name in ("provider", "model", "effort"):
        before, after = getattr(selection, name), getattr(proposed, name)
        if before != after:
            return f"{name} from {before!r} to {after!r}"
    return None


@frozen
class HeaderDecision:
    reason: HeaderReason
    starts_series: bool


def header_needed(
    *,
    last: RequestHeader | None,
    header: RequestHeader,
    first_of_instance: bool,
    starts_series: bool,
) -> HeaderDecision | None:
    """Whether and why the next request writes a full header (C80)."""
    if first_of_instance:
        return HeaderDecision("initial" if last is None else "resume", starts_series)
    if last != header:
        return HeaderDecision("change", starts_series)
    if starts_series:
        return HeaderDecision("series", False)
    return None


def tool_changes(last: RequestHeader, header: RequestHeader) -> tuple[DeveloperBlock, ...]:
    """Additions in current order, then removals in former order, by name (C100)."""
    before = {tool.name for tool in last.tools}
    after = {tool.name for tool in header.tools}
    added = [ToolAdditionBlock(tool.name) for tool in header.tools if tool.name not in before]
    removed = [ToolRemovalBlock(tool.name) for tool in last.tools if tool.name not in after]
    return (*added, *removed)
