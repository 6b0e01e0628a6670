"""The model runtime: which adapter serves a route, and failures as one final chunk.

Alone turns what an adapter raises into a failed `Finish` (C109). What listeners of
the ``stream`` hook and consumers raise stays thrown.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import get_args

import trio
from attrs import define, field, frozen

from ..hooks import Registration
from ..session import AgentView
from ..vocabulary import (
    CallConfig,
    DefaultField,
    DuplicateName,
    ErrorFinish,
    Failure,
    Finish,
    InvalidValue,
    ModelInfo,
    ProviderError,
    Request,
    StreamChunk,
    chain_text,
    is_complete,
    single,
    texts,
)
from ..vocabulary._stream import CHUNKS, is_chunk
from ._adapter import Adapter, ChunkStream, PreparedCall
from ._together import Together, several

logger = logging.getLogger("terzetto")


@frozen
class StreamCall:
    """A model call about to be made, as ``stream`` listeners see it.

    *attempt* counts from 1 within its step. 0 marks a request outside the log
    (`Agent.complete`); *turn* and *step* are then those that are open, or 0.
    """

    agent: AgentView
    turn: int
    step: int
    attempt: int
    request: Request


@define(eq=False)
class ModelRuntime:
    """The adapters of one engine, by provider name."""

    _adapters: dict[str, Adapter] = field(factory=dict)

    def register(self, adapter: Adapter) -> Registration:
        """Serve ``adapter.provider`` with *adapter*. Raises `DuplicateName` if served."""
        name = getattr(adapter, "provider", None)
        if not isinstance(name, str) or not name:
            raise InvalidValue(
                f"adapter: expected an Adapter with a provider name, got {type(adapter).__name__}"
            )
        if name in self._adapters:
            raise DuplicateName(f"provider {name!r} has an adapter already; give one another name")
        self._adapters[name] = adapter

        def undo() -> None:
            if self._adapters.get(name) is adapter:
                del self._adapters[name]

        return Registration(undo)

    def adapters(self) -> Iterable[Adapter]:
        return tuple(self._adapters.values())

    async def prepare_call(self, config: CallConfig) -> PreparedCall:
        """The adapter's prepared call, its stream guarded.

        A provider without an adapter gives a call whose stream fails with
        ``NO_ADAPTER``: a ``stream`` listener may still own the route (C79).
        """
        adapter = self._adapters.get(config.provider)
        if adapter is None:
            served = ", ".join(sorted(self._adapters)) or "none"
            return _Unserved(config, served)
        call = checked_call(adapter.provider, await adapter.prepare(config))
        return _Guarded(call, call.config, call.adapter_defaults, call.info)


_DEFAULTS = frozenset(get_args(DefaultField))


def checked_call(provider: str, call: PreparedCall) -> PreparedCall:
    """*call*, if it has the parts of one: they enter the log, which has to be saved."""
    config = getattr(call, "config", None)
    defaults = getattr(call, "adapter_defaults", None)
    info = getattr(call, "info", None)
    if not isinstance(config, CallConfig):
        place, got, expected = "config", config, "a CallConfig"
    elif not (isinstance(defaults, frozenset) and defaults <= _DEFAULTS):
        place, got, expected = "adapter_defaults", defaults, f"a frozenset of {sorted(_DEFAULTS)}"
    elif not isinstance(info, ModelInfo):
        place, got, expected = "info", info, "a ModelInfo"
    else:
        return call
    raise InvalidValue(
        f"the adapter of {provider!r} prepared {type(call).__name__}, "
        f"whose {place} is {type(got).__name__}; expected {expected}"
    )


def checked_chunk(chunk: StreamChunk) -> StreamChunk:
    """*chunk*, if it is one: a log with another value in it could not be saved."""
    if is_chunk(chunk):
        return chunk
    kind = type(chunk).__name__
    raise InvalidValue(f"the adapter gave {kind}, expected a chunk such as TextDelta or Finish")


@frozen
class _Unserved:
    """A call that nobody serves."""

    config: CallConfig
    served: str
    adapter_defaults: frozenset[DefaultField] = frozenset()
    info: ModelInfo = ModelInfo()

    def open_stream(self, request: Request) -> ChunkStream:
        message = (
            f"no adapter serves provider {self.config.provider!r} (served: {self.served}); "
            "pass one in open_engine(adapters=[...])"
        )
        return FailedStream(Failure(message=message, code=texts.NO_ADAPTER))


@define(eq=False)
class _Guarded:
    """A prepared call whose stream never raises what the adapter raises."""

    call: PreparedCall
    config: CallConfig
    adapter_defaults: frozenset[DefaultField]
    info: ModelInfo

    def open_stream(self, request: Request) -> ChunkStream:
        return GuardedStream(self.call, request)


def failure_of(error: BaseException) -> Failure:
    """The facts of *error*; a foreign exception's chain of texts with code UNKNOWN."""
    if isinstance(error, ProviderError):
        return error.failure
    return Failure(message=chain_text(error))


