"""`spill`: where the full text of a result goes that is cut, and what may go wrong there."""

from __future__ import annotations

import functools
import gc
import logging
import os
import re
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, strategies as st
from tests.tools.rig import (
    NOBODY,
    FakeLog,
    Timeline,
    a_call,
    calls_of,
    code,
    execute,
    made,
    outcome_of,
    pipeline,
    run,
    told,
)

from terzetto import LongResult
from terzetto.tools import Deny, Tool, ToolOutcome, check_spill
from terzetto.tools._encode import bound
from terzetto.tools._spill import MAX_REFERENCE_BYTES
from terzetto.vocabulary import InvalidValue, TextBlock, texts

LIMIT = 200
LONG = "".join(f"line {number}\n" for number in range(1000))


def long_tool(value: object = LONG, *, name: str = "t", **options: Any) -> Tool:
    async def body() -> object:
        if isinstance(value, BaseException):
            raise value
        return value

    options.setdefault("max_result_bytes", LIMIT)
    return made(name, body, **options)


class Kept:
    """A spill that keeps everything, and gives what it was told to give."""

    def __init__(self, reference: object = "spilled/1") -> None:
        self.reference = reference
        self.results: list[LongResult] = []

    async def __call__(self, result: LongResult) -> Any:
        await trio.sleep(1)
        self.results.append(result)
        return self.reference

    @property
    def texts(self) -> list[str]:
        return [result.text for result in self.results]


def once(tool: Tool, spill: Any, **options: Any) -> ToolOutcome:
    async def main() -> ToolOutcome:
        return await outcome_of(tool, spill=spill, **options)

    return run(main)


def note(outcome: ToolOutcome) -> str:
    """What the line in the cut text says, its count left out."""
    found = re.search(r"\n\[\.\.\. \d+ bytes omitted(.*) \.\.\.\]\n", told(outcome))
    assert found is not None, told(outcome)
    return found[1]


NOT_KEPT = "; the full text could not be kept"


# --- what is spilled ---------------------------------------------------------------------


def test_the_full_text_goes_to_spill_and_the_reference_into_the_note() -> None:
    """BC-39: head and tail are kept, within the limit, and the model can ask for the rest."""
    spill = Kept("spilled/1.txt")
    outcome = once(long_tool(), spill)
    (result,) = spill.results
    assert (result.text, result.call_id, result.tool) == (LONG, "c", "t")
    assert result.agent is NOBODY
    assert note(outcome) == "; full text: spilled/1.txt"
    head, tail = re.split(r"\n\[.*\]\n", told(outcome))
    assert LONG.startswith(head)
    assert LONG.endswith(tail)
    assert head
    assert tail
    assert LIMIT - 10 < len(told(outcome).encode()) <= LIMIT
    assert not outcome.is_error


@pytest.mark.parametrize(
    "value",
    ["short", "", None, [], "x" * LIMIT, "é" * (LIMIT // 2), ["x" * (LIMIT - 4)], ValueError("x")],
    ids=repr,
)
def test_what_fits_is_not_spilled(value: object) -> None:
    spill = Kept()
    outcome = once(long_tool(value), spill)
    assert spill.results == []
    assert "omitted" not in told(outcome)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("é" * 1000, "é" * 1000),
        ("x" * (LIMIT + 1), "x" * (LIMIT + 1)),
        (["a" * 500, {"b": 1}], '["' + "a" * 500 + '",{"b":1}]'),
        ([TextBlock("a" * 150), TextBlock("b" * 150)], "a" * 150 + "b" * 150),
        (TextBlock("c" * 300), "c" * 300),
        ("\udc97" * 300, "\ufffd" * 300),
        ("\ud83c\udf78" * 9000, "🍸" * 9000),
        (ValueError("e" * 300), "Error: " + "e" * 300),
    ],
    ids=["text", "one over", "json", "blocks", "block", "surrogates", "pairs", "error"],
)
def test_the_text_is_the_whole_result_as_it_would_have_been_committed(
    value: object, text: str
) -> None:
    """BC-37 BC-38 BC-39: of any type, errors included."""
    spill = Kept()
    outcome = once(long_tool(value), spill)
    assert spill.texts == [text]
    assert note(outcome) == "; full text: spilled/1"
    assert outcome.is_error == isinstance(value, ValueError)
    uncut = once(long_tool(value, max_result_bytes=None), spill)
    assert told(uncut) == text
    assert len(spill.results) == 1, "a tool without a limit has nothing to spill"


