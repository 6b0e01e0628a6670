"""What the tests of batches and of the pipeline stand on: a clock that jumps, a log that is a
list, a pipeline with chosen listeners, and a watchdog, since an executor that waits for ever
waits under a shield.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import outcome
import trio
from attrs import define, field, frozen
from trio.testing import MockClock

from terzetto.hooks import Notification, Scope, Waterfall
from terzetto.session import AgentView
from terzetto.tools import (
    Approver,
    BatchResult,
    Guard,
    PoolExecutor,
    Tool,
    ToolBatch,
    ToolHooks,
    ToolLayer,
    ToolOutcome,
    ToolPipeline,
    ToolResultHook,
    raw_tool,
)
from terzetto.tools._batch import run_in
from terzetto.vocabulary import CallId, ToolCallBlock, new_message_id

T = TypeVar("T")
Json = dict[str, Any]
ANYTHING: Json = {"type": "object", "properties": {}}


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run *main* on a clock that jumps: nothing sleeps for real, and threads are not for it."""
    return trio.run(main, clock=MockClock(autojump_threshold=0))


class Hang(AssertionError):
    """The executor would never have come back."""


# --- what happened -----------------------------------------------------------------------


@frozen
class Entry:
    """*who* is a call id, or empty for what belongs to the whole batch."""

    at: float
    kind: str
    who: str = ""
    facts: object = None


@define(eq=False)
class Timeline:
    """Everything that happened, in order, with Trio's time."""

    entries: list[Entry] = field(factory=list)

    def add(self, kind: str, who: str = "", facts: object = None) -> None:
        self.entries.append(Entry(trio.current_time(), kind, who, facts))

    def of(self, *kinds: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.kind in kinds]

    def order(self, *kinds: str) -> list[str]:
        """``kind who`` of every entry of these kinds."""
        return [f"{entry.kind} {entry.who}".strip() for entry in self.of(*kinds)]

    def index(self, kind: str, who: str = "") -> int:
        found = [i for i, e in enumerate(self.entries) if (e.kind, e.who) == (kind, who)]
        assert len(found) == 1, f"{kind} {who}: {len(found)} times in {self.order_all()}"
        return found[0]

    def has(self, kind: str, who: str = "") -> bool:
        return any((entry.kind, entry.who) == (kind, who) for entry in self.entries)

    def order_all(self) -> list[str]:
        return [f"{entry.at:g} {entry.kind} {entry.who}".strip() for entry in self.entries]


@define(eq=False)
class FakeLog:
    """A `BatchLog` in memory. *flush_seconds*: how long each takes. *fails_at*: the flush,
    counted from 1, that raises *failure*. *behind*: every result is waited for."""

    timeline: Timeline
    flush_seconds: float = 0
    fails_at: int | None = None
    failure: BaseException | None = None
    outcomes: dict[str, ToolOutcome] = field(factory=dict)
    flushes: int = 0
    behind: bool = False
    _seqs: dict[int, ToolCallBlock] = field(factory=dict)

    def call(self, call: ToolCallBlock) -> int:
        self.timeline.add("call", call.id)
        seq = len(self.timeline.entries)
        self._seqs[seq] = call
        return seq

    def result(self, call: ToolCallBlock, call_seq: int, outcome: ToolOutcome) -> None:
        assert self._seqs[call_seq] is call, "a result cites its own call"
        self.timeline.add("result", call.id, outcome)
        assert call.id not in self.outcomes, f"{call.id} has two results"
        self.outcomes[call.id] = outcome

    def must_flush(self, read_only: bool = False) -> bool:
        return not read_only

    async def flush(self) -> None:
        self.flushes += 1
        self.timeline.add("flush>")
        if self.flush_seconds:
            await trio.sleep(self.flush_seconds)
        if self.flushes == self.fails_at:
            assert self.failure is not None
            self.timeline.add("flush!")
            raise self.failure
        self.timeline.add("flush<")

    def must_catch_up(self) -> bool:
        return self.behind

    async def catch_up(self) -> None:
        await self.flush()


