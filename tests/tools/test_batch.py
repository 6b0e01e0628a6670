"""The executor alone: order, capacity, barriers, waves, and every way of being cut short.

The properties play a plan (`strategies_batches`) on a virtual clock and read the laws from the
timeline. Single tests below them name one law each.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from attrs import define, field
from hypothesis import given, settings, strategies as st
from tests.strategies_batches import BatchPlan, CallPlan, batch_plans
from tests.tools.rig import (
    ANYTHING,
    FakeLog,
    Timeline,
    a_call,
    calls_of,
    code,
    execute,
    made,
    pipeline,
    run,
    told,
)
from trio.testing import wait_all_tasks_blocked

from terzetto.tools import (
    Allow,
    BatchResult,
    Deny,
    Tool,
    ToolBatch,
    ToolOutcome,
    ToolPipeline,
    raw_tool,
    tool,
)
from terzetto.tools._batch import _Run
from terzetto.vocabulary import InvalidValue, StoreError, ToolCallBlock, texts

# --- playing a plan ----------------------------------------------------------------------


@define(eq=False)
class Play:
    """One plan, played: its tools and listeners, its timeline, and what came of it."""

    plan: BatchPlan
    timeline: Timeline = field(factory=Timeline)
    log: FakeLog = field(init=False)
    result: BatchResult | None = None
    error: BaseException | None = None
    shared: bool = False
    """Whether it has its tasks in a nursery that other batches have theirs in, too."""
    left: int = 0
    """Tasks in that nursery after it."""

    def __attrs_post_init__(self) -> None:
        self.log = FakeLog(self.timeline, self.plan.flush)

    @property
    def names(self) -> list[str]:
        return [f"c{index}" for index in range(len(self.plan.calls))]

    def of(self, who: str) -> CallPlan:
        return self.plan.calls[int(who[1:])]

    def run(self) -> None:
        run(self._main)

    async def _main(self) -> None:
        calls = [self._call(name) for name in self.names]
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                if self.plan.cancel is not None:
                    nursery.start_soon(self._cancel, scope, self.plan.cancel)
                if self.shared:
                    async with trio.open_nursery() as several:
                        await self._execute(calls, several)
                        self.left = len(several.child_tasks)
                else:
                    await self._execute(calls)
                self.timeline.add("end")
                nursery.cancel_scope.cancel(reason="the batch has ended")

    async def _execute(
        self, calls: list[ToolCallBlock], nursery: trio.Nursery | None = None
    ) -> None:
        try:
            self.result = await execute(
                self._pipeline(), calls, self.log, capacity=self.plan.capacity, nursery=nursery
            )
        except (Exception, KeyboardInterrupt) as error:
            self.error = error

    async def _cancel(self, scope: trio.CancelScope, seconds: float) -> None:
        await trio.sleep(seconds)
        self.timeline.add("cancel")
        scope.cancel(reason="the plan says so")

    def _call(self, name: str) -> ToolCallBlock:
        plan = self.of(name)
        arguments = '{"x": "no number"}' if plan.mode == "invalid" else '{"x": 1}'
        return a_call(name, "nobody" if plan.mode == "unknown" else name, arguments)

    def _pipeline(self) -> ToolPipeline:
        tools = [self._tool(name) for name in self.names if self.of(name).mode != "unknown"]
        pre = [self._before] if self.plan.pre else []
        post = [self._after] if self.plan.post else []
        results = [lambda hook: self.timeline.add("told", hook.call.id, hook.outcome)]
        return pipeline(*tools, pre=pre, post=post, results=results)

    def _tool(self, name: str) -> Tool:
        plan = self.of(name)

        async def body(x: int) -> str:
            return await self._body(name, plan)

        def classify(arguments: object) -> object:
            if plan.mode == "raises":
                raise RuntimeError("a classifier that fails")
            return 1 if plan.mode == "truthy" else plan.mode != "exclusive"

        if plan.mode == "touches":
            return tool(name=name, touches=lambda args: plan.touches, timeout=plan.timeout)(body)
        return tool(name=name, parallel=classify, timeout=plan.timeout)(body)

    async def _body(self, name: str, plan: CallPlan) -> str:
        self.timeline.add("body>", name)
        how = "gave way"
        try:
            with trio.CancelScope(shield=plan.ending == "shield"):
                try:
                    if plan.ticks:
                        await trio.sleep(plan.ticks)
                except trio.Cancelled:
                    if plan.ending == "reraise":
                        how = "raised"
                        raise RuntimeError(f"{name} was stopped") from None
                    if plan.ending != "swallow":
                        raise
            if plan.ending == "raise":
                how = "raised"
                raise ValueError(f"{name} failed")
            how = "returned"
            return f"{name} done"
        finally:
            self.timeline.add("body<", name, how)

    async def _before(self, hook: Any, proceed: Any) -> Any:
        name, plan = hook.call.id, self.of(hook.call.id)
        self.timeline.add("pre>", name)
        if plan.pre:
            with trio.CancelScope(shield=plan.deaf):
                await trio.sleep(plan.pre)
        self.timeline.add("pre<", name)
        if plan.policy == "raise":
            raise RuntimeError(f"policy {name}")
        return Deny(f"not {name}") if plan.policy == "deny" else await proceed()

    async def _after(self, hook: Any, proceed: Any) -> Any:
        name, plan = hook.call.id, self.of(hook.call.id)
        self.timeline.add("post>", name, hook.outcome)
        if plan.post:
            await trio.sleep(plan.post)
        self.timeline.add("post<", name)
        if plan.review == "raise":
            raise RuntimeError(f"review {name}")
        if plan.review == "replace":
            return hook.replaced(f"instead of {name}")
        return hook.blocked(f"blocked {name}") if plan.review == "block" else await proceed()

    # --- what the timeline says ----------------------------------------------------------

    def time(self, kind: str, who: str = "") -> float:
        return self.timeline.entries[self.timeline.index(kind, who)].at

    @property
    def cancelled(self) -> bool:
        return self.timeline.has("cancel")

    def refused(self, who: str) -> bool:
        """Whether the call may not run, whatever happens."""
        plan = self.of(who)
        by_policy = self.plan.pre and plan.policy != "allow"
        return by_policy or plan.mode in ("unknown", "invalid")


# --- the laws ----------------------------------------------------------------------------


def problems_of(play: Play) -> list[str]:
    return [problem for law in LAWS for problem in law(play)]


def every_call_has_one_result_in_order(play: Play) -> Iterator[str]:
    """C122: recorded, then answered, exactly once and in model order."""
    for kind in ("call", "result"):
        found = [entry.who for entry in play.timeline.of(kind)]
        if found != play.names:
            yield f"{kind}: {found}"
    for name in play.names:
        if play.timeline.index("call", name) > play.timeline.index("result", name):
            yield f"{name} is answered before it is recorded"


def no_more_bodies_than_slots(play: Play) -> Iterator[str]:
    """C120: and every body that started has ended."""
    running = set[str]()
    for entry in play.timeline.entries:
        if entry.kind == "body>":
            running.add(entry.who)
        elif entry.kind == "body<":
            running.remove(entry.who)
        elif entry.kind == "end" and running:
            yield f"{running} outlive the batch"
        if len(running) > play.plan.capacity:
            yield f"{len(running)} bodies at once"


def exclusive_calls_are_alone(play: Play) -> Iterator[str]:
    """C120 C121: after the commits of all before it, and before the starts of all after it."""
    for index, name in enumerate(play.names):
        if play.of(name).parallel or not play.timeline.has("body>", name):
            continue
        start = play.timeline.index("body>", name)
        late = [
            other for other in play.names[:index] if play.timeline.index("result", other) > start
        ]
        result = play.timeline.index("result", name)
        early = [
            other
            for other in play.names[index + 1 :]
            if play.timeline.index("call", other) < result
        ]
        if late or early:
            yield f"{name} is exclusive, and yet {late} commit after it, {early} start before it"


def conflicting_calls_follow_one_another(play: Play) -> Iterator[str]:
    """C122 C123: the later one is not even recorded before the body of the earlier has ended."""
    ran = [name for name in play.names if play.timeline.has("body>", name)]
    for index, name in enumerate(ran):
        start = play.timeline.index("call", name)
        yield from (
            f"{name} starts while {other} still runs, and they conflict"
            for other in ran[:index]
            if play.of(name).conflicts(play.of(other))
            and play.timeline.index("body<", other) > start
        )


def the_log_is_durable_before_a_body_starts(play: Play) -> Iterator[str]:
    """DESIGN 9: recorded, then flushed, then started."""
    entries = play.timeline.entries
    for name in play.names:
        if play.timeline.has("body>", name):
            between = entries[
                play.timeline.index("call", name) : play.timeline.index("body>", name)
            ]
            kinds = [entry.kind for entry in between]
            if "flush>" not in kinds or "flush<" not in kinds[kinds.index("flush>") :]:
                yield f"{name} started before its call was flushed"


def a_start_waits_for_a_commit_in_progress(play: Play) -> Iterator[str]:
    """DESIGN 7."""
    reviewing: str | None = None
    for entry in play.timeline.entries:
        if entry.kind == "post>":
            reviewing = entry.who
        elif entry.kind == "result":
            reviewing = None
        elif entry.kind in ("call", "pre>") and reviewing is not None:
            yield f"{entry.kind} {entry.who} during the commit of {reviewing}"


def ready_results_come_before_refills(play: Play) -> Iterator[str]:
    """DESIGN 7: to the very step, without listeners that let others run in between, and
    without timeouts, whose own task ends a step after the body."""
    timed = any(call.timeout is not None for call in play.plan.calls)
    if play.plan.pre or play.cancelled or timed:
        return
    settled, committed = set[str](), 0
    for entry in play.timeline.entries:
        if entry.kind == "body<":
            settled.add(entry.who)
        elif entry.kind == "result":
            committed += 1
        elif entry.kind == "call" and committed < len(play.names):
            ready = play.names[committed]
            if ready in settled:
                yield f"{entry.who} was started while the result of {ready} was ready"


def nothing_stands_still(play: Play) -> Iterator[str]:
    """DESIGN 7: at the end of every instant all that may start has started, all that is ready
    is committed, and a pre-execute that waits holds up neither commits nor the wave before it.
    """
    entries = play.timeline.entries
    for at, entry in enumerate(entries):
        if entry.kind in ("cancel", "end"):
            return
        if at and entry.at > entries[at - 1].at:
            yield from _standing_still(play, at)


def _standing_still(play: Play, at: int) -> Iterator[str]:
    seen = {(entry.kind, entry.who) for entry in play.timeline.entries[:at]}
    count = {
        kind: sum(entry.kind == kind for entry in play.timeline.entries[:at])
        for kind in ("call", "result", "flush>", "flush<", "pre>", "pre<")
    }
    opened, committed = play.names[: count["call"]], count["result"]

    def settled(name: str) -> bool:
        if ("body<", name) in seen:
            return True
        return play.refused(name) and (not play.plan.pre or ("pre<", name) in seen)

    reviewing = any(("post>", name) in seen and ("result", name) not in seen for name in opened)
    opening = count["pre>"] > count["pre<"]
    flushing = count["flush>"] > count["flush<"]
    time = play.timeline.entries[at - 1].at
    if reviewing:
        return
    if committed < len(opened) and settled(opened[committed]) and not flushing:
        yield f"after {time}: {opened[committed]} is ready and is not committed"
    for name in opened:
        admitted = not settled(name) and (not play.plan.pre or ("pre<", name) in seen)
        if admitted and ("body>", name) not in seen and not flushing:
            yield f"after {time}: {name} is admitted and does not start"
    if len(opened) == len(play.names) or opening or flushing:
        return
    following = play.names[len(opened)]
    alone = bool(opened) and not play.of(opened[-1]).parallel and committed < len(opened)
    free = sum(not settled(name) for name in opened) < play.plan.capacity
    barred = not play.of(following).parallel and committed < len(opened)
    barred = barred or any(
        play.of(following).conflicts(play.of(name)) for name in opened if not settled(name)
    )
    if free and not alone and not barred:
        yield f"after {time}: {following} may start and does not"


def nothing_starts_after_a_cancel(play: Play) -> Iterator[str]:
    """C124, invariant 4: not a body, and no policy is asked."""
    if play.cancelled:
        late = play.timeline.entries[play.timeline.index("cancel") :]
        yield from (
            f"{e.kind} {e.who} after the cancel" for e in late if e.kind in ("body>", "pre>")
        )


def outcomes_are_their_own(play: Play) -> Iterator[str]:
    """Invariant 5, C116, DESIGN 6."""
    for name in play.names:
        found = play.log.outcomes.get(name)
        if found is not None and _shown(found) != (wanted := _expected(play, name)):
            yield f"{name}: expected {wanted}, got {_shown(found)}"


Shown = tuple[str, bool, str | None]


def _shown(outcome: ToolOutcome) -> Shown:
    if code(outcome) in (texts.INVALID_ARGS, texts.TOOL_TIMEOUT):
        return ("", outcome.is_error, code(outcome))
    return (told(outcome), outcome.is_error, code(outcome))


ABORTED: Shown = (texts.ABORTED_TEXT, True, texts.ABORTED)
UNSTARTED: Shown = (texts.ABORTED_BEFORE_DISPATCH_TEXT, True, texts.ABORTED_BEFORE_DISPATCH)


def _expected(play: Play, name: str) -> Shown:
    raw, review = _before_review(play, name), play.of(name).review
    if not play.timeline.has("post>", name):
        return raw
    if not play.timeline.has("post<", name):
        return raw if raw[1] else ABORTED
    if review == "raise":
        return (f"Error: review {name}", True, None)
    if review == "replace":
        return (f"instead of {name}", *raw[1:]) if raw[2] not in HIDDEN else ("", *raw[1:])
    return (f"blocked {name}", True, None) if review == "block" else raw


HIDDEN = (texts.INVALID_ARGS, texts.TOOL_TIMEOUT)


def _before_review(play: Play, name: str) -> Shown:
    plan = play.of(name)
    if not play.timeline.has("body>", name):
        asked = play.plan.pre and play.timeline.has("pre<", name)
        if asked and plan.policy == "deny":
            return (f"Error: not {name}", True, None)
        if asked and plan.policy == "raise":
            return (f"Error: policy {name}", True, None)
        decided = asked or (not play.plan.pre and _opened(play, name))
        if decided and plan.mode == "invalid":
            return ("", True, texts.INVALID_ARGS)
        if decided and plan.mode == "unknown":
            return (texts.error_text('unknown tool "nobody"'), True, texts.UNKNOWN_TOOL)
        return UNSTARTED
    how = play.timeline.entries[play.timeline.index("body<", name)].facts
    end, cancel = play.time("body<", name), math.inf
    if play.cancelled and play.timeline.index("cancel") < play.timeline.index("body<", name):
        cancel = play.time("cancel")
    deadline = math.inf if plan.timeout is None else play.time("body>", name) + plan.timeout
    if deadline <= end and deadline < cancel:
        return ("", True, texts.TOOL_TIMEOUT)
    if how == "returned":
        return (f"{name} done", False, None)
    if how == "raised":
        text = "failed" if plan.ending == "raise" else "was stopped"
        return (f"Error: {name} {text}", True, None)
    return ABORTED


def _opened(play: Play, name: str) -> bool:
    """Whether the call was opened and not only recorded as a pair after a cancel."""
    return play.timeline.has("told", name)


def dispatched_calls_are_told_once(play: Play) -> Iterator[str]:
    """C113: the observe-only notification, right before the result, with what is committed."""
    entries = play.timeline.entries
    told_of = [entry.who for entry in play.timeline.of("told")]
    for name in play.names:
        if told_of.count(name) > 1 or (play.timeline.has("body>", name) and name not in told_of):
            yield f"{name} was told {told_of.count(name)} times"
        if name in told_of:
            at = play.timeline.index("told", name)
            if (entries[at + 1].kind, entries[at + 1].facts) != ("result", entries[at].facts):
                yield f"{name} was told something else than was committed"


LAWS = (
    every_call_has_one_result_in_order,
    no_more_bodies_than_slots,
    exclusive_calls_are_alone,
    conflicting_calls_follow_one_another,
    the_log_is_durable_before_a_body_starts,
    a_start_waits_for_a_commit_in_progress,
    ready_results_come_before_refills,
    nothing_stands_still,
    nothing_starts_after_a_cancel,
    outcomes_are_their_own,
    dispatched_calls_are_told_once,
)


@settings(max_examples=250)
@given(batch_plans())
def test_every_batch_keeps_the_laws(plan: BatchPlan) -> None:
    """C4 C12 C113 C116 C120 C121 C122 C124 C174 BC-02 BC-33 BC-41 C123."""
    play = Play(plan)
    play.run()
    assert play.error is None
    assert problems_of(play) == [], play.timeline.order_all()


@settings(max_examples=120)
@given(batch_plans(calm=True))
def test_all_that_fits_is_started_before_the_first_commit(plan: BatchPlan) -> None:
    """C120, DESIGN 7 and 12: also when the tools are instant."""
    play = Play(plan)
    play.run()
    assert play.error is None
    assert problems_of(play) == []
    first = next((name for name in play.names if play.timeline.has("result", name)), None)
    if first is None:
        return
    commit = play.timeline.index("result", first)
    fits = 0
    while fits < min(plan.capacity, len(plan.calls)) and plan.calls[fits].parallel:
        if any(plan.calls[fits].conflicts(earlier) for earlier in plan.calls[:fits]):
            break
        fits += 1
    for name in play.names[:fits]:
        assert play.timeline.index("call", name) < commit
        # A first call that is refused is ready before the tasks of the others have run.
        if not play.refused(first) and not play.refused(name):
            assert play.timeline.index("body>", name) < commit


@settings(max_examples=120)
@given(batch_plans(), st.integers(1, 4))
def test_a_flush_that_fails_starts_nothing_more_and_leaves_as_itself(
    plan: BatchPlan, fails_at: int
) -> None:
    """C125: what was started is waited for; no result is made up."""
    play = Play(plan)
    play.log.fails_at, play.log.failure = fails_at, StoreError("the disk is full")
    play.run()
    if play.log.flushes < fails_at or play.cancelled:
        return
    assert play.error is play.log.failure
    started = {entry.who for entry in play.timeline.of("body>")}
    assert started == {entry.who for entry in play.timeline.of("body<")}
    later = play.timeline.entries[play.timeline.index("flush!") :]
    assert [e for e in later if e.kind in ("call", "pre>")] == []
    # A body that an earlier flush let go may take its first step in the same instant.
    assert [e for e in later if e.kind == "body>" and e.at > later[0].at] == []
    answered = [entry.who for entry in play.timeline.of("result")]
    assert answered == play.names[: len(answered)]
    assert all(_shown(play.log.outcomes[who]) == _expected(play, who) for who in answered)


# --- capacity and waves ------------------------------------------------------------------


class Bodies:
    """Tools whose bodies sleep, and their timeline."""

    def __init__(self, **seconds: float) -> None:
        self.timeline = Timeline()
        self.log = FakeLog(self.timeline)
        self.seconds = seconds

    def tool(self, name: str, **options: Any) -> Tool:
        async def body() -> str:
            self.timeline.add("body>", name)
            try:
                await trio.sleep(self.seconds.get(name, 0))
            finally:
                self.timeline.add("body<", name)
            return name

        return made(name, body, **options)

    def tools(self, *names: str, **options: Any) -> list[Tool]:
        return [self.tool(name, **options) for name in names or self.seconds]

    def starts(self) -> list[tuple[float, str]]:
        """When each body began; those of one instant by name, for their order is Trio's."""
        return sorted((entry.at, entry.who) for entry in self.timeline.of("body>"))


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 10])
@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_bodies_of_equal_length_need_few_flushes(capacity: int, count: int) -> None:
    """DESIGN 9: at most 2 + ceil(calls / capacity) flushes."""
    names = [f"t{n}" for n in range(count)]
    bodies = Bodies(**dict.fromkeys(names, 1.0))

    async def main() -> None:
        await execute(pipeline(*bodies.tools()), calls_of(*names), bodies.log, capacity=capacity)

    run(main)
    assert bodies.log.flushes <= 2 + math.ceil(count / capacity)


