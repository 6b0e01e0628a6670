"""``terzetto demo``: what it claims is in its log, whatever the folder and the terminal."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest
import trio
from attrs import evolve

import terzetto
from terzetto.commands import _demo_model as script, _demo_tools as demo_tools
from terzetto.commands._demo_tools import FAST
from terzetto.commands._table import table
from terzetto.commands._terminal import clean, columns
from terzetto.llm.scripted import refuse
from terzetto.timeline import read_timeline
from terzetto.vocabulary import ToolError
from tests.commands import (
    PATIENCE,
    check_quiet,
    command,
    environment,
    flat,
    in_process,
    in_terminal,
    linux_like,
    named_log,
    of_type,
    read_log,
    run,
    running,
)


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo puts its temporary folders, as a process and in this one."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def check_story(out: str) -> None:
    """Everything that the demo says is in the log that it names."""
    count, path = named_log(out)
    events, said = read_log(path), flat(out)
    assert count == len(events) + 1

    pieces = [
        e
        for e in of_type(events, "assistant/chunk", turn=1)
        if e["data"]["chunk"]["type"] == "text-delta"
    ]
    assert f"It came in {len(pieces)} pieces:" in said

    batch = of_type(events, "assistant/message", turn=2)[1]["data"]["message"]["content"]
    asked = [block["id"] for block in batch if block["type"] == "tool-call"]
    results = [
        e["data"]["message"]["content"][0]["toolCallId"]
        for e in of_type(events, "tool/result", turn=2, step=2)
    ]
    assert results == asked
    assert len(asked) >= 3
    numbers = " ".join(f"#{n}" for n in range(1, len(asked) + 1))
    assert f"The log has the results in the model's order, {numbers}," in said

    [steer] = [e for e in of_type(events, "user/message") if script.STEER in json.dumps(e)]
    turn = of_type(events[: steer["seq"]], "step/start")[-1]["data"]
    assert f"in turn {turn['turn']}; it entered that turn at step {turn['step']}." in said

    [cut] = of_type(events, "assistant/message", interrupted=True)
    [block] = cut["data"]["message"]["content"]
    assert f"Event {cut['seq']} of the log file keeps {len(block['text'])} characters" in said
    assert f'"{flat(block["text"])}"' in said
    [end] = of_type(events, "turn/end", turn=cut["data"]["turn"])
    assert end["data"]["reason"]["kind"] == "aborted"

    [seam] = of_type(events, "session/end-seed")
    assert f"resumed the session: {seam['seq']} events from the log." in said
    assert len(of_type(events[seam["seq"] :], "turn/end")) == 1
    assert flat(block["text"])[-12:] in said[said.index("What do you remember of me?") :]


def check_plain(out: str, width: int) -> None:
    """Plain lines within *width*, but for paths, which are not broken."""
    assert "\x1b" not in out
    for line in out.splitlines():
        assert columns(line) <= width or re.match(r"  (/|folder |terzetto show )", line), line
        assert clean(line) == line


def make_odd_files(folder: Path) -> None:
    for name in (
        "README with spaces.md",
        "-rf",
        "new\nline.txt",
        "\x1b[31mred.py",
        "日本語のファイル名.md",
        "emoji 🎻🎺.txt",
        "quote\"'`$(x).txt",
        "x" * 250,
        "\u202egnp.exe",
        "..hidden",
    ):
        (folder / name).write_text("eins zwei\ndrei\n", "utf-8")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "sub").mkdir()
    (folder / "empty.txt").touch()
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 40)
    if sys.platform == "linux":  # others refuse such a name
        Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.txt")).touch()
        os.mkfifo(folder / "pipe.txt")


@pytest.mark.parametrize(
    ("kind", "width"), [("empty", 80), ("ordinary", 50), ("odd", 80), ("odd", 50)]
)
def test_demo_in_a_pipe_tells_what_its_log_says(kind: str, width: int, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    if kind == "ordinary":
        for name in ("README.md", "a.py", "b.py"):
            (folder / name).write_text(f"# {name}\n\nsome words\n")
    if kind == "odd":
        make_odd_files(folder)
    before = sorted(os.listdir(folder))
    done = run("demo", "--fast", cwd=folder, COLUMNS=str(width))
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    check_story(done.stdout)
    check_plain(done.stdout, width)
    holding = {"empty": "nothing at all", "ordinary": "3 files and 0 other things"}
    assert f"I see {holding.get(kind, '')}" in flat(done.stdout)
    assert sorted(os.listdir(folder)) == before


def test_demo_ends_with_the_table_of_its_log(tmp_path: Path) -> None:
    sessions = tmp_path / "kept" / "here"
    done = run("demo", "--fast", "--sessions", str(sessions), cwd=tmp_path, COLUMNS="70")
    _, path = named_log(done.stdout)
    assert path.parent == sessions
    _, events = trio.run(terzetto.JsonlStore(sessions).read, path.stem)
    assert "\n".join(table(read_timeline(events), 69)) in done.stdout


def test_demo_looks_at_the_named_folder_only(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside.md").write_text("hello there")
    (tmp_path / "outside.md").write_text("not for the demo")
    done = run("demo", "--fast", "--dir", "folder", cwd=tmp_path)
    assert done.returncode == 0
    assert 'inside.md begins with: "hello there"' in flat(done.stdout)
    assert "outside" not in done.stdout.replace("outside of it", "")


def test_demo_needs_no_network_whatever_its_settings(tmp_path: Path) -> None:
    proxy, lost = "socks5://127.0.0.1:9", str(tmp_path / "lost.pem")
    done = run("demo", "--fast", cwd=tmp_path, ALL_PROXY=proxy, SSL_CERT_FILE=lost)
    assert done.returncode == 0, done.stdout


def test_demo_shows_what_an_encoding_lacks_in_another_way(tmp_path: Path) -> None:
    make_odd_files(tmp_path)
    done = run("demo", "--fast", cwd=tmp_path, PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "  ok    It came in" in done.stdout


@linux_like
async def test_interrupted_demo_leaves_a_closed_log(tmp_path: Path) -> None:
    async with running(["demo"], cwd=tmp_path) as demo:
        await demo.printed("2  Tools", "start  #1")
        demo.interrupt()
    assert demo.process.returncode == 130
    assert demo.err == ""
    assert "Interrupted." in demo.out
    _, path = named_log(demo.out)
    turns = [e for e in read_log(path) if e["type"].startswith("turn/")]
    assert [e["type"] for e in turns] == ["turn/start", "turn/end"] * 2
    assert turns[-1]["data"]["reason"]["kind"] == "aborted"


@linux_like
def test_demo_that_nobody_reads_ends_in_silence(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("demo", "--fast"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(PATIENCE) == 1


def test_demo_in_a_folder_that_cannot_be_read_is_honest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse_to_look(folder: Path) -> NoReturn:
        raise ToolError("'the folder' cannot be read: Permission denied", "UNREADABLE")

    monkeypatch.setattr(demo_tools, "_look", refuse_to_look)
    code, out, _ = in_process(capsys, "demo", "--fast", "--dir", str(tmp_path))
    assert code == 0, out
    assert "I see what I cannot list. count_words of . failed." in flat(out)
    assert "I have none: I could not count them." in flat(out)
    assert not re.search(r"\b0 (files|words)", out)


def one_word(what: script.Heard) -> script.Said:
    return script.Said("Hm.")


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (script.HELLO, "expected an answer in pieces, got 1"),
        (script.LOOK, "expected calls in step 1 of turn 2, found none"),
        (script.COUNT, "expected a tool to run, so that something can be said meanwhile"),
        (script.STORY, "expected turn 4 to be aborted; it is: completed"),
    ],
)
def test_demo_says_what_did_not_happen(
    question: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a model that says one word where the story needs more."""
    monkeypatch.setitem(script._ANSWERS, question, one_word)
    code, out, err = in_process(capsys, "demo", "--fast", "--dir", str(tmp_path))
    assert (code, err) == (1, "")
    assert f"✗ {says}" in flat(out) or f"NO {says}" in flat(out)


