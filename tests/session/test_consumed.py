"""What became of the input that a log consumed (C167).

The fold goes through a log once and remembers; the oracle looks at whole turns, and finds out
for each question anew what was pending.
"""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from tests.session.oracle import Log, recorded
from tests.strategies_logs import legal_logs

import terzetto
from terzetto.hooks import Proceed
from terzetto.llm.scripted import Gate, ScriptedModel, answer, say
from terzetto.session import ConsumedWork, Session, consumed_work
from terzetto.vocabulary import (
    Aborted,
    Blocked,
    Completed,
    EndSeed,
    Failed,
    InboxSpliced,
    MessageId,
    StepStart,
    TurnEnd,
    TurnStart,
)

RECORDED = sorted(recorded())


# --- the oracle --------------------------------------------------------------------------------


def taken(log: Log, seq: int) -> list[MessageId]:
    """The ids that the splice at *seq* takes out of its list."""
    splice = log[seq].data
    assert isinstance(splice, InboxSpliced)
    ids: list[MessageId] = []
    for event in log[:seq]:
        if isinstance(event.data, EndSeed) and event.data.inherited:
            ids = []
        if isinstance(event.data, InboxSpliced) and event.data.target == splice.target:
            stop = event.data.start + event.data.removed_count
            ids[event.data.start : stop] = [message.id for message in event.data.inserted]
    return ids[splice.start : splice.start + splice.removed_count]


def put_in(log: Log, message_id: MessageId, start: int, stop: int) -> bool:
    splices = [e.data for e in log[start:stop] if isinstance(e.data, InboxSpliced)]
    return any(message_id == message.id for s in splices for message in s.inserted)


def accounts(log: Log, start: int, stop: int) -> bool:
    """Whether the turn from *start* to *stop* says what became of input."""
    if any(isinstance(event.data, StepStart) for event in log[start:stop]):
        return True
    end = log[stop].data
    assert isinstance(end, TurnEnd)
    kept = [
        message_id
        for seq in range(start, stop)
        if isinstance(splice := log[seq].data, InboxSpliced) and splice.outcome is None
        for message_id in taken(log, seq)
        if not put_in(log, message_id, seq, stop)
    ]
    return bool(kept) and not isinstance(end.ending, Completed)


def slowly(log: Log) -> ConsumedWork:
    starts = [seq for seq, event in enumerate(log) if isinstance(event.data, TurnStart)]
    ends = [seq for seq, event in enumerate(log) if isinstance(event.data, TurnEnd)]
    last = [stop for start, stop in zip(starts, ends, strict=False) if accounts(log, start, stop)]
    since = last[-1] + 1 if last else 0
    gone = [
        (seq, message_id)
        for seq in range(since, len(log))
        if isinstance(splice := log[seq].data, InboxSpliced) and splice.outcome is not None
        for message_id in taken(log, seq)
    ]
    dropped = [i for seq, i in gone if not put_in(log, i, seq, len(log))]
    if not last:
        return ConsumedWork(dropped=tuple(dropped))
    end = log[last[-1]].data
    assert isinstance(end, TurnEnd)
    return ConsumedWork(end.turn, end.ending, tuple(dropped))


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_logs_are_folded_as_the_oracle_reads_them(name: str) -> None:
    """C167: at the end of each, and wherever it is cut."""
    log = recorded()[name]
    for stop in range(0, len(log) + 1, max(1, len(log) // 8)):
        assert consumed_work(iter(log[:stop])) == slowly(log[:stop])
    assert consumed_work(log) == slowly(log)


def test_recorded_logs_have_every_kind() -> None:
    """C167: turns without a step that count, and others that do not; and messages dropped."""
    folded = {name: consumed_work(log) for name, log in recorded().items()}
    assert any(work.dropped for work in folded.values())
    assert any(isinstance(work.ending, Blocked | Failed) for work in folded.values())
    assert any(
        any(isinstance(event.data, TurnEnd) for event in log) and folded[name].turn is None
        for name, log in recorded().items()
    )


@given(legal_logs())
def test_any_log_is_folded_as_the_oracle_reads_it(log: Log) -> None:
    """C167"""
    assert consumed_work(iter(log)) == slowly(log)


@given(legal_logs())
def test_a_suffix_that_begins_with_nothing_pending_is_enough(log: Log) -> None:
    """C167: from the start of the turn that accounts for work on, if nothing was pending."""
    whole = consumed_work(log)
    starts = [seq for seq, event in enumerate(log) if isinstance(event.data, TurnStart)]
    begins = next((seq for seq in starts if log[seq].data == TurnStart(whole.turn or 0)), None)
    if begins is None or pending_before(log, begins):
        return
    assert consumed_work(log[begins:]) == whole


def pending_before(log: Log, seq: int) -> bool:
    count = 0
    for event in log[:seq]:
        if isinstance(event.data, EndSeed) and event.data.inherited:
            count = 0
        if isinstance(event.data, InboxSpliced):
            count += len(event.data.inserted) - event.data.removed_count
    return count > 0


# --- what an engine leaves ---------------------------------------------------------------------


async def test_an_agent_leaves_what_is_said_of_it(autojump_clock: trio.testing.MockClock) -> None:
    """C167: answered, discarded, blocked, given back, discarded in the end."""
    model = ScriptedModel([answer(say("Good evening.")), answer(Gate("never"))])
    blocking = False

    async def policy(
        step: terzetto.PreStep, proceed: Proceed[terzetto.PreStep, terzetto.StepDecision]
    ) -> terzetto.StepDecision:
        if blocking:
            return terzetto.Reject()
        return await proceed()

    async with (
        terzetto.open_engine(adapters=[model]) as engine,
        engine.open_agent(provider="scripted", model="m") as agent,
    ):
        agent.scope.hooks.pre_step.listen(policy)
        session: Session = agent.session
        assert consumed_work(session.events) == ConsumedWork()

        await agent.ask("hello")
        assert consumed_work(session.events) == ConsumedWork(1, Completed())

        dropped = agent.inject("later")
        agent.inbox.clear()
        assert consumed_work(session.events) == ConsumedWork(1, Completed(), (dropped,))

        blocking = True
        await agent.ask("not this")
        work = consumed_work(session.events)
        assert (work.turn, type(work.ending), work.dropped) == (2, Blocked, ())

        blocking = False
        agent.followup("wait for ever")
        await trio.testing.wait_all_tasks_blocked()
        assert consumed_work(session.events) == work  # the turn that is open says nothing yet
        agent.cancel()
        await agent.wait_idle()
        work = consumed_work(session.events)
        assert (work.turn, type(work.ending), work.dropped) == (3, Aborted, ())
