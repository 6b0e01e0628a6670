"""What a model may send to a tool, and what becomes of it.

Owns the passage from the raw text of a call to checked arguments (`Arguments.check`,
`parse_raw`), with errors written for the model, and the check of schemas that are given
whole (`check_raw_schema`). Pure. Reading signatures is ``_signature``'s; which result a
refusal becomes is the pipeline's.

Source: msgspec, which decodes JSON straight into the annotated types and describes the
same types as JSON Schema, so that the two cannot disagree.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import unquote

import msgspec
from attrs import field, frozen

from ..vocabulary import (
    InvalidTool,
    InvalidValue,
    JsonObject,
    JsonValue,
    PlainJson,
    clean_text,
    freeze_object,
)

OMITTED: Final = object()
"""The default of a parameter without one, and the value of an argument not sent."""

_MAX_SCHEMA_NODES = 200_000
_FAULTS_TOLD = 8
_LONGEST_FAULT = 300


class InvalidArguments(InvalidValue):
    """Arguments that do not fit their tool. The message is written for the model."""


# --- what every tool does with the model's text ---------------------------------------------

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair: one character
    r"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)


def json_text(text: str | None) -> str:
    """*text*, ``{}`` where it says nothing, without surrogates that UTF-8 cannot carry."""
    if text is not None and text[:1] == "{" and text.isascii() and "\\u" not in text:
        return text  # mostly: nothing of what follows can be
    if text is None or text.strip() in ("", "null"):
        return "{}"
    text = clean_text(text)
    if _SURROGATE.search(text):
        text = _ESCAPE.sub(lambda m: "\\ufffd" if m["lone"] else m[0], text)
    return text


def parse_raw(text: str | None) -> PlainJson:
    """What a tool with a raw schema receives: JSON as plain values, anything else as text.

    Absent, blank and ``null`` arguments are ``{}``. JSON that Python cannot hold (numbers
    out of range, nesting beyond the stack) is text too.
    """
    try:
        value: PlainJson = msgspec.json.decode(json_text(text))
    except (msgspec.DecodeError, RecursionError):
        return clean_text(text or "")
    return value


# --- typed tools ----------------------------------------------------------------------------


@frozen(kw_only=True)
class Parameter:
    """One argument the model may send. Without a *default* it has to."""

    name: str
    hint: object
    default: object = OMITTED

    def fresh_default(self) -> object:
        """The default; a copy if it is mutable, so that calls share no state."""
        return copy.deepcopy(self.default) if is_mutable(self.default) else self.default


@frozen(kw_only=True, eq=False)
class Arguments:
    """What one typed tool takes: `schema` for the model, `check` for what it sends.

    *injects* names the parameter that the engine fills.
    """

    tool: str
    description: str
    schema: JsonObject
    injects: str | None
    parameters: tuple[Parameter, ...]
    _decoder: msgspec.json.Decoder[msgspec.Struct] = field(alias="decoder", repr=False)
    # Found out once: every call asks.
    _names: tuple[str, ...] = field(init=False, repr=False)
    _optional: tuple[Parameter, ...] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        names = tuple(parameter.name for parameter in self.parameters)
        optional = tuple(p for p in self.parameters if p.default is not OMITTED)
        object.__setattr__(self, "_names", names)
        object.__setattr__(self, "_optional", optional)

    def check(self, text: str | None) -> dict[str, object]:
        """The keyword arguments in *text*, every parameter present, defaults filled in.

        Absent, blank and ``null`` arguments are ``{}``.

        Raises:
            InvalidArguments: *text* is not a JSON object that fits the schema. Says what
                was expected, what came, and where.
        """
        source = json_text(text)
        try:
            values: tuple[object, ...] = msgspec.structs.astuple(self._decoder.decode(source))
            found = dict(zip(self._names, values, strict=True))
            for parameter in self._optional:
                if found[parameter.name] is OMITTED:
                    found[parameter.name] = parameter.fresh_default()
            return found
        except RecursionError:
            raise InvalidArguments(f"arguments of {self.tool}: nested too deeply") from None
        except Exception as error:  # msgspec's own, or any from a validator of the tool's types
            faults = "; ".join(self._faults(source, error))
            raise InvalidArguments(f"arguments of {self.tool}: {faults}") from error

    def _faults(self, source: str, error: Exception) -> list[str]:
        """What is wrong with *source*: the first fault of each argument."""
        try:
            given = msgspec.json.decode(source, type=dict[str, msgspec.Raw])
        except RecursionError:
            return ["nested too deeply"]
        except msgspec.ValidationError as other:
            return [f"expected a JSON object, got {_cut(str(other).rpartition('got ')[2])}"]
        except msgspec.DecodeError as other:
            came = f"text that is not JSON ({_lower_first(str(other))}): {source[:100]!r}"
            return [f"expected a JSON object, got {_cut(came)}"]
        known = {parameter.name for parameter in self.parameters}
        faults = [
            f"missing required field `{parameter.name}`"
            for parameter in self.parameters
            if parameter.default is OMITTED and parameter.name not in given
        ]
        if unknown := [name for name in given if name not in known]:
            names = ", ".join(f"`{_cut(name, 80)}`" for name in unknown[:_FAULTS_TOLD])
            faults.append(
                f"unknown field {names}; the fields are: {', '.join(sorted(known)) or 'none'}"
            )
        for parameter in self.parameters:
            if parameter.name in given:
                faults += self._fault(parameter, given[parameter.name])
        return faults[:_FAULTS_TOLD] or [_cut(_lower_first(text_of(error)))]

    def _fault(self, parameter: Parameter, raw: msgspec.Raw) -> list[str]:
        try:
            msgspec.json.decode(raw, type=parameter.hint)
        except Exception as error:  # as in `check`
            text, _, inner = text_of(error).partition(" - at `$")
            place = f"$.{parameter.name}{inner.rstrip('`')}"
            if not inner and text.startswith("Invalid enum value"):
                text += f", expected one of {self._allowed(parameter.name)}"
            return [_cut(f"{_lower_first(text)} - at `{place}`")]
        return []

    def _allowed(self, name: str) -> str:
        """The values of an enum parameter, from its schema."""
        node: JsonValue = _at(self.schema, f"#/properties/{name}")
        if isinstance(node, JsonObject) and isinstance(ref := node.get("$ref"), str):
            node = _at(self.schema, ref)
        values = node.get("enum") if isinstance(node, JsonObject) else None
        return ", ".join(map(repr, values)) if isinstance(values, tuple) else "the schema's"


def is_mutable(value: object) -> bool:
    """Whether *value* has no hash, as lists and plain dataclass instances have none."""
    try:
        hash(value)
    except Exception:  # a foreign __hash__ may do anything
        return True
    return False


def text_of(error: BaseException) -> str:
    """The text of *error*, or the name of its type if it has none."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # a foreign __str__ may do anything
        return type(error).__name__


