"""The adapter against a server that plays bytes: ends, silence, cancels, failures, secrets."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
import trio

from terzetto.llm._http import HttpLimits
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.vocabulary import (
    Finish,
    InvalidValue,
    MaxTokens,
    ProviderError,
    Request,
    SessionId,
    Stop,
    TextBlock,
    ToolCallBlock,
    UserMessage,
    assemble,
    freeze_object,
)

from .byte_server import (
    CLOSE,
    CUT,
    EOF,
    GAP,
    HANG,
    RST,
    TC,
    D,
    F,
    Pause,
    R,
    Reply,
    T,
    event,
    refuse,
    reply,
)
from .chat_client import GOOD, KEY, ask, config, opened, refusal_of, serving, text_of
from .strict import judge

PING = b": ping\n\n"


async def test_adapter_asks_as_the_strictest_provider_wants() -> None:
    async with serving(GOOD, headers={"X-Title": "tests"}) as (server, adapter):
        chunks = await ask(adapter, max_tokens=5, options=freeze_object({"temperature": 0}))
        assert text_of(chunks) == "ok"
        assert chunks[-1] == Finish(Stop())
        [asked] = server.requests
        assert asked.target == "/v1/chat/completions"
        assert asked.headers["authorization"] == f"Bearer {KEY}"
        assert asked.headers["x-title"] == "tests"
        assert asked.headers["content-type"] == "application/json"
        assert judge(asked.body) == []
        sent = json.loads(asked.body)
        assert (sent["max_tokens"], sent["temperature"]) == (5, 0)


async def test_no_key_sends_no_authorization() -> None:
    async with serving(GOOD, api_key=None) as (server, adapter):
        await ask(adapter)
        assert "authorization" not in server.requests[0].headers


async def test_large_request_arrives_whole() -> None:
    async with serving(GOOD) as (server, adapter):
        prepared = await adapter.prepare(config())
        message = UserMessage("é" * 500_000)
        request = Request(session_id=SessionId("s"), config=prepared.config, messages=(message,))
        async with prepared.open_stream(request) as chunks:
            assert text_of([chunk async for chunk in chunks]) == "ok"
        assert json.loads(server.requests[0].body)["messages"][0]["content"] == message.text


async def test_connection_is_used_again() -> None:
    split = reply(T("ok"), F("stop"), D, GAP, EOF)
    async with serving(GOOD, split, GOOD) as (server, adapter):
        for _ in range(3):
            assert text_of(await ask(adapter)) == "ok"
        assert server.connections == 1


async def test_bytes_one_by_one_give_the_text() -> None:
    raw = T("你好🦀") + TC(0, "c", "city", '{"city":"杭州"}') + F("tool_calls") + D
    async with serving(reply(raw, EOF, single=True)) as (_, adapter):
        content = assemble(await ask(adapter)).assembled().content
        assert content == (TextBlock("你好🦀"), ToolCallBlock("c", "city", '{"city":"杭州"}'))


async def test_stream_that_spans_events_and_line_ends() -> None:
    one, two, three = b'data: {"choices":[{"delta":\r', b'\ndata: {"content":"x"}}]}\r\n\r', b"\n"
    last = F("stop").replace(b"\n", b"\r\n")
    async with serving(reply(one, GAP, two, GAP, three, last, EOF)) as (_, adapter):
        assert text_of(await ask(adapter)) == "x"


async def test_compressed_stream_is_read_all_the_same() -> None:
    packed = gzip.compress(T("ok") + F("stop") + D)
    headers = (("content-type", "text/event-stream"), ("content-encoding", "gzip"))
    answer = Reply(steps=(packed[:40], GAP, packed[40:], EOF), headers=headers)
    async with serving(answer) as (_, adapter):
        assert text_of(await ask(adapter)) == "ok"
    broken = Reply(steps=(b"not gzip", EOF), headers=headers)
    async with serving(broken) as (_, adapter):
        assert (await refusal_of(adapter)).code == "TRANSPORT"


class TestEnds:
    @pytest.mark.parametrize(
        "answer",
        [
            reply(T("The answer is "), EOF),
            reply(T("The answer is "), CLOSE, chunked=False),
            reply(TC(0, "c1", "rm", '{"path":"/tm'), EOF),
            reply(T("The answer is "), CUT),
            reply(T("The answer is "), GAP, RST),
            reply(EOF),
        ],
        ids=["end", "close", "call", "cut", "reset", "nothing"],
    )
    async def test_stream_without_its_marker_is_a_transport_failure(self, answer: Reply) -> None:
        async with serving(answer, GOOD) as (server, adapter):
            failure = await refusal_of(adapter)
            assert failure.code == "TRANSPORT"
            assert "events had arrived" in failure.message
            assert len(server.requests) == 1
            assert text_of(await ask(adapter)) == "ok"

    @pytest.mark.parametrize("end", [EOF, CUT, RST, CLOSE])
    async def test_finish_reason_is_a_marker_whatever_follows(self, end: Any) -> None:
        async with serving(reply(T("ok"), F("stop"), GAP, end)) as (_, adapter):
            assert (await ask(adapter))[-1] == Finish(Stop())

    @pytest.mark.parametrize("tail", [(), (T("ghost"), D), (PING,)])
    async def test_done_ends_it_though_the_connection_stays(self, tail: Any) -> None:
        async with serving(reply(T("ok"), F("stop"), D, *tail, HANG)) as (server, adapter):
            with trio.fail_after(30):
                assert text_of(await ask(adapter)) == "ok"
            await server.wait_until(lambda: server.open == 0)

    async def test_endless_bytes_behind_done_are_not_read(self) -> None:
        async with serving(reply(T("ok"), D, *[PING * 999] * 99, HANG)) as (_, adapter):
            with trio.fail_after(30):
                assert text_of(await ask(adapter)) == "ok"

    async def test_finish_reason_and_silence_is_an_answer(self) -> None:
        answer = reply(T("ok"), F("length"), HANG)
        async with serving(answer, idle_timeout=0.1) as (_, adapter):
            assert (await ask(adapter))[-1] == Finish(MaxTokens())

    async def test_error_event_is_a_failure_with_the_providers_words(self) -> None:
        error = {"error": {"message": "overloaded", "code": 503}}
        async with serving(reply(T("Part"), event(error), EOF)) as (_, adapter):
            failure = await refusal_of(adapter)
            assert (failure.code, failure.status) == ("SERVER", 503)
            assert "overloaded" in failure.message

    async def test_json_instead_of_a_stream(self) -> None:
        body = {"error": {"message": "m", "code": "insufficient_quota"}}
        async with serving(refuse(200, body)) as (_, adapter):
            assert (await refusal_of(adapter)).code == "QUOTA"


class TestSilence:
    @pytest.mark.parametrize(
        ("steps", "head", "says"),
        [
            ((HANG,), True, "no answer began within 0.15 s"),
            ((HANG,), False, "no answer began within 0.15 s"),
            ((PING, HANG), True, "no answer began within 0.15 s"),
            ((T("a"), HANG), True, "did not get on for 0.1 s"),
        ],
        ids=["head only", "no head", "comment", "one event"],
    )
    async def test_it_ends_as_a_timeout(self, steps: Any, head: bool, says: str) -> None:
        answer = reply(*steps, head=head)
        async with serving(answer, first_byte_timeout=0.15, idle_timeout=0.1) as (server, adapter):
            with trio.fail_after(30):
                failure = await refusal_of(adapter)
            assert failure.code == "TIMEOUT"
            assert says in failure.message
            await server.wait_until(lambda: server.open == 0)

    async def test_comments_are_silence(self) -> None:
        pings = [step for _ in range(2000) for step in (PING, Pause(0.02))]
        async with serving(reply(T("a"), *pings, HANG), idle_timeout=0.1) as (_, adapter):
            with trio.fail_after(20):
                assert (await refusal_of(adapter)).code == "TIMEOUT"

    async def test_slow_stream_that_gets_on_is_read_to_its_end(self) -> None:
        steps = [step for _ in range(12) for step in (T("a"), Pause(0.1))]
        async with serving(reply(*steps, F("stop"), D, EOF), idle_timeout=1) as (_, adapter):
            assert text_of(await ask(adapter)) == "a" * 12

    async def test_slow_consumer_is_not_silence(self) -> None:
        async with serving(reply(T("a"), GAP, T("b"), F("stop"), D, EOF), idle_timeout=0.1) as (
            _,
            adapter,
        ):
            got = []
            async with await opened(adapter) as chunks:
                async for chunk in chunks:
                    got.append(chunk)
                    if len(got) == 2:
                        await trio.sleep(0.3)
            assert text_of(got) == "ab"

    async def test_waiting_for_a_connection_has_its_own_limit(self) -> None:
        options = {"max_connections": 1, "pool_timeout": 0.05}
        async with serving(reply(T("a"), HANG), **options) as (_, adapter):
            async with await opened(adapter) as chunks:
                await anext(chunks)
                failure = await refusal_of(adapter)
            assert failure.code == "TIMEOUT"
            assert "max_connections" in failure.message

    async def test_connecting_has_its_own_limit(self) -> None:
        # A listener whose queue is full answers no handshake.
        with trio.socket.socket() as listener:
            await listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            host, port = listener.getsockname()
            fillers = [trio.socket.socket() for _ in range(4)]
            async with trio.open_nursery() as nursery:
                for filler in fillers:
                    nursery.start_soon(filler.connect, (host, port))
                await trio.testing.wait_all_tasks_blocked(0.01)
                adapter = OpenAIChat(
                    base_url=f"http://{host}:{port}", api_key=None, connect_timeout=0.05
                )
                assert (await refusal_of(adapter)).code == "TIMEOUT"
                nursery.cancel_scope.cancel()
            for filler in fillers:
                filler.close()
            await adapter.aclose()

    def test_no_limit_is_httpxs_own(self) -> None:
        limits = HttpLimits()
        times = (limits.connect_timeout, limits.first_byte_timeout, limits.idle_timeout)
        assert times == (10.0, 120.0, 60.0)

    @pytest.mark.parametrize("bad", [0, -1, float("nan"), True])
    def test_limits_are_checked(self, bad: float) -> None:
        with pytest.raises(InvalidValue, match="idle_timeout"):
            OpenAIChat(api_key=None, idle_timeout=bad)


class TestRefusals:
    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            (refuse(401, {"error": {"message": "bad key"}}), "AUTH"),
            (refuse(403, {"error": {"message": "not you"}}), "PERMISSION"),
            (refuse(404, {"error": {"message": "no model"}}), "NOT_FOUND"),
            (refuse(400, {"error": {"message": "bad request"}}), "INVALID_REQUEST"),
            (refuse(429, {"error": {"message": "m", "code": "insufficient_quota"}}), "QUOTA"),
            (refuse(500, b"<h1>oops</h1>"), "SERVER"),
            (refuse(307, b"", location="http://elsewhere.invalid/"), "INVALID_REQUEST"),
        ],
    )
    async def test_each_is_one_request_and_keeps_status_and_words(
        self, answer: Reply, code: str
    ) -> None:
        async with serving(answer) as (server, adapter):
            with pytest.raises(ProviderError) as caught:
                await ask(adapter)
            failure = caught.value.failure
            assert (failure.code, failure.status) == (code, answer.status)
            assert f"HTTP {answer.status}" in str(caught.value)
            assert len(server.requests) == 1

    async def test_delay_and_request_id_reach_the_failure(self) -> None:
        answer = refuse(429, {"error": "slow down"}, retry_after="2", x_request_id="req_1")
        async with serving(answer) as (_, adapter):
            failure = await refusal_of(adapter)
            assert failure.provider_retry_after_ms == 2000
            assert failure.request_id == "req_1"

    async def test_body_that_never_ends_is_cut(self) -> None:
        answer = Reply(steps=(b"x" * 100_000, HANG), status=500)
        async with serving(answer) as (_, adapter):
            with trio.fail_after(30):
                assert len((await refusal_of(adapter)).message) < 1100

    async def test_refused_connection(self) -> None:
        async with serving(GOOD) as (_, other):
            adapter = OpenAIChat(base_url="http://127.0.0.1:1", api_key=KEY)
            failure = await refusal_of(adapter)
            await adapter.aclose()
            assert failure.code == "TRANSPORT"
            assert other.provider == "openai"

    @pytest.mark.parametrize("garbage", [b"what?\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"])
    async def test_garbled_head_is_a_transport_failure_and_not_sent_again(
        self, garbage: bytes
    ) -> None:
        bad = reply(garbage, CUT, head=False, chunked=False)
        async with serving(GOOD, bad, GOOD) as (server, adapter):
            await ask(adapter)
            assert (await refusal_of(adapter)).code == "TRANSPORT"
            assert len(server.requests) == 2


async def test_reasoning_is_streamed() -> None:
    async with serving(reply(R("hm"), T("ok"), F("stop"), D, EOF)) as (_, adapter):
        kinds = [type(b).__name__ for b in assemble(await ask(adapter)).assembled().content]
        assert kinds == ["ReasoningBlock", "TextBlock"]
