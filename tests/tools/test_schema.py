"""What a model may send: schemas from signatures, checked arguments, raw schemas."""

import dataclasses
import enum
import functools
import json
import math
import re
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar

import attrs
import msgspec
import pytest
from hypothesis import given, strategies as st

from terzetto.tools._schema import (
    Arguments,
    InvalidArguments,
    check_raw_schema,
    parse_raw,
)
from terzetto.tools._signature import describe, find_injected
from terzetto.vocabulary import InvalidTool, JsonObject, freeze_object, thaw_json

T = TypeVar("T")


class Run:
    """Stands for the type that the engine injects."""


class Unit(enum.Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


@attrs.frozen
class Place:
    city: str
    lat: float | None = None


@dataclasses.dataclass
class Node:
    """A tree."""

    value: int
    children: "list[Node]" = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Ping:
    pong: "Pong | None" = None


@dataclasses.dataclass
class Pong:
    ping: Ping | None = None


class Cat(msgspec.Struct, tag=True):
    lives: int = 9


class Dog(msgspec.Struct, tag=True):
    name: str


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Pair(NamedTuple):
    a: int
    b: str


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


@attrs.frozen
class Even:
    number: int = attrs.field()

    @number.validator
    def _(self, _: object, value: int) -> None:
        if value % 2:
            raise ValueError("odd")
        if value > 100:
            raise KeyError("large")


def of(body: Callable[..., object], name: str = "t") -> Arguments:
    return describe(body, tool=name, inject=Run)


def schema(body: Callable[..., object]) -> Any:
    return thaw_json(of(body).schema)


@contextmanager
def limited_memory(most: int) -> Iterator[None]:
    """What explodes in time explodes in memory as well, and that can be counted: the block
    has at most *most* bytes more at its peak."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


# Schemas.


def test_a_signature_becomes_an_object_schema() -> None:
    def weather(
        place: Place,
        days: Annotated[int, msgspec.Meta(ge=1, le=7)] = 1,
        unit: Unit = Unit.CELSIUS,
        mode: Literal["fast", "slow"] = "fast",
        *,
        tags: list[str] | None = None,
    ) -> str:
        return ""

    assert schema(weather) == {
        "type": "object",
        "properties": {
            "place": {"$ref": "#/$defs/Place"},
            "days": {"type": "integer", "minimum": 1, "maximum": 7, "default": 1},
            "unit": {"$ref": "#/$defs/Unit", "default": "C"},
            "mode": {"enum": ["fast", "slow"], "default": "fast"},
            "tags": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "default": None,
            },
        },
        "required": ["place"],
        "additionalProperties": False,
        "$defs": {
            "Place": {
                "title": "Place",
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "lat": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
                },
                "required": ["city"],
            },
            "Unit": {"title": "Unit", "enum": ["C", "F"]},
        },
    }


def test_no_parameters_is_an_empty_closed_object() -> None:
    assert schema(lambda: None) == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_any_parameter_name_is_allowed() -> None:
    def body(name: str, items: int, __class__: int, _private: int, encode: int = 1) -> None: ...

    assert list(schema(body)["properties"]) == ["name", "items", "__class__", "_private", "encode"]
    checked = of(body).check('{"name":"a","items":1,"__class__":2,"_private":3}')
    assert checked == {"name": "a", "items": 1, "__class__": 2, "_private": 3, "encode": 1}


def test_a_class_named_like_our_own_keeps_its_definition() -> None:
    @dataclasses.dataclass
    class Arguments:
        x: int

    def body(arguments: Arguments) -> None: ...

    (defined,) = schema(body)["$defs"].values()
    assert list(defined["properties"]) == ["x"]
    assert of(body).check('{"arguments":{"x":1}}') == {"arguments": Arguments(1)}


def test_google_and_numpy_docstrings_describe_tool_and_parameters() -> None:
    def google(path: str, depth: int = 1, odd: str = "") -> None:
        """List a folder.

        Hidden files are left out:
        unless named.

        Args:
            path (str, optional): Where to look,
                relative: to the workspace.
            depth: Levels.

              More on levels.
            odd

        Returns:
            path: not this one.
        """

    def numpy(path: str, depth: int = 1, odd: str = "") -> None:
        """List a folder.

        Hidden files are left out:
        unless named.

        Parameters
        ----------
        path : str, optional
            Where to look,
            relative: to the workspace.
        depth, other : int
            Levels.

            More on levels.

        Returns
        -------
        path : str
            Not this one.
        """

    for body in (google, numpy):
        described = of(body)
        assert described.description == (
            "List a folder.\n\nHidden files are left out:\nunless named."
        )
        properties = schema(body)["properties"]
        assert properties["path"]["description"] == "Where to look, relative: to the workspace."
        assert properties["depth"]["description"].startswith("Levels. More on levels.")
        assert "description" not in properties["odd"]


def test_descriptions_in_annotations_win_over_the_docstring() -> None:
    def body(x: Annotated[int, msgspec.Meta(description="from Meta")], y: Place) -> None:
        """Do.

        Args:
            x: from docs
            y: a place
        """

    assert schema(body)["properties"]["x"]["description"] == "from Meta"
    assert schema(body)["properties"]["y"] == {"$ref": "#/$defs/Place", "description": "a place"}


@pytest.mark.parametrize(
    "doc", [None, "", "Args:", "Args:\n", "Args:\n    x", "Args:\nx: 1", "-\n---", "Notes\n---"]
)
def test_odd_docstrings_are_read_without_fail(doc: str | None) -> None:
    def body(x: int) -> None: ...

    body.__doc__ = doc
    assert "description" not in schema(body)["properties"]["x"]


@given(st.text(st.sampled_from("Args:Parameters\n- x(),*\t\ud800")))
def test_any_docstring_is_read_without_fail(doc: str) -> None:
    def body(x: int) -> None: ...

    body.__doc__ = doc
    assert isinstance(of(body).description, str)


def test_recursive_types_keep_their_references() -> None:
    """BC-55."""

    def body(tree: Node, ping: Ping) -> None: ...

    found = schema(body)
    assert found["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert set(found["$defs"]) == {"Node", "Ping", "Pong"}
    checked = of(body).check('{"tree":{"value":1,"children":[{"value":2}]},"ping":{"pong":{}}}')
    assert checked == {"tree": Node(1, [Node(2)]), "ping": Ping(Pong())}


def test_thirty_levels_that_double_are_described_in_a_small_schema() -> None:
    """BC-55: each class uses the next twice; references keep that small."""
    level: type = dataclasses.make_dataclass("Level0", [("x", int)])
    for number in range(1, 31):
        level = dataclasses.make_dataclass(f"Level{number}", [("a", level), ("b", level)])

    def body(top: Any) -> None: ...

    body.__annotations__["top"] = level
    found = schema(body)
    assert len(found["$defs"]) == 31
    assert len(json.dumps(found)) < 10_000


@pytest.mark.parametrize("nested", [False, True])
def test_aliases_that_double_are_refused_with_little_memory(nested: bool) -> None:
    """BC-55: aliases cannot be kept by reference, written out they would fill the memory."""
    alias: Any = int
    for _ in range(30):
        alias = tuple[alias, alias]
    if nested:
        alias = type("Holder", (), {"__annotations__": {"x": alias}})

    def body(top: Any) -> None: ...

    body.__annotations__["top"] = alias
    with limited_memory(2_000_000), pytest.raises(InvalidTool, match=r"'top'.*use dataclasses"):
        of(body)


def test_generic_tagged_and_structural_types() -> None:
    def body(box: Box[int], pet: Cat | Dog, movie: Movie, pair: Pair, keys: dict[str, int]) -> None:
        pass

    checked = of(body).check(
        '{"box":{"content":1},"pet":{"type":"Dog","name":"Rex"},"movie":{"title":"M"},'
        '"pair":[1,"x"],"keys":{"k":1}}'
    )
    assert checked == {
        "box": Box(1),
        "pet": Dog("Rex"),
        "movie": {"title": "M"},
        "pair": Pair(1, "x"),
        "keys": {"k": 1},
    }


def test_the_injected_parameter_is_not_in_the_schema() -> None:
    def plain(x: int, run: Run) -> None: ...
    def optional(run: Run | None = None, *, x: int) -> None: ...
    def text(x: int, run: "Run") -> None: ...
    def optional_text(x: int, run: "None | Run" = None) -> None: ...
    def annotated(x: int, run: Annotated[Run, "mine"]) -> None: ...

    for body in (plain, optional, text, optional_text, annotated):
        assert of(body).injects == "run"
        assert list(schema(body)["properties"]) == ["x"]
        assert find_injected(body, inject=Run) == "run"
        assert of(body).check('{"x":1}') == {"x": 1}
        with pytest.raises(InvalidArguments, match="unknown field `run`"):
            of(body).check('{"x":1,"run":null}')


def test_an_injected_type_imported_for_type_checkers_only_is_found() -> None:
    namespace: dict[str, Any] = {}
    exec("def body(x: 'int', run: 'Run | None' = None) -> 'Missing': ...", namespace)
    assert of(namespace["body"]).injects == "run"


def test_what_a_partial_has_filled_is_not_shown() -> None:
    def body(key: str, x: int, y: int = 2) -> None:
        """Doc."""

    bound = functools.partial(body, "secret")
    assert list(schema(bound)["properties"]) == ["x", "y"]
    keyword = functools.partial(body, key="secret", y=3)
    assert list(schema(keyword)["properties"]) == ["x"]
    assert "secret" not in json.dumps(schema(keyword))
    assert of(keyword).description == "Doc."


def test_methods_objects_and_decorated_functions_are_read() -> None:
    class Service:
        def look(self, x: "int") -> None:
            """Look."""

        def __call__(self, x: "Place") -> None:
            """Call."""

    def decorated(*args: Any, **kwargs: Any) -> None: ...

    functools.update_wrapper(decorated, Service().look)
    assert of(Service().look).description == "Look."
    assert of(Service()).description == "Call."
    assert schema(Service())["properties"] == {"x": {"$ref": "#/$defs/Place"}}
    assert list(schema(Service().look)["properties"]) == ["x"]


# Refused at registration.


def untyped(x) -> None: ...
def self_like(self, x: int) -> None: ...
def many(*args: int) -> None: ...
def keywords(**kwargs: int) -> None: ...
def positional(x: int, /) -> None: ...
def unresolved(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def syntax(x: "int int") -> None: ...  # type: ignore[valid-type]  # noqa: F722
def unsupported(x: int, y: complex) -> None: ...
def nested(x: list[dict[str, object]]) -> None: ...
def ambiguous(x: Place | Node) -> None: ...
def function(x: Callable[[], int]) -> None: ...
def injected_twice(x: Run, y: Run) -> None: ...
def injected_list(x: list[Run]) -> None: ...
def injected_or_text(x: Run | str) -> None: ...
def infinite_limit(
    x: Annotated[float, msgspec.Meta(extra_json_schema={"x": math.inf})],
) -> None: ...


class Lock:
    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: object) -> None:
        raise TypeError("no copies")


def uncopyable(x: int = Lock()) -> None: ...  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (untyped, "parameter 'x' has no annotation"),
        (self_like, "parameter 'self' has no annotation.*bound method"),
        (many, "parameter 'args' takes any arguments"),
        (keywords, "parameter 'kwargs' takes any arguments"),
        (positional, "parameter 'x' is positional-only"),
        (unresolved, "parameter 'x'.*Nowhere.*TYPE_CHECKING"),
        (syntax, "parameter 'x'.*annotation"),
        (unsupported, "parameter 'y'.*complex.*expected str, int"),
        (nested, "parameter 'x'.*object.*not supported"),
        (ambiguous, "parameter 'x'.*more than one.*Structs"),
        (function, "parameter 'x'.*Callable"),
        (injected_twice, "'x' and 'y' are both annotated Run"),
        (injected_list, "parameter 'x'.*Run"),
        (injected_or_text, "parameter 'x'"),
        (uncopyable, "parameter 'x' is mutable"),
        (infinite_limit, "schema is not JSON"),
        (dict.fromkeys, "positional-only"),
        (type, "signature cannot be read"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_described_is_refused_in_words(
    body: Callable[..., object], words: str
) -> None:
    """C117."""
    with pytest.raises(InvalidTool, match=re.compile(words, re.DOTALL)) as caught:
        of(body, "mytool")
    assert "mytool" in str(caught.value)


# Defaults.


def test_mutable_defaults_are_not_shared_between_calls() -> None:
    def body(tags: list[str] = ["a"], place: Node = Node(1)) -> None: ...  # noqa: B006

    arguments = of(body)
    first = arguments.check("{}")
    assert first == {"tags": ["a"], "place": Node(1)}
    first["tags"].append("b")  # type: ignore[attr-defined]
    assert arguments.check("{}") == {"tags": ["a"], "place": Node(1)}


def test_defaults_that_the_model_could_not_send_are_not_shown() -> None:
    marker: Any = object()

    def body(
        a: float = math.inf,
        b: int = marker,
        c: int = None,  # type: ignore[assignment]  # noqa: RUF013
        d: Unit = Unit.CELSIUS,
    ) -> None: ...

    properties = schema(body)["properties"]
    assert [name for name in properties if "default" in properties[name]] == ["d"]
    assert of(body).check("{}") == {"a": math.inf, "b": marker, "c": None, "d": Unit.CELSIUS}


def test_infinite_defaults_inside_a_type_do_not_refuse_the_tool() -> None:
    @dataclasses.dataclass
    class Wait:
        default: float = math.inf
        seconds: float = math.inf

    def body(wait: Wait) -> None: ...

    (wait,) = schema(body)["$defs"].values()
    assert wait["properties"] == {"default": {"type": "number"}, "seconds": {"type": "number"}}


# Arguments.


def required(place: Place, days: int = 1) -> None: ...
def optional(days: int = 1, tags: tuple[str, ...] = ()) -> None: ...


@pytest.mark.parametrize("text", [None, "", " ", "\n\t", "null", " null\n", "{}", " { } "])
def test_no_arguments_in_every_spelling(text: str | None) -> None:
    """BC-22, C117, run 029."""
    assert of(lambda: None).check(text) == {}
    assert of(optional).check(text) == {"days": 1, "tags": ()}
    assert parse_raw(text) == {}
    with pytest.raises(InvalidArguments, match="missing required field `place`"):
        of(required).check(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"x": "He said "hi""}', "expected a JSON object, got text that is not JSON"),
        ("{", "not JSON"),
        ("[1]", "expected a JSON object, got `array`"),
        ('"str"', "expected a JSON object, got `str`"),
        ("1", "got `int`"),
        ("true", "got `bool`"),
        ('{"x":1}{"x":2}', "trailing characters"),
        ("{'place': 1}", "not JSON"),
        ('{"days":NaN}', "not JSON"),
        ('{"days":1,}', "trailing comma"),
        ("\x00", "not JSON"),
        ("plain words", "not JSON.*plain words"),
        ('{"place":{"city":3}}', r"expected `str`, got `int` - at `\$\.place\.city`"),
        ('{"place":{}}', r"missing required field `city` - at `\$\.place`"),
        ('{"place":{"city":"P"},"days":"3"}', r"expected `int`, got `str` - at `\$\.days`"),
        ('{"place":{"city":"P"},"days":3.5}', r"expected `int`, got `float`"),
        ('{"place":{"city":"P"},"days":null}', r"expected `int`, got `null`"),
        ('{"place":{"city":"P"},"days":1e400}', "out of range"),
        ('{"place":{"city":"P"},"day":1}', "unknown field `day`; the fields are: days, place"),
        ('{"place":{"city":"P"},"days":"x","days":1}', "expected `int`, got `str`"),
    ],
)
def test_what_does_not_fit_is_explained_to_the_model(text: str, words: str) -> None:
    """BC-23, C117: what was expected, what came, and where."""
    with pytest.raises(InvalidArguments, match=words) as caught:
        of(required, "weather").check(text)
    assert str(caught.value).startswith("arguments of weather: ")


def test_every_argument_is_told_its_fault_at_once() -> None:
    def body(place: Place, unit: Unit, days: int, ok: int = 1) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        of(body).check('{"unit":"K","days":"x","ok":2,"more":0,"other":0}')
    assert str(caught.value) == (
        "arguments of t: missing required field `place`; unknown field `more`, `other`; "
        "the fields are: days, ok, place, unit; "
        "invalid enum value 'K', expected one of 'C', 'F' - at `$.unit`; "
        "expected `int`, got `str` - at `$.days`"
    )


def test_validators_of_the_tools_types_may_raise_anything() -> None:
    def body(even: Even, after: int = 1) -> None: ...

    with pytest.raises(InvalidArguments, match=r"odd - at `\$\.even`"):
        of(body).check('{"even":{"number":3}}')
    with pytest.raises(InvalidArguments, match=r"large.*\$\.even"):
        of(body).check('{"even":{"number":102}}')


def test_lone_surrogate_escapes_are_replaced() -> None:
    r"""BC-38: an escaped pair is its character, a lone half is U+FFFD, ``\\ud83c`` is text."""

    def body(s: str) -> None: ...

    for sent, meant in [
        (r"\ud83c\udf78", "🍸"),
        (r"\ud83c", "\ufffd"),
        (r"\udf78\ud83c", "\ufffd\ufffd"),
        (r"\uD83Cx", "\ufffdx"),
        (r"\ud83c\ud83c\udf78", "\ufffd🍸"),
        (r"\\ud83c", r"\ud83c"),
        (r"\\\ud83c", "\\\ufffd"),
        ("\ud83c", "\ufffd"),
        ("\ud83c\udf78", "🍸"),
    ]:
        assert of(body).check(f'{{"s":"{sent}"}}') == {"s": meant}
        assert parse_raw(f'"{sent}"') == meant


def test_huge_and_deep_arguments_are_refused_in_few_words() -> None:
    """BC-23."""

    def body(x: list[Any], s: str = "") -> None: ...

    deep = "[" * 200_000
    big = "a" * 3_000_000
    for text in (
        deep,
        f'{{"x":{deep}',
        f'{{"x":{deep}{"]" * 200_000}}}',
        f'{{"x":1,"y":{deep}{"]" * 200_000}}}',
        f'{{"{big}":1,"x":1}}',
        f'{{"x":"{big}"}}',
        big,
        f'{{"x":[],"s":{"9" * 10_000}}}',
        json.dumps({f"k{i}": i for i in range(100_000)}),
    ):
        with pytest.raises(InvalidArguments) as caught:
            of(body).check(text)
        assert len(str(caught.value)) < 1500
        parse_raw(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"x": ', '{"x": '),
        ('{"x":1}', {"x": 1}),
        ("[1,2]", [1, 2]),
        ('"s"', "s"),
        ("1.5", 1.5),
        ("false", False),
        ("NaN", "NaN"),
        ("1e400", "1e400"),
        ('{"x":1}{"x":2}', '{"x":1}{"x":2}'),
        ("hello \ud800", "hello \ufffd"),
    ],
)
def test_raw_arguments_are_json_or_else_the_text(text: str, value: object) -> None:
    """BC-23, C117, run 028."""
    assert parse_raw(text) == value


any_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "C", "fast", "a", "Dog"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["city", "lat", "value", "children", "type", "name", "content"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


def signatures() -> list[Callable[..., object]]:
    def scalars(a: int, b: float = 1.5, c: bool = True, d: str | None = None) -> None: ...
    def records(a: Place, b: Node | None = None, d: Even = Even(2)) -> None: ...
    def choices(a: Unit, b: Literal["fast", 1, None] = "fast", c: Cat | Dog = Cat()) -> None: ...
    def nests(
        a: list[Place], b: dict[str, int] | None = None, c: tuple[int, str] = (1, "")
    ) -> None: ...
    def bounds(
        a: Annotated[int, msgspec.Meta(ge=0, lt=5)],
        b: Annotated[list[int], msgspec.Meta(max_length=2)] = [],  # noqa: B006
        c: Annotated[str, msgspec.Meta(min_length=1)] = "x",
    ) -> None: ...
    def structural(
        a: Movie, b: Pair = Pair(1, ""), c: Any = None, d: Box[int] = Box(1)
    ) -> None: ...

    return [scalars, records, choices, nests, bounds, structural]


CHECKED = [of(body) for body in signatures()]
objects = st.dictionaries(st.sampled_from("abcd"), any_json, max_size=4)


def instances(root: Any, node: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that *node* describes, for the part of JSON Schema that tools use."""

    def inner(part: Any) -> st.SearchStrategy[Any]:
        return instances(root, part, depth + 1)

    if "$ref" in node:
        return inner(root["$defs"][node["$ref"].removeprefix("#/$defs/")])
    if "enum" in node:
        return st.sampled_from(node["enum"])
    if "anyOf" in node:
        return st.one_of([inner(option) for option in node["anyOf"]])
    match node.get("type"):
        case "object":
            properties = {} if depth > 6 else node.get("properties", {})
            required = node.get("required", [])
            known = st.fixed_dictionaries(
                {name: inner(node["properties"][name]) for name in required},
                optional={n: inner(part) for n, part in properties.items() if n not in required},
            )
            if isinstance(more := node.get("additionalProperties"), dict):
                return st.dictionaries(st.text(max_size=2), inner(more), max_size=2)
            return known
        case "array":
            if "prefixItems" in node:
                return st.tuples(*map(inner, node["prefixItems"])).map(list)
            return st.lists(inner(node.get("items", {})), max_size=0 if depth > 6 else 2)
        case "string":
            return st.text(min_size=node.get("minLength", 0), max_size=3)
        case "integer":
            low = node.get("minimum")
            top = node.get("exclusiveMaximum")
            return st.integers(low, None if top is None else top - 1)
        case "number":
            return st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
    return any_json


def nearly(arguments: Arguments) -> st.SearchStrategy[Any]:
    """Objects of the schema, here and there with a value that is not of it."""
    root: Any = thaw_json(arguments.schema)
    fits = instances(root, {**root, "required": []})
    return fits | st.tuples(instances(root, root), objects).map(lambda t: {**t[0], **t[1]})


@pytest.mark.parametrize("arguments", CHECKED, ids=range(len(CHECKED)))
@given(data=st.data())
def test_the_schema_accepts_what_the_checker_accepts(arguments: Arguments, data: Any) -> None:
    """C117: what runs is what was promised to the model."""
    value = data.draw(nearly(arguments))
    try:
        checked = arguments.check(json.dumps(value))
    except InvalidArguments:
        return
    assert accepts(thaw_json(arguments.schema), value)
    assert list(checked) == [parameter.name for parameter in arguments.parameters]


@pytest.mark.parametrize("arguments", CHECKED, ids=range(len(CHECKED)))
@given(data=st.data())
def test_the_checker_accepts_what_the_schema_describes(arguments: Arguments, data: Any) -> None:
    """C117: a model that keeps to the schema is not refused, but by a type's own validator."""
    root: Any = thaw_json(arguments.schema)
    value = data.draw(instances(root, root))
    assert accepts(root, value)
    try:
        arguments.check(json.dumps(value))
    except InvalidArguments as error:
        assert re.search(r"odd|large", str(error))


@pytest.mark.parametrize("arguments", CHECKED, ids=range(len(CHECKED)))
def test_the_checker_accepts_the_defaults_that_the_schema_shows(arguments: Arguments) -> None:
    properties: Any = thaw_json(arguments.schema["properties"])
    for name, node in properties.items():
        if "default" in node:
            assert accepts(thaw_json(arguments.schema), node["default"], node)
            with pytest.raises(InvalidArguments) as caught:
                arguments.check(json.dumps({name: node["default"], "unknown": 1}))
            assert f"$.{name}" not in str(caught.value)


texts = (
    st.text()
    | st.text('{}[]":,\\ud83c0123456789eE+-. \nabcnull')
    | objects.map(json.dumps)
    | st.builds(lambda v, i: json.dumps(v)[:i], objects, st.integers(0, 60))
)


@given(text=texts)
def test_no_text_crashes_a_parser(text: str) -> None:
    """BC-22, BC-23, BC-38."""
    for arguments in CHECKED:
        try:
            assert isinstance(arguments.check(text), Mapping)
        except InvalidArguments as error:
            str(error).encode()
    parse_raw(text)


def accepts(root: Any, value: Any, node: Any = None) -> bool:
    """Whether *value* is valid for the part of JSON Schema that tools use."""
    node = root if node is None else node
    kinds: dict[str, Callable[[Any], bool]] = {
        "object": lambda v: isinstance(v, dict),
        "array": lambda v: isinstance(v, list),
        "string": lambda v: isinstance(v, str),
        "boolean": lambda v: isinstance(v, bool),
        "null": lambda v: v is None,
        "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
        "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    }
    if "$ref" in node and not accepts(
        root, value, root["$defs"][node["$ref"].removeprefix("#/$defs/")]
    ):
        return False
    if "type" in node and not kinds[node["type"]](value):
        return False
    if "enum" in node and not any(type(v) is type(value) and v == value for v in node["enum"]):
        return False
    if "anyOf" in node and not any(accepts(root, value, option) for option in node["anyOf"]):
        return False
    if isinstance(value, dict):
        properties = node.get("properties", {})
        if not set(node.get("required", ())) <= value.keys():
            return False
        for name, item in value.items():
            inner = properties.get(name, node.get("additionalProperties", True))
            if inner is False or (inner is not True and not accepts(root, item, inner)):
                return False
    if isinstance(value, list):
        if not node.get("minItems", 0) <= len(value) <= node.get("maxItems", math.inf):
            return False
        positions = node.get("prefixItems", [])
        items = [*positions, *[node.get("items") or {}] * (len(value) - len(positions))]
        if not all(accepts(root, item, part) for item, part in zip(value, items, strict=False)):
            return False
    if isinstance(value, str):
        return bool(node.get("minLength", 0) <= len(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return bool(
            node.get("minimum", -math.inf) <= value < node.get("exclusiveMaximum", math.inf)
        )
    return True


# Raw schemas.


def test_a_raw_schema_is_kept_as_it_is() -> None:
    given_schema = {
        "type": "object",
        "properties": {
            "$ref": {"type": "string"},
            "tree": {"$ref": "#/$defs/a~1b"},
            "self": {"$ref": "#"},
            "first": {"$ref": "#/properties/tree"},
            "list": {"allOf": [{"$ref": "#/$defs/all/anyOf/1"}]},
            "data": {"default": {"$ref": "#/nowhere"}, "enum": [{"$ref": "#/nowhere"}]},
            "far": {"$ref": "https://example.org/schema#/x"},
            "own": {"$id": "https://example.org/own", "$ref": "#/inside"},
        },
        "$defs": {
            "a/b": {"type": "array", "items": {"$ref": "#/$defs/a%7E1b"}},
            "all": {"anyOf": [True, {"type": "null"}]},
        },
    }
    checked = check_raw_schema(given_schema, tool="t")
    assert thaw_json(checked) == given_schema
    assert check_raw_schema(checked, tool="t") is checked


def test_a_recursive_and_doubling_raw_schema_is_accepted_as_it_is() -> None:
    """BC-55: thirty definitions, each using the next twice."""
    definitions: dict[str, object] = {"d30": {"type": "string"}}
    for level in range(30):
        ref = {"$ref": f"#/$defs/d{level + 1}"}
        definitions[f"d{level}"] = {"type": "object", "properties": {"a": ref, "b": ref}}
    definitions["d30"] = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/d0"}]}
    top = {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": definitions}
    with limited_memory(1_000_000):
        assert thaw_json(check_raw_schema(top, tool="t")) == top


def test_a_large_raw_schema_is_accepted() -> None:
    top = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20_000)}}
    assert len(check_raw_schema(top, tool="t")["properties"]) == 20_000  # type: ignore[arg-type]


def inlined(levels: int) -> dict[str, object]:
    node: dict[str, object] = {"type": "string"}
    for _ in range(levels):
        node = {"type": "object", "properties": {"a": node, "b": node}}
    return node


def cyclic() -> dict[str, object]:
    node: dict[str, object] = {"type": "object"}
    node["properties"] = {"a": node, "b": node}
    return node


def chain(levels: int) -> dict[str, object]:
    node: dict[str, object] = {"type": "object"}
    for _ in range(levels):
        node = {"type": "object", "not": node}
    return node


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, "expected a JSON Schema with type 'object', got type None"),
        ({"type": "string"}, "got type 'string'"),
        ({"type": ["object", "null"]}, "got type"),
        ({"type": "object", "default": math.nan}, "nan"),
        ({"type": "object", "x": object()}, "object"),
        ({"type": "object", "x": {1: 2}}, "key 1"),
        ({"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}}, "'#/\\$defs/X' points to"),
        ({"type": "object", "allOf": [{"$ref": "#/allOf/9"}]}, "points to nothing"),
        ({"type": "object", "$defs": {"A": {"$ref": "#/$defs/A/b"}}}, "points to nothing"),
        (inlined(40), "use \\$defs"),
        (cyclic(), "cycle"),
        (chain(5000), "parameters"),
        (["type", "object"], "expected a JSON object"),
        (None, "expected a JSON object"),
    ],
    ids=range(14),
)
def test_raw_schemas_that_cannot_be_used_are_refused(parameters: Any, words: str) -> None:
    """BC-55."""
    with limited_memory(1_000_000), pytest.raises(InvalidTool, match=words) as caught:
        check_raw_schema(parameters, tool="mytool")
    assert "mytool" in str(caught.value)


def test_refusing_a_doubling_schema_takes_little_memory() -> None:
    """BC-55."""
    with limited_memory(1_000_000), pytest.raises(InvalidTool):
        check_raw_schema(inlined(60), tool="t")


def test_a_shared_frozen_schema_is_walked_once() -> None:
    """BC-55: nested frozen objects are taken over as they are, however often they occur."""
    node = freeze_object({"type": "string"})
    for _ in range(12):
        node = JsonObject({"type": "object", "properties": JsonObject({"a": node, "b": node})})
    assert check_raw_schema(node, tool="t") is node
