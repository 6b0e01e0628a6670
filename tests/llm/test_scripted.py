"""The scripted model in process: an adapter, its gates, its cancellation."""

import gc
from functools import partial

import pytest
import trio
from trio.testing import (
    MockClock,
    assert_checkpoints,
    wait_all_tasks_blocked,
)

from terzetto.llm._adapter import Adapter, ChunkStream
from terzetto.llm.scripted import (
    Answer,
    Comment,
    Cut,
    Delay,
    Done,
    Gate,
    Hang,
    Headers,
    Malformed,
    Raw,
    Reset,
    Script,
    ScriptedModel,
    Throw,
    Truncate,
    answer,
    call,
    finish_error,
    refuse,
    say,
)
from terzetto.vocabulary import (
    CallConfig,
    ErrorFinish,
    Failure,
    Finish,
    ModelInfo,
    ProviderError,
    Request,
    SessionId,
    StreamChunk,
    TextDelta,
    ToolCallBlock,
    UsageError,
    UserMessage,
    assemble,
)

CONFIG = CallConfig(provider="scripted", model="m")


def asking(text: str = "go", config: CallConfig = CONFIG) -> Request:
    return Request(session_id=SessionId("s"), config=config, messages=(UserMessage(text),))


async def opened(model: ScriptedModel, request: Request | None = None) -> ChunkStream:
    return (await model.prepare(CONFIG)).open_stream(request or asking())


async def ask(model: ScriptedModel, into: list[StreamChunk] | None = None) -> list[StreamChunk]:
    """All chunks of the next answer, also put into *into* as they come."""
    got: list[StreamChunk] = [] if into is None else into
    async with await opened(model) as chunks:
        async for chunk in chunks:
            got.append(chunk)
    return got


def text_of(chunks: list[StreamChunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))


async def test_it_is_an_adapter() -> None:
    model = ScriptedModel(provider="mock")
    assert isinstance(model, Adapter)
    assert model.provider == "mock"
    with assert_checkpoints():
        await model.aclose()


async def test_answers_in_order_and_records_the_requests() -> None:
    model = ScriptedModel(["one", answer("two", call("now"))])
    assert text_of(await ask(model)) == "one"
    content = assemble(await ask(model)).assembled().content
    assert ToolCallBlock("call_2_1", "now", "{}") in content
    assert model.attempts == 2
    assert model.requests[0].config == CONFIG


async def test_prepare_fills_in_the_default_limit_and_says_so() -> None:
    info = ModelInfo(context_window=64_000)
    model = ScriptedModel("x", info=info, default_max_tokens=4096)
    filled = await model.prepare(CONFIG)
    assert filled.config.max_tokens == 4096
    assert filled.adapter_defaults == {"maxTokens"}
    assert filled.info == info
    own = await model.prepare(CallConfig(provider="p", model="m", max_tokens=5))
    assert (own.config.max_tokens, own.adapter_defaults) == (5, frozenset())
    with assert_checkpoints():
        await model.prepare(CONFIG)


async def test_a_prepared_call_is_one_shot_and_holds_the_caller_to_its_config() -> None:
    model = ScriptedModel(["x"])
    prepared = await model.prepare(CONFIG)
    other = asking(config=CallConfig(provider="scripted", model="other"))
    with pytest.raises(UsageError, match="differs"):
        prepared.open_stream(other)
    prepared.open_stream(asking())
    with pytest.raises(UsageError, match="one stream"):
        prepared.open_stream(asking())
    assert model.attempts == 0


async def consume_alone(model: ScriptedModel) -> list[StreamChunk]:
    """All chunks of the next answer; fails if another task ran meanwhile."""
    ran = trio.Event()

    async def other() -> None:
        ran.set()

    stream = await opened(model)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        async with stream as chunks:
            got = [chunk async for chunk in chunks]
        assert not ran.is_set()
    return got


async def test_a_whole_answer_lets_no_other_task_run() -> None:
    model = ScriptedModel([answer(Headers(), Comment(), "a b c", call("t"), Done())])
    got = await consume_alone(model)
    assert isinstance(got[-1], Finish)
    assert len(got) == 10


async def test_an_exhausted_script_is_a_clear_failure() -> None:
    model = ScriptedModel(["only one"])
    await ask(model)
    with pytest.raises(ProviderError, match="request 2 has no answer") as missed:
        await ask(model)
    assert missed.value.failure.code == "SCRIPT_EXHAUSTED"
    assert model.attempts == 2


