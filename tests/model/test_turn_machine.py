"""The turn machine: a second description of what an agent may write, and the two compared.

C47-C72, C76-C81, C90, C100, C105-C110, C118-C137, C142, C145, C161.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given

from terzetto.session import CRASH, Closing, Place, closers, replay
from terzetto.session._inbox import PendingInput
from terzetto.testing import check_trace
from terzetto.testing._turn_kinds import kind_of
from terzetto.testing._turn_machine import TurnMachine
from terzetto.testing._turn_table import KINDS, MOVES, ROWS, STATES, rendered
from terzetto.vocabulary import (
    Aborted,
    Event,
    Failed,
    Failure,
    IllegalEvent,
    ToolCallEvent,
    ToolResultEvent,
    UserCause,
)
from tests.model.pairs import explore_pair
from tests.model.world import Budget, World, explore
from tests.session.oracle import MUTATIONS, new_session, recorded
from tests.strategies_logs import legal_logs, mutated_logs

FOREIGN = {"204-fork-inherits-history", "205-resume-same-log"}
"""They begin with a seed of another engine, whose step has no prompt."""
OURS = sorted(recorded().keys() - FOREIGN)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "turn-machine.md"


# --- what is accepted -----------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_a_recorded_log_is_accepted(name: str) -> None:
    assert check_trace(recorded()[name]) == []


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_a_seed_of_another_engine_is_refused_at_its_missing_prompt(name: str) -> None:
    [problem] = check_trace(recorded()[name])
    assert problem.startswith("event 7 (assistant/chunk 'parent answer') may not come: expected ")
    assert "expected system/message: the prompt takes the first place" in problem


def test_the_runs_reach_every_kind_and_state_that_they_can() -> None:
    """The table has no row for nothing: what recorded runs do not show, the small world does."""
    kinds, states = Counter[str](), Counter[str]()
    for name in OURS:
        machine = TurnMachine()
        for event in recorded()[name]:
            assert machine.take(event) is None
            kinds[kind_of(event)] += 1
            states[machine.state] += 1
    never = {"aside", "compaction/start", "compaction/summary", "compaction/end"}
    assert set(KINDS) - set(kinds) == never | {"llm/retry", "llm/retry-started"}
    assert set(STATES) - set(states) <= {"waiting", "retrying", "failing"}


# --- what is refused ------------------------------------------------------------------------

ELSEWHERE = {"inbox/edit", "replacement", "aside"}
"""Somebody else may do these at any time, so one more or one less is another legal log."""
SAME_ANSWER = {
    "assistant/chunk": "the answer does not depend on it: a start, or what an end repeats",
    "finish": "an answer without a finish is a stop",
    "finish failed": "an attempt may fail twice, and a listener may fail beside it",
}
DROPPED = {
    "user/message": "pre_step may set a message aside, while another enters",
    "request/header": "nothing else tells that the configuration had changed",
    "system/message": "nothing else tells that the prompt had changed",
    "assistant/message": "a step that fails after the stream has no answer",
    "assistant/message interrupted": "a crash may come after the step of a failed turn was closed",
    "tool/call": "a lazy log says of calls without a record that their outcome is unknown",
    "session/end-seed": "the session was never resumed",
}
DOUBLED = {"system/message": "a version of the prompt may be rewritten twice"}


def changed(log: Sequence[Event], how: str, index: int) -> list[Event] | None:
    mutant = MUTATIONS[how](log, index)
    if mutant is None or [e.data for e in mutant] == [e.data for e in log]:
        return None
    return mutant


@pytest.mark.parametrize("how", ["drop", "swap", "duplicate"])
def test_a_log_with_one_change_is_refused(how: str) -> None:
    """Every fourth recorded log, changed at every event. What is let through is argued above."""
    argued = {*ELSEWHERE, *SAME_ANSWER}
    argued |= set({"drop": DROPPED, "duplicate": DOUBLED, "swap": {}}[how])
    refused = Counter[str]()
    passed = Counter[str]()
    for name in OURS[::4]:
        log = recorded()[name]
        for index, event in enumerate(log):
            mutant = changed(log, how, index)
            if mutant is not None:
                (refused if check_trace(mutant) else passed)[kind_of(event)] += 1
    assert set(passed) <= (set() if how == "swap" else argued)
    assert refused.total() > (500 if how == "drop" else 900)
    assert set(refused) >= {"turn/start", "turn/end completed", "step/start", "inbox/claim"}


@given(log=mutated_logs() | legal_logs(splitting=True))
def test_what_the_machine_accepts_a_session_accepts(log: Sequence[Event]) -> None:
    """The machine is finer than the order of a log, never coarser (C151, C161)."""
    place, pending, machine = Place(), PendingInput(), TurnMachine()
    for event in log:
        try:
            place.judge(event)
            pending.judge(event)
        except IllegalEvent:
            assert machine.take(event) is not None
            return
        if machine.take(event) is not None:
            return
        place.move(event)
        pending.move(event, place.open_turn is not None)


def test_a_refusal_says_where_and_what_was_allowed() -> None:
    log = recorded()["001-plain-text"]
    [problem] = check_trace([e for e in log if e.seq < 4] + [evolve(log[-1], seq=4)])
    assert problem == (
        "event 4 (turn/end turn 1: Completed) may not come: the turn machine is in state "
        "'started' (a step is open, nothing of its request is in the log), where these may "
        "come: system/message, user/message, request/header, request/context, "
        "assistant/chunk, finish, finish failed, assistant/message, step/end, inbox/insert, "
        "inbox/edit, replacement, aside, compaction/start, compaction/summary, compaction/end"
    )
    assert check_trace(log[:4], finished=False) == []
    assert check_trace(log[:4]) == [
        "the log ends in state 'started' (a step is open, nothing of its request is in the "
        "log): its turn is not closed"
    ]
    assert check_trace([]) == []


def test_exclusive_tools_and_a_cap_of_one_are_barriers() -> None:
    """C120 C121: which calls may overlap is not in the log, so the caller says it."""
    overlapping = 0
    for name in OURS:
        log, running, names = recorded()[name], 0, set[str]()
        overlaps = False
        for event in log:
            if isinstance(event.data, ToolCallEvent):
                overlaps = overlaps or running > 0
                running += 1
                names.add(event.data.name)
            elif isinstance(event.data, ToolResultEvent):
                running = max(0, running - 1)
        if not names:
            continue
        alone = check_trace(log, exclusive=names), check_trace(log, capacity=1)
        assert [bool(problems) for problems in alone] == [overlaps, overlaps], name
        overlapping += overlaps
        assert check_trace(log, capacity=2) == []
    assert overlapping >= 5


# --- all of it ------------------------------------------------------------------------------

FAILED = Failed(Failure(message="no", code="X"))
CLOSINGS = (
    CRASH,
    Closing(cut="cancel", ending=Aborted(UserCause())),
    Closing(cut="cancel", ending=Aborted(UserCause()), discard_claimed=True),
    Closing(cut="error", ending=FAILED),
)
BUDGETS = {
    "three calls": Budget(
        turns=1, steps=1, calls=3, inputs=1, cuts=2, retries=0, lives=0, changes=0, chunks=0
    ),
    "two turns": Budget(
        turns=2, steps=1, calls=0, inputs=1, cuts=1, retries=0, lives=1, changes=0, chunks=0
    ),
    "attempts": Budget(
        turns=1, steps=2, calls=1, inputs=1, cuts=1, retries=1, lives=0, changes=1, chunks=1
    ),
}


@functools.cache
def world_of(name: str) -> World:
    return explore(BUDGETS[name])


@pytest.mark.parametrize("name", BUDGETS)
def test_every_state_can_close_its_turn_and_every_trace_is_a_legal_log(name: str) -> None:
    """No deadlock; and both directions: a session accepts what the machine lets through, and
    the machine accepts what a session's closers append, wherever the turn is cut."""
    world = world_of(name)
    closing = world.closing()
    stuck = [n for i, n in enumerate(world.nodes) if i not in closing]
    assert [n.machine.state for n in stuck if n.machine.state != "repaired"] == []
    for number, node in enumerate(world.nodes):
        session = new_session()
        replay(session, node.trace)
        for event, _ in world.moves[number]:
            session.place.judge(event)
            session.surface.judge(event)
            session.pending.judge(event)
        how = CLOSINGS[number % len(CLOSINGS)]
        close(node.machine.fork(), session, how if may_end(node.machine, how) else CRASH)
    assert len(world.nodes) > 500


