"""What the script of every peer shares. Runs in their environments: the standard library only.

A script is asked for one piece of work at a time, as a line of JSON, and answers with the
processor's seconds that it took: so we and the floor can take turns with it, and nobody's
imports are counted.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable

Work = Callable[[int], Awaitable[float | None]]
"""Does so much of it. May time itself: what it gives is taken, then, and not the whole."""


class Sleeping:
    """Calls that sleep until they are cancelled."""

    started = 0
    running = 0

    @classmethod
    async def body(cls) -> str:
        cls.started += 1
        cls.running += 1
        try:
            await asyncio.sleep(3600)
        finally:
            cls.running -= 1
        return "never"


async def cancelled(run: Awaitable[object], calls: int) -> float:
    """The seconds from the cancel of *run*, whose *calls* all sleep, until none is left."""
    Sleeping.started = Sleeping.running = 0
    task = asyncio.ensure_future(run)
    while Sleeping.started < calls:
        await asyncio.sleep(0.001)
        if task.done():
            raise AssertionError(f"ended before its calls began: {task.result()!r}")
    await asyncio.sleep(0.01)
    began = time.process_time()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    while Sleeping.running:
        await asyncio.sleep(0)
    return time.process_time() - began


def serve(works: dict[str, Work]) -> None:
    """Answer every line of stdin: ``["batch", 1000]`` with seconds, or with an error as text."""

    async def main() -> None:
        print(json.dumps("ready"), flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            name, size = json.loads(line)
            gc.collect()
            answer: float | str
            try:
                began = time.process_time()
                own = await works[name](size)
                answer = time.process_time() - began if own is None else own
            except Exception as error:  # what a peer cannot do is a result as well
                answer = f"{type(error).__name__}: {error}"[:200]
            print(json.dumps(answer), flush=True)

    asyncio.run(main())
