"""Measuring against others: who is asked, in which environment, and what is printed of it.

The real peers are not run here: they need an index, and minutes. Stand-ins are: scripts of the
same kind, in this Python.
"""

import json
import os
import sys
from pathlib import Path

import pytest
from benchmarks import _peers
from benchmarks.__main__ import PARTS
from benchmarks._measure import Scale
from benchmarks._peers import PeerError, Versus
from benchmarks._run import run

REAL = _peers.FOLDER
SCRIPT = f"""
import sys
sys.path.insert(0, {str(REAL)!r})
from driving import Sleeping, cancelled, serve

async def work(size):
    assert size > 0

async def unable(size):
    raise RecursionError("too deep")

async def cancel(size):
    import asyncio
    return await cancelled(asyncio.gather(*(Sleeping.body() for _ in range(size))), size)

serve({{"batch": work, "steps": work, "stream": unable, "cancel": cancel}})
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the peer ``stand_in``, whose environment is this one."""
    script = tmp_path / "stand_in" / "run.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    (script.parent / "requirements.txt").write_text("never-installed==1.0\n")
    monkeypatch.setattr(_peers, "FOLDER", tmp_path)
    monkeypatch.setattr(_peers, "environment", lambda name: Path(sys.executable))
    return script


def test_every_peer_has_pins_and_a_script() -> None:
    assert _peers.known() == ["inspect_ai", "pydantic_ai"]
    for name in _peers.known():
        pins = (REAL / name / "requirements.txt").read_text().splitlines()
        assert pins
        assert all(line.count("==") == 1 for line in pins)


def test_peer_that_does_all_works_has_a_row_for_each(
    stand_in: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    arguments = ["--quick", "--peers", "stand-in", "--json", str(report)]
    assert run(PARTS, arguments, _peers.run) == 0
    rows = json.loads(report.read_text())["rows"]
    assert [row["work"] for row in rows] == ["batch"] * 2 + ["steps"] * 3 + ["stream", "cancel"]
    for row in rows:
        assert row["seconds"]["terzetto"] > 0
        assert row["seconds"]["floor"] > 0
        assert row["verdict"].keys() == {"stand_in"}
    failed = rows[5]
    assert failed["failed"] == {"stand_in": "RecursionError: too deep"}
    assert failed["verdict"] == {"stand_in": "ahead"}  # what somebody cannot do is not faster
    printed = capsys.readouterr().out
    assert "20 deltas: stand_in failed: RecursionError: too deep" in printed
    assert all(row["name"] in printed for row in rows)


def test_peer_that_ends_is_said_to_have(stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in.write_text("raise SystemExit('no such module')")
    with pytest.raises(SystemExit) as left:
        run(PARTS, ["--quick", "--peers", "stand_in"], _peers.run)
    assert left.value.code == 2
    assert "--peers stand_in: it ended: no such module" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--peers", "nobody"], "--peers nobody: expected some of inspect_ai, pydantic_ai"),
        (["--peers", "pydantic-ai,no"], "--peers no: expected some of inspect_ai, pydantic_ai"),
        (["--peers", " , "], "--peers: expected some of inspect_ai, pydantic_ai, got none"),
        (["--peers", "inspect_ai", "--only", "step"], "it measures its own parts"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_built(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        run(PARTS, arguments, _peers.run)
    assert left.value.code == 2
    assert says in capsys.readouterr().err


def test_names_are_taken_with_either_dash_and_once() -> None:
    assert _peers.chosen("pydantic-ai, inspect_ai,pydantic_ai") == ["pydantic_ai", "inspect_ai"]


def test_environment_that_cannot_be_built_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERZETTO_PEERS", str(tmp_path))
    commands: list[tuple[str, ...]] = []
    call = _peers._call

    def refused(name: str, *command: str) -> None:
        commands.append(command)
        if "pip" in command:
            call(name, sys.executable, "-c", "import sys; sys.exit('no index\\nno such version')")

    monkeypatch.setattr(_peers, "_call", refused)
    for _ in range(2):  # what was not finished is begun again
        with pytest.raises(PeerError, match=r"environment cannot be built: .* no such version; it"):
            _peers.environment("pydantic_ai")
    assert [command[1:3] for command in commands] == [("-m", "venv"), ("-m", "pip")] * 2
    with pytest.raises(PeerError, match=r"cannot run .*no-such-program: No such file"):
        call("pydantic_ai", str(tmp_path / "no-such-program"))


def test_environment_is_built_once_for_its_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TERZETTO_PEERS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls: list[str] = []

    def built(name: str, *command: str) -> None:
        calls.append(name)
        (tmp_path / "terzetto" / "peers").mkdir(parents=True, exist_ok=True)
        place = command[-1] if "venv" in command else os.path.dirname(os.path.dirname(command[0]))
        Path(place).mkdir(exist_ok=True)

    monkeypatch.setattr(_peers, "_call", built)
    first = _peers.environment("inspect_ai")
    assert _peers.environment("inspect_ai") == first
    assert calls == ["inspect_ai", "inspect_ai"]  # its folder, and its packages
    assert first.is_relative_to(tmp_path / "terzetto" / "peers")
    assert _peers.environment("pydantic_ai") != first


def test_verdict_is_ours_against_theirs() -> None:
    row = Versus(
        name="work",
        work="batch",
        size=1,
        unit="call",
        seconds={"terzetto": 2e-6, "floor": 1e-6, "slower": 4e-6, "faster": 1e-6, "same": 2e-6},
    )
    assert row.cells(["slower", "faster"]) == [
        *("work", "2 us a call", "2.00", "1 us"),
        *("4 us", "2.00", "ahead"),
        *("1 us", "0.50", "behind"),
    ]
    assert row.verdict("same") == "ahead"
    assert "slower" in _peers.table([row], ["slower", "faster", "same"]).splitlines()[0]


def test_real_works_of_ours_run() -> None:
    """Each piece of work, of us and of the floor, at its smallest."""
    for work in ("batch", "steps", "stream", "cancel"):
        assert _peers._ours(work, 3)() > 0
        assert _peers._floor(work, 3)() > 0
    assert Scale(quick=True).pick(1, 2) == 2
