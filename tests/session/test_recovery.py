"""closers(log): every cut log is balanced, and only by what it needs (C134-C138, C145).

Expectations are read from the cut log by this module alone: which blocks an attempt
delivered, which calls lack results, which claimed input was not admitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings, strategies as st
from tests.session.oracle import (
    Log,
    answered_id,
    data_of,
    first_illegal,
    history_of,
    letter,
    letters,
    lists_of,
    new_session,
    observed,
    recorded,
    replayed,
)
from tests.strategies_logs import open_logs

from terzetto.session import CRASH, TARGETS, Closing, Session, closers
from terzetto.vocabulary import (
    APPEND,
    Aborted,
    AssistantBlock,
    AssistantChunk,
    AssistantMessage,
    AssistantMessageEvent,
    BlockEnd,
    BlockStart,
    CallId,
    EndSeed,
    ErrorFinish,
    Event,
    Failed,
    Failure,
    Finish,
    FinishReason,
    InboxSpliced,
    InboxTarget,
    Interrupted,
    MaxTokens,
    Message,
    MessageId,
    ModelSource,
    ReasoningBlock,
    ReasoningDelta,
    StepEnd,
    StepStart,
    Stop,
    StreamChunk,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolCallEvent,
    ToolCalls,
    ToolResultBlock,
    ToolResultEvent,
    ToolSource,
    TurnEnd,
    TurnStart,
    UserCause,
    UserMessage,
    UserMessageEvent,
    texts,
)

RECORDED = sorted(recorded())
UNKNOWN_TEXT = (
    "The tool call was interrupted after it was recorded, but no result was durably recorded. "
    "Its outcome is unknown. Decide whether to retry from the tool semantics: retry only if the "
    "operation is read-only or idempotent; if it may have side effects, first verify external "
    "state or ask the user. Do not retry blindly."
)
NOT_STARTED_TEXT = (
    "The tool call was interrupted before the Harness recorded it as started. "
    "Retry it if it is still needed."
)
CANCEL = Closing(cut="cancel", ending=Aborted(UserCause()))
CANCEL_AND_CLEAR = evolve(CANCEL, discard_claimed=True)
ERROR = Closing(cut="error", ending=Failed(Failure(message="no")))
CLOSINGS = {
    "crash": CRASH,
    "lazy crash": evolve(CRASH, uncertain=True),
    "cancel": CANCEL,
    "cancel and clear": CANCEL_AND_CLEAR,
    "error": ERROR,
}


def close(session: Session, closing: Closing = CRASH) -> list[Event]:
    """Append the closers, each before the next is asked for, at the time of the last event."""
    time_ms = session.place.last_time_ms
    drafts = closers(session.place, session.pending, session.folds, closing)
    return [session.append_draft(draft, time_ms) for draft in drafts]


# --- what a cut log says -------------------------------------------------------------------


def open_turn(log: Sequence[Event]) -> list[Event]:
    """The events of the open turn, from its start; none if the log is balanced."""
    word = letters(log)
    if word.count("T") == word.count("t"):
        return []
    start = max(i for i, event in enumerate(log) if isinstance(event.data, TurnStart))
    return list(log[start:])


def open_step(log: Sequence[Event]) -> list[Event]:
    """The events of the open step, from its start; none if there is none."""
    turn = open_turn(log)
    word = letters(turn)
    if word.count("S") == word.count("s"):
        return []
    start = max(i for i, event in enumerate(turn) if letter(event) == "S")
    return turn[start:]


def attempt_of(log: Sequence[Event]) -> list[tuple[int, StreamChunk]]:
    """The chunks of the attempt in progress: since the step's start or a failed finish."""
    step = open_step(log)
    if "M" in letters(step):
        return []
    after = max((i for i, event in enumerate(step) if letter(event) == "f"), default=0)
    return [
        (event.seq, event.data.chunk)
        for event in step[after + 1 :]
        if isinstance(event.data, AssistantChunk)
    ]


def blocks_of(chunks: Sequence[StreamChunk]) -> list[AssistantBlock]:
    """Blocks by order of first appearance; an end is authoritative and final."""
    order: list[int] = []
    for chunk in chunks:
        index = getattr(chunk, "index", None)
        if index is not None and index not in order:
            order.append(index)
    return [_block([c for c in chunks if getattr(c, "index", None) == index]) for index in order]


