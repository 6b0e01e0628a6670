"""Sections, variables, context parts and tool order (C38, C39, C85, C99, C102)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from terzetto.hooks import Registration, Scope
from terzetto.prompt import PromptLayer, arrange_tools
from terzetto.session import AgentView
from terzetto.vocabulary import (
    EMPTY_OBJECT,
    CodedError,
    ContextSection,
    DuplicateName,
    InvalidValue,
    ScopeClosed,
    ToolSchema,
)

AGENT = cast(AgentView, object())
ROUTE = {"provider": "deepseek", "model": "chat"}


def layer(parent: PromptLayer | None = None, name: str = "engine") -> PromptLayer:
    return PromptLayer(Scope(name, parent.scope if parent else None), parent)


def rendered(prompt: PromptLayer, **variables: str) -> str:
    return prompt.render(AGENT, {**ROUTE, **variables})


def schema(name: str) -> ToolSchema:
    return ToolSchema(name=name, description="", parameters=EMPTY_OBJECT)


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(CodedError) as caught:
        act()
    return caught.value.code


# --- sections -------------------------------------------------------------------------------


def test_no_section_is_no_prompt() -> None:
    """C89."""
    assert rendered(layer()) == ""


def test_sections_are_joined_by_a_blank_line_in_ascending_order() -> None:
    """C99."""
    prompt = layer()
    prompt.add_section("b", "second", order=2)
    prompt.add_section("c", "third", order=2.5)
    prompt.add_section("a", "first", order=-1)
    assert rendered(prompt) == "first\n\nsecond\n\nthird"


def test_sections_of_one_order_stand_as_they_were_added() -> None:
    """C99."""
    prompt = layer()
    for name in ("z", "a", "m"):
        prompt.add_section(name, name)
    assert rendered(prompt) == "z\n\na\n\nm"


def test_empty_sections_leave_no_gap() -> None:
    """C89, C99."""
    prompt = layer()
    prompt.add_section("a", "")
    prompt.add_section("b", "text")
    prompt.add_section("c", lambda agent: "")
    assert rendered(prompt) == "text"


def test_a_name_is_taken_once_in_a_layer() -> None:
    """C99."""
    prompt = layer()
    prompt.add_section("a", "one")
    with pytest.raises(DuplicateName, match="'a'"):
        prompt.add_section("a", "two")
    assert rendered(prompt) == "one"


@pytest.mark.parametrize("kind", ["section", "variable", "context"])
def test_a_name_must_not_be_empty(kind: str) -> None:
    prompt = layer()
    adds: dict[str, Callable[[], Registration]] = {
        "section": lambda: prompt.add_section("", "text"),
        "variable": lambda: prompt.set_variable("", "text"),
        "context": lambda: prompt.add_context("", "text"),
    }
    with pytest.raises(InvalidValue, match=kind):
        adds[kind]()


def test_an_inner_section_shadows_an_outer_one_nearest_first() -> None:
    """C39, C99: with its own order."""
    outer = layer()
    middle = layer(outer, "agent")
    inner = layer(middle, "nested")
    outer.add_section("a", "outer a", order=1)
    outer.add_section("b", "outer b", order=2)
    with middle.add_section("a", "middle a", order=3):
        assert rendered(inner) == "outer b\n\nmiddle a"
        with inner.add_section("a", "inner a"):
            assert rendered(inner) == "inner a\n\nouter b"
            assert rendered(middle) == "outer b\n\nmiddle a"
    assert rendered(inner) == rendered(outer) == "outer a\n\nouter b"


def test_an_empty_inner_section_silences_an_outer_one() -> None:
    """C39."""
    outer = layer()
    inner = layer(outer, "agent")
    outer.add_section("a", "text")
    inner.add_section("a", "")
    assert rendered(inner) == ""
    assert rendered(outer) == "text"


def test_a_text_may_be_a_function_of_the_agent() -> None:
    """C99: evaluated at each assembly."""
    prompt = layer()
    asked: list[AgentView] = []
    prompt.add_section("a", lambda agent: asked.append(agent) or f"{len(asked)}")  # type: ignore[func-returns-value]
    assert rendered(prompt) == "1"
    assert rendered(prompt) == "2"
    assert asked == [AGENT, AGENT]


def test_lone_surrogates_do_not_reach_the_prompt() -> None:
    """C84: what is rendered can be logged."""
    prompt = layer()
    prompt.add_section("a", lambda agent: "a\ud800 {{v}}")
    prompt.set_variable("v", "\udc00b")
    rendered(prompt).encode()
    assert rendered(prompt) == "a\ufffd \ufffdb"


def test_a_text_that_is_no_text_is_refused() -> None:
    prompt = layer()
    prompt.add_section("a", cast(Any, lambda agent: None))
    with pytest.raises(InvalidValue, match="NoneType"):
        rendered(prompt)


# --- complete sections ----------------------------------------------------------------------


def test_a_complete_section_is_the_whole_prompt() -> None:
    """C99."""
    prompt = layer()
    prompt.add_section("a", "one")
    with prompt.add_section("b", "alone on {{model}}", complete=True):
        assert rendered(prompt) == "alone on chat"
    assert rendered(prompt) == "one"


def test_two_complete_sections_fail_loud() -> None:
    """C99: also when they come from different layers."""
    outer = layer()
    inner = layer(outer, "agent")
    outer.add_section("a", "one", complete=True)
    inner.add_section("b", "two", complete=True)
    assert rendered(outer) == "one"
    with pytest.raises(CodedError, match="'a', 'b'") as caught:
        rendered(inner)
    assert caught.value.code == "PROMPT"


def test_a_shadowed_complete_section_does_not_count() -> None:
    """C39, C99."""
    outer = layer()
    inner = layer(outer, "agent")
    outer.add_section("a", "one", complete=True)
    outer.add_section("c", "more")
    inner.add_section("a", "two")
    assert rendered(inner) == "two\n\nmore"


# --- variables ------------------------------------------------------------------------------


def test_variables_are_replaced_wherever_they_stand() -> None:
    """C85, C99: the route's are always there."""
    prompt = layer()
    prompt.set_variable("user.name-1", "Ada")
    prompt.add_section("a", "{{provider}}/{{ model }} for {{user.name-1}}{{user.name-1}}")
    assert rendered(prompt) == "deepseek/chat for AdaAda"


