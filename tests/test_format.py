"""The format for ever: what was once stored loads, resumes, and is written the same (C148, C155).

Fixtures are only ever added; tests/fixtures/README.md says how.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import terzetto
from terzetto import vocabulary as v
from terzetto.llm.scripted import ScriptedModel
from terzetto.session import Session, replay
from terzetto.session._codec import (
    FORMAT_VERSION,
    TAGS,
    decode_event,
    decode_header,
    encode_event,
    encode_header,
)
from terzetto.session._codec_names import TAGGED
from terzetto.stores._jsonl_layouts import PACKED, PACKED_VERSION
from terzetto.stores._jsonl_zstd import MAGIC, ZSTD
from terzetto.stores._records import Place
from terzetto.stores._sqlite_file import FORMAT, TABLES
from tests.commands import in_process, linux_like
from tests.fixtures.make import EXTENSION, HEADER, write
from tests.stored import lines

pytestmark = linux_like
FIXTURES = Path(__file__).parent / "fixtures"
DIGESTS = {
    "format-1/rich.jsonl": ("f2ec7c9a999baef77471a64a050585c49f88fdf463d76371eb35fde84d956e8e"),
    "format-2/rich.jsonl": ("c6998195a9f109c1c276fa3df8080dfcfb2dc94e59b6f695321cd63d622e39c6"),
    "format-2-zstd/rich.jsonl": (
        "7a3b710c1bbc61959b39a98aa9739169f51b86efbcdf6b3590d567c51f912b0d"
    ),
    "format-1/sessions.db": ("8a1573c799ccccd5f9580240e2f4a7099a593fbf7cc3ffb533d8cacd42b7ffa2"),
}
"""Of the released files. Add to them; a changed one is a mistake."""
FORMATS = sorted({Path(name).parts[0] for name in DIGESTS})
PAGE = (Path(__file__).parents[1] / "docs/reference/format.md").read_text("utf-8")


def test_no_fixture_was_changed_or_forgotten() -> None:
    found = {
        path.relative_to(FIXTURES).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in FIXTURES.glob("format-*")
        for path in folder.iterdir()
        if path.suffix in {".jsonl", ".db"}
    }
    assert found == DIGESTS
    assert f"format-{FORMAT_VERSION}" in FORMATS


def kinds(name: str) -> list[str]:
    """In what there is a fixture of a format."""
    return ["folder", "database"] if f"{name}/sessions.db" in DIGESTS else ["folder"]


@pytest.fixture(params=[f"{name} {kind}" for name in FORMATS for kind in kinds(name)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> terzetto.Store:
    """A copy of a fixture, as the store that reads it."""
    name, _, kind = request.param.partition(" ")
    if kind == "folder":
        shutil.copy(FIXTURES / name / "rich.jsonl", tmp_path)
        return terzetto.JsonlStore(tmp_path, extensions={EXTENSION})
    shutil.copy(FIXTURES / name / "sessions.db", tmp_path)
    return terzetto.SqliteStore(tmp_path / "sessions.db", extensions={EXTENSION})


def read(store: terzetto.Store) -> tuple[v.SessionHeader, list[v.Event]]:
    return trio.run(store.read, "rich")


def test_what_was_stored_loads(store: terzetto.Store) -> None:
    """Each value as it was when it was written, not only without an error."""
    assert read(store) == (HEADER, list(write()))


def test_what_was_stored_is_written_the_same(store: terzetto.Store) -> None:
    if FORMAT_VERSION == 1:
        assert lines(*read(store)) == (FIXTURES / "format-1" / "rich.jsonl").read_bytes()


def test_what_was_packed_is_packed_the_same() -> None:
    """Byte for byte; how zstd compresses is its own affair."""
    data = PACKED.begin(HEADER)
    data += PACKED.pack(write(), Place(0, len(data), 2)).data
    assert data == (FIXTURES / "format-2" / "rich.jsonl").read_bytes()
    with (FIXTURES / "format-2-zstd" / "rich.jsonl").open("rb") as file:
        blocks = list(ZSTD.blocks(file.fileno(), Place(0, 0, 1), os.fstat(file.fileno()).st_size))
    assert b"".join(line + b"\n" for block in blocks for line in block.lines) == data


def test_what_was_stored_has_its_history(store: terzetto.Store) -> None:
    session = Session(HEADER, lambda: 0)
    replay(session, read(store)[1])
    texts = [getattr(message, "text", message.content) for message in session.history()]
    assert texts == [
        "You bake well.",
        "So far: 200 g of flour.",
        "It is noon.",
        "I weigh the flour.",
        "",
        "",
        (v.ToolAdditionBlock("bake"), v.ToolRemovalBlock("weigh")),
        "200 g, and",
        "A cake is",
        "done.",
    ]
    assert [message.text for message in session.pending.lists["next-step"]] == ["It waits."]


def test_what_was_stored_resumes(store: terzetto.Store) -> None:
    """On its model, with its input, at its turn; and again."""

    async def main() -> None:
        model = ScriptedModel(lambda request: "Yes.", provider="deepseek")
        async with terzetto.open_engine(adapters=[model], store=store) as engine:
            for number in (11, 12):
                async with engine.open_agent(resume="rich") as agent:
                    turn = await agent.ask("Is it done?")
                    assert (turn.number, turn.text) == (number, "Yes.")
            async with engine.open_agent(fork="rich", turn=1) as fork:
                assert (await fork.ask("Again?")).number == 2
        request = model.requests[0]
        config = request.config
        assert (config.model, config.effort, config.options["temperature"]) == ("chat", "high", 0.2)
        asked = [m.text for m in request.messages if isinstance(m, v.UserMessage)]
        assert asked[-2:] == ["It waits.", "Is it done?"]

    trio.run(main)


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_stored_is_whole(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(FIXTURES / name, tmp_path / "x")
    places = {"folder": tmp_path / "x", "database": tmp_path / "x" / "sessions.db"}
    for log in (places[kind] for kind in kinds(name)):
        code, out, _ = in_process(capsys, "verify", "--extension", EXTENSION, "--log", str(log))
        assert (code, out.splitlines()[-1]) == (0, f"1 session, {len(write())} events, 0 problems")


def test_the_fixture_has_every_type_and_every_kind_of_value() -> None:
    """What is not in it could change without a test that fails."""
    text = (FIXTURES / f"format-{FORMAT_VERSION}" / "rich.jsonl").read_text("utf-8")
    for tag in TAGS.values():
        assert f'"type":"{tag}"' in text
    for key, value in TAGGED.values():
        assert f'"{key}":"{value}"' in text
    for reason in ("initial", "resume", "change"):
        assert f'"reason":"{reason}"' in text


# --- the page -------------------------------------------------------------------------------


def shown(heading: str) -> list[Any]:
    """What stands in the blocks of JSON under *heading*."""
    [section] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return [json.loads(block) for block in re.findall(r"```json\n(.*?)```", section, re.DOTALL)]


def fixture() -> Iterator[Any]:
    with (FIXTURES / f"format-{FORMAT_VERSION}" / "rich.jsonl").open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def test_the_page_shows_every_event_as_it_is_stored() -> None:
    """And what it shows is what the codec reads and writes."""
    _, *events = fixture()
    blocks = shown("Each event")
    assert len(blocks) > len(TAGS)
    for block in blocks:
        assert block == events[block["seq"]]
        decoded = decode_event(block, seq_hint=block["seq"], extensions={EXTENSION})
        assert encode_event(decoded) == block
    assert {block["type"] for block in blocks} >= set(TAGS.values())
    headings = re.findall(r"^### (\S+/\S+)$", PAGE, re.MULTILINE)
    assert headings == list(TAGS.values())
    chunks = {b["data"]["chunk"]["type"] for b in blocks if b["type"] == "assistant/chunk"}
    assert chunks == {
        TAGGED[kind][1]
        for kind in (v.BlockStart, v.TextDelta, v.ReasoningDelta, v.ToolCallDelta, v.BlockEnd,
                     v.UsageChunk, v.Finish)
    }  # fmt: skip


def test_the_page_shows_the_header_and_all_its_keys() -> None:
    header, *_ = fixture()
    assert shown("The header") == [header]
    assert encode_header(decode_header(header)) == header
    [section] = re.findall(r"^## The header\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(
        dict.fromkeys(["formatVersion", "id", "createdMs", "durability", *header])
    )


def test_the_page_shows_a_packed_log_as_it_is_stored() -> None:
    lines = (FIXTURES / "format-2" / "rich.jsonl").read_bytes().splitlines()
    blocks = re.findall(r"^```text\n(\{.*?)\n```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for block in blocks:
        assert block.encode() in lines
    assert f'"formatVersion":{PACKED_VERSION}' in blocks[0]
    [magic] = re.findall(r"`((?:[0-9a-f]{2} ){7}[0-9a-f]{2})`", PAGE)
    assert bytes.fromhex(magic) == MAGIC


def test_the_page_names_the_versions_and_the_tables() -> None:
    assert f"The version of the format is {FORMAT_VERSION}." in PAGE
    assert f"`user_version` {FORMAT}," in PAGE
    for column in re.findall(r"^        (\w+) (?:INTEGER|TEXT|BLOB)", "\n".join(TABLES), re.M):
        assert f"| `{column}` |" in PAGE
    for key in ("type", "seq", "time", "data", "surfaceOp", "sourceEventSeqs", "ignorable"):
        assert f"| `{key}` |" in PAGE
