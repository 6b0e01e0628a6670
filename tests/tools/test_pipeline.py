"""The stages of one call: what each may decide, what may go wrong in it, what is committed.

Calls go through the executor, so that a stage that fails badly shows as what users would see:
a lost sibling, or a batch that hangs.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio._threads
from tests.tools.rig import (
    ANYTHING,
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

from terzetto.tools import (
    Allow,
    Ask,
    Deny,
    Tool,
    ToolOutcome,
    ToolRun,
    raw_tool,
    tool,
)
from terzetto.tools._outcome import failure, success
from terzetto.vocabulary import (
    PluginSource,
    TextBlock,
    ToolError,
    UsageError,
    UserMessage,
    texts,
)


def once(tool: Tool, arguments: str = "{}", **options: Any) -> ToolOutcome:
    """What is committed for one call, on a clock that jumps."""

    async def main() -> ToolOutcome:
        return await outcome_of(tool, arguments, **options)

    return run(main)


def in_threads(main: Callable[[], Any]) -> Any:
    """Run *main* on the real clock; a test that waits too long fails and does not hang."""

    async def bounded() -> Any:
        with trio.fail_after(20):
            return await main()

    return trio.run(bounded)


def failing(error: BaseException) -> Any:
    async def listener(value: Any, proceed: Any) -> Any:
        raise error

    return listener


async def passing(value: Any, proceed: Any) -> Any:
    return await proceed()


@tool(name="t", parallel=True)
async def plain() -> str:
    """Returns at once."""
    return "ok"


def counted(result: str = "ok", **options: Any) -> tuple[Tool, list[str]]:
    """A tool, and the list that grows when its body runs."""
    ran: list[str] = []

    async def body() -> str:
        ran.append(result)
        return result

    return made("t", body, **options), ran


# --- the order of the stages -------------------------------------------------------------


def test_the_stages_come_in_their_order() -> None:
    """C113: policy, guards, wrapper, body, review, finalize, notification, result."""
    timeline = Timeline()

    def around(kind: str) -> Any:
        async def listener(value: Any, proceed: Any) -> Any:
            timeline.add(f"{kind}>")
            decision = await proceed()
            timeline.add(f"{kind}<")
            return decision

        return listener

    def guard(hook: Any) -> None:
        timeline.add("guard")

    def finalize(content: tuple[TextBlock, ...]) -> tuple[TextBlock, ...]:
        timeline.add("finalize")
        return content

    async def body() -> str:
        timeline.add("body")
        return "ok"

    once(
        made("t", body, finalize=finalize),
        timeline=timeline,
        pre=[around("pre"), around("inner-pre")],
        guards=[guard],
        around=[around("execute")],
        post=[around("post")],
        results=[lambda hook: timeline.add("told")],
    )
    assert [entry.kind for entry in timeline.entries] == [
        "call",
        *("pre>", "inner-pre>", "inner-pre<", "pre<", "guard"),
        *("flush>", "flush<"),
        *("execute>", "body", "execute<"),
        *("post>", "post<", "finalize", "told", "result"),
    ]


def test_every_stage_sees_the_call_and_its_tool() -> None:
    """C113: values are frozen and carry agent, call and tool; an unknown tool is None."""
    seen: list[tuple[str, str, str | None]] = []

    def look(stage: str) -> Any:
        async def listener(value: Any, proceed: Any) -> Any:
            seen.append((stage, value.call.id, value.tool and value.tool.name))
            return await proceed()

        return listener

    def guard(hook: Any) -> None:
        seen.append(("guard", hook.call.id, hook.tool and hook.tool.name))

    async def main() -> None:
        log = FakeLog(Timeline())
        tools = pipeline(
            plain, pre=[look("pre")], guards=[guard], around=[look("around")], post=[look("post")]
        )
        await execute(tools, [a_call("c1"), a_call("c2", "nobody")], log)

    run(main)
    assert seen == [
        *((stage, "c1", "t") for stage in ("pre", "guard", "around", "post")),
        *((stage, "c2", None) for stage in ("pre", "guard", "post")),
    ]


# --- pre-execute and approval ------------------------------------------------------------


def test_a_denial_is_the_result_and_is_reviewed() -> None:
    """C114 C116: no code; the body does not run; post-execute sees it."""
    body, ran = counted()
    reviewed: list[str] = []

    async def deny(hook: Any, proceed: Any) -> Deny:
        return Deny("not today")

    async def review(hook: Any, proceed: Any) -> ToolOutcome:
        reviewed.append(told(hook.outcome))
        return await proceed()

    outcome = once(body, pre=[deny], post=[review])
    assert (told(outcome), outcome.is_error, code(outcome)) == ("Error: not today", True, None)
    assert ran == []
    assert reviewed == ["Error: not today"]


def test_an_outer_listener_may_turn_a_denial_back_but_not_a_guard() -> None:
    """C114: "a later waterfall listener cannot turn its denial back"."""

    async def overrule(hook: Any, proceed: Any) -> Allow:
        await proceed()
        return Allow()

    async def deny(hook: Any, proceed: Any) -> Deny:
        return Deny("no")

    assert told(once(plain, pre=[overrule, deny])) == "ok"
    assert told(once(plain, pre=[overrule], guards=[lambda hook: "never"])) == "Error: never"


async def ask(hook: Any, proceed: Any) -> Ask:
    return Ask("may I?")


def test_nobody_to_ask_denies() -> None:
    """C114: "without one it denies"."""
    assert told(once(plain, pre=[ask])) == "Error: may I?"


@pytest.mark.parametrize("said", [True, False, None, 1, "yes"], ids=repr)
def test_only_true_is_an_approval(said: object) -> None:
    """C114: allowed-once allows, everything else denies."""
    asked: list[tuple[str, str]] = []
    body, ran = counted()

    async def approver(hook: Any, reason: str) -> Any:
        asked.append((hook.call.id, reason))
        return said

    outcome = once(body, pre=[ask], approver=approver)
    assert asked == [("c", "may I?")]
    assert (told(outcome) == "ok") is (said is True)
    assert bool(ran) is (said is True)


def test_an_approver_that_fails_blocks_the_call() -> None:
    """C114 BC-50: an error result; the body does not run."""
    body, ran = counted()

    async def approver(hook: Any, reason: str) -> bool:
        raise RuntimeError("the window is closed")

    outcome = once(body, pre=[ask], approver=approver)
    assert (told(outcome), outcome.is_error) == ("Error: the window is closed", True)
    assert ran == []


def test_an_approver_with_a_deadline_of_its_own_denies() -> None:
    """C114: "rejected, cancelled, unavailable deny"."""

    async def approver(hook: Any, reason: str) -> bool:
        with trio.move_on_after(5):
            await trio.sleep_forever()
        return False

    assert told(once(plain, pre=[ask], approver=approver)) == "Error: may I?"


def test_a_slow_approver_holds_up_neither_running_bodies_nor_their_commits() -> None:
    """C122, DESIGN 7: what came before the question runs and is committed."""
    timeline = Timeline()

    async def ask_for_b(hook: Any, proceed: Any) -> Any:
        return Ask() if hook.call.id == "b" else await proceed()

    async def approver(hook: Any, reason: str) -> bool:
        await trio.sleep(60)
        return True

    async def quick() -> str:
        await trio.sleep(1)
        return "quick"

    async def main() -> None:
        tools = pipeline(made("a", quick), made("b", quick), pre=[ask_for_b], approver=approver)
        await execute(tools, calls_of("a", "b"), FakeLog(timeline))

    run(main)
    assert [(entry.at, entry.who) for entry in timeline.of("result")] == [(1, "a"), (61, "b")]


def test_a_cancel_while_the_approver_is_asked() -> None:
    """C114 C116: the call is unstarted, and passes through post-execute (REFERENCE 2.3)."""
    reviewed: list[str | None] = []

    async def approver(hook: Any, reason: str) -> bool:
        await trio.sleep_forever()
        return True

    async def review(hook: Any, proceed: Any) -> ToolOutcome:
        reviewed.append(code(hook.outcome))
        return await proceed()

    outcome = once(plain, pre=[ask], approver=approver, post=[review], cancel_at=1)
    assert code(outcome) == texts.ABORTED_BEFORE_DISPATCH
    assert reviewed == [texts.ABORTED_BEFORE_DISPATCH]


def test_a_denial_that_was_decided_before_the_cancel_stays() -> None:
    """C116: "a denial ... stays more specific"."""

    async def deny(hook: Any, proceed: Any) -> Deny:
        try:
            await trio.sleep(5)
        finally:
            return Deny("decided all the same")  # noqa: B012  # what a careless policy does

    assert told(once(plain, pre=[deny], cancel_at=1)) == "Error: decided all the same"


@pytest.mark.parametrize(
    "error",
    [RuntimeError("policy"), SystemExit("policy"), asyncio.CancelledError("policy")],
    ids=lambda error: type(error).__name__,
)
def test_a_policy_that_fails_blocks_its_call_alone(error: BaseException) -> None:
    """BC-33 BC-50: never let through unguarded, no sibling lost, not reviewed (run 037)."""
    reviewed: list[str] = []

    async def policy(hook: Any, proceed: Any) -> Any:
        if hook.call.id == "a":
            raise error
        return await proceed()

    async def review(hook: Any, proceed: Any) -> ToolOutcome:
        reviewed.append(hook.call.id)
        return await proceed()

    async def ok() -> str:
        return "ok"

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        tools = pipeline(made("a", ok), made("b", ok), pre=[policy], post=[review])
        await execute(tools, calls_of("a", "b"), log)
        return log

    log = run(main)
    assert told(log.outcomes["a"]) == "Error: policy"
    assert told(log.outcomes["b"]) == "ok"
    assert reviewed == ["b"]


@pytest.mark.parametrize("decision", [None, True, False, "deny", Deny], ids=repr)
def test_a_policy_that_decides_nothing_does_not_let_the_call_through(decision: object) -> None:
    """BC-50: a listener that forgot its `return`, or answers with a bool, is a guard that fails."""
    body, ran = counted()

    async def policy(hook: Any, proceed: Any) -> Any:
        await proceed()
        return decision

    outcome = once(body, pre=[policy])
    assert outcome.is_error
    assert ran == []


# --- guards ------------------------------------------------------------------------------


class Stop(BaseException):
    """Not an Exception, as those of some libraries."""


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("error", [RuntimeError("guard"), Stop("guard")], ids=repr)
def test_a_guard_that_raises_blocks_its_call_alone(error: BaseException, listens: bool) -> None:
    """C114 BC-50: "raising denies too"; without and with pre-execute listeners."""

    def guard(hook: Any) -> None:
        if hook.call.id == "a":
            raise error

    async def ok() -> str:
        return "ok"

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        pre = [passing] if listens else []
        tools = pipeline(made("a", ok), made("b", ok), guards=[guard], pre=pre)
        await execute(tools, calls_of("a", "b"), log)
        return log

    log = run(main)
    assert told(log.outcomes["a"]) == "Error: guard"
    assert told(log.outcomes["b"]) == "ok"


def test_what_a_failing_policy_leaves_is_not_reviewed() -> None:
    """Run 037, and the same for guards: the result of a failure in policy is final; a denial
    is reviewed (run 035)."""
    reviewed: list[str] = []

    async def review(hook: Any, proceed: Any) -> ToolOutcome:
        reviewed.append(told(hook.outcome))
        return await proceed()

    def broken(hook: Any) -> None:
        raise RuntimeError("guard")

    once(plain, guards=[broken], post=[review])
    once(plain, pre=[failing(RuntimeError("policy"))], post=[review])
    assert reviewed == []
    once(plain, guards=[lambda hook: "no"], post=[review])
    assert reviewed == ["Error: no"]


def test_guards_are_asked_about_calls_that_policy_allows() -> None:
    """C113 C114: a denial is decided; guards have nothing to add."""
    asked: list[str] = []

    async def deny(hook: Any, proceed: Any) -> Deny:
        return Deny("no")

    def guard(hook: Any) -> None:
        asked.append(hook.call.id)

    once(plain, pre=[deny], guards=[guard])
    assert asked == []
    once(plain, pre=[passing], guards=[guard])
    assert asked == ["c"]


def test_the_first_guard_that_denies_is_the_last_one_asked() -> None:
    """C114."""
    asked: list[int] = []

    def guard(number: int, reason: str | None) -> Any:
        def check(hook: Any) -> str | None:
            asked.append(number)
            return reason

        return check

    outcome = once(plain, guards=[guard(1, None), guard(2, "two"), guard(3, "three")])
    assert told(outcome) == "Error: two"
    assert asked == [1, 2]


def test_an_empty_reason_denies_too() -> None:
    """C114: None lets the call through, a text does not."""
    body, ran = counted()
    assert once(body, guards=[lambda hook: ""]).is_error
    assert ran == []


# --- lookup and arguments ----------------------------------------------------------------


def test_unknown_misspelt_nameless_and_hidden_tools_are_answered() -> None:
    """BC-36 C117: error results in order; what may run runs; the hidden one does not."""
    ran: list[str] = []

    async def body() -> str:
        ran.append("it")
        return "ok"

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        tools = pipeline(made("echo", body), made("hidden", body))
        inner = tools.layer.__class__(tools.layer.scope, tools.layer)
        inner.restrict(deny=["hidden"])
        tools.layer = inner
        calls = [
            a_call("c1", "nope"),
            a_call("c2", ""),
            a_call("c3", "echo"),
            a_call("c4", "hidden"),
            a_call("c5", "Echo"),
        ]
        await execute(tools, calls, log)
        return log

    log = run(main)
    assert [code(log.outcomes[f"c{n}"]) for n in range(1, 6)] == [
        texts.UNKNOWN_TOOL,
        texts.UNKNOWN_TOOL,
        None,
        texts.UNKNOWN_TOOL,
        texts.UNKNOWN_TOOL,
    ]
    assert ran == ["it"]


@pytest.mark.parametrize("text", ["", "null", "  ", "{}"], ids=repr)
def test_no_arguments_are_no_arguments(text: str) -> None:
    """BC-22."""
    assert told(once(plain, text)) == "ok"


@pytest.mark.parametrize("text", ['{"x": "He said "hi""}', "{", "[1]", '"str"', '{"x":1}{"x":2}'])
def test_malformed_arguments_are_an_error_of_a_typed_tool(text: str) -> None:
    """BC-23 C117: the body does not run; after pre-execute, before the wrapper."""
    ran: list[int] = []
    asked: list[str] = []

    @tool
    async def echo(x: int) -> int:
        ran.append(x)
        return x

    async def policy(hook: Any, proceed: Any) -> Any:
        asked.append(hook.call.arguments)
        return await proceed()

    outcome = once(echo, text, pre=[policy], around=[failing(RuntimeError("not reached"))])
    assert code(outcome) == texts.INVALID_ARGS
    assert ran == []
    assert asked == [text]


def test_a_raw_tool_receives_malformed_arguments_as_text() -> None:
    """BC-23 C117."""

    async def body(arguments: object) -> str:
        return repr(arguments)

    made_raw = raw_tool(name="t", description="", parameters=ANYTHING, body=body)
    assert told(once(made_raw, "{oops")) == "'{oops'"


def test_a_denied_call_with_malformed_arguments_is_denied() -> None:
    """C113 C116: policy comes before the refusal."""

    async def deny(hook: Any, proceed: Any) -> Deny:
        return Deny("no")

    assert told(once(plain, "[1]", pre=[deny])) == "Error: no"


# --- execute wrappers --------------------------------------------------------------------


def test_a_wrapper_may_look_at_the_outcome_and_change_it() -> None:
    """C113 C115."""

    async def upper(hook: Any, proceed: Any) -> ToolOutcome:
        outcome = await proceed()
        return success((TextBlock(told(outcome).upper()),))

    assert told(once(plain, around=[upper])) == "OK"


def test_a_wrapper_may_answer_without_the_body() -> None:
    """C113: a cache."""
    body, ran = counted()

    async def cached(hook: Any, proceed: Any) -> ToolOutcome:
        return success((TextBlock("from the cache"),), concludes=True)

    outcome = once(body, around=[cached])
    assert (told(outcome), outcome.is_error, outcome.concludes) == ("from the cache", False, True)
    assert ran == []


@pytest.mark.parametrize("before", [True, False])
def test_a_wrapper_that_raises_is_an_error_of_its_call_alone(before: bool) -> None:
    """BC-33: before the body or after it; siblings keep their results."""

    async def wrapper(hook: Any, proceed: Any) -> ToolOutcome:
        if hook.call.id == "a" and before:
            raise RuntimeError("wrapper")
        outcome = await proceed()
        if hook.call.id == "a":
            raise RuntimeError("wrapper")
        return outcome

    async def ok() -> str:
        return "ok"

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        tools = pipeline(made("a", ok), made("b", ok), around=[wrapper])
        await execute(tools, calls_of("a", "b"), log)
        return log

    log = run(main)
    assert told(log.outcomes["a"]) == "Error: wrapper"
    assert told(log.outcomes["b"]) == "ok"


@pytest.mark.parametrize("answer", [None, "text", 5], ids=repr)
def test_a_wrapper_that_returns_no_outcome_is_an_error_of_its_call_alone(answer: object) -> None:
    """BC-33: one that forgot its `return` loses no sibling and hangs nothing."""

    async def forgetful(hook: Any, proceed: Any) -> Any:
        outcome = await proceed()
        return answer if hook.call.id == "a" else outcome

    async def ok() -> str:
        await trio.sleep(1)
        return "ok"

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        tools = pipeline(made("a", ok), made("b", ok), around=[forgetful])
        await execute(tools, calls_of("a", "b"), log)
        return log

    log = run(main)
    assert log.outcomes["a"].is_error
    assert told(log.outcomes["b"]) == "ok"


def test_a_wrapper_may_give_up_on_the_body_after_a_time_of_its_own() -> None:
    """C115, STYLE 8: its scope's `Cancelled` reaches it, and its answer is the result."""

    async def sleepy() -> str:
        await trio.sleep(60)
        return "late"

    async def impatient(hook: Any, proceed: Any) -> ToolOutcome:
        with trio.move_on_after(1):
            return await proceed()  # type: ignore[no-any-return]
        return failure("too slow for me")

    assert told(once(made("t", sleepy), around=[impatient])) == "too slow for me"


