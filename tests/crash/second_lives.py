"""What must hold of a cut log once it is resumed, followed up, and resumed again.

Nothing here knows how a cut was made: it is given what must still be stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import trio
from attrs import define, field
from tests.llm.strict import judge
from tests.whole import whole

from terzetto import Engine, Store, open_engine
from terzetto.llm._openai_wire import encode_request
from terzetto.llm.scripted import ScriptedModel
from terzetto.session import Session, closers, replay
from terzetto.stores import WriteHandle
from terzetto.testing._invariants import Evidence, check_invariants, history_is_valid
from terzetto.testing._recording import Recording
from terzetto.vocabulary import (
    Append,
    AssistantMessageEvent,
    CallId,
    EndSeed,
    Event,
    SessionHeader,
    StepEnd,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    TurnEnd,
    TurnStart,
    texts,
)

PATIENCE = 20
"""Real seconds that one turn of a scripted model may take before it counts as hanging."""


@define
class Watched:
    """A store that remembers what its handles say of the logs that they opened."""

    store: Store
    repaired: list[object] = field(factory=list)

    async def create(self, header: SessionHeader) -> WriteHandle:
        return await self.store.create(header)

    async def open(self, session_id: str, mode: Any = "write") -> Any:
        if mode == "read":
            return await self.store.open(session_id, "read")
        handle = await self.store.open(session_id)
        self.repaired.append(handle.repaired)
        return handle

    async def read(self, session_id: str, start: int = 0) -> tuple[SessionHeader, list[Event]]:
        return await self.store.read(session_id, start)

    async def delete(self, session_id: str) -> None:
        await self.store.delete(session_id)

    def locate(self, session_id: str) -> str | None:
        return self.store.locate(session_id)

    async def list(self) -> list[SessionHeader]:
        return await self.store.list()


async def live_again(
    first: Store, second: Store, header: SessionHeader, known: Sequence[Event], torn: bool
) -> list[str]:
    """Everything that is wrong with a session of which *known* must be stored.

    Args:
        first, second: Fresh stores on the same cut storage, for two lives.
        header: As it was written.
        known: The events that must be there, neither more nor fewer.
        torn: Whether the store must say that it repaired something.
    """
    watched, model = Watched(first), Recording(ScriptedModel(lambda request: "more"))
    async with open_engine(adapters=[model], store=watched) as engine:
        async with engine.open_agent(resume=header.id) as agent:
            session, opened = agent.session, len(agent.session.events)
            if agent.model.current() is None:
                agent.model.select(model.provider, "m")
            agent.inbox.clear()
            agent.followup("and now?")
            with trio.move_on_after(PATIENCE) as patience:
                await agent.wait_status("idle")
    problems = ["the follow-up hangs"] if patience.cancelled_caught else []
    if [told is not None for told in watched.repaired] != [torn]:
        problems.append(f"torn: {torn}, and the store says {watched.repaired}")
    events = whole(session)
    problems += of_the_log(header, known, events, opened)
    problems += of_the_requests(model)
    problems += await of_the_next_life(second, header, events)
    return problems


async def look(
    first: Store, second: Store, header: SessionHeader, known: Sequence[Event], torn: bool
) -> list[str]:
    """As `live_again`, but it only reads, and only the end: there are cuts with the same
    events that are read as a whole."""
    start = max(0, len(known) - 4)
    if await first.read(header.id, start) != (header, list(known[start:])):
        return [f"{len(known)} events were stored, and others are read"]
    return []


async def go_on(
    first: Store, second: Store, header: SessionHeader, known: Sequence[Event], torn: bool
) -> list[str]:
    """As `live_again`, without engines: *known* is there, and one more event after it."""
    handle = await first.open(header.id)
    problems = []
    try:
        found = await handle.read()
        if found != list(known):
            problems.append(f"{len(known)} events were stored, {len(found)} found, or others")
        if (handle.repaired is not None) != torn:
            problems.append(f"torn: {torn}, and the store says {handle.repaired!r}")
        more = Event(len(found), found[-1].time_ms if found else 0, EndSeed())
        handle.append(more)
    finally:
        await handle.close()
    if await second.read(header.id) != (header, [*known, more]):
        problems.append("what is stored is not what was there and what was appended")
    return problems


def of_the_log(
    header: SessionHeader, known: Sequence[Event], events: Sequence[Event], opened: int
) -> Iterator[str]:
    """*events*, when it was followed up; *opened*: how many they were before that."""
    if list(events[: len(known)]) != list(known):
        same = 0
        while events[same : same + 1] == known[same : same + 1] and same < len(known):
            same += 1
        yield f"{len(known)} events were stored, of which {same} were found"
    if [event.seq for event in events] != list(range(len(events))):
        yield "the log is not contiguous"
    yield from check_invariants(Evidence(events))
    kinds = Counter(type(event.data) for event in events)
    if kinds[TurnStart] != kinds[TurnEnd]:
        yield f"{kinds[TurnStart]} turns began, {kinds[TurnEnd]} ended"
    yield from repeated_effects(known, events[len(known) : opened], header.durability == "lazy")
    if events[opened:] and not isinstance(events[-1].data, TurnEnd):
        yield f"the follow-up ends with {type(events[-1].data).__name__}"
    if more := closed_again(header, events[:opened]):
        yield f"closing what is closed adds {more}"


def repeated_effects(known: Sequence[Event], added: Sequence[Event], lazy: bool) -> Iterator[str]:
    """Calls without a result in *known* whose result in *added* is untrue, or missing."""
    owed: dict[CallId, str] = {}
    otherwise = texts.TOOL_OUTCOME_UNKNOWN if lazy else texts.TOOL_NOT_STARTED
    for event in known:
        match event.data:
            case AssistantMessageEvent(message=message):
                owed = {call.id: otherwise for call in message.tool_calls}
            case ToolCallEvent(call_id=call_id):
                owed[call_id] = texts.TOOL_OUTCOME_UNKNOWN
            case ToolResultEvent() if isinstance(event.surface_op, Append):
                for call_id in answered(event.data):
                    owed.pop(call_id, None)
            case StepEnd():
                owed = {}
            case _:
                pass
    for event in added:
        match event.data:
            case AssistantMessageEvent(message=message):
                owed |= {call.id: otherwise for call in message.tool_calls}
            case ToolResultEvent(error=error):
                code = error.code if error is not None else None
                for call_id in answered(event.data):
                    wanted = owed.pop(call_id, "nothing, for it is not owed")
                    if code != wanted:
                        yield f"the result of {call_id!r} says {code}, expected {wanted}"
            case _:
                pass
    if owed:
        yield f"{sorted(owed)} have no result"


def answered(data: ToolResultEvent) -> list[CallId]:
    return [b.tool_call_id for b in data.message.content if isinstance(b, ToolResultBlock)]


def closed_again(header: SessionHeader, events: Sequence[Event]) -> list[str]:
    session = Session(header, now_ms=lambda: 0)
    with suppress(Exception):  # what does not replay was told already
        replay(session, events)
        drafts = closers(session.place, session.pending, session.folds)
        return [type(draft.data).__name__ for draft in drafts]
    return []


def of_the_requests(model: Recording) -> Iterator[str]:
    if len(model.requests) != 1:
        yield f"the follow-up took {len(model.requests)} requests"
    for request in model.requests:
        yield from history_is_valid(request.messages)
        yield from judge(encode_request(request))


async def of_the_next_life(
    store: Store, header: SessionHeader, events: Sequence[Event]
) -> list[str]:
    watched, model = Watched(store), Recording(ScriptedModel(lambda request: "never"))
    async with open_engine(adapters=[model], store=watched) as engine:
        found = await _as_opened(engine, header)
    stored_header, stored = await store.read(header.id)
    problems = []
    if found[: len(events)] != list(events):
        problems.append("the second life does not begin with the first")
    if added := [type(e.data).__name__ for e in found[len(events) :] if not _is_mark(e)]:
        problems.append(f"the second life closes what was closed: {added}")
    if stored != found or stored_header != header:
        problems.append("what is stored is not what the second life has")
    if watched.repaired != [None]:
        problems.append(f"the second life repairs: {watched.repaired}")
    if model.requests:
        problems.append("the second life sent a request that nobody asked for")
    return problems


async def _as_opened(engine: Engine, header: SessionHeader) -> list[Event]:
    async with engine.open_agent(resume=header.id) as agent:
        return whole(agent.session)


def _is_mark(event: Event) -> bool:
    """Where a life begins; every resume may log it (C145)."""
    return isinstance(event.data, EndSeed)
