"""``terzetto chat`` in a terminal: typing while it works, and what stands on the screen then."""

import os
import re
import signal
import sys
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
import trio

from terzetto.commands._line_editor import PASTE_ON
from terzetto.llm.loopback import LoopbackServer, serve_openai
from terzetto.llm.scripted import Gate, answer, call, refuse
from tests.commands import (
    Running,
    chat,
    check_quiet,
    in_terminal,
    made,
    messages,
    of_type,
    read_log,
)
from tests.screen import Screen

if sys.platform == "win32":
    pytest.skip("terminals as on POSIX", allow_module_level=True)

TOOLS = """
import pathlib, trio, terzetto

@terzetto.tool
async def forever() -> str:
    "Wait.\\n\\nFor ever."
    await trio.sleep_forever()

@terzetto.tool
def stubborn() -> str:
    "A thread that does not hear of cancellation."
    import time
    pathlib.Path("begun").touch()
    while not pathlib.Path("enough").exists():
        time.sleep(0.01)
    return "done"

both = [forever, stubborn]
"""


SCREENS: WeakKeyDictionary[Running, Screen] = WeakKeyDictionary()


def screen(one: Running) -> list[str]:
    """The lines of the conversation, without the greeting; an empty prompt is ``>``."""
    return SCREENS.setdefault(one, Screen()).look(one.out)[2:] or [""]


def body(server: LoopbackServer) -> list[tuple[object, object]]:
    return messages(server, len(server.requests) - 1)


async def test_line_typed_while_it_works_steers_and_garbles_nothing(tmp_path: Path) -> None:
    """The line stands below the answer, which goes on above it."""
    script = [
        answer("First part, ", Gate("a"), "middle words ", Gate("b"), "the end."),
        "As you wish.",
    ]
    async with (
        serve_openai(script) as server,
        in_terminal(chat(server), cwd=tmp_path) as (one, keys),
    ):
        await one.printed("> ")
        keys("count\r")
        await one.until(lambda: screen(one)[-1] == "First part,")
        keys("be slwo\x7f\x7fow, bri")
        await one.until(lambda: screen(one)[-1] == "> be slow, bri")
        assert screen(one)[-2:] == ["First part,", "> be slow, bri"]
        server.gates.open("a")
        await one.until(lambda: "First part, middle words" in screen(one))
        await one.until(lambda: screen(one)[-1] == "> be slow, bri")
        assert SCREENS[one].column == len("> be slow, bri")
        keys("ef\r")
        await one.until(lambda: screen(one)[-1] == "(steered: be slow, brief)")
        server.gates.open("b")
        await one.until(lambda: screen(one)[-1] == ">")
        assert screen(one) == [
            "",
            "> count",
            "First part, middle words",
            "(steered: be slow, brief)",
            "the end.",
            "As you wish.",
            "",
            ">",
        ]
        keys("\x04")
    assert one.process.returncode == 0
    assert body(server) == [
        ("user", "count"),
        ("assistant", "First part, middle words the end."),
        ("user", "be slow, brief"),
    ]


async def test_long_answer_scrolls_above_a_line_that_is_wider_than_the_screen(
    tmp_path: Path,
) -> None:
    words = [f"word{n}" for n in range(400)]
    typed = "".join(f"{n:03} " for n in range(40))
    script = [answer("Go. ", Gate("a"), " ".join(words), Gate("b"), " End.")]
    async with (
        serve_openai(script) as server,
        in_terminal(chat(server), cwd=tmp_path) as (one, keys),
    ):
        await one.printed("> ")
        keys("go\r")
        await one.until(lambda: screen(one)[-1] == "Go.")
        keys(typed)
        await one.until(lambda: screen(one)[-1].endswith("039"))
        server.gates.open("a")
        await one.until(lambda: words[-2] in screen(one)[-2])
        await one.until(lambda: screen(one)[-1].endswith("039"))
        shown = screen(one)
        assert len(shown[-1]) < 70
        assert " ".join(shown[2:-1]).split() == ["Go.", *words[:-1]]
        keys("\x15")  # rubbed out: nothing stands below any more
        await one.until(lambda: words[-2] in screen(one)[-1])
        server.gates.open("b")
        await one.until(lambda: screen(one)[-1] == ">")
        assert " ".join(screen(one)[2:-2]).split() == ["Go.", *words, "End."]
        keys("\x04")
    assert len(server.requests) == 1


async def test_exclamation_mark_cuts_the_answer_and_goes_on_with_the_line(tmp_path: Path) -> None:
    script = [answer("One, two, ", Gate("never"), "three."), "Done."]
    async with (
        serve_openai(script) as server,
        in_terminal(chat(server, "--log", "log"), cwd=tmp_path) as (one, keys),
    ):
        await one.printed("> ")
        keys("count\r")
        await one.printed("One,", "two,")
        keys("!count down\r")
        await one.printed("(redirected: count down)", "Done.", "> ")
        keys("!\r")
        await one.printed("(! wants what to do instead")
        keys("\x04")
    assert one.process.returncode == 0
    assert body(server) == [
        ("user", "count"),
        ("assistant", "One, two, "),
        ("user", "count down"),
    ]
    [path] = (tmp_path / "log").glob("*.jsonl")
    events = read_log(path)
    assert len(of_type(events, "turn/start")) == len(of_type(events, "turn/end")) == 1


