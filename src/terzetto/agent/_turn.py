"""Turn: what `ask` gives back; and the error of a turn that failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from ..session import PendingInput, Session
from ..vocabulary import (
    SURFACE_TYPES,
    Aborted,
    AssistantChunk,
    AssistantMessage,
    AssistantMessageEvent,
    Blocked,
    CodedError,
    Completed,
    EndedAtMaxTokens,
    Event,
    Failed,
    Failure,
    InboxSpliced,
    Interrupted,
    Message,
    MessageId,
    TurnEnd,
    TurnEnding,
    TurnStart,
    Usage,
)

_REASONS: dict[type, str] = {
    Completed: "completed",
    Blocked: "blocked",
    Aborted: "aborted",
    Failed: "error",
    EndedAtMaxTokens: "max-tokens",
    Interrupted: "interrupted",
}


@frozen(kw_only=True)
class Turn:
    """One ended turn.

    *reason* is ``completed``, ``blocked``, ``aborted``, ``error`` or ``max-tokens``, and
    *ending* the same with its facts; one that a crash cut short is ``interrupted``.
    *messages* entered the surface during the turn, in order.
    *usage* is summed over its requests, None when no provider reported any. *consumed*
    names the input it claimed and did not put back.
    """

    number: int
    ending: TurnEnding
    messages: tuple[Message, ...]
    usage: Usage | None
    consumed: tuple[MessageId, ...] = ()

    @property
    def reason(self) -> str:
        return _REASONS[type(self.ending)]

    @property
    def text(self) -> str:
        """The text of the turn's last assistant message; empty without one."""
        for message in reversed(self.messages):
            if isinstance(message, AssistantMessage):
                return message.text
        return ""


class TurnFailed(CodedError):
    """The turn ended in error. `turn` holds what it did, `failure` the logged facts.

    ``__cause__`` is the typed error itself.
    """

    def __init__(self, turn: Turn, failure: Failure) -> None:
        super().__init__(failure.message, failure.code)
        self.turn = turn
        self.failure = failure


def summarize(
    number: int, ending: TurnEnding, events: Sequence[Event], consumed: Iterable[MessageId]
) -> Turn:
    """The turn whose *events* these are."""
    messages: list[Message] = []
    usages: list[Usage] = []
    for event in events:
        data = event.data
        if type(data) is AssistantChunk or not isinstance(data, SURFACE_TYPES):
            continue  # most are chunks
        messages.append(data.message)
        if isinstance(data, AssistantMessageEvent) and data.usage is not None:
            usages.append(data.usage)
    return Turn(
        number=number,
        ending=ending,
        messages=tuple(messages),
        usage=_total(usages),
        consumed=tuple(consumed),
    )


def last_turn(session: Session) -> Turn | None:
    """The latest turn of *session* that has ended, read from its log; None without one."""
    pending = PendingInput()
    first: int | None = None
    claimed: list[MessageId] = []
    found: tuple[TurnEnd, int, int, list[MessageId]] | None = None
    for event in session.events:
        data = event.data
        match data:
            case TurnStart():
                first, claimed = event.seq, []
            case InboxSpliced() if first is not None:
                back = {message.id for message in data.inserted}
                claimed = [message_id for message_id in claimed if message_id not in back]
                if data.outcome is None:
                    claimed += [m.id for m in pending.removed(data) if m.id not in back]
            case TurnEnd() if first is not None:
                found, first = (data, first, event.seq, claimed), None
            case _:
                pass
        pending.move(event, first is not None)
    if found is None:
        return None
    end, start, stop, consumed = found
    return summarize(end.turn, end.ending, session.events[start : stop + 1], consumed)


def _total(usages: Sequence[Usage]) -> Usage | None:
    if not usages:
        return None

    def optional(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return Usage(
        input_tokens=sum(u.input_tokens for u in usages),
        output_tokens=sum(u.output_tokens for u in usages),
        cache_read_tokens=optional([u.cache_read_tokens for u in usages]),
        cache_write_tokens=optional([u.cache_write_tokens for u in usages]),
        reasoning_tokens=optional([u.reasoning_tokens for u in usages]),
    )
