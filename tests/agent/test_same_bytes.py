"""The same contributions give the same bytes in every process (C84, C99, C172).

Sets, hashes, the order in which names are looked up, ids and clocks: none of them is in a request,
and of a log only ids and times.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

from tests.agent.kit import play
from tests.agent.rig import Fussy, one
from tests.commands import environment
from tests.whole import whole

from terzetto import Assembly, ModelInfo, evolve, tool, working_directory
from terzetto.llm.deepseek import DeepSeek
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import answer, call, think
from terzetto.session import canonical, rebuild
from terzetto.session._codec import dumps_json, encode_event
from terzetto.tools import raw_tool

NAMES = ("water", "weigh", "look", "listen", "shut", "open")
IDS = ("id", "time", "callId", "toolCallId")


@tool
async def weigh(what: str, unit: str = "g", *, exact: bool = False) -> str:
    """Weigh something."""
    return f"{what}: 200 {unit}"


def extra(name: str) -> Any:
    async def body(arguments: object) -> str:
        return name

    properties = {letter: {"type": "string"} for letter in "zyxabc"}
    schema = {"type": "object", "properties": properties}
    return raw_tool(name=name, description=name, parameters=schema, body=body)


def scrubbed(value: Any) -> Any:
    """*value* without what differs from run to run on purpose."""
    if isinstance(value, dict):
        return {key: scrubbed(item) for key, item in value.items() if key not in IDS}
    return [scrubbed(item) for item in value] if isinstance(value, list) else value


async def digests() -> list[str]:
    """Of the log, of every request as it is told, and of every body."""
    replies = [answer(think("So."), call("weigh", what="flour", id="c1")), "One.", "Two.", "Three."]
    model = Fussy(
        replies,
        default_effort="low",
        default_max_tokens=100,
        infos={"m": ModelInfo(system_prompt_update="in-history", tool_update=True)},
    )
    async with one(model, [weigh], session_id="S", system="You are {{name}}.", cwd="/a") as life:
        scope = life.agent.scope
        scope.add_context("cwd", working_directory)
        for name in NAMES:
            scope.set_variable(name, name.upper())
            scope.add_section(name, f"{{{{{name}}}}} on {{{{model}}}}")
            scope.add_context(name, f"{name} is here")
        scope.set_variable("name", "a cook")

        async def listener(value: Any, proceed: Any) -> Any:
            return (await proceed()).with_options(**{name: {"z": 1, "a": [2]} for name in NAMES})

        life.hooks.request.listen(listener)
        await life.say("How much flour?")
        registrations = [scope.add_tool(extra(name)) for name in NAMES if name != "weigh"]
        await life.say("And now?")
        for registration in registrations[::2]:
            registration.remove()

        async def assemble(value: Assembly, proceed: Any) -> Assembly:
            assembly: Assembly = await proceed()
            return evolve(assembly, system=assembly.system + "\n\nBriefly.")

        life.hooks.assemble.listen(assemble)
        await life.say("And then?")
        events = whole(life.session)
        sent = [one.request for one in rebuild(life.session.header, events)]
        assert len(sent) == len(model.requests) == 4
    lines = [dumps_json(scrubbed(encode_event(event))) for event in events]
    bodies = [kind(api_key=None).body(r) for r in sent for kind in (OpenAIChat, DeepSeek)]
    parts = [b"\n".join(lines), *map(canonical, sent), *bodies]
    return [hashlib.sha256(part).hexdigest() for part in parts]


def test_a_session_is_the_same_bytes_in_every_process() -> None:
    """C84, C99: with other hash seeds, zones and folders."""
    program = (
        "from tests.agent.kit import play; from tests.agent.test_same_bytes import digests; "
        "print(*play(digests))"
    )
    here = play(digests)
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path)
    for seed, zone, folder in (("0", "UTC", "/"), ("4242", "Asia/Tokyo", os.getcwd())):
        other = subprocess.run(
            [sys.executable, "-c", program],
            env=environment(PYTHONHASHSEED=seed, TZ=zone) | {"PYTHONPATH": path},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert other.returncode == 0, other.stderr
        assert other.stdout.split() == here
    assert len(set(here)) == 1 + 4 + 8, "each part is another"