def test_fail_after_in_a_wrapper_raises() -> None:
    """C115: nobody cancelled the call, so nothing says that it was aborted."""

    async def sleepy() -> str:
        await trio.sleep(60)
        return "late"

    async def impatient(hook: Any, proceed: Any) -> ToolOutcome:
        with trio.fail_after(1):
            return await proceed()  # type: ignore[no-any-return]

    outcome = once(made("t", sleepy), around=[impatient])
    assert outcome.is_error
    assert code(outcome) is None


def test_a_wrapper_may_try_the_body_again() -> None:
    """C113: `proceed` is a function."""
    tries: list[int] = []

    async def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("not yet")
        return "third time"

    async def persistent(hook: Any, proceed: Any) -> ToolOutcome:
        outcome: ToolOutcome = await proceed()
        while outcome.is_error:
            outcome = await proceed()
        return outcome

    assert told(once(made("t", flaky), around=[persistent])) == "third time"


def test_a_wrapper_that_tries_again_starts_nothing_after_a_cancel() -> None:
    """BC-03, invariant 4."""
    starts: list[float] = []

    async def stubborn() -> str:
        starts.append(trio.current_time())
        try:
            await trio.sleep(60)
        except trio.Cancelled:
            raise RuntimeError("stopped") from None
        return "late"

    async def persistent(hook: Any, proceed: Any) -> ToolOutcome:
        outcome: ToolOutcome = await proceed()
        for _ in range(5):
            outcome = await proceed()
        return outcome

    outcome = once(made("t", stubborn), around=[persistent], cancel_at=1)
    assert starts == [0]
    assert outcome.is_error


