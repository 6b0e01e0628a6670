"""From a type to the tools that a model answers with.

Owns which shape a type has on the wire: the fields of an object type are the arguments of
its tool, any other type is one argument ``value``, and a union of object types that JSON
cannot tell apart is one tool for each. Pure; what a call of them means for a turn is the
agent's.
"""

from __future__ import annotations

import re
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from attrs import field, frozen

from ..vocabulary import InvalidTool, InvalidValue, JsonObject, freeze_object, texts
from ._schema import OMITTED, Arguments, InvalidArguments, Parameter, json_text, text_of
from ._signature import compile_parameters, refuse_explosion, without_odd_defaults

VALUE = "value"
"""What the body of an answer tool receives, and the argument of a type without fields."""

_REF = "#/$defs/"
_PRESENT = object()
_LONGEST_NAME = 200


@frozen(kw_only=True, eq=False)
class FieldArguments(Arguments):
    """Arguments that are the fields of one type; the body receives a whole ``value``."""

    _whole: msgspec.json.Decoder[Any] = field(alias="whole", repr=False)

    def check(self, text: str | None) -> dict[str, object]:
        """The value in *text*. Fields it does not have are refused, not dropped."""
        source = json_text(text)
        try:
            value = self._whole.decode(source)
            given = msgspec.json.decode(source, type=dict[str, msgspec.Raw])
        except RecursionError:
            raise InvalidArguments(f"arguments of {self.tool}: nested too deeply") from None
        except Exception as error:  # msgspec's own, or any from a validator of the type
            raise self._refused(source, error) from error
        if given.keys() - {parameter.name for parameter in self.parameters}:
            raise self._refused(source, InvalidValue("unknown fields"))
        return {VALUE: value}

    def _refused(self, source: str, error: Exception) -> InvalidArguments:
        return InvalidArguments(
            f"arguments of {self.tool}: {'; '.join(self._faults(source, error))}"
        )


@frozen(kw_only=True)
class AnswerForm:
    """One way to give an answer: the tool's *name*, what it says, and what it takes."""

    name: str
    arguments: Arguments

    @property
    def description(self) -> str:
        return f"{texts.ANSWER_TOOL_TEXT} {self.arguments.description}".rstrip()


def answer_forms(returns: object) -> tuple[AnswerForm, ...]:
    """The ways to answer with a value of type *returns*.

    Raises:
        InvalidValue: JSON cannot describe the type, or it is none.
    """
    if returns is None or returns is NoneType:
        raise InvalidValue("returns: expected a type, got None; leave it out for a plain turn")
    try:
        refuse_explosion(returns)
    except TypeError as error:
        raise InvalidValue(f"returns: {error}") from None  # its name would be as long
    try:
        return (_form(returns, texts.ANSWER_TOOL),)
    except (InvalidValue, TypeError, RecursionError) as error:
        if forms := _by_member(returns):
            return forms
        raise InvalidValue(
            f"returns: expected a type that JSON can describe, got {type_name(returns)}: "
            f"{_plain(error)}"
        ) from error


def type_name(returns: object) -> str:
    """*returns* as a program writes it."""
    if isinstance(returns, type) and not get_args(returns):
        return returns.__qualname__
    name = repr(returns).replace("typing.", "")
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."


def _plain(error: BaseException) -> str:
    text = _last_line(error)
    return text.removeprefix(f"tool {texts.ANSWER_TOOL!r}: ").removeprefix("parameter 'value': ")


def _form(hint: object, name: str) -> AnswerForm:
    arguments = _fields(hint, name) or _one_value(hint, name)
    return AnswerForm(name=name, arguments=arguments)