def test_an_unknown_variable_fails_loud() -> None:
    """C99."""
    prompt = layer()
    prompt.set_variable("known", "x")
    prompt.add_section("greeting", "hi {{unknwon}}")
    with pytest.raises(CodedError) as caught:
        rendered(prompt)
    assert caught.value.code == "UNKNOWN_VARIABLE"
    for word in ("greeting", "unknwon", "known", "model", "provider"):
        assert word in str(caught.value)


def test_only_visible_sections_need_their_variables() -> None:
    """C99: a section that a complete one hides is not rendered."""
    prompt = layer()
    prompt.add_section("a", "{{missing}}")
    prompt.add_section("b", "fine", complete=True)
    assert rendered(prompt) == "fine"


def test_values_are_not_expanded_again() -> None:
    """C99: braces in a value are text."""
    prompt = layer()
    prompt.set_variable("a", "{{b}} \\1 \\g<0>")
    prompt.set_variable("b", "no")
    prompt.add_section("s", "{{a}}")
    assert rendered(prompt) == "{{b}} \\1 \\g<0>"


def test_what_is_no_variable_is_text() -> None:
    prompt = layer()
    text = "{{}} {{ }} { {a} } {{1}} {a} {{{a}} {{a b}}"
    prompt.set_variable("a", "A")
    prompt.add_section("s", text)
    assert rendered(prompt) == "{{}} {{ }} { {a} } {{1}} {a} {A {{a b}}"


def test_an_inner_variable_shadows_an_outer_one_and_the_routes() -> None:
    """C39: also in sections of the outer layer."""
    outer = layer()
    inner = layer(outer, "agent")
    outer.set_variable("who", "all")
    outer.add_section("s", "{{who}} {{model}}")
    with inner.set_variable("who", lambda agent: "me"), inner.set_variable("model", "mine"):
        assert rendered(inner) == "me mine"
        assert rendered(outer) == "all chat"
    assert rendered(inner) == "all chat"


