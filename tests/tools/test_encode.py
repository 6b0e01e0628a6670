"""Results of any type, and of any size, as text for the model."""

import asyncio
import collections
import collections.abc
import dataclasses
import datetime
import enum
import gc
import json
import math
import tracemalloc
import uuid
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import attrs
import msgspec
import pytest
import trio
from hypothesis import given, strategies as st

from terzetto.tools._encode import (
    MAX_VALUES,
    NO_OUTPUT,
    InvalidOutput,
    bound,
    encode_result,
)
from terzetto.vocabulary import TextBlock, clean_text, has_surrogate


class Color(enum.Enum):
    RED = "red"
    DEEP = ("x", 1)


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    YES = "yes"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 2
    _cache: object = None


@attrs.frozen
class Box:
    inner: Point
    _secret: str = "s"


class Tagged(msgspec.Struct, tag="cat", tag_field="kind", rename="camel"):
    full_name: str


class Pair(NamedTuple):
    a: int
    b: str


class Model:
    """The part of pydantic's interface that is used."""

    def model_dump(self, *, mode: str) -> dict[str, object]:
        return {"mode": mode}


class Told:
    def __str__(self) -> str:
        return "told"


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")


class Plain:
    pass


def text(value: object, limit: int | None = None) -> str:
    content = encode_result(value, limit)
    assert len(content) == 1
    return content[0].text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, NO_OUTPUT),
        ("", ""),
        ("as it is\n", "as it is\n"),
        ("null", "null"),
        (True, "true"),
        (0, "0"),
        (-(2**70), "-1180591620717411303424"),
        (1.0, "1.0"),
        (1e300, "1e+300"),
        (math.nan, "null"),
        ([math.inf, -math.inf], "[null,null]"),
        ({}, "{}"),
        ([[]], "[[]]"),
        ([None, TextBlock("t")], '[null,{"text":"t"}]'),
        ({"x": 1}, '{"x":1}'),
        ({"a": [1, 2.5, None, True, "é\n\x00"]}, '{"a":[1,2.5,null,true,"é\\n\\u0000"]}'),
        ((1, "a"), '[1,"a"]'),
        (Pair(1, "b"), '[1,"b"]'),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset({"b", "a"}), '["a","b"]'),
        ({"k": {1}}.keys(), '["k"]'),
        ({"k": 1}.values(), "[1]"),
        ({"k": 1}.items(), '[["k",1]]'),
        (range(3), "[0,1,2]"),
        (collections.deque([1, 2]), "[1,2]"),
        (collections.OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (collections.ChainMap({"a": 1}), '{"a":1}'),
        (datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), "2024-01-02T03:04:05+00:00"),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (datetime.time(3, 4), "03:04:00"),
        ([datetime.date(2024, 1, 2)], '["2024-01-02"]'),
        (Decimal("1.10"), "1.10"),
        ({"d": Decimal("1.1")}, '{"d":"1.1"}'),
        (Fraction(1, 3), "1/3"),
        (PurePosixPath("/x"), "/x"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"caf\xc3\xa9", "café"),
        (memoryview(b"ok"), "ok"),
        (Color.RED, "red"),
        (Color.DEEP, '["x",1]'),
        (Level.HIGH, "3"),
        (Word.YES, "yes"),
        ({Word.YES: Word.YES, "l": Level.HIGH}, '{"yes":"yes","l":3}'),
        (Point(1), '{"x":1,"y":2}'),
        (Box(Point(1)), '{"inner":{"x":1,"y":2}}'),
        (Tagged("Tom"), '{"kind":"cat","fullName":"Tom"}'),
        (Model(), '{"mode":"json"}'),
        (Told(), "told"),
        ([Told()], '["told"]'),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_values_have_a_text(value: object, expected: str) -> None:
    """BC-37."""
    assert text(value) == expected


def test_sets_that_cannot_be_sorted_keep_every_member() -> None:
    assert sorted(json.loads(text({1, "a", None})), key=str) == [1, None, "a"]


def test_text_blocks_pass_through() -> None:
    """C118, run 171: also an empty list, which is no content at all."""
    a, b = TextBlock("a"), TextBlock("b")
    assert encode_result(a, 100) == (a,)
    assert encode_result([a, b], 100) == (a, b)
    assert encode_result((a,), None) == (a,)
    assert encode_result([], 100) == ()
    assert encode_result((), 100) == ()


def test_lone_surrogates_become_the_replacement_character() -> None:
    """BC-38: in texts, keys, nested values and records; halves that meet are joined."""
    assert text("a\udc97b") == "a\ufffdb"
    assert text({"k\ud800": ["\udc97", "\ud83c\udf78"]}) == '{"k\ufffd":["\ufffd","🍸"]}'
    assert text(Point("\ud800")) == '{"x":"\ufffd","y":2}'  # type: ignore[arg-type]


