"""The surface: derived history, replacements, folds (C96, C101, C152, C153, C166)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from attrs import evolve
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.session.oracle import (
    Log,
    history_of,
    new_session,
    nodes_of,
    observed,
    recorded,
    replayed,
)
from tests.strategies_logs import legal_logs

from terzetto.session import Messages, Session
from terzetto.session._surface import Node, Surface
from terzetto.vocabulary import (
    APPEND,
    AssistantMessage,
    AssistantMessageEvent,
    CallConfig,
    CallId,
    Completed,
    Event,
    IllegalEvent,
    InvalidValue,
    Message,
    MessageId,
    ModelSelected,
    ModelSelection,
    ModelSource,
    PluginSource,
    Replace,
    RequestContextEvent,
    RequestHeader,
    RequestHeaderEvent,
    StepEnd,
    StepStart,
    SystemMessage,
    SystemMessageEvent,
    TextBlock,
    ToolCallBlock,
    ToolErrorInfo,
    ToolResultBlock,
    ToolResultEvent,
    ToolSchema,
    ToolSource,
    TurnEnd,
    TurnStart,
    UserMessage,
    UserMessageEvent,
    texts,
)

RECORDED = sorted(recorded())


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


# --- derived history ------------------------------------------------------------------------


def assert_history_is_derived(session: Session, events: Sequence[Event]) -> None:
    surface = session.surface
    assert list(session.history()) == history_of(events)
    nodes = nodes_of(events)
    assert [node.seq for node in surface.nodes] == [node.seq for node in nodes]
    assert [node.data for node in surface.nodes] == [node.data for node in nodes]
    assert [node.seq for node in surface.system] == [
        node.seq for node in nodes if isinstance(node.data, SystemMessageEvent)
    ]
    assert surface.generation == sum(isinstance(e.surface_op, Replace) for e in events)


@pytest.mark.parametrize("name", RECORDED)
def test_history_of_every_recorded_prefix_is_that_of_scratch(name: str) -> None:
    """C152."""
    log = recorded()[name]
    session = new_session()
    for length, event in enumerate(log, 1):
        session.append(event.data, event.surface_op, event.sources, event.ignorable)
        assert_history_is_derived(session, log[:length])


@given(legal_logs(splitting=True))
def test_history_is_that_of_scratch_and_earlier_views_stand(log: Log) -> None:
    """C152."""
    session = new_session()
    views: list[tuple[Messages, list[Message]]] = []
    for length, event in enumerate(log, 1):
        session.append(event.data, event.surface_op, event.sources, event.ignorable)
        assert_history_is_derived(session, log[:length])
        view = session.history()
        views.append((view, list(view)))
    for view, before in views:
        assert list(view) == before
        assert len(view) == len(before)
    assert_history_is_derived(replayed(log), log)


class SurfaceMachine(RuleBasedStateMachine):
    """Appends and replacements of every kind against a plain list of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.session = new_session()
        self.nodes: list[tuple[int, Message]] = []
        self.views: list[tuple[Messages, list[Message]]] = []
        self.replacements = 0
        self.step = 1

    @initialize()
    def open(self) -> None:
        self.session.append(TurnStart(1))
        self.session.append(StepStart(1, 1))

    def push(self, event: Event, message: Message) -> None:
        self.nodes.append((event.seq, message))

    @rule(text=st.sampled_from(["", "hi", "there"]))
    def user(self, text: str) -> None:
        message = UserMessage(text if text else ())
        self.push(self.session.append(UserMessageEvent(message), APPEND), message)

    @rule(text=st.sampled_from(["", "be brief"]))
    def system(self, text: str) -> None:
        content = (TextBlock(text),) if text else ()
        message = SystemMessage(content, PluginSource("p"))
        self.push(self.session.append(SystemMessageEvent(1, self.step, message), APPEND), message)

    @rule(names=st.lists(st.sampled_from(["a", "b"]), max_size=3), text=st.booleans())
    def answered_step(self, names: list[str], text: bool) -> None:
        calls = tuple(ToolCallBlock(CallId(name), "tool", "{}") for name in names)
        content = ((TextBlock("well"),) if text else ()) + calls
        message = AssistantMessage(content, ModelSource("p", "m"))
        event = self.session.append(AssistantMessageEvent(1, self.step, message), APPEND)
        self.push(event, message)
        for name in names:
            block = ToolResultBlock(CallId(name), (TextBlock("long " * 3),))
            result = UserMessage((block,), ToolSource(CallId(name)))
            data = ToolResultEvent(1, self.step, result)
            self.push(self.session.append(data, APPEND), result)
        self.session.append(StepEnd(1, self.step))
        self.step += 1
        self.session.append(StepStart(1, self.step))

    def may_be_shadowed(self, first: int, last: int) -> bool:
        """C166, told by the neighbours alone: no result at either edge has its call outside."""
        messages = [message for _, message in self.nodes]
        if first == 0 and isinstance(messages[0], SystemMessage):
            return False
        starts_with_a_result = isinstance(messages[first].source, ToolSource)
        goes_on = last + 1 < len(messages) and isinstance(messages[last + 1].source, ToolSource)
        return not (starts_with_a_result or goes_on)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def replace_by_users(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, len(self.nodes) - 1))
        last = data.draw(st.integers(first, len(self.nodes) - 1))
        count = data.draw(st.integers(1, last - first + 1))
        messages = [UserMessage(f"summary {n}") for n in range(count)]
        seqs = [seq for seq, _ in self.nodes]
        if not self.may_be_shadowed(first, last):
            before = observed(self.session)
            with pytest.raises(InvalidValue, match="covers"):
                self.session.replace(seqs[first], seqs[last], messages)
            assert observed(self.session) == before
            return
        events = self.session.replace(seqs[first], seqs[last], messages)
        assert [e.data.message for e in events] == messages  # type: ignore[union-attr]
        cited = [seq for event in events for seq in event.sources or ()]
        assert cited == seqs[first : last + 1]
        self.nodes[first : last + 1] = [
            (event.seq, message) for event, message in zip(events, messages, strict=True)
        ]
        self.replacements += count

    @precondition(lambda self: any(isinstance(m, SystemMessage) for _, m in self.nodes))
    @rule(data=st.data(), text=st.sampled_from(["", "be kind"]))
    def replace_system(self, data: st.DataObject, text: str) -> None:
        places = [i for i, (_, m) in enumerate(self.nodes) if isinstance(m, SystemMessage)]
        place = data.draw(st.sampled_from(places))
        seq = self.nodes[place][0]
        message = SystemMessage((TextBlock(text),) if text else (), PluginSource("p"))
        event = self.session.append(
            SystemMessageEvent(1, self.step, message), Replace(seq, seq), (seq,)
        )
        self.nodes[place] = (event.seq, message)
        self.replacements += 1

    @precondition(lambda self: any(isinstance(m.source, ToolSource) for _, m in self.nodes))
    @rule(data=st.data())
    def prune_result(self, data: st.DataObject) -> None:
        places = [i for i, (_, m) in enumerate(self.nodes) if isinstance(m.source, ToolSource)]
        place = data.draw(st.sampled_from(places))
        seq = self.nodes[place][0]
        old = next(n.data for n in self.session.surface.nodes if n.seq == seq)
        assert isinstance(old, ToolResultEvent)
        new = with_content(old, "cut")
        event = self.session.append(new, Replace(seq, seq), (seq,))
        self.nodes[place] = (event.seq, new.message)
        self.replacements += 1

    @rule()
    def look(self) -> None:
        view = self.session.history()
        self.views.append((view, list(view)))

    @invariant()
    def history_holds_the_nodes_with_content(self) -> None:
        history = [message for _, message in self.nodes if message.content]
        assert self.session.history() == history
        assert self.session.surface.generation == self.replacements

    @invariant()
    def earlier_views_stand(self) -> None:
        for view, before in self.views:
            assert list(view) == before

    def teardown(self) -> None:
        assert_history_is_derived(self.session, list(self.session.events))
        assert_history_is_derived(replayed(self.session.events), list(self.session.events))


