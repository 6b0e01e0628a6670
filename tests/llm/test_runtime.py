"""The runtime: whatever an adapter does, one terminal form reaches the consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Literal, cast

import pytest
import trio
from attrs import define, field
from hypothesis import given, settings, strategies as st
from hypothesis.strategies import SearchStrategy
from tests.strategies import chunks

from terzetto.llm import ModelRuntime, PreparedCall, failure_of, several
from terzetto.llm._runtime import GuardedStream
from terzetto.llm._together import Grouped
from terzetto.llm.scripted import ScriptedModel, answer
from terzetto.vocabulary import (
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
    SessionId,
    Stop,
    StreamChunk,
    TextDelta,
    is_complete,
    texts,
)

CONFIG = CallConfig(provider="fake", model="m")
REQUEST = Request(session_id=SessionId("S"), config=CONFIG, messages=())
OVERLOADED = Failure(message="overloaded", code="SERVER", status=503, request_id="r1")


class Foreign(BaseException):
    """Not an Exception, as those of some libraries."""


@define(eq=False)
class Stream:
    """An adapter's stream: does what it is told, and remembers how it was left."""

    enter: BaseException | None = None
    steps: list[StreamChunk | BaseException] = field(factory=list)
    leave: BaseException | Literal["suppress"] | None = None
    entered: int = 0
    left: int = 0
    asked: int = 0
    size: int = 0
    """Chunks that come together, at most; 0 for an iterator that knows of no groups."""

    async def __aenter__(self) -> AsyncIterator[StreamChunk]:
        await trio.lowlevel.checkpoint()
        if self.enter is not None:
            raise self.enter
        self.entered += 1
        return InGroups(self) if self.size else self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.left += 1
        if isinstance(self.leave, BaseException):
            raise self.leave
        return self.leave == "suppress"

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> StreamChunk:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        if not self.steps:
            raise StopAsyncIteration
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step


