"""The DeepSeek adapter: its address and key, what it knows of models, its wire, its errors."""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from terzetto.llm._failures import classify, classify_event
from terzetto.llm.deepseek import DEFAULT_MODEL, EFFORTS, MODELS, DeepSeek
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.vocabulary import (
    CallConfig,
    InvalidValue,
    ModelInfo,
    ProviderError,
    ReasoningBlock,
    Request,
    RetryPolicy,
    SessionId,
    TextBlock,
    Usage,
    UsageChunk,
    UserMessage,
    assemble,
)

from .byte_server import (
    CUT,
    EOF,
    GAP,
    HANG,
    TC,
    ByteServer,
    D,
    F,
    R,
    Reply,
    T,
    delta,
    event,
    open_byte_server,
    refuse,
    reply,
)
from .chat_client import GOOD, KEY, ask, call, chunks_of, text_of

COUNTS = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_cache_hit_tokens": 64,
    "prompt_cache_miss_tokens": 36,
    "completion_tokens_details": {"reasoning_tokens": 12},
}
KEEP_ALIVE = b": keep-alive\n\n"


@asynccontextmanager
async def deepseek(*replies: Reply, **options: Any) -> AsyncIterator[tuple[ByteServer, DeepSeek]]:
    async with open_byte_server(*replies) as server:
        adapter = DeepSeek(**{"api_key": KEY, "base_url": server.url, **options})
        try:
            yield server, adapter
        finally:
            await adapter.aclose()


async def sent(adapter: DeepSeek, server: ByteServer, **fields: Any) -> dict[str, Any]:
    """The body of a request with *fields* in its config."""
    config = CallConfig(provider="deepseek", **{"model": DEFAULT_MODEL, **fields})
    prepared = await adapter.prepare(config)
    request = Request(
        session_id=SessionId("s"), config=prepared.config, messages=(UserMessage("hi"),)
    )
    async with prepared.open_stream(request) as chunks:
        assert text_of([chunk async for chunk in chunks]) == "ok"
    body = server.requests[-1].json
    assert isinstance(body, dict)
    return body


# Making one.


def test_environment_gives_key_and_address() -> None:
    plain = DeepSeek.from_env({"DEEPSEEK_API_KEY": KEY, "OPENAI_BASE_URL": "http://x/v1"})
    assert repr(plain) == "DeepSeek(provider='deepseek', base_url='https://api.deepseek.com')"
    variables = {"DEEPSEEK_API_KEY": KEY, "DEEPSEEK_BASE_URL": "http://x/v1/"}
    named = DeepSeek.from_env(variables, provider="mine", idle_timeout=5)
    assert repr(named) == "DeepSeek(provider='mine', base_url='http://x/v1')"
    other = DeepSeek.from_env({"MINE": KEY}, key_variable="MINE", fill_reasoning=True)
    assert other.provider == "deepseek"


@pytest.mark.parametrize("variables", [{}, {"DEEPSEEK_API_KEY": ""}, {"OPENAI_API_KEY": KEY}])
def test_missing_key_names_its_variable_and_what_to_do(variables: dict[str, str]) -> None:
    says = "DEEPSEEK_API_KEY is not set; export it, or pass api_key to DeepSeek"
    with pytest.raises(InvalidValue, match=re.escape(says)):
        DeepSeek.from_env(variables)


def test_unlike_openai_it_waits_for_a_queue_and_sends_max_tokens() -> None:
    mine, theirs = DeepSeek(api_key=None), OpenAIChat(api_key=None)
    assert mine._http.limits.first_byte_timeout == 600
    assert DeepSeek(api_key=None, first_byte_timeout=3)._http.limits.first_byte_timeout == 3
    assert (mine._limit_field, theirs._limit_field) == ("max_tokens", "max_completion_tokens")


# Models.


async def test_known_models_say_what_they_hold_and_others_work_all_the_same() -> None:
    own = RetryPolicy(max_retries=1)
    models = {"house": ModelInfo(context_window=9), "deepseek-v4-pro": ModelInfo(retry_policy=own)}
    adapter = DeepSeek(api_key=None, models=models)

    async def info(model: str) -> ModelInfo:
        return (await adapter.prepare(CallConfig(provider="deepseek", model=model))).info

    flash = await info("deepseek-flash")
    assert (flash.context_window, flash.max_output_tokens) == (1_000_000, 384_000)
    assert flash.retry_policy == RetryPolicy()
    assert (await info("house")).context_window == 9
    assert (await info("deepseek-v4-pro")).retry_policy == own
    assert (await info("deepseek-of-tomorrow")).context_window is None


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("effort", [None, *EFFORTS[DEFAULT_MODEL]])
async def test_effort_goes_out_as_deepseek_takes_it(model: str, effort: str | None) -> None:
    """C87: efforts that DeepSeek documents are taken, and ``none`` turns thinking off."""
    async with deepseek(GOOD) as (server, adapter):
        body = await sent(adapter, server, model=model, effort=effort)
    assert body["model"] == model
    off = effort == "none"
    assert body.get("reasoning_effort") == (None if off else effort)
    assert body.get("thinking") == ({"type": "disabled"} if off else None)


