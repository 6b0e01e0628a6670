"""Events, messages and headers as JSON, and back.

Owns the format: the key names, what is left out when absent; the tags stand in
`_codec_names.py`. The shapes are the reference's, camelCase; in memory names are snake_case,
and only the codec knows both. Stores own the bytes; `dumps_event` and `loads_event` make and
read a record. Usual events go a straight way (`_codec_fast.py`), made from the same tables.

``decode_event(encode_event(e)) == e`` for every event, and whatever is written can be
read: both directions make the same checks (`_codec_strict.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from typing import Any

import attrs
from cattrs import BaseValidationError

from .. import vocabulary as v
from ..vocabulary import InvalidValue, PlainJson, StoreError
from ._codec_fast import UNUSUAL, Straight
from ._codec_leaves import (
    _DUMPS,
    dumps_json as dumps_json,
    frozen_object,
    loads_json as loads_json,
    plain_dict,
    plain_object,
    show,
    text,
)
from ._codec_names import TAGGED, TAGS as TAGS
from ._codec_strict import Decoder, Encoder, Shapes, exactly

FORMAT_VERSION = 1
"""What this Terzetto writes, and the only format that it reads."""


def _encode_data(data: Any) -> Any:
    return _ENCODERS[type(data)](data)


def _encode_op(op: Any) -> Any:
    if type(op) is v.Append:
        return "append"
    if type(op) is not v.Replace:
        raise InvalidValue(f"surface_op: expected Append or Replace, got {show(op)}")
    return _ENCODERS[v.Replace](op)


def _decode_op(value: Any, _: Any) -> v.SurfaceOp:
    return v.APPEND if value == "append" else _DECODERS[v.Replace](value)


def _encode_sources(sources: Any) -> Any:
    if type(sources) is tuple and len(sources) == 1 and type(sources[0]) is int:
        return [sources[0]]  # a result cites its call
    if type(sources) is v.Seqs or (
        type(sources) is tuple and _INTEGER.issuperset(map(type, sources))
    ):
        return list(sources)
    return _ENCODE_SEQS(sources)


def _decode_sources(value: Any, kind: Any) -> v.Sources:
    if type(value) is list and _INTEGER.issuperset(map(type, value)):
        return v.cited(value)
    return v.cited(_DECODE_SEQS(value, kind))


def _default_fields(names: Any) -> frozenset[str]:
    if isinstance(names, frozenset) and names <= {"reasoningEffort", "maxTokens"}:
        return names
    raise InvalidValue(f"expected a set of reasoningEffort and maxTokens, got {show(names)}")


def _encode_defaults(names: Any) -> PlainJson:
    return dict.fromkeys(sorted(_default_fields(names)), True)


def _decode_defaults(value: Any, _: Any) -> frozenset[str]:
    if any(mark is not True for mark in plain_dict(value).values()):
        raise InvalidValue(f"expected true for each field, got {show(value)}")
    return _default_fields(frozenset(value))


# _messages.py lacks a name that JsonValue refers to.
attrs.resolve_types(v.ModelSource, localns={"JsonObject": v.JsonObject})
_shapes = Shapes(
    tagged=TAGGED,
    keys={
        v.TurnEnd: {"ending": "reason"},
        v.Aborted: {"cause": "reason"},
        v.CallConfig: {"effort": "reasoningEffort"},
        v.ModelSelection: {"effort": "reasoningEffort"},
        v.Event: {"time_ms": "time", "sources": "sourceEventSeqs"},
    },
    always={
        v.UserMessage: frozenset({"source", "id"}),
        v.AssistantMessage: frozenset({"id"}),
        v.SystemMessage: frozenset({"id"}),
        v.DeveloperMessage: frozenset({"source", "id"}),
        v.ToolResultBlock: frozenset({"is_error"}),
        v.Failure: frozenset({"code"}),
        v.InboxSpliced: frozenset({"inserted"}),
        v.CompactionEnd: frozenset({"outcome"}),
        v.SessionHeader: frozenset({"format_version", "durability"}),
    },
    custom={
        (v.Event, "data"): (_encode_data, lambda data, _: data),
        (v.Event, "surface_op"): (_encode_op, _decode_op),
        (v.Event, "sources"): (_encode_sources, _decode_sources),
        (v.RequestHeader, "adapter_defaults"): (_encode_defaults, _decode_defaults),
    },
    outside={(v.Event, "data"): ("type", TAGS)},
)


class _Hooks(dict[object, Callable[..., Any]]):
    """Hooks by class, made when first asked for."""

    def __init__(self, make: Callable[[Any], Callable[..., Any]]) -> None:
        self._make = make

    def __missing__(self, cls: object) -> Callable[..., Any]:
        hook = self[cls] = self._make(cls)
        return hook


_INTEGER = frozenset({int})
_ENCODE_SEQS = _shapes.encoder(tuple[int, ...])
_DECODE_SEQS = _shapes.decoder(tuple[int, ...])
_ENCODERS = _Hooks(_shapes.trusting_encoder)
_DECODERS = _Hooks(_shapes.decoder)


def _config_encoder(cls: type) -> Encoder:
    fields = _shapes.fields_encoder(cls, without="options")
    return exactly(cls, lambda config: {**fields(config), **plain_object(config.options)})


def _config_decoder(cls: type) -> Decoder:
    fields = _shapes.fields_decoder(cls, without="options")

    def decode(value: Any, _: Any = None) -> v.CallConfig:
        known = {key: item for key, item in plain_dict(value).items() if key in v.CONFIG_KEYS}
        config: v.CallConfig = fields(known, None)
        options = {key: item for key, item in value.items() if key not in known}
        return attrs.evolve(config, options=frozen_object(options)) if options else config

    return decode


_shapes.register(v.CallConfig, _config_encoder, _config_decoder)
_shapes.register(
    v.Extension,
    lambda _: lambda extension: plain_object(extension.data),
    lambda _: frozen_object,
)
_shapes.register_through(v.UserMessageEvent, "message", v.UserMessage)
_shapes.register_through(v.ModelSelected, "selection", v.ModelSelection)
_PAYLOADS = {name: payload for payload, name in TAGS.items()}
_STRAIGHT = Straight(_shapes)
_UNUSUAL_OR_UNWRITABLE = (*UNUSUAL, ValueError, RecursionError)


def encode_event(event: v.Event) -> dict[str, PlainJson]:
    """*event* as fresh plain JSON: ``type``, ``seq``, ``time`` (ms) and ``data``, then
    ``surfaceOp``, ``sourceEventSeqs`` and ``ignorable`` where there is one.

    Raises:
        InvalidValue: it holds what could not be read back: a value of a wrong type, NaN, a
            lone surrogate, an extension under one of Terzetto's own names. The seq is named.
    """
    try:
        return _STRAIGHT.events[type(event.data)](event)  # type: ignore[no-any-return]
    except UNUSUAL:
        return _encode_strictly(event)


def _encode_strictly(event: v.Event) -> dict[str, PlainJson]:
    try:
        name = TAGS.get(type(event.data)) or _extension_name(event.data)
        return {"type": name, **_ENCODERS[v.Event](event)}
    except InvalidValue as error:
        kind = type(event.data).__name__
        raise InvalidValue(f"event {event.seq} ({kind}) cannot be written: {error}") from None


def decode_event(obj: object, *, seq_hint: int, extensions: Collection[str] = ()) -> v.Event:
    """The event that *obj*, plain JSON, stands for.

    Args:
        seq_hint: Its place in its log; named in errors when *obj* has no seq to name.
        extensions: Names of the `Extension` events that the caller knows. Others load
            only when they are marked ignorable.

    Raises:
        InvalidValue: with the seq, and each fault with its path (``$.data.turn: missing``).
            A default may be spelled out (``"interrupted": false``), ``null`` may not.
    """
    if type(obj) is dict:
        try:
            return _STRAIGHT.decoders[v.Event](obj)  # type: ignore[no-any-return]
        except UNUSUAL:
            pass
    return _decode_strictly(obj, seq_hint, extensions)


def _decode_strictly(obj: object, seq_hint: int, extensions: Collection[str]) -> v.Event:
    path = "$"
    try:
        fields = plain_dict(obj).copy()
        path = "$.type"
        name = text(_take(fields, "type"))
        payload = _PAYLOADS.get(name)
        if payload is None and fields.get("ignorable") is not True and name not in extensions:
            raise InvalidValue(_UNKNOWN_TYPE.format(name=name))
        path = "$.data"
        data = _take(fields, "data")
        fields["data"] = (
            _DECODERS[payload](data, payload) if payload else v.Extension(name, frozen_object(data))
        )
        path = "$"
        event: v.Event = _DECODERS[v.Event](fields, v.Event)
        return event
    except (InvalidValue, BaseValidationError) as error:
        seq = obj.get("seq") if isinstance(obj, dict) else None
        raise _refused(f"event {seq if type(seq) is int else seq_hint}", error, path) from None


def dumps_event(event: v.Event) -> bytes:
    """*event* as one record: compact JSON in UTF-8, without a newline anywhere in it.

    Raises:
        InvalidValue: as `encode_event` does.
    """
    try:  # as below, without a call for each half
        return _DUMPS(_STRAIGHT.events[type(event.data)](event))
    except _UNUSUAL_OR_UNWRITABLE:
        return dumps_json(encode_event(event))


def loads_event(record: bytes, *, seq_hint: int, extensions: Collection[str] = ()) -> v.Event:
    """The event in a record: `loads_json`, then `decode_event`.

    Raises:
        InvalidValue: as these two do.
    """
    return decode_event(loads_json(record), seq_hint=seq_hint, extensions=extensions)


def encode_header(header: v.SessionHeader) -> dict[str, PlainJson]:
    """*header* as fresh plain JSON. ``formatVersion`` comes first.

    Raises:
        InvalidValue: it names another format than this Terzetto writes, or a value that
            could not be read back.
    """
    if header.format_version != FORMAT_VERSION:
        raise InvalidValue(f"format {header.format_version}: this terzetto writes {FORMAT_VERSION}")
    fields: dict[str, PlainJson] = _ENCODERS[v.SessionHeader](header)
    return {"formatVersion": FORMAT_VERSION, **fields}


def decode_header(obj: object) -> v.SessionHeader:
    """The header that *obj* stands for.

    Raises:
        StoreError: it was written by a newer or an older Terzetto; nothing else was looked at.
        InvalidValue: each other fault, with its path.
    """
    try:
        version = plain_dict(obj).get("formatVersion")
        if type(version) is int and version != FORMAT_VERSION:
            raise StoreError(_other_format(version))
        header: v.SessionHeader = _DECODERS[v.SessionHeader](obj, v.SessionHeader)
        return header
    except (InvalidValue, BaseValidationError) as error:
        raise _refused("session header", error) from None


def encode_message(message: v.Message) -> dict[str, PlainJson]:
    """*message* as fresh plain JSON, with its ``role``.

    Raises:
        InvalidValue: it holds what could not be read back.
    """
    fields: dict[str, PlainJson] = _ENCODERS[v.Message](message)
    return fields


def decode_message(obj: object) -> v.Message:
    """The message of any role that *obj* stands for.

    Raises:
        InvalidValue: each fault, with its path.
    """
    try:
        message: v.Message = _DECODERS[v.Message](obj, v.Message)
        return message
    except (InvalidValue, BaseValidationError) as error:
        raise _refused("message", error) from None


def encode_tool(tool: v.ToolSchema) -> dict[str, PlainJson]:
    """*tool* as fresh plain JSON, the keys of its parameters in their order."""
    fields: dict[str, PlainJson] = _ENCODERS[v.ToolSchema](tool)
    return fields


def encode_request(request: v.Request) -> dict[str, PlainJson]:
    """*request* as fresh plain JSON, for comparison and display; adapters write their own.

    The call configuration with its options, ``messages``, ``tools`` when there are any, and
    ``sessionId``. The tool history is left out: it is derived from the same log.
    """
    fields: dict[str, PlainJson] = _ENCODERS[v.CallConfig](request.config)
    fields["messages"] = [encode_message(message) for message in request.messages]
    if request.tools:
        fields["tools"] = [encode_tool(tool) for tool in request.tools]
    fields["sessionId"] = text(request.session_id)
    return fields


def encode_failure(failure: v.Failure) -> dict[str, PlainJson]:
    """*failure* as fresh plain JSON: ``message``, ``code``, and what else is known."""
    fields: dict[str, PlainJson] = _ENCODERS[v.Failure](failure)
    return fields


_UNKNOWN_TYPE = (
    "{name!r} is no type of this terzetto's, and the event is not ignorable; name it in "
    "extensions= if you know what it means, or read the log with the program that wrote it"
)


def _extension_name(data: object) -> str:
    if not isinstance(data, v.Extension):
        raise InvalidValue(f"not the data of an event: {show(data)}")
    if text(data.name) in _PAYLOADS:
        raise InvalidValue(f"the extension name {data.name!r} is a type of Terzetto's own")
    return text(data.name)


def _take(fields: dict[str, Any], key: str) -> Any:
    if key not in fields:
        raise InvalidValue("missing")
    return fields.pop(key)


def _other_format(version: int) -> str:
    age, remedy = (
        ("a newer", "upgrade terzetto")
        if version > FORMAT_VERSION
        else ("an older", "convert it with the version that wrote it")
    )
    return f"written by {age} terzetto: format {version}, this one reads {FORMAT_VERSION}; {remedy}"


def _refused(what: str, error: Exception, path: str = "$") -> InvalidValue:
    return InvalidValue(f"{what}: " + "; ".join(islice(_shapes.faults(error, path), 5)))
