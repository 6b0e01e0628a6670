"""What is wrong with the logs of a run, each log judged once.

Most strikes of an exploration leave a log that another strike left as well, event for
event, and to judge one - eight invariants, its requests, a second life - costs more than to
play it. So judgements are remembered under all that they depend on: equal evidence, equal
judgement. Somebody else's invariants are asked every time, as nobody knows what they read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from attrs import define, field, fields, frozen

from ..session import Session, replay
from ..vocabulary import Event, Message, Request, SessionHeader, SessionId
from ._invariants import BodyRecord, Evidence, check_invariants, history_is_valid
from ._requests import check_requests
from ._turn_machine import check_trace

Invariants: TypeAlias = Callable[[Evidence], list[str]]
T = TypeVar("T")

_FACTS = attrgetter(*(fact.name for fact in fields(BodyRecord)))


@define(eq=False)
class Seen:
    """Judgements that were made, and of what. One for an exploration of one scenario."""

    _known: dict[Hashable, Any] = field(factory=dict, init=False)

    def once(self, key: Hashable | None, judge: Callable[[], T]) -> T:
        """What *judge* says, asked only if it has not been asked for *key*.

        *key* holds all that the answer depends on, and names the question. Without one,
        *judge* is asked every time.
        """
        if key is None:
            return judge()
        if key in self._known:
            found: T = self._known[key]
            return found
        answer = self._known[key] = judge()
        return answer


def digest(value: Hashable) -> tuple[str, int] | None:
    """Stands for *value* in a key; None for what cannot be hashed, such as somebody's own
    class in an extension.

    64 bits instead of the value itself: of ten thousand logs two share a digest by accident
    once in 10^11 explorations, and to compare logs in full costs as much as to play them.
    """
    try:
        return type(value).__name__, hash(value)
    except TypeError:
        return None


@frozen
class Log:
    """The whole log of one session, and the *digest* of its events."""

    events: list[Event]
    digest: Hashable | None

    @classmethod
    def of(cls, events: list[Event]) -> Log:
        return cls(events, digest((len(events), *events)))


@define(eq=False)
class Judge:
    """Judges logs by *invariants*, and remembers."""

    invariants: Invariants = check_invariants
    seen: Seen = field(factory=Seen)

    def requests(self, requests: Iterable[Request]) -> list[str]:
        """What no provider would take of *requests* (invariant 8)."""
        problems = list[str]()
        for request in requests:
            messages = tuple(request.messages)
            found = self.seen.once(
                _key("messages", digest(messages)), partial(history_is_valid, messages)
            )
            problems += [f"8. {problem}" for problem in found]
        return problems

    def broken(self, log: Log, evidence: Evidence) -> list[str]:
        """The invariants that *evidence* breaks, whose events are those of *log*."""
        if self.invariants is not check_invariants:
            return self.invariants(evidence)
        bodies = None if evidence.bodies is None else tuple(map(_FACTS, evidence.bodies))
        facts = digest((bodies, *evidence.sent, evidence.reviewed, evidence.set_aside))
        key = _key("invariants", log.digest, facts)
        return list(self.seen.once(key, lambda: check_invariants(evidence)))

    def drift(self, session: Session, log: Log) -> list[str]:
        """The history derived as the log grew equals the one derived from scratch."""
        derived = self.seen.once(_key("history", log.digest), lambda: _derived(log.events))
        if isinstance(derived, str):
            return [f"8. the log does not replay: {derived}"]
        same = derived == tuple(session.history())
        return [] if same else ["8. the history has drifted from its log"]

    def moves(self, log: Log) -> list[str]:
        """Where *log* is not what the model of the turn machine allows."""
        return list(self.seen.once(_key("moves", log.digest), lambda: check_trace(log.events)))

    def asked(self, header: SessionHeader, log: Log, asked: Sequence[Request]) -> list[str]:
        """Where *asked*, the requests of one session, are not those of its log (invariant 8)."""
        key = _key("asked", digest(header), log.digest, *map(_request_digest, asked))
        found = self.seen.once(key, lambda: check_requests(header, log.events, asked))
        return [f"8. {problem}" for problem in found]


def _key(question: str, *digests: Hashable | None) -> Hashable | None:
    return None if None in digests else (question, *digests)


def _derived(events: Sequence[Event]) -> tuple[Message, ...] | str:
    """The history of *events* from scratch, or why there is none."""
    fresh = Session(SessionHeader(id=SessionId("check"), created_ms=0), now_ms=lambda: 0)
    try:
        replay(fresh, events)
    except Exception as error:
        return str(error)
    return tuple(fresh.history())


def _request_digest(request: Request) -> Hashable | None:
    """All of *request*; whether its messages are a view of a log counts as well."""
    return digest(
        (
            type(request.messages),
            request.session_id,
            request.config,
            tuple(request.messages),
            request.tools,
            request.tool_history,
        )
    )
