"""A log read as what happened to an agent: what came from outside, and what it did itself.

Pure. To run a session again, the engine is given the first at the places where the log has it,
and is expected to write the second. Decisions of listeners, results of tools, cancels and
failures are read off the events that followed from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from attrs import define, field, frozen

from ..session import PendingInput, Place, SentRequest
from ..session._rebuild import RequestFold
from ..vocabulary import (
    Aborted,
    Append,
    AssistantChunk,
    AssistantMessageEvent,
    CancelCause,
    CompactionEnd,
    CompactionStart,
    CompactionSummary,
    EndSeed,
    Event,
    Extension,
    Failed,
    Failure,
    Finish,
    IllegalEvent,
    InboxSpliced,
    Interrupted,
    LlmRetry,
    LlmRetryStarted,
    MessageId,
    ModelInfo,
    ModelSelected,
    Replace,
    RequestContextEvent,
    RequestHeaderEvent,
    SessionHeader,
    StepEnd,
    StepStart,
    SystemMessageEvent,
    ToolResultEvent,
    TurnEnd,
    TurnStart,
    UserMessage,
    UserMessageEvent,
    is_complete,
    texts,
)

Key: TypeAlias = tuple[int, int, int]
"""Turn, step, attempt."""
_OUTSIDE = (
    CompactionEnd,
    CompactionStart,
    CompactionSummary,
    Extension,
    LlmRetry,
    LlmRetryStarted,
    ModelSelected,
)
_UNANSWERED = (texts.TOOL_OUTCOME_UNKNOWN, texts.TOOL_NOT_STARTED)


def not_rerunnable(events: Sequence[Event]) -> str | None:
    """Why no engine of today could write this log, if that is plain from it."""
    place = Place()
    for event in events:
        try:
            place.judge(event)
        except IllegalEvent as error:
            return f"{error}; only older engines wrote that"
        place.move(event)
    return None


@define(eq=False)
class Asked:
    """A request of the log, and what its adapter must have declared."""

    sent: SentRequest
    header: RequestHeaderEvent
    context: RequestContextEvent | None
    entered: tuple[UserMessage, ...] = ()
    appended_prompt: bool = False
    starts_series: bool = False
    admitted: bool = True
    """Whether it is certain that it was put together to its end."""

    @property
    def info(self) -> ModelInfo:
        """What the log says of the model; the rest is read off what was done about it."""
        context = self.context
        update = context.system_prompt_update if context else None
        return ModelInfo(
            context_window=context.context_window if context else None,
            system_prompt_update="in-history" if self.appended_prompt else update,
            tool_update=self.appended_prompt,
        )


@define(eq=False)
class Begun:
    """The messages that entered with a step, and the prompt that it wrote."""

    entered: list[UserMessage] = field(factory=list)
    prompt: str = ""


@frozen
class Cut:
    """A turn that was cut: from event *seq* on it was only being closed.

    By a cancel with *cause*, which discarded what was claimed or not; or by *failure*.
    """

    seq: int
    cause: CancelCause | None = None
    discards: bool = False
    failure: Failure | None = None


@frozen
class Life:
    """A stretch of a log in one process: the events from *start* to before *stop*.

    The events before *prefix* were there when it began, those between *prefix* and *start*
    closed them. A *fresh* life began with nothing.
    """

    prefix: int
    start: int
    stop: int
    fresh: bool = False


@define(eq=False)
class Tape:
    """A log, read."""

    header: SessionHeader
    events: Sequence[Event]
    asked: dict[Key, Asked] = field(factory=dict, init=False)
    begun: dict[tuple[int, int], Begun] = field(factory=dict, init=False)
    """What each step admitted for its first request, even if the log ends before its header."""
    outside: set[int] = field(factory=set, init=False)
    """Seqs of the events that somebody else made."""
    cuts: dict[int, Cut] = field(factory=dict, init=False)
    _claimed: set[MessageId] = field(factory=set, init=False)
    _put_back: dict[int, set[MessageId]] = field(factory=dict, init=False)
    """Splices of the open turn that may be closers, with what they put back or discard."""

    def __attrs_post_init__(self) -> None:
        fold, pending, open_turn = RequestFold(self.header), PendingInput(), 0
        reader = _Reader(self.begun)
        for event in self.events:
            for sent in fold.push(event):
                self._ask(sent, reader)
            data = event.data
            if isinstance(data, TurnStart):
                open_turn, self._claimed, self._put_back = data.turn, set(), {}
            self._classify(event, pending, open_turn)
            if isinstance(data, TurnEnd):
                self._cut(event.seq, data)
                open_turn = 0
            pending.move(event, open_turn > 0)
            reader.read(event, fold)
        for sent in fold.end():
            self._ask(sent, reader)

    def _ask(self, sent: SentRequest, reader: _Reader) -> None:
        header = self.events[sent.header_seq].data
        assert isinstance(header, RequestHeaderEvent)
        asked = Asked(sent, header, reader.context, tuple(reader.now.entered))
        # Without an answer, and without an event of its own, it may not even have been begun.
        last = self.events[sent.seq].data
        asked.admitted = sent.answered or not isinstance(last, (StepStart, AssistantChunk))
        asked.appended_prompt = reader.appended_prompt
        if reader.wrote_header:
            asked.starts_series = header.starts_series or header.reason == "series"
        self.asked[sent.turn, sent.step, sent.attempt] = asked

    # --- whose event it is ----------------------------------------------------------------

    def _classify(self, event: Event, pending: PendingInput, open_turn: int) -> None:
        data = event.data
        if isinstance(data, InboxSpliced):
            if self._is_outside(event.seq, data, pending, open_turn):
                self.outside.add(event.seq)
        elif isinstance(data, _OUTSIDE) or (
            isinstance(event.surface_op, Replace) and not isinstance(data, SystemMessageEvent)
        ):
            self.outside.add(event.seq)

    def _is_outside(
        self, seq: int, splice: InboxSpliced, pending: PendingInput, open_turn: int
    ) -> bool:
        removed = {message.id for message in pending.removed(splice)}
        inserted = {message.id for message in splice.inserted}
        if not open_turn:
            return True
        if removed and not inserted and splice.outcome is None:
            self._claimed |= removed
            return False
        back = set[MessageId]().union(*self._put_back.values())
        if (inserted and not removed and inserted <= self._claimed) or (
            removed and not inserted and removed <= back
        ):
            self._put_back[seq] = inserted | removed
        return True  # unless the turn turns out to be cut

    # --- where a turn was cut -------------------------------------------------------------

    def _cut(self, end: int, data: TurnEnd) -> None:
        match data.ending:
            case Aborted(cause=cause):
                self.outside -= set(self._put_back)
                seq = self._tail(end)
                discards = any(self._discards(at) for at in range(seq, end))
                self.cuts[data.turn] = Cut(seq, cause, discards)
            case Interrupted():
                self.outside -= set(self._put_back)
            case Failed(error=failure) if not self._answered_with(end, failure):
                self.cuts[data.turn] = Cut(self._tail(end, failed=True), failure=failure)
            case _:
                pass

    def _discards(self, seq: int) -> bool:
        data = self.events[seq].data
        return seq not in self.outside and isinstance(data, InboxSpliced) and not data.inserted

    def _tail(self, end: int, *, failed: bool = False) -> int:
        """From where on all events up to *end* only close the turn, or came from outside."""
        seq, put_back = end, False
        while seq > 0 and self._closes(self.events[seq - 1], failed=failed):
            if isinstance(self.events[seq - 1].data, StepEnd) and put_back:
                break  # closers put back first: this step ended by itself
            put_back = put_back or (seq - 1) in self._put_back
            seq -= 1
        return seq

    def _closes(self, event: Event, *, failed: bool) -> bool:
        match event.data:
            case StepEnd():
                return True
            case AssistantMessageEvent(interrupted=True):
                return isinstance(event.surface_op, Append) and not failed
            case ToolResultEvent(error=error) if isinstance(event.surface_op, Append):
                return failed and error is not None and error.code in _UNANSWERED
            case TurnStart():
                return False
            case _:
                return event.seq in self.outside or event.seq in self._put_back

    def _answered_with(self, end: int, failure: Failure) -> bool:
        """Whether the turn's last request failed with this, so that it fails by itself."""
        for seq in range(end - 1, -1, -1):
            data = self.events[seq].data
            if isinstance(data, AssistantChunk) and isinstance(data.chunk, Finish):
                if is_complete(data.chunk.reason):
                    return False
                return getattr(data.chunk.reason, "failure", None) == failure
            if not isinstance(data, StepEnd) and seq not in self.outside:
                return False
        return False

    def gives_up(self, seq: int) -> bool:
        """Whether from event *seq* on the step and its turn only end, because of a failure."""
        for at in range(seq, len(self.events)):
            match self.events[at].data:
                case StepEnd():
                    continue
                case TurnEnd(ending=ending):
                    return isinstance(ending, Failed)
                case _ if at not in self.outside:
                    return False
                case _:
                    continue
        return False

    # --- processes ------------------------------------------------------------------------

    def lives(self) -> Iterator[Life]:
        """The stretches of the log that one process wrote, in order."""
        seeded = self.header.seed_length
        prefix, start = (seeded + 1, seeded + 1) if seeded else (0, 0)
        fresh = not seeded
        for seq in range(start, len(self.events)):
            data = self.events[seq].data
            if isinstance(data, EndSeed):
                stop = self._crashed(seq, start)
                yield Life(prefix, start, stop, fresh)
                prefix, start, fresh = stop, seq + 1, False
        yield Life(prefix, start, len(self.events), fresh)

    def _crashed(self, marker: int, least: int) -> int:
        """Where the log ended before what closed it, up to the *marker*, was appended."""
        seq = marker
        while seq > least and isinstance(self.events[seq - 1].data, InboxSpliced):
            seq -= 1  # what asked for a typed answer is withdrawn
        ended = self.events[seq - 1].data if seq > least else None
        if not isinstance(ended, TurnEnd) or not isinstance(ended.ending, Interrupted):
            return marker
        seq, put_back = seq - 1, False
        while seq > max(least, 1) and self._repairs(self.events[seq - 1]):
            if self.events[seq - 1].time_ms != self.events[seq - 2].time_ms:
                break  # repairs have the time of what they follow
            if isinstance(self.events[seq - 1].data, StepEnd) and put_back:
                break
            put_back = put_back or isinstance(self.events[seq - 1].data, InboxSpliced)
            seq -= 1
        return seq

    def _repairs(self, event: Event) -> bool:
        match event.data:
            case StepEnd():
                return True
            case AssistantMessageEvent(message=message) | ToolResultEvent(message=message):
                return str(message.id).startswith("interrupted-")
            case InboxSpliced(inserted=inserted, removed_count=removed):
                return bool(inserted) and not removed and event.seq not in self.outside
            case _:
                return False


@define(eq=False)
class _Reader:
    """What was admitted with the request that is being put together."""

    begun: dict[tuple[int, int], Begun]
    context: RequestContextEvent | None = None
    now: Begun = field(factory=Begun)
    appended_prompt: bool = False
    wrote_header: bool = False

    def read(self, event: Event, fold: RequestFold) -> None:
        match event.data:
            case StepStart(turn=turn, step=step):
                self._begin()
                self.begun[turn, step] = self.now
            case AssistantChunk(chunk=Finish(reason=reason)) if not is_complete(reason):
                self._begin()
            case RequestContextEvent():
                self.context = event.data
            case RequestHeaderEvent():
                self.wrote_header = True
            case UserMessageEvent(message=message) if isinstance(event.surface_op, Append):
                self.now.entered.append(message)
            case SystemMessageEvent(message=prompt):
                self.now.prompt = prompt.text or self.now.prompt
                if isinstance(event.surface_op, Append):
                    self.appended_prompt = len(fold.surface.system) > 1
            case _:
                pass

    def _begin(self) -> None:
        self.now, self.appended_prompt, self.wrote_header = Begun(), False, False