def test_a_wrapper_that_waits_longer_than_the_timeout_does_not_hang() -> None:
    """C119, DESIGN 6: the deadline is decided when it fires, before the body or not."""

    async def queueing(hook: Any, proceed: Any) -> Any:
        await trio.sleep(60)
        return await proceed()

    body, ran = counted(timeout=1)
    outcome = once(body, around=[queueing])
    assert code(outcome) == texts.TOOL_TIMEOUT
    assert ran == []


def test_a_wrapper_that_dawdles_after_the_body_is_timed_out() -> None:
    """C119."""

    async def dawdling(hook: Any, proceed: Any) -> Any:
        outcome = await proceed()
        await trio.sleep(60)
        return outcome

    body, ran = counted(timeout=1)
    assert code(once(body, around=[dawdling])) == texts.TOOL_TIMEOUT
    assert ran == ["ok"]


def test_a_wrapper_runs_in_the_task_and_context_of_the_body() -> None:
    """BC-35, DESIGN 7: what it sets, its body sees, and no other call does."""
    span: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")

    async def body() -> str:
        return span.get()

    async def tracing(hook: Any, proceed: Any) -> Any:
        if hook.call.id == "a":
            span.set("a's")
        return await proceed()

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        tools = pipeline(made("a", body), made("b", body), around=[tracing])
        await execute(tools, calls_of("a", "b", "a2"), log)
        return log

    log = run(main)
    assert (told(log.outcomes["a"]), told(log.outcomes["b"])) == ("a's", "none")


