"""``terzetto chat --resume``: where the conversation stands, after an exit and after a kill."""

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from terzetto.llm.loopback import LoopbackServer, serve_openai
from terzetto.llm.scripted import Gate, answer, call, say, think
from tests.commands import (
    Running,
    chat,
    check_quiet,
    command,
    environment,
    in_process,
    in_terminal,
    linux_like,
    messages,
    of_type,
    one_error,
    read_log,
    running,
)
from tests.llm.strict import judge

TOOLS = """
import sys, trio, terzetto

@terzetto.tool
async def forever(what: str = "") -> str:
    print("begun", file=sys.stderr, flush=True)
    await trio.sleep_forever()

@terzetto.tool
async def echo(text: str) -> str:
    return text
"""
FOREVER = ("--tools", "my_tools:forever")
ECHO = ("--tools", "my_tools:echo")


async def talk(arguments: list[str], folder: Path, *lines: str, **extra: str) -> Running:
    """The command, given *lines* through a pipe."""
    async with running(arguments, cwd=folder, env=environment(**extra)) as one:
        await one.type("".join(f"{line}\n" for line in lines))
        await one.end_input()
    return one


def only_log(folder: Path) -> Path:
    [path] = folder.glob("*.jsonl")
    return path


def last(server: LoopbackServer) -> list[tuple[object, object]]:
    return messages(server, len(server.requests) - 1)


async def test_conversation_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """By name, and the newest one; system prompt, model and server come from the log."""
    async with serve_openai(["Noted.", "Seven.", "Twice seven."]) as server:
        options = ["--log", "log", "--system", "Be brief."]
        one = await talk(chat(server, *options), tmp_path, "my number is seven")
        name = only_log(tmp_path / "log").stem
        resume = ["chat", "--log", "log", "--resume"]
        two = await talk([*resume, name], tmp_path, "which number?")
        three = await talk(resume, tmp_path, "double it")
    assert (one.out, two.out, three.out) == ("Noted.\n", "Seven.\n", "Twice seven.\n")
    assert (one.err, two.err, three.err) == ("", "", "")
    assert last(server) == [
        ("user", "my number is seven"),
        ("assistant", "Noted."),
        ("user", "which number?"),
        ("assistant", "Seven."),
        ("user", "double it"),
    ]
    for request in server.requests:
        sent = request.body["messages"]
        assert isinstance(sent, list)
        assert sent[0] == {"role": "system", "content": "Be brief."}
        assert request.body["model"] == "m"


async def test_what_is_asked_for_anew_wins_over_the_log(tmp_path: Path) -> None:
    async with serve_openai(["One.", "Two.", "Three."]) as server:
        log = ["--log", "log"]
        await talk(chat(server, *log, "--system", "Be brief."), tmp_path, "a")
        options = ["--model", "n", "--effort", "low", "--system", "Be long."]
        await talk(["chat", *log, "--resume", *options], tmp_path, "b")
        await talk(["chat", *log, "--resume"], tmp_path, "c")
    bodies = [request.body for request in server.requests]
    assert [body["model"] for body in bodies] == ["m", "n", "n"]
    assert [body.get("reasoning_effort") for body in bodies] == [None, "low", "low"]
    prompts = [str(body["messages"][0]) for body in bodies]  # type: ignore[index,call-overload]
    assert ["Be long." in prompt for prompt in prompts] == [False, True, True]


