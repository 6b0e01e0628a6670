"""What could not be saved is refused where it is built."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest

from terzetto.vocabulary import (
    BlockEnd,
    BlockStart,
    CallId,
    ErrorFinish,
    Failure,
    Finish,
    InvalidValue,
    ModelInfo,
    PluginSource,
    ReasoningDelta,
    SessionHeader,
    SessionId,
    Stop,
    TextBlock,
    TextDelta,
    ToolCallDelta,
    ToolResultBlock,
    Usage,
    UsageChunk,
    UserMessage,
    clean_text,
)

odd: Any = None  # what no type checker would let through


class _Text(TextBlock):
    """A subclass may hold more than is written."""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TextDelta(odd, "x"), "TextDelta: index: expected an integer, got None"),
        (lambda: ReasoningDelta("0", "x"), "ReasoningDelta: index"),
        (lambda: ToolCallDelta(True, CallId("c"), "{}"), "expected an integer, got True"),
        (lambda: BlockEnd(0.5, TextBlock("x")), "expected an integer, got 0.5"),  # type: ignore[arg-type]
        (lambda: BlockStart(0, "image"), "'text' or 'reasoning' or 'tool-call', got str"),  # type: ignore[arg-type]
        (lambda: BlockEnd(0, odd), "BlockEnd: block: expected TextBlock or ReasoningBlock or"),
        (lambda: BlockEnd(0, _Text("x")), "got _Text"),
        (lambda: Usage(input_tokens=odd, output_tokens=1), "Usage: input_tokens: expected an"),
        (lambda: Usage(input_tokens=1, output_tokens=1.5), "output_tokens"),  # type: ignore[arg-type]
        (
            lambda: Usage(input_tokens=1, output_tokens=1, reasoning_tokens=float("nan")),  # type: ignore[arg-type]
            "reasoning_tokens: expected an integer or None, got nan",
        ),
        (lambda: UsageChunk(odd), "UsageChunk: usage: expected Usage, got None"),
        (lambda: Finish("stop"), "Finish: reason: expected Stop or ToolCalls or"),  # type: ignore[arg-type]
        (lambda: Finish(Stop), "got the class Stop"),  # type: ignore[arg-type]
        (lambda: ErrorFinish(ValueError()), "expected Failure, got ValueError"),  # type: ignore[arg-type]
        (lambda: Failure(message="m", status="500"), "Failure: status"),  # type: ignore[arg-type]
        (
            lambda: Failure(message="m", provider_retry_after_ms=1.5),  # type: ignore[arg-type]
            "provider_retry_after_ms: expected an integer or None, got 1.5",
        ),
        (lambda: ModelInfo(context_window="128k"), "ModelInfo: context_window"),  # type: ignore[arg-type]
        (lambda: ModelInfo(tool_update=1), "tool_update: expected True or False, got 1"),  # type: ignore[arg-type]
        (lambda: ModelInfo(system_prompt_update=True), "expected 'in-history' or None"),  # type: ignore[arg-type]
        (lambda: ModelInfo(retry_policy=5), "expected RetryPolicy or None, got 5"),  # type: ignore[arg-type]
        (lambda: UserMessage("x", source=odd), "UserMessage: source: expected UserSource or"),
        (lambda: UserMessage((_Text("x"),)), "expected TextBlock or ToolResultBlock, got _Text"),
        (lambda: UserMessage(TextBlock("x")), "a text or blocks in a tuple, got TextBlock"),  # type: ignore[arg-type]
        (lambda: ToolResultBlock(CallId("c"), "text"), "a tuple of TextBlock, got str"),  # type: ignore[arg-type]
        (lambda: ToolResultBlock(CallId("c"), ("x",)), "TextBlock in a tuple, got str"),  # type: ignore[arg-type]
        (lambda: ToolResultBlock(CallId("c"), (), 1), "is_error"),  # type: ignore[arg-type]
        (lambda: PluginSource("p", sections=("x",)), "ContextSection in a tuple, got str"),  # type: ignore[arg-type]
        (lambda: SessionHeader(id=SessionId("s"), created_ms=1.5), "created_ms"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_no_log_could_hold_is_refused_by_name(
    make: Callable[[], object], said: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        make()
    assert said in str(refused.value)


def test_a_number_with_a_name_is_a_number() -> None:
    """The status of a response comes as one."""
    assert Failure(message="m", status=HTTPStatus.TOO_MANY_REQUESTS).status == 429


class _Word(str):
    """What libraries give in the place of a text: a text, and more."""

    def __str__(self) -> str:
        return "told otherwise"


@pytest.mark.parametrize("text", ["plain", "d\ufffdj\u00e0", "\ud83d\ude00"])
def test_a_text_that_is_more_is_the_text_alone(text: str) -> None:
    """Of anything else nobody knows what it becomes where it is written."""
    kept = TextDelta(0, _Word(text)).text
    assert type(kept) is str
    assert kept == clean_text(text)
