"""Log files: what is in them, torn ends, damage, and who owns them."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import terzetto
from terzetto.session._codec import dumps_event
from terzetto.stores.jsonl import JsonlStore
from terzetto.vocabulary import (
    CorruptLog,
    Event,
    MessageId,
    SessionExists,
    SessionHeader,
    SessionId,
    SessionLocked,
    SessionNotFound,
    StoreError,
    TextBlock,
    TurnStart,
    UserMessage,
    UserMessageEvent,
)

HEADER = SessionHeader(id=SessionId("s"), created_ms=5)
# Characters of one, two, three and four bytes, so that a tear can split one.
TEXT = "a \u00e9 \u20ac \U0001f600"


def record(seq: int) -> Event:
    message = UserMessage((TextBlock(TEXT),), id=MessageId(f"m{seq}"))
    return Event(seq, 1000 + seq, UserMessageEvent(message))


@pytest.fixture
def store(tmp_path: Path) -> JsonlStore:
    return JsonlStore(tmp_path / "sessions")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sessions" / "s.jsonl"


async def write(store: JsonlStore, count: int) -> None:
    handle = await store.create(HEADER)
    for seq in range(count):
        handle.append(record(seq))
    await handle.close()


def rewrite(file: Path, number: int, line: bytes) -> int:
    """Put *line* in the place of line *number*, counted from 1; the byte where it begins."""
    lines = file.read_bytes().splitlines(keepends=True)
    lines[number - 1] = line
    file.write_bytes(b"".join(lines))
    return len(b"".join(lines[: number - 1]))


async def test_the_file_is_a_header_and_one_event_a_line(store: JsonlStore, file: Path) -> None:
    await write(store, 2)
    header, *events = file.read_bytes().split(b"\n")
    assert header == b'{"formatVersion":1,"id":"s","createdMs":5,"durability":"step"}'
    assert events == [dumps_event(record(0)), dumps_event(record(1)), b""]


async def test_only_the_owner_of_the_files_may_read_them(store: JsonlStore, file: Path) -> None:
    before = os.umask(0)
    try:
        handle = await store.create(HEADER)
    finally:
        os.umask(before)
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()}
    assert found == {"s.jsonl": 0o600, "s.owner": 0o600}
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    await handle.close()
    assert [path.name for path in file.parent.iterdir()] == ["s.jsonl"]


async def test_making_a_store_touches_nothing(store: JsonlStore, tmp_path: Path) -> None:
    assert await store.list() == []
    with pytest.raises(SessionNotFound):
        await store.open("s")
    assert list(tmp_path.iterdir()) == []


# --- torn ends --------------------------------------------------------------------------


async def test_a_tear_at_any_byte_of_the_last_two_records_loses_them_only(
    store: JsonlStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)  # hundreds of syncs prove no more
    await write(store, 4)
    whole = file.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(ends[2], len(whole) + 1):
        file.write_bytes(whole[:cut])
        kept = sum(end <= cut for end in ends) - 1
        torn = cut not in ends
        assert (await store.read("s"))[1] == [record(seq) for seq in range(kept)]
        assert file.stat().st_size == cut  # a reader repairs nothing
        handle = await store.open("s")
        assert (handle.repaired is not None) == torn
        assert file.read_bytes() == whole[: ends[kept]]
        assert await handle.read() == [record(seq) for seq in range(kept)]
        handle.append(record(kept))
        await handle.close()
        assert (await store.read("s"))[1] == [record(seq) for seq in range(kept + 1)]
        assert all(json.loads(line) for line in file.read_bytes().splitlines())


@pytest.mark.parametrize("tail", [b'{"type":"turn/start","seq":2,', b"\0" * 40, b"", b"\xff"])
@pytest.mark.parametrize("newline", [b"", b"\n"])
async def test_an_end_that_is_no_json_is_cut_and_reported(
    store: JsonlStore, file: Path, tail: bytes, newline: bytes
) -> None:
    await write(store, 2)
    whole = file.read_bytes()
    file.write_bytes(whole + tail + newline)
    handle = await store.open("s")
    length = len(tail + newline)
    assert handle.repaired == (
        f"cut {length} bytes of an unfinished record, line 4" if length else None
    )
    assert handle.durable_seq == 1
    assert file.read_bytes() == whole
    await handle.close()


# --- damage -----------------------------------------------------------------------------


NOT_JSON = [(line, "not JSON", 4) for line in (b"nonsense\n", b"\n", b'{"type"\n')]
NOT_EVENTS = [
    (line, text, count)
    for count in (2, 4)
    for line, text in (
        (b'{"type":"turn/start","seq":1,"time":0,"data":{}}\n', r"\$\.data\.turn: missing"),
        (dumps_event(Event(2, 0, TurnStart(1))) + b"\n", "seq 2 where 1 comes next"),
        (b"[]\n", "expected an object"),
    )
]


@pytest.mark.parametrize(("line", "text", "count"), NOT_JSON + NOT_EVENTS)
async def test_damage_is_refused_with_line_and_byte(
    store: JsonlStore, file: Path, line: bytes, text: str, count: int
) -> None:
    await write(store, count)
    byte = rewrite(file, 3, line)
    damaged = file.read_bytes()
    for attempt in (open_and_read, JsonlStore.read, look):
        with pytest.raises(CorruptLog, match=text) as caught:
            await attempt(store, "s")
        assert caught.value.position == f"line 3, byte {byte}"
    assert file.read_bytes() == damaged


async def open_and_read(store: JsonlStore, session_id: str) -> None:
    """As resuming does: damage inside of an event may be met when that is decoded."""
    handle = await store.open(session_id)
    try:
        await handle.read()
    finally:
        await handle.close()


async def look(store: JsonlStore, session_id: str) -> None:
    reader = await store.open(session_id, "read")
    await reader.read()


async def test_a_log_in_the_place_of_another_is_refused(store: JsonlStore, file: Path) -> None:
    await write(store, 1)
    file.with_name("t.jsonl").write_bytes(file.read_bytes())
    with pytest.raises(CorruptLog, match="'s' in the place of 't'"):
        await store.open("t")


@pytest.mark.parametrize(("version", "age"), [(3, "newer"), (99, "newer"), (0, "older")])
async def test_another_format_is_no_damage(
    store: JsonlStore, file: Path, version: int, age: str
) -> None:
    await write(store, 1)
    rewrite(file, 1, b'{"formatVersion":%d,"identity":{}}\n' % version)
    with pytest.raises(StoreError, match=f"written by an? {age} terzetto") as caught:
        await store.open("s")
    assert not isinstance(caught.value, CorruptLog)


async def test_other_files_are_left_out_of_the_list(
    store: JsonlStore, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await write(store, 1)
    (file.parent / "notes.txt").write_text("mine")
    (file.parent / "half.jsonl").write_text('{"formatVersion":1,"id":"ha')
    (file.parent / "odd.jsonl").write_text("what\never\n")
    (file.parent / "copy.jsonl").write_bytes(file.read_bytes())
    with caplog.at_level(logging.WARNING, "terzetto"):
        assert await store.list() == [HEADER]
    told = sorted(entry.getMessage() for entry in caplog.records)
    assert len(told) == 2
    assert "copy.jsonl" in told[0]
    assert "odd.jsonl" in told[1]


async def test_a_creation_that_died_at_any_byte_can_be_made_again(
    store: JsonlStore, file: Path
) -> None:
    await write(store, 0)
    line = file.read_bytes()
    for cut in range(len(line)):
        file.write_bytes(line[:cut])
        assert await store.list() == []
        for attempt in (store.open, store.read):
            with pytest.raises(SessionNotFound):
                await attempt("s")
        await write(store, 1)
        assert await store.read("s") == (HEADER, [record(0)])
        file.unlink()


async def test_a_file_of_somebody_elses_is_not_taken_over(store: JsonlStore, file: Path) -> None:
    file.parent.mkdir()
    file.write_text("no newline, and not ours")
    with pytest.raises(SessionExists):
        await store.create(HEADER)
    with pytest.raises(CorruptLog, match="line 1, byte 0"):
        await store.open("s")
    assert file.read_text() == "no newline, and not ours"


# --- ownership --------------------------------------------------------------------------

CHILD = """
import sys, trio
from terzetto.stores import JsonlStore
from terzetto.vocabulary import Event, TurnStart

