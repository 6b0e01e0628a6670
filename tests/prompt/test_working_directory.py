"""The working directory as runtime context (C102)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.agent.kit import engine_on, played
from tests.agent.rig import one

from terzetto import MemoryStore, working_directory
from terzetto.llm.scripted import ScriptedModel
from terzetto.session import is_snapshot


def told(messages: Any) -> list[str]:
    """What the snapshots say, but for their introduction."""
    return [m.text.partition("\n\n")[2] or m.text for m in messages if is_snapshot(m)]


@played
async def test_nobody_is_told_unasked() -> None:
    """C104: the loop adds no prose of its own."""
    async with one(["yes"], cwd="/a") as life:
        await life.say()
        assert life.request() == ["user: go"]


@played
async def test_the_sessions_directory_is_told_once_and_kept_by_resume_and_fork() -> None:
    """C102: one snapshot as long as it holds."""
    model, store = ScriptedModel(["one", "two", "three", "four", "five"]), MemoryStore()
    async with engine_on(model, store=store) as engine:
        engine.scope.add_context("cwd", working_directory)
        route: dict[str, Any] = {"provider": "scripted", "model": "m"}
        async with engine.open_agent(**route, session_id="a", cwd="/a") as agent:
            await agent.ask("one")
            await agent.ask("two")
        async with engine.open_agent(resume="a") as agent:
            await agent.ask("three")
            assert told(agent.history()) == ["Working directory: /a"]
        async with engine.open_agent(fork="a", session_id="b") as agent:
            await agent.ask("four")
            assert told(agent.history()) == ["Working directory: /a"]
        async with engine.open_agent(fork="a", session_id="c", cwd="/c") as agent:
            await agent.ask("five")
            assert told(agent.history()) == ["Working directory: /a", "Working directory: /c"]


def test_without_one_it_is_that_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C102 C103: it is asked for each step; a folder that is gone is told as none."""
    gone = tmp_path / "gone \udcff"  # a name that is no UTF-8
    gone.mkdir()

    @played
    async def run() -> None:
        async with one(["one", "two", "three"]) as life:
            life.agent.scope.add_context("cwd", working_directory)
            monkeypatch.chdir(tmp_path)
            await life.say()
            assert life.request()[-1] == f"context: Working directory: {tmp_path}"
            monkeypatch.chdir(gone)
            await life.say()
            assert life.request()[-1] == f"context: Working directory: {tmp_path}/gone \ufffd"
            gone.rmdir()
            if not hasattr(os, "fork"):
                return  # where a folder in use cannot be removed
            await life.say()
            assert told(life.model.requests[-1].messages)[-1] == (
                "Current runtime context: none. Earlier runtime-context snapshots no longer apply."
            )

    run()
    monkeypatch.chdir(tmp_path)


@played
async def test_an_agent_may_have_it_alone_and_say_it_otherwise() -> None:
    """C99 C102: an inner contribution shadows an outer one."""
    async with one(["one"], cwd="/a") as life:
        life.engine.scope.add_context("cwd", working_directory)
        life.agent.scope.add_context("cwd", lambda agent: f"<{working_directory(agent)}>")
        await life.say()
        assert life.request()[-1] == "context: <Working directory: /a>"