class InGroups(Grouped):
    """A group ends where something is raised, and with a failure."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    async def _more(self) -> list[StreamChunk]:
        group: list[StreamChunk] = []
        steps = self._stream.steps
        while len(group) < self._stream.size:
            if group and (not steps or isinstance(steps[0], BaseException)):
                break
            if (chunk := await anext(self._stream, None)) is None:
                break
            group.append(chunk)
            if isinstance(chunk, Finish) and not is_complete(chunk.reason):
                break
        return group


@define(eq=False)
class Call:
    """A prepared call of *stream*, or one that cannot even be opened."""

    stream: Any
    opening: BaseException | None = None
    config: CallConfig = CONFIG
    adapter_defaults: frozenset[DefaultField] = frozenset()
    info: ModelInfo = ModelInfo()

    def open_stream(self, request: Request) -> Any:
        if self.opening is not None:
            raise self.opening
        return self.stream


def guarded(stream: Any, opening: BaseException | None = None) -> GuardedStream:
    return GuardedStream(cast(PreparedCall, Call(stream, opening)), REQUEST)


async def read(stream: GuardedStream, together: bool = False) -> list[StreamChunk]:
    """Everything it gives; asks on after the end, as a careless consumer does."""
    found: list[StreamChunk] = []
    async with stream as opened:
        if together:
            while some := await several(opened)():
                found += some
        else:
            async for chunk in opened:
                found.append(chunk)
        for _ in range(2):
            assert await several(opened)() == ()
            with pytest.raises(StopAsyncIteration):
                await opened.__anext__()
    return found


def failed(*found: StreamChunk) -> Failure:
    """The failure of the last chunk, which must be there."""
    last = found[-1]
    assert isinstance(last, Finish)
    assert isinstance(last.reason, ErrorFinish)
    return last.reason.failure


# --- properties --------------------------------------------------------------------------


def errors() -> SearchStrategy[Exception]:
    """What adapters raise: typed, foreign, chained, alone and in groups of groups."""

    def chained() -> Exception:
        try:
            try:
                raise OSError("reset")
            except OSError as cause:
                raise RuntimeError("read failed") from cause
        except RuntimeError as error:
            return error

    single = st.sampled_from(
        [
            lambda: ProviderError(OVERLOADED),
            lambda: ValueError("broken"),
            lambda: TimeoutError(),
            lambda: trio.TooSlowError("slow"),
            lambda: trio.BrokenResourceError("gone"),
            chained,
        ]
    ).map(lambda make: make())
    return st.recursive(
        single, lambda inner: st.lists(inner, min_size=1, max_size=2).map(_group), max_leaves=4
    )


def _group(members: list[Exception]) -> Exception:
    return ExceptionGroup("in a nursery", members)


def _lone(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def streams() -> SearchStrategy[Stream]:
    steps = st.lists(chunks() | errors(), max_size=6)
    leave = st.none() | st.just("suppress") | errors()
    return st.builds(Stream, enter=st.none() | errors(), steps=steps, leave=leave)


@settings(max_examples=150)
@given(streams(), st.none() | errors(), st.booleans(), st.integers(0, 4))
def test_exactly_one_terminal_form_reaches_the_consumer(
    stream: Stream, opening: Exception | None, together: bool, size: int
) -> None:
    """C109: every chunk before the first failure, then that failure as the last chunk."""
    plan, enter = list(stream.steps), opening or stream.enter
    wanted: list[StreamChunk] = []
    error: BaseException | None = enter
    for step in plan if enter is None else []:
        if isinstance(step, BaseException):
            error = step
            break
        wanted.append(step)
        if isinstance(step, Finish) and not is_complete(step.reason):
            break
    stream.size = size
    found = trio.run(read, guarded(stream, opening), together)
    assert found[: len(wanted)] == wanted
    if error is None:
        assert len(found) == len(wanted)
        return
    assert len(found) == len(wanted) + 1
    failure, lone = failed(*found), _lone(error)
    if isinstance(lone, ProviderError):
        assert failure is lone.failure
    else:
        assert failure == failure_of(lone)
        assert failure.code == texts.UNKNOWN


@settings(max_examples=100)
@given(streams(), st.integers(0, 3))
def test_a_consumers_exception_leaves_as_itself(stream: Stream, after: int) -> None:
    """C109: "middleware and consumer defects stay thrown", whatever closing does."""
    defect = LookupError("the consumer's")

    async def main() -> None:
        async with guarded(stream) as opened:
            for _ in range(after):
                await anext(opened, None)
            raise defect

    with pytest.raises(LookupError) as caught:
        trio.run(main)
    assert caught.value is defect
    assert stream.left == stream.entered


@settings(max_examples=50)
@given(streams())
def test_a_stream_that_was_entered_is_left_once(stream: Stream) -> None:
    """DESIGN 8: one that could not be entered is not left."""
    trio.run(read, guarded(stream))
    assert stream.left == stream.entered
    assert stream.entered == (stream.enter is None)


# --- what goes through -------------------------------------------------------------------


@pytest.mark.parametrize("where", ["enter", "iterate"])
async def test_cancelled_goes_through(where: str, autojump_clock: object) -> None:
    """C109 C128: it is nobody's failure."""

    class Slow(Stream):
        async def __aenter__(self) -> Stream:
            if where == "enter":
                await trio.sleep_forever()
            return await super().__aenter__()

        async def __anext__(self) -> StreamChunk:
            await trio.sleep_forever()
            raise AssertionError

    with trio.move_on_after(1) as scope:
        await read(guarded(Slow()))
    assert scope.cancelled_caught


@pytest.mark.parametrize("where", ["enter", "iterate"])
async def test_an_interrupt_goes_through(where: str) -> None:
    """DESIGN 4."""
    error = KeyboardInterrupt()
    stream = Stream(enter=error) if where == "enter" else Stream(steps=[error])
    with pytest.raises(KeyboardInterrupt) as caught:
        await read(guarded(stream))
    assert caught.value is error