async def test_a_function_answers_what_it_is_asked() -> None:
    def echo(request: Request) -> str:
        message = request.messages[-1]
        assert isinstance(message, UserMessage)
        return message.text.upper()

    model = ScriptedModel(echo)
    async with await opened(model, asking("hi")) as chunks:
        assert text_of([chunk async for chunk in chunks]) == "HI"


async def test_what_a_function_raises_is_raised_from_the_entering() -> None:
    def broken(request: Request) -> str:
        raise KeyError("no such state")

    with pytest.raises(KeyError, match="no such state"):
        await ask(ScriptedModel(broken))


async def test_a_seed_given_to_the_model_is_the_scripts() -> None:
    entry = "a text of several words, long enough to be cut"
    seeded = [await ask(ScriptedModel([entry], seed=1)) for _ in range(2)]
    assert seeded[0] == seeded[1] != await ask(ScriptedModel([entry]))
    assert await ask(ScriptedModel(Script([entry], seed=1))) == seeded[0]
    assert text_of(seeded[0]) == entry


# Gates and delays.


async def test_a_gate_holds_the_rest_until_it_is_opened(nursery: trio.Nursery) -> None:
    model = ScriptedModel([answer("before", Gate("g"), "after")])
    got: list[StreamChunk] = []
    nursery.start_soon(ask, model, got)
    await model.gates.wait_reached("g")
    await wait_all_tasks_blocked()
    assert text_of(got) == "before"
    model.gates.open("g")
    await wait_all_tasks_blocked()
    assert text_of(got) == "beforeafter"


async def test_an_open_gate_stays_open_and_lets_nobody_else_run() -> None:
    model = ScriptedModel([answer(Gate("g"), "x")] * 2)
    model.gates.open("g", "h")
    assert model.gates.is_open("g")
    assert not model.gates.is_open("other")
    for _ in range(2):
        assert text_of(await consume_alone(model)) == "x"


async def test_a_delay_takes_its_time(autojump_clock: MockClock) -> None:
    start = trio.current_time()
    await ask(ScriptedModel([answer(Delay(3600), "x", Delay(60))]))
    assert trio.current_time() - start == 3660


# Cancellation.


@pytest.mark.parametrize("waiting", [Gate("g"), Delay(1e9), Hang()])
async def test_a_cancel_reaches_every_wait(waiting: Gate | Delay | Hang) -> None:
    model = ScriptedModel([answer("read", waiting)])
    got: list[StreamChunk] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, model, got)
        await wait_all_tasks_blocked()
        assert model.open_streams == 1
        nursery.cancel_scope.cancel()
    assert nursery.cancel_scope.cancelled_caught
    assert text_of(got) == "read"
    assert model.open_streams == 0


async def cancelled_at_a_gate(entry: Answer) -> tuple[list[StreamChunk], list[StreamChunk]]:
    """What came before and after a cancel and an opening of the gate ``g``, in this order."""
    model = ScriptedModel([entry])
    got: list[StreamChunk] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, model, got)
        await wait_all_tasks_blocked()
        before = list(got)
        nursery.cancel_scope.cancel()
        model.gates.open("g")
    return before, got[len(before) :]


@pytest.mark.parametrize(
    "entry",
    [
        answer("a", Gate("g", ignore_cancel=True), "b"),
        answer("a", Gate("g"), Delay(0), "b", ignore_cancel=True),
    ],
    ids=["gate", "answer"],
)
async def test_an_answer_that_ignores_the_cancel_goes_on(entry: Answer) -> None:
    before, after = await cancelled_at_a_gate(entry)
    assert (text_of(before), text_of(after)) == ("a", "b")
    assert isinstance(after[-1], Finish)


async def test_a_cancel_and_an_opening_in_one_breath_are_a_cancel() -> None:
    _, after = await cancelled_at_a_gate(answer("a", Gate("g"), "b"))
    assert after == []


async def test_a_hang_is_cancelled_in_an_answer_that_ignores_cancels_too() -> None:
    model = ScriptedModel([answer("a", Hang(), ignore_cancel=True)])
    got: list[StreamChunk] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, model, got)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert text_of(got) == "a"


async def test_an_open_gate_delivers_a_pending_cancel() -> None:
    model = ScriptedModel([answer("a", Gate("g"), "b")])
    model.gates.open("g")
    got: list[StreamChunk] = []
    with trio.CancelScope() as scope:
        async with await opened(model) as chunks:
            scope.cancel()
            async for chunk in chunks:
                got.append(chunk)
    assert text_of(got) == "a"


