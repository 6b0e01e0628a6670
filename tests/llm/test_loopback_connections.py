"""The loopback server's connections: gates, clients that leave, keep-alive, shutdown."""

import errno
import socket
import struct
from contextlib import suppress

import pytest
import trio
from tests.llm.serving import (
    is_done,
    open_client,
    port_of,
    raw_request,
    received,
    send_request,
    served,
    text_of,
)
from trio.testing import wait_all_tasks_blocked

from terzetto.llm._loopback_http import Connection
from terzetto.llm.loopback import serve_openai
from terzetto.llm.scripted import (
    Answer,
    Delay,
    Gate,
    Hang,
    Headers,
    answer,
    say,
)
from terzetto.vocabulary import (
    InvalidValue,
    Request,
    TextDelta,
    UserMessage,
)

# Gates, clients that leave, many at once.


async def test_a_gate_holds_the_stream_until_it_is_opened() -> None:
    async with (
        served([answer("before", Gate("g"), "after")]) as to,
        to.stream() as response,
    ):
        pieces = response.aiter_raw()
        assert text_of(await anext(pieces)) == "before"
        await to.server.gates.wait_reached("g")
        to.server.gates.open("g")
        rest = b"".join([piece async for piece in pieces])
    assert text_of(rest) == "after"
    assert is_done(rest)


async def test_headers_can_come_long_before_the_first_byte() -> None:
    async with served([answer(Headers(), Gate("g"), "x"), answer(Gate("h"), "x")]) as to:
        async with to.stream() as response:
            assert response.status_code == 200
            to.server.gates.open("g")
            assert text_of(await response.aread()) == "x"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(to.ask)
            await to.server.gates.wait_reached("h")
            nursery.cancel_scope.cancel()
        await to.server.wait_connections(0)


@pytest.mark.parametrize("wait", [Gate("never"), Delay(1e9), Hang()])
@pytest.mark.parametrize("started", [True, False])
async def test_a_client_that_leaves_frees_its_task(
    wait: Gate | Delay | Hang, started: bool
) -> None:
    async with served([answer(*([Headers()] if started else []), wait)] * 2) as to:
        await wait_all_tasks_blocked()  # until the listener's task is there
        before = trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as nursery:
            nursery.start_soon(to.ask)
            await to.server.wait_connections(1)
            nursery.cancel_scope.cancel()
        await to.server.wait_connections(0)
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == before


@pytest.mark.parametrize("way", ["close", "reset", "half"])
async def test_every_way_of_leaving_is_noticed(way: str) -> None:
    async with served([answer("x", Hang())]) as to:
        stream = await raw_request(to)
        await received(stream, until=b'"x"')
        assert to.server.connections == 1
        if way == "reset":
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if way == "half":
            await stream.send_eof()
        else:
            await stream.aclose()
        await to.server.wait_connections(0)
        await stream.aclose()


async def test_a_client_that_never_reads_is_let_go_when_it_leaves() -> None:
    flood = [TextDelta(0, "x" * 60_000) for _ in range(2_000)]
    async with served([Answer(tuple(flood))]) as to:
        stream = await raw_request(to)
        await received(stream, until=b"200")
        await stream.aclose()
        await to.server.wait_connections(0)


async def test_a_hundred_streams_at_once() -> None:
    def reply(request: Request) -> Answer:
        message = request.messages[0]
        assert isinstance(message, UserMessage)
        return answer(f"{message.text} ", Gate("all"), say("and the rest of it"))

    texts: dict[int, str] = {}

    async with served(reply) as to:
        to.client = open_client(to.server)

        async def one(number: int) -> None:
            texts[number] = text_of((await to.ask(f"{number}")).content)

        async with to.client, trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(one, number)
            await to.server.gates.wait_reached("all", 100)
            assert to.server.connections == 100
            to.server.gates.open("all")
        await to.server.wait_connections(0)
    assert texts == {number: f"{number} and the rest of it" for number in range(100)}


# HTTP.


async def test_a_connection_is_used_again() -> None:
    async with served(["a", "b", "c"]) as to:
        for text in "abc":
            assert text_of((await to.ask()).content) == text
            assert to.server.connections == 1
        assert (await to.client.get("/models")).status_code == 200
        assert to.server.connections == 1
    assert to.server.connections == 0


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    async with served([answer("a", Gate("g")), "b"]) as to:
        stream = await raw_request(to)
        await received(stream, until=b'"a"')
        await send_request(stream, fields="Connection: close\r\n")
        await send_request(stream)  # after the last one: not read
        to.server.gates.open("g")
        got = await received(stream)
        assert got.count(b"HTTP/1.1 200") == 1
        assert b'"b"' in got
        await stream.aclose()


