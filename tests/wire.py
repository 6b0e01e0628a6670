"""What went over the wire is what the stored log gives, byte for byte (C84).

A rich session is played against a real server on a loopback address: tools, reasoning, failed
and broken requests that are retried, steering, interruptions of streams and of tools, a cancel
before and after the first piece, another prompt, other tools, options, efforts and contexts, a
compaction, a resume and a fork. The server keeps the bytes of every body. Then another process,
with another hash seed, reads the store and writes the bodies anew.

    python -m tests.wire

prints how many requests and bytes were compared, and how many differ.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import trio
from attrs import define, evolve, field

import terzetto
from terzetto import Agent, JsonlStore, SqliteStore, UserMessage, tool
from terzetto.llm.deepseek import DeepSeek
from terzetto.llm.loopback import LoopbackServer, serve_openai
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import Cut, Gate, answer, call, refuse, say, think
from terzetto.session import rebuild
from terzetto.vocabulary import AssistantChunk, Event, MaxTokens, ReasoningDelta, TextDelta
from tests.commands import environment
from tests.llm.strict import judge

Wire: TypeAlias = Literal["openai", "deepseek"]
Kept: TypeAlias = Literal["jsonl", "sqlite"]
WIRES: tuple[Wire, ...] = ("openai", "deepseek")
KINDS: tuple[Kept, ...] = ("jsonl", "sqlite")

SCRIPT = [
    # Two calls at once, with text in many alphabets, and reasoning before them.
    answer(think("Both at\nonce. "), "Zwei Fragen: ", call("weigh", what="Mehl é🎻"), call("look")),
    answer(think("Good."), "200 g 🎻, and it is dark."),
    # Refused; broken after some text; then it works.
    refuse(500),
    answer(say("It bre", pieces=1), Cut()),
    answer("It works."),
    # Steered while it streams.
    answer(say("Slow ", pieces=1), Gate("steered"), "answer."),
    answer("Faster."),
    # Interrupted while it thinks aloud, and while a tool runs.
    answer(think("Hm. ", pieces=1), say("I would", pieces=1), Gate("never"), "not"),
    answer(think("A tool, then."), call("wait")),
    answer("Stopped both."),
    # Arguments that are no JSON, a tool that nobody has, a tool that fails.
    answer(think("Hm."), call("weigh", "{not json"), call("fly", up=True), call("weigh", what="")),
    answer("Sorry.", finish=MaxTokens()),
    # Cancelled after some text, and before any.
    answer(say("Never mi", pieces=1), Gate("never too"), "nd"),
    answer(Gate("silent"), "nothing"),
    # Resumed, with other tools and another model; and forked.
    answer(think("Back."), call("look")),
    answer("Still dark."),
    answer("In another branch."),
]


@tool(parallel=True)
async def weigh(what: str) -> str:
    """Weigh something: é, 🎻, <&>."""
    if not what:
        raise ValueError("nothing to weigh\u2028here")
    return f"{what}: 200 g"


@tool(parallel=True)
async def look() -> str:
    """Look around."""
    return "dark\n\n\ttabs and \x7f controls"


def waiting(begun: trio.Event) -> terzetto.Tool:
    """A tool that says when its body runs, and never ends by itself."""

    @tool
    async def wait() -> str:
        """Wait for ever."""
        begun.set()
        await trio.sleep_forever()
        return "never"

    return wait


@tool
async def listen(seconds: float = 0.5, names: list[str] | None = None) -> str:
    """Listen."""
    return "silence"


def adapter(wire: Wire, url: str = "http://127.0.0.1:1/v1") -> OpenAIChat:
    if wire == "deepseek":
        # Not every call of the script is thought about.
        return DeepSeek(api_key="sk-x-y-z-1234", base_url=url, fill_reasoning=True)
    return OpenAIChat(api_key="sk-x-y-z-1234", base_url=url)


def store_at(kind: Kept, path: Path) -> Any:
    return JsonlStore(path / "logs") if kind == "jsonl" else SqliteStore(path / "logs.db")


@define(eq=False)
class Play:
    """The session, played from life to life; *said* is what its context says."""

    wire: Wire
    store: Any
    server: LoopbackServer
    said: str = field(default="dark", init=False)
    begun: trio.Event = field(factory=trio.Event, init=False)

    @asynccontextmanager
    async def living(self, **options: Any) -> AsyncIterator[Agent]:
        model = adapter(self.wire, self.server.base_url)
        try:
            async with terzetto.open_engine(
                adapters=[model], tools=[weigh, look, waiting(self.begun)], store=self.store
            ) as engine:
                engine.scope.add_context("cwd", terzetto.working_directory, order=1)
                engine.scope.add_context("sky", lambda agent: self.said)
                engine.scope.hooks.request_error.listen(_retry)
                route = {"provider": self.wire, "model": "m"} if "session_id" in options else {}
                async with engine.open_agent(**route, **options) as agent:
                    yield agent
        finally:
            await model.aclose()

    async def first_life(self) -> None:
        async with self.living(session_id="w", system="You weigh. 🎻", cwd="/kitchen é") as agent:
            await agent.ask("How much flour?\nAnd the light?")
            await agent.ask("Does it work?")
            await self.steered(agent)
            await self.interrupted(agent)
            agent.scope.add_section("mood", "You are in a hurry on {{model}}.", order=2)
            agent.scope.hooks.request.listen(_warmer)
            await agent.ask("Now everything wrong.")
            self.said = ""
            nodes = [n for n in agent.session.surface.nodes if isinstance(n.message, UserMessage)]
            agent.session.replace(nodes[0].seq, nodes[0].seq, [UserMessage("How much, in short?")])
            await self.cancelled(agent)

    async def steered(self, agent: Agent) -> None:
        agent.followup("A slow one.")
        await self.server.gates.wait_reached("steered")
        self.said = "dawn"
        agent.steer("Faster, please.")
        self.server.gates.open("steered")
        await agent.wait_idle()

    async def interrupted(self, agent: Agent) -> None:
        async with heard(agent, "I would"):
            agent.followup("Think aloud.")
        agent.interrupt("No: use a tool.")
        await self.begun.wait()
        agent.interrupt("No, not that one.")
        await agent.wait_idle()

    async def cancelled(self, agent: Agent) -> None:
        async with heard(agent, "Never mi"):
            agent.followup("One more.")
        agent.cancel()
        await agent.wait_idle()
        agent.followup("And silence.")
        await self.server.gates.wait_reached("silent")
        agent.cancel()
        await agent.wait_idle()

    async def later_lives(self) -> None:
        self.said = "noon"
        async with self.living(resume="w", system="You listen.", tools=[listen]) as agent:
            agent.scope.restrict(deny=["weigh"])
            agent.model.select(self.wire, "deepseek-flash", "none" if self.deep else "low")
            await agent.ask("And now?")
        async with self.living(fork="w", session_id="f", system="Branch.") as agent:
            await agent.ask("Where are you?")

    @property
    def deep(self) -> bool:
        return self.wire == "deepseek"

    async def run(self) -> list[bytes]:
        """The bodies that the server got, in order."""
        with trio.fail_after(60):
            await self.first_life()
            await self.later_lives()
        left = len(SCRIPT) - len(self.server.requests)
        assert left == 0, f"{left} answers of the script were not asked for"
        wrong = [r.violations for r in self.server.requests if r.violations]
        assert not wrong, wrong
        return [request.raw for request in self.server.requests]


async def _retry(value: Any, proceed: Any) -> Any:
    return terzetto.Retry() if value.attempt < 3 else await proceed()


async def _warmer(value: Any, proceed: Any) -> terzetto.CallConfig:
    config = await proceed()
    warm: terzetto.CallConfig = evolve(config, max_tokens=77).with_options(
        temperature=0.5, logit_bias={"9": 1.0, "10": -1}, stop=["\n", "é"]
    )
    return warm


@asynccontextmanager
async def heard(agent: Agent, last: str) -> AsyncIterator[None]:
    """Leaves the block once the model has said *last*."""
    came = trio.Event()

    def look_out(event: Event) -> None:
        match event.data:
            case AssistantChunk(chunk=TextDelta(text=text) | ReasoningDelta(text=text)):
                if text == last:
                    came.set()

    with agent.session.observe(look_out):
        yield
        await came.wait()


async def played(wire: Wire, kind: Kept, path: Path) -> list[bytes]:
    """Play the session into a store at *path*. Returns the bodies that were received."""
    strict = partial(judge, reasoning="with-calls" if wire == "deepseek" else "any")
    async with serve_openai(SCRIPT, judge=strict) as server:
        return await Play(wire, store_at(kind, path), server).run()


async def rebuilt(wire: Wire, kind: Kept, path: Path) -> list[bytes]:
    """The bodies that the store at *path* gives, in the order in which they were sent."""
    store, model = store_at(kind, path), adapter(wire)
    bodies = []
    for session_id in ("w", "f"):
        header, events = await store.read(session_id)
        sent = [one for one in rebuild(header, events) if not one.inherited]
        bodies += [model.body(one.request) for one in sent]
    await model.aclose()
    return bodies


def elsewhere(wire: Wire, kind: Kept, path: Path, *, hash_seed: int) -> list[bytes]:
    """As `rebuilt`, by another process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.wire", wire, kind, str(path)],
        env=environment(PYTHONHASHSEED=str(hash_seed), TZ="Asia/Tokyo")
        | {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [bytes.fromhex(line) for line in done.stdout.splitlines()]


def differences(received: Sequence[bytes], found: Sequence[bytes]) -> int:
    """How many requests are not the same in both."""
    pairs = zip(received, found, strict=False)
    return abs(len(received) - len(found)) + sum(one != other for one, other in pairs)


def main(arguments: Sequence[str]) -> int:
    if arguments:
        wire, kind, path = arguments
        for body in trio.run(rebuilt, wire, kind, Path(path)):
            print(body.hex())
        return 0
    requests = size = different = 0
    for wire in WIRES:
        for number, kind in enumerate(KINDS):
            with tempfile.TemporaryDirectory() as name:
                path = Path(name)
                received = trio.run(played, wire, kind, path)
                found = elsewhere(wire, kind, path, hash_seed=number + 1)
            requests += len(received)
            size += sum(map(len, received))
            different += differences(received, found)
    print(f"{requests:,} requests, {size:,} bytes, {different:,} differences")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