@pytest.mark.xfail(
    strict=True,
    reason="DESIGN 9's bound contradicts the rolling pool of DESIGN 7 and C120: bodies that end "
    "one by one are replaced one by one, and each replacement is a wave of its own",
)
def test_bodies_that_end_one_by_one_need_few_flushes_too() -> None:
    """DESIGN 9: at most 2 + ceil(calls / capacity) flushes."""
    names = [f"t{n}" for n in range(12)]
    bodies = Bodies(**{name: 1 + n / 10 for n, name in enumerate(names)})

    async def main() -> None:
        await execute(pipeline(*bodies.tools()), calls_of(*names), bodies.log, capacity=3)

    run(main)
    assert bodies.log.flushes <= 2 + math.ceil(12 / 3)


def test_a_wave_is_recorded_and_then_flushed_once() -> None:
    """DESIGN 9: append what the slots allow, flush once, start it."""
    bodies = Bodies(a=1, b=1, c=1)

    async def main() -> None:
        await execute(pipeline(*bodies.tools()), calls_of(*"abc"), bodies.log, capacity=2)

    run(main)
    assert bodies.timeline.order("call", "flush>", "flush<", "result") == [
        *("call a", "call b", "flush>", "flush<", "result a", "result b"),
        *("call c", "flush>", "flush<", "result c"),
    ]


