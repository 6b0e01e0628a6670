"""What it costs to keep sessions: ``python -m benchmarks.store``, or ``--only store``.

- ``store.write``: a store alone, without agents: events handed over and flushed in groups.
- ``store.levels``: agents at work on each store, at each durability.
- ``store.prices``: the same, against agents without a store.
- ``store.counts``: syncs and thread hops of a step, and of a durable batch.
- ``store.memory``: what one streamed piece leaves in memory.
- ``store.size``: bytes on the disk for an event.
- ``store.resume``: getting a session back, for each of its events.

The floors write the same facts as plain JSON lines, or rows of a table, without checks, in as
many groups, each with its sync and its thread.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import trio

from terzetto import Event, Store
from terzetto.session._codec import encode_event
from terzetto.stores import WriteHandle
from terzetto.vocabulary import AssistantChunk, Durability, SessionHeader, SessionId, TextDelta

from ._kept import memory, resume, size
from ._measure import Clock, Counted, Scale, alternate, counting
from ._places import CLOCKS, KINDS, MAKE, Kind, Where, folder, places
from ._rows import Count, Ratio, Row
from ._run import Parts, main
from ._work import WORD, Load, Meter, Work, one_turn, turns, working
from .floors import Fields, write_lines, write_rows

AGAINST: dict[Kind, str] = {"jsonl": "bare lines", "sqlite": "bare rows"}
LEVELS: tuple[Durability, ...] = ("lazy", "step", "each")
Case: TypeAlias = tuple[Kind, int, object]
BUDGETS: dict[Case, float] = {
    ("jsonl", 1, 1): 1.6,
    ("jsonl", 1, 20): 1.3,
    ("jsonl", 50, 1): 1.3,
    ("jsonl", 50, 20): 1.1,
    ("sqlite", 1, 1): 2.1,
    ("sqlite", 1, 20): 2.0,
    ("sqlite", 50, 1): 3.5,
    ("sqlite", 50, 20): 1.6,
    ("jsonl", 1, "lazy"): 7.1,
    ("jsonl", 1, "step"): 4.7,
    ("jsonl", 1, "each"): 2.7,
    ("jsonl", 50, "lazy"): 5.1,
    ("jsonl", 50, "step"): 3.7,
    ("jsonl", 50, "each"): 1.9,
    ("sqlite", 1, "lazy"): 5.4,
    ("sqlite", 1, "step"): 4.1,
    ("sqlite", 1, "each"): 2.8,
    ("sqlite", 50, "lazy"): 6.7,
    ("sqlite", 50, "step"): 6.2,
    ("sqlite", 50, "each"): 6.3,
}
"""Of rows in memory: the kind, how many sessions or agents, events a flush or durability. A
quarter above what was measured when they were set."""


Working: TypeAlias = Callable[[Store, Clock], Awaitable[Work]]
"""Does something with a new store."""


# --- a store alone --------------------------------------------------------------------------


def write(where: Where, scale: Scale) -> Iterable[Row]:
    """Events handed to one session, or to many at the same time, and flushed in groups."""
    count = scale.pick(2_000 if where == "memory" else 400, 40)
    for kind in KINDS:
        for sessions in scale.pick((1, 50), (3,)):
            for group in scale.pick((1, 20), (5,)):
                name = f"{kind}, {_times(sessions, 'session')}, flush every {group}"
                working = partial(_written, sessions, max(count // sessions, group), group)
                budget = BUDGETS.get((kind, sessions, group))
                yield _row(name, working, kind, where, scale, budget)


async def _written(sessions: int, count: int, group: int, store: Store, clock: Clock) -> Work:
    events = chunk_events(count)
    handles = [await store.create(_header(f"s{number}")) for number in range(sessions)]
    with counting() as counted:
        meter = Meter(store, counted, clock)
        async with trio.open_nursery() as nursery:
            for handle in handles:
                nursery.start_soon(_flushed, handle, events, group)
        work = meter.work(count * sessions)
    for handle in handles:
        await handle.close()
    return work


async def _flushed(handle: WriteHandle, events: Sequence[Event], group: int) -> None:
    for start in range(0, len(events), group):
        for event in events[start : start + group]:
            handle.append(event)
        await handle.flush()


def chunk_events(count: int) -> list[Event]:
    """A log that is a stream of text and nothing else."""
    return [
        Event(seq, 1_700_000_000_000 + seq, AssistantChunk(1, 1, TextDelta(0, WORD)))
        for seq in range(count)
    ]


# --- agents on a store ----------------------------------------------------------------------


def levels(where: Where, scale: Scale) -> Iterable[Row]:
    """Agents that stream and call tools, until all of it is durable."""
    for kind in KINDS:
        for agents in scale.pick((1, 50), (2,)):
            load = _load(agents, scale)
            for level in LEVELS:
                name = f"{kind}, {_times(agents, 'agent')}, {level}"
                working = partial(turns, agents, load, level)
                budget = BUDGETS.get((kind, agents, level))
                yield _row(name, working, kind, where, scale, budget)


def prices(where: Where, scale: Scale) -> Iterable[Row]:
    """The same agents, against themselves without a store."""
    for agents in scale.pick((1, 50), (2,)):
        load = _load(agents, scale)
        contenders = {"none": partial(_without_store, agents, load, where)}
        for kind in KINDS:
            for level in LEVELS:
                working = partial(turns, agents, load, level)
                contenders[f"{kind}, {_times(agents, 'agent')}, {level}"] = partial(
                    _in_new_store, working, kind, where
                )
        found = alternate(contenders, scale)
        for name in list(contenders)[1:]:
            yield Ratio(
                name=name,
                unit="event",
                ours=found[name],
                against="without a store",
                floor=found["none"],
            )


def _load(agents: int, scale: Scale) -> Load:
    return scale.pick(Load(20, 20) if agents == 1 else Load(3, 6), Load(2, 2))


def _without_store(agents: int, load: Load, where: Where) -> float:
    async def main() -> float:
        async with working(None, load, agents) as workers:
            began = CLOCKS[where]()
            events = await one_turn(workers)
            return (CLOCKS[where]() - began) / events

    return trio.run(main)


def _row(
    name: str, working: Working, kind: Kind, where: Where, scale: Scale, budget: float | None
) -> Ratio:
    """*working* on a new store each time, against a floor that writes the same facts."""
    first, logs = _recorded(working, kind, where)
    found = alternate(
        {
            "ours": lambda: _in_new_store(working, kind, where),
            "floor": lambda: _floor(kind, where, logs, first.groups) / first.events,
        },
        scale,
    )
    return Ratio(
        name=name,
        unit="event",
        ours=found["ours"],
        against=f"{AGAINST[kind]}, {first.groups:,} syncs",
        floor=found["floor"],
        budget=budget if where == "memory" else None,
    )


def _in_new_store(working: Working, kind: Kind, where: Where) -> float:
    with folder(where) as path:
        work = trio.run(working, MAKE[kind](path), CLOCKS[where])
        return work.seconds / work.events


def _recorded(working: Working, kind: Kind, where: Where) -> tuple[Work, list[list[Fields]]]:
    """One run that is not timed: how it went, and what was stored."""

    async def main(path: Path) -> tuple[Work, list[list[Fields]]]:
        store = MAKE[kind](path)
        work = await working(store, CLOCKS[where])
        read = [await store.read(header.id) for header in await store.list()]
        return work, [[dict(encode_event(event)) for event in events] for _, events in read]

    with folder(where) as path:
        return trio.run(main, path)


def _floor(kind: Kind, where: Where, logs: Sequence[Sequence[Fields]], groups: int) -> float:
    with folder(where) as path:
        if kind == "jsonl":
            return trio.run(write_lines, path, logs, groups, CLOCKS[where])
        return trio.run(write_rows, path / "floor.db", logs, groups, CLOCKS[where])


# --- counts ---------------------------------------------------------------------------------


def counts(scale: Scale) -> Iterable[Row]:
    """Syncs and thread hops, of which there is a right number on every machine."""
    for kind in KINDS:
        bare = _counted(kind, Load(1, 4, 0))
        steps = _counted(kind, Load(11, 4, 1))
        batch = _counted(kind, Load(2, 4, 100))
        apart = _counted(kind, Load(2, 4, 100, apart=True))
        # Calls that end one by one are replaced one by one, unless a sync is in progress.
        for what, of, share, limit in (
            ("a turn of one step", bare, 1, 2),
            ("a further step, with a call", _less(steps, bare), 10, 2),
            ("100 calls, cap 10, and the step after them", _less(batch, bare), 1, 12),
            ("100 calls that end one by one", _less(apart, bare), 1, None),
        ):
            yield Count(name=f"{kind}, {what}: syncs", value=of.syncs / share, unit="", limit=limit)
            yield Count(
                name=f"{kind}, {what}: thread hops", value=of.hops / share, unit="", limit=limit
            )


def _counted(kind: Kind, load: Load) -> Counted:
    """What one turn needs on a new store."""

    async def main(path: Path) -> Counted:
        store = MAKE[kind](path)
        # On a slow disk a window might end, and what is written behind is not what is asked.
        async with working(store, load, write_window=60) as agents:
            with counting() as counted:
                meter = Meter(store, counted, time.perf_counter)
                work = meter.work(await one_turn(agents))
                return Counted(work.groups, counted.hops)

    with folder("disk") as path:
        return trio.run(main, path)


def _less(whole: Counted, part: Counted) -> Counted:
    return Counted(whole.syncs - part.syncs, whole.hops - part.hops)


def _header(name: str) -> SessionHeader:
    return SessionHeader(id=SessionId(name), created_ms=1_700_000_000_000)


def _times(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"


PARTS: Parts = {
    **{f"store.write.{where}": partial(write, where) for where in places()},
    **{f"store.levels.{where}": partial(levels, where) for where in places()},
    **{f"store.prices.{where}": partial(prices, where) for where in places()},
    "store.counts": counts,
    "store.memory": memory,
    "store.size": size,
    "store.resume": resume,
}

if __name__ == "__main__":
    main(PARTS)
