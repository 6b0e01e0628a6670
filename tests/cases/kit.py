"""Inputs that broke other engines, played to ours by a real server.

The server plays bytes and, before that, the strictest provider: it refuses what the judge of
`tests.llm.strict` finds fault with. `served` is one life of an agent before it; a second one
runs in a process of its own (`tests/cases/life.py`).

A test's id is that of its case, with a variant behind it. Nothing here is timed: what must
not hang has a bound that is far away.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define
from tests.commands import SOURCE, environment
from tests.llm.strict import Reasoning, judge

import terzetto
from terzetto import Agent, Engine, Session, Tool
from terzetto.llm.loopback import LoopbackServer, serve_openai
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import Action, Answer, Ending, Hang, Raw, ScriptSource, Truncate
from terzetto.vocabulary import AssistantChunk, ReasoningDelta, TextDelta

PATIENCE = 60
"""Seconds that a whole test may take, on a slow machine."""
HANG = Hang()


def case(number: int, *variants: str) -> Any:
    """Parametrize ``variant``; the ids are ``BC-03``, or ``BC-03-a`` and so on."""
    return pytest.mark.parametrize(
        "variant", variants, ids=[f"BC-{number:02}-{v}" for v in variants]
    )


# --- bytes ----------------------------------------------------------------------------------


def chunk(delta: dict[str, object], finish: str | None = None) -> Raw:
    """One event of an answer."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    event = {"id": "r1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    return Raw(b"data: " + json.dumps(event).encode() + b"\n\n")


def text(value: str) -> Raw:
    return chunk({"content": value})


def tool_call(index: int, call_id: str | None, name: str | None, arguments: Any = ...) -> Raw:
    """A fragment of a call. None leaves id or name out; ``...`` the arguments."""
    function = {} if name is None else {"name": name}
    if arguments is not ...:
        function["arguments"] = arguments
    call: dict[str, object] = {"index": index, "type": "function", "function": function}
    if call_id is not None:
        call["id"] = call_id
    return chunk({"tool_calls": [call]})


def finish(reason: str) -> Raw:
    return chunk({}, reason)


DONE = Raw(b"data: [DONE]\n\n")


def plays(*parts: Action, ending: Ending = Truncate()) -> Answer:
    """These bytes, then the end of the body, which is a correct one if not said otherwise."""
    return Answer(parts, ending)


def says(value: str) -> Answer:
    return plays(text(value), finish("stop"), DONE)


def calls(*made: tuple[str, str, Any]) -> Answer:
    """Calls of (id, name, arguments), all in one answer."""
    parts = [tool_call(n, i, name, arguments) for n, (i, name, arguments) in enumerate(made)]
    return plays(*parts, finish("tool_calls"), DONE)


# --- lives ----------------------------------------------------------------------------------


