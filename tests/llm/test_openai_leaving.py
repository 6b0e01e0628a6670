"""Streams left early, connections that die, and the pool behind them."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from terzetto.llm._http import unwind
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.vocabulary import ErrorFinish, Finish

from .byte_server import CLOSE, CUT, GAP, HANG, RST, D, F, T, reply
from .chat_client import GOOD, ask, opened, refusal_of, serving, text_of


class TestLeaving:
    """Whatever way a stream is left, the connection closes and nothing is abandoned."""

    ANSWER = reply(T("a") + T("b"), GAP, T("c"), HANG)

    async def test_by_break(self) -> None:
        async with serving(self.ANSWER) as (server, adapter):
            async with await opened(adapter) as chunks:
                async for _ in chunks:
                    break
            await server.wait_until(lambda: server.open == 0)

    async def test_before_the_first_chunk(self) -> None:
        async with serving(self.ANSWER) as (server, adapter):
            async with await opened(adapter):
                pass
            await server.wait_until(lambda: server.open == 0)

    async def test_by_an_exception_of_the_caller(self) -> None:
        async with serving(self.ANSWER) as (server, adapter):
            with pytest.raises(ZeroDivisionError):
                async with await opened(adapter) as chunks:
                    async for _ in chunks:
                        raise ZeroDivisionError
            await server.wait_until(lambda: server.open == 0)

    @pytest.mark.parametrize("after", [0, 1, 3])
    async def test_by_a_cancel(self, after: int) -> None:
        async with serving(self.ANSWER) as (server, adapter):
            got = []
            with trio.fail_after(30), trio.CancelScope() as scope:
                async with await opened(adapter) as chunks:
                    if after == 0:
                        scope.cancel()
                    async for chunk in chunks:
                        got.append(chunk)
                        if len(got) == after:
                            scope.cancel()
            assert scope.cancelled_caught
            await server.wait_until(lambda: server.open == 0)

    async def test_by_a_cancel_before_the_head(self) -> None:
        async with serving(reply(HANG, head=False)) as (server, adapter), trio.open_nursery() as n:
            n.start_soon(ask, adapter)
            await server.wait_until(lambda: server.requests)
            n.cancel_scope.cancel()
        assert n.cancel_scope.cancelled_caught

    async def test_with_an_exception_of_the_callers_in_a_cancelled_scope(self) -> None:
        async with serving(self.ANSWER) as (server, adapter):
            with trio.CancelScope() as scope, pytest.raises(KeyError):
                async with await opened(adapter) as chunks:
                    try:
                        async for _ in chunks:
                            scope.cancel()
                            await trio.lowlevel.checkpoint_if_cancelled()
                    except trio.Cancelled:
                        raise KeyError from None
            await server.wait_until(lambda: server.open == 0)

    async def test_unwind_ends_every_layer(self) -> None:
        ended = []

        async def inner() -> AsyncIterator[int]:
            try:
                yield 1
                await trio.sleep_forever()
            finally:
                ended.append("inner")

        async def outer() -> AsyncIterator[int]:
            try:
                async for item in inner():
                    yield item
            finally:
                ended.append("outer")

        layers = outer()
        async for _ in layers:
            break
        await unwind(layers)
        assert ended == ["inner", "outer"]


class TestDeadConnections:
    async def test_one_that_died_in_the_pool_is_replaced_once(self) -> None:
        drop = reply(CUT, head=False)
        async with serving(GOOD, drop, GOOD) as (server, adapter):
            await ask(adapter)
            assert text_of(await ask(adapter)) == "ok"
            assert [r.connection for r in server.requests] == [1, 1, 2]

    @pytest.mark.parametrize("end", [CUT, RST])
    async def test_fresh_one_that_dies_is_not_replaced(self, end: Any) -> None:
        async with serving(reply(end, head=False), GOOD) as (server, adapter):
            assert (await refusal_of(adapter)).code == "TRANSPORT"
            assert len(server.requests) == 1

    async def test_second_death_is_a_failure(self) -> None:
        drop = reply(CUT, head=False)
        async with serving(GOOD, drop, drop, GOOD) as (server, adapter):
            await ask(adapter)
            assert (await refusal_of(adapter)).code == "TRANSPORT"
            assert len(server.requests) == 3

    async def test_nothing_is_sent_again_once_the_head_came(self) -> None:
        async with serving(GOOD, reply(CUT), GOOD) as (server, adapter):
            await ask(adapter)
            assert (await refusal_of(adapter)).code == "TRANSPORT"
            assert len(server.requests) == 2

    async def test_server_that_closes_behind_every_answer(self) -> None:
        async with serving(reply(T("ok"), F("stop"), D, CLOSE)) as (_, adapter):
            for _ in range(40):
                assert text_of(await ask(adapter)) == "ok"


class _CancelAt(trio.abc.Instrument):
    """Cancels *scope* when *task* is woken for the *wakeup*-th time: what the task
    waited for has happened, and the cancel meets it at its next checkpoint."""

    def __init__(self, task: trio.lowlevel.Task, scope: trio.CancelScope, wakeup: int) -> None:
        self.task, self.scope, self.left = task, scope, wakeup

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()


async def _cancelled_at(wakeup: int, adapter: OpenAIChat) -> bool:
    with trio.CancelScope() as scope:
        instrument = _CancelAt(trio.lowlevel.current_task(), scope, wakeup)
        trio.lowlevel.add_instrument(instrument)
        try:
            await ask(adapter)
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return scope.cancelled_caught


class TestPool:
    async def test_it_survives_two_hundred_rounds_of_cancels(self) -> None:
        """BC-53"""
        rng = random.Random(53)
        slow = reply(GAP, T("a"), GAP, HANG)
        async with serving(slow, max_connections=2) as (server, adapter):
            before = len(os.listdir("/proc/self/fd"))

            async def cancelled(seconds: float) -> None:
                with trio.move_on_after(seconds):
                    await ask(adapter)

            for _ in range(200):
                async with trio.open_nursery() as nursery:
                    for _ in range(5):
                        nursery.start_soon(cancelled, rng.random() * 0.02)
            server.replies = (GOOD,)
            with trio.fail_after(30):
                assert text_of(await ask(adapter)) == "ok"
            await adapter.aclose()
            await server.wait_until(lambda: server.open == 0)
            assert len(os.listdir("/proc/self/fd")) <= before

    async def test_cancel_of_all_at_once_frees_every_slot(self) -> None:
        async with serving(reply(T("a"), HANG), max_connections=2) as (server, adapter):
            for _ in range(30):
                async with trio.open_nursery() as nursery:
                    for _ in range(5):
                        nursery.start_soon(ask, adapter)
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.cancel_scope.cancel()
            server.replies = (GOOD,)
            with trio.fail_after(30):
                assert text_of(await ask(adapter)) == "ok"
            client = adapter._http._client
            assert client is not None
            pool = client._transport._pool  # type: ignore[attr-defined]
            assert len(pool.connections) == 1

    async def test_cancel_at_every_wakeup_loses_no_connection(self) -> None:
        async with serving(GOOD) as (server, adapter):
            wakeup = 0
            cancelled = True
            while cancelled:
                wakeup += 1
                cancelled = await _cancelled_at(wakeup, adapter)
                if (client := adapter._http._client) is not None:
                    pool = client._transport._pool  # type: ignore[attr-defined]
                    assert all(c.is_closed() or c.is_idle() for c in pool.connections), wakeup
                await adapter.aclose()
                await server.wait_until(lambda: server.open == 0)
            assert wakeup > 5

    async def test_closing_twice_and_using_again(self) -> None:
        async with serving(GOOD) as (server, adapter):
            await adapter.aclose()
            await ask(adapter)
            await adapter.aclose()
            await adapter.aclose()
            assert text_of(await ask(adapter)) == "ok"
            assert server.connections == 2

    async def test_closing_fails_the_streams_that_are_open(self) -> None:
        async with serving(reply(T("a"), HANG)) as (_, adapter):
            async with await opened(adapter) as chunks:
                await anext(chunks)
                await adapter.aclose()
                with trio.fail_after(30):
                    last = [chunk async for chunk in chunks][-1]
            assert isinstance(last, Finish)
            assert isinstance(last.reason, ErrorFinish)
