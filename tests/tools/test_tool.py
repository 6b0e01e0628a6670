"""Tools, the handle their bodies get, and the outcomes of their calls."""

import functools
import json
import math
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio

from terzetto.session import AgentView
from terzetto.tools._encode import MAX_RESULT_BYTES
from terzetto.tools._outcome import (
    ToolOutcome,
    aborted,
    aborted_before_dispatch,
    denied,
    failure,
    invalid_arguments,
    invalid_output,
    raised,
    success,
    timed_out,
    unknown_tool,
)
from terzetto.tools._schema import InvalidArguments
from terzetto.tools._tool import Tool, ToolRun, raw_tool, tool
from terzetto.vocabulary import (
    CallId,
    CodedError,
    InvalidTool,
    InvalidValue,
    MessageId,
    PluginSource,
    TextBlock,
    ToolError,
    ToolErrorInfo,
    ToolSchema,
    UsageError,
    UserMessage,
    freeze_object,
)

EMPTY: dict[str, object] = {"type": "object", "properties": {}}


def new_run(name: str = "t") -> ToolRun:
    return ToolRun(CallId("c1"), name, cast(AgentView, object()))


async def echo(x: int, y: str = "b") -> str:
    """Echo.

    Args:
        x: A number.
    """
    return f"{x}{y}"


# Making tools.


def test_a_bare_decorator_takes_everything_from_the_function() -> None:
    made = tool(echo)
    assert made.name == "echo"
    assert made.description == "Echo."
    assert made.is_async
    assert not made.raw
    assert made.parallel is False
    assert made.timeout is None
    assert made.read_only is False
    assert made.max_result_bytes == MAX_RESULT_BYTES == 65536
    assert made.schema() == ToolSchema(
        name="echo",
        description="Echo.",
        parameters=freeze_object(
            {
                "type": "object",
                "properties": {
                    "x": {"type": "integer", "description": "A number."},
                    "y": {"type": "string", "default": "b"},
                },
                "required": ["x"],
                "additionalProperties": False,
            }
        ),
    )


def test_options_are_kept_and_win_over_the_function() -> None:
    def finalize(content: tuple[TextBlock, ...]) -> tuple[TextBlock, ...]:
        return content

    @tool(
        name="other-name_1",
        description="Other.",
        parallel=True,
        timeout=0.5,
        read_only=True,
        finalize=finalize,
        max_result_bytes=None,
    )
    def body() -> None:
        """Doc."""

    assert attrs.asdict(
        body,
        recurse=False,
        filter=lambda a, _: a.name not in ("parameters", "body", "arguments"),
    ) == {
        "name": "other-name_1",
        "description": "Other.",
        "parallel": True,
        "touches": None,
        "timeout": 0.5,
        "read_only": True,
        "injects": None,
        "finalize": finalize,
        "max_result_bytes": None,
    }
    assert not body.is_async


def test_tools_are_compared_by_identity_and_frozen() -> None:
    one, other = tool(echo), tool(echo)
    assert one != other
    assert len({one, other}) == 2
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        one.name = "x"  # type: ignore[misc]


def test_a_renamed_copy_keeps_its_body() -> None:
    copy = attrs.evolve(tool(echo), name="renamed")
    assert copy.schema().name == "renamed"
    assert copy.parse('{"x":1}') == {"x": 1, "y": "b"}
    with pytest.raises(InvalidTool):
        attrs.evolve(copy, name="not a name")


def test_a_tool_is_shown_without_its_schema() -> None:
    assert repr(tool(echo)) == (
        "FunctionTool(name='echo', parallel=False, timeout=None, read_only=False)"
    )


async def test_a_tool_can_be_called_like_its_function() -> None:
    text: str = await tool(echo)(1, y="c")
    assert text == "1c"

    @tool(parallel=True)
    def plain(x: int) -> int:
        return x + 1

    number: int = plain(1)
    assert number == 2
    assert raw_tool(name="r", description="", parameters=EMPTY, body=lambda args: args)(3) == 3


