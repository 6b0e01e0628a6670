"""The trials of a tool: one call of it, run as the engine would, in a task of its own."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import trio
from attrs import define, field

from ..session import AgentStatus, Session
from ..tools import Tool, ToolRun
from ..vocabulary import (
    CallId,
    CancelCause,
    Completion,
    InboxTarget,
    InvalidValue,
    Message,
    MessageId,
    ModelSelection,
    SessionHeader,
    SessionId,
    ToolSchema,
    UsageError,
    UserCause,
    UserMessage,
    new_message_id,
)
from ._places import place
from ._trial import Body, Trial
from ._trials import Trials

Call = Mapping[str, object]


@define(eq=False)
class StandIn:
    """The agent of a checked tool: it takes every message and forgets it."""

    id: SessionId = SessionId("checked")
    status: AgentStatus = "running"
    session: Session = field(
        factory=lambda: Session(SessionHeader(id=SessionId("checked"), created_ms=0), lambda: 0)
    )

    def history(self) -> Sequence[Message]:
        return ()

    def followup(self, message: str | UserMessage) -> MessageId:
        return self.send(message, "next-turn", True)

    def steer(self, message: str | UserMessage) -> MessageId:
        return self.send(message, "next-step", True)

    def inject(self, message: str | UserMessage) -> MessageId:
        return self.send(message, "next-step", False)

    def send(self, message: str | UserMessage, target: InboxTarget, wakeup: bool) -> MessageId:
        return message.id if isinstance(message, UserMessage) else new_message_id()

    def cancel(self, cause: CancelCause = UserCause(), *, keep_inbox: bool = False) -> None:
        pass

    async def complete(
        self,
        messages: str | Sequence[Message],
        *,
        selection: ModelSelection | None = None,
        tools: Sequence[ToolSchema] = (),
        max_tokens: int | None = None,
    ) -> Completion:
        raise UsageError("a checked tool has no model to ask; explore it with terzetto.testing")


@define(eq=False, kw_only=True)
class ToolTrials(Trials[Call]):
    """Runs calls of a tool. *mutated* are parameters that a call changed."""

    tool: Tool
    mutated: list[str] = field(factory=list)

    def parsed(self, call: Call) -> object:
        """What the body will get. Raises `InvalidValue` for a call that does not fit."""
        try:
            text = json.dumps(dict(call))
        except (TypeError, ValueError) as error:
            raise InvalidValue(
                f"calls: expected arguments as a model writes them, in JSON; {error}"
            ) from None
        try:
            return self.tool.parse(text)
        except InvalidValue as error:
            raise InvalidValue(f"calls: {self.tool.name} refuses {text:.200}: {error}") from None

    def body_of(self, call: Call) -> Body:
        parsed = self.parsed(call)
        before = _copied(parsed)

        async def body() -> object:
            try:
                return await self._body(parsed)
            finally:
                if isinstance(parsed, Mapping):
                    self.mutated += [n for n in before if _differ(parsed.get(n), before[n])]

        return body

    def shown(self, call: Call) -> str:
        words = ", ".join(f"{name}={value!r:.40}" for name, value in call.items())
        return f"({words})"

    @property
    def begins_at(self) -> str | None:
        code = getattr(self.tool.body, "__code__", None)
        return None if code is None else place(code.co_filename, code.co_firstlineno)

    def run_parsed(self, arguments: object) -> Trial:
        """One call of a raw tool with whatever a model may have written."""
        return self.trial(partial(self._body, arguments)).run()

    def together(self, calls: Sequence[Call], seed: int, *, overlap: bool) -> Trial:
        """Several calls in one run, at once or one after the other; the value of its ending is
        the list of what each gave."""
        parsed = [self.parsed(call) for call in calls]

        async def body() -> object:
            results: list[object] = [None] * len(parsed)

            async def one(index: int) -> None:
                try:
                    results[index] = shown(await self._body(parsed[index]))
                except Exception as error:
                    results[index] = f"{type(error).__name__}: {error}"

            if overlap:
                async with trio.open_nursery() as nursery:
                    for index in range(len(parsed)):
                        nursery.start_soon(one, index)
            else:
                for index in range(len(parsed)):
                    await one(index)
            return results

        return self.trial(body, None, seed).run()

    async def _body(self, parsed: object) -> object:
        run = ToolRun(CallId("call"), self.tool.name, StandIn())
        try:
            if self.tool.is_async:
                return await self.tool.start(parsed, run)
            return await trio.to_thread.run_sync(self.tool.call, parsed, run)
        finally:
            run.close()


def shown(value: object) -> str:
    """A value in a form that can be compared, without its address in memory."""
    try:
        return json.dumps(value, sort_keys=True, default=repr)
    except (TypeError, ValueError):
        return repr(value)


def _copied(parsed: object) -> dict[str, object]:
    """Copies of those arguments that can be compared with their copies."""
    copies: dict[str, object] = {}
    for name, value in parsed.items() if isinstance(parsed, Mapping) else ():
        with suppress(Exception):  # somebody else's types
            made = copy.deepcopy(value)
            if not _differ(made, value):
                copies[name] = made
    return copies


def _differ(one: object, other: object) -> bool:
    try:
        return bool(one != other)
    except Exception:  # somebody else's comparison
        return False
