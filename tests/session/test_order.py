"""The Place table: which event may come next (C60, C61, C63, C151, C153, C154, C161).

The oracle (`oracle.py`) reads whole logs; the table judges event by event. They agree on the
recorded logs, on generated ones, and on every single change to either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from tests.session.oracle import (
    MUTATIONS,
    START_MS,
    Log,
    first_illegal,
    history_of,
    letter,
    letters,
    lists_of,
    new_session,
    observed,
    recorded,
    renumbered,
    replayed,
)
from tests.strategies_logs import legal_logs, mutated_logs

from terzetto.session import Place, Session, fork_prefix, replay
from terzetto.session._order import RULES
from terzetto.vocabulary import (
    APPEND,
    AssistantChunk,
    AssistantMessage,
    AssistantMessageEvent,
    CallConfig,
    CallId,
    Completed,
    DeveloperMessage,
    DeveloperMessageEvent,
    Draft,
    EndSeed,
    ErrorFinish,
    Event,
    EventData,
    Extension,
    Failure,
    Finish,
    IllegalEvent,
    InboxSpliced,
    LlmRetry,
    LlmRetryStarted,
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
    Stop,
    SystemMessage,
    SystemMessageEvent,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallEvent,
    ToolRemovalBlock,
    ToolResultBlock,
    ToolResultEvent,
    ToolSource,
    TurnEnd,
    TurnStart,
    UserMessage,
    UserMessageEvent,
)

RECORDED = sorted(recorded())
FAILURE = Failure(message="no", code="SERVER")


def draft_of(event: Event) -> Draft:
    return Draft(event.data, event.surface_op, event.sources, event.ignorable)


def append_all(session: Session, events: Sequence[Event]) -> None:
    """Append as a live agent would: numbered and judged strictly."""
    for event in events:
        session.append_draft(draft_of(event))


def assert_judged_like_the_oracle(events: Sequence[Event]) -> None:
    """Refused at the same event as the oracle refuses, which then has changed nothing."""
    for strict in (False, True):
        if strict and any(event.seq != index for index, event in enumerate(events)):
            continue  # a live session numbers its events itself
        load = append_all if strict else replay
        wrong = first_illegal(events, strict=strict)
        legal = events if wrong is None else events[:wrong]
        before, session = new_session(), new_session()
        load(before, legal)
        assert list(before.history()) == history_of(legal)
        assert before.pending.lists == lists_of(legal)
        if wrong is not None:
            with pytest.raises(IllegalEvent) as caught:
                load(session, events)
            assert caught.value.seq == events[wrong].seq
            assert observed(session) == observed(before)


# --- whole logs -------------------------------------------------------------------------


def test_every_payload_has_a_rule() -> None:
    assert set(RULES) == set(EventData.__args__)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_log_replays_and_ends_where_it_says(name: str) -> None:
    """C63, C151, C161: the order of durable facts is the reference's."""
    log = recorded()[name]
    session = replayed(log)
    assert list(session.events) == list(log)
    assert session.place.next_seq == len(log)
    assert session.place.strict
    assert session.place.open_turn is None
    assert session.place.open_step is None
    assert session.place.owed() == []
    turns = [event.data.turn for event in log if isinstance(event.data, TurnStart)]
    assert turns == list(range(1, len(turns) + 1))
    assert session.place.last_turn == len(turns)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_log_could_have_been_appended(name: str) -> None:
    """C63, C151: one table judges replay and live appends."""
    log = recorded()[name]
    session = new_session()
    append_all(session, log)
    assert [evolve(event, time_ms=0) for event in session.events] == [
        evolve(event, time_ms=0) for event in log
    ]
    assert observed(session)["Place"] == {
        **observed(replayed(log))["Place"],
        "last_time_ms": START_MS,
    }


@given(legal_logs(splitting=True))
def test_generated_log_is_taken_live_and_on_replay(log: Log) -> None:
    """C60, C61: turns count through the log, steps through their turn, both from 1."""
    assert_judged_like_the_oracle(log)
    turn = step = 0
    for event in log:
        match event.data:
            case TurnStart(turn=number):
                turn, step = turn + 1, 0
                assert number == turn
            case StepStart(turn=of, step=number):
                step += 1
                assert (of, number) == (turn, step)


# --- single changes ---------------------------------------------------------------------


def neighbourhoods() -> Iterator[tuple[Log, int]]:
    """Every place of a recorded log whose surroundings no earlier one had."""
    seen = set()
    for name in RECORDED:
        log = recorded()[name]
        word = [letter(event) or "." for event in log]
        for index in range(len(log)):
            around = (index < 2, "".join(word[max(0, index - 2) : index + 3]))
            if around not in seen:
                seen.add(around)
                yield log, index


