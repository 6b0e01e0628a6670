"""Runs on a virtual clock: time jumps, threads stand still, and what hangs is given up."""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from terzetto.testing import Hung, play


async def blocked() -> None:
    await trio.Event().wait()


async def blocked_under_a_shield() -> None:
    with trio.move_on_after(1), trio.CancelScope(shield=True):
        await trio.Event().wait()


async def spinning() -> None:
    while True:
        await trio.lowlevel.checkpoint()


async def beating() -> None:
    while True:
        await trio.sleep(1)


@pytest.mark.parametrize(
    ("main", "reason"),
    [
        (blocked, "every task is blocked for ever"),
        (blocked_under_a_shield, "every task is blocked for ever"),
        (spinning, "it goes on after 500 task steps"),
        (beating, "it goes on after 60 virtual seconds"),
    ],
)
def test_what_never_ends_is_given_up(main: Callable[[], Awaitable[None]], reason: str) -> None:
    """Blocked, shielded, spinning or beating: each is a hang, with the place where it waits."""
    with pytest.raises(Hung, match=reason) as caught:
        play(main, max_seconds=60, max_steps=500)
    [parked] = caught.value.parked
    assert main.__name__ in parked
    assert f"{Path(__file__).parent.name}/{Path(__file__).name}:" in parked
    assert parked in str(caught.value)


def test_a_run_after_one_that_hung_is_like_any_other() -> None:
    """Nothing of the run that was given up is left in Trio's way."""
    with pytest.raises(Hung):
        play(blocked)

    async def main() -> float:
        await trio.sleep(5)
        return trio.current_time()

    assert play(main) == 5
    assert trio.run(wait_all_tasks_blocked) is None


def test_time_jumps_to_the_next_deadline_only() -> None:
    async def main() -> list[float]:
        times: list[float] = []

        async def note(seconds: float) -> None:
            await trio.sleep(seconds)
            times.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for seconds in (30.0, 10.0, 20.0):
                nursery.start_soon(note, seconds)
        return times

    assert play(main) == [10, 20, 30]


def test_waiting_until_all_are_blocked_comes_before_a_jump() -> None:
    async def main() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 10)
            await wait_all_tasks_blocked()
            return trio.current_time()

    assert play(main) == 0


def test_what_main_raises_is_raised() -> None:
    async def main() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        play(main)


def test_ctrl_c_wakes_a_run_that_waits() -> None:
    """It comes by a socket, which is looked at before time jumps and before a run is given up."""

    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        await blocked()

    with pytest.raises(KeyboardInterrupt):
        play(main)


def test_a_thread_takes_no_virtual_time(tmp_path: Path) -> None:
    """`trio.Path` and plain tools work in threads: time does not jump over them."""

    async def main() -> tuple[str, float]:
        with trio.fail_after(1):
            await trio.Path(tmp_path / "x").write_text("hello")
            await trio.to_thread.run_sync(time.sleep, 0.01)
            return await trio.Path(tmp_path / "x").read_text(), trio.current_time()

    assert play(main) == ("hello", 0)


def test_threads_end_at_the_same_step_in_every_run() -> None:
    """Else a point would not be the same moment again."""

    async def main() -> list[str]:
        order: list[str] = []

        async def thread() -> None:
            await trio.to_thread.run_sync(time.sleep, 0.003)
            order.append("thread")

        async def steps() -> None:
            for number in range(6):
                await trio.lowlevel.checkpoint()
                order.append(str(number))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread)
            nursery.start_soon(steps)
        return order

    assert len({tuple(play(main)) for _ in range(5)}) == 1


def test_a_thread_that_needs_the_run_gets_it() -> None:
    async def main() -> tuple[str, float]:
        async def slowly() -> str:
            await trio.sleep(3)
            return "from the run"

        text = await trio.to_thread.run_sync(lambda: trio.from_thread.run(slowly))
        return text, trio.current_time()

    assert play(main) == ("from the run", 3)


def test_one_seed_is_one_run_and_seeds_differ() -> None:
    async def main() -> str:
        order: list[str] = []

        async def note(name: str) -> None:
            order.append(name)

        async with trio.open_nursery() as nursery:
            for name in "abcdefgh":
                nursery.start_soon(note, name)
        return "".join(order)

    assert play(main, seed=7) == play(main, seed=7)
    assert len({play(main, seed=seed) for seed in range(5)}) > 1
