"""Sockets that httpcore would lose, checked without a server: what the probe does."""

from __future__ import annotations

import pytest
import trio
from attrs import define

from terzetto.llm._http import HttpLimits, _Probe


@define(eq=False)
class Socket:
    closed: bool = False

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed = True


@pytest.mark.parametrize("made_by", ["connection.connect_tcp", "connection.start_tls"])
async def test_socket_made_for_a_cancelled_request_is_closed(made_by: str) -> None:
    probe, socket = _Probe(HttpLimits()), Socket()
    with trio.CancelScope() as scope:
        scope.cancel()
        await probe(f"{made_by}.complete", {"return_value": socket})
    assert scope.cancelled_caught
    assert socket.closed


async def test_socket_of_a_failed_handshake_is_closed() -> None:
    probe, socket = _Probe(HttpLimits()), Socket()
    await probe("connection.connect_tcp.complete", {"return_value": socket})
    with trio.CancelScope() as scope:
        scope.cancel()
        await probe("connection.start_tls.failed", {"exception": None})
    assert socket.closed


async def test_socket_of_a_live_request_is_left_alone() -> None:
    probe, socket = _Probe(HttpLimits()), Socket()
    await probe("connection.connect_tcp.started", {})
    await probe("connection.connect_tcp.complete", {"return_value": socket})
    assert probe.fresh
    assert not socket.closed


async def test_first_byte_clock_starts_when_the_request_is_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    probe = _Probe(HttpLimits(first_byte_timeout=30))
    assert probe.scope.deadline == float("inf")
    await trio.sleep(100)
    await probe("http11.receive_response_headers.started", {})
    await trio.sleep(10)
    assert probe.left() == pytest.approx(20)