def test_a_pre_execute_that_waits_cuts_its_wave() -> None:
    """DESIGN 9: what came before it is flushed and started while it waits."""
    bodies = Bodies(a=5, b=5)

    async def slow_for_b(hook: Any, proceed: Any) -> Any:
        if hook.call.id == "b":
            await trio.sleep(3)
        return await proceed()

    async def main() -> None:
        tools = pipeline(*bodies.tools(), pre=[slow_for_b])
        await execute(tools, calls_of(*"ab"), bodies.log)

    run(main)
    assert bodies.starts() == [(0, "a"), (3, "b")]
    assert bodies.log.flushes == 2


def test_two_waves_that_become_durable_at_once_are_both_started() -> None:
    """DESIGN 9: "group commit" - callers at the same time share one write, and a call whose
    pre-execute waited asks for its flush while that of the wave before is on its way."""
    bodies = Bodies(a=1, b=1, c=1)
    written = trio.Event()

    class Log(FakeLog):
        async def flush(self) -> None:
            self.flushes += 1
            await written.wait()

    log = Log(bodies.timeline)

    async def slow_for_b(hook: Any, proceed: Any) -> Any:
        await trio.sleep(1 if hook.call.id == "b" else 0)
        return await proceed()

    async def main() -> None:
        async def write() -> None:
            await trio.sleep(5)
            written.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            tools = pipeline(*bodies.tools(), pre=[slow_for_b])
            await execute(tools, calls_of(*"abc"), log)

    run(main)
    assert bodies.timeline.order("result") == ["result a", "result b", "result c"]
    assert {who for at, who in bodies.starts() if at == 5} >= {"a", "b"}