# --- post-execute, finalize, notification ------------------------------------------------


async def replacing(hook: Any, proceed: Any) -> ToolOutcome:
    outcome: ToolOutcome = hook.replaced("redacted")
    return outcome


async def blocking(hook: Any, proceed: Any) -> ToolOutcome:
    outcome: ToolOutcome = hook.blocked("rejected", (UserMessage("why", PluginSource("policy")),))
    return outcome


class Talkative:
    """A tool that defers contexts and concludes, then ends as told."""

    def __init__(self, error: Exception | None = None, **options: Any) -> None:
        async def body(run: ToolRun) -> str:
            run.defer_context("one")
            run.conclude_turn()
            run.defer_context("two")
            if error is not None:
                raise error
            await trio.sleep(options.get("seconds", 0))
            return "secret"

        self.tool = tool(name="t")(body)


def contexts(outcome: ToolOutcome) -> list[str]:
    return [message.text for message in outcome.contexts]


def test_a_success_has_its_contexts_and_its_conclusion() -> None:
    """C118: contexts in the order they were added, in the tool's name."""
    outcome = once(Talkative().tool)
    assert (contexts(outcome), outcome.concludes) == (["one", "two"], True)
    assert {message.source for message in outcome.contexts} == {PluginSource("t")}


def test_a_failure_has_its_contexts_and_no_conclusion() -> None:
    """C118, run 046 and neighbours: "counts on success only"."""
    outcome = once(Talkative(RuntimeError("no")).tool)
    assert (contexts(outcome), outcome.concludes) == (["one", "two"], False)


def test_a_replaced_result_keeps_contexts_and_conclusion() -> None:
    """C118, run 048."""
    outcome = once(Talkative().tool, post=[replacing])
    assert told(outcome) == "redacted"
    assert (contexts(outcome), outcome.concludes) == (["one", "two"], True)


def test_a_blocked_result_drops_them_and_keeps_the_policys() -> None:
    """C118, run 047."""
    outcome = once(Talkative().tool, post=[blocking])
    assert (told(outcome), outcome.is_error) == ("rejected", True)
    assert (contexts(outcome), outcome.concludes) == (["why"], False)


def test_a_review_that_raises_withholds_the_result() -> None:
    """Run 073: policy may have wanted to redact."""
    outcome = once(Talkative().tool, post=[failing(RuntimeError("review"))])
    assert (told(outcome), outcome.is_error, outcome.concludes) == ("Error: review", True, False)


def test_a_review_that_raises_withholds_the_contexts_too() -> None:
    """C118: a block drops the tool's own contexts, and a reviewer that failed has vetted
    nothing; so does the reference (`finalizeScheduledExecution`)."""
    outcome = once(Talkative().tool, post=[failing(RuntimeError("review"))])
    assert contexts(outcome) == []


@pytest.mark.parametrize("answer", [None, "text", True], ids=repr)
def test_a_review_that_returns_no_outcome_is_an_error_of_its_call_alone(answer: object) -> None:
    """BC-33 BC-50: as one that raises; the other results are recorded."""

    async def forgetful(hook: Any, proceed: Any) -> Any:
        outcome = await proceed()
        return answer if hook.call.id == "a" else outcome

    async def ok() -> str:
        return "ok"

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        tools = pipeline(made("a", ok), made("b", ok), post=[forgetful])
        await execute(tools, calls_of("a", "b"), log)
        return log

    log = run(main)
    assert log.outcomes["a"].is_error
    assert told(log.outcomes["b"]) == "ok"


