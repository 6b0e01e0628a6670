"""Fields of chat-completions events, read from whatever a server put there.

Pure readers: a value of the wrong type reads as absent, nothing raises.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import msgspec

from ..vocabulary import Usage

UNREADABLE: Final = object()
"""What `parse` gives for a text that is not JSON."""


def parse(data: str) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        pass
    # The lenient reader: it takes halves of surrogate pairs and numbers of any size.
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return UNREADABLE


def is_error(payload: Mapping[str, object]) -> bool:
    error = payload.get("error")
    if error is not None and (error or "choices" not in payload):
        return True
    return payload.get("object") == "error" or payload.get("type") == "error"


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def list_of(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def content_of(value: object) -> tuple[str, str]:
    """Reasoning and text of a ``content``: a text, or typed parts as Mistral sends."""
    if not isinstance(value, list):
        return "", text_of(value)
    parts = [part for part in value if isinstance(part, dict)]
    thought = "".join(content_of(part.get("thinking"))[1] for part in parts)
    return thought, "".join(text_of(part.get("text")) for part in parts)


def arguments_of(value: object) -> str:
    """Arguments as text. None are none, as is an empty list, which is how PHP writes an empty
    object; what else is no text is written as the JSON that it was, for the model to be told."""
    if isinstance(value, str):
        return value
    return "" if value is None or value == [] else json.dumps(value, ensure_ascii=False)


def position_of(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 9:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def split_half(text: str) -> tuple[str, str]:
    """*text* without a high surrogate at its end, and that surrogate."""
    return (text[:-1], text[-1]) if text and "\ud800" <= text[-1] <= "\udbff" else (text, "")


def usage_of(value: object) -> Usage | None:
    if not isinstance(value, dict):
        return None
    prompt, completion = _count(value.get("prompt_tokens")), _count(value.get("completion_tokens"))
    hit, miss = (_count(value.get(f"prompt_cache_{part}_tokens")) for part in ("hit", "miss"))
    if prompt is None and miss is not None:  # together they are the prompt
        prompt = miss + (hit or 0)
    if prompt is None and completion is None:
        return None
    details = value.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    spent = value.get("completion_tokens_details")
    spent = spent if isinstance(spent, dict) else {}
    cached = _count(details.get("cached_tokens"))
    return Usage(
        input_tokens=prompt or 0,
        output_tokens=completion or 0,
        cache_read_tokens=hit if cached is None else cached,
        cache_write_tokens=_count(details.get("cache_write_tokens")),
        reasoning_tokens=_count(spent.get("reasoning_tokens")),
    )


def _count(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    ok = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    return value if ok and isinstance(value, int) else None
