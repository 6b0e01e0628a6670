"""Every hook point of an agent, typed, and what listeners see and decide."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import AsyncIterable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from attrs import define, field, frozen

from ..hooks import Notification, Serial, Waterfall, check_thread
from ..llm import ChunkStream, StreamCall
from ..session import AgentStatus, AgentView, Session
from ..tools import PreExecute, ToolCallHook, ToolHooks, ToolOutcome, ToolResultHook
from ..vocabulary import (
    CallConfig,
    Failure,
    InvalidValue,
    ModelSelection,
    RetryPolicy,
    ToolSchema,
    UserMessage,
    clean_text,
)
from ..vocabulary._stream import is_chunk

SessionStartSource: TypeAlias = Literal["startup", "resume"]


_T = TypeVar("_T")


def decided(hook: Waterfall[Any, Any], value: object, *kinds: type[_T]) -> _T:
    """*value*, which listeners of *hook* gave. Raises `InvalidValue` for any other kind."""
    if isinstance(value, kinds):
        return value
    raise hook.wrong(value, " or ".join(kind.__name__ for kind in kinds))


def check_opened(hook: Waterfall[StreamCall, ChunkStream], stream: object) -> None:
    """Raise `InvalidValue` unless *stream*, which listeners of *hook* gave, can be entered."""
    if not isinstance(stream, AbstractAsyncContextManager):
        raise hook.wrong(stream, "an async context manager over chunks, as `proceed()` gives")


def check_chunks(hook: Waterfall[StreamCall, ChunkStream], chunks: object) -> None:
    """The same of what the stream gave as it was entered."""
    if not isinstance(chunks, AsyncIterable):
        raise hook.wrong(chunks, "a stream that gives an async iterable of chunks")


def check_chunk(hook: Waterfall[StreamCall, ChunkStream], chunk: object) -> None:
    """The same of one of its chunks: a log with another value in it could not be saved."""
    if not is_chunk(chunk):
        raise hook.wrong(chunk, "a stream of chunks, such as TextDelta and Finish")


def _each(what: str, kind: type[_T], values: Iterable[_T]) -> tuple[_T, ...]:
    if isinstance(values, str):
        raise InvalidValue(f"{what}: expected a tuple of {kind.__name__}, got a text")
    taken = tuple(values)
    for value in taken:
        if type(value) is not kind:
            raise InvalidValue(f"{what}: expected {kind.__name__}, got {type(value).__name__}")
    return taken


def _entering(messages: Iterable[UserMessage]) -> tuple[UserMessage, ...]:
    taken = _each("Enter: messages", UserMessage, messages)
    if len(taken) > 1:
        ids = Counter(message.id for message in taken)
        if twice := sorted(name for name, count in ids.items() if count > 1):
            raise InvalidValue(
                f"Enter: messages {twice} are there twice; a message enters once, "
                "so give the second one an id of its own"
            )
    return taken


def _series(starts_series: bool) -> bool:
    if starts_series is not True and starts_series is not False:
        kind = type(starts_series).__name__
        raise InvalidValue(f"Enter: starts_series: expected True or False, got {kind}")
    return starts_series


def _prompt(text: str) -> str:
    if not isinstance(text, str):
        raise InvalidValue(f"Assembly: system: expected a text, got {type(text).__name__}")
    return clean_text(text)


def _declared(tools: Iterable[ToolSchema]) -> tuple[ToolSchema, ...]:
    schemas = _each("Assembly: tools", ToolSchema, tools)
    names = [schema.name for schema in schemas]
    if len(set(names)) < len(names):
        twice = sorted(name for name, times in Counter(names).items() if times > 1)
        raise InvalidValue(f"Assembly: tools {twice} are declared twice; a model calls by name")
    return schemas


@frozen(kw_only=True)
class PreStep:
    """A proposed step: the claimed *messages*, next-step input first, then the prompt."""

    agent: AgentView
    turn: int
    step: int
    messages: tuple[UserMessage, ...]
    selection: ModelSelection


@frozen
class Enter:
    """Enter the step with *messages*: complete and authoritative.

    *starts_series* declares that the request does not continue the one before. A
    wrapping listener keeps both unless it means to change them.
    """

    messages: tuple[UserMessage, ...] = field(converter=_entering)
    starts_series: bool = field(default=False, converter=_series)


@frozen
class Reject:
    """Open no step; the turn ends ``blocked`` and the claimed input is consumed."""


StepDecision: TypeAlias = Enter | Reject


@frozen(kw_only=True)
class Assembly:
    """The prompt and the tools of a step and its retries. May be rewritten whole.

    An empty *system* is no prompt. *selection* is what the step runs on and may not be
    changed. Raises `InvalidValue` for tools that are no schemas, or share a name.
    """

    agent: AgentView
    selection: ModelSelection
    system: str = field(converter=_prompt)
    tools: tuple[ToolSchema, ...] = field(converter=_declared)


@frozen(kw_only=True)
class RequestHook:
    """The configuration of one attempt (1 is the first). The route may not be changed."""

    agent: AgentView
    turn: int
    step: int
    attempt: int
    config: CallConfig


@frozen(kw_only=True)
class RequestFailed:
    """A model request that failed. *policy* is absent when no adapter served it."""

    agent: AgentView
    turn: int
    step: int
    attempt: int
    provider: str
    failure: Failure
    policy: RetryPolicy | None


@frozen
class Retry:
    """Make another attempt in the same step."""


@frozen
class End:
    """Let the failure end the turn."""


FailureDecision: TypeAlias = Retry | End


@frozen
class TurnStopping:
    """An otherwise completed turn is about to close; steer to keep it open."""

    agent: AgentView
    turn: int


@frozen
class StatusChanged:
    """The agent's status is now *status*; it was the other one."""

    agent: AgentView
    status: AgentStatus


