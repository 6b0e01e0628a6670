"""Tools that are right: waiting, cleaning up, files, threads."""

import contextlib
import contextvars
import json
import tempfile
from pathlib import Path

import trio
import trio.lowlevel

from terzetto import Read, ToolRun, Write
from tests.corpus.cases import correct, world


@correct()
async def answers_at_once() -> str:
    """Answer."""
    return "42"


@correct({"seconds": 3600})
async def sleeps(seconds: float) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return "awake"


@correct()
async def makes_a_checkpoint() -> str:
    """Give way once."""
    await trio.lowlevel.checkpoint()
    return "here"


@correct()
async def bounds_its_wait() -> str:
    """Wait for a reply that does not come."""
    with trio.move_on_after(5) as scope:
        await trio.sleep_forever()
    return "no reply" if scope.cancelled_caught else "reply"


@correct()
async def catches_its_own_timeout() -> str:
    """Wait for a reply that does not come."""
    try:
        with trio.fail_after(5):
            await trio.sleep_forever()
    except trio.TooSlowError:
        return "too slow"
    return "reply"


@correct()
async def retries_on_errors() -> str:
    """Try three times."""
    for attempt in range(3):
        try:
            await trio.sleep(1)
            if attempt < 2:
                raise OSError("busy")
            return f"worked at attempt {attempt + 1}"
        except OSError:
            await trio.sleep(2**attempt)
    return "gave up"


@correct()
async def raises_cancelled_on() -> str:
    """Count how often it was stopped."""
    try:
        await trio.sleep(1)
    except trio.Cancelled:
        world.values["stopped"] = True
        raise
    return "done"


@correct()
async def cleans_up_and_raises_on() -> str:
    """Open a door and close it."""
    world.values["door"] = "open"
    try:
        await trio.sleep(1)
    except BaseException:
        world.values["door"] = "closed"
        raise
    world.values["door"] = "closed"
    return "done"


@correct()
async def says_goodbye_in_time() -> str:
    """Talk to a device."""
    try:
        await trio.sleep(1)
    finally:
        with trio.move_on_after(0.5, shield=True):
            await trio.sleep(0.2)
    return "done"


@correct()
async def bounds_a_goodbye_that_never_comes() -> str:
    """Talk to a device that says nothing."""
    try:
        await trio.sleep(1)
    finally:
        with trio.move_on_after(0.5, shield=True):
            await trio.Event().wait()
    return "done"


@correct()
async def shields_inside_a_bound() -> str:
    """Commit something."""
    with trio.CancelScope(shield=True), trio.move_on_after(0.5):
        await trio.Event().wait()
    return "done"


@correct()
async def commits_under_a_bounded_shield() -> str:
    """Send a mail, all or nothing."""
    await trio.sleep(0.1)
    with trio.move_on_after(0.5, shield=True):
        await trio.sleep(0.1)
        world.effects.note("sent")
    return "sent"


@correct()
async def tells_after_the_work() -> str:
    """Do something and tell."""
    await trio.sleep(1)
    world.effects.note("told")
    return "told"


@correct()
async def undoes_its_work() -> str:
    """Reserve a seat for a moment."""
    try:
        await trio.sleep(1)
    finally:
        world.effects.undo("seat free again")
    return "over"


@correct(around=world.files, probe=world.names)
async def removes_its_draft() -> str:
    """Save a page."""
    draft = trio.Path(world.folder / "page.draft")
    try:
        await draft.write_text("page")
        await draft.rename(world.folder / "page.txt")
    except BaseException:
        with trio.move_on_after(1, shield=True):
            await draft.unlink(missing_ok=True)
        raise
    return "saved"


@correct(probe=lambda: dict(world.values))
async def moves_money_in_one_breath() -> str:
    """Move money from a to b."""
    await trio.sleep(0.1)
    world.values["a"] -= 5
    world.values["b"] += 5
    return "moved"


@correct(probe=lambda: dict(world.values))
async def rolls_back() -> str:
    """Move money from a to b, slowly."""
    world.values["a"] -= 5
    try:
        await trio.sleep(0.1)
    except BaseException:
        world.values["a"] += 5
        raise
    world.values["b"] += 5
    return "moved"


@correct(around=world.files, probe=world.names)
async def appends_a_line_at_once() -> str:
    """Append a line."""
    with open(world.folder / "a.txt", "a") as file:  # noqa: ASYNC230
        file.write("gamma\n")
    return "appended"


@correct({"path": "a.txt"}, around=world.files, declares={"parallel": True, "read_only": True})
async def reads_a_file(path: str) -> str:
    """Read a file."""
    return await trio.Path(world.folder / path).read_text()


@correct({"path": "a.txt"}, around=world.files, declares={"parallel": True, "read_only": True})
async def reads_line_by_line(path: str) -> list[str]:
    """Read a file, line by line."""
    async with await trio.open_file(world.folder / path) as file:
        return [line.strip() async for line in file]


@correct({"path": "a.txt"}, around=world.files, declares={"read_only": True})
def reads_in_a_thread(path: str) -> str:
    """Read a file with plain functions."""
    return (world.folder / path).read_text()


@correct({"path": "b.txt"}, around=world.files, probe=world.names)
def writes_in_a_thread(path: str) -> str:
    """Write a file with plain functions."""
    (world.folder / path).write_text("b")
    return "written"


@correct(around=world.files)
async def lists_a_folder() -> list[str]:
    """List a folder."""
    return sorted(path.name for path in await trio.Path(world.folder).iterdir())


