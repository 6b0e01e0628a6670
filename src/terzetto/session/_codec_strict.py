"""cattrs made strict: the part of the codec that does not know what an event is.

Owns the hooks for classes, unions and arrays, and the paths of faults. The leaves belong to
`_codec_leaves.py`; the tables that say how a class is written belong to `_codec.py`.

cattrs coerces (``"3"`` becomes 3), ignores unknown keys and iterates over anything; here
that is refused, in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, NewType, TypeAlias, Union, get_args, get_origin

import attrs
from cattrs import (
    AttributeValidationNote,
    BaseValidationError,
    ClassValidationError,
    Converter,
    IterableValidationError,
    IterableValidationNote,
)
from cattrs.gen import (
    make_dict_structure_fn_from_attrs,
    make_dict_unstructure_fn_from_attrs,
    override,
)

from ..vocabulary import InvalidValue, JsonObject
from ._codec_leaves import (
    boolean,
    frozen,
    frozen_object,
    integer,
    one_of,
    plain,
    plain_dict,
    plain_object,
    show,
    text,
)

Encoder: TypeAlias = Callable[[Any], Any]
Decoder: TypeAlias = Callable[[Any, Any], Any]


def exactly(cls: type, encode: Encoder) -> Encoder:
    """*encode*, refusing what is not exactly a *cls*: a subclass may hold more."""

    def checked(value: Any) -> Any:
        if type(value) is not cls:
            raise InvalidValue(f"expected {cls.__name__}, got {show(value)}")
        return encode(value)

    return checked


class Shapes:
    """How classes are written, and a converter that keeps to it.

    Args:
        tagged: The key and value that name a class, in unions and where it stands alone.
        keys: JSON keys that are not the attribute's name in camelCase.
        always: Attributes that have a default, and are written and required all the same.
        custom: Encoder and decoder of single attributes.
        outside: Attributes whose class is named by a key of the object that they are in.

    An attribute with a default is left out when it equals the default, and may be absent.
    Hooks are generated once per class, at its first use; any thread may be that one.
    """

    def __init__(
        self,
        *,
        tagged: Mapping[type, tuple[str, str]],
        keys: Mapping[type, Mapping[str, str]],
        always: Mapping[type, frozenset[str]],
        custom: Mapping[tuple[type, str], tuple[Encoder, Decoder]],
        outside: Mapping[tuple[type, str], tuple[str, Mapping[type, str]]],
    ) -> None:
        self.tagged = tagged
        self.custom = custom
        self.outside = outside
        self.through: dict[type, tuple[str, type]] = {}
        """Classes that are written as their only attribute: its name, and its class."""
        self.special: set[type] = set()
        """Classes that are written in a way of their own."""
        self._keys = keys
        self._always = always
        self._trusting_encoders: dict[type, Encoder] = {}
        self._trusting_decoders: dict[type, Decoder] = {}
        self._converter = converter = Converter()
        for kind, check in ((str, text), (int, integer), (bool, boolean)):
            converter.register_unstructure_hook(kind, check)
            converter.register_structure_hook(kind, check)
        converter.register_unstructure_hook(JsonObject, plain_object)
        converter.register_structure_hook(JsonObject, frozen_object)
        for applies, encoder, decoder in (
            (attrs.has, self._class_encoder, self._class_decoder),
            (is_newtype, _supertype(self.encoder), _supertype(self.decoder)),
            (is_literal, one_of, one_of),
            (is_array, self._array_encoder, self._array_decoder),
            (is_union, self._union_encoder, self._union_decoder),
            (is_json, lambda _: plain, lambda _: frozen),
        ):
            converter.register_unstructure_hook_factory(applies, encoder)
            converter.register_structure_hook_factory(applies, decoder)

    def encoder(self, kind: Any) -> Encoder:
        return self._converter.get_unstructure_hook(kind)

    def decoder(self, kind: Any) -> Decoder:
        hook: Decoder = self._converter.get_structure_hook(kind)
        return hook

    def trusting_encoder(self, cls: type) -> Encoder:
        """`encoder` for who has looked at the exact type already."""
        checking = self.encoder(cls)
        return self._trusting_encoders.get(cls, checking)

    def _trusting_decoder(self, cls: type) -> Decoder:
        checking = self.decoder(cls)
        return self._trusting_decoders.get(cls, checking)

    def register(
        self,
        cls: type,
        make_encoder: Callable[[type], Encoder],
        make_decoder: Callable[[type], Decoder],
    ) -> None:
        """Write *cls* in a way of its own; the two are called at its first use."""
        self.special.add(cls)
        self._converter.register_unstructure_hook_factory(lambda kind: kind is cls, make_encoder)
        self._converter.register_structure_hook_factory(lambda kind: kind is cls, make_decoder)

    def register_through(self, cls: type, name: str, inner: type) -> None:
        """Write *cls* as its only attribute, *name*."""

        def make_encoder(_: type) -> Encoder:
            encode = self.encoder(inner)
            return lambda value: encode(getattr(value, name))

        def make_decoder(_: type) -> Decoder:
            decode = self.decoder(inner)
            return lambda value, _: cls(decode(value, inner))

        self.register(cls, make_encoder, make_decoder)
        self.through[cls] = name, inner

    def key(self, cls: type, name: str) -> str:
        """The JSON key of an attribute."""
        head, *rest = name.split("_")
        camel = head + "".join(word.capitalize() for word in rest)
        return self._keys.get(cls, {}).get(name, camel)

    def fields_encoder(self, cls: type, *, without: str = "") -> Encoder:
        """Encodes instances of *cls*, unchecked: its tag, and all attributes but *without*."""
        found, how = self._attributes(cls, without)
        fields: Encoder = make_dict_unstructure_fn_from_attrs(found, cls, self._converter, **how)
        key, tag = self.tagged.get(cls, ("", ""))
        return (lambda value: {key: tag, **fields(value)}) if key else fields

    def fields_decoder(self, cls: type, *, without: str = "") -> Decoder:
        """Decodes dicts whose tag was looked at, and refuses keys that are not theirs."""
        found, how = self._attributes(cls, without)
        fields: Decoder = make_dict_structure_fn_from_attrs(
            found, cls, self._converter, _cattrs_forbid_extra_keys=False, **how
        )
        tag_key = {self.tagged[cls][0]} if cls in self.tagged else set()
        allowed = frozenset({self.key(cls, a.name) for a in found} | tag_key)

        def decode(value: dict[str, Any], _: Any) -> Any:
            if not allowed.issuperset(value):
                raise InvalidValue(f"unknown keys {sorted(set(value) - allowed, key=str)}")
            return fields(value, cls)

        return decode

    def _class_encoder(self, cls: type) -> Encoder:
        trusting = self._trusting_encoders[cls] = self.fields_encoder(cls)
        return exactly(cls, trusting)

    def _class_decoder(self, cls: type) -> Decoder:
        trusting = self._trusting_decoders[cls] = self.fields_decoder(cls)
        key, tag = self.tagged.get(cls, ("", ""))

        def decode(value: Any, _: Any = None) -> Any:
            if key and plain_dict(value).get(key) != tag:
                raise InvalidValue(f"expected {key} {tag!r}, got {show(value.get(key))}")
            return trusting(plain_dict(value), cls)

        return decode

    def attributes(self, cls: type) -> list[Any]:
        """The attributes of *cls*, their types resolved.

        What is always written loses its default here, so that reading requires it: an id
        that was forgotten would otherwise come back as a new one.
        """
        attrs.resolve_types(cls)
        always = self._always.get(cls, frozenset())
        return [
            a.evolve(default=attrs.NOTHING) if a.name in always else a for a in attrs.fields(cls)
        ]

    def _attributes(self, cls: type, without: str) -> tuple[list[Any], dict[str, Any]]:
        """The attributes that get a key, and how cattrs shall write each."""
        found = [a for a in self.attributes(cls) if a.name != without]
        how = {}
        for a in found:
            encode, decode = self.custom.get((cls, a.name), (None, None))
            how[a.name] = override(
                rename=self.key(cls, a.name),
                omit_if_default=True,
                unstruct_hook=encode,
                struct_hook=decode,
            )
        return found, how

    def _union_encoder(self, union: Any) -> Encoder:
        members = members_of(union)
        if len(members) == 1:
            return self.encoder(members[0])
        table = {cls: self.trusting_encoder(cls) for cls in members}

        def encode(value: Any) -> Any:
            hook = table.get(type(value))
            if hook is None:
                names = ", ".join(cls.__name__ for cls in table)
                raise InvalidValue(f"expected one of {names}; got {show(value)}")
            return hook(value)

        return encode

    def _union_decoder(self, union: Any) -> Decoder:
        members = members_of(union)
        if len(members) == 1:
            return self.decoder(members[0])
        key = self.tagged[members[0]][0]
        table = {self.tagged[cls][1]: self._trusting_decoder(cls) for cls in members}

        def decode(value: Any, _: Any = None) -> Any:
            tag = value.get(key) if type(value) is dict else plain_dict(value)
            hook = table.get(tag) if type(tag) is str else None
            if hook is None:
                raise InvalidValue(f"expected {key} in {sorted(table)}, got {show(tag)}")
            return hook(value, None)

        return decode

    def _array_encoder(self, array: Any) -> Encoder:
        item = self.encoder(get_args(array)[0])

        def encode(values: Any) -> list[Any]:
            if not isinstance(values, (tuple, list)):
                raise InvalidValue(f"expected a tuple, got {show(values)}")
            return [item(value) for value in values]

        return encode

    def _array_decoder(self, array: Any) -> Decoder:
        kind = get_args(array)[0]
        item = self.decoder(kind)

        def decode(values: Any, _: Any = None) -> tuple[Any, ...]:
            if type(values) is not list:
                raise InvalidValue(f"expected an array, got {show(values)}")
            found = []
            try:
                for value in values:
                    found.append(item(value, kind))  # noqa: PERF401 - its length is the index
            except (InvalidValue, BaseValidationError) as error:
                note = IterableValidationNote(f"item {len(found)}", len(found), kind)
                error.__notes__ = [*getattr(error, "__notes__", ()), note]
                told = "while decoding an array"
                raise IterableValidationError(told, [error], array) from None  # pyright: ignore[reportCallIssue]
            return tuple(found)

        return decode

    def faults(self, error: Exception, path: str = "$") -> Iterator[str]:
        """Every fault in what a decoder raised: what is wrong, and the path of JSON keys.

        `cattrs.transform_error`, with JSON keys in the place of attribute names.
        """
        if not isinstance(error, BaseValidationError):
            yield f"{path}: {'missing' if isinstance(error, KeyError) else error}"
            return
        for part in error.exceptions:
            yield from self.faults(part, path + self._step(error, part))

    def _step(self, group: BaseValidationError, part: Exception) -> str:
        for note in getattr(part, "__notes__", ()):
            if isinstance(group, ClassValidationError) and isinstance(
                note, AttributeValidationNote
            ):
                return f".{self.key(group.cl, note.name)}"
            if isinstance(group, IterableValidationError) and isinstance(
                note, IterableValidationNote
            ):
                return f"[{note.index}]"
        return ""


def is_newtype(kind: Any) -> bool:
    return isinstance(kind, NewType)


def is_literal(kind: Any) -> bool:
    return get_origin(kind) is Literal


def is_array(kind: Any) -> bool:
    return get_origin(kind) is tuple


def is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def is_json(kind: Any) -> bool:
    return is_union(kind) and JsonObject in get_args(kind)


def members_of(union: Any) -> list[Any]:
    # None in a union means an absent key; there is no null to encode or decode.
    return [member for member in get_args(union) if member is not NoneType]


def _supertype(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda kind: hook(kind.__supertype__)
