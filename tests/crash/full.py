"""Real disks that fill up in the middle of a turn (`full_disk.py` is the command).

In each round an engine works on a store with so many bytes of room left, for a turn with
batches of effects. Somewhere in it the room ends. Then it must be loud: the turn fails with
``STORE``, or `agent.health` tells; no body begins whose call is not on the disk; what was
acknowledged is there. With room again the same agent goes on, or, if it was left meanwhile,
the next one resumes what it was told is saved.

*rlimit*: the system refuses to let a file of this process grow, at any byte. *tmpfs*: a
small file system of its own, which is full at any page; it takes root.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import trio
from attrs import define, field
from tests.crash.lives import make_store
from tests.whole import whole

import terzetto
from terzetto import Agent, Durability, Tool, ToolRun, TurnFailed, tool
from terzetto.llm.scripted import Entry, ScriptedModel, answer, call
from terzetto.testing import history_is_valid
from terzetto.testing._invariants import Evidence, check_invariants
from terzetto.vocabulary import (
    EndSeed,
    Event,
    Request,
    StoreError,
    ToolCallEvent,
    UserMessage,
)

ROUTE: Mapping[str, Any] = {"provider": "scripted", "model": "m"}
SESSION = "s"
KINDS = ("jsonl", "sqlite")
LEVELS: Sequence[Durability] = ("step", "lazy", "each")
MEGABYTE = 1 << 20


# --- room -------------------------------------------------------------------------------


class Room(Protocol):
    """How much may still be written below *folder*."""

    folder: Path
    step: Mapping[str, int]
    """Bytes from one room to the next that is worth trying, for each kind of store."""

    def leave(self, size: int) -> None: ...

    def make(self) -> None: ...


@define
class Limited:
    """No file of this process grows longer than the longest one is, and *size* bytes."""

    folder: Path
    step: Mapping[str, int] = {"jsonl": 101, "sqlite": 2_060}
    _before: tuple[int, int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def leave(self, size: int) -> None:
        longest = max(path.stat().st_size for path in written(self.folder))
        resource.setrlimit(resource.RLIMIT_FSIZE, (longest + size, self._before[1]))

    def make(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


def written(folder: Path) -> Iterator[Path]:
    """The files that grow with each turn; a database itself does when its log is carried over."""
    yield from folder.rglob("*.jsonl")
    yield from folder.rglob("*-wal")


@define
class Ballast:
    """A file that fills a small file system but for *size* bytes."""

    folder: Path
    step: Mapping[str, int] = {"jsonl": 4_096, "sqlite": 4_096}

    def leave(self, size: int) -> None:
        state = os.statvfs(self.folder)
        filled = max(0, state.f_bavail * state.f_frsize - size)
        (self.folder / "ballast").write_bytes(bytes(filled))

    def make(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)


@contextmanager
def limited() -> Iterator[Room]:
    with tempfile.TemporaryDirectory() as folder:
        room = Limited(Path(folder))
        try:
            yield room
        finally:
            room.make()


@contextmanager
def small_disk() -> Iterator[Room | None]:
    """None where nothing may be mounted."""
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder]
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
                try:
                    yield Ballast(Path(folder))
                finally:
                    subprocess.run(["umount", folder], check=True)
                return
        yield None


# --- a round ----------------------------------------------------------------------------


@define
class Round:
    """An engine, and what happens to it. *leaves*: whether it is left while the disk is full."""

    kind: str
    level: Durability
    room: Room
    size: int
    leaves: bool
    failures: int = 0
    began: int = 0
    problems: list[str] = field(factory=list)
    _agent: Agent | None = None
    _asked: int = 0

    async def run(self) -> None:
        """Until everything is told, one way or the other."""
        unsaved: Mapping[str, str] = {}
        try:
            async with (
                self._engine() as engine,
                engine.open_agent(**ROUTE, session_id=SESSION) as agent,
            ):
                self._agent, unsaved = agent, engine.unsaved
                await agent.ask("before")
                self._expect(agent.health is None, "there was trouble before the disk was full")
                self.room.leave(self.size)
                await self._ask_while_full(agent)
                if self.failures:
                    await self._ask_while_full(agent)
                told = agent.session.durable_seq
                await self._compare(whole(agent.session)[: told + 1], "while it is full")
                if not self.leaves:
                    self.room.make()
                    await self._go_on(agent)
        except StoreError as error:
            self._expect(self.leaves and self.failures > 0, f"leaving failed: {error}")
            self._expect(SESSION in unsaved, "what is not saved is not named")
        finally:
            self.room.make()
        assert self._agent is not None
        session = self._agent.session
        kept = whole(session)[: session.durable_seq + 1]
        await self._compare(kept, "when it was left")
        await self._resume(kept)

    async def _ask_while_full(self, agent: Agent) -> None:
        """A turn that may fail, and then says so."""
        asked = self._asked
        troubled = agent.health is not None
        try:
            await agent.ask("work")
        except TurnFailed as error:
            self.failures += 1
            self._expect(error.code == "STORE", f"the turn fails with {error.code}: {error}")
            # A database that gives up carries its log over, and may find room by that.
            saved = agent.session.durable_seq == len(agent.session.events) - 1
            self._expect(saved or agent.health is not None, "nobody says what is not saved")
            if troubled:
                self._expect(asked == self._asked, "a request was sent in spite of trouble")
            return
        if self.level == "lazy":  # nobody waited for the disk
            with contextlib.suppress(StoreError):
                await agent.flush()
        if agent.session.durable_seq < len(agent.session.events) - 1:
            self.failures += 1
            self._expect(agent.health is not None, "the end is not saved, and nobody says so")

    async def _go_on(self, agent: Agent) -> None:
        """With room again everything is saved by the next turn, in order."""
        await agent.ask("after")
        await agent.flush()
        session = agent.session
        self._expect(agent.health is None, f"there is room, and still: {agent.health}")
        self._expect(session.durable_seq == len(session.events) - 1, "not all is saved")
        await self._compare(whole(session), "with room again")

    async def _resume(self, kept: Sequence[Event]) -> None:
        """A second life begins with exactly what the first was told is saved."""
        async with self._engine() as engine, engine.open_agent(**ROUTE, resume=SESSION) as agent:
            events = whole(agent.session)
            self._expect(events[: len(kept)] == list(kept), "another past was resumed")
            added = [e for e in events[len(kept) :] if not isinstance(e.data, EndSeed)]
            if not self.leaves:
                self._expect(not added, f"what was closed was closed again: {added}")
            await agent.ask("and now?")
            events = whole(agent.session)
            self.problems += history_is_valid(agent.session.history())
        self.problems += check_invariants(Evidence(events))
        _, stored = await make_store(self.kind, self.room.folder).read(SESSION)
        self._expect([e.seq for e in stored] == list(range(len(stored))), "a gap, or a duplicate")

    async def _compare(self, wanted: Sequence[Event], when: str) -> None:
        """What was acknowledged is there, and nothing else than what was appended."""
        _, stored = await make_store(self.kind, self.room.folder).read(SESSION)
        assert self._agent is not None
        appended = whole(self._agent.session)[: len(stored)]
        self._expect(stored[: len(wanted)] == list(wanted), f"{when}: not all that was durable")
        self._expect(stored == appended, f"{when}: it was never appended")

    # --- what runs ----------------------------------------------------------------------

    def _engine(self) -> Any:
        self._asked = 0
        return terzetto.open_engine(
            adapters=[ScriptedModel(self._answer)],
            tools=self._tools(),
            store=make_store(self.kind, self.room.folder),
            durability=self.level,
        )

    def _answer(self, request: Request) -> Entry:
        self._asked += 1
        last = request.messages[-1]
        if isinstance(last, UserMessage) and last.text == "work":
            names = ("beside", "beside", "alone", "alone", "beside")
            return answer("I begin.", *(call(name) for name in names))
        return "Done."

    def _tools(self) -> Sequence[Tool]:
        @tool(parallel=True)
        async def beside(run: ToolRun) -> str:
            await self._begins(run)
            return "done beside " * 40

        @tool
        async def alone(run: ToolRun) -> str:
            await self._begins(run)
            return "done alone " * 40

        return [beside, alone]

    async def _begins(self, run: ToolRun) -> None:
        """A body: its call must be on the disk by now; with lazy, while there is trouble."""
        self.began += 1
        if self.level == "lazy" and (self._agent is None or self._agent.health is None):
            return
        _, stored = await make_store(self.kind, self.room.folder).read(SESSION)
        calls = {e.data.call_id for e in stored if isinstance(e.data, ToolCallEvent)}
        self._expect(run.call_id in calls, f"{run.call_id} began, and its call is not saved")

    def _expect(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)


# --- the command ------------------------------------------------------------------------


@define
class Found:
    rounds: int = 0
    full: int = 0
    began: int = 0
    problems: list[str] = field(factory=list)


def sweep(kind: str, level: Durability, room: Room, stride: int, found: Found) -> None:
    """Rounds with ever more room, from none, until the turn fits in."""
    size, fits = 0, 0
    while fits < 2:
        for leaves in (False, True):
            with tempfile.TemporaryDirectory(dir=room.folder) as folder:
                inner = type(room)(Path(folder))  # type: ignore[call-arg]
                one = Round(kind, level, inner, size, leaves)
                try:
                    trio.run(one.run)
                except Exception as error:  # whatever it is, it must not be
                    inner.make()
                    one.problems.append(f"{type(error).__name__}: {error!r}")
            found.rounds += 1
            found.full += one.failures > 0
            found.began += one.began
            fits = 0 if one.failures else fits + 1
            where = (
                f"{kind}, {level}, {type(room).__name__}, {size} bytes of room, leaves: {leaves}"
            )
            found.problems += [f"{where}: {problem}" for problem in one.problems]
            if size > MEGABYTE:
                found.problems.append(f"{where}: it does not fit in a megabyte")
                return
        size += room.step[kind] * stride


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.full_disk", description=__doc__)
    parser.add_argument("--store", choices=[*KINDS, "all"], default="all")
    parser.add_argument("--durability", choices=[*LEVELS, "all"], default="all")
    parser.add_argument("--stride", type=int, default=1, help="try every n-th size only")
    options = parser.parse_args(arguments)
    logging.getLogger("terzetto").addHandler(logging.NullHandler())
    found = Found()
    kinds = KINDS if options.store == "all" else [options.store]
    levels = LEVELS if options.durability == "all" else [options.durability]
    for kind, level in itertools.product(kinds, levels):
        for make in (limited, small_disk):
            one = Found()
            with make() as room:
                if room is None:
                    print(f"{kind}: nothing may be mounted here; the limit alone is tried")
                    continue
                sweep(kind, level, room, options.stride, one)
            print(
                f"{kind}, {level}, {type(room).__name__}: {one.rounds} rounds, full in {one.full}, "
                f"{one.began} bodies began, {len(one.problems)} violations",
                flush=True,
            )
            found.rounds += one.rounds
            found.full += one.full
            found.problems += one.problems
    for problem in found.problems:
        print(problem)
    print(f"{found.rounds} rounds, full in {found.full}, {len(found.problems)} violations")
    return 1 if found.problems else 0