@define(eq=False)
class Served:
    """An agent before a strict provider."""

    server: LoopbackServer
    engine: Engine
    agent: Agent
    folder: Path | None

    @property
    def session(self) -> Session:
        return self.agent.session

    def sent(self, number: int = -1) -> list[dict[str, Any]]:
        """The messages of a request."""
        messages: Any = self.server.requests[number].body["messages"]
        return messages  # type: ignore[no-any-return]

    def roles(self, number: int = -1) -> list[str]:
        return [message["role"] for message in self.sent(number)]

    def results(self, number: int = -1) -> dict[str, str]:
        """The results in a request, by call id."""
        return {m["tool_call_id"]: m["content"] for m in self.sent(number) if m["role"] == "tool"}

    async def delivered(self, count: int) -> list[str]:
        """Wait until so many deltas of text or reasoning came; their texts."""
        seen: list[str] = []
        async for event in self.session.follow():
            data = event.data
            if isinstance(data, AssistantChunk) and isinstance(
                data.chunk, (TextDelta, ReasoningDelta)
            ):
                seen.append(data.chunk.text)
                if len(seen) == count:
                    break
        return seen

    async def asked(self, count: int = 1) -> None:
        """Wait until the server has had so many requests."""
        while len(self.server.requests) < count:
            await trio.sleep(0.005)

    async def say(self, message: str) -> None:
        self.agent.followup(message)
        await self.agent.wait_idle()

    async def resumed(self, message: str, *, copy: Path, tools: str = "") -> dict[str, Any]:
        """What a new process, on a copy of the store, sends when it follows up."""
        assert self.folder is not None
        shutil.copytree(self.folder, copy)
        return await another_life(self.server, copy, message, session=self.agent.id, tools=tools)

    async def resumed_here(
        self, message: str, *, copy: Path, tools: Iterable[Tool] = ()
    ) -> dict[str, Any]:
        """The same from a new engine in this process, which costs less."""
        assert self.folder is not None
        shutil.copytree(self.folder, copy)
        before = len(self.server.requests)
        adapter = OpenAIChat(api_key="k", base_url=self.server.base_url)
        async with terzetto.open_engine(
            adapters=[adapter], tools=tools, store=terzetto.JsonlStore(copy)
        ) as engine:
            async with engine.open_agent(resume=self.agent.id) as agent:
                await agent.ask(message)
        return self.server.requests[before].body


@asynccontextmanager
async def served(
    script: ScriptSource,
    tools: Iterable[Tool] = (),
    *,
    folder: Path | None = None,
    reasoning: Reasoning = "any",
    flawless: bool = True,
    resume: str | None = None,
    **options: Any,
) -> AsyncIterator[Served]:
    """One life: server, engine, agent. Every request must have been *flawless*."""
    with trio.fail_after(PATIENCE):
        async with serve_openai(script, judge=partial(judge, reasoning=reasoning)) as server:
            adapter = OpenAIChat(api_key="k", base_url=server.base_url)
            store = terzetto.JsonlStore(folder) if folder is not None else None
            async with terzetto.open_engine(
                adapters=[adapter], tools=tools, store=store, **options
            ) as engine:
                async with engine.open_agent(provider="openai", model="m", resume=resume) as agent:
                    yield Served(server, engine, agent, folder)
            if flawless:
                assert [
                    request.violations for request in server.requests if request.violations
                ] == []


async def another_life(
    server: LoopbackServer, folder: Path, message: str, *, session: str, tools: str = ""
) -> dict[str, Any]:
    """Resume in a new process and follow up; the body of its request."""
    before = len(server.requests)
    ended = await trio.run_process(
        life(server.base_url, folder, session, "resume", message, tools),
        env=environment(PYTHONPATH=f"{SOURCE}:{SOURCE.parent}"),
        check=False,
        capture_stdout=True,
        capture_stderr=True,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    assert len(server.requests) > before, ended.stdout.decode()
    return server.requests[before].body


def life(*arguments: object) -> list[str]:
    """The command of `tests/cases/life.py`."""
    return [sys.executable, "-W", "error", "-m", "tests.cases.life", *map(str, arguments)]


@asynccontextmanager
async def process(*arguments: object) -> AsyncIterator[trio.Process]:
    """A life in a process of its own, which a test may kill; it is gone afterwards."""
    child = await trio.lowlevel.open_process(
        life(*arguments),
        stdout=subprocess.PIPE,
        env=environment(PYTHONPATH=f"{SOURCE}:{SOURCE.parent}"),
    )
    try:
        yield child
    finally:
        with trio.CancelScope(shield=True):
            if child.returncode is None:
                child.kill()
            await child.wait()
            assert child.stdout is not None
            await child.stdout.aclose()


async def line(child: trio.Process) -> str:
    """The next line that *child* prints."""
    assert child.stdout is not None
    data = b""
    while not data.endswith(b"\n"):
        piece = await child.stdout.receive_some(1)
        assert piece, f"it ended, having said {data!r}"
        data += piece
    return data.decode().rstrip("\n")