async def test_tail_of_the_conversation_is_shown_and_the_rest_on_request(tmp_path: Path) -> None:
    (tmp_path / "my_tools.py").write_text(TOOLS)
    rounds = [f"Answer {n}." for n in range(6)]
    script = [*rounds, answer(say("Look."), call("echo", text="x")), "Seen."]
    async with serve_openai(script) as server:
        arguments = chat(server, "--log", "log", *ECHO)
        await talk(arguments, tmp_path, *(f"question {n}" for n in range(7)))
        resume = ["chat", "--log", "log", "--resume", *ECHO]
        async with in_terminal(resume, cwd=tmp_path) as (one, keys):
            await one.printed("earlier messages; /history shows all)", "> question 5", "Answer 5.")
            await one.printed("> question 6", "Look.", '* echo {"text": "x"}', "Seen.", "> ")
            assert "question 1" not in one.out
            keys("/history\r")
            await one.printed("> question 0", "Answer 0.", "> question 6", "Seen.", "> ")
            keys("\x04")
        assert one.process.returncode == 0
    name = only_log(tmp_path / "log").stem
    assert f"Go on with: terzetto chat --log log --resume {name}" in one.out


# After a kill.


@linux_like
@pytest.mark.parametrize("person", [False, True], ids=["pipe", "terminal"])
async def test_killed_while_a_tool_ran(person: bool, tmp_path: Path) -> None:
    """BC-32 too: DeepSeek's judge sees the history of the killed session."""
    (tmp_path / "my_tools.py").write_text(TOOLS)
    script = [answer(think("I should wait."), call("forever", what="x")), "I was cut."]
    with_calls = partial(judge, reasoning="with-calls")
    async with serve_openai(script, judge=with_calls) as server:
        env = environment(DEEPSEEK_API_KEY="sk-x-1234", DEEPSEEK_BASE_URL=server.base_url)
        arguments = ["chat", "--log", "log", *FOREVER]
        async with running(arguments, cwd=tmp_path, env=env) as one:
            await one.type("wait\n")
            await one.printed("begun", name="err")
            one.process.kill()
        assert one.process.returncode == -signal.SIGKILL
        assert not of_type(read_log(only_log(tmp_path / "log")), "turn/end")
        notes = [
            "repaired: a tool was running; whether it did its work is unknown",
            "repaired: the last turn was closed",
        ]
        if person:
            resume = [*arguments, "--resume"]
            extra = {"DEEPSEEK_API_KEY": "sk-x-1234", "DEEPSEEK_BASE_URL": server.base_url}
            async with in_terminal(resume, cwd=tmp_path, **extra) as (two, keys):
                await two.printed("> wait", "* forever", *notes, "> ")
                keys("what happened?\r")
                await two.printed("I was cut.", "> ")
                keys("\x04")
        else:
            async with running([*arguments, "--resume"], cwd=tmp_path, env=env) as two:
                await two.type("what happened?\n")
                await two.end_input()
            assert two.out == "I was cut.\n"
            assert two.err.splitlines() == [f"terzetto: {note}" for note in notes]
        assert two.process.returncode == 0
    assert [role for role, _ in last(server)] == ["user", "assistant", "tool", "user"]
    assert b'"reasoning_content":"I should wait."' in server.requests[-1].raw
    assert [request.violations for request in server.requests] == [(), ()]


@linux_like
async def test_killed_in_the_middle_of_a_line_of_the_log(tmp_path: Path) -> None:
    """The torn end and what it takes to close the turn are told; then it goes on."""
    async with serve_openai(["One.", "Two."]) as server:
        await talk(chat(server, "--log", "log"), tmp_path, "a")
        path = only_log(tmp_path / "log")
        lines = path.read_bytes().splitlines(keepends=True)
        ends = [n for n, line in enumerate(lines) if json.loads(line).get("type") == "turn/end"]
        path.write_bytes(b"".join(lines[: ends[0]]) + lines[ends[0]][:20])
        one = await talk(["chat", "--log", "log", "--resume"], tmp_path, "b")
    assert (one.process.returncode, one.out) == (0, "Two.\n")
    first, second = one.err.splitlines()
    assert first.startswith("terzetto: repaired: cut 20 bytes of an unfinished record, line ")
    assert second == "terzetto: repaired: the last turn was closed"
    assert last(server) == [("user", "a"), ("assistant", "One."), ("user", "b")]


