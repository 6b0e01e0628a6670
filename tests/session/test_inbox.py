"""The inbox: pending input as a projection of the log (C47, C52-C58).

The machine edits an `Inbox`, claims and puts back as a driver does, and keeps two plain lists
beside it. Whatever happens, the log alone gives the same lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import pytest
from attrs import evolve
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.session.oracle import (
    START_MS,
    Log,
    lists_of,
    new_session,
    observed,
    recorded,
    replayed,
)
from tests.strategies_logs import legal_logs

from terzetto.session import Inbox, PendingInput, Session, replay
from terzetto.vocabulary import (
    DuplicateMessage,
    EndSeed,
    Event,
    IllegalEvent,
    InboxSpliced,
    InboxTarget,
    Interrupted,
    InvalidValue,
    MessageId,
    ReentrantAppend,
    TurnEnd,
    TurnStart,
    UserMessage,
)

TARGETS: tuple[InboxTarget, ...] = ("next-step", "next-turn")
RECORDED = sorted(recorded())


class Recording:
    """Edits go to the log, and are never refused."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def check_open(self) -> None:
        return None

    def splice(self, splice: InboxSpliced) -> None:
        self.session.append(splice)


def with_inbox() -> tuple[Session, Inbox]:
    session = new_session()
    return session, Inbox(session.pending, Recording(session))


def message(name: str) -> UserMessage:
    return UserMessage(name, id=MessageId(name))


