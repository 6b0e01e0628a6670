"""From a callable's signature and docstring to what a model may send it.

Owns the reading of annotations, defaults and docstrings, and the words of `InvalidTool`
for those that cannot be described. Pure.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from ..vocabulary import InvalidTool, InvalidValue, freeze_json, freeze_object
from ._docstring import read_docstring
from ._schema import OMITTED, Arguments, Parameter, is_mutable, sizes, text_of

Body: TypeAlias = Callable[..., object]

_PLAIN_TYPES = (
    "str, int, float, bool, None, list, dict, Literal, an enum, "
    "a dataclass, an attrs class or a msgspec Struct"
)
_MAX_TYPE_NODES = 10_000


def describe(body: Body, *, tool: str, inject: type) -> Arguments:
    """Read the signature and the docstring of *body*.

    A parameter annotated *inject* (or ``inject | None``) is left out of the schema.
    Keywords that a `functools.partial` has filled are left out too: they may be secrets.

    Raises:
        InvalidTool: names the tool and the parameter, and says what to do.
    """
    documented = read_docstring(body)
    parameters: list[Parameter] = []
    injects: str | None = None
    for name, hint, default in _annotated(body, tool, inject):
        if not _is_injected(hint, inject):
            _check_default(tool, name, default)
            parameters.append(Parameter(name=name, hint=hint, default=default))
        elif injects is None:
            injects = name
        else:
            raise InvalidTool(
                f"tool {tool!r}: parameters {injects!r} and {name!r} are both annotated "
                f"{inject.__name__}; keep one"
            )
    decoder, schema = compile_parameters(tool, parameters)
    properties = schema["properties"]
    for parameter in parameters:
        node = properties[parameter.name]
        if (default := _shown_default(parameter)) is not OMITTED:
            node["default"] = default
        if text := documented.parameters.get(parameter.name):
            node.setdefault("description", text)
    try:
        frozen_schema = freeze_object(without_odd_defaults(schema))
    except InvalidValue as error:
        raise InvalidTool(f"tool {tool!r}: its schema is not JSON: {error}") from error
    return Arguments(
        tool=tool,
        description=documented.description,
        schema=frozen_schema,
        injects=injects,
        parameters=tuple(parameters),
        decoder=decoder,
    )


def find_injected(body: Body, *, inject: type) -> str | None:
    """The parameter of *body* annotated *inject*; other annotations do not matter."""
    try:
        signature = _signature(body)
    except (ValueError, TypeError):  # of some builtins there is none
        return None
    namespace = _namespace(body, inject)
    for name, parameter in signature.items():
        try:
            hint = _resolve(parameter.annotation, namespace)
        except Exception:  # an annotation that cannot be evaluated is not ours to judge here
            continue
        if _is_injected(hint, inject):
            return name
    return None


def innermost(body: Body) -> Body:
    """The function, method or object under `functools.partial`."""
    while isinstance(body, functools.partial):
        body = body.func
    return body


def either(test: Callable[[object], bool], body: object) -> bool:
    """Whether *test* holds for *body*, or for the ``__call__`` of its class."""
    body = innermost(body) if callable(body) else body
    return test(body) or test(getattr(type(body), "__call__", None))  # noqa: B004


def _signature(body: Body) -> Mapping[str, inspect.Parameter]:
    found = dict(inspect.signature(body).parameters)
    while isinstance(body, functools.partial):
        for name in body.keywords:
            found.pop(name, None)
        body = body.func
    return found


def _annotated(body: Body, tool: str, inject: type) -> Iterator[tuple[str, object, object]]:
    try:
        signature = _signature(body)
    except (ValueError, TypeError) as error:
        raise InvalidTool(
            f"tool {tool!r}: its signature cannot be read ({error}); wrap it in a def"
        ) from error
    namespace = _namespace(body, inject)
    for name, parameter in signature.items():
        where = f"tool {tool!r}: parameter {name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidTool(f"{where} takes any arguments; expected named parameters only")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidTool(f"{where} is positional-only; arguments are passed by name")
        if parameter.annotation is parameter.empty:
            hint = " (for a method, make a tool of the bound method)" if name == "self" else ""
            raise InvalidTool(f"{where} has no annotation; expected a type{hint}")
        try:
            resolved = _resolve(parameter.annotation, namespace)
        except Exception as error:  # evaluating somebody else's annotation
            raise InvalidTool(
                f"{where}: its annotation cannot be used ({error}); "
                "expected types that the module imports outside TYPE_CHECKING"
            ) from error
        default = OMITTED if parameter.default is parameter.empty else parameter.default
        yield name, resolved, default


def _namespace(body: Body, inject: type) -> dict[str, object]:
    """Where annotations are looked up; *inject* may be imported for type checkers only."""
    function = inspect.unwrap(innermost(body))
    if not hasattr(function, "__globals__"):
        function = inspect.unwrap(type(function).__call__)
    return {inject.__name__: inject, **getattr(function, "__globals__", {})}


def _resolve(annotation: object, namespace: dict[str, object]) -> object:
    if isinstance(annotation, str):
        annotation = eval(annotation, namespace)
    refuse_explosion(annotation)
    holder = SimpleNamespace(__annotations__={"it": annotation})
    return get_type_hints(holder, namespace, include_extras=True)["it"]


def _is_injected(hint: object, inject: type) -> bool:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        members = set(get_args(hint)) - {NoneType}
        return members == {inject}
    return hint is inject


def refuse_explosion(annotation: object) -> None:
    """Refuse aliases that double at each level: only classes are kept by reference."""
    pending, seen = [annotation], set[int]()
    while pending:
        root = pending.pop()
        found = sizes(root, get_args)
        if found[id(root)][1] > _MAX_TYPE_NODES:
            raise TypeError("it expands to too many types; use dataclasses for its parts")
        for node, _ in found.values():
            if isinstance(node, type) and id(node) not in seen:
                seen.add(id(node))
                for base in node.__mro__:
                    hints = getattr(base, "__annotations__", {}).values()
                    pending += [hint for hint in hints if not isinstance(hint, str)]


def compile_parameters(
    tool: str, parameters: list[Parameter]
) -> tuple[msgspec.json.Decoder[msgspec.Struct], dict[str, Any]]:
    fields = []
    for index, parameter in enumerate(parameters):
        # Names of our own: a parameter may have any name, an attribute of a Struct may not.
        if parameter.default is OMITTED:
            options = msgspec.field(name=parameter.name)
        else:
            options = msgspec.field(name=parameter.name, default_factory=_omitted)
        fields.append((f"p{index}", parameter.hint, options))
    try:
        struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        decoder = msgspec.json.Decoder(struct)
        (top,), components = msgspec.json.schema_components([struct])
    except Exception as error:  # msgspec's own, or any from evaluating the types' annotations
        raise _unsupported(tool, parameters, error) from error
    schema = components.pop(top["$ref"].removeprefix("#/$defs/"))
    del schema["title"]
    if not schema["required"]:
        del schema["required"]
    if components:
        schema["$defs"] = components
    return decoder, schema


def _unsupported(tool: str, parameters: list[Parameter], error: Exception) -> InvalidTool:
    where = f"tool {tool!r}"
    for parameter in parameters:
        try:
            msgspec.json.Decoder(parameter.hint)
            msgspec.json.schema_components([parameter.hint])
        except Exception as own:  # as in `compile_parameters`
            error, where = own, f"{where}: parameter {parameter.name!r}"
            break
    text = text_of(error).strip().splitlines()[-1]
    if "may not contain more than one" in text:
        return InvalidTool(f"{where}: {text}; use msgspec Structs with different tags")
    return InvalidTool(f"{where}: {text}; expected {_PLAIN_TYPES}")


def _omitted() -> object:
    return OMITTED


def _check_default(tool: str, name: str, default: object) -> None:
    if is_mutable(default):
        try:
            copy.deepcopy(default)
        except Exception as error:  # a foreign __deepcopy__ may do anything
            raise InvalidTool(
                f"tool {tool!r}: the default of parameter {name!r} is mutable and cannot be "
                "copied for each call; expected None or an immutable value"
            ) from error


def _shown_default(parameter: Parameter) -> object:
    """The default as the schema shows it, if the model could have sent it."""
    try:
        plain = msgspec.to_builtins(parameter.default, str_keys=True)
        msgspec.convert(plain, parameter.hint)
        return freeze_json(plain)
    except Exception:  # a marker of the tool's own, an infinity: not a value of the schema
        return OMITTED


def without_odd_defaults(node: object) -> Any:
    """*node* without defaults, of nested types, that JSON cannot hold."""
    if isinstance(node, dict):
        kept = {key: without_odd_defaults(item) for key, item in node.items()}
        try:
            freeze_json(kept.get("default"))
        except InvalidValue:
            del kept["default"]
        return kept
    return [without_odd_defaults(item) for item in node] if isinstance(node, list) else node