@pytest.mark.parametrize(
    ("body", "is_async"),
    [
        (echo, True),
        (functools.partial(echo, y="c"), True),
        (lambda args: None, False),
        (print, False),
        (functools.partial(print), False),
    ],
)
def test_async_bodies_are_known(body: Callable[..., object], is_async: bool) -> None:
    made = raw_tool(name="t", description="", parameters=EMPTY, body=body)
    assert made.is_async is is_async


def test_objects_with_an_async_call_are_async() -> None:
    class Service:
        async def __call__(self, x: int) -> int:
            """Serve."""
            return x

    made = tool(name="service")(Service())
    assert made.is_async
    assert made.description == "Serve."
    assert tool(Service()).name == "Service"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 65,
        "a b",
        "a.b",
        "é",
        "a\n",
        "a/b",
        "\u0661",
        "<lambda>",
        None,
        1,
        b"a",
        "x" * 10**6,
    ],
    ids=range(13),
)
def test_names_that_providers_refuse_are_refused(name: Any) -> None:
    with pytest.raises(InvalidTool, match="tool name: expected 1 to 64") as caught:
        raw_tool(name=name, description="", parameters=EMPTY, body=lambda args: None)
    assert len(str(caught.value)) < 300


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(InvalidTool, match="name="):
        tool(lambda: None)
    assert tool(name="ok")(lambda: None).name == "ok"


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, -math.inf, True, False, "1", 0.0])
def test_timeouts_are_positive_and_finite(timeout: Any) -> None:
    """C119."""
    with pytest.raises(InvalidTool, match="'echo': timeout: expected"):
        tool(timeout=timeout)(echo)


@pytest.mark.parametrize("timeout", [None, 1, 0.2, 1e9])
def test_timeouts_are_kept(timeout: float | None) -> None:
    assert tool(timeout=timeout)(echo).timeout == timeout


async def classify(args: object) -> bool:
    return True


def yielding() -> Iterator[int]:
    yield 1


async def async_yielding() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("parallel", 1),
        ("parallel", None),
        ("parallel", "yes"),
        ("parallel", classify),
        ("read_only", 1),
        ("read_only", None),
        ("finalize", "x"),
        ("finalize", classify),
        ("max_result_bytes", 0),
        ("max_result_bytes", -1),
        ("max_result_bytes", 1.5),
        ("max_result_bytes", True),
        ("body", yielding),
        ("body", async_yielding),
        ("body", "echo"),
        ("body", None),
    ],
)
def test_options_of_the_wrong_kind_are_refused(option: str, value: Any) -> None:
    options: dict[str, Any] = {"body": lambda args: None, option: value}
    with pytest.raises(InvalidTool, match=f"'t': {option}: expected"):
        raw_tool(name="t", description="", parameters=EMPTY, **options)


def test_generator_functions_are_refused() -> None:
    for body in (yielding, async_yielding):
        with pytest.raises(InvalidTool, match="body"):
            tool(body)


def test_what_is_no_function_is_refused() -> None:
    for value in ("echo", 1):
        with pytest.raises(InvalidTool, match="expected a function"):
            tool(cast(Any, value))


@pytest.mark.parametrize(
    "body",
    [
        lambda: None,
        lambda a, b: None,
        lambda *, args: None,
    ],
)
def test_raw_bodies_take_one_argument(body: Callable[..., object]) -> None:
    with pytest.raises(InvalidTool, match="one parameter"):
        raw_tool(name="t", description="", parameters=EMPTY, body=body)


# Arguments.


def test_typed_arguments_are_checked() -> None:
    """C117."""
    made = tool(echo)
    assert made.parse('{"x":1}') == {"x": 1, "y": "b"}
    with pytest.raises(InvalidArguments, match="echo"):
        made.parse("[]")


