"""Runtime-context snapshots: once, changed, cleared, restored (C73, C102, C103)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, strategies as st

from terzetto.prompt import owed_snapshot, refreshed, snapshot_text
from terzetto.session import Node, Session, is_snapshot
from terzetto.vocabulary import (
    APPEND,
    ContextSection,
    MessageId,
    PluginSource,
    SessionHeader,
    SessionId,
    StepStart,
    TurnStart,
    UserMessage,
    UserMessageEvent,
)

PLUGIN = "@deepseek-ai/dsh-system-prompt"
CLEARED = "Current runtime context: none. Earlier runtime-context snapshots no longer apply."
INTRO = "Current runtime context. This snapshot supersedes earlier runtime-context snapshots."
CWD = ContextSection("cwd", "Working directory: /a")
DATE = ContextSection("date", "Monday")


def new_id() -> MessageId:
    return MessageId("new")


def owed(sections: Sequence[ContextSection], retained: Sequence[str]) -> UserMessage | None:
    return owed_snapshot(sections, [node(text) for text in retained], new_id)


def node(text: str) -> Node:
    return Node(3, UserMessageEvent(UserMessage(text, PluginSource(PLUGIN))))


def section_lists() -> st.SearchStrategy[list[ContextSection]]:
    section = st.builds(
        ContextSection, st.sampled_from(["cwd", "date"]), st.sampled_from(["a", "b"])
    )
    return st.lists(section, max_size=3)


# --- texts ----------------------------------------------------------------------------------


def test_cleared_text_is_exactly_that_of_the_format() -> None:
    """C103."""
    assert snapshot_text([]) == CLEARED


def test_sections_follow_the_introduction_in_order() -> None:
    """C102: a blank line between each."""
    assert snapshot_text([CWD, DATE]) == f"{INTRO}\n\nWorking directory: /a\n\nMonday"
    assert snapshot_text([DATE, CWD]) == f"{INTRO}\n\nMonday\n\nWorking directory: /a"


# --- when one is owed -----------------------------------------------------------------------


def test_no_context_and_no_snapshot_owes_nothing() -> None:
    """C102: the cleared text is for models that saw a snapshot."""
    assert owed([], []) is None


def test_the_first_context_is_owed_once() -> None:
    """C102."""
    first = owed([CWD], [])
    assert first is not None
    assert first.text == snapshot_text([CWD])
    assert first.source == PluginSource(PLUGIN, "snapshot", (CWD,))
    assert first.id == "new"
    assert is_snapshot(first)
    assert owed([CWD], [first.text]) is None


def test_a_changed_context_is_owed_whole() -> None:
    """C102: a snapshot supersedes, so it says everything."""
    changed = owed([CWD, DATE], [snapshot_text([CWD])])
    assert changed is not None
    assert changed.text == snapshot_text([CWD, DATE])


def test_only_the_last_snapshot_counts() -> None:
    """C102: a context that comes back is told again."""
    back = owed([CWD], [snapshot_text([CWD]), snapshot_text([DATE])])
    assert back is not None
    assert back.text == snapshot_text([CWD])


def test_a_context_that_became_empty_is_cleared_once() -> None:
    """C103."""
    cleared = owed([], [snapshot_text([CWD])])
    assert cleared is not None
    assert cleared.text == CLEARED
    assert cleared.source == PluginSource(PLUGIN)
    assert is_snapshot(cleared)
    assert owed([], [snapshot_text([CWD]), CLEARED]) is None


def test_a_context_after_a_cleared_one_is_owed() -> None:
    """C102."""
    assert owed([CWD], [snapshot_text([CWD]), CLEARED]) is not None


def test_a_removed_snapshot_is_owed_again() -> None:
    """C102: restored when a compaction took it away."""
    assert owed([CWD], []) is not None
    older = owed([CWD], [snapshot_text([DATE])])
    assert older is not None


@given(section_lists(), st.lists(section_lists(), max_size=3))
def test_a_snapshot_is_owed_unless_the_last_one_says_it(
    sections: list[ContextSection], before: list[list[ContextSection]]
) -> None:
    """C102, C103."""
    retained = [snapshot_text(old) for old in before]
    message = owed(sections, retained)
    if message is None:
        assert retained[-1:] == [snapshot_text(sections)] or not (retained or sections)
    else:
        assert retained[-1:] != [message.text]
        assert message.text == snapshot_text(sections)
        assert owed(sections, [*retained, message.text]) is None


# --- the batch ------------------------------------------------------------------------------


def batches() -> st.SearchStrategy[list[UserMessage]]:
    plain = st.builds(UserMessage, st.sampled_from(["x", "y"]))
    snapshots = section_lists().map(
        lambda sections: UserMessage(snapshot_text(sections), PluginSource(PLUGIN))
    )
    foreign = st.just(UserMessage("z", PluginSource("other", "snapshot", (CWD,))))
    return st.lists(plain | snapshots | foreign, max_size=5)


@given(batches(), st.none() | section_lists())
def test_a_batch_keeps_its_input_and_has_the_candidate_once(
    batch: list[UserMessage], sections: list[ContextSection] | None
) -> None:
    """C73, C102: in the place of the batch's own snapshot, or at the end."""
    candidate = None
    if sections is not None:
        candidate = UserMessage(snapshot_text(sections), PluginSource(PLUGIN))
    before = list(batch)
    result = refreshed(batch, candidate)
    assert batch == before
    assert [m for m in result if not is_snapshot(m)] == [m for m in batch if not is_snapshot(m)]
    snapshots = [m for m in result if is_snapshot(m)]
    if candidate is None:
        assert snapshots == []
        return
    (snapshot,) = snapshots
    assert snapshot.text == candidate.text
    place = next((i for i, m in enumerate(batch) if is_snapshot(m)), None)
    if place is None:
        assert result[-1] is candidate
    else:
        assert result.index(snapshot) == place
        same = batch[place].text == candidate.text
        assert snapshot is (batch[place] if same else candidate)


