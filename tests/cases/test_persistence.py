"""Cases of kind *persistence*: what is on the disk when a turn was cut, or the disk failed.

BC-42 to BC-44 are where ownership and crashes are: `tests/stores` and `tests/crash`.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.agent.kit import ROUTE, check, ending_kinds, engine_on, played
from tests.cases.kit import HANG, Served, case, plays, says, served, text
from tests.commands import SOURCE, environment
from tests.stores.kit import made_in
from tests.stores.test_failures import Broken, half_a_write, moved_away, no_sync

import terzetto
from terzetto import MemoryStore, StoreError, TurnFailed
from terzetto.llm.loopback import serve_openai
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import Hang, ScriptedModel, answer, say
from terzetto.testing import FaultyStore

# --- BC-10 ----------------------------------------------------------------------------------

READER = """
import json, sys, trio
from terzetto import JsonlStore, SqliteStore
from terzetto.vocabulary import AssistantMessageEvent, StepEnd, TurnEnd

kind, place = sys.argv[1:]
store = SqliteStore(place + "/sessions.db") if kind == "sqlite" else JsonlStore(place)
_, events = trio.run(store.read, "a")
data = [event.data for event in events]
print(json.dumps({
    "anchors": [(d.message.text, d.interrupted) for d in data if type(d) is AssistantMessageEvent],
    "steps": sum(type(d) is StepEnd for d in data),
    "endings": [repr(d.ending) for d in data if type(d) is TurnEnd],
    "seqs": [event.seq for event in events] == list(range(len(events))),
}))
"""


async def read_by_another(kind: str, folder: Path) -> dict[str, Any]:
    ended = await trio.run_process(
        [sys.executable, "-W", "error", "-c", READER, kind, str(folder)],
        env=environment(PYTHONPATH=str(SOURCE)),
        capture_stdout=True,
    )
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
@case(10, "a-api", "b-outer-timeout", "c-siblings-exception")
async def test_closing_records_are_written_in_a_cancelled_scope(
    variant: str, kind: str, tmp_path: Path
) -> None:
    """BC-10 C32 C176: the prefix, one `step/end` and one `turn/end` with the right cause, read
    by a new process; each write took a thread and 20 ms."""
    mine, reached = KeyError("mine"), trio.Event()
    store = FaultyStore(made_in(tmp_path / "in", kind))
    store.slow("flush", 0.02)
    store.slow("close", 0.02)

    async def program(server: Any) -> None:
        adapter = OpenAIChat(api_key="k", base_url=server.base_url)
        async with terzetto.open_engine(adapters=[adapter], store=store) as engine:
            async with engine.open_agent(provider="openai", model="m", session_id="a") as agent:
                agent.followup("go")
                await Served(server, engine, agent, None).delivered(3)
                reached.set()
                if variant == "a-api":
                    agent.cancel()
                    await agent.wait_idle()
                else:
                    await trio.sleep_forever()

    async def sibling() -> None:
        await reached.wait()
        raise mine

    script = [plays(text("One. "), text("Two. "), text("Thr"), ending=HANG)]
    with trio.fail_after(60):
        async with serve_openai(script) as server:
            if variant == "a-api":
                await program(server)
            elif variant == "b-outer-timeout":
                with trio.CancelScope() as host:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(program, server)
                        await reached.wait()
                        host.deadline = trio.current_time()
                assert host.cancelled_caught
            else:
                with pytest.raises(ExceptionGroup) as caught:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(program, server)
                        nursery.start_soon(sibling)
                assert caught.value.exceptions == (mine,)
    cause = "UserCause" if variant == "a-api" else "DisposedCause"
    found = await read_by_another(kind, tmp_path / "in")
    assert found["anchors"] == [["One. Two. Thr", True]]
    assert found["steps"] == 1
    assert found["seqs"] is True
    (ending,) = found["endings"]
    assert ending.startswith(f"Aborted(cause={cause}(")


@case(10, "hanging-a-api", "hanging-b-outer-timeout", "hanging-c-siblings-exception")
def test_a_backend_that_hangs_for_ever_delays_the_exit_by_its_limit(variant: str) -> None:
    """BC-10: `shutdown_timeout`, 5 seconds unless the program says otherwise."""

    @played
    async def run() -> None:
        store, mine, reached = FaultyStore(MemoryStore()), KeyError("mine"), trio.Event()
        model = ScriptedModel([answer(say("One. Two. Thr"), Hang())])
        agents: list[Any] = []

        async def program() -> None:
            async with engine_on(model, store=store) as engine:
                async with engine.open_agent(**ROUTE, session_id="a") as agent:
                    agents.append(agent)
                    agent.followup("go")
                    async for event in agent.session.follow():
                        if "Thr" in str(getattr(event.data, "chunk", "")):
                            break
                    store.hang("flush", times=None)
                    store.hang("close", times=None)
                    reached.set()
                    if "a-api" in variant:
                        agent.cancel()  # and the block is left
                    else:
                        await trio.sleep_forever()

        async def sibling() -> None:
            await reached.wait()
            raise mine

        start = trio.current_time()
        with trio.CancelScope() as host:
            if "sibling" in variant:
                with pytest.raises(ExceptionGroup) as caught:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(program)
                        nursery.start_soon(sibling)
                assert caught.value.exceptions == (mine,)
            elif "timeout" in variant:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(program)
                    await reached.wait()
                    host.deadline = trio.current_time()
            else:
                with pytest.raises(StoreError, match="not saved"):
                    await program()
        assert trio.current_time() - start == pytest.approx(5)
        (agent,) = agents
        cause = "UserCause" if "a-api" in variant else "DisposedCause"
        assert ending_kinds(agent.session) == [f"Aborted {cause}"]
        check(agent.session)

    run()


# --- BC-47 ----------------------------------------------------------------------------------


def denied(broken: Broken) -> Any:
    real = os.write

    def write(fd: int, data: Any) -> int:
        if broken.strikes():
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return real(fd, data)

    return write


DISKS = {
    "ENOSPC-half-a-record": ("write", half_a_write, "No space left on device"),
    "EACCES": ("write", denied, "Permission denied"),
    "EIO-on-fsync-only": ("fdatasync", no_sync, "Input/output error"),
}


@case(47, *DISKS, "directory-removed")
async def test_a_storage_failure_is_visible_and_recoverable(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BC-47: the turn fails when it happens, nothing is sent, the half record is gone; then all
    is written in order, and a new process sends what the live one would have sent."""
    broken, said = Broken(), "removed"
    if variant in DISKS:
        name, make, said = DISKS[variant]
        monkeypatch.setattr(os, name, make(broken))
    folder = tmp_path / "in"
    script = [says("one"), says("three"), says("resumed"), says("live")]
    async with served(script, folder=folder) as life:
        agent, log = life.agent, folder / f"{life.agent.id}.jsonl"
        await agent.ask("first")
        before, told = log.read_bytes(), life.session.durable_seq

        async def fail() -> None:
            with pytest.raises(TurnFailed) as caught:
                await agent.ask("second")
            assert caught.value.code == "STORE"
            assert said in caught.value.failure.message

        if variant in DISKS:
            broken.on = True
            await fail()
            assert broken.hits > 0
            broken.on = False
        else:
            with moved_away(folder):
                await fail()
                assert not folder.exists()
        assert agent.health is not None
        assert life.session.durable_seq == told
        assert len(life.server.requests) == 1
        assert log.read_bytes() == before, "not half a record more"

        assert (await agent.ask("third")).text == "three"
        assert agent.health is None
        lines = [json.loads(line) for line in log.read_bytes().splitlines()[1:]]
        assert [line["seq"] for line in lines] == list(range(len(life.session.events)))
        assert [m["content"] for m in life.sent() if m["role"] == "user"] == [
            "first",
            "second",
            "third",
        ]
        body = await life.resumed("continue", copy=tmp_path / "copy")
        await life.say("continue")
        assert life.server.requests[-1].body == body
        check(life.session)