def _block(chunks: list[Any]) -> AssistantBlock:
    ended = [chunk.block for chunk in chunks if isinstance(chunk, BlockEnd)]
    if ended:
        return ended[0]
    first = chunks[0]
    kinds = {TextDelta: "text", ReasoningDelta: "reasoning", ToolCallDelta: "tool-call"}
    kind = first.block_type if isinstance(first, BlockStart) else kinds[type(first)]
    if kind == "text":
        return TextBlock("".join(c.text for c in chunks if isinstance(c, TextDelta)))
    if kind == "reasoning":
        return ReasoningBlock("".join(c.text for c in chunks if isinstance(c, ReasoningDelta)))
    deltas = [chunk for chunk in chunks if isinstance(chunk, ToolCallDelta)]
    return ToolCallBlock(
        next((chunk.id for chunk in deltas if chunk.id), CallId("")),
        next((chunk.name for chunk in deltas if chunk.name), ""),
        "".join(chunk.arguments_delta for chunk in deltas),
    )


def expected_anchor(log: Sequence[Event]) -> tuple[tuple[AssistantBlock, ...], bool] | None:
    """Content of the message that the attempt is owed, and whether it was interrupted."""
    chunks = [chunk for _, chunk in attempt_of(log)]
    blocks = blocks_of(chunks)
    finishes = [chunk for chunk in chunks if isinstance(chunk, Finish)]
    if finishes:
        if isinstance(finishes[-1].reason, MaxTokens):
            blocks = [block for block in blocks if not isinstance(block, ToolCallBlock)]
        return tuple(blocks), False
    kept = tuple(
        block for block in blocks if not isinstance(block, ToolCallBlock) and block.text.strip()
    )
    return (kept, True) if kept else None


def unanswered(step: Sequence[Event]) -> list[tuple[ToolCallBlock, int | None]]:
    """The calls without a result of an answered step, with the seq of their `tool/call`."""
    calls: list[ToolCallBlock] = []
    recorded_at: dict[int, int] = {}
    position = results = 0
    for event in step:
        match letter(event):
            case "M":
                assert isinstance(event.data, AssistantMessageEvent)
                calls = list(event.data.message.tool_calls)
            case "k":
                recorded_at[position] = event.seq
                position += 1
            case "v":
                results += 1
                position = max(position, results)
    return [(call, recorded_at.get(i)) for i, call in enumerate(calls)][results:]


def unadmitted(log: Sequence[Event]) -> dict[InboxTarget, list[UserMessage]]:
    """Claimed by the open turn, and neither entered, nor pending again, nor set aside."""
    claimed: dict[InboxTarget, list[UserMessage]] = {"next-step": [], "next-turn": []}
    turn = open_turn(log)
    before = list(log[: len(log) - len(turn)])
    for index, event in enumerate(turn):
        data = event.data
        gone: set[str] = set()
        if isinstance(data, InboxSpliced):
            removed = lists_of([*before, *turn[:index]])[data.target]
            removed = removed[data.start : data.start + data.removed_count]
            if data.outcome is None:
                claimed[data.target] += removed
            gone = {message.id for message in data.inserted}
        elif isinstance(data, UserMessageEvent):
            gone = {data.message.id}
        elif letter(event) in ("h", "x", "d", "c", "f", "M"):
            claimed = {"next-step": [], "next-turn": []}
        claimed = {
            target: [m for m in messages if m.id not in gone]
            for target, messages in claimed.items()
        }
    return claimed


# --- the laws -----------------------------------------------------------------------------


