"""The world of a session that is run again: its listeners, model and tools, read off the log.

Listeners decide as they did, the model answers with the chunks that the log has next, and calls
come to the results they had. No tool runs, nothing is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType

import trio
from attrs import define, evolve, frozen

from ..agent import Agent, Assembly, End, Enter, PreStep, Reject, RequestFailed, RequestHook, Retry
from ..llm import ChunkStream, PreparedCall, StreamCall
from ..session import is_snapshot
from ..tools import BatchResult, ToolBatch, ToolOutcome
from ..vocabulary import (
    Append,
    AssistantChunk,
    AssistantMessageEvent,
    Blocked,
    CallConfig,
    ContextSection,
    DefaultField,
    InboxSpliced,
    ModelInfo,
    PluginSource,
    Request,
    StepStart,
    StreamChunk,
    SystemMessage,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    TurnEnd,
    UserMessage,
)
from ._playback import Playback
from ._tape import Asked, Begun


@define(eq=False)
class Listeners:
    """Decide what was decided."""

    play: Playback

    def compose(self, agent: Agent) -> None:
        """Listen at every place where something can be decided."""
        hooks = agent.scope.hooks
        hooks.assemble.listen(self._assemble)
        hooks.pre_step.listen(self._pre_step)
        hooks.request.listen(self._request)
        hooks.request_error.listen(self._request_error)
        hooks.stream.listen(self._stream)
        hooks.turn_stopping.listen(self._stopping)
        for name in self._context_names():
            agent.scope.add_context(name, partial(self._context, name))

    def _coming(self) -> Asked | None:
        """The request that is being put together: of the step that begins next."""
        event = self.play.next_own()
        if event is not None and isinstance(event.data, StepStart):
            return self.play.tape.asked.get((event.data.turn, event.data.step, 1))
        return None

    def _begun(self) -> Begun:
        """What the step that begins next admitted."""
        event = self.play.next_own()
        if event is not None and isinstance(event.data, StepStart):
            return self.play.tape.begun.get((event.data.turn, event.data.step), Begun())
        return Begun()

    async def _assemble(self, value: Assembly, proceed: object) -> Assembly:
        await trio.lowlevel.checkpoint()
        self.play.claimed()
        self.play.fail()
        asked = self._coming()
        if asked is None:
            return evolve(value, system=self._begun().prompt, tools=())
        self.play.key = (asked.sent.turn, asked.sent.step, 1)
        request = asked.sent.request
        prompts = [m.text for m in request.messages if isinstance(m, SystemMessage)]
        return evolve(value, system=prompts[-1] if prompts else "", tools=request.tools)

    async def _pre_step(self, value: PreStep, proceed: object) -> Enter | Reject:
        await trio.lowlevel.checkpoint()
        self.play.fail()
        event = self.play.next_own()
        if event is None:
            await trio.sleep_forever()
            raise AssertionError
        if isinstance(event.data, TurnEnd) and isinstance(event.data.ending, Blocked):
            return Reject()
        if isinstance(event.data, InboxSpliced) and self.play.agent is not None:
            self.play.agent._state.steered = True  # what was emptied is followed by steering
        asked = self._coming()
        entered = asked.entered if asked is not None else tuple(self._begun().entered)
        opens = isinstance(event.data, StepStart)
        if opens and (asked is None or not asked.admitted):
            # It was never admitted, for all we know; something has to enter for the step to open.
            entered = entered or value.messages or (UserMessage("?"),)
        return Enter(entered, asked is not None and asked.starts_series)

    async def _request(self, value: RequestHook, proceed: object) -> CallConfig:
        await trio.lowlevel.checkpoint()
        self.play.key = (value.turn, value.step, value.attempt)
        self.play.fail()
        return value.config

    async def _request_error(self, value: RequestFailed, proceed: object) -> Retry | End:
        await trio.lowlevel.checkpoint()
        self.play.fail()
        if self.play.next_own() is None:
            await trio.sleep_forever()
        return End() if self.play.tape.gives_up(self.play.at) else Retry()

    async def _stream(
        self, call: StreamCall, proceed: Callable[[StreamCall], Awaitable[ChunkStream]]
    ) -> ChunkStream:
        self.play.key = (call.turn, call.step, call.attempt)
        self.play.judge(call.request)
        self.play.follow()
        self.play.fail()
        return _Watched(self.play, await proceed(call))

    async def _stopping(self, value: object) -> None:
        await trio.lowlevel.checkpoint()
        self.play.claimed()
        self.play.fail()
        if self.play.next_own() is None:
            await trio.sleep_forever()

    # --- runtime context ------------------------------------------------------------------

    def _context_names(self) -> list[str]:
        names: dict[str, None] = {}
        for asked in self.play.tape.asked.values():
            for message in asked.entered:
                names |= {section.name: None for section in _sections(message)}
        return list(names)

    def _context(self, name: str, view: object) -> str:
        asked = self.play.asked()
        messages = asked.sent.request.messages if asked is not None else ()
        snapshots = [message for message in messages if is_snapshot(message)]
        for section in _sections(snapshots[-1]) if snapshots else ():
            if section.name == name:
                return section.text
        return ""


def _sections(message: object) -> tuple[ContextSection, ...]:
    source = getattr(message, "source", None)
    return (source.sections or ()) if isinstance(source, PluginSource) else ()


# --- in the place of the world ------------------------------------------------------------


@define(eq=False)
class RecordedModel:
    """Declares what the log says its adapter did, and answers with its chunks."""

    play: Playback
    provider: str

    async def prepare(self, config: CallConfig) -> PreparedCall:
        await trio.lowlevel.checkpoint()
        return _Prepared(self.play, *_prepared(self.play, config))

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def _prepared(
    play: Playback, config: CallConfig
) -> tuple[CallConfig, frozenset[DefaultField], ModelInfo]:
    """What the adapter made of *config*."""
    play.fail()
    asked = play.asked()
    if asked is None:
        return config, frozenset(), ModelInfo()
    recorded = asked.header.header
    return recorded.config, recorded.adapter_defaults, asked.info


@frozen
class _Prepared:
    play: Playback
    config: CallConfig
    adapter_defaults: frozenset[DefaultField]
    info: ModelInfo

    def open_stream(self, request: Request) -> ChunkStream:
        return _Recorded(self.play)


@define(eq=False)
class _Recorded(AbstractAsyncContextManager[AsyncIterator[StreamChunk]]):
    """The chunks that the log has next."""

    play: Playback

    async def __aenter__(self) -> AsyncIterator[StreamChunk]:
        await trio.lowlevel.checkpoint()
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
        event = self.play.next_own()
        if event is None:
            await trio.sleep_forever()
            raise AssertionError
        match event.data:
            case AssistantChunk(chunk=chunk):
                await trio.lowlevel.checkpoint_if_cancelled()
                return chunk
            case AssistantMessageEvent(interrupted=False):
                raise StopAsyncIteration
            case _:
                self.play.interrupt()
                await trio.sleep_forever()
                raise AssertionError


@define(eq=False)
class _Watched(AbstractAsyncContextManager[AsyncIterator[StreamChunk]]):
    """A stream in which a listener failed where one did."""

    play: Playback
    inner: ChunkStream
    _chunks: AsyncIterator[StreamChunk] | None = None

    async def __aenter__(self) -> AsyncIterator[StreamChunk]:
        self._chunks = await self.inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.inner.__aexit__(kind, error, traceback)

    def __aiter__(self) -> AsyncIterator[StreamChunk]:
        return self

    async def __anext__(self) -> StreamChunk:
        assert self._chunks is not None
        self.play.fail()
        return await self._chunks.__anext__()


@define(eq=False)
class RecordedTools:
    """Commits calls and results as the log has them; no tool runs."""

    play: Playback

    async def execute(self, batch: ToolBatch) -> BatchResult:
        seqs: dict[str, int] = {}
        calls = list(batch.calls)
        turn = 0
        while True:
            await trio.lowlevel.checkpoint()
            event = self.play.next_own()
            if event is None or self.play.done:
                await trio.sleep_forever()
                raise AssertionError
            match event.data:
                case ToolCallEvent(call_id=call_id, turn=turn) if calls:
                    call = calls.pop(0)
                    seqs[call_id] = batch.log.call(call)
                case ToolResultEvent(message=message, turn=turn) if isinstance(
                    event.surface_op, Append
                ):
                    (block,) = message.content
                    assert isinstance(block, ToolResultBlock)
                    if block.tool_call_id not in seqs:
                        break
                    call = next(c for c in batch.calls if c.id == block.tool_call_id)
                    outcome = ToolOutcome(tuple(block.content), block.is_error, event.data.error)
                    batch.log.result(call, seqs[block.tool_call_id], outcome)
                case _:
                    break
        self.play.fail()
        return BatchResult(concludes=not self.play.stays_open(turn))
