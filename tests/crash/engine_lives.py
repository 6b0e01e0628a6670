"""Kills processes that have effects, and compares their ledgers with their logs.

Lives follow each other on one log: each resumes it, goes on, and ends by SIGKILL: from
outside, after so many lines of its ledger, or aimed, at a moment of its own. With a power
cut, what was not synced is gone as well. After so many deaths comes a last life that ends
by itself; then logs and ledger are compared, and a new log is begun.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import trio
from attrs import define, field
from tests.crash.aims import MOMENTS, Aim
from tests.crash.defects import SEEDED
from tests.crash.effects import ROOT, Plan, live
from tests.crash.ledger import Story, checksum
from tests.crash.lives import make_store
from tests.crash.syncs import cut_power, files_of
from tests.crash.verdicts import Fate, answers, of_a_log, of_the_effects

from terzetto import Durability
from terzetto.vocabulary import Event, SessionHeader, SessionNotFound, TurnEnd, TurnStart

LEVELS: Sequence[Durability] = ("step", "lazy", "each")
UNSYNCED = MOMENTS | {"sqlite": ("after the commit",)}
"""Moments at which a power cut takes something: these come before a sync is noted."""
OF_EFFECTS = ("began", "ended", "acknowledged", "told")
DEATHS = 20
"""Of one log, before a new one is begun."""
PATIENCE = 60
"""Seconds after which a life that is to die by itself counts as hanging."""


@define
class Findings:
    kills: int = 0
    effects: int = 0
    lost: int = 0
    answers: Counter[str] = field(factory=Counter)
    violations: list[str] = field(factory=list)

    def add(self, other: Findings) -> None:
        self.kills += other.kills
        self.effects += other.effects
        self.lost += other.lost
        self.answers += other.answers
        self.violations += other.violations

    def __str__(self) -> str:
        return f"{self.kills:,} kills, {self.effects:,} effects, {len(self.violations)} violations"


@define
class Known:
    """What is known of a stored session. *events* is what was found so far."""

    header: SessionHeader
    events: list[Event] = field(factory=list)
    deaths: list[int] = field(factory=list)

    @property
    def is_open(self) -> bool:
        marks = (e.data for e in reversed(self.events) if isinstance(e.data, TurnStart | TurnEnd))
        return isinstance(next(marks, None), TurnStart)


@define
class LogLife:
    """The lives of one log, and of its children's."""

    kind: str
    level: Durability
    folder: Path
    seed: int
    defect: str | None = None
    power: bool = False
    found: Findings = field(factory=Findings)
    _known: dict[str, Known] = field(factory=dict)
    _story: Story = field(init=False)
    _chance: random.Random = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._story = Story(self.folder / "ledger")
        self._chance = random.Random(f"{self.kind} {self.level} {self.seed}")

    def run(self, deaths: int, first: int) -> None:
        """Die *deaths* times; lives are counted from *first*."""
        for life in range(first, first + deaths):
            self._die(life)
            trio.run(self._look, f"life {life}")
        self._end(first + deaths)
        trio.run(self._look, "the last life")
        self._judge()

    def _plan(self, life: int, **options: Any) -> Plan:
        torn = [name for name, known in self._known.items() if name != ROOT and known.is_open]
        return Plan(
            kind=self.kind,
            folder=self.folder,
            durability=self.level,
            life=life,
            seed=self.seed,
            torn=torn,
            defect=self.defect,
            power=self.power,
            **options,
        )

    def _die(self, life: int) -> None:
        aim = None
        if life % 3:
            inside = UNSYNCED if self.power else MOMENTS
            moments = inside[self.kind] if life % 3 == 1 else OF_EFFECTS
            aim = Aim(self._chance.choice(moments), self._chance.randint(1, 12))
        before = files_of(self.folder)
        self._story.synced = {}
        end, told = multiprocessing.Pipe(duplex=False)
        child = start(self._plan(life, aim=aim), told)
        if aim is None:
            self._wait(end, self._chance.randint(0, 160))
            # Not at a line of the ledger, but somewhere between two.
            time.sleep(self._chance.random() * 0.002)
            child.kill()
        else:
            self._wait(end, sys.maxsize)
        child.join(PATIENCE)
        how = f"life {life} ({aim if aim else 'from outside'})"
        if child.exitcode != -signal.SIGKILL:
            child.kill()
            child.join()
            self._tell(f"{how}: it was not killed: exit code {child.exitcode}")
        end.close()
        self.found.kills += 1
        self._story.read_on()
        if self.power:
            self.found.lost += cut_power(self.folder, before, self._story.synced, self._chance)

    def _end(self, life: int) -> None:
        """The last life: it resumes, asks once, and ends by itself."""
        child = start(self._plan(life, turns=1), None)
        child.join(PATIENCE)
        if child.exitcode != 0:
            child.kill()
            child.join()
            self._tell(f"the last life: exit code {child.exitcode}")
        self._story.read_on()

    def _wait(self, told: Connection, lines: int) -> None:
        """Until the child has written so many lines, or is dead."""
        deadline = time.monotonic() + PATIENCE
        while lines > 0 and told.poll(max(0.0, deadline - time.monotonic())):
            found = len(os.read(told.fileno(), min(lines, 4096)))
            if not found:
                return
            lines -= found

    # --- looking ------------------------------------------------------------------------

    async def _look(self, when: str) -> None:
        """Read on, as nobody's heir, and compare with what was acknowledged."""
        store = make_store(self.kind, self.folder)
        try:
            for header in await store.list():
                self._known.setdefault(header.id, Known(header))
        except Exception as error:
            self._tell(f"{when}: listing: {type(error).__name__}: {error}")
        for name, durable in self._story.durable.items():
            if durable and name not in self._known:
                self._tell(f"{when}: {name} has durable events, and is gone")
        for name, known in self._known.items():
            try:
                _, more = await store.read(name, len(known.events))
            except SessionNotFound:
                self._tell(f"{when}: {name} is gone")
                continue
            except Exception as error:  # whatever it is, it must not be
                self._tell(f"{when}: {name}: {type(error).__name__}: {error}")
                continue
            known.events += more
            known.deaths.append(len(known.events))
            self._compare(when, name, known, more)

    def _compare(self, when: str, name: str, known: Known, more: Sequence[Event]) -> None:
        durable = self._story.durable.get(name, {})
        if durable and (last := max(durable)) >= len(known.events):
            self._tell(f"{when}: event {last} of {name} was durable; {len(known.events)} are there")
        for event in more:
            if durable.get(event.seq, checksum(event)) != checksum(event):
                self._tell(f"{when}: event {event.seq} of {name} is not the one that was written")
        if self.level == "lazy":
            return
        ends = {event.data.turn for event in known.events if isinstance(event.data, TurnEnd)}
        for turn in sorted(self._story.turns.get(name, set()) - ends):
            self._tell(f"{when}: turn {turn} of {name} was over, and its end is gone")

    def _judge(self) -> None:
        """Logs and ledger, when everything is over."""
        for problem in self._story.problems:
            self._tell(problem)
        fates = {}
        for name, known in self._known.items():
            trio.run(self._check_past, name, known)
            fate = fates[name] = Fate(known.header, known.events, known.deaths)
            with self._telling(name):
                for problem in of_a_log(fate):
                    self._tell(f"{name}: {problem}")
            for answer in answers(known.events).values():
                self.found.answers[answer.code or "real"] += 1
        for problem in of_the_effects(fates, self._story.effects, self._story.ended, self.level):
            self._tell(problem)
        self.found.effects += len(self._story.effects)

    async def _check_past(self, name: str, known: Known) -> None:
        with self._telling(name):
            header, events = await make_store(self.kind, self.folder).read(name)
            if header != known.header or events != known.events:
                self._tell(f"{name}: what was stored was changed afterwards")
            if header.durability != self.level:
                self._tell(f"{name}: its durability is {header.durability}")

    @contextlib.contextmanager
    def _telling(self, name: str) -> Any:
        try:
            yield
        except Exception as error:
            self._tell(f"{name}: {type(error).__name__}: {error}")

    def _tell(self, problem: str) -> None:
        where = f"{self.kind}, {self.level}, seed {self.seed}"
        self.found.violations.append(f"{where}: {problem}")


