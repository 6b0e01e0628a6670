"""A process that stops at a point of a batch, for somebody to kill it there.

Three exclusive calls, "a", "b" and "c"; each leaves a mark outside of the log. The points
are before and after the flush that saves a call, and in the bodies.
"""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import trio
from attrs import define, field
from tests.crash.lives import make_store

import terzetto
from terzetto import Durability, Tool, tool
from terzetto.llm.scripted import ScriptedModel, answer, call
from terzetto.stores import Store, WriteHandle
from terzetto.vocabulary import Event, SessionHeader, ToolCallEvent

ROUTE: Mapping[str, Any] = {"provider": "scripted", "model": "m"}
SESSION = "s"
POINTS = (
    "before a is saved",
    "before a begins",
    "during a",
    "before b is saved",
    "before b begins",
    "during b",
)


@define
class Stop:
    """The *point*, and the pipe that is told when it is reached."""

    point: str
    told: Connection

    async def at(self, point: str) -> None:
        if point == self.point:
            self.told.send_bytes(b"here")
            await trio.sleep_forever()


def live(kind: str, folder: Path, durability: Durability, point: str, told: Connection) -> None:
    """Until killed at *point*, in the first turn of the session."""
    trio.run(_live, kind, folder, durability, Stop(point, told))


async def _live(kind: str, folder: Path, durability: Durability, stop: Stop) -> None:
    model = ScriptedModel([answer(*(call("mark", name=n, id=f"call-{n}") for n in "abc"))])
    store: Any = _Stopping(make_store(kind, folder), stop)
    async with (
        terzetto.open_engine(
            adapters=[model], tools=[marking(folder, stop)], store=store, durability=durability
        ) as engine,
        engine.open_agent(**ROUTE, session_id=SESSION) as agent,
    ):
        await agent.ask("mark them")


def marking(folder: Path, stop: Stop | None) -> Tool:
    """The tool whose effect is a letter in a file."""

    @tool
    async def mark(name: str) -> str:
        with (folder / "marks").open("a") as file:
            file.write(name)
        if stop is not None:
            await stop.at(f"during {name}")
        return f"marked {name}"

    return mark


@define
class _Stopping:
    """A store whose flushes stop before or after the one that saves a call."""

    store: Store
    stop: Stop

    async def create(self, header: SessionHeader) -> _Handle:
        return _Handle(await self.store.create(header), self.stop)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@define
class _Handle:
    handle: WriteHandle
    stop: Stop
    _calls: list[str] = field(factory=list)
    _one: trio.Lock = field(factory=trio.Lock)

    def append(self, event: Event) -> None:
        self.handle.append(event)
        if isinstance(event.data, ToolCallEvent):
            self._calls.append(event.data.call_id.removeprefix("call-"))

    async def flush(self) -> None:
        async with self._one:  # who has stopped stops whoever else would save it
            calls, self._calls = self._calls, []
            for name in calls:
                await self.stop.at(f"before {name} is saved")
            await self.handle.flush()
            for name in calls:
                await self.stop.at(f"before {name} begins")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)
