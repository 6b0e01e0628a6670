"""Sessions to be shown: real runs of the engine on a clock that jumps, so that times repeat."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import trio

import terzetto
from terzetto import vocabulary as v
from terzetto.commands._show_lines import Shown
from terzetto.llm.scripted import Delay, ScriptedModel, answer, call, finish_error, say, think
from terzetto.timeline import read_timeline

BEGAN_MS = 1_767_225_600_000
"""2026-01-01."""
USAGE = v.Usage(input_tokens=1200, output_tokens=34, cache_read_tokens=1000, reasoning_tokens=12)


def now_ms() -> int:
    return BEGAN_MS + round(trio.current_time() * 1000)


def ids() -> Callable[[], v.MessageId]:
    """Message ids that no other engine makes."""
    engine, numbers = next(_engines), count(1)
    return lambda: v.MessageId(f"m{engine}-{next(numbers)}")


_engines: Iterator[int] = count(1)


@terzetto.tool(parallel=True)
async def read_file(path: str, seconds: float) -> str:
    "Read a file."
    await trio.sleep(seconds)
    if path.startswith("no-such"):
        raise terzetto.ToolError(f"there is no file {path!r}", "NOT_FOUND")
    return f"the text of {path}"


@terzetto.tool
async def write_file(path: str, seconds: float) -> str:
    "Write a file, alone."
    await trio.sleep(seconds)
    return "written"


def engine_on(store: terzetto.Store, *script: Any) -> Any:
    model = ScriptedModel(script)
    return terzetto.open_engine(
        adapters=[model],
        tools=[read_file, write_file],
        store=store,
        max_parallel_tool_calls=3,
        now_ms=now_ms,
        new_id=ids(),
    )


async def stored(store: terzetto.MemoryStore, session_id: str) -> Shown:
    header, events = await store.read(session_id)
    return Shown(header=header, timeline=read_timeline(events))


async def busy_session() -> Shown:
    """A batch with a barrier, a failure and a full house; a retry; a steer; what a policy says."""
    store = terzetto.MemoryStore()
    batch = answer(
        think("Three files, then the summary, then a look at it."),
        Delay(0.4),
        say("I shall read them all, and write a summary. " * 2),
        call("read_file", path="a.txt", seconds=0.9),
        call("read_file", path="b.txt", seconds=0.2),
        call("read_file", path="no-such.txt", seconds=0.5),
        call("read_file", path="日本語.txt", seconds=1.3),
        call("write_file", path="summary.txt", seconds=0.6),
        call("read_file", path="summary.txt", seconds=0.3),
        call("sing"),
        usage=USAGE,
    )
    async with engine_on(
        store,
        answer(Delay(0.1), say("I sha"), finish_error("SERVER", "overloaded", status=503)),
        batch,
        answer(Delay(0.25), "All but one are there."),
    ) as engine:
        async with engine.open_agent(
            provider="scripted", model="m-1", session_id="busy", cwd="/home/me/project"
        ) as agent:

            async def again(value: Any, proceed: Callable[..., Awaitable[Any]]) -> Any:
                return terzetto.Retry()

            agent.scope.hooks.request_error.listen(again)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(agent.ask, "Summarise the files,\nplease.")
                await trio.sleep(1.0)
                policy = v.PluginSource("my-policy")
                agent.inject(v.UserMessage("Be brief.", policy))
                agent.steer("And hurry!")
    return await stored(store, "busy")


async def cut_session() -> Shown:
    """An interrupted answer, a cancelled batch, a failed turn, a resume, and what is pending."""
    store = terzetto.MemoryStore()
    script = [
        answer(Delay(0.2), say("Once upon a "), Delay(0.2), say("time "), Delay(9), say("there")),
        answer(
            call("read_file", path="a", seconds=0.3),
            call("write_file", path="b", seconds=30),
            call("read_file", path="c", seconds=0.1),
        ),
        finish_error("AUTH", "no such key"),
    ]
    async with engine_on(store, *script) as engine:
        async with engine.open_agent(
            provider="scripted", model="m-1", session_id="cut", system="Be nice."
        ) as agent:
            agent.followup("Tell me a story.")
            await trio.sleep(1)
            agent.cancel()
            await agent.wait_idle()
            agent.followup("Do three things.")
            await trio.sleep(2)
            agent.inbox.append("next-turn", v.UserMessage("Never mind this."))
            agent.cancel()
            await agent.wait_idle()
            agent.model.select("scripted", "m-2", None)
            agent.followup("And now?")
            await agent.wait_idle()
    async with engine_on(store, answer(Delay(5), "Late.")) as engine:
        opening = engine.open_agent(resume="cut")
        agent = await opening.__aenter__()
        agent.followup("Are you there?")
        await trio.sleep(1)
        agent.followup("Hello?")
        agent.inject("A note \x1b[2Jfor\u202e later.")
        await trio.sleep(1)
        shown = Shown(
            header=agent.session.header,
            timeline=read_timeline(await agent.session.read()),
            torn=37,
        )
        await opening.__aexit__(None, None, None)
    return shown
