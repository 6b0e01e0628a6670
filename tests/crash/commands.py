"""Runs the commands of this folder as a user does, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