def test_raw_arguments_are_passed_as_they_are() -> None:
    """C117, runs 028 and 029: what is not JSON is passed as text, nothing as ``{}``."""
    made = raw_tool(name="t", description="", parameters=EMPTY, body=lambda args: args)
    assert made.raw
    for text, value in [("", {}), ('{"x": ', '{"x": '), ('{"x":1}', {"x": 1}), ("[1]", [1])]:
        assert made.parse(text) == value
        assert made.call(made.parse(text), new_run()) == value


async def test_bodies_receive_arguments_and_their_run() -> None:
    run = new_run()

    @tool
    async def typed(x: int, call: "ToolRun", *, y: int = 2) -> tuple[int, int, ToolRun]:
        return x, y, call

    assert await typed.start(typed.parse('{"x":1}'), run) == (1, 2, run)

    @tool
    def optional(call: ToolRun | None = None) -> ToolRun | None:
        return call

    assert optional.call(optional.parse(""), run) is run
    assert optional() is None

    def body(args: object, *, call: ToolRun) -> object:
        return args, call

    raw = raw_tool(name="raw", description="", parameters=EMPTY, body=body)
    assert raw.injects == "call"
    assert raw.call([1], run) == ([1], run)


def test_a_type_checking_import_of_tool_run_is_enough(tmp_path: Path) -> None:
    source = (
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from terzetto.tools._tool import ToolRun\n"
        "def body(x: int, run: ToolRun | None = None) -> None: ...\n"
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, str(tmp_path), "exec", dont_inherit=True), namespace)
    assert tool(namespace["body"]).injects == "run"


# Classification.


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        (True, True),
        (False, False),
        (lambda args: args["x"] == 1, True),
        (lambda args: args["x"] == 2, False),
        (lambda args: 1, False),
        (lambda args: "yes", False),
        (lambda args: None, False),
        (lambda args: args["missing"], False),
        (lambda: True, False),
        (lambda args: math.nan, False),
    ],
)
def test_only_exactly_true_is_parallel(parallel: Any, expected: bool) -> None:
    """C120, C121."""
    made = tool(parallel=parallel)(echo)
    assert made.is_parallel(made.parse('{"x":1}')) is expected


def test_raw_classifiers_see_the_raw_value() -> None:
    """C121: run 024."""
    made = raw_tool(
        name="t",
        description="",
        parameters=EMPTY,
        body=lambda args: None,
        parallel=lambda args: args == "{broken",
    )
    assert made.is_parallel(made.parse("{broken"))
    assert not made.is_parallel(made.parse("{}"))


def test_a_classifier_cannot_change_the_arguments() -> None:
    def change(args: Any) -> bool:
        with suppress(TypeError):
            args["x"] = 2
        return True

    made = tool(parallel=change)(echo)
    parsed = made.parse('{"x":1}')
    assert made.is_parallel(parsed)
    assert parsed == {"x": 1, "y": "b"}


def test_a_classifier_may_be_interrupted() -> None:
    def interrupt(args: object) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tool(parallel=interrupt)(echo).is_parallel({})


# ToolRun.


def test_contexts_are_collected_in_order() -> None:
    """C118: a text speaks in the tool's name."""
    run = new_run("helper")
    message = UserMessage("two", PluginSource("other"))
    run.defer_context("one")
    run.defer_context(message)
    first, second = run.contexts
    assert first.text == "one"
    assert first.source == PluginSource("helper")
    assert second is message
    assert first.id != second.id


def test_ids_come_from_the_engines_source() -> None:
    ids = iter([MessageId("a"), MessageId("b")])
    run = ToolRun(CallId("c"), "t", cast(AgentView, object()), lambda: next(ids))
    run.defer_context("1")
    run.defer_context("2")
    assert [message.id for message in run.contexts] == ["a", "b"]


@pytest.mark.parametrize("value", [None, 1, b"x", ["x"], TextBlock("x")])
def test_contexts_are_texts_or_user_messages(value: Any) -> None:
    run = new_run()
    with pytest.raises(InvalidValue, match="defer_context: expected"):
        run.defer_context(value)
    assert run.contexts == ()


def test_concluding_is_remembered() -> None:
    run = new_run()
    assert not run.concludes
    run.conclude_turn()
    run.conclude_turn()
    assert run.concludes


