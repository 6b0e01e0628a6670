"""Reading a chat-completions request body, as a server does.

Pure. Gives scripted functions the same `Request` behind HTTP that they get in process.
It checks shapes, not manners: whether a history is well formed is for a judge to say.
"""

from __future__ import annotations

import json
from typing import NoReturn

from attrs import frozen

from ..vocabulary import (
    AssistantBlock,
    AssistantMessage,
    CallConfig,
    CallId,
    InvalidValue,
    Message,
    MessageId,
    ModelSource,
    PlainJson,
    PluginSource,
    ReasoningBlock,
    Request,
    SessionId,
    SystemMessage,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSchema,
    ToolSource,
    UserMessage,
    freeze_object,
)

PROVIDER = "openai"
_OWN_FIELDS = frozenset(
    {
        "model",
        "messages",
        "tools",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "reasoning_effort",
    }
)


@frozen(kw_only=True)
class Asked:
    """A request body that was understood. *request* has no session and ids ``m1``, ``m2``, ..."""

    body: dict[str, PlainJson]
    request: Request
    stream: bool
    include_usage: bool


def read_request(raw: bytes) -> Asked:
    """*raw* as a request.

    Raises:
        InvalidValue: It is not strict JSON in UTF-8, or something in it has a wrong
            shape; the message names the place.
    """
    body = _object(_parse(raw), "body")
    options = _object(body.get("stream_options") or {}, "stream_options")
    return Asked(
        body=body,
        request=Request(
            session_id=SessionId(""),
            config=_config(body),
            messages=tuple(
                _message(_object(item, f"messages[{at}]"), at)
                for at, item in enumerate(_array(body.get("messages"), "messages"))
            ),
            tools=tuple(
                _tool(_object(item, f"tools[{at}]"), f"tools[{at}]")
                for at, item in enumerate(_array(body.get("tools") or [], "tools"))
            ),
        ),
        stream=body.get("stream") is True,
        include_usage=options.get("include_usage") is True,
    )


def _parse(raw: bytes) -> PlainJson:
    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        value: PlainJson = json.loads(raw.decode(), parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"body: expected JSON in UTF-8: {error}") from None
    return value


def _config(body: dict[str, PlainJson]) -> CallConfig:
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    if limit is not None and not isinstance(limit, int):
        raise InvalidValue(f"max_tokens: expected an integer, got {limit!r}")
    effort = body.get("reasoning_effort")
    return CallConfig(
        provider=PROVIDER,
        model=_text(body.get("model"), "model"),
        effort=None if effort is None else _text(effort, "reasoning_effort"),
        max_tokens=limit,
        options={name: body[name] for name in body if name not in _OWN_FIELDS},
    )


def _tool(item: dict[str, PlainJson], place: str) -> ToolSchema:
    function = _object(item.get("function"), f"{place}.function")
    return ToolSchema(
        name=_text(function.get("name"), f"{place}.function.name"),
        description=_text(function.get("description") or "", f"{place}.function.description"),
        parameters=freeze_object(_object(function.get("parameters") or {}, f"{place}.parameters")),
    )


def _message(item: dict[str, PlainJson], at: int) -> Message:
    place = f"messages[{at}]"
    identity = MessageId(f"m{at + 1}")
    match item.get("role"):
        case "system" | "developer":
            texts = _texts(item.get("content"), place)
            return SystemMessage(texts, PluginSource(PROVIDER), identity)
        case "user":
            return UserMessage(_texts(item.get("content"), place), id=identity)
        case "assistant":
            return AssistantMessage(_blocks(item, place), ModelSource(PROVIDER, ""), identity)
        case "tool":
            call_id = CallId(_text(item.get("tool_call_id"), f"{place}.tool_call_id"))
            result = ToolResultBlock(call_id, _texts(item.get("content"), place))
            return UserMessage((result,), ToolSource(call_id), identity)
        case role:
            raise InvalidValue(f"{place}.role: expected a known role, got {role!r}")


def _blocks(item: dict[str, PlainJson], place: str) -> tuple[AssistantBlock, ...]:
    blocks: list[AssistantBlock] = []
    if reasoning := item.get("reasoning_content"):
        blocks.append(ReasoningBlock(_text(reasoning, f"{place}.reasoning_content")))
    blocks += _texts(item.get("content"), place)
    for number, entry in enumerate(_array(item.get("tool_calls") or [], f"{place}.tool_calls")):
        where = f"{place}.tool_calls[{number}]"
        made = _object(entry, where)
        function = _object(made.get("function"), f"{where}.function")
        blocks.append(
            ToolCallBlock(
                CallId(_text(made.get("id"), f"{where}.id")),
                _text(function.get("name"), f"{where}.function.name"),
                _text(function.get("arguments"), f"{where}.function.arguments"),
            )
        )
    return tuple(blocks)


def _texts(content: PlainJson, place: str) -> tuple[TextBlock, ...]:
    """Text of either form; parts of other kinds are left out, and so is an empty text."""
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (TextBlock(content),)
    parts = [_object(part, f"{place}.content") for part in _array(content, f"{place}.content")]
    return tuple(
        TextBlock(_text(part.get("text"), f"{place}.content.text"))
        for part in parts
        if part.get("type") == "text"
    )


def _object(value: PlainJson, place: str) -> dict[str, PlainJson]:
    if not isinstance(value, dict):
        raise InvalidValue(f"{place}: expected an object, got {type(value).__name__}")
    return value


def _array(value: PlainJson, place: str) -> list[PlainJson]:
    if not isinstance(value, list):
        raise InvalidValue(f"{place}: expected an array, got {type(value).__name__}")
    return value


def _text(value: PlainJson, place: str) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"{place}: expected a string, got {type(value).__name__}")
    return value