def test_a_review_cut_short_by_the_cancel_withholds_a_success() -> None:
    """DESIGN 6, run 136."""

    async def slow(hook: Any, proceed: Any) -> Any:
        await trio.sleep(60)
        return await proceed()

    outcome = once(plain, post=[slow], cancel_at=1)
    assert code(outcome) == texts.ABORTED
    assert "ok" not in told(outcome)


def test_a_review_cut_short_by_the_cancel_leaves_an_error_as_it_is() -> None:
    """C116: `ABORTED` replaces only a success."""

    async def slow(hook: Any, proceed: Any) -> Any:
        await trio.sleep(60)
        return await proceed()

    async def fails() -> str:
        raise ToolError("no such file", "ENOENT")

    outcome = once(made("t", fails), post=[slow], cancel_at=1)
    assert (told(outcome), code(outcome)) == ("Error: no such file", "ENOENT")


def test_a_review_that_completed_although_cancelled_counts() -> None:
    """DESIGN 6: a body that returned keeps its result when post-execute completed."""

    async def shielded(hook: Any, proceed: Any) -> Any:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        return await proceed()

    assert told(once(plain, post=[shielded], cancel_at=1)) == "ok"


def test_finalize_sees_every_outcome_of_its_tool() -> None:
    """C113: results, errors and denials."""
    seen: list[str] = []

    def finalize(content: tuple[TextBlock, ...]) -> tuple[TextBlock, ...]:
        seen.append(content[0].text)
        return (*content, TextBlock(" (final)"))

    body, _ = counted(finalize=finalize)
    assert told(once(body)) == "ok (final)"
    assert told(once(body, guards=[lambda hook: "no"])) == "Error: no (final)"
    assert seen == ["ok", "Error: no"]


@pytest.mark.parametrize(
    "finalize",
    [
        lambda content: 1 / 0,
        lambda content: ["not a block"],
        lambda content: None,
        lambda content: "text",
    ],
    ids=["raises", "a str in a list", "None", "a str"],
)
def test_a_finalize_that_fails_is_an_error_of_its_call_alone(finalize: Any) -> None:
    """BC-33 C113: it is part of the tool's own code."""

    async def ok() -> str:
        return "ok"

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        tools = pipeline(made("a", ok, finalize=finalize), made("b", ok))
        await execute(tools, calls_of("a", "b"), log)
        return log

    log = run(main)
    assert log.outcomes["a"].is_error
    assert told(log.outcomes["b"]) == "ok"


@pytest.mark.parametrize("kind", ["tuple", "list", "generator"])
def test_finalize_may_return_its_blocks_in_any_form(kind: str) -> None:
    """C113: what it returns is what is kept."""
    forms: dict[str, Any] = {
        "tuple": lambda content: (TextBlock("final"),),
        "list": lambda content: [TextBlock("final")],
        "generator": lambda content: (TextBlock("final") for _ in content),
    }
    body, _ = counted(finalize=forms[kind])
    assert told(once(body)) == "final"


@pytest.mark.parametrize("what", ["classifier", "finalize", "schema"])
def test_parts_of_a_tool_that_raise_a_base_exception_lose_no_sibling(what: str) -> None:
    """BC-33 BC-41: `classify` "never raises"; a raising classifier means exclusive."""

    def broken(value: object) -> Any:
        raise Stop("broken part")

    async def ok(arguments: object) -> str:
        return "ok"

    options: dict[str, Any] = {
        "classifier": {"parallel": broken},
        "finalize": {"finalize": broken},
        "schema": {},
    }[what]
    first = raw_tool(name="a", description="", parameters=ANYTHING, body=ok, **options)
    if what == "schema":

        def raising(self: object) -> None:
            raise Stop("broken part")

        picky = dataclasses.make_dataclass("P", [("x", int)], namespace={"__post_init__": raising})

        async def typed(p: Any) -> str:
            return "ok"

        typed.__annotations__["p"] = picky
        first = tool(name="a")(typed)

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        second = raw_tool(name="b", description="", parameters=ANYTHING, body=ok)
        calls = [a_call("a", "a", '{"p": {"x": 1}}'), a_call("b", "b")]
        await execute(pipeline(first, second), calls, log)
        return log

    log = run(main)
    assert log.outcomes["a"].is_error == (what != "classifier")
    assert told(log.outcomes["b"]) == "ok"


def test_a_result_is_bounded_after_its_review_and_finalize() -> None:
    """BC-39: what policy puts there may be long too."""

    async def verbose(hook: Any, proceed: Any) -> ToolOutcome:
        outcome: ToolOutcome = hook.replaced("é" * 100_000)
        return outcome

    for options in ({"post": [verbose]}, {}):
        finalize = None if options else lambda content: (TextBlock("é" * 100_000),)
        body, _ = counted(finalize=finalize)
        text = told(once(body, **options))
        assert len(text.encode()) <= 65_536
        assert "bytes omitted" in text
        assert text[0] == text[-1] == "é"


@pytest.mark.parametrize("where", ["body", "pre", "around", "post", "guard"])
def test_a_long_error_is_bounded_wherever_it_comes_from(where: str) -> None:
    """BC-39."""
    error = RuntimeError("é" * 100_000)

    async def body() -> str:
        raise error

    def guard(hook: Any) -> None:
        raise error

    options: dict[str, Any] = {} if where == "body" else {where: [failing(error)]}
    if where == "guard":
        options = {"guards": [guard]}
    outcome = once(made("t", body) if where == "body" else plain, **options)
    assert outcome.is_error
    assert len(told(outcome).encode()) <= 65_536


def test_the_notification_comes_once_with_what_is_committed() -> None:
    """C113: observe-only; after review, finalize and cutting."""
    seen: list[ToolOutcome] = []
    outcome = once(plain, post=[replacing], results=[lambda hook: seen.append(hook.outcome)])
    assert seen == [outcome]


def test_a_notified_listener_that_fails_is_contained(caplog: pytest.LogCaptureFixture) -> None:
    """C139: the result stands, the other listeners are called."""
    seen: list[str] = []

    def broken(hook: Any) -> None:
        raise RuntimeError("observer")

    outcome = once(plain, results=[broken, lambda hook: seen.append(hook.call.id)])
    assert told(outcome) == "ok"
    assert seen == ["c"]
    assert "observer" in caplog.text


# --- timeouts ----------------------------------------------------------------------------


