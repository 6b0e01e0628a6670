"""Requests of the chat-completions wire: what is sent for any history."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from terzetto.llm._openai_wire import NO_OUTPUT, NO_RESULT, encode_request
from terzetto.vocabulary import (
    AssistantBlock,
    AssistantMessage,
    CallConfig,
    CallId,
    DeveloperMessage,
    InvalidValue,
    Message,
    MessageId,
    ModelSource,
    PluginSource,
    ReasoningBlock,
    Request,
    SessionId,
    SystemMessage,
    TextBlock,
    ToolAdditionBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSchema,
    ToolSource,
    UserMessage,
    freeze_object,
)

from .strict import judge

ID = MessageId("m")
MODEL = ModelSource("openai", "m")
ECHO = ToolSchema(
    name="echo", description="Says it again.", parameters=freeze_object({"type": "object"})
)


def user(*texts: str) -> UserMessage:
    return UserMessage(tuple(map(TextBlock, texts)), id=ID)


def system(text: str) -> SystemMessage:
    return SystemMessage((TextBlock(text),), PluginSource("p"), ID)


def said(*blocks: AssistantBlock | str) -> AssistantMessage:
    content = tuple(TextBlock(block) if isinstance(block, str) else block for block in blocks)
    return AssistantMessage(content, MODEL, ID)


def call(call_id: str, arguments: str = "{}", name: str = "echo") -> ToolCallBlock:
    return ToolCallBlock(CallId(call_id), name, arguments)


def result(call_id: str, *texts: str) -> UserMessage:
    block = ToolResultBlock(CallId(call_id), tuple(map(TextBlock, texts)))
    return UserMessage((block,), ToolSource(CallId(call_id)), ID)


def request(*messages: Message, tools: tuple[ToolSchema, ...] = (), **config: Any) -> Request:
    return Request(
        session_id=SessionId("s"),
        config=CallConfig(provider="openai", model="m", **config),
        messages=messages,
        tools=tools,
    )


def wire(*messages: Message, **how: Any) -> list[dict[str, Any]]:
    body = encode_request(request(*messages), **how)
    assert judge(body) == []
    messages_: list[dict[str, Any]] = json.loads(body)["messages"]
    return messages_


def roles(*messages: Message) -> list[str]:
    return [message["role"] for message in wire(*messages)]


def test_whole_body() -> None:
    asked = request(
        system("Be brief."),
        user("hi"),
        tools=(ECHO,),
        effort="low",
        max_tokens=9,
        options=freeze_object({"temperature": 0.5, "stop": ["x"], "deep": {"a": {"b": []}}}),
    )
    assert json.loads(encode_request(asked)) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "echo",
                    "description": "Says it again.",
                    "parameters": {"type": "object"},
                },
            }
        ],
        "max_tokens": 9,
        "reasoning_effort": "low",
        "temperature": 0.5,
        "stop": ["x"],
        "deep": {"a": {"b": []}},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_absent_fields_are_left_out() -> None:
    body = json.loads(encode_request(request(user("hi"))))
    assert set(body) == {"model", "messages", "stream", "stream_options"}


def test_limit_has_the_name_that_the_server_takes() -> None:
    body = encode_request(request(user("hi"), max_tokens=5), limit_field="max_completion_tokens")
    assert json.loads(body)["max_completion_tokens"] == 5
    assert "max_tokens" not in json.loads(body)


def test_tool_without_parameters_or_description() -> None:
    tool = ToolSchema(name="now", description="", parameters=freeze_object({}))
    [sent] = json.loads(encode_request(request(user("hi"), tools=(tool,))))["tools"]
    assert sent["function"] == {"name": "now", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("name", ["stream", "messages", "max_tokens", "reasoning_effort", "tools"])
def test_option_with_a_reserved_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match=name):
        encode_request(request(user("hi"), options=freeze_object({name: 1})))


def sent_call(call_id: str, arguments: str) -> dict[str, Any]:
    function = {"name": "echo", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def test_a_round_with_two_calls() -> None:
    assert wire(
        user("go"),
        said("Looking.", call("a", '{"x":1}'), call("b")),
        result("a", "1"),
        result("b", "2"),
    )[1:] == [
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [
                sent_call("a", '{"x":1}'),
                sent_call("b", "{}"),
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
    ]


class TestText:
    def test_user_blocks_are_joined_with_line_ends_and_blank_ones_dropped(self) -> None:
        assert wire(user("a", " ", "b")) == [{"role": "user", "content": "a\nb"}]

    def test_blank_messages_are_dropped(self) -> None:
        assert roles(user(), user("  "), system("\n"), said(), said(" \n"), user("x")) == ["user"]

    def test_answer_of_reasoning_alone_is_dropped(self) -> None:
        assert roles(user("x"), said(ReasoningBlock("hm"))) == ["user"]

    def test_blank_text_beside_calls_is_null(self) -> None:
        assert wire(user("x"), said("\n", call("a")))[1]["content"] is None

    def test_text_of_an_answer_is_sent_byte_for_byte(self) -> None:
        assert wire(said(" One. ", ReasoningBlock("hm"), "Two.\n"))[0]["content"] == " One. Two.\n"

    def test_developer_messages_are_left_out(self) -> None:
        assert roles(user("x"), DeveloperMessage((ToolAdditionBlock("t"),), id=ID)) == ["user"]

    def test_lone_surrogates_never_reach_the_wire(self) -> None:
        messages = wire(user("a\ud800"), said(call("i\ud800d")), result("i\ud800d", "\udc97"))
        assert messages[0]["content"] == "a\ufffd"
        assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"]


class TestResults:
    def contents(self, *messages: Message) -> list[str]:
        return [m["content"] for m in wire(*messages) if m["role"] == "tool"]

    def test_they_follow_in_call_order_whatever_their_order(self) -> None:
        calls = said(call("a"), call("b"))
        assert self.contents(calls, result("b", "2"), result("a", "1")) == ["1", "2"]

    def test_text_between_them_goes_behind_them(self) -> None:
        messages = (said(call("a"), call("b")), result("a"), user("steer"), result("b"))
        assert roles(*messages) == ["assistant", "tool", "tool", "user"]

    def test_missing_one_is_filled_in(self) -> None:
        assert self.contents(said(call("a"), call("b")), result("b", "2")) == [NO_RESULT, "2"]

    def test_blank_one_says_so(self) -> None:
        assert self.contents(said(call("a")), result("a", "", " ")) == [NO_OUTPUT]

    def test_blocks_are_joined_with_line_ends(self) -> None:
        assert self.contents(said(call("a")), result("a", "x", "y")) == ["x\ny"]

    def test_result_without_a_call_is_left_out(self) -> None:
        assert roles(result("a", "early"), said(call("a")), result("b"), user("x")) == [
            "assistant",
            "tool",
            "user",
        ]

    def test_second_result_of_a_call_is_left_out(self) -> None:
        assert self.contents(said(call("a")), result("a", "1"), result("a", "2")) == ["1"]

    def test_text_in_the_message_of_a_result_is_kept(self) -> None:
        answer = ToolResultBlock(CallId("a"), (TextBlock("1"),))
        both = UserMessage((answer, TextBlock("and")), id=ID)
        assert roles(said(call("a")), both) == ["assistant", "tool", "user"]

    def test_id_used_again_in_a_later_step(self) -> None:
        messages = (said(call("a")), result("a", "1"), said(call("a")), result("a", "2"))
        assert self.contents(*messages) == ["1", "2"]

    def test_newest_call_of_an_id_is_answered_first(self) -> None:
        messages = (said(call("a")), said(call("a")), result("a", "2"), result("a", "1"))
        assert self.contents(*messages) == ["1", "2"]


class TestIds:
    def ids(self, *ids: str) -> list[str]:
        messages = wire(said(*map(call, ids)), *(result(i, str(n)) for n, i in enumerate(ids)))
        sent = [entry["id"] for entry in messages[0]["tool_calls"]]
        assert [m["tool_call_id"] for m in messages[1:]] == sent
        assert [m["content"] for m in messages[1:]] == [str(n) for n in range(len(ids))]
        return sent

    def test_good_ones_are_kept(self) -> None:
        assert self.ids("call_1", "x", "y" * 40) == ["call_1", "x", "y" * 40]

    @pytest.mark.parametrize("bad", ["", " ", "z" * 41])
    def test_blank_and_long_ones_are_made_anew(self, bad: str) -> None:
        first, second = self.ids(bad, "good")
        assert first not in ("", bad)
        assert second == "good"
        assert self.ids(bad, "good") == [first, second]

    def test_first_of_equal_ones_is_kept(self) -> None:
        sent = self.ids("a", "a", "", "", "a")
        assert sent[0] == "a"
        assert len(set(sent)) == 5

    def test_made_one_never_takes_a_given_one(self) -> None:
        made = self.ids("a", "a")[1]
        sent = self.ids("a", "a", made)
        assert sent[2] == made


BAD = ["", " ", "null", "{", "[1]", '"str"', '{"x":1}{"x":2}', '{"x": "He said "hi""}', "1"]


class TestArguments:
    def sent(self, arguments: str) -> object:
        [function] = [c["function"] for c in wire(said(call("a", arguments)))[0]["tool_calls"]]
        return function["arguments"]

    @pytest.mark.parametrize("bad", [*BAD, '{"x":NaN}', '{"x":"\\ud83d"}', '{"a":' + "[" * 9999])
    def test_anything_but_an_object_is_sent_as_an_empty_one(self, bad: str) -> None:
        assert self.sent(bad) == "{}"

    @pytest.mark.parametrize("good", ["{}", '{"x": 1}', ' {"é": [{}]}\n', '{"x":"\\ud83c\\udf78"}'])
    def test_objects_are_sent_byte_for_byte(self, good: str) -> None:
        assert self.sent(good) == good


class TestNames:
    def sent(self, name: str, *tools: ToolSchema) -> str:
        body = encode_request(request(said(call("a", name=name)), tools=tools))
        assert judge(body) == []
        sent: str = json.loads(body)["messages"][0]["tool_calls"][0]["function"]["name"]
        return sent

    @pytest.mark.parametrize(
        ("name", "sent"),
        [
            ("echo", "echo"),
            ("", "unknown_tool"),
            ("a.b c", "a_b_c"),
            ("é", "_"),
            ("x" * 65, "x" * 64),
        ],
    )
    def test_invented_ones_are_made_fit(self, name: str, sent: str) -> None:
        assert self.sent(name) == sent

    def test_declared_one_is_kept(self) -> None:
        dotted = ToolSchema(name="a.b", description="d", parameters=freeze_object({}))
        assert self.sent("a.b", dotted) == "a.b"


class TestReasoning:
    HISTORY = (
        user("x"),
        said(ReasoningBlock("I should "), ReasoningBlock("call echo."), call("c1")),
        result("c1", "1"),
        said(ReasoningBlock("Fine."), "done"),
        said("no thought"),
    )

    def test_by_default_it_is_not_sent(self) -> None:
        assert judge(encode_request(request(*self.HISTORY)), reasoning="forbidden") == []

    def test_asked_for_it_is_sent_byte_for_byte_and_never_empty(self) -> None:
        body = encode_request(request(*self.HISTORY), reasoning_in_history=True)
        assert judge(body, reasoning="with-calls") == []
        sent = [m.get("reasoning_content") for m in json.loads(body)["messages"]]
        assert sent == [None, "I should call echo.", None, "Fine.", None]


# Any history at all.

IDS = st.sampled_from(["", "a", "b", "call_1", " ", "x" * 50, "\ud800"])
TEXTS = st.sampled_from(["", " ", "\n", "hello", "é🦀", "\udc97", "a\u2028b"]) | st.text(max_size=5)
ARGUMENTS = st.sampled_from([*BAD, "{}", '{"x": 1}', '{"x":"\\ud83d"}']) | st.text(max_size=4)
CALLS = st.builds(call, IDS, ARGUMENTS, st.sampled_from(["echo", "", "a.b", "é", "n" * 99]))
BLOCKS = st.builds(TextBlock, TEXTS) | st.builds(ReasoningBlock, TEXTS) | CALLS
RESULTS = st.builds(
    ToolResultBlock, IDS, st.lists(st.builds(TextBlock, TEXTS), max_size=2).map(tuple)
)
MESSAGES = st.one_of(
    st.lists(BLOCKS, max_size=5).map(lambda blocks: said(*blocks)),
    st.lists(st.builds(TextBlock, TEXTS) | RESULTS, max_size=3).map(
        lambda b: UserMessage(tuple(b))
    ),
    TEXTS.map(system),
    st.just(DeveloperMessage((ToolAdditionBlock("t"),))),
)
HISTORIES = st.lists(MESSAGES, max_size=8)


@given(HISTORIES, st.booleans(), st.sampled_from([(), (ECHO,)]))
def test_any_history_passes_the_strictest_provider(
    history: list[Message], reasoning: bool, tools: tuple[ToolSchema, ...]
) -> None:
    asked = request(*history, tools=tools)
    body = encode_request(asked, reasoning_in_history=reasoning)
    assert judge(body, reasoning="any" if reasoning else "forbidden") == []
    assert encode_request(asked, reasoning_in_history=reasoning) == body


@given(HISTORIES)
def test_every_call_and_every_visible_text_is_sent(history: list[Message]) -> None:
    sent = json.loads(encode_request(request(*history)))["messages"]
    calls = [c for m in sent for c in m.get("tool_calls", [])]
    assert len(calls) == sum(len(m.tool_calls) for m in history if isinstance(m, AssistantMessage))
    texts = "".join(m["content"] or "" for m in sent if m["role"] == "assistant")
    for message in history:
        if isinstance(message, AssistantMessage) and message.text.strip():
            assert message.text in texts
