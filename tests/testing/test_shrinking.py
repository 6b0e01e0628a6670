"""Scripts, and the shortest story of what is wrong with one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from terzetto import Tool, tool
from terzetto.llm.scripted import call
from terzetto.testing import (
    SOURCES,
    Script,
    Stage,
    Violation,
    explore,
    explore_crashes,
    shortest_trace,
)
from terzetto.testing._command import main
from terzetto.vocabulary import TurnEnd

USER = [source for source in SOURCES if source.name == "user"]
HOST = [source for source in SOURCES if source.name == "host cancel"]


def forgetful(stage: Stage) -> Iterable[Tool]:
    """A tool that leaves something open when it is cancelled."""
    held = [False]
    stage.expect(lambda: not held[0], "something is left open")

    @tool
    async def hold() -> str:
        """Hold."""
        held[0] = True
        await trio.sleep(1)
        held[0] = False
        return "held"

    return [hold]


LONG = (
    Script(forgetful, ["hi", call("hold"), "Done."], name="forgetful")
    .followup("hello")
    .idle()
    .inject("by the way")
    .followup("hold")
    .idle()
)


def endings(script: Script) -> list[str]:
    """How its turns end when nobody strikes."""
    found = list[str]()

    def check(stage: Stage) -> list[str]:
        assert stage.session is not None
        data = [event.data for event in stage.session.events]
        found.extend(type(d.ending).__name__ for d in data if isinstance(d, TurnEnd))
        return []

    assert explore(script, sources=[], check=check).violations == []
    return found


def test_a_script_is_what_its_acts_say() -> None:
    """Each method gives another script; printed, it is a list."""
    empty = Script(name="two")
    two = empty.followup("one").wait(0.5).idle()
    assert empty.acts == ()
    assert str(two) == "1. followup 'one'\n2. wait 0.5 s\n3. wait until idle"
    assert endings(two) == ["Completed"]


def test_every_act_does_something() -> None:
    """Asks, cancels, maintains, interrupts, resumes, and calls what it is given."""
    called = list[str]()

    async def later(stage: Stage) -> None:
        await trio.sleep(1)
        called.append("later")

    script = (
        Script(model=["a", "b", "c", "d"])
        .ask("one")
        .maintain(2)
        .do(lambda stage: called.append("now"), "note")
        .do(later)
        .resume()
        .interrupt("two")
        .idle()
        .followup("three")
        .cancel()
        .idle()
        .inject("four")
        .cancel(keep_inbox=True)
        .steer("five")
        .idle()
    )
    assert endings(script) == ["Completed"] * 3, "three was taken back"
    assert called == ["now", "later"]
    assert "4. later" in str(script)


def test_a_script_is_explored_like_any_scenario() -> None:
    """BC-06 C126 C179: a script of every kind of input, struck everywhere, twice as well."""
    script = (
        Script(model=["a", "b", "c"], name="mixed")
        .ask("one", patience=0.5)
        .inject("note")
        .followup("two")
        .cancel(keep_inbox=True)
        .resume()
        .followup("three")
        .idle()
    )
    report = explore(script, sources=[*USER, *HOST], stride=2, pairs=10)
    assert report.violations == []
    assert report.points > 30
    assert explore_crashes(script, stride=5).violations == []


def test_a_violation_is_shortened_to_what_it_takes() -> None:
    report = explore(LONG, sources=USER, stride=2)
    assert report.violations
    trace = shortest_trace(report.violations[0], LONG)
    assert trace.problems == ("something is left open",)
    assert trace.acts == ("followup 'hello'", "wait until idle")
    assert trace.before == 2
    assert trace.answers == 1, "the call alone"
    assert "test_shrinking.py:" in trace.struck, "the line of the tool that waited"
    assert any("tool/call" in line for line in trace.log)
    told = str(trace)
    assert "2. wait until idle   <- struck" in told
    assert "with 1 of the model's answers" in told
    # The point that it names is one of the whole script, and the first.
    again = explore(LONG, sources=USER)
    assert trace.violation.point == again.violations[0].point


def test_of_a_function_the_point_and_the_answers_are_shortened() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.open_engine(forgetful(stage)) as engine, stage.open_agent(engine) as agent:
            stage.send("followup", "hold")
            await agent.wait_idle()

    model = [call("hold"), "Done.", "more", "and more"]
    report = explore(scenario, model, sources=USER)
    trace = shortest_trace(report.violations[-1], scenario, model)
    assert trace.violation.point == report.violations[0].point
    assert (trace.acts, trace.answers) == ((), 1)


def test_two_strikes_are_one_if_one_is_enough() -> None:
    report = explore(LONG, sources=[*USER, *HOST], stride=50, pairs=25)
    twice = [v for v in report.violations if v.then]
    assert twice
    trace = shortest_trace(twice[0], LONG)
    assert trace.violation.then == ""
    assert "--then" not in trace.violation.command


def test_two_strikes_that_it_takes_stay_two() -> None:
    def check(stage: Stage) -> list[str]:
        return ["struck again"] if stage.struck_again else []

    script = Script(model=["a"], name="brief").followup("one").idle()
    report = explore(script, sources=[*USER, *HOST], pairs=20, check=check)
    twice = report.violations[-1]
    assert re.fullmatch(r"(user|host cancel), \d+ later", twice.then)
    assert f"point {twice.point}, then {twice.then}, seed 0" in str(twice)
    trace = shortest_trace(twice, script, check=check)
    assert trace.violation.then.endswith(", 1 later")
    assert trace.again
    assert "--then" in trace.violation.command


def test_a_run_that_nobody_struck_is_told_as_well() -> None:
    script = Script(name="wrong").do(lambda stage: stage.problems.append("wrong")).followup("x")
    [violation] = explore(script, sources=[]).violations
    trace = shortest_trace(violation, script)
    assert trace.violation.source == "nobody"
    assert "nobody struck" in str(trace)


def test_a_power_cut_is_told_at_its_first_point(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(model=["a"], name="brief").followup("one").idle()
    wrong = Violation("brief", "power cut", 30, "nothing that happens")
    assert shortest_trace(wrong, script).problems == ("nothing that happens",)


# --- as a program ---------------------------------------------------------------------

SCENES = """
from tests.testing.test_shrinking import LONG
scene = LONG
number = 3
"""


def test_the_command_plays_a_scenario_of_yours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By module, or by path; what it finds it tells as the shortest story, with one command."""
    (tmp_path / "scenes.py").write_text(SCENES, "utf-8")
    name = f"{tmp_path}/scenes.py:scene"
    some = ["--scenario", name, "--source", "user", "--jobs", "1"]
    assert main(some) == 1
    out = capsys.readouterr().out
    assert "2. wait until idle   <- struck" in out
    again = re.search(r"--source 'user' --point (\d+) --seed 0$", out, re.MULTILINE)
    assert again is not None
    code = main(["--scenario", name, "--source", "user", "--point", again[1]])
    assert code == 1
    assert "something is left open" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nobody", "--list shows"),
        ("no_such_module:scene", "no_such_module"),
        ("tests.testing.test_shrinking:nothing", "nothing"),
        ("tests.testing.test_shrinking:SCENES", "expected an async function or a Script"),
        ("no/such/file.py:scene", "file.py"),
    ],
)
def test_a_scenario_that_is_not_there_is_refused(
    name: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--scenario", name])
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err


def test_a_second_strike_is_played_again(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--scenario", "batch", "--source", "user", "--point", "30"]
    assert main([*arguments, "--then", "host cancel", "--after", "2"]) == 0
    first = capsys.readouterr().out
    assert "point 30, then host cancel 2 later" in first
    assert main([*arguments, "--then", "host cancel", "--after", "900"]) == 0
    assert "nobody strikes again" in capsys.readouterr().out
    assert main(["--scenario", "batch", "--source", "two strikes", "--point", "3"]) == 2
