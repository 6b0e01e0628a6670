"""Who has a session, when two processes want it (`owners.py` is the command).

In each round a process owns a session and is in the middle of a turn. This one wants it too:
it is refused, told the owner's pid, and has written nothing. Then the owner is killed, and
this one must get the session, without anybody's help. How long that took is printed: from
the kill until the agent is there, its log repaired. At last some race for one session.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import trio
from attrs import define, field
from tests.crash.lives import make_store

import terzetto
from terzetto import tool
from terzetto.llm.scripted import ScriptedModel, answer, call
from terzetto.testing import history_is_valid
from terzetto.testing._invariants import Evidence, check_invariants
from terzetto.vocabulary import SessionExists, SessionLocked, ToolResultEvent, TurnEnd

ROUTE: Mapping[str, Any] = {"provider": "scripted", "model": "m"}
KINDS = ("jsonl", "sqlite")
SESSION = "s"
PROMISED = 0.1
"""Seconds within which the other one should have it."""
PATIENCE = 60


def own(kind: str, folder: Path, told: Connection) -> None:
    """Own the session until killed; the pipe is told when a tool runs."""

    @tool
    async def work() -> str:
        told.send_bytes(b"I have it")
        await trio.sleep_forever()
        raise AssertionError

    async def main() -> None:
        model = ScriptedModel([answer("Let me see.", call("work"))])
        store = make_store(kind, folder)
        async with (
            terzetto.open_engine(adapters=[model], tools=[work], store=store) as engine,
            engine.open_agent(**ROUTE, session_id=SESSION, if_stored="resume") as agent,
        ):
            await agent.ask("work")

    trio.run(main)


@define
class Round:
    """What came of one round.

    *seconds*: from the kill to the takeover. *ours*: those of them that the attempt took which
    succeeded; before it the system had not ended the killed process yet.
    """

    kind: str
    seconds: float = 0.0
    ours: float = 0.0
    refusals: int = 0
    problems: list[str] = field(factory=list)


_CONTEXT = multiprocessing.get_context("forkserver")


def contend(kind: str, folder: Path) -> Round:
    """One round on the session in *folder*, which is made by the first."""
    end, told = multiprocessing.Pipe(duplex=False)
    owner = _CONTEXT.Process(target=own, args=(kind, folder, told))
    owner.start()
    told.close()
    found = Round(kind)
    try:
        if not end.poll(PATIENCE):
            found.problems.append("the owner never got so far")
            return found
        end.recv_bytes()
        trio.run(_contend, kind, folder, owner, found)
    finally:
        owner.kill()
        owner.join()
        end.close()
    return found


async def _contend(kind: str, folder: Path, owner: Any, found: Round) -> None:
    requests = []
    model = ScriptedModel(lambda request: requests.append(request) or "I see.")
    store = make_store(kind, folder)
    async with terzetto.open_engine(adapters=[model], store=store) as engine:
        before = content(folder)
        for _ in range(2):
            if told := await refusal(engine):
                found.refusals += 1
                if f"process {owner.pid};" not in told:
                    found.problems.append(f"the owner {owner.pid} is not named: {told}")
            else:
                found.problems.append("two processes had the session")
        if content(folder) != before:
            found.problems.append("who was refused has written something")
        if requests:
            found.problems.append("who was refused has asked a model")
        owner.kill()
        killed = time.perf_counter()
        while True:  # until the system has ended the process, and its locks with it
            began = time.perf_counter()
            try:
                agent_block = engine.open_agent(**ROUTE, resume=SESSION)
                agent = await agent_block.__aenter__()
                break
            except SessionLocked:
                if time.perf_counter() > killed + PATIENCE:
                    found.problems.append("nobody can have it any more")
                    return
        ended = time.perf_counter()
        found.seconds, found.ours = ended - killed, ended - began
        try:
            turn = await agent.ask("And?")
            last = [e.data for e in agent.session.events if isinstance(e.data, ToolResultEvent)][-1]
            problems = history_is_valid(agent.session.history())
        finally:
            await agent_block.__aexit__(None, None, None)
    found.problems += problems
    if turn.text != "I see." or "TOOL_OUTCOME_UNKNOWN" not in str(last):
        found.problems.append(f"it does not go on as it should: {turn}, {last}")
    if left := [path.name for path in folder.rglob("*") if path.suffix in (".lock", ".owner")]:
        found.problems.append(f"somebody left {left} behind")


async def refusal(engine: terzetto.Engine) -> str:
    """What somebody is told who wants the session; nothing if he gets it."""
    try:
        async with engine.open_agent(**ROUTE, resume=SESSION):
            return ""
    except SessionLocked as error:
        return str(error)


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    """All files, and when each was written. SQLite's shared memory is no content."""
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")
    }


