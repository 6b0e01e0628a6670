"""Stored sessions for the tests of the commands: made by an engine, in either kind of store."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import terzetto
from terzetto import vocabulary as v
from terzetto.llm.scripted import ScriptedModel, answer, call, say, think
from terzetto.session._codec import dumps_event, dumps_json, encode_header

KINDS = ("folder", "database")
SCRIPT = [
    answer(think("Hm."), say("Let me see."), call("look", at="here")),
    "Done \x1b[2J\u202e日本語 ``` </x>.",
    "And again.",
]


@terzetto.tool
async def look(at: str) -> str:
    "Look at something."
    return f"seen: {at} \x1b]0;title\x07 ````"


def place(tmp_path: Path, kind: str) -> Path:
    return tmp_path / ("sessions" if kind == "folder" else "sessions.db")


def store_at(path: Path) -> terzetto.Store:
    if path.suffix == ".db":
        return terzetto.SqliteStore(path, extensions={"my-app/note"})
    return terzetto.JsonlStore(path, extensions={"my-app/note"})


async def talk(path: Path, session_id: str = "Tea", note: bool = False) -> None:
    """A session of two turns, with a tool, a choice of model, and input that is dropped."""
    clock = iter(range(1_700_000_000_000, 1_800_000_000_000, 10))
    async with (
        terzetto.open_engine(
            adapters=[ScriptedModel(SCRIPT)],
            tools=[look],
            store=store_at(path),
            now_ms=lambda: next(clock),
        ) as engine,
        engine.open_agent(
            provider="scripted", model="m", session_id=session_id, meta={"title": "A \x1b[1mtea"}
        ) as agent,
    ):
        await agent.ask("Go.")
        agent.model.select("scripted", "other", "high")
        await agent.ask("Again.")
        if note:
            agent.session.record("my-app/note", {"text": "x"})
        agent.inject("dropped at the end")


async def put(path: Path, header: v.SessionHeader, events: Sequence[v.Event]) -> None:
    """Store a log as it is, nobody owning it."""
    handle = await store_at(path).create(header)
    for event in events:
        handle.append(event)
    await handle.close()


def lines(header: v.SessionHeader, events: Sequence[v.Event]) -> bytes:
    """A log as it stands in a file."""
    records = [dumps_json(encode_header(header)), *map(dumps_event, events)]
    return b"".join(record + b"\n" for record in records)


def digest(path: Path) -> dict[str, str]:
    """Every file at and beside *path*, but SQLite's index of its log, which is no data."""
    beside = [one for one in path.parent.rglob("*") if one.is_file()]
    return {
        str(one): hashlib.sha256(one.read_bytes()).hexdigest()
        for one in beside
        if not one.name.endswith("-shm")
    }
