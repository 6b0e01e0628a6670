"""The loopback server's answers and requests, seen by plain httpx."""

import json

import pytest
from tests.llm.serving import (
    CHAT,
    deltas,
    is_done,
    payloads,
    served,
    text_of,
)

from terzetto.llm.loopback import BLANK
from terzetto.llm.scripted import (
    Answer,
    ScriptedModel,
    answer,
    call,
    say,
    think,
)
from terzetto.vocabulary import (
    AssistantMessage,
    BlockEnd,
    BlockStart,
    CallId,
    Finish,
    MaxTokens,
    Request,
    Stop,
    SystemMessage,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolCalls,
    ToolResultBlock,
    Usage,
    UsageChunk,
    UserMessage,
)

USAGE = Usage(input_tokens=7, output_tokens=2, cache_read_tokens=4, reasoning_tokens=1)


# What goes out.


async def test_one_word_on_the_wire() -> None:
    async with served(["x"]) as to:
        response = await to.ask()
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    first = {"index": 0, "delta": {"role": "assistant", "content": "x"}, "finish_reason": None}
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    assert payloads(response.content) == [head | {"choices": [first]}, head | {"choices": [last]}]
    assert is_done(response.content)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["transfer-encoding"] == "chunked"
    assert response.headers["x-request-id"] == "chatcmpl-1"


async def test_reasoning_text_and_calls_have_their_fields() -> None:
    entry = answer(think("Hm."), say("你好🦀"), call("read", path="x"), call("now", id="c2"))
    async with served([entry]) as to:
        body = (await to.ask()).content
    found = deltas(body)
    assert found[0] == {"role": "assistant", "reasoning_content": "Hm."}
    assert found[1] == {"content": "你好🦀"}
    assert "🦀".encode() in body
    calls = [delta["tool_calls"][0] for delta in found if "tool_calls" in delta]
    assert calls[0] == {
        "index": 0,
        "id": "call_1_1",
        "type": "function",
        "function": {"name": "read", "arguments": '{"path'},
    }
    assert calls[1] == {"index": 0, "function": {"arguments": '": "x"}'}}
    assert [(entry["index"], entry.get("id")) for entry in calls[2:]] == [(1, "c2"), (1, None)]
    assert payloads(body)[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("entry", "word"),
    [(answer("x", finish=MaxTokens()), "length"), (answer("x", finish=ToolCalls()), "tool_calls")],
)
async def test_finish_reasons_have_their_words(entry: Answer, word: str) -> None:
    async with served([entry]) as to:
        assert payloads((await to.ask()).content)[-1]["choices"][0]["finish_reason"] == word


async def test_usage_follows_the_finish_if_it_was_asked_for() -> None:
    async with served([answer("x", usage=USAGE)] * 2) as to:
        asked = payloads((await to.ask(stream_options={"include_usage": True})).content)
        assert [len(event["choices"]) for event in asked] == [1, 1, 0]
        assert asked[-1]["usage"] == {
            "prompt_tokens": 7,
            "completion_tokens": 2,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 1},
        }
        unasked = payloads((await to.ask()).content)
        assert [len(event["choices"]) for event in unasked] == [1, 1]


async def test_late_usage_and_usage_without_a_finish_are_sent_too() -> None:
    late = Answer((TextDelta(0, "x"), Finish(Stop()), UsageChunk(USAGE)))
    alone = Answer((TextDelta(0, "x"), UsageChunk(USAGE)))
    async with served([late, alone]) as to:
        for _ in range(2):
            body = (await to.ask(stream_options={"include_usage": True})).content
            assert "usage" in payloads(body)[-1]
            assert is_done(body)


async def test_a_block_end_says_what_its_deltas_left_out() -> None:
    entry = Answer(
        (
            BlockStart(0, "text"),
            TextDelta(0, "ab"),
            BlockEnd(0, TextBlock("abcd")),
            BlockEnd(1, ToolCallBlock(CallId("c"), "t", "{}")),
            BlockEnd(1, ToolCallBlock(CallId("c"), "t", "{}")),
            BlockEnd(2, TextBlock("")),
        )
    )
    async with served([entry]) as to:
        found = deltas((await to.ask()).content)
    assert [delta.get("content") for delta in found] == ["ab", "cd", None]
    assert found[2]["tool_calls"][0]["function"] == {"name": "t", "arguments": "{}"}


async def test_identities_of_continuations_are_written_as_the_script_says() -> None:
    made = Answer(
        (
            ToolCallDelta(3, CallId("A"), "{", "echo"),
            ToolCallDelta(3, CallId(""), "}", ""),
            ToolCallDelta(3, CallId("A"), "", "echo"),
        )
    )
    async with served([made]) as to:
        entries = [delta["tool_calls"][0] for delta in deltas((await to.ask()).content)]
    assert [entry.get("id") for entry in entries] == ["A", "", None]
    assert [entry["function"].get("name") for entry in entries] == ["echo", "", "echo"]