def test_after_its_end_a_run_takes_nothing_and_says_so() -> None:
    run = new_run()
    run.defer_context("kept")
    run.close()
    run.close()
    with pytest.raises(UsageError, match="has ended"):
        run.defer_context("late")
    with pytest.raises(UsageError, match="has ended"):
        run.conclude_turn()
    assert [message.text for message in run.contexts] == ["kept"]
    assert not run.concludes


async def test_a_run_may_be_used_from_threads() -> None:
    run = new_run()

    def work() -> None:
        for number in range(200):
            run.defer_context(str(number))
        run.conclude_turn()

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(trio.to_thread.run_sync, work)
    assert len(run.contexts) == 800
    assert run.concludes


def test_closing_decides_between_kept_and_refused() -> None:
    """Whatever the race: what was accepted is there, what is not there was refused."""
    run = new_run()
    accepted = 0
    started = threading.Event()

    def work() -> None:
        nonlocal accepted
        with suppress(UsageError):
            while True:
                run.defer_context("x")
                accepted += 1
                started.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    run.close()
    seen = len(run.contexts)
    thread.join()
    assert seen == accepted == len(run.contexts)


# Outcomes.


def text(outcome: ToolOutcome) -> str:
    (block,) = outcome.content
    return block.text


@pytest.mark.parametrize(
    ("outcome", "expected", "error"),
    [
        (aborted(), "Error: tool call aborted", ("AbortError", "ABORTED")),
        (
            aborted_before_dispatch(),
            "Error: tool call aborted before dispatch",
            ("AbortError", "ABORTED_BEFORE_DISPATCH"),
        ),
        (
            unknown_tool("nope"),
            'Error: unknown tool "nope"',
            ("ToolNotFoundError", "UNKNOWN_TOOL"),
        ),
        (invalid_arguments("bad"), "Error: bad", ("ToolArgumentsError", "INVALID_ARGS")),
        (invalid_output("bad"), "Error: bad", ("ToolOutputError", "INVALID_TOOL_OUTPUT")),
        (
            timed_out(0.2),
            "Error: tool call timed out after 0.2 s",
            ("ToolTimeoutError", "TOOL_TIMEOUT"),
        ),
        (denied("not allowed"), "Error: not allowed", None),
        (raised(ValueError("boom")), "Error: boom", None),
        (failure("try again"), "try again", None),
        (failure("x", "MyError", "MINE"), "x", ("MyError", "MINE")),
    ],
)
def test_failures_have_their_texts_and_codes(
    outcome: ToolOutcome, expected: str, error: tuple[str, str] | None
) -> None:
    """C116, C117, C118; runs 027, 031, 034, 035, 039, 128."""
    assert text(outcome) == expected
    assert outcome.is_error
    assert outcome.error == (None if error is None else ToolErrorInfo(*error))
    assert outcome.contexts == ()
    assert not outcome.concludes


def test_a_success_carries_contexts_and_its_conclusion() -> None:
    context = UserMessage("c")
    outcome = success((), contexts=(context,), concludes=True)
    assert outcome == ToolOutcome((), False, None, (context,), True)
    assert success((TextBlock("x"),)).error is None


class Named(Exception):
    def __init__(self, name: object, code: object) -> None:
        super().__init__("text")
        self.name = name
        self.code = code


class Guarded(Exception):
    @property
    def code(self) -> str:
        raise RuntimeError("no")

    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "info"),
    [
        (ToolError("text", "MINE"), ToolErrorInfo("ToolError", "MINE")),
        (CodedError("text"), ToolErrorInfo("CodedError", "UNKNOWN")),
        (Named("Own", "C"), ToolErrorInfo("Own", "C")),
        (Named(None, "C"), ToolErrorInfo("Named", "C")),
        (Named("", "C"), ToolErrorInfo("Named", "C")),
        (Named(1, "C"), ToolErrorInfo("Named", "C")),
        (Named("Own", 404), None),
        (Named("Own", ""), None),
        (Named("Own", None), None),
        (SystemExit("text"), None),
        (ImportError("text", name="module"), None),
        (OSError(2, "text"), None),
    ],
    ids=range(12),
)
def test_a_raised_code_is_kept(error: BaseException, info: ToolErrorInfo | None) -> None:
    """C118: a text `code`, with the error's own name or that of its class."""
    outcome = raised(error)
    assert "text" in text(outcome)
    assert outcome.error == info


