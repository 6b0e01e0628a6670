"""Streams: ``python -m benchmarks.streams``, or ``--only stream``.

- ``stream.log``: deltas of a model to the log, and to somebody who looks at each.
- ``stream.sse``: the same from bytes, of a server on a loopback address.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import trio

import terzetto
from terzetto import Event
from terzetto.llm.openai_chat import OpenAIChat

from ._hot import Engaged, Hot, on_disk, turn_of
from ._measure import Sample, Scale, alternate
from ._rows import Ratio, Row
from ._run import Parts, main
from ._work import Load
from .floors import logged_stream, timed_with_log

ROOT = Path(__file__).resolve().parents[1]


def log(scale: Scale) -> Iterable[Row]:
    """With one observer; the floor hands each delta to a reader over a channel."""
    deltas = scale.pick(20_000, 50)

    async def turn(one: Engaged) -> float:
        seen: list[Event] = []
        one.agent.session.observe(seen.append)
        took = await turn_of(one)
        assert len(seen) > deltas
        return took / deltas

    hot = Hot(turn, Load(1, deltas), watched=False)
    found = alternate(
        {
            "ours": hot,
            "stored": on_disk(hot),
            "logged": timed_with_log(deltas, logged_stream, deltas),
        },
        scale,
    )
    for name, what, budget in (("ours", "no store", 0.40), ("stored", "jsonl lazy", 0.55)):
        yield Ratio(
            name=f"{deltas:,} deltas, one observer, {what}",
            unit="delta",
            ours=found[name],
            against="with a log",
            floor=found["logged"],
            budget=budget,
        )


# --- from bytes -----------------------------------------------------------------------------


def sse(scale: Scale) -> Iterable[Row]:
    """The server is a process of its own, and only this one's time is taken: on the clock
    a stream of single events is the server's."""
    deltas = scale.pick(20_000, 50)
    with _server() as url:
        for together in (1, 8, 64):
            found = alternate(
                {
                    "ours": _asked(url, deltas, together),
                    "lines": _lines(url, deltas, together),
                },
                scale,
            )
            yield Ratio(
                name=f"{deltas:,} deltas over HTTP, {together} a write, no store",
                unit="delta",
                ours=found["ours"],
                against="httpx lines and json.loads",
                floor=found["lines"],
                budget=1.3,
            )


@contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks._sse"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


def _asked(url: str, deltas: int, together: int) -> Sample:
    async def sample() -> float:
        adapter = OpenAIChat(base_url=f"{url}/{deltas}/{together}", api_key=None, provider="served")
        async with (
            terzetto.open_engine(adapters=[adapter]) as engine,
            engine.open_agent(provider="served", model="m") as agent,
        ):
            # Once before, so that making the client and connecting is not in the time.
            await agent.ask("Connect.")
            began = time.thread_time()
            turn = await agent.ask("Work.")
            took = time.thread_time() - began
        assert len(turn.text) == 5 * deltas
        return took / deltas

    return partial(trio.run, sample)


def _lines(url: str, deltas: int, together: int) -> Sample:
    async def answer(client: httpx.AsyncClient) -> list[str]:
        texts: list[str] = []
        path = f"{url}/{deltas}/{together}/chat/completions"
        async with client.stream("POST", path, json={}) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    delta = json.loads(line[6:])["choices"][0]["delta"]
                    texts.append(delta.get("content", ""))
        return texts

    async def sample() -> float:
        async with httpx.AsyncClient(timeout=60) as client:
            await answer(client)
            began = time.thread_time()
            texts = await answer(client)
            took = time.thread_time() - began
        assert len("".join(texts)) == 5 * deltas
        return took / deltas

    return partial(trio.run, sample)


PARTS: Parts = {"stream.log": log, "stream.sse": sse}

if __name__ == "__main__":
    main(PARTS)