async def main():
    handle = await JsonlStore(sys.argv[1]).open("s")
    handle.append(Event(handle.durable_seq + 1, 0, TurnStart(1)))
    await handle.flush()
    print("ready", flush=True)
    sys.stdin.read()

trio.run(main)
"""


async def test_two_processes_never_own_one_session(store: JsonlStore, file: Path) -> None:
    await write(store, 1)
    child = await trio.lowlevel.open_process(
        [sys.executable, "-c", CHILD, str(file.parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(terzetto.__file__).parents[1])},
    )
    try:
        assert child.stdout is not None
        told = b""
        while not told.endswith(b"\n"):
            part = await child.stdout.receive_some()
            assert part, "the child died"
            told += part
        before = file.read_bytes()
        with pytest.raises(SessionLocked, match=f"open for writing in process {child.pid};"):
            await store.open("s")
        with pytest.raises(SessionExists):
            await store.create(HEADER)
        assert file.read_bytes() == before
        assert len((await store.read("s"))[1]) == 2
    finally:
        child.kill()
        await child.wait()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            await pipe.aclose()
    assert file.with_name("s.owner").exists()  # nobody was left to remove it
    handle = await store.open("s")
    assert handle.durable_seq == 1
    with pytest.raises(SessionLocked, match=rf"in this process \({os.getpid()}\)"):
        await store.open("s")
    await handle.close()


async def test_two_stores_of_one_process_share_the_lock(store: JsonlStore, file: Path) -> None:
    await write(store, 1)
    handle = await JsonlStore(file.parent).open("s")
    with pytest.raises(SessionLocked):
        await store.open("s")
    file.with_name("s.owner").unlink()
    with pytest.raises(SessionLocked, match="another process"):
        await store.open("s")
    await handle.close()
    await (await store.open("s")).close()


async def test_a_failed_open_leaves_no_lock_and_no_descriptor(
    store: JsonlStore, file: Path
) -> None:
    await write(store, 3)
    whole = file.read_bytes()
    rewrite(file, 2, b"nonsense\n")
    await count_descriptors_after(store)
    before = await count_descriptors_after(store)
    for _ in range(3):
        assert await count_descriptors_after(store) == before
    file.write_bytes(whole)
    await (await store.open("s")).close()


async def count_descriptors_after(store: JsonlStore) -> int:
    with pytest.raises(CorruptLog):
        await store.open("s")
    return len(os.listdir("/dev/fd"))
