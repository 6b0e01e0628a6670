"""Running the examples as the programs that they are."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field
from tests.commands import SOURCE, environment

EXAMPLES = SOURCE.parent / "docs" / "examples"
PATIENCE = 120
"""Seconds that a whole test may take, on a slow machine."""


@define(eq=False)
class Program:
    """An example that runs. What it said so far is in *out*, both streams together."""

    process: trio.Process
    out: str = field(default="", init=False)
    _more: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    async def read(self) -> None:
        assert self.process.stdout is not None
        data = b""
        async for piece in self.process.stdout:
            data += piece
            self.out = data.decode("utf-8", "replace")
            self._more.unpark_all()

    async def said(self, pattern: str) -> re.Match[str]:
        """Wait until it said *pattern*, a regular expression."""
        while (found := re.search(pattern, self.out, re.MULTILINE)) is None:
            await self._more.park()
        return found

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Wait until it has ended by itself; its exit code."""
        return await self.process.wait()


@asynccontextmanager
async def program(script: str, *arguments: str, cwd: Path, **env: str) -> AsyncIterator[Program]:
    """The example *script*, warnings as errors; killed if it is still there at the end."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-W", "error", "-u", str(EXAMPLES / script), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=environment(**env),
    )
    started = Program(process)
    try:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(started.read)
                yield started
                if process.returncode is None:
                    process.kill()
    except trio.TooSlowError:
        raise AssertionError(f"{script} did not go on; it said:\n{started.out}") from None
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.wait()
            assert process.stdout is not None
            await process.stdout.aclose()


async def run(script: str, *arguments: str, cwd: Path, **env: str) -> tuple[int, str]:
    """Run *script* to its end; its exit code and what it said."""
    async with program(script, *arguments, cwd=cwd, **env) as started:
        code = await started.ended()
    return code, started.out


def key(base_url: str) -> dict[str, str]:
    """The environment of an example that talks to the server at *base_url*."""
    return {
        "OPENAI_API_KEY": "sk-not-a-key",
        "OPENAI_BASE_URL": base_url,
        "OPENAI_MODEL": "m",
        "no_proxy": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
        "PATH": os.environ["PATH"],
    }
