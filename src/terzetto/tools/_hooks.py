"""What tool hooks see and decide."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from attrs import define, evolve, field, frozen

from ..hooks import Notification, Waterfall
from ..session import AgentView
from ..vocabulary import TextBlock, ToolCallBlock, UserMessage
from ..vocabulary._opening import opened
from ._tool import Tool, ToolOutcome


@frozen
class ToolCallHook:
    """One call of *agent*. *tool* is None when no visible tool has its name."""

    agent: AgentView
    call: ToolCallBlock
    tool: Tool | None


@frozen
class ToolResultHook:
    """A call with its outcome, before post-execute listeners or after all of them."""

    agent: AgentView
    call: ToolCallBlock
    tool: Tool | None
    outcome: ToolOutcome

    def replaced(self, text: str, contexts: tuple[UserMessage, ...] = ()) -> ToolOutcome:
        """The outcome with its content replaced by *text*; *contexts* are added."""
        return evolve(
            self.outcome,
            content=(TextBlock(text),),
            contexts=self.outcome.contexts + contexts,
        )

    def blocked(self, feedback: str, contexts: tuple[UserMessage, ...] = ()) -> ToolOutcome:
        """An error with *feedback*. The tool's own contexts and conclusion are dropped."""
        return ToolOutcome((TextBlock(feedback),), True, None, contexts)


_OpenCall, _OpenResult = opened(ToolCallHook), opened(ToolResultHook)


def call_hook(agent: AgentView, call: ToolCallBlock, tool: Tool | None) -> ToolCallHook:
    """A `ToolCallHook`, built quickly: with a listener there are two for each call."""
    made = _OpenCall()
    made.agent = agent
    made.call = call
    made.tool = tool
    made.__class__ = ToolCallHook
    hook: ToolCallHook = made
    return hook


def result_hook(
    agent: AgentView, call: ToolCallBlock, tool: Tool | None, outcome: ToolOutcome
) -> ToolResultHook:
    """A `ToolResultHook`, as `call_hook`."""
    made = _OpenResult()
    made.agent = agent
    made.call = call
    made.tool = tool
    made.outcome = outcome
    made.__class__ = ToolResultHook
    hook: ToolResultHook = made
    return hook


@frozen
class Allow:
    """Run the call."""


@frozen
class Deny:
    """Do not run it; the model is told *reason*."""

    reason: str = ""


@frozen
class Ask:
    """Ask the approver; without one this denies."""

    reason: str = ""


PreExecute: TypeAlias = Allow | Deny | Ask
Approver: TypeAlias = Callable[[ToolCallHook, str], Awaitable[bool]]
"""Given a call and the reason for asking: whether this one call may run."""


@define(eq=False)
class ToolHooks:
    """The hook points of the tool pipeline for one scope."""

    pre_execute: Waterfall[ToolCallHook, PreExecute] = field()
    execute: Waterfall[ToolCallHook, ToolOutcome] = field()
    post_execute: Waterfall[ToolResultHook, ToolOutcome] = field()
    result: Notification[ToolResultHook] = field()
