"""The world of a simulation: what outlives its processes, and what happened outside the log.

Owns the disk, the effects of tools, who was told what, and the notes of a trace. It is the
witness that a session's log is held against.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import TypeAlias

import trio
from attrs import define, evolve, field, frozen

from ..agent import Agent, EngineStatistics, Turn
from ..engine import Engine
from ..llm import Adapter
from ..llm.scripted import Part
from ..session import Messages, Session
from ..tools import Tool, ToolRun
from ..vocabulary import (
    CallId,
    Event,
    InboxSpliced,
    MessageId,
    Request,
    SessionId,
    TurnEnd,
    TurnStart,
    UsageError,
    UserMessage,
)
from ._disk import Latency, SimulatedDisk
from ._invariants import BodyRecord
from ._recording import Recording
from ._simulate_plan import Simulation
from ._stage import Stage
from ._trace import describe
from ._whole import whole_log

PLANNED = "planned"
"""In the text of every failure that a script asks for; one without it is nobody's plan."""

Note: TypeAlias = tuple[int, float, str, str]
"""Life, virtual seconds, who, what."""


class Planned(Exception):
    """What listeners and models of a simulation raise."""

    def __init__(self) -> None:
        super().__init__(PLANNED)


@frozen
class Effect:
    """A body that began: it happened, whatever becomes of the process."""

    life: int
    session: SessionId
    call: CallId
    name: str
    tool: str


@frozen
class CancelSeen:
    """Somebody cancelled the agent of *session*, whose log had *length* events then."""

    life: int
    session: Session
    length: int
    time_ms: int


