"""``python -m benchmarks --profile``: what a unit of work is made of."""

import gc
from pathlib import Path

import pytest
import trio
from benchmarks.__main__ import PARTS
from benchmarks._profile import Profiles, layer_of
from benchmarks._run import run

import terzetto.session


def test_layers_are_folders_of_the_package_and_who_is_below() -> None:
    package = Path(terzetto.__file__).parent
    assert layer_of(terzetto.session.__file__) == "terzetto.session"
    assert layer_of(str(package / "hooks.py")) == "terzetto.hooks"
    assert layer_of(trio.__file__) == "Trio"
    assert layer_of(gc.__name__) == layer_of("<frozen abc>") == "Python"
    assert layer_of("<attrs generated methods trio._core._run.Task>") == "attrs"


def test_shares_are_of_the_whole_and_go_to_who_did_the_work() -> None:
    profiles = Profiles()
    took = profiles.sample({"busy": _busy, "free": lambda: 0.0})
    assert took["busy"] == 2.0
    (busy, _), *others = profiles.groups
    assert not others
    assert sum(busy.layers.values()) == pytest.approx(1)
    assert sum(busy.functions.values()) == pytest.approx(1)
    # What C does counts for its caller, which is this file.
    assert next(iter(busy.functions)).endswith("_busy")
    assert gc.isenabled()


def _busy() -> float:
    sorted(range(200_000), key=str)
    return 2.0


def test_the_command_tells_of_each_contender(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(PARTS, ["--profile", "--quick", "--only", "batch.cancel"]) == 0
    told = capsys.readouterr().out
    head = next(line for line in told.splitlines() if line.startswith("us a unit"))
    assert head.split()[-2:] == ["ours", "bare"]
    ours = next(line for line in told.splitlines() if line.startswith("terzetto.agent"))
    assert float(ours.split()[1]) > 0
    assert float(ours.split()[2]) == 0
