"""Dialects of the chat-completions stream: usage, identities, errors, halves of characters."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from terzetto.llm._openai_bytes import ChatStream
from terzetto.llm._openai_decode import ChatDecoder
from terzetto.vocabulary import (
    ErrorFinish,
    Finish,
    Stop,
    TextBlock,
    ToolCallBlock,
    Usage,
    UsageChunk,
    assemble,
)

from .byte_server import ABSENT, TC, D, F, T, U, delta, event
from .chat_client import call, chunks_of, content_of, failure_of, finish_of


class TestUsage:
    def test_empty_choices_and_usage_chunks(self) -> None:
        raw = event({"choices": [], "prompt_filter_results": []}) + T("hi") + F("stop") + U(7, 1)
        usages = [c for c in chunks_of(raw) if isinstance(c, UsageChunk)]
        assert usages == [UsageChunk(Usage(input_tokens=7, output_tokens=1))]

    def test_last_of_several_counts_and_comes_once_before_finish(self) -> None:
        counts = {"prompt_tokens": 7, "completion_tokens": 1}
        raw = delta({"content": "a"}, usage=counts) + U(7, 2) + F("stop")
        chunks = chunks_of(raw + U(7, 3) + event({"choices": [], "usage": None}) + D)
        assert chunks[-2:] == [
            UsageChunk(Usage(input_tokens=7, output_tokens=3)),
            Finish(Stop()),
        ]
        assert sum(isinstance(c, UsageChunk) for c in chunks) == 1

    @pytest.mark.parametrize(
        ("usage", "expected"),
        [
            (
                {
                    "prompt_tokens": 10,
                    "completion_tokens": 5,
                    "prompt_tokens_details": {"cached_tokens": 4},
                    "completion_tokens_details": {"reasoning_tokens": 3},
                },
                Usage(input_tokens=10, output_tokens=5, cache_read_tokens=4, reasoning_tokens=3),
            ),
            (
                {"prompt_tokens": 10, "completion_tokens": 5, "prompt_cache_hit_tokens": 8},
                Usage(input_tokens=10, output_tokens=5, cache_read_tokens=8),
            ),
            ({"completion_tokens": 5.0}, Usage(input_tokens=0, output_tokens=5)),
            (
                {"prompt_tokens": 1, "completion_tokens": True, "prompt_tokens_details": None},
                Usage(input_tokens=1, output_tokens=0),
            ),
        ],
    )
    def test_dialects(self, usage: object, expected: Usage) -> None:
        raw = T("a") + F("stop") + event({"choices": [], "usage": usage})
        assert UsageChunk(expected) in chunks_of(raw)

    def test_usage_of_a_failed_answer_is_kept(self) -> None:
        assert isinstance(chunks_of(U(3, 0) + T("x"))[-2], UsageChunk)

    def test_usage_inside_a_choice_is_found(self) -> None:
        choice = {"delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 3}}
        raw = T("a") + event({"choices": [choice]})
        assert UsageChunk(Usage(input_tokens=3, output_tokens=0)) in chunks_of(raw)


class TestCallIdentity:
    @pytest.mark.parametrize(
        "rest",
        [("", ""), (None, None), (ABSENT, ABSENT), ("call_A", "echo")],
        ids=["empty", "null", "absent", "repeated"],
    )
    @pytest.mark.parametrize("index", [0, ABSENT, "0"], ids=["index", "no index", "text index"])
    def test_continuations_do_not_change_it(self, index: object, rest: Sequence[object]) -> None:
        id_, name = rest
        raw = TC(index, "call_A", "echo", "{") + TC(index, id_, name, '"x": ')
        raw += TC(index, id_, name, "1}")
        assert content_of(raw + F("tool_calls") + D) == (call('{"x": 1}'),)

    def test_two_fragments_of_one_call_in_one_delta(self) -> None:
        first = {"index": 0, "id": "c1", "function": {"name": "echo", "arguments": ""}}
        second = {"index": 0, "function": {"arguments": '{"x":'}}
        raw = delta({"tool_calls": [first, second]}) + TC(0, ABSENT, ABSENT, "1}") + F("tool_calls")
        assert content_of(raw) == (call('{"x":1}', "c1"),)

    def test_id_that_comes_late_is_the_id(self) -> None:
        raw = TC(0, "", "echo", "{") + TC(0, "late", "", "}") + F("tool_calls")
        assert content_of(raw) == (call("{}", "late"),)

    def test_new_id_on_every_fragment_is_one_call(self) -> None:
        raw = TC(0, "x1", "echo", "{") + TC(0, "x2", None, "}") + F("tool_calls")
        assert content_of(raw) == (call("{}", "x1"),)

    def test_calls_all_numbered_zero_are_told_by_id_and_name(self) -> None:
        raw = TC(0, "a", "f", "{}") + TC(0, "b", "f", "{}") + F("tool_calls")
        assert content_of(raw) == (call("{}", "a", "f"), call("{}", "b", "f"))

    def test_calls_without_index_and_id_are_told_by_name(self) -> None:
        raw = TC(ABSENT, ABSENT, "f", "{}") + TC(ABSENT, ABSENT, "g", "{}") + F("tool_calls")
        names = [block.name for block in content_of(raw) if isinstance(block, ToolCallBlock)]
        assert names == ["f", "g"]

    @pytest.mark.parametrize("call_id", ["", None, ABSENT])
    def test_missing_id_is_made_and_always_the_same(self, call_id: object) -> None:
        raw = TC(0, call_id, "f", "{}") + TC(1, call_id, "f", "{}") + F("tool_calls")
        ids = [block.id for block in content_of(raw) if isinstance(block, ToolCallBlock)]
        assert all(ids)
        assert len(set(ids)) == 2
        assert content_of(raw) == content_of(raw)

    def test_id_given_twice_is_kept_once(self) -> None:
        raw = TC(0, "a", "f", "{}") + TC(1, "a", "g", "{}") + F("tool_calls")
        first, second = content_of(raw)
        assert first == call("{}", "a", "f")
        assert isinstance(second, ToolCallBlock)
        assert second.id not in ("", "a")

    @pytest.mark.parametrize("arguments", [[1], 5, True, 1.5, ["x", {}]])
    def test_arguments_that_are_no_object_are_not_taken_for_none(self, arguments: object) -> None:
        """BC-23: the call is answered with an error, and does not run without arguments."""
        text = json.dumps(arguments)
        assert content_of(TC(0, "a", "f", arguments) + D) == (call(text, "a", "f"),)

    def test_an_empty_list_is_how_some_servers_write_an_empty_object(self) -> None:
        """BC-22."""
        assert content_of(TC(0, "a", "now", []) + D) == (call("", "a", "now"),)

    @pytest.mark.parametrize("depth", [300, 990, 5000, 100_000])
    def test_arguments_as_deep_as_anything_raise_nothing(self, depth: int) -> None:
        deep = "[" * depth + "]" * depth
        function = f'{{"name":"f","arguments":{{"x":{deep}}}}}'
        raw = f'{{"choices":[{{"delta":{{"tool_calls":[{{"index":0,"function":{function}}}]}}}}]}}'
        assert chunks_of(event(raw) + D)

    @pytest.mark.parametrize("arguments", ["", None, ABSENT])
    def test_no_arguments_stay_as_written(self, arguments: object) -> None:
        assert content_of(TC(0, "a", "now", arguments) + F("tool_calls")) == (call("", "a", "now"),)

    def test_arguments_that_are_an_object_become_its_text(self) -> None:
        assert content_of(TC(0, "a", "f", {"x": "é"}) + D) == (call('{"x": "é"}', "a", "f"),)

    def test_function_call_of_old_servers(self) -> None:
        raw = delta({"function_call": {"name": "f", "arguments": "{"}})
        raw += delta({"function_call": {"arguments": "}"}}) + F("function_call")
        [block] = content_of(raw)
        assert isinstance(block, ToolCallBlock)
        assert (block.name, block.arguments) == ("f", "{}")


QUOTA = event({"error": {"message": "quota exceeded", "type": "x", "code": "insufficient_quota"}})
OVERLOADED = T("Part") + event({"error": {"message": "overloaded", "code": 503}}) + D
NAMED = T("Part") + event("it broke", name="error") + D
PLAIN = b'{"error": {"message": "no", "type": "insufficient_quota"}}'
MALFORMED = T("a") + b"data: {oops\n\n" + T("b") + D


class TestErrorsInTheStream:
    @pytest.mark.parametrize(
        ("raw", "code", "says"),
        [
            (QUOTA + D, "QUOTA", "quota exceeded (insufficient_quota)"),
            (OVERLOADED, "SERVER", "overloaded"),
            (event({"error": "boom"}) + D, "SERVER", "boom"),
            (NAMED, "SERVER", "it broke"),
            (event({"error": {"message": "m"}}, name="error"), "SERVER", "m"),
            (event({"message": "m", "type": "rate_limit_error"}, name="error"), "RATE_LIMIT", "m"),
            (event({"object": "error", "message": "m", "code": 400}), "INVALID_REQUEST", "m"),
            (event({"type": "error", "error": {"message": "m", "code": 429}}), "RATE_LIMIT", "m"),
            (event({"error": {"code": "context_length_exceeded"}}), "CONTEXT_OVERFLOW", "context"),
            (event({"choices": [{"error": {"message": "m", "code": 502}}]}), "SERVER", "m"),
            (event({"error": {}}), "SERVER", "stream error"),
            (PLAIN, "QUOTA", "no"),
        ],
    )
    def test_each_is_classified(self, raw: bytes, code: str, says: str) -> None:
        failure = failure_of(raw)
        assert failure.code == code
        assert says in failure.message

    def test_null_error_is_no_error(self) -> None:
        raw = delta({"content": "a"}, error=None) + delta({}, "stop", error="")
        assert finish_of(raw).reason == Stop()

    def test_malformed_json_is_a_transport_failure_that_names_the_event(self) -> None:
        failure = failure_of(MALFORMED)
        assert failure.code == "TRANSPORT"
        assert "event 2" in failure.message

    def test_plain_json_answer_is_named(self) -> None:
        failure = failure_of(b' {"choices": [{"message": {"content": "hi"}}]}')
        assert failure.code == "TRANSPORT"
        assert "JSON body" in failure.message

    def test_a_page_instead_of_a_stream_is_named(self) -> None:
        """BC-14: the login of a proxy says more than that a stream ended early."""
        page = b"\n<!DOCTYPE html><html><body><h1>Please log in</h1> SENTINEL-1</body></html>"
        stream = ChatStream(ChatDecoder(["SENTINEL-1"]))
        assert stream.feed(page) == []
        [finish] = stream.finish()
        assert isinstance(finish, Finish)
        assert isinstance(finish.reason, ErrorFinish)
        failure = finish.reason.failure
        assert failure.code == "TRANSPORT"
        assert "expected a stream of server-sent events, got a page" in failure.message
        assert "Please log in" in failure.message
        assert "SENTINEL" not in failure.message

    def test_secrets_are_blanked(self) -> None:
        decoder = ChatDecoder(["SENTINEL-1"])
        [finish] = decoder.feed('{"error": "key SENTINEL-1 refused"}')
        assert "SENTINEL" not in repr(finish)
        [finish] = ChatDecoder(["SENTINEL-1"]).feed("{SENTINEL-1")
        assert "SENTINEL" not in repr(finish)


class TestSurrogates:
    def deltas(self, *texts: str, key: str = "content") -> bytes:
        return b"".join(event(f'{{"choices":[{{"delta":{{"{key}":"{t}"}}}}]}}') for t in texts) + D

    @pytest.mark.parametrize("key", ["content", "reasoning_content"])
    def test_halves_in_two_deltas_are_joined(self, key: str) -> None:
        chunks = chunks_of(self.deltas("x\\ud83d", "\\ude00y", key=key))
        assert "".join(c.text for c in chunks if hasattr(c, "text")) == "x😀y"
        assert getattr(assemble(chunks).assembled().content[0], "text", "") == "x😀y"

    @pytest.mark.parametrize("texts", [("a\\ud83d",), ("a\\ud83d", "b"), ("a\\ude00", "b")])
    def test_half_alone_becomes_a_replacement_character(self, texts: tuple[str, ...]) -> None:
        [block] = content_of(self.deltas(*texts))
        assert isinstance(block, TextBlock)
        assert block.text.startswith("a\ufffd")

    def test_halves_in_arguments_are_joined(self) -> None:
        def fragment(text: str) -> bytes:
            call = f'{{"index":0,"id":"c","function":{{"name":"f","arguments":"{text}"}}}}'
            return event(f'{{"choices":[{{"delta":{{"tool_calls":[{call}]}}}}]}}')

        assert content_of(fragment("\\ud83d") + fragment("\\ude00") + D) == (call("😀", "c", "f"),)
