"""Edits of pending input: what is recorded, what is announced, and who wins against a claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from attrs import frozen
from tests.agent.kit import check, discarded, pending, play, played, settled, texts_of
from tests.agent.rig import Life, one
from tests.whole import whole

from terzetto import Inbox, MemoryStore, MessageDiscarded, UserMessage
from terzetto.llm.scripted import Gate, ScriptedModel, answer
from terzetto.vocabulary import DuplicateMessage, InboxSpliced, InvalidValue, MessageId


def message(text: str) -> UserMessage:
    return UserMessage(text, id=MessageId(text))


@frozen
class Edit:
    """One edit of next-turn ``a b c`` and next-step ``s``, and what comes of it."""

    act: Callable[[Inbox], object]
    turn: str
    step: str
    heard: list[str]
    events: list[tuple[str, int, int, str, bool]]
    result: object = None


EDITS: dict[str, Edit] = {
    "append": Edit(
        lambda inbox: inbox.append("next-turn", message("x")),
        "abcx",
        "s",
        ["+x"],
        [("next-turn", 3, 0, "x", False)],
    ),
    "prepend": Edit(
        lambda inbox: inbox.prepend("next-step", message("x")),
        "abc",
        "xs",
        ["+x"],
        [("next-step", 0, 0, "x", False)],
    ),
    "replace": Edit(
        lambda inbox: inbox.replace(MessageId("b"), message("x")),
        "axc",
        "s",
        ["-b", "+x"],
        [("next-turn", 1, 1, "x", True)],
        True,
    ),
    "replace in the other list": Edit(
        lambda inbox: inbox.replace(MessageId("s"), message("x")),
        "abc",
        "x",
        ["-s", "+x"],
        [("next-step", 0, 1, "x", True)],
        True,
    ),
    "replace what is gone": Edit(
        lambda inbox: inbox.replace(MessageId("gone"), message("x")), "abc", "s", [], [], False
    ),
    "remove": Edit(
        lambda inbox: inbox.remove(MessageId("c")),
        "ab",
        "s",
        ["-c"],
        [("next-turn", 2, 1, "", True)],
        True,
    ),
    "remove what is gone": Edit(
        lambda inbox: inbox.remove(MessageId("gone")), "abc", "s", [], [], False
    ),
    "clear": Edit(
        lambda inbox: inbox.clear(),
        "",
        "",
        ["-s", "-a", "-b", "-c"],
        [("next-step", 0, 1, "", True), ("next-turn", 0, 3, "", True)],
    ),
    "splice from the end": Edit(
        lambda inbox: inbox.splice("next-turn", -2, 9, [message("x"), message("y")]),
        "axy",
        "s",
        ["-b", "-c", "+x", "+y"],
        [("next-turn", 1, 2, "xy", True)],
    ),
    "splice that reorders": Edit(
        lambda inbox: inbox.splice("next-turn", 0, 2, reversed(inbox.next_turn[:2])),
        "bac",
        "s",
        ["-a", "-b", "+b", "+a"],
        [("next-turn", 0, 2, "ba", True)],
    ),
    "splice of nothing": Edit(lambda inbox: inbox.splice("next-turn", 1, 0), "abc", "s", [], []),
}


async def filled(life: Life) -> None:
    for text in "abc":
        life.agent.inbox.append("next-turn", message(text))
    life.agent.inject(message("s"))


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_one_record_and_announces_what_left_and_what_came(name: str) -> None:
    """C52 C53 C55: exactly one splice for each list, removals recorded as canceled, discarded
    before inserted, each in the order of the list; an edit that changes nothing writes nothing.
    """

    @played
    async def run() -> None:
        edit = EDITS[name]
        store = MemoryStore()
        async with one(engine={"store": store}, session_id="S") as life:
            await filled(life)
            heard: list[str] = []
            life.hooks.inbox_inserted.listen(lambda notice: heard.append(f"+{notice.message.text}"))
            life.hooks.inbox_discarded.listen(
                lambda notice: heard.append(f"-{notice.message.text}")
            )
            before = len(life.session.events)
            assert edit.act(life.agent.inbox) == edit.result
            assert heard == edit.heard
            assert "".join(texts_of(life.agent.inbox.next_turn)) == edit.turn
            assert "".join(texts_of(life.agent.inbox.next_step)) == edit.step
            written = [event.data for event in life.session.events[before:]]
            assert all(isinstance(data, InboxSpliced) for data in written)
            assert [
                (
                    data.target,
                    data.start,
                    data.removed_count,
                    "".join(texts_of(data.inserted)),
                    data.outcome == "canceled",
                )
                for data in written
            ] == edit.events
            assert life.agent.status == "idle", "an edit wakes nobody"
            check(life.session)
            left = texts_of([*life.agent.inbox.next_step, *life.agent.inbox.next_turn])
            kept = whole(life.session)
        # A later life has what the log says: leaving the block discarded the rest on the record.
        async with one(engine={"store": store}, resume="S") as later:
            assert whole(later.session)[: len(kept)] == kept
            assert pending(later.agent) == []
            assert discarded(later.session)[-len(left) :] == left or not left

    run()


BAD: dict[str, tuple[Callable[[Inbox], object], type[Exception]]] = {
    "append a pending id": (lambda i: i.append("next-step", message("a")), DuplicateMessage),
    "replace by a pending id": (
        lambda i: i.replace(MessageId("a"), message("b")),
        DuplicateMessage,
    ),
    "splice one id twice": (
        lambda i: i.splice("next-turn", 0, 0, [message("x"), message("x")]),
        DuplicateMessage,
    ),
    "append to no list": (lambda i: i.append("next-year", message("x")), InvalidValue),
    "append a text": (lambda i: i.append("next-turn", "x"), InvalidValue),
    "replace by a text": (lambda i: i.replace(MessageId("a"), "x"), InvalidValue),
    "splice in a text": (lambda i: i.splice("next-turn", 0, 0, "x"), InvalidValue),
    "splice at a text": (lambda i: i.splice("next-turn", "0", 0), InvalidValue),
    "splice a half": (lambda i: i.splice("next-turn", 0, 0.5), InvalidValue),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_edit_is_refused_and_changes_nothing(name: str) -> None:
    """C54: says what is wrong; no record, no announcement, the lists as they were."""

    @played
    async def run() -> None:
        act, error = BAD[name]
        async with one() as life:
            await filled(life)
            heard: list[object] = []
            life.hooks.inbox_inserted.listen(heard.append)
            life.hooks.inbox_discarded.listen(heard.append)
            before = whole(life.session)
            with pytest.raises(error):
                act(life.agent.inbox)
            assert whole(life.session) == before
            assert heard == []
            assert pending(life.agent) == ["s", "a", "b", "c"]

    run()


# --- against the driver ---------------------------------------------------------------------


@played
async def test_an_edit_before_the_driver_claims_decides_what_runs() -> None:
    """C56 C57: in the synchronous stretch of the send, nothing is claimed yet."""
    async with one(lambda request: texts_of(request.messages)[-1]) as life:
        sent = life.agent.followup("first thought")
        assert life.agent.inbox.replace(sent, UserMessage("second thought"))
        await life.agent.wait_idle()
        assert life.request() == ["user: second thought"]


@played
async def test_an_edit_after_the_claim_comes_too_late_and_says_so() -> None:
    """C55 C57: replace and remove report whether the message was still pending."""
    async with one(lambda request: answer(Gate("go"), "ok")) as life:
        sent = life.agent.followup("go")
        await settled()
        assert sent not in life.agent.inbox
        assert not life.agent.inbox.replace(sent, UserMessage("other"))
        assert not life.agent.inbox.remove(sent)
        life.agent.inbox.clear()
        life.model.gates.open("go")
        await life.agent.wait_idle()
        assert life.request() == ["user: go"]
        assert discarded(life.session) == []


@pytest.mark.parametrize("seed", range(6))
def test_an_edit_that_races_a_claim_is_before_it_or_after_it(seed: int) -> None:
    """C56: whoever is scheduled first, the message runs in exactly one form."""

    async def run() -> None:
        async with one(lambda request: "ok") as life:
            replaced: list[bool] = []
            sent = life.agent.followup("old")

            async def edit() -> None:
                replaced.append(life.agent.inbox.replace(sent, UserMessage("new")))

            async with trio.open_nursery() as nursery:
                for _ in range(seed):
                    nursery.start_soon(trio.lowlevel.checkpoint)
                nursery.start_soon(edit)
            await life.agent.wait_idle()
            ran = [request.messages[-1].text for request in life.model.requests]
            assert ran == (["new"] if replaced == [True] else ["old"])
            check(life.session)

    play(run, seed=seed)


@played
async def test_what_a_claim_listener_edits_is_for_a_later_boundary() -> None:
    """C57: messages inserted after the claim stay pending."""
    async with one(["one", "two"]) as life:

        def again(notice: Any) -> None:
            if notice.turn == 1:
                life.agent.inbox.prepend("next-turn", UserMessage("from the claim"))

        life.hooks.inbox_claimed.listen(again)
        life.agent.followup("first")
        await life.agent.wait_idle()
        assert [request.messages[-1].text for request in life.model.requests] == [
            "first",
            "from the claim",
        ]


@played
async def test_a_moved_prompt_runs_in_its_new_place() -> None:
    """C47: the list is the order of the turns."""
    async with one(ScriptedModel(lambda request: answer(Gate("go"), "ok"))) as life:
        life.agent.followup("running")
        await settled()
        for text in ("a", "b", "c"):
            life.agent.followup(text)
        a, b, c = life.agent.inbox.next_turn
        life.agent.inbox.splice("next-turn", 0, 3, [c, a, b])
        life.model.gates.open("go")
        await life.agent.wait_idle()
        ran = [request.messages[-1].text for request in life.model.requests]
        assert ran == ["running", "c", "a", "b"]


@played
async def test_a_removed_prompt_that_somebody_asked_for_tells_who_asked() -> None:
    """C53: discarded on the record; the asker gets MessageDiscarded, the others their turns."""
    async with one(ScriptedModel(lambda request: answer(Gate("go"), "ok"))) as life:
        life.agent.followup("running")
        await settled()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(MessageDiscarded, match="removed before any turn"):
                    await life.agent.ask("mine")

            nursery.start_soon(ask)
            await settled()
            life.agent.inbox.splice("next-turn", 0, 1, [UserMessage("instead")])
            life.model.gates.open("go")
        await life.agent.wait_idle()
        assert [request.messages[-1].text for request in life.model.requests] == [
            "running",
            "instead",
        ]


@played
async def test_the_views_of_an_inbox_are_copies_of_their_moment() -> None:
    """C52: what was read does not change; what is read next is current."""
    async with one() as life:
        await filled(life)
        seen = life.agent.inbox.next_turn
        life.agent.inbox.clear()
        assert texts_of(seen) == ["a", "b", "c"]
        assert (len(life.agent.inbox), life.agent.inbox.next_turn) == (0, ())
        assert MessageId("a") not in life.agent.inbox
