"""The strictest provider: names what is wrong with a chat-completions request.

Independent of the encoder: nothing here comes from the code under test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal, NoReturn, TypeAlias

Reasoning: TypeAlias = Literal["any", "forbidden", "with-calls", "field-with-calls"]
"""What a provider wants of ``reasoning_content`` in history: nothing, never, or with
every message that has tool calls, where it may be empty or not."""

_ROLES = frozenset({"system", "user", "assistant", "tool"})
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)


def judge(body: bytes, *, reasoning: Reasoning = "any") -> list[str]:
    """What is wrong with *body*, in order; nothing if it is flawless."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        return [f"not UTF-8: {error}"]
    try:
        request = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except ValueError as error:
        return [f"not strict JSON: {error}"]
    if not isinstance(request, dict):
        return ["not a JSON object"]
    messages = request.get("messages")
    if not isinstance(messages, list):
        return ["messages: not an array"]
    found = [*_frame(request), *_surrogates(request, "$")]
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            found.append(f"{where}: no message of a known role")
        else:
            found += _message(message, where, _names(request), reasoning)
    return found + _pairs([message for message in messages if isinstance(message, dict)])


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError(f"a key twice in {[key for key, _ in pairs]}")
    return dict(pairs)


def _frame(request: Mapping[str, object]) -> list[str]:
    found = []
    if not isinstance(model := request.get("model"), str) or not model:
        found.append("model: not a text, or empty")
    if request.get("stream") is not True:
        found.append("stream: not true")
    if request.get("stream_options") != {"include_usage": True}:
        found.append("stream_options: usage is not asked for")
    if "tools" in request and not request["tools"]:
        found.append("tools: empty")
    return found


def _names(request: Mapping[str, object]) -> set[str]:
    tools = request.get("tools", [])
    assert isinstance(tools, list)
    return {tool["function"]["name"] for tool in tools}


def _surrogates(value: object, path: str) -> list[str]:
    match value:
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                return [f"{path}: a lone surrogate"]
        case list():
            return [found for i, v in enumerate(value) for found in _surrogates(v, f"{path}[{i}]")]
        case dict():
            return [
                found
                for k, v in value.items()
                for found in _surrogates(k, path) + _surrogates(v, f"{path}.{k}")
            ]
    return []


def _message(
    message: Mapping[str, object], where: str, names: set[str], reasoning: Reasoning
) -> list[str]:
    role, content = message["role"], message.get("content")
    calls = message.get("tool_calls")
    found = _content(content, where, optional=role == "assistant" and bool(calls))
    if role != "assistant":
        if "tool_calls" in message or "reasoning_content" in message:
            found.append(f"{where}: fields of an assistant in role {role}")
        return found
    if "tool_calls" in message and not (isinstance(calls, list) and calls):
        found.append(f"{where}.tool_calls: empty")
        calls = []
    for number, call in enumerate(calls if isinstance(calls, list) else []):
        found += _call(call, f"{where}.tool_calls[{number}]", names)
    thought = message.get("reasoning_content")
    may_be_empty = reasoning == "field-with-calls"
    fit = isinstance(thought, str) and (bool(thought) or may_be_empty)
    if "reasoning_content" in message and not fit:
        found.append(f"{where}.reasoning_content: not a text, or empty")
    if reasoning == "forbidden" and "reasoning_content" in message:
        found.append(f"{where}.reasoning_content: not taken here")
    if reasoning.endswith("with-calls") and calls and "reasoning_content" not in message:
        found.append(f"{where}.reasoning_content: missing beside tool calls")
    return found


def _content(content: object, where: str, *, optional: bool) -> list[str]:
    if content is None:
        return [] if optional else [f"{where}.content: missing"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    if not parts:
        return [f"{where}.content: empty"]
    found = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str) or not text.strip():
            found.append(f"{where}.content: a blank text block")
    return found


def _call(call: object, where: str, names: set[str]) -> list[str]:
    if not isinstance(call, dict) or call.get("type") != "function":
        return [f"{where}: no function call"]
    found = []
    call_id = call.get("id")
    if not isinstance(call_id, str) or not call_id.strip():
        found.append(f"{where}.id: empty")
    elif len(call_id) > 40:
        found.append(f"{where}.id: longer than 40")
    function = call.get("function")
    if not isinstance(function, dict):
        return [*found, f"{where}.function: missing"]
    name = function.get("name")
    if not isinstance(name, str) or not (name in names or _NAME.fullmatch(name)):
        found.append(f"{where}.function.name: {name!r}")
    try:
        arguments = json.loads(str(function.get("arguments")), parse_constant=_refuse)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        found.append(f"{where}.function.arguments: not a JSON object")
    elif _surrogates(arguments, "$"):
        found.append(f"{where}.function.arguments: a lone surrogate")
    return found


def _pairs(messages: list[dict[str, object]]) -> list[str]:
    """Each call is followed, before any other role, by exactly one result with its id,
    in call order; and no result lacks a call."""
    found: list[str] = []
    owed: list[object] = []
    for at, message in enumerate(messages):
        if message.get("role") == "tool":
            result = message.get("tool_call_id")
            if not owed:
                found.append(f"messages[{at}]: a result without a call: {result!r}")
            elif result != (call := owed.pop(0)):
                found.append(f"messages[{at}]: a result of {result!r}, expected {call!r}")
            continue
        if owed:
            found.append(f"messages[{at}]: calls without a result: {owed}")
        calls = message.get("tool_calls")
        owed = (
            [call.get("id") for call in calls if isinstance(call, dict)]
            if (isinstance(calls, list))
            else []
        )
        if len(set(map(str, owed))) != len(owed):
            found.append(f"messages[{at}]: an id twice: {owed}")
    if owed:
        found.append(f"end: calls without a result: {owed}")
    return found
