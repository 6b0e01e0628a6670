"""Memory follows the surface, whatever was streamed: objects and blocks counted, no clock.

A session of many chunk events in several messages, on the stores on disk.
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from pathlib import Path
from types import FrameType

import pytest
import trio
from tests.agent.kit import ROUTE, engine_on
from tests.stores.kit import made_in

from terzetto import Agent
from terzetto.llm.scripted import ScriptedModel, answer, say
from terzetto.session import PAGE
from terzetto.vocabulary import (
    AssistantChunk,
    AssistantMessageEvent,
    Event,
    EventData,
    EventReleased,
    Seqs,
    SessionHeader,
    SessionId,
    StepStart,
    TextDelta,
    TurnStart,
)

MESSAGES = 3
FEW, MANY = 100, 4_000
"""Pieces of an answer."""
LAYOUTS = ["jsonl", "sqlite"]

pytestmark = pytest.mark.usefixtures("forgotten")


def script(pieces: int) -> ScriptedModel:
    """Answers of one size, in so many pieces each."""
    return ScriptedModel([answer(say("x" * 10_000, pieces=pieces)) for _ in range(MESSAGES)])


def collected() -> None:
    """What nobody needs is gone. A thread that has delivered what it read from a store still
    has it, until the system lets the thread go on and wait for its next job."""
    end = time.monotonic() + 60
    while any(map(_at_a_job, sys._current_frames().values())) and time.monotonic() < end:
        time.sleep(0.001)
    gc.collect()


def _at_a_job(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "_handle_job":
            return True
        frame = frame.f_back
    return False


def kept() -> int:
    collected()
    return len(gc.get_objects())


def size() -> int:
    collected()
    return tracemalloc.get_traced_memory()[0]


async def _streamed(folder: Path, kind: str, pieces: int) -> tuple[int, int]:
    """What a session of such answers keeps, once they are settled: objects and bytes."""
    async with engine_on(script(pieces), store=made_in(folder, kind)) as engine:
        async with engine.open_agent(**ROUTE, session_id="s") as agent:
            before = kept(), size()
            for _ in range(MESSAGES):
                await agent.ask("go")
            engine_keeps = kept() - before[0], size() - before[1]
            check(agent, pieces)
            return engine_keeps


def check(agent: Agent, pieces: int) -> None:
    events = agent.session.events
    assert len(events) > MESSAGES * pieces
    assert not [e for e in events if isinstance(e.data, AssistantChunk)]
    answers = [e for e in events if isinstance(e.data, AssistantMessageEvent)]
    assert len(answers) == MESSAGES
    for event in answers:
        assert event.sources is not None
        assert len(event.sources) > pieces
        assert pieces < 100 or isinstance(event.sources, Seqs)
        with pytest.raises(EventReleased):
            events[event.sources[0]]
    assert not agent.session.place.attempt
    assert agent.history()[-1].text == "x" * 10_000


@pytest.mark.parametrize("kind", LAYOUTS)
def test_what_is_kept_does_not_grow_with_the_chunks(kind: str, tmp_path: Path) -> None:
    """12,000 chunk events leave what 300 leave: no object and no number for each."""
    tracemalloc.start()
    try:
        trio.run(_streamed, tmp_path / "warm", kind, FEW)
        few = trio.run(_streamed, tmp_path / "few", kind, FEW)
        many = trio.run(_streamed, tmp_path / "many", kind, MANY)
    finally:
        tracemalloc.stop()
    assert abs(many[0] - few[0]) < 300, "objects"
    assert many[1] - few[1] < 48_000, "bytes: about four for a chunk"


async def _resumed(folder: Path, kind: str, pieces: int) -> tuple[int, int, int]:
    """What a resumed session keeps: objects, bytes; and the bytes at the peak of resuming."""
    async with engine_on(ScriptedModel(["more"]), store=made_in(folder, kind)) as engine:
        before = kept(), size()
        tracemalloc.reset_peak()
        async with engine.open_agent(resume="s") as agent:
            peak = tracemalloc.get_traced_memory()[1] - before[1]
            after = kept() - before[0], size() - before[1]
            check(agent, pieces)
            assert (await agent.ask("more")).text == "more"
            return *after, peak


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_resumed_session_keeps_no_more_and_needs_a_page_at_most(
    kind: str, tmp_path: Path
) -> None:
    """Peak: a page of events and the surface, and not the log."""
    for name, pieces in (("few", FEW), ("many", MANY)):
        trio.run(_streamed, tmp_path / name, kind, pieces)
    tracemalloc.start()
    try:
        trio.run(_resumed, tmp_path / "few", kind, FEW)  # caches are warm from here on
        trio.run(_streamed, tmp_path / "few2", kind, FEW)
        few = trio.run(_resumed, tmp_path / "few2", kind, FEW)
        many = trio.run(_resumed, tmp_path / "many", kind, MANY)
    finally:
        tracemalloc.stop()
    assert abs(many[0] - few[0]) < 300, "objects"
    assert many[1] - few[1] < 64_000, "bytes: less than six for a chunk"
    # A page of events, stored, decoded and replayed; and a block of the file. The log itself
    # would be 12,000 events of 1,000 bytes.
    assert many[2] - few[2] < PAGE * 3_000 + 5_000_000, "peak"


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_session_cut_in_a_long_answer_resumes_in_pages(kind: str, tmp_path: Path) -> None:
    """C145: the anchor of what was streamed comes from pages; the chunks stay in the store."""

    async def first() -> None:
        store = made_in(tmp_path, kind)
        handle = await store.create(SessionHeader(id=SessionId("s"), created_ms=1))
        began: list[EventData] = [TurnStart(1), StepStart(1, 1)]
        streamed = [AssistantChunk(1, 1, TextDelta(0, "word ")) for _ in range(5_000)]
        for seq, data in enumerate([*began, *streamed]):
            handle.append(Event(seq, seq, data))
        await handle.close()

    async def second() -> None:
        async with engine_on(ScriptedModel(["more"]), store=made_in(tmp_path, kind)) as engine:
            async with engine.open_agent(resume="s", **ROUTE) as agent:
                events = agent.session.events
                anchor = next(
                    e for e in reversed(events) if isinstance(e.data, AssistantMessageEvent)
                )
                assert isinstance(anchor.data, AssistantMessageEvent)
                assert anchor.data.interrupted
                assert anchor.data.message.text == "word " * 5_000
                assert anchor.sources == tuple(range(2, 5_002))
                assert not [e for e in events if isinstance(e.data, AssistantChunk)]
                assert len(await agent.session.read(2, 5_002)) == 5_000
                assert (await agent.ask("more")).text == "more"

    trio.run(first)
    trio.run(second)
