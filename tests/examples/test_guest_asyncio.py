"""The guest-mode example: Terzetto in an asyncio program, ended from either side."""

from __future__ import annotations

import re
import signal
import textwrap
from pathlib import Path

from tests.commands import SOURCE, linux_like, of_type, read_log
from tests.examples.processes import EXAMPLES, key, program, run

from terzetto.llm.loopback import serve_openai
from terzetto.llm.scripted import Gate, answer

pytestmark = linux_like
SCRIPT = "guest_asyncio.py"

HOST = """
    import asyncio, os, sys
    import terzetto, trio
    from pathlib import Path
    from guest_asyncio import Chat, Guest, GuestClosed
    from terzetto.llm.scripted import Gate, Hang, ScriptedModel, answer
    from terzetto.vocabulary import TurnEnd, UserMessageEvent

    model = ScriptedModel({script}, provider="openai")

    def guest(**options):
        store = options.pop("store", terzetto.JsonlStore("guest-sessions"))
        return Guest(model, "openai", "m", store)

    async def host():
{body}

    async def watched():
        asyncio.get_running_loop().slow_callback_duration = 3600  # a busy machine is not news
        await host()

    asyncio.run(watched(), debug=True)  # complains of what is never awaited, and of wrong threads
    print("left")
"""


def logs(folder: Path) -> list[list[dict]]:
    paths = sorted((folder / "guest-sessions").glob("*.jsonl"))
    return [read_log(path) for path in paths]


def reasons(log: list[dict]) -> list[dict]:
    return [event["data"]["reason"] for event in of_type(log, "turn/end")]


async def hosted(folder: Path, script: str, body: str) -> tuple[int, str]:
    """Run an asyncio program around the example's `Guest`."""
    text = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    program = textwrap.dedent(HOST.format(script=script, body=text))
    (folder / "host.py").write_text(program)
    path = f"{SOURCE}:{EXAMPLES}"
    return await run(str(folder / "host.py"), cwd=folder, PYTHONPATH=path)


async def test_it_asks_streams_and_ends(tmp_path: Path) -> None:
    code, said = await run(SCRIPT, "--scripted", "Who?", "Why?", cwd=tmp_path)
    lines = said.splitlines()
    assert code == 0, said
    assert re.fullmatch(r"session session-[0-9a-f]{16}", lines[0])
    assert [line for line in lines[1:] if "You asked" not in line] == [
        "> Who?",
        "(completed)",
        "> Why?",
        "(completed)",
    ]
    [log] = logs(tmp_path)
    assert reasons(log) == [{"kind": "completed"}] * 2


async def test_ctrl_c_in_the_host_closes_the_turn_and_shows_its_end(tmp_path: Path) -> None:
    async with serve_openai([answer("Once upon ", Gate("never"), "a time")]) as server:
        async with program(SCRIPT, "Tell.", cwd=tmp_path, **key(server.base_url)) as one:
            await one.said("Once upon")
            one.send(signal.SIGINT)
            assert await one.ended() == 130
    assert one.out.endswith("> Tell.\nOnce upon \n(aborted)\n"), one.out
    [log] = logs(tmp_path)
    assert log[-1]["data"]["reason"] == {"kind": "aborted", "reason": {"kind": "user"}}
    [cut] = of_type(log, "assistant/message")
    assert (cut["data"]["interrupted"], cut["data"]["message"]["content"][0]["text"]) == (
        True,
        "Once upon ",
    )


