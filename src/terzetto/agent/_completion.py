"""One model request outside the log: for summaries, titles, judgements of extras and tools.

It goes the way of every model call: the adapter's preparation, the ``stream`` hook, the
runtime that turns failures into one last chunk. It has no header, no admission and no
retry, because it is no part of the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    await trio.lowlevel.checkpoint()
    if selection is None:
        raise CodedError(
            "no model is selected; give selection= or call agent.model.select()", texts.NO_ROUTE
        )
    session = agent.session
    if isinstance(messages, str):
        messages = (UserMessage(messages, id=session.new_id()),)
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
    async with await stream.run(call, open_stream) as chunks:
        unparked = 0
        async for chunk in chunks:
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