TestSurfaceMachine = SurfaceMachine.TestCase
TestSurfaceMachine.settings = settings(max_examples=60, stateful_step_count=25)


# --- cost and views -----------------------------------------------------------------------


def underlying(view: Messages) -> list[Message]:
    return view._items


def test_a_step_appends_to_one_list_and_a_replacement_starts_another() -> None:
    """C152: a view is an object over a list that only grows, whatever its length."""
    session = opened()
    empty = session.history()
    session.append(UserMessageEvent(UserMessage("0")), APPEND)
    first = session.history()
    for n in range(1, 200):
        session.append(UserMessageEvent(UserMessage(str(n))), APPEND)
        assert underlying(session.history()) is underlying(first)
    node = session.surface.nodes[0].seq
    session.replace(node, node, [UserMessage("other")])
    second = session.history()
    assert underlying(second) is not underlying(first)
    assert len(underlying(first)) == 200
    session.append(UserMessageEvent(UserMessage("more")), APPEND)
    assert underlying(session.history()) is underlying(second)
    assert len(underlying(first)) == 200
    assert len(first) == 1
    assert len(empty) == 0


def test_asking_twice_without_an_append_gives_equal_views() -> None:
    """C152: a fresh view over the same frozen messages."""
    session = opened()
    session.append(UserMessageEvent(UserMessage("hi")), APPEND)
    one, two = session.history(), session.history()
    assert one is not two
    assert one == two
    assert one[0] is two[0] is session.surface.nodes[0].message