async def test_effort_that_deepseek_does_not_know_is_refused_before_anything_is_sent() -> None:
    """C87."""
    async with deepseek(GOOD) as (server, adapter):
        with pytest.raises(ProviderError, match="it takes high, low, max") as caught:
            await sent(adapter, server, effort="enormous")
        assert caught.value.code == "UNSUPPORTED_REASONING_EFFORT"
        assert server.requests == []
        body = await sent(adapter, server, model="another", effort="enormous")
        assert body["reasoning_effort"] == "enormous"


async def test_request_is_a_plain_chat_completion() -> None:
    async with deepseek(GOOD) as (server, adapter):
        body = await sent(adapter, server, max_tokens=9, options={"temperature": 0.5})
    assert server.requests[0].target.endswith("/chat/completions")
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert body == {
        "model": DEFAULT_MODEL,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


# Answers.

ANSWER = (
    KEEP_ALIVE
    + delta({"role": "assistant", "content": None, "reasoning_content": ""})
    + delta({"content": None, "reasoning_content": "Soll "})
    + R("ich?")
    + delta({"content": "Na", "reasoning_content": None})
    + T("tü🎻rlich")
    + TC(0, "call_0_a", "echo", "")
    + KEEP_ALIVE
    + TC(0, None, None, '{"x": "é"}')
    + delta({"content": ""}, "tool_calls", usage=COUNTS)
    + D
)


def test_answer_is_the_same_however_its_bytes_are_cut() -> None:
    """An empty or null ``reasoning_content`` is none; comments say nothing."""
    whole = chunks_of(ANSWER)
    assert assemble(whole).assembled().content == (
        ReasoningBlock("Soll ich?"),
        TextBlock("Natü🎻rlich"),
        call('{"x": "é"}', "call_0_a"),
    )
    for at in range(1, len(ANSWER)):
        assert chunks_of(ANSWER[:at], ANSWER[at:]) == whole
    assert chunks_of(*(ANSWER[at : at + 1] for at in range(len(ANSWER)))) == whole


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (
            COUNTS,
            Usage(input_tokens=100, output_tokens=20, cache_read_tokens=64, reasoning_tokens=12),
        ),
        ({**COUNTS, "prompt_tokens_details": {"cached_tokens": 63}}, 63),
        ({"completion_tokens": 1, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 6}, 4),
        ({"prompt_tokens": 6, "completion_tokens": 1, "prompt_cache_miss_tokens": 6}, None),
        ({"prompt_tokens": 6, "completion_tokens": 1, "prompt_cache_hit_tokens": 0}, 0),
        ({"prompt_tokens": 6, "completion_tokens": 1, "prompt_cache_hit_tokens": "4"}, None),
    ],
)
def test_tokens_from_the_cache_are_counted(counts: object, expected: Usage | int | None) -> None:
    raw = T("a") + F("stop") + event({"choices": [], "usage": counts}) + D
    [usage] = [chunk.usage for chunk in chunks_of(raw) if isinstance(chunk, UsageChunk)]
    if isinstance(expected, Usage):
        assert usage == expected
    else:
        assert usage.cache_read_tokens == expected
        assert usage.input_tokens in (6, 10, 100)
    assert usage.cache_write_tokens is None