def assert_closes(log: Sequence[Event], closing: Closing) -> None:
    session = replayed(log)
    added = close(session, closing)
    closed = [*log, *added]

    # Balanced, and a log that a strict reader takes.
    assert session.place.open_turn is None
    assert session.place.open_step is None
    assert first_illegal(closed, strict=True) is None
    assert list(session.events) == closed
    assert bool(added) == bool(open_turn(log))

    # Closing twice adds nothing; closing the same log again gives the same events.
    assert close(session, closing) == []
    assert close(replayed(closed), closing) == []
    assert close(replayed(log), closing) == added

    # Deterministic times: the last one is used again (C145).
    assert {event.time_ms for event in added} <= {log[-1].time_ms if log else 0}

    # Order: put-back splices, anchor, results, step/end, turn/end.
    shape = "".join("i" if isinstance(e.data, InboxSpliced) else letter(e) for e in added)
    answers = "(?:kv|v)*" if closing.cut == "cancel" else "v*"
    assert re.fullmatch(rf"i*(?:M?{answers}s)?t|", shape), shape

    check_put_back(log, added, closing)
    check_anchor(log, added, closing)
    check_results(log, added, closing)
    if added:
        last = added[-1].data
        assert isinstance(last, TurnEnd)
        assert last.ending == closing.ending
    assert list(session.history()) == history_of(closed)
    assert_paired(session.history())


def check_put_back(log: Sequence[Event], added: Sequence[Event], closing: Closing) -> None:
    """Claimed input that was not admitted goes back to the start of its list."""
    splices = [event.data for event in added if isinstance(event.data, InboxSpliced)]
    owed = {target: messages for target, messages in unadmitted(log).items() if messages}
    if closing.cut == "error":
        owed = {}  # a failed turn has consumed what it claimed
    expected = []
    for target, messages in owed.items():
        expected.append(InboxSpliced(target, 0, 0, tuple(messages)))
        if closing.discard_claimed:
            expected.append(InboxSpliced(target, 0, len(messages), (), "canceled"))
    assert splices == expected
    before, after = lists_of(log), lists_of([*log, *added])
    for target in TARGETS:
        back = [] if closing.discard_claimed else owed.get(target, [])
        assert after[target] == [*back, *before[target]]
    entered = {e.data.message.id for e in open_turn(log) if isinstance(e.data, UserMessageEvent)}
    assert not entered & {message.id for splice in splices for message in splice.inserted}


def check_anchor(log: Sequence[Event], added: Sequence[Event], closing: Closing) -> None:
    """The anchor is what the attempt put in the log, and cites all of it (C106, C107)."""
    anchors = [event for event in added if isinstance(event.data, AssistantMessageEvent)]
    step = open_step(log)
    expected = expected_anchor(log)
    if closing.cut == "error" or not step or "M" in letters(step) or expected is None:
        assert anchors == []
        return
    (anchor,) = anchors
    data = anchor.data
    assert isinstance(data, AssistantMessageEvent)
    assert (data.message.content, data.interrupted) == expected
    assert anchor.surface_op == APPEND
    assert anchor.sources == tuple(seq for seq, _ in attempt_of(log))
    if data.interrupted:
        assert data.message.tool_calls == ()
    assert all(e.data.step == data.step for e in step if isinstance(e.data, StepStart))


def check_results(log: Sequence[Event], added: Sequence[Event], closing: Closing) -> None:
    """One result for each call that lacks one, in the assistant's order (C134-C136)."""
    step = open_step(log)
    anchors = [event for event in added if isinstance(event.data, AssistantMessageEvent)]
    owed = unanswered([*step, *anchors])
    results = [event for event in added if isinstance(event.data, ToolResultEvent)]
    calls = [event for event in added if isinstance(event.data, ToolCallEvent)]
    assert [answered_id(data_of(event)) for event in results] == [call.id for call, _ in owed]
    unrecorded = [call for call, seq in owed if seq is None]
    pairs = closing.cut == "cancel" and not closing.uncertain
    assert [data_of(event).call_id for event in calls] == [
        call.id for call in (unrecorded if pairs else [])
    ]
    new_calls = iter(calls)
    for event, (call, call_seq) in zip(results, owed, strict=True):
        data = event.data
        assert isinstance(data, ToolResultEvent)
        assert data.message.source == ToolSource(call.id)
        (block,) = data.message.content
        assert isinstance(block, ToolResultBlock)
        assert block.is_error
        assert data.error is not None
        (text,) = block.content
        code, wanted, name_of_error = (
            texts.TOOL_NOT_STARTED,
            NOT_STARTED_TEXT,
            "ToolNotStartedError",
        )
        if call_seq is not None or closing.uncertain:
            code, wanted, name_of_error = (
                texts.TOOL_OUTCOME_UNKNOWN,
                UNKNOWN_TEXT,
                "ToolOutcomeUnknownError",
            )
        elif closing.cut == "cancel":
            call_seq = next(new_calls).seq
            code, name_of_error = "ABORTED_BEFORE_DISPATCH", "AbortError"
            wanted = "Error: tool call aborted before dispatch"
        assert (text.text, data.error.code, data.error.name) == (wanted, code, name_of_error)
        assert event.sources == (None if call_seq is None else (call_seq,))
        if closing.cut == "crash":
            assert data.message.id == f"interrupted-tool-result-{call.id}-{event.seq}"