class InboxMachine(RuleBasedStateMachine):
    """Edits of every kind, with wild coordinates and ids, against two lists."""

    def __init__(self) -> None:
        super().__init__()
        self.session, self.inbox = with_inbox()
        self.lists: dict[InboxTarget, list[UserMessage]] = {"next-step": [], "next-turn": []}
        self.claimed: dict[InboxTarget, list[UserMessage]] = {"next-step": [], "next-turn": []}
        self.seen: list[tuple[Event, dict[str, list[UserMessage]]]] = []
        self.session.observe(self.observe)
        self.turn = 0
        self.names = 0

    def observe(self, event: Event) -> None:
        """What an observer sees at the moment of the event."""
        lists = {"next-step": [*self.inbox.next_step], "next-turn": [*self.inbox.next_turn]}
        self.seen.append((event, lists))

    # --- the model ------------------------------------------------------------------------

    def pending(self) -> list[UserMessage]:
        return [m for target in TARGETS for m in self.lists[target]]

    def fresh(self) -> UserMessage:
        self.names += 1
        return message(f"m{self.names}")

    def some(self, data: st.DataObject) -> UserMessage:
        """A new message mostly, else one whose id is or was in use."""
        old = [m for event in self.session.events for m in getattr(event.data, "inserted", ())]
        if old and data.draw(st.integers(0, 3)) == 0:
            return evolve(data.draw(st.sampled_from(old)), content="again")
        return self.fresh()

    def expect(
        self,
        act: Callable[[], Any],
        target: InboxTarget,
        after: list[UserMessage],
        outcome: str | None = "canceled",
    ) -> Any:
        """*act* makes one splice that leaves *after* in *target*, or is refused whole."""
        before = self.lists[target]
        others = [m.id for t in TARGETS if t != target for m in self.lists[t]]
        ids = [m.id for m in after] + others
        state, count = observed(self.session), len(self.session.events)
        if len(set(ids)) < len(ids):
            with pytest.raises(DuplicateMessage):
                act()
            assert observed(self.session) == state
            return None
        result = act()
        if after == before and len(self.session.events) == count:
            assert observed(self.session) == state
            return result
        (event,) = list(self.session.events)[count:]
        splice = event.data
        assert isinstance(splice, InboxSpliced)
        assert splice.target == target
        assert 0 <= splice.start <= len(before)
        assert 0 <= splice.removed_count <= len(before) - splice.start
        assert splice.removed_count or splice.inserted
        assert splice.outcome == (outcome if splice.removed_count else None)
        rest = before[splice.start + splice.removed_count :]
        assert [*before[: splice.start], *splice.inserted, *rest] == after
        self.lists[target] = after
        again = {m.id for m in splice.inserted}
        for claimed in self.claimed.values():
            claimed[:] = [m for m in claimed if m.id not in again]
        return result

    # --- edits ------------------------------------------------------------------------------

    @rule(data=st.data(), to=st.sampled_from(TARGETS))
    def append(self, data: st.DataObject, to: InboxTarget) -> None:
        new = self.some(data)
        self.expect(lambda: self.inbox.append(to, new), to, [*self.lists[to], new])

    @rule(data=st.data(), to=st.sampled_from(TARGETS))
    def prepend(self, data: st.DataObject, to: InboxTarget) -> None:
        new = self.some(data)
        self.expect(lambda: self.inbox.prepend(to, new), to, [new, *self.lists[to]])

    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        old, new = self.some(data), self.some(data)
        self.edit(old, [new], lambda: self.inbox.replace(old.id, new))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        old = self.some(data)
        self.edit(old, [], lambda: self.inbox.remove(old.id))

    def edit(self, old: UserMessage, new: list[UserMessage], act: Callable[[], bool]) -> None:
        """An edit by id, which searches both lists and reports whether it was pending."""
        for target in TARGETS:
            ids = [m.id for m in self.lists[target]]
            if old.id in ids:
                place = ids.index(old.id)
                before = self.lists[target]
                after = [*before[:place], *new, *before[place + 1 :]]
                assert self.expect(act, target, after) in (True, None)
                return
        state = observed(self.session)
        assert act() is False
        assert observed(self.session) == state

    @rule(
        data=st.data(),
        to=st.sampled_from(TARGETS),
        start=st.integers(-6, 6),
        count=st.integers(-3, 9),
        inserts=st.integers(0, 3),
    )
    def splice(
        self, data: st.DataObject, to: InboxTarget, start: int, count: int, inserts: int
    ) -> None:
        new = [self.some(data) for _ in range(inserts)]
        before = self.lists[to]
        # Standard coordinates: as JavaScript's splice, in terms of Python's slices.
        begin = len(before[:start]) if start < 0 else min(start, len(before))
        end = begin + max(count, 0)
        after = [*before[:begin], *new, *before[end:]]

        def act() -> None:
            self.inbox.splice(to, start, count, iter(new))

        self.expect(act, to, after)

    @rule()
    def clear(self) -> None:
        """C55: next-step before next-turn, one splice each, none for an empty list."""
        count = len(self.session.events)
        self.inbox.clear()
        splices = [event.data for event in list(self.session.events)[count:]]
        assert splices == [
            InboxSpliced(target, 0, len(self.lists[target]), (), "canceled")
            for target in TARGETS
            if self.lists[target]
        ]
        self.lists = {"next-step": [], "next-turn": []}

    # --- the driver -------------------------------------------------------------------------

    @precondition(lambda self: self.session.place.open_turn is None)
    @rule()
    def open_turn(self) -> None:
        self.turn += 1
        self.session.append(TurnStart(self.turn))

    @precondition(lambda self: self.session.place.open_turn is not None)
    @rule()
    def close_turn(self) -> None:
        self.session.append(TurnEnd(self.turn, Interrupted()))
        self.claimed = {"next-step": [], "next-turn": []}

    @precondition(lambda self: self.session.place.open_turn is not None)
    @rule(prompt=st.booleans())
    def claim(self, prompt: bool) -> None:
        """C53, C56: a pure deletion without an outcome, next-step first."""
        counts: dict[InboxTarget, int] = {"next-step": 99, "next-turn": int(prompt)}
        for target, count in counts.items():
            taken, rest = self.lists[target][:count], self.lists[target][count:]
            if taken:
                act = partial(self.session.append, InboxSpliced(target, 0, len(taken)))
                self.expect(act, target, rest, None)
                self.claimed[target] += taken

    @precondition(lambda self: any(self.claimed.values()))
    @rule()
    def put_back(self) -> None:
        """DESIGN 6: at the start of the list, unless it is pending again."""
        for target in TARGETS:
            back = list(self.session.pending.claimed[target])
            assert back == self.claimed[target]
            if back:
                act = partial(self.session.append, InboxSpliced(target, 0, 0, tuple(back)))
                self.expect(act, target, [*back, *self.lists[target]])
        assert not any(self.session.pending.claimed.values())

    @rule(
        to=st.sampled_from(TARGETS),
        start=st.integers(-1, 3),
        removed=st.integers(-1, 2),
        inserts=st.integers(0, 1),
        outcome=st.sampled_from([None, "canceled"]),
        data=st.data(),
    )
    def raw_splice(
        self,
        to: InboxTarget,
        start: int,
        removed: int,
        inserts: int,
        outcome: Literal["canceled"] | None,
        data: st.DataObject,
    ) -> None:
        """C58: an impossible splice is refused with its seq; a possible one is folded.

        What goes without an outcome is claimed while a turn is open, else it is gone.
        """
        before = self.lists[to]
        new = tuple(self.some(data) for _ in range(inserts))
        outcome = outcome if removed > 0 else None
        splice = InboxSpliced(to, start, removed, new, outcome)
        possible = min(start, removed) >= 0 and start + removed <= len(before)
        after = [*before[:start], *new, *before[start + removed :]] if possible else []
        others = [m.id for t in TARGETS if t != to for m in self.lists[t]]
        ids = [m.id for m in after] + others
        if possible and (removed or new) and len(set(ids)) == len(ids):
            if outcome is None and self.session.place.open_turn is not None:
                self.claimed[to] += before[start : start + removed]
            self.expect(lambda: self.session.append(splice), to, after, outcome)
            return
        state = observed(self.session)
        with pytest.raises(IllegalEvent) as caught:
            self.session.append(splice)
        assert caught.value.seq == len(self.session.events)
        assert observed(self.session) == state

    @precondition(lambda self: self.session.place.open_turn is None)
    @rule(inherited=st.booleans())
    def end_seed(self, inherited: bool) -> None:
        """C58: an inherited seed's input is the source's; a resumed one stays."""
        self.session.append(EndSeed(inherited))
        if inherited:
            self.lists = {"next-step": [], "next-turn": []}

    # --- always -----------------------------------------------------------------------------

    @invariant()
    def lists_are_those_of_the_model(self) -> None:
        assert list(self.inbox.next_step) == self.lists["next-step"]
        assert list(self.inbox.next_turn) == self.lists["next-turn"]
        assert len(self.inbox) == len(self.pending())
        assert bool(self.session.pending) == bool(self.pending())
        for event in self.session.events:
            for m in getattr(event.data, "inserted", ()):
                assert (m.id in self.inbox) == (m.id in {p.id for p in self.pending()})

    @invariant()
    def claims_are_those_of_the_model(self) -> None:
        assert self.session.pending.claimed == self.claimed

    @invariant()
    def ids_are_unique_over_both_lists(self) -> None:
        ids = [m.id for m in (*self.inbox.next_step, *self.inbox.next_turn)]
        assert len(set(ids)) == len(ids)

    @invariant()
    def the_log_alone_gives_the_lists(self) -> None:
        assert lists_of(self.session.events) == self.lists

    def teardown(self) -> None:
        events = list(self.session.events)
        again = replayed(events)
        assert observed(again)["PendingInput"] == observed(self.session)["PendingInput"]
        assert [event for event, _ in self.seen] == events
        for length, (_, lists) in enumerate(self.seen, 1):
            assert lists == lists_of(events[:length])


