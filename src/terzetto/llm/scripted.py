"""A model that answers from a script: an adapter without a provider.

Owns gates, the record of requests, and playing an answer in process. `loopback` puts
the same model behind HTTP. What an answer can say is in `answer` and its neighbours,
which are importable from here::

    model = ScriptedModel([
        answer(think("I need the file."), call("read_file", path="x")),
        refuse(429, retry_after=2),
        answer("It says ", Gate("more"), "hello."),
    ])
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING

import trio
from attrs import define, evolve, field

from ..vocabulary import (
    CallConfig,
    DefaultField,
    Failure,
    ModelInfo,
    ProviderError,
    Request,
    StreamChunk,
    UsageError,
)
from ._adapter import ChunkStream, PreparedCall
from ._answer import (
    Action as Action,
    Answer as Answer,
    Comment as Comment,
    Cut as Cut,
    Delay as Delay,
    Done as Done,
    End as End,
    Ending as Ending,
    Gate as Gate,
    Hang as Hang,
    Headers as Headers,
    Malformed as Malformed,
    Raw as Raw,
    Refuse as Refuse,
    Reset as Reset,
    Throw as Throw,
    Truncate as Truncate,
    Wire as Wire,
)
from ._script import (
    AUTO_ID as AUTO_ID,
    Entry as Entry,
    Part as Part,
    Responder as Responder,
    Script as Script,
    ScriptSource as ScriptSource,
    answer as answer,
    call as call,
    finish_error as finish_error,
    out_of_quota as out_of_quota,
    overflow as overflow,
    refuse as refuse,
    say as say,
    think as think,
)

if TYPE_CHECKING:
    from ._adapter import Adapter


@define(eq=False)
class Gates:
    """Named gates, closed until opened, then open for good.

    May be made and opened outside a Trio run; waiting is for Trio tasks.
    """

    _events: dict[str, trio.Event] = field(factory=dict, init=False)
    _arrivals: dict[str, int] = field(factory=dict, init=False)
    _arrived: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    def open(self, *names: str) -> None:
        """Open these gates. Those open already stay open."""
        for name in names:
            self._event(name).set()

    def is_open(self, name: str) -> bool:
        return self._event(name).is_set()

    async def wait(self, name: str) -> None:
        """Return once the gate is open; at an open one without letting other tasks run.

        A pending cancel is delivered in both cases.
        """
        self._arrivals[name] = self._arrivals.get(name, 0) + 1
        self._arrived.unpark_all()
        event = self._event(name)
        if event.is_set():
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await event.wait()

    async def wait_reached(self, name: str, times: int = 1) -> None:
        """Wait until `wait` was called *times* times for this gate, counted from the start."""
        await trio.lowlevel.checkpoint()
        while self._arrivals.get(name, 0) < times:
            await self._arrived.park()

    def _event(self, name: str) -> trio.Event:
        return self._events.setdefault(name, trio.Event())


async def pause(gates: Gates, action: Gate | Delay) -> None:
    """Wait as *action* says. Lets `Cancelled` through; shielding is the caller's."""
    if isinstance(action, Gate):
        await gates.wait(action.name)
    else:
        await trio.sleep(action.seconds)


def _error_of(ending: Throw | Truncate | Cut | Reset | Refuse) -> Exception:
    """What a caller in the same process gets instead of the end of a stream."""
    match ending:
        case Throw(error):
            return error
        case Refuse(failure=failure):
            return ProviderError(failure)
        case Truncate():
            return _transport("the stream ended before its terminal marker")
        case Cut():
            return _transport("the connection was closed before the answer was complete")
        case Reset():
            return _transport("the connection was reset")


def _transport(message: str) -> ProviderError:
    return ProviderError(Failure(message=message, code="TRANSPORT"))