async def test_exclamation_mark_stops_tools(tmp_path: Path) -> None:
    (tmp_path / "my_tools.py").write_text(TOOLS)
    async with (
        serve_openai([call("forever"), "Fine."]) as server,
        in_terminal(chat(server, "--tools", "my_tools:forever"), cwd=tmp_path) as (one, keys),
    ):
        await one.printed("> ")
        keys("wait\r")
        await one.printed("* forever")
        keys("!never mind\r")
        await one.printed("(redirected: never mind)", "* forever failed", "Fine.", "> ")
        keys("\x04")
    assert [role for role, _ in body(server)] == ["user", "assistant", "tool", "user"]


async def test_queued_lines_are_turns_of_their_own_and_shown_when_they_begin(
    tmp_path: Path,
) -> None:
    script = [answer("First.", Gate("a")), "Second.", "Third."]
    async with (
        serve_openai(script) as server,
        in_terminal(chat(server, "--log", "log"), cwd=tmp_path) as (one, keys),
    ):
        await one.printed("> ")
        keys("one\r")
        await server.gates.wait_reached("a")
        keys("/queue two\r/queue three\r/queue\r")
        await one.printed("(queued: two)", "(waiting: two)", "(waiting: three)")
        server.gates.open("a")
        await one.printed("Third.", "> ")
        keys("\x04")
    shown = "\n".join(screen(one))
    assert re.search(r"^First\.\n.*^> two\nSecond\.\n> three\nThird\.", shown, re.S | re.M)
    [path] = (tmp_path / "log").glob("*.jsonl")
    assert len(of_type(read_log(path), "turn/end")) == 3


async def test_ctrl_c_drops_what_was_queued_and_says_so(tmp_path: Path) -> None:
    async with (
        serve_openai([answer("Well, ", Gate("never"), "x"), "Back."]) as server,
        in_terminal(chat(server), cwd=tmp_path) as (one, keys),
    ):
        await one.printed("> ")
        keys("one\r")
        await one.printed("Well,")
        keys("/queue two\rhalf a line")
        await one.printed("(queued: two)", "half a line")
        keys("\x03")
        await one.printed("(interrupted; 5 characters of the answer are kept; 1 message not sent)")
        await one.until(lambda: screen(one)[-1] == ">")  # the half line is gone, too
        keys("again\r")
        await one.printed("Back.", "> ")
        keys("\x04")
    assert one.process.returncode == 0
    assert body(server)[-1] == ("user", "again")


async def test_commands_do_what_help_says(tmp_path: Path) -> None:
    (tmp_path / "my_tools.py").write_text(TOOLS)
    script = ["Hello.", answer("Well, ", Gate("never"), "x"), "From another."]
    async with (
        serve_openai(script) as server,
        in_terminal(chat(server, "--tools", "my_tools:both"), cwd=tmp_path) as (one, keys),
    ):
        await one.printed("> ")
        keys("/help\r")
        for name in ("queue", "cancel", "model", "tools", "history", "quit", "help"):
            await one.printed(f"/{name}")
        keys("/history\r")
        await one.printed("(nothing was said yet)")
        keys("/queue\r")
        await one.printed("(nothing is waiting; /queue TEXT adds")
        keys("/cancel\r")
        await one.printed("(nothing runs; 0 messages dropped)")
        keys("/model\r")
        await one.printed("(model m of openai)")
        keys("/tools\r")
        await one.printed("(forever: Wait.)", "(stubborn: A thread that does")
        keys("/etc/hosts\r")
        await one.printed("(no command /etc/hosts; /help lists them, a leading blank sends")
        keys(" /etc/hosts\r")
        await one.printed("Hello.")
        keys("/model other high\r")
        await one.printed("(model other of openai, effort high)")
        keys("go\r")
        await one.printed("Well,")
        keys("/cancel\r")
        await one.printed("(interrupted; 5 characters of the answer are kept)")
        keys("and?\r")
        await one.printed("From another.")
        keys("/history\r")
        await one.until(lambda: screen(one).count("From another.") == 2)
        shown = "\n".join(screen(one))
        assert "> /etc/hosts\nHello.\n> go\nWell,\n> and?\nFrom another.\n" in shown
        keys("/quit\r")
    assert one.process.returncode == 0
    assert messages(server, 0) == [("user", "/etc/hosts")]
    assert server.requests[0].body["model"] == "m"
    assert server.requests[2].body["model"] == "other"
    assert server.requests[2].body["reasoning_effort"] == "high"


