"""A loopback server with a client for it, and what tests read from its answers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import trio
from attrs import define

from terzetto.llm.loopback import Judge, LoopbackServer, serve_openai
from terzetto.llm.scripted import (
    ScriptedModel,
    ScriptSource,
)

CHAT = "/chat/completions"


@define
class Served:
    server: LoopbackServer
    client: httpx.AsyncClient

    def stream(self, text: str = "go", **fields: object):
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": text}],
            "stream": True,
            **fields,
        }
        return self.client.stream("POST", CHAT, json=body)

    async def ask(self, text: str = "go", **fields: object) -> httpx.Response:
        """The whole response, its body read."""
        async with self.stream(text, **fields) as response:
            await response.aread()
        return response


def open_client(server: LoopbackServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=server.base_url,
        timeout=None,
        trust_env=False,
        verify=False,  # loading certificates takes longer than most tests
        limits=httpx.Limits(max_connections=None),
    )


@asynccontextmanager
async def served(
    script: ScriptedModel | ScriptSource, *, judge: Judge | None = None
) -> AsyncIterator[Served]:
    with trio.fail_after(30):
        async with (
            serve_openai(script, judge=judge) as server,
            open_client(server) as client,
        ):
            yield Served(server, client)


def port_of(server: LoopbackServer) -> int:
    port = httpx.URL(server.base_url).port
    assert port is not None
    return port


def payloads(body: bytes) -> list[dict]:
    """The JSON of each event, the marker and comments left out."""
    lines = body.decode().replace("\r\n", "\n").split("\n")
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(text) for text in data if text != "[DONE]"]


def deltas(body: bytes) -> list[dict]:
    return [choice["delta"] for event in payloads(body) for choice in event["choices"]]


def text_of(body: bytes) -> str:
    return "".join(delta.get("content") or "" for delta in deltas(body))


def is_done(body: bytes) -> bool:
    return body.endswith(b"data: [DONE]\n\n")


async def raw_request(to: Served, *, fields: str = "") -> trio.SocketStream:
    """A connection over which one chat request was sent by hand."""
    stream = await trio.open_tcp_stream("127.0.0.1", port_of(to.server))
    await send_request(stream, fields=fields)
    return stream


async def send_request(
    stream: trio.SocketStream, *, fields: str = "", version: str = "1.1"
) -> None:
    body = b'{"model": "m", "messages": [], "stream": true}'
    head = f"POST /v1/chat/completions HTTP/{version}\r\nHost: x\r\n{fields}"
    await stream.send_all(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


async def received(stream: trio.SocketStream, *, until: bytes | None = None) -> bytes:
    """All bytes until the connection closes, or until *until* was among them."""
    got = bytearray()
    async for piece in stream:
        got += piece
        if until is not None and until in got:
            break
    return bytes(got)
