"""The codec's straight way gives what the strict one gives, and leaves to it what it cannot.

Whatever comes, `decode_event` and the strict decoder end alike: with equal values, or with
errors of the same text; and so do the encoders, to the byte.
"""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
from hypothesis import example, given, strategies as st
from tests.strategies import events, json_values, payloads

from terzetto import vocabulary as v
from terzetto.session._codec import (
    _STRAIGHT,
    TAGS,
    _decode_strictly,
    _encode_strictly,
    decode_event,
    dumps_event,
    dumps_json,
    encode_event,
    loads_json,
)
from terzetto.vocabulary import (
    APPEND,
    AssistantChunk,
    AssistantMessage,
    AssistantMessageEvent,
    Event,
    Extension,
    InvalidValue,
    ModelSource,
    TextBlock,
    TextDelta,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    ToolSource,
    TurnStart,
    UserMessage,
    thaw_json,
)
from terzetto.vocabulary._json import MAX_DEPTH
from terzetto.vocabulary._opening import opened

TIME = 1_700_000_000_000
KNOWN = ("known",)


class Word(str):
    """A text that is not exactly one."""


class Kind(enum.StrEnum):
    """A tag from a program, not from a file."""

    TEXT = "text"
    START = "turn/start"


class Number(int):
    """A number that is not exactly one."""


def deep(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = [value]
    return value


ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    10**400,
    0.0,
    -0.0,
    1.0,
    math.nan,
    math.inf,
    "",
    "text",
    "append",
    "\ud800",
    "\ud83d\ude00",
    "😀",
    [],
    {},
    [1],
    [None],
    [{}],
    {"a": {}},
    {"type": "text", "text": "x"},
    {"kind": "user"},
    {"\udfff": 1},
    {3: 4},
    deep(MAX_DEPTH - 1),
    deep(MAX_DEPTH),
    (),
    (1,),
    b"bytes",
    Word("text"),
    Kind.TEXT,
    Kind.START,
    Number(3),
    object(),
)


# Made once: hypothesis looks at a strategy anew each time that it is made.
PLAIN = json_values().map(thaw_json)
ODD_VALUES = st.sampled_from(ODD).map(copy.deepcopy) | PLAIN
EVENTS = events()
WRONG = ODD_VALUES | payloads()


