"""The logs that are cut: what shipped scenarios wrote, and what a crash made of some."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, field, frozen
from tests.whole import whole

from terzetto import MemoryStore, open_engine
from terzetto.llm.scripted import ScriptedModel
from terzetto.testing._explorer import makers
from terzetto.testing._recording import Recording
from terzetto.testing._shipped import SHIPPED
from terzetto.testing._stage import Stage, Ticks
from terzetto.testing._virtual import play
from terzetto.vocabulary import (
    AssistantChunk,
    Event,
    EventData,
    InboxSpliced,
    SessionHeader,
    ToolCallEvent,
)

RICH = (
    "reasoning", "asking", "steered", "interrupted", "failing", "batch", "touching", "broken",
    "context", "reviewed", "resumed", "family", "disposed", "everything",
)  # fmt: skip
"""The scenarios that are swept when none is named; the others are like one of these."""

CRASHED: Sequence[tuple[str, type[EventData], int]] = (
    ("reasoning", AssistantChunk, 3),
    ("batch", ToolCallEvent, 2),
    ("everything", InboxSpliced, 5),
)
"""Scenarios that crashed right after the nth event of a kind, and were resumed."""


@frozen
class Log:
    """What a scenario logged in one session. *name* tells it from the others."""

    name: str
    header: SessionHeader = field(repr=False)
    events: Sequence[Event] = field(repr=False)


def logs_of(scenarios: Sequence[str]) -> list[Log]:
    """All that is to be cut of *scenarios*: of a family the parent, whose log is the longest."""
    logs = [max(play_once(name), key=lambda log: len(log.events)) for name in scenarios]
    named = {log.name: log for log in logs}
    logs += [crashed(named[name], kind, nth) for name, kind, nth in CRASHED if name in named]
    return logs + [lazily(log) for log in logs if log.name == "batch"]


def play_once(name: str) -> list[Log]:
    """The logs of all sessions of a shipped scenario, as they were when it was over."""
    shipped = SHIPPED[name]
    make, _ = makers(shipped.scenario, shipped.model)
    stage = Stage(Recording(make()))

    async def main() -> None:
        await shipped.scenario(stage)

    play(main)
    assert not stage.problems, stage.problems
    latest = {session.id: session for session in stage.sessions}
    return [
        Log(name if len(latest) == 1 else f"{name}/{session.id}", session.header, session.events)
        for session in latest.values()
    ]


def lazily(log: Log) -> Log:
    """*log* as a store would have it that promised nothing about starts."""
    return Log(f"{log.name}, lazy", evolve(log.header, durability="lazy"), log.events)


def crashed(log: Log, kind: type[EventData], nth: int) -> Log:
    """*log* up to the *nth* event of a *kind*, closed by a resume, and a turn after that.

    To cut it is to crash again, in the middle of the repair.
    """
    ends = [event.seq + 1 for event in log.events if isinstance(event.data, kind)]
    known = log.events[: ends[nth - 1]]

    async def main() -> Sequence[Event]:
        store = MemoryStore()
        handle = await store.create(log.header)
        for event in known:
            handle.append(event)
        await handle.close()
        model = ScriptedModel(lambda request: "more")
        async with (
            open_engine(adapters=[model], store=store, now_ms=Ticks()) as engine,
            engine.open_agent(resume=log.header.id) as agent,
        ):
            if agent.model.current() is None:
                agent.model.select(model.provider, "m")
            agent.followup("are you there?")
            await agent.wait_status("idle")
            return whole(agent.session)

    events = play(main)
    assert list(events[: len(known)]) == list(known)
    return Log(f"{log.name}, crashed", log.header, events)
