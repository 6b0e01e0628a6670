"""Types that a model can answer with, and values of them."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar

import attrs
import msgspec
from hypothesis import strategies as st

from tests.strategies import texts

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen
class Leaf:
    """A leaf."""

    name: str
    size: float = 1.0


@dataclasses.dataclass
class Node:
    value: int
    children: list[Node] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Box(Generic[T]):
    held: T


class Row(TypedDict):
    name: str
    note: NotRequired[str]


class Point(NamedTuple):
    x: int
    y: int = 0


class Tagged(msgspec.Struct, tag=True, rename="camel"):
    first_name: str


class Packed(msgspec.Struct, array_like=True):
    x: int


@attrs.frozen
class Empty:
    pass


def nodes() -> st.SearchStrategy[Node]:
    return st.recursive(
        st.integers(-(2**63), 2**63 - 1).map(Node),
        lambda inner: st.builds(Node, st.integers(-100, 100), st.lists(inner, max_size=3)),
        max_leaves=5,
    )


def floats() -> st.SearchStrategy[float]:
    return st.floats(allow_nan=False, allow_infinity=False)


def leaves() -> st.SearchStrategy[Leaf]:
    return st.builds(Leaf, texts(), floats())


BASE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(2**63), 2**63 - 1)),
    (float, floats()),
    (bool, st.booleans()),
    (str, texts()),
    (bytes, st.binary(max_size=8)),
    (Leaf, leaves()),
    (Node, nodes()),
    (Row, st.fixed_dictionaries({"name": texts()}, optional={"note": texts()})),
    (Point, st.builds(Point, st.integers(-9, 9), st.integers(-9, 9))),
    (Colour, st.sampled_from(Colour)),
    (Tagged, st.builds(Tagged, texts())),
    (Packed, st.builds(Packed, st.integers(-9, 9))),
    (Box[int], st.integers(-9, 9).map(Box)),
    (Empty, st.just(Empty())),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (datetime.date, st.dates()),
    (uuid.UUID, st.uuids()),
    (decimal.Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
]


def typed_values() -> st.SearchStrategy[tuple[Any, Any]]:
    """A type that msgspec can decode, and a value of it."""

    def around(pair: tuple[Any, Any]) -> st.SearchStrategy[tuple[Any, Any]]:
        kind, made = pair
        # `__class_getitem__` by hand: to a type checker a variable is no type.
        return st.sampled_from(
            [
                (list.__class_getitem__(kind), [made, made]),
                (dict.__class_getitem__((str, kind)), {"k": made, "": made}),
                (tuple.__class_getitem__((kind, ...)), (made,)),
                (tuple.__class_getitem__((kind, int)), (made, 3)),
                (kind | None, made),
                (kind | None, None),
            ]
        )

    base = st.sampled_from(BASE).flatmap(lambda pair: pair[1].map(lambda made: (pair[0], made)))
    return base | base.flatmap(around) | base.flatmap(around).flatmap(around)