@correct()
async def uses_a_temporary_file() -> str:
    """Sort lines on disk."""
    with tempfile.TemporaryDirectory() as folder:
        path = trio.Path(folder) / "lines"
        await path.write_text("b\na")
        lines = (await path.read_text()).splitlines()
    return " ".join(sorted(lines))


@correct(around=world.files, probe=world.names)
async def replaces_a_file_atomically() -> str:
    """Write a page anew."""

    def write() -> None:
        draft = world.folder / "draft"
        draft.write_text("new")
        draft.replace(world.folder / "a.txt")

    await trio.to_thread.run_sync(write)
    return "written"


@correct()
def computes_in_a_thread() -> int:
    """Compute."""
    return sum(range(1000))


@correct()
async def sends_work_to_a_thread() -> int:
    """Compute."""
    return await trio.to_thread.run_sync(sum, range(1000))


@correct()
async def comes_back_from_a_thread() -> str:
    """Ask Trio from a thread."""

    def work() -> str:
        trio.from_thread.run(trio.sleep, 0)
        return trio.from_thread.run_sync(lambda: "from Trio")

    return await trio.to_thread.run_sync(work)


@correct()
async def asks_a_thread_to_stop() -> str:
    """Compute in pieces."""

    def work() -> int:
        for _ in range(3):
            trio.from_thread.check_cancelled()
        return 3

    return str(await trio.to_thread.run_sync(work))


@correct()
async def bounds_its_threads() -> str:
    """Compute, one at a time."""
    limiter = trio.CapacityLimiter(1)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(lambda: trio.to_thread.run_sync(lambda: None, limiter=limiter))
    return "computed"


@correct()
async def resets_the_user() -> str:
    """Act as somebody."""
    token = _user.set("somebody")
    try:
        await trio.sleep(1)
        return _user.get()
    finally:
        _user.reset(token)


_user = contextvars.ContextVar("user", default="nobody")


@correct()
async def sets_a_variable_in_a_child() -> str:
    """Act as somebody, elsewhere."""

    async def child() -> None:
        _user.set("somebody")
        await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
    return _user.get()


@correct({"words": ["b", "a"]})
async def sorts_a_copy(words: list[str]) -> str:
    """Sort words."""
    return " ".join(sorted(words))


@correct({"options": {"depth": 2}})
async def merges_defaults(options: dict[str, int]) -> int:
    """Count."""
    merged = {"width": 3} | options
    return merged["depth"] * merged["width"]


@correct(may_fail=True)
async def raises_an_error_for_the_model() -> str:
    """Look for what is not there."""
    await trio.sleep(1)
    raise LookupError("there is no such page; list_pages has them all")


@correct(may_fail=True)
async def cleans_up_after_its_error() -> str:
    """Look for what is not there."""
    try:
        await trio.sleep(1)
        raise LookupError("no such page")
    finally:
        with trio.move_on_after(0.5, shield=True):
            await trio.sleep(0.1)


@correct(declares={"timeout": 5})
async def stays_inside_its_timeout() -> str:
    """Wait for a device."""
    await trio.sleep(4)
    return "ready"


@correct()
async def defers_a_message(run: ToolRun) -> str:
    """Look, and tell the model more later."""
    run.defer_context("there is more")
    await trio.lowlevel.checkpoint()
    return run.name


@correct()
async def returns_a_dictionary() -> dict[str, object]:
    """Describe something."""
    return {"name": "a", "sizes": [1, 2.5], "none": None}


@correct()
async def returns_a_path() -> Path:
    """Tell where something is."""
    return Path("a/b")


@correct()
async def returns_nothing() -> None:
    """Do something without a result."""
    await trio.sleep(1)


@correct()
async def returns_json_text() -> str:
    """Describe something."""
    return json.dumps({"a": 1})


@correct({"path": "a"}, {"path": "b"}, declares={"touches": lambda args: {Write(args["path"])}})
async def writes_what_it_touches(path: str) -> str:
    """Write a file."""
    await trio.sleep(0.1)
    world.effects.wrote(path)
    return "written"


@correct({"path": "a"}, {"path": "b"}, declares={"touches": lambda args: {Read(args["path"])}})
async def reads_what_it_touches(path: str) -> str:
    """Read a file."""
    world.effects.read(path)
    await trio.sleep(0.1)
    return path


@correct({"name": "ann"}, {"name": "bob"}, declares={"parallel": True})
async def keeps_its_own_state(name: str) -> str:
    """Greet somebody."""
    current = name
    await trio.sleep(0.1)
    return f"hello {current}"


@correct(declares={"parallel": True})
async def counts_under_a_lock() -> int:
    """Count."""
    async with world.lock:
        count = world.values["count"]
        await trio.sleep(0.1)
        world.values["count"] = count + 1
        return world.values["count"]


@correct(declares={"parallel": True})
async def counts_in_one_breath() -> int:
    """Count."""
    await trio.sleep(0.1)
    world.values["count"] += 1
    return world.values["count"]


@correct({"dry": True}, {"dry": False}, declares={"parallel": lambda args: args["dry"]})
async def overlaps_when_dry(dry: bool) -> str:
    """Do something, or only try."""
    before = world.values["count"]
    await trio.sleep(0.1)
    if not dry:
        world.values["count"] = before + 1
    return "tried" if dry else "done"


@correct()
async def suppresses_what_it_expects() -> str:
    """Remove a file that may not be there."""
    with contextlib.suppress(FileNotFoundError):
        await trio.Path("surely-not-there").unlink()
    return "removed"