@given(batches(), section_lists())
def test_refreshing_again_changes_nothing(
    batch: list[UserMessage], sections: list[ContextSection]
) -> None:
    """C102: the second look, right before the commit, finds the batch as it should be."""
    candidate = UserMessage(snapshot_text(sections), PluginSource(PLUGIN))
    once = refreshed(batch, candidate)
    again = refreshed(once, UserMessage(candidate.text, PluginSource(PLUGIN)))
    assert len(again) == len(once)
    assert all(ours is theirs for ours, theirs in zip(once, again, strict=True))


# --- in a session ---------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.just("context"), section_lists())
        | st.tuples(st.sampled_from(["request", "compact", "drop last"]), st.just([])),
        max_size=12,
    )
)
def test_contexts_of_a_whole_session(plan: list[tuple[str, list[ContextSection]]]) -> None:
    """C102, C103: after every request the last snapshot in history tells the truth."""
    session = Session(SessionHeader(id=SessionId("s"), created_ms=0), lambda: 0)
    session.append(TurnStart(1))
    session.append(StepStart(1, 1))
    current: list[ContextSection] = []
    for act, sections in plan:
        nodes = session.surface.nodes
        match act:
            case "context":
                current = sections
            case "compact" if nodes:
                session.replace(nodes[0].seq, nodes[-1].seq, [UserMessage("summary")])
            case "drop last" if session.surface.snapshots:
                seq = session.surface.snapshots[-1].seq
                session.replace(seq, seq, [UserMessage("summary")])
            case "request":
                retained = [n.message for n in session.surface.snapshots]
                message = owed_snapshot(current, session.surface.snapshots, new_id)
                for entered in refreshed([UserMessage("hi")], message):
                    session.append(UserMessageEvent(entered), APPEND)
                shown = [m for m in session.history() if is_snapshot(m)]
                assert shown[: len(retained)] == retained
                if current or retained:
                    assert isinstance(shown[-1], UserMessage)
                    assert shown[-1].text == snapshot_text(current)
                else:
                    assert shown == []
                assert owed_snapshot(current, session.surface.snapshots, new_id) is None
