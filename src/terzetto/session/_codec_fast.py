"""The codec's straight way: functions for exactly the usual shapes, nothing explained.

A log is read and written event by event, so each class gets two functions without a call
per attribute. Their text is made from the attrs classes and the tables of `Shapes`, which
stay the only description of the format; nothing that was read takes part in it.

Whatever is not exactly as expected raises one of `UNUSUAL`, and the strict codec
(`_codec_strict.py`) decides: it alone knows the rest of what is right, and what to say
about what is wrong. Where both give a value, it is the same.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, get_args

import attrs
from cattrs import BaseValidationError

from ..vocabulary import (
    InvalidValue,
    clean_text,
    freeze_json,
    freeze_object,
    has_surrogate,
)
from ..vocabulary._kinds import by_type
from ..vocabulary._messages import clean_call_id, clean_message_id
from ..vocabulary._opening import opened
from ._codec_leaves import plain
from ._codec_strict import Shapes, is_array, is_json, is_literal, is_newtype, is_union, members_of

UNUSUAL = (InvalidValue, BaseValidationError, KeyError, TypeError)
"""What a straight function raises for what it leaves to the strict codec."""

# Give back what they are given once the checks have passed, so decoding leaves them out.
_DONE_BY_CHECKS = (clean_call_id, clean_message_id, clean_text, freeze_json, freeze_object)


_NUMBERS = count()


class Unusual(InvalidValue):
    """Not for this way. Never leaves the codec."""


class Table(dict[Any, Callable[[Any], Any]]):
    """Functions by class or by tag, made when first asked for. Any thread may be that one."""

    def __init__(self, make: Callable[[Any], Callable[[Any], Any]]) -> None:
        self._make = make

    def __missing__(self, key: object) -> Callable[[Any], Any]:
        made = self[key] = self._make(key)
        return made


class Straight:
    """The functions of both directions for the classes of *shapes*.

    ``decoders[cls]`` takes a dict that carries the tag of *cls*, if *cls* has one;
    ``encoders[cls]`` takes what is exactly a *cls*, ``events[cls]`` an event whose data is.
    Their callers have looked.
    """

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._event = next(cls for cls, _ in shapes.outside)
        self.decoders = Table(self._decoder)
        self.encoders = Table(self._encoder)
        self.events = Table(self._event_encoder)

    # --- reading ------------------------------------------------------------------------

    def _decoder(self, cls: type) -> Callable[[Any], Any]:
        if cls in self._shapes.through:
            return self._through_decoder(cls, *self._shapes.through[cls])
        if cls in self._shapes.special or not attrs.has(cls):
            strict = self._shapes.decoder(cls)
            return lambda value: strict(value, cls)
        made = _Function("decode", cls, "o")
        found = self._shapes.attributes(cls)
        own = {self._shapes.tagged[cls][0]} if cls in self._shapes.tagged else set()
        own |= {key for (owner, _), (key, _) in self._shapes.outside.items() if owner is cls}
        optional = [a for a in found if a.default is not attrs.NOTHING]
        made.add(f"n = {len(own) + len(found) - len(optional)}")
        for a in found:
            key, x = self._shapes.key(cls, a.name), f"v_{a.name}"
            if a in optional:
                # null reads as absent here; it is one key too many below.
                made.add(f"{x} = o.get({key!r})", f"if {x} is None:")
                made.add(f"    {x} = {made.name(_default(a))}", "else:", "    n += 1")
                made.add(*("    " + line for line in self._reading(cls, a, x, made)))
            else:
                made.add(f"{x} = o[{key!r}]", *self._reading(cls, a, x, made))
        made.add("if len(o) != n: raise Unusual")
        return made.ending(*_building(cls, found, made))

    def _reading(self, cls: type, a: Any, x: str, made: _Function) -> list[str]:
        """Lines that take *x*, what is under the key of *a*, to the attribute's value."""
        if (cls, a.name) in self._shapes.outside:
            key, tags = self._shapes.outside[cls, a.name]
            table = made.name(self._by_tag({tag: member for member, tag in tags.items()}))
            return [
                f"tag = o[{key!r}]",
                f"if type(tag) is not str or type({x}) is not dict: raise Unusual",
                f"{x} = {table}[tag]({x})",
            ]
        if (cls, a.name) in self._shapes.custom:
            return [f"{x} = {made.name(self._shapes.custom[cls, a.name][1])}({x}, None)"]
        return self._taking(a.type, x, made)

    def _taking(self, kind: Any, x: str, made: _Function) -> list[str]:
        kind = _bare(kind)
        if leaf := _leaf(kind, x, made):
            return leaf
        if is_array(kind):
            each = made.name(self._item(get_args(kind)[0], self._taking))
            return [
                f"if type({x}) is not list: raise Unusual",
                f"{x} = tuple(map({each}, {x}))",
            ]
        if is_union(kind) and not is_json(kind):
            members = members_of(kind)
            if len(members) == 1:
                return self._taking(members[0], x, made)
            key = self._shapes.tagged[members[0]][0]
            table = made.name(self._by_tag({self._shapes.tagged[m][1]: m for m in members}))
            return [
                f"if type({x}) is not dict: raise Unusual",
                f"tag = {x}[{key!r}]",
                "if type(tag) is not str: raise Unusual",
                f"{x} = {table}[tag]({x})",
            ]
        if attrs.has(kind) and kind not in self._shapes.special:
            lines = [f"if type({x}) is not dict: raise Unusual"]
            if kind in self._shapes.tagged:
                key, tag = self._shapes.tagged[kind]
                lines.append(f"if {x}.get({key!r}) != {tag!r}: raise Unusual")
            return [*lines, f"{x} = {made.name(self.decoders[kind])}({x})"]
        return [f"{x} = {made.name(self._shapes.decoder(kind))}({x}, None)"]

    def _by_tag(self, members: Mapping[str, type]) -> Table:
        return Table(lambda tag: self.decoders[members[tag]])

    def _through_decoder(self, cls: type, name: str, inner: type) -> Callable[[Any], Any]:
        made = _Function("decode", cls, "o")
        made.add(f"v_{name} = o", *self._taking(inner, f"v_{name}", made))
        return made.ending(*_building(cls, list(attrs.fields(cls)), made))

    # --- writing ------------------------------------------------------------------------

    def _encoder(self, cls: type) -> Callable[[Any], Any]:
        if cls in self._shapes.special or not attrs.has(cls):
            return self._shapes.encoder(cls)
        made = _Function("encode", cls, "value")
        made.add(*self._object(cls, "value", made))
        return made.ending("return value")

    def _event_encoder(self, data: type) -> Callable[[Any], Any]:
        made = _Function("encode", data, "value")
        made.add(*self._object(self._event, "value", made, data))
        return made.ending("return value")

    def _object(self, cls: type, x: str, made: _Function, data: type | None = None) -> list[str]:
        """Lines that take *x*, which is a *cls*, to a dict. An attribute whose tag is outside
        of it is a *data*."""
        lines: list[str] = []
        written, later = [], []
        if cls in self._shapes.tagged:
            key, tag = self._shapes.tagged[cls]
            written.append(f"{key!r}: {tag!r}")
        for a in self._shapes.attributes(cls):
            key, y = self._shapes.key(cls, a.name), f"{x}_{a.name}"
            if (cls, a.name) in self._shapes.outside:
                outer, tags = self._shapes.outside[cls, a.name]
                if data is None or data not in tags:
                    raise Unusual
                written.insert(0, f"{outer!r}: {tags[data]!r}")
                steps = self._giving(data, y, made)
            else:
                steps = self._writing(cls, a, y, made)
            if a.default is attrs.NOTHING:
                lines += [f"{y} = {x}.{a.name}", *steps]
                written.append(f"{key!r}: {y}")
            else:
                default = _default(a)
                other = "is not None" if default is None else f"!= {made.name(default)}"
                later += [f"{y} = {x}.{a.name}", f"if {y} {other}:"]
                later += ["    " + line for line in (*steps, f"{x}_[{key!r}] = {y}")]
        return [*lines, f"{x}_ = {{{', '.join(written)}}}", *later, f"{x} = {x}_"]

    def _writing(self, cls: type, a: Any, x: str, made: _Function) -> list[str]:
        """Lines that take *x*, the value of attribute *a*, to plain JSON."""
        if (cls, a.name) in self._shapes.custom:
            return [f"{x} = {made.name(self._shapes.custom[cls, a.name][0])}({x})"]
        return self._giving(a.type, x, made)

    def _giving(self, kind: Any, x: str, made: _Function) -> list[str]:
        kind = _bare(kind)
        if leaf := _leaf(kind, x, made):
            return leaf
        if is_array(kind):
            inner = get_args(kind)[0]
            if table := self._choice(inner, made):
                each = f"[{table}[type(item)](item) for item in {x}]"
            else:
                each = f"list(map({made.name(self._item(inner, self._giving))}, {x}))"
            return [f"if type({x}) is not tuple: raise Unusual", f"{x} = {each}"]
        if is_union(kind) and not is_json(kind):
            if table := self._choice(kind, made):
                return [f"{x} = {table}[type({x})]({x})"]
            return self._giving(members_of(kind)[0], x, made)
        if attrs.has(kind) and kind not in self._shapes.special:
            check = f"if type({x}) is not {made.name(kind)}: raise Unusual"
            return [check, *self._object(kind, x, made)]  # no class is inside of itself
        if kind in self._shapes.through:
            name, inner = self._shapes.through[kind]
            check = f"if type({x}) is not {made.name(kind)}: raise Unusual"
            return [check, f"{x} = {x}.{name}", *self._giving(inner, x, made)]
        strict = plain if is_json(kind) else self._shapes.encoder(kind)
        return [f"{x} = {made.name(strict)}({x})"]

    def _choice(self, kind: Any, made: _Function) -> str | None:
        """The name of the encoders of the members of *kind*, if it has several."""
        kind = _bare(kind)
        if not is_union(kind) or is_json(kind) or len(members_of(kind)) == 1:
            return None
        return made.name(self._by_class(frozenset(members_of(kind))))

    def _by_class(self, members: frozenset[type]) -> Table:
        def encoder(cls: type) -> Callable[[Any], Any]:
            if cls not in members:
                raise Unusual
            return self.encoders[cls]

        return Table(encoder)

    def _item(
        self, kind: Any, lines: Callable[[Any, str, _Function], list[str]]
    ) -> Callable[[Any], Any]:
        made = _Function("item", kind, "x")
        made.add(*lines(kind, "x", made))
        return made.ending("return x")