async def test_an_http_1_0_client_gets_a_body_without_chunks() -> None:
    async with served(["a"]) as to:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(to.server))
        await send_request(stream, version="1.0")
        got = await received(stream)
        assert b"transfer-encoding" not in got.lower()
        assert got.endswith(b"data: [DONE]\n\n")
        await stream.aclose()


async def test_a_client_may_wait_to_be_told_to_go_on() -> None:
    async with served(["a"]) as to:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(to.server))
        body = b'{"model": "m", "messages": []}'
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        await stream.send_all(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        assert b"100" in await received(stream, until=b"\r\n\r\n")
        await stream.send_all(body)
        assert b'"content":"a"' in await received(stream, until=b'"a"')
        await stream.aclose()


async def test_what_is_not_http_gets_an_error_and_the_door() -> None:
    async with served(["a"]) as to:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(to.server))
        await stream.send_all(b"hello there\r\n\r\n")
        got = await received(stream)
        assert got.startswith(b"HTTP/1.1 400")
        assert b"invalid_request_error" in got
        await stream.aclose()
        await to.server.wait_connections(0)


# Lifetime.


async def test_leaving_is_prompt_with_open_streams_and_leaves_nothing() -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    streams: list[trio.SocketStream] = []
    with trio.fail_after(10):
        async with serve_openai(lambda request: answer("x", Gate("never"))) as server:
            port = port_of(server)
            for _ in range(20):
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                await send_request(stream)
                await received(stream, until=b'"x"')
                streams.append(stream)
            streams.append(await trio.open_tcp_stream("127.0.0.1", port))  # says nothing
            await server.wait_connections(21)
        assert server.connections == 0
        assert trio.lowlevel.current_statistics().tasks_living == before
        for stream in streams:
            with suppress(trio.BrokenResourceError):
                assert not await received(stream, until=b"x")
            await stream.aclose()
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream("127.0.0.1", port)


async def test_a_cancelled_block_closes_everything() -> None:
    with trio.CancelScope() as scope:
        async with served([answer(Gate("g"))]) as to, await raw_request(to):
            await to.server.gates.wait_reached("g")
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert to.server.connections == 0


async def test_an_exception_of_the_block_leaves_as_itself() -> None:
    error = KeyError("mine")

    async def fail() -> None:
        async with served([Hang()]) as to, await raw_request(to):
            await to.server.wait_connections(1)
            raise error

    with pytest.raises(KeyError) as raised:
        await fail()
    assert raised.value is error


async def test_a_failing_function_of_the_script_is_not_hidden() -> None:
    def broken(request: Request) -> str:
        raise AssertionError("no such state")

    async def ask() -> None:
        async with served(broken) as to:
            await to.ask()

    with pytest.raises(BaseExceptionGroup) as raised:
        await ask()
    assert raised.group_contains(AssertionError, match="no such state")


async def test_a_failing_judge_is_not_hidden() -> None:
    def judge(raw: bytes) -> list[str]:
        raise LookupError("lost the rules")

    async def ask() -> None:
        async with served(["x"], judge=judge) as to:
            await to.ask()

    with pytest.raises(BaseExceptionGroup) as raised:
        await ask()
    assert raised.group_contains(LookupError)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.1", "::", "example.com", ""])
async def test_only_loopback_addresses_are_served(host: str) -> None:
    with pytest.raises(InvalidValue, match="expected a loopback address"):
        async with serve_openai("x", host=host):
            raise AssertionError("not reached")


async def test_localhost_and_ipv6_are_loopback() -> None:
    async with serve_openai("x", host="localhost") as server:
        assert server.base_url.startswith("http://127.0.0.1:")
    try:
        async with serve_openai("x", host="::1") as server, open_client(server) as client:
            assert server.base_url.startswith("http://[::1]:")
            assert (await client.get("/models")).status_code == 200
    except OSError:
        pytest.skip("no IPv6 here")


async def test_a_taken_port_is_one_clear_line() -> None:
    async with serve_openai("x") as server:
        port = port_of(server)
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1 port {port}: ") as raised:
            async with serve_openai("x", port=port):
                raise AssertionError("not reached")
        assert raised.value.errno == errno.EADDRINUSE
        assert "\n" not in str(raised.value)


class Leaving:
    """A client that sends the beginning of a request, and is gone before it is refused."""

    def __init__(self) -> None:
        self.sends = [
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
        ]
        self.refused: list[bytes] = []

    async def receive_some(self, _: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.sends.pop() if self.sends else b""

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.refused.append(data)
        raise trio.BrokenResourceError


async def test_a_client_that_is_gone_before_it_is_refused_harms_nobody() -> None:
    async def reject(http: Connection, status: int, message: str) -> None:
        await http.respond(status, message.encode(), ())

    async def never(http: Connection, head: object, body: bytes) -> None:
        raise AssertionError("there was no whole request")

    client = Leaving()
    await Connection(client, never, reject).run()  # type: ignore[arg-type]
    assert client.refused[0].startswith(b"HTTP/1.1 400")