async def test_a_cancelled_scope_sends_no_request() -> None:
    model = ScriptedModel(["x"])
    stream = await opened(model)
    with trio.CancelScope() as scope:
        scope.cancel()
        async with stream:
            raise AssertionError("not reached")
    assert scope.cancelled_caught
    assert model.attempts == 0
    assert text_of(await ask(model)) == "x"


# Failures.


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (answer("a", Truncate()), "TRANSPORT"),
        (answer("a", Cut()), "TRANSPORT"),
        (answer("a", Reset()), "TRANSPORT"),
        (answer("a", Malformed(), "never"), "TRANSPORT"),
        (answer("a", Throw(ProviderError(Failure(message="m", code="RATE_LIMIT")))), "RATE_LIMIT"),
        (answer("a", refuse(429, retry_after=2)), "RATE_LIMIT"),
    ],
)
async def test_faults_of_the_wire_are_provider_errors_after_what_was_said(
    source: Answer, code: str
) -> None:
    got: list[StreamChunk] = []
    with pytest.raises(ProviderError) as raised:
        await ask(ScriptedModel([source]), got)
    assert raised.value.code == code
    assert text_of(got) == "a"


async def test_a_refusal_brings_its_facts() -> None:
    with pytest.raises(ProviderError) as raised:
        await ask(ScriptedModel([refuse(429, "slow down", retry_after=1.5)]))
    assert raised.value.failure == Failure(
        message="slow down", code="RATE_LIMIT", status=429, provider_retry_after_ms=1500
    )


async def test_a_failed_finish_is_a_chunk() -> None:
    finish = (await ask(ScriptedModel([answer("a", finish_error("SERVER", "boom"))])))[-1]
    assert isinstance(finish, Finish)
    assert finish.reason == ErrorFinish(Failure(message="boom", code="SERVER"))


async def test_a_foreign_exception_is_thrown_as_itself_each_time() -> None:
    error = ValueError("socket closed")
    model = ScriptedModel([Throw(error)] * 3)
    depths = set()
    for _ in range(3):
        with pytest.raises(ValueError, match="socket closed") as raised:
            await ask(model)
        assert raised.value is error
        depths.add(len(raised.traceback))
    assert len(depths) == 1


async def test_raw_bytes_mean_nothing_in_process() -> None:
    with pytest.raises(UsageError, match="loopback"):
        await ask(ScriptedModel([Raw(b"data: x\n\n")]))


# Lifetimes.


async def test_a_stream_is_over_after_its_end_its_failure_and_its_leaving() -> None:
    model = ScriptedModel(["a b", answer("x", Throw(ValueError("x"))), "a b"])
    async with await opened(model) as chunks:
        assert [chunk async for chunk in chunks]
        assert [chunk async for chunk in chunks] == []
    async with await opened(model) as chunks:
        with pytest.raises(ValueError, match="x"):
            assert [chunk async for chunk in chunks]
        assert [chunk async for chunk in chunks] == []
    async with await opened(model) as chunks:
        await anext(chunks)
    assert [chunk async for chunk in chunks] == []


async def leave(model: ScriptedModel, how: str) -> None:
    async with await opened(model) as chunks:
        async for _ in chunks:
            if how == "break":
                break
            if how == "raise":
                raise KeyError(how)
            await trio.sleep_forever()


@pytest.mark.parametrize("how", ["break", "raise", "cancel"])
async def test_leaving_early_leaves_nothing_behind(how: str) -> None:
    model = ScriptedModel([answer(say("a b c"), Gate("never"))])
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(leave, model, how))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    except* KeyError:
        assert how == "raise"
    assert model.open_streams == 0
    gc.collect()  # an unfinished generator would warn here, and warnings are errors


async def test_streams_of_one_model_run_side_by_side(nursery: trio.Nursery) -> None:
    model = ScriptedModel([answer(f"{n}", Gate(f"g{n}"), "!") for n in range(3)])
    got: list[list[StreamChunk]] = [[], [], []]
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(ask, model, got[number])
            await wait_all_tasks_blocked()
        assert model.open_streams == 3
        for number in (2, 0, 1):
            model.gates.open(f"g{number}")
            await wait_all_tasks_blocked()
            assert text_of(got[number]) == f"{number}!"
