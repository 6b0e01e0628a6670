"""Gates on their own; how a model waits at them is in `test_scripted`."""

import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from terzetto.llm.scripted import Gates


def test_gates_can_be_made_and_opened_outside_a_run() -> None:
    gates = Gates()
    gates.open("g", "h")
    assert gates.is_open("h")
    trio.run(gates.wait, "g")


async def test_opening_one_gate_lets_all_its_waiters_through_and_no_others() -> None:
    gates = Gates()
    through: list[str] = []

    async def wait(name: str) -> None:
        await gates.wait(name)
        through.append(name)

    async with trio.open_nursery() as nursery:
        for name in "aba":
            nursery.start_soon(wait, name)
        await gates.wait_reached("a", 2)
        gates.open("a")
        await wait_all_tasks_blocked()
        assert through == ["a", "a"]
        gates.open("b")


async def test_gates_count_who_reached_them(nursery: trio.Nursery) -> None:
    gates = Gates()
    nursery.start_soon(gates.wait_reached, "g", 3)
    for _ in range(3):
        nursery.start_soon(gates.wait, "g")
    with assert_checkpoints():
        await gates.wait_reached("g", 3)
    gates.open("g")
