"""Work on a store while faults come and go: afterwards the store agrees with memory (BC-47).

One machine works on handles, one plan on an agent. Faults are made up on a simulated disk,
and on real files both made up and of the system.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.agent.kit import ROUTE, check, engine_on, play
from tests.agent.trouble import check_resumes, marking, stored
from tests.stores.kit import HEADER, fresh, made_in, turn
from tests.stores.test_failures import DISKS, Broken
from tests.whole import whole

from terzetto import Agent, Durability, Event, StoreError, TurnFailed
from terzetto.llm.scripted import ScriptedModel, answer, call
from terzetto.testing import FaultyStore, StoreOperation

KINDS = ["simulated", "jsonl", "sqlite"]


@pytest.fixture(autouse=True, scope="module")
def _no_syncs() -> Iterator[None]:
    """What is compared is what is read; hundreds of syncs prove no more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: None)
        yield


def faults(*operations: StoreOperation) -> st.SearchStrategy[dict[str, Any]]:
    """Options of `FaultyStore.fail`."""

    def of(operation: StoreOperation) -> st.SearchStrategy[dict[str, Any]]:
        effects = ["none", "part", "all"] if operation in ("flush", "close") else ["none", "all"]
        return st.fixed_dictionaries(
            {
                "operation": st.just(operation),
                "error": st.sampled_from([errno.ENOSPC, errno.EIO, errno.EACCES]),
                "nth": st.integers(1, 3),
                "times": st.sampled_from([1, 2, None]),
                "effect": st.sampled_from(effects),
            }
        )

    return st.sampled_from(operations).flatmap(of)


# --- handles --------------------------------------------------------------------------------


class Troubled(RuleBasedStateMachine):
    """One session, its handle if somebody has it, and all that was ever appended to it."""

    kind = "simulated"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = FaultyStore(made_in(Path(self.folder.name) / "in", self.kind))
        self.handle: Any = None
        self.appended: list[Event] = []
        self.told = -1
        self.stack = ExitStack()
        self.broken = [self.patched(disk) for disk in DISKS.values() if disk[0] == self.kind]

    def patched(self, disk: Any) -> Broken:
        _, module, name, make, _ = disk
        broken = Broken()
        patch = self.stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(module, name, make(broken))
        return broken

    def run(self, act: Callable[[], Awaitable[Any]]) -> Any:
        """What *act* gives; None if the store failed."""

        async def attempt() -> Any:
            try:
                return await act()
            except StoreError:
                return None

        return trio.run(attempt)

    async def stored(self) -> list[Event]:
        return (await self.store.inner.read("s"))[1]

    @initialize()
    def create(self) -> None:
        self.handle = trio.run(self.store.create, HEADER)

    @rule(options=faults("open", "read", "flush", "close"))
    def arm(self, options: dict[str, Any]) -> None:
        self.store.fail(**options)

    @rule(which=st.integers(0, 3))
    def break_the_disk(self, which: int) -> None:
        if self.broken:
            self.broken[which % len(self.broken)].on = True

    @rule()
    def mend(self) -> None:
        self.store.mend()
        for broken in self.broken:
            broken.on = False

    @precondition(lambda self: self.handle is not None)
    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        for _ in range(count):
            event = turn(len(self.appended))
            self.handle.append(event)
            self.appended.append(event)

    @precondition(lambda self: self.handle is not None)
    @rule(callers=st.integers(1, 3))
    def flush(self, callers: int) -> None:
        done: list[int] = []

        async def flush() -> None:
            try:
                await self.handle.flush()
            except StoreError:
                return
            done.append(self.handle.durable_seq)

        async def all_of_them() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(callers):
                    nursery.start_soon(flush)

        trio.run(all_of_them)
        assert all(seq == len(self.appended) - 1 for seq in done)
        assert self.handle.durable_seq == len(self.appended) - 1 or not done

    @precondition(lambda self: self.handle is not None)
    @rule()
    def close(self) -> None:
        handle, self.handle = self.handle, None
        self.run(handle.close)
        self.told = max(self.told, handle.durable_seq)
        found = trio.run(self.stored)
        assert self.told < len(found) <= len(self.appended) or not self.appended
        self.appended = self.appended[: len(found)]  # the rest is lost, and that was said

    @precondition(lambda self: self.handle is None)
    @rule()
    def reopen(self) -> None:
        self.handle = self.run(lambda: self.store.open("s"))
        if self.handle is not None:
            assert self.handle.durable_seq == len(self.appended) - 1
            self.told = self.handle.durable_seq

    @invariant()
    def what_was_told_is_stored_and_nothing_else(self) -> None:
        found = trio.run(self.stored)
        assert found == self.appended[: len(found)]
        if self.handle is not None:
            assert self.handle.durable_seq >= self.told, "what was durable stays durable"
            self.told = self.handle.durable_seq
        assert len(found) > self.told

    def teardown(self) -> None:
        try:
            self.mend()
            if self.handle is None:
                self.handle = trio.run(self.store.open, "s")
            trio.run(self.handle.flush)
            assert trio.run(self.stored) == self.appended
            trio.run(self.handle.close)
            again = trio.run(made_again(self).open, "s")
            assert again.repaired is None
            trio.run(again.close)
        finally:
            self.stack.close()
            self.folder.cleanup()


