"""Answers of a chat-completions stream: every cut, every truncation, every dialect."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, strategies as st
from tests.counted import Work, assert_linear, counted

from terzetto.llm._openai_bytes import ChatStream
from terzetto.vocabulary import (
    AbortedFinish,
    BlockEnd,
    BlockStart,
    Failure,
    Finish,
    MaxTokens,
    ReasoningBlock,
    Stop,
    TextBlock,
    TextDelta,
    ToolCalls,
    Usage,
    UsageChunk,
    is_complete,
)

from .byte_server import ABSENT, TC, D, F, R, T, U, delta, event
from .chat_client import call, chunks_of, content_of, failure_of, finish_of


def test_chunks_of_a_plain_answer() -> None:
    assert chunks_of(T("One. ") + T("Two.") + F("stop") + U(7, 2) + D) == [
        BlockStart(0, "text"),
        TextDelta(0, "One. "),
        TextDelta(0, "Two."),
        BlockEnd(0, TextBlock("One. Two.")),
        UsageChunk(Usage(input_tokens=7, output_tokens=2)),
        Finish(Stop()),
    ]


def test_reasoning_text_and_calls_are_blocks_in_order() -> None:
    raw = (
        R("I ") + R("think.") + T("Look:") + TC(0, "a", "echo", "{}") + T("more") + F("tool_calls")
    )
    assert content_of(raw) == (
        ReasoningBlock("I think."),
        TextBlock("Look:"),
        call("{}", "a"),
        TextBlock("more"),
    )
    assert finish_of(raw).reason == ToolCalls()


def test_interleaved_calls_stay_apart() -> None:
    raw = TC(0, "a", "one", '{"x"') + TC(1, "b", "two", '{"y"') + TC(0, "", "", ":1}")
    raw += TC(1, None, None, ":2}") + F("tool_calls") + D
    assert content_of(raw) == (call('{"x":1}', "a", "one"), call('{"y":2}', "b", "two"))


SAMPLES = {
    "text": T("你好🦀 ") + b": ping\n\n" + T("\u2028\u0085\x0b\x1c") + F("stop") + U(3, 4) + D,
    "crlf": (T("a") + F("stop") + D).replace(b"\n", b"\r\n"),
    "calls": R("hm")
    + T("x")
    + TC(0, "c1", "city", '{"city":')
    + TC(0, "", "", '"杭州"}')
    + F("stop")
    + D,
    "two calls": TC(0, "a", "f", "{")
    + TC(1, "b", "g", "{}")
    + TC(0, ABSENT, ABSENT, "}")
    + F("length"),
    "error": T("Part") + event({"error": {"message": "overloaded", "code": 503}}) + D,
    "named error": T("Part") + event("it broke", name="error") + D,
    "halves": event('{"choices":[{"delta":{"content":"\\ud83d"}}]}')
    + event('{"choices":[{"delta":{"content":"\\ude00"},"finish_reason":"stop"}]}'),
    "malformed": T("a") + b"data: {oops\n\n" + T("b") + D,
    "ghost": T("ok") + F("stop") + D + T("ghost") + D,
    "json": b'{"error": {"message": "no", "type": "insufficient_quota"}}',
}


@pytest.mark.parametrize("name", SAMPLES)
def test_cut_at_every_byte_gives_the_same_chunks(name: str) -> None:
    raw = SAMPLES[name]
    whole = chunks_of(raw)
    for at in range(len(raw) + 1):
        assert chunks_of(raw[:at], raw[at:]) == whole, at
    assert chunks_of(*(raw[i : i + 1] for i in range(len(raw)))) == whole


@pytest.mark.parametrize("name", SAMPLES)
def test_truncated_at_every_byte_it_is_complete_only_with_its_marker(name: str) -> None:
    raw = SAMPLES[name]
    for at in range(len(raw) + 1):
        kept = raw[:at]
        reason = finish_of(kept).reason
        ended = re.sub(b"\r\n?", b"\n", kept).rpartition(b"\n\n")[0]
        marked = re.search(rb'"finish_reason": ?"|\[DONE\]', ended)
        assert marked or not is_complete(reason), (at, reason)


@given(st.sampled_from(sorted(SAMPLES)), st.integers(0, 2000), st.binary(max_size=4))
def test_damaged_stream_never_raises(name: str, at: int, junk: bytes) -> None:
    raw = SAMPLES[name]
    finish_of(raw[:at] + junk + raw[at + len(junk) :])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=3) | st.just("\ud83d"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "content",
                    "tool_calls",
                    "index",
                    "id",
                    "function",
                    "name",
                    "arguments",
                    "usage",
                    "error",
                    "code",
                    "finish_reason",
                    "reasoning_content",
                    "message",
                    "prompt_tokens",
                    "type",
                    "status",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4))
def test_any_json_is_taken_without_an_error(payloads: list[object]) -> None:
    finish_of(b"".join(event(json.dumps(payload)) for payload in payloads))


class TestEnds:
    @pytest.mark.parametrize(
        "raw",
        [
            T("The answer is "),
            TC(0, "c1", "rm", '{"path":"/tm'),
            b"",
            U(1, 1),
            T("a") + b"data: [DO",
        ],
    )
    def test_bytes_that_just_stop_are_a_transport_failure(self, raw: bytes) -> None:
        failure = failure_of(raw)
        assert failure.code == "TRANSPORT"
        assert "events had arrived" in failure.message

    def test_failure_names_how_much_arrived(self) -> None:
        failure = failure_of(T("12345") + TC(0, "c", "f", "{"))
        assert "2 events had arrived, with 6 characters and 1 tool calls" in failure.message

    def test_nothing_half_built_is_ended(self) -> None:
        assert not any(isinstance(c, BlockEnd) for c in chunks_of(TC(0, "c", "rm", '{"p":"/tm')))

    def test_finish_reason_without_done_is_enough(self) -> None:
        assert finish_of(T("ok") + F("stop")).reason == Stop()

    def test_done_without_finish_reason_is_enough(self) -> None:
        assert finish_of(T("ok") + D).reason == Stop()
        assert finish_of(TC(0, "c", "f", "{}") + D).reason == ToolCalls()

    def test_nothing_is_read_behind_done(self) -> None:
        assert content_of(SAMPLES["ghost"]) == (TextBlock("ok"),)
        stream = ChatStream()
        stream.feed(T("ok") + D)
        assert stream.chat.ended
        assert stream.feed(T("ghost")) == stream.finish() == []

    def test_answered_stream_is_complete_whatever_ends_its_bytes(self) -> None:
        stream = ChatStream()
        chunks = stream.feed(T("ok") + F("stop"))
        assert stream.chat.answered
        chunks += stream.chat.fail(Failure(message="connection lost", code="TRANSPORT"))
        assert chunks[-1] == Finish(Stop())

    @pytest.mark.parametrize(
        ("said", "reason"),
        [
            ("stop", Stop()),
            ("eos", Stop()),
            ("tool_calls", ToolCalls()),
            ("function_call", ToolCalls()),
            ("length", MaxTokens()),
            ("max_tokens", MaxTokens()),
        ],
    )
    def test_finish_reasons(self, said: str, reason: object) -> None:
        assert finish_of(T("a") + F(said) + D).reason == reason

    @pytest.mark.parametrize(
        ("said", "code"), [("content_filter", "CONTENT_FILTER"), ("error", "SERVER")]
    )
    def test_finish_reasons_that_are_failures(self, said: str, code: str) -> None:
        assert failure_of(T("a") + F(said) + D).code == code

    def test_provider_abort_is_told_as_one(self) -> None:
        assert isinstance(finish_of(T("a") + F("abort")).reason, AbortedFinish)

    def test_blank_finish_reason_is_absent(self) -> None:
        assert failure_of(delta({"content": "a"}, "")).code == "TRANSPORT"

    def test_stop_with_calls_keeps_the_calls(self) -> None:
        raw = T("Let me look.") + TC(0, "c1", "echo", '{"x":1}') + F("stop") + D
        assert content_of(raw) == (TextBlock("Let me look."), call('{"x":1}', "c1"))

    def test_output_limit_drops_calls_in_the_assembler(self) -> None:
        raw = T("t") + TC(0, "c1", "write", '{"p"') + F("length") + D
        assert content_of(raw) == (TextBlock("t"),)


class TestEmpty:
    BLANK = delta({"role": "assistant", "content": ""})

    @pytest.mark.parametrize(
        "raw",
        [
            BLANK + F("stop") + D,
            D,
            F("stop"),
            F("tool_calls") + D,
            T("\n\n") + F("stop") + D,
            R(" ") + T("\n") + D,
            delta({"content": None, "tool_calls": None}) + F("stop"),
        ],
    )
    def test_nothing_or_white_space_is_an_empty_response(self, raw: bytes) -> None:
        assert failure_of(raw).code == "EMPTY_RESPONSE"

    def test_reasoning_alone_is_content(self) -> None:
        assert content_of(R("hm") + F("stop") + D) == (ReasoningBlock("hm"),)
        assert finish_of(R("hm") + T("\n") + F("stop") + D).reason == Stop()

    def test_empty_at_the_output_limit_says_so(self) -> None:
        assert finish_of(self.BLANK + F("length") + D).reason == MaxTokens()


def work_for(size: int, kind: str) -> Work:
    pieces = {"text": T("12345678"), "reasoning": R("12345678"), "call": TC(0, "", "", "12345678")}
    raw = TC(0, "c", "f", "") + pieces[kind] * (size // 8) + F("stop") + D
    stream = ChatStream()
    with counted() as work:
        for at in range(0, len(raw), 4096):
            stream.feed(raw[at : at + 4096])
    assert stream.chat.ended
    return work


@pytest.mark.parametrize("kind", ["text", "reasoning", "call"])
def test_cost_is_linear_in_small_deltas(kind: str) -> None:
    """BC-52: nothing is parsed or copied again at each delta."""
    assert_linear(work_for(4 * 1024, kind), work_for(16 * 1024, kind), 4)
