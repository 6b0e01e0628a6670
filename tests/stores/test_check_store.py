"""`check_store`: every store of ours passes, and every defect that we could think of is seen."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, evolve, field
from tests.stores.kit import KINDS, made_in, turn

from terzetto.session import Held
from terzetto.stores import JsonlStore, MemoryStore, SqliteStore, Store, _sqlite_jobs
from terzetto.stores.writing import check_extensions
from terzetto.testing import STORE_LAWS, BrokenStore, Latency, SimulatedDisk, check_store
from terzetto.vocabulary import (
    Event,
    InvalidValue,
    SessionHeader,
    SessionNotFound,
    UsageError,
)

# --- ours -------------------------------------------------------------------------------


def place(store: Store) -> Path:
    return Path(str(store.locate("x")).partition("#")[0])


def reopen(store: Store) -> Store:
    match store:
        case JsonlStore():
            return JsonlStore(place(store).parent)
        case SqliteStore():
            return SqliteStore(place(store))
    return store


async def tear(store: Store, session_id: str) -> Store:
    if isinstance(store, SimulatedDisk):
        handle = await store.open(session_id)
        handle.append(turn(handle.durable_seq + 1))
        return store.crash(torn=True)
    path = Path(str(store.locate(session_id)))
    whole = path.read_bytes()
    handle = await store.open(session_id)
    handle.append(turn(handle.durable_seq + 1))
    await handle.close()
    path.write_bytes(whole + path.read_bytes()[len(whole) : -1])
    return store


@contextmanager
def failing(store: Store) -> Iterator[None]:
    def fail(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.MonkeyPatch.context() as patch:
        match store:
            case JsonlStore():
                patch.setattr(os, "fdatasync", fail)
            case SqliteStore():
                patch.setattr(_sqlite_jobs, "commit", fail)
            case SimulatedDisk():
                patch.setattr(store, "room", 0)
        yield


OPTIONS: dict[str, dict[str, Any]] = {
    "memory": {},
    "jsonl": {"reopen": reopen, "tear": tear, "failing": failing},
    "packed": {"reopen": reopen, "tear": tear, "failing": failing},
    "zstd": {"reopen": reopen, "tear": tear, "failing": failing},
    "sqlite": {"reopen": reopen, "failing": failing},
    "simulated": {"tear": tear, "failing": failing},
}
SKIPPED = {
    "memory": {
        "a_torn_end_is_cut_and_told",
        "a_failed_flush_loses_nothing",
        "a_close_that_fails_gives_ownership_up",
    },
    "sqlite": {"a_torn_end_is_cut_and_told"},
}


@pytest.mark.parametrize("law", STORE_LAWS)
@pytest.mark.parametrize("kind", KINDS)
async def test_our_stores_keep_the_laws(kind: str, law: str, tmp_path: Path) -> None:
    def make() -> Store:
        return made_in(Path(tempfile.mkdtemp(dir=tmp_path)), kind)

    verdict = await check_store(make, only=[law], **OPTIONS[kind])
    if law in SKIPPED.get(kind, ()):
        assert (verdict.kept, verdict.skipped) == ((), (law,))
    else:
        assert (verdict.kept, verdict.skipped) == ((law,), ())


async def test_a_slow_disk_keeps_the_laws(autojump_clock: trio.testing.MockClock) -> None:
    """In virtual time: writes that take as long as anything else, and are cancelled there."""
    verdict = await check_store(
        lambda: SimulatedDisk(Latency.of(0.1)), tear=tear, failing=failing, seconds=3600
    )
    assert verdict.kept == STORE_LAWS
    assert str(verdict) == f"{len(STORE_LAWS)} laws kept"


# --- defects ----------------------------------------------------------------------------


@define(eq=False)
class Handle:
    """The handle of a memory store, behind something that can go wrong."""

    inner: Any
    store: Any
    held: list[Event] = field(factory=list)
    kept: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@define(eq=False)
class Faulty:
    """A memory store, behind something that can go wrong. *handles* are made by `handle`."""

    inner: MemoryStore = field(factory=MemoryStore)
    handle: Callable[..., Any] = Handle
    background: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def create(self, header: SessionHeader) -> Any:
        return self.handle(await self.inner.create(header), self)

    async def open(self, session_id: str, mode: Any = "write") -> Any:
        if mode != "write":
            return await self.inner.open(session_id, mode)
        return self.handle(await self.inner.open(session_id), self)

    def stored(self, handle: Any) -> list[Event]:
        return self.inner._sessions[handle.inner.header.id].held.tail


class LosesAnEvent(Handle):
    async def flush(self) -> None:
        await self.inner.flush()
        if len(events := self.store.stored(self)) > 5:
            del events[3]


class StoresOneTwice(Handle):
    async def flush(self) -> None:
        before = self.inner.durable_seq
        await self.inner.flush()
        if self.inner.durable_seq - before > 1:
            self.store.stored(self).append(self.store.stored(self)[-1])


class FlushesTooEarly(Handle):
    """It counts what it has only handed to a background task."""

    async def flush(self) -> None:
        events = self.store.stored(self)
        length = len(events)
        await self.inner.flush()
        late = events[length:]
        del events[length:]
        trio.lowlevel.spawn_system_task(self._later, events, late)

    async def _later(self, events: list[Event], late: list[Event]) -> None:
        await trio.lowlevel.checkpoint()
        events.extend(late)


class NeverGivesUp(Handle):
    async def close(self) -> None:
        await self.inner.flush()


class ForgetsToFlushOnClose(Handle):
    async def close(self) -> None:
        self.inner._buffer.settle(len(self.inner._buffer.pending()))
        await self.inner.close()


class WritesAtOnce(Handle):
    def append(self, event: Event) -> None:
        self.inner.append(event)
        self.store.stored(self).append(event)
        self.inner._buffer.settle(1)


class TakesAnySeq(Handle):
    def append(self, event: Event) -> None:
        if not self.inner._closed:
            self.inner._buffer.next_seq = event.seq
        self.inner.append(event)


class TakesEventsWhenClosed(Handle):
    def append(self, event: Event) -> None:
        try:
            self.inner.append(event)
        except UsageError as error:
            if "closed" not in str(error):
                raise


class ClosesForEver(Handle):
    """A second close takes the session from its new owner."""

    async def close(self) -> None:
        await self.inner.close()
        self.inner._kept.owner = None


class ReadsWhatOthersAppended(Handle):
    async def read(self, start: int = 0, stop: int | None = None) -> list[Event]:
        await self.inner.read(start, stop)
        return list(self.inner._kept.held.tail[start:stop])


class ReadsWhatItFound(Handle):
    """Not what was flushed since."""

    def append(self, event: Event) -> None:
        if self.kept is None:
            self.kept = self.inner.durable_seq + 1
        self.inner.append(event)

    async def read(self, start: int = 0, stop: int | None = None) -> list[Event]:
        return (await self.inner.read())[: self.kept][start:stop]


class ReadsWhatIsNotDurable(Handle):
    async def read(self, start: int = 0, stop: int | None = None) -> list[Event]:
        found = await self.inner.read()
        return [*found, *self.inner._buffer.pending()][start:stop]


class IgnoresStop(Handle):
    async def read(self, start: int = 0, stop: int | None = None) -> list[Event]:
        return await self.inner.read(start)


class IsDumbWhenClosed(Handle):
    async def read(self, start: int = 0, stop: int | None = None) -> list[Event]:
        if self.inner._closed:
            raise UsageError("the handle is closed")
        return await self.inner.read(start, stop)


class RemembersTheDead(Handle):
    async def read(self, start: int = 0, stop: int | None = None) -> list[Event]:
        self.inner._kept.deleted = False
        return await self.inner.read(start, stop)


class DistrustsItsOwn(Handle):
    async def read(self, start: int = 0, stop: int | None = None) -> list[Event]:
        found = await self.inner.read(start, stop)
        check_extensions(found, ())
        return found


class SkipsPages(Handle):
    """What is far into a log is looked for a place too late."""

    async def read(self, start: int = 0, stop: int | None = None) -> list[Event]:
        return (await self.inner.read(start, stop))[int(start > 256) :]


class GivesItsOwnList(Handle):
    async def read(self, start: int = 0, stop: int | None = None) -> list[Event]:
        if self.kept is None or start or stop is not None:
            self.kept = await self.inner.read(start, stop)
        await trio.lowlevel.checkpoint()
        return self.kept


class ForgetsWhenCancelled(Handle):
    """What was being written when the caller was cancelled is counted as written."""

    async def flush(self) -> None:
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            self.inner._buffer.settle(len(self.inner._buffer.pending()))
            raise
        await self.inner.flush()


class RepeatsWhenCancelled(Handle):
    """A cancelled write was done, and is not counted."""

    async def flush(self) -> None:
        events = self.inner._buffer.pending()
        self.store.stored(self).extend(events)
        await trio.lowlevel.checkpoint()
        self.inner._buffer.settle(len(events))


class KeepsOwnershipWhenCancelled(Handle):
    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        await self.inner.close()


class HangsWhenTwoFlush(Handle):
    async def flush(self) -> None:
        if self.held:
            await trio.sleep_forever()
        self.held.append(turn(0))
        await trio.lowlevel.checkpoint()
        self.held.clear()
        await self.inner.flush()


class SharesNobody(Faulty):
    """There is no owner."""

    async def open(self, session_id: str, mode: Any = "write") -> Any:
        await self.inner.read(session_id)
        self.inner._sessions[session_id].owner = None
        return await self.inner.open(session_id, mode)


class OpensAnything(Faulty):
    async def read(self, session_id: str, start: int = 0) -> Any:
        stored = await self.inner._find(session_id)
        return stored.header, stored.held.tail[start:]


class OverwritesOnCreate(Faulty):
    async def create(self, header: SessionHeader) -> Any:
        self.inner._sessions.pop(header.id, None)
        return await self.inner.create(header)


class TrustsIds(Faulty):
    async def read(self, session_id: str, start: int = 0) -> Any:
        if session_id not in self.inner._sessions:
            raise SessionNotFound("there is none")
        return await self.inner.read(session_id, start)


class ListsAsItComes(Faulty):
    async def list(self) -> Any:
        return [stored.header for stored in self.inner._sessions.values()]


class IgnoresStart(Faulty):
    async def read(self, session_id: str, start: int = 0) -> Any:
        return await self.inner.read(session_id)


class LooksOnce(Faulty):
    """A read handle gives what was stored when it was opened."""

    async def open(self, session_id: str, mode: Any = "write") -> Any:
        if mode == "write":
            return await super().open(session_id)
        reader = await self.inner.open(session_id, mode)
        reader._kept = evolve(reader._kept, held=Held(tail=list(reader._kept.held.tail)))
        return reader


class OwnsToRead(Faulty):
    async def open(self, session_id: str, mode: Any = "write") -> Any:
        self.inner._refuse_if_owned(await self.inner._find(session_id))
        return await super().open(session_id, mode)


class TakesAnyMode(Faulty):
    async def open(self, session_id: str, mode: Any = "write") -> Any:
        return await super().open(session_id, "read" if mode == "read" else "write")


class ReadsWhenClosed(Faulty):
    async def open(self, session_id: str, mode: Any = "write") -> Any:
        handle = await super().open(session_id, mode)
        if mode == "read":
            handle.close = trio.lowlevel.checkpoint
        return handle


class DeletesWhatIsInUse(Faulty):
    async def delete(self, session_id: str) -> None:
        stored = await self.inner._find(session_id)
        stored.deleted = True
        del self.inner._sessions[session_id]


class OnlyHides(Faulty):
    """A deleted session keeps its events for the next one of its id."""

    async def delete(self, session_id: str) -> None:
        stored = await self.inner._find(session_id)
        await self.inner.delete(session_id)
        self.background = stored.held.tail

    async def create(self, header: SessionHeader) -> Any:
        handle = await self.inner.create(header)
        if self.background:
            self.inner._sessions[header.id].held.tail.extend(self.background)
        return handle


class CreatesHalf(Faulty):
    """A cancelled creation leaves a session that nobody can open."""

    async def create(self, header: SessionHeader) -> Any:
        handle = await self.inner.create(header)
        await trio.lowlevel.checkpoint()
        return handle


class OpensHalf(Faulty):
    async def open(self, session_id: str, mode: Any = "write") -> Any:
        handle = await self.inner.open(session_id, mode)
        await trio.lowlevel.checkpoint()
        return handle


DEFECTS: list[tuple[Any, str, str]] = [
    (
        LosesAnEvent,
        "flush_returns_when_all_is_stored",
        "after flush, read() gives events 0, 1, 2, 4",
    ),
    (StoresOneTwice, "flush_returns_when_all_is_stored", "28, 29, 29, expected events 0, 1,"),
    (FlushesTooEarly, "flush_returns_when_all_is_stored", "after flush, read() gives nothing"),
    (NeverGivesUp, "a_reopened_session_goes_on", "SessionLocked was raised"),
    (ForgetsToFlushOnClose, "closing_flushes_and_happens_once", "after close, which flushes"),
    (WritesAtOnce, "append_only_buffers", "after append, durable_seq is 2, expected 0"),
    (TakesAnySeq, "gaps_and_duplicates_are_refused", "append of event 0 where 2 comes next"),
    (TakesEventsWhenClosed, "closing_flushes_and_happens_once", "append to a closed handle"),
    (ClosesForEver, "a_session_has_one_owner", "after the former owner's second close"),
    (ReadsWhatOthersAppended, "a_closed_handle_still_reads_its_own", "written on, it reads events"),
    (ReadsWhatItFound, "a_reopened_session_goes_on", "after one more event, reads events 0, 1,"),
    (ReadsWhatIsNotDurable, "a_handle_reads_what_it_has_made_durable", "two events not flushed"),
    (IgnoresStop, "a_range_is_read", "read(0, 0) of a write handle gives events 0, 1, 2, 3"),
    (IsDumbWhenClosed, "a_closed_handle_still_reads_its_own", "UsageError was raised"),
    (
        RemembersTheDead,
        "a_deleted_session_is_read_no_more",
        "a closed write handle of a deleted",
    ),
    (DistrustsItsOwn, "what_a_handle_appended_it_can_read", "CorruptLog was raised"),
    (SkipsPages, "a_long_log_is_read_in_pages", "read(291, 388) of a first handle gives 96 events"),
    (LooksOnce, "a_read_handle_follows_what_is_stored", "a read handle reads"),
    (OwnsToRead, "a_range_is_read", "SessionLocked was raised"),
    (TakesAnyMode, "what_is_no_mode_is_refused", "open('s', 'append'): expected InvalidValue"),
    (
        ReadsWhenClosed,
        "a_closed_read_handle_is_refused",
        "expected UsageError, and it was",
    ),
    (GivesItsOwnList, "a_reopened_session_goes_on", "reads nothing, expected events 0, 1"),
    (ForgetsWhenCancelled, "a_cancelled_flush_loses_and_repeats_nothing", "with durable_seq 3"),
    (RepeatsWhenCancelled, "a_cancelled_flush_loses_and_repeats_nothing", "cancelled"),
    (KeepsOwnershipWhenCancelled, "a_cancelled_close_gives_ownership_up", "SessionLocked"),
    (HangsWhenTwoFlush, "many_flushes_at_once_all_return", "did not come to an end within 0.2 s"),
    (SharesNobody, "a_session_has_one_owner", "expected SessionLocked, and it was accepted"),
    (OpensAnything, "unknown_events_are_refused_unless_ignorable", "read() of a session with an"),
    (OverwritesOnCreate, "a_session_is_created_once", "expected SessionExists, and it was"),
    (TrustsIds, "ids_that_cannot_be_names_are_refused", "expected InvalidValue, got SessionNot"),
    (ListsAsItComes, "sessions_are_listed_oldest_first", "['b', 'C', 'c', 'a'], expected ['C'"),
    (IgnoresStart, "reading_begins_where_it_is_asked_to", "read('s', 1) gives"),
    (DeletesWhatIsInUse, "a_session_has_one_owner", "delete() of a session in use: expected"),
    (OnlyHides, "a_deleted_session_is_gone", "created anew, it has"),
    (CreatesHalf, "a_cancelled_create_leaves_nobody_owning", "SessionLocked was raised"),
    (OpensHalf, "a_cancelled_open_leaves_nobody_owning", "SessionLocked was raised"),
]


@pytest.mark.parametrize(
    ("defect", "law", "words"), DEFECTS, ids=lambda x: getattr(x, "__name__", "")
)
async def test_a_defect_is_seen_and_told(defect: Any, law: str, words: str) -> None:
    make = defect if issubclass(defect, Faulty) else partial(Faulty, handle=defect)
    with pytest.raises(BrokenStore) as caught:
        await check_store(make, seconds=0.2 if defect is HangsWhenTwoFlush else 60)
    assert law in {broken.law for broken in caught.value.broken}
    assert words in str(caught.value)
    kept = len(STORE_LAWS) - len(SKIPPED["memory"]) - len(caught.value.broken)
    assert str(caught.value).startswith(f"{kept} laws kept, {len(caught.value.broken)} broken:\n- ")


async def test_without_a_defect_the_wrapping_is_a_store() -> None:
    verdict = await check_store(Faulty)
    assert verdict.kept == tuple(law for law in STORE_LAWS if law not in SKIPPED["memory"])


@contextmanager
def swallowing(store: Store) -> Iterator[None]:
    """Writes fail, and nobody is told."""
    yield


@contextmanager
def forgetting(store: Any) -> Iterator[None]:
    with failing(store):
        try:
            yield
        finally:
            for file in store._files.values():
                if file.owner is not None:
                    file.owner._buffer.settle(len(file.owner._buffer.pending()))


@pytest.mark.parametrize(
    ("broken", "law", "words"),
    [
        (
            {"failing": swallowing},
            "a_failed_flush_loses_nothing",
            "cannot write: expected StoreError",
        ),
        ({"failing": swallowing}, "a_close_that_fails_gives_ownership_up", "a close that cannot"),
        ({"failing": forgetting}, "a_failed_flush_loses_nothing", "after a failed flush and one"),
    ],
)
async def test_failures_that_are_swallowed_are_seen(
    broken: dict[str, Any], law: str, words: str
) -> None:
    with pytest.raises(BrokenStore, match=words):
        await check_store(SimulatedDisk, only=[law], **broken)


async def test_tears_that_are_not_told_or_not_cut_are_seen(tmp_path: Path) -> None:
    def make() -> Store:
        return JsonlStore(tempfile.mkdtemp(dir=tmp_path))

    async def untold(store: Store, session_id: str) -> Store:
        return store

    async def cut_too_much(store: Store, session_id: str) -> Store:
        path = Path(str(store.locate(session_id)))
        path.write_bytes(path.read_bytes()[:-3])
        return store

    for broken, words in ((untold, "repaired is empty"), (cut_too_much, "expected events 0, 1, 2")):
        with pytest.raises(BrokenStore, match=words):
            await check_store(make, only=["a_torn_end_is_cut_and_told"], tear=broken)


async def test_a_store_that_only_seems_fresh(tmp_path: Path) -> None:
    with pytest.raises(BrokenStore, match="make_store has to give an empty store; it has session"):
        await check_store(lambda: JsonlStore(tmp_path))


async def test_what_another_store_does_not_see_is_not_stored() -> None:
    """*reopen* gives a store over other storage."""
    with pytest.raises(BrokenStore, match="SessionNotFound was raised: there is no session 's'"):
        await check_store(
            MemoryStore, reopen=lambda store: MemoryStore(), only=["a_created_session_exists"]
        )


async def test_a_law_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidValue, match="there is no law 'gravity'; STORE_LAWS has all names"):
        await check_store(MemoryStore, only=["gravity"])