@pytest.mark.parametrize("kind", MUTATIONS)
def test_changed_recorded_log_is_refused_or_legal_otherwise(kind: str) -> None:
    """C151, C153, C161."""
    applied = refused = 0
    for log, index in neighbourhoods():
        changed = MUTATIONS[kind](log, index)
        if changed is not None:
            applied += 1
            refused += first_illegal(changed, strict=False) is not None
            assert_judged_like_the_oracle(changed)
    assert 0 < refused <= applied


@given(mutated_logs())
def test_changed_generated_log_is_refused_or_legal_otherwise(log: list[Event]) -> None:
    """C151, C153, C161."""
    assert_judged_like_the_oracle(log)


# --- what must be refused, by name --------------------------------------------------------

CALLS = (
    ToolCallBlock(CallId("a"), "tool", "{}"),
    ToolCallBlock(CallId("b"), "tool", "{}"),
)
DELTA = AssistantChunk(1, 1, TextDelta(0, "hi"))
END = AssistantChunk(1, 1, Finish(Stop()))
FAILED = AssistantChunk(1, 1, Finish(ErrorFinish(FAILURE)))
USER = Draft(UserMessageEvent(UserMessage("hi")), APPEND)
SYSTEM = Draft(
    SystemMessageEvent(1, 1, SystemMessage((TextBlock("be"),), PluginSource("p"))), APPEND
)
DEVELOPER = Draft(DeveloperMessageEvent(1, 1, DeveloperMessage((ToolRemovalBlock("t"),))), APPEND)
HEADER = Draft(
    RequestHeaderEvent(RequestHeader(config=CallConfig(provider="p", model="m")), "initial")
)
CONTEXT = Draft(RequestContextEvent("p", "m"))
RETRY = Draft(LlmRetry(turn=1, step=1, retry_id="r", attempt=1, delay_ms=5, failure=FAILURE))
RETRY_STARTED = Draft(LlmRetryStarted(turn=1, step=1, retry_id="r"))
CALL_A, CALL_B = (Draft(ToolCallEvent(1, 1, call.id, call.name, call.arguments)) for call in CALLS)


def answer(*calls: ToolCallBlock, turn: int = 1, step: int = 1, sources: Any = ()) -> Draft:
    message = AssistantMessage(calls, ModelSource("p", "m"))
    return Draft(AssistantMessageEvent(turn, step, message), APPEND, sources)


def result(call_id: str, *sources: int, turn: int = 1, step: int = 1) -> Draft:
    block = ToolResultBlock(CallId(call_id), (TextBlock("ok"),))
    message = UserMessage((block,), ToolSource(CallId(call_id)))
    return Draft(ToolResultEvent(turn, step, message), APPEND, sources or None)


TURN = [Draft(TurnStart(1))]
STEP = [*TURN, Draft(StepStart(1, 1))]
STREAM = [*STEP, USER, Draft(DELTA)]
ANSWERED = [*STEP, answer()]
OWING = [*STEP, answer(*CALLS)]  # seqs 0, 1, 2
CALLED = [*OWING, CALL_A, CALL_B]  # 3, 4
STEP_CLOSED = [*ANSWERED, Draft(StepEnd(1, 1))]
TURN_CLOSED = [*STEP_CLOSED, Draft(TurnEnd(1, Completed()))]

