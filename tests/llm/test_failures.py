"""Provider errors: their codes, the delay they ask for, and what they may not show."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given, strategies as st

from terzetto.llm._failures import (
    MAX_MESSAGE_CHARS,
    classify,
    classify_event,
    redact,
    retry_after_ms,
)
from terzetto.vocabulary import Failure

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC).timestamp()
KEY = "sk-SENTINEL-123"


def http(status: int, body: object = b"", **headers: str) -> Failure:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return classify(status, named, raw, now=NOW, secrets=[KEY])


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (301, "INVALID_REQUEST"),
        (400, "INVALID_REQUEST"),
        (401, "AUTH"),
        (402, "QUOTA"),
        (403, "PERMISSION"),
        (404, "NOT_FOUND"),
        (408, "TIMEOUT"),
        (409, "SERVER"),
        (413, "CONTEXT_OVERFLOW"),
        (418, "INVALID_REQUEST"),
        (422, "INVALID_REQUEST"),
        (429, "RATE_LIMIT"),
        (500, "SERVER"),
        (503, "SERVER"),
        (504, "TIMEOUT"),
        (529, "SERVER"),
        (599, "SERVER"),
    ],
)
def test_status_alone(status: int, code: str) -> None:
    failure = http(status)
    assert (failure.code, failure.status, failure.message) == (code, status, f"HTTP {status}")


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (429, {"message": "m", "code": "insufficient_quota"}, "QUOTA"),
        (429, {"message": "m", "type": "insufficient_quota", "code": None}, "QUOTA"),
        (403, {"message": "m", "code": "insufficient_quota"}, "QUOTA"),
        (400, {"message": "Your credit balance is too low to use this."}, "QUOTA"),
        (
            429,
            {"message": "Request too large: too many tokens", "code": "rate_limit"},
            "RATE_LIMIT",
        ),
        (400, {"message": "m", "code": "content_filter"}, "CONTENT_FILTER"),
        (404, {"message": "no model x", "code": "model_not_found"}, "NOT_FOUND"),
        (401, {"message": "the maximum context length is no business of yours"}, "AUTH"),
    ],
)
def test_body_refines_the_status(status: int, error: object, code: str) -> None:
    assert http(status, {"error": error}).code == code
    assert http(status, error).code == code


OVERFLOWS = [
    "This model's maximum context length is 131072 tokens. However, you requested 140000 tokens.",
    "prompt is too long: 214676 tokens > 200000 maximum",
    "request (152533 tokens) exceeds the available context size (131072 tokens)",
    "the request exceeds the available context size, try increasing it",
    "Your input exceeds the context window of this model.",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Please reduce the length of the messages or completion.",
    "tokens to keep from the initial prompt is greater than the context length",
    "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
    "The prompt (total length 9000) is too long to fit into the model",
    "prompt too long; exceeded max context length by 12 tokens",
    "Your request exceeded model token limit: 8192 (requested: 9000)",
    "Input is too long for requested model.",
    "invalid params, context window exceeds limit",
    "Prompt contains 9000 tokens, too large for model with 8192 maximum context length",
    "Context size has been exceeded.",
]


@pytest.mark.parametrize("text", OVERFLOWS)
def test_overflow_is_known_in_every_wording(text: str) -> None:
    assert http(400, {"error": {"message": text, "code": 400}}).code == "CONTEXT_OVERFLOW"
    assert http(500, text.encode()).code == "CONTEXT_OVERFLOW"
    assert classify_event({"error": {"message": text}}).code == "CONTEXT_OVERFLOW"
    assert http(429, {"error": {"message": text}}).code == "RATE_LIMIT"


def test_overflow_is_known_by_its_code() -> None:
    error = {"error": {"message": "no", "code": "context_length_exceeded"}}
    assert http(400, error).code == classify_event(error).code == "CONTEXT_OVERFLOW"


@pytest.mark.parametrize(
    "text",
    ["max_tokens is too large: 99999", "Invalid schema for function 'f'", "context is required"],
)
def test_other_complaints_are_not_overflows(text: str) -> None:
    assert http(400, {"error": {"message": text}}).code == "INVALID_REQUEST"


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        ({"error": {"message": "overloaded", "code": 503}}, "SERVER", 503),
        ({"error": {"message": "slow down", "code": "429"}}, "RATE_LIMIT", 429),
        (
            {"error": {"message": "m", "status": "RESOURCE_EXHAUSTED", "code": 429}},
            "RATE_LIMIT",
            429,
        ),
        ({"error": {"type": "invalid_request_error"}}, "INVALID_REQUEST", None),
        ({"error": {"type": "authentication_error"}}, "AUTH", None),
        ({"error": {"type": "rate_limit_exceeded"}}, "RATE_LIMIT", None),
        ({"error": {"type": "overloaded_error"}}, "SERVER", None),
        ({"type": "rate_limit_error", "error": "m"}, "RATE_LIMIT", None),
        ({"error": {"code": 7}}, "SERVER", None),
        ("boom", "SERVER", None),
        (None, "SERVER", None),
        ([], "SERVER", None),
        ({"error": [{"error": {"code": 404}}]}, "NOT_FOUND", 404),
    ],
)
def test_error_inside_a_stream(error: object, code: str, status: int | None) -> None:
    failure = classify_event(error)
    assert (failure.code, failure.status) == (code, status)


def test_deeply_nested_error_is_survived() -> None:
    error: object = "x"
    for _ in range(5000):
        error = {"error": error}
    assert classify_event(error).code == "SERVER"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "no", "type": "t", "code": "c"}}, "HTTP 400: no (c)"),
        ({"error": {"message": "no", "type": "t", "code": None}}, "HTTP 400: no (t)"),
        ({"error": "no"}, "HTTP 400: no"),
        ({"message": "no"}, "HTTP 400: no"),
        ({"detail": "no"}, "HTTP 400: no"),
        ({"detail": [{"loc": ["body"], "msg": "no"}]}, "HTTP 400: no"),
        ({"errors": [{"message": "no"}]}, "HTTP 400: no"),
        ([{"error": {"message": "no"}}], "HTTP 400: no"),
        ({"object": "error", "message": "no", "code": 400}, "HTTP 400: no"),
        ({"error": {"message": "up", "metadata": {"raw": "down"}}}, "HTTP 400: up: down"),
        (b"no\x1b[31m\r\n way", "HTTP 400: no [31m way"),
        (b"<html><body><h1>no</h1></body></html>", "HTTP 400: no"),
        (b"\xff{", "HTTP 400: \ufffd{"),
        ({}, "HTTP 400"),
        (b"", "HTTP 400"),
        (b"null", "HTTP 400"),
    ],
)
def test_providers_own_words(body: object, message: str) -> None:
    assert http(400, body).message == message


def test_message_is_bounded() -> None:
    message = http(400, {"error": {"message": "x" * 99_999, "code": "y" * 999}}).message
    assert len(message) < MAX_MESSAGE_CHARS + 200
    assert "…" in message


@pytest.mark.parametrize("name", ["x-request-id", "X-Request-ID", "request-id"])
def test_request_id_is_kept(name: str) -> None:
    assert classify(500, {name: "req_1"}, b"", now=NOW).request_id == "req_1"


class TestSecrets:
    @pytest.mark.parametrize(
        "body",
        [
            {"error": {"message": f"Incorrect API key provided: {KEY}.", "code": KEY}},
            f"key {KEY} refused".encode(),
            {"error": {"message": "x" * (MAX_MESSAGE_CHARS - 20) + f" {KEY}"}},
            {"error": {"message": "x" * 8180 + KEY}},
        ],
    )
    def test_key_in_a_body_is_blanked(self, body: object) -> None:
        assert "SENTINEL" not in repr(http(401, body, x_request_id=KEY))
        assert "SENTINEL" not in repr(
            classify_event({"error": body} if body else "", secrets=[KEY])
        )

    def test_every_secret_and_its_written_forms(self) -> None:
        secrets = ['a"b/c', "a-longer-secret", "longer"]
        text = 'a"b/c, a%22b%2Fc, a\\"b/c, a-longer-secret, longer'
        assert redact(text, secrets) == ", ".join(["[redacted]"] * 5)

    def test_what_looks_like_a_key_is_blanked_unasked(self) -> None:
        text = redact(
            "sk-proj-abc123def and Bearer abcdefgh.ijk, a task-manager bearer of news", []
        )
        assert text == "[redacted] and [redacted], a task-manager bearer of news"

    def test_placeholders_do_not_blank_words(self) -> None:
        assert redact("a key", ["", "a", "key"]) == "a key"


class TestRetryAfter:
    def date(self, seconds: float) -> str:
        return format_datetime(datetime.fromtimestamp(NOW + seconds, UTC), usegmt=True)

    @pytest.mark.parametrize(
        ("value", "ms"),
        [("2", 2000), ("0", 0), ("1.5", 1500), (" 3 ", 3000), ("007", 7000), ("9" * 30, 2**53 - 1)],
    )
    def test_seconds(self, value: str, ms: int) -> None:
        assert http(429, retry_after=value).provider_retry_after_ms == ms

    @pytest.mark.parametrize(
        "value",
        [
            *("", " ", "-1", "abc", "1e3", "inf", "nan", "1_0", "+1", "0x1", "٣", "1.", "9" * 31),
            "Mon, 99 Nov 2026 12:00:00 GMT",
            "Mon, 30 Foo 2026 12:00:00 GMT",
            "2026-11-30T12:00:02Z",
        ],
    )
    def test_unreadable_values_are_absent(self, value: str) -> None:
        assert http(429, retry_after=value).provider_retry_after_ms is None

    def test_dates(self) -> None:
        assert http(429, retry_after=self.date(2)).provider_retry_after_ms == 2000
        assert http(429, retry_after=self.date(-60)).provider_retry_after_ms == 0
        old_forms = {"retry-after": "Monday, 30-Nov-26 12:00:02 GMT"}
        assert retry_after_ms(old_forms, NOW) == 2000
        assert retry_after_ms({"retry-after": "Mon Nov 30 12:00:02 2026"}, NOW) == 2000

    def test_milliseconds_win(self) -> None:
        assert http(429, retry_after_ms="250.6", retry_after="9").provider_retry_after_ms == 251
        assert http(429, retry_after_ms="-1", retry_after="9").provider_retry_after_ms == 9000

    @given(st.text(max_size=40))
    def test_no_value_raises_or_is_negative(self, value: str) -> None:
        found = retry_after_ms({"retry-after": value, "retry-after-ms": value}, NOW)
        assert found is None or 0 <= found < 2**53


@given(st.integers(300, 599), st.binary(max_size=60))
def test_any_body_is_classified(status: int, body: bytes) -> None:
    assert http(status, body).message.startswith(f"HTTP {status}")


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["error", "message", "code", "type", "detail", "errors", "metadata", "raw"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_classified(error: object) -> None:
    assert classify_event(error).message.startswith("stream error")
    assert http(500, error).message.startswith("HTTP 500")