@given(st.text("ab\né🍸", max_size=400), st.text(max_size=60), st.integers(0, 300))
def test_a_note_never_breaks_the_limit(value: str, note: str, limit: int) -> None:
    """BC-39: where it does not fit, it is left out before any of the result is."""
    content = (TextBlock(value),)
    note = note.encode("utf-8", "replace").decode()
    noted = bound(content, limit, note=note)
    assert sum(len(block.text.encode()) for block in noted) <= limit
    if noted != bound(content, limit):
        assert note in noted[0].text


def test_several_results_are_spilled_in_model_order() -> None:
    """C122: commits are in order, and so are their spills."""
    spill = Kept()

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        tools = [long_tool(f"{name}" * 999, name=name) for name in "abc"]
        await execute(pipeline(*tools, spill=spill), calls_of(*"abc"), log)
        return log

    log = run(main)
    assert [result.call_id for result in spill.results] == ["a", "b", "c"]
    assert log.timeline.order("result") == ["result a", "result b", "result c"]


def test_bodies_go_on_while_a_result_is_spilled() -> None:
    """C120: only later commits and starts wait."""

    async def slow() -> str:
        await trio.sleep(1)
        return "slow"

    async def main() -> None:
        spill = Kept()
        tools = pipeline(long_tool(name="a"), made("b", slow), spill=spill)
        await execute(tools, calls_of("a", "b"), FakeLog(Timeline()))
        assert trio.current_time() == 1, "the spill and the body, at once"

    run(main)


# --- and policy --------------------------------------------------------------------------


def test_a_redacted_result_is_not_spilled() -> None:
    """C113: what policy replaced is gone, in the spill as in the log."""
    spill = Kept()

    async def redact(hook: Any, proceed: Any) -> Any:
        return hook.replaced("redacted")

    assert told(once(long_tool(), spill, post=[redact])) == "redacted"
    assert spill.results == []


def test_a_blocked_result_is_not_spilled() -> None:
    spill = Kept()

    async def block(hook: Any, proceed: Any) -> Any:
        return hook.blocked("no")

    assert told(once(long_tool(), spill, post=[block])) == "no"
    assert spill.results == []


def test_with_a_spill_listeners_review_all_that_it_will_keep() -> None:
    """C113: a secret in the middle of a long text is redacted in the spill as well. Without a
    spill nobody sees the middle any more, so there is nothing to review in it."""
    secret = "x" * 500 + "hunter2" + "y" * 500
    spill, seen = Kept(), list[str]()

    async def redact(hook: Any, proceed: Any) -> Any:
        seen.append(told(hook.outcome))
        return hook.replaced(seen[-1].replace("hunter2", "*******"))

    outcome = once(long_tool(secret), spill, post=[redact])
    assert spill.texts == [secret.replace("hunter2", "*******")]
    assert note(outcome) == "; full text: spilled/1"
    once(long_tool(secret), None, post=[redact])
    assert seen[0] == secret
    assert len(seen[1].encode()) <= LIMIT


@pytest.mark.parametrize("where", ["around", "post", "finalize"])
def test_what_is_added_to_a_long_result_is_added_to_the_spilled_one(where: str) -> None:
    """C113: the spill keeps what would have been committed, had it been short."""
    spill = Kept()
    footer = TextBlock("took 3 s")

    async def listener(hook: Any, proceed: Any) -> Any:
        outcome = await proceed()
        return attrs.evolve(outcome, content=(*outcome.content, footer))

    if where == "finalize":
        outcome = once(long_tool(finalize=lambda content: (*content, footer)), spill)
    else:
        outcome = once(long_tool(), spill, **{where: [listener]})
    assert spill.texts == [LONG + "took 3 s"]
    assert told(outcome).endswith("took 3 s")
    assert note(outcome) == "; full text: spilled/1"


def test_a_long_result_that_policy_makes_short_is_not_spilled() -> None:
    """C113: a summary needs no file."""
    spill = Kept()

    async def summarize(hook: Any, proceed: Any) -> Any:
        return hook.replaced(f"{len(told(hook.outcome))} characters")

    assert told(once(long_tool(), spill, post=[summarize])) == f"{len(LONG)} characters"
    assert spill.results == []


def test_a_review_cut_short_by_a_cancel_withholds_the_text_everywhere() -> None:
    """C116: policy may have wanted to redact it."""
    spill = Kept()

    async def slow(hook: Any, proceed: Any) -> Any:
        await trio.sleep_forever()

    assert code(once(long_tool(), spill, post=[slow], cancel_at=1)) == texts.ABORTED
    assert spill.results == []