TestInboxMachine = InboxMachine.TestCase
TestInboxMachine.settings = settings(max_examples=60, stateful_step_count=25)


# --- replay ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_inbox_is_the_fold_of_its_splices(name: str) -> None:
    """C47, C58."""
    session = new_session()
    log = recorded()[name]
    for length, event in enumerate(log, 1):
        replay(session, [event])
        assert session.pending.lists == lists_of(log[:length])


@given(legal_logs())
def test_claims_are_settled_when_the_turn_is_over(log: Log) -> None:
    """DESIGN 6.6: by then everything claimed is entered or consumed."""
    session = new_session()
    for event in log:
        replay(session, [event])
        if session.place.open_turn is None:
            assert not any(session.pending.claimed.values())


IMPOSSIBLE = {
    "before the list": InboxSpliced("next-turn", -1, 1),
    "negative count": InboxSpliced("next-turn", 0, -1),
    "past the end": InboxSpliced("next-turn", 3, 0, (message("new"),)),
    "removing too many": InboxSpliced("next-turn", 1, 2),
    "removing from the other list": InboxSpliced("next-step", 0, 1),
    "nothing": InboxSpliced("next-turn", 1),
    "a pending id": InboxSpliced("next-turn", 0, 0, (message("a"),)),
    "an id pending in the other list": InboxSpliced("next-step", 0, 0, (message("b"),)),
    "an id twice": InboxSpliced("next-step", 0, 0, (message("x"), message("x"))),
    "an id that leaves, twice": InboxSpliced("next-turn", 0, 1, (message("a"), message("a"))),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_impossible_splice_is_refused_on_replay_with_its_seq(what: str) -> None:
    """C54, C58."""
    two = InboxSpliced("next-turn", 0, 0, (message("a"), message("b")))
    log = [Event(0, START_MS, two), Event(1, START_MS, IMPOSSIBLE[what])]
    session = new_session()
    with pytest.raises(IllegalEvent, match="event 1"):
        replay(session, log)
    assert observed(session) == observed(replayed(log[:1]))


def test_reading_cold_needs_no_agent() -> None:
    """C58: a fold over events is all there is to it."""
    pending = PendingInput()
    pending.move(Event(0, 0, InboxSpliced("next-turn", 0, 0, (message("a"),))), turn_open=False)
    assert [m.id for m in pending.lists["next-turn"]] == ["a"]
    assert "a" in pending
    assert "b" not in pending


# --- edits --------------------------------------------------------------------------------


def spliced(session: Session) -> list[InboxSpliced]:
    return [e.data for e in session.events if isinstance(e.data, InboxSpliced)]


@pytest.mark.parametrize(
    ("start", "count", "inserts", "expected"),
    [
        (0, 0, "x", (0, 0)),
        (99, 0, "x", (3, 0)),
        (-1, 0, "x", (2, 0)),
        (-99, 0, "x", (0, 0)),
        (1, 99, "", (1, 2)),
        (-2, 1, "", (1, 1)),
        (1, -5, "x", (1, 0)),
        (3, 5, "x", (3, 0)),
        (-99, 99, "xy", (0, 3)),
        (3, 1, "", None),
        (1, 0, "", None),
        (1, -1, "", None),
        (99, 99, "", None),
    ],
)
def test_coordinates_are_normalised(
    start: int, count: int, inserts: str, expected: tuple[int, int] | None
) -> None:
    """C52: what is recorded is what happened; a no-op is not recorded."""
    session, inbox = with_inbox()
    inbox.splice("next-turn", 0, 0, map(message, "abc"))
    inbox.splice("next-turn", start, count, map(message, inserts))
    wanted = []
    if expected is not None:
        begin, removed = expected
        new = tuple(map(message, inserts))
        wanted = [InboxSpliced("next-turn", begin, removed, new, "canceled" if removed else None)]
    assert spliced(session)[1:] == wanted


def test_an_empty_inbox_clears_without_a_record() -> None:
    """C52."""
    session, inbox = with_inbox()
    inbox.clear()
    assert len(session.events) == 0


def test_replacing_a_message_by_one_of_its_own_id_keeps_its_place() -> None:
    """C54, C55."""
    session, inbox = with_inbox()
    inbox.splice("next-turn", 0, 0, map(message, "abc"))
    assert inbox.replace(MessageId("b"), UserMessage("changed", id=MessageId("b")))
    assert [m.id for m in inbox.next_turn] == ["a", "b", "c"]
    assert spliced(session)[-1] == InboxSpliced(
        "next-turn", 1, 1, (UserMessage("changed", id=MessageId("b")),), "canceled"
    )
    assert "b" in inbox


def test_a_splice_may_bring_back_the_ids_it_removes() -> None:
    """C54: two messages change places in one splice."""
    _, inbox = with_inbox()
    inbox.splice("next-step", 0, 0, map(message, "ab"))
    inbox.splice("next-step", 0, 2, map(message, "ba"))
    assert [m.id for m in inbox.next_step] == ["b", "a"]
    assert "a" in inbox
    assert "b" in inbox


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "ids", [["a"], ["s"], ["x", "x"], ["x", "a"], ["y", "s", "z"]], ids=" ".join
)
def test_a_pending_id_is_refused_and_changes_nothing(target: InboxTarget, ids: list[str]) -> None:
    """C54: unique over both lists, and within one insertion."""
    session, inbox = with_inbox()
    inbox.append("next-turn", message("a"))
    inbox.append("next-step", message("s"))
    before = observed(session)
    with pytest.raises(DuplicateMessage):
        inbox.splice(target, 0, 0, map(message, ids))
    assert observed(session) == before