def may_end(machine: TurnMachine, how: Closing) -> bool:
    """Whether the driver may end a turn so from here."""
    f = machine.facts
    if how.cut == "cancel":  # but what has failed has failed
        return machine.state != "failing"
    return how is CRASH or not (f.closing or f.due)


def close(machine: TurnMachine, session, how: Closing) -> None:
    for draft in closers(session.place, session.pending, session.folds, how):
        session.append_draft(draft)
        refusal = machine.take(session.events[-1])
        assert refusal is None, str(refusal)
    assert machine.state in ("idle", "repaired")


def test_no_row_is_dead() -> None:
    """Each is taken in one of the small worlds or in a recorded run, or may come anywhere."""
    taken: set[tuple[str, str]] = set()
    for name in BUDGETS:
        world = world_of(name)
        for moves in world.moves:
            for event, there in moves:
                taken.add((kind_of(event), world.nodes[there].machine.state))
    for name in OURS:
        machine = TurnMachine()
        for event in recorded()[name]:
            machine.take(event)
            taken.add((kind_of(event), machine.state))
    anywhere = ("replacement", "aside", "compaction", "inbox")
    rows = {(row.kind, row.next) for row in ROWS if not row.kind.startswith(anywhere)}
    assert rows - taken == set()


def test_two_agents_three_calls_two_cancels() -> None:
    """C27 C128 C170: a child that a call of its parent waits for; each of them may be cut."""
    pair = explore_pair()
    assert pair.stuck == []
    assert pair.states > 1000
    assert pair.ends >= 4


# --- the page -------------------------------------------------------------------------------


def test_the_page_has_the_tables_of_the_code() -> None:
    text = PAGE.read_text("utf-8")
    begin, end = "<!-- the tables: begin -->\n", "\n<!-- the tables: end -->"
    assert text[text.index(begin) + len(begin) : text.index(end)] == rendered()


def test_every_state_and_kind_is_in_the_table() -> None:
    assert {state for state, _ in MOVES} == set(STATES)
    assert {row.next for row in ROWS if row.next is not None} | {"idle"} == set(STATES)
    assert all(guard.__doc__ for row in ROWS for guard in row.guards)
