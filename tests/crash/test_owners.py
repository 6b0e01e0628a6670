"""Two that want one session: one has it, and the other is told who (BC-43).

How long a takeover takes is measured by ``python -m tests.crash.owners``, 50 of each store.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from tests.crash.commands import run
from tests.crash.ownership import ROUTE, content
from tests.stores.kit import made_in

import terzetto
from terzetto import tool
from terzetto.llm.scripted import ScriptedModel, answer, call
from terzetto.vocabulary import SessionLocked, UsageError


def test_a_killed_owner_is_followed_without_help() -> None:
    """BC-43, C144: refused by name, nothing written, and the lock ends with its process;
    and of several that race for it one has it at a time."""
    code, lines = run("owners", "--rounds", "2")
    assert code == 0, "\n".join(lines)
    assert lines[-1] == "4 takeovers, 8 refusals, 0 violations"
    assert [line.partition(" in ")[0] for line in lines[:2]] == [
        "jsonl: 2 takeovers",
        "sqlite: 2 takeovers",
    ]


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_the_same_within_one_process(kind: str, tmp_path: Path) -> None:
    """BC-43: two stores of one process, and two agents of one engine; in the middle of a turn."""
    running, go = trio.Event(), trio.Event()

    @tool
    async def work() -> str:
        running.set()
        await go.wait()
        return "worked"

    model = ScriptedModel([answer(call("work")), "Done.", "And more."])
    folder = tmp_path / "in"
    async with (
        terzetto.open_engine(adapters=[model], tools=[work], store=made_in(folder, kind)) as mine,
        terzetto.open_engine(adapters=[model], store=made_in(folder, kind)) as other,
    ):
        async with (
            mine.open_agent(**ROUTE, session_id="s") as agent,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(agent.ask, "work")
            await running.wait()
            before = content(folder)
            with pytest.raises(SessionLocked, match=rf"in this process \({os.getpid()}\)"):
                async with other.open_agent(**ROUTE, resume="s"):
                    raise AssertionError("two have it")
            with pytest.raises(UsageError, match="live"):
                async with mine.open_agent(**ROUTE, resume="s"):
                    raise AssertionError("two have it")
            assert content(folder) == before
            go.set()
        # Given up in order, it is there for whoever comes.
        async with other.open_agent(**ROUTE, resume="s") as agent:
            assert (await agent.ask("more")).text == "And more."