@pytest.mark.parametrize("where", ["open", "enter", "iterate"])
@pytest.mark.parametrize("error", [asyncio.CancelledError("x"), Foreign("x")], ids=repr)
async def test_a_foreign_base_exception_is_a_failure_too(error: BaseException, where: str) -> None:
    """C109 and the class itself: "`trio.Cancelled` and KeyboardInterrupt go through" - others
    would take the driver, the engine and the host down with one adapter."""
    stream = Stream(enter=error if where == "enter" else None)
    if where == "iterate":
        stream.steps = [TextDelta(0, "a"), error]
    found = await read(guarded(stream, error if where == "open" else None))
    assert failed(*found).code == texts.UNKNOWN


# --- streams made of nurseries -----------------------------------------------------------


@asynccontextmanager
async def nursery_stream(*steps: StreamChunk | Exception) -> AsyncIterator[Any]:
    """A stream whose adapter reads in a task of its own, so that all it raises is in groups."""
    send, receive = trio.open_memory_channel[StreamChunk](0)

    async def pump() -> None:
        async with send:
            for step in steps:
                if isinstance(step, Exception):
                    raise step
                await send.send(step)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump)
        yield receive
        nursery.cancel_scope.cancel(reason="left")


async def test_a_consumers_exception_is_not_wrapped_by_an_adapters_nursery() -> None:
    """C109 BC-12."""
    defect = LookupError("the consumer's")
    with pytest.raises(LookupError) as caught:
        async with guarded(nursery_stream(TextDelta(0, "a"), TextDelta(0, "b"))) as opened:
            async for _ in opened:
                raise defect
    assert caught.value is defect


async def test_a_cancel_is_not_lost_in_an_adapters_nursery(autojump_clock: object) -> None:
    """C128: what leaves is caught by the scope that was cancelled."""
    with trio.move_on_after(1) as scope:
        async with guarded(nursery_stream(TextDelta(0, "a"))) as opened:
            async for _ in opened:
                await trio.sleep_forever()
    assert scope.cancelled_caught


# --- groups and typed failures -----------------------------------------------------------


@pytest.mark.parametrize("where", ["open", "enter", "iterate"])
async def test_a_typed_failure_keeps_its_type_in_a_group_of_one(where: str) -> None:
    """C109 BC-12 (a): recovery routes on the code, wherever the nursery stood."""
    error = ExceptionGroup("nursery", [ExceptionGroup("nursery", [ProviderError(OVERLOADED)])])
    stream = Stream(enter=error if where == "enter" else None)
    if where == "iterate":
        stream.steps = [error]
    found = await read(guarded(stream, error if where == "open" else None))
    assert failed(*found) == OVERLOADED


async def test_a_failure_after_a_complete_finish_is_told() -> None:
    """C109, REFERENCE 2.9: the last finish wins; the loop decides, not the runtime."""
    stream = Stream(steps=[TextDelta(0, "a"), Finish(Stop()), ProviderError(OVERLOADED)])
    found = await read(guarded(stream))
    assert found[:2] == [TextDelta(0, "a"), Finish(Stop())]
    assert failed(*found) == OVERLOADED


async def test_nothing_follows_a_failed_finish() -> None:
    """C108 C109: and the adapter is not asked for more."""
    stream = Stream(steps=[Finish(ErrorFinish(OVERLOADED)), TextDelta(0, "ghost")])
    assert await read(guarded(stream)) == [Finish(ErrorFinish(OVERLOADED))]
    assert stream.asked == 1


async def test_an_endless_stream_can_be_left() -> None:
    """C109: "never finish" - the consumer leaves, and the stream is left."""

    class Endless(Stream):
        async def __anext__(self) -> StreamChunk:
            return TextDelta(0, "more")

    stream = Endless()
    async with guarded(stream) as opened:
        for _ in range(100):
            await anext(opened)
    assert stream.left == 1


