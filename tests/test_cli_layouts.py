"""The commands for stored sessions on each layout of log files: they say the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

import terzetto
from terzetto.commands._stored import read_log_file
from terzetto.stores._jsonl_layouts import LayoutName
from tests.commands import in_process, linux_like
from tests.stored import digest, talk

pytestmark = linux_like
Capture = pytest.CaptureFixture[str]
LAYOUTS: tuple[LayoutName, ...] = ("packed", "zstd")


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """The same session in each layout."""
    found = {name: tmp_path / name / "log" for name in ("plain", *LAYOUTS)}
    trio.run(talk, found["plain"], "tea", True)
    trio.run(keep_in_all, found)
    return found


async def keep_in_all(folders: dict[str, Path]) -> None:
    known = {"my-app/note"}
    header, events = await terzetto.JsonlStore(folders["plain"], extensions=known).read("tea")
    for layout in LAYOUTS:
        store = terzetto.JsonlStore(folders[layout], layout=layout, extensions=known)
        handle = await store.create(header)
        for event in events:
            handle.append(event)
            if event.seq % 6 == 5:
                await handle.flush()
        await handle.close()


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def without_sizes(text: str) -> list[str]:
    """How large a file is, and where it is, is what may differ."""
    words = ("log ", "SIZE", " KiB", " B", "bytes", "path")
    return [line for line in lines(text) if not any(word in line for word in words)]


@pytest.mark.parametrize(
    "words",
    [
        ("show", "tea"),
        ("show", "tea", "--turn", "2"),
        ("show", "tea", "--json"),
        ("export", "tea"),
        ("verify", "--extension", "my-app/note"),
        ("verify", "tea", "--extension", "my-app/note"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_is_said_of_each_layout(
    words: tuple[str, ...], layout: str, folders: dict[str, Path], capsys: Capture
) -> None:
    """And nothing is changed."""
    before = digest(folders[layout])
    expected = in_process(capsys, *words, "--log", str(folders["plain"]))
    found = in_process(capsys, *words, "--log", str(folders[layout]))
    assert found[0] == expected[0] == 0
    assert found[2] == expected[2] == ""
    assert without_sizes(found[1]) == without_sizes(expected[1])
    assert without_sizes(found[1])
    assert digest(folders[layout]) == before


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sessions_are_listed(layout: str, folders: dict[str, Path], capsys: Capture) -> None:
    code, out, err = in_process(capsys, "sessions", "--log", str(folders[layout]))
    assert (code, err) == (0, "")
    [_, row] = out.splitlines()
    assert row.split()[0] == "tea"
    assert "damaged" not in row
    path = str(folders[layout] / "tea.jsonl")
    code, out, _ = in_process(capsys, "show", path)
    assert code == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_session_is_forked(layout: str, folders: dict[str, Path], capsys: Capture) -> None:
    code, _, err = in_process(
        capsys, "fork", "tea", "--at", "1", "--as", "two", "--log", str(folders[layout])
    )
    assert (code, err) == (0, "")
    header, events = trio.run(terzetto.JsonlStore(folders[layout]).read, "two")
    assert header.parent_id == "tea"
    assert len(events) == header.seed_length + 1
    # A fork is kept as its source is.
    assert read_log_file(folders[layout] / "two.jsonl").layout == layout


@pytest.mark.parametrize("layout", LAYOUTS)
def test_damage_is_told_with_its_place(
    layout: str, folders: dict[str, Path], capsys: Capture
) -> None:
    log = folders[layout] / "tea.jsonl"
    data = log.read_bytes()
    middle = len(data) // 2
    log.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    code, out, _ = in_process(capsys, "verify", "--log", str(folders[layout]))
    assert code == 1
    assert "checksum is wrong" in out
    assert "byte " in out
    for command in ("show", "export"):
        code, out, err = in_process(capsys, command, "tea", "--log", str(folders[layout]))
        assert (code, out) == (1, "")
        assert "is damaged, or no log of Terzetto" in err
    code, out, _ = in_process(capsys, "sessions", "--log", str(folders[layout]))
    assert "damaged: " in out


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_torn_end_is_told(layout: str, folders: dict[str, Path], capsys: Capture) -> None:
    log = folders[layout] / "tea.jsonl"
    log.write_bytes(log.read_bytes()[:-3])
    code, out, _ = in_process(capsys, "verify", "--log", str(folders[layout]))
    assert code == 1
    assert "end: torn: " in out
    code, out, _ = in_process(capsys, "show", "tea", "--log", str(folders[layout]))
    assert code == 0
    assert "unfinished record" in out


def test_what_to_install_is_told(
    folders: dict[str, Path], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for words in (("show", "tea"), ("export", "tea"), ("verify",), ("sessions", "--json")):
        code, out, err = in_process(capsys, *words, "--log", str(folders["zstd"]))
        assert code == (0 if words[0] == "sessions" else 1)
        assert "terzetto[zstd]" in out + err
