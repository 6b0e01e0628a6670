"""Where a log that is run again stands: what comes next, and what is put in between.

The engine is watched at each append. Right behind it comes what the log has from outside, unless
that belongs to a later moment, and a cancel strikes where one struck. Clock and ids are the
log's, so what the engine writes can be compared to the byte.
"""

from __future__ import annotations

import trio
from attrs import define, field

from ..agent import Agent
from ..session._codec import dumps_event, dumps_json, encode_request
from ..vocabulary import (
    AssistantChunk,
    Completed,
    EndedAtMaxTokens,
    Event,
    Finish,
    InboxSpliced,
    MessageId,
    ProviderError,
    Request,
    StepEnd,
    StepStart,
    TurnEnd,
    TurnStart,
    is_complete,
    new_message_id,
)
from ._tape import Asked, Cut, Key, Life, Tape

_SHOWN = 200
"""Bytes of an event that are shown."""


@define(eq=False)
class Playback:
    """One life of a log, being run again. *at* is the event that comes next.

    *requests* counts those with an answer that were the same. *difference* says where the engine
    did something else; *scope* is cancelled then.
    *key* is the request that is being made.
    """

    tape: Tape
    life: Life
    at: int = field(init=False)
    requests: int = field(default=0, init=False)
    difference: str | None = field(default=None, init=False)
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    agent: Agent | None = field(default=None, init=False)
    key: Key = field(default=(0, 0, 0), init=False)
    _awaited: Key | None = field(default=None, init=False)
    """The request that is being put together, until it is frozen."""
    _claiming: bool = field(default=False, init=False)
    """The driver has not claimed yet, for all that is next."""
    _feeding: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.at = self.life.prefix

    @property
    def done(self) -> bool:
        return self.at >= self.life.stop or self.difference is not None

    # --- what it writes, and what comes from outside ---------------------------------------

    def observe(self, event: Event) -> None:
        assert self.agent is not None
        if self.done:
            return
        self.compare(event)
        self.agent.session.after_append(self.follow)

    def compare(self, event: Event) -> None:
        if self.done and event.seq != self.at:
            return
        if event.seq >= len(self.tape.events):
            return
        recorded, now = (dumps_event(one) for one in (self.tape.events[event.seq], event))
        if recorded != now:
            at = next((n for n, (a, b) in enumerate(zip(recorded, now, strict=False)) if a != b), 0)
            self.differ(
                f"event {event.seq} is {_short(recorded, at)} in the log, and would be "
                f"{_short(now, at)} now"
            )
            return
        self.at = event.seq + 1
        self._claiming = isinstance(event.data, (TurnStart, StepEnd)) or (
            self._claiming and event.seq in self.tape.outside
        )
        match event.data:
            case InboxSpliced() if event.seq not in self.tape.outside:
                self._claiming = True
            case StepStart(turn=turn, step=step):
                self._awaited = (turn, step, 1)
            case AssistantChunk(chunk=Finish(reason=reason)) if not is_complete(reason):
                turn, step, attempt = self.key
                self._awaited = (turn, step, attempt + 1)
            case StepEnd():
                self._awaited = None
            case _:
                pass

    def follow(self) -> None:
        """Right behind an append: what the log has next from outside, and cancels."""
        assert self.agent is not None
        self.feed()
        activity, cut = self.agent._state.activity, self._cut()
        if self.done or activity is None or cut is None or cut.cause is None:
            return
        if self._too_early():
            return  # the request is frozen first
        if self.at >= cut.seq and activity.cause is None:
            activity.cancel(cut.cause, keep_inbox=not cut.discards)
            self.feed()

    def feed(self) -> None:
        if self._feeding or self.agent is None:
            return
        self._feeding = True
        try:
            while not self.done and self.at in self.tape.outside and not self._held():
                event = self.tape.events[self.at]
                self.agent.session.append(
                    event.data, event.surface_op, event.sources, event.ignorable
                )
        finally:
            self._feeding = False

    def _held(self) -> bool:
        """Whether what comes next from outside came later than the last event."""
        if self._too_early():
            return True
        assert self.agent is not None
        activity, own = self.agent._state.activity, self.next_own()
        if not self._claiming or activity is None or activity.cancelled or own is None:
            return False
        # Input that the next claim did not take was not there yet.
        return not isinstance(own.data, InboxSpliced)

    def _too_early(self) -> bool:
        """Whether what comes next came while the awaited request was on its way already."""
        asked = self.tape.asked.get(self._awaited) if self._awaited is not None else None
        return asked is not None and asked.admitted and self.at > asked.sent.seq

    def _cut(self) -> Cut | None:
        assert self.agent is not None
        turn = self.agent.session.place.open_turn
        return self.tape.cuts.get(turn) if turn is not None else None

    def fail(self) -> None:
        """Raise what ended the turn, if that was here."""
        cut = self._cut()
        if cut is not None and cut.failure is not None and self.at >= cut.seq and not self.done:
            raise ProviderError(cut.failure)

    def differ(self, how: str) -> None:
        if self.difference is None:
            self.difference = how
            self.scope.cancel(reason="the log differs")

    def told(self, seq: int) -> str:
        return _short(dumps_event(self.tape.events[seq]))

    # --- clock and ids --------------------------------------------------------------------

    def _next(self) -> Event | None:
        events = self.tape.events
        at = max(self.life.start - 1, self.life.prefix)  # the marker of a resume
        if self.agent is not None:
            at = self.agent.session.place.next_seq
        return events[at] if at < len(events) else None

    def now_ms(self) -> int:
        event = self._next()
        return event.time_ms if event is not None else self.tape.header.created_ms

    def new_id(self) -> MessageId:
        event = self._next()
        message = getattr(event.data, "message", None) if event is not None else None
        found = getattr(message, "id", None)
        return MessageId(found) if isinstance(found, str) else new_message_id()

    def next_own(self) -> Event | None:
        """The next event of the engine; None where this life ends."""
        for seq in range(self.at, self.life.stop):
            if seq not in self.tape.outside:
                return self.tape.events[seq]
        return None

    def claimed(self) -> None:
        """The driver has claimed what was there."""
        self._claiming = False
        self.follow()

    def judge(self, request: Request) -> None:
        """A request is frozen: compare it with what the log rebuilds, and go on."""
        self._awaited = None
        asked = self.asked()
        if self.done:
            return
        if asked is None:
            return self.differ(f"request {self.key} is not in the log")
        recorded, recorded_answer = asked.sent.request, asked.sent.answered
        same = (
            len(request.messages) == len(recorded.messages)
            and request.session_id == recorded.session_id
            and dumps_json(encode_request(request)) == dumps_json(encode_request(recorded))
        )
        if not same:
            return self.differ(f"request {self.key} is another one than the log gives")
        self.requests += recorded_answer

    def asked(self) -> Asked | None:
        return self.tape.asked.get(self.key)

    def interrupt(self) -> None:
        """Cut the stream that runs, as `Agent.interrupt` does; its message is in the log."""
        assert self.agent is not None
        self.agent._state.cut_step()

    def stays_open(self, turn: int) -> bool:
        """Whether another step of *turn* follows, or the turn ends otherwise than by itself."""
        for seq in range(self.at, self.life.stop):
            match self.tape.events[seq].data:
                case StepStart():
                    return True
                case TurnEnd(ending=ending):
                    return not isinstance(ending, (Completed, EndedAtMaxTokens))
                case _:
                    continue
        return True


def _short(record: bytes, around: int = 0) -> str:
    """The beginning of *record*, and what stands around one of its bytes."""
    head, rest = record[:_SHOWN], record[_SHOWN:]
    if rest and around > _SHOWN - 20:
        near = record[max(around - 40, _SHOWN) : around + 60]
        rest = b"" if around + 60 >= len(record) else b"..."
        return (head[:80] + b"..." + near + rest).decode("utf-8", "replace")
    return (head + (b"..." if rest else b"")).decode("utf-8", "replace")
