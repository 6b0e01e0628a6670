"""Silence is counted where the network is waited for, wherever the bytes are cut."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from attrs import define, field

from terzetto.llm._http import HttpClient, HttpLimits
from terzetto.llm._silence import Silence, Silent
from terzetto.vocabulary import ProviderError

from .byte_server import EOF, GAP, HANG, D, F, Pause, Reply, Step, T, open_byte_server, reply
from .chat_client import ask, refusal_of, serving, text_of


@define(eq=False, slots=False)
class Network:
    """What httpcore calls a network stream: each read takes the next of *waits* seconds."""

    waits: list[float]
    asked: list[object] = field(factory=list)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        self.asked.append((max_bytes, timeout))
        await trio.sleep(self.waits.pop(0))
        return b"x"


@define(eq=False)
class Slotted:
    """One whose methods cannot be replaced."""

    async def read(self, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return b"x"


async def test_only_waiting_for_the_network_counts(autojump_clock: trio.testing.MockClock) -> None:
    network, silence = Network([3, 4, 4]), Silence(10)
    silence.watch(network)
    assert not silence.watches
    assert await network.read(5, timeout=None) == b"x"
    assert silence.watches
    await trio.sleep(100)
    assert await network.read(6) == b"x"
    assert silence.left == pytest.approx(3)
    began = trio.current_time()
    with pytest.raises(Silent):
        await network.read(7)
    assert trio.current_time() - began == pytest.approx(3)
    assert network.asked == [(5, None), (6, None), (7, None)]


async def test_a_cancel_from_outside_stays_one(autojump_clock: trio.testing.MockClock) -> None:
    network, silence = Network([math.inf]), Silence(10)
    silence.watch(network)
    with trio.move_on_after(5) as scope:
        await network.read(1)
    assert scope.cancelled_caught


async def test_afterwards_the_network_is_as_it_was(autojump_clock: trio.testing.MockClock) -> None:
    network, silence = Network([50]), Silence(10)
    before: Callable[..., Awaitable[bytes]] = network.read
    silence.watch(network)
    silence.end()
    assert network.read == before
    assert not silence.watches
    assert await network.read(1) == b"x"
    silence.end()


async def test_a_method_that_was_put_there_is_put_back() -> None:
    async def recorded(max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return b"y"

    network, silence = Network([]), Silence(10)
    network.read = recorded  # type: ignore[method-assign, assignment]
    silence.watch(network)
    assert await network.read(1) == b"y"
    assert silence.watches
    silence.end()
    assert network.read is recorded


@pytest.mark.parametrize("network", [None, object(), Slotted()])
async def test_what_cannot_be_watched_is_not_trusted(network: object) -> None:
    silence = Silence(10)
    silence.watch(network)
    if isinstance(network, Slotted):
        await network.read(1)
    assert not silence.watches
    silence.end()


def framed(data: bytes) -> bytes:
    """*data* as one chunk of HTTP."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def unframed(*steps: Step) -> Reply:
    """An answer whose bytes are what they are, in chunks of its own."""
    headers = (("content-type", "text/event-stream"), ("transfer-encoding", "chunked"))
    return Reply(steps=steps, headers=headers, chunked=False)


REST = framed(F("stop")) + framed(D) + b"0\r\n\r\n"


async def test_framing_that_trickles_in_is_silence() -> None:
    """No byte of an event comes, although bytes do; in the end it would be a good answer."""
    trickle = [step for _ in range(100) for step in (b";x", Pause(0.03))]
    last = framed(T("b"))
    at = last.index(b"\r\n")
    answer = unframed(framed(T("a")), GAP, last[:at], *trickle, last[at:] + REST, EOF)
    async with serving(answer, idle_timeout=0.1) as (_, adapter):
        failure = await refusal_of(adapter)
    assert failure.code == "TIMEOUT"
    assert "did not get on for 0.1 s" in failure.message


async def test_many_chunks_of_one_write_need_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a scope would still be opened for each of them."""
    opened: list[object] = []
    real = trio.move_on_after

    def counted(seconds: float) -> trio.CancelScope:
        opened.append(seconds)
        return real(seconds)

    many = b"".join(framed(T(f"{number} ")) for number in range(500))
    head_came, first_came = trio.Event(), trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            request += await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await head_came.wait()
        await stream.send_all(framed(T("a")))
        await first_came.wait()
        await stream.send_all(many + REST)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        client = HttpClient(HttpLimits())
        async with client.stream(f"http://127.0.0.1:{port}/x", {}, b"") as answer:
            head_came.set()
            assert await answer.read() == T("a")
            assert answer._silence.watches
            first_came.set()
            monkeypatch.setattr(trio, "move_on_after", counted)
            pieces = []
            while data := await answer.read():
                pieces.append(data)
            monkeypatch.undo()
            answer.complete = True
        await client.aclose()
        nursery.cancel_scope.cancel()
    assert b"".join(pieces).count(b"data: ") == 502
    assert opened == []


async def test_a_connection_that_is_kept_is_watched_anew() -> None:
    """The second answer is silent on the connection of the first."""
    good = reply(T("ok") + F("stop") + D, EOF)
    async with serving(good, reply(T("a"), HANG), idle_timeout=1) as pair:
        server, adapter = pair
        assert text_of(await ask(adapter)) == "ok"
        assert (await refusal_of(adapter)).code == "TIMEOUT"
        assert [request.connection for request in server.requests] == [1, 1]


async def test_without_a_stream_to_watch_silence_is_found_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with an httpx that gives none, or reads by another method."""
    monkeypatch.setattr(Silence, "watch", lambda self, network: None)
    async with open_byte_server(unframed(framed(T("a")), GAP, b"5", HANG)) as server:
        client = HttpClient(HttpLimits(idle_timeout=0.1))
        async with client.stream(f"{server.url}/x", {}, b"") as answer:
            assert await answer.read() == T("a")
            answer.progress()
            with pytest.raises(ProviderError) as caught:
                await answer.read()
            assert caught.value.failure.code == "TIMEOUT"
        await client.aclose()