def assert_paired(history: Sequence[Message]) -> None:
    """Each assistant call is followed by exactly one result, in call order, before anything."""
    owed: list[str] = []
    for message in history:
        results = [
            block.tool_call_id for block in message.content if isinstance(block, ToolResultBlock)
        ]
        if owed or results:
            assert results == owed[:1]
            owed = owed[1:]
        if isinstance(message, AssistantMessage):
            owed = [call.id for call in message.tool_calls]
    assert owed == []


# --- every prefix ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
def test_every_prefix_of_a_recorded_log_closes(name: str) -> None:
    """C145: a crash may cut the log after any event."""
    log = recorded()[name]
    for length in range(len(log) + 1):
        assert_closes(log[:length], CRASH)


@pytest.mark.parametrize("how", [name for name in CLOSINGS if name != "crash"])
def test_every_kind_of_prefix_closes_however_it_was_cut(how: str) -> None:
    """C107, C134: cancellation, failure and lazy durability, at every kind of place."""
    seen = set()
    for name in RECORDED:
        log = recorded()[name]
        for length in range(len(log) + 1):
            key = "".join(letter(event) or "i" for event in open_turn(log[:length]))
            if key not in seen:
                seen.add(key)
                assert_closes(log[:length], CLOSINGS[how])
    assert len(seen) > 100


@given(open_logs(), st.sampled_from(sorted(CLOSINGS)))
@settings(max_examples=300)
def test_every_prefix_of_a_generated_log_closes(log: Log, how: str) -> None:
    """C107, C134-C136, C145."""
    assert_closes(log, CLOSINGS[how])


@pytest.mark.parametrize("name", RECORDED)
def test_a_balanced_log_needs_nothing(name: str) -> None:
    """C138, C145."""
    for closing in CLOSINGS.values():
        session = replayed(recorded()[name])
        before = observed(session)
        assert close(session, closing) == []
        assert observed(session) == before


def test_closed_steps_with_unanswered_calls_are_left_alone() -> None:
    """C138: only the open step is answered."""
    log = [e for e in recorded()["013-tool-turn"] if not isinstance(e.data, ToolResultEvent)]
    log = [evolve(event, seq=seq, sources=None) for seq, event in enumerate(log)]
    cut = next(i for i, e in enumerate(log) if isinstance(e.data, StepEnd)) + 1
    session = replayed(log[:cut])
    added = close(session)
    assert [type(event.data) for event in added] == [TurnEnd]


def test_new_ids_come_from_the_closing() -> None:
    """Live closings have ids like any other message, asked for with the seq they will have."""
    log = cut_after("013-tool-turn", AssistantMessageEvent)
    asked: list[tuple[str, int]] = []

    def new_id(purpose: str, seq: int) -> MessageId:
        asked.append((purpose, seq))
        return MessageId(f"live-{len(asked)}")

    session = replayed(log)
    added = close(session, evolve(CANCEL, new_id=new_id))
    results = [event for event in added if isinstance(event.data, ToolResultEvent)]
    assert results
    assert [seq for _, seq in asked] == [event.seq for event in results]
    assert [data_of(event).message.id for event in results] == [
        f"live-{n + 1}" for n in range(len(asked))
    ]


# --- cases with names ---------------------------------------------------------------------


def cut_after(name: str, kind: type, count: int = 1) -> Log:
    """A recorded log up to its *count*th event of *kind*."""
    log = recorded()[name]
    found = [event.seq for event in log if isinstance(event.data, kind)]
    return log[: found[count - 1] + 1]


def streamed(*chunks: StreamChunk) -> Session:
    session = new_session()
    session.append(TurnStart(1))
    session.append(StepStart(1, 1))
    for chunk in chunks:
        session.append(AssistantChunk(1, 1, chunk))
    return session