def places(obj: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in *obj* with every key or index in it."""
    keys = obj.keys() if isinstance(obj, dict) else range(len(obj)) if isinstance(obj, list) else ()
    for key in list(keys):
        yield obj, key
        yield from places(obj[key])


@st.composite
def mutated_json(draw: st.DrawFn) -> Any:
    """An event as JSON, with a few things in it wrong, or spelled otherwise."""
    obj: Any = loads_json(dumps_event(draw(EVENTS)))
    for _ in range(draw(st.integers(1, 3))):
        held, key = draw(st.sampled_from(list(places(obj)) or [(obj, "type")]))
        match draw(st.sampled_from(["put", "take", "add", "move", "copy"])):
            case "put":
                held[key] = draw(ODD_VALUES)
            case "take":
                del held[key]
            case "add" if isinstance(held, dict):
                held[draw(st.sampled_from(["x", "type", "kind", "role", 3, "error"]))] = draw(
                    ODD_VALUES
                )
            case "add":
                held.append(draw(ODD_VALUES))
            case "move" if isinstance(held, dict):  # the order of keys does not matter
                held[key] = held.pop(key)
            case _:
                held[key] = [held[key]]
        if not obj:
            break
    return obj


def outcome(attempt: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[str, Any]:
    """The value, or the class and text of the error: what a caller can see."""
    try:
        return "value", attempt(*arguments, **named)
    except Exception as error:
        return type(error).__name__, str(error)


def same_reading(obj: Any) -> None:
    fast = outcome(decode_event, obj, seq_hint=5, extensions=KNOWN)
    slow = outcome(_decode_strictly, obj, 5, KNOWN)
    assert fast == slow
    assert repr(fast) == repr(slow)  # 1 == True == 1.0, and their texts differ
    if fast[0] == "value":
        exact(fast[1])


def exact(value: Any) -> None:
    """Every object in *value* is of a class of the vocabulary itself: frozen again."""
    if isinstance(value, tuple):
        for item in value:
            exact(item)
    elif attrs.has(type(value)):
        assert type(value) is getattr(v, type(value).__name__)
        for a in attrs.fields(type(value)):
            exact(getattr(value, a.name))


@given(EVENTS)
def test_both_ways_read_and_write_the_same(event: Event) -> None:
    written = _encode_strictly(event)
    assert dumps_json(encode_event(event)) == dumps_json(written)
    obj = loads_json(dumps_event(event))
    same_reading(obj)
    if isinstance(event.data, Extension):
        return  # any name and any object: the strict codec's own
    straight = _STRAIGHT.events[type(event.data)](event)
    assert dumps_json(straight) == dumps_json(written)
    assert _STRAIGHT.decoders[Event](obj) == event


@given(mutated_json())
@example({"type": "turn/start", "seq": 0, "time": 1, "data": {"turn": 1, "step": 1}})
@example({"type": Kind.START, "seq": 0, "time": 1, "data": {"turn": 1}})
@example({"type": ["turn/start"], "seq": 0, "time": 1, "data": {"turn": 1}})
@example({"type": "turn/start", "seq": 0, "time": 1, "data": {"turn": 1}, "surfaceOp": ["append"]})
def test_json_with_faults_ends_alike(obj: Any) -> None:
    same_reading(obj)


@given(
    PLAIN
    | st.fixed_dictionaries(
        {"type": st.sampled_from([*TAGS.values(), "known", "other"]), "data": ODD_VALUES},
        optional={
            "seq": ODD_VALUES | st.integers(),
            "time": ODD_VALUES | st.integers(),
            "surfaceOp": ODD_VALUES,
            "sourceEventSeqs": ODD_VALUES | st.lists(st.integers()),
            "ignorable": ODD_VALUES,
        },
    )
)
def test_any_json_ends_alike(obj: Any) -> None:
    same_reading(obj)


@st.composite
def broken_events(draw: st.DrawFn) -> Event:
    """An event that holds what nobody may put there, somewhere in it."""
    event = draw(EVENTS)
    held: list[tuple[Any, str]] = []

    def look(value: Any) -> None:
        if isinstance(value, tuple):
            for item in value:
                look(item)
        elif attrs.has(type(value)):
            for a in attrs.fields(type(value)):
                held.append((value, a.name))
                look(getattr(value, a.name))

    whole = attrs.evolve(event, data=attrs.evolve(event.data))  # shared values stay whole
    look(whole)
    own = [place for place in held if place[0] is whole or place[0] is whole.data]
    value, name = draw(st.sampled_from(own))
    object.__setattr__(value, name, draw(WRONG))
    return whole


@given(broken_events())
def test_what_cannot_be_written_is_refused_alike(event: Event) -> None:
    fast, slow = outcome(encode_event, event), outcome(_encode_strictly, event)
    assert fast == slow
    assert repr(fast) == repr(slow)


def test_a_key_that_comes_twice_counts_once() -> None:
    twice = loads_json(b'{"type":"turn/end","seq":1,"time":2,"data":{"turn":9},"data":{"turn":3},'
                       b'"type":"turn/start"}')  # fmt: skip
    same_reading(twice)
    assert decode_event(twice, seq_hint=0).data == TurnStart(3)


USUAL = [
    AssistantChunk(1, 2, TextDelta(0, "hé")),
    ToolCallEvent(1, 2, v.CallId("c"), "n", "{}"),
    ToolResultEvent(
        1,
        2,
        UserMessage(
            (ToolResultBlock(v.CallId("c"), (TextBlock("r"),)),),
            ToolSource(v.CallId("c")),
            v.MessageId("m"),
        ),
    ),
    AssistantMessageEvent(
        1, 2, AssistantMessage((TextBlock("t"),), ModelSource("p", "m"), v.MessageId("m"))
    ),
]


@pytest.mark.parametrize("data", USUAL, ids=lambda data: type(data).__name__)
def test_what_was_read_is_frozen(data: v.EventData) -> None:
    event = decode_event(encode_event(Event(0, TIME, data, APPEND, (1,))), seq_hint=0)
    for value in (event, event.data):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            value.seq = 1  # type: ignore[union-attr,misc]
    assert hash(event) == hash(Event(0, TIME, data, APPEND, (1,)))


def test_an_open_value_closes_into_its_class() -> None:
    made = opened(TextDelta)()
    made.index, made.text = 0, "t"
    made.__class__ = TextDelta
    assert made == TextDelta(0, "t")
    assert type(made) is TextDelta
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.text = "other"


def test_faults_of_values_keep_their_error() -> None:
    obj = {"type": "turn/start", "seq": 3, "time": TIME, "data": {"turn": 1, "x": 2}}
    with pytest.raises(InvalidValue, match=r"event 3: \$\.data: unknown keys \['x'\]") as caught:
        decode_event(obj, seq_hint=0)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
