"""Every fixed text and name that the model or the log format sees, once.

They are part of the format (reference: dsh-agent-loop, dsh-session, dsh-tools);
all other texts are ours to choose and live where they are made.
"""

from collections.abc import Sequence

SYSTEM_PROMPT_PLUGIN = "@deepseek-ai/dsh-system-prompt"
"""Source of system messages and of runtime-context snapshots."""

SNAPSHOT_FORM = "snapshot"
CONTEXT_SNAPSHOT = (
    "Current runtime context. This snapshot supersedes earlier runtime-context snapshots."
)
CONTEXT_CLEARED = (
    "Current runtime context: none. Earlier runtime-context snapshots no longer apply."
)

UNLISTED_TOOLS = "<unlisted-tools>"
"""Where the tools that an explicit order does not name go."""

ABORTED_TEXT = "Error: tool call aborted"
ABORTED_BEFORE_DISPATCH_TEXT = "Error: tool call aborted before dispatch"
ABORT_ERROR = "AbortError"
ABORTED = "ABORTED"
ABORTED_BEFORE_DISPATCH = "ABORTED_BEFORE_DISPATCH"

TOOL_OUTCOME_UNKNOWN = "TOOL_OUTCOME_UNKNOWN"
TOOL_OUTCOME_UNKNOWN_ERROR = "ToolOutcomeUnknownError"
TOOL_OUTCOME_UNKNOWN_TEXT = (
    "The tool call was interrupted after it was recorded, but no result was durably recorded. "
    "Its outcome is unknown. Decide whether to retry from the tool semantics: retry only if the "
    "operation is read-only or idempotent; if it may have side effects, first verify external "
    "state or ask the user. Do not retry blindly."
)
TOOL_NOT_STARTED = "TOOL_NOT_STARTED"
TOOL_NOT_STARTED_ERROR = "ToolNotStartedError"
TOOL_NOT_STARTED_TEXT = (
    "The tool call was interrupted before the Harness recorded it as started. "
    "Retry it if it is still needed."
)

UNKNOWN_TOOL = "UNKNOWN_TOOL"
UNKNOWN_TOOL_ERROR = "ToolNotFoundError"
INVALID_ARGS = "INVALID_ARGS"
INVALID_ARGS_ERROR = "ToolArgumentsError"
INVALID_TOOL_OUTPUT = "INVALID_TOOL_OUTPUT"
INVALID_TOOL_OUTPUT_ERROR = "ToolOutputError"
TOOL_TIMEOUT = "TOOL_TIMEOUT"
TOOL_TIMEOUT_ERROR = "ToolTimeoutError"

ANSWER_TOOL = "answer"
"""The tool that a typed answer is given with."""
ANSWER_PLUGIN = "terzetto-answer"
"""Source of the message that asks once more for a typed answer."""
ANSWER_TOOL_TEXT = (
    "Gives your final answer and ends your turn. Call it once, when you are done; "
    "an answer in plain text is not read."
)
ANSWER_TAKEN_TEXT = "The answer was received."
NO_ANSWER = "NO_ANSWER"

UNKNOWN = "UNKNOWN"
NO_ADAPTER = "NO_ADAPTER"
NO_ROUTE = "NO_ROUTE"
ROUTE_CHANGED = "ROUTE_CHANGED"
REQUEST_CHANGED = "REQUEST_CHANGED"
INVARIANT = "INVARIANT"
UNSUPPORTED_REASONING_EFFORT = "UNSUPPORTED_REASONING_EFFORT"
STORE = "STORE"
DEFECT = "DEFECT"


def unknown_tool_text(name: str) -> str:
    """The result of a call to a tool that is not there."""
    return f'Error: unknown tool "{name}"'


def error_text(message: str) -> str:
    """The result text of a tool body that raised."""
    return f"Error: {message}"


def approval_text(name: str) -> str:
    """The reason of an `Ask` without one of its own, when nobody can approve."""
    return f'tool "{name}" requires approval (not yet supported)'


def answer_missing_text(names: Sequence[str], *, cut: bool) -> str:
    """What the model is told when its turn would end without the typed answer."""
    before = "Your last message was cut off at the output limit. " if cut else ""
    tools = " or ".join(f"`{name}`" for name in names)
    return (
        f"{before}Your answer has not been received: plain text is not read here. "
        f"Call the tool {tools} now, with arguments that fit its schema."
    )