# --- a pipeline --------------------------------------------------------------------------


NOBODY = cast(AgentView, SimpleNamespace(session=SimpleNamespace(new_id=new_message_id)))


def pipeline(
    *tools: Tool,
    pre: Iterable[Any] = (),
    around: Iterable[Any] = (),
    post: Iterable[Any] = (),
    results: Iterable[Callable[[ToolResultHook], None]] = (),
    guards: Iterable[Guard] = (),
    approver: Approver | None = None,
    limiter: trio.CapacityLimiter | None = None,
    spill: Any = None,
) -> ToolPipeline:
    """A pipeline over *tools* with these listeners, outermost first."""
    layer = ToolLayer(Scope("test"))
    for tool in tools:
        layer.add(tool)
    for guard in guards:
        layer.guard(guard)
    hooks = ToolHooks(
        Waterfall("pre"), Waterfall("execute"), Waterfall("post"), Notification("result")
    )
    for point, listeners in (
        (hooks.pre_execute, pre),
        (hooks.execute, around),
        (hooks.post_execute, post),
        (hooks.result, results),
    ):
        for listener in listeners:
            cast(Any, point).listen(listener)
    limiter = limiter or trio.CapacityLimiter(40)
    return ToolPipeline(NOBODY, layer, hooks, approver, limiter, spill=spill)


def a_call(call_id: str, name: str = "t", arguments: str = "{}") -> ToolCallBlock:
    return ToolCallBlock(CallId(call_id), name, arguments)


def calls_of(*names: str) -> tuple[ToolCallBlock, ...]:
    """One call of each tool, with its name as its id."""
    return tuple(a_call(name, name) for name in names)


def made(name: str, body: Callable[[], Awaitable[object]], **options: Any) -> Tool:
    """A tool without arguments, parallel unless *options* say otherwise."""

    async def call(arguments: object) -> object:
        return await body()

    options.setdefault("parallel", True)
    return raw_tool(name=name, description=name, parameters=ANYTHING, body=call, **options)


# --- running -----------------------------------------------------------------------------


async def execute(
    pipeline: ToolPipeline,
    calls: Iterable[ToolCallBlock],
    log: FakeLog,
    *,
    capacity: int = 10,
    patience: float = 10_000,
    nursery: trio.Nursery | None = None,
) -> BatchResult:
    """Run a batch, in *nursery* if there is one; raise `Hang` if it has not come back after
    *patience* seconds."""
    batch = ToolBatch(calls=tuple(calls), capacity=capacity, pipeline=pipeline, log=log)
    task, done = trio.lowlevel.current_task(), False

    async def watch() -> None:
        await trio.sleep(patience)
        if not done:
            hang.append(Hang(f"the batch hangs after {log.timeline.order_all()}"))
            trio.lowlevel.reschedule(task, outcome.Error(hang[0]))

    hang: list[Hang] = []
    watchers = trio.CancelScope()

    async def guarded() -> None:
        with watchers:
            await watch()

    trio.lowlevel.spawn_system_task(guarded)
    try:
        if nursery is not None:
            return await run_in(nursery, batch)
        return await PoolExecutor().execute(batch)
    finally:
        done = True
        watchers.cancel(reason="the batch has ended")
        if hang:
            raise hang[0]


async def outcome_of(
    tool: Tool,
    arguments: str = "{}",
    *,
    cancel_at: float | None = None,
    timeline: Timeline | None = None,
    **listeners: Any,
) -> ToolOutcome:
    """What is committed for one call of *tool*, the whole batch cancelled after *cancel_at*."""
    log = FakeLog(timeline or Timeline())
    with trio.CancelScope() as scope:
        if cancel_at is not None:
            scope.deadline = trio.current_time() + cancel_at
        await execute(pipeline(tool, **listeners), [a_call("c", tool.name, arguments)], log)
    return log.outcomes["c"]


def told(outcome: ToolOutcome) -> str:
    """What the model reads."""
    return "".join(block.text for block in outcome.content)


def code(outcome: ToolOutcome) -> str | None:
    return outcome.error.code if outcome.error else None
