"""What walking the turn machine found."""

from __future__ import annotations

import pytest

from terzetto.session import CRASH, closers
from terzetto.testing import check_trace
from terzetto.vocabulary import (
    InboxSpliced,
    Interrupted,
    MessageId,
    StepEnd,
    StepStart,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from tests.session.oracle import new_session


@pytest.mark.parametrize("target", ["next-turn", "next-step"])
def test_a_crash_between_a_failed_step_and_its_turn_s_end_loses_no_input(target) -> None:
    """C145: a `request` listener fails, so the step ends before anything was admitted; the
    process dies before `turn/end` is stored. What was claimed is put back, not lost."""
    session = new_session()
    message = UserMessage("hello", id=MessageId("m"))
    session.append(InboxSpliced(target, 0, inserted=(message,)))
    session.append(TurnStart(1))
    session.append(InboxSpliced(target, 0, 1))
    session.append(StepStart(1, 1))
    session.append(StepEnd(1, 1))
    for draft in closers(session.place, session.pending, session.folds, CRASH):
        session.append_draft(draft)
    assert [event.data for event in session.events][5:] == [
        InboxSpliced(target, 0, inserted=(message,)),
        TurnEnd(1, Interrupted()),
    ]
    assert session.pending.lists[target] == [message]
    assert check_trace(session.events) == []
