"""closers(log): what an interrupted turn still needs before it is balanced.

One pure function for the ways a turn is cut short: a crash (repair on resume), a
cancellation and a failure (both live); and for a step that is interrupted while its
turn goes on. The order is always: put-back
splices, anchor, results, `step/end`, `turn/end`. Closing a balanced log adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from attrs import field, frozen

from ..vocabulary import (
    APPEND,
    Assembled,
    Draft,
    FinishReason,
    InboxSpliced,
    InboxTarget,
    Interrupted,
    MessageId,
    PluginSource,
    StepEnd,
    Stop,
    TextBlock,
    ToolCallEvent,
    ToolErrorInfo,
    ToolResultBlock,
    ToolResultEvent,
    ToolSource,
    TurnEnd,
    TurnEnding,
    UserMessage,
    is_complete,
    texts,
)
from ..vocabulary._quick import answer_event
from ._inbox import TARGETS, PendingInput
from ._order import OwedCall, Place
from ._surface import Folds

Cut: TypeAlias = Literal["crash", "cancel", "error"]
NewId: TypeAlias = Callable[[str, int], MessageId]
"""From a purpose and the seq an event will have to a message id."""


def crash_id(purpose: str, seq: int) -> MessageId:
    """The deterministic ids of repair: the same log is always closed the same way."""
    return MessageId(f"interrupted-{purpose}-{seq}")


@frozen(kw_only=True)
class Closing:
    """How a turn is closed.

    *cut*: what cut it short. *ending*: what `turn/end` says; None when only the step was
    cut and the turn goes on. *discard_claimed*: put-back input is discarded on the record
    at once (a cancel without ``keep_inbox``).
    *uncertain*: every unanswered call gets ``TOOL_OUTCOME_UNKNOWN``, because the store
    kept no promise about starts (lazy durability).
    """

    cut: Cut
    ending: TurnEnding | None
    discard_claimed: bool = False
    uncertain: bool = False
    new_id: NewId = field(default=crash_id)


CRASH = Closing(cut="crash", ending=Interrupted())


def closers(
    place: Place, pending: PendingInput, folds: Folds, closing: Closing = CRASH
) -> Iterator[Draft]:
    """The events that balance the log, one at a time.

    Lazy on purpose: append each before asking for the next, so that *place*,
    *pending* and *folds* have moved. A log without an open turn gives nothing.
    """
    if place.open_turn is None:
        return
    turn = place.open_turn
    if closing.cut != "error" and closing.ending is not None:
        yield from _put_back(pending, closing)
    if place.open_step is not None:
        if closing.cut != "error" and not place.answered:
            anchor = anchor_draft(place, folds, closing.new_id)
            if anchor is not None:
                yield anchor
        for owed in place.owed():
            yield from _answer(place, owed, closing)
        yield Draft(StepEnd(turn, place.open_step))
    if closing.ending is not None:
        yield Draft(TurnEnd(turn, closing.ending))


def _put_back(pending: PendingInput, closing: Closing) -> Iterator[Draft]:
    for target in TARGETS:
        claimed = tuple(pending.claimed[target])
        if not claimed:
            continue
        yield Draft(InboxSpliced(target, 0, inserted=claimed))
        if closing.discard_claimed:
            yield from _discard(pending, target, {message.id for message in claimed})


def _discard(pending: PendingInput, target: InboxTarget, ids: set[MessageId]) -> Iterator[Draft]:
    """Remove exactly *ids*, in one splice unless a listener has moved some of them."""
    while found := [i for i, m in enumerate(pending.lists[target]) if m.id in ids]:
        count = 1
        while count < len(found) and found[count] == found[0] + count:
            count += 1
        yield Draft(InboxSpliced(target, found[0], count, outcome="canceled"))


def asks_again(message: UserMessage) -> bool:
    """Whether *message* asks once more for the typed answer of the turn that sent it."""
    return message.source == PluginSource(texts.ANSWER_PLUGIN)


def withdrawn(pending: PendingInput) -> Iterator[Draft]:
    """Discard what asks for a typed answer once more, in a log without an open turn: that
    turn is over, and its tool is not shown in any other. Lazy as `closers` is."""
    for target in TARGETS:
        stale = {message.id for message in pending.lists[target] if asks_again(message)}
        yield from _discard(pending, target, stale)


def anchor_draft(place: Place, folds: Folds, new_id: NewId) -> Draft | None:
    """The assistant message of a cut attempt, or None if nothing is kept.

    Complete once a finish of a complete kind is in the log, else the delivered
    prefix, marked interrupted. Cites every chunk of the attempt either way.
    """
    assembler = place.attempt.content()
    if assembler.finish is not None and is_complete(assembler.finish.reason):
        return _message(place, folds, new_id, assembler.assembled(), interrupted=False)
    prefix = assembler.delivered_prefix()
    if prefix is None:
        return None
    return _message(place, folds, new_id, prefix, interrupted=True)


def answer_draft(place: Place, folds: Folds, new_id: NewId) -> tuple[Draft, FinishReason]:
    """The assistant message of an attempt whose stream ended, and why it finished.

    In the chunk protocol a stream without a finish is a stop; an empty one cites an
    explicit empty list (C106).
    """
    assembler = place.attempt.content()
    reason = assembler.finish.reason if assembler.finish else Stop()
    return _message(place, folds, new_id, assembler.assembled(), interrupted=False), reason


def _message(
    place: Place, folds: Folds, new_id: NewId, content: Assembled, *, interrupted: bool
) -> Draft:
    assert place.open_turn is not None
    assert place.open_step is not None
    event = answer_event(
        place.open_turn,
        place.open_step,
        content.content,
        folds.model_source(content.replay_state),
        new_id("message", place.next_seq),
        content.usage,
        interrupted,
    )
    return Draft(event, APPEND, place.attempt.sources())


def _answer(place: Place, owed: OwedCall, closing: Closing) -> Iterator[Draft]:
    """One result for a call that has none."""
    assert place.open_turn is not None
    assert place.open_step is not None
    turn, step, call = place.open_turn, place.open_step, owed.call
    if owed.call_seq is not None or closing.uncertain:
        text, error = texts.TOOL_OUTCOME_UNKNOWN_TEXT, _UNKNOWN
    elif closing.cut == "cancel":
        yield Draft(ToolCallEvent(turn, step, call.id, call.name, call.arguments))
        text, error = texts.ABORTED_BEFORE_DISPATCH_TEXT, _NOT_DISPATCHED
    else:
        text, error = texts.TOOL_NOT_STARTED_TEXT, _NOT_STARTED
    sources = None if owed.call_seq is None else (owed.call_seq,)
    block = ToolResultBlock(call.id, (TextBlock(text),), is_error=True)
    message_id = closing.new_id(f"tool-result-{call.id}", place.next_seq)
    message = UserMessage((block,), ToolSource(call.id), message_id)
    yield Draft(ToolResultEvent(turn, step, message, error), APPEND, sources)


_UNKNOWN = ToolErrorInfo(texts.TOOL_OUTCOME_UNKNOWN_ERROR, texts.TOOL_OUTCOME_UNKNOWN)
_NOT_STARTED = ToolErrorInfo(texts.TOOL_NOT_STARTED_ERROR, texts.TOOL_NOT_STARTED)
_NOT_DISPATCHED = ToolErrorInfo(texts.ABORT_ERROR, texts.ABORTED_BEFORE_DISPATCH)