@frozen
class SessionStarted:
    """Once, before the first turn. No veto: compose in ``setup``."""

    agent: AgentView
    source: SessionStartSource


@frozen
class InboxNotice:
    """A message entered or left the inbox. *turn* is the one that claimed it."""

    agent: AgentView
    message: UserMessage
    turn: int | None = None


@frozen(kw_only=True)
class AgentErrorNotice:
    """A turn failed. *step* is 0 before the first step; *failure* is what the log says."""

    agent: AgentView
    turn: int
    step: int
    error: BaseException
    failure: Failure


@define(eq=False, repr=False)
class Hooks:
    """The hook points of one scope. Listeners of an engine's scope see every agent."""

    pre_step: Waterfall[PreStep, StepDecision] = field(init=False)
    assemble: Waterfall[Assembly, Assembly] = field(init=False)
    request: Waterfall[RequestHook, CallConfig] = field(init=False)
    request_error: Waterfall[RequestFailed, FailureDecision] = field(init=False)
    stream: Waterfall[StreamCall, ChunkStream] = field(init=False)
    tool_pre_execute: Waterfall[ToolCallHook, PreExecute] = field(init=False)
    tool_execute: Waterfall[ToolCallHook, ToolOutcome] = field(init=False)
    tool_post_execute: Waterfall[ToolResultHook, ToolOutcome] = field(init=False)
    turn_stopping: Serial[TurnStopping] = field(init=False)
    agent_created: Serial[AgentView] = field(init=False)
    tool_result: Notification[ToolResultHook] = field(init=False)
    status: Notification[StatusChanged] = field(init=False)
    agent_disposed: Notification[AgentView] = field(init=False)
    agent_error: Notification[AgentErrorNotice] = field(init=False)
    session_created: Notification[Session] = field(init=False)
    session_disposed: Notification[Session] = field(init=False)
    session_started: Notification[SessionStarted] = field(init=False)
    inbox_inserted: Notification[InboxNotice] = field(init=False)
    inbox_claimed: Notification[InboxNotice] = field(init=False)
    inbox_discarded: Notification[InboxNotice] = field(init=False)

    _parent: Hooks | None = field(default=None, kw_only=True, alias="parent")
    _closed: bool = field(default=False, init=False)
    _thread: int = field(factory=threading.get_ident, init=False, repr=False)
    _points: dict[str, _Point] | None = field(default=None, init=False, repr=False)
    """Those that were made. An attribute that is not there costs an exception to find out."""

    @classmethod
    def over(cls, parent: Hooks | None) -> Hooks:
        """Fresh hook points whose dispatch includes the listeners of *parent*."""
        return cls(parent=parent)

    if not TYPE_CHECKING:  # for a type checker a name that is no hook stays a mistake

        def __getattr__(self, name: str) -> object:
            """Make the point *name*, of which there is none yet.

            Every agent has all points, most have listeners on none, and ten thousand idle
            agents are two hundred thousand points: so each is made when it is asked for.
            """
            kind = _KINDS.get(name)
            if kind is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            check_thread(self._thread, f"the hook {name}")
            point = kind(name, None if self._parent is None else getattr(self._parent, name))
            if self._closed:
                point.close()
            setattr(self, name, point)
            if self._points is None:
                self._points = {}
            self._points[name] = point
            return point

    def heard(self) -> Hooks:
        """The same points for who dispatches and never listens: of a point that nobody asked
        for yet, the one of an outer scope, whose dispatch reaches the same listeners."""
        return cast(Hooks, _Heard(self))

    def close(self) -> None:
        """Drop every listener and refuse new ones."""
        self._closed = True
        for point in (self._points or {}).values():
            point.close()

    def tools(self) -> ToolHooks:
        """The four that the tool pipeline runs."""
        return ToolHooks(
            self.tool_pre_execute, self.tool_execute, self.tool_post_execute, self.tool_result
        )


class _Heard:
    """What `Hooks.heard` gives."""

    __slots__ = ("_hooks",)

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def __getattr__(self, name: str) -> object:
        hooks = self._hooks
        while True:
            points = hooks._points
            if points is not None and (point := points.get(name)) is not None:
                return point
            if hooks._parent is None:
                return getattr(hooks, name)
            hooks = hooks._parent


_Point: TypeAlias = Waterfall[object, object] | Serial[object] | Notification[object]


_KINDS: dict[str, type[_Point]] = {
    "pre_step": Waterfall,
    "assemble": Waterfall,
    "request": Waterfall,
    "request_error": Waterfall,
    "stream": Waterfall,
    "tool_pre_execute": Waterfall,
    "tool_execute": Waterfall,
    "tool_post_execute": Waterfall,
    "turn_stopping": Serial,
    "agent_created": Serial,
    "tool_result": Notification,
    "status": Notification,
    "agent_disposed": Notification,
    "agent_error": Notification,
    "session_created": Notification,
    "session_disposed": Notification,
    "session_started": Notification,
    "inbox_inserted": Notification,
    "inbox_claimed": Notification,
    "inbox_discarded": Notification,
}
