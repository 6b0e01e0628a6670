"""Ctrl-C in a real process: the log on disk is whole, and nothing outlives the signal (BC-56)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.agent.kit import check, codes, ending_kinds, kinds, pending, texts_of

import terzetto
from terzetto import JsonlStore, Session
from terzetto.llm.scripted import ScriptedModel
from terzetto.session import replay
from terzetto.vocabulary import texts

PROGRAM = """
import signal, sys, threading, time
import trio
import terzetto
from terzetto import tool
from terzetto.llm.scripted import Hang, ScriptedModel, answer, call, say

way, folder = sys.argv[1:]

def ready():
    print("ready", flush=True)

@tool
async def slow() -> str:
    "Slow."
    ready()
    await trio.sleep(30)
    return "never"

@tool
def block() -> str:
    "Blocks a thread."
    ready()
    time.sleep(0.5)
    return "blocked"

@tool
async def stuck() -> str:
    "A clean-up that takes too long for the second signal."
    try:
        ready()
        await trio.sleep(30)
    finally:
        print("cleaning", flush=True)
        with trio.CancelScope(shield=True):
            await trio.sleep(1)

ANSWERS = {
    "stream": answer(say("One. Two. Thr"), Hang()),
    "append": answer(say("One. Two. Thr"), Hang()),
    "tool": answer(say("I wait."), call("slow", id="c1"), call("slow", id="c2")),
    "thread": answer(call("block", id="c1"), call("block", id="c2")),
    "twice": answer(call("stuck", id="c1")),
}

async def main():
    async with terzetto.open_engine(
        adapters=[ScriptedModel([ANSWERS[way]])],
        tools=[slow, block, stuck],
        store=terzetto.JsonlStore(folder),
        shutdown_timeout=2,
    ) as engine:
        async with engine.open_agent(provider="scripted", model="m", session_id="a") as agent:
            if way == "append":
                def observe(event):
                    # In the middle of an append, in the main thread.
                    if "Thr" in str(getattr(event.data, "chunk", "")):
                        signal.raise_signal(signal.SIGINT)
                agent.session.observe(observe)
            agent.followup("go")
            agent.followup("queued")
            if way == "stream":
                async for event in agent.session.follow():
                    if "Thr" in str(getattr(event.data, "chunk", "")):
                        ready()
            await trio.sleep_forever()

trio.run(main)
"""


def run(way: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Start the program, send SIGINT when it is ready, and wait for its end."""
    source = Path(terzetto.__file__).parents[1]
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, way, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    assert child.stdout is not None
    try:
        if way != "append":
            assert child.stdout.readline() == "ready\n"
            child.send_signal(signal.SIGINT)
        if way == "twice":
            assert child.stdout.readline() == "cleaning\n"
            child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=20)
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


async def read(folder: Path) -> Session:
    header, events = await JsonlStore(folder).read("a")
    session = Session(header, now_ms=lambda: 0)
    replay(session, events)
    return session


@pytest.mark.parametrize("way", ["stream", "tool", "thread", "append", "twice"])
async def test_a_program_that_is_interrupted_leaves_a_log_that_resumes(
    way: str, tmp_path: Any
) -> None:
    """BC-56 (a)-(e) and DESIGN 4: prefix and turn end on disk, calls ABORTED, input kept,
    KeyboardInterrupt alone, the conventional status; a resumed session goes on."""
    ended = run(way, tmp_path)
    assert ended.returncode in (-signal.SIGINT, 130), ended.stderr
    assert "KeyboardInterrupt" in ended.stderr
    assert "ExceptionGroup" not in ended.stderr
    session = await read(tmp_path)
    assert ending_kinds(session) == ["Aborted DisposedCause"]
    assert kinds(session)[-1] == "TurnEnd"
    check(session)
    if way in ("stream", "append"):
        assert texts_of(session.history())[-1] == "One. Two. Thr"
    elif way == "tool":
        assert codes(session) == {"c1": texts.ABORTED, "c2": texts.ABORTED_BEFORE_DISPATCH}
    elif way == "thread":
        # A thread cannot be stopped: it is waited for, and what it returned is kept.
        assert codes(session) == {"c1": None, "c2": texts.ABORTED_BEFORE_DISPATCH}
    async with (
        terzetto.open_engine(
            adapters=[ScriptedModel(["on we go", "on we go"])], store=JsonlStore(tmp_path)
        ) as engine,
        engine.open_agent(resume="a") as agent,
    ):
        assert pending(agent) == ["queued"]
        assert (await agent.ask("go on")).text == "on we go"
