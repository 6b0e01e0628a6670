"""The short way from bytes to chunks gives what the long one gives, however they are cut."""

import json
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, strategies as st

from terzetto.llm._openai_bytes import _TRIES, ChatStream
from terzetto.llm._openai_decode import ChatDecoder
from terzetto.llm._sse import SseDecoder
from terzetto.vocabulary import ProviderError, ReasoningDelta, StreamChunk, TextDelta


def the_long_way(data: bytes, limit: int) -> tuple[list[StreamChunk], ChatDecoder]:
    """Framing by one decoder and meaning by the other, all bytes at once."""
    sse, chat = SseDecoder(limit), ChatDecoder()
    chunks: list[StreamChunk] = []
    try:
        for event in sse.feed(data):
            chunks += chat.feed(event.data, event.event)
        sse.feed(b"")
    except ProviderError as error:
        chunks += chat.fail(error.failure)
    return chunks + chat.finish(), chat


def streamed(pieces: list[bytes], limit: int) -> tuple[list[StreamChunk], ChatDecoder]:
    stream = ChatStream()
    stream._sse.max_event_bytes = limit
    chunks = [chunk for piece in pieces for chunk in stream.feed(piece)]
    return chunks + stream.finish(), stream.chat


def event(delta: object, **more: object) -> dict[str, object]:
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **more}


TEXTS = st.sampled_from(["", " ", "a", "\n", "é", "\u2028", "🎻", "\ud83d", "\ude00", "x\r\n\r\n"])
DELTAS = st.fixed_dictionaries(
    {},
    optional={
        "content": TEXTS | st.none() | st.just(3) | st.just([{"text": "part"}]),
        "reasoning_content": TEXTS | st.none(),
        "reasoning": TEXTS | st.none(),
        "role": st.sampled_from(["assistant", None, 3]),
        "refusal": TEXTS | st.none(),
        "tool_calls": st.sampled_from(
            [None, [], [{"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}]]
        ),
    },
)
PAYLOADS: st.SearchStrategy[object] = st.one_of(
    DELTAS.map(event),
    TEXTS.map(lambda text: event({"content": text})),
    st.builds(
        lambda delta, more: event(delta, **more),
        DELTAS,
        st.dictionaries(
            st.sampled_from(
                ["id", "object", "usage", "error", "created", "model", "type", "provider", "odd"]
            ),
            st.sampled_from([None, "", "error", 0, 2**70, 1.5, True, {"prompt_tokens": 1}, [{}]]),
            max_size=2,
        ),
    ),
    st.sampled_from(
        [
            {"choices": []},
            {"choices": [{"index": 1, "delta": {"content": "other"}}]},
            {"choices": [{"index": 0, "delta": {"content": "two"}}] * 2},
            {"choices": [{"index": False, "delta": {"content": "no index"}}]},
            {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]},
            {"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": []}}]},
            {"choices": [{"index": 0}]},
            {"error": {"message": "busy", "code": 500}},
            [],
            None,
        ]
    ),
)
LINES = st.one_of(
    st.builds(
        lambda start, value, ascii, end: (
            start + json.dumps(value, ensure_ascii=ascii).encode("utf-8", "surrogatepass") + end
        ),
        st.sampled_from([b"data: ", b"data:", b"data:  ", b"data: \t"]),
        PAYLOADS,
        st.booleans(),
        st.sampled_from([b"\n\n", b"\n\n", b"\n\n", b" \n\n", b"\r\n\r\n", b"\n", b"\n\n\n"]),
    ),
    st.sampled_from(
        [
            *(
                b": still there\n\n",
                b"event: error\n",
                b"event:\n\n",
                b"id: 3\n\n",
                b"retry: 5\n\n",
            ),
            *(
                b"data: [DONE]\n\n",
                b"\n",
                b"\r",
                b"\r\n",
                b"data\n\n",
                b"data: {\n",
                b"data: }\n\n",
            ),
            *(b"data: \xff\n\n", b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n'),
            *(b"\xef\xbb\xbf", b"nonsense\n\n", b"data: " + b"[" * 2_000 + b"\n\n"),
            b'data: {"choices":[{"delta":{"content":"a","content":"b"}}],"choices":[]}\n\n',
        ]
    ),
)


@given(st.lists(LINES, max_size=12), st.data(), st.sampled_from([60, 200, 100_000]))
def test_any_bytes_give_what_the_long_way_gives(
    lines: list[bytes], data: st.DataObject, limit: int
) -> None:
    whole = b": first\n\n" + b"".join(lines)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=12).map(sorted))
    places = [0, *cuts, len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(places)]
    expected, chat = the_long_way(whole, limit)
    found, short = streamed(pieces, limit)
    assert found == expected
    assert (short.events, short.answered, short._characters, short._answer_id) == (
        chat.events,
        chat.answered,
        chat._characters,
        chat._answer_id,
    )


