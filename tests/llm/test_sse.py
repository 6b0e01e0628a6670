"""The framing of server-sent events, against an independent reading of the specification."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st
from tests.counted import Work, assert_linear, counted

from terzetto.llm._sse import SseDecoder, SseEvent
from terzetto.vocabulary import ProviderError

ODD = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"


def decode(*pieces: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    decoder.finish()
    return events


def data_of(*pieces: bytes) -> list[str]:
    return [event.data for event in decode(*pieces)]


def slow_decode(raw: bytes) -> list[SseEvent]:
    """The specification, word for word, over the whole text at once."""
    text = raw.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = re.split("\r\n|\r|\n", text)[:-1]  # the last is not ended
    events, data, name, last_id = [], "", "", ""
    for line in lines:
        if line == "":
            if data:
                events.append(SseEvent(data.removesuffix("\n"), name or "message", last_id))
            data, name = "", ""
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                data += value + "\n"
            elif field == "event":
                name = value
            elif field == "id" and "\0" not in value:
                last_id = value
    return events


SAMPLE = (
    "\ufeff: ping\r\n\r\nid: 7\rretry: 10\revent: tok\rdata: a\rdata:  b\r\r"
    f"data:{ODD}\n\n:\n\ndata\n\ndata: 你好🦀\r\n\r\nevent: gone\n\n"
    "id: x\0y\ndata:[DONE]\n\ndata: cut"
).encode()


def test_sample_is_read_as_specified() -> None:
    assert decode(SAMPLE) == [
        SseEvent("a\n b", "tok", "7"),
        SseEvent(ODD, "message", "7"),
        SseEvent("", "message", "7"),
        SseEvent("你好🦀", "message", "7"),
        SseEvent("[DONE]", "message", "7"),
    ]


def test_every_cut_in_two_gives_the_same_events() -> None:
    whole = decode(SAMPLE)
    for at in range(len(SAMPLE) + 1):
        assert decode(SAMPLE[:at], SAMPLE[at:]) == whole, at


def test_every_cut_in_three_of_line_ends_gives_the_same_events() -> None:
    raw = b"data: a\r\n\r\ndata: b\r\rdata: c\n\n\r\n"
    for one in range(len(raw) + 1):
        for two in range(one, len(raw) + 1):
            assert data_of(raw[:one], raw[one:two], raw[two:]) == ["a", "b", "c"]


def test_one_byte_at_a_time_gives_the_same_events() -> None:
    assert decode(*(SAMPLE[i : i + 1] for i in range(len(SAMPLE)))) == decode(SAMPLE)


FRAGMENTS = st.sampled_from(
    [
        *("data", "data: ", "data:x", ":c", ":", "event: e", "id: 1", "id", "retry: 5", "other"),
        *("\n", "\r", "\r\n", "\n\n", " ", "\ufeff", "é", "🦀", "\u2028", "\0"),
    ]
)


@given(st.lists(FRAGMENTS, max_size=30).map("".join), st.lists(st.integers(0, 90), max_size=6))
@example("\ufeff\ufeffdata: x\n\n", [1, 2, 4])
@example("data: a\r\n\ndata: b\n\n", [8])
def test_any_text_cut_anywhere_is_read_as_specified(text: str, cuts: list[int]) -> None:
    raw = text.encode()
    places = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    assert decode(*(raw[a:b] for a, b in pairwise(places))) == slow_decode(raw)


@given(st.binary(max_size=80), st.integers(0, 80))
def test_any_bytes_are_read_without_an_error(raw: bytes, cut: int) -> None:
    assert decode(raw[:cut], raw[cut:]) == decode(raw) == slow_decode(raw)


def test_retry_time_is_kept() -> None:
    decoder = SseDecoder()
    decoder.feed(b"retry: 1500\nretry: -1\nretry: 1.5\nretry: x\n")
    assert decoder.retry_ms == 1500


@pytest.mark.parametrize(
    ("raw", "pending"),
    [
        (b"", False),
        (b"data: a\n\n", False),
        (b"data: a\n\n: comment", False),
        (b"data: a\n", True),
        (b"data: a", True),
        (b"data: a\n\nda", True),
        (b"event: x\n", False),
    ],
)
def test_unfinished_event_is_dropped_and_told(raw: bytes, pending: bool) -> None:
    decoder = SseDecoder()
    decoder.feed(raw)
    decoder.finish()
    assert decoder.pending is pending
    assert decoder.feed(b"\n\n") == []


class TestTooLarge:
    def limited(self) -> SseDecoder:
        return SseDecoder(max_event_bytes=20)

    def test_largest_event_passes(self) -> None:
        assert len(self.limited().feed(b"data: " + b"x" * 14 + b"\n\n")) == 1

    @pytest.mark.parametrize("piece", [1, 5, 100])
    @pytest.mark.parametrize("raw", [b"data: 123456789012345\n\n", b"data: 12345\n" * 2, b"x" * 21])
    def test_one_byte_more_is_refused_however_it_is_cut(self, raw: bytes, piece: int) -> None:
        decoder = self.limited()
        with pytest.raises(ProviderError, match="larger than the limit of 20 bytes"):
            for at in range(0, len(raw), piece):
                assert decoder.feed(raw[at : at + piece]) == []

    def test_events_before_it_are_given_first(self) -> None:
        decoder = self.limited()
        assert [e.data for e in decoder.feed(b"data: a\n\ndata: " + b"x" * 30)] == ["a"]
        with pytest.raises(ProviderError):
            decoder.feed(b"")
        with pytest.raises(ProviderError):
            decoder.finish()

    def test_many_events_and_comments_are_not_summed_up(self) -> None:
        decoder = self.limited()
        assert len(decoder.feed(b"data: 1234567\n\n" * 50)) == 50
        assert decoder.feed(b": 1234567\n" * 50) == []


def work_for(size: int) -> Work:
    decoder = SseDecoder()
    raw = b"data: " + b"x" * size + b"\n\n"
    with counted() as work:
        events = [event for i in range(len(raw)) for event in decoder.feed(raw[i : i + 1])]
    assert len(events[0].data) == size
    return work


def test_one_byte_feeds_of_a_large_event_cost_linear_work() -> None:
    """BC-52"""
    assert_linear(work_for(5_000), work_for(20_000), 4)