def test_hits_and_misses_together_are_the_prompt() -> None:
    counts = {"prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 6}
    raw = T("a") + F("stop") + event({"choices": [], "usage": counts}) + D
    expected = Usage(input_tokens=10, output_tokens=0, cache_read_tokens=4)
    assert UsageChunk(expected) in chunks_of(raw)


async def test_queue_of_comments_is_not_the_end_of_patience() -> None:
    """BC-20: comments are no progress, and no failure while the first event may still come."""
    waiting = (KEEP_ALIVE, GAP) * 5
    async with deepseek(reply(*waiting, T("ok"), F("stop"), D, EOF), idle_timeout=0.04) as (_, a):
        assert text_of(await ask(a)) == "ok"


# Errors.


def refusal(message: str, kind: str = "invalid_request_error", code: str | None = None) -> bytes:
    error = {"message": message, "type": kind, "param": None, "code": code or kind}
    return json.dumps({"error": error}).encode()


LOST = "The `reasoning_content` in the thinking mode must be passed back to the API."
LONG = (
    "This model's maximum context length is 131072 tokens. However, you requested 150000 tokens "
    "(142000 in the messages, 8000 in the completion). Please reduce the length of the messages "
    "or completion."
)
REFUSALS = [
    (400, refusal(LOST), "INVALID_REQUEST", LOST),
    (400, refusal(LONG), "CONTEXT_OVERFLOW", "maximum context length"),
    (400, refusal("Content Exists Risk"), "CONTENT_FILTER", "Content Exists Risk"),
    (400, b'{"detail": "Content Exists Risk"}', "CONTENT_FILTER", "Content Exists Risk"),
    (
        401,
        refusal("Authentication Fails (no such user)", "authentication_error"),
        "AUTH",
        "Authentication Fails",
    ),
    (402, refusal("Insufficient Balance", "unknown_error"), "QUOTA", "Insufficient Balance"),
    (402, b"", "QUOTA", "HTTP 402"),
    (404, b"", "NOT_FOUND", "HTTP 404"),
    (422, refusal("max_tokens: out of range"), "INVALID_REQUEST", "max_tokens"),
    (
        422,
        b"Failed to deserialize the JSON body into the target type: messages[0]",
        "INVALID_REQUEST",
        "deserialize",
    ),
    (429, refusal("Rate limit reached", "rate_limit_reached_error"), "RATE_LIMIT", "Rate limit"),
    (500, refusal("Server error", "server_error"), "SERVER", "Server error"),
    (503, refusal("Service is too busy", "service_unavailable_error"), "SERVER", "too busy"),
    (503, b"<html>Overloaded</html>", "SERVER", "Overloaded"),
]


@pytest.mark.parametrize(("status", "body", "code", "says"), REFUSALS)
def test_refusals_are_told_apart(status: int, body: bytes, code: str, says: str) -> None:
    failure = classify(status, {}, body, now=0.0)
    assert (failure.code, failure.status) == (code, status)
    assert says in failure.message
    assert (code in RetryPolicy().codes) == (status in (429, 500, 503))


@pytest.mark.parametrize(("status", "body", "code", "says"), REFUSALS[:3])
def test_refusals_inside_a_stream_say_the_same(
    status: int, body: bytes, code: str, says: str
) -> None:
    failure = classify_event(json.loads(body))
    assert failure.code == code
    assert says in failure.message


async def test_refusal_reaches_the_caller_with_its_status() -> None:
    async with deepseek(refuse(402, refusal("Insufficient Balance"))) as (_, adapter):
        with pytest.raises(ProviderError) as caught:
            await ask(adapter)
    assert (caught.value.code, caught.value.failure.status) == ("QUOTA", 402)


async def test_overloaded_deepseek_breaks_off_with_a_reason_of_its_own() -> None:
    raw = T("Half") + F("insufficient_system_resource") + D
    async with deepseek(reply(raw, EOF)) as (_, adapter):
        [*_, last] = await ask(adapter)
    assert "SERVER" in repr(last)
    assert "insufficient_system_resource" in repr(last)


# Secrets.


@pytest.mark.parametrize("key", ["", f"{KEY}\n", f" {KEY}", f"{KEY}\U0001f511", f"{KEY} x"])
def test_malformed_key_is_named_and_not_shown(key: str) -> None:
    """BC-49."""
    with pytest.raises(InvalidValue, match="api_key of provider 'deepseek'") as caught:
        DeepSeek(api_key=key)
    with pytest.raises(InvalidValue, match="DEEPSEEK_API_KEY") as named:
        DeepSeek.from_env({"DEEPSEEK_API_KEY": key})
    for error in (caught.value, named.value):
        assert "SENTINEL" not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
        refuse(401, refusal(f"Authentication Fails, Your api key: {KEY} is invalid", KEY)),
        refuse(503, f"<p>{KEY}</p>".encode()),
        reply(event({"error": {"message": f"no {KEY}"}}), EOF),
        reply(b"data: {" + KEY.encode() + b"\n\n", EOF),
        reply(T("a"), CUT),
        reply(HANG, head=False),
        None,
    ],
    ids=["fine", "401", "503", "in a stream", "malformed", "cut", "hangs", "nobody there"],
)
async def test_key_is_nowhere_to_be_seen(
    answer: Reply | None, caplog: pytest.LogCaptureFixture
) -> None:
    """BC-49."""
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    limits: dict[str, Any] = {"first_byte_timeout": 0.05, "idle_timeout": 0.05}
    if answer is None:
        limits["base_url"] = "http://127.0.0.1:1"
    async with deepseek(answer or GOOD, **limits) as (_, adapter):
        try:
            shown += map(repr, await ask(adapter))
        except ProviderError as error:
            shown += [repr(error.__cause__), repr(error.__context__), repr(error.failure)]
            shown += traceback.format_exception(error)
        prepared = await adapter.prepare(CallConfig(provider="deepseek", model="m"))
        shown += [repr(adapter), repr(prepared)]
    shown += [caplog.text, *(record.getMessage() for record in caplog.records)]
    assert len(shown) > 3
    assert [text for text in shown if "SENTINEL" in text] == []