class _Function:
    """The text of a function of one argument, and the objects that its names stand for."""

    def __init__(self, what: str, kind: Any, argument: str) -> None:
        self._called = f"{what}_{getattr(kind, '__name__', 'union')}"
        self._lines = [f"def {self._called}({argument}):"]
        self._names: dict[str, Any] = {"Unusual": Unusual, "has_surrogate": has_surrogate}

    def name(self, value: Any) -> str:
        """A name by which the text can refer to *value*."""
        if value is None or value is True or value is False:
            return repr(value)
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name

    def add(self, *lines: str) -> None:
        self._lines += ["    " + line for line in lines]

    def ending(self, *lines: str) -> Callable[[Any], Any]:
        """The function, with *lines* as its last ones."""
        self.add(*lines)
        text = "\n".join(self._lines) + "\n"
        file = f"<terzetto codec {next(_NUMBERS)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)  # for tracebacks
        exec(compile(text, file, "exec"), self._names)
        function: Callable[[Any], Any] = self._names[self._called]
        return function


def _leaf(kind: Any, x: str, made: _Function) -> list[str]:
    """The check of a text, a number or a word, the same in both directions; [] for others."""
    if kind is str:
        wrong = f"type({x}) is not str or not {x}.isascii() and has_surrogate({x})"
    elif kind is int:
        wrong = f"type({x}) is not int"
    elif kind is bool:
        wrong = f"{x} is not True and {x} is not False"
    elif is_literal(kind):
        wrong = f"type({x}) is not str or {x} not in {made.name(frozenset(get_args(kind)))}"
    else:
        return []
    return [f"if {wrong}: raise Unusual"]


def _bare(kind: Any) -> Any:
    while is_newtype(kind):
        kind = kind.__supertype__
    return kind


def _default(a: Any) -> Any:
    """What stands for an absent key. No attribute that may be absent has a factory."""
    assert not isinstance(a.default, attrs.Factory)  # type: ignore[arg-type]
    return a.converter(a.default) if a.converter else a.default


def _building(cls: type, found: list[Any], made: _Function) -> list[str]:
    """Lines that return a *cls* made of the variables named after its attributes."""
    if not found:
        return [f"return {made.name(cls())}"]
    if hasattr(cls, "__attrs_post_init__") or not all(
        a.validator is None or by_type(a.validator) for a in found
    ):
        arguments = ", ".join(f"{a.alias}=v_{a.name}" for a in found)
        return [f"return {made.name(cls)}({arguments})"]
    lines = [
        f"v_{a.name} = {made.name(a.converter)}(v_{a.name})"
        for a in found
        if a.converter is not None and a.converter not in _DONE_BY_CHECKS
    ]
    lines.append(f"made = {made.name(opened(cls))}()")
    lines += [f"made.{a.name} = v_{a.name}" for a in found]
    return [*lines, f"made.__class__ = {made.name(cls)}", "return made"]
