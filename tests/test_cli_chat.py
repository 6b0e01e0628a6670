"""``terzetto chat``: talking, tools, Ctrl-C, a terminal, and servers that refuse."""

import json
import signal
from pathlib import Path

import pytest

from terzetto.llm.loopback import BLANK, serve_openai
from terzetto.llm.scripted import Gate, answer, call, refuse, say, think
from terzetto.vocabulary import Request, ToolResultBlock
from tests.commands import (
    SECRET,
    TOOLS,
    chat,
    check_quiet,
    environment,
    in_terminal,
    linux_like,
    made,
    messages,
    of_type,
    one_error,
    read_log,
    running,
)


async def test_chat_streams_while_the_answer_comes(tmp_path: Path) -> None:
    async with (
        serve_openai([answer("One, two ", Gate("rest"), "three.")]) as server,
        running(chat(server), cwd=tmp_path) as one,
    ):
        await one.type("count\n")
        await one.printed("One, two ")
        assert "three" not in one.out
        server.gates.open("rest")
        await one.printed("three.")
        await one.end_input()
    assert (one.process.returncode, one.out, one.err) == (0, "One, two three.\n", "")


@pytest.mark.parametrize("typed", ["first\nsecond", "first\r\n\n  \nsecond\n"])
async def test_every_line_of_a_pipe_is_one_prompt(typed: str, tmp_path: Path) -> None:
    """The end of input is the end, after the last answer; blank lines are no prompts."""
    async with (
        serve_openai(["Eins.", answer("Zw", Gate("ended"), "ei.")]) as server,
        running(chat(server, "--system", "Be brief."), cwd=tmp_path) as one,
    ):
        await one.type(typed)
        await one.end_input()
        await one.printed("Zw")
        server.gates.open("ended")
    assert (one.process.returncode, one.out) == (0, "Eins.\nZwei.\n")
    check_quiet(one.err)
    assert messages(server, 1) == [("user", "first"), ("assistant", "Eins."), ("user", "second")]
    sent = server.requests[0].body["messages"]
    assert isinstance(sent, list)
    assert sent[0] == {"role": "system", "content": "Be brief."}


async def test_tool_from_a_module_makes_the_round_trip(tmp_path: Path) -> None:
    (tmp_path / "my_tools.py").write_text(TOOLS)

    def repeat(request: Request) -> str:
        [block] = request.messages[-2].content
        assert isinstance(block, ToolResultBlock)
        return f"It says {block.content[0].text}"

    calls = answer("Wait.", call("shout", text="hi"), call("broken"))
    async with (
        serve_openai([calls, repeat]) as server,
        running(chat(server, "--tools", "my_tools:both"), cwd=tmp_path) as one,
    ):
        await one.type("use it\n")
        await one.end_input()
    assert one.process.returncode == 0
    assert one.out.splitlines() == [
        "Wait.",
        '* shout {"text": "hi"}',
        "* broken {}",
        r"* broken failed: Error: the belt\x1b[2J slipped",
        "It says HI",
    ]
    check_quiet(one.err)
    assert ("tool", "HI") in messages(server, 1)


async def test_thinking_is_told_apart_and_nothing_reaches_the_terminal_raw(tmp_path: Path) -> None:
    async with (
        serve_openai([answer(think("Hm, \x1b[2Jwell. "), say("So\x07.\r\nYes.\u202e"))]) as server,
        running(chat(server), cwd=tmp_path) as one,
    ):
        await one.type("go\n")
        await one.end_input()
    assert one.out == "(thinking) Hm, \\x1b[2Jwell. \nSo\\x07.\nYes.\\u202e\n"


async def test_conversation_is_kept_in_the_named_folder(tmp_path: Path) -> None:
    options = ("--log", "deep/down", "--provider", "house")
    async with (
        serve_openai("Noted.") as server,
        running(chat(server, *options), cwd=tmp_path) as one,
    ):
        await one.type("remember\n")
        await one.end_input()
    assert one.process.returncode == 0
    [path] = (tmp_path / "deep" / "down").glob("*.jsonl")
    events = read_log(path)
    assert of_type(events, "turn/end")
    assert "house" in json.dumps(of_type(events, "request/header"))


# Ctrl-C.

COUNTING = "One, two, three, "


@linux_like
async def test_ctrl_c_keeps_what_came_for_the_next_request(tmp_path: Path) -> None:
    async with (
        serve_openai([answer(COUNTING, Gate("never"), "four."), "four."]) as server,
        running(chat(server, "--log", "log"), cwd=tmp_path) as one,
    ):
        await one.type("count\n")
        await one.printed(COUNTING.strip())
        one.interrupt()
        await one.printed("(interrupted; 16 characters of the answer are kept)")
        await one.type("go on\n")
        await one.printed("kept)\n", "four.")
        await one.end_input()
    assert one.process.returncode == 0
    assert one.err == ""
    assert messages(server, 1) == [
        ("user", "count"),
        ("assistant", COUNTING),
        ("user", "go on"),
    ]
    [path] = (tmp_path / "log").glob("*.jsonl")
    [kept] = of_type(read_log(path), "assistant/message", interrupted=True)
    assert kept["data"]["message"]["content"] == [{"type": "text", "text": COUNTING}]


@linux_like
async def test_ctrl_c_before_the_first_word_keeps_nothing(tmp_path: Path) -> None:
    async with (
        serve_openai([answer(Gate("never"), "x"), "Here."]) as server,
        running(chat(server), cwd=tmp_path) as one,
    ):
        await one.type("hello?\n")
        await server.gates.wait_reached("never")
        one.interrupt()
        await one.printed("(interrupted)")
        await one.type("hello?\n")
        await one.printed("Here.")
        await one.end_input()
    assert (one.process.returncode, one.err) == (0, "")