def test_a_commit_does_not_wait_for_a_flush() -> None:
    """DESIGN 7: "a commit never waits for a start", and the flush before a body is part of it."""
    bodies = Bodies(a=1, b=2, c=1)
    bodies.log.flush_seconds = 10

    async def main() -> None:
        await execute(pipeline(*bodies.tools()), calls_of(*"abc"), bodies.log, capacity=2)

    run(main)
    # The first flush ends at 10; a ends at 11 and c's flush lasts until 21; b ends at 12.
    committed = {entry.who: entry.at for entry in bodies.timeline.of("result")}
    assert committed == {"a": 11, "b": 12, "c": 22}


def test_a_body_whose_flush_ends_during_a_commit_starts_after_it() -> None:
    """DESIGN 7: "a start waits for a commit in progress" - starting is the lane's last part."""
    bodies = Bodies(a=1, b=1)
    bodies.log.flush_seconds = 2

    async def review(hook: Any, proceed: Any) -> Any:
        bodies.timeline.add("post>", hook.call.id)
        await trio.sleep(3)
        return await proceed()

    async def main() -> None:
        tools = pipeline(bodies.tool("a"), bodies.tool("b"), post=[review])
        calls = [a_call("nobody", "nobody"), *calls_of("a")]
        parallel = made("nobody", _never, parallel=True)
        tools.layer.add(parallel)
        tools.layer.guard(lambda hook: "no" if hook.call.name == "nobody" else None)
        await execute(tools, calls, bodies.log)

    run(main)
    # The denied call is reviewed from 0 to 3; the flush for a ends at 2.
    assert bodies.starts() == [(3, "a")]