@define(eq=False)
class _Stream(AbstractAsyncContextManager["AsyncIterator[StreamChunk]"]):
    """One answer being played: its own iterator, so that there is nothing to close."""

    _model: ScriptedModel
    _request: Request
    _answer: Answer = field(factory=Answer, init=False)
    _at: int = field(default=0, init=False)
    _over: bool = field(default=True, init=False)

    async def __aenter__(self) -> AsyncIterator[StreamChunk]:
        # A request is not sent under a cancelled scope; no other task runs here.
        await trio.lowlevel.checkpoint_if_cancelled()
        self._answer = self._model.take(self._request)
        self._over = False
        self._model._open_streams += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over = True
        self._model._open_streams -= 1

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> StreamChunk:
        if self._over:
            raise StopAsyncIteration
        try:
            return await self._next()
        except BaseException:
            self._over = True  # as a generator that raised
            raise

    async def _next(self) -> StreamChunk:
        while self._at < len(self._answer.actions):
            action = self._answer.actions[self._at]
            self._at += 1
            match action:
                case Gate() | Delay():
                    await self._pause(action)
                case Headers() | Comment() | Done():
                    pass
                case Malformed(data):
                    raise _transport(f"an event of the stream is not JSON: {data!r}")
                case Raw():
                    raise UsageError("Raw(...) has a meaning behind the loopback server only")
                case _:
                    return action
        return await self._end()

    async def _pause(self, action: Gate | Delay) -> None:
        ignore = self._answer.ignore_cancel or (isinstance(action, Gate) and action.ignore_cancel)
        with trio.CancelScope(shield=ignore):
            await pause(self._model.gates, action)

    async def _end(self) -> StreamChunk:
        match self._answer.ending:
            case End():
                raise StopAsyncIteration
            case Hang():
                await trio.sleep_forever()
                raise AssertionError("unreachable: sleep_forever returned")
            case ending:
                # The same object may be thrown many times; each gets a traceback of its own.
                raise _error_of(ending).with_traceback(None)


@define(eq=False)
class _Prepared:
    _model: ScriptedModel
    config: CallConfig
    adapter_defaults: frozenset[DefaultField]
    info: ModelInfo
    _used: bool = field(default=False, init=False)

    def open_stream(self, request: Request) -> ChunkStream:
        if self._used:
            raise UsageError("a prepared call opens one stream; prepare another call")
        if request.config != self.config:
            raise UsageError(
                f"the request's config differs from the prepared one: expected {self.config!r}, "
                f"got {request.config!r}"
            )
        self._used = True
        return _Stream(self._model, request)


@define(eq=False, init=False)
class ScriptedModel:
    """An `Adapter` that plays a script, for any number of agents at once.

    Args:
        answers: A `Script`, or what makes one: a list of answers (`Entry`, or functions
            of one request) consumed in the order in which requests are sent, one such
            entry, or a function that answers every request.
        provider: The provider name that it serves.
        info: What it declares about its model.
        default_max_tokens: Filled into a configuration without a limit, and marked as the
            adapter's.
        seed: As `Script.seed`, which it overrides.

    Attributes:
        requests: Every request sent, in order, those without an answer included.
        gates: The gates of its answers.

    Entering a stream sends the request: a pending cancel is delivered first, else it is
    recorded and takes the next answer. Between chunks no other task runs unless a `Gate`
    or a `Delay` asks for it. `Cancelled` goes through at gates, delays and `Hang`, except
    where the answer ignores it. Leaving a stream never waits. Failures of the script
    (`Throw`, `Refuse`, `Cut`, ...) are raised from the iteration, a missing answer
    (``SCRIPT_EXHAUSTED``) and a failing function from the entering.
    """

    provider: str
    gates: Gates
    requests: list[Request]
    _script: Script
    _info: ModelInfo
    _default_max_tokens: int | None
    _open_streams: int

    def __init__(
        self,
        answers: ScriptSource = (),
        *,
        provider: str = "scripted",
        info: ModelInfo | None = None,
        default_max_tokens: int | None = None,
        seed: int | None = None,
    ) -> None:
        script = Script.of(answers)
        self._script = script if seed is None else evolve(script, seed=seed)
        self.provider = provider
        self.gates = Gates()
        self.requests = []
        self._info = info or ModelInfo()
        self._default_max_tokens = default_max_tokens
        self._open_streams = 0

    @property
    def attempts(self) -> int:
        """How many requests were sent."""
        return len(self.requests)

    @property
    def open_streams(self) -> int:
        """How many streams are entered and not left; requests over HTTP are not among them."""
        return self._open_streams

    def take(self, request: Request) -> Answer:
        """Record *request* and choose its answer.

        Raises:
            ProviderError: ``SCRIPT_EXHAUSTED``. The request is recorded all the same.
            Exception: Whatever a function of the script raises.
        """
        self.requests.append(request)
        return self._script.reply(len(self.requests), request)

    async def prepare(self, config: CallConfig) -> PreparedCall:
        """Fill in the default limit. Any provider, model and options will do."""
        await trio.lowlevel.checkpoint()
        if config.max_tokens is not None or self._default_max_tokens is None:
            return _Prepared(self, config, frozenset(), self._info)
        filled = evolve(config, max_tokens=self._default_max_tokens)
        return _Prepared(self, filled, frozenset({"maxTokens"}), self._info)

    async def aclose(self) -> None:
        """Nothing is held, so nothing is released."""
        await trio.lowlevel.checkpoint()


if TYPE_CHECKING:
    _: Adapter = ScriptedModel()
