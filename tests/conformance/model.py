"""The one model adapter of the recorded runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import evolve, frozen

from terzetto.llm import ChunkStream
from terzetto.session._codec import decode_event
from terzetto.vocabulary import (
    AssistantChunk,
    CallConfig,
    DefaultField,
    Failure,
    ModelInfo,
    ProviderError,
    Request,
    StreamChunk,
)


@frozen
class ReplayCall:
    world: Any
    config: CallConfig
    adapter_defaults: frozenset[DefaultField]
    info: ModelInfo

    def open_stream(self, request: Request) -> ChunkStream:
        return self._open(request)

    @asynccontextmanager
    async def _open(self, request: Request) -> AsyncIterator[AsyncIterator[StreamChunk]]:
        world = self.world
        world.record_request(request)
        entry = world.run["model"][world.attempts]
        world.attempts += 1
        yield Attempt(world, entry)


class Attempt:
    """Yields the chunks of one entry, waits at its gates, ends as it says."""

    def __init__(self, world: Any, entry: dict[str, Any]) -> None:
        self.world = world
        self.entry = entry
        self.chunks = list(entry.get("chunks", []))

    def __aiter__(self) -> Attempt:
        return self

    async def __anext__(self) -> StreamChunk:
        while self.chunks:
            chunk = self.chunks.pop(0)
            if "$gate" not in chunk:
                return decoded(chunk)
            patient = bool(chunk.get("ignoreAbort") or self.entry.get("ignoreAbort"))
            with trio.CancelScope(shield=patient):
                await self.world.gates.wait(chunk["$gate"])
        match self.entry.get("end", "end"):
            case "hang":
                await trio.sleep_forever()
            case "throw":
                raise failure(self.entry["error"])
        raise StopAsyncIteration


class ReplayAdapter:
    """Serves the provider ``mock`` with the model entries of a run, in order."""

    provider = "mock"

    def __init__(self, world: Any) -> None:
        self.world = world

    async def prepare(self, config: CallConfig) -> ReplayCall:
        facts = self.world.run.get("adapter", {})
        defaults: frozenset[DefaultField] = frozenset()
        if config.max_tokens is None and "defaultMaxTokens" in facts:
            config = evolve(config, max_tokens=facts["defaultMaxTokens"])
            defaults = frozenset({"maxTokens"})
        info = ModelInfo(context_window=facts.get("contextWindow"))
        return ReplayCall(self.world, config, defaults, info)

    async def aclose(self) -> None:
        return None


def decoded(chunk: dict[str, Any]) -> StreamChunk:
    data = {"turn": 1, "step": 1, "chunk": chunk}
    event = decode_event({"type": "assistant/chunk", "seq": 0, "time": 0, "data": data}, seq_hint=0)
    assert isinstance(event.data, AssistantChunk)
    return event.data.chunk


def failure(spec: dict[str, Any]) -> Exception:
    if "code" not in spec:
        return RuntimeError(spec["message"])
    return ProviderError(
        Failure(
            message=spec["message"],
            code=spec["code"],
            status=spec.get("status"),
            provider_retry_after_ms=spec.get("providerRetryAfterMs"),
            request_id=spec.get("requestId"),
        )
    )
