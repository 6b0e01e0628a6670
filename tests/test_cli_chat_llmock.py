"""``terzetto chat`` against a server that nobody here wrote: llmock, on real sockets.

Streaming, tools, steering, redirecting, faults, and going on after a kill. Its judge has the
last word about the client.
"""

import sys
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from llmock.testing import LLMockServer

from tests.commands import Running, environment, in_terminal, one_error, running
from tests.screen import Screen

if sys.platform == "win32":
    pytest.skip("terminals as on POSIX", allow_module_level=True)

TOOLS = """
import trio, terzetto

@terzetto.tool
async def echo(text: str) -> str:
    "Say it again."
    return text.upper()

@terzetto.tool
async def forever() -> str:
    print("begun", flush=True)
    await trio.sleep_forever()

both = [echo, forever]
"""
CHAT = ["chat", "--model", "gpt-4o", "--log", "log", "--tools", "my_tools:both"]
SCREENS: WeakKeyDictionary[Running, Screen] = WeakKeyDictionary()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_tools.py").write_text(TOOLS)
    return tmp_path


@pytest.fixture
def mock(llmock: Any) -> Any:
    """The server that llmock's own plugin starts, in text mode unless a tool is scripted."""
    assert isinstance(llmock._server, LLMockServer)
    return llmock.tool_mode("off")


def variables(mock: Any) -> dict[str, str]:
    return {"OPENAI_API_KEY": "sk-mock-1234", "OPENAI_BASE_URL": mock.base_url()}


def screen(one: Running) -> list[str]:
    return SCREENS.setdefault(one, Screen()).look(one.out) or [""]


async def answered(one: Running, text: str) -> None:
    """Wait for *text* as a line, and for the prompt below it."""
    await one.until(lambda: screen(one)[-3:] == [text, "", ">"])


def roles(mock: Any, number: int = -1) -> list[tuple[str, Any]]:
    """What the server was sent, as it was journaled."""
    body = mock.requests[number].body
    return [(m["role"], m.get("content")) for m in body["messages"]]


async def test_conversation_with_everything(mock: Any, folder: Path) -> None:
    mock.reply("Hello from the other side.")
    async with in_terminal(CHAT, cwd=folder, **variables(mock)) as (one, keys):
        await one.printed("gpt-4o at http://", "> ")
        keys("hello\r")
        await answered(one, "Hello from the other side.")

        mock.call_tool("echo", {"text": "hö 🎻"}).reply("It said it.")
        keys("use the tool\r")
        await answered(one, "It said it.")
        assert any(line.startswith('* echo {"text": ') for line in screen(one))

        mock.stall(after_chunks=3, seconds=6.0).reply("One two three four five six.")
        mock.reply("Short now.")
        keys("count\r")
        await one.printed("One")
        keys("be short\r")
        await one.printed("(steered: be short)")
        await answered(one, "Short now.")
        assert roles(mock)[-2:] == [
            ("assistant", "One two three four five six."),
            ("user", "be short"),
        ]

        mock.stall(after_chunks=3, seconds=600.0).reply("Seven eight nine ten.")
        mock.reply("As you wish.")
        keys("count on\r")
        await one.printed("Seven")
        keys("!stop counting\r")
        await one.printed("(redirected: stop counting)")
        await answered(one, "As you wish.")
        said, asked = roles(mock)[-2:]
        assert asked == ("user", "stop counting")
        assert said[0] == "assistant"
        assert "Seven eight nine ten.".startswith(said[1].strip())
        keys("\x04")
    assert one.process.returncode == 0
    assert [m for m in roles(mock) if m[0] == "tool"] == [("tool", "HÖ 🎻")]


async def test_killed_while_a_tool_ran_it_goes_on(mock: Any, folder: Path) -> None:
    env = environment(**variables(mock))
    mock.call_tool("forever")
    async with running(CHAT, cwd=folder, env=env) as one:
        await one.type("wait\n")
        await one.printed("begun")
        one.process.kill()
    mock.reply("I was cut.")
    async with in_terminal([*CHAT, "--resume"], cwd=folder, **variables(mock)) as (two, keys):
        await two.printed("> wait", "* forever", "repaired: a tool was running", "> ")
        keys("what happened?\r")
        await two.printed("I", "was", "cut.", "> ")
        keys("\x04")
    assert two.process.returncode == 0
    assert [role for role, _ in roles(mock)] == ["user", "assistant", "tool", "user"]
    mock.assert_resilient()


async def test_killed_while_it_spoke_it_goes_on(mock: Any, folder: Path) -> None:
    """What was shown and not yet on the disk is gone; the prompt and the session are not."""
    env = environment(**variables(mock))
    mock.stall(after_chunks=3, seconds=600.0).reply("One two three four.")
    async with running(CHAT, cwd=folder, env=env) as one:
        await one.type("count\n")
        await one.printed("One")
        one.process.kill()
    mock.reply("Again.")
    async with running([*CHAT, "--resume"], cwd=folder, env=env) as two:
        await two.type("go on\n")
        await two.end_input()
    assert (two.process.returncode, two.out) == (0, "Again.\n")
    assert one_error(two.err) == "terzetto: repaired: the last turn was closed"
    assert roles(mock)[0] == ("user", "count")
    assert roles(mock)[-1] == ("user", "go on")


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (lambda mock: mock.rate_limit(retry_after=7), "(RATE_LIMIT); wait 7 s"),
        (lambda mock: mock.outage(), "(SERVER)"),
        (lambda mock: mock.context_overflow(), "(CONTEXT_OVERFLOW)"),
        (lambda mock: mock.truncate(after_chunks=2), "(TRANSPORT); the answer was cut"),
        (lambda mock: mock.disconnect(after_chunks=2), "(TRANSPORT); the answer was cut"),
        (lambda mock: mock.corrupt(after_chunks=2), "(TRANSPORT)"),
    ],
    ids=["429", "503", "overflow", "truncated", "dropped", "malformed"],
)
async def test_faults_are_one_line(fault: Any, says: str, mock: Any, folder: Path) -> None:
    mock.reply("One two three four five.", times=None)
    fault(mock)
    async with running(CHAT, cwd=folder, env=environment(**variables(mock))) as one:
        await one.type("count\n")
        await one.end_input()
    assert one.process.returncode == 1
    assert says in one_error(one.err)
    # The judge sees no screen: who does not ask again after a truncated stream has accepted it.
    blamed = {finding.code for finding in mock.verdict().errors}
    assert blamed <= {"truncated_stream_accepted"}
    assert "truncated" not in str(blamed) or "the answer was cut" in one.err