PLAIN = st.builds(
    lambda delta, ascii, id_: (
        b"data: " + json.dumps(event(delta, id=id_), ensure_ascii=ascii).encode("utf-8") + b"\n\n"
    ),
    st.fixed_dictionaries(
        {
            "content": st.sampled_from(
                ["", None, " ", "a", "}\n\ndata: {", "\n{", "é", "\u2028", "🎻", "{}"]
            )
        },
        optional={
            "reasoning_content": st.sampled_from(["", None, "hm"]),
            "reasoning": st.sampled_from([None, "so"]),
        },
    ),
    st.booleans(),
    st.sampled_from([None, "", "c", "d"]),
)
SLY = st.sampled_from(
    [
        b'data: {"choices":[{"delta":{"content":"x"}}]}{"choices":[{"delta":{}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"x"}}]} {"choices":[{"delta":{}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"a}\n\n',
        b'data: {"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"x"}}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\ude00"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"a}\n',
        b'data: {"choices":[{"delta":{"content":"x"}}]}\ndata: {}\n\n',
        b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n',
        b'data: {"error":{"message":"busy"}}\n\n',
        b"data: {}\n\n",
        b'id: {"a":"}\n\n',
        b": {}\n\n",
        b"data: [DONE]\n\n",
        b'data: {"choices":[{"delta":{"content":"\xf0\x9f"}}]}\n\n',
    ]
)


@given(st.lists(st.one_of(*[PLAIN] * 5, SLY), max_size=14), st.data())
def test_events_that_come_together_give_what_the_long_way_gives(
    events: list[bytes], data: st.DataObject
) -> None:
    """In pieces of several whole events, with and without some that are not what they seem."""
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=len(events), max_size=len(events)))
    pieces, rest = [b": first\n\n"], events
    for size in sizes:
        pieces, rest = [*pieces, b"".join(rest[:size])], rest[size:]
    expected, chat = the_long_way(b"".join(pieces), 100_000)
    found, short = streamed(pieces, 100_000)
    assert found == expected
    assert (short.events, short._characters, short._answer_id, short._substance) == (
        chat.events,
        chat._characters,
        chat._answer_id,
        chat._substance,
    )


def test_plain_events_that_come_together_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would compare the single way with itself."""
    stream = ChatStream()
    stream.feed(b": first\n\n")
    monkeypatch.delattr(ChatStream, "_event")
    texts = ["one", "", "}\n\ndata: {", "🎻", " "]
    lines = [b"data: " + json.dumps(event({"content": text})).encode() + b"\n\n" for text in texts]
    chunks = stream.feed(b"".join(lines) + b"data: {")
    made = [chunk.text for chunk in chunks if isinstance(chunk, TextDelta)]
    assert made == [text for text in texts if text]
    assert (stream.chat.events, stream._rest) == (len(texts), b"data: {")


@pytest.mark.parametrize("text", ["", " ", "plain", "é \u2028", "🎻", "\n\n"])
@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_plain_text_goes_the_short_way(
    field: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the test above would compare the long way with itself."""
    stream = ChatStream()
    stream.feed(b": first\n\n")
    monkeypatch.delattr(ChatStream, "_framed")
    payload = event({"role": "assistant", field: text}, object="chat.completion.chunk", usage=None)
    chunks = stream.feed(b"data: " + msgspec.json.encode(payload) + b"\n\n")
    made = [chunk.text for chunk in chunks if isinstance(chunk, TextDelta | ReasoningDelta)]
    assert made == [text] * bool(text)
    assert stream.chat.events == 1


@pytest.mark.parametrize("together", [1, 3, 50])
def test_what_is_never_plain_is_soon_not_tried_any_more(together: int) -> None:
    """A dialect with a field of its own pays for some tries, not for all."""
    stream = ChatStream()
    one = b"data: " + json.dumps(event({"content": "a"}, dialect=1)).encode() + b"\n\n"
    for _ in range(2 * _TRIES // together):
        stream.feed(one * together)
    assert stream._tries == 0
    assert stream.chat._characters == 2 * _TRIES // together * together
    plain = b"data: " + json.dumps(event({"content": "b"})).encode() + b"\n\n"
    assert stream.feed(plain) == [TextDelta(0, "b")]


def test_event_that_comes_in_many_pieces_is_not_joined_again_for_each() -> None:
    """Held by the decoder of the framing, whose buffer grows in place."""
    stream = ChatStream()
    text = "a" * 10_000
    raw = b"data: " + json.dumps(event({"content": text})).encode() + b"\n\n"
    stream.feed(b": first\n\n" + raw[:9])
    for at in range(9, len(raw) - 1):
        assert stream.feed(raw[at : at + 1]) == []
        assert len(stream._rest) <= 9
    assert stream.feed(raw[-1:])[-1] == TextDelta(0, text)