def test_the_causes_of_an_error_are_told() -> None:
    error = ValueError("outer")
    error.__cause__ = KeyError("inner")
    assert text(raised(error)) == "Error: outer: 'inner'"


def test_errors_whose_parts_raise_are_told_by_their_type() -> None:
    assert text(raised(Guarded())) == "Error: Guarded"
    assert raised(Guarded()).error is None


async def test_an_error_raised_on_cancellation_keeps_its_own_text() -> None:
    """Runs 128 and 132: that `Cancelled` was being handled is not part of the result."""
    errors: list[Exception] = []
    with trio.move_on_after(0) as scope:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            try:
                try:
                    raise RuntimeError("tool observed cancellation")
                except RuntimeError as error:
                    errors.append(error)
                    raise ValueError("second") from error
            except ValueError as error:
                errors.append(error)
        scope.cancel()
    first, second = errors
    assert text(raised(first)) == "Error: tool observed cancellation"
    assert text(raised(second)) == "Error: second: tool observed cancellation"


def test_error_texts_are_bounded() -> None:
    """BC-39: an exception with a 5 MB message."""
    outcome = raised(ValueError("é" * 2_500_000), 1000)
    assert len(text(outcome).encode()) <= 1000
    assert text(outcome).startswith("Error: é")
    assert "bytes omitted" in text(outcome)


def test_surrogates_in_error_texts_are_replaced() -> None:
    """BC-38."""
    assert text(raised(ValueError("\ud835"))) == "Error: \ufffd"
    assert text(unknown_tool("\ud835")) == 'Error: unknown tool "\ufffd"'


# The recorded runs.

RUNS = Path(
    os.environ.get("TERZETTO_CONFORMANCE", Path(__file__).parents[1] / "conformance" / "runs")
)


def recorded() -> set[tuple[str, bool, str]]:
    """Text, success and error of every tool result in the runs."""
    found: set[tuple[str, bool, str]] = set()
    for path in RUNS.glob("[0-9]*.json"):
        for event in json.loads(path.read_text())["log"]:
            if event["type"] == "tool/result":
                (block,) = event["data"]["message"]["content"]
                told = "".join(part["text"] for part in block["content"])
                error = event["data"].get("error")
                found.add((told, block["isError"], json.dumps(error)))
    return found


def test_the_fixed_outcomes_are_those_of_the_runs() -> None:
    """C116, C117."""
    results = recorded()
    for outcome in (
        aborted(),
        aborted_before_dispatch(),
        unknown_tool("nope"),
        denied("not allowed"),
        denied("guarded"),
        raised(ValueError("boom")),
    ):
        error = outcome.error
        info = None if error is None else {"name": error.name, "code": error.code}
        assert (text(outcome), True, json.dumps(info)) in results


def test_a_tool_may_be_built_by_hand() -> None:
    made = Tool(
        name="t", description="a\ud800", parameters=freeze_object(EMPTY), body=lambda args: args
    )
    assert made.raw
    assert made.description == "a\ufffd"
    assert made.parse("") == {}


def test_what_every_step_asks_is_made_once() -> None:
    """The same schema, for a step compares it with the last one; a copy has its own."""
    made = tool(echo)
    assert made.schema() is made.schema()
    renamed = attrs.evolve(made, name="renamed")
    assert renamed.schema() is not made.schema()
    assert (renamed.schema().name, made.schema().name) == ("renamed", "echo")
    assert made.is_async is renamed.is_async is True
    plain = attrs.evolve(renamed, body=lambda x, y: "")
    assert plain.is_async is False
