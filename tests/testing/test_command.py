"""``python -m terzetto.testing.explore``: what it prints, and how it ends."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from terzetto import tool
from terzetto.llm.scripted import call
from terzetto.testing import (
    SOURCES,
    Stage,
    _command as command_module,
    _shipped as shipped_module,
)
from terzetto.testing._command import engine_checkpoints, main
from terzetto.testing._shipped import SHIPPED, Shipped

ROOT = Path(__file__).resolve().parents[2]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
    )


@pytest.mark.parametrize(
    "imports",
    [
        "from terzetto.testing import explore; import terzetto.testing.explore",
        "import terzetto.testing.explore; from terzetto.testing import explore",
        "import terzetto.testing.explore as explore; import terzetto.testing.explore",
        "import importlib, terzetto.testing; "
        "explore = importlib.import_module('terzetto.testing.explore')",
    ],
)
def test_the_function_and_the_module_are_one(imports: str) -> None:
    """However it is imported, it is the function: none hides the other."""
    check = (
        "import inspect; assert inspect.isfunction(explore); "
        "assert terzetto.testing.explore is explore; "
        "from terzetto.testing import explore as again; assert again is explore"
    )
    done = python("-c", f"{imports}; {check}")
    assert (done.returncode, done.stderr) == (0, "")


def test_as_a_program_it_warns_of_nothing() -> None:
    """Two processes, a small part: rows in order, the checkpoints, the sum as the last line."""
    names = ["reasoning", "plain"]
    some = [argument for name in names for argument in ("--scenario", name)]
    sources = ["--source", "user", "--source", "power cut", "--stride", "9", "--jobs", "2"]
    done = python("-m", "terzetto.testing.explore", *some, *sources)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["scenario", "steps", "points", "violations", "seconds"]
    assert [line.split()[0] for line in lines[1:3]] == names
    assert re.fullmatch(r"\d+ points, 0 violations", lines[-1])
    points = sum(int(line.split()[2]) for line in lines[1:3])
    assert lines[-1].startswith(f"{points} points")
    counted = r"\d+ checkpoints: \d+ reached, \d+ cancelled at, \d+ never suspend, \d+ left"
    assert re.search(counted, done.stdout)
    assert "  never reached: tools/_batch.py:" in done.stdout


def test_the_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    for name in [*SHIPPED, *(source.name for source in SOURCES), "power cut"]:
        assert re.search(rf"^  {re.escape(name)}  ", out, re.MULTILINE), name


def run(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main([*arguments, "--jobs", "1"])
    return code, capsys.readouterr().out


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """One shipped scenario more, with a tool that leaves something open."""

    async def scenario(stage: Stage) -> None:
        """Careless."""
        held = [False]
        stage.expect(lambda: not held[0], "something is left open")

        @tool
        async def hold() -> str:
            """Hold."""
            held[0] = True
            await trio.sleep(1)
            held[0] = False
            return "held"

        async with stage.open_engine([hold]) as engine, stage.open_agent(engine) as agent:
            stage.send("followup", "hold")
            await agent.wait_idle()

    found = {**SHIPPED, "careless": Shipped("careless", scenario, [call("hold"), "Done."])}
    for module in (command_module, shipped_module):
        monkeypatch.setattr(module, "SHIPPED", found)


@pytest.mark.usefixtures("careless")
def test_violations_are_told_with_the_way_to_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, the place of each, and a command that plays it again with its log."""
    code, out = run(["--scenario", "careless", "--source", "user"], capsys)
    assert code == 1
    found = re.findall(r"careless, user, point (\d+), seed 0: something is left open", out)
    assert found
    # The first one is told again, as the shortest story.
    assert found.pop() == found[0]
    assert out.splitlines()[-1].endswith(f", {len(found)} violations")
    assert f"--scenario 'careless' --source 'user' --point {found[0]}" in out
    assert "waits at testing/test_command.py" in out
    code, log = run(["--scenario", "careless", "--source", "user", "--point", found[0]], capsys)
    assert code == 1
    assert "  something is left open" in log
    assert "1 violations" in log
    before, _, after = log.partition("----  struck by user; ")
    assert "tool/call" in before
    assert "Aborted by UserCause" in after
    assert "waits at testing/test_command.py" in after, "where the tasks waited"


def test_a_point_is_replayed_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--scenario", "batch", "--source", "host cancel", "--point", "30"]
    first, second = run(arguments, capsys), run(arguments, capsys)
    assert first == second
    assert first[0] == 0
    assert "0 violations" in first[1]


def test_a_power_cut_is_replayed_with_its_three_disks(capsys: pytest.CaptureFixture[str]) -> None:
    resumed = "----  the power is cut; resumed"
    for point in range(20, 60):  # the first at which something is on its way to the disk
        code, out = run(
            ["--scenario", "batch", "--source", "power cut", "--point", str(point)], capsys
        )
        assert code == 0
        if out.count(resumed) > 1:
            break
    assert out.count(resumed) == 3
    assert "half kept, torn" in out
    assert "Interrupted" in out


def test_a_point_after_the_end_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(["--scenario", "plain", "--source", "user", "--point", "9999"], capsys)
    assert code == 0
    assert "the scenario ends before point 9999" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--scenario", "nobody"],
        ["--source", "nobody"],
        ["--stride", "0"],
        ["--point", "-1"],
        ["--jobs", "many"],
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_point_needs_its_two_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--point", "3", "--scenario", "plain"]) == 2
    assert "--point needs one --scenario and one --source" in capsys.readouterr().err


def test_the_checkpoints_are_those_of_all_but_extras_commands_and_tests() -> None:
    """Also of modules that nobody has thought of: what is left out is said, not what is in."""
    checkpoints = engine_checkpoints()
    files = {point.path for point in checkpoints.points}
    assert {"agent/_driver.py", "agent/_step.py", "tools/_batch.py", "terzetto/engine.py"} <= files
    assert {"session/_log.py", "stores/_memory.py", "llm/_runtime.py", "terzetto/hooks.py"} <= files
    assert {"llm/_http.py", "llm/openai_chat.py", "llm/loopback.py", "stores/_group.py"} <= files
    left_out = ("extras/", "commands/", "testing/", "terzetto/cli.py")
    assert not [file for file in files if file.startswith(left_out)]
    assert len(checkpoints.points) > 340


def test_waits_for_threads_are_told_apart() -> None:
    """They are shown, and counted with nothing else."""
    checkpoints = engine_checkpoints()
    threads = checkpoints.threads
    assert {point.path for point in threads} >= {"stores/_jsonl.py", "stores/_sqlite.py"}
    assert all(point.text.startswith("await trio.to_thread.run_sync(") for point in threads)
    assert not {*threads} & {*checkpoints.fresh().unreached}
    assert f"not counted: {len(threads)} waits for threads" in str(checkpoints)
