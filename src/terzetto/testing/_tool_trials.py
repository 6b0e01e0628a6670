"""The trials of a tool: one call of it, run as the engine would, in a task of its own."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
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
from ._effects import Effects
from ._leftovers import GRACE, Leftovers
from ._trial import Around, Body, Trial
from ._trial_facts import Strike

Call = Mapping[str, object]


@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    """What is around a run when nothing is."""
    yield


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
class ToolTrials:
    """Runs calls of a tool, and counts the runs. *mutated* are parameters that a call changed."""

    tool: Tool
    around: Around
    effects: Effects
    probe: Callable[[], object] | None
    patience: float
    runs: int = 0
    points: int = 0
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

    def run(
        self,
        call: Call,
        strike: Strike | None = None,
        *,
        seed: int = 0,
        collect: bool = False,
        hasty: bool = False,
        precise: bool = False,
        find_swallow: bool = False,
        sample_after: float | None = None,
    ) -> tuple[Trial, Leftovers]:
        """One call, and what it left."""
        parsed = self.parsed(call)
        before = _copied(parsed)
        trial = self._run(partial(self._body, parsed), strike, seed, find_swallow, sample_after)
        trial.watch.precise = precise
        trial.grace = 0.0 if hasty else GRACE
        with Leftovers(collect=collect, grace=trial.grace) as left:
            trial.run()
        if isinstance(parsed, Mapping):
            self.mutated += [name for name in before if _differ(parsed.get(name), before[name])]
        return trial, left

    def run_parsed(self, arguments: object) -> Trial:
        """One call of a raw tool with whatever a model may have written."""
        return self._run(partial(self._body, arguments), None, 0, False, None).run()

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

        return self._run(body, None, seed, False, None).run()

    def _run(
        self,
        body: Body,
        strike: Strike | None,
        seed: int,
        find_swallow: bool,
        sample_after: float | None,
    ) -> Trial:
        self.runs += 1
        self.points += strike is not None
        return Trial(
            body,
            self.around,
            strike,
            effects=self.effects,
            probe=self.probe,
            seed=seed,
            patience=self.patience,
            find_swallow=find_swallow,
            sample_after=sample_after,
        )

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
