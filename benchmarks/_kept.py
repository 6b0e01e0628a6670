"""What is left of a session: in memory while it lives, on the disk, and when it comes back."""

from __future__ import annotations

import gc
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import orjson
import trio

import terzetto
from terzetto import JsonlStore, Store
from terzetto.session._codec import encode_event
from terzetto.stores._jsonl_layouts import LayoutName

from ._measure import Sample, Scale, Series, alternate
from ._places import KINDS, MAKE, Kind, folder, places
from ._rows import Count, Ratio, Row
from ._work import Load, WorkModel, note, turns
from .floors import line

ROOT = Path(__file__).resolve().parents[1]


# --- memory ---------------------------------------------------------------------------------


def memory(scale: Scale) -> Iterable[Row]:
    """A turn of many long answers, in a process of its own, after it has become durable."""
    pieces = scale.pick(100_000, 2_000)
    for kind in scale.pick(("none", *KINDS), KINDS):
        command = [sys.executable, "-m", "benchmarks._memory", kind, str(pieces)]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
        found = json.loads(done.stdout)
        name = f"{pieces:,} pieces, {'no store' if kind == 'none' else kind}"
        judged = not scale.quick
        most = (100, 0.05) if kind == "none" else (60, 0.1)
        for what, unit, limit in (
            ("bytes", "B a piece", most[0]),
            ("tracked", "objects a piece", most[1]),
        ):
            yield Count(
                name=f"{name}: {what}",
                value=found[what] / pieces,
                unit=unit,
                limit=limit if judged else None,
            )


# --- size -----------------------------------------------------------------------------------


def size(scale: Scale) -> Iterable[Row]:
    """Bytes on the disk, for each event of a turn that streams and calls tools."""
    load = scale.pick(Load(50, 40), Load(2, 4))
    stores: dict[str, Callable[[Path], Store]] = {
        **{
            f"jsonl, {layout}": partial(_laid_out, layout)
            for layout in get_args(LayoutName)
            if layout != "zstd" or importlib.util.find_spec("zstandard")
        },
        "sqlite": MAKE["sqlite"],
    }
    for name, make in stores.items():
        with folder("disk") as path:
            work = trio.run(turns, 1, load, "step", make(path), time.perf_counter)
            used = sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
        yield Count(name=name, value=used / work.events, unit="B an event")


def _laid_out(layout: LayoutName, path: Path) -> Store:
    return JsonlStore(path / "sessions", layout=layout)


# --- resuming -------------------------------------------------------------------------------


def resume(scale: Scale) -> Iterable[Row]:
    """Opening an agent on a stored session, against reading its lines as JSON; the same of a
    log of five times as many events; and its first turn, against its second."""
    small, large = scale.pick((Load(323, 20), Load(1613, 20)), (Load(3, 3), Load(6, 3)))
    for kind in KINDS:
        with folder(places()[-1]) as path, folder(places()[-1]) as other:
            lines, more = _stored(kind, path, small), _stored(kind, other, large)
            found = alternate(
                {
                    "ours": _resumed(kind, path, len(lines)),
                    "large": _resumed(kind, other, len(more)),
                    "floor": _loaded(lines),
                },
                scale,
            )
            yield Ratio(
                name=f"{kind}, a session of {len(lines):,} events",
                unit="event",
                ours=found["ours"],
                against="orjson.loads",
                floor=found["floor"],
                budget=12,
            )
            yield Ratio(
                name=f"{kind}, a session of {len(more):,} events",
                unit="event",
                ours=found["large"],
                against=f"of {len(lines):,}",
                floor=found["ours"],
                budget=1.6,
            )
            first, second = _after_resume(kind, path, scale)
            yield Ratio(
                name=f"{kind}, the first turn after it, of one step",
                unit="turn",
                ours=first,
                against="the second",
                floor=second,
                budget=1.1,
            )


def _stored(kind: Kind, path: Path, load: Load) -> list[bytes]:
    """A session of one turn of *load*, in a new store; its lines."""
    store = MAKE[kind](path)
    trio.run(turns, 1, load, "lazy", store, time.perf_counter)
    _, events = trio.run(store.read, "s0")
    return [line(dict(encode_event(event))) for event in events]


def _after_resume(kind: Kind, path: Path, scale: Scale) -> tuple[Series, Series]:
    """Seconds of Trio's thread for the first turn and for the second, many times."""

    async def main() -> tuple[float, float]:
        async with (
            terzetto.open_engine(
                adapters=[WorkModel(Load(1, 20))], tools=[note], store=MAKE[kind](path)
            ) as engine,
            engine.open_agent(resume="s0") as agent,
        ):
            took = []
            for _ in range(2):
                gc.collect()
                began = time.thread_time()
                await agent.ask("Work.")
                took.append(time.thread_time() - began)
            return took[0], took[1]

    found = [trio.run(main) for _ in range(scale.pick(3 * scale.rounds, 1))]
    return Series(tuple(one for one, _ in found)), Series(tuple(other for _, other in found))


def _resumed(kind: Kind, path: Path, events: int) -> Sample:
    async def main() -> float:
        async with terzetto.open_engine(
            adapters=[WorkModel(Load(1, 1))], tools=[note], store=MAKE[kind](path)
        ) as engine:
            began = time.process_time()
            async with engine.open_agent(resume="s0"):
                return (time.process_time() - began) / events

    return lambda: trio.run(main)


def _loaded(lines: Sequence[bytes]) -> Sample:
    def sample() -> float:
        began = time.process_time()
        kept = [orjson.loads(one) for one in lines]
        return (time.process_time() - began) / len(kept)

    return sample
