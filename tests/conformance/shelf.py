"""Where the sessions of a recorded run are kept: a store of any kind, and how to wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field
from tests.stores.kit import made_in
from tests.whole import whole

from terzetto import Durability, Session
from terzetto.stores import Store
from terzetto.vocabulary import Event, SessionHeader, SessionId


@define(eq=False)
class Shelf:
    """One store a process of the run, all of *kind*, below *folder*; sessions of *level*."""

    kind: str = "memory"
    folder: Path = Path()
    level: Durability = "step"
    store: Store | None = field(default=None, init=False)
    processes: int = field(default=0, init=False)
    busy: int = field(default=0, init=False)
    free: trio.Event = field(factory=trio.Event, init=False)

    async def filled(self, events: Sequence[Event] | None) -> Store:
        """The store of the next process: it has *events*, or no session at all."""
        self.processes += 1
        store = self.make()
        if events is not None:
            header = SessionHeader(id=SessionId("S"), created_ms=0, durability=self.level)
            handle = await store.create(header)
            for event in events:
                handle.append(event)
            await handle.close()
        self.store = self.make() if self.on_disk else store
        return self.store

    @property
    def on_disk(self) -> bool:
        return self.kind in ("jsonl", "sqlite")

    def make(self) -> Store:
        return made_in(self.folder / str(self.processes), self.kind)

    async def check(self, session: Session) -> None:
        """Once its engine has been left, a store has all that its session has."""
        assert self.store is not None
        _, events = await (self.make() if self.on_disk else self.store).read("S")
        assert events == whole(session), f"what is stored ({self.kind})"

    async def quiet(self) -> None:
        """Return once every task is blocked, and by nothing that a thread is still doing."""
        await trio.testing.wait_all_tasks_blocked()
        while self.busy:
            self.free = trio.Event()
            await self.free.wait()
            await trio.testing.wait_all_tasks_blocked()

    @contextmanager
    def watching_threads(self) -> Iterator[None]:
        """`quiet` sees the threads that are begun in the block."""
        run_sync = trio.to_thread.run_sync

        async def counted(*args: Any, **options: Any) -> Any:
            self.busy += 1
            try:
                return await run_sync(*args, **options)
            finally:
                self.busy -= 1
                if not self.busy:
                    self.free.set()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trio.to_thread, "run_sync", counted)
            yield
