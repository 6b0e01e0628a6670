"""Laws of all stores, and one machine: whatever is called, they agree with the memory store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)
from tests.stores.kit import KINDS, fresh, made_in
from tests.strategies import logs, session_headers, session_ids

from terzetto.stores import MemoryStore, ReadHandle, WriteHandle
from terzetto.stores._base import LONGEST_NAME, escape_id
from terzetto.vocabulary import Event, InvalidValue, SessionHeader, SessionId, freeze_object


@pytest.fixture(autouse=True, scope="module")
def _no_syncs() -> Iterator[None]:
    """What is compared is what is read; hundreds of syncs prove no more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: None)
        yield


slow = settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])


@slow
@given(st.sampled_from(KINDS), session_headers(), logs(), st.integers(0, 6))
def test_what_is_stored_is_what_is_read(
    kind: str, header: SessionHeader, log: list[Event], split: int
) -> None:
    async def main() -> None:
        with fresh(kind) as made:
            handle = await made.create(header)
            for event in log[:split]:
                handle.append(event)
            await handle.close()
            handle = await made.open(header.id)
            assert await handle.read() == log[:split]
            for event in log[split:]:
                handle.append(event)
            await handle.flush()
            assert handle.durable_seq == len(log) - 1
            await handle.close()
            assert await made.read(header.id) == (header, log)
            assert await made.list() == [header]

    trio.run(main)


@given(session_ids(), session_ids())
def test_no_two_ids_have_one_name_even_if_capitals_are_not_told_apart(a: str, b: str) -> None:
    assert (escape_id(a).casefold() == escape_id(b).casefold()) == (a == b)


@given(st.text() | st.text("abc./\\\x00%A", max_size=6))
def test_a_name_is_one_short_visible_path_component(text: str) -> None:
    try:
        name = escape_id(text)
    except InvalidValue:
        return
    assert name.isascii()
    assert len(name) <= LONGEST_NAME
    assert Path(name).name == name
    assert not name.startswith(".")


@define(eq=False)
class Pair:
    """Handles of one session in the two stores, and the seq that comes next."""

    memory: WriteHandle
    disk: WriteHandle
    next_seq: int

    def both(self) -> tuple[WriteHandle, WriteHandle]:
        return (self.memory, self.disk)


