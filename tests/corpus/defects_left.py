"""Tools that leave something behind, hold up the others, or do not work."""

import contextvars
import socket
import threading
import time
import uuid

import trio

from terzetto import raw_tool, tool
from tests.corpus.cases import add, defect, world


@defect("leaves-process", limit=3)
async def starts_and_forgets() -> str:
    """Start a helper."""
    await trio.lowlevel.open_process(["sleep", "600"])
    return "started"


@defect("leaves-process", limit=12)
async def kills_the_shell_only() -> str:
    """Run a script, at most for a moment."""
    with trio.move_on_after(0.01):
        await trio.run_process(["sh", "-c", "sleep 600 & wait"], capture_stdout=False)
    return "ran"


@defect("leaves-thread", limit=4)
async def starts_a_thread() -> str:
    """Watch a folder."""
    threading.Thread(target=world.later.wait, name="watcher", daemon=True).start()
    return "watching"


@defect("leaves-thread", limit=4)
async def gives_up_on_a_thread() -> str:
    """Ask a library that blocks."""
    with trio.move_on_after(0.01):
        await trio.to_thread.run_sync(world.later.wait, abandon_on_cancel=True)
    return "asked"


@defect("leaves-task")
async def starts_a_system_task() -> str:
    """Beat a drum."""

    async def drum():
        await trio.sleep(1000)

    trio.lowlevel.spawn_system_task(drum)
    return "drumming"


@defect("leaves-task", around=world.app)
async def uses_the_applications_nursery() -> str:
    """Beat a drum."""

    async def drum():
        await trio.sleep(1000)

    world.nursery.start_soon(drum)
    return "drumming"


@defect("leaves-file", around=world.files)
async def keeps_its_file() -> str:
    """Read a file."""
    file = open(world.folder / "a.txt")  # noqa: SIM115, ASYNC230
    world.kept.append(file)
    return file.read()


@defect("leaves-file", around=world.files)
async def never_closes_its_file() -> str:
    """Read a file."""
    return open(world.folder / "a.txt").read()  # noqa: ASYNC230


@defect("leaves-file", around=world.files)
async def closes_its_file_when_all_is_well() -> str:
    """Read a file, slowly."""
    file = open(world.folder / "a.txt")  # noqa: SIM115, ASYNC230
    text = file.readline()
    await trio.sleep(1)
    text += file.readline()
    file.close()
    return text


@defect("leaves-socket")
async def never_closes_its_socket() -> str:
    """Look for a free port."""
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    return "found"


@defect("leaves-socket", around=world.web, limit=10)
async def keeps_its_connection() -> str:
    """Greet a server."""
    stream = await trio.open_tcp_stream("127.0.0.1", world.port)
    world.kept.append(stream)
    await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
    return "greeted"


user = contextvars.ContextVar("user", default="nobody")


@defect("leaks-context")
async def sets_the_user() -> str:
    """Act as somebody."""
    user.set("somebody")
    await trio.sleep(1)
    return user.get()


@defect("not-awaited")
async def forgets_an_await() -> str:
    """Wait a little."""
    trio.lowlevel.checkpoint()  # type: ignore[unused-coroutine]
    return "waited"


@defect("blocks", limit=2)
async def sleeps_for_real() -> str:
    """Wait a little."""
    time.sleep(0.15)  # noqa: ASYNC251
    return "waited"


@defect("blocks", limit=2)
async def computes_too_long() -> str:
    """Look for a number."""
    await trio.lowlevel.checkpoint()
    end, steps = time.thread_time() + 0.12, 0
    while time.thread_time() < end:
        steps += 1
    return "found"


@defect("fails", {"name": "b"})
async def looks_up_what_is_not_there(name: str) -> str:
    """Look up a name."""
    return {"a": "alpha"}[name]


@defect("fails", declares={"timeout": 2})
async def needs_longer_than_it_may() -> str:
    """Wait for a slow device."""
    await trio.sleep(5)
    return "ready"


@defect("never-ends")
async def waits_for_nobody() -> str:
    """Wait for a signal."""
    await trio.Event().wait()
    return "heard"


@defect("never-ends")
async def waits_for_itself() -> str:
    """Lock a door twice."""
    send, receive = trio.open_memory_channel[str](0)
    async with send, receive:
        await send.send("anybody?")
    return "sent"


@defect("mutates-arguments", {"words": ["b", "a"]})
async def sorts_in_place(words: list[str]) -> str:
    """Sort words."""
    words.sort()
    return " ".join(words)


@defect("mutates-arguments", {"options": {"depth": 2}})
async def fills_in_defaults(options: dict[str, int]) -> int:
    """Count."""
    options.setdefault("width", 3)
    return options["depth"] * options["width"]


_PATH = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["path"],
}


async def _reads_raw(arguments):
    return arguments["path"].upper()


async def _adds_raw(arguments):
    if not isinstance(arguments, dict) or "path" not in arguments:
        raise ValueError("expected an object with a path")
    if not isinstance(arguments["path"], str):
        raise ValueError("path: expected a text")
    return arguments["path"] * (arguments.get("lines", 1) + 1)


def _raw(name, body):
    return raw_tool(name=name, description="Read.", parameters=_PATH, body=body)


add("trusts_the_model", _raw("read", _reads_raw), "unchecked-arguments", {"path": "a"})
add("trusts_a_number", _raw("add", _adds_raw), "unchecked-arguments", {"path": "a", "lines": 2})


def _with_an_id():
    async def note(text: str) -> str:
        return text

    return tool(note, description=f"Note a text, session {uuid.uuid4()}.")


_made = iter(range(10_000))


def _with_a_turning_enum():
    colours = ["red", "green", "blue"]
    turn = next(_made) % 3
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": colours[turn:] + colours[:turn]}},
    }

    async def paint(arguments):
        return "painted"

    return raw_tool(name="paint", description="Paint.", parameters=schema, body=paint)


add("has_an_id_in_its_description", _with_an_id, "unstable-schema", {"text": "a"})
add("turns_its_enum", _with_a_turning_enum, "unstable-schema", {"colour": "red"})


class Handle:
    """Something without a text."""


@defect("bad-result")
async def returns_a_handle() -> object:
    """Open something."""
    return {"handle": Handle()}


@defect("bad-result")
async def returns_a_generator() -> object:
    """List something."""
    return (number for number in range(3))


@defect("bad-result")
def returns_bytes_of_a_picture() -> object:
    """Take a picture."""
    return b"\x89PNG\xff\xfe"


@defect("large-result")
async def returns_everything() -> str:
    """Read the whole log."""
    return "line\n" * 40_000
