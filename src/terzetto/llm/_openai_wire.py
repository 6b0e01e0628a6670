"""The chat-completions wire of OpenAI and of the many servers that speak it: requests.

Owns how a `Request` becomes a body. Reading the answer is `_openai_decode.py`.
Pure, and a function of the request alone: the same log gives the same bytes.

What is sent satisfies the strictest server we know of, whatever the history holds:
every call is followed at once by exactly one result, in call order; nothing is
blank; ids are unique and not empty; arguments are JSON objects.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec

from ..vocabulary import (
    AssistantMessage,
    DeveloperMessage,
    InvalidValue,
    JsonObject,
    Message,
    ReasoningBlock,
    Request,
    SystemMessage,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSchema,
    UserMessage,
    clean_text,
)

LimitField: TypeAlias = Literal["max_tokens", "max_completion_tokens"]

RESERVED_OPTIONS = frozenset(
    {
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "reasoning_effort",
        "stream",
        "stream_options",
        "tools",
    }
)
"""Body fields that are written from the request and cannot be options."""

NO_RESULT = "No result was recorded for this tool call."
NO_OUTPUT = "(no output)"
UNNAMED_TOOL = "unknown_tool"
MAX_ID_CHARS = 40
"""OpenAI refuses longer call ids; other providers make them."""

_Wire: TypeAlias = dict[str, object]
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_NOT_NAME = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)


def encode_request(
    request: Request,
    *,
    reasoning_in_history: bool = False,
    fill_reasoning: bool = False,
    limit_field: LimitField = "max_tokens",
) -> bytes:
    """The body that asks for a streamed answer to *request*.

    Developer messages are left out. Several text blocks of a user message or of a
    result are joined with a line end, those of an answer with nothing, as they came.

    Args:
        reasoning_in_history: Send earlier reasoning as ``reasoning_content``, byte
            for byte; a message without reasoning has no such field.
        fill_reasoning: ... except messages with tool calls, which then have an empty one.
        limit_field: The name under which the server takes ``config.max_tokens``.

    Raises:
        InvalidValue: an option has a reserved name (`RESERVED_OPTIONS`).
    """
    config = request.config
    if taken := RESERVED_OPTIONS & set(config.options):
        raise InvalidValue(f"options: {sorted(taken)} are written from the request's own fields")
    body: _Wire = {
        "model": clean_text(config.model),
        "messages": _messages(request, reasoning_in_history, fill_reasoning),
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if config.max_tokens is not None:
        body[limit_field] = config.max_tokens
    if config.effort is not None:
        body["reasoning_effort"] = clean_text(config.effort)
    # By name, for a listener may set the same ones in another order. What is inside of one
    # keeps its order, as schemas do: models fill in what they are asked for in that order.
    body |= sorted(config.options.items())
    body["stream"] = True
    body["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(body, enc_hook=_plain)


def _plain(value: object) -> dict[str, object]:
    if isinstance(value, JsonObject):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _tool(tool: ToolSchema) -> _Wire:
    function: _Wire = {"name": clean_text(tool.name)}
    if description := clean_text(tool.description):
        function["description"] = description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _messages(request: Request, with_reasoning: bool, fill_reasoning: bool) -> list[_Wire]:
    results = _match_results(request.messages)
    declared = frozenset(tool.name for tool in request.tools)
    wire: list[_Wire] = []
    for position, message in enumerate(request.messages):
        match message:
            case UserMessage():
                # Results went out behind their calls; here only the text is left.
                if text := _join(message.content):
                    wire.append({"role": "user", "content": text})
            case AssistantMessage():
                answers = results.get(position, {})
                sent = _assistant(message, answers, declared, with_reasoning)
                if fill_reasoning and message.tool_calls:
                    sent[0].setdefault("reasoning_content", "")
                wire += sent
            case SystemMessage():
                if text := _join(message.content):
                    wire.append({"role": "system", "content": text})
            case DeveloperMessage():
                pass
    return wire


def _match_results(messages: Sequence[Message]) -> Mapping[int, Mapping[int, str]]:
    """The result of each call: position of the message -> number of the call -> text.

    A result belongs to the newest message that has an unanswered call of its id, and
    there to the first such call. A result without a call is left out: no server takes
    one. Later results of one call are left out too.
    """
    waiting: dict[str, list[tuple[int, deque[int]]]] = {}
    results: dict[int, dict[int, str]] = {}
    for position, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            own: dict[str, deque[int]] = {}
            for number, call in enumerate(message.tool_calls):
                own.setdefault(call.id, deque()).append(number)
            for call_id, numbers in own.items():
                waiting.setdefault(call_id, []).append((position, numbers))
        elif isinstance(message, UserMessage):
            for block in message.content:
                if not isinstance(block, ToolResultBlock):
                    continue
                if asking := waiting.get(block.tool_call_id):
                    asked, numbers = asking[-1]
                    text = _join(block.content) or NO_OUTPUT
                    results.setdefault(asked, {})[numbers.popleft()] = text
                    if not numbers:
                        asking.pop()
    return results


def _assistant(
    message: AssistantMessage,
    answers: Mapping[int, str],
    declared: AbstractSet[str],
    with_reasoning: bool,
) -> list[_Wire]:
    """*message* and the results of its calls; nothing if it has no text and no calls."""
    text = message.text
    calls = message.tool_calls
    if not calls and not text.strip():
        return []
    assistant: _Wire = {"role": "assistant", "content": text if text.strip() else None}
    if with_reasoning and (reasoning := _reasoning(message)):
        assistant["reasoning_content"] = reasoning
    if not calls:
        return [assistant]
    ids = _wire_ids(calls)
    assistant["tool_calls"] = [
        _call(call, call_id, declared) for call, call_id in zip(calls, ids, strict=True)
    ]
    results: list[_Wire] = [
        {"role": "tool", "tool_call_id": call_id, "content": answers.get(number, NO_RESULT)}
        for number, call_id in enumerate(ids)
    ]
    return [assistant, *results]


def _call(call: ToolCallBlock, call_id: str, declared: AbstractSet[str]) -> _Wire:
    arguments = call.arguments if _is_json_object(call.arguments) else "{}"
    function: _Wire = {"name": _wire_name(call.name, declared), "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _reasoning(message: AssistantMessage) -> str:
    return "".join(block.text for block in message.content if isinstance(block, ReasoningBlock))


def _join(blocks: Iterable[object]) -> str:
    """The texts that are not blank, one below the other."""
    texts = (block.text for block in blocks if isinstance(block, TextBlock))
    return "\n".join(text for text in texts if text.strip())


def _is_json_object(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


def _wire_ids(calls: Sequence[ToolCallBlock]) -> list[str]:
    """Ids that are not blank, not too long and unique among *calls*; the model's own
    ones wherever they are fit."""
    ids: list[str] = []
    taken = {call.id for call in calls}
    seen: set[str] = set()
    for number, call in enumerate(calls):
        wire_id = clean_text(call.id)
        if not wire_id.strip() or len(wire_id) > MAX_ID_CHARS or wire_id in seen:
            salt = 0
            while (wire_id := _made_id(call.id, number, salt)) in taken | seen:
                salt += 1
        seen.add(wire_id)
        ids.append(wire_id)
    return ids


def _made_id(call_id: str, number: int, salt: int) -> str:
    seed = f"{number}:{salt}:{clean_text(call_id)}"
    return "call_" + blake2b(seed.encode(), digest_size=10).hexdigest()


def _wire_name(name: str, declared: AbstractSet[str]) -> str:
    """*name* if it is declared or well formed, else something that every server takes."""
    if (name and name in declared) or _NAME.fullmatch(name):
        return name
    return _NOT_NAME.sub("_", name.strip())[:64] or UNNAMED_TOOL