def sleeping(seconds: float, **options: Any) -> Tool:
    async def body() -> str:
        await trio.sleep(seconds)
        return "slept"

    return made("t", body, **options)


def test_a_timeout_is_an_error_result_and_cancels_nobody_else() -> None:
    """BC-13 (a) C119."""

    async def slow() -> str:
        await trio.sleep(5)
        return "slept"

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        tools = pipeline(made("a", slow, timeout=0.2), made("b", slow))
        await execute(tools, calls_of("a", "b"), log)
        assert trio.current_time() == 5
        return log

    log = run(main)
    assert code(log.outcomes["a"]) == texts.TOOL_TIMEOUT
    assert "0.2" in told(log.outcomes["a"])
    assert told(log.outcomes["b"]) == "slept"


@pytest.mark.parametrize("error", [TimeoutError("mine"), trio.TooSlowError("mine")], ids=repr)
@pytest.mark.parametrize("timeout", [None, 0.2])
def test_a_timeout_error_of_the_body_is_its_own(error: Exception, timeout: float | None) -> None:
    """BC-13 (b)."""

    async def body() -> str:
        raise error

    outcome = once(made("t", body, timeout=timeout))
    assert (told(outcome), code(outcome)) == ("Error: mine", None)


def test_a_cancel_before_the_deadline_is_no_timeout() -> None:
    """BC-13 (c)."""
    assert code(once(sleeping(5, timeout=2), cancel_at=1)) == texts.ABORTED


@pytest.mark.parametrize("repetition", range(10))
def test_a_cancel_at_the_instant_of_the_deadline_is_no_timeout(repetition: int) -> None:
    """BC-13 (d): whichever the clock takes first."""
    assert code(once(sleeping(5, timeout=1), cancel_at=1)) == texts.ABORTED


def test_a_timeout_is_committed_when_the_body_has_ended() -> None:
    """BC-13 (e): decided at the deadline; the batch waits for the clean-up."""

    async def tidy() -> str:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(10)
        return "never"

    async def main() -> ToolOutcome:
        outcome = await outcome_of(made("t", tidy, timeout=0.5))
        assert trio.current_time() == 10.5
        return outcome

    assert code(run(main)) == texts.TOOL_TIMEOUT


@pytest.mark.parametrize("ending", ["give way", "return", "raise"])
def test_a_timeout_that_fired_first_stays_a_timeout_when_a_cancel_follows(ending: str) -> None:
    """DESIGN 6: "decided when the deadline fires"; C116: `TOOL_TIMEOUT` stays more specific."""

    async def tidy() -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.sleep(10)
            if ending == "give way":
                raise
        if ending == "raise":
            raise RuntimeError("on the way out")
        return "all the same"

    assert code(once(made("t", tidy, timeout=1), cancel_at=5)) == texts.TOOL_TIMEOUT


def test_an_interrupt_while_a_timed_out_body_cleans_up_is_not_lost() -> None:
    """DESIGN 4: "never a tool error ... and it is raised on", timeout or not."""

    async def tidy() -> str:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyboardInterrupt

    async def main() -> None:
        log = FakeLog(Timeline())
        with pytest.raises(KeyboardInterrupt):
            await execute(pipeline(made("t", tidy, timeout=1)), [a_call("c")], log)
        assert len(log.outcomes) == 1

    run(main)


@pytest.mark.parametrize("ending", ["return", "raise"])
def test_a_body_that_absorbs_its_timeout_is_timed_out_all_the_same(ending: str) -> None:
    """BC-13 BC-03: decided when the deadline fires."""

    async def absorbing() -> str:
        try:
            await trio.sleep_forever()
        except BaseException:
            if ending == "raise":
                raise RuntimeError("stopped") from None
        return "ok"

    assert code(once(made("t", absorbing, timeout=1))) == texts.TOOL_TIMEOUT


def test_a_body_that_returns_right_before_its_deadline_has_returned() -> None:
    """C119."""
    assert told(once(sleeping(1, timeout=1.001))) == "slept"


# --- bodies under cancellation -----------------------------------------------------------


def test_a_body_that_gives_way_is_aborted() -> None:
    """C116."""
    outcome = once(sleeping(60), cancel_at=1)
    assert (told(outcome), code(outcome)) == (texts.ABORTED_TEXT, texts.ABORTED)


@pytest.mark.parametrize("how", ["swallow", "shield", "returned before"])
def test_a_body_that_returned_although_cancelled_keeps_its_result(how: str) -> None:
    """DESIGN 6 and 12, invariant 5."""

    async def body() -> str:
        if how == "swallow":
            try:
                await trio.sleep_forever()
            except BaseException:
                return "kept"
        with trio.CancelScope(shield=how == "shield"):
            await trio.sleep(2 if how == "shield" else 0.5)
        return "kept"

    async def wait() -> str:
        await trio.sleep(60)
        return "late"

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        with trio.move_on_after(1):
            tools = pipeline(made("first", wait), made("t", body))
            await execute(tools, calls_of("first", "t"), log)
        return log

    log = run(main)
    assert code(log.outcomes["first"]) == texts.ABORTED
    assert told(log.outcomes["t"]) == "kept"


def test_an_error_of_a_cancelled_body_keeps_its_text() -> None:
    """REFERENCE 2.2: and says nothing of the cancel it was raised from."""

    async def body() -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise RuntimeError("the file is half written")  # noqa: B904  # as tools are written
        return "never"

    outcome = once(made("t", body), cancel_at=1)
    assert (told(outcome), code(outcome)) == ("Error: the file is half written", None)


def test_a_group_of_a_cancelled_body_loses_its_cancelled_parts() -> None:
    """DESIGN 6 BC-12: what remains is the error; no `Cancelled` is ever formatted."""

    async def cleaning() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("clean-up failed")

    async def body() -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cleaning)
            nursery.start_soon(trio.sleep_forever)
        return "never"

    outcome = once(made("t", body), cancel_at=1)
    assert outcome.is_error
    assert "clean-up failed" in told(outcome)
    assert "Cancelled" not in told(outcome)
    assert code(outcome) is None


def test_a_group_of_nothing_but_cancelled_is_aborted() -> None:
    """DESIGN 6: "nothing remains" - a nursery's group, not only a bare `Cancelled`."""

    async def body() -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)
        return "never"

    assert code(once(made("t", body), cancel_at=1)) == texts.ABORTED