# --- a race -----------------------------------------------------------------------------


def take_turns(kind: str, folder: Path, number: int, times: int) -> None:
    """Have the session *times* times, for one turn each, against others who want it as well."""
    ledger = os.open(folder / "held", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def main() -> None:
        model = ScriptedModel(lambda request: "Mine.")
        store = make_store(kind, folder / "in")
        async with terzetto.open_engine(adapters=[model], store=store) as engine:
            had = 0
            while had < times:
                try:
                    async with engine.open_agent(
                        **ROUTE, session_id=SESSION, if_stored="resume"
                    ) as agent:
                        os.write(ledger, b"+%d\n" % number)
                        await agent.ask(f"{number}, {had}")
                        os.write(ledger, b"-%d\n" % number)
                        had += 1
                except (SessionLocked, SessionExists):
                    await trio.lowlevel.checkpoint()

    trio.run(main)


def race(kind: str, folder: Path, racers: int = 3, times: int = 4) -> list[str]:
    """Let *racers* have one session, each *times* times; what is wrong with what they did."""
    (folder / "in").mkdir()
    children = [
        _CONTEXT.Process(target=take_turns, args=(kind, folder, number, times))
        for number in range(racers)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(PATIENCE)
    problems = [f"a racer ends with {child.exitcode}" for child in children if child.exitcode]
    held = (folder / "held").read_text().split()
    for taken, given in zip(held[::2], held[1::2], strict=False):
        if taken[0] != "+" or given != f"-{taken[1:]}":
            problems.append(f"two had it at the same time: {taken} {given}")
    _, events = trio.run(make_store(kind, folder / "in").read, SESSION)
    problems += check_invariants(Evidence(events))
    turns = sum(isinstance(event.data, TurnEnd) for event in events)
    if (turns, len(held)) != (racers * times, 2 * racers * times):
        problems.append(f"{turns} turns in the log, {len(held)} lines in the ledger")
    return problems


# --- the command ------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.owners", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="for each store")
    parser.add_argument("--store", choices=[*KINDS, "all"], default="all")
    options = parser.parse_args(arguments)
    _CONTEXT.set_forkserver_preload(["tests.crash.ownership"])
    rounds: list[Round] = []
    raced: list[str] = []
    for kind in KINDS if options.store == "all" else [options.store]:
        with tempfile.TemporaryDirectory() as folder:
            done = [contend(kind, Path(folder)) for _ in range(options.rounds)]
        times = sorted(each.seconds * 1000 for each in done)
        late = sum(each.seconds > PROMISED for each in done)
        print(
            f"{kind}: {len(done)} takeovers in {times[0]:.1f} to {times[-1]:.1f} ms, "
            f"median {statistics.median(times):.1f} ms, {late} after more than "
            f"{PROMISED * 1000:.0f} ms; the opening itself in at most "
            f"{max(each.ours for each in done) * 1000:.1f} ms"
        )
        rounds += done
        with tempfile.TemporaryDirectory() as folder:
            raced += [f"{kind}: {problem}" for problem in race(kind, Path(folder))]
    problems = [f"{each.kind}: {problem}" for each in rounds for problem in each.problems]
    problems += raced
    for problem in problems:
        print(problem)
    refusals = sum(each.refusals for each in rounds)
    print(f"{len(rounds)} takeovers, {refusals} refusals, {len(problems)} violations")
    return 1 if problems else 0