class FailedStream(AbstractAsyncContextManager[AsyncIterator[StreamChunk]]):
    """A stream of one failed `Finish`."""

    def __init__(self, failure: Failure) -> None:
        self._chunks: list[StreamChunk] = [Finish(ErrorFinish(failure))]

    async def __aenter__(self) -> AsyncIterator[StreamChunk]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def __aiter__(self) -> AsyncIterator[StreamChunk]:
        return self

    async def __anext__(self) -> StreamChunk:
        if not self._chunks:
            raise StopAsyncIteration
        return self._chunks.pop()


class GuardedStream(Together, AbstractAsyncContextManager[AsyncIterator[StreamChunk]]):
    """An adapter's stream: its exceptions become the last chunk, and nothing follows one.

    `trio.Cancelled` and KeyboardInterrupt go through. What closing the stream raises is
    logged: the answer is over by then.
    """

    def __init__(self, call: PreparedCall, request: Request) -> None:
        self._call = call
        self._request = request
        self._stream: ChunkStream | None = None
        self._chunks: AsyncIterator[StreamChunk] | None = None
        self._following: Callable[[], Awaitable[Sequence[StreamChunk]]] | None = None
        self._failure: Failure | None = None
        self._ended = False

    async def __aenter__(self) -> AsyncIterator[StreamChunk]:
        try:
            stream = self._call.open_stream(self._request)
            self._chunks = await stream.__aenter__()
            self._following = several(self._chunks)
            self._stream = stream
        except BaseException as error:  # an adapter stream: somebody else's code
            self._failure = _adapter_failure(error)
        return self

    async def __anext__(self) -> StreamChunk:
        if self._ended:
            raise StopAsyncIteration
        if self._chunks is not None and self._failure is None:
            try:
                chunk = checked_chunk(await self._chunks.__anext__())
            except StopAsyncIteration:
                self._ended = True
                raise
            except BaseException as error:  # an adapter stream: somebody else's code
                self._failure = _adapter_failure(error)
            else:
                self._ended = isinstance(chunk, Finish) and not is_complete(chunk.reason)
                return chunk
        return self._failed()

    async def together(self) -> Sequence[StreamChunk]:
        if self._ended:
            return ()
        if self._following is None or self._failure is not None:
            return (self._failed(),)
        try:
            found = await self._following()
            if not isinstance(self._chunks, Together):  # of ours, which give chunks
                for chunk in found:
                    if type(chunk) not in CHUNKS:  # as `is_chunk`, without a call for each
                        checked_chunk(chunk)
        except BaseException as error:  # an adapter stream: somebody else's code
            self._failure = _adapter_failure(error)
            return (self._failed(),)
        last = found[-1] if found else None
        self._ended = last is None or (isinstance(last, Finish) and not is_complete(last.reason))
        return found

    def _failed(self) -> Finish:
        self._ended = True
        return Finish(ErrorFinish(self._failure or Failure(message="the stream failed")))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._stream is None:
            return
        try:
            await self._stream.__aexit__(kind, error, traceback)
        except Exception as failure:  # an adapter stream: somebody else's code
            if failure is not error:
                logger.warning("closing a model stream failed: %s", chain_text(failure))


_STOPS = (trio.Cancelled, KeyboardInterrupt, SystemExit, GeneratorExit)


def _adapter_failure(error: BaseException) -> Failure:
    """What an adapter raised, as facts; what stops the program or the task goes on."""
    if isinstance(error, _STOPS):
        raise error
    if isinstance(error, BaseExceptionGroup) and error.subgroup(_STOPS) is not None:
        raise error
    return failure_of(single(error))
