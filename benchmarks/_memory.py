"""``python -m benchmarks._memory KIND PIECES``: what streamed pieces leave in memory.

In a process of its own, so that nothing else is in the figures. Prints JSON: how many bytes
larger the process has become, and how many more objects the garbage collector looks at.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys

import trio

from ._places import MAKE, folder
from ._work import Load, one_turn, working

ANSWER = 1_000
"""Pieces of one answer: what an answer consists of may leave memory once it is complete."""


def resident() -> int:
    """Bytes of this process that are in memory now."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:  # elsewhere than on Linux: the most there ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def grown(kind: str, pieces: int) -> dict[str, int]:
    with folder("disk") as path:
        store = None if kind == "none" else MAKE["jsonl" if kind == "jsonl" else "sqlite"](path)
        async with working(store, Load(pieces // ANSWER, ANSWER)) as agents:
            gc.collect()
            before, tracked = resident(), len(gc.get_objects())
            await one_turn(agents)
            gc.collect()
            return {"bytes": resident() - before, "tracked": len(gc.get_objects()) - tracked}


if __name__ == "__main__":
    print(json.dumps(trio.run(grown, sys.argv[1], int(sys.argv[2]))))
