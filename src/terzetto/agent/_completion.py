"""One model request outside the log: for summaries, titles, judgements of extras and tools.

It goes the way of every model call: the adapter's preparation, the ``stream`` hook, the
runtime that turns failures into one last chunk. It has no header, no admission and no
retry, because it is no part of the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import trio

from ..hooks import Waterfall
from ..llm import ChunkStream, ModelRuntime, StreamCall
from ..session import AgentView
from ..vocabulary import (
    AbortedFinish,
    AssistantMessage,
    BlockAssembler,
    CallConfig,
    CodedError,
    Completion,
    ErrorFinish,
    InvalidValue,
    Message,
    ModelSelection,
    ModelSource,
    ProviderError,
    Request,
    Stop,
    ToolHistory,
    ToolSchema,
    UserMessage,
    texts,
)
from ._hooks import check_chunk, check_chunks, check_opened

_FAIR_AFTER = 50
"""Chunks in a row after which others get to run."""


async def complete(
    agent: AgentView,
    stream: Waterfall[StreamCall, ChunkStream],
    runtime: ModelRuntime,
    messages: str | Sequence[Message],
    selection: ModelSelection | None,
    tools: Sequence[ToolSchema],
    max_tokens: int | None,
) -> Completion:
    """See `Agent.complete`."""
    session = agent.session
    if isinstance(messages, str):
        messages = (UserMessage(messages, id=session.new_id()),)
    _check("messages", messages, get_args(Message))
    _check("tools", tools, (ToolSchema,))
    await trio.lowlevel.checkpoint()
    if selection is None:
        raise CodedError(
            "no model is selected; give selection= or call agent.model.select()", texts.NO_ROUTE
        )
    if not isinstance(selection, ModelSelection):
        raise InvalidValue(f"selection: expected a ModelSelection, got {type(selection).__name__}")
    config = CallConfig(
        provider=selection.provider,
        model=selection.model,
        effort=selection.effort,
        max_tokens=max_tokens,
    )
    prepared = await runtime.prepare_call(config)
    request = Request(
        session_id=session.id,
        config=prepared.config,
        messages=tuple(messages),
        tools=tuple(tools),
        tool_history=ToolHistory(declared=tuple(tools)),
    )

    async def open_stream(value: StreamCall) -> ChunkStream:
        return prepared.open_stream(value.request)

    place = session.place
    call = StreamCall(agent, place.open_turn or 0, place.open_step or 0, 0, request)
    assembler = BlockAssembler()
    opened = await stream.run(call, open_stream)
    check_opened(stream, opened)
    async with opened as chunks:
        check_chunks(stream, chunks)
        unparked = 0
        async for chunk in chunks:
            check_chunk(stream, chunk)
            assembler.push(chunk)
            unparked = (unparked + 1) % _FAIR_AFTER
            if unparked == 0:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.checkpoint_if_cancelled()
    answer, finish = assembler.assembled(), assembler.finish
    if finish is not None and isinstance(finish.reason, (ErrorFinish, AbortedFinish)):
        raise ProviderError(finish.reason.failure)
    source = ModelSource(selection.provider, selection.model, answer.replay_state)
    message = AssistantMessage(answer.content, source, session.new_id())
    return Completion(
        message=message, finish=finish.reason if finish else Stop(), usage=answer.usage
    )


def _check(name: str, values: object, kinds: tuple[type, ...]) -> None:
    """Refuse what no adapter could send, before one trips over it."""
    expected = " or ".join(kind.__name__ for kind in kinds)
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
        raise InvalidValue(f"{name}: expected a list of {expected}, got {type(values).__name__}")
    for value in values:
        if not isinstance(value, kinds):
            raise InvalidValue(
                f"{name}: expected {expected}, got {type(value).__name__} among them"
            )
