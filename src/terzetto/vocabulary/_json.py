"""Lossless JSON values: what may enter the log, frozen.

Owns the two passages between a caller's Python objects and the immutable JSON
that events hold: `freeze_json` (checks and detaches) and `thaw_json` (fresh
plain containers). Encoding to bytes belongs to the stores and adapters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TypeAlias, Union

from ._errors import InvalidValue

JsonValue: TypeAlias = Union[None, bool, int, float, str, tuple["JsonValue", ...], "JsonObject"]
"""A frozen JSON value: arrays are tuples, objects are `JsonObject`."""

PlainJson: TypeAlias = None | bool | int | float | str | list["PlainJson"] | dict[str, "PlainJson"]
"""What `thaw_json` gives and `json.loads` returns."""

MAX_DEPTH = 200
"""Deeper nesting is refused: the standard encoder would overflow its stack."""


class JsonObject(Mapping[str, JsonValue]):
    """An immutable JSON object. Key order is kept and does not matter to ``==``.

    Whether a number is written with a point does: 1, 1.0 and true are three values.
    Made from any mapping that `freeze_json` takes; raises `InvalidValue` for others.
    """

    __slots__ = ("_data", "_depth", "_hash")

    def __init__(self, data: Mapping[str, object]) -> None:
        self._data: dict[str, JsonValue] = _freeze_items(data, "$", 0)
        self._depth: int = 1 + max(map(_depth, self._data.values()), default=0)
        self._hash: int | None = None

    @classmethod
    def _trusted(cls, data: dict[str, JsonValue]) -> JsonObject:
        made = cls.__new__(cls)
        made._data = data
        made._depth = 1 + max(map(_depth, data.values()), default=0)
        made._hash = None
        return made

    def __getitem__(self, key: str) -> JsonValue:
        return self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, JsonObject):
            return self._data == other._data and _same_types(self, other)
        return NotImplemented

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._data.items()))
        return self._hash

    def __repr__(self) -> str:
        return f"JsonObject({self._data!r})"


def _same_types(one: JsonValue, other: JsonValue) -> bool:
    """Whether two values that are equal for Python are written the same."""
    if one is other:
        return True
    if isinstance(one, JsonObject) and isinstance(other, JsonObject):
        return all(_same_types(item, other._data[key]) for key, item in one._data.items())
    if isinstance(one, tuple) and isinstance(other, tuple):
        return all(map(_same_types, one, other))
    return type(one) is type(other)


def has_surrogate(text: str) -> bool:
    """Whether *text* holds a lone surrogate, which UTF-8 cannot carry."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def clean_text(text: str) -> str:
    """*text* with adjacent surrogate halves joined and lone ones made U+FFFD.

    Models stream ``"\\ud83d"`` and ``"\\ude00"`` apart, tools read file names with
    ``surrogateescape``; neither may make a log unwritable or a request invalid.
    """
    if type(text) is str and text.isascii():  # nearly all, and several for each event
        return text
    if type(text) is not str:
        if not isinstance(text, str):
            raise InvalidValue(f"expected a str, got {type(text).__name__}")
        text = str.__str__(text)  # a subclass may be anything else as well
    if not has_surrogate(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def freeze_json(value: object) -> JsonValue:
    """A detached, immutable copy of *value*.

    Raises:
        InvalidValue: *value* holds NaN, an infinity, -0.0, a key that is not a
            str, a lone surrogate, a cycle, or a type that JSON does not have.
            The message names the place.
    """
    return _freeze(value, "$", 0)


def _freeze(value: object, path: str, depth: int) -> JsonValue:
    match value:
        case None | bool() | int():
            return value
        case str():
            if has_surrogate(value):
                raise InvalidValue(f"lone surrogate at {path}")
            return value
        case float():
            if not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0):
                raise InvalidValue(f"{value!r} at {path} is not lossless JSON")
            return value
    if depth >= MAX_DEPTH:
        raise InvalidValue(f"nested deeper than {MAX_DEPTH} levels, or a cycle, at {path[:80]}")
    if isinstance(value, JsonObject):
        if depth + value._depth > MAX_DEPTH:
            raise InvalidValue(f"nested deeper than {MAX_DEPTH} levels at {path[:80]}")
        return value
    if isinstance(value, Mapping):
        return JsonObject._trusted(_freeze_items(value, path, depth))
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value))
    raise InvalidValue(f"{type(value).__name__} at {path} is not JSON")


def _freeze_items(value: Mapping[str, object], path: str, depth: int) -> dict[str, JsonValue]:
    items: dict[str, JsonValue] = {}
    for key, item in value.items():
        if not isinstance(key, str) or has_surrogate(key):
            raise InvalidValue(f"object key {key!r} at {path}: expected a str of valid Unicode")
        items[key] = _freeze(item, f"{path}.{key}", depth + 1)
    return items


def _depth(value: JsonValue) -> int:
    if isinstance(value, JsonObject):
        return value._depth
    if isinstance(value, tuple):
        return 1 + max(map(_depth, value), default=0)
    return 0


def freeze_object(value: Mapping[str, object]) -> JsonObject:
    """`freeze_json` for a mapping, typed as the object it gives."""
    if isinstance(value, JsonObject):
        return value
    if not isinstance(value, Mapping):
        raise InvalidValue(f"expected a JSON object, got {type(value).__name__}")
    return JsonObject(value) if value else EMPTY_OBJECT


def thaw_json(value: JsonValue) -> PlainJson:
    """Fresh plain lists and dicts for *value*."""
    if isinstance(value, JsonObject):
        return {key: thaw_json(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thaw_json(item) for item in value]
    return value


EMPTY_OBJECT = JsonObject({})
