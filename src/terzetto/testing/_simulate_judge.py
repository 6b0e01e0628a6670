"""What must hold of a simulation: of every session's log, and of the world beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from ..session import Session, rebuild, replay
from ..vocabulary import (
    Append,
    AssistantMessageEvent,
    CallId,
    Event,
    Failed,
    Interrupted,
    Request,
    SessionHeader,
    SessionId,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    TurnEnd,
    TurnStart,
    texts,
)
from ._invariants import Evidence, check_invariants
from ._requests import _bytes, check_requests
from ._simulate_life import GIVE_WAY
from ._simulate_world import PLANNED, CancelSeen, World, bodies_of
from ._turn_machine import check_trace

SessionCheck: TypeAlias = Callable[[SessionHeader, Sequence[Event]], Iterable[str]]
"""Given a session's header and its whole log, once it is over: what is wrong with it."""


def _turn_machine(header: SessionHeader, events: Sequence[Event]) -> Iterable[str]:
    """The turn machine accepts the log, and no call overlaps one of a tool that runs alone."""
    return check_trace(events, exclusive=("alone",))


SESSION_CHECKS: tuple[SessionCheck, ...] = (_turn_machine,)
"""Asked of every session of every simulation, besides the invariants."""

_UNTRUE = frozenset({texts.TOOL_NOT_STARTED, texts.ABORTED_BEFORE_DISPATCH})
_REPAIRED_LIVE = "was cancelled live, not repaired"
_UNSTARTED_SUCCESS = "never ran but its result is a success"


def judge(world: World, checks: Iterable[SessionCheck]) -> Iterator[str]:
    """What is wrong with *world*, whose last life left every log on its disk."""
    checks = [*SESSION_CHECKS, *checks]
    logs: dict[SessionId, Sequence[Event]] = {}
    for name in sorted(world.disk.lengths):
        session = world.sessions.get(SessionId(name))
        if session is None:
            continue  # it did not open in the last life, which has been said
        events = world.disk.stored(name)
        logs[session.id] = events
        found = [*_of_a_session(world, session, events)]
        for check in checks:
            found += check(session.header, events)
        yield from (f"{problem} ({name})" for problem in found)
    for seen in world.cancels:
        yield from _give_way(world, seen)
    yield from _of_the_effects(world, logs)


def _of_a_session(world: World, session: Session, events: Sequence[Event]) -> Iterator[str]:
    name = session.id
    evidence = Evidence(
        events,
        bodies_of(world, name),
        world.sent.get(name, ()),
        bool(world.points & {"tool_post_execute", "tool_execute"}),
        "pre_step" in world.points,
    )
    excused = _excused(world)
    for problem in check_invariants(evidence):
        if not problem.endswith(excused):
            yield problem
    yield from _drift(session, events)
    yield from check_trace(events)
    asked = world.asked_by(name)
    if world.plan.level == "lazy" and name in world.broken:  # what was lost was asked as well
        sent = [_bytes(each.request) for each in rebuild(session.header, events)]
        asked = [*reversed([*_known(sent, asked)])]
    yield from (f"8. {problem}" for problem in check_requests(session.header, events, asked))
    interrupted = 0
    for event in events:
        if isinstance(event.data, TurnEnd):
            ending = event.data.ending
            interrupted += isinstance(ending, Interrupted)
            if isinstance(ending, Failed) and not _meant(world, ending):
                yield f"turn {event.data.turn} failed with {ending.error}, which nobody planned"
    if interrupted > world.broken.get(name, 0) and not session.header.seed_length:
        yield f"{interrupted} turns were repaired, of {world.broken.get(name, 0)} that were cut"


def _known(sent: Sequence[bytes], asked: Sequence[Request]) -> Iterator[Request]:
    """Those of *asked* that the log has *sent*, the latest first: a life that was lost may have
    asked for the same."""
    waiting = [(request, _bytes(request)) for request in asked]
    for wanted in reversed(sent):
        for at in reversed(range(len(waiting))):
            if waiting[at][1] == wanted:
                yield waiting[at][0]
                del waiting[at:]
                break


