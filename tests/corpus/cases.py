"""What the tools of the corpus are registered with, and the small world that they change."""

import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from attrs import define, field, frozen

from terzetto import Tool, tool
from terzetto.testing import CheckReport, Effects, check_tool


@define(eq=False)
class World:
    """A folder, some values, a server on loopback, an application's nursery: fresh in each run."""

    effects: Effects = field(factory=Effects)
    folder: Path = Path()
    values: dict = field(factory=dict)
    port: int = 0
    nursery: trio.Nursery | None = None
    lock: trio.Lock = field(factory=trio.Lock)
    limiter: trio.CapacityLimiter = field(factory=partial(trio.CapacityLimiter, 1))
    stop: threading.Event = field(factory=threading.Event)
    later: threading.Event = field(factory=threading.Event)
    kept: list = field(factory=list)

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[None]:
        """Values and primitives only."""
        self.values = {"count": 0, "a": 10, "b": 10}
        self.lock, self.limiter = trio.Lock(), trio.CapacityLimiter(1)
        self.stop = threading.Event()
        try:
            yield
        finally:
            self.stop.set()

    @asynccontextmanager
    async def files(self) -> AsyncIterator[None]:
        """And a folder with one file, ``a.txt``."""
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            (self.folder / "a.txt").write_text("alpha\nbeta\n")
            async with self.fresh():
                yield

    @asynccontextmanager
    async def app(self) -> AsyncIterator[None]:
        """And an application's nursery."""
        async with self.fresh(), trio.open_nursery() as self.nursery:
            yield
            self.nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def web(self) -> AsyncIterator[None]:
        """And a server that answers every request with ``hello``."""
        async with self.fresh(), trio.open_nursery() as nursery:
            serve = partial(trio.serve_tcp, _hello, 0, host="127.0.0.1")
            listeners = await nursery.start(serve)
            self.port = listeners[0].socket.getsockname()[1]
            yield
            nursery.cancel_scope.cancel()

    def names(self) -> object:
        """What is in the folder."""
        return {path.name: path.read_text() for path in sorted(self.folder.iterdir())}


async def _hello(stream: trio.SocketStream) -> None:
    received = b""
    try:
        async with stream:
            while b"\r\n\r\n" not in received:
                data = await stream.receive_some()
                if not data:
                    return
                received += data
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\n"
            await stream.send_all(head + b"content-length: 5\r\n\r\nhello")
    except trio.BrokenResourceError:
        pass  # the other side was cancelled


world = World()


@frozen
class Case:
    """One tool of the corpus. *expect* is the verdict that must be among those it gets, first
    of all; None for a tool that must get none."""

    name: str
    tool: Tool | Callable[[], Tool]
    calls: Sequence[Mapping]
    expect: str | None
    options: dict

    def check(self) -> CheckReport:
        options = {"around": world.fresh, "effects": world.effects, "engine": False, "limit": 30}
        world.later = threading.Event()
        try:
            return check_tool(self.tool, self.calls, **(options | self.options))
        finally:
            world.later.set()
            for kept in world.kept:
                # Trio's own close needs a run, and that one is over.
                (kept.socket._sock if isinstance(kept, trio.SocketStream) else kept).close()
            world.kept.clear()

    def named_rightly(self, report: CheckReport) -> bool:
        return self.expect in report.kinds if self.expect else not report.verdicts


CASES: dict[str, Case] = {}


def defect(expect, /, *calls, declares=None, **options):
    """Register the decorated function, a tool with the defect *expect*."""
    return _registered(expect, calls, declares or {}, options)


def correct(*calls, declares=None, **options):
    """Register the decorated function, a tool without a defect."""
    return _registered(None, calls, declares or {}, options)


def add(name, made, expect, /, *calls, **options):
    """Register a tool, or a function that makes one."""
    assert name not in CASES, name
    CASES[name] = Case(name, made, calls or ({},), expect, options)


def _registered(expect, calls, declares, options):
    def register(fn):
        add(fn.__name__, tool(fn, **declares), expect, *calls, **options)
        return fn

    return register
