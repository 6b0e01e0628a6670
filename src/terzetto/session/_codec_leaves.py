"""The leaves of the codec: JSON text, texts, numbers, and JSON held as it is.

A check takes what is in memory or what was read, and gives it back or refuses it: the same
one serves both directions, so nothing can be written that could not be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec

from ..vocabulary import (
    MAX_DEPTH,
    InvalidValue,
    JsonObject,
    JsonValue,
    PlainJson,
    freeze_json,
    freeze_object,
    has_surrogate,
)

_DUMPS = msgspec.json.Encoder().encode
_LOADS = msgspec.json.Decoder().decode


def dumps_json(obj: PlainJson) -> bytes:
    """Compact JSON in UTF-8 for what the encoders of this module gave."""
    try:
        return _DUMPS(obj)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"cannot be written as JSON: {error}") from None


def loads_json(record: bytes) -> PlainJson:
    """The plain JSON in *record*.

    Raises:
        InvalidValue: it is not JSON, not UTF-8, cut short, or nested too deep.
    """
    try:
        obj: PlainJson = _LOADS(record)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"not JSON: {error}") from None
    return obj


def show(value: object) -> str:
    """*value*, shortened, with its type: the "what came" of a message."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python puts into words
        text = "a huge integer"
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def text(value: Any, _: Any = None) -> str:
    if type(value) is str:
        if value.isascii() or not has_surrogate(value):
            return value
        raise InvalidValue("lone surrogate in a text")
    if isinstance(value, str):  # a StrEnum member, say: its plain text
        return text(str.__str__(value))
    raise InvalidValue(f"expected a text, got {show(value)}")


def integer(value: Any, _: Any = None) -> int:
    if type(value) is int:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise InvalidValue(f"expected an integer, got {show(value)}")


def boolean(value: Any, _: Any = None) -> bool:
    if isinstance(value, bool):
        return value
    raise InvalidValue(f"expected true or false, got {show(value)}")


def plain(value: Any, depth: int = 0) -> PlainJson:
    """Fresh plain JSON. Checks what `thaw_json` trusts: `JsonObject` takes anything."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value) and (value or math.copysign(1, value) > 0):
            return float(value)
        raise InvalidValue(f"{value!r} is not lossless JSON")
    if depth >= MAX_DEPTH:
        raise InvalidValue(f"JSON nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return {text(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item, depth + 1) for item in value]
    raise InvalidValue(f"expected JSON, got {show(value)}")


def plain_object(value: Any) -> dict[str, PlainJson]:
    if isinstance(value, Mapping):
        return {text(key): plain(item, 1) for key, item in value.items()}
    raise InvalidValue(f"expected a JSON object, got {show(value)}")


def frozen(value: Any, _: Any = None) -> JsonValue:
    if value is None:
        raise InvalidValue("null does not stand for an absent key")
    return freeze_json(value)


def frozen_object(value: Any, _: Any = None) -> JsonObject:
    return freeze_object(plain_dict(value))


def plain_dict(value: Any) -> dict[str, Any]:
    if type(value) is dict:
        return value
    raise InvalidValue(f"expected an object, got {show(value)}")


def one_of(literal: Any) -> Callable[..., str]:
    words = get_args(literal)

    def check(value: Any, _: Any = None) -> str:
        if isinstance(value, str) and value in words:
            return text(value)
        raise InvalidValue(f"expected one of {words}, got {show(value)}")

    return check
