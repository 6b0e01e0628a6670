"""Every fault that a script can ask the loopback server for (C180)."""

import json
from contextlib import nullcontext

import httpx
import pytest
import trio
from tests.llm.serving import (
    is_done,
    payloads,
    raw_request,
    received,
    served,
    text_of,
)

from terzetto.llm.scripted import (
    Answer,
    Comment,
    Cut,
    Delay,
    Done,
    Ending,
    Gate,
    Hang,
    Malformed,
    Raw,
    Reset,
    Throw,
    Truncate,
    Wire,
    answer,
    call,
    finish_error,
    out_of_quota,
    overflow,
    refuse,
    say,
)
from terzetto.vocabulary import (
    Failure,
    ProviderError,
    TextDelta,
)

# Faults.


@pytest.mark.parametrize(
    ("entry", "status", "code", "retry_after"),
    [
        (refuse(429, "slow down", retry_after=1.5), 429, "rate_limit_exceeded", "1.5"),
        (refuse(429, retry_after="abc"), 429, "rate_limit_exceeded", "abc"),
        (refuse(429, retry_after=""), 429, "rate_limit_exceeded", ""),
        (refuse(500), 500, None, None),
        (refuse(503, provider_code="overloaded"), 503, "overloaded", None),
        (refuse(401), 401, "invalid_api_key", None),
        (refuse(403), 403, "permission_denied", None),
        (overflow(), 400, "context_length_exceeded", None),
        (out_of_quota(), 429, "insufficient_quota", None),
        (Throw(ValueError("x")), 500, None, None),
        (
            Throw(
                ProviderError(
                    Failure(message="m", code="RATE_LIMIT", provider_retry_after_ms=2_500)
                )
            ),
            429,
            "rate_limit_exceeded",
            "2.500",
        ),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_refusals(
    entry: Ending, status: int, code: str | None, retry_after: str | None, stream: bool
) -> None:
    async with served([entry, "next"]) as to:
        response = await to.ask(stream=stream)
        assert response.status_code == status
        assert response.json()["error"]["code"] == code
        assert response.headers.get("retry-after") == retry_after
        assert text_of((await to.ask()).content) == "next"
        assert to.server.connections == 1  # a refusal does not close


async def test_a_refusal_can_have_its_own_body_and_headers() -> None:
    page = refuse(502, body="<h1>Bad gateway</h1>", headers={"Content-Type": "text/html"})
    failure = Failure(message="m", status=418, request_id="req-1")
    async with served([page, Throw(ProviderError(failure))]) as to:
        response = await to.ask()
        assert response.text == "<h1>Bad gateway</h1>"
        assert response.headers["content-type"] == "text/html"
        response = await to.ask()
        assert (response.status_code, response.headers["x-request-id"]) == (418, "req-1")


async def test_truncation_ends_the_body_correctly_without_a_marker() -> None:
    async with served([answer("a b c d").stop(Truncate(), chunks=3), "next"]) as to:
        body = (await to.ask()).content
        assert text_of(body) == "a b "
        assert b"[DONE]" not in body
        assert "finish_reason" in payloads(body)[-1]["choices"][0]
        assert text_of((await to.ask()).content) == "next"
        assert to.server.connections == 1


@pytest.mark.parametrize("ending", [Cut(), Reset(), Throw(ValueError("x")), refuse(500)])
async def test_a_broken_connection_comes_after_what_was_said(ending: Ending) -> None:
    got = b""
    async with served([answer("a", Gate("g"), ending), "next"]) as to:
        async with to.stream() as response:
            pieces = response.aiter_raw()
            got = await anext(pieces)
            to.server.gates.open("g")
            expected = httpx.ReadError if ending == Reset() else httpx.RemoteProtocolError
            with pytest.raises(expected):
                await anext(pieces)
        assert text_of(got) == "a"
        await to.server.wait_connections(0)
        assert text_of((await to.ask()).content) == "next"


@pytest.mark.parametrize("ending", [Cut(), Reset()])
async def test_a_connection_can_break_before_the_first_byte(ending: Ending) -> None:
    lost = Throw(ProviderError(Failure(message="m", code="TRANSPORT")))
    async with served([ending, lost]) as to:
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await to.ask()
        with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
            await to.ask()


async def test_a_stall_keeps_the_connection_open_and_silent() -> None:
    async with served([answer("a", Hang())]) as to, to.stream() as response:
        pieces = response.aiter_raw()
        assert text_of(await anext(pieces)) == "a"
        with trio.move_on_after(0.05) as waited:
            await anext(pieces)
        assert waited.cancelled_caught


async def test_a_slow_answer_is_a_delayed_one() -> None:
    async with served([answer(Delay(0.02), "a", Delay(0.02), "b")]) as to:
        start = trio.current_time()
        assert text_of((await to.ask()).content) == "ab"
        assert trio.current_time() - start >= 0.04


async def test_malformed_events_comments_and_raw_bytes_stand_where_they_were_put() -> None:
    entry = answer(Comment("ping"), "a", Malformed("{oops"), Raw(b"data: 1\n\n"), "b")
    async with served([entry]) as to:
        body = (await to.ask()).content
    events = body.split(b"\n\n")
    assert events[0] == b": ping"
    assert events[2:4] == [b"data: {oops", b"data: 1"]
    assert b'"b"' in events[4]


async def test_an_error_object_ends_a_200_stream() -> None:
    failed = answer("Part", finish_error("CONTEXT_OVERFLOW", "too long", status=503))
    marked = answer(finish_error("insufficient_quota", "no money"), Done())
    async with served([failed, marked]) as to:
        response = await to.ask()
        assert response.status_code == 200
        assert payloads(response.content)[-1] == {
            "error": {
                "message": "too long",
                "type": "invalid_request_error",
                "param": None,
                "code": "context_length_exceeded",
                "status": 503,
            }
        }
        assert b"[DONE]" not in response.content
        body = (await to.ask()).content
        assert payloads(body)[0]["error"]["code"] == "insufficient_quota"
        assert is_done(body)


async def test_a_marker_need_not_be_the_end() -> None:
    async with served([answer("a", Done(), "ghost", Hang()), answer("b", Done())]) as to:
        stream = await raw_request(to)
        got = await received(stream, until=b"ghost")
        assert got.index(b"[DONE]") < got.index(b"ghost")
        await stream.aclose()
        assert (await to.ask()).content.count(b"[DONE]") == 1


async def test_one_byte_a_write_is_the_same_body() -> None:
    entry = answer(say("你好🦀"), call("t", city="杭州"))
    async with served([entry, entry.over(Wire(bytes_per_write=1))]) as to:
        whole = (await to.ask()).content
        async with to.stream() as response:
            pieces = [piece async for piece in response.aiter_raw()]
    assert {len(piece) for piece in pieces} == {1}
    assert b"".join(pieces) == whole.replace(b"-1", b"-2").replace(b"call_1", b"call_2")


async def test_lines_may_end_with_crlf() -> None:
    async with served([answer("a", Comment(), Raw(b": raw\n\n")).over(Wire(crlf=True))]) as to:
        body = (await to.ask()).content
    assert body.endswith(b"data: [DONE]\r\n\r\n")
    assert body.replace(b": raw\n\n", b"").count(b"\n") == body.count(b"\r\n")
    assert text_of(body) == "a"


async def test_a_body_may_end_with_the_connection() -> None:
    wire = Wire(close_delimited=True, headers=(("x-proxy", "yes"),))
    async with served([answer("a").over(wire), answer("b", Truncate()).over(wire)]) as to:
        response = await to.ask()
        assert "transfer-encoding" not in response.headers
        assert response.headers["connection"] == "close"
        assert response.headers["x-proxy"] == "yes"
        assert is_done(response.content)
        assert text_of((await to.ask()).content) == "b"
        await to.server.wait_connections(0)


@pytest.mark.parametrize("ending", [Truncate(), Cut()])
async def test_a_stream_can_be_broken_off_at_every_byte(ending: Ending) -> None:
    whole = Answer((TextDelta(0, "é"), Done()))
    async with served([whole]) as to:
        expected = (await to.ask()).content
    assert is_done(expected)
    sizes = range(len(expected) + 1)
    async with served([whole.stop(ending, body_bytes=size) for size in sizes]) as to:
        for size in sizes:
            got = b""
            broken = pytest.raises(httpx.RemoteProtocolError) if ending == Cut() else nullcontext()
            with broken:
                async with to.stream() as response:
                    async for piece in response.aiter_raw():
                        got += piece
            same = expected.replace(b"chatcmpl-1", f"chatcmpl-{size + 1}".encode())
            assert got == same[:size]


@pytest.mark.parametrize("ending", [Truncate(), Cut(), Reset()])
async def test_an_unstreamed_answer_breaks_in_the_middle(ending: Ending) -> None:
    async with served([answer("a", ending), answer("a", Malformed())]) as to:
        try:
            body = (await to.ask(stream=False)).content
        except (httpx.ReadError, httpx.RemoteProtocolError):
            assert ending != Truncate()
        else:
            assert ending == Truncate()
            with pytest.raises(json.JSONDecodeError):
                json.loads(body)
        with pytest.raises(json.JSONDecodeError):
            (await to.ask(stream=False)).json()


async def test_an_unstreamed_failure_is_an_error_response() -> None:
    async with served([answer("a", finish_error("RATE_LIMIT", "slow", retry_after_ms=2000))]) as to:
        response = await to.ask(stream=False)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "2"
