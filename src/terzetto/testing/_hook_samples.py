"""What a checked listener is shown: a value or two of every hook, and the decision inside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import frozen

from ..agent import (
    AgentErrorNotice,
    Assembly,
    End,
    Enter,
    InboxNotice,
    PreStep,
    RequestFailed,
    RequestHook,
    SessionStarted,
    StatusChanged,
    TurnStopping,
)
from ..llm import StreamCall
from ..tools import Allow, Deny, ToolCallHook, ToolOutcome, ToolResultHook, tool
from ..vocabulary import (
    CallConfig,
    CallId,
    Failure,
    Finish,
    ModelSelection,
    ProviderError,
    Request,
    RetryPolicy,
    SessionId,
    Stop,
    StreamChunk,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    UserMessage,
)
from ._tool_trials import StandIn

INNER_SECONDS = 1.0
"""Virtual seconds that the inner decision of a waterfall takes."""


@frozen
class Sample:
    """A *value* that is shown, the decision *inside*, made of what is proceeded with, and what
    it is *called*."""

    called: str
    value: Any
    inside: Callable[[Any], object] | None = None


def samples(hook: str) -> list[Sample]:
    """The samples of *hook*. They are made within a run: sessions belong to its thread."""
    return list(_SAMPLES[hook](StandIn()))


@tool
async def _look(path: str) -> str:
    """Look at a file."""
    return path


_ROUTE = ModelSelection("scripted", "m", None)
_CONFIG = CallConfig(provider="scripted", model="m", max_tokens=1000)
_CALL = ToolCallBlock(CallId("call-1"), "look", '{"path": "a.txt"}')
_OUTCOME = ToolOutcome((TextBlock("a line"),), is_error=False)
_ERROR = ToolOutcome((TextBlock("Error: no such file"),), is_error=True)
_FAILURE = Failure(message="try again", code="RATE_LIMIT", status=429)


def _pre_step(agent: StandIn) -> list[Sample]:
    value = PreStep(agent=agent, turn=1, step=1, messages=(UserMessage("hello"),), selection=_ROUTE)
    return [
        Sample("a step", value, lambda v: Enter(v.messages)),
        Sample("a step that starts a series", value, lambda v: Enter(v.messages, True)),
    ]


def _assemble(agent: StandIn) -> list[Sample]:
    value = Assembly(agent=agent, selection=_ROUTE, system="Be brief.", tools=(_look.schema(),))
    return [Sample("an assembly", value, lambda v: v)]


def _request(agent: StandIn) -> list[Sample]:
    value = RequestHook(agent=agent, turn=1, step=1, attempt=1, config=_CONFIG)
    return [Sample("a request", value, lambda v: v.config)]


def _request_error(agent: StandIn) -> list[Sample]:
    value = RequestFailed(
        agent=agent,
        turn=1,
        step=1,
        attempt=1,
        provider="scripted",
        failure=_FAILURE,
        policy=RetryPolicy(),
    )
    return [Sample("a failed request", value, lambda v: End())]


def _stream(agent: StandIn) -> list[Sample]:
    request = Request(
        session_id=SessionId("checked"), config=_CONFIG, messages=(UserMessage("hello"),)
    )
    value = StreamCall(agent, 1, 1, 1, request)
    return [Sample("a model call", value, lambda v: _chunks())]


@asynccontextmanager
async def _chunks() -> AsyncIterator[AsyncIterator[StreamChunk]]:
    yield _said()


async def _said() -> AsyncIterator[StreamChunk]:
    for chunk in (TextDelta(0, "Hel"), TextDelta(0, "lo."), Finish(Stop())):
        await trio.lowlevel.checkpoint()
        yield chunk


def _tool_pre_execute(agent: StandIn) -> list[Sample]:
    value = ToolCallHook(agent, _CALL, _look)
    return [
        Sample("a call", value, lambda v: Allow()),
        Sample("a call that another listener denies", value, lambda v: Deny("not today")),
        Sample("a call of an unknown tool", ToolCallHook(agent, _CALL, None), lambda v: Allow()),
    ]


def _tool_execute(agent: StandIn) -> list[Sample]:
    return [Sample("a call", ToolCallHook(agent, _CALL, _look), lambda v: _OUTCOME)]


def _tool_post_execute(agent: StandIn) -> list[Sample]:
    return [
        Sample("a result", ToolResultHook(agent, _CALL, _look, _OUTCOME), lambda v: v.outcome),
        Sample("an error", ToolResultHook(agent, _CALL, _look, _ERROR), lambda v: v.outcome),
    ]


def _notice(agent: StandIn) -> list[Sample]:
    return [Sample("a message", InboxNotice(agent, UserMessage("hello"), 1))]


def _agent_error(agent: StandIn) -> list[Sample]:
    error = ProviderError(_FAILURE)
    value = AgentErrorNotice(agent=agent, turn=1, step=1, error=error, failure=_FAILURE)
    return [Sample("a failed turn", value)]


_SAMPLES: Mapping[str, Callable[[StandIn], list[Sample]]] = {
    "pre_step": _pre_step,
    "assemble": _assemble,
    "request": _request,
    "request_error": _request_error,
    "stream": _stream,
    "tool_pre_execute": _tool_pre_execute,
    "tool_execute": _tool_execute,
    "tool_post_execute": _tool_post_execute,
    "turn_stopping": lambda agent: [Sample("a turn", TurnStopping(agent, 1))],
    "agent_created": lambda agent: [Sample("an agent", agent)],
    "tool_result": lambda agent: [
        Sample("a result", ToolResultHook(agent, _CALL, _look, _OUTCOME))
    ],
    "status": lambda agent: [Sample("a change", StatusChanged(agent, "running"))],
    "agent_disposed": lambda agent: [Sample("an agent", agent)],
    "agent_error": _agent_error,
    "session_created": lambda agent: [Sample("a session", agent.session)],
    "session_disposed": lambda agent: [Sample("a session", agent.session)],
    "session_started": lambda agent: [Sample("a start", SessionStarted(agent, "startup"))],
    "inbox_inserted": _notice,
    "inbox_claimed": _notice,
    "inbox_discarded": _notice,
}
HOOKS = tuple(_SAMPLES)
WATERFALLS = HOOKS[: HOOKS.index("turn_stopping")]
SERIALS = ("turn_stopping", "agent_created")
