"""Real disks that are full, closed, read-only or gone, in the middle of work (BC-47).

More of it: ``python -m tests.crash.full_disk``, at every size of what is left.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.crash.commands import children, run
from tests.crash.lives import make_store
from tests.crash.ownership import content
from tests.whole import whole

import terzetto
from terzetto import ToolRun, TurnFailed, tool
from terzetto.llm.scripted import ScriptedModel, answer, call
from terzetto.vocabulary import StoreError

ROUTE: Mapping[str, Any] = {"provider": "scripted", "model": "m"}
KINDS = ["jsonl", "sqlite"]


def test_a_full_disk_is_loud_and_loses_nothing() -> None:
    """BC-47, C148: at some sizes of what is left; every second engine is left while it is full."""
    code, lines = run("full_disk", "--stride", "40")
    assert code == 0, "\n".join(lines)
    found = re.fullmatch(r"(\d+) rounds, full in (\d+), 0 violations", lines[-1])
    assert found is not None
    assert int(found[2]) > 10
    # It was full before some bodies, and not before all.
    began = [int(n) for n in re.findall(r"(\d+) bodies began", "\n".join(lines))]
    assert all(number > 0 for number in began), lines


async def talk(kind: str, folder: Path) -> str:
    """One more turn of the session in *folder*, or what is wrong."""
    model = ScriptedModel(lambda request: f"I have read {len(request.messages)}.")
    try:
        async with (
            terzetto.open_engine(adapters=[model], store=make_store(kind, folder)) as engine,
            engine.open_agent(**ROUTE, session_id="s", if_stored="resume") as agent,
        ):
            return (await agent.ask("go")).text
    except StoreError as error:
        return f"{type(error).__name__}: {error}"


# --- not allowed ------------------------------------------------------------------------


def as_nobody(told: Any, kind: str, folder: Path) -> None:
    """Root may write where nobody else may; so it stops being root."""
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    told.send(trio.run(talk, kind, folder))


def told_as_nobody(kind: str, folder: Path) -> str:
    end, told = multiprocessing.Pipe(duplex=False)
    child = children().Process(target=as_nobody, args=(told, kind, folder))
    child.start()
    told.close()
    try:
        answered: str = end.recv()
    finally:
        child.join()
    return answered


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not below pytest's own, which only their owner may enter."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        place = Path(name) / "in"
        place.mkdir()
        yield place


def allow(folder: Path, *, write: bool) -> None:
    """Whether anybody may change what is in *folder*, and the folder."""
    for path in (folder, *folder.rglob("*")):
        mode = 0o777 if path.is_dir() else 0o666
        path.chmod(mode if write else mode & 0o555)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_may_not_be_written_to(kind: str, folder: Path) -> None:
    """BC-47, EACCES: told when it happens, nothing is touched, and it goes on afterwards."""
    allow(folder, write=False)
    refused = told_as_nobody(kind, folder)
    assert re.match(r"StoreError: session 's': creating failed: ", refused), refused
    assert not list(folder.iterdir())
    allow(folder, write=True)
    assert told_as_nobody(kind, folder) == "I have read 1."
    before = content(folder)
    allow(folder, write=False)
    refused = told_as_nobody(kind, folder)
    assert re.match(r"StoreError: session 's': opening failed: ", refused), refused
    assert {name: data for name, (data, _) in content(folder).items()} == {
        name: data for name, (data, _) in before.items()
    }
    allow(folder, write=True)
    assert told_as_nobody(kind, folder) == "I have read 3."


@pytest.mark.parametrize("kind", KINDS)
async def test_a_disk_that_is_read_only(kind: str, tmp_path: Path) -> None:
    """BC-47, EROFS: what is there can be read, and nobody can write."""
    disk = tmp_path / "disk"
    disk.mkdir()

    async def mount(options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
        return not (await trio.run_process(command, check=False, capture_stderr=True)).returncode

    if shutil.which("mount") is None or not await mount("size=1m"):
        pytest.skip("mounting a small file system is not allowed here")
    try:
        assert await talk(kind, disk) == "I have read 1."
        stored = await make_store(kind, disk).read("s")
        assert await mount("remount,ro")
        refused = await talk(kind, disk)
        assert refused == "StoreError: session 's': opening failed: Read-only file system"
        assert await make_store(kind, disk).read("s") == stored
        assert [header.id for header in await make_store(kind, disk).list()] == ["s"]
        assert await mount("remount,rw")
        assert await talk(kind, disk) == "I have read 3."
    finally:
        await trio.run_process(["umount", str(disk)])


# --- gone -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_folder_that_is_removed_in_a_batch(kind: str, tmp_path: Path) -> None:
    """BC-47: no later body begins, the turn fails, and leaving says what is not saved."""
    folder, began = tmp_path / "in", []

    @tool
    async def act(run: ToolRun, remove: bool = False) -> str:
        began.append(run.call_id)
        if remove:
            shutil.rmtree(folder)
        return "acted"

    calls = (call("act", {"remove": n == 2}, id=f"call-{n}") for n in (1, 2, 3))
    model = ScriptedModel([answer(*calls), "Never asked for."])
    unsaved: Mapping[str, str] = {}
    with pytest.raises(StoreError):
        async with terzetto.open_engine(
            adapters=[model], tools=[act], store=make_store(kind, folder)
        ) as engine:
            unsaved = engine.unsaved
            async with engine.open_agent(**ROUTE, session_id="s") as agent:
                for _ in range(2):  # and it stays so
                    with pytest.raises(TurnFailed) as caught:
                        await agent.ask("go")
                    assert caught.value.code == "STORE"
                    assert agent.health is not None
    assert began == ["call-1", "call-2"]
    assert model.attempts == 1
    assert set(unsaved) == {"s"}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_folder_that_is_moved_away_and_back(kind: str, tmp_path: Path) -> None:
    """BC-47: what happened meanwhile is there once the folder is, without gap or duplicate."""
    folder, away = tmp_path / "in", tmp_path / "away"

    @tool
    async def move() -> str:
        folder.rename(away)
        return "moved"

    model = ScriptedModel([answer(call("move"), call("move")), "Done.", "Done.", "Done."])
    async with (
        terzetto.open_engine(
            adapters=[model], tools=[move], store=make_store(kind, folder)
        ) as engine,
        engine.open_agent(**ROUTE, session_id="s") as agent,
    ):
        with pytest.raises(TurnFailed, match=r"somebody has removed or (moved|replaced)"):
            await agent.ask("go")
        away.rename(folder)
        assert (await agent.ask("and?")).text == "Done."
        assert agent.health is None
        events = whole(agent.session)
        _, stored = await make_store(kind, folder).read("s")
        assert stored == events
