"""Admission of the system prompt, against a small model of its own (C89-C98).

The model is a list of texts: node 0 first, empty ones invisible.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import frozen
from hypothesis import given, strategies as st

from terzetto.prompt import PromptChange, admit_prompt
from terzetto.session import Node, Session
from terzetto.vocabulary import (
    APPEND,
    AssistantMessage,
    AssistantMessageEvent,
    ModelSource,
    PluginSource,
    Replace,
    SessionHeader,
    SessionId,
    StepEnd,
    StepStart,
    SystemMessage,
    SystemMessageEvent,
    TextBlock,
    TurnStart,
    UserMessage,
    UserMessageEvent,
)

SOURCE = PluginSource("@deepseek-ai/dsh-system-prompt")
TEXTS = ("", "A", "B", "C")


def system_message(text: str) -> SystemMessage:
    return SystemMessage((TextBlock(text),) if text else (), SOURCE)


def nodes_of(texts: Sequence[str]) -> list[Node]:
    """Nodes with seqs that are not their positions."""
    return [
        Node(10 + 3 * i, SystemMessageEvent(1, 1, system_message(text)))
        for i, text in enumerate(texts)
    ]


def applied(texts: Sequence[str], changes: Sequence[PromptChange]) -> list[str]:
    """The texts of the nodes after *changes*."""
    seqs = [node.seq for node in nodes_of(texts)]
    after = list(texts)
    for change in changes:
        if change.replaces is None:
            after.append(change.text)
        else:
            after[seqs.index(change.replaces)] = change.text
    return after


def effective(texts: Sequence[str]) -> str:
    """The last text that is not empty."""
    return next((text for text in reversed(texts) if text), "")


def visible(texts: Sequence[str]) -> list[str]:
    return [text for text in texts if text]


@frozen
class Case:
    texts: tuple[str, ...]
    rendering: str
    in_history: bool
    starts_series: bool

    def changes(self) -> list[PromptChange]:
        return admit_prompt(
            nodes_of(self.texts),
            self.rendering,
            in_history=self.in_history,
            starts_series=self.starts_series,
        )


def cases() -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        st.lists(st.sampled_from(TEXTS), max_size=5).map(tuple),
        st.sampled_from((*TEXTS, "D")),
        st.booleans(),
        st.booleans(),
    )


def expected(case: Case) -> list[PromptChange]:
    """REFERENCE 4 in its own order, with its open point as the README has it."""
    if not case.texts:
        return [PromptChange(case.rendering)]
    nodes = nodes_of(case.texts)
    consolidates = not case.in_history or case.starts_series or not case.rendering
    same = effective(case.texts) == case.rendering
    if case.in_history and case.rendering and same:
        return []
    if not consolidates:
        return [PromptChange(case.rendering)]
    changes = [
        PromptChange("", node.seq)
        for node, text in list(zip(nodes, case.texts, strict=True))[1:]
        if text
    ]
    if case.texts[0] != case.rendering:
        changes.append(PromptChange(case.rendering, nodes[0].seq))
    return changes


@given(cases())
def test_changes_are_those_of_the_reference(case: Case) -> None:
    """C89-C95."""
    assert case.changes() == expected(case)


@given(cases())
def test_afterwards_the_rendering_is_what_applies(case: Case) -> None:
    """C89, C92, C93, C95."""
    assert effective(applied(case.texts, case.changes())) == case.rendering


@given(cases())
def test_an_incapable_route_shows_the_rendering_alone(case: Case) -> None:
    """C93: no older instruction stays visible."""
    after = applied(case.texts, case.changes())
    if not case.in_history:
        assert visible(after) == visible([case.rendering])
        assert after[0] == case.rendering


@given(cases())
def test_a_capable_continuing_route_never_rewrites(case: Case) -> None:
    """C92: appends, or nothing."""
    changes = case.changes()
    if case.in_history and not case.starts_series and case.rendering:
        assert all(change.replaces is None for change in changes)
        assert len(changes) <= 1
        assert bool(changes) == (effective(case.texts) != case.rendering or not case.texts)


@given(cases())
def test_a_series_start_on_a_capable_route_keeps_the_prefix_or_consolidates(case: Case) -> None:
    """C93, C94."""
    changes = case.changes()
    if case.in_history and case.starts_series and case.rendering and case.texts:
        if effective(case.texts) == case.rendering:
            assert changes == []
        else:
            assert visible(applied(case.texts, changes)) == [case.rendering]


@given(cases())
def test_an_empty_rendering_leaves_no_instruction(case: Case) -> None:
    """C95: whatever the route."""
    if not case.rendering:
        assert visible(applied(case.texts, case.changes())) == []


@given(cases())
def test_node_0_is_reserved(case: Case) -> None:
    """C90: the first admission appends, even nothing; no other appends an empty node."""
    changes = case.changes()
    if not case.texts:
        assert changes == [PromptChange(case.rendering)]
    else:
        assert all(change.text for change in changes if change.replaces is None)


@given(cases())
def test_nothing_is_written_in_vain(case: Case) -> None:
    """C93: dormant nodes stay, no node is written twice, none with what it says."""
    changes = case.changes()
    before = {node.seq: text for node, text in zip(nodes_of(case.texts), case.texts, strict=True)}
    replaced = [change.replaces for change in changes if change.replaces is not None]
    assert len(set(replaced)) == len(replaced)
    assert all(before[change.replaces] != change.text for change in changes if change.replaces)
    # Later nodes in order, the head last.
    assert replaced == sorted(replaced, key=lambda seq: (seq == 10, seq))


@given(cases(), st.booleans())
def test_admitting_again_changes_nothing(case: Case, starts_series: bool) -> None:
    """C92, C94, C95: idempotent, whether or not a series starts now."""
    after = applied(case.texts, case.changes())
    again = Case(tuple(after), case.rendering, case.in_history, starts_series)
    assert again.changes() == []


@given(cases())
def test_admission_reads_its_nodes_and_leaves_them(case: Case) -> None:
    nodes = nodes_of(case.texts)
    before = list(nodes)
    admit_prompt(
        nodes, case.rendering, in_history=case.in_history, starts_series=case.starts_series
    )
    assert nodes == before


NAMED = {
    "first, empty (C90)": ((), "", False, False, [PromptChange("")]),
    "first (C90)": ((), "A", True, True, [PromptChange("A")]),
    "unchanged (C92)": (("A",), "A", True, False, []),
    "changed, appended (C92)": (("A",), "B", True, False, [PromptChange("B")]),
    "changed back, appended (C92)": (("A", "B"), "A", True, False, [PromptChange("A")]),
    "after a clear, appended (C95, C96)": (("",), "A", True, False, [PromptChange("A")]),
    "incapable, changed (C93)": (("A",), "B", False, False, [PromptChange("B", 10)]),
    "incapable, unchanged (C93)": (("A",), "A", False, False, []),
    "incapable, head holds it, tail does not (C93)": (
        ("A", "B", "", "C"),
        "A",
        False,
        False,
        [PromptChange("", 13), PromptChange("", 19)],
    ),
    "incapable, tail holds it (C93)": (
        ("A", "B"),
        "B",
        False,
        False,
        [PromptChange("", 13), PromptChange("B", 10)],
    ),
    "series, latest holds it (C94)": (("A", "B"), "B", True, True, []),
    "series, latest that is not empty holds it (C94)": (("A", "B", ""), "B", True, True, []),
    "series, other text (C93)": (
        ("A", "B"),
        "C",
        True,
        True,
        [PromptChange("", 13), PromptChange("C", 10)],
    ),
    "series, head holds it, tail does not (C93)": (
        ("A", "B"),
        "A",
        True,
        True,
        [PromptChange("", 13)],
    ),
    "cleared (C95)": (
        ("A", "", "B"),
        "",
        True,
        False,
        [PromptChange("", 16), PromptChange("", 10)],
    ),
    "cleared again (C95)": (("", "", ""), "", True, True, []),
}


@pytest.mark.parametrize("name", NAMED)
def test_named_case(name: str) -> None:
    texts, rendering, in_history, starts_series, changes = NAMED[name]
    assert Case(texts, rendering, in_history, starts_series).changes() == changes


# --- in a session ---------------------------------------------------------------------------


def commit(session: Session, step: int, changes: Sequence[PromptChange]) -> None:
    for change in changes:
        event = SystemMessageEvent(1, step, system_message(change.text))
        if change.replaces is None:
            session.append(event, APPEND)
        else:
            op = Replace(change.replaces, change.replaces)
            session.append(event, op, (change.replaces,))


@given(
    st.lists(st.tuples(st.sampled_from((*TEXTS, "D")), st.booleans(), st.booleans()), max_size=8)
)
def test_prompts_of_a_whole_session(steps: list[tuple[str, bool, bool]]) -> None:
    """C89-C95, C98: each step's request shows its prompt last, and history stays between."""
    session = Session(SessionHeader(id=SessionId("s"), created_ms=0), lambda: 0)
    session.append(TurnStart(1))
    users = []
    for step, (rendering, in_history, starts_series) in enumerate(steps, 1):
        session.append(StepStart(1, step))
        generation = session.surface.generation
        appends = len(session.surface.nodes)
        # A retry of the step admits again, after the users of the first attempt.
        for _ in range(2):
            changes = admit_prompt(
                session.surface.system,
                rendering,
                in_history=in_history,
                starts_series=starts_series,
            )
            commit(session, step, changes)
            rewrites = sum(change.replaces is not None for change in changes)
            assert session.surface.generation == generation + rewrites
            generation += rewrites
        assert len(session.surface.nodes) <= appends + 1
        shown = [m.text for m in session.history() if isinstance(m, SystemMessage)]
        assert shown[-1:] == visible([rendering])
        if not in_history:
            assert shown == visible([rendering])
            assert not rendering or isinstance(session.history()[0], SystemMessage)
        message = UserMessage(f"user {step}")
        users.append(message)
        session.append(UserMessageEvent(message), APPEND)
        session.append(
            AssistantMessageEvent(1, step, AssistantMessage((), ModelSource("p", "m"))), APPEND
        )
        session.append(StepEnd(1, step))
        assert [m for m in session.history() if isinstance(m, UserMessage)] == users