def _excused(world: World) -> tuple[str, ...]:
    """What the script asks for although an invariant forbids it."""
    excused = list[str]()
    lives = world.plan.lives
    if any(x.point == "tool_execute" and x.does == "decide" for y in lives for x in y.listeners):
        excused.append(_UNSTARTED_SUCCESS)
    if any(life.troubles for life in lives):
        # A store that fails before a body starts fails the batch, and the closer of the step
        # answers what was recorded (C135), also where a cancel comes at the same moment.
        excused.append(_REPAIRED_LIVE)
    return tuple(excused)


def _meant(world: World, ending: Failed) -> bool:
    """Whether somebody in the script asked for this failure."""
    error = ending.error
    if error.code == texts.STORE:
        return any(life.troubles for life in world.plan.lives)
    wrong = ("a listener of ", "asynchronous context manager")
    by_listener = _has(world, "wrong") and any(text in error.message for text in wrong)
    return PLANNED in error.message or error.code == "TRANSPORT" or by_listener


def _has(world: World, does: str) -> bool:
    return any(x.does == does for life in world.plan.lives for x in life.listeners)


def _drift(session: Session, events: Sequence[Event]) -> list[str]:
    """The history derived as the log grew equals the one derived from scratch."""
    fresh = Session(session.header, now_ms=lambda: 0)
    try:
        replay(fresh, events)
    except Exception as error:
        return [f"8. the log does not replay: {error}"]
    same = list(fresh.history()) == list(session.history())
    return [] if same else ["8. the history has drifted from its log"]


def _give_way(world: World, seen: CancelSeen) -> Iterator[str]:
    """A turn that was open when it was cancelled ends soon."""
    opened = False
    for event in seen.session.events:
        if event.seq < seen.length:
            if isinstance(event.data, (TurnStart, TurnEnd)):
                opened = isinstance(event.data, TurnStart)
        elif isinstance(event.data, TurnEnd):
            took = (event.time_ms - seen.time_ms) / 1000
            slow = sum(20 for life in world.plan.lives if life.troubles)
            if opened and took > GIVE_WAY + slow + 10 * world.plan.latency:
                name = seen.session.id
                yield f"turn {event.data.turn} of {name} took {took} s to give way to its cancel"
            return


def _of_the_effects(world: World, logs: dict[SessionId, Sequence[Event]]) -> Iterator[str]:
    """Where the logs and what really happened disagree."""
    level = world.plan.level
    said = {name: _answers(events) for name, events in logs.items()}
    for effect in world.effects:
        if effect.session not in logs or level == "lazy":
            continue
        saved_first = effect.tool != "look" or level == "each"
        known = said[effect.session]
        which = f"5. the effect {effect.name} of {effect.session}, {effect.call},"
        if effect.call not in known:
            if saved_first:
                yield f"{which} is in no log"
        elif saved_first and known[effect.call] in _UNTRUE:
            yield f"{which} began, and its result says {known[effect.call]}"
    calls = Counter((effect.session, effect.call) for effect in world.effects)
    yield from (f"5. {call} ran {times} times" for (_, call), times in calls.items() if times > 1)
    # By session: a fork may ask for what its source asks for, too.
    once = [e for e in world.effects if e.tool != "look" or level == "each"]
    for (_, name), times in Counter((e.session, e.name) for e in once).items():
        if times > 1 and level != "lazy":
            yield f"5. {name} was asked for again, and happened {times} times"


def _answers(events: Sequence[Event]) -> dict[CallId, str | None]:
    """The calls that a log knows of, with the code of their result if it is an error."""
    found: dict[CallId, str | None] = {}
    for event in events:
        match event.data:
            case AssistantMessageEvent(message=message):
                found |= dict.fromkeys(call.id for call in message.tool_calls)
            case ToolCallEvent(call_id=call_id):
                found.setdefault(call_id, None)
            case ToolResultEvent(error=error, message=message) if isinstance(
                event.surface_op, Append
            ):
                for block in message.content:
                    if isinstance(block, ToolResultBlock):
                        found[block.tool_call_id] = error.code if error is not None else None
            case _:
                pass
    return found
