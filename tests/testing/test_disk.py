"""The simulated disk: slow, full, failing, and without power - all in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio

import terzetto
from terzetto import StoreError
from terzetto.llm.scripted import ScriptedModel, answer, call
from terzetto.testing import Latency, SimulatedDisk, play
from terzetto.vocabulary import (
    Event,
    InvalidValue,
    SessionHeader,
    SessionId,
    TurnStart,
    UsageError,
)

HEADER = SessionHeader(id=SessionId("s"), created_ms=5)


def turn(seq: int) -> Event:
    return Event(seq, 1000 + seq, TurnStart(seq))


async def filled(disk: SimulatedDisk, flushed: int, waiting: int = 0) -> terzetto.WriteHandle:
    handle = await disk.create(HEADER)
    for seq in range(flushed):
        handle.append(turn(seq))
    await handle.flush()
    for seq in range(flushed, flushed + waiting):
        handle.append(turn(seq))
    return handle


def test_each_operation_takes_its_time() -> None:
    async def main() -> None:
        disk = SimulatedDisk(Latency(create=1, open=2, read=4, flush=8, event=0.5, close=16))

        async def took(wait: Callable[[], Awaitable[object]]) -> float:
            began = trio.current_time()
            await wait()
            return trio.current_time() - began

        handle = await disk.create(HEADER)
        assert trio.current_time() == 1
        handle.append(turn(0))
        handle.append(turn(1))
        assert trio.current_time() == 1
        assert await took(handle.flush) == 9
        assert await took(handle.flush) == 0, "nothing is waiting"
        assert await took(handle.read) == 4
        assert await took(handle.close) == 16
        assert await took(handle.close) == 0
        assert await took(partial(disk.read, "s")) == 4
        assert await took(partial(disk.open, "s")) == 2
        assert await took(disk.list) == 4

    play(main)


def test_flushes_at_the_same_time_share_one_write() -> None:
    async def main() -> float:
        handle = await filled(SimulatedDisk(Latency(flush=1)), 0, 3)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(handle.flush)
        assert handle.durable_seq == 2
        return trio.current_time()

    assert play(main) == 1


def test_a_write_that_has_begun_is_finished_and_counted() -> None:
    async def main() -> None:
        handle = await filled(SimulatedDisk(Latency(flush=10)), 0, 2)
        with trio.move_on_after(1) as scope:
            await handle.flush()
        assert handle.durable_seq == 1
        assert trio.current_time() == 10
        assert scope.cancel_called

    play(main)


def test_a_flush_that_was_cancelled_before_it_began_changes_nothing() -> None:
    async def main() -> None:
        handle = await filled(SimulatedDisk(Latency(flush=10)), 0, 2)
        with trio.CancelScope() as scope:
            scope.cancel()
            await handle.flush()
        assert handle.durable_seq == -1
        assert trio.current_time() == 0
        await handle.flush()
        assert handle.durable_seq == 1

    play(main)


def test_a_full_disk_takes_what_fits() -> None:
    async def main() -> None:
        disk = SimulatedDisk(room=2)
        handle = await filled(disk, 0, 3)
        with pytest.raises(StoreError, match="No space left"):
            await handle.flush()
        assert handle.durable_seq == 1
        disk.room = None
        await handle.flush()
        assert (await disk.read("s"))[1] == [turn(seq) for seq in range(3)]

    play(main)


@pytest.mark.parametrize(
    ("keep", "torn", "left", "repaired"),
    [
        (0, False, 2, False),
        (0, True, 2, True),
        (1, False, 3, False),
        (2, True, 4, True),
        (99, False, 5, False),
        (99, True, 5, False),  # there is no next record that could be torn
    ],
)
def test_a_crash_keeps_what_was_flushed_and_a_prefix(
    keep: int, torn: bool, left: int, repaired: bool
) -> None:
    async def main() -> None:
        disk = SimulatedDisk()
        handle = await filled(disk, 2, 3)
        found = disk.crash(keep, torn=torn)
        opened = await found.open("s")
        assert await opened.read() == [turn(seq) for seq in range(left)]
        assert (opened.repaired is not None) == repaired
        await opened.close()
        assert (await found.open("s")).repaired is None, "the tail is cut once"
        for wait in (handle.flush, handle.read, disk.list, lambda: disk.open("s")):
            with pytest.raises(StoreError, match="the power is cut"):
                await wait()

    play(main)


def test_a_bounded_cache_writes_the_oldest_by_itself() -> None:
    async def main() -> None:
        disk = SimulatedDisk(cache=2)
        handle = await filled(disk, 0, 5)
        assert handle.durable_seq == -1, "nobody was promised anything"
        assert len(disk.unflushed("s")) == 5
        assert (await disk.crash().read("s"))[1] == [turn(0), turn(1), turn(2)]

    play(main)


def test_a_creation_that_the_crash_cut_never_was() -> None:
    async def main() -> None:
        disk = SimulatedDisk(Latency(create=5))
        with trio.move_on_after(1):
            await disk.create(HEADER)
        assert await disk.crash().list() == []

    play(main)


def test_wrong_use_is_refused() -> None:
    async def main() -> None:
        disk = SimulatedDisk()
        with pytest.raises(InvalidValue, match="expected 0 or more"):
            disk.crash(-1)
        handle = await filled(disk, 0)
        await handle.close()
        with pytest.raises(UsageError, match="is closed"):
            handle.append(turn(0))

    play(main)


def test_an_agent_goes_on_where_the_power_was_cut() -> None:
    """C145: a crash in the middle of a tool is closed by the next resume."""

    async def first(disk: SimulatedDisk) -> SimulatedDisk:
        entered = trio.Event()

        @terzetto.tool
        async def dig() -> str:
            """Dig."""
            entered.set()
            await trio.sleep(100)
            return "dug"

        model = ScriptedModel([answer(call("dig"))])
        async with (
            terzetto.open_engine(adapters=[model], tools=[dig], store=disk) as engine,
            engine.open_agent(provider="scripted", model="m", session_id="s") as agent,
        ):
            agent.followup("dig")
            await entered.wait()
            return disk.after_crash()

    async def second(disk: SimulatedDisk) -> list[str]:
        model = ScriptedModel(["Where was I?"])
        async with (
            terzetto.open_engine(adapters=[model], store=disk) as engine,
            engine.open_agent(resume="s") as agent,
        ):
            turn = await agent.ask("and?")
            assert turn.text == "Where was I?"
            events = agent.session.events
            return [getattr(getattr(e.data, "error", None), "code", "") for e in events]

    assert "TOOL_OUTCOME_UNKNOWN" in play(second, play(first, SimulatedDisk(Latency.of(0.1))))