@linux_like
async def test_second_ctrl_c_leaves(tmp_path: Path) -> None:
    async with (
        serve_openai([answer("Well, ", Gate("never"), "x")]) as server,
        running(chat(server, "--log", "log"), cwd=tmp_path) as one,
    ):
        await one.type("hello\n")
        await one.printed("Well, ")
        one.interrupt()
        await one.printed("(interrupted; ")
        one.interrupt()
    assert (one.process.returncode, one.err) == (130, "")
    [path] = (tmp_path / "log").glob("*.jsonl")
    assert of_type(read_log(path), "turn/end")


STUBBORN = """
import pathlib, time, terzetto

@terzetto.tool
def stubborn() -> str:
    "A thread that does not hear of cancellation."
    pathlib.Path("begun").touch()
    while not pathlib.Path("enough").exists():
        time.sleep(0.01)
    return "done"
"""


@linux_like
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_started_tool_is_waited_for_unless_killed(times: int, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(STUBBORN)
    notes = ["Ctrl-C again leaves", "Ctrl-C again kills"]
    async with (
        serve_openai([call("stubborn"), "Never asked for."]) as server,
        running(chat(server, "--tools", "slow:stubborn"), cwd=tmp_path) as one,
    ):
        await one.type("go\n")
        await one.printed("* stubborn")
        await made(tmp_path / "begun")  # shown, its body may not have begun
        for number in range(times):
            one.interrupt()
            if number < len(notes):
                await one.printed(f"(waiting for stubborn to end; {notes[number]})")
        if times < 3:
            (tmp_path / "enough").touch()
        if times == 1:
            await one.printed("(interrupted)")
            await one.end_input()
    assert one.process.returncode == {1: 0, 2: 130, 3: -signal.SIGINT}[times]
    check_quiet(one.err)
    assert len(server.requests) == 1


@linux_like
async def test_ctrl_c_while_nothing_runs_leaves(tmp_path: Path) -> None:
    async with (
        serve_openai("Yes.") as server,
        running(chat(server), cwd=tmp_path) as one,
    ):
        await one.type("there?\n")
        await one.printed("Yes.\n")
        one.interrupt()
    assert (one.process.returncode, one.err) == (130, "")


# In a terminal.


@linux_like
async def test_terminal_has_a_prompt_and_keys(tmp_path: Path) -> None:
    """Ctrl-C while an answer comes, the prompt again, Ctrl-D: exit code 0."""
    async with (
        serve_openai([answer(think("Hm."), COUNTING, Gate("never"), "x"), "Bye."]) as server,
        in_terminal(chat(server, "--log", "log"), cwd=tmp_path) as (one, keys),
    ):
        await one.printed("Ctrl-D leaves", "is kept in", "> ")
        keys("count\n")
        await one.printed("\x1b[2mHm.", "One, two, three,")
        keys("\x03")
        await one.printed("(interrupted; 16 characters", "> ")
        keys("and now?\n")
        await one.printed("Bye.", "> ")
        keys("\x04")
    assert one.process.returncode == 0
    assert messages(server, 1)[1] == ("assistant", COUNTING)


@linux_like
async def test_ctrl_c_at_the_prompt_leaves(tmp_path: Path) -> None:
    async with (
        serve_openai("x") as server,
        in_terminal(chat(server), cwd=tmp_path) as (one, keys),
    ):
        await one.printed("> ")
        keys("half a li\x03")
    assert one.process.returncode == 130
    check_quiet(one.out)


@linux_like
async def test_failure_in_a_terminal_gives_the_prompt_back(tmp_path: Path) -> None:
    async with (
        serve_openai([answer("Half of ", refuse(500)), "All of it."]) as server,
        in_terminal(chat(server), cwd=tmp_path) as (one, keys),
    ):
        await one.printed("> ")
        keys("try\n")
        await one.printed("Half of", "terzetto: ", "(TRANSPORT)", "> ")
        keys("again\n")
        await one.printed("All of it.", "> ")
        keys("\x04")
    assert one.process.returncode == 0


# Refusals.


@pytest.mark.parametrize("status", [401, 404, 429])
async def test_refusal_is_one_line_without_the_key(status: int, tmp_path: Path) -> None:
    async with (
        serve_openai([refuse(status, f"not with {SECRET}, no"), "Fine."]) as server,
        running(
            chat(server, "--api-key-env", "MY_KEY", "--log", "log"),
            cwd=tmp_path,
            env=environment(MY_KEY=SECRET),
        ) as one,
    ):
        await one.type("hello\n")
        await one.printed(f"HTTP {status}", name="err")
        await one.type("hello\n")
        await one.end_input()
    assert (one.process.returncode, one.out) == (1, "Fine.\n")
    assert server.requests[0].headers["authorization"] == BLANK
    line = one_error(one.err)
    if status == 401:
        assert line.endswith("(AUTH); check the key in MY_KEY")
    [path] = (tmp_path / "log").glob("*.jsonl")
    assert SECRET not in one.out + one.err + path.read_text("utf-8")


async def test_key_that_is_wanted_and_not_given_is_asked_for(tmp_path: Path) -> None:
    async with (
        serve_openai([refuse(401, "no key")]) as server,
        running(chat(server), cwd=tmp_path) as one,
    ):
        await one.type("hello\n")
        await one.end_input()
    assert one_error(one.err).endswith("name its variable with --api-key-env")
