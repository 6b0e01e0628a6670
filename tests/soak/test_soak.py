"""A small soak, and proof that it and the meter can fail.

The long one: ``python -m tests.soak --lifetimes 200000``.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter

import pytest
import trio

from terzetto import current_agent, tool
from terzetto.engine import open_engine
from terzetto.testing import Orphan, OrphanMeter, living
from tests.soak import soak as soaking
from tests.soak.__main__ import table
from tests.soak.soak import KINDS, OBJECTS, Engine, soak


def test_a_small_soak_leaves_nothing() -> None:
    """C27 C29 C173: every kind of life, and all that it had is gone."""
    soaked = soak(150, 20)
    assert soaked.left == []
    assert soaked.unfinished is None
    assert soaked.before.living.tasks == soaked.after.living.tasks
    # What is exact is exact in the long run; a short one may fill a cache of Python's own.
    assert soaked.after.objects - soaked.before.objects <= OBJECTS
    assert soaked.kinds.total() == 150
    assert len(soaked.kinds) >= len(KINDS) - 1
    assert table(soaked).endswith(f"\n{soaked}")
    assert str(soaked).startswith("150 lifetimes, 0 left, ")


def test_a_life_that_leaves_something_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects for each life, a thread, and a task."""
    kept: list[object] = []
    end = threading.Event()

    async def leaking(engine: Engine) -> None:
        kept.extend([] for _ in range(20))
        if len(kept) == 1_000:
            threading.Thread(target=end.wait, name="left alone").start()
            trio.lowlevel.spawn_system_task(trio.sleep_forever, name="left behind")

    monkeypatch.setattr(soaking, "OFTEN", (leaking,))
    monkeypatch.setattr(soaking, "SELDOM", ())
    monkeypatch.setattr(soaking, "KINDS", ())
    monkeypatch.setattr(soaking, "PATIENCE", 0.1)
    try:
        soaked = soak(60, 10)
    finally:
        end.set()
    assert not soaked.clean
    assert sorted((orphan.kind, orphan.what) for orphan in soaked.left) == [
        ("task", "left behind"),
        ("thread", "left alone"),
    ]
    assert soaked.after.objects - soaked.before.objects >= 1_000
    assert "2 left" in str(soaked)
    assert soaked.kinds == Counter(leaking=60)


# --- the meter ------------------------------------------------------------------------------


async def test_a_task_is_told_with_its_agent_and_where_it_waits() -> None:
    """C43: an agent's tasks are attributed to it."""
    meter = OrphanMeter()
    entered, go_on = trio.Event(), trio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        assert current_agent() is not None
        entered.set()
        await go_on.wait()
        return "waited"

    async with open_engine(adapters=[soaking.Model()], tools=[wait]) as engine:
        async with engine.open_agent(provider="soak", model="m", session_id="a") as agent:
            agent.followup("call wait")
            await entered.wait()
            left = [orphan for orphan in meter.left() if orphan.agent == "a"]
            assert len(left) == 2, "the agent's own task, and the call's"
            assert all(orphan.kind == "task" for orphan in left)
            waiting = [o for o in left if any("test_soak.py" in line for line in o.where)]
            assert len(waiting) == 1
            assert "of agent a\n    " in str(waiting[0])
            statistics = engine.statistics()
            assert (statistics.tasks_living, statistics.calls_running) == (2, 1)
            go_on.set()
            await agent.wait_idle()
            assert engine.statistics().tasks_living == 1
    assert meter.left() == []
    assert engine.statistics().tasks_living == 0


def test_threads_processes_and_descriptors_are_told_by_name() -> None:
    meter = OrphanMeter()
    assert meter.left() == []
    before = living()
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="a thread")
    thread.start()
    program = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        left = meter.left(patience=0.05)
        by_kind = {kind: [o for o in left if o.kind == kind] for kind in ("thread", "process")}
        [told] = by_kind["thread"]
        assert told.what == "a thread"
        assert any("in wait" in line for line in told.where)
        if sys.platform == "linux":
            [child] = by_kind["process"]
            assert child.what.endswith(f"(pid {process.pid})")
            pipes = [orphan.what for orphan in left if orphan.kind == "file"]
            assert len(pipes) == 1
            assert pipes[0].startswith("pipe:[")
            now = living()
            assert (now.processes, now.files) == (before.processes + 1, before.files + 1)
        end.set()
        thread.join()
    assert meter.left() == []


def test_a_thread_that_trio_keeps_for_later_is_no_orphan() -> None:
    meter = OrphanMeter()

    async def main() -> None:
        await trio.to_thread.run_sync(int)

    trio.run(main)
    assert meter.left() == []


def test_an_orphan_says_what_it_is() -> None:
    assert str(Orphan("file", "/tmp/x (descriptor 3)")) == "file /tmp/x (descriptor 3)"
    assert str(Orphan("task", "t", ("a:1 in f",), "b")) == "task t of agent b\n    a:1 in f"