async def _never() -> str:
    raise AssertionError("a denied call ran")


def test_a_call_of_a_read_only_tool_does_not_wait_for_the_store() -> None:
    """DESIGN 9: "a tool declared `read_only=True` does not wait"."""
    bodies = Bodies(look=0, write=0)
    bodies.log.flush_seconds = 5

    async def main() -> None:
        tools = [bodies.tool("look", read_only=True), bodies.tool("write")]
        await execute(pipeline(*tools), calls_of("look", "write"), bodies.log)

    run(main)
    assert bodies.starts() == [(0, "look"), (5, "write")]


def test_a_batch_of_read_only_calls_needs_no_flush() -> None:
    """DESIGN 9."""
    bodies = Bodies(a=1, b=1)

    async def main() -> None:
        tools = bodies.tools(read_only=True)
        await execute(pipeline(*tools), calls_of("a", "b"), bodies.log)

    run(main)
    assert bodies.log.flushes == 0


def test_refused_calls_alone_need_no_flush() -> None:
    """DESIGN 9: no body starts, so nothing has to be durable first."""
    log = FakeLog(Timeline())

    async def main() -> None:
        await execute(pipeline(), calls_of("a", "b"), log)

    run(main)
    assert [code(log.outcomes[name]) for name in "ab"] == [texts.UNKNOWN_TOOL] * 2
    assert log.flushes == 0


def test_an_empty_batch_is_over_at_once() -> None:
    """C4."""
    log = FakeLog(Timeline())

    async def main() -> None:
        assert await execute(pipeline(), [], log) == BatchResult(concludes=False)

    run(main)
    assert log.timeline.entries == []


@pytest.mark.parametrize("capacity", [0, -1, True, False])
def test_capacity_is_a_positive_integer(capacity: int) -> None:
    """C12."""

    async def main() -> None:
        with pytest.raises(InvalidValue, match="positive"):
            ToolBatch(calls=(), capacity=capacity, pipeline=pipeline(), log=FakeLog(Timeline()))

    run(main)


def test_a_slot_is_free_when_its_body_ends_although_its_result_waits() -> None:
    """C120: "a finished call frees its slot at once"."""
    bodies = Bodies(a=10, b=1, c=1, d=1)

    async def main() -> None:
        await execute(pipeline(*bodies.tools()), calls_of(*"abcd"), bodies.log, capacity=2)

    run(main)
    assert bodies.starts() == [(0, "a"), (0, "b"), (1, "c"), (2, "d")]
    assert [e.at for e in bodies.timeline.of("result")] == [10, 10, 10, 10]


def test_a_call_is_classified_again_right_before_it_starts() -> None:
    """C120 BC-41: a tool that changes while others run is judged as it is then."""
    bodies = Bodies(a=2, b=1, c=1)
    parallel = {"b": True, "c": True}

    def classify(name: str) -> Any:
        return lambda arguments: parallel[name]

    async def main() -> None:
        async def change() -> None:
            await trio.sleep(0.5)
            parallel["c"] = False

        tools = [
            bodies.tool("a"),
            bodies.tool("b", parallel=classify("b")),
            bodies.tool("c", parallel=classify("c")),
        ]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            await execute(pipeline(*tools), calls_of(*"abc"), bodies.log, capacity=2)

    run(main)
    # c would have taken b's slot at 1; exclusive by then, it waits for a as well.
    assert bodies.starts() == [(0, "a"), (0, "b"), (2, "c")]


