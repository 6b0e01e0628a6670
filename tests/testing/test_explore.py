"""`explore` as somebody uses it for a tool of his own: what it takes, and what it finds."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from attrs import evolve

import terzetto.agent._step as step_module
import terzetto.engine as engine_module
from terzetto import InvalidValue, MemoryStore, ToolRun, tool
from terzetto.llm.scripted import ScriptedModel, answer, call
from terzetto.testing import (
    SOURCES,
    Latency,
    Report,
    SimulatedDisk,
    Stage,
    Violation,
    calling,
    explore,
    explore_crashes,
)

USER = [source for source in SOURCES if source.name == "user"]
INSIDE = [source for source in SOURCES if source.inside == "body"]


class Valve:
    """Something that must not stay open."""

    open = False


def watering(careful: bool) -> Callable[[Stage], Awaitable[None]]:
    async def scenario(stage: Stage) -> None:
        valve = Valve()
        stage.expect(lambda: not valve.open, "the valve is open")

        @tool
        async def water() -> str:
            """Water."""
            valve.open = True
            try:
                await trio.sleep(10)
            finally:
                if careful:
                    valve.open = False
            valve.open = False
            return "watered"

        async with stage.open_engine([water]) as engine, stage.open_agent(engine) as agent:
            agent.followup("water, please")
            await agent.wait_idle()

    return scenario


def test_a_careful_tool_is_clean() -> None:
    some = [source for source in SOURCES if "u" in source.name]  # user, KeyboardInterrupt ...
    report = explore(watering(careful=True), [call("water"), "Done."], sources=some, stride=2)
    assert report.violations == []
    assert report.points > len(some) * (report.steps // 2) // 2, "half of each source's, or more"
    assert str(report) == f"{report.points:,} points, 0 violations"


def test_a_careless_tool_is_found_with_what_makes_it_happen_again() -> None:
    scenario, model = watering(careful=False), [call("water"), "Done."]
    report = explore(scenario, model, sources=USER, seed=3)
    assert {violation.problem for violation in report.violations} == {"the valve is open"}
    first = report.violations[0]
    assert first == Violation("scenario", "user", first.point, "the valve is open", 3)
    assert str(first) == f"scenario, user, point {first.point}, seed 3: the valve is open"
    again = explore(scenario, model, name="again", sources=USER, seed=3)
    assert [v.point for v in again.violations] == [v.point for v in report.violations]


def test_a_check_of_the_whole_stage() -> None:
    """It comes after the invariants, and is asked of the run that nobody struck as well."""
    seen: list[int] = []

    def check(stage: Stage) -> list[str]:
        seen.append(len(stage.bodies))
        return ["no body ran"] if stage.struck and not stage.bodies else []

    report = explore(watering(careful=True), [call("water")], sources=USER, check=check)
    assert seen[0] == 1
    assert len(seen) == 1 + report.points + 1  # and the last point, which no run reached
    assert {violation.problem for violation in report.violations} == {"no body ran"}


def test_calling_is_the_shortest_scenario() -> None:
    """A tool and its arguments: the model calls it once, and the tool is watched."""
    got: list[tuple[str, int]] = []

    @tool
    async def save(path: str, size: int) -> str:
        """Save."""
        got.append((path, size))
        await trio.sleep(1)
        return "saved"

    report = explore(calling(save, path="a", size=3), sources=[*USER, *INSIDE])
    assert report.violations == []
    assert set(got) == {("a", 3)}
    assert report.points > 15


def test_without_a_model_there_are_answers_all_the_same() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
            assert (await agent.ask("hello")).text == "more"

    assert explore(scenario, sources=[]).violations == []


@pytest.mark.parametrize("model", [[answer("one")], lambda: ScriptedModel(["one"])])
def test_a_model_is_a_list_of_answers_or_makes_an_adapter(model: Any) -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
            assert (await agent.ask("hello")).text == "one"

    assert explore(scenario, model, sources=[]).violations == []


def test_a_run_that_hangs_is_a_violation_and_the_others_go_on() -> None:
    """Cancelled in its first wait, the tool waits for something that cannot come any more."""

    @tool
    async def deaf() -> str:
        """Deaf."""
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.Event().wait()
        return "slept"

    report = explore(calling(deaf), sources=USER)
    problems = [violation.problem for violation in report.violations]
    assert problems
    assert all(p.startswith("7. the run hangs: every task is blocked for ever") for p in problems)
    assert all("test_explore.py" in problem for problem in problems), "it says where"
    assert report.points > len(problems) + 10


def test_bodies_are_watched_with_and_without_a_run() -> None:
    """Every kind of body: with its own `ToolRun`, without, plain, and already recorded."""

    async def scenario(stage: Stage) -> None:
        @tool
        async def own(run: ToolRun) -> str:
            """Own."""
            return run.name

        @tool
        async def bare(text: str) -> str:
            """Bare."""
            return text

        @tool
        def plain(text: str) -> str:
            """Plain."""
            return text

        @tool
        async def recorded(run: ToolRun) -> str:
            """Record."""
            async with stage.body(run):
                await trio.sleep(1)
            return "recorded"

        tools = [own, bare, plain, recorded]
        async with stage.open_engine(tools) as engine, stage.open_agent(engine) as agent:
            agent.followup("go")
            await agent.wait_idle()

    calls = answer(
        call("own", id="1"),
        call("bare", id="2", text="x"),
        call("plain", id="3", text="y"),
        call("recorded", id="4"),
    )
    ran: list[list[tuple[str, bool]]] = []

    def check(stage: Stage) -> list[str]:
        ran.append([(body.call_id, body.returned) for body in stage.bodies])
        return []

    assert explore(scenario, [calls], sources=INSIDE, check=check).violations == []
    assert ran[0] == [("1", True), ("2", True), ("3", True), ("4", True)]
    assert ran[1:5] == [[*ran[0][:n], (str(n + 1), False)] for n in range(4)], "struck in each"


def test_ctrl_c_of_the_user_ends_the_exploration() -> None:
    """One that comes again belongs to the scenario; one that does not, to somebody at the keys."""
    pressed: list[int] = []

    async def scenario(stage: Stage) -> None:
        async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
            stage.send("followup", "go")
            pressed.append(stage.point)
            if len(pressed) == 4:
                signal.raise_signal(signal.SIGINT)
            await agent.wait_idle()

    with pytest.raises(KeyboardInterrupt):
        explore(scenario, sources=USER)
    assert len(pressed) < 8, "it ended there"


def test_what_an_engine_leaves_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 7, by the engine's own count."""
    original = engine_module.Engine.statistics
    monkeypatch.setattr(
        engine_module.Engine,
        "statistics",
        lambda self: evolve(original(self), tool_bodies_running=1),
    )
    report = explore(watering(careful=True), [call("water")], sources=[])
    [violation] = report.violations
    assert violation.problem.startswith("7. the engine counts what it left behind: ")