@given(
    st.integers(0, 6),
    st.integers(0, 4),
    st.integers(-8, 8),
    st.slices(8),
)
def test_a_view_is_the_sequence_it_was(size: int, more: int, index: int, part: slice) -> None:
    """C152: every operation of a sequence stops at the view's end."""
    items: list[Message] = [UserMessage(str(n)) for n in range(size)]
    plain = tuple(items)
    view = Messages(items, size)
    items += [UserMessage(f"later {n}") for n in range(more)]
    assert view == plain
    assert view == list(plain)
    assert view == Messages(list(plain), size)
    assert view != [*plain, UserMessage("x")]
    assert view != plain[:-1] or not plain
    assert tuple(view) == plain
    assert tuple(reversed(view)) == plain[::-1]
    assert len(view) == size
    assert bool(view) == bool(plain)
    assert view[part] == plain[part]
    assert all(later not in view for later in items[size:])
    assert view.count(items[0]) == 1 if size else True
    if -size <= index < size:
        assert view[index] is plain[index]
    else:
        with pytest.raises(IndexError):
            view[index]


def test_a_view_has_no_way_to_change_it() -> None:
    """C152, C162."""
    view = cast(Any, Messages([UserMessage("a")], 1))
    with pytest.raises(TypeError):
        view[0] = UserMessage("b")
    with pytest.raises(TypeError):
        del view[0]
    with pytest.raises(TypeError):
        hash(view)
    assert not hasattr(view, "append")
    assert view != "a"


def test_a_node_with_empty_content_stays_out() -> None:
    """C84, C89, C106: logged, on the surface, and not in history."""
    session = opened()
    session.append(SystemMessageEvent(1, 1, SystemMessage((), PluginSource("p"))), APPEND)
    session.append(UserMessageEvent(UserMessage(())), APPEND)
    session.append(AssistantMessageEvent(1, 1, AssistantMessage((), ModelSource("p", "m"))), APPEND)
    assert len(session.surface.nodes) == 3
    assert len(session.surface.system) == 1
    assert session.history() == []


def test_what_is_not_on_the_surface_is_not_in_history() -> None:
    """C84."""
    for name in RECORDED:
        log = recorded()[name]
        ids = {m.id for m in replayed(log).history()}
        on_surface = {data.message.id for data in (n.data for n in replayed(log).surface.nodes)}
        assert ids <= on_surface


# --- replacements ---------------------------------------------------------------------------


def opened() -> Session:
    session = new_session()
    session.append(TurnStart(1))
    session.append(StepStart(1, 1))
    return session


def with_content(data: ToolResultEvent, text: str) -> ToolResultEvent:
    blocks = tuple(
        evolve(block, content=(TextBlock(text),)) if isinstance(block, ToolResultBlock) else block
        for block in data.message.content
    )
    return evolve(data, message=evolve(data.message, content=blocks))


def with_result() -> tuple[Session, Event, ToolResultEvent]:
    """A session with one failed tool result, and its event."""
    session = opened()
    call = ToolCallBlock(CallId("c"), "tool", "{}")
    answer = AssistantMessage((call,), ModelSource("p", "m"))
    session.append(AssistantMessageEvent(1, 1, answer), APPEND)
    block = ToolResultBlock(CallId("c"), (TextBlock("long"),), is_error=True)
    message = UserMessage((block,), ToolSource(CallId("c")), MessageId("result"))
    data = ToolResultEvent(1, 1, message, ToolErrorInfo("E", "CODE"))
    event = session.append(data, APPEND)
    session.append(StepEnd(1, 1))
    session.append(TurnEnd(1, Completed()))
    return session, event, data


