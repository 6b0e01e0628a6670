"""Every fork of a turn, as tables (C56, C60-C66, C71, C78, C80, C82, C85-C87, C100, C129)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, strategies as st
from tests.strategies import call_configs, request_headers, selections, turn_endings

from terzetto.agent._decisions import (
    Convergence,
    HeaderDecision,
    StepResult,
    after_step,
    after_turn,
    header_needed,
    natural_ending,
    next_config,
    opens_step,
    route_change,
    sticky_max_tokens,
    tool_changes,
)
from terzetto.vocabulary import (
    EMPTY_OBJECT,
    Aborted,
    AbortedFinish,
    Blocked,
    CallConfig,
    Completed,
    DisposedCause,
    EndedAtMaxTokens,
    ErrorFinish,
    Failed,
    Failure,
    Finish,
    HookCause,
    Interrupted,
    InvalidValue,
    LegacyCause,
    MaxTokens,
    ModelSelection,
    ParentCause,
    RequestHeader,
    Stop,
    ToolAdditionBlock,
    ToolCalls,
    ToolRemovalBlock,
    ToolSchema,
    TurnEnding,
    UserCause,
    freeze_object,
    is_complete,
)

FAILURE = Failure(message="no")
FAILED = Failed(FAILURE)

# --- after a step ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owes", "pending", "move"),
    [
        pytest.param(True, False, "step", id="tools owe a request (C64)"),
        pytest.param(False, True, "step", id="next-step input is pending (C64)"),
        pytest.param(True, True, "step", id="both (C64)"),
        pytest.param(False, False, "stopping", id="nothing is owed: turn_stopping (C64)"),
    ],
)
@pytest.mark.parametrize("finish", [Stop(), ToolCalls(), MaxTokens()], ids=repr)
def test_after_step(finish: Any, owes: bool, pending: bool, move: str) -> None:
    """C64: the finish decides nothing (REFERENCE 2.8), not even max-tokens (DESIGN 12)."""
    assert after_step(StepResult(finish, owes), pending) == move


@pytest.mark.parametrize(
    ("before", "finish", "after"),
    [
        pytest.param(False, Stop(), False, id="normal (C65)"),
        pytest.param(False, ToolCalls(), False, id="tools (C65)"),
        pytest.param(False, MaxTokens(), True, id="cut (C65)"),
        pytest.param(True, Stop(), True, id="sticky over a normal step (C65)"),
        pytest.param(True, ToolCalls(), True, id="sticky over a tool step (C65)"),
        pytest.param(True, MaxTokens(), True, id="cut twice (C65)"),
    ],
)
def test_max_tokens_sticks(before: bool, finish: Any, after: bool) -> None:
    assert sticky_max_tokens(before, finish) is after


def test_natural_ending() -> None:
    """C65."""
    assert natural_ending(False) == Completed()
    assert natural_ending(True) == EndedAtMaxTokens()


@pytest.mark.parametrize(
    ("entered", "owes", "opens"),
    [
        pytest.param(0, False, False, id="an emptied batch spends no call (C61, C71)"),
        pytest.param(1, False, True, id="one message (C71)"),
        pytest.param(3, True, True, id="messages and results (C64)"),
        pytest.param(0, True, True, id="results alone (C72)"),
    ],
)
def test_opens_step(entered: int, owes: bool, opens: bool) -> None:
    assert opens_step(entered, owes) is opens


@pytest.mark.parametrize(
    ("reason", "complete"),
    [
        (Stop(), True),
        (ToolCalls(), True),
        (MaxTokens(), True),
        (ErrorFinish(FAILURE), False),
        (AbortedFinish(FAILURE), False),
    ],
    ids=repr,
)
def test_which_finishes_are_answers(reason: Any, complete: bool) -> None:
    """C109, REFERENCE 2.22: an uncancelled `aborted` finish is a failure."""
    assert is_complete(Finish(reason).reason) is complete


# --- after a turn ---------------------------------------------------------------------------


def state(ending: TurnEnding | None, flags: str) -> Convergence:
    """Flags by initial: queued, pending, latched, late wake, asked, closing."""
    return Convergence(
        ending=ending,
        queued="q" in flags,
        pending="p" in flags,
        latched="l" in flags,
        late_wake="w" in flags,
        asked="a" in flags,
        closing="c" in flags,
    )


USER = Aborted(UserCause())
AFTER_TURN = [
    ("a normal end goes on with the queue (C66)", Completed(), "qp", "turn"),
    ("and so does max-tokens (C65, C66)", EndedAtMaxTokens(), "qp", "turn"),
    ("nothing queued: idle (C62)", Completed(), "", "idle"),
    ("parked input alone wakes nobody (C50)", Completed(), "p", "idle"),
    ("steered after turn/end: woken (C49, C62)", Completed(), "pw", "turn"),
    ("woken, and removed again (C62)", Completed(), "w", "idle"),
    ("rejection parks the queue (C49)", Blocked(), "qp", "idle"),
    ("a wake after the rejection runs (C49)", Blocked(), "qpw", "turn"),
    ("a wake whose message is gone (C49)", Blocked(), "w", "idle"),
    ("failure parks the queue (C68)", FAILED, "qp", "idle"),
    ("a wake after the failure runs (C68)", FAILED, "qpw", "turn"),
    ("cancel parks what is kept (C126)", USER, "qp", "idle"),
    ("input after the cancel is latched (C129)", USER, "qpl", "idle, then turn"),
    ("latched, then cleared or removed (C129)", USER, "l", "idle"),
    ("a parent's cancel latches too (C129)", Aborted(ParentCause()), "pl", "idle, then turn"),
    ("a hook's cancel latches too (C129)", Aborted(HookCause("x")), "pl", "idle, then turn"),
    ("a disposed cancel never latches (C129)", Aborted(DisposedCause()), "qpl", "idle"),
    ("cancelled before the turn opened (C62)", None, "p", "idle"),
    ("the same, latched (C129)", None, "pl", "idle, then turn"),
    ("maintenance latches wakes (C67)", None, "qpl", "idle, then turn"),
    ("asked: a standing wake (DESIGN 1)", USER, "pa", "turn"),
    ("asked, over a failure (DESIGN 1)", FAILED, "pa", "turn"),
    ("asked, over a rejection (DESIGN 1)", Blocked(), "pa", "turn"),
    ("asked, over nothing (DESIGN 1)", None, "pa", "turn"),
    ("closing ends it, queued (C27)", Completed(), "qpwlc", "idle"),
    ("closing ends it, asked (C27)", Completed(), "qpac", "idle"),
]


@pytest.mark.parametrize(
    ("ending", "flags", "move"), [row[1:] for row in AFTER_TURN], ids=[row[0] for row in AFTER_TURN]
)
def test_after_turn(ending: TurnEnding | None, flags: str, move: str) -> None:
    assert after_turn(state(ending, flags)) == move


FLAGS = ["".join(f) for n in range(7) for f in itertools.combinations("qplwac", n)]


@given(st.none() | turn_endings(), st.sampled_from(FLAGS))
def test_after_turn_laws(ending: TurnEnding | None, flags: str) -> None:
    """C49, C66, C126, C129: what holds of every combination."""
    move = after_turn(state(ending, flags))
    assert move in ("turn", "idle", "idle, then turn")
    if "c" in flags:
        assert move == "idle"
        return
    if "a" in flags:
        assert move == "turn"
        return
    if not set("qp") & set(flags):
        assert move == "idle"  # nothing is there to run
    parks = isinstance(ending, (Blocked, Failed, Aborted))
    if parks and not set("lw") & set(flags):
        assert move == "idle"  # until the next wake
    if move == "idle, then turn":
        assert "l" in flags
        assert not isinstance(ending, (Completed, EndedAtMaxTokens, Blocked, Failed))
    if ending in (Aborted(DisposedCause()),):
        assert move == "idle"


@pytest.mark.parametrize("cause", [UserCause(), ParentCause(), HookCause("x"), LegacyCause()])
def test_only_disposal_never_latches(cause: Any) -> None:
    """C129."""
    assert after_turn(state(Aborted(cause), "pl")) == "idle, then turn"


def test_an_interrupted_ending_is_not_a_live_one() -> None:
    """C65: written by recovery alone; nothing of the queue runs by itself after it."""
    assert after_turn(state(Interrupted(), "qp")) == "idle"


# --- configuration --------------------------------------------------------------------------


def config(**changes: Any) -> CallConfig:
    return evolve(CallConfig(provider="p", model="m"), **changes)


def header(config: CallConfig, *defaults: Any, tools: tuple[ToolSchema, ...] = ()) -> RequestHeader:
    return RequestHeader(config=config, adapter_defaults=frozenset(defaults), tools=tools)


HOT = freeze_object({"temperature": 1})
NEXT_CONFIG: list[tuple[str, RequestHeader | None, ModelSelection, int | None, CallConfig]] = [
    ("first request (C85)", None, ModelSelection("p", "m"), None, config()),
    (
        "first request with options (C10, C85)",
        None,
        ModelSelection("p", "m", "low"),
        7,
        config(effort="low", max_tokens=7),
    ),
    (
        "the selection is the route (C86)",
        header(config(effort="low")),
        ModelSelection("q", "n", "high"),
        None,
        CallConfig(provider="q", model="n", effort="high"),
    ),
    (
        "no effort clears an inherited one (C87)",
        header(config(effort="low")),
        ModelSelection("p", "m"),
        None,
        config(),
    ),
    (
        "a default effort is resolved anew (C82)",
        header(config(effort="low"), "reasoningEffort"),
        ModelSelection("p", "m"),
        None,
        config(),
    ),
    (
        "explicit max tokens persist (C82)",
        header(config(max_tokens=5)),
        ModelSelection("p", "m"),
        None,
        config(max_tokens=5),
    ),
    (
        "default max tokens are resolved anew (C82)",
        header(config(max_tokens=5), "maxTokens"),
        ModelSelection("p", "m"),
        None,
        config(),
    ),
    (
        "the agent's cap holds (C10)",
        header(config(max_tokens=5), "maxTokens"),
        ModelSelection("p", "m"),
        9,
        config(max_tokens=9),
    ),
    (
        "sampling controls persist (C78, C82)",
        header(config(options=HOT)),
        ModelSelection("p", "other"),
        None,
        config(model="other", options=HOT),
    ),
]


@pytest.mark.parametrize(
    ("last", "selection", "max_tokens", "expected"),
    [row[1:] for row in NEXT_CONFIG],
    ids=[row[0] for row in NEXT_CONFIG],
)
def test_next_config(
    last: RequestHeader | None,
    selection: ModelSelection,
    max_tokens: int | None,
    expected: CallConfig,
) -> None:
    assert next_config(last, selection, max_tokens) == expected


@given(st.none() | request_headers(), selections(), st.none() | st.integers(1, 9))
def test_next_config_is_on_the_route_and_no_change(
    last: RequestHeader | None, selection: ModelSelection, max_tokens: int | None
) -> None:
    """C78, C82, C85: what listeners start from is never a change of the route."""
    proposed = next_config(last, selection, max_tokens)
    assert proposed.selection == selection
    assert route_change(proposed, selection) is None
    assert proposed.options == (last.config.options if last else EMPTY_OBJECT)
    if max_tokens is not None:
        assert proposed.max_tokens == max_tokens


@given(request_headers(), selections())
def test_unmarked_next_config_is_stable(last: RequestHeader, selection: ModelSelection) -> None:
    """C82: without defaults, what was sent is what is proposed again."""
    first = next_config(last, selection, None)
    sent = RequestHeader(config=first)
    assert next_config(sent, selection, None) == first


@pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, True, "5", 2**53, float("nan")], ids=repr)
def test_max_tokens_are_positive_safe_integers(value: Any) -> None:
    """C10."""
    with pytest.raises(InvalidValue):
        next_config(None, ModelSelection("p", "m"), value)


ROUTE_CHANGES: list[tuple[str, CallConfig, ModelSelection, str | None]] = [
    ("same (C78)", config(), ModelSelection("p", "m"), None),
    ("sampling (C78)", config(options=HOT, max_tokens=3), ModelSelection("p", "m"), None),
    ("provider (C78)", config(provider="q"), ModelSelection("p", "m"), "provider"),
    ("model (C78)", config(model="n"), ModelSelection("p", "m"), "model"),
    ("effort added (C78)", config(effort="low"), ModelSelection("p", "m"), "effort"),
    ("effort changed (C78)", config(effort="low"), ModelSelection("p", "m", "high"), "effort"),
    ("effort cleared (C78)", config(), ModelSelection("p", "m", "high"), "effort"),
]


@pytest.mark.parametrize(
    ("proposed", "selection", "word"),
    [row[1:] for row in ROUTE_CHANGES],
    ids=[row[0] for row in ROUTE_CHANGES],
)
def test_route_change(proposed: CallConfig, selection: ModelSelection, word: str | None) -> None:
    change = route_change(proposed, selection)
    assert (change is None) == (word is None)
    assert word is None or change is None or change.startswith(word)


@given(call_configs(), selections())
def test_a_route_change_is_any_difference_of_the_route(
    proposed: CallConfig, selection: ModelSelection
) -> None:
    """C78."""
    assert (route_change(proposed, selection) is None) == (proposed.selection == selection)


# --- headers --------------------------------------------------------------------------------


def tool(name: str, description: str = "") -> ToolSchema:
    return ToolSchema(name=name, description=description, parameters=EMPTY_OBJECT)


PLAIN = header(config())
OTHER = header(config(max_tokens=5))
HEADERS: list[tuple[str, RequestHeader | None, RequestHeader, bool, bool, Any]] = [
    ("the first of all (C80)", None, PLAIN, True, False, ("initial", False)),
    ("the first, starting a series (C80)", None, PLAIN, True, True, ("initial", True)),
    ("resumed, unchanged (C80, C150)", PLAIN, PLAIN, True, False, ("resume", False)),
    ("resumed, changed (C80)", PLAIN, OTHER, True, False, ("resume", False)),
    ("resumed, starting a series (C80)", PLAIN, PLAIN, True, True, ("resume", True)),
    ("unchanged (C80)", PLAIN, PLAIN, False, False, None),
    ("changed (C80)", PLAIN, OTHER, False, False, ("change", False)),
    ("changed, starting a series (C80)", PLAIN, OTHER, False, True, ("change", True)),
    ("a series alone (C80, C96)", PLAIN, PLAIN, False, True, ("series", False)),
    (
        "only the marks differ (C80, C82)",
        OTHER,
        header(config(max_tokens=5), "maxTokens"),
        False,
        False,
        ("change", False),
    ),
    (
        "a tool's schema differs (C80, C97)",
        header(config(), tools=(tool("a", "1"),)),
        header(config(), tools=(tool("a", "2"),)),
        False,
        False,
        ("change", False),
    ),
    (
        "the order of tools differs (C80, C172)",
        header(config(), tools=(tool("a"), tool("b"))),
        header(config(), tools=(tool("b"), tool("a"))),
        False,
        False,
        ("change", False),
    ),
]


@pytest.mark.parametrize(
    ("last", "now", "first", "series", "decision"),
    [row[1:] for row in HEADERS],
    ids=[row[0] for row in HEADERS],
)
def test_header_needed(
    last: RequestHeader | None, now: RequestHeader, first: bool, series: bool, decision: Any
) -> None:
    found = header_needed(last=last, header=now, first_of_instance=first, starts_series=series)
    assert found == (None if decision is None else HeaderDecision(*decision))


@given(st.none() | request_headers(), request_headers(), st.booleans(), st.booleans())
def test_a_header_is_left_out_only_when_it_would_say_nothing_new(
    last: RequestHeader | None, now: RequestHeader, first: bool, series: bool
) -> None:
    """C80, C162: config and tools of a request equal the folded header."""
    found = header_needed(last=last, header=now, first_of_instance=first, starts_series=series)
    assert (found is None) == (last == now and not first and not series)
    if found is not None and found.reason != "series":
        assert found.starts_series is series


TOOL_CHANGES: list[tuple[str, str, str, list[Any]]] = [
    ("none (C100)", "ab", "ab", []),
    (
        "added, in current order (C100)",
        "b",
        "cba",
        [ToolAdditionBlock("c"), ToolAdditionBlock("a")],
    ),
    ("removed, in former order (C100)", "cba", "b", [ToolRemovalBlock("c"), ToolRemovalBlock("a")]),
    (
        "additions come first (C100)",
        "ax",
        "bx",
        [ToolAdditionBlock("b"), ToolRemovalBlock("a")],
    ),
    ("order alone is no change (C100)", "ab", "ba", []),
    ("from none (C100)", "", "a", [ToolAdditionBlock("a")]),
    ("to none (C100)", "a", "", [ToolRemovalBlock("a")]),
]


@pytest.mark.parametrize(
    ("before", "after", "blocks"),
    [row[1:] for row in TOOL_CHANGES],
    ids=[row[0] for row in TOOL_CHANGES],
)
def test_tool_changes(before: str, after: str, blocks: list[Any]) -> None:
    last = header(config(), tools=tuple(map(tool, before)))
    now = header(config(), tools=tuple(map(tool, after)))
    assert tool_changes(last, now) == tuple(blocks)


def test_a_changed_schema_is_no_change_of_the_tool_set() -> None:
    """C100: names are compared."""
    last = header(config(), tools=(tool("a", "1"),))
    now = header(config(), tools=(tool("a", "2"),))
    assert tool_changes(last, now) == ()


@given(
    st.lists(st.sampled_from("abcd"), unique=True), st.lists(st.sampled_from("abcd"), unique=True)
)
def test_tool_changes_lead_from_one_set_to_the_other(before: list[str], after: list[str]) -> None:
    """C100, C101."""
    last = header(config(), tools=tuple(map(tool, before)))
    now = header(config(), tools=tuple(map(tool, after)))
    names = set(before)
    for block in tool_changes(last, now):
        if isinstance(block, ToolAdditionBlock):
            assert block.tool_name not in names
            names.add(block.tool_name)
        else:
            assert isinstance(block, ToolRemovalBlock)
            names.remove(block.tool_name)
    assert names == set(after)
