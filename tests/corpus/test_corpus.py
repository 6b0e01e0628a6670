"""The checks name the defects of the corpus, and leave what is right alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from terzetto.testing import VERDICTS
from tests.corpus import __main__ as corpus
from tests.corpus.cases import CASES

ROOT = Path(__file__).resolve().parents[2]
DEFECTS = [case for case in CASES.values() if case.expect]
CORRECT = [case for case in CASES.values() if not case.expect]


@pytest.mark.parametrize("case", DEFECTS, ids=lambda case: case.name)
def test_defect_is_named(case):
    report = case.check()
    assert case.expect in report.kinds, report


@pytest.mark.parametrize("case", CORRECT, ids=lambda case: case.name)
def test_correct_tool_gets_no_verdict(case):
    report = case.check()
    assert report.verdicts == (), report
    assert report.runs > 1


def test_corpus_is_large_and_has_every_verdict_on_tools():
    """What it cannot show is not a verdict on a tool: an engine's promise, a hook, an adapter."""
    assert len(DEFECTS) >= 40
    assert len(CORRECT) >= 60
    kinds = list(VERDICTS)
    of_tools = set(kinds[: kinds.index("breaks-engine")])
    assert {case.expect for case in DEFECTS} == of_tools


def test_command_says_how_many_were_named_rightly():
    words = ["says_stopped", "sorts_"]
    command = [sys.executable, "-m", "tests.corpus", *words]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    last = ran.stdout.splitlines()[-1]
    assert last == "2 of 2 defects named rightly, 0 false alarms in 1 correct tools"
    assert "returns-cancelled" in ran.stdout


def test_sum_tells_what_went_wrong():
    lines: list[str] = []
    found = corpus.check_all(lines.append, only=["answers_at_once"])
    assert found.left_alone == ["answers_at_once"]
    assert str(found) == "0 of 0 defects named rightly, 0 false alarms in 1 correct tools"
    assert any("nothing wrong" in line for line in lines)