def test_a_tool_results_content_may_be_replaced() -> None:
    """C153, C164: pruning, also when no turn is open."""
    session, event, data = with_result()
    cut = with_content(data, "cut")
    session.append(cut, Replace(event.seq, event.seq), (event.seq,))
    assert session.history()[-1] == cut.message
    assert session.surface.generation == 1
    assert list(session.history()) == history_of(session.events)


def _message(data: ToolResultEvent, **changes: Any) -> ToolResultEvent:
    return evolve(data, message=evolve(data.message, **changes))


def _block(data: ToolResultEvent, **changes: Any) -> ToolResultEvent:
    block = data.message.content[0]
    assert isinstance(block, ToolResultBlock)
    return _message(data, content=(evolve(block, **changes),))


OTHER_THAN_CONTENT = {
    "turn": lambda data: evolve(data, turn=2),
    "step": lambda data: evolve(data, step=2),
    "call id": lambda data: _block(data, tool_call_id=CallId("d")),
    "is_error": lambda data: _block(data, is_error=False),
    "source": lambda data: _message(data, source=ToolSource(CallId("d"))),
    "message id": lambda data: _message(data, id=MessageId("another")),
    "error code": lambda data: evolve(data, error=ToolErrorInfo("E", "OTHER")),
    "error name": lambda data: evolve(data, error=ToolErrorInfo("F", "CODE")),
    "error gone": lambda data: evolve(data, error=None),
    "no result left": lambda data: _message(data, content=(TextBlock("cut"),)),
    "a second result": lambda data: _message(
        data, content=(*data.message.content, ToolResultBlock(CallId("d"), ()))
    ),
}


@pytest.mark.parametrize("what", OTHER_THAN_CONTENT)
def test_a_tool_result_replacement_may_change_only_content(what: str) -> None:
    """C153: identity, coordinates, error and message id are those of the original."""
    session, event, data = with_result()
    before = observed(session)
    changed = OTHER_THAN_CONTENT[what](data)
    assert changed != data
    with pytest.raises(IllegalEvent) as caught:
        session.append(changed, Replace(event.seq, event.seq), (event.seq,))
    assert caught.value.seq == len(session.events)
    assert observed(session) == before


def test_a_tool_result_replaces_one_tool_result_only() -> None:
    """C153: not a range, and no other kind of node."""
    session, event, data = with_result()
    before = observed(session)
    answer = session.surface.nodes[0].seq
    for start, end, sources in (
        (answer, answer, (answer,)),
        (answer, event.seq, (answer, event.seq)),
    ):
        with pytest.raises(IllegalEvent):
            session.append(data, Replace(start, end), sources)
    assert observed(session) == before


@given(st.data())
def test_a_replacement_cites_every_node_that_it_shadows(data: st.DataObject) -> None:
    """C153: all of them, and it may cite more."""
    session = opened()
    seqs = [session.append(UserMessageEvent(UserMessage(str(n))), APPEND).seq for n in range(5)]
    first = data.draw(st.integers(0, 4))
    last = data.draw(st.integers(first, 4))
    cited = data.draw(st.sets(st.integers(0, 6)))
    covers = set(seqs[first : last + 1]) <= cited
    before = observed(session)
    event = UserMessageEvent(UserMessage("instead"))
    if covers:
        session.append(event, Replace(seqs[first], seqs[last]), tuple(cited))
        assert [text_of(m) for m in session.history()] == [
            *map(str, range(first)),
            "instead",
            *map(str, range(last + 1, 5)),
        ]
    else:
        with pytest.raises(IllegalEvent):
            session.append(event, Replace(seqs[first], seqs[last]), tuple(cited))
        assert observed(session) == before


def test_a_shadowed_node_cannot_be_replaced_again() -> None:
    """C153: its seq has left the surface, the replacement's is on it."""
    session = opened()
    old = session.append(UserMessageEvent(UserMessage("a")), APPEND).seq
    (new,) = session.replace(old, old, [UserMessage("b")])
    with pytest.raises(IllegalEvent):
        session.append(UserMessageEvent(UserMessage("c")), Replace(old, old), (old,))
    session.replace(new.seq, new.seq, [UserMessage("d")])
    assert [text_of(m) for m in session.history()] == ["d"]
    assert session.surface.generation == 2


@pytest.mark.parametrize("start", [-1, 0, 99])
@pytest.mark.parametrize("end", [-1, 0, 99])
def test_replace_refuses_what_is_no_range(start: int, end: int) -> None:
    """C153."""
    session = opened()
    session.append(UserMessageEvent(UserMessage("a")), APPEND)
    before = observed(session)
    with pytest.raises(InvalidValue, match="first and the last"):
        session.replace(start, end, [UserMessage("b")])
    assert observed(session) == before