async def test_ctrl_d_leaves_when_the_answer_has_ended(tmp_path: Path) -> None:
    async with (
        serve_openai([answer("Wait ", Gate("a"), "for it.")]) as server,
        in_terminal(chat(server), cwd=tmp_path) as (one, keys),
    ):
        await one.printed("> ")
        keys("go\r")
        await one.printed("Wait")
        keys("\x04")
        await one.printed("(leaving when this has ended; Ctrl-C interrupts it)")
        server.gates.open("a")
    assert one.process.returncode == 0
    assert "for it." in screen(one)


async def test_pasted_lines_are_one_prompt(tmp_path: Path) -> None:
    async with (
        serve_openai("Read.") as server,
        in_terminal(chat(server), cwd=tmp_path) as (one, keys),
    ):
        await one.printed("> ")
        keys("\x1b[200~def f():\r\treturn 1\x1b[201~")
        await one.until(lambda: screen(one)[-1] == "> def f():\u21b5 return 1")
        keys("\r")
        await one.printed("Read.", "> ")
        keys("\x04")
    assert messages(server, 0) == [("user", "def f():\n\treturn 1")]


@pytest.mark.parametrize("ending", ["ctrl-d", "ctrl-c", "killed by ctrl-c"])
async def test_terminal_is_given_back_as_it_was(ending: str, tmp_path: Path) -> None:
    (tmp_path / "my_tools.py").write_text(TOOLS)
    async with (
        serve_openai([call("stubborn"), "x"]) as server,
        in_terminal(chat(server, "--tools", "my_tools:both"), cwd=tmp_path) as (one, keys),
    ):
        assert one.echoes()
        await one.printed(PASTE_ON, "> ")
        assert not one.echoes()
        if ending == "ctrl-d":
            keys("\x04")
        elif ending == "ctrl-c":
            keys("\x03")
        else:
            keys("go\r")
            await one.printed("* stubborn")
            await made(tmp_path / "begun")  # shown, its body may not have begun
            for note in ("Ctrl-C again leaves", "Ctrl-C again kills"):
                keys("\x03")
                await one.printed(note)
            keys("\x03")
        await one.process.wait()
        assert one.echoes()
        (tmp_path / "enough").touch()
    expected = {"ctrl-d": 0, "ctrl-c": 130, "killed by ctrl-c": -signal.SIGINT}
    assert one.process.returncode == expected[ending]


async def test_keys_work_again_after_the_job_was_stopped(tmp_path: Path) -> None:
    """As after Ctrl-Z, a shell that sets its own mode, and ``fg``."""
    import termios

    async with (
        serve_openai("Hello.") as server,
        in_terminal(chat(server), cwd=tmp_path) as (one, keys),
    ):
        await one.printed(PASTE_ON, "> ")
        keys("hal")
        await one.until(lambda: screen(one)[-1] == "> hal")
        one.process.send_signal(signal.SIGSTOP)
        stopped = partial(os.waitid, os.P_PID, one.process.pid, os.WSTOPPED | os.WNOWAIT)
        await trio.to_thread.run_sync(stopped)
        assert one.keyboard is not None
        mode = termios.tcgetattr(one.keyboard)
        mode[3] |= termios.ECHO | termios.ICANON
        termios.tcsetattr(one.keyboard, termios.TCSANOW, mode)
        one.process.send_signal(signal.SIGCONT)
        await one.until(lambda: one.out.count(PASTE_ON) == 2)
        assert not one.echoes()
        await one.until(lambda: screen(one)[-1] == "> hal")
        keys("lo\r")
        await one.printed("Hello.", "> ")
        keys("\x04")
    assert messages(server, 0) == [("user", "hallo")]


async def test_terminal_without_a_cursor_is_read_by_lines_and_steered_too(tmp_path: Path) -> None:
    async with (
        serve_openai([answer("First.", Gate("a")), "Second."]) as server,
        in_terminal(chat(server), cwd=tmp_path, TERM="dumb") as (one, keys),
    ):
        await one.printed("> ")
        assert one.echoes()
        keys("one\n")
        await server.gates.wait_reached("a")
        keys("more\n")
        await one.printed("(steered: more)")
        server.gates.open("a")
        await one.printed("Second.", "> ")
        keys("\x04")
    assert one.process.returncode == 0
    assert "\x1b" not in one.out
    assert body(server)[-1] == ("user", "more")


async def test_failure_while_a_line_is_typed_stands_above_it(tmp_path: Path) -> None:
    """Failures go to stderr, which is the same terminal."""
    script = [answer("Half of ", Gate("a"), refuse(500)), "All of it."]
    async with (
        serve_openai(script) as server,
        in_terminal(chat(server), cwd=tmp_path) as (one, keys),
    ):
        await one.printed("> ")
        keys("try\r")
        await one.until(lambda: screen(one)[-1] == "Half of")
        keys("again")
        await one.until(lambda: screen(one)[-1] == "> again")
        server.gates.open("a")
        await one.printed("(TRANSPORT)")
        await one.until(lambda: screen(one)[-1] == "> again")
        assert screen(one)[1:4][1] == "Half of"
        assert screen(one)[3].startswith("terzetto: ")
        keys("\r")
        await one.printed("All", "of", "it.", "> ")
        keys("\x04")
    assert one.process.returncode == 0
    check_quiet(one.out)
