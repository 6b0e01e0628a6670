"""Engines on the stores that keep sessions on a disk: contested, and killed.

Turns that are cut are in `tests/cases/test_persistence.py`, disks that fail in
`test_failures.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.stores.kit import made_in

import terzetto
from terzetto import tool
from terzetto.llm.scripted import ScriptedModel
from terzetto.stores import JsonlStore, SqliteStore, Store
from terzetto.testing import history_is_valid
from terzetto.vocabulary import (
    Event,
    SessionLocked,
    ToolResultEvent,
    TurnEnd,
)

ROUTE: Any = {"provider": "scripted", "model": "m"}


@pytest.fixture(params=["jsonl", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return made_in(tmp_path / "in", request.param)


def another(store: Store) -> Store:
    """As another process would make it."""
    place = Path(str(store.locate("x")).partition("#")[0])
    return SqliteStore(place) if isinstance(store, SqliteStore) else JsonlStore(place.parent)


def endings(events: list[Event]) -> list[object]:
    return [event.data.ending for event in events if isinstance(event.data, TurnEnd)]


# --- contested --------------------------------------------------------------------------


async def test_of_two_engines_one_has_the_session(store: Store) -> None:
    """BC-43, C144: in one process as between two."""
    model = ScriptedModel(lambda request: "fine")
    async with terzetto.open_engine(adapters=[model], store=store) as first:
        async with terzetto.open_engine(adapters=[model], store=another(store)) as second:
            async with first.open_agent(**ROUTE, session_id="a") as agent:
                await agent.ask("one")
                before = await another(store).read("a")
                with pytest.raises(SessionLocked, match=f"this process \\({os.getpid()}\\)"):
                    async with second.open_agent(**ROUTE, resume="a"):
                        raise AssertionError("two have it")
                assert await another(store).read("a") == before
                await agent.ask("two")
            async with second.open_agent(**ROUTE, resume="a") as agent:
                await agent.ask("three")
    _, events = await store.read("a")
    assert len(endings(events)) == 3


# --- killed -----------------------------------------------------------------------------

LIFE = """
import sys, trio, terzetto
from terzetto.llm.scripted import ScriptedModel, answer, call
from terzetto.stores import JsonlStore, SqliteStore

kind, place, marks = sys.argv[1:]

@terzetto.tool
async def mark(name: str) -> str:
    with open(marks, "a") as file:
        file.write(name)
    if name == "b":
        print("ready", flush=True)
        await trio.sleep_forever()
    return "marked " + name

async def main():
    store = SqliteStore(place) if kind == "SqliteStore" else JsonlStore(place)
    model = ScriptedModel([answer(*(call("mark", name=name) for name in "abc"))])
    async with terzetto.open_engine(adapters=[model], tools=[mark], store=store) as engine:
        async with engine.open_agent(provider="scripted", model="m", session_id="a") as agent:
            await agent.ask("mark them")

trio.run(main)
"""


@tool
async def mark(name: str) -> str:
    """Not called again by a resume."""
    raise AssertionError("it ran again")


async def test_a_process_killed_in_a_tool_is_resumed_honestly(store: Store, tmp_path: Path) -> None:
    """BC-44, C145: what ran has its result, what was running is unknown, the rest never ran."""
    place = Path(str(store.locate("a")).partition("#")[0])
    place = place if isinstance(store, SqliteStore) else place.parent
    source = Path(terzetto.__file__).parents[1]
    child = await trio.lowlevel.open_process(
        [sys.executable, "-c", LIFE, type(store).__name__, str(place), str(tmp_path / "marks")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    assert child.stdout is not None
    try:
        with trio.fail_after(60):
            assert await child.stdout.receive_some(1)
    finally:
        child.kill()
        await child.wait()
        await child.stdout.aclose()
    requests = []
    model = ScriptedModel(lambda request: requests.append(request) or "I see.")
    async with terzetto.open_engine(adapters=[model], tools=[mark], store=store) as engine:
        async with engine.open_agent(**ROUTE, resume="a") as agent:
            assert (await agent.ask("And?")).text == "I see."
    assert (tmp_path / "marks").read_text() == "ab"
    _, events = await another(store).read("a")
    results = [event.data for event in events if isinstance(event.data, ToolResultEvent)]
    assert len(results) == 3
    texts = [str(result) for result in results]
    assert "marked a" in texts[0]
    assert "TOOL_OUTCOME_UNKNOWN" in texts[1]
    assert "TOOL_NOT_STARTED" in texts[2]
    assert [history_is_valid(request.messages) for request in requests] == [[]]