async def test_a_block_that_raises_ends_the_engine_and_leaves_as_itself(tmp_path: Path) -> None:
    """What was running ends `disposed`, and a reader still gets the whole log."""
    code, said = await hosted(
        tmp_path,
        '[answer("Well ", Gate("never"))]',
        """
        seen = []

        async def read(chat):
            async for event in chat.events():
                seen.append(event)

        try:
            async with guest() as one:
                chat = await one.open_chat()
                reading = asyncio.create_task(read(chat))
                await chat.send("Go.")
                while "Well" not in str(seen):
                    await asyncio.sleep(0)
                raise ValueError("the host has had enough")
        except ValueError as error:
            print(repr(error))
        await reading
        assert [event.seq for event in seen] == list(range(len(seen)))
        print(seen[-1].data.ending)
        try:
            await chat.ask("More?")
        except GuestClosed as error:
            print(repr(error))
        """,
    )
    assert (code, said.splitlines()) == (
        0,
        [
            "ValueError('the host has had enough')",
            "Aborted(cause=DisposedCause())",
            "GuestClosed('the engine has ended')",
            "left",
        ],
    )
    [log] = logs(tmp_path)
    assert reasons(log) == [{"kind": "aborted", "reason": {"kind": "disposed"}}]


async def test_an_engine_that_fails_ends_the_block_with_its_error(tmp_path: Path) -> None:
    """Whatever the block was doing: its own business, or waiting for an answer."""
    code, said = await hosted(
        tmp_path,
        '[answer("Well ", Gate("never"))] * 2',
        """
        async def strike(one):
            async def crash():
                raise RuntimeError("the guest has failed")
            def start():
                one._agents.start_soon(crash)
            one._token.run_sync_soon(start)

        for busy in ("elsewhere", "asking"):
            try:
                async with guest() as one:
                    chat = await one.open_chat()
                    task = asyncio.create_task(strike(one))
                    if busy == "asking":
                        await chat.ask("Go.")
                    else:
                        await asyncio.sleep(3600)
            except BaseExceptionGroup as error:
                while isinstance(error, BaseExceptionGroup):
                    [error] = error.exceptions
                print(busy, repr(error))
            except RuntimeError as error:
                print(busy, repr(error))
            await task
            await asyncio.sleep(0)
            assert asyncio.current_task().cancelling() == 0
        """,
    )
    assert (code, said.splitlines()) == (
        0,
        [
            "elsewhere RuntimeError('the guest has failed')",
            "asking RuntimeError('the guest has failed')",
            "left",
        ],
    )


async def test_cancelling_an_ask_ends_its_turn_and_the_chat_goes_on(tmp_path: Path) -> None:
    code, said = await hosted(
        tmp_path,
        '[answer("Well ", Gate("never")), answer("Yes."), answer("Again.")]',
        """
        async with guest() as one:
            chat = await one.open_chat()
            try:
                async with asyncio.timeout(0.5):
                    await chat.ask("First.")
            except TimeoutError:
                print("timed out")
            print((await chat.ask("Second.")).text)
            await chat.close()
            events = [event async for event in chat.events()]
            print([type(e.data.ending).__name__ for e in events if isinstance(e.data, TurnEnd)])
            again = await one.open_chat(resume=chat.session_id)
            print((await again.ask("Third.")).text)
        """,
    )
    assert code == 0, said
    assert said.splitlines() == ["timed out", "Yes.", "['Aborted', 'Completed']", "Again.", "left"]


async def test_an_engine_that_cannot_open_says_so(tmp_path: Path) -> None:
    code, said = await hosted(
        tmp_path,
        "[]",
        """
        def broken():
            raise RuntimeError("no such thing")
        terzetto.open_engine = lambda **_: broken()
        try:
            async with guest():
                print("not reached")
        except RuntimeError as error:
            print(repr(error))
        """,
    )
    assert (code, said.splitlines()) == (0, ["RuntimeError('no such thing')", "left"])


async def test_a_host_cancelled_while_it_enters_leaves_nothing_behind(tmp_path: Path) -> None:
    """At each of the first turns of its loop. asyncio complains of what is left running."""
    code, said = await hosted(
        tmp_path,
        "[]",
        """
        async def enter():
            async with guest() as one:
                await one.open_chat()
                await asyncio.sleep(3600)

        for turns in range(12):
            task = asyncio.create_task(enter())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled(), task
            assert len(asyncio.all_tasks()) == 1
        """,
    )
    assert (code, said) == (0, "left\n")