def test_a_variable_is_defined_once_in_a_layer() -> None:
    """C99."""
    prompt = layer()
    prompt.set_variable("a", "1")
    with pytest.raises(DuplicateName):
        prompt.set_variable("a", "2")


# --- context --------------------------------------------------------------------------------


def test_context_parts_stand_in_ascending_order_without_empty_ones() -> None:
    """C102."""
    outer = layer()
    inner = layer(outer, "agent")
    outer.add_context("cwd", "/a", order=2)
    outer.add_context("date", "Monday", order=1)
    inner.add_context("cwd", lambda agent: "/b", order=0)
    inner.add_context("none", "")
    assert inner.context(AGENT) == (ContextSection("cwd", "/b"), ContextSection("date", "Monday"))
    assert outer.context(AGENT) == (ContextSection("date", "Monday"), ContextSection("cwd", "/a"))
    with pytest.raises(DuplicateName):
        outer.add_context("cwd", "/c")


def test_braces_in_context_are_text() -> None:
    """C99: variables are for sections."""
    prompt = layer()
    prompt.add_context("a", "{{model}} {{missing}}")
    assert prompt.context(AGENT) == (ContextSection("a", "{{model}} {{missing}}"),)


# --- lifetimes ------------------------------------------------------------------------------


def adders(prompt: PromptLayer) -> dict[str, Callable[[], Registration]]:
    return {
        "section": lambda: prompt.add_section("a", "text"),
        "variable": lambda: prompt.set_variable("a", "text"),
        "context": lambda: prompt.add_context("a", "text"),
        "order": lambda: prompt.order_tools(["b", "a"]),
    }


def state(prompt: PromptLayer) -> tuple[object, ...]:
    try:
        order: object = prompt.arrange([schema("a"), schema("b")])
    except CodedError as error:
        order = str(error)
    return (rendered(prompt), dict(prompt._variables), prompt.context(AGENT), order)


@pytest.mark.parametrize("kind", ["section", "variable", "context", "order"])
def test_a_registration_lasts_as_long_as_it_is_kept(kind: str) -> None:
    """C37, C38: removal is idempotent, and makes room for another."""
    prompt = layer()
    before = state(prompt)
    registration = adders(prompt)[kind]()
    during = state(prompt)
    assert during != before
    registration.remove()
    assert state(prompt) == before
    again = adders(prompt)[kind]()
    registration.remove()
    assert state(prompt) == during
    with again:
        pass
    assert state(prompt) == before


@pytest.mark.parametrize("kind", ["section", "variable", "context", "order"])
def test_the_end_of_the_scope_removes_and_refuses(kind: str) -> None:
    """C37, C38."""
    prompt = layer()
    before = state(prompt)
    adders(prompt)[kind]()
    prompt.scope.close()
    assert state(prompt) == before
    with pytest.raises(ScopeClosed):
        adders(prompt)[kind]()
    assert state(prompt) == before


# --- tool order -----------------------------------------------------------------------------


def names(tools: tuple[ToolSchema, ...]) -> list[str]:
    return [tool.name for tool in tools]


REST = "<unlisted-tools>"


@given(st.permutations(["b", "a", "Z", "_", "é", "aa"]))
def test_without_an_order_tools_stand_by_name(found: list[str]) -> None:
    """C99: whatever the order they were registered in."""
    assert names(arrange_tools(map(schema, found), None)) == sorted(found)


@given(
    st.sets(st.sampled_from("abcdef")),
    st.lists(st.sampled_from([*"abcdefg", REST]), max_size=6),
)
def test_an_explicit_order_is_obeyed_or_fails_loud(visible: set[str], order: list[str]) -> None:
    """C99: missing and duplicate names, and tools left out."""
    tools = [schema(name) for name in visible]
    listed = [name for name in order if name != REST]
    rest = sorted(visible - set(listed))
    wrong = (
        len(set(order)) < len(order)
        or not set(listed) <= visible
        or (bool(rest) and REST not in order)
    )
    if wrong:
        assert code_of(lambda: arrange_tools(tools, order)) == "TOOL_ORDER"
        return
    expected: list[str] = []
    for name in order:
        expected += rest if name == REST else [name]
    assert names(arrange_tools(tools, order)) == expected