REFUSED: dict[str, tuple[list[Draft], Draft]] = {
    "first turn is not 1 (C60)": ([], Draft(TurnStart(2))),
    "turn 0 (C60)": ([], Draft(TurnStart(0))),
    "turn skipped (C60)": (TURN_CLOSED, Draft(TurnStart(3))),
    "turn repeated (C60)": (TURN_CLOSED, Draft(TurnStart(1))),
    "turn in a turn (C161)": (TURN, Draft(TurnStart(2))),
    "second turn/end (C161)": (TURN_CLOSED, Draft(TurnEnd(1, Completed()))),
    "turn/end of another turn (C161)": (TURN, Draft(TurnEnd(2, Completed()))),
    "turn/end in an open step (C161)": (ANSWERED, Draft(TurnEnd(1, Completed()))),
    "turn/end first (C161)": ([], Draft(TurnEnd(0, Completed()))),
    "step outside a turn (C161)": ([], Draft(StepStart(1, 1))),
    "first step is not 1 (C60)": (TURN, Draft(StepStart(1, 2))),
    "step of another turn (C60)": (TURN, Draft(StepStart(2, 1))),
    "step repeated (C60)": (STEP_CLOSED, Draft(StepStart(1, 1))),
    "step skipped (C60)": (STEP_CLOSED, Draft(StepStart(1, 3))),
    "step in a step (C161)": (STEP, Draft(StepStart(1, 2))),
    "step/end of another step (C161)": (ANSWERED, Draft(StepEnd(1, 2))),
    "step/end of another turn (C161)": (ANSWERED, Draft(StepEnd(2, 1))),
    "second step/end (C161)": (STEP_CLOSED, Draft(StepEnd(1, 1))),
    "step/end owing two (C134)": (OWING, Draft(StepEnd(1, 1))),
    "step/end owing recorded calls (C134)": (CALLED, Draft(StepEnd(1, 1))),
    "step/end owing one (C134)": ([*CALLED, result("a", 3)], Draft(StepEnd(1, 1))),
    "chunk outside a turn (C161)": ([], Draft(DELTA)),
    "chunk between steps (C161)": (STEP_CLOSED, Draft(DELTA)),
    "chunk after the answer (C106)": (ANSWERED, Draft(DELTA)),
    "chunk of another step (C161)": (STEP, Draft(evolve(DELTA, step=2))),
    "chunk of another turn (C161)": (STEP, Draft(evolve(DELTA, turn=2))),
    "answer outside a step (C161)": (TURN, answer()),
    "second answer (C106)": (ANSWERED, answer()),
    "second answer while calls are owed (C106)": (OWING, answer(*CALLS)),
    "answer of another step (C161)": (STEP, answer(step=2)),
    "answer of another turn (C161)": (STEP, answer(turn=2)),
    "user message between steps (C63)": (TURN, USER),
    "user message between turns (C63)": ([], USER),
    "user message in a stream (C63)": (STREAM, USER),
    "user message after the answer (C63)": (ANSWERED, USER),
    "user message among results (C63)": ([*CALLED, result("a", 3)], USER),
    "system message in a stream (C63)": (STREAM, SYSTEM),
    "system message after the answer (C63)": (ANSWERED, SYSTEM),
    "developer message in a stream (C63)": (STREAM, DEVELOPER),
    "developer message outside a step (C161)": (TURN, DEVELOPER),
    "header in a stream (C63)": (STREAM, HEADER),
    "header after the answer (C63)": (ANSWERED, HEADER),
    "header outside a step (C161)": (TURN, HEADER),
    "context in a stream (C63)": (STREAM, CONTEXT),
    "context outside a step (C161)": ([], CONTEXT),
    "retry after the answer (C142)": (ANSWERED, RETRY),
    "retry outside a step (C142)": (TURN, RETRY),
    "retry of another step (C142)": (STEP, Draft(LlmRetryStarted(turn=1, step=2, retry_id="r"))),
    "retry start outside a step (C142)": (TURN_CLOSED, RETRY_STARTED),
    "call before the answer (C161)": (STREAM, CALL_A),
    "call outside a step (C161)": (STEP_CLOSED, CALL_A),
    "call nobody asked for (C161)": (ANSWERED, CALL_A),
    "calls out of order (C122)": (OWING, CALL_B),
    "call recorded twice (C122)": ([*OWING, CALL_A], CALL_A),
    "call recorded after its result (C122)": ([*OWING, result("a")], CALL_A),
    "call of another step (C161)": (OWING, Draft(ToolCallEvent(1, 2, CallId("a"), "tool", "{}"))),
    "third call of two (C161)": (CALLED, CALL_B),
    "result before the answer (C161)": (STEP, result("a")),
    "result outside a step (C161)": (STEP_CLOSED, result("a")),
    "result of an unknown call (C161)": (CALLED, result("z", 3)),
    "results out of order (C122)": (CALLED, result("b", 4)),
    "second result (C161)": ([*CALLED, result("a", 3)], result("a", 3)),
    "third result of two (C161)": ([*CALLED, result("a", 3), result("b", 4)], result("b", 4)),
    "result without its call's seq (C122)": (CALLED, result("a")),
    "result that cites another call (C122)": (CALLED, result("a", 4)),
    "result that cites more (C122)": (CALLED, result("a", 3, 2)),
    "result of an unrecorded call that cites (C136)": (OWING, result("a", 2)),
    "result of another step (C161)": (CALLED, result("a", 3, step=2)),
    "seed mark in a turn (C154)": (TURN, Draft(EndSeed())),
    "seed mark in a step (C154)": (STEP, Draft(EndSeed(True))),
    "user message without a surface op (C153)": (STEP, Draft(USER.data)),
    "chunk with a surface op (C153)": (STEP, Draft(DELTA, APPEND)),
    "turn/start with a replacement (C153)": (
        [*STEP, USER, answer(), *STEP_CLOSED[3:], *TURN_CLOSED[4:]],
        Draft(TurnStart(2), Replace(2, 2), (2,)),
    ),
    "replacement of nothing (C153)": ([], Draft(USER.data, Replace(0, 0), ())),
    "replacement of what is no node (C153)": (TURN, Draft(USER.data, Replace(0, 0), (0,))),
    "replacement that does not cite (C153)": ([*STEP, USER], Draft(USER.data, Replace(2, 2))),
    "replacement backwards (C153)": (
        [*STEP, USER, USER],
        Draft(USER.data, Replace(3, 2), (2, 3)),
    ),
    "system message replaced outside a step (C63)": (
        [*STEP, SYSTEM, answer(), *STEP_CLOSED[3:]],
        Draft(SYSTEM.data, Replace(2, 2), (2,)),
    ),
    "source from the future (C153)": (STEP, Draft(USER.data, APPEND, (9,))),
    "source of itself (C153)": (STEP, Draft(USER.data, APPEND, (2,))),
    "negative source (C153)": (STEP, Draft(USER.data, APPEND, (-1,))),
    "negative source of an unseen event (C153)": (STEP, Draft(CONTEXT.data, None, (-1,))),
    "impossible splice (C58)": ([], Draft(InboxSpliced("next-turn", 0, 1))),
    "empty splice (C52)": (TURN, Draft(InboxSpliced("next-turn", 0))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_append_names_its_seq_and_changes_nothing(name: str) -> None:
    drafts, wrong = REFUSED[name]
    session = new_session()
    for draft in drafts:
        session.append_draft(draft)
    seen: list[Event] = []
    session.sink = seen.append
    session.observe(seen.append)
    before = observed(session)
    with pytest.raises(IllegalEvent) as caught:
        session.append_draft(wrong)
    assert caught.value.seq == len(drafts)
    assert f"event {len(drafts)}" in str(caught.value)
    assert caught.value.expected in str(caught.value)
    assert observed(session) == before
    assert seen == []


@pytest.mark.parametrize("name", REFUSED)
def test_table_and_oracle_refuse_the_same(name: str) -> None:
    drafts, wrong = REFUSED[name]
    events = [
        Event(seq, START_MS, draft.data, draft.surface_op, draft.sources)
        for seq, draft in enumerate([*drafts, wrong])
    ]
    assert first_illegal(events, strict=True) == len(drafts)


ALLOWED: dict[str, tuple[list[Draft], list[Draft]]] = {
    "zero-step turn (C61)": (TURN, [Draft(TurnEnd(1, Completed()))]),
    "next turn (C60)": (TURN_CLOSED, [Draft(TurnStart(2)), Draft(StepStart(2, 1))]),
    "next step (C60)": (STEP_CLOSED, [Draft(StepStart(1, 2)), answer(step=2)]),
    "step without an answer (C106)": (STEP, [Draft(StepEnd(1, 1))]),
    "everything before the stream, in any order (C63)": (
        STEP,
        [CONTEXT, HEADER, DEVELOPER, USER, SYSTEM, Draft(DELTA)],
    ),
    "the request's parts again after a failed attempt (C98)": (
        [*STREAM, Draft(FAILED)],
        [RETRY, RETRY_STARTED, SYSTEM, USER, HEADER, CONTEXT, Draft(DELTA), answer()],
    ),
    "chunks after a finish (C108)": ([*STREAM, Draft(END)], [Draft(DELTA), Draft(END), answer()]),
    "calls ahead of results (C122)": (CALLED, [result("a", 3), result("b", 4)]),
    "results in between calls (C122)": (
        OWING,
        [CALL_A, result("a", 3), CALL_B, result("b", 5), Draft(StepEnd(1, 1))],
    ),
    "results without calls (C136)": (OWING, [result("a"), result("b"), Draft(StepEnd(1, 1))]),
    "facts, edits and selections anywhere (C52)": (
        CALLED,
        [
            Draft(Extension("app/x")),
            Draft(ModelSelected(ModelSelection("p", "m"))),
            Draft(InboxSpliced("next-step", 0, 0, (UserMessage("later"),))),
        ],
    ),
    "user replacement anywhere (C153)": ([*STREAM], [Draft(USER.data, Replace(2, 2), (2,))]),
    "system replacement before the stream (C93)": (
        [*STEP, SYSTEM],
        [Draft(SYSTEM.data, Replace(2, 2), (2,))],
    ),
    "seed mark between turns (C154)": (TURN_CLOSED, [Draft(EndSeed()), Draft(TurnStart(2))]),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_append(name: str) -> None:
    drafts, following = ALLOWED[name]
    session = new_session()
    for draft in [*drafts, *following]:
        session.append_draft(draft)
    assert len(session.events) == len(drafts) + len(following)
    assert first_illegal(list(session.events), strict=True) is None


def test_a_gap_is_refused_with_the_seq_that_came() -> None:
    """C151."""
    log = [Event(0, START_MS, TurnStart(1)), Event(2, START_MS, StepStart(1, 1))]
    session = new_session()
    with pytest.raises(IllegalEvent) as caught:
        replay(session, log)
    assert caught.value.seq == 2
    assert caught.value.expected == "seq 1"
    assert observed(session) == observed(replayed(log[:1]))


def test_a_log_that_does_not_begin_at_0_is_refused() -> None:
    """C151."""
    session = new_session()
    with pytest.raises(IllegalEvent) as caught:
        replay(session, [Event(1, START_MS, TurnStart(1))])
    assert caught.value.seq == 1
    assert len(session.events) == 0


@given(mutated_logs())
def test_strictness_is_back_after_any_replay(log: list[Event]) -> None:
    """C138: tolerance is for replay alone."""
    session = new_session()
    with suppress(IllegalEvent):
        replay(session, log)
    assert session.place.strict


@pytest.mark.parametrize("name", RECORDED)
def test_judging_changes_nothing(name: str) -> None:
    """C151: only `move` moves."""
    place = Place(strict=False)
    session = new_session()
    for event in recorded()[name]:
        before = observed(session)
        session.place.judge(event)
        session.surface.judge(event)
        session.pending.judge(event)
        assert observed(session) == before
        place.judge(event)
        place.move(event)
        replay(session, [event])


# --- closed steps with unanswered calls (C138) ---------------------------------------------


def without_results(log: Sequence[Event]) -> list[Event]:
    return renumbered(e for e in log if not isinstance(e.data, ToolResultEvent))


OWED = [
    name
    for name in RECORDED
    if any(isinstance(event.data, ToolResultEvent) for event in recorded()[name])
]


@pytest.mark.parametrize("name", OWED)
def test_replay_tolerates_closed_steps_with_unanswered_calls(name: str) -> None:
    """C138: older logs hold such steps, and closed history is not rewritten."""
    log = without_results(recorded()[name])
    session = replayed(log)
    assert list(session.events) == log
    assert session.place.owed() == []


@pytest.mark.parametrize("name", OWED)
def test_live_append_refuses_to_close_a_step_with_unanswered_calls(name: str) -> None:
    """C134, C138."""
    log = without_results(recorded()[name])
    wrong = first_illegal(log, strict=True)
    assert wrong is not None
    assert letters([log[wrong]]) == "s"
    session = new_session()
    append_all(session, log[:wrong])
    before = observed(session)
    with pytest.raises(IllegalEvent) as caught:
        session.append_draft(draft_of(log[wrong]))
    assert caught.value.seq == wrong
    assert observed(session) == before


def test_a_replayed_log_goes_on_strictly() -> None:
    """C138: the tolerance does not outlive the replay."""
    log = without_results(recorded()["013-tool-turn"])
    session = replayed(log)
    turn = session.place.last_turn + 1
    session.append(TurnStart(turn))
    session.append(StepStart(turn, 1))
    session.append_draft(answer(*CALLS, turn=turn))
    with pytest.raises(IllegalEvent):
        session.append(StepEnd(turn, 1))


@given(legal_logs(splitting=True))
def test_what_is_owed_is_counted_from_the_open_step_alone(log: Log) -> None:
    """C134: after each event, the calls of the open step that have no result yet."""
    session = new_session()
    owed: list[ToolCallBlock] = []
    for event in log:
        append_all(session, [event])
        match letter(event):
            case "M":
                assert isinstance(event.data, AssistantMessageEvent)
                owed = list(event.data.message.tool_calls)
            case "v":
                owed = owed[1:]
        assert [call.call for call in session.place.owed()] == owed


@given(legal_logs())
def test_a_fork_may_end_wherever_no_turn_is_open(log: Log) -> None:
    """C154: judged by the letters of the log."""
    for stop in range(len(log) + 1):
        word = letters(log[:stop])
        if word.count("T") == word.count("t"):
            assert fork_prefix(log, stop) == list(log[:stop])