def _by_member(returns: object) -> tuple[AnswerForm, ...]:
    """A tool for each object type of a union that JSON alone cannot tell apart.

    Empty if *returns* is no such union, or holds something else that cannot be described.
    """
    if get_origin(returns) not in (Union, UnionType):
        return ()
    try:
        objects = {member: _object(member) for member in get_args(returns)}
        others = [member for member, found in objects.items() if found is None]
        names = [f"{texts.ANSWER_TOOL}_{_word(m)}" for m, found in objects.items() if found]
        if len(set(names)) != len(names):
            names = [f"{name}_{index}" for index, name in enumerate(names, start=1)]
        members = [member for member, found in objects.items() if found]
        forms = [_form(member, name) for member, name in zip(members, names, strict=True)]
        if others:
            forms.append(_form(Union[tuple(others)], texts.ANSWER_TOOL))  # noqa: UP007
        return tuple(forms)
    except (InvalidValue, TypeError, RecursionError):
        return ()


def _word(member: object) -> str:
    name = getattr(member, "__name__", None) or type_name(member)
    return re.sub(r"[^A-Za-z0-9_-]+", "_", str(name))[:40]


def _object(hint: object) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The schema of an object with fields of its own, and of all that it refers to."""
    try:
        (top,), components = msgspec.json.schema_components([hint])
    except Exception as error:  # msgspec's own, or any from evaluating the type's annotations
        raise InvalidTool(_last_line(error)) from error
    if set(top) != {"$ref"}:
        return None
    schema = components[top["$ref"].removeprefix(_REF)]
    return (schema, components) if "properties" in schema else None


def _fields(hint: object, name: str) -> Arguments | None:
    """The fields of *hint* as arguments, or None if it has none of its own."""
    found = _object(hint)
    if found is None:
        return None
    try:
        whole = msgspec.json.Decoder[Any](hint)
    except Exception as error:  # as in `_object`
        raise InvalidTool(_last_line(error)) from error
    own, components = found
    schema = {key: value for key, value in own.items() if key not in ("title", "description")}
    schema["additionalProperties"] = False
    if not schema["required"]:
        del schema["required"]
    ref = next(key for key, value in components.items() if value is own)
    others = {key: value for key, value in components.items() if key != ref}
    if _mentions(own, _REF + ref) or _mentions(others, _REF + ref):
        others = components  # it contains itself
    if others:
        schema["$defs"] = others
    hints = _hints(hint)
    required = schema.get("required", ())
    parameters = tuple(
        Parameter(
            name=key,
            hint=hints.get(key, Any),
            default=OMITTED if key in required else _PRESENT,
        )
        for key in schema["properties"]
    )
    return FieldArguments(
        tool=name,
        description=own.get("description", ""),
        schema=_frozen(schema),
        injects=None,
        parameters=parameters,
        decoder=msgspec.json.Decoder(msgspec.Struct),
        whole=whole,
    )


def _one_value(hint: object, name: str) -> Arguments:
    parameter = Parameter(name=VALUE, hint=hint)
    decoder, schema = compile_parameters(name, [parameter])
    return Arguments(
        tool=name,
        description="",
        schema=_frozen(schema),
        injects=None,
        parameters=(parameter,),
        decoder=decoder,
    )


def _frozen(schema: dict[str, Any]) -> JsonObject:
    try:
        return freeze_object(without_odd_defaults(schema))
    except InvalidValue as error:
        raise InvalidTool(f"its schema is not JSON: {error}") from error


def _mentions(node: object, ref: str) -> bool:
    if isinstance(node, dict):
        return node.get("$ref") == ref or any(_mentions(item, ref) for item in node.values())
    return isinstance(node, list) and any(_mentions(item, ref) for item in node)


def _hints(hint: object) -> dict[str, object]:
    """The type of each field, where it can be read: it makes the errors better."""
    kind = get_origin(hint) or hint
    if kind is Annotated:
        kind = get_args(hint)[0]
    try:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return {info.encode_name: info.type for info in msgspec.structs.fields(kind)}
        return dict(get_type_hints(kind, include_extras=not is_typeddict(kind)))
    except Exception:  # somebody else's annotations; msgspec has read them in its own way
        return {}


def _last_line(error: BaseException) -> str:
    return text_of(error).strip().splitlines()[-1]
