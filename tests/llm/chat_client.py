"""Asking with the adapter, and reading answers without one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from terzetto.llm._openai_bytes import ChatStream
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.vocabulary import (
    CallConfig,
    CallId,
    ErrorFinish,
    Failure,
    Finish,
    ProviderError,
    Request,
    SessionId,
    StreamChunk,
    TextBlock,
    ToolCallBlock,
    UserMessage,
    assemble,
)

from .byte_server import EOF, ByteServer, D, F, Reply, T, U, open_byte_server, reply

KEY = "sk-SENTINEL-123"
GOOD = reply(T("ok"), F("stop"), U(3, 1), D, EOF)


@asynccontextmanager
async def serving(*replies: Reply, **options: Any) -> AsyncIterator[tuple[ByteServer, OpenAIChat]]:
    async with open_byte_server(*replies) as server:
        options = {"api_key": KEY, "base_url": server.url, **options}
        adapter = OpenAIChat(**options)
        try:
            yield server, adapter
        finally:
            await adapter.aclose()


def config(**fields: Any) -> CallConfig:
    return CallConfig(provider="openai", model="m", **fields)


async def opened(adapter: OpenAIChat, **fields: Any) -> Any:
    prepared = await adapter.prepare(config(**fields))
    request = Request(
        session_id=SessionId("s"), config=prepared.config, messages=(UserMessage("hi"),)
    )
    return prepared.open_stream(request)


async def ask(adapter: OpenAIChat, **fields: Any) -> list[StreamChunk]:
    async with await opened(adapter, **fields) as chunks:
        return [chunk async for chunk in chunks]


def text_of(chunks: list[StreamChunk]) -> str:
    content = assemble(chunks).assembled().content
    return "".join(block.text for block in content if isinstance(block, TextBlock))


async def refusal_of(adapter: OpenAIChat) -> Failure:
    """The failure of a request, whether it came before the stream or ended it."""
    try:
        chunks = await ask(adapter)
    except ProviderError as error:
        return error.failure
    last = chunks[-1]
    assert isinstance(last, Finish)
    assert isinstance(last.reason, ErrorFinish)
    return last.reason.failure


# The pure half.


def chunks_of(*pieces: bytes) -> list[StreamChunk]:
    stream = ChatStream()
    out = [chunk for piece in pieces for chunk in stream.feed(piece)]
    return out + stream.finish()


def content_of(raw: bytes) -> tuple[object, ...]:
    return assemble(chunks_of(raw)).assembled().content


def finish_of(raw: bytes) -> Finish:
    chunks = chunks_of(raw)
    finishes = [chunk for chunk in chunks if isinstance(chunk, Finish)]
    assert len(finishes) == 1
    assert chunks[-1] is finishes[0]
    return finishes[0]


def failure_of(raw: bytes) -> Failure:
    reason = finish_of(raw).reason
    assert isinstance(reason, ErrorFinish)
    return reason.failure


def call(arguments: str, call_id: str = "call_A", name: str = "echo") -> ToolCallBlock:
    return ToolCallBlock(CallId(call_id), name, arguments)
