"""The layouts of log files: what they promise alike, and what the packed ones promise more."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import pytest
import trio
from attrs import evolve
from hypothesis import given, settings, strategies as st

from terzetto import vocabulary as v
from terzetto.commands._checks import check
from terzetto.commands._stored import read_log_file
from terzetto.session._codec import dumps_event
from terzetto.stores import JsonlStore, _jsonl_zstd
from terzetto.stores._jsonl_file import load
from terzetto.stores._jsonl_layouts import LayoutName
from terzetto.stores._jsonl_lines import LAYOUTS as KEPT
from terzetto.stores._records import STRIDE, Place
from terzetto.vocabulary import CorruptLog, Event, InvalidValue, SessionNotFound, StoreError

LAYOUTS: tuple[LayoutName, ...] = ("plain", "packed", "zstd")
CHECKED: tuple[LayoutName, ...] = ("packed", "zstd")
HEADER = v.SessionHeader(id=v.SessionId("s"), created_ms=5)


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


def stream(count: int, start: int = 0) -> list[Event]:
    """A turn, a step, and an answer in so many pieces, one of them a call's."""
    events = [Event(0, 1_000, v.TurnStart(1)), Event(1, 1_001, v.StepStart(1, 1))]
    for seq in range(2, count):
        piece: v.StreamChunk = v.TextDelta(0, f"wörd{seq} ")
        if seq % 7 == 6:
            piece = v.ToolCallDelta(1, v.CallId("c"), f'{{"n":{seq}}}')
        events.append(Event(seq, 1_001 + seq * 3, v.AssistantChunk(1, 1, piece)))
    return events[start:count]


@given(st.integers(0, 3 * STRIDE), st.integers(0, 2 * STRIDE), st.integers(0, 9_999))
def test_what_is_appended_to_a_plain_log_says_where_its_lines_are(
    start: int, count: int, offset: int
) -> None:
    """However much it is: its lines, where they end, and where each 256th event is."""
    at = Place(start, offset, start + 3)
    events = [Event(start + i, 1_000, v.TurnStart(i)) for i in range(count)]
    lines = [dumps_event(event) + b"\n" for event in events]
    packed = KEPT["plain"].pack(events, at)
    assert packed.data == b"".join(lines)
    assert packed.end == Place(start + count, offset + len(packed.data), start + 3 + count)
    assert list(packed.places) == [
        Place(event.seq, offset + sum(map(len, lines[:i])), event.seq + 3)
        for i, event in enumerate(events)
        if event.seq % STRIDE == 0
    ]


def write(folder: Path, layout: LayoutName, events: list[Event], each: int = 5) -> Path:
    """A log that was flushed after every *each* events."""

    async def main() -> Path:
        store = JsonlStore(folder, layout=layout)
        handle = await store.create(HEADER)
        for event in events:
            handle.append(event)
            if event.seq % each == each - 1:
                await handle.flush()
        await handle.close()
        return Path(store.locate("s"))

    return trio.run(main)


@cache
def written(layout: LayoutName, count: int = 12, each: int = 5) -> bytes:
    """The file that `write` makes."""
    one, events = KEPT[layout], stream(count)
    data = one.begin(HEADER)
    place = Place(0, len(data), 2)
    for start in range(0, count, each):
        packed = one.pack(events[start : start + each], place)
        data, place = data + packed.data, packed.end
        assert (place.seq, place.offset) == (min(start + each, count), len(data))
    return data


def test_what_is_written_here_is_what_a_store_writes(layout: LayoutName, tmp_path: Path) -> None:
    assert write(tmp_path, layout, stream(33), 7).read_bytes() == written(layout, 33, 7)


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> LayoutName:
    name: LayoutName = request.param
    return name


# --- alike ------------------------------------------------------------------------------


async def test_a_file_goes_on_in_its_own_layout(layout: LayoutName, tmp_path: Path) -> None:
    """Whatever the store was made with that opens it."""
    events = stream(30)
    for number, other in enumerate(LAYOUTS):
        folder = tmp_path / other
        handle = await JsonlStore(folder, layout=layout).create(HEADER)
        for event in events[:10]:
            handle.append(event)
        await handle.close()
        store = JsonlStore(folder, layout=other)
        again = await store.open("s")
        assert (again.header, again.repaired, again.durable_seq) == (HEADER, None, 9)
        for event in events[10:]:
            again.append(event)
        await again.close()
        assert await store.read("s") == (HEADER, events)
        assert await store.list() == [HEADER]
        data = Path(store.locate("s")).read_bytes()
        assert data.startswith(written(layout)[:12]), number
        if layout != "zstd":
            assert (b"crc" in data.splitlines()[-1]) == (layout == "packed")
        await store.delete("s")
        assert not list(folder.glob("*.jsonl"))