@linux_like
async def test_session_that_another_process_has_open_is_named_with_its_owner(
    tmp_path: Path,
) -> None:
    async with (
        serve_openai([answer("Well, ", Gate("never"), "x")]) as server,
        running(chat(server, "--log", "log"), cwd=tmp_path) as one,
    ):
        await one.type("a\n")
        await one.printed("Well,")
        two = await talk(["chat", "--log", "log", "--resume"], tmp_path, "b")
        one.process.kill()
    assert two.process.returncode == 1
    line = one_error(two.err)
    assert line.startswith("terzetto: --resume: session 'chat-")
    assert f"is open for writing in process {one.process.pid}; close it there" in line


def test_wrong_session_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", None)

    def refused(*arguments: str) -> tuple[int, str]:
        code, out, err = in_process(capsys, "chat", *arguments)
        assert out == ""
        return code, one_error(err)

    server = ("--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    code, line = refused("--resume", "x", *server)
    assert (code, line) == (
        2,
        "terzetto: --resume: name the folder that keeps the conversation with --log",
    )
    code, line = refused("--resume", "--log", "log", *server)
    assert (code, line) == (2, "terzetto: --resume: no conversation is kept in log")
    code, line = refused("--resume", "x", "--log", "log", *server)
    assert code == 2
    assert line.endswith("--resume: there is no session 'x' in log; it keeps none")
    code, line = refused("--resume", "a/b", "--log", "log", *server)
    assert code == 2
    assert "--resume: session id 'a/b': expected no '/'" in line
    assert in_process(capsys, "chat", "--log", "log", *server)[0] == 0
    [path] = (tmp_path / "log").glob("*.jsonl")
    code, line = refused("--resume", "x", "--log", "log", *server)
    assert line.endswith(f"--resume: there is no session 'x' in log; it keeps {path.stem}")
    path.write_bytes(path.read_bytes() + b"what?\n{}\n")
    code, line = refused("--resume", path.stem, "--log", "log", *server)
    assert code == 1
    assert "--resume: line 2, byte " in line


# Ctrl-C, and what is on disk then.


@linux_like
@pytest.mark.parametrize("what", ["a stream", "a tool"])
@pytest.mark.parametrize("person", [False, True], ids=["pipe", "terminal"])
async def test_ctrl_c_leaves_a_log_that_resumes_cleanly(
    what: str, person: bool, tmp_path: Path
) -> None:
    """BC-56 (a) and (b): the prefix and the end of the turn are on disk, nothing is repaired."""
    (tmp_path / "my_tools.py").write_text(TOOLS)
    first = (
        answer("One, two, ", Gate("never"), "three.")
        if what == "a stream"
        else answer(say("One, two, "), call("forever"))
    )
    shown = ("One,", "two,") if what == "a stream" else ("begun",)
    async with serve_openai([first, "Three."], judge=judge) as server:
        arguments = chat(server, "--log", "log", *FOREVER)
        if person:
            async with in_terminal(arguments, cwd=tmp_path) as (one, keys):
                await one.printed("> ")
                keys("count\r")
                await one.printed(*shown)
                keys("\x03")
                await one.printed("(interrupted", "> ")
                keys("\x03")
        else:
            async with running(arguments, cwd=tmp_path) as one:
                await one.type("count\n")
                await one.printed(*shown, name="out" if what == "a stream" else "err")
                one.interrupt()
                await one.printed("(interrupted")
                one.interrupt()
            assert one.err == ("" if what == "a stream" else "begun\n")
        assert one.process.returncode == 130
        events = read_log(only_log(tmp_path / "log"))
        [end] = of_type(events, "turn/end")
        assert "aborted" in json.dumps(end)
        assert len(of_type(events, "assistant/message")) == 1
        assert len(of_type(events, "tool/result")) == (what == "a tool")
        two = await talk(["chat", "--log", "log", "--resume", *FOREVER], tmp_path, "go on")
    assert (two.process.returncode, two.out, two.err) == (0, "Three.\n", "")
    assert ("assistant", "One, two, ") in last(server)
    assert last(server)[-1] == ("user", "go on")


@linux_like
async def test_two_quick_ctrl_c_end_a_stream_at_once(tmp_path: Path) -> None:
    """BC-56: the second one does not wait for the first; the log is closed all the same."""
    async with (
        serve_openai([answer("One, two, ", Gate("never"), "three.")]) as server,
        running(chat(server, "--log", "log"), cwd=tmp_path) as one,
    ):
        await one.type("count\n")
        await one.printed("One, two,")
        one.interrupt()
        one.interrupt()
        await one.end_input()  # the kernel may deliver two signals as one
    assert one.process.returncode in (0, 130)
    check_quiet(one.err)
    events = read_log(only_log(tmp_path / "log"))
    assert len(of_type(events, "turn/end")) == 1
    [kept] = of_type(events, "assistant/message", interrupted=True)
    assert kept["data"]["message"]["content"] == [{"type": "text", "text": "One, two, "}]


@linux_like
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
@pytest.mark.parametrize("where", ["pipe", "terminal"])
async def test_other_requests_to_end_close_the_log_too(
    number: signal.Signals, where: str, tmp_path: Path
) -> None:
    script = [answer("One, two, ", Gate("never"), "three."), "Three."]
    async with serve_openai(script) as server:
        arguments = chat(server, "--log", "log")
        if where == "pipe":
            async with running(arguments, cwd=tmp_path) as one:
                await one.type("count\n")
                await one.printed("One, two,")
                one.process.send_signal(number)
            assert one.err == ""
        else:
            async with in_terminal(arguments, cwd=tmp_path) as (one, keys):
                await one.printed("> ")
                keys("count\r")
                await one.printed("One,", "two,")
                one.process.send_signal(number)
                await one.process.wait()
                assert one.echoes()
            check_quiet(one.out)
        assert one.process.returncode == 128 + number
        [end] = of_type(read_log(only_log(tmp_path / "log")), "turn/end")
        assert "disposed" in json.dumps(end)
        two = await talk(["chat", "--log", "log", "--resume"], tmp_path, "go on")
    assert (two.out, two.err) == ("Three.\n", "")
    assert ("assistant", "One, two, ") in last(server)


@linux_like
async def test_what_was_queued_when_it_was_told_to_end_is_read_first(tmp_path: Path) -> None:
    script = [answer("Well, ", Gate("never"), "x"), "To the queued one.", "To the new one."]
    async with serve_openai(script) as server:
        async with in_terminal(chat(server, "--log", "log"), cwd=tmp_path) as (one, keys):
            await one.printed("> ")
            keys("first\r")
            await one.printed("Well,")
            keys("/queue second\r")
            await one.printed("(queued: second)")
            one.process.send_signal(signal.SIGTERM)
        two = await talk(["chat", "--log", "log", "--resume"], tmp_path, "third")
    assert two.out == "To the queued one.\nTo the new one.\n"
    assert one_error(two.err) == "terzetto: 1 message not read yet, sent before the next one"
    assert [text for role, text in last(server) if role == "user"] == ["first", "second", "third"]


@linux_like
async def test_terminal_that_goes_away_is_the_end(tmp_path: Path) -> None:
    """As when its window is closed; ``nohup`` is not asked for here."""
    async with serve_openai([answer("One, two, ", Gate("never"), "three.")]) as server:
        async with in_terminal(chat(server, "--log", "log"), cwd=tmp_path) as (one, keys):
            await one.printed("> ")
            keys("count\r")
            await one.printed("One,", "two,")
            await one.hang_up()
    assert one.process.returncode == 129
    events = read_log(only_log(tmp_path / "log"))
    assert len(of_type(events, "turn/end")) == 1
    assert of_type(events, "assistant/message", interrupted=True)


def test_help_tells_how_to_resume(tmp_path: Path) -> None:
    done = subprocess.run(
        command("chat", "--help"),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--resume" in done.stdout
    assert "DEEPSEEK_API_KEY" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")