@pytest.mark.parametrize("count", [0, 3])
def test_replace_refuses_none_and_more_messages_than_nodes(count: int) -> None:
    """C153."""
    session = opened()
    seqs = [session.append(UserMessageEvent(UserMessage(t)), APPEND).seq for t in "ab"]
    before = observed(session)
    with pytest.raises(InvalidValue, match="expected 1 to 2 messages"):
        session.replace(seqs[0], seqs[1], [UserMessage("x")] * count)
    assert observed(session) == before


def test_replace_refuses_a_range_that_runs_backwards() -> None:
    """C153."""
    session = opened()
    seqs = [session.append(UserMessageEvent(UserMessage(t)), APPEND).seq for t in "ab"]
    before = observed(session)
    with pytest.raises(InvalidValue):
        session.replace(seqs[1], seqs[0], [UserMessage("x")])
    assert observed(session) == before


def test_the_replaced_events_stay_in_the_log() -> None:
    """C95, C153: nothing is deleted."""
    session = opened()
    seqs = [session.append(UserMessageEvent(UserMessage(t)), APPEND).seq for t in "abc"]
    before = list(session.events)
    session.replace(seqs[0], seqs[2], [UserMessage("x"), UserMessage("y")])
    assert list(session.events)[: len(before)] == before
    assert [text_of(m) for m in session.history()] == ["x", "y"]


def with_calls(session: Session, *names: str, answered: int) -> list[int]:
    """An answer with these calls and *answered* of their results; the seqs of the nodes."""
    calls = tuple(ToolCallBlock(CallId(name), "tool", "{}") for name in names)
    message = AssistantMessage(calls, ModelSource("p", "m"))
    seqs = [session.append(AssistantMessageEvent(1, 1, message), APPEND).seq]
    for name in names[:answered]:
        block = ToolResultBlock(CallId(name), (TextBlock("long"),))
        result = UserMessage((block,), ToolSource(CallId(name)))
        seqs.append(session.append(ToolResultEvent(1, 1, result), APPEND).seq)
    return seqs


def test_replace_refuses_an_answer_whose_calls_still_run() -> None:
    """C166: the results that are to come would have no call."""
    session = opened()
    first = session.append(UserMessageEvent(UserMessage("a")), APPEND).seq
    seqs = with_calls(session, "x", "y", answered=1)
    before = observed(session)
    with pytest.raises(InvalidValue, match="without the results of all its tool calls"):
        session.replace(first, seqs[-1], [UserMessage("summary")])
    assert observed(session) == before


def test_a_tool_result_is_shortened_in_its_place() -> None:
    """C153, C164: content alone changes; identity, source and error stay."""
    session = opened()
    _, seq = with_calls(session, "x", answered=1)
    (event,) = session.replace(
        seq, seq, [UserMessage((ToolResultBlock(CallId("x"), (TextBlock("cut"),)),))]
    )
    old = session.events[seq].data
    assert isinstance(old, ToolResultEvent)
    assert isinstance(event.data, ToolResultEvent)
    assert evolve(event.data, message=old.message) == old
    assert event.data.message.id == old.message.id
    assert event.data.message.source == old.message.source
    assert session.history()[-1] is event.data.message


@pytest.mark.parametrize(
    "block",
    [
        ToolResultBlock(CallId("other"), (TextBlock("cut"),)),
        ToolResultBlock(CallId("x"), (TextBlock("cut"),), is_error=True),
    ],
)
def test_a_tool_result_is_not_exchanged_for_another(block: ToolResultBlock) -> None:
    """C153."""
    session = opened()
    first = session.append(UserMessageEvent(UserMessage("a")), APPEND).seq
    _, seq = with_calls(session, "x", answered=1)
    before = observed(session)
    with pytest.raises(InvalidValue, match="same call and flag"):
        session.replace(seq, seq, [UserMessage((block,))])
    with pytest.raises(InvalidValue, match="the place of itself"):
        session.replace(first, first, [UserMessage((block,))])
    with pytest.raises(InvalidValue, match="the place of itself"):
        session.replace(first, seq, [UserMessage((block,))])
    with pytest.raises(InvalidValue, match="expected UserMessages, got a str"):
        session.replace(first, first, ["text"])  # type: ignore[list-item]
    assert observed(session) == before


# --- folds ----------------------------------------------------------------------------------


