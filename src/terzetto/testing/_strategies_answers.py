"""Hypothesis strategies of what a model says: streams of chunks, batches, whole scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from .. import vocabulary as v
from ..llm.scripted import Answer, Delay, Part, answer, call, finish_error, say, think
from ._strategies_values import failures, texts, usages

Calls: TypeAlias = Mapping[str, SearchStrategy[Mapping[str, object]]]
"""The tools that a model may call, each with a strategy for its arguments."""

_Given = TypeVar("_Given", bound=Mapping[str, object] | str)
_DELAYS = st.sampled_from([0.0, 0.1, 0.25]).map(Delay)


# --- streams --------------------------------------------------------------------------


@st.composite
def streams(draw: DrawFn, *, cut: bool = False) -> tuple[v.StreamChunk, ...]:
    """Streams as an adapter delivers them: blocks begun, grown and ended in order, then a finish.

    The finish fits what came: `ToolCalls` where there are calls, else `Stop` or `MaxTokens`.
    With *cut* a stream may stop anywhere, without a finish or with that of a failure.
    """
    chunks: list[v.StreamChunk] = []
    called = False
    for index in range(draw(st.integers(0, 4))):
        block = draw(_blocks(v.CallId(f"c{index}")))
        called = called or isinstance(block, v.ToolCallBlock)
        chunks += _block_chunks(index, block, draw(st.integers(1, 4)))
    if draw(st.booleans()):
        chunks.append(v.UsageChunk(draw(usages())))
    ends: list[v.FinishReason] = [v.ToolCalls()] if called else [v.Stop(), v.MaxTokens()]
    chunks.append(v.Finish(draw(st.sampled_from(ends))))
    if cut and draw(st.booleans()):
        chunks = chunks[: draw(st.integers(0, len(chunks) - 1))]
        if draw(st.booleans()):
            chunks.append(v.Finish(v.ErrorFinish(draw(failures()))))
    return tuple(chunks)


def _blocks(call_id: v.CallId) -> SearchStrategy[v.AssistantBlock]:
    words = texts().filter(bool)
    return st.one_of(
        st.builds(v.TextBlock, words),
        st.builds(v.ReasoningBlock, words),
        st.builds(v.ToolCallBlock, st.just(call_id), st.sampled_from(["look", "write"]), words),
    )


def _block_chunks(index: int, block: v.AssistantBlock, pieces: int) -> list[v.StreamChunk]:
    match block:
        case v.TextBlock(text=text):
            deltas: list[v.StreamChunk] = [v.TextDelta(index, t) for t in _split(text, pieces)]
            return [v.BlockStart(index, "text"), *deltas, v.BlockEnd(index, block)]
        case v.ReasoningBlock(text=text):
            deltas = [v.ReasoningDelta(index, t) for t in _split(text, pieces)]
            return [v.BlockStart(index, "reasoning"), *deltas, v.BlockEnd(index, block)]
        case v.ToolCallBlock():
            deltas = [v.ToolCallDelta(index, block.id, "", block.name)]
            deltas += [v.ToolCallDelta(index, block.id, t) for t in _split(block.arguments, pieces)]
            return [v.BlockStart(index, "tool-call"), *deltas, v.BlockEnd(index, block)]


def _split(text: str, pieces: int) -> list[str]:
    size = max(1, -(-len(text) // pieces))
    return [text[at : at + size] for at in range(0, len(text), size)]


# --- scripts --------------------------------------------------------------------------


def batches(tools: Calls, *, max_size: int = 4, wild: bool = False) -> SearchStrategy[list[Part]]:
    """Calls of *tools* for one answer of a scripted model, at least one.

    With *wild*, some are of a tool that does not exist, or have arguments that are no JSON.
    """
    one = [_calls(name, arguments) for name, arguments in tools.items()]
    if wild:
        broken: SearchStrategy[Mapping[str, object] | str] = st.sampled_from(["", "{", "[]", "1"])
        one += [st.just(call("no_such_tool")), *(_calls(name, broken) for name in tools)]
    return st.lists(st.one_of(one), min_size=1, max_size=max_size)


def _calls(
    name: str,
    arguments: SearchStrategy[Mapping[str, object]] | SearchStrategy[Mapping[str, object] | str],
) -> SearchStrategy[Part]:
    return arguments.map(lambda given: call(name, given))


@st.composite
def scripts(
    draw: DrawFn, tools: Calls, *, max_answers: int = 4, wild: bool = False
) -> list[Answer]:
    """What a model may answer, request by request, for a `ScriptedModel` or `explore`.

    Answers reason, speak, wait, and call *tools* (`batches`); the last one only speaks. With
    *wild*, answers may also fail midway.
    """
    answers: list[Answer] = []
    for _ in range(draw(st.integers(0, max_answers - 1))):
        parts: list[Part | Delay] = []
        if draw(st.booleans()):
            parts += [think("Let me see. "), draw(_DELAYS)]
        if draw(st.booleans()):
            parts += [say("I will look."), draw(_DELAYS)]
        if wild and draw(st.integers(0, 4)) == 0:
            answers.append(answer(*parts, finish_error(code="SERVER", message="overloaded")))
        else:
            answers.append(answer(*parts, *draw(batches(tools, wild=wild))))
    return [*answers, answer("Done.")]
