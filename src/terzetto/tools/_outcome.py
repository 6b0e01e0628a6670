"""Outcomes of tool calls: what the model reads, and what the engine does about it.

The fixed texts and codes are part of the log's format (``vocabulary.texts``); the runs
of ``conformance/`` show which failures have a code and which do not.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeAlias

from attrs import evolve, frozen

from ..vocabulary import TextBlock, ToolErrorInfo, UserMessage, chain_text, texts
from ..vocabulary._opening import opened
from ._encode import bound

Content: TypeAlias = tuple[TextBlock, ...]


@frozen
class ToolOutcome:
    """What came of one call: what the model reads, and what the engine does about it.

    *error* is there for failures that have a code. *contexts* enter the next step after
    the results of this one; *concludes* asks to end the turn, and counts on success only.
    """

    content: Content
    is_error: bool
    error: ToolErrorInfo | None = None
    contexts: tuple[UserMessage, ...] = ()
    concludes: bool = False


_Open = opened(ToolOutcome)


def success(
    content: Content, *, contexts: tuple[UserMessage, ...] = (), concludes: bool = False
) -> ToolOutcome:
    """The body returned; *content* is its result, encoded."""
    made = _Open()  # built quickly: nearly every call has one
    made.content = content
    made.is_error = False
    made.error = None
    made.contexts = contexts
    made.concludes = concludes
    made.__class__ = ToolOutcome
    outcome: ToolOutcome = made
    return outcome


def failure(text: str, name: str | None = None, code: str | None = None) -> ToolOutcome:
    """An error result of *text* as it is; with *name* and *code*, if it has a code."""
    info = None if code is None else ToolErrorInfo(name or "Error", code)
    return ToolOutcome((TextBlock(text),), True, info)


# Values: a cancel answers every call of a batch with one of them.
_ABORTED = failure(texts.ABORTED_TEXT, texts.ABORT_ERROR, texts.ABORTED)
_UNSTARTED = failure(
    texts.ABORTED_BEFORE_DISPATCH_TEXT, texts.ABORT_ERROR, texts.ABORTED_BEFORE_DISPATCH
)


def raised(error: BaseException, limit: int | None = None) -> ToolOutcome:
    """The result of a body, or of a listener's code, that raised *error*.

    Its text is the chain of exceptions, at most *limit* bytes of it. An exception with a
    text `code` gives that code, and its own `name` or that of its class (C116).
    """
    code = name = None
    if isinstance(error, Exception):  # the code of a SystemExit is a message
        with suppress(Exception):  # somebody else's properties
            code, name = getattr(error, "code", None), getattr(error, "name", None)
    if not (isinstance(code, str) and code):
        return _bounded(failure(texts.error_text(_told(error))), limit)
    if not (isinstance(name, str) and name):
        name = type(error).__name__
    return _bounded(failure(texts.error_text(_told(error)), name, code), limit)


def _told(error: BaseException) -> str:
    """The chain of *error*, less the cancellation it may have been raised from.

    "The tool observed its cancel" is the tool's text; that it was raised while a
    `Cancelled` was handled says nothing more.
    """
    text = chain_text(error)
    link: BaseException | None = error
    seen = set[int]()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        implicit = None if link.__suppress_context__ else link.__context__
        if link.__cause__ is None and not isinstance(implicit, Exception | None):
            return text.removesuffix(f": {chain_text(implicit)}")
        link = link.__cause__ or implicit
    return text


def _bounded(outcome: ToolOutcome, limit: int | None) -> ToolOutcome:
    return evolve(outcome, content=bound(outcome.content, limit))


def aborted() -> ToolOutcome:
    """The body had started when it was cancelled."""
    return _ABORTED


def aborted_before_dispatch() -> ToolOutcome:
    """The call was cancelled before its body started."""
    return _UNSTARTED


def unknown_tool(name: str) -> ToolOutcome:
    """No visible tool has this name."""
    return failure(texts.unknown_tool_text(name), texts.UNKNOWN_TOOL_ERROR, texts.UNKNOWN_TOOL)


def invalid_arguments(text: str) -> ToolOutcome:
    """The arguments do not fit; *text* is that of `InvalidArguments`."""
    return failure(texts.error_text(text), texts.INVALID_ARGS_ERROR, texts.INVALID_ARGS)


def invalid_output(text: str) -> ToolOutcome:
    """The result has no text form; *text* is that of `InvalidOutput`."""
    return failure(
        texts.error_text(text), texts.INVALID_TOOL_OUTPUT_ERROR, texts.INVALID_TOOL_OUTPUT
    )


def timed_out(seconds: float) -> ToolOutcome:
    """The tool's own timeout ended the body."""
    text = texts.error_text(f"tool call timed out after {seconds:g} s")
    return failure(text, texts.TOOL_TIMEOUT_ERROR, texts.TOOL_TIMEOUT)


def denied(reason: str) -> ToolOutcome:
    """Policy did not let the call run. Denials have no code."""
    return failure(texts.error_text(reason))
