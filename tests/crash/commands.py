"""Other processes: the commands of this folder, run as a user does, and children to kill."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(name: str, *arguments: str) -> tuple[int, list[str]]:
    """The exit code and the lines of ``python -m tests.crash.NAME``; errors are refused."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.crash.{name}", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def children() -> ForkServerContext:
    """Makes processes that have imported what they need before they are made."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.crash.points"])
    with pytest.MonkeyPatch.context() as patch:
        # It is started once, and knows no more of where modules are than this.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
        forkserver.ensure_running()
    return context
