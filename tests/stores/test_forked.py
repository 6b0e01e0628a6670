"""Owners that fork: a child without an `exec` has all their files, and must not own any."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import trio
from tests.crash.commands import children
from tests.crash.lives import make_store
from tests.stores.kit import HEADER, filled, turn

KINDS = ["jsonl", "sqlite"]


def forked(told: Connection, asked: Connection) -> None:
    """A process of ours, until the other end of *asked* is closed, or it is asked to end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads
        if os.fork():
            return
    told.send(locked_files())
    told.close()
    try:
        asked.recv()
    except EOFError:
        pass
    finally:
        os._exit(0)


def locked_files() -> str:
    """The files of locks that this process has open."""
    opened = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return f"locks: {[path for path in opened if path.endswith(('.jsonl', '.lock'))]}"


def own(kind: str, folder: Path, told: Connection, asked: Connection, how: str) -> None:
    """Own a session, fork, and then come to the end that *how* says."""

    async def main() -> None:
        store = make_store(kind, folder)
        handle = await filled(store, 3)
        forked(told, asked)
        if how == "killed":
            told.send("mine")
            await trio.sleep_forever()
        await handle.close()
        again = await store.open(HEADER.id)
        again.append(turn(3))
        await again.close()
        told.send(again.durable_seq)

    trio.run(main)


@pytest.mark.parametrize("how", ["killed", "closed"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_forked_child_owns_nothing(kind: str, how: str, tmp_path: Path) -> None:
    """BC-43: a session whose owner was killed, or has closed it, is free, though a child
    that it forked is alive: a worker of a pool, for example."""
    end, told = multiprocessing.Pipe(duplex=False)
    asked, ask = multiprocessing.Pipe(duplex=False)
    owner = children().Process(target=own, args=(kind, tmp_path, told, asked, how))
    owner.start()
    told.close()
    asked.close()
    try:
        assert end.poll(60)
        found = {end.recv(), end.recv()}
        assert found == ({"locks: []", "mine"} if how == "killed" else {"locks: []", 3})
        owner.kill()
        owner.join()
        handle = await make_store(kind, tmp_path).open(HEADER.id)
        handle.append(turn(handle.durable_seq + 1))
        await handle.close()
    finally:
        owner.kill()
        owner.join()
        ask.send("end")
        for pipe in (end, ask):
            pipe.close()