async def test_a_failing_close_is_logged_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C109: the answer is over by then."""
    stream = Stream(steps=[Finish(Stop())], leave=RuntimeError("cannot close"))
    assert await read(guarded(stream)) == [Finish(Stop())]
    assert "cannot close" in caplog.text


async def test_a_stream_that_is_none_fails() -> None:
    """C109: an adapter with a bug."""

    class Empty(Stream):
        async def __aenter__(self) -> Any:
            return None

    assert failed(*await read(guarded(Empty()))).code == texts.UNKNOWN


# --- routes ------------------------------------------------------------------------------


async def test_a_route_nobody_serves_fails_when_it_is_read() -> None:
    """C79: the prepared call is there, so that a listener may own the route."""
    runtime = ModelRuntime()
    runtime.register(ScriptedModel(provider="b"))
    runtime.register(ScriptedModel(provider="a"))
    config = CallConfig(provider="nobody", model="m", effort="high", max_tokens=5)
    prepared = await runtime.prepare_call(config)
    assert (prepared.config, prepared.adapter_defaults) == (config, frozenset())
    assert prepared.info == ModelInfo()
    async with prepared.open_stream(REQUEST) as opened:
        found = [chunk async for chunk in opened]
    assert len(found) == 1
    failure = failed(*found)
    assert failure.code == texts.NO_ADAPTER
    assert "'nobody'" in failure.message
    assert "a, b" in failure.message


async def test_the_exact_adapter_is_kept_through_dispatch() -> None:
    """C79: replacing it after `prepare_call` changes nothing for that call."""
    runtime = ModelRuntime()
    first, second = ScriptedModel([answer("first")]), ScriptedModel([answer("second")])
    registration = runtime.register(first)
    prepared = await runtime.prepare_call(CallConfig(provider="scripted", model="m"))
    registration.remove()
    runtime.register(second)
    request = Request(session_id=SessionId("S"), config=prepared.config, messages=())
    async with prepared.open_stream(request) as opened:
        text = "".join([c.text async for c in opened if isinstance(c, TextDelta)])
    assert text == "first"


async def test_a_prepared_call_opens_one_stream() -> None:
    """C79: "the handle is one-shot"; the second gives a failure, not an exception."""
    runtime = ModelRuntime()
    runtime.register(ScriptedModel([answer("a"), answer("b")]))
    prepared = await runtime.prepare_call(CallConfig(provider="scripted", model="m"))
    request = Request(session_id=SessionId("S"), config=prepared.config, messages=())
    async with prepared.open_stream(request) as opened:
        assert len([chunk async for chunk in opened]) > 1
    async with prepared.open_stream(request) as opened:
        assert failed(*[chunk async for chunk in opened]).code == texts.UNKNOWN


async def test_what_prepare_raises_is_thrown() -> None:
    """C132: only selection, dispatch and iteration are failures of the request."""

    class Refusing(ScriptedModel):
        async def prepare(self, config: CallConfig) -> PreparedCall:
            raise ProviderError(OVERLOADED)

    runtime = ModelRuntime()
    runtime.register(Refusing())
    with pytest.raises(ProviderError):
        await runtime.prepare_call(CallConfig(provider="scripted", model="m"))


# --- registration ------------------------------------------------------------------------


def test_a_provider_has_one_adapter() -> None:
    """DESIGN 8: nothing is changed by a refused registration."""
    runtime, first = ModelRuntime(), ScriptedModel()
    runtime.register(first)
    with pytest.raises(DuplicateName, match="'scripted'"):
        runtime.register(ScriptedModel())
    assert tuple(runtime.adapters()) == (first,)


@pytest.mark.parametrize("adapter", [object(), None, "deepseek", ScriptedModel(provider="")])
def test_something_else_than_an_adapter_is_refused(adapter: Any) -> None:
    with pytest.raises(InvalidValue, match="provider name"):
        ModelRuntime().register(adapter)


def test_a_stale_registration_removes_nothing() -> None:
    """C30: bound to the exact object."""
    runtime, second = ModelRuntime(), ScriptedModel()
    stale = runtime.register(ScriptedModel())
    stale.remove()
    runtime.register(second)
    stale.remove()
    assert tuple(runtime.adapters()) == (second,)