# --- what bodies raise -------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ValueError("own words"),
        SystemExit("own words"),
        GeneratorExit("own words"),
        asyncio.CancelledError("own words"),
        Stop("own words"),
        ExceptionGroup("x", [ValueError("own words")]),
        BaseExceptionGroup("x", [BaseExceptionGroup("y", [Stop("own words")])]),
        AssertionError("own words"),
        RecursionError("own words"),
        MemoryError("own words"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("how", ["async", "timed", "thread"])
def test_whatever_a_body_raises_is_its_result_and_loses_no_sibling(
    error: BaseException, how: str
) -> None:
    """BC-33 BC-12 (b), DESIGN 6: with its own message."""

    async def body() -> str:
        raise error

    def plain_body(arguments: object) -> str:
        raise error

    async def ok() -> str:
        await trio.lowlevel.checkpoint()
        return "ok"

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        boom = made("boom", body, timeout=5 if how == "timed" else None)
        if how == "thread":
            boom = raw_tool(
                name="boom",
                description="",
                parameters=ANYTHING,
                body=plain_body,
                parallel=True,
            )
        tools = pipeline(boom, made("a", ok), made("b", ok))
        await execute(tools, calls_of("a", "boom", "b"), log)
        return log

    log = in_threads(main) if how == "thread" else run(main)
    assert log.outcomes["boom"].is_error
    assert "own words" in told(log.outcomes["boom"])
    assert [told(log.outcomes[name]) for name in "ab"] == ["ok", "ok"]


def test_lone_surrogates_in_results_and_errors_are_made_writable() -> None:
    """BC-38 (a) (b)."""

    async def returns() -> str:
        return "a\udc97b"

    async def raises() -> str:
        raise ToolError("\ud835", "CODE\udc00")

    async def halves() -> str:
        return "\ud83c\udf78"

    for body in (returns, raises, halves):
        outcome = once(made("t", body))
        told(outcome).encode()
        (code(outcome) or "").encode()
    assert told(once(made("t", halves))) == "\U0001f378"


@pytest.mark.parametrize("error", ["\ud835", "x" * 10])
def test_texts_of_policies_are_made_writable(error: str) -> None:
    """BC-38."""

    async def deny(hook: Any, proceed: Any) -> Deny:
        return Deny(error)

    told(once(plain, pre=[deny])).encode()
    told(once(plain, guards=[lambda hook: error])).encode()
    told(once(plain, post=[failing(RuntimeError(error))])).encode()


def test_a_result_without_a_text_form_is_an_error_result() -> None:
    """BC-37 C117: and the coroutine it may be is closed."""

    async def forgotten() -> object:
        return trio.sleep(1)

    outcome = once(made("t", forgotten))
    assert code(outcome) == texts.INVALID_TOOL_OUTPUT


def test_a_coroutine_from_a_plain_function_is_refused_in_our_words() -> None:
    """BC-37 C117: as from an async one, with the advice that helps."""

    def body() -> object:
        return trio.sleep(1)

    async def main() -> ToolOutcome:
        return await outcome_of(tool(name="t")(body))

    outcome = in_threads(main)
    assert code(outcome) == texts.INVALID_TOOL_OUTPUT
    assert "it should await it and be an async def" in told(outcome)


def test_a_call_that_has_ended_takes_no_more_contexts() -> None:
    """C118, ToolRun: they would go nowhere."""
    runs: list[ToolRun] = []

    @tool(name="t")
    async def leaky(run: ToolRun) -> str:
        runs.append(run)
        return "ok"

    once(leaky)
    with pytest.raises(UsageError):
        runs[0].defer_context("too late")
    with pytest.raises(UsageError):
        runs[0].conclude_turn()


# --- plain functions, in threads ---------------------------------------------------------


def threaded(body: Callable[..., object], name: str = "t", **options: Any) -> Tool:
    return tool(name=name, parallel=True, **options)(body)


def test_a_plain_function_does_not_stop_the_loop() -> None:
    """BC-34: it waits for something that the Trio thread does meanwhile."""
    entered, release = threading.Event(), threading.Event()

    def body() -> str:
        entered.set()
        assert release.wait(10)
        return threading.current_thread().name

    async def main() -> ToolOutcome:
        async def release_it() -> None:
            while not entered.is_set():
                await trio.sleep(0.001)
            release.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(release_it)
            return await outcome_of(threaded(body))

    assert told(in_threads(main)) != threading.current_thread().name


def test_at_most_so_many_threads_as_the_batch_has_slots() -> None:
    """BC-34: ten calls, capacity 3."""
    most = _most_at_once(calls=10, capacity=3, limit=40)
    assert most == 3


def test_at_most_so_many_threads_as_the_engine_has() -> None:
    """DESIGN 7: plain functions run "under the engine's thread limiter"."""
    assert _most_at_once(calls=6, capacity=6, limit=2) == 2


def _most_at_once(*, calls: int, capacity: int, limit: int) -> int:
    wanted = min(calls, capacity, limit)
    lock, running, most = threading.Lock(), [0], [0]
    full = threading.Event()

    def body() -> str:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
            if running[0] == wanted:
                full.set()
        assert full.wait(10)  # all of the first wave are in; one more would be seen
        with lock:
            running[0] -= 1
        return "ok"

    async def main() -> None:
        names = [f"t{n}" for n in range(calls)]
        tools = [threaded(body, name) for name in names]
        limiter = trio.CapacityLimiter(limit)
        log = FakeLog(Timeline())
        await execute(pipeline(*tools, limiter=limiter), calls_of(*names), log, capacity=capacity)
        assert all(told(outcome) == "ok" for outcome in log.outcomes.values())
        assert limiter.borrowed_tokens == 0

    in_threads(main)
    return most[0]


def test_context_variables_reach_threads_and_do_not_come_back() -> None:
    """BC-35: the same for plain and async bodies; what one sets no other call sees."""
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")

    def plain_body() -> str:
        seen = request.get()
        request.set("leak")
        return seen

    async def async_body() -> str:
        seen = request.get()
        request.set("leak")
        return seen

    async def main() -> FakeLog:
        request.set("mine")
        log = FakeLog(Timeline())
        tools = pipeline(threaded(plain_body, "p"), made("a", async_body))
        for n in range(3):
            await execute(tools, [a_call(f"p{n}", "p"), a_call(f"a{n}", "a")], log, patience=30)
        assert request.get() == "mine"
        return log

    log = in_threads(main)
    assert {told(outcome) for outcome in log.outcomes.values()} == {"mine"}


def test_a_cancelled_batch_waits_for_its_threads() -> None:
    """DESIGN 7, invariant 4: the body ends before the batch does, and keeps its result."""
    entered, release = threading.Event(), threading.Event()

    def body() -> str:
        entered.set()
        assert release.wait(10)
        return "finished anyway"

    async def main() -> ToolOutcome:
        log = FakeLog(Timeline())
        over = trio.Event()

        async def batch(scope: trio.CancelScope) -> None:
            with scope:
                await execute(pipeline(threaded(body)), [a_call("c")], log, patience=30)
            over.set()

        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(batch, scope)
            while not entered.is_set():
                await trio.sleep(0.001)
            scope.cancel(reason="stop")
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            assert not over.is_set()
            release.set()
        return log.outcomes["c"]

    assert told(in_threads(main)) == "finished anyway"


def test_a_thread_may_give_way_to_the_cancel() -> None:
    """C116: `trio.from_thread.check_cancelled` in a plain body."""
    entered = threading.Event()

    def body() -> str:
        entered.set()
        while True:
            trio.from_thread.check_cancelled()

    async def main() -> ToolOutcome:
        log = FakeLog(Timeline())
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def stop() -> None:
                while not entered.is_set():
                    await trio.sleep(0.001)
                scope.cancel(reason="stop")

            nursery.start_soon(stop)
            with scope:
                await execute(pipeline(threaded(body)), [a_call("c")], log, patience=30)
        return log.outcomes["c"]

    assert code(in_threads(main)) == texts.ABORTED


def test_the_tool_run_works_from_the_thread() -> None:
    """DESIGN 1: "`ToolRun`'s may be called from its tool's thread"."""

    def body(run: ToolRun) -> str:
        run.defer_context("from the thread")
        run.conclude_turn()
        return threading.current_thread().name

    async def main() -> ToolOutcome:
        return await outcome_of(tool(name="t")(body))

    outcome = in_threads(main)
    assert (contexts(outcome), outcome.concludes) == (["from the thread"], True)
    assert told(outcome) != threading.main_thread().name


def _with_one_thread_taken(late: Tool, *, cancel: bool) -> dict[str, Any]:
    """Run a plain call that holds the only thread, and *late*, which waits for one."""
    entered, release = threading.Event(), threading.Event()

    def holding() -> str:
        entered.set()
        assert release.wait(10)
        return "held"

    async def one_after_the_other(hook: Any, proceed: Any) -> Any:
        while hook.call.id == late.name and not entered.is_set():
            await trio.sleep(0.001)
        return await proceed()

    async def main() -> dict[str, Any]:
        log = FakeLog(Timeline())
        tools = pipeline(
            threaded(holding, "holding"),
            late,
            limiter=trio.CapacityLimiter(1),
            pre=[one_after_the_other],
        )

        async def stop() -> None:
            while not tools.limiter.statistics().tasks_waiting:
                await trio.sleep(0.001)
            if cancel:
                scope.cancel(reason="stop")
            while tools.limiter.statistics().tasks_waiting:
                await trio.sleep(0.001)
            release.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop)
            with trio.CancelScope() as scope:
                await execute(tools, calls_of("holding", late.name), log, patience=30)
        return log.outcomes

    outcomes: dict[str, Any] = in_threads(main)
    return outcomes