_CONTEXT = multiprocessing.get_context("forkserver")


def start(plan: Plan, told: Connection | None) -> Any:
    """A process that lives *plan*. *told* is its end of the pipe, and its alone."""
    child = _CONTEXT.Process(target=_begin, args=(plan, told))
    child.start()
    if told is not None:
        told.close()
    return child


def _begin(plan: Plan, told: Connection | None) -> None:
    live(plan, None if told is None else told.fileno())


def kill(
    kind: str,
    level: Durability,
    kills: int,
    seed: int,
    *,
    defect: str | None = None,
    power: bool = False,
) -> Findings:
    """Kill so many lives of engines on a store of *kind*, some of each log."""
    found = Findings()
    memory = Path("/dev/shm")
    for first in range(0, kills, DEATHS):
        # A kill leaves its writes to the system: no disk is needed, nor its slowness.
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            lives = LogLife(kind, level, Path(folder), seed + first, defect, power)
            lives.run(min(DEATHS, kills - first), first)
            found.add(lives.found)
    return found


def break_it(seed: int) -> int:
    """Plant each defect, and see that it is told; the exit code."""
    missed = 0
    for defect, kind, level, power, words in SEEDED:
        seen: list[str] = []
        for attempt in range(20):  # until somebody dies where it shows
            found = kill(kind, level, 3, seed + attempt, defect=defect, power=power)
            seen = [told for told in found.violations if words in told]
            if seen:
                break
        missed += not seen
        print(
            f"{defect!r}, {kind}, {level}: {'seen: ' + seen[0] if seen else 'NOT SEEN'}", flush=True
        )
    print(f"{len(SEEDED)} defects, {missed} not seen")
    return 1 if missed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.kill", description=__doc__)
    parser.add_argument("--store", choices=[*MOMENTS, "all"], action="append")
    parser.add_argument("--durability", choices=[*LEVELS, "all"], default="all")
    parser.add_argument("--kills", type=int, default=300, help="for each store and level")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--power", action="store_true", help="cut the power with each kill")
    parser.add_argument("--break", dest="defects", action="store_true", help=break_it.__doc__)
    options = parser.parse_args(arguments)
    _CONTEXT.set_forkserver_preload(["tests.crash.engine_lives"])
    if options.defects:
        return break_it(options.seed)
    found = Findings()
    chosen = options.store or ["all"]
    for kind in MOMENTS if "all" in chosen else chosen:
        for level in LEVELS if options.durability == "all" else [options.durability]:
            began = time.monotonic()
            one = kill(kind, level, options.kills, options.seed, power=options.power)
            for violation in one.violations:
                print(violation)
            told = ", ".join(f"{count:,} {code}" for code, count in sorted(one.answers.items()))
            lost = f"{one.lost:,} bytes lost, " if options.power else ""
            print(f"{kind} {level}: {one}; {lost}{time.monotonic() - began:.0f} s; {told}")
            sys.stdout.flush()
            found.add(one)
    print(found)
    return 1 if found.violations else 0
