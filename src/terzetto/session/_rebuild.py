"""The requests that a log sent, from the log alone: each as it was dispatched (C84).

A request is frozen in the breath that admits it, and the log may move on before its answer
begins: somebody replaces a message while the request waits for the disk or the provider. What
was frozen can be told all the same. A request whose surface was replaced since the one before
writes a header (C80), after the replacement and after all that it appends itself. So it is the
fold of the log at the last of these: the step's start or the failed finish before it, whatever
was appended to the surface, and the header.

What the log does not hold: whether a request went out that no piece of an answer came for. It
was admitted at most, so it is given, and is not `answered`. Requests outside the conversation
(`Agent.complete`) are outside the log too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from attrs import define, evolve, field, frozen

from ..vocabulary import (
    Append,
    AssistantChunk,
    AssistantMessageEvent,
    Event,
    EventData,
    Failed,
    Failure,
    Finish,
    IllegalEvent,
    Replace,
    Request,
    RequestHeaderEvent,
    SessionHeader,
    StepEnd,
    StepStart,
    TurnEnd,
    is_complete,
)
from ._surface import Folds, Messages, Surface


@frozen(kw_only=True, eq=False)
class SentRequest:
    """One request that a log sent: attempt *attempt* (from 1) of a step.

    *seq* is the last event that it was folded from, *header_seq* the header that it carries.
    *answered*: the log holds a piece of its answer. If not, it was admitted at most: it was
    sent and nothing came, or something stopped it first.
    *inherited*: it belongs to a fork's source, and so does its ``session_id``, as far as the
    fork's header names it.
    """

    turn: int
    step: int
    attempt: int
    request: Request
    seq: int
    header_seq: int
    answered: bool = True
    inherited: bool = False
    _nodes: list[int] = field(alias="nodes", repr=False)

    @property
    def nodes(self) -> tuple[int, ...]:
        """The seqs of the events that its messages come from, one for each message."""
        return tuple(self._nodes[: len(self.request.messages)])

    def same_surface(self, other: SentRequest) -> bool:
        """Whether nothing was replaced between the two, so that one's messages begin with the
        other's. Costs nothing."""
        return self._nodes is other._nodes


def rebuild(header: SessionHeader, events: Iterable[Event]) -> Iterator[SentRequest]:
    """Every request of a log, in the order in which they were sent.

    Args:
        header: The session's.
        events: All of its events from 0 on, as a store has them. `Session.events` may lack
            pieces of answers that have left memory; use `Session.read`.

    Pure and lazy: it holds the surface and nothing else. Equal logs give equal requests, to
    the byte, in every process.

    Raises:
        IllegalEvent: An event is missing, or cannot stand where it is.
    """
    fold = RequestFold(header)
    for event in events:
        yield from fold.push(event)
    yield from fold.end()


_View: TypeAlias = tuple[Messages, list[int], int]
"""Messages, the seqs of their nodes, and the event up to which they are the fold."""