@pytest.mark.parametrize("name", ["013-tool-turn", "128-cancel-tool-batch-mixed"])
def test_a_call_that_was_recorded_is_unknown_and_cites_its_record(name: str) -> None:
    """C135."""
    log = cut_after(name, ToolCallEvent)
    added = close(replayed(log))
    first = next(event for event in added if isinstance(event.data, ToolResultEvent))
    assert first.sources == (len(log) - 1,)
    assert data_of(first).error.code == "TOOL_OUTCOME_UNKNOWN"
    assert "Its outcome is unknown." in data_of(first).message.content[0].content[0].text


def test_a_call_that_was_not_recorded_is_not_started() -> None:
    """C136: no sources at all, rather than none cited."""
    added = close(replayed(cut_after("013-tool-turn", AssistantMessageEvent)))
    result = next(event for event in added if isinstance(event.data, ToolResultEvent))
    assert result.sources is None
    assert data_of(result).error.code == "TOOL_NOT_STARTED"


@pytest.mark.parametrize("reason", ["stop", "tool-calls", "max-tokens"])
def test_a_complete_finish_makes_a_complete_message(reason: str) -> None:
    """C106, C110 and DESIGN 6: complete once its finish is in the log."""
    reasons: dict[str, FinishReason] = {
        "stop": Stop(),
        "tool-calls": ToolCalls(),
        "max-tokens": MaxTokens(),
    }
    session = streamed(
        TextDelta(0, " "),
        ToolCallDelta(1, CallId("c"), "{}", "tool"),
        Finish(reasons[reason]),
    )
    added = close(session)
    message = added[0].data
    assert isinstance(message, AssistantMessageEvent)
    assert not message.interrupted
    call = ToolCallBlock(CallId("c"), "tool", "{}")
    kept = () if reason == "max-tokens" else (call,)
    assert message.message.content == (TextBlock(" "), *kept)
    codes = [data_of(e).error.code for e in added if isinstance(e.data, ToolResultEvent)]
    assert codes == ["TOOL_NOT_STARTED"] * len(kept)


def test_an_empty_complete_finish_is_an_empty_message() -> None:
    """C106: logged, cited, and absent from derived history."""
    session = streamed(Finish(Stop()))
    added = close(session)
    assert isinstance(added[0].data, AssistantMessageEvent)
    assert added[0].data.message.content == ()
    assert added[0].sources == (2,)
    assert len(session.history()) == 0


def test_a_failed_attempt_leaves_nothing_behind() -> None:
    """C107, C133: only the attempt in progress counts."""
    failed = Finish(ErrorFinish(Failure(message="no", code="SERVER")))
    assert [type(e.data) for e in close(streamed(TextDelta(0, "lost"), failed))] == [
        StepEnd,
        TurnEnd,
    ]
    session = streamed(TextDelta(0, "lost"), failed, TextDelta(0, "kept"))
    anchor = close(session)[0]
    assert isinstance(anchor.data, AssistantMessageEvent)
    assert anchor.data.message.content == (TextBlock("kept"),)
    assert anchor.sources == (4,)


@pytest.mark.parametrize(
    "chunks",
    [
        (),
        (TextDelta(0, " \n"),),
        (ReasoningDelta(0, ""), TextDelta(1, "\t")),
        (ToolCallDelta(0, CallId("c"), '{"a', "tool"),),
        (BlockEnd(0, ToolCallBlock(CallId("c"), "tool", "{}")),),
        (BlockStart(0, "text"),),
    ],
    ids=["nothing", "blank", "empty", "half a call", "whole call", "started"],
)
def test_nothing_visible_gives_no_anchor(chunks: tuple[StreamChunk, ...]) -> None:
    """C107."""
    assert [type(event.data) for event in close(streamed(*chunks))] == [StepEnd, TurnEnd]


def test_the_anchor_names_the_route_of_the_header() -> None:
    """REFERENCE 2.11: whose words they are; replay state is not kept of half an answer."""
    session = replayed(cut_after("117-cancel-mid-text", AssistantChunk, 2))
    anchor = close(session)[0].data
    assert isinstance(anchor, AssistantMessageEvent)
    assert anchor.interrupted
    assert session.folds.header is not None
    config = session.folds.header.config
    assert anchor.message.source == ModelSource(config.provider, config.model)