@pytest.mark.parametrize(
    ("order", "word"),
    [(["a", "x"], "x"), (["a", "a", "b"], "twice"), ([REST, REST], "twice"), (["b"], "'a'")],
)
def test_the_error_says_what_is_wrong(order: list[str], word: str) -> None:
    """C99."""
    with pytest.raises(CodedError, match="tool order") as caught:
        arrange_tools([schema("a"), schema("b")], order)
    assert word in str(caught.value)


def test_an_order_is_inherited_and_shadowed() -> None:
    """C39, C99."""
    outer = layer()
    inner = layer(outer, "agent")
    tools = [schema(name) for name in "abc"]
    assert names(inner.arrange(tools)) == ["a", "b", "c"]
    with outer.order_tools(["c", REST]):
        assert names(inner.arrange(tools)) == ["c", "a", "b"]
        with inner.order_tools([REST, "a"]):
            assert names(inner.arrange(tools)) == ["b", "c", "a"]
            assert names(outer.arrange(tools)) == ["c", "a", "b"]
        assert names(inner.arrange(tools)) == ["c", "a", "b"]
    assert names(inner.arrange(tools)) == ["a", "b", "c"]


def test_a_later_order_of_a_layer_wins_while_it_lasts() -> None:
    """C38."""
    prompt = layer()
    tools = [schema(name) for name in "ab"]
    prompt.order_tools(["a", "b"])
    with prompt.order_tools(["b", "a"]):
        assert names(prompt.arrange(tools)) == ["b", "a"]
    assert names(prompt.arrange(tools)) == ["a", "b"]


def test_a_removed_order_does_not_come_back() -> None:
    """C38: visibility equals lifetime, in whatever sequence orders are removed."""
    prompt = layer()
    tools = [schema(name) for name in "abc"]
    first = prompt.order_tools(["c", REST])
    second = prompt.order_tools(["b", REST])
    first.remove()
    assert names(prompt.arrange(tools)) == ["b", "a", "c"]
    second.remove()
    assert names(prompt.arrange(tools)) == ["a", "b", "c"]


def test_two_registrations_of_one_order_are_two() -> None:
    """C38: removing the first leaves the second."""
    prompt = layer()
    tools = [schema(name) for name in "ab"]
    order = ("b", "a")
    first = prompt.order_tools(order)
    prompt.order_tools(order)
    first.remove()
    assert names(prompt.arrange(tools)) == ["b", "a"]


# --- a model of it all ------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "remove"]),
            st.integers(0, 2),
            st.sampled_from("abc"),
            st.sampled_from([0, 1]),
        ),
        max_size=14,
    )
)
def test_layers_against_a_plain_model(plan: list[tuple[str, int, str, int]]) -> None:
    """C38, C39, C99."""
    outer = layer()
    middle = layer(outer, "agent")
    layers = [outer, middle, layer(middle, "nested")]
    model: list[dict[str, tuple[int, str]]] = [{}, {}, {}]
    held: dict[tuple[int, str], Registration] = {}
    for number, (act, depth, name, order) in enumerate(plan):
        if act == "add" and name in model[depth]:
            with pytest.raises(DuplicateName):
                layers[depth].add_section(name, "no")
        elif act == "add":
            text = f"{name}{number}"
            held[depth, name] = layers[depth].add_section(name, text, order=order)
            model[depth][name] = (order, text)
        elif (depth, name) in held:
            held.pop((depth, name)).remove()
            del model[depth][name]
        for level, prompt in enumerate(layers):
            seen: dict[str, tuple[int, str]] = {}
            for known in model[: level + 1]:
                seen.update(known)
            texts = [text for text in rendered(prompt).split("\n\n") if text]
            assert sorted(texts) == sorted(text for _, text in seen.values())
            orders = [next(o for o, t in seen.values() if t == text) for text in texts]
            assert orders == sorted(orders)
