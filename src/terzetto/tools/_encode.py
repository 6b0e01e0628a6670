"""What a tool returned, as text for the model, and never more of it than fits.

Owns the text form of Python values (`encode_result`) and the size limit of results
(`bound`). Text is cleaned, encoded and cut piece by piece, so that memory follows the
limit and not the value. Which code a refused value gets is the pipeline's business.

Source: the value forms are msgspec's, written with a check at every node; cutting in
the middle, because the end of a long output is where its error is.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import (
    AsyncGenerator,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set as AbstractSet,
    ValuesView,
)
from contextlib import suppress
from enum import Enum
from json.encoder import encode_basestring

import attrs
import msgspec
from attrs import define, field

from ..vocabulary import MAX_DEPTH, InvalidValue, TextBlock, clean_text
from ..vocabulary._opening import opened

MAX_RESULT_BYTES = 65_536
"""The default limit of a result."""

MAX_VALUES = 300_000
"""Most values in one result; more would hold up every other task for too long."""

NO_OUTPUT = "(no output)"
"""What the model reads for None: "null" looks like an answer, and many providers refuse ""."""

_PIECE = 4096
_SHORT = 512
_PARTS = 256
_CLOSED_AT_MOST = 10_000


_OpenText = opened(TextBlock)


def text_block(text: str) -> TextBlock:
    """A `TextBlock`, built quickly: most results are one."""
    made = _OpenText()
    made.text = text if text.isascii() else clean_text(text)
    made.__class__ = TextBlock
    block: TextBlock = made
    return block


class InvalidOutput(InvalidValue):
    """A tool returned something without a text or JSON form; the message names its type."""


def encode_result(value: object, limit: int | None) -> tuple[TextBlock, ...]:
    """The content of a successful result, at most *limit* bytes (None: all of it).

    A str is itself, None is `NO_OUTPUT`. A `TextBlock`, or a list or tuple of them, is
    passed through; so ``[]`` is no content. Everything else is compact JSON:

    - dataclasses, attrs and pydantic objects and msgspec Structs are objects, without the
      attributes whose names begin with ``_``;
    - mappings with str keys are objects; sequences and views are arrays; sets are sorted
      where their members can be compared;
    - enum members are their values; dates and times are ISO 8601; bytes are UTF-8 text;
    - NaN and the infinities are null, as in JavaScript;
    - an object whose class defines ``__str__`` (Decimal, Path, UUID) is that text.

    A value that JSON writes as one string is that string without quotes.

    Raises:
        InvalidOutput: for keys that are no str, exceptions, classes, functions,
            iterators, bytes that are no UTF-8, nesting deeper than `MAX_DEPTH` (cycles),
            more than `MAX_VALUES` values, and whatever fails while it is read. Coroutines
            and generators found in the value are closed. No other `Exception` leaves.
    """
    try:
        if type(value) is str and (limit is None or 4 * len(value) <= limit):
            return (text_block(value),)
        if isinstance(value, TextBlock):
            return bound((value,), limit)
        if isinstance(value, (list, tuple)) and all(isinstance(b, TextBlock) for b in value):
            return bound(tuple(value), limit)
        sink = _Sink(limit)
        _write_top(value, sink)
        return (TextBlock(sink.text()),)
    except InvalidOutput:
        _close(value)
        raise
    except Exception as error:  # part of the tool body: its __str__, properties and iterators
        _close(value)
        raise InvalidOutput(
            f"the tool returned {_type_name(value)}, which failed while it was read: "
            f"{type(error).__name__}"
        ) from error


def surely_fits(content: tuple[TextBlock, ...], limit: int) -> bool:
    """Whether *content* is within *limit* bytes, whatever its characters are. Cheap."""
    if len(content) == 1:
        return 4 * len(content[0].text) <= limit
    return 4 * sum(len(block.text) for block in content) <= limit


def bound(
    content: tuple[TextBlock, ...], limit: int | None, note: str = ""
) -> tuple[TextBlock, ...]:
    """*content*, or one block of at most *limit* bytes of UTF-8 with its head and tail.

    Within the limit (None: there is none), *content* itself. Over it, the texts are joined
    and cut on characters, half of the room for each end; the line between says how many
    bytes were left out, and *note*, if that fits. A limit too small for the line keeps the
    head alone.
    """
    if limit is None or surely_fits(content, limit):
        return content
    sink = _Sink(limit)
    for block in content:
        sink.write(block.text)
    return content if sink.total <= limit else (TextBlock(sink.text(note)),)


@define(eq=False)
class _Sink:
    """Text as it is written: its first and last *limit* bytes, and its length in bytes."""

    limit: int | None
    total: int = 0
    _head: bytearray = field(factory=bytearray)
    _tail: bytearray = field(factory=bytearray)

    def write(self, text: str) -> None:
        for piece in _pieces(text):
            data = clean_text(piece).encode()
            self.total += len(data)
            if self.limit is None:
                self._head += data
                continue
            if (room := self.limit - len(self._head)) > 0:
                self._head += data[:room]
            self._tail += data
            if len(self._tail) > 2 * self.limit + _PIECE:
                del self._tail[: -self.limit or None]

    def text(self, note: str = "") -> str:
        if self.limit is None or self.total <= self.limit:
            return self._head.decode()
        room = self.limit - len(_omission(self.total, note).encode())
        if room < 8 and note:
            return self.text()
        if room < 8:  # one character for each end
            return _characters(self._head[: max(self.limit, 0)])
        head = _characters(self._head[: room - room // 2])
        tail = _characters(self._tail[len(self._tail) - room // 2 :])
        omitted = self.total - len(head.encode()) - len(tail.encode())
        return head + _omission(omitted, note) + tail


def _omission(count: int, note: str) -> str:
    return f"\n[... {count} bytes omitted{note} ...]\n"


def _characters(data: bytearray) -> str:
    """The whole characters of a slice of UTF-8."""
    return data.decode("utf-8", "ignore")


def _pieces(text: str) -> Iterator[str]:
    """*text* in pieces; never cut between two halves of a surrogate pair."""
    start = 0
    while len(text) - start > _PIECE:
        end = start + _PIECE
        end -= "\ud800" <= text[end - 1] <= "\udbff"
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def _write_top(value: object, sink: _Sink) -> None:
    if value is None:
        return sink.write(NO_OUTPUT)
    plain = _lowered(value)
    if isinstance(plain, str):
        return sink.write(str.__str__(plain))
    writer = _JsonWriter(sink)
    writer.write(plain, 0)
    writer.flush()


@define(eq=False)
class _JsonWriter:
    """Compact JSON, handed to the sink in pieces."""

    _sink: _Sink
    _parts: list[str] = field(factory=list)
    _values: int = 0

    def write(self, value: object, depth: int) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise InvalidOutput(
                f"the tool returned more than {MAX_VALUES:,} values; expected fewer, or text"
            )
        if value is None:
            self._put("null")
        elif value is True or value is False:
            self._put("true" if value else "false")
        elif isinstance(value, str):
            self._string(value)
        elif isinstance(value, int):
            self._put(int.__repr__(value))
        elif isinstance(value, float):
            self._put(float.__repr__(value) if math.isfinite(value) else "null")
        elif depth >= MAX_DEPTH:
            raise InvalidOutput(f"the tool returned a cycle, or more than {MAX_DEPTH} levels")
        elif isinstance(value, dict):
            self._object(value, depth + 1)
        elif isinstance(value, (list, tuple)):
            self._array(value, depth + 1)
        elif isinstance(value, _Lazily):
            self._array(value.items, depth + 1)
        else:
            self.write(_lowered(value), depth + 1)

    def _object(self, value: Mapping[object, object], depth: int) -> None:
        before = "{"
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidOutput(
                    f"the tool returned a {_type_name(value)} with a key of type "
                    f"{_type_name(key)}; keys should be str"
                )
            self._put(before)
            self._string(key)
            self._put(":")
            self.write(item, depth)
            before = ","
        self._put("{}" if before == "{" else "}")

    def _array(self, value: Iterable[object], depth: int) -> None:
        before = "["
        for item in value:
            self._put(before)
            self.write(item, depth)
            before = ","
        self._put("[]" if before == "[" else "]")

    def _string(self, value: str) -> None:
        if len(value) <= _SHORT:
            self._put(encode_basestring(str.__str__(value)))
            return
        self._put('"')
        self.flush()
        for piece in _pieces(str.__str__(value)):
            self._sink.write(encode_basestring(piece)[1:-1])
        self._put('"')

    def _put(self, text: str) -> None:
        self._parts.append(text)
        if len(self._parts) >= _PARTS:
            self.flush()

    def flush(self) -> None:
        # One join per flush. A short string never ends in half a pair: its quote follows.
        self._sink.write("".join(self._parts))
        self._parts.clear()


@define
class _Lazily:
    """An array whose items are made while they are read, and need not all be there at once."""

    items: Iterable[object]


def _lowered(value: object) -> object:
    """*value* in the JSON types, one level of it; raises for what has no such form."""
    kind = type(value)
    if isinstance(value, Enum):
        return _lowered(value.value)
    if value is None or isinstance(value, (str, int, float, list, tuple, dict)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _decoded(value)
    if isinstance(value, BaseException):
        raise _refusal(value, "it should raise exceptions, not return them")
    if isinstance(value, type):
        raise _refusal(value, "it should return an instance")
    if isinstance(value, Coroutine) or hasattr(kind, "__await__"):
        raise _refusal(value, "it should await it and be an async def itself")
    if isinstance(value, (Iterator, AsyncGenerator)) or hasattr(kind, "__anext__"):
        raise _refusal(value, "it should return a list")
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if (fields := _fields(value)) is not None:
        return fields
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, (set, frozenset)):
        with suppress(Exception):  # members that cannot be compared
            return sorted(value)
    if isinstance(value, (AbstractSet, Sequence, ValuesView)):
        return _Lazily(value)
    if kind.__str__ is not object.__str__:
        return str(value)
    raise _refusal(value, "it should return text, numbers, lists, dicts or dataclasses")


def _fields(value: object) -> dict[str, object] | None:
    """The public attributes of a record, or None if *value* is none."""
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag = {} if config.tag is None else {config.tag_field or "type": config.tag}
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        return {**tag, **{shown: getattr(value, name) for name, shown in names}}
    if attrs.has(kind):
        found = [attribute.name for attribute in attrs.fields(kind)]
    elif dataclasses.is_dataclass(kind):
        found = [attribute.name for attribute in dataclasses.fields(kind)]
    elif callable(dump := getattr(kind, "model_dump", None)):  # pydantic
        dumped = dump(value, mode="json")
        return dumped if isinstance(dumped, dict) else None
    else:
        return None
    return {name: getattr(value, name) for name in found if not name.startswith("_")}


def _decoded(value: bytes | bytearray | memoryview) -> str:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise _refusal(value, "its bytes are no UTF-8; it should return text") from None


def _refusal(value: object, advice: str) -> InvalidOutput:
    return InvalidOutput(
        f"the tool returned {_type_name(value)}, which has no text or JSON form; {advice}"
    )


def _type_name(value: object) -> str:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return clean_text(name.removeprefix("builtins."))[:200]


def _close(value: object) -> None:
    """Close the coroutines and generators in *value*: nobody will run them now."""
    waiting, seen = [value], set[int]()
    while waiting and len(seen) < _CLOSED_AT_MOST:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, (Coroutine, Generator)):
            with suppress(Exception):  # a finally block of the tool's
                item.close()
        elif isinstance(item, AsyncGenerator):
            with suppress(Exception):
                closing = item.aclose()
                with suppress(StopIteration):
                    closing.send(None)
                closing.close()
        elif isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting.extend(item)
