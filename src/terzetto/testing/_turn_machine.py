"""`check_trace`: whether a session's log is one that an agent of this engine can write.

A pure acceptor over the table in `_turn_table`. It is finer than what a session judges by when
it appends: who may claim which input, in which order a request is admitted, what an answer must
hold, what may follow each way a step can end, and which endings a turn can come to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from attrs import define, field, frozen

from ..vocabulary import Event
from ._trace import describe
from ._turn_facts import Facts
from ._turn_kinds import Kind, kind_of
from ._turn_rules import in_sequence
from ._turn_table import MOVES, STATES, State


@frozen
class Refusal:
    """An event that may not come: what it is, where the machine stood, and what may come.

    *rules* are the names of the guards that did not hold; none, if no row has the event there.
    """

    state: State
    kind: Kind
    seq: int
    text: str
    wanted: tuple[str, ...]
    allowed: tuple[Kind, ...]
    rules: tuple[str, ...]

    def __str__(self) -> str:
        why = f"expected {' or '.join(self.wanted)}; " if self.wanted else ""
        return (
            f"event {self.seq} ({self.text}) may not come: {why}the turn machine is in state "
            f"{self.state!r} ({STATES[self.state]}), where these may come: "
            f"{', '.join(self.allowed)}"
        )


@define(eq=False)
class TurnMachine:
    """Where a log stands. Feed it with `take`, event by event."""

    facts: Facts = field(factory=Facts)
    state: State = "idle"

    @classmethod
    def of(cls, exclusive: Collection[str] = (), capacity: int | None = None) -> TurnMachine:
        return cls(Facts(exclusive=frozenset(exclusive), capacity=capacity))

    def fork(self) -> TurnMachine:
        """A copy that moves on its own."""
        return TurnMachine(self.facts.fork(), self.state)

    def allowed(self) -> tuple[Kind, ...]:
        """The kinds of events that have a row here; their guards are asked with the event."""
        return tuple(kind for state, kind in MOVES if state == self.state)

    def take(self, event: Event) -> Refusal | None:
        """Move by *event*, or say why not and stay."""
        kind = kind_of(event)
        facts = self.facts
        wanted: dict[str, str] = {}
        problem = in_sequence(facts, event)
        if problem is not None:
            return self._refused(kind, event, {problem: in_sequence.__name__})
        for row in MOVES.get((self.state, kind), ()):
            for guard in row.guards:
                problem = guard(facts, event)
                if problem is not None:
                    wanted[problem] = guard.__name__
                    break
            else:
                self.state = row.next or self.state
                facts.move(kind, event)
                return None
        return self._refused(kind, event, wanted)

    def _refused(self, kind: Kind, event: Event, wanted: dict[str, str]) -> Refusal:
        text = " ".join(describe(event).split())
        return Refusal(
            self.state,
            kind,
            event.seq,
            text,
            tuple(wanted),
            self.allowed(),
            tuple(wanted.values()),
        )


def check_trace(
    events: Iterable[Event],
    *,
    exclusive: Collection[str] = (),
    capacity: int | None = None,
    finished: bool = True,
) -> list[str]:
    """What is wrong with the order of *events*, in words; an empty list is a pass.

    Args:
        events: A whole log from seq 0, as `Session.read` gives it.
        exclusive: Names of tools none of whose calls may overlap another: a log does not say
            which are. Calls that no tool could take are known to be exclusive.
        capacity: The cap of running calls of every batch. Only a cap of 1 shows in a log: a
            body's end frees its slot, and its result may wait for others.
        finished: Whether the log is one whose agent is gone: then no turn may be open.

    It ends at the first event that may not come, for nothing is known of what follows. The
    table it judges by is the page "The turn machine".
    """
    machine = TurnMachine.of(exclusive, capacity)
    for event in events:
        refusal = machine.take(event)
        if refusal is not None:
            return [str(refusal)]
    if finished and machine.state not in ("idle", "repaired"):
        means = STATES[machine.state]
        return [f"the log ends in state {machine.state!r} ({means}): its turn is not closed"]
    return []
