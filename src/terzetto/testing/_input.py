"""Invariant 6: where every message went, read from the log.

A message is pending, entered, discarded or consumed. Consumed are: what a turn claimed
that ended `Blocked`, `Failed` or by itself without entering it, and what a `pre_step`
listener set aside. The log has no event for the second one; it follows from the admission
of a step. Admission is one synchronous breath, so *a sign* of it - any event that only an
admitted step can hold - says that all of the batch was dealt with: what the turn had
claimed before and the breath did not enter was set aside.

Three cases remain, and each is decided here:

- A turn that was cut short (`Aborted`, `Interrupted`) without a sign: its claimed input must
  be pending again or discarded on the record, else it is lost.
- Admission may add nothing to the log (a listener set everything aside, tools' results were
  owed, nothing else changed), so that a cut before the first chunk leaves no sign. Whoever
  knows that there were such listeners says so (*set_aside*), and a started step counts.
- A crash may cut the breath itself. Its user and system messages say that admission had
  begun, not that it was complete: recovery puts back what had not entered, and must.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import define, field

from ..vocabulary import (
    Aborted,
    AssistantChunk,
    AssistantMessageEvent,
    DeveloperMessageEvent,
    Event,
    InboxSpliced,
    Interrupted,
    MessageId,
    RequestContextEvent,
    RequestHeaderEvent,
    StepStart,
    SystemMessageEvent,
    TurnEnd,
    TurnEnding,
    UserMessage,
    UserMessageEvent,
)

State: TypeAlias = Literal[
    "pending", "claimed", "in a step", "admitted", "entered", "discarded", "consumed", "over"
]
"""``in a step``: claimed, and the step it was claimed for has started. ``admitted``: and the
admission of that step had begun. ``over``: consumed by a turn that has ended, so that its
sender may send it again."""

_ADMITTED = (
    RequestHeaderEvent,
    RequestContextEvent,
    DeveloperMessageEvent,
    AssistantChunk,
    AssistantMessageEvent,
)


@define(eq=False)
class InputFold:
    """Follows every message through a log."""

    set_aside: bool = False
    state: dict[MessageId, State] = field(factory=dict)
    problems: list[str] = field(factory=list)
    _lists: dict[str, list[UserMessage]] = field(factory=dict)

    def move(self, event: Event) -> None:
        """Take the next event of the log."""
        match event.data:
            case InboxSpliced():
                self._splice(event.seq, event.data)
            case UserMessageEvent(message=message):
                self._enter(event.seq, message.id)
                self._all("in a step", "admitted")
            case SystemMessageEvent():
                self._all("in a step", "admitted")
            case StepStart():
                self._all("claimed", "in a step")
            case TurnEnd(turn=turn, ending=ending):
                self._end_turn(turn, ending)
            case data if isinstance(data, _ADMITTED):
                self._all("in a step", "consumed")
                self._all("admitted", "consumed")
            case _:
                pass

    def _all(self, before: State, after: State) -> None:
        for message_id, state in self.state.items():
            if state == before:
                self.state[message_id] = after

    def _splice(self, seq: int, splice: InboxSpliced) -> None:
        pending = self._lists.setdefault(splice.target, [])
        removed = pending[splice.start : splice.start + splice.removed_count]
        pending[splice.start : splice.start + splice.removed_count] = splice.inserted
        for message in removed:
            self.state[message.id] = "claimed" if splice.outcome is None else "discarded"
        for message in splice.inserted:
            before = self.state.get(message.id)
            if before in {"entered", "consumed"}:
                self.problems.append(
                    f"event {seq} makes {message.id!r} pending after it {_WAS[before]}"
                )
            self.state[message.id] = "pending"

    def _enter(self, seq: int, message_id: MessageId) -> None:
        before = self.state.get(message_id)
        if before in {"entered", "consumed"}:
            how = "a second time" if before == "entered" else "after it was consumed"
            self.problems.append(f"event {seq} enters {message_id!r} {how}")
        if before is not None:
            self.state[message_id] = "entered"

    def _end_turn(self, turn: int, ending: TurnEnding) -> None:
        cut = isinstance(ending, (Aborted, Interrupted))
        for message_id, state in self.state.items():
            if state == "consumed":
                self.state[message_id] = "over"
            if state not in {"claimed", "in a step", "admitted"}:
                continue
            kept = not cut
            if isinstance(ending, Aborted):
                kept = state == "admitted" or (state == "in a step" and self.set_aside)
            if not kept:
                self.problems.append(f"{message_id!r} was lost by turn {turn}, which was cut short")
            self.state[message_id] = "over"


_WAS: dict[State, str] = {"entered": "entered", "consumed": "was consumed"}
