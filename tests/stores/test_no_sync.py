"""A system whose `fsync` fails, for SQLite as for Python: put before the C library of a process.

What this adds to `test_failures.py`: there, what SQLite does after a sync that failed is made
up. Needs a C compiler; without one it is skipped.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.agent.kit import ROUTE, check, engine_on
from tests.commands import SOURCE, environment
from tests.stores.kit import made_in
from tests.whole import whole

from terzetto.llm.scripted import ScriptedModel
from terzetto.vocabulary import TurnEnd

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="a preloaded library, as Linux has it"),
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler"),
]

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int broken(void) {
    const char *flag = getenv("BROKEN_WHILE");
    return flag && access(flag, F_OK) == 0;
}
#define WRAP(name)                                              \
    int name(int fd) {                                          \
        if (broken()) { errno = EIO; return -1; }               \
        int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, #name); \
        return real(fd);                                        \
    }
WRAP(fsync)
WRAP(fdatasync)
"""

LIFE = """
import json, os, sys, trio, terzetto
from terzetto.llm.scripted import ScriptedModel

kind, place, ends = sys.argv[1:]
flag = os.environ["BROKEN_WHILE"]

async def main():
    store = terzetto.SqliteStore(place + "/sessions.db") if kind == "sqlite" \\
        else terzetto.JsonlStore(place)
    model = ScriptedModel(lambda request: "fine")
    async with terzetto.open_engine(adapters=[model], store=store) as engine:
        async with engine.open_agent(provider="scripted", model="m", session_id="a") as agent:
            await agent.ask("one")
            open(flag, "w").close()
            told = []
            for _ in range(2):
                try:
                    await agent.ask("two")
                except terzetto.TurnFailed as failed:
                    told.append([failed.code, failed.failure.message])
            said = {
                "told": told,
                "requests": len(model.requests),
                "durable": agent.session.durable_seq,
                "unsaved": len(agent.session.events) - 1 - agent.session.durable_seq,
                "health": agent.health.message,
            }
            print(json.dumps(said), flush=True)
            if ends == "dies":
                os._exit(0)
            os.unlink(flag)
            await agent.ask("three")
            assert agent.health is None
            assert agent.session.durable_seq == len(agent.session.events) - 1

trio.run(main)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    assert COMPILER is not None
    command = [COMPILER, "-shared", "-fPIC", "-o", "shim.so", "shim.c", "-ldl"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "shim.so"


async def lived(shim: Path, kind: str, folder: Path, ends: str) -> dict[str, Any]:
    preload = {"LD_PRELOAD": str(shim), "BROKEN_WHILE": str(folder.with_name("broken"))}
    ended = await trio.run_process(
        [sys.executable, "-W", "error", "-c", LIFE, kind, str(folder), ends],
        env=environment(PYTHONPATH=str(SOURCE), **preload),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    said: dict[str, Any] = json.loads(ended.stdout)
    return said


@pytest.mark.parametrize("ends", ["goes on", "dies"])
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_a_sync_that_fails_is_told_and_nothing_is_lost_or_doubled(
    shim: Path, kind: str, ends: str, tmp_path: Path
) -> None:
    """BC-47 C148: EIO on fsync only, from the system itself."""
    said = await lived(shim, kind, tmp_path / "in", ends)
    assert [code for code, _ in said["told"]] == ["STORE", "STORE"]
    assert all("session 'a': writing failed" in message for _, message in said["told"])
    assert said["requests"] == 1
    assert said["unsaved"] > 0
    store = made_in(tmp_path / "in", kind)
    _, events = await store.read("a")
    assert [event.seq for event in events] == list(range(len(events)))
    assert len(events) > said["durable"]
    endings = [type(e.data.ending).__name__ for e in events if isinstance(e.data, TurnEnd)]
    if ends == "goes on":
        assert endings == ["Completed", "Failed", "Failed", "Completed"]
    async with engine_on(ScriptedModel(["back"]), store=store) as engine:
        async with engine.open_agent(**ROUTE, resume="a") as agent:
            assert whole(agent.session)[: len(events)] == events
            assert (await agent.ask("go on")).text == "back"
            check(agent.session)
    assert (await store.read("a"))[1] == whole(agent.session)
    if kind == "sqlite":
        with closing(sqlite3.connect(tmp_path / "in" / "sessions.db")) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_a_session_cannot_be_created_without_a_sync(shim: Path, tmp_path: Path) -> None:
    """C143: when `create` returns the session exists durably, or it raises."""
    (tmp_path / "broken").touch()
    program = (
        "import sys, trio, terzetto\n"
        "from terzetto import JsonlStore, SqliteStore, StoreError\n"
        "from terzetto.vocabulary import SessionHeader\n"
        "for store in (JsonlStore(sys.argv[1]), SqliteStore(sys.argv[1] + '/sessions.db')):\n"
        "    try:\n"
        "        trio.run(store.create, SessionHeader(id='a', created_ms=0))\n"
        "    except StoreError as error:\n"
        "        print(type(error).__name__)\n"
    )
    ended = await trio.run_process(
        [sys.executable, "-c", program, str(tmp_path / "in")],
        env=environment(
            PYTHONPATH=str(SOURCE), LD_PRELOAD=str(shim), BROKEN_WHILE=str(tmp_path / "broken")
        ),
        capture_stdout=True,
    )
    assert ended.stdout.decode().split() == ["StoreError", "StoreError"]