class Agreement(RuleBasedStateMachine):
    """The same calls on a memory store and on a store of another kind: the same answers."""

    kind = "jsonl"
    pairs: Bundle[Pair] = Bundle("pairs")
    closed: Bundle[Pair] = Bundle("closed")
    readers: Bundle[tuple[ReadHandle, ReadHandle]] = Bundle("readers")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.stores = (MemoryStore(), made_in(Path(self.folder.name), self.kind))
        self.open: list[WriteHandle] = []
        self.made = 0

    def answers(self, pair: tuple[Any, Any], call: Callable[[Any], Awaitable[Any]]) -> list[Any]:
        async def ask_both() -> list[Any]:
            found: list[Any] = []
            for one in pair:
                try:
                    found.append(await call(one))
                except Exception as error:  # an answer too: they are compared
                    found.append(type(error))
            return found

        return trio.run(ask_both)

    def agreed(self, pair: tuple[Any, Any], call: Callable[[Any], Awaitable[Any]]) -> Any:
        first, second = self.answers(pair, call)
        assert first == second
        return first

    def taken(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        memory, disk = self.answers(self.stores, call)
        if isinstance(memory, type) or isinstance(disk, type):
            assert memory is disk
            return multiple()
        self.open.append(disk)
        return Pair(memory, disk, memory.durable_seq + 1)

    @rule(target=pairs, name=st.sampled_from("aAb"), ms=st.integers(0, 3))
    def create(self, name: str, ms: int) -> Any:
        self.made += 1  # no two are the same, or nobody could tell them apart
        meta = freeze_object({"nth": self.made})
        header = SessionHeader(id=SessionId(name), created_ms=ms, meta=meta)
        return self.taken(lambda store: store.create(header))

    @rule(target=pairs, name=st.sampled_from("aAb"))
    def reopen(self, name: str) -> Any:
        return self.taken(lambda store: store.open(name))

    @rule(pair=pairs, log=logs(3))
    def append(self, pair: Pair, log: list[Event]) -> None:
        for event in log:
            numbered = Event(pair.next_seq, event.time_ms, event.data, ignorable=True)
            pair.memory.append(numbered)
            pair.disk.append(numbered)
            pair.next_seq += 1

    @rule(pair=pairs, shift=st.sampled_from([-1, 1]), log=logs(1))
    def append_out_of_order(self, pair: Pair, shift: int, log: list[Event]) -> None:
        async def add(handle: WriteHandle) -> None:
            for event in log:
                handle.append(Event(pair.next_seq + shift, event.time_ms, event.data))

        assert bool(self.agreed(pair.both(), add)) == bool(log)

    @rule(pair=pairs)
    def flush(self, pair: Pair) -> None:
        self.agreed(pair.both(), lambda handle: handle.flush())
        assert pair.disk.durable_seq == pair.next_seq - 1

    @rule(pair=pairs)
    def look_at(self, pair: Pair) -> None:
        self.agreed(pair.both(), lambda handle: handle.read())
        assert pair.memory.durable_seq == pair.disk.durable_seq
        assert pair.memory.header == pair.disk.header
        assert pair.disk.repaired is None

    @rule(pair=pairs | closed, start=st.integers(0, 8), length=st.none() | st.integers(-2, 8))
    def read_a_range(self, pair: Pair, start: int, length: int | None) -> None:
        stop = None if length is None else start + length
        self.agreed(pair.both(), lambda handle: handle.read(start, stop))

    @rule(target=closed, pair=consumes(pairs))
    def close(self, pair: Pair) -> Pair:
        self.agreed(pair.both(), lambda handle: handle.close())
        self.open.remove(pair.disk)
        return pair

    @rule(target=readers, name=st.sampled_from("aAbc"))
    def look(self, name: str) -> Any:
        memory, disk = self.answers(self.stores, lambda store: store.open(name, "read"))
        if isinstance(memory, type) or isinstance(disk, type):
            assert memory is disk
            return multiple()
        assert memory.header == disk.header
        return memory, disk

    @rule(pair=readers, start=st.integers(0, 8), length=st.none() | st.integers(-2, 8))
    def read_what_is_stored(
        self, pair: tuple[ReadHandle, ReadHandle], start: int, length: int | None
    ) -> None:
        stop = None if length is None else start + length
        self.agreed(pair, lambda handle: handle.read(start, stop))

    @rule(pair=readers)
    def look_no_more(self, pair: tuple[ReadHandle, ReadHandle]) -> None:
        self.agreed(pair, lambda handle: handle.close())

    @rule(name=st.sampled_from("aAbc"))
    def delete(self, name: str) -> None:
        self.agreed(self.stores, lambda store: store.delete(name))

    @rule(name=st.sampled_from("aAb"), start=st.integers(0, 8))
    def read_from(self, name: str, start: int) -> None:
        self.agreed(self.stores, lambda store: store.read(name, start))

    @invariant()
    def the_same_is_stored(self) -> None:
        for name in ("a", "A", "b", "c"):
            self.agreed(self.stores, lambda store, name=name: store.read(name))  # type: ignore[misc]
        self.agreed(self.stores, lambda store: store.list())

    def teardown(self) -> None:
        for handle in self.open:
            trio.run(handle.close)
        self.folder.cleanup()


class SqliteAgreement(Agreement):
    kind = "sqlite"


class SimulatedAgreement(Agreement):
    kind = "simulated"


class PackedAgreement(Agreement):
    kind = "packed"


class ZstdAgreement(Agreement):
    kind = "zstd"


TestJsonl = Agreement.TestCase
TestPacked = PackedAgreement.TestCase
TestZstd = ZstdAgreement.TestCase
TestSqlite = SqliteAgreement.TestCase
TestSimulated = SimulatedAgreement.TestCase
TestJsonl.settings = TestSqlite.settings = TestSimulated.settings = settings(
    max_examples=10, stateful_step_count=20, suppress_health_check=[HealthCheck.too_slow]
)
TestPacked.settings = TestZstd.settings = settings(TestJsonl.settings, max_examples=4)
