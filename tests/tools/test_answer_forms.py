"""What a type looks like to a model, and which values come back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from tests.strategies_answers import (
    Box,
    Colour,
    Empty,
    Leaf,
    Node,
    Packed,
    Point,
    Row,
    Tagged,
    typed_values,
)

from terzetto.tools import VALUE, AnswerForm, answer_forms, type_name
from terzetto.tools._schema import InvalidArguments
from terzetto.vocabulary import InvalidValue, thaw_json


def only(returns: object) -> AnswerForm:
    (form,) = answer_forms(returns)
    return form


def value(form: AnswerForm, text: str | None) -> object:
    return form.arguments.check(text)[VALUE]


def fields_of(form: AnswerForm) -> Any:
    return form.arguments.schema["properties"]


# --- shapes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returns", "names"),
    [
        (Leaf, ["name", "size"]),
        (Node, ["value", "children"]),
        (Box[int], ["held"]),
        (Row, ["name", "note"]),
        (Tagged, ["type", "firstName"]),
        (Annotated[Leaf, "a note"], ["name", "size"]),
        (Empty, []),
        (Point, ["value"]),
        (Packed, ["value"]),
        (Colour, ["value"]),
        (dict[str, int], ["value"]),
        (Leaf | None, ["value"]),
        (Any, ["value"]),
    ],
    ids=str,
)
def test_types_with_fields_are_spread_out_and_others_are_one_value(
    returns: object, names: list[str]
) -> None:
    """A provider takes an object only; a type that is one needs no wrapping."""
    form = only(returns)
    assert list(fields_of(form)) == names
    assert form.arguments.schema["type"] == "object"
    assert form.arguments.schema["additionalProperties"] is False


def test_a_type_that_contains_itself_keeps_its_definition() -> None:
    """A reference in the schema points to something."""
    schema: Any = thaw_json(only(Node).arguments.schema)
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert schema["$defs"]["Node"]["required"] == ["value"]
    assert "$defs" not in only(Leaf).arguments.schema


def test_the_types_docstring_describes_its_tool() -> None:
    assert only(Leaf).description.endswith(" A leaf.")
    assert only(int).description.endswith(".")


def test_a_union_of_plain_classes_is_one_tool_for_each() -> None:
    """JSON alone does not tell them apart; what is left of the union is one value."""
    forms = {form.name: form for form in answer_forms(Leaf | Node | int | None)}
    assert list(forms) == ["answer_Leaf", "answer_Node", "answer"]
    assert value(forms["answer_Node"], '{"value": 1}') == Node(1)
    assert value(forms["answer"], '{"value": null}') is None


def test_classes_of_one_name_get_different_tools() -> None:
    other = attrs.make_class("Leaf", {"x": attrs.field(type=int)}, frozen=True)
    names = [form.name for form in answer_forms(Leaf | other)]
    assert len(set(names)) == 2


def test_generic_members_have_names_that_providers_take() -> None:
    names = [form.name for form in answer_forms(Box[list[int]] | Leaf)]
    assert all(name.replace("_", "").isalnum() for name in names)


@pytest.mark.parametrize(
    "returns",
    [
        complex,
        object,
        type,
        7,
        "Leaf",
        list[complex],
        Leaf | complex,
        Leaf | Box[complex],
        Leaf("x"),
    ],
    ids=str,
)
def test_what_json_cannot_describe_is_refused_by_name(returns: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        answer_forms(returns)
    assert str(caught.value).startswith("returns: expected a type that JSON can describe, got ")
    assert type_name(returns) in str(caught.value)


def test_annotations_for_type_checkers_only_are_refused() -> None:
    unknown: Any = "NotImported"
    hidden = attrs.make_class("Hidden", {"x": attrs.field(type=unknown)})
    with pytest.raises(InvalidValue, match="NotImported"):
        answer_forms(hidden)


def test_an_alias_that_doubles_at_each_level_is_refused_at_once() -> None:
    bomb: Any = int
    for _ in range(40):
        bomb = tuple[bomb, bomb]
    with pytest.raises(InvalidValue, match="too many types"):
        answer_forms(bomb)


# --- what comes back ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returns", "text", "told"),
    [
        (Leaf, None, ["missing required field `name`"]),
        (Leaf, "[1]", ["expected a JSON object"]),
        (Leaf, "{", ["expected a JSON object", "not JSON"]),
        (Leaf, '{"name": 1, "size": "x"}', ["$.name", "$.size"]),
        (Leaf, '{"name": "a", "extra": 1}', ["unknown field `extra`"]),
        (Row, '{"name": "a", "note": 1}', ["$.note"]),
        (Row, '{"name": "a", "extra": 1}', ["unknown field `extra`"]),
        (Tagged, '{"type": "Tagged", "firstName": 1}', ["$.firstName"]),
        (Tagged, '{"type": "Other", "firstName": "a"}', ["Other"]),
        (Node, '{"value": 1, "children": [{"value": "x"}]}', ["$.children[0].value"]),
        (Box[int], '{"held": "x"}', ["$.held"]),
        (int, '{"value": "3"}', ["expected `int`", "$.value"]),
        (int, "3", ["expected a JSON object"]),
        (bool, '{"value": 1}', ["expected `bool`"]),
        (Literal["a"], '{"value": "b"}', ["$.value"]),
        (Node, '{"children":' + '[{"children":' * 3000, ["answer"]),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_in_words_for_the_model(
    returns: object, text: str | None, told: list[str]
) -> None:
    """C117: strict, with the place of each fault."""
    with pytest.raises(InvalidArguments) as caught:
        value(only(returns), text)
    for part in told:
        assert part in str(caught.value)
    assert len(str(caught.value)) < 3000


@settings(max_examples=300, deadline=None)
@given(typed_values())
def test_a_value_that_can_be_encoded_comes_back_equal(pair: tuple[Any, Any]) -> None:
    """Whatever a model can say of a type is the value that the program gets."""
    returns, given_value = pair
    (form,) = answer_forms(returns)
    fields = form.arguments.schema["properties"]
    encoded = msgspec.json.encode(given_value).decode()
    spread = type(form.arguments).__name__ == "FieldArguments"
    text = encoded if spread else f'{{"value":{encoded}}}'
    found = value(form, text)
    assert found == given_value
    assert type(found) is type(given_value)
    assert spread or list(fields) == [VALUE]