@pytest.mark.parametrize("inherited", [False, True])
def test_input_claimed_in_an_earlier_life_is_not_put_back(inherited: bool) -> None:
    """C58: a seed's claims are history."""
    session = new_session()
    session.append(InboxSpliced("next-turn", 0, 0, (UserMessage("old"),)))
    session.append(TurnStart(1))
    session.append(InboxSpliced("next-turn", 0, 1))
    session.append(TurnEnd(1, Interrupted()))
    session.append(EndSeed(inherited))
    session.append(TurnStart(2))
    assert [type(event.data) for event in close(session)] == [TurnEnd]


def test_what_was_removed_before_the_turn_is_not_put_back() -> None:
    """DESIGN 6.6: a turn claims while it is open; other logs removed without an outcome too."""
    session = new_session()
    session.append(InboxSpliced("next-turn", 0, 0, (UserMessage("old"),)))
    session.append(InboxSpliced("next-turn", 0, 1))
    session.append(TurnStart(1))
    assert [type(event.data) for event in close(session)] == [TurnEnd]


def claims() -> Iterator[tuple[str, Session, list[UserMessage], list[UserMessage]]]:
    """Open turns with two steered messages and a prompt claimed, further and further on."""
    steered = [UserMessage("one"), UserMessage("two")]
    prompt = [UserMessage("prompt")]

    def claimed() -> Session:
        session = new_session()
        session.append(InboxSpliced("next-turn", 0, 0, (*prompt, UserMessage("queued"))))
        session.append(InboxSpliced("next-step", 0, 0, tuple(steered)))
        session.append(TurnStart(1))
        session.append(InboxSpliced("next-step", 0, 2))
        session.append(InboxSpliced("next-turn", 0, 1))
        session.append(InboxSpliced("next-step", 0, 0, (UserMessage("newer"),)))
        return session

    yield "before the step", claimed(), steered, prompt
    session = claimed()
    session.append(StepStart(1, 1))
    yield "in the step", session, steered, prompt
    session = claimed()
    session.append(StepStart(1, 1))
    session.append(UserMessageEvent(steered[0]), APPEND)
    yield "one entered", session, steered[1:], prompt
    session = claimed()
    session.append(StepStart(1, 1))
    session.append(UserMessageEvent(evolve(steered[1], content="rewritten")), APPEND)
    yield "one entered rewritten, by its id", session, steered[:1], prompt
    session = claimed()
    session.append(StepStart(1, 1))
    for message in (*steered, *prompt):
        session.append(UserMessageEvent(message), APPEND)
    yield "all entered", session, [], []
    session = claimed()
    session.append(StepStart(1, 1))
    session.append(AssistantChunk(1, 1, TextDelta(0, " ")))
    yield "all set aside by a decision: the stream has begun", session, [], []
    session = claimed()
    session.append(InboxSpliced("next-turn", 1, 0, tuple(prompt)))
    yield "the prompt sent again meanwhile", session, steered, []


@pytest.mark.parametrize("case", range(7))
@pytest.mark.parametrize("discard", [False, True])
def test_claimed_input_goes_back_to_the_start(case: int, discard: bool) -> None:
    """DESIGN 6 and 12: pending, entered, discarded on the record, or consumed."""
    name, session, steered, prompt = list(claims())[case]
    before = session.pending.lists["next-step"][:], session.pending.lists["next-turn"][:]
    close(session, CANCEL_AND_CLEAR if discard else CRASH)
    back = ([], []) if discard else (steered, prompt)
    assert session.pending.lists["next-step"] == [*back[0], *before[0]], name
    assert session.pending.lists["next-turn"] == [*back[1], *before[1]], name
    assert first_illegal(list(session.events), strict=True) is None


def test_a_failure_consumes_what_was_claimed() -> None:
    """REFERENCE 2.6 and DESIGN 6.6."""
    for _, session, _, _ in claims():
        before = lists_of(session.events)
        added = close(session, ERROR)
        assert not any(isinstance(event.data, InboxSpliced) for event in added)
        assert lists_of(session.events) == before