def _lower_first(text: str) -> str:
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _cut(text: str, longest: int = _LONGEST_FAULT) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."


# --- raw schemas ----------------------------------------------------------------------------

_DATA_KEYS = frozenset({"const", "default", "enum", "example", "examples"})
_SCHEMA_MAPS = frozenset(
    {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
)


def check_raw_schema(parameters: Mapping[str, object], *, tool: str) -> JsonObject:
    """*parameters*, frozen, if it is the JSON Schema of an object.

    Recursive references are kept, never inlined.

    Raises:
        InvalidTool: it is not JSON, describes something else than an object, refers to a
            part of itself that is not there, or is too large.
    """
    try:
        if sizes(parameters, _items)[id(parameters)][1] > _MAX_SCHEMA_NODES:
            raise InvalidValue(f"more than {_MAX_SCHEMA_NODES:,} values; use $defs and $ref")
        schema = freeze_object(parameters)
    except (InvalidValue, RecursionError) as error:
        raise InvalidTool(f"tool {tool!r}: parameters: {error}") from error
    if schema.get("type") != "object":
        raise InvalidTool(
            f"tool {tool!r}: parameters: expected a JSON Schema with type 'object', "
            f"got type {schema.get('type')!r:.100}"
        )
    for ref in _references(schema):
        if _at(schema, ref) is None:
            raise InvalidTool(f"tool {tool!r}: parameters: $ref {ref!r:.200} points to nothing")
    return schema


def _items(node: object) -> Iterable[object]:
    if isinstance(node, (dict, JsonObject)):
        return node.values()
    return node if isinstance(node, (list, tuple)) else ()


def _references(schema: JsonObject) -> Iterator[str]:
    """The references of *schema* into itself."""
    pending: list[JsonValue] = [schema]
    seen = set[int]()
    while pending:
        node = pending.pop()
        if isinstance(node, tuple):
            pending += node
        if not isinstance(node, JsonObject) or id(node) in seen:
            continue
        seen.add(id(node))
        if node is not schema and isinstance(node.get("$id"), str):
            continue  # a document of its own, with references of its own
        if isinstance(ref := node.get("$ref"), str) and ref.startswith("#/"):
            yield ref
        for key, item in node.items():
            if key in _SCHEMA_MAPS and isinstance(item, JsonObject):
                pending += item.values()
            elif key not in _DATA_KEYS:
                pending.append(item)


def _at(schema: JsonObject, ref: str) -> JsonValue:
    """The value that the JSON pointer of *ref* names, or None."""
    node: JsonValue = schema
    for part in unquote(ref.removeprefix("#/")).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, JsonObject):
            node = node.get(key)
        elif isinstance(node, tuple) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def sizes(
    root: object, children: Callable[[object], Iterable[object]]
) -> dict[int, tuple[object, int]]:
    """Every node under *root* by id, with its size when written out in full."""
    known: dict[int, tuple[object, int]] = {}

    def size(node: object) -> int:
        if id(node) not in known:
            known[id(node)] = (node, 1)  # a cycle counts once; holding the node keeps its id
            known[id(node)] = (node, 1 + sum(size(child) for child in children(node)))
        return known[id(node)][1]

    size(root)
    return known
