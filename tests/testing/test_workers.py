"""Worker threads of a run that stands still for them: what counts are facts, not seconds.

Each race is made to happen: the thread is let go at the worst moment, and waited for there.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from typing import Any

import pytest
import trio

from terzetto.testing import play
from terzetto.testing._trial import Trial
from terzetto.testing._trial_clock import Gated
from terzetto.testing._virtual import _Standing
from terzetto.testing._workers import Worker

NET = 60


class Around(nullcontext[None]):
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *error: object) -> None: ...


def test_result_that_comes_after_the_last_poll_is_no_hang_of_a_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run was polled, then the thread ended, and then nothing worked any more."""
    go, before = threading.Event(), Gated.open_one
    late = []

    def open_one(self: Gated) -> bool:
        opened = before(self)
        if not opened and self.works and not go.is_set():
            go.set()
            late.append(self.works[0].delivered.wait(NET))
        return opened

    monkeypatch.setattr(Gated, "open_one", open_one)

    async def body() -> str:
        await trio.to_thread.run_sync(go.wait)
        return "done"

    trial = Trial(body, Around).run()
    assert late == [True]
    assert trial.hung is None
    assert trial.ending is not None
    assert trial.ending.value == "done"


def test_result_that_comes_after_the_last_poll_is_no_hang_of_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go, before = threading.Event(), _Standing.hold
    late = []

    def hold(self: _Standing, patience: float) -> bool:
        if self.workers and not go.is_set():
            go.set()
            late.append(self.workers[0].delivered.wait(NET))
        return before(self, patience)

    monkeypatch.setattr(_Standing, "hold", hold)

    async def main() -> float:
        with trio.fail_after(5):
            await trio.to_thread.run_sync(go.wait)
        return trio.current_time()

    assert play(main) == 0
    assert late == [True]


def test_question_that_comes_after_the_last_poll_is_answered_before_time_jumps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go, before = threading.Event(), _Standing.hold
    late = []

    def hold(self: _Standing, patience: float) -> bool:
        if self.workers and not go.is_set():
            [worker] = self.workers
            go.set()
            end = time.monotonic() + NET
            while not worker.needs_run and time.monotonic() < end:
                time.sleep(0.001)
            late.append(worker.needs_run)
        return before(self, patience)

    monkeypatch.setattr(_Standing, "hold", hold)

    def work() -> float:
        go.wait()
        return trio.from_thread.run_sync(trio.current_time)

    async def main() -> float:
        with trio.fail_after(5):
            return await trio.to_thread.run_sync(work)

    assert play(main) == 0
    assert late == [True]


def test_thread_that_is_yet_to_be_started_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy may start it whenever it wants."""
    looks, go, before = [0], threading.Event(), Worker.spent
    work_before = Worker.work

    def spent(self: Worker) -> float:
        looks[0] += 1
        if looks[0] == 100:  # sleeping, it would have been given up at half of it
            go.set()
        return before(self)

    def work(self: Worker, fn: Any) -> object:
        go.wait(NET)
        return work_before(self, fn)

    monkeypatch.setattr(Worker, "spent", spent)
    monkeypatch.setattr(Worker, "work", work)

    async def main() -> list[str]:
        order: list[str] = []

        async def thread() -> None:
            await trio.to_thread.run_sync(order.append, "in the thread")

        async def steps() -> None:
            await trio.sleep(1)
            order.append("a second later")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread)
            nursery.start_soon(steps)
        return order

    assert play(main) == ["in the thread", "a second later"]
    assert looks[0] >= 100


def test_thread_that_asks_again_and_again_takes_no_virtual_time() -> None:
    """Between two questions it is at work, and time does not jump over that."""

    def work() -> list[float]:
        return [trio.from_thread.run_sync(trio.current_time) for _ in range(50)]

    async def main() -> list[float]:
        with trio.fail_after(1):
            return await trio.to_thread.run_sync(work)

    assert play(main) == [0.0] * 50


def test_thread_that_waits_for_the_run_in_its_own_way_gets_it() -> None:
    """Nobody knows that it waits; so time goes on when it has slept for a while."""
    event = threading.Event()

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, event.wait)
            await trio.sleep(3)
            event.set()
        return trio.current_time()

    assert play(main) == 3


def test_thread_that_only_looks_whether_it_is_cancelled_gets_there() -> None:
    """It never sleeps and never ends by itself: computing is bounded, too."""

    def work() -> None:
        while True:
            trio.from_thread.check_cancelled()
            sum(range(1_000))

    async def main() -> float:
        with trio.move_on_after(3):
            await trio.to_thread.run_sync(work)
        return trio.current_time()

    assert play(main) == 3


def test_answer_of_a_run_is_given_as_trio_gives_it() -> None:
    """Values, errors and cancellation come through, and so do questions of other threads."""

    def asks(raising: bool) -> str:
        def answer() -> str:
            if raising:
                raise KeyError("mine")
            return "an answer"

        return trio.from_thread.run_sync(answer)

    def cancelled() -> bool:
        try:
            trio.from_thread.run(trio.sleep_forever)
        except trio.Cancelled:
            return True
        return False

    async def main() -> tuple[str, bool]:
        with pytest.raises(KeyError, match="mine"):
            await trio.to_thread.run_sync(asks, True)
        token, found = trio.lowlevel.current_trio_token(), list[str]()

        def stranger() -> None:
            found.append(trio.from_thread.run_sync(lambda: "to a stranger", trio_token=token))

        other = threading.Thread(target=stranger)
        other.start()
        while not found:
            await trio.to_thread.run_sync(other.join, NET)
        assert found == ["to a stranger"]
        told = await trio.to_thread.run_sync(asks, False)
        with trio.move_on_after(2):
            return told, await trio.to_thread.run_sync(cancelled)
        raise AssertionError

    assert play(main) == ("an answer", True)