# --- power cuts -----------------------------------------------------------------------


def digging(stage: Stage) -> Awaitable[None]:
    @tool
    async def dig() -> str:
        """Dig."""
        await trio.sleep(1)
        return "dug"

    return calling(dig)(stage)


def cut(latency: Latency = Latency.of(0.05), stride: int = 1) -> Report:
    return explore_crashes(digging, [call("dig"), "Done."], latency=latency, stride=stride)


def test_power_cuts_are_survived_on_fast_and_slow_disks() -> None:
    for latency in (Latency(), Latency.of(0.5), Latency(event=0.1)):
        report = cut(latency, stride=3)
        assert report.violations == []
        assert report.points > 8


def test_a_body_that_starts_before_its_call_is_durable_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the model is told to repeat an effect: C151's promise of ``"step"``."""
    monkeypatch.setattr(step_module.StepLog, "must_flush", lambda *args: False)
    problems = {violation.problem.partition(" (")[0] for violation in cut().violations}
    assert any(problem.startswith("5. 'call_1_1' ran") for problem in problems), problems


def test_a_store_that_loses_flushed_events_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of what was stored can fail."""
    original = SimulatedDisk.after_crash

    def shuffled(self: SimulatedDisk, keep: int = 0, *, torn: bool = False) -> SimulatedDisk:
        found = original(self, keep, torn=torn)
        for file in found._files.values():
            if len(file.events) > 3:
                del file.events[-2]
        return found

    monkeypatch.setattr(SimulatedDisk, "after_crash", shuffled)
    assert cut().violations != []


def test_crashes_need_a_disk_that_can_crash() -> None:
    async def scenario(stage: Stage) -> None:
        stage.store = MemoryStore()
        async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
            await agent.ask("hello")

    with pytest.raises(InvalidValue, match="MemoryStore; it has to be a SimulatedDisk"):
        explore_crashes(scenario)
