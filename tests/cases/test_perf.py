"""Cases of kind *perf*: cost that grows with the size, and connections that come back.

Nothing is timed: what a stream costs is counted (`tests/counted.py`).
"""

from __future__ import annotations

import gc
import os
import random
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import trio
from tests.agent.kit import ROUTE, engine_on, played
from tests.cases.kit import DONE, HANG, PATIENCE, case, chunk, finish, plays, says, served, text
from tests.counted import Work, assert_linear, counted

import terzetto
from terzetto import tool
from terzetto.llm.loopback import serve_openai
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import Delay, ScriptedModel, answer, say
from terzetto.vocabulary import AssistantMessageEvent, ReasoningBlock

PIECE = "8 bytes."


# --- BC-52 ----------------------------------------------------------------------------------


@tool
async def write(content: str) -> int:
    """Write."""
    return len(content)


def thought(value: str) -> Any:
    return chunk({"reasoning_content": value})


def more(arguments: str) -> Any:
    return chunk({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]})


def script(kind: str, pieces: int) -> list[Any]:
    """What a provider sends: so many deltas of 8 bytes."""
    if kind == "text":
        return [plays(*(text(PIECE) for _ in range(pieces)), finish("stop"), DONE)]
    if kind == "reasoning":
        thoughts = (thought(PIECE) for _ in range(pieces))
        return [plays(*thoughts, text("so"), finish("stop"), DONE)]
    name = {"name": "write", "arguments": '{"content": "'}
    begin = chunk({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": name}]})
    pieced = (more(PIECE) for _ in range(pieces))
    return [plays(begin, *pieced, more('"}'), finish("tool_calls"), DONE), says("done")]


async def streamed(kind: str, pieces: int, folder: Path) -> Work:
    """A whole turn, from bytes to a finished answer; what it cost."""
    followed: list[int] = []
    async with served(script(kind, pieces), [write], folder=folder) as life:

        async def follow() -> None:
            async for event in life.session.follow():
                followed.append(event.seq)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            with counted() as work:
                await life.say("go")
            nursery.cancel_scope.cancel()
        answer = next(
            e.data.message for e in life.session.events if isinstance(e.data, AssistantMessageEvent)
        )
        match kind:
            case "text":
                assert answer.text == PIECE * pieces
            case "reasoning":
                (thoughts,) = [b.text for b in answer.content if isinstance(b, ReasoningBlock)]
                assert thoughts == PIECE * pieces
            case _:
                assert life.results() == {"c": str(len(PIECE) * pieces)}
    assert len(followed) > pieces
    return work


@case(52, "text", "reasoning", "arguments")
async def test_streaming_cost_is_linear(variant: str, tmp_path: Path) -> None:
    """BC-52: four times the deltas are four times the work, for all that Terzetto does in a
    turn: decode, log, follow, assemble, store, and give a tool its arguments."""

    async def cost(pieces: int) -> Work:
        return await streamed(variant, pieces, tmp_path / str(pieces))

    await cost(10)  # what is only made once is not on trial
    assert_linear(await cost(100), await cost(400), 4)


@case(52, "gap")
def test_others_get_a_turn_while_an_answer_streams(variant: str) -> None:
    """BC-52: a stream that never waits still lets others run, after a bounded number of
    deltas, however long it is already."""

    @played
    async def run() -> None:
        gaps: list[int] = []
        model = ScriptedModel([answer(say(PIECE * 4000, pieces=4000))])
        async with engine_on(model) as engine:
            async with engine.open_agent(**ROUTE) as agent:

                async def tick() -> None:
                    seen = len(agent.session.events)
                    while True:
                        await trio.lowlevel.checkpoint()
                        now = len(agent.session.events)
                        gaps.append(now - seen)
                        seen = now

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(tick)
                    assert len((await agent.ask("go")).text) == len(PIECE) * 4000
                    nursery.cancel_scope.cancel()
        assert sum(gaps) > 4000
        assert max(gaps) <= 2 * 60, "two stretches at most, whoever Trio lets run first"

    run()


@case(52, "memory")
def test_memory_is_proportional_to_the_size(variant: str) -> None:
    def peak(pieces: int) -> int:
        @played
        async def run() -> None:
            model = ScriptedModel([answer(say(PIECE * pieces, pieces=pieces))])
            async with engine_on(model) as engine:
                async with engine.open_agent(**ROUTE) as agent:
                    assert len((await agent.ask("go")).text) == len(PIECE) * pieces

        gc.collect()
        tracemalloc.start()
        try:
            run()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    small, large = peak(1000), peak(4000)
    assert large <= small * 5, (small, large)


# --- BC-53 ----------------------------------------------------------------------------------


def sockets() -> int:
    return len(os.listdir("/proc/self/fd"))


@case(53, "streaming", "connecting")
async def test_the_pool_survives_many_cancels(variant: str) -> None:
    """BC-53: two connections, five agents, all cut at some moment again and again; then one
    request is served, and every socket is given back."""
    rng = random.Random(53)
    slow = plays(Delay(0.002), text("a"), Delay(0.005), text("b"), ending=HANG)
    healthy = False
    with trio.fail_after(PATIENCE), full_listener() as port:
        before = sockets()
        async with serve_openai(lambda _: says("fine") if healthy else slow) as server:
            url = f"http://127.0.0.1:{port}/v1" if variant == "connecting" else server.base_url
            many = OpenAIChat(api_key="k", base_url=url, provider="many", max_connections=2)
            async with terzetto.open_engine(adapters=[many]) as engine:

                async def cut() -> None:
                    async with engine.open_agent(provider="many", model="m") as agent:
                        agent.followup("go")
                        await trio.sleep(rng.random() * 0.02)

                for _ in range(60):
                    async with trio.open_nursery() as nursery:
                        for _ in range(5):
                            nursery.start_soon(cut)
                assert engine.agents.list() == []
                if variant == "streaming":
                    healthy = True
                    async with engine.open_agent(provider="many", model="m") as agent:
                        assert (await agent.ask("go")).text == "fine"
        assert sockets() <= before


def full_listener() -> Any:
    """A listener that accepts nobody, its queue full: connecting to it takes for ever."""
    return _FullListener()


class _FullListener:
    def __enter__(self) -> int:
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(0)
        self.waiting = [socket.socket() for _ in range(4)]
        for one in self.waiting:
            one.setblocking(False)
            one.connect_ex(self.listener.getsockname())
        port: int = self.listener.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        for one in (*self.waiting, self.listener):
            one.close()


# --- BC-54 ----------------------------------------------------------------------------------


@case(54, "never-reads", "stops-reading", "raises")
def test_a_consumer_that_stops_reading_harms_nobody(variant: str) -> None:
    """BC-54: the turn and the log are complete, others see everything, cancelling works."""

    @played
    async def run() -> None:
        deltas = 5000
        model = ScriptedModel([answer(say(PIECE * deltas, pieces=deltas)), answer(say("two"))])
        whole: list[int] = []
        async with engine_on(model) as engine:
            async with engine.open_agent(**ROUTE) as agent, trio.open_nursery() as nursery:

                async def consume() -> None:
                    read = 0
                    async for _ in agent.session.follow():
                        read += 1
                        if variant == "never-reads":
                            await trio.sleep_forever()
                        if read == 3:
                            return

                async def witness() -> None:
                    async for event in agent.session.follow():
                        whole.append(event.seq)

                def explode(event: object) -> None:
                    raise ValueError("an observer's own")

                nursery.start_soon(witness)
                if variant == "raises":
                    agent.session.observe(explode)
                else:
                    nursery.start_soon(consume)
                assert len((await agent.ask("go")).text) == len(PIECE) * deltas
                agent.followup("and now?")
                agent.cancel()
                await agent.wait_idle()
                await trio.sleep(1)
                assert whole == list(range(len(agent.session.events)))
                assert len(whole) > deltas
                nursery.cancel_scope.cancel()

    run()