async def test_a_folder_can_have_all_layouts(tmp_path: Path) -> None:
    for number, name in enumerate(LAYOUTS):
        header = evolve(HEADER, id=v.SessionId(name), created_ms=number)
        await (await JsonlStore(tmp_path, layout=name).create(header)).close()
    assert [one.id for one in await JsonlStore(tmp_path).list()] == list(LAYOUTS)


@pytest.mark.parametrize("count", [0, 5])
async def test_a_tear_at_any_byte_loses_what_was_not_finished(
    layout: LayoutName, tmp_path: Path, count: int
) -> None:
    """BC-42, at every byte of a whole log: what is kept is a prefix, and goes on."""
    path, store = tmp_path / "s.jsonl", JsonlStore(tmp_path)
    events, whole = stream(count), written(layout, count, 3)
    acknowledged = {len(written(layout, n, 3)): n for n in range(0, count, 3)} | {len(whole): count}
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        at_least = max((n for size, n in acknowledged.items() if size <= cut), default=None)
        if at_least is None:
            assert await store.list() == []
            with pytest.raises(SessionNotFound):
                await store.open("s")
            continue
        seen = (await store.read("s"))[1]
        assert path.stat().st_size == cut  # a reader repairs nothing
        handle = await store.open("s")
        assert await handle.read() == seen == events[: len(seen)]
        assert len(seen) >= at_least
        assert (handle.repaired is None) == (path.stat().st_size == cut)
        if cut in acknowledged:
            assert (handle.repaired, len(seen)) == (None, at_least)
        handle.append(Event(len(seen), 9_999, v.TurnStart(1)))
        await handle.close()
        again = await store.open("s")
        assert (again.repaired, again.durable_seq) == (None, len(seen))
        await again.close()
        assert check(read_log_file(path)).problems == 0 or len(seen) > 0


async def test_a_creation_that_died_at_any_byte_can_be_made_again(
    layout: LayoutName, tmp_path: Path
) -> None:
    path, store = tmp_path / "s.jsonl", JsonlStore(tmp_path, layout=layout)
    beginning = written(layout, 0)
    for cut in range(len(beginning)):
        path.write_bytes(beginning[:cut])
        with pytest.raises(SessionNotFound):
            await store.delete("s")
        await (await store.create(HEADER)).close()
        assert path.read_bytes() == beginning
        path.unlink()


async def test_damage_before_the_end_is_refused_with_its_place(
    layout: LayoutName, tmp_path: Path
) -> None:
    """Every 5th byte, by every door; nothing is written."""
    path, store = tmp_path / "s.jsonl", JsonlStore(tmp_path)
    whole, events = written(layout, 30, 5), stream(30)
    safe = len(written(layout, 25, 5))
    for at in range(0, safe, 5):
        path.write_bytes(whole[:at] + b"\x01" + whole[at + 1 :])
        damaged = path.read_bytes()
        for door in (open_and_read, look, store_read):
            with pytest.raises(StoreError) as caught:
                await door(store)
            if isinstance(caught.value, CorruptLog):
                assert "byte" in caught.value.position
        assert path.read_bytes() == damaged
    path.write_bytes(whole)
    assert await store_read(store) == events


async def open_and_read(store: JsonlStore) -> list[Event]:
    handle = await store.open("s")
    try:
        return await handle.read()
    finally:
        await handle.close()


async def look(store: JsonlStore) -> list[Event]:
    return await (await store.open("s", "read")).read()


async def store_read(store: JsonlStore) -> list[Event]:
    return (await store.read("s"))[1]


@pytest.mark.parametrize("gap", [0, 40])
async def test_a_page_that_never_reached_the_disk_is_a_tear(
    layout: LayoutName, tmp_path: Path, gap: int
) -> None:
    """The size of a file may be written before what is in it, which then is zeros."""
    whole = written(layout, 10, 5)
    path, store = tmp_path / "s.jsonl", JsonlStore(tmp_path)
    more = written(layout, 12, 5)[len(whole) :]
    for hole in (
        bytes(600),
        more[:gap] + bytes(600),
        bytes(len(more) - gap) + more[len(more) - gap :],
    ):
        path.write_bytes(whole + hole)
        handle = await store.open("s")
        assert handle.repaired is not None
        assert handle.durable_seq == 9
        await handle.close()
        assert path.read_bytes() == whole


