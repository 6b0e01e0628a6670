"""No text of any event can make its log unwritable (C151; requirement BC-38).

Providers, tools and files bring lone surrogates, which UTF-8 cannot carry. Each text of each
payload is one case, found by walking samples of every payload class.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from attrs import evolve

from terzetto import vocabulary as v
from terzetto.session._codec import TAGS, dumps_event, loads_event

ODD = "a\ud83d"
FAILURE = v.Failure(message="m", code="C", request_id="r")
CALL = v.ToolCallBlock(v.CallId("c"), "tool", "{}")
RESULT = v.ToolResultBlock(v.CallId("c"), (v.TextBlock("ok"),))
SECTION = v.ContextSection("cwd", "/a")
PLUGIN = v.PluginSource("p", "snapshot", (SECTION,))
ROUTE = v.ModelSource("p", "m", "state")
TOOL = v.ToolSchema(name="t", description="d", parameters=v.EMPTY_OBJECT)
CONFIG = v.CallConfig(provider="p", model="m", effort="low")
ID = v.MessageId("id")
HERE = {"turn": 1, "step": 1}


def user(*blocks: v.UserBlock, source: v.MessageSource = v.USER) -> v.UserMessage:
    return v.UserMessage(blocks, source, ID)


def chunk(chunk: v.StreamChunk) -> v.AssistantChunk:
    return v.AssistantChunk(1, 1, chunk)


SAMPLES: list[v.EventData] = [
    v.TurnStart(1),
    v.TurnEnd(1, v.Aborted(v.HookCause("why"))),
    v.TurnEnd(1, v.Failed(FAILURE)),
    v.StepStart(1, 1),
    v.StepEnd(1, 1),
    v.UserMessageEvent(user(v.TextBlock("t"), source=PLUGIN)),
    v.SystemMessageEvent(1, 1, v.SystemMessage((v.TextBlock("t"),), PLUGIN, ID)),
    v.DeveloperMessageEvent(
        1,
        1,
        v.DeveloperMessage(
            (v.TextBlock("t"), v.ToolAdditionBlock("a"), v.ToolRemovalBlock("b")), id=ID
        ),
    ),
    chunk(v.TextDelta(0, "t")),
    chunk(v.ReasoningDelta(0, "t")),
    chunk(v.ToolCallDelta(0, v.CallId("c"), "{}", "tool")),
    chunk(v.BlockStart(0, "text")),
    chunk(v.BlockEnd(0, CALL)),
    chunk(v.BlockEnd(0, v.ReasoningBlock("t"))),
    chunk(v.UsageChunk(v.Usage(input_tokens=1, output_tokens=1))),
    chunk(v.Finish(v.ErrorFinish(FAILURE))),
    chunk(v.Finish(v.AbortedFinish(FAILURE))),
    v.AssistantMessageEvent(
        1, 1, v.AssistantMessage((v.TextBlock("t"), v.ReasoningBlock("r"), CALL), ROUTE, ID)
    ),
    v.ToolCallEvent(1, 1, v.CallId("c"), "tool", "{}"),
    v.ToolResultEvent(
        1, 1, user(RESULT, source=v.ToolSource(v.CallId("c"))), v.ToolErrorInfo("E", "C")
    ),
    v.RequestHeaderEvent(v.RequestHeader(config=CONFIG, tools=(TOOL,)), "initial"),
    v.RequestContextEvent("p", "m"),
    v.InboxSpliced("next-turn", 0, 0, (user(v.TextBlock("t")),)),
    v.EndSeed(),
    v.ModelSelected(v.ModelSelection("p", "m", "low")),
    v.LlmRetry(turn=1, step=1, retry_id="r", attempt=1, delay_ms=1, failure=FAILURE),
    v.LlmRetryStarted(turn=1, step=1, retry_id="r"),
    v.CompactionStart("k"),
    v.CompactionSummary("k", "text"),
    v.CompactionEnd("k"),
    v.Extension("app/x"),
]


def test_every_payload_has_a_sample() -> None:
    assert {type(sample) for sample in SAMPLES} == {*TAGS, v.Extension}


def is_text(declared: Any) -> bool:
    """A str, a NewType of one, or one of these or absent; words of the format are not."""
    if typing.get_origin(declared) is typing.Union or hasattr(declared, "__args__"):
        parts = typing.get_args(declared)
        return bool(parts) and any(is_text(part) for part in parts if part is not type(None))
    return declared is str or getattr(declared, "__supertype__", None) is str


def texts_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """For each text in *value*, its path, and a way to a copy with another text there."""
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            for inner, change in texts_of(item, f"{path}[{type(item).__name__}]"):
                yield (
                    inner,
                    lambda new, i=index, c=change: (*value[:i], c(new), *value[i + 1 :]),
                )
    if not attrs.has(type(value)):
        return
    attrs.resolve_types(type(value))
    for field in attrs.fields(type(value)):
        item = getattr(value, field.name)
        here = f"{path}.{field.name}"
        if isinstance(item, str) and is_text(field.type):
            yield here, lambda new, n=field.name: evolve(value, **{n: new})
        for inner, change in texts_of(item, here):
            yield inner, lambda new, n=field.name, c=change: evolve(value, **{n: c(new)})


CASES = {
    f"{type(sample).__name__}{path}": change
    for sample in SAMPLES
    for path, change in texts_of(sample)
}


def test_the_walk_finds_texts() -> None:
    assert len(CASES) > 60
    assert "ToolCallEvent.arguments" in CASES
    assert "InboxSpliced.target" not in CASES


@pytest.mark.parametrize("where", CASES)
def test_a_lone_surrogate_anywhere_leaves_the_log_writable(where: str) -> None:
    """C151, BC-38: it is cleaned where the value is built, or refused there."""
    try:
        data = CASES[where](ODD)
    except v.InvalidValue:
        return  # refused before it could reach a log
    event = v.Event(0, 0, data)
    names = [data.name] if isinstance(data, v.Extension) else []
    assert loads_event(dumps_event(event), seq_hint=0, extensions=names) == event