@define(eq=False)
class World:
    """Everything that one simulation leaves behind."""

    plan: Simulation
    adapter: Adapter
    given: Sequence[Tool] = ()
    calls: Sequence[Part] = ()
    traced: bool = False
    disk: SimulatedDisk = field(init=False)
    stage: Stage = field(init=False)
    number: int = field(default=0, init=False)
    dead: bool = field(default=False, init=False)
    power_cut: Callable[[], None] | None = field(default=None, init=False)
    engine: Engine | None = field(default=None, init=False)
    troubled: bool = field(default=False, init=False)
    ended_by: str | None = field(default=None, init=False)
    interrupted: bool = field(default=False, init=False)
    """The script has sent a Ctrl-C in this life, whatever ended it first."""
    sessions: dict[SessionId, Session] = field(factory=dict, init=False)
    every: list[Session] = field(factory=list, init=False)
    handed: dict[SessionId, Session] = field(factory=dict, init=False)
    opens: Counter[str] = field(factory=Counter, init=False)
    opened: dict[SessionId, int] = field(factory=dict, init=False)
    sent: dict[SessionId, list[MessageId]] = field(factory=dict, init=False)
    effects: list[Effect] = field(factory=list, init=False)
    told: list[tuple[SessionId, int]] = field(factory=list, init=False)
    cancels: list[CancelSeen] = field(factory=list, init=False)
    broken: dict[SessionId, int] = field(factory=dict, init=False)
    lost: set[SessionId] = field(factory=set, init=False)
    problems: list[str] = field(factory=list, init=False)
    notes: list[Note] = field(factory=list, init=False)
    turns: int = field(default=0, init=False)
    events: int = field(default=0, init=False)
    over: bool = field(default=False, init=False)
    left: Callable[[], EngineStatistics] | None = field(default=None, init=False)
    unsaved: Mapping[str, str] = field(factory=dict, init=False)
    points: set[str] = field(factory=set, init=False)
    _kept: tuple[list[BodyRecord], int] = field(default=([], 0), init=False)
    _ids: int = field(default=0, init=False)
    _asked: int = field(default=0, init=False)
    _effects: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.disk = SimulatedDisk(Latency.of(self.plan.latency), cache=self.plan.cache)
        self.stage = Stage(Recording(self.adapter))

    # --- names, in the order in which they are asked for ---------------------------------

    def new_id(self) -> MessageId:
        self._ids += 1
        return MessageId(f"m{self._ids}")

    def call_id(self) -> str:
        self._asked += 1
        return f"call-{self._asked}"

    def effect_name(self) -> str:
        self._effects += 1
        return f"effect-{self._effects}"

    def now_ms(self) -> int:
        """The log's clock is the virtual one, and a second life comes after the first."""
        return self.number * 1_000_000 + round(trio.current_time() * 1000)

    # --- what happens --------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        if self.traced:
            now = trio.current_time() if trio.lowlevel.in_trio_run() else 0.0
            self.notes.append((self.number, now, who, what))

    def problem(self, text: str) -> None:
        if not self.dead:
            self.problems.append(text)
            self.note("!", text)

    def agent(self, name: str) -> Agent | None:
        return None if self.engine is None else self.engine.agents.get(name)

    def say(self, agent: Agent, how: str, message: UserMessage | None = None) -> None:
        """Send a message, on the record; nothing happens if that is refused."""
        message = message or UserMessage(how, id=self.new_id())
        with suppress(UsageError):
            getattr(agent, how)(message)
            self.remember(agent.id, message.id)

    def remember(self, name: SessionId, message_id: MessageId) -> None:
        """*message_id* is on the record of *name*, and has to stay on it."""
        if not self.dead:
            self.sent.setdefault(name, []).append(message_id)

    def tell(self, agent: Agent, turn: Turn) -> None:
        """Who asked *agent* has its *turn*, which is over for good from now on."""
        if agent.health is None and not self.dead:
            self.told.append((agent.id, turn.number))

    def cancelling(self, agent: Agent) -> None:
        """*agent* is about to be told to stop."""
        if self.dead:
            return
        session = agent.session
        seen = CancelSeen(self.number, session, len(session.events), self.now_ms())
        self.cancels.append(seen)

    def began(self, run: ToolRun, effect: str) -> None:
        """The effect itself: from now on it has happened."""
        if not self.dead:
            name = SessionId(run.agent.id)
            self.effects.append(Effect(self.number, name, run.call_id, effect, run.name))
            self.note(name, f"the body of {run.call_id} begins: {effect}")

    def opened_session(self, session: Session) -> None:
        """A session is in memory: fresh, resumed or forked."""
        self.sessions[session.id] = session
        self.every.append(session)
        self.opened[session.id] = len(session.events)
        if session.header.seed_length:  # what the past did, it did here as well
            parent, length = session.header.parent_id, session.header.seed_length
            self.stage.bodies += [
                evolve(body, agent_id=session.id)
                for body in self.stage.bodies
                if body.agent_id == parent and body.left_at is not None and body.left_at < length
            ]
        if self.traced:
            name = session.id
            session.observers.listen(lambda event: self.note(name, describe(event)))

    def asked_by(self, name: SessionId) -> list[Request]:
        """The requests of this session's own."""
        requests = self.stage.adapter.requests
        return [r for r in requests if r.session_id == name and isinstance(r.messages, Messages)]

    # --- ends -----------------------------------------------------------------------------

    def count(self) -> None:
        """The life is over: what it did counts."""
        for name, session in self.sessions.items():
            events = session.events
            start = self.opened[name]
            self.events += len(events) - start
            self.turns += sum(
                isinstance(event.data, TurnStart) for event in events if event.seq >= start
            )

    def cut_power(self, kept: float) -> None:
        """The process is dead from now on; *kept*: the share of what was not flushed that is
        there all the same, torn unless it is none or all of it."""
        disk = self.disk
        before = {
            name: (whole_log(session, disk), session.durable_seq)
            for name, session in self.sessions.items()
            if name in disk.lengths
        }
        waiting = max((len(disk.unflushed(name)) for name in disk.lengths), default=0)
        for name, number in self.told:
            stored = disk.stored(name) if name in disk.lengths else ()
            ends = {e.data.turn for e in stored if isinstance(e.data, TurnEnd)}
            if number not in ends and self.plan.level != "lazy":
                self.problem(f"8. turn {number} of {name} was answered and is not stored")
        self.note("power", f"cut; {round(kept * 100)} of 100 of {waiting} unflushed events kept")
        found = disk.crash(round(waiting * kept), torn=0 < kept < 1)
        for name, (events, durable) in before.items():
            stored = found.stored(name)
            if list(stored) != events[: len(stored)]:
                self.problem(f"8. the store of {name} does not begin as its log did")
            if durable >= len(stored):
                self.problem(f"8. {name} was told that {durable} is durable, {len(stored)} are")
        self.count()
        self.dead = True
        # What the dying process still does has not happened.
        self.stage.bodies[:] = [copy(body) for body in self.stage.bodies]
        for name in self.sessions:
            self.forget(name, found)
        self._kept = list(self.stage.bodies), len(self.stage.adapter.requests)
        self.disk = found

    def bury(self) -> None:
        """The process that the power cut struck is gone at last."""
        bodies, asked = self._kept
        self.stage.bodies[:] = bodies
        del self.stage.adapter.requests[asked:]

    def forget(self, name: SessionId, disk: SimulatedDisk) -> None:
        """The process that had *name* is gone, and *disk* has less of it than memory had."""
        length = disk.lengths.get(name)
        if length is None:
            self.lost.add(name)
            self.sent.pop(name, None)
            return
        self.broken[name] = self.broken.get(name, 0) + 1
        events = disk.stored(name)
        known = {m.id for e in events for m in _inserted(e)}
        self.sent[name] = [i for i in self.sent.get(name, ()) if i in known]
        careful = self.plan.level == "each"
        kept = []
        for body in self.stage.bodies:
            if body.agent_id == name:
                ended = body.left_at is not None and body.left_at <= length
                if body.read_only and not careful and not ended:
                    continue  # it may run again, and before its call is saved
                body.left_at = min(length if body.left_at is None else body.left_at, length)
                body.entered_at = min(body.entered_at, body.left_at)
            kept.append(body)
        self.stage.bodies[:] = kept


def _inserted(event: Event) -> Sequence[UserMessage]:
    return event.data.inserted if isinstance(event.data, InboxSpliced) else ()


def bodies_of(world: World, name: SessionId) -> list[BodyRecord]:
    return [body for body in world.stage.bodies if body.agent_id == name]