async def test_an_unstreamed_answer_is_one_json_body() -> None:
    entry = answer(think("Hm."), "Look.", call("t", x=1), usage=USAGE)
    async with served([entry, "x"]) as to:
        response = await to.ask(stream=False)
        body = response.json()
        assert body["object"] == "chat.completion"
        assert body["choices"] == [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Look.",
                    "reasoning_content": "Hm.",
                    "tool_calls": [
                        {
                            "id": "call_1_1",
                            "type": "function",
                            "function": {"name": "t", "arguments": '{"x": 1}'},
                        }
                    ],
                },
                "finish_reason": "tool_calls",
            }
        ]
        assert body["usage"]["total_tokens"] == 9
        assert "usage" not in (await to.ask(stream=False)).json()


async def test_models_are_listed() -> None:
    async with served(ScriptedModel(provider="mock")) as to:
        body = (await to.client.get("/models")).json()
    assert [entry["id"] for entry in body["data"]] == ["mock"]


# What comes in.


async def test_requests_are_recorded_with_credentials_blanked() -> None:
    async with served(["x"]) as to:
        secrets = {"Authorization": "Bearer sk-secret", "X-Api-Key": "k", "X-Trace": "t"}
        to.client.headers.update(secrets)
        await to.ask("hello", temperature=0.5)
        (request,) = to.server.requests
    assert request.headers["authorization"] == request.headers["x-api-key"] == BLANK
    assert request.headers["x-trace"] == "t"
    assert request.body["temperature"] == 0.5
    assert json.loads(request.raw) == request.body
    assert "sk-secret" not in repr(request)


async def test_a_function_sees_the_same_request_as_in_process() -> None:
    seen: list[Request] = []

    def watch(request: Request) -> str:
        seen.append(request)
        return "ok"

    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    tools = [{"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}]
    model = ScriptedModel(watch)
    async with served(model) as to:
        await to.ask(
            messages=messages, tools=tools, max_tokens=9, temperature=0, reasoning_effort="low"
        )
    (request,) = seen
    system, user, assistant, result = request.messages
    assert isinstance(system, SystemMessage)
    assert system.text == "Be brief."
    assert isinstance(user, UserMessage)
    assert user.text == "a"
    assert isinstance(assistant, AssistantMessage)
    assert assistant.tool_calls == (ToolCallBlock(CallId("c1"), "t", "{}"),)
    assert isinstance(result, UserMessage)
    assert result.content == (ToolResultBlock(CallId("c1"), (TextBlock("done"),)),)
    assert [tool.name for tool in request.tools] == ["t"]
    assert (request.config.model, request.config.max_tokens) == ("m", 9)
    assert (request.config.effort, request.config.options["temperature"]) == ("low", 0)
    assert model.requests == seen


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b"{", "body"),
        (b'{"model": "\xff"}', "body"),
        (b'{"model": NaN}', "NaN"),
        (b"[" * 100_000, "body"),
        (b"[]", "body: expected an object"),
        (b"{}", "model"),
        (b'{"model": "m"}', "messages"),
        (b'{"model": "m", "messages": [1]}', "messages[0]"),
        (b'{"model": "m", "messages": [{"role": "bard"}]}', "messages[0].role"),
        (b'{"model": "m", "messages": [{"role": "tool"}]}', "messages[0].tool_call_id"),
        (b'{"model": "m", "messages": [], "max_tokens": "9"}', "max_tokens"),
        (b'{"model": "m", "messages": [], "max_tokens": 0}', "max_tokens"),
        (b'{"model": "m", "messages": [], "tools": [{}]}', "tools[0].function"),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused_by_place(raw: bytes, place: str) -> None:
    async with served(["still here"]) as to:
        response = await to.client.post(CHAT, content=raw)
        assert response.status_code == 400
        error = response.json()["error"]
        assert place in error["message"]
        assert error["type"] == "invalid_request_error"
        assert to.server.requests == []
        assert text_of((await to.ask()).content) == "still here"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("GET", CHAT, 405), ("DELETE", "/models", 405)],
)
async def test_other_paths_and_methods_get_an_error_object(
    method: str, path: str, status: int
) -> None:
    async with served("x") as to:
        response = await to.client.request(method, path)
    assert response.status_code == status
    assert path in response.json()["error"]["message"]


async def test_what_the_judge_names_is_refused_and_takes_no_answer() -> None:
    verdicts = [["blank text block", "unpaired call"], []]
    judged: list[bytes] = []

    def judge(raw: bytes) -> list[str]:
        judged.append(raw)
        return verdicts.pop(0)

    async with served(["the answer"], judge=judge) as to:
        response = await to.ask()
        assert response.status_code == 400
        assert response.json()["error"]["message"] == "blank text block; unpaired call"
        assert text_of((await to.ask()).content) == "the answer"
        assert [request.violations for request in to.server.requests] == [
            ("blank text block", "unpaired call"),
            (),
        ]
        assert judged[0] == to.server.requests[0].raw


async def test_an_exhausted_script_is_a_permanent_error() -> None:
    async with served([]) as to:
        response = await to.ask()
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "script_exhausted"
    assert "request 1 has no answer" in response.json()["error"]["message"]


async def test_a_model_is_shared_with_its_use_in_process() -> None:
    model = ScriptedModel(["one", "two", "three"])
    async with served(model) as to:
        assert to.server.gates is model.gates
        assert text_of((await to.ask()).content) == "one"
        model.take(model.requests[0])
        assert text_of((await to.ask()).content) == "three"
    assert model.attempts == 3