@pytest.mark.parametrize("where", ["post", "finalize", "around", "policy"])
def test_a_long_text_that_policy_put_there_is_spilled_itself(where: str) -> None:
    spill, other = Kept(), "other " * 100

    async def replace(hook: Any, proceed: Any) -> Any:
        return hook.replaced(other)

    async def around(hook: Any, proceed: Any) -> Any:
        outcome = await proceed()
        return attrs.evolve(outcome, content=(TextBlock(other),))

    async def deny(hook: Any, proceed: Any) -> Any:
        return Deny(other)

    options: dict[str, Any] = {
        "post": {"post": [replace]},
        "around": {"around": [around]},
        "policy": {"pre": [deny]},
    }.get(where, {})
    finalize = None if where != "finalize" else lambda content: (TextBlock(other),)
    outcome = once(long_tool(finalize=finalize), spill, **options)
    assert spill.texts == [texts.error_text(other) if where == "policy" else other]
    assert note(outcome) == "; full text: spilled/1"


def test_a_timed_out_result_is_not_spilled() -> None:
    """BC-13: what the body returned too late is no result."""
    spill = Kept()

    async def late() -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        return LONG

    outcome = once(made("t", late, timeout=1, max_result_bytes=LIMIT), spill)
    assert code(outcome) == texts.TOOL_TIMEOUT
    assert spill.results == []


def test_observers_see_the_committed_text_with_its_reference() -> None:
    """C113."""
    seen: list[ToolOutcome] = []
    outcome = once(long_tool(), Kept(), results=[lambda hook: seen.append(hook.outcome)])
    assert seen == [outcome]
    assert note(outcome) == "; full text: spilled/1"


def test_contexts_and_conclusion_of_a_spilled_result_stay() -> None:
    """C118."""

    async def around(hook: Any, proceed: Any) -> Any:
        return attrs.evolve(await proceed(), concludes=True)

    assert once(long_tool(), Kept(), around=[around]).concludes


