"""The inbox: pending input as a projection of the log, and its edits.

`PendingInput` folds `agent/inbox/spliced` events; `Inbox` is the public face, whose
every mutation is exactly one normalised splice. Claiming belongs to the driver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Final, Literal, Protocol

from attrs import define

from ..vocabulary import (
    AssistantChunk,
    AssistantMessageEvent,
    DeveloperMessageEvent,
    DuplicateMessage,
    EndSeed,
    Event,
    IllegalEvent,
    InboxSpliced,
    InboxTarget,
    InvalidValue,
    MessageId,
    RequestContextEvent,
    RequestHeaderEvent,
    TurnEnd,
    UserMessage,
    UserMessageEvent,
)

TARGETS: tuple[InboxTarget, InboxTarget] = ("next-step", "next-turn")
"""In the order in which they are claimed, cleared and put back."""

# After these of a step its batch is admitted: what was claimed and not entered was set
# aside by a decision, and is consumed. Not after `step/end`: a step that failed before its
# admission has one, too, and a crash may come between it and the end of its turn.
_ADMITTED = (
    RequestHeaderEvent,
    RequestContextEvent,
    DeveloperMessageEvent,
    AssistantChunk,
    AssistantMessageEvent,
    TurnEnd,
)


SPLICED = frozenset({InboxSpliced, EndSeed})
"""The events that move a `PendingInput` in which nothing is claimed."""


def _no_lists() -> dict[InboxTarget, list[UserMessage]]:
    return {"next-step": [], "next-turn": []}


_FEW: Final = 8
"""Ids up to which a session keeps those it saw in a tuple."""
_NO_IDS: Final = frozenset[MessageId]()  # each call makes another one


@define(eq=False)
class PendingInput:
    """Both lists, and what the open turn has claimed but not admitted."""

    claiming: bool = False
    """Whether anything is claimed and neither entered nor consumed yet."""
    # Each is made when there is something to keep in it, and let go of after that.
    _lists: dict[InboxTarget, list[UserMessage]] | None = None
    _claimed: dict[InboxTarget, list[UserMessage]] | None = None
    _ids: Set[MessageId] = _NO_IDS
    _seen: Collection[MessageId] = ()

    @property
    def lists(self) -> Mapping[InboxTarget, Sequence[UserMessage]]:
        """What is pending. Only to be read."""
        return _no_lists() if self._lists is None else self._lists

    @property
    def claimed(self) -> Mapping[InboxTarget, Sequence[UserMessage]]:
        """What the open turn has claimed, and not entered or consumed. Only to be read."""
        return _no_lists() if self._claimed is None else self._claimed

    @property
    def seen(self) -> Collection[MessageId]:
        """Every id that was ever pending."""
        return self._seen

    def __bool__(self) -> bool:
        return bool(self._ids)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._ids

    def removed(self, splice: InboxSpliced) -> Sequence[UserMessage]:
        """What *splice* would remove now."""
        if self._lists is None:
            return ()
        return self._lists[splice.target][splice.start : splice.start + splice.removed_count]

    def judge(self, event: Event) -> None:
        """Raise `IllegalEvent` for a splice that is impossible or not normalised."""
        splice = event.data
        if not isinstance(splice, InboxSpliced):
            return
        size = 0 if self._lists is None else len(self._lists[splice.target])
        what = f"a splice of {splice.target} at {splice.start} removing {splice.removed_count}"
        if not 0 <= splice.start <= size or not 0 <= splice.removed_count <= size - splice.start:
            raise IllegalEvent(event.seq, what, f"coordinates within its {size} messages")
        if not splice.removed_count and not splice.inserted:
            raise IllegalEvent(event.seq, what, "a splice that changes something")
        leaving = {message.id for message in self.removed(splice)}
        arriving = [message.id for message in splice.inserted]
        clash = [i for i in arriving if i in self._ids and i not in leaving]
        if clash or len(set(arriving)) != len(arriving):
            raise IllegalEvent(event.seq, what, "message ids that are not pending")

    def move(self, event: Event, turn_open: bool) -> None:
        """Take *event*, which `judge` let pass."""
        data = event.data
        if isinstance(data, InboxSpliced):
            self._splice(data, turn_open)
        elif isinstance(data, EndSeed):
            if data.inherited:
                self._lists, self._ids = None, _NO_IDS
        elif self.claiming:
            if isinstance(data, UserMessageEvent):
                self._forget_claim(data.message.id)
            elif isinstance(data, _ADMITTED):
                self.settle_claims()

    def settle_claims(self) -> None:
        """What was claimed is entered or consumed."""
        self._claimed = None
        self.claiming = False

    def _splice(self, splice: InboxSpliced, turn_open: bool) -> None:
        removed = self.removed(splice)
        if self._lists is None:
            self._lists = _no_lists()
        pending = self._lists[splice.target]
        pending[splice.start : splice.start + splice.removed_count] = splice.inserted
        ids = self._ids if isinstance(self._ids, set) else set[MessageId]()
        for message in removed:
            ids.discard(message.id)
        if splice.inserted:
            arrived = [message.id for message in splice.inserted]
            ids.update(arrived)
            seen = self._seen
            if isinstance(seen, set):
                seen.update(arrived)
            elif len(seen) + len(arrived) <= _FEW:  # a set of one is four times a tuple of it
                self._seen = (*seen, *arrived)
            else:
                self._seen = {*seen, *arrived}
        self._ids = ids or _NO_IDS
        if not ids:
            self._lists = None
        if removed and splice.outcome is None and turn_open:
            if self._claimed is None:
                self._claimed = _no_lists()
            self._claimed[splice.target].extend(removed)
            self.claiming = True
        if self.claiming:
            for message in splice.inserted:
                self._forget_claim(message.id)

    def _forget_claim(self, message_id: MessageId) -> None:
        for messages in (self._claimed or {}).values():
            messages[:] = [message for message in messages if message.id != message_id]


class Splicing(Protocol):
    """Who records the edits of an inbox."""

    def check_open(self) -> None:
        """Raise where no edit can be recorded, and in another thread."""
        ...

    def splice(self, splice: InboxSpliced) -> None:
        """Append the event and publish its notifications."""
        ...


class Inbox:
    """Pending input of one agent, and how to edit it.

    Message ids are unique over both lists. Edits that change nothing write nothing, every
    removal is recorded as canceled, and after the agent's end all raise `AgentDisposed`.
    """

    __slots__ = ("_pending", "_record")

    def __init__(self, pending: PendingInput, record: Splicing) -> None:
        self._pending = pending
        self._record = record

    @property
    def next_turn(self) -> tuple[UserMessage, ...]:
        """Prompts, oldest first; each becomes the message of a turn of its own."""
        return tuple(self._pending.lists["next-turn"])

    @property
    def next_step(self) -> tuple[UserMessage, ...]:
        """Input for the next step, in order; a step takes all of it."""
        return tuple(self._pending.lists["next-step"])

    def __len__(self) -> int:
        return sum(len(messages) for messages in self._pending.lists.values())

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._pending

    def append(self, target: InboxTarget, message: UserMessage) -> None:
        """Insert at the end. Raises `DuplicateMessage` if the id is pending."""
        self.splice(target, len(self._list(target)), 0, [message])

    def prepend(self, target: InboxTarget, message: UserMessage) -> None:
        """Insert at the start. Raises `DuplicateMessage` if the id is pending."""
        self.splice(target, 0, 0, [message])

    def replace(self, message_id: MessageId, message: UserMessage) -> bool:
        """Put *message* in the place of a pending one; False if it is not pending any more."""
        self._record.check_open()
        found = self._find(message_id)
        if found is None:
            return False
        self.splice(found[0], found[1], 1, [message])
        return True

    def remove(self, message_id: MessageId) -> bool:
        """Discard a pending message; False if it is not pending any more."""
        self._record.check_open()
        found = self._find(message_id)
        if found is None:
            return False
        self.splice(found[0], found[1], 1, [])
        return True

    def clear(self) -> None:
        """Discard everything, next-step before next-turn."""
        self._record.check_open()
        for target in TARGETS:
            self.splice(target, 0, len(self._list(target)), [])

    def splice(
        self,
        target: InboxTarget,
        start: int,
        delete_count: int,
        insert: Iterable[UserMessage] = (),
    ) -> None:
        """Standard splice: a negative *start* counts from the end, all is clamped.

        Raises `DuplicateMessage` and changes nothing if an inserted id is pending,
        `InvalidValue` for what is no list, position or message.
        """
        self._record.check_open()
        size = len(self._list(target))
        for name, value in (("start", start), ("delete_count", delete_count)):
            if not isinstance(value, int):
                raise InvalidValue(f"{name}: expected an integer, got {value!r}")
        begin = max(0, size + start) if start < 0 else min(start, size)
        count = max(0, min(delete_count, size - begin))
        inserted = tuple(insert)
        for message in inserted:
            if type(message) is not UserMessage:
                raise InvalidValue(f"message: expected a UserMessage, got {type(message).__name__}")
        if not count and not inserted:
            return
        leaving = {message.id for message in self._list(target)[begin : begin + count]}
        arriving = [message.id for message in inserted]
        for message_id in arriving:
            taken = message_id in self._pending and message_id not in leaving
            if taken or arriving.count(message_id) > 1:
                raise DuplicateMessage(
                    f"message {message_id!r} is pending already; send a message with a new id"
                )
        outcome: Literal["canceled"] | None = "canceled" if count else None
        self._record.splice(InboxSpliced(target, begin, count, inserted, outcome))

    def _list(self, target: InboxTarget) -> Sequence[UserMessage]:
        try:
            return self._pending.lists[target]
        except KeyError:
            raise InvalidValue(
                f"target: expected 'next-turn' or 'next-step', got {target!r}"
            ) from None

    def _find(self, message_id: MessageId) -> tuple[InboxTarget, int] | None:
        if message_id not in self._pending:
            return None
        for target, messages in self._pending.lists.items():
            for index, message in enumerate(messages):
                if message.id == message_id:
                    return target, index
        return None