def test_halves_of_a_pair_are_never_cut_apart() -> None:
    """BC-38: wherever the pieces of a long text end."""
    for shift in range(3):
        long = "x" * shift + "\ud83c\udf78" * 10_000
        assert text(long) == "x" * shift + "🍸" * 10_000
        assert json.loads(text([long])) == ["x" * shift + "🍸" * 10_000]
    assert text("\ud83c" * 9000) == "\ufffd" * 9000


def nothing() -> Iterator[int]:
    yield 1


async def forgotten() -> int:
    return 1


async def stream() -> AsyncIterator[int]:
    yield 1


cycle: list[object] = []
cycle.append([cycle])
deep: list[object] = []
for _ in range(5000):
    deep = [deep]


class BadMapping(collections.UserDict[str, int]):
    def items(self) -> Any:
        raise KeyError("gone")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({(1, 2): 3}, "tuple"),
        ({1: "a", "b": 2}, "int"),
        ({None: 1}, "NoneType"),
        (ValueError("x"), "ValueError"),
        ([KeyboardInterrupt()], "KeyboardInterrupt"),
        (Hostile(), "Hostile"),
        ({"a": [Hostile()]}, "dict"),
        (Plain(), "Plain"),
        ([object()], "object"),
        (Point, "type"),
        (int, "type"),
        (print, "builtin_function_or_method"),
        (lambda: 1, "function"),
        (iter([1]), "list_iterator"),
        (map(str, [1]), "map"),
        (b"\xff\x00", "bytes"),
        (10**5000, "int"),
        (cycle, "cycle"),
        (deep, "cycle"),
        (BadMapping(), "BadMapping"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_values_without_a_text_are_refused_by_type(value: object, named: str) -> None:
    """BC-37, C117: never another exception, and the text says which type."""
    with pytest.raises(InvalidOutput, match=named) as caught:
        encode_result(value, 1000)
    assert len(str(caught.value)) < 500


def test_the_address_of_an_object_is_never_the_result() -> None:
    for value in (Plain(), [Plain()], print, nothing):
        with pytest.raises(InvalidOutput, match="the tool returned") as caught:
            encode_result(value, None)
        assert "0x" not in str(caught.value)


def test_forgotten_coroutines_are_closed() -> None:
    """BC-37: no "never awaited" warning, also for the siblings of the one that was met."""
    for value in (forgotten(), [forgotten(), forgotten()], {"a": 1, "b": (forgotten(),)}):
        with pytest.raises(InvalidOutput, match="coroutine"):
            encode_result(value, None)
        del value
        gc.collect()


def test_generators_are_closed() -> None:
    closed = []

    def source() -> Iterator[int]:
        try:
            yield 1
        finally:
            closed.append(True)

    started = source()
    next(started)
    with pytest.raises(InvalidOutput, match="generator"):
        encode_result({"rows": started}, None)
    assert closed == [True]


def test_a_generator_that_refuses_to_close_is_refused_all_the_same() -> None:
    def stubborn() -> Iterator[int]:
        while True:
            try:
                yield 1
            except GeneratorExit:
                yield 2

    started = stubborn()
    next(started)
    with pytest.raises(InvalidOutput, match="generator"):
        encode_result(started, None)


async def test_async_generators_are_closed() -> None:
    """Started or not, in a Trio run, without a warning."""
    closed = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            await trio.lowlevel.checkpoint()
        finally:
            closed.append(True)

    started = source()
    async for _ in started:
        break
    for value in (started, stream()):
        with pytest.raises(InvalidOutput, match="async_generator"):
            encode_result(value, None)
        del value
    assert closed == [True]
    del started
    gc.collect()


def test_awaitables_of_other_kinds_are_refused() -> None:
    class Later:
        def __await__(self) -> Iterator[None]:
            yield

    with pytest.raises(InvalidOutput, match="Later"):
        encode_result(Later(), None)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_is_no_exception_is_let_through(error: type[BaseException]) -> None:
    class Interrupting:
        def __str__(self) -> str:
            raise error

    with pytest.raises(error):
        encode_result(Interrupting(), None)


def test_a_value_that_unfolds_without_end_is_refused_in_bounded_work() -> None:
    """BC-55, for results: each level holds the next twice, written out 2**40 values."""
    value: list[object] = []
    for _ in range(40):
        value = [value, value]
    with pytest.raises(InvalidOutput, match=f"{MAX_VALUES:,}"):
        encode_result(value, 65_536)


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(json_like)
def test_json_is_written_losslessly_and_compactly(value: Any) -> None:
    """C118: what a tool returned can be read back from its result."""
    if value is None or value == [] or isinstance(value, str):
        return
    assert json.loads(text(value)) == value
    assert text(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.dates()
    | st.decimals()
    | st.just(Hostile())
    | st.just(Plain())
    | st.builds(TextBlock, st.text()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(anything, st.none() | st.integers(0, 80))
def test_any_value_gives_a_bounded_result_or_a_refusal(value: object, limit: int | None) -> None:
    """BC-37, BC-38, BC-39."""
    try:
        content = encode_result(value, limit)
    except InvalidOutput:
        return
    assert not any(has_surrogate(block.text) for block in content)
    if limit is not None:
        assert size(content) <= limit


# Bounding.


def size(content: tuple[TextBlock, ...]) -> int:
    return sum(len(block.text.encode()) for block in content)


def omitted(result: str) -> tuple[str, int, str]:
    head, _, rest = result.partition("\n[... ")
    count, _, tail = rest.partition(" bytes omitted ...]\n")
    return head, int(count), tail


contents = st.lists(st.builds(TextBlock, st.text(max_size=200)), max_size=5).map(tuple)


@given(contents, st.integers(0, 300))
def test_bounded_content_never_exceeds_its_limit(
    content: tuple[TextBlock, ...], limit: int
) -> None:
    """BC-39: at most the limit, valid UTF-8, and untouched when it fits."""
    result = bound(content, limit)
    assert size(result) <= limit
    assert not any(has_surrogate(block.text) for block in result)
    if size(content) <= limit:
        assert result is content


@given(st.text("ab\né🍸", min_size=60, max_size=400), st.integers(60, 200))
def test_bounded_text_keeps_head_and_tail_and_counts_the_rest(whole: str, limit: int) -> None:
    """BC-39: cut on characters, the omitted bytes counted exactly, the room used."""
    (block,) = bound((TextBlock(whole),), limit)
    if len(whole.encode()) <= limit:
        assert block.text == whole
        return
    head, count, tail = omitted(block.text)
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert head
    assert tail
    assert len(head.encode()) + count + len(tail.encode()) == len(whole.encode())
    assert len(block.text.encode()) > limit - 10


def test_blocks_over_the_limit_become_one() -> None:
    content = (TextBlock("a" * 100), TextBlock(""), TextBlock("b" * 100))
    (block,) = bound(content, 80)
    head, count, tail = omitted(block.text)
    assert set(head) == {"a"}
    assert set(tail) == {"b"}
    assert len(head) + count + len(tail) == 200


@pytest.mark.parametrize("limit", range(40))
def test_limits_too_small_for_the_line_keep_the_head(limit: int) -> None:
    (block,) = bound((TextBlock("é" * 1000),), limit)
    assert len(block.text.encode()) <= limit
    assert block.text.startswith("é" * min(limit // 2, 1))


def test_no_limit_keeps_everything() -> None:
    content = (TextBlock("x" * 1_000_000),)
    assert bound(content, None) is content
    assert text("x" * 1_000_000) == "x" * 1_000_000


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"out": s}, lambda s: [s]])
def test_memory_follows_the_limit_not_the_value(wrap: Any) -> None:
    """BC-39: 20 MB on one line, in a small multiple of the limit."""
    value = wrap("é" * 10_000_000)
    limit = 65_536
    tracemalloc.start()
    try:
        result = text(value, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert limit - 4 <= len(result.encode()) <= limit
    assert peak < 16 * limit
    head, count, tail = omitted(result)
    overhead = len(json.dumps(wrap("")).replace(" ", "")) if not isinstance(value, str) else 0
    assert len(head.encode()) + count + len(tail.encode()) == 20_000_000 + overhead


class Pieces(collections.abc.Sequence[str]):
    """Text that is made piece by piece, while it is read."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self.made = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Any:
        if index >= self.count:
            raise IndexError
        self.made += 1
        return "é" * self.size


def test_memory_of_a_result_that_is_made_in_pieces_follows_the_limit() -> None:
    """BC-39: 200 MB, never all at once."""
    value = Pieces(3200, 32_768)
    tracemalloc.start()
    try:
        result = text(value, 65_536)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert value.made == 3200
    assert len(result.encode()) <= 65_536
    assert peak < 16 * 65_536
    head, count, tail = omitted(result)
    assert len((head + tail).encode()) + count == 3200 * (2 * 32_768 + 3) + 1


def test_a_sequence_without_an_end_is_refused() -> None:
    """BC-55, for results: in bounded work."""
    with pytest.raises(InvalidOutput, match=f"{MAX_VALUES:,}"):
        encode_result(Pieces(2**60, 1), 65_536)


def test_a_sequence_that_fails_on_the_way_is_refused() -> None:
    class Broken(Pieces):
        def __getitem__(self, index: Any) -> Any:
            raise RuntimeError("half way")

    with pytest.raises(InvalidOutput, match="Broken, which failed while it was read"):
        encode_result(Broken(3, 1), 1000)


def test_memory_of_many_small_values_follows_the_limit() -> None:
    """BC-39."""
    value = [f"row {i % 7}" for i in range(100_000)]
    tracemalloc.start()
    try:
        result = text(value, 10_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(result) <= 10_000
    assert peak < 500_000


@given(st.text(), st.integers(30, 100))
def test_encoding_and_bounding_agree(value: str, limit: int) -> None:
    assert encode_result(value, limit) == bound((TextBlock(clean_text(value)),), limit)