@pytest.mark.parametrize("layout", CHECKED)
@pytest.mark.parametrize("at", range(20))
async def test_a_sector_that_never_reached_the_disk_is_a_tear(
    layout: LayoutName, tmp_path: Path, at: int
) -> None:
    """Wherever the last record lies in its sectors, and whichever of them is missing."""
    one, events = KEPT[layout], [Event(0, 1_000, v.TurnStart(1))]
    name = v.SessionId("s")
    text = "".join(chr(97 + (n * n * 7 + n // 3) % 26) for n in range(3_000))
    header = evolve(HEADER, id=name, meta=v.freeze_object({"pad": text[: at * 29]}))
    data = one.begin(header)
    before = one.pack(events, Place(0, len(data), 2))
    data += before.data
    long = Event(
        1,
        1_001,
        v.Extension(
            "my/x",
            v.freeze_object({"text": text}),
        ),
        ignorable=True,
    )
    last = one.pack([long], before.end).data
    whole = data + last
    path, store = tmp_path / "s.jsonl", JsonlStore(tmp_path)
    ends = [len(data), *range(-(-len(data) // 512) * 512, len(whole), 512), len(whole)]
    for begin, end in pairwise(sorted(set(ends))):
        path.write_bytes(whole[:begin] + bytes(end - begin) + whole[end:])
        handle = await store.open("s")
        assert (handle.durable_seq, handle.repaired is not None) == (0, True), (begin, end)
        await handle.close()
        assert path.read_bytes() == data


@pytest.mark.parametrize("layout", CHECKED)
def test_a_zero_in_the_last_record_is_damage_and_no_tear(
    layout: LayoutName, tmp_path: Path
) -> None:
    """C148: what was acknowledged is not cut off for one byte that is not what it was."""
    start, whole = len(written(layout, 6, 6)), written(layout, 12, 6)
    path = tmp_path / "s.jsonl"
    edges = {n + d for n in range(0, len(whole) + 513, 512) for d in (-1, 0)}
    edges |= {start, len(whole) - 1}
    for at in sorted({*range(start, len(whole) - 1)} - edges):
        if whole[at]:
            path.write_bytes(whole[:at] + b"\0" + whole[at + 1 :])
            with pytest.raises(CorruptLog):
                load(path)


def test_a_last_frame_that_ends_with_a_zero_is_not_torn_for_it(tmp_path: Path) -> None:
    """The checksum at the end of a frame may be anything."""
    one, data = KEPT["zstd"], KEPT["zstd"].begin(HEADER)
    place, path = Place(0, len(data), 2), tmp_path / "s.jsonl"
    last = next(
        unit
        for time in range(10_000)
        if not (unit := one.pack([Event(0, time, v.TurnStart(1))], place).data)[-1]
        and (len(data) + len(unit)) % 512 != 1
    )
    for at in range(1, len(last) - 1):
        path.write_bytes(data + last[:at] + bytes([last[at] ^ 4]) + last[at + 1 :])
        with pytest.raises(CorruptLog):
            load(path)


async def test_a_failed_write_is_made_good(
    layout: LayoutName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, events = JsonlStore(tmp_path, layout=layout), stream(40)
    handle = await store.create(HEADER)

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "no")

    for event in events:
        handle.append(event)
        if event.seq % 10 == 4:
            with monkeypatch.context() as patch:
                patch.setattr(os, "fdatasync", fail)
                with pytest.raises(StoreError):
                    await handle.flush()
        if event.seq % 10 == 9:
            await handle.flush()
            assert await handle.read(event.seq) == [event]
    await handle.close()
    assert await store.read("s") == (HEADER, events)
    assert check(read_log_file(tmp_path / "s.jsonl")).problems == 0


async def test_an_event_that_cannot_be_written_is_a_store_error(
    layout: LayoutName, tmp_path: Path
) -> None:
    handle = await JsonlStore(tmp_path, layout=layout).create(HEADER)
    handle.append(Event(0, 0, v.TurnStart("one")))  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=r"event 0 \(TurnStart\) cannot be written"):
        await handle.flush()
    with pytest.raises(StoreError):
        await handle.close()


# --- what reading costs -----------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many bytes were read since it was last asked."""
    real, read = os.pread, [0]

    def pread(fd: int, length: int, offset: int) -> bytes:
        found = real(fd, length, offset)
        read[0] += len(found)
        return found

    def since() -> int:
        found, read[0] = read[0], 0
        return found

    monkeypatch.setattr(os, "pread", pread)
    return since


async def test_a_range_costs_what_it_is_long(
    layout: LayoutName, tmp_path: Path, counted: Callable[[], int]
) -> None:
    """Not what the log is long: a reader that has been there once knows the way."""
    events = stream(20_000)
    store = JsonlStore(tmp_path, layout=layout)
    handle = await store.create(HEADER)
    for start in range(0, len(events), 500):
        for event in events[start : start + 500]:
            handle.append(event)
        await handle.flush()
    size = (tmp_path / "s.jsonl").stat().st_size
    reader = await store.open("s", "read")
    await reader.read(19_990)  # it looks for the way
    for one in (handle, reader):
        counted()
        for start in (0, 9_000, 19_990):
            assert await one.read(start, start + 10) == events[start : start + 10]
        assert counted() < max(size // 3, 3 * 40_000)
    assert len(handle._index) <= len(events) // STRIDE + 2
    await handle.close()
    counted()
    again = await store.open("s")
    assert counted() < 2 * size + 5_000
    assert len(again._index) <= len(events) // STRIDE + 2
    await again.close()


@pytest.mark.parametrize("layout", CHECKED[:1] + LAYOUTS[:1])
def test_opening_a_log_does_not_hold_it(layout: LayoutName, tmp_path: Path) -> None:
    write(tmp_path, layout, stream(30_000), each=1_000)

    async def main() -> int:
        store = JsonlStore(tmp_path)
        tracemalloc.start()
        handle = await store.open("s")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert handle.durable_seq == 29_999
        await handle.close()
        return peak

    # Two blocks, and the lines of one; the events alone would be some 15 MB.
    assert trio.run(main) < 6 * (1 << 20)


async def test_a_reader_forgets_places_that_were_lost(layout: LayoutName, tmp_path: Path) -> None:
    """It saw events that never became durable; others came in their place, and lie otherwise."""
    store = JsonlStore(tmp_path, layout=layout)
    handle = await store.create(HEADER)
    await handle.close()
    path, events = tmp_path / "s.jsonl", stream(1_000)
    whole = path.read_bytes()
    path.write_bytes(written(layout, 1_000, 300))
    reader = await store.open("s", "read")
    assert await reader.read(900) == events[900:]
    others = [evolve(e, data=v.TurnStart(e.seq), time_ms=7) for e in events]
    path.write_bytes(whole)
    handle = await store.open("s")
    for event in others:
        handle.append(event)
    await handle.close()
    assert await reader.read(900) == others[900:]
    assert await reader.read(300, 310) == others[300:310]


# --- what checksums find ----------------------------------------------------------------


def problems(data: bytes) -> list[str]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "s.jsonl"
        path.write_bytes(data)
        try:
            return [one.what for one in check(read_log_file(path)).findings if one.problem]
        except StoreError as error:  # as the command tells it
            return [str(error)]


@pytest.mark.parametrize("layout", CHECKED)
def test_every_changed_byte_is_found(layout: LayoutName) -> None:
    """C148: in packed and zstd, any byte, the last record's too. Plain cannot promise it."""
    whole = written(layout, 10, 6)
    assert problems(whole) == []
    for at in range(len(whole)):
        for byte in {whole[at] ^ 1, (0, 255, 10, whole[at] ^ 32)[at % 4]} - {whole[at]}:
            assert problems(whole[:at] + bytes([byte]) + whole[at + 1 :]), (at, byte)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CHECKED), st.data())
def test_a_changed_byte_never_gives_other_events(layout: LayoutName, data: st.DataObject) -> None:
    """A store refuses it, or cuts it off as a tear, and says so; and verify finds it."""
    whole, events = written(layout, 30, 10), stream(30)
    at = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[at]))
    changed = whole[:at] + bytes([byte]) + whole[at + 1 :]
    assert problems(changed)

    async def main(folder: str) -> None:
        (Path(folder) / "s.jsonl").write_bytes(changed)
        try:
            handle = await JsonlStore(folder).open("s")
        except StoreError:
            return
        found = await handle.read()
        assert handle.repaired is not None
        assert found == events[: len(found)]
        await handle.close()

    with TemporaryDirectory() as folder:
        trio.run(main, folder)


def test_what_plain_cannot_find() -> None:
    """The words of the docs: a letter of a text is a letter, in a layout without checksums."""
    whole = written("plain", 30, 10)
    assert problems(whole.replace("wörd9 ".encode(), "wörd8 ".encode(), 1)) == []


@pytest.mark.parametrize("layout", CHECKED)
def test_parts_that_change_places_are_found(layout: LayoutName) -> None:
    """Each is what was written, only not there."""
    ends = [len(written(layout, n, 10)) for n in (0, 10, 20, 30)]
    whole = written(layout, 30, 10)
    first, second, third = (whole[a:b] for a, b in pairwise(ends))
    beginning = whole[: ends[0]]
    for parts in ((second, first, third), (first, third), (first, first, second), (second,)):
        assert problems(beginning + b"".join(parts))


# --- zstd -------------------------------------------------------------------------------


@pytest.mark.skipif(which("zstd") is None, reason="the command zstd is not installed")
def test_the_command_of_zstd_gives_the_packed_lines(tmp_path: Path) -> None:
    """A file that was appended to, as one of another tool: checked, decompressed, and opened."""
    path = write(tmp_path, "zstd", stream(40), each=3)
    subprocess.run(["zstd", "-t", "-q", path], check=True, stderr=subprocess.DEVNULL)
    found = subprocess.run(["zstd", "-dc", path], check=True, stdout=subprocess.PIPE).stdout
    assert found == written("packed", 40, 3)


def test_a_large_flush_is_more_than_one_frame(tmp_path: Path) -> None:
    events = [
        evolve(e, data=v.AssistantChunk(1, 1, v.BlockStart(e.seq, "text"))) for e in stream(12_000)
    ]
    path = write(tmp_path, "zstd", events, each=12_000)
    assert path.read_bytes().count(_jsonl_zstd.MAGIC) > 3
    assert trio.run(JsonlStore(tmp_path).read, "s")[1] == events


def test_a_length_that_was_changed_is_no_tear(tmp_path: Path) -> None:
    """It reaches behind the end of the file, as that of a frame that was never finished does."""
    whole = bytearray(written("zstd", 10, 10))
    last = whole.rindex(_jsonl_zstd.MAGIC)
    whole[last + 10] = 1
    (tmp_path / "s.jsonl").write_bytes(whole)
    with pytest.raises(CorruptLog, match=f"frame at byte {last}: it is not what was written"):
        trio.run(JsonlStore(tmp_path).open, "s")


@pytest.fixture
def without_zstandard(monkeypatch: pytest.MonkeyPatch) -> None:
    written("zstd")  # once, while it is there
    monkeypatch.setitem(sys.modules, "zstandard", None)


@pytest.mark.usefixtures("without_zstandard")
def test_what_to_install_is_said(tmp_path: Path) -> None:
    with pytest.raises(v.UsageError, match=r'pip install "terzetto\[zstd\]"'):
        JsonlStore(tmp_path, layout="zstd")
    (tmp_path / "s.jsonl").write_bytes(written("zstd"))
    store = JsonlStore(tmp_path)
    for door in (open_and_read, look, store_read):
        with pytest.raises(StoreError, match=r'"terzetto\[zstd\]"') as caught:
            trio.run(door, store)
        assert not isinstance(caught.value, CorruptLog)
    assert trio.run(store.list) == []
    assert (tmp_path / "s.jsonl").read_bytes() == written("zstd")
    JsonlStore(tmp_path, layout="packed")  # needs nothing more


def test_nobody_imports_zstandard_who_does_not_use_it() -> None:
    source = "import sys, terzetto; terzetto.JsonlStore('x'); print('zstandard' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", source], check=True, stdout=subprocess.PIPE)
    assert found.stdout == b"False\n"


def test_there_is_no_other_layout(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="expected one of plain, packed, zstd, got 'gzip'"):
        JsonlStore(tmp_path, layout="gzip")  # type: ignore[arg-type]
    assert repr(JsonlStore("/x", layout="zstd")) == "JsonlStore('/x', layout='zstd')"
    assert repr(JsonlStore("/x")) == "JsonlStore('/x')"


# --- packed -----------------------------------------------------------------------------


def test_a_packed_log_says_so_in_its_first_line() -> None:
    first, *lines = written("packed").splitlines()
    assert first.startswith(b'{"formatVersion":2,"id":"s","createdMs":5,"durability":"step","crc":')
    assert all("crc" in json.loads(line) for line in lines)
    assert len(lines) < 8


def test_a_plain_log_is_what_it_was() -> None:
    lines = written("plain", 5).splitlines()
    assert lines[0] == b'{"formatVersion":1,"id":"s","createdMs":5,"durability":"step"}'
    assert lines[1:] == [dumps_event(event) for event in stream(5)]
