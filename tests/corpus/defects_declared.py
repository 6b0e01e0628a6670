"""Tools that declare what is not so."""

import trio

from terzetto import Read, Write
from tests.corpus.cases import defect, world


@defect("shared-state", declares={"parallel": True})
async def counts_with_a_gap() -> int:
    """Count."""
    count = world.values["count"]
    await trio.lowlevel.checkpoint()
    world.values["count"] = count + 1
    return world.values["count"]


@defect(
    "shared-state",
    {"line": "one"},
    {"line": "two"},
    declares={"parallel": True},
    around=world.files,
    probe=world.names,
    ignore=["half-done"],
)
async def adds_a_line(line: str) -> str:
    """Add a line to a file."""
    path = trio.Path(world.folder / "a.txt")
    text = await path.read_text()
    await path.write_text(text + line + "\n")
    return "added"


@defect("shared-state", {"name": "ann"}, {"name": "bob"}, declares={"parallel": True})
async def remembers_the_current_user(name: str) -> str:
    """Greet somebody."""
    world.values["current"] = name
    await trio.sleep(0.1)
    return f"hello {world.values['current']}"


@defect(
    "shared-state",
    {"one": "a", "other": "b"},
    {"one": "b", "other": "a"},
    declares={"parallel": True},
)
async def locks_in_any_order(one: str, other: str) -> str:
    """Move something."""
    locks = world.values.setdefault("locks", {"a": trio.Lock(), "b": trio.Lock()})
    async with locks[one]:
        await trio.sleep(0.1)
        async with locks[other]:
            return "moved"


@defect("read-only-effect", declares={"read_only": True})
async def looks_and_tells() -> str:
    """Look at something."""
    await trio.sleep(0.1)
    world.effects.note("told the server that it looked")
    return "seen"


@defect("read-only-effect", declares={"read_only": True}, around=world.files, probe=world.names)
async def looks_and_keeps_a_copy() -> str:
    """Look at a file."""
    text = (world.folder / "a.txt").read_text()
    (world.folder / "cache.txt").write_text(text)
    return text


@defect("wrong-touches", {"path": "a"}, declares={"touches": lambda args: {Read(args["path"])}})
async def writes_what_it_reads(path: str) -> str:
    """Look at a file, and mark it."""
    await trio.sleep(0.1)
    world.effects.wrote(path)
    return "marked"


@defect("wrong-touches", {"path": "a"}, declares={"touches": lambda args: {Write(args["path"])}})
async def writes_an_index_too(path: str) -> str:
    """Write a file."""
    world.effects.wrote(path)
    world.effects.wrote("index")
    return "written"


@defect("wrong-touches", {"path": "a"}, declares={"touches": lambda args: {Write(args["file"])}})
async def touches_another_name(path: str) -> str:
    """Write a file."""
    world.effects.wrote(path)
    return "written"


@defect(
    "wrong-touches",
    {"path": "a"},
    {"path": "b"},
    declares={"touches": lambda args: {Write(args["path"])}},
)
async def shares_a_total(path: str) -> int:
    """Write a file, and count the writes."""
    total = world.values["count"]
    await trio.sleep(0.1)
    world.values["count"] = total + 1
    return world.values["count"]


@defect("wrong-touches", {"path": "a"}, declares={"touches": lambda args: args["path"]})
async def touches_a_text(path: str) -> str:
    """Write a file."""
    return "written"