# --- what it gives back ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "shown"),
    [
        (None, ""),
        ("id 17", "; full text: id 17"),
        (PurePosixPath("a/b.txt"), "; full text: a/b.txt"),
        ("a\udc97b", "; full text: a\ufffdb"),
        ("\ud83c\udf78", "; full text: 🍸"),
        (PurePosixPath("a\udc97b"), "; full text: a\ufffdb"),
    ],
    ids=["none", "text", "path", "surrogate", "pair", "surrogate in a path"],
)
def test_a_reference_is_shown_as_it_is(
    reference: object, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    """BC-38: made writable, and nothing else."""
    assert note(once(long_tool(), Kept(reference))) == shown
    assert caplog.records == []


@pytest.mark.parametrize(
    "reference",
    [
        *("", "  ", "two\nlines", "a\u2028b", "tab\tbed", "\x1b[2J"),
        *("x" * (MAX_REFERENCE_BYTES + 1), "é" * MAX_REFERENCE_BYTES),
        *(17, b"bytes", ["a"], object(), True),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_a_reference_that_is_none_is_left_out_with_a_warning(
    reference: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The text was kept, so the note does not say that it was not."""
    spill = Kept(reference)
    outcome = once(long_tool(max_result_bytes=5000), spill)
    assert note(outcome) == ""
    assert spill.texts == [LONG]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("terzetto", logging.WARNING)
    assert "at most 1024 bytes" in record.getMessage()
    assert len(record.getMessage()) < 300


def test_the_longest_reference_is_shown() -> None:
    longest = "x" * MAX_REFERENCE_BYTES
    outcome = once(long_tool(max_result_bytes=5000), Kept(longest))
    assert note(outcome) == f"; full text: {longest}"


def test_a_reference_that_leaves_no_room_for_the_result_is_left_out() -> None:
    """The limit is the tool's; head and tail come before where the rest is."""
    outcome = once(long_tool(max_result_bytes=60), Kept("x" * 100))
    assert note(outcome) == ""
    assert len(told(outcome).encode()) <= 60


# --- failing -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        OSError("the disk is full"),
        trio.TooSlowError(),
        SystemExit("out"),
        GeneratorExit(),
        ExceptionGroup("two", [ValueError("a"), ValueError("b")]),
        BaseExceptionGroup("odd", [SystemExit(1)]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_spill_that_raises_loses_no_result_and_no_sibling(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def spill(result: LongResult) -> str:
        raise error

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        tools = pipeline(long_tool(name="a"), long_tool("ok", name="b"), spill=spill)
        await execute(tools, calls_of("a", "b"), log)
        return log

    log = run(main)
    assert note(log.outcomes["a"]) == NOT_KEPT
    assert told(log.outcomes["a"]).startswith("line 0\n")
    assert not log.outcomes["a"].is_error
    assert told(log.outcomes["b"]) == "ok"
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("terzetto", logging.WARNING)
    assert "'t'" not in record.getMessage()
    assert "'a'" in record.getMessage()


def test_a_warning_is_short_whatever_a_spill_raises(caplog: pytest.LogCaptureFixture) -> None:
    """An exception may hold the text itself; the log is no place for it."""

    async def spill(result: LongResult) -> str:
        raise ValueError(result.text * 100)

    once(long_tool(), spill)
    (record,) = caplog.records
    assert len(record.getMessage()) < 700


async def coroutine(result: LongResult) -> str:
    return "never awaited"


def test_a_plain_function_that_gives_a_coroutine_has_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And the coroutine is closed: no warning comes of it."""

    async def main() -> ToolOutcome:
        return await outcome_of(long_tool(), spill=lambda result: coroutine(result))

    outcome = trio.run(main)
    gc.collect()
    assert note(outcome) == NOT_KEPT
    assert "make it an async def" in caplog.text


def yielding(result: LongResult) -> Any:
    yield "x"


async def async_yielding(result: LongResult) -> Any:
    yield "x"


@pytest.mark.parametrize("spill", ["path", 1, object(), yielding, async_yielding])
def test_what_can_never_be_a_spill_is_refused(spill: Any) -> None:
    with pytest.raises(InvalidValue, match="spill: expected a function"):
        check_spill(spill)


@pytest.mark.parametrize("form", ["function", "partial", "object", "method"])
def test_every_form_of_async_function_is_awaited(form: str) -> None:
    """In the Trio thread: no thread is borrowed."""
    threads: list[int] = []

    async def keep(prefix: str, result: LongResult) -> str:
        threads.append(threading.get_ident())
        return f"{prefix}/{result.call_id}"

    class Store:
        async def __call__(self, result: LongResult) -> str:
            return await keep("p", result)

        async def method(self, result: LongResult) -> str:
            return await keep("p", result)

    async def function(result: LongResult) -> str:
        return await keep("p", result)

    forms: dict[str, Any] = {
        "function": function,
        "partial": functools.partial(keep, "p"),
        "object": Store(),
        "method": Store().method,
    }
    check_spill(forms[form])
    assert note(once(long_tool(), forms[form])) == "; full text: p/c"
    assert threads == [threading.get_ident()]


# --- cancelled ---------------------------------------------------------------------------


async def hanging(result: LongResult) -> str:
    await trio.sleep_forever()
    return "never"


def test_a_cancel_ends_a_spill_that_hangs_and_keeps_the_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C124 BC-03: the effect happened, so the cut result stands; a cancel is no failure."""
    timeline = Timeline()
    outcome = once(long_tool(), hanging, cancel_at=5, timeline=timeline)
    assert note(outcome) == NOT_KEPT
    assert not outcome.is_error
    assert timeline.of("result")[0].at == 5
    assert caplog.records == []


def test_later_calls_are_answered_when_a_spill_is_cancelled() -> None:
    """C122 C124: results stay in model order, and nothing is spilled after the cancel."""
    asked: list[str] = []

    async def spill(result: LongResult) -> str:
        asked.append(result.call_id)
        return await hanging(result)

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        tools = [long_tool(name=name) for name in "abc"]
        with trio.move_on_after(5):
            calls = calls_of(*"abc")
            await execute(pipeline(*tools, spill=spill), calls, log, capacity=2)
        return log

    log = run(main)
    assert asked == ["a"]
    assert [note(log.outcomes[name]) for name in "ab"] == [NOT_KEPT] * 2
    assert code(log.outcomes["c"]) == texts.ABORTED_BEFORE_DISPATCH
    assert log.timeline.order("result") == ["result a", "result b", "result c"]


def test_a_body_that_returns_after_the_cancel_is_not_spilled() -> None:
    """Invariant 4: nothing of others starts after the cancel was seen."""
    spill = Kept()

    async def stubborn() -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        return LONG

    outcome = once(made("t", stubborn, max_result_bytes=LIMIT), spill, cancel_at=1)
    assert note(outcome) == NOT_KEPT
    assert spill.results == []


def test_a_spill_that_shields_itself_may_finish() -> None:
    async def shielded(result: LongResult) -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        return "kept"

    assert note(once(long_tool(), shielded, cancel_at=1)) == "; full text: kept"


def test_what_a_cancelled_spill_raises_instead_is_its_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def messy(result: LongResult) -> str:
        try:
            return await hanging(result)
        finally:
            raise OSError("half written")

    assert note(once(long_tool(), messy, cancel_at=1)) == NOT_KEPT
    assert "half written" in caplog.text


def test_an_interrupt_inside_a_spill_is_raised_when_all_is_answered() -> None:
    """BC-56: never a tool error, and never lost."""

    async def interrupting(result: LongResult) -> str:
        raise KeyboardInterrupt

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        tools = pipeline(long_tool(name="a"), long_tool(name="b"), spill=interrupting)
        with pytest.raises(KeyboardInterrupt):
            await execute(tools, calls_of("a", "b"), log)
        return log

    log = run(main)
    assert [note(log.outcomes[name]) for name in "ab"] == [NOT_KEPT] * 2


# --- in threads --------------------------------------------------------------------------


def in_threads(main: Callable[[], Any]) -> Any:
    async def bounded() -> Any:
        with trio.fail_after(20):
            return await main()

    return trio.run(bounded)


def test_a_plain_spill_runs_in_a_worker_thread_under_the_limiter() -> None:
    """BC-34: it may block; the Trio thread does not."""
    used: list[tuple[bool, int]] = []
    limiter = trio.CapacityLimiter(3)

    def spill(result: LongResult) -> os.PathLike[str]:
        in_thread = threading.current_thread() is not threading.main_thread()
        used.append((in_thread, limiter.borrowed_tokens))
        return PurePosixPath("spilled") / result.tool

    async def main() -> ToolOutcome:
        return await outcome_of(long_tool(), spill=spill, limiter=limiter)

    assert note(in_threads(main)) == "; full text: spilled/t"
    assert used == [(True, 1)]
    assert limiter.borrowed_tokens == 0


def test_a_plain_spill_that_raises_loses_no_result() -> None:
    def spill(result: LongResult) -> str:
        raise OSError("the disk is full")

    async def main() -> ToolOutcome:
        return await outcome_of(long_tool(), spill=spill)

    assert note(in_threads(main)) == NOT_KEPT


def test_a_cancelled_batch_waits_for_the_thread_of_a_spill() -> None:
    """C173: no thread outlives the batch; what it kept was kept."""
    entered, release = threading.Event(), threading.Event()
    ended: list[str] = []

    def spill(result: LongResult) -> str:
        entered.set()
        assert release.wait(10)
        ended.append(result.call_id)
        return "kept"

    async def main() -> ToolOutcome:
        log = FakeLog(Timeline())
        scope = trio.CancelScope()

        async def stop() -> None:
            while not entered.is_set():
                await trio.sleep(0.001)
            scope.cancel(reason="stop")
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            assert log.outcomes == {}
            release.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop)
            with scope:
                tools = pipeline(long_tool(), spill=spill)
                await execute(tools, [a_call("c")], log, patience=30)
        return log.outcomes["c"]

    assert note(in_threads(main)) == "; full text: kept"
    assert ended == ["c"]


# --- memory ------------------------------------------------------------------------------


@pytest.mark.parametrize("spills", [True, False])
def test_nothing_of_a_long_result_is_kept(spills: bool) -> None:
    """BC-39: 5 MB of `é` on one line, eight times in one batch; once a result is committed
    its full text is gone, although the batch goes on."""
    held: list[int] = []
    size = 2_500_000

    async def spill(result: LongResult) -> str:
        assert len(result.text) == size
        return "somewhere"

    async def body() -> str:
        return "é" * size

    async def last() -> str:
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
        return "ok"

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        names = [f"t{number}" for number in range(8)]
        tools = [made(name, body, parallel=False) for name in names]
        tools.append(made("last", last, parallel=False))
        offered = pipeline(*tools, spill=spill if spills else None)
        await execute(offered, calls_of(*names, "last"), log)
        return log

    tracemalloc.start()
    try:
        log = run(main)
    finally:
        tracemalloc.stop()
    assert all(len(told(outcome).encode()) <= 65_536 for outcome in log.outcomes.values())
    assert held[0] < size, "less than one of them, of eight"