def test_demo_notices_a_tool_that_does_not_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = demo_tools.demo_tools
    monkeypatch.setattr(
        "terzetto.commands._demo.demo_tools",
        lambda *given: [evolve(tool, parallel=True) for tool in made(*given)],
    )
    code, out, _ = in_process(capsys, "demo", "--fast", "--dir", str(tmp_path))
    assert code == 1
    assert "expected one exclusive call among the others, found 0" in flat(out)


def test_demo_that_gets_stuck_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("terzetto.commands._demo.TOO_LONG", 0.5)
    code, out, err = in_process(capsys, "demo", "--dir", str(tmp_path))
    assert (code, err) == (1, "")
    assert "Expected to be done within 0.5 s; something did not happen." in flat(out)


def test_demo_says_that_a_turn_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "terzetto.commands._demo_model.DemoModel.respond",
        lambda self, request: refuse(503, "too busy"),
    )
    code, out, err = in_process(capsys, "demo", "--fast", "--dir", str(tmp_path))
    assert code == 1
    assert "the turn failed: HTTP 503: too busy" in flat(out)
    check_quiet(err)


def test_demo_tools_refuse_what_is_outside(tmp_path: Path) -> None:
    folder, notes = tmp_path / "folder", tmp_path / "notes"
    folder.mkdir()
    notes.mkdir()
    make_odd_files(folder)
    (tmp_path / "secret.txt").write_text("secret")
    tools = {tool.name: tool for tool in demo_tools.demo_tools(folder, notes, FAST)}

    async def use(tool: str, path: str) -> object:
        made: object = await tools[tool](path=path)  # type: ignore[misc]
        return made

    async def refuse_all() -> None:
        for path in ("../secret.txt", str(tmp_path / "secret.txt"), "link", "sub/../../secret.txt"):
            for tool in ("read_file", "count_words"):
                with pytest.raises(ToolError, match="outside the folder"):
                    await use(tool, path)
        for path in ("dangling", "sub", "pipe.txt", "no such file", "nul\0", "y" * 300):
            with pytest.raises(ToolError):
                await use("read_file", path)

    async def read_a_part() -> None:
        (folder / "long.txt").write_text("ä" * demo_tools.MAX_READ)
        read = await use("read_file", "long.txt")
        assert read == {
            "text": "ä" * (demo_tools.MAX_READ // 2),
            "bytes": 2 * demo_tools.MAX_READ,
            "cut": True,
        }

    trio.run(refuse_all)
    trio.run(read_a_part)


@linux_like
@pytest.mark.parametrize("no_color", [False, True])
async def test_demo_in_a_terminal_never_moves_the_cursor(no_color: bool, tmp_path: Path) -> None:
    extra = {"NO_COLOR": "1"} if no_color else {}
    async with in_terminal(["demo", "--fast"], cwd=tmp_path, **extra) as (one, _):
        await one.printed("The log, ", ".jsonl")
    assert one.process.returncode == 0
    assert ("\x1b[" in one.out) is not no_color
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", one.out)
    assert "\r" not in one.out.replace("\r\n", "\n")
