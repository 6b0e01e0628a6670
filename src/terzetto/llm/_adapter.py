"""What a model adapter is: the protocol between the loop and a provider.

An adapter turns a `CallConfig` into a `PreparedCall` and a prepared call into a
stream of chunks. It may raise; the runtime (`_runtime.py`) alone turns what it
raises into one final failed `Finish`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias, runtime_checkable

from ..vocabulary import CallConfig, DefaultField, ModelInfo, Request, StreamChunk

ChunkStream: TypeAlias = AbstractAsyncContextManager[AsyncIterator[StreamChunk]]
"""An open answer. Entering sends the request; leaving closes the connection, at any
point, without waiting for the provider."""


class PreparedCall(Protocol):
    """One call, its adapter's defaults resolved. One-shot."""

    @property
    def config(self) -> CallConfig:
        """The configuration as it will be sent and logged."""
        ...

    @property
    def adapter_defaults(self) -> frozenset[DefaultField]:
        """Which fields of *config* came from the adapter."""
        ...

    @property
    def info(self) -> ModelInfo: ...

    def open_stream(self, request: Request) -> ChunkStream:
        """The answer to *request*, whose config equals `config`."""
        ...


@runtime_checkable
class Adapter(Protocol):
    """A provider's front door."""

    @property
    def provider(self) -> str:
        """The provider name that this adapter serves."""
        ...

    async def prepare(self, config: CallConfig) -> PreparedCall:
        """Check adapter-owned fields of *config* and resolve its defaults.

        No provider I/O. Raises `ProviderError` (for example
        ``UNSUPPORTED_REASONING_EFFORT``) for what the model cannot do.
        """
        ...

    async def aclose(self) -> None:
        """Release connections. A later call may open new ones."""
        ...