def made_again(machine: Troubled) -> Any:
    """The store as another process would make it."""
    if machine.kind == "simulated":
        return machine.store.inner
    return made_in(Path(machine.folder.name) / "in", machine.kind)


class TroubledJsonl(Troubled):
    kind = "jsonl"


class TroubledSqlite(Troubled):
    kind = "sqlite"


TestSimulated = Troubled.TestCase
TestJsonl = TroubledJsonl.TestCase
TestSqlite = TroubledSqlite.TestCase
TestSimulated.settings = settings(max_examples=40, stateful_step_count=25)
TestJsonl.settings = TestSqlite.settings = settings(
    max_examples=12, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow]
)


# --- an agent -------------------------------------------------------------------------------

ACTIONS = ["ask", "ask", "inject", "cancel", "flush", "mend", "reopen", "leave pending"]


@define(eq=False)
class Work:
    """An agent that works, whatever its store does, and is left and resumed now and then."""

    store: FaultyStore
    model: ScriptedModel
    engine: Any
    handle: Any = None
    ran: list[str] = field(factory=list)

    @property
    def agent(self) -> Agent:
        agent: Agent = self.handle.agent
        return agent

    async def do(self, action: Any) -> None:
        if isinstance(action, dict):
            self.store.fail(**action)
        else:
            await getattr(self, action.replace(" ", "_"))()
        await self.check()

    async def ask(self) -> None:
        before = len(self.model.requests)
        try:
            await self.agent.ask("go")
        except TurnFailed as failed:
            assert failed.code == "STORE"
        else:
            assert len(self.model.requests) > before

    async def inject(self) -> None:
        self.agent.inject("by the way")

    async def leave_pending(self) -> None:
        self.agent.followup("and then")

    async def cancel(self) -> None:
        self.agent.followup("never mind")
        self.agent.cancel()
        await self.agent.wait_idle()

    async def flush(self) -> None:
        try:
            await self.agent.flush()
        except StoreError:
            assert self.agent.health is not None
        else:
            assert self.agent.health is None

    async def mend(self) -> None:
        self.store.mend()

    async def reopen(self) -> None:
        session = self.agent.session
        await self.handle.dispose()
        found = await stored(self.store)
        assert found == whole(session)[: len(found)]
        assert len(found) > session.durable_seq
        if len(found) < len(session.events):
            assert self.engine.unsaved.pop("a")
        else:
            self.engine.unsaved.pop("a", None)  # it was written, and nobody was told
        try:
            self.handle = await self.engine.agents.resume("a", **ROUTE)
        except StoreError:
            self.store.mend()
            self.handle = await self.engine.agents.resume("a", **ROUTE)
        assert whole(self.agent.session)[: len(found)] == found

    async def check(self) -> None:
        session = self.agent.session
        told = session.durable_seq  # it may be at work while it is read
        found = await stored(self.store)
        assert found == whole(session)[: len(found)]
        assert len(found) > told

    async def end(self) -> None:
        self.store.mend()
        await self.agent.wait_idle()
        await self.agent.ask("good night")
        await self.agent.flush()
        assert self.agent.health is None
        check(self.agent.session)
        assert await stored(self.store) == whole(self.agent.session)


async def works(store: FaultyStore, actions: list[Any], level: Durability) -> None:
    ran: list[str] = []

    def script(request: Any) -> Any:
        asked = len(model.requests) % 3 == 1
        return answer(call("mark", name="a"), call("mark", name="b")) if asked else "fine"

    model = ScriptedModel(script)
    async with engine_on(model, [marking(ran)], store=store, durability=level) as engine:
        work = Work(store, model, engine, await engine.agents.create(**ROUTE, session_id="a"))
        for action in actions:
            await work.do(action)
        await work.end()
    assert engine.unsaved == {}
    assert await stored(store) == whole(work.agent.session)
    await check_resumes(await stored(store), work.agent.session.header)


levels: Any = st.sampled_from(["step", "lazy", "each"])
plans = st.lists(st.sampled_from(ACTIONS) | faults("open", "read", "flush", "close"), max_size=14)


@settings(max_examples=50)
@given(plans, levels)
def test_an_agent_works_on_a_simulated_disk_that_fails(
    actions: list[Any], level: Durability
) -> None:
    async def main() -> None:
        with fresh("simulated") as store:
            await works(FaultyStore(store), actions, level)

    play(main)


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(actions=plans, level=levels)
def test_an_agent_works_on_files_that_fail(
    kind: str, actions: list[Any], level: Durability
) -> None:
    async def main() -> None:
        with fresh(kind) as store:
            await works(FaultyStore(store), actions, level)

    trio.run(main)