def test_a_call_that_waits_for_a_thread_is_unstarted_when_cancelled() -> None:
    """Invariants 4 and 5."""
    ran: list[int] = []
    outcomes = _with_one_thread_taken(threaded(lambda: ran.append(1), "late"), cancel=True)
    assert ran == []
    assert code(outcomes["late"]) == texts.ABORTED_BEFORE_DISPATCH
    assert told(outcomes["holding"]) == "held"


def test_a_timeout_while_waiting_for_a_thread_does_not_say_that_the_call_was_aborted() -> None:
    """C116 C119: nobody cancelled it. `TOOL_TIMEOUT`, whether the body started or not."""
    late = threaded(lambda: "ok", "late", timeout=0.05)
    outcomes = _with_one_thread_taken(late, cancel=False)
    assert code(outcomes["late"]) in (None, texts.TOOL_TIMEOUT)


def test_no_thread_starts_after_the_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 4, DESIGN 6: "nothing awaited between that and the body".

    Strikes at the first step of any task after the call counts as started.
    """
    late: list[bool] = []
    real = trio._threads.start_thread_soon  # type: ignore[attr-defined]

    def watched(*args: Any, **kwargs: Any) -> Any:
        late.append(scope.cancel_called)
        return real(*args, **kwargs)

    monkeypatch.setattr(trio._threads, "start_thread_soon", watched)
    scope = trio.CancelScope()

    class Striker(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            if prepared.started:
                scope.cancel(reason="struck")

    tools_of = threaded(lambda: "ok")

    async def main() -> None:
        nonlocal prepared
        tools = pipeline(tools_of)
        prepared = tools.classify(a_call("c"))
        trio.lowlevel.add_instrument(Striker())
        with scope:
            await tools.execute(prepared)

    prepared: Any = None
    in_threads(main)
    assert late == [False]


def test_an_interrupt_raised_in_a_thread_is_an_interrupt() -> None:
    """DESIGN 4: never a tool error."""

    def body() -> str:
        raise KeyboardInterrupt

    async def main() -> FakeLog:
        log = FakeLog(Timeline())
        with pytest.raises(KeyboardInterrupt):
            await execute(pipeline(threaded(body)), [a_call("c")], log, patience=30)
        return log

    assert code(in_threads(main).outcomes["c"]) == texts.ABORTED


def test_a_timeout_of_a_thread_is_committed_when_the_thread_has_ended() -> None:
    """BC-13 (e): cooperative; a thread cannot be stopped."""
    release = threading.Event()

    def body() -> str:
        assert release.wait(10)
        return "too late"

    async def main() -> ToolOutcome:
        async def let_it_end() -> None:
            await trio.sleep(0.1)
            release.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_it_end)
            return await outcome_of(threaded(body, timeout=0.02))

    assert code(in_threads(main)) == texts.TOOL_TIMEOUT