def header(model: str, *tools: tuple[str, str]) -> RequestHeader:
    return RequestHeader(
        config=CallConfig(provider="p", model=model),
        tools=tuple(
            ToolSchema(
                name=name, description=text, parameters=CallConfig(provider="", model="").options
            )
            for name, text in tools
        ),
    )


def test_folds_hold_the_latest_of_each_kind() -> None:
    """C81, C88, C162."""
    session = opened()
    folds = session.folds
    assert (folds.header, folds.header_seq, folds.context, folds.selection) == (None,) * 4
    first = session.append(RequestHeaderEvent(header("m1"), "initial"))
    assert (folds.header, folds.header_seq) == (header("m1"), first.seq)
    context = RequestContextEvent("p", "m1", 100, "in-history")
    session.append(context)
    session.append(ModelSelected(ModelSelection("p", "m2", "low")))
    second = session.append(RequestHeaderEvent(header("m2"), "change"))
    assert (folds.header, folds.header_seq) == (header("m2"), second.seq)
    assert folds.context == context
    assert folds.selection == ModelSelection("p", "m2", "low")


def test_tool_history_holds_every_schema_that_was_declared() -> None:
    """C101: by name, in the order of first appearance, each as last declared."""
    session = opened()
    assert session.folds.tool_history().declared == ()
    session.append(RequestHeaderEvent(header("m", ("b", "1"), ("a", "1")), "initial"))
    before = session.folds.tool_history()
    session.append(RequestHeaderEvent(header("m", ("a", "1")), "change"))
    assert session.folds.tool_history() is before  # nothing new, the same value
    session.append(RequestHeaderEvent(header("m", ("c", "1"), ("b", "2")), "change"))
    declared = session.folds.tool_history().declared
    assert [(tool.name, tool.description) for tool in declared] == [
        ("b", "2"),
        ("a", "1"),
        ("c", "1"),
    ]
    assert [tool.name for tool in before.declared] == ["b", "a"]


@given(legal_logs(splitting=True))
def test_folds_of_a_replay_equal_those_of_appending(log: Log) -> None:
    """C151: one fold for both."""
    session = new_session()
    for event in log:
        session.append(event.data, event.surface_op, event.sources, event.ignorable)
    live, again = observed(session), observed(replayed(log))
    for part in ("Surface", "Folds", "PendingInput", "history"):
        assert live[part] == again[part]


def test_snapshots_are_found_on_the_surface() -> None:
    """C102: marked by their source; a replacement may remove one."""
    session = opened()
    source = PluginSource(texts.SYSTEM_PROMPT_PLUGIN, "snapshot", ())
    first = session.append(UserMessageEvent(UserMessage("ctx", source)), APPEND)
    session.append(UserMessageEvent(UserMessage("hi")), APPEND)
    cleared = PluginSource(texts.SYSTEM_PROMPT_PLUGIN)
    second = session.append(UserMessageEvent(UserMessage("none", cleared)), APPEND)
    assert [node.seq for node in session.surface.snapshots] == [first.seq, second.seq]
    session.replace(first.seq, first.seq, [UserMessage("gone")])
    assert [node.seq for node in session.surface.snapshots] == [second.seq]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.booleans()), max_size=40))
def test_any_replacements_leave_what_a_list_of_nodes_would(
    steps: list[tuple[int, int, bool]],
) -> None:
    """One node for one, one for several, with and without content, and the views before."""
    surface, nodes = Surface(), list[Node]()
    seen: list[tuple[Messages, list[Message], list[Node], list[Node]]] = []
    for seq, (start, more, empty) in enumerate(steps):
        data = UserMessageEvent(UserMessage(() if empty else f"message {seq}"))
        node, op, sources = Node(seq, data), None, None
        if start < len(nodes):
            shadowed = nodes[start : start + more + 1]
            op = Replace(shadowed[0].seq, shadowed[-1].seq)
            sources = tuple(each.seq for each in shadowed)
        event = Event(seq, 0, data, op or APPEND, sources)
        surface.judge(event)
        surface.move(event)
        nodes = [*nodes[:start], node, *nodes[start + more + 1 :]] if op else [*nodes, node]
        shown = [each.message for each in nodes if each.message.content]
        seen.append((surface.history(), shown, surface.nodes[:], nodes))
        for index, each in enumerate(nodes):
            assert surface.span(each.seq, nodes[-1].seq) == nodes[index:]
    for view, messages, then, expected in seen:
        assert view == messages
        assert then == expected
