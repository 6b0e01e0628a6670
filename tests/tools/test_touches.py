"""Tools that say what they touch: which calls conflict, and when those start that do.

`test_batch` plays touches among policies, flushes and timeouts. Here bodies alone take time,
so that a model of a few lines can say when each call starts and ends.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
import pytest
import trio
from attrs import frozen
from hypothesis import given, settings, strategies as st
from tests.strategies_batches import touches
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

from terzetto import Read, Write
from terzetto.tools import Deny, Tool, Touch, raw_tool, tool
from terzetto.tools._touches import MAX_TOUCHES, NOTHING, Claim, Held, claim_of
from terzetto.vocabulary import InvalidTool, InvalidValue, texts

# --- resources ---------------------------------------------------------------------------


def test_a_resource_is_named_by_its_text() -> None:
    """A path stands for its text; equal texts are one resource, and so are equal touches."""
    assert Read("a/b").resource == "a/b"
    assert Read(PurePosixPath("a/b")) == Read("a/b")
    assert Write(trio.Path("a/b")) == Write(Path("a/b"))
    assert len({Read("a"), Read("a"), Write("a")}) == 2
    assert len({Read("a"), Write("a")}) == 2
    assert repr(Write("x")) == "Write(resource='x')"


def test_nothing_is_resolved_or_folded() -> None:
    names = ["a", "./a", "A", "a/", "a ", "", "é", "e\u0301", "\udc97"]
    assert [Read(name).resource for name in names] == names
    assert len({Read(name) for name in names}) == len(names)


def test_a_subclass_of_str_is_kept_as_its_text() -> None:
    class Odd(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("compared")

        def __hash__(self) -> int:
            raise RuntimeError("hashed")

    assert type(Write(Odd("a")).resource) is str
    assert Write(Odd("a")) == Write("a")


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"a"


@pytest.mark.parametrize("kind", [Read, Write])
@pytest.mark.parametrize("value", [None, 1, b"a", ("a",), BytesPath(), object()])
def test_what_names_no_resource_is_refused(kind: Any, value: object) -> None:
    with pytest.raises(InvalidValue, match="str or a path"):
        kind(value)


def test_touches_are_frozen() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Read("a").resource = "b"  # type: ignore[misc]


# --- what a tool declares ----------------------------------------------------------------


async def edit(path: str, other: str = "") -> str:
    """Edit."""
    return path


def claimed(touches: Any, arguments: str = '{"path": "p", "other": "q"}') -> Claim | None:
    made = tool(touches=touches)(edit)
    return made.claim(made.parse(arguments))


def writes(*names: str) -> Claim:
    return Claim(writes=frozenset(names))


def yielding(args: Any) -> Iterator[Touch]:
    yield Read(args["path"])
    yield Write(args["other"])


@pytest.mark.parametrize(
    ("given", "claim"),
    [
        (lambda args: {Write(args["path"])}, writes("p")),
        (lambda args: [Write(args["path"]), Write(args["other"])], writes("p", "q")),
        (lambda args: (Read(args["path"]),), Claim(frozenset("p"))),
        (lambda args: [Read("p"), Write("p")], writes("p")),
        (lambda args: [Read("p")] * 5, Claim(frozenset("p"))),
        (lambda args: iter([Write("p")]), writes("p")),
        (yielding, Claim(frozenset("p"), frozenset("q"))),
        (lambda args: (), NOTHING),
        (lambda args: {Write(str(n)) for n in range(MAX_TOUCHES)}, ...),
    ],
)
def test_touches_are_any_iterable_of_read_and_write(given: Any, claim: Any) -> None:
    found = claimed(given)
    assert found is not None if claim is ... else found == claim


def failing(args: Any) -> Iterator[Touch]:
    yield Read("p")
    raise RuntimeError("half way")


def endless(args: Any) -> Iterator[Touch]:
    while True:
        yield Read("p")


class Refusing:
    def __iter__(self) -> Iterator[Touch]:
        raise SystemExit("no")


async def later() -> set[Touch]:
    return {Write("p")}


async def later_each() -> AsyncIterator[Touch]:
    yield Write("p")


@pytest.mark.parametrize(
    "given",
    [
        lambda args: None,
        lambda args: True,
        lambda args: Write("p"),
        lambda args: "p",
        lambda args: "",
        lambda args: b"",
        lambda args: ["p"],
        lambda args: [Write("p"), None],
        lambda args: [Write],
        lambda args: {"p": Write("p")},
        lambda args: Refusing(),
        lambda args: later(),
        lambda args: later_each(),
        lambda args: [Write(args["missing"])],
        lambda args: [Write(None)],
        lambda: [Write("p")],
        lambda args: {Write(str(n)) for n in range(MAX_TOUCHES + 1)},
        failing,
        endless,
    ],
)
def test_a_call_whose_touches_fail_or_are_ill_typed_is_exclusive(given: Any) -> None:
    """C121 BC-41: never skipped, and never more parallel than was said. Nothing that was made
    to be awaited is left for a warning."""
    assert claimed(given) is None


def test_touches_of_a_tool_may_be_interrupted() -> None:
    def interrupt(args: object) -> set[Touch]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        claimed(interrupt)


def test_touches_opt_in_to_overlap_and_parallel_touches_nothing() -> None:
    assert tool(touches=lambda args: ())(edit).is_parallel({})
    assert tool(parallel=True)(edit).claim({}) == NOTHING
    assert tool(edit).claim({}) is None


def test_touches_of_a_raw_tool_see_the_raw_value() -> None:
    """C117: the text where it is no JSON."""
    made = raw_tool(
        name="t",
        description="",
        parameters=ANYTHING,
        body=lambda args: None,
        touches=lambda args: {Write(args if isinstance(args, str) else "none")},
    )
    assert made.claim(made.parse("{broken")) == writes("{broken")
    assert made.claim(made.parse("{}")) == writes("none")


@pytest.mark.parametrize("parallel", [True, lambda args: False, lambda args: True])
def test_touches_beside_parallel_are_refused(parallel: Any) -> None:
    with pytest.raises(InvalidTool, match="'edit': expected touches or parallel, got both"):
        tool(touches=yielding, parallel=parallel)(edit)
    with pytest.raises(InvalidTool, match="got both"):
        attrs.evolve(tool(touches=yielding)(edit), parallel=parallel)


@pytest.mark.parametrize("value", [True, {Write("p")}, "p", later, later_each])
def test_touches_that_are_no_plain_function_are_refused(value: Any) -> None:
    with pytest.raises(InvalidTool, match="'edit': touches: expected None or a plain function"):
        tool(touches=value)(edit)


def test_touches_are_kept_in_a_renamed_copy() -> None:
    copy = attrs.evolve(tool(touches=yielding)(edit), name="renamed")
    assert copy.claim(copy.parse('{"path": "p", "other": "q"}')) == claimed(yielding)


# --- who conflicts with whom -------------------------------------------------------------


claims = st.lists(touches("abcd"), max_size=4).map(claim_of)


@given(st.lists(claims, max_size=12), claims)
def test_what_is_held_conflicts_as_each_of_its_claims_does(many: list[Claim], new: Claim) -> None:
    """Against the definition, pair by pair; and what was released is as if it never was."""

    def clash(one: Claim, other: Claim) -> bool:
        return bool(
            one.writes & (other.reads | other.writes) or other.writes & (one.reads | one.writes)
        )

    held, taken = Held(), list[Claim]()
    for claim in many:
        assert held.conflicts(claim) == any(clash(claim, other) for other in taken)
        if held.conflicts(claim):
            if taken:
                held.release(taken.pop(0))
        else:
            held.take(claim)
            taken.append(claim)
    assert held.conflicts(new) == any(clash(new, other) for other in taken)
    for claim in taken:
        held.release(claim)
    assert held == Held() or (held._readers, held._written) == ({}, set())


# --- against a model ---------------------------------------------------------------------


@frozen
class Plan:
    """*claims*: what each call touches, None for an exclusive one. Bodies take whole ticks."""

    claims: tuple[Claim | None, ...]
    ticks: tuple[int, ...]
    capacity: int
    cancel: float | None


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    kinds = st.lists(touches(), max_size=3).map(claim_of)
    several = draw(st.lists(st.just(NOTHING) | kinds | kinds | kinds | st.none(), max_size=12))
    ticks = draw(st.lists(st.integers(0, 5), min_size=len(several), max_size=len(several)))
    # A cancel falls between two ticks, so that the model need not know who comes first.
    cancel = draw(st.none() | st.integers(0, 20).map(lambda n: n + 0.5))
    return Plan(tuple(several), tuple(ticks), draw(st.integers(1, 8)), cancel)


def modelled(plan: Plan) -> list[tuple[float, float]]:
    """When each body begins and ends if nothing is cut: no earlier than the call before it,
    with a slot free, after all that it has to follow, and at that very moment."""
    times: list[tuple[float, float]] = []
    for index, claim in enumerate(plan.claims):
        ends = sorted((end for _, end in times), reverse=True)
        after = [0.0, *(start for start, _ in times)]
        after += ends[plan.capacity - 1 :][:1]
        for (_, end), other in zip(times, plan.claims[:index], strict=True):
            if claim is None or other is None or follows(claim, other):
                after.append(end)
        times.append((max(after), max(after) + plan.ticks[index]))
    return times


def follows(claim: Claim, other: Claim) -> bool:
    return any(
        (resource in claim.writes or resource in other.writes)
        for resource in (claim.reads | claim.writes) & (other.reads | other.writes)
    )


def played(plan: Plan) -> FakeLog:
    log = FakeLog(Timeline())
    names = [f"c{index}" for index in range(len(plan.claims))]

    def a_tool(name: str, ticks: int, claim: Claim | None) -> Tool:
        async def body() -> str:
            log.timeline.add("body>", name)
            try:
                await trio.sleep(ticks)
            finally:
                log.timeline.add("body<", name)
            return name

        if claim is None or claim is NOTHING:
            return made(name, body, parallel=claim is NOTHING)
        touched = [*map(Read, claim.reads), *map(Write, claim.writes)]
        return made(name, body, parallel=False, touches=lambda args: touched)

    async def main() -> None:
        tools = list(map(a_tool, names, plan.ticks, plan.claims))
        with trio.CancelScope() as scope:
            if plan.cancel is not None:
                scope.deadline = trio.current_time() + plan.cancel
            await execute(pipeline(*tools), calls_of(*names), log, capacity=plan.capacity)

    run(main)
    return log


@settings(max_examples=300)
@given(plans())
def test_calls_start_when_the_model_says_and_not_later(plan: Plan) -> None:
    """C120 C121 C122 C124 C123 BC-41: starts and results in model order, no conflicting bodies
    at once, no more bodies than slots, and no call waits that may start; until a cancel."""
    log = played(plan)
    timeline, names = log.timeline, [f"c{index}" for index in range(len(plan.claims))]
    assert [entry.who for entry in timeline.of("call")] == names
    assert [entry.who for entry in timeline.of("result")] == names
    cancel = float("inf") if plan.cancel is None else plan.cancel
    running = set[int]()
    for entry in timeline.of("body>", "body<"):
        index = int(entry.who[1:])
        if entry.kind == "body<":
            running.remove(index)
            continue
        mine = plan.claims[index]
        for other in running:
            theirs = plan.claims[other]
            assert mine is not None
            assert theirs is not None
            assert not follows(mine, theirs)
        running.add(index)
        assert len(running) <= plan.capacity
    for index, (name, (start, end)) in enumerate(zip(names, modelled(plan), strict=True)):
        if start > cancel:
            assert not timeline.has("body>", name)
            assert code(log.outcomes[name]) == texts.ABORTED_BEFORE_DISPATCH
            continue
        began = timeline.entries[timeline.index("body>", name)].at
        ended = timeline.entries[timeline.index("body<", name)].at
        assert (began, ended) == (start, min(end, cancel)), f"{name} of {plan}"
        assert told(log.outcomes[name]) == (name if end < cancel else texts.ABORTED_TEXT)
        if end < cancel:  # committed as soon as all before it are
            committed = timeline.entries[timeline.index("result", name)].at
            assert committed == min(cancel, max(e for _, e in modelled(plan)[: index + 1]))


# --- one law each ------------------------------------------------------------------------


class Files:
    """Tools that read or write one file each, for some seconds."""

    def __init__(self) -> None:
        self.log = FakeLog(Timeline())

    def tool(self, name: str, seconds: float, *touched: Touch, **options: Any) -> Tool:
        async def body() -> str:
            self.log.timeline.add("body>", name)
            try:
                await trio.sleep(seconds)
            finally:
                self.log.timeline.add("body<", name)
            return name

        return made(name, body, parallel=False, touches=lambda args: touched, **options)

    def starts(self) -> list[tuple[float, str]]:
        return sorted((entry.at, entry.who) for entry in self.log.timeline.of("body>"))

    def run(self, *tools: Tool, cancel_at: float | None = None, **options: Any) -> None:
        capacity = options.pop("capacity", 10)

        async def main() -> None:
            with trio.CancelScope() as scope:
                if cancel_at is not None:
                    scope.deadline = trio.current_time() + cancel_at
                calls = calls_of(*(tool.name for tool in tools))
                await execute(pipeline(*tools, **options), calls, self.log, capacity=capacity)

        run(main)


def test_a_writer_waits_for_readers_and_readers_behind_it_wait_for_it() -> None:
    """C123: like a fair readers-writer lock; a later reader does not overtake."""
    files = Files()
    files.run(
        files.tool("a", 5, Read("x")),
        files.tool("b", 3, Read("x")),
        files.tool("c", 1, Write("x")),
        files.tool("d", 1, Read("x")),
        files.tool("e", 1, Write("y")),
    )
    # e conflicts with nobody, and is behind d all the same: starts keep model order.
    assert files.starts() == [(0, "a"), (0, "b"), (5, "c"), (6, "d"), (6, "e")]


def test_a_conflicting_call_starts_before_the_result_of_the_other_is_committed() -> None:
    """C122 C123: it waits for the effect, not for the commit, which would make it wait for `a`."""
    files = Files()
    files.run(
        files.tool("a", 10, Read("other")),
        files.tool("b", 1, Write("x")),
        files.tool("c", 1, Write("x")),
    )
    assert files.starts() == [(0, "a"), (0, "b"), (1, "c")]
    assert [entry.at for entry in files.log.timeline.of("result")] == [10, 10, 10]


def test_a_ready_result_is_committed_before_a_conflicting_call_starts() -> None:
    """C122: where nothing earlier runs, whoever starts next sees the result in the log."""
    files = Files()
    files.run(files.tool("a", 1, Write("x")), files.tool("b", 1, Write("x")))
    order = files.log.timeline.order("call", "body<", "result")
    assert order == ["call a", "body< a", "result a", "call b", "body< b", "result b"]


def test_a_touch_lasts_as_long_as_a_listener_around_the_body() -> None:
    """C113 C115: what an execute listener does after the body is part of the call."""
    files = Files()

    async def around(hook: Any, proceed: Any) -> Any:
        outcome = await proceed()
        await trio.sleep(2)
        return outcome

    files.run(files.tool("a", 1, Write("x")), files.tool("b", 1, Write("x")), around=[around])
    assert files.starts() == [(0, "a"), (3, "b")]


def test_a_touch_lasts_until_a_timed_out_body_has_ended() -> None:
    """BC-13 (e): the deadline decides the result, not the end of the effect."""
    files = Files()

    async def stubborn() -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(10)
        return "late"

    slow = made("a", stubborn, parallel=False, touches=lambda args: {Write("x")}, timeout=1)
    files.run(slow, files.tool("b", 1, Write("x")))
    assert files.starts() == [(10, "b")]
    assert code(files.log.outcomes["a"]) == texts.TOOL_TIMEOUT


def test_a_denied_call_touches_nothing_any_more() -> None:
    """C114: its body never ran; the next one does not wait for its review."""
    files = Files()

    async def deny_a(hook: Any, proceed: Any) -> Any:
        return Deny("no") if hook.call.id == "a" else await proceed()

    files.run(
        files.tool("a", 5, Write("x")),
        files.tool("b", 1, Write("x")),
        pre=[deny_a],
    )
    assert files.starts() == [(0, "b")]


def test_a_call_that_waits_for_policy_touches_already() -> None:
    """C122: it has started; whoever conflicts with it stays behind it."""
    files = Files()

    async def think(hook: Any, proceed: Any) -> Any:
        await trio.sleep(2)
        return await proceed()

    files.run(files.tool("a", 1, Write("x")), files.tool("b", 1, Write("x")), pre=[think])
    assert files.starts() == [(2, "a"), (5, "b")]


def test_an_exclusive_call_is_a_barrier_among_calls_that_touch_nothing_in_common() -> None:
    """C120 C121: touches free no call from a barrier."""
    files = Files()
    files.run(
        files.tool("a", 2, Write("x")),
        files.tool("b", 3, Write("y")),
        made("c", _second, parallel=False),
        files.tool("d", 1, Write("z")),
    )
    assert files.starts() == [(0, "a"), (0, "b"), (4, "d")]


async def _second() -> str:
    await trio.sleep(1)
    return "c"


def test_what_a_call_touches_is_asked_right_before_it_starts() -> None:
    """C120: a call that waited for a slot is judged by what is true then."""
    files = Files()
    current = ["x"]

    def touched(args: object) -> set[Touch]:
        return {Write(current[0])}

    async def body() -> str:
        files.log.timeline.add("body>", "c")
        return "c"

    async def main() -> None:
        async def change() -> None:
            await trio.sleep(0.5)
            current[0] = "y"

        tools = [
            files.tool("a", 1, Write("x")),
            files.tool("b", 5, Write("y")),
            made("c", body, parallel=False, touches=touched),
        ]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            await execute(pipeline(*tools), calls_of(*"abc"), files.log, capacity=2)

    run(main)
    # A slot is free at 1, and x as well; but it is y that it would touch by then.
    assert files.starts() == [(0, "a"), (0, "b"), (5, "c")]


def test_a_call_that_waits_for_another_is_unstarted_when_cancelled() -> None:
    """C124: and so are those behind it."""
    files = Files()
    files.run(
        files.tool("a", 5, Write("x")),
        files.tool("b", 1, Write("x")),
        files.tool("c", 1, Write("y")),
        cancel_at=2,
    )
    assert files.starts() == [(0, "a")]
    codes = [code(files.log.outcomes[name]) for name in "abc"]
    assert codes == [texts.ABORTED, *[texts.ABORTED_BEFORE_DISPATCH] * 2]


def test_two_calls_of_one_tool_with_equal_arguments_exclude_each_other() -> None:
    """C122: also under one id."""
    running, most = [0], [0]

    @tool(touches=lambda args: {Write(str(args["path"]))})
    async def write(path: str) -> str:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await trio.sleep(1)
        running[0] -= 1
        return path

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        calls = [a_call(f"c{n}", "write", '{"path": "p"}') for n in range(4)]
        await execute(pipeline(write), calls, log)
        assert trio.current_time() == 4
        return log

    assert len(run(main).outcomes) == 4
    assert most == [1]


def test_a_touch_lasts_until_the_thread_of_a_plain_body_has_ended() -> None:
    """BC-34: real threads."""
    inside, lock, most = [0], threading.Lock(), [0]

    @tool(touches=lambda args: {Write("x")})
    def write(n: int) -> str:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        threading.Event().wait(0.01)
        with lock:
            inside[0] -= 1
        return str(n)

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        calls = [a_call(f"c{n}", "write", f'{{"n": {n}}}') for n in range(5)]
        with trio.fail_after(20):
            await execute(pipeline(write), calls, log, patience=30)
        return log

    log = trio.run(main)
    assert [told(log.outcomes[f"c{n}"]) for n in range(5)] == list("01234")
    assert most == [1]
