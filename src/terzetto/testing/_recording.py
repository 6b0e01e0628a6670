"""The model of an exploration: it remembers what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from attrs import field, frozen

from ..llm import Adapter, ChunkStream, PreparedCall
from ..llm.scripted import Entry, Responder, Script, ScriptedModel
from ..vocabulary import CallConfig, DefaultField, ModelInfo, Request

MakeAdapter: TypeAlias = Callable[[], Adapter]
Answers: TypeAlias = Sequence[Entry | Responder]


def scripted(answers: Answers) -> MakeAdapter:
    """Fresh models that give *answers*, one for each request, and then ``more`` for ever."""
    script = Script(tuple(answers), then=lambda request: "more")
    return lambda: ScriptedModel(script)


@frozen
class Recording:
    """An adapter that remembers what it was asked."""

    adapter: Adapter
    requests: list[Request] = field(factory=list)

    @property
    def provider(self) -> str:
        return self.adapter.provider

    async def prepare(self, config: CallConfig) -> PreparedCall:
        return _RecordingCall(await self.adapter.prepare(config), self.requests)

    async def aclose(self) -> None:
        await self.adapter.aclose()


@frozen
class _RecordingCall:
    call: PreparedCall
    requests: list[Request]

    @property
    def config(self) -> CallConfig:
        return self.call.config

    @property
    def adapter_defaults(self) -> frozenset[DefaultField]:
        return self.call.adapter_defaults

    @property
    def info(self) -> ModelInfo:
        return self.call.info

    def open_stream(self, request: Request) -> ChunkStream:
        self.requests.append(request)
        return self.call.open_stream(request)
