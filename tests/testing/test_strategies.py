"""The strategies that are shipped make what they promise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio
from hypothesis import Phase, find, given, settings, strategies as st
from hypothesis.strategies import SearchStrategy
from tests.whole import whole

from terzetto import open_engine, tool
from terzetto.llm.scripted import Answer, ScriptedModel
from terzetto.session import Place, Session, replay
from terzetto.testing import SOURCES, Evidence, Stage, check_invariants, explore, play
from terzetto.testing.strategies import batches, legal_logs, open_logs, scripts, streams
from terzetto.vocabulary import (
    Event,
    Finish,
    MaxTokens,
    SessionHeader,
    SessionId,
    Stop,
    StreamChunk,
    ToolCallBlock,
    ToolCalls,
    assemble,
    is_complete,
)

T = TypeVar("T")
TOOLS = {"look": st.fixed_dictionaries({"path": st.sampled_from(["a", "b"])})}


@given(streams())
def test_a_whole_stream_is_an_answer(chunks: tuple[StreamChunk, ...]) -> None:
    """Its last chunk is a finish that fits, and its blocks are what is assembled."""
    *before, last = chunks
    assert isinstance(last, Finish)
    assert is_complete(last.reason)
    assert not any(isinstance(chunk, Finish) for chunk in before)
    content = assemble(chunks).assembled().content
    calls = [block for block in content if isinstance(block, ToolCallBlock)]
    assert isinstance(last.reason, ToolCalls if calls else (Stop, MaxTokens))
    assert len({call.id for call in calls}) == len(calls)


def found(strategy: SearchStrategy[T], wanted: Callable[[T], bool]) -> T:
    """An example as it comes, without looking for the smallest."""
    return find(strategy, wanted, settings=settings(phases=[Phase.generate], max_examples=2000))


def test_streams_may_be_cut_anywhere_and_fail() -> None:

    def fails(chunks: tuple[StreamChunk, ...]) -> bool:
        last = chunks[-1] if len(chunks) > 2 else None
        return isinstance(last, Finish) and not is_complete(last.reason)

    assert found(streams(cut=True), lambda chunks: not chunks) == ()
    assert found(streams(cut=True), lambda c: bool(c) and not isinstance(c[-1], Finish))
    assert found(streams(cut=True), fails)


@given(legal_logs())
def test_a_legal_log_replays(log: tuple[Event, ...]) -> None:
    session = Session(SessionHeader(id=SessionId("s"), created_ms=0), now_ms=lambda: 0)
    replay(session, log)
    assert session.place.open_turn is None


@given(open_logs())
def test_an_open_log_is_a_legal_one_so_far(log: tuple[Event, ...]) -> None:
    place = Place()
    for event in log:
        place.judge(event)
        place.move(event)
    assert place.next_seq == len(log)


def test_the_two_kinds_of_batches() -> None:
    """Tame ones call what there is; wild ones also what there is not, and with broken text."""
    part = found(batches(TOOLS), lambda parts: len(parts) == 3)
    assert len(part) == 3
    assert found(batches(TOOLS, wild=True), lambda parts: "no_such_tool" in repr(parts))
    assert find(
        batches(TOOLS, wild=True), lambda parts: "'['" in repr(parts) or "[]" in repr(parts)
    )


@settings(max_examples=20)
@given(scripts(TOOLS, wild=True))
def test_an_agent_survives_whatever_a_model_answers(script: list[Answer]) -> None:
    """C126-C130: a wild script, to its end: every invariant of the log holds."""

    @tool(parallel=True)
    async def look(path: str) -> str:
        """Look."""
        await trio.sleep(0.1)
        return path

    async def main() -> list[Event]:
        async with (
            open_engine(adapters=[ScriptedModel(script)], tools=[look]) as engine,
            engine.open_agent(provider="scripted", model="m") as agent,
        ):
            agent.followup("go")
            await agent.wait_idle()
            return whole(agent.session)

    assert check_invariants(Evidence(play(main))) == []


@settings(max_examples=5)
@given(scripts(TOOLS))
def test_scripts_are_models_of_explorations(script: list[Answer]) -> None:
    async def scenario(stage: Stage) -> None:
        @tool(parallel=True)
        async def look(path: str) -> str:
            """Look."""
            await trio.sleep(0.1)
            return path

        async with stage.open_engine([look]) as engine, stage.open_agent(engine) as agent:
            stage.send("followup", "go")
            await agent.wait_idle()

    report = explore(scenario, script, sources=SOURCES[:1], stride=7)
    assert report.violations == []
    assert report.points >= 2


def test_the_rest_of_the_package_does_not_need_hypothesis() -> None:
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import terzetto.testing\n"
        "try:\n    import terzetto.testing.strategies\n"
        "except ImportError as error:\n    print('refused')"
    )
    source = Path(__file__).resolve().parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(source), "PATH": ""},
    )
    assert (done.stdout.strip(), done.stderr) == ("refused", "")
