"""Shipped scenarios of what tools are beside: another process, groups of errors, a whole script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeAlias

import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_pair

from .. import Tool, tool
from ..llm.scripted import Delay, answer, call, say
from ..tools import BatchResult, PoolExecutor, ToolBatch
from ._life import Scenario
from ._recording import Answers, MakeAdapter
from ._script_acts import Script
from ._stage import Stage

Pipe: TypeAlias = "trio.StapledStream[MemorySendStream, MemoryReceiveStream]"


class _Child:
    """Stands for a process that answers lines over two pipes, and takes its time to end.

    A real one would look like idle time to a virtual clock. It ends when its input does.
    """

    def __init__(self) -> None:
        self.running = False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Pipe]:
        """The parent's end. Leaving closes the pipes and waits, also when it is cancelled."""
        ours, theirs = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, theirs)
            try:
                yield ours
            finally:
                with trio.CancelScope(shield=True):
                    await ours.aclose()  # the nursery waits for the rest

    async def _serve(self, pipe: Pipe) -> None:
        self.running = True
        # A process is not in its parent's cancel scope: it goes on until its pipe is closed.
        with trio.CancelScope(shield=True):
            try:
                async for line in pipe:
                    await trio.sleep(0.1)
                    await pipe.send_all(line.upper())
            except trio.BrokenResourceError:
                pass  # nobody reads any more
            await trio.sleep(0.1)  # it tidies up
            self.running = False


async def driving(stage: Stage) -> None:
    """A tool that talks to a process over pipes, in a program with an executor of its own.

    Whoever stops it, the process has ended.
    """
    child = _Child()
    stage.expect(lambda: not child.running, "the process outlives its tool")

    @tool
    async def shout(text: str) -> str:
        """Shout."""
        said = b""
        async with child.opened() as pipe:
            for word in text.split():
                await pipe.send_all(word.encode())
                said += await pipe.receive_some()
        return said.decode()

    async with (
        stage.open_engine([shout], executor=_Scoped()) as engine,
        stage.open_agent(engine) as agent,
    ):
        stage.send("followup", "go")
        await agent.wait_idle()


class _Scoped:
    """Runs batches as the engine does, each in a cancel scope of its own."""

    async def execute(self, batch: ToolBatch) -> BatchResult:
        with trio.CancelScope():
            return await PoolExecutor().execute(batch)
        raise AssertionError("nobody cancels that scope")


DRIVING: Answers = [answer(call("shout", text="one two")), "Done."]


async def groups(stage: Stage) -> None:
    """Bodies that raise groups - of errors, of errors and their own cancel - and one that exits."""

    @tool(parallel=True)
    async def several() -> str:
        """Two children fail."""

        async def fail(error: Exception) -> None:
            await trio.sleep(0.1)
            raise error

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, ValueError("one"))
            nursery.start_soon(fail, OSError("two"))
        return "never"

    @tool(parallel=True)
    async def mixed() -> str:
        """A child fails while it is cancelled, another gives way."""

        async def cleaning() -> None:
            try:
                await trio.sleep(0.2)
            finally:
                raise OSError("cannot tidy up")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cleaning)
            nursery.start_soon(trio.sleep, 0.3)
        return "never"

    @tool(parallel=True)
    async def leaves() -> str:
        """Leave."""
        await trio.sleep(0.1)
        raise SystemExit(3)

    async with (
        stage.open_engine([several, mixed, leaves]) as engine,
        stage.open_agent(engine) as agent,
    ):
        stage.send("followup", "go")
        await agent.wait_idle()


GROUPS: Answers = [answer(call("several"), call("mixed"), call("leaves")), "Sorry."]


def _note(stage: Stage) -> list[Tool]:
    @tool(parallel=True)
    async def note() -> str:
        """Note."""
        await trio.sleep(0.1)
        return "noted"

    return [note]


scripted_life = (
    Script(
        _note,
        [answer(say("Well"), Delay(0.2), call("note"), call("note")), "Noted.", "And now?", "Bye."],
        name="script",
    )
    .followup("note it")
    .wait(0.1)
    .interrupt("no, this")
    .ask("are you there?", patience=0.5)
    .maintain(0.1)
    .inject("for later")
    .resume()
    .followup("go on")
    .cancel(keep_inbox=True)
    .steer("still there?")
    .idle()
)


WORLD: Mapping[str, tuple[Scenario, MakeAdapter | Answers]] = {
    "driving": (driving, DRIVING),
    "groups": (groups, GROUPS),
    "script": (scripted_life, scripted_life.model),
}