@pytest.mark.parametrize("edit", ["append", "prepend", "splice"])
def test_an_unknown_list_is_refused(edit: str) -> None:
    """C47: there are two."""
    session, inbox = with_inbox()
    wrong: Any = "next-week"
    acts: dict[str, Callable[[], None]] = {
        "append": lambda: inbox.append(wrong, message("a")),
        "prepend": lambda: inbox.prepend(wrong, message("a")),
        "splice": lambda: inbox.splice(wrong, 0, 0, [message("a")]),
    }
    with pytest.raises(InvalidValue, match="next-week"):
        acts[edit]()
    assert len(session.events) == 0


def test_lists_are_copies() -> None:
    """C47: what was read stays what it was."""
    _, inbox = with_inbox()
    inbox.append("next-turn", message("a"))
    before = inbox.next_turn
    inbox.append("next-turn", message("b"))
    assert [m.id for m in before] == ["a"]


def test_an_observer_sees_the_list_after_the_splice() -> None:
    """C52: folded before anyone is told."""
    session, inbox = with_inbox()
    seen: list[list[str]] = []
    session.observe(lambda event: seen.append([m.id for m in inbox.next_turn]))
    inbox.append("next-turn", message("a"))
    inbox.replace(MessageId("a"), message("b"))
    inbox.remove(MessageId("b"))
    assert seen == [["a"], ["b"], []]


def test_an_observer_may_not_edit_and_changes_nothing() -> None:
    """C151, C161: an edit is an append."""
    session, inbox = with_inbox()
    refused: list[BaseException] = []

    def meddle(event: Event) -> None:
        for edit in (
            lambda: inbox.append("next-turn", message("b")),
            lambda: inbox.remove(MessageId("a")),
            inbox.clear,
        ):
            with pytest.raises(ReentrantAppend) as caught:
                edit()
            refused.append(caught.value)

    session.observe(meddle)
    inbox.append("next-turn", message("a"))
    assert len(refused) == 3
    assert [m.id for m in inbox.next_turn] == ["a"]
    assert len(session.events) == 1


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=5))
def test_an_insertion_that_fails_is_read_once_and_forgotten(names: Iterable[str]) -> None:
    """C54: a generator that raises leaves the inbox alone."""
    session, inbox = with_inbox()

    def broken() -> Iterable[UserMessage]:
        for name in names:
            yield message(name)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        inbox.splice("next-turn", 0, 0, broken())
    assert len(session.events) == 0
    assert len(inbox) == 0
