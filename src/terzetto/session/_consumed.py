"""What became of the input that a log consumed: a fold over its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from ..vocabulary import (
    Completed,
    Event,
    InboxSpliced,
    MessageId,
    StepStart,
    TurnEnd,
    TurnEnding,
    TurnStart,
)
from ._inbox import PendingInput


@frozen
class ConsumedWork:
    """The latest turn that says what became of input, and what was discarded since.

    *turn* and *ending* are None where no turn does. *dropped* are the ids of messages that
    were pending and were discarded on the record after that turn, in that order; nothing ever
    ran for them.
    """

    turn: int | None = None
    ending: TurnEnding | None = None
    dropped: tuple[MessageId, ...] = ()


def consumed_work(events: Iterable[Event]) -> ConsumedWork:
    """What became of the input that *events*, a log from its start, consumed.

    A turn accounts for it when it has ended and entered a step, or claimed input, did not put
    it back, and did not end by itself. So a turn that was blocked counts, one that was cut
    before it admitted anything and gave its input back does not, and neither does one that is
    open. One pass; events that have left memory are not needed. Instead of a log from its
    start its end will do, from any event on at which nothing was pending.
    """
    pending = PendingInput()
    found = ConsumedWork()
    dropped: dict[MessageId, None] = {}
    claimed: set[MessageId] = set()
    turn_open = stepped = False
    for event in events:
        match event.data:
            case TurnStart():
                turn_open, stepped = True, False
                claimed.clear()
            case StepStart():
                stepped = True
            case InboxSpliced() as splice:
                leaving = [message.id for message in pending.removed(splice)]
                if splice.outcome is not None:
                    dropped.update(dict.fromkeys(leaving))
                elif turn_open:
                    claimed.update(leaving)
                for message in splice.inserted:
                    claimed.discard(message.id)
                    dropped.pop(message.id, None)
            case TurnEnd(turn=turn, ending=ending):
                turn_open = False
                if stepped or (claimed and not isinstance(ending, Completed)):
                    found = ConsumedWork(turn, ending)
                    dropped.clear()
            case _:
                pass
        pending.move(event, turn_open)
    return ConsumedWork(found.turn, found.ending, tuple(dropped))
