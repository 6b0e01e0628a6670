"""Session: one append-only log with its identity, and everything folded from it.

Appending is synchronous: an event is judged, handed to the store's buffer, folded and
shown to observers before `append` returns, with no checkpoint. So interrupted
work is recorded without shields. What is durable is the store's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import get_ident

from attrs import define, field

from ..hooks import Notification, Registration
from ..vocabulary import (
    SURFACE_TYPES,
    AgentDisposed,
    Append,
    AssistantChunk,
    Draft,
    Event,
    EventData,
    InboxSpliced,
    MessageId,
    ReentrantAppend,
    Replace,
    SessionHeader,
    SessionId,
    Sources,
    TurnEnd,
    UserMessage,
    WrongThread,
    new_message_id,
)
from ..vocabulary._opening import opened
from ._bell import Bell, SilentBell
from ._columns import LEAST
from ._compacting import COMPACTED, Compacting, CompactionLock
from ._extensions import own_event
from ._held import EventLog, Held
from ._inbox import SPLICED, PendingInput
from ._order import Place
from ._reading import PAGE, Follower, Reader, check_seq, page
from ._replacing import planned
from ._surface import FOLDED, Folds, Messages, Surface
from ._usual import USUAL

_FEW = 64
"""Settled events of short attempts that a long one after them may find to be looked through."""
_SURFACE = frozenset(SURFACE_TYPES)
_OpenEvent = opened(Event)


def _no_sink(event: Event) -> None:
    return None


def _not_taken(error: BaseException) -> bool:
    """Nobody raises *error* later, so the append does."""
    return False


def _never_durable() -> int:
    return -1


@define(eq=False)
class Session:
    """One log. Only its agent appends; users have `record` and `replace`.

    *now_ms* gives integer milliseconds, *new_id* message ids; both are injected so
    that seeded runs are byte-identical.
    """

    header: SessionHeader
    now_ms: Callable[[], int] = field(repr=False)
    new_id: Callable[[], MessageId] = field(default=new_message_id, repr=False)
    bell: Bell = field(factory=SilentBell, repr=False)
    place: Place = field(factory=Place, init=False, repr=False)
    surface: Surface = field(factory=Surface, init=False, repr=False)
    folds: Folds = field(factory=Folds, init=False, repr=False)
    pending: PendingInput = field(factory=PendingInput, init=False, repr=False)
    compaction: CompactionLock = field(factory=CompactionLock, init=False, repr=False)
    sink: Callable[[Event], None] = field(default=_no_sink, init=False, repr=False)
    durable: Callable[[], int] | None = field(default=_never_durable, init=False, repr=False)
    reader: Reader | None = field(default=None, init=False, repr=False)
    held: Held = field(factory=Held, init=False, repr=False)
    observers: Notification[Event] = field(init=False, repr=False)
    on_stop: Callable[[BaseException], bool] = field(default=_not_taken, init=False, repr=False)
    attached: bool = field(default=True, init=False)
    _open_attempt: int | None = field(default=None, init=False, repr=False)
    _settled: int = field(default=0, init=False, repr=False)
    _thread: int = field(factory=get_ident, init=False, repr=False)
    _publishing: bool = field(default=False, init=False, repr=False)
    _deferred: list[Callable[[], None]] | None = field(default=None, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.observers = Notification("session observer")

    @property
    def id(self) -> SessionId:
        return self.header.id

    @property
    def events(self) -> EventLog:
        """The log by seq, as far as it is in memory: all but chunks that a store has."""
        return EventLog(self.held)

    @property
    def durable_seq(self) -> int:
        """The seq of the last event the store has, -1 for none. Without a store the last of
        all."""
        return self.place.next_seq - 1 if self.durable is None else self.durable()

    def history(self) -> Messages:
        """The messages the model sees, as an immutable view of this moment."""
        return self.surface.history()

    # --- appending ---------------------------------------------------------------------

    def append(
        self,
        data: EventData,
        surface_op: Append | Replace | None = None,
        sources: Sources | None = None,
        ignorable: bool = False,
    ) -> Event:
        """Append one event and return it. Nothing changes when it is refused.

        Raises:
            IllegalEvent: The order, the surface or the inbox does not allow it.
            ReentrantAppend: Called from inside an observer of an append.
            WrongThread: Called outside the session's thread.
            AgentDisposed: Its agent is gone: nobody would save or follow the event.
        """
        if get_ident() != self._thread:  # called once more only to say what is wrong
            self.check_thread()
        if not self.attached:
            raise AgentDisposed(f"session {self.id!r} is over, its agent is disposed")
        if self._publishing:
            raise ReentrantAppend(
                f"cannot append {type(data).__name__} from inside an observer of an append; "
                "do it after the append returned"
            )
        place = self.place
        made = _OpenEvent()  # the constructor would be a tenth of a chunk's append
        made.seq = place.next_seq
        now, last = self.now_ms(), place.last_time_ms
        made.time_ms = now if now > last else last
        made.data = data
        made.surface_op = surface_op
        made.sources = sources
        made.ignorable = ignorable
        made.__class__ = Event
        event: Event = made
        self._take(event, self.sink)
        if self.observers._listeners or self._deferred:
            self._publish(event)
        else:
            self.bell.ring()
        return event

    def append_draft(self, draft: Draft, time_ms: int | None = None) -> Event:
        """Append *draft*; with *time_ms* (repair) at that time and unseen by observers."""
        if time_ms is None:
            return self.append(draft.data, draft.surface_op, draft.sources, draft.ignorable)
        event = Event(
            self.place.next_seq,
            time_ms,
            draft.data,
            draft.surface_op,
            draft.sources,
            draft.ignorable,
        )
        self._take(event, self.sink)
        return event

    def _take(self, event: Event, sink: Callable[[Event], None]) -> None:
        """Judge, hand to the store's buffer, fold. A refusal anywhere changes nothing."""
        place, data = self.place, event.data
        if event.seq != place.next_seq or self.pending.claiming:
            self._take_by_the_tables(event, sink)
        elif type(data) is AssistantChunk:  # most events, and this is all to be judged of them
            if place.takes_chunk(data) and event.surface_op is None and event.sources is None:
                if sink is not _no_sink:
                    sink(event)
                place.move_chunk(event, data.chunk)
            else:
                self._take_by_the_tables(event, sink)
        else:
            take = USUAL.get(type(data))
            if take is None or not take(place, self.surface, event, data, sink):
                self._take_by_the_tables(event, sink)
        self.held.tail.append(event)
        if place.unsettled != self._open_attempt:
            self._attempt_moved()

    def _take_by_the_tables(self, event: Event, sink: Callable[[Event], None]) -> None:
        place, kind = self.place, type(event.data)
        place.judge(event)
        if event.surface_op is not None or event.sources or kind in _SURFACE:
            self.surface.judge(event)
        if kind is InboxSpliced:
            self.pending.judge(event)
        sink(event)
        place.move(event)
        if event.surface_op is not None:
            self.surface.move(event)
        if kind in FOLDED:
            self.folds.move(event)
        if kind in COMPACTED:
            self.compaction.move(event)
        if kind in SPLICED or self.pending.claiming:
            self.pending.move(event, place.open_turn is not None)

    def _attempt_moved(self) -> None:
        """An attempt began, or the one before is settled: what it streamed may leave."""
        before, opened = self._open_attempt, self.place.unsettled
        self._open_attempt = opened
        settled = self._settled = self.place.next_seq if opened is None else opened
        if self.reader is not None:
            self.release()
        elif before is not None and settled - before > LEAST:
            self.held.pack(settled)
        elif settled - self.held.start > _FEW:  # too short for a run, all of them
            self.held.keep(settled)

    def release(self) -> None:
        """Let go of the chunks of settled attempts that the store has. A session without a
        store that can be read keeps everything."""
        if self.reader is not None and self.held.start < self._settled:
            self.held.release(min(self._settled, self.durable_seq + 1))

    def saved(self) -> None:
        """More of the log is durable: tell who waits for it."""
        self.release()
        self.bell.ring()

    def _publish(self, event: Event) -> None:
        struck: BaseException | None = None
        if self.observers:
            self._publishing = True
            try:
                self.observers.notify(event)
            except BaseException as error:  # a stop of the program, not an observer's failure
                struck = error
            self._publishing = False
        self.bell.ring()
        failed: BaseException | None = None
        while self._deferred:
            try:
                self._deferred.pop(0)()
            except BaseException as error:  # the others still run
                failed = failed or error
        if struck is not None and not self.on_stop(struck):
            raise struck
        if failed is not None:
            raise failed

    def check_thread(self) -> None:
        """Raise `WrongThread` outside the session's thread."""
        if get_ident() != self._thread:
            raise WrongThread(
                "a session belongs to its Trio thread; from another one use "
                "trio.from_thread.run_sync"
            )

    def after_append(self, action: Callable[[], None]) -> None:
        """Run *action* now, or when the append in progress has returned."""
        if self._publishing:
            self._deferred = [*(self._deferred or ()), action]
        else:
            action()

    # --- for users ---------------------------------------------------------------------

    def observe(self, observer: Callable[[Event], None]) -> Registration:
        """Call *observer* with every event, inside the append. Its failures are contained.

        It may not append (`ReentrantAppend`); to react, follow the log from a task.
        """
        self.check_thread()
        return self.observers.listen(observer)

    def record(self, name: str, data: dict[str, object], *, ignorable: bool = False) -> Event:
        """Append an event of your own type *name*, with a JSON object as its data.

        A store loads it again only where *name* is among its ``extensions=``, or the event
        is *ignorable*: a program that does not know it can do without it.

        Raises `InvalidValue` for a reserved name or data that is not lossless JSON.
        """
        return self.append(own_event(name, data, ignorable), ignorable=ignorable)

    def replace(self, start: int, end: int, messages: Sequence[UserMessage]) -> list[Event]:
        """Replace the surface nodes *start* to *end* (seqs, both included) by *messages*.

        At most as many messages as nodes; the last takes the rest of the range. The
        replaced events stay in the log. The next request starts a new series.

        A range never parts an answer from the results of its tool calls, and leaves the
        first system message alone. To shorten one tool result, replace its node by a
        message with a `ToolResultBlock` of the same call and flag: only content changes.

        Raises `InvalidValue` for another range, or for messages that cannot stand there;
        `WrongThread` and `ReentrantAppend` as `append` does.
        """
        self.check_thread()
        drafts = planned(self.surface, start, end, messages)
        return [self.append_draft(draft) for draft in drafts]

    def compacting(self) -> Compacting:
        """The bracket around one compaction. `AgentBusy` is raised while another one lives."""
        return Compacting(self, self.new_id())

    async def read(self, start: int = 0, stop: int | None = None) -> list[Event]:
        """Events *start* to before *stop*, from memory, or from the store where they have
        left it. What is not in the log yet is left out.

        For a long log, read it in parts or `follow` it: this is one list.

        Raises:
            InvalidValue: *start* or *stop* is no seq.
            StoreError: The store cannot give them back.
        """
        check_seq("start", start)
        length = len(self.held)
        stop = length if stop is None else min(check_seq("stop", stop), length)
        await self.bell.checkpoint()
        if self.held.missing(start, stop) is None:
            return self.held.between(start, stop)
        found: list[Event] = []
        for first in range(start, stop, PAGE):
            found += await page(self, first, min(first + PAGE, stop))
        return found

    def follow(self, from_seq: int = 0, *, durable: bool = False) -> Follower:
        """An async iterator over the events from *from_seq* on, past and to come.

        Ends when the session is detached. There is nothing to close, and a slow reader
        holds nobody up. With *durable* an event comes once the store has it. Events that
        have left memory come from the store, in pages.

        Raises `InvalidValue` for a *from_seq* that is no seq.
        """
        self.check_thread()
        return Follower(self, check_seq("from_seq", from_seq), durable)

    def detach(self) -> None:
        """End every `follow` where the log ends. The log stays readable."""
        self.attached = False
        self.observers.close()
        self.release()
        self.bell.ring()


def replay(session: Session, events: Iterable[Event]) -> None:
    """Load *events* after those that *session* has, judging each; none is shown to observers.

    A log may come in parts. Of a session with a store that reads back, chunks that are
    durable leave memory again, those of an attempt without an end too.

    Raises `IllegalEvent` with the seq of the first event that cannot stand where it is.
    """
    session.place.strict = False
    try:
        for event in events:
            session._take(event, _no_sink)
    finally:
        session.place.strict = True
    if session.reader is not None:
        session.held.release(min(len(session.held), session.durable_seq + 1))


def last_ending(session: Session) -> TurnEnd | None:
    """The latest `turn/end`, or None."""
    for event in reversed(session.events):
        if isinstance(event.data, TurnEnd):
            return event.data
    return None
