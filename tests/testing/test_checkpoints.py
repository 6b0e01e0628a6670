"""Which awaits were reached and cancelled: on a module of four ways to wait."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio
import trio.testing

from terzetto import InvalidValue, tool
from terzetto.llm.scripted import call
from terzetto.testing import SOURCES, Checkpoints, Stage, explore

SOURCE = """
from contextlib import asynccontextmanager
import trio

async def numbers():
    for number in range(2):
        await trio.sleep(1)
        yield number

@asynccontextmanager
async def opened():
    await trio.sleep(1)
    yield

async def instant():
    return 1

async def body(never=False):
    x = await instant() if not never else await trio.sleep(1)
    async with opened():
        pass
    async for number in numbers():
        pass
    await trio.lowlevel.checkpoint_if_cancelled()
    if never:
        await trio.sleep_forever()
    try:
        await trio.sleep(1)
    except trio.Cancelled:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        raise
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    path = tmp_path_factory.mktemp("checkpoints") / "waiting.py"
    path.write_text(SOURCE, "utf-8")
    spec = importlib.util.spec_from_file_location("waiting", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["waiting"] = made
    spec.loader.exec_module(made)
    yield made
    del sys.modules["waiting"]


BOTH = [source for source in SOURCES if source.name in {"user", "host cancel"}]


def texts(found: list[object]) -> list[str]:
    return [getattr(checkpoint, "text", "") for checkpoint in found]


@pytest.fixture(scope="module")
def found(module: ModuleType) -> Checkpoints:
    return explored(module)


def explored(module: ModuleType, stride: int = 1) -> Checkpoints:
    checkpoints = Checkpoints.of(module)

    async def scenario(stage: Stage) -> None:
        @tool
        async def waits() -> str:
            """Wait."""
            await module.body()
            return "waited"

        async with stage.open_engine([waits]) as engine, stage.open_agent(engine) as agent:
            stage.send("followup", "go")
            await agent.wait_idle()

    report = explore(
        scenario, [call("waits")], sources=BOTH, checkpoints=checkpoints, stride=stride
    )
    assert report.violations == []
    return checkpoints


def test_the_awaits_of_a_module_are_found_in_the_order_of_its_lines(module: ModuleType) -> None:
    points = Checkpoints.of(module).points
    assert [point.kind for point in points].count("await") == 8
    assert [point.kind for point in points if point.kind != "await"] == ["async with", "async for"]
    assert [point.line for point in points] == sorted(point.line for point in points)
    assert str(points[0]).endswith("waiting.py:7: await trio.sleep(1)")


def test_what_was_reached_and_what_was_cancelled(found: Checkpoints) -> None:
    """Each by what was seen: suspended, run through, or only met by a struck run."""
    checkpoints = found
    unreached = texts([*checkpoints.unreached])
    assert unreached == ["await trio.sleep(1)", "await trio.sleep_forever()"]
    assert len(checkpoints.points) - len(checkpoints.reached) == 2
    cancelled = {(point.line, point.text) for point in checkpoints.cancelled}
    source = SOURCE.splitlines()
    assert all(text in source[line - 1] for line, text in cancelled)
    assert {"async with opened():", "async for number in numbers():"} <= {t for _, t in cancelled}
    assert "await instant()" in texts([*checkpoints.reached])
    assert "await instant()" not in {text for _, text in cancelled}, "it never suspends"
    # The clean-up waits under a shield, in struck runs only: seen all the same.
    shielded = next(i for i, line in enumerate(source, 1) if "shield" in line) + 1
    assert shielded in {point.line for point in checkpoints.reached}
    assert "await instant()" in texts([*checkpoints.passed])
    # Each is one of four, and a wait under a shield is cut by who strikes while it lasts.
    parts = [checkpoints.cancelled, checkpoints.passed, checkpoints.uncut, checkpoints.unreached]
    assert sorted(itertools.chain(*parts), key=checkpoints.points.index) == list(checkpoints.points)
    left = len(checkpoints.uncut) + 2
    assert str(checkpoints).startswith("10 checkpoints: 8 reached, ")
    assert str(checkpoints).endswith(f"{len(checkpoints.passed)} never suspend, {left} left")


async def waits_for(event: trio.Event) -> None:
    await event.wait()


def test_a_wait_that_nobody_cut_is_left_until_somebody_does() -> None:
    """A task that was seen suspended somewhere, in whatever run, is to be cancelled there."""
    checkpoints = Checkpoints.of(Path(__file__))
    here = ["await event.wait()"]

    async def main() -> None:
        event = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits_for, event)
            await trio.testing.wait_all_tasks_blocked()
            [child] = nursery.child_tasks
            checkpoints.stepped(child)
            assert texts([*checkpoints.uncut]) == here
            assert checkpoints.passed == checkpoints.cancelled == []
            again = checkpoints.fresh()
            again.add(checkpoints.findings())
            again.struck([child])
            assert texts([*again.cancelled]) == here
            assert again.uncut == []
            event.set()

    trio.run(main)


def test_findings_of_others_are_added(module: ModuleType, found: Checkpoints) -> None:
    empty = Checkpoints.of(module)
    assert empty.reached == []
    empty.add(found.findings())
    assert (empty.reached, empty.cancelled) == (found.reached, found.cancelled)
    assert found.fresh().reached == []


def test_a_tracer_at_work_is_left_alone(module: ModuleType) -> None:
    """A debugger or a coverage tool keeps its place; what is suspended is seen all the same."""
    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: None)
    mine = sys.gettrace()
    try:
        checkpoints = explored(module, stride=20)
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)
    assert "async with opened():" in texts([*checkpoints.reached])
    assert "await instant()" not in texts([*checkpoints.reached])


def test_folders_and_files_are_taken(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.py").write_text("async def f(x):\n    await x\n", "utf-8")
    (tmp_path / "c.py").write_text("async def f(x):\n    await x\n    await x\n", "utf-8")
    points = Checkpoints.of(tmp_path / "a", tmp_path / "c.py").points
    assert [(point.path.split("/")[-2:], point.line) for point in points] == [
        (["a", "b.py"], 2),
        ([tmp_path.name, "c.py"], 2),
        ([tmp_path.name, "c.py"], 3),
    ]


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer at work stays alone")
def test_a_context_and_the_await_that_gives_it_are_two(tmp_path: Path) -> None:
    """Also where Python gives both the same place."""
    path = tmp_path / "two.py"
    path.write_text("async def f(opened):\n    async with await opened():\n        pass\n", "utf-8")
    names: dict[str, Any] = {}
    exec(compile(path.read_text("utf-8"), str(path), "exec"), names)

    async def opened() -> Any:
        return trio.open_nursery()

    checkpoints = Checkpoints.of(path)
    with checkpoints.watch():
        trio.run(names["f"], opened)
    assert [point.kind for point in checkpoints.reached] == ["async with", "await"]


def test_an_await_without_a_source_is_refused() -> None:
    with pytest.raises(InvalidValue, match="with a source file"):
        Checkpoints.of(ModuleType("built_in"))


def test_only_the_given_sources_count(found: Checkpoints) -> None:
    assert {Path(point.path).name for point in found.points} == {"waiting.py"}
