"""Running ``terzetto`` as a process, and reading what came of it.

Processes are waited for by what they print; nothing here sleeps for a fixed time.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import define, field

import terzetto
from terzetto import cli
from terzetto.llm.loopback import LoopbackServer

SOURCE = Path(terzetto.__file__).parents[1]
SECRET = "sk-do-not-show-0123456789abcdef"
MODEL_VARIABLES = ("DEEPSEEK_API_KEY", "DEEPSEEK_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL")
PATIENCE = 90
"""Seconds that a whole test with processes may take, on a slow machine."""

linux_like = pytest.mark.skipif(sys.platform == "win32", reason="signals and terminals as on POSIX")


def environment(**extra: str) -> dict[str, str]:
    """Ours, without what would change the output, and with *extra*."""
    unwanted = {"no_color", "columns", "lines", "term", "pythonwarnings"}
    proxies = {"http_proxy", "https_proxy", "all_proxy"}
    without = unwanted | proxies | {name.lower() for name in MODEL_VARIABLES}
    kept = {k: v for k, v in os.environ.items() if k.lower() not in without}
    return {**kept, "PYTHONPATH": str(SOURCE), "TERM": "xterm-256color", "PYTHONUTF8": "1", **extra}


async def made(path: Path) -> None:
    """Return once another process has made *path*: nothing else tells of it."""
    while not path.exists():
        await trio.sleep(0.01)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "terzetto", *arguments]


def run(*arguments: str, cwd: Path, stdin: str = "", **extra: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(**extra),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def in_process(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(arguments)
    return code, *capsys.readouterr()


def flat(text: str) -> str:
    """*text* without line breaks and indents."""
    return " ".join(text.split())


@define(eq=False, weakref_slot=True)
class Running:
    """A command that runs; what it printed so far is in *out* and *err*."""

    process: trio.Process
    out: str = field(default="", init=False)
    err: str = field(default="", init=False)
    keyboard: int | None = None
    """Our end of its terminal."""
    window: trio.lowlevel.FdStream | None = field(default=None, init=False)
    _more: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    async def read(self, stream: trio.abc.ReceiveStream, name: str) -> None:
        data = b""
        try:
            async for piece in stream:
                data += piece
                setattr(self, name, data.decode("utf-8", "replace"))
                self._more.unpark_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # a terminal ends like that

    async def printed(self, *words: str, name: str = "out") -> None:
        """Wait until *words* were printed, one after the other."""
        pattern = ".*?".join(map(re.escape, words))
        while not re.search(pattern, getattr(self, name), re.DOTALL):
            await self._more.park()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until *holds* is true of what was printed."""
        while not holds():
            await self._more.park()

    async def type(self, text: str) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(text.encode())

    async def end_input(self) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.aclose()

    async def hang_up(self) -> None:
        """Close the window of its terminal."""
        assert self.window is not None
        await self.window.aclose()

    def echoes(self) -> bool:
        """Whether the terminal is as a shell left it."""
        import termios

        assert self.keyboard is not None
        mode: int = termios.tcgetattr(self.keyboard)[3]
        return bool(mode & termios.ECHO and mode & termios.ICANON)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)


def too_slow(one: Running) -> AssertionError:
    return AssertionError(f"not in {PATIENCE} s: {one.out[-2000:]!r}, {one.err[-2000:]!r}")


@asynccontextmanager
async def running(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[Running]:
    """The command, on pipes; killed if the test fails."""
    process = await trio.lowlevel.open_process(
        command(*arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=env or environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    started = Running(process)
    try:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(started.read, process.stdout, "out")
                nursery.start_soon(started.read, process.stderr, "err")
                yield started
                await process.wait()
    except trio.TooSlowError as error:
        raise too_slow(started) from error
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    await stream.aclose()


def chat(server: LoopbackServer, *arguments: str) -> list[str]:
    return ["chat", "--base-url", server.base_url, "--model", "m", *arguments]


def messages(server: LoopbackServer, number: int) -> list[tuple[object, object]]:
    """Role and content of each message of a request, the system's left out."""
    sent = server.requests[number].body["messages"]
    assert isinstance(sent, list)
    pairs = [(one["role"], one["content"]) for one in sent if isinstance(one, dict)]
    return [pair for pair in pairs if pair[0] != "system"]


def check_quiet(err: str) -> None:
    assert "Traceback" not in err
    assert "Warning" not in err


def one_error(err: str) -> str:
    """The one line that is on stderr."""
    check_quiet(err)
    [line] = err.splitlines()
    assert line.startswith("terzetto: ")
    return line


def named_log(out: str) -> tuple[int, Path]:
    """How many lines the demo says the log has, and where it is."""
    found = re.search(r"^The log, (\d+) lines of JSON:\n  (.*)$", out, re.MULTILINE)
    assert found is not None, out
    return int(found[1]), Path(found[2])


def read_log(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()[1:]]


def of_type(events: list[dict], kind: str, **data: object) -> list[dict]:
    return [
        event
        for event in events
        if event["type"] == kind and all(event["data"].get(k) == x for k, x in data.items())
    ]


@asynccontextmanager
async def in_terminal(
    arguments: Sequence[str], *, cwd: Path, **extra: str
) -> AsyncIterator[tuple[Running, Callable[[str], None]]]:
    """The command with a terminal of its own, and a keyboard for it."""
    import fcntl
    import pty
    import termios

    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (30, 70))
    process = await trio.lowlevel.open_process(
        command(*arguments),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env=environment(**extra),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    one = Running(process, keyboard=ours)
    try:
        async with trio.lowlevel.FdStream(ours) as screen:
            one.window = screen
            with trio.fail_after(PATIENCE):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(one.read, screen, "out")
                    yield one, lambda keys: void(os.write(ours, keys.encode()))
                    await process.wait()
    except trio.TooSlowError as error:
        raise too_slow(one) from error
    finally:
        if process.returncode is None:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


def void(_: object) -> None:
    pass


TOOLS = """
import terzetto

@terzetto.tool(parallel=True)
def shout(text: str) -> str:
    "Say it louder."
    return text.upper()

@terzetto.tool
async def broken() -> str:
    raise RuntimeError("the belt\\x1b[2J slipped")

both = [shout, broken]
not_a_tool = len
"""
"""A module ``good`` for ``--tools``."""