def test_a_tool_registered_while_others_run_is_found() -> None:
    """BC-41 C117: lookup happens at the start of the call, not of the batch."""
    bodies = Bodies(a=1, late=0)

    async def main() -> None:
        tools = pipeline(bodies.tool("a"))

        async def register() -> None:
            await trio.sleep(0.5)
            tools.layer.add(bodies.tool("late"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(register)
            await execute(tools, calls_of("a", "late"), bodies.log)

    run(main)
    assert told(bodies.log.outcomes["late"]) == "late"


def test_a_tool_removed_while_others_run_is_unknown() -> None:
    """BC-41 C117."""
    bodies = Bodies(a=1, gone=0)

    async def main() -> None:
        tools = pipeline(bodies.tool("a"))
        registration = tools.layer.add(bodies.tool("gone", parallel=False))

        async def unregister() -> None:
            await trio.sleep(0.5)
            registration.remove()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(unregister)
            await execute(tools, calls_of("a", "gone"), bodies.log)

    run(main)
    assert code(bodies.log.outcomes["gone"]) == texts.UNKNOWN_TOOL


def test_duplicate_ids_are_two_calls() -> None:
    """C122: each result cites its own call."""
    cited: list[tuple[int, str]] = []

    class Log(FakeLog):
        def result(self, call: ToolCallBlock, call_seq: int, outcome: ToolOutcome) -> None:
            cited.append((call_seq, told(outcome)))

        def call(self, call: ToolCallBlock) -> int:
            cited_calls.append(call)
            return len(cited_calls)

    cited_calls: list[ToolCallBlock] = []

    async def echo(arguments: Any) -> object:
        return arguments["x"]

    async def main() -> None:
        echoes = raw_tool(name="t", description="", parameters=ANYTHING, body=echo, parallel=True)
        calls = [a_call("same", "t", f'{{"x": "{n}"}}') for n in range(3)]
        await execute(pipeline(echoes), calls, Log(Timeline()))

    run(main)
    assert cited == [(1, "0"), (2, "1"), (3, "2")]


# --- cut short ---------------------------------------------------------------------------


def test_a_policy_that_is_deaf_to_the_cancel_does_not_hang_the_batch() -> None:
    """C124 BC-50: its call is not started, and is answered."""
    bodies = Bodies(a=0)

    async def deaf(hook: Any, proceed: Any) -> Any:
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
        return await proceed()

    async def main() -> None:
        with trio.move_on_after(1):
            await execute(pipeline(*bodies.tools(), pre=[deaf]), calls_of("a"), bodies.log)

    run(main)
    assert code(bodies.log.outcomes["a"]) == texts.ABORTED_BEFORE_DISPATCH
    assert not bodies.timeline.has("body>", "a")


def test_an_approver_that_swallows_the_cancel_does_not_hang_the_batch() -> None:
    """C114 C124 BC-03."""
    bodies = Bodies(a=0)

    async def swallowing(hook: Any, proceed: Any) -> Any:
        try:
            await trio.sleep(5)
        except trio.Cancelled:
            return Allow()
        return await proceed()

    async def main() -> None:
        with trio.move_on_after(1):
            await execute(pipeline(*bodies.tools(), pre=[swallowing]), calls_of("a"), bodies.log)

    run(main)
    assert code(bodies.log.outcomes["a"]) == texts.ABORTED_BEFORE_DISPATCH


def test_a_cancel_right_behind_an_approval_does_not_hang_the_batch() -> None:
    """C124: "allow" and "stop" in one instant, in whichever order the scheduler takes them."""
    for _ in range(40):
        bodies = Bodies(a=0)
        answered = trio.Event()

        async def approve(hook: Any, proceed: Any, answered: trio.Event = answered) -> Any:
            await answered.wait()
            return await proceed()

        async def main(
            bodies: Bodies = bodies, answered: trio.Event = answered, approve: Any = approve
        ) -> None:
            async def stop() -> None:
                await answered.wait()
                await trio.lowlevel.checkpoint()
                scope.cancel(reason="stop")

            async def click() -> None:
                await trio.sleep(1)
                answered.set()

            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stop)
                    nursery.start_soon(click)
                    tools = pipeline(*bodies.tools(), pre=[approve])
                    await execute(tools, calls_of("a"), bodies.log)

        run(main)
        assert len(bodies.log.outcomes) == 1


@pytest.mark.parametrize("waits", [False, True])
def test_a_policy_that_cancels_the_batch_is_the_last_one_asked(waits: bool) -> None:
    """C124: "abort starts nothing new" - the calls behind it are not even opened."""
    bodies = Bodies(a=0, b=0, c=0)
    asked: list[str] = []

    async def main() -> None:
        async def stop(hook: Any, proceed: Any) -> Any:
            asked.append(hook.call.id)
            if waits:
                await trio.sleep(1)
            scope.cancel(reason="the policy has seen enough")
            return await proceed()

        with trio.CancelScope() as scope:
            await execute(pipeline(*bodies.tools(), pre=[stop]), calls_of(*"abc"), bodies.log)

    run(main)
    assert asked == ["a"]
    assert {code(outcome) for outcome in bodies.log.outcomes.values()} == {
        texts.ABORTED_BEFORE_DISPATCH
    }


def test_a_policy_is_not_asked_after_a_cancel_in_the_instant_of_its_opening() -> None:
    """C124: the call is recorded, its task has not run yet; an approver would show a dialog
    for a call that cannot run any more."""
    bodies = Bodies(a=0)
    asked: list[str] = []

    async def ask(hook: Any, proceed: Any) -> Any:
        asked.append(hook.call.id)
        return await proceed()

    async def main() -> None:
        class Striker(trio.abc.Instrument):
            def before_task_step(self, task: trio.lowlevel.Task) -> None:
                if bodies.timeline.has("call", "a"):
                    scope.cancel(reason="struck")

        trio.lowlevel.add_instrument(Striker())
        with trio.CancelScope() as scope:
            await execute(pipeline(*bodies.tools(), pre=[ask]), calls_of("a"), bodies.log)

    run(main)
    assert asked == []
    assert code(bodies.log.outcomes["a"]) == texts.ABORTED_BEFORE_DISPATCH


def test_a_guard_that_cancels_the_batch_is_the_last_one_asked() -> None:
    """C124: the same without a listener that could wait."""
    bodies = Bodies(a=0, b=0)
    asked: list[str] = []

    async def main() -> None:
        def stop(hook: Any) -> None:
            asked.append(hook.call.id)
            scope.cancel(reason="the guard has seen enough")

        with trio.CancelScope() as scope:
            await execute(pipeline(*bodies.tools(), guards=[stop]), calls_of(*"ab"), bodies.log)

    run(main)
    assert asked == ["a"]
    assert bodies.timeline.order("call", "result", "body>") == [
        *("call a", "result a"),
        *("call b", "result b"),
    ]


def test_a_cancel_during_the_flush_starts_nothing() -> None:
    """C124, invariant 4."""
    bodies = Bodies(a=0, b=0)
    bodies.log.flush_seconds = 2

    async def main() -> None:
        with trio.move_on_after(1):
            await execute(pipeline(*bodies.tools()), calls_of(*"ab"), bodies.log, capacity=1)

    run(main)
    assert bodies.timeline.of("body>") == []
    assert [code(bodies.log.outcomes[name]) for name in "ab"] == [texts.ABORTED_BEFORE_DISPATCH] * 2


def test_a_batch_cancelled_before_it_began_starts_nothing() -> None:
    """C124: one pair for each call, in order."""
    bodies = Bodies(a=0, b=0)
    asked: list[str] = []

    async def ask(hook: Any, proceed: Any) -> Any:
        asked.append(hook.call.id)
        return await proceed()

    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel(reason="before it began")
            await execute(pipeline(*bodies.tools(), pre=[ask]), calls_of(*"ab"), bodies.log)

    run(main)
    assert asked == []
    assert bodies.timeline.order("call", "result") == ["call a", "result a", "call b", "result b"]


def test_the_executor_returns_normally_when_it_was_cancelled() -> None:
    """The protocol of `ToolExecutor`: the caller asks for the cancel itself."""
    bodies = Bodies(a=5)
    came_back: list[BatchResult] = []

    async def main() -> None:
        with trio.move_on_after(1) as scope:
            came_back.append(await execute(pipeline(*bodies.tools()), calls_of("a"), bodies.log))
        assert not scope.cancelled_caught

    run(main)
    assert came_back == [BatchResult(concludes=False)]


def test_the_whole_cancelled_batch_in_order() -> None:
    """C124 BC-02: settled, running, queued; results, then a pair for each unstarted call."""
    bodies = Bodies(a=1, b=30, c=30, d=30, e=30)

    async def main() -> None:
        with trio.move_on_after(5):
            await execute(pipeline(*bodies.tools()), calls_of(*"abcde"), bodies.log, capacity=2)

    run(main)
    assert bodies.timeline.order("call", "result") == [
        *("call a", "call b", "result a", "call c", "result b", "result c"),
        *("call d", "result d", "call e", "result e"),
    ]
    assert [code(bodies.log.outcomes[name]) for name in "abcde"] == [
        None,
        *([texts.ABORTED] * 2),
        *([texts.ABORTED_BEFORE_DISPATCH] * 2),
    ]


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("body", ["instant", "waiting"])
def test_an_interrupt_inside_a_body_ends_the_batch_and_goes_on(
    body: str, timeout: float | None
) -> None:
    """DESIGN 4: that call commits as ABORTED, its siblings are settled, then it is raised."""
    bodies = Bodies(a=30, c=30)
    raised = KeyboardInterrupt("Ctrl-C")

    async def interrupted() -> str:
        if body == "waiting":
            await trio.sleep(1)
        raise raised

    async def main() -> None:
        tools = [bodies.tool("a"), made("b", interrupted, timeout=timeout), bodies.tool("c")]
        with pytest.raises(KeyboardInterrupt) as caught:
            await execute(pipeline(*tools), calls_of(*"abc", "nobody"), bodies.log, capacity=2)
        assert caught.value is raised

    run(main)
    assert bodies.timeline.order("result") == ["result a", "result b", "result c", "result nobody"]
    assert code(bodies.log.outcomes["b"]) == texts.ABORTED
    assert code(bodies.log.outcomes["c"]) == texts.ABORTED_BEFORE_DISPATCH
    assert bodies.timeline.has("body<", "a") == bodies.timeline.has("body>", "a")


@pytest.mark.parametrize("where", ["settling", "opening", "flushing"])
def test_ctrl_c_between_two_lines_of_the_executor_hangs_nothing(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DESIGN 4, BC-56: the executor's own frames are protected in every task it starts, so the
    signal is delivered to the host, whose cancel then ends the batch as any other does."""
    bodies = Bodies(a=1, b=30)
    struck: list[str] = []

    def striking(real: Any) -> Any:
        def strike(*args: Any) -> Any:
            if not struck:
                struck.append(where)
                signal.raise_signal(signal.SIGINT)
            return real(*args)

        return strike

    if where == "settling":
        monkeypatch.setattr(_Run, "_settle", striking(_Run._settle))
    elif where == "opening":
        monkeypatch.setattr(_Run, "_opened", striking(_Run._opened))

    class Log(FakeLog):
        async def flush(self) -> None:
            if where == "flushing":
                striking(lambda: None)()
            await super().flush()

    log = Log(bodies.timeline)

    async def passing(hook: Any, proceed: Any) -> Any:
        return await proceed()

    async def batch() -> None:
        await execute(pipeline(*bodies.tools(), pre=[passing]), calls_of(*"ab"), log)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(batch)
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        run(main)
    assert struck == [where]
    assert caught.value.split(KeyboardInterrupt)[1] is None, "nothing but the interrupt"
    assert bodies.timeline.order("result") == ["result a", "result b"]
    started = {entry.who for entry in bodies.timeline.of("body>")}
    assert started == {entry.who for entry in bodies.timeline.of("body<")}


def test_an_interrupt_inside_a_group_of_a_body_is_an_interrupt() -> None:
    """DESIGN 4: a nursery in a body wraps it; it is still no tool error."""
    log = FakeLog(Timeline())

    async def body() -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise KeyboardInterrupt

    async def main() -> None:
        with pytest.raises(KeyboardInterrupt):
            await execute(pipeline(made("a", body)), calls_of("a"), log)

    run(main)
    assert code(log.outcomes["a"]) == texts.ABORTED


async def interrupting(hook: Any, proceed: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("stage", ["pre", "around", "post"])
def test_an_interrupt_inside_a_listener_answers_every_call(stage: str) -> None:
    """DESIGN 4: listeners run without protection."""
    bodies = Bodies(a=1, b=30)
    listeners: dict[str, Any] = {stage: [interrupting]}

    async def main() -> None:
        with pytest.raises(KeyboardInterrupt):
            await execute(pipeline(*bodies.tools(), **listeners), calls_of(*"ab"), bodies.log)

    run(main)
    assert bodies.timeline.order("result") == ["result a", "result b"]
    ran = [name for name in "ab" if bodies.timeline.has("body>", name)]
    for name in "ab":
        unstarted = code(bodies.log.outcomes[name]) == texts.ABORTED_BEFORE_DISPATCH
        assert unstarted == (name not in ran), name


def test_an_interrupt_during_the_review_of_a_denied_call_does_not_say_that_it_ran() -> None:
    """Invariant 5 C116: only a call that started is ABORTED; a denial stays more specific."""
    bodies = Bodies(a=1)

    async def deny(hook: Any, proceed: Any) -> Any:
        return Deny("no")

    async def main() -> None:
        tools = pipeline(*bodies.tools(), pre=[deny], post=[interrupting])
        with pytest.raises(KeyboardInterrupt):
            await execute(tools, calls_of("a"), bodies.log)

    run(main)
    assert told(bodies.log.outcomes["a"]) == "Error: no"


def test_an_interrupt_in_an_observer_does_not_withhold_a_reviewed_result() -> None:
    """DESIGN 6: a body that returned keeps its result when post-execute completed."""
    bodies = Bodies(a=0)

    def observer(hook: Any) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        tools = pipeline(*bodies.tools(), results=[observer])
        with pytest.raises(KeyboardInterrupt):
            await execute(tools, calls_of("a"), bodies.log)

    run(main)
    assert told(bodies.log.outcomes["a"]) == "a"


# --- failures of others ------------------------------------------------------------------


def test_a_result_that_cannot_be_recorded_fails_the_batch_after_its_bodies() -> None:
    """C125: started bodies end first, nothing new starts, the error leaves as itself."""
    bodies = Bodies(a=1, b=5, c=1)
    failure = StoreError("the log refuses")

    class Log(FakeLog):
        def result(self, call: ToolCallBlock, call_seq: int, outcome: ToolOutcome) -> None:
            raise failure

    async def main() -> None:
        log = Log(bodies.timeline)
        with pytest.raises(StoreError) as caught:
            await execute(pipeline(*bodies.tools()), calls_of(*"abc"), log, capacity=2)
        assert caught.value is failure
        assert trio.current_time() == 5

    run(main)
    assert bodies.starts() == [(0, "a"), (0, "b")]
    assert bodies.timeline.order("body<") == ["body< a", "body< b"]


def test_a_failing_flush_waits_for_a_policy_that_is_being_asked() -> None:
    """C125: dispatches that began end before the error leaves."""
    bodies = Bodies(a=0, b=0)
    bodies.log.fails_at, bodies.log.failure = 1, StoreError("the disk is full")
    over: list[float] = []

    async def slow_for_b(hook: Any, proceed: Any) -> Any:
        if hook.call.id == "b":
            await trio.sleep(3)
            over.append(trio.current_time())
        return await proceed()

    async def main() -> None:
        tools = pipeline(*bodies.tools(), pre=[slow_for_b])
        with pytest.raises(StoreError):
            await execute(tools, calls_of(*"ab"), bodies.log)

    run(main)
    assert over == [3]
    assert bodies.timeline.of("body>", "result") == []


@pytest.mark.parametrize("count", [1, 3])
def test_no_task_is_left_behind(count: int) -> None:
    """C173: a batch owns its tasks."""

    async def main() -> None:
        before = trio.lowlevel.current_statistics().tasks_living
        bodies = Bodies(**{f"t{n}": float(n) for n in range(count)})
        with trio.move_on_after(1.5):
            await execute(pipeline(*bodies.tools()), calls_of(*bodies.seconds), bodies.log)
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == before

    run(main)