@define(eq=False)
class RequestFold:
    """A log being read for its requests.

    *shadowed* names, for each node that left the surface, the event that took its place, and
    *replacements* those events by seq, each with the number of nodes whose place it took.
    """

    header: SessionHeader
    surface: Surface = field(factory=Surface, init=False)
    shadowed: dict[int, int] = field(factory=dict, init=False)
    replacements: dict[int, tuple[Event, int]] = field(factory=dict, init=False)
    _folds: Folds = field(factory=Folds, init=False)
    _next: int = field(default=0, init=False)
    _nodes: list[int] = field(factory=list, init=False)
    _step: tuple[int, int] | None = field(default=None, init=False)
    _attempt: int = field(default=0, init=False)
    _view: _View | None = field(default=None, init=False)
    """Of the attempt that is waited for; None while its answer comes, or nothing is asked."""
    _admitted: bool = field(default=False, init=False)
    _failure: Failure | None = field(default=None, init=False)
    _doubtful: SentRequest | None = field(default=None, init=False)

    def push(self, event: Event) -> list[SentRequest]:
        """Take the next event. Gives the requests that are known now."""
        if event.seq != self._next:
            raise IllegalEvent(event.seq, f"seq {event.seq}", f"event {self._next} of a whole log")
        self._next += 1
        found = self._settle_doubt(event.data)
        if event.surface_op is not None:
            self._move_surface(event)
        self._folds.move(event)
        match event.data:
            case StepStart(turn=turn, step=step):
                self._step, self._attempt, self._failure = (turn, step), 0, None
                self._next_attempt(event.seq)
            case RequestHeaderEvent():
                self._look(event.seq)
            case AssistantChunk(chunk=chunk):
                found += self._sent(event)
                if isinstance(chunk, Finish) and not is_complete(chunk.reason):
                    self._failure = getattr(chunk.reason, "failure", None)
                    self._next_attempt(event.seq)
            case AssistantMessageEvent() if isinstance(event.surface_op, Append):
                found += self._sent(event)
            case StepEnd():
                self._doubtful = self._doubt()
                self._step = self._view = None
            case _:
                pass
        return found

    def end(self) -> list[SentRequest]:
        """The log ends here: a request may be on its way."""
        last = self._doubtful or self._doubt()
        self._doubtful = self._view = None
        return [] if last is None else [last]

    def _move_surface(self, event: Event) -> None:
        surface, op = self.surface, event.surface_op
        surface.judge(event)
        if isinstance(op, Replace):
            gone = surface.span(op.start, op.end) or []
            self.shadowed |= dict.fromkeys((node.seq for node in gone), event.seq)
            self.replacements[event.seq] = (event, len(gone))
            surface.move(event)
            self._nodes = [node.seq for node in surface.nodes if node.message.content]
            return
        surface.move(event)
        if surface.nodes[-1].message.content:
            self._nodes.append(event.seq)
        if not isinstance(event.data, AssistantMessageEvent):
            self._look(event.seq)

    def _next_attempt(self, seq: int) -> None:
        self._attempt += 1
        self._view = (self.surface.history(), self._nodes, seq)
        self._admitted = False

    def _look(self, seq: int) -> None:
        """The attempt that is waited for has just been admitted up to here."""
        if self._view is not None:
            self._view = (self.surface.history(), self._nodes, seq)
            self._admitted = True

    def _sent(self, event: Event) -> list[SentRequest]:
        """The first piece of an answer: what it answers is known for certain."""
        if self._view is None:
            return []
        sent = self._request()
        if sent is None:
            raise IllegalEvent(
                event.seq, type(event.data).__name__, "a request/header before the first answer"
            )
        self._view = None
        return [sent]

    def _request(self) -> SentRequest | None:
        folds = self._folds
        if self._view is None or self._step is None:
            return None
        if folds.header is None or folds.header_seq is None:
            return None
        messages, nodes, seq = self._view
        inherited = seq < self.header.seed_length
        owner = self.header.parent_id if inherited else None
        request = Request(
            session_id=owner or self.header.id,
            config=folds.header.config,
            messages=messages,
            tools=folds.header.tools,
            tool_history=folds.tool_history(),
        )
        turn, step = self._step
        return SentRequest(
            turn=turn,
            step=step,
            attempt=self._attempt,
            request=request,
            seq=seq,
            header_seq=folds.header_seq,
            inherited=inherited,
            nodes=nodes,
        )

    def _doubt(self) -> SentRequest | None:
        """The request that nothing came for, if there was one."""
        sent = self._request()
        return None if sent is None else evolve(sent, answered=False)

    def _settle_doubt(self, data: EventData) -> list[SentRequest]:
        """The step is closed; *data* may say that its last failure was not retried."""
        doubtful, self._doubtful = self._doubtful, None
        if doubtful is None:
            return []
        gave_up = (
            isinstance(data, TurnEnd)
            and isinstance(data.ending, Failed)
            and data.ending.error == self._failure
            and not self._admitted
        )
        return [] if gave_up else [doubtful]
