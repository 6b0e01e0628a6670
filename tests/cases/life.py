"""One life of an agent, as a program: ``life.py URL FOLDER SESSION WHAT MESSAGE TOOLS``.

``resume`` follows up on a stored session. ``steered`` is a first life that is steered while
its second tool runs, says so, and then waits to be killed. TOOLS are names, one text.
"""

from __future__ import annotations

import sys

import trio

import terzetto
from terzetto import Agent, tool
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.vocabulary import ToolResultEvent


@tool(parallel=True)
async def slow(s: float) -> str:
    """Sleep."""
    await trio.sleep(s)
    return f"slept {s}"


@tool(parallel=True)
async def echo(x: int) -> int:
    """Say it again."""
    return x


TOOLS = {"slow": slow, "echo": echo}


async def steered(agent: Agent, message: str, *, durable: bool) -> None:
    agent.followup(message)
    async for event in agent.session.follow():
        if isinstance(event.data, ToolResultEvent):
            break
    agent.steer("use B")
    agent.inject("note")
    if durable:
        await agent._saving.flush()
    print("steered", flush=True)
    await trio.sleep_forever()


async def main(url: str, folder: str, session: str, what: str, message: str, names: str) -> None:
    adapter = OpenAIChat(api_key="k", base_url=url)
    tools = [TOOLS[name] for name in names.split()]
    async with terzetto.open_engine(
        adapters=[adapter], tools=tools, store=terzetto.JsonlStore(folder)
    ) as engine:
        if what == "resume":
            async with engine.open_agent(resume=session) as agent:
                turn = await agent.ask(message)
                print(turn.reason, flush=True)
            return
        async with engine.open_agent(provider="openai", model="m", session_id=session) as agent:
            await steered(agent, message, durable=what == "steered and saved")


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
