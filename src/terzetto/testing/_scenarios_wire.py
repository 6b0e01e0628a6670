"""Shipped scenarios of the wire: the real adapters and the loopback server, without sockets."""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import trio

from .. import AgentDisposed, End, RequestFailed, Retry, tool
from ..engine import Engine
from ..llm.deepseek import DeepSeek
from ..llm.scripted import (
    Comment,
    Cut,
    Delay,
    Hang,
    Headers,
    Malformed,
    Reset,
    ScriptedModel,
    Throw,
    Truncate,
    answer,
    call,
    finish_error,
    refuse,
    say,
    think,
)
from ..vocabulary import ProviderError
from ._life import Scenario
from ._memory_network import MemoryNetwork, in_memory, over_http
from ._recording import Answers, MakeAdapter
from ._script_acts import REFUSED
from ._stage import Stage


def _retrying(engine: Engine) -> None:
    async def retry(
        value: RequestFailed, proceed: Callable[[], Awaitable[Retry | End]]
    ) -> Retry | End:
        await trio.sleep(0.1)
        assert value.policy is not None
        return Retry() if value.failure.code in value.policy.codes else await proceed()

    engine.scope.hooks.request_error.listen(retry)


async def wire(stage: Stage) -> None:
    """DeepSeek over HTTP: reasoning, a tool, a refusal that is retried and one that is not."""

    @tool
    async def look() -> str:
        """Look."""
        await trio.sleep(0.1)
        return "seen"

    async with over_http(stage, DeepSeek) as network:
        async with stage.open_engine([look]) as engine, stage.open_agent(engine) as agent:
            _retrying(engine)
            stage.send("followup", "go")
            with trio.move_on_after(1):
                await network.server.wait_connections(1)
            await agent.wait_idle()
            with suppress(*REFUSED, ProviderError):
                await agent.run_maintenance(agent.complete, "What was said?")
            stage.send("followup", "again")
            await agent.wait_idle()
        await network.server.wait_connections(0)


_WHO = gzip.compress(b'{"error": {"message": "who are you?"}}', mtime=0)
WIRE: Answers = [
    answer(think("hm"), Delay(0.1), say("I look."), call("look")),
    refuse(503, retry_after=1),
    answer(Headers(), Delay(0.1), Comment("still here"), say("Done.")),
    "Nothing much.",
    refuse(401, headers={"content-encoding": "gzip"}, body=_WHO),
]


async def breaking(stage: Stage) -> None:
    """Streams over HTTP that are cut, say nothing for a minute, end too early, are no JSON."""
    async with over_http(stage) as network:
        async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
            _retrying(engine)
            stage.send("followup", "go")
            await agent.wait_idle()
        await network.server.wait_connections(0)


_HALF = answer(say("Well"))
BREAKING: Answers = [
    _HALF.stop(Cut(), chunks=1),
    _HALF.stop(Hang(), chunks=1),
    _HALF.stop(Truncate(), chunks=1),
    answer(say("Well"), Malformed()),
    answer("Well, well."),
]


async def connecting(stage: Stage) -> None:
    """Connections that are refused, break in their handshake, are left as soon as they are made."""
    async with over_http(stage, scheme="https") as network:
        async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
            _retrying(engine)

            def leave() -> None:
                with suppress(AgentDisposed):
                    agent.interrupt("quick")

            network.trouble[:] = ["refused", "handshake", leave]
            stage.send("followup", "go")
            await agent.wait_idle()
        await network.server.wait_connections(0)


async def leaving(stage: Stage) -> None:
    """One connection for two agents; reset, left in mid-answer, closed under a reader."""
    async with over_http(stage, scheme="https", max_connections=1) as network:
        async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
            _retrying(engine)
            async with engine.open_agent(provider="scripted", model="m") as other:
                stage.send("followup", "go")
                other.followup("you, too")
                await agent.wait_idle()
                await other.wait_idle()
            stage.send("followup", "tell me more")
            await trio.sleep(0.5)
            with suppress(AgentDisposed):
                agent.interrupt("shorter")
            await trio.sleep(0.5)
            await stage.adapter.aclose()
            await agent.wait_idle()
        await network.server.wait_connections(0)


LEAVING: Answers = [
    answer(say("One")).stop(Reset(), chunks=1),
    answer(Delay(0.1), "One."),
    answer(Delay(0.1), "Two."),
    answer(say("Well, "), Delay(1), say("well.")),
    answer(say("Well, "), Delay(1), say("well.")),
    "Well.",
]


async def by_hand(stage: Stage) -> None:
    """A tool that asks the server itself: what it has, what it has not, and what is no HTTP."""

    def refusing(body: bytes) -> list[str]:
        return ["not like that"] if b"bad" in body else []

    @tool
    async def ask() -> str:
        """Ask."""
        async with in_memory(ScriptedModel(_BY_HAND)) as network:
            network.server.judge = refusing
            said = [await _asked(network, request) for request in _REQUESTS]
        return " ".join(line.split()[1].decode() for line in said)

    async with stage.open_engine([ask]) as engine, stage.open_agent(engine) as agent:
        stage.send("followup", "go")
        await agent.wait_idle()


async def _asked(network: MemoryNetwork, request: bytes) -> bytes:
    """What the server answers to *request*, until it closes or has no more to say."""
    end = await network.connect_tcp("model.test", 80)
    try:
        head, _, body = request.partition(b"\r\n\r\n")
        await end.write(head + b"\r\n\r\n")
        await end.write(body)
        answered = b""
        with trio.move_on_after(1):
            while data := await end.read(65536):
                answered += data
        return answered
    finally:
        with trio.CancelScope(shield=True):
            await end.aclose()


def _request(line: str, body: bytes = b"", *fields: str) -> bytes:
    head = [f"{line} HTTP/1.1", "host: model.test", "connection: close", *fields]
    if body:
        head.append(f"content-length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


_CHAT = "POST /v1/chat/completions"
_BODY = b'{"model": "m", "messages": [{"role": "user", "content": "%s"}]}'
_REQUESTS = [
    _request("GET /v1/models"),
    _request("GET /v1/chat/completions"),
    _request("GET /"),
    _request(_CHAT, b"{}"),
    _request(_CHAT, _BODY % b"bad"),
    b"what?\r\n\r\n",
    _request(_CHAT, _BODY % b"whole", "expect: 100-continue"),
    _request(_CHAT, _BODY % b"fails"),
    _request(_CHAT, _BODY % b"raises"),
    _request(_CHAT, _BODY % b"is an error"),
    _request(_CHAT, _BODY % b"none left"),
]
_BY_HAND: Answers = [
    answer("Here it is."),
    answer("Half").stop(Cut()),
    answer("Half").stop(Throw(ValueError("as designed")), chunks=0),
    answer(finish_error()),
]
BY_HAND: Answers = [answer(call("ask")), "Done."]

OVER_HTTP: Mapping[str, tuple[Scenario, MakeAdapter | Answers]] = {
    "wire": (wire, WIRE),
    "breaking": (breaking, BREAKING),
    "connecting": (connecting, ["Connected."]),
    "leaving": (leaving, LEAVING),
    "by hand": (by_hand, BY_HAND),
}
