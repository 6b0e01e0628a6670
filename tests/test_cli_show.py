"""``terzetto show`` on real files: in use, torn, damaged, missing; for people and for programs."""

import json
import os
import re
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import terzetto
from terzetto import vocabulary as v
from terzetto.llm.scripted import Gate, ScriptedModel, answer, call, say
from terzetto.session._codec import dumps_event
from terzetto.stores._jsonl_file import file_name
from tests.commands import (
    command,
    environment,
    in_process,
    in_terminal,
    linux_like,
    named_log,
    one_error,
    run,
)

pytestmark = linux_like
ID = "a Session"


@terzetto.tool(parallel=True)
async def look(at: str) -> str:
    "Look at something."
    await trio.sleep(0.01)
    return f"seen: {at}"


@terzetto.tool
async def change(what: str) -> str:
    "Change something."
    await trio.sleep(0.01)
    return "\x1b[31mchanged\x1b[0m"


SCRIPT = [
    answer(
        say("Let me see."),
        call("look", at="here"),
        call("look", at="there"),
        call("change", what="x"),
    ),
    "Done \x1b[2J日本語.",
    "And again.",
]


async def talk(folder: Path) -> None:
    store = terzetto.JsonlStore(folder)
    async with (
        terzetto.open_engine(
            adapters=[ScriptedModel(SCRIPT)], tools=[look, change], store=store
        ) as engine,
        engine.open_agent(provider="scripted", model="m", session_id=ID) as agent,
    ):
        await agent.ask("Go.")
        await agent.ask("Again.")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, made by an engine."""
    folder = tmp_path_factory.mktemp("made") / "sessions"
    trio.run(talk, folder)
    return folder / file_name(ID)


@pytest.fixture
def log(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in ``sessions`` of the current folder."""
    folder = tmp_path / "sessions"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    copy = folder / made.name
    copy.write_bytes(made.read_bytes())
    return copy


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code, out, err = in_process(capsys, "show", *arguments)
    assert (code, err) == (0, "")
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code, out, err = in_process(capsys, "show", *arguments)
    assert (code, out) == (1, "")
    return one_error(err)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(shown(capsys, *arguments, "--json"))


# --- finding it -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        [ID],
        [ID, "--log", "sessions"],
        ["sessions/a%20%53ession.jsonl"],
        ["./sessions/a%20%53ession.jsonl", "--log", "ignored"],
    ],
)
def test_session_is_found_by_id_and_by_path(
    arguments: list[str], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shown(capsys, *arguments)
    assert out.startswith(f"Session {ID}\n")
    assert re.search(r"^  turns   2 turns, 3 steps, 3 calls$", out, re.MULTILINE)
    assert re.search(r"^          3 change x .* ok, alone$", out, re.MULTILINE)
    assert r"Done \x1b[2J日本語." in out
    assert "\x1b" not in out


def test_missing_session_says_which_there_are(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, "other")
    assert "there is no session 'other' in 'sessions'; there are: a%20%53ession" in error
    for n in range(9):
        log.with_name(f"s{n}.jsonl").touch()
    assert refused(capsys, "other").endswith("a%20%53ession, s0, s1, s2, s3 and 5 more")
    assert refused(capsys, "x", "--log", ".").endswith("no session 'x' in '.', nor any other")
    assert "there is no folder 'nowhere'" in refused(capsys, "x", "--log", "nowhere")
    assert refused(capsys, "no/such.jsonl").endswith("there is no file 'no/such.jsonl'")
    assert "expected a log, got the folder" in refused(capsys, "./sessions")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_unreadable_log_is_one_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.chmod(0)
    assert "reading failed: Permission denied" in refused(capsys, ID)


# --- in whatever state it is ------------------------------------------------------------------


async def test_session_in_use_can_be_shown(tmp_path: Path) -> None:
    """Its owner keeps the lock, and notices nothing; nothing is written."""
    store = terzetto.JsonlStore(tmp_path / "sessions")
    model = ScriptedModel(
        [answer(call("look", at="here")), answer("Thinking", Gate("more"), " done.")]
    )
    async with (
        terzetto.open_engine(adapters=[model], tools=[look], store=store) as engine,
        engine.open_agent(provider="scripted", model="m", session_id="live") as agent,
    ):
        agent.followup("Go.")
        await model.gates.wait_reached("more")
        await agent.flush()  # so that nothing is written behind while the command looks
        path = tmp_path / "sessions" / "live.jsonl"
        before = (path.read_bytes(), sorted(os.listdir(path.parent)))
        show = partial(run, "show", "live", cwd=tmp_path)
        done = await trio.to_thread.run_sync(show)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Turn 1  open" in done.stdout
        assert "The log ends here: it is still running, or its process died." in done.stdout
        assert "look here" in done.stdout
        assert "  model   Thinking\n" in done.stdout
        assert (path.read_bytes(), sorted(os.listdir(path.parent))) == before
        with pytest.raises(v.SessionLocked):
            await store.open("live")
        model.gates.open("more")
        await agent.wait_idle()
    done = await trio.to_thread.run_sync(show)
    assert "Turn 1  completed" in done.stdout
    assert "Thinking done." in done.stdout


def test_torn_end_is_shown_as_such_at_every_byte(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A crash may leave any part of the last record; it is left alone."""
    data = log.read_bytes()
    start = data.rindex(b"\n", 0, len(data) - 1) + 1
    whole = document(capsys, ID)["log"]
    assert whole["tornBytes"] == 0
    for end in range(start, len(data)):
        log.write_bytes(data[:end])
        found = document(capsys, ID)
        assert found["log"]["tornBytes"] == end - start
        assert found["log"]["events"] == whole["events"] - 1
        assert found["turns"][-1]["ending"] is None
        assert log.read_bytes() == data[:end]
    assert os.listdir(log.parent) == [log.name]
    assert f"The log ends in {len(data) - 1 - start} bytes of an unfinished record" in shown(
        capsys, ID
    )


def test_every_whole_prefix_of_the_log_can_be_shown(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    for length in range(1, len(lines) + 1):
        log.write_bytes(b"".join(lines[:length]))
        assert document(capsys, ID)["log"]["events"] == length - 1
        assert shown(capsys, ID).startswith(f"Session {ID}\n")


def test_log_without_events_is_shown(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    assert "0 turns, 0 steps, 0 calls" in shown(capsys, ID)
    assert document(capsys, ID)["log"]["beganMs"] is None


@pytest.mark.parametrize("length", [0, 1, 20])
def test_unfinished_creation_is_no_session(
    length: int, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_bytes(log.read_bytes()[:length])
    assert refused(capsys, ID).endswith("holds no session: its creation was not finished")
    assert len(log.read_bytes()) == length


def test_damage_is_told_with_its_position(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = log.read_bytes()
    lines = data.splitlines(keepends=True)
    at = len(b"".join(lines[:4]))
    log.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    error = refused(capsys, ID)
    assert f"line 5, byte {at}" in error
    assert "is damaged, or no log of Terzetto" in error
    log.write_bytes(b"".join([*lines[:4], *lines[5:]]))
    assert f"line 5, byte {at}" in refused(capsys, ID)


def test_any_changed_byte_is_shown_or_refused(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never a traceback, and never a half of a page before the refusal."""
    data = log.read_bytes()
    codes = set()
    for at in range(0, len(data), max(len(data) // 150, 1)):
        for byte in (b"\x1b", b"}", b"9"):
            log.write_bytes(data[:at] + byte + data[at + 1 :])
            code, out, err = in_process(capsys, "show", ID)
            codes.add(code)
            if code == 0:
                assert (out[:8], err) == ("Session ", "")
            else:
                assert out == ""
                assert "defect" not in one_error(err)
    assert codes == {0, 1}


def test_log_of_another_version_is_refused(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_bytes(log.read_bytes().replace(b'"formatVersion":1', b'"formatVersion":3', 1))
    assert "written by a newer terzetto: format 3" in refused(capsys, ID)


@pytest.mark.parametrize("content", [b"# Read me\n", b"{}\n", b"\x00\xff\n", b"no newline"])
def test_other_files_are_no_logs(
    content: bytes, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_bytes(content)
    assert "line 1, byte 0" in refused(capsys, str(log))


def test_events_of_unknown_extras_are_counted(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that does not know them may not go on with the session; looking is free."""
    seq = log.read_bytes().count(b"\n") - 1
    with log.open("ab") as file:
        for n in (seq, seq + 1):
            file.write(dumps_event(v.Event(n, 2**41, v.Extension("app/note"))) + b"\n")
    assert "also    app/note (2)" in shown(capsys, ID)
    assert document(capsys, ID)["log"]["extensions"] == {"app/note": 2}


# --- as it is wanted --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "numbers"), [("1", [1]), ("2", [2]), ("1-2", [1, 2]), ("2-", [2]), ("2-9", [2])]
)
def test_turns_can_be_chosen(
    option: str, numbers: list[int], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shown(capsys, ID, "--turn", option)
    assert [int(n) for n in re.findall(r"^Turn (\d+)", out, re.MULTILINE)] == numbers
    found = document(capsys, ID, "--turn", option)
    assert [turn["number"] for turn in found["turns"]] == numbers
    assert found["counts"] == {"turns": 2, "steps": 3, "calls": 3}


def test_turn_that_is_not_there_is_refused(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, ID, "--turn", "3").endswith("has turns 1 to 2, not 3")
    assert refused(capsys, ID, "--turn", "3-").endswith("not 3 and later")
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    assert refused(capsys, ID, "--turn", "1").endswith("the session has no turns, not 1")


def test_document_is_ascii_whatever_was_said(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, ID, "--json")
    assert out.isascii()
    assert "\x1b" not in out
    first, second = json.loads(out)["turns"]
    assert first["steps"][1]["text"] == "Done \x1b[2J日本語."
    assert first["steps"][0]["calls"][2]["result"] == "\x1b[31mchanged\x1b[0m"
    assert [turn["ending"] for turn in (first, second)] == ["completed", "completed"]


def test_colours_come_when_asked_for(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = shown(capsys, ID)
    coloured = shown(capsys, ID, "--color", "always")
    assert re.sub(r"\x1b\[[\d;]+m", "", coloured) == plain != coloured
    assert shown(capsys, ID, "--no-color") == plain
    assert shown(capsys, ID, "--color", "never") == plain


@pytest.mark.parametrize("width", [30, 57, 200])
def test_width_can_be_chosen(width: int, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, ID, "--width", str(width)).splitlines()
    assert max(map(len, lines)) <= width
    assert max(map(len, lines)) > 24


@pytest.mark.parametrize(("extra", "colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
async def test_terminal_gets_colours_unless_it_wants_none(
    extra: dict[str, str], colours: bool, log: Path
) -> None:
    async with in_terminal(["show", ID], cwd=log.parents[1], **extra) as (one, _):
        await one.printed("And again.", "alone")
    assert one.process.returncode == 0
    assert ("\x1b[1m" in one.out) is colours
    assert "━" in one.out


def test_pipe_that_cannot_carry_unicode_gets_none(log: Path) -> None:
    done = run("show", ID, cwd=log.parents[1], PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "=|" in done.stdout


def test_reader_that_has_gone_is_no_failure_to_talk_about(log: Path) -> None:
    process = subprocess.Popen(
        command("show", ID),
        cwd=log.parents[1],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1
    assert err == b""


def test_demo_names_the_command_that_shows_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions = tmp_path / "my sessions"
    done = run("demo", "--fast", "--sessions", str(sessions), cwd=tmp_path)
    assert done.returncode == 0
    [line] = re.findall(r"^  terzetto (show .*)$", done.stdout, re.MULTILINE)
    _, path = named_log(done.stdout)
    assert line == f"show '{path}'"
    out = shown(capsys, str(path))
    assert "Turn 4  aborted by the user" in out
    assert "Cut off here." in out
    assert "steer   Just the number, please." in out
    assert re.search(r"^          \d write_note .* ok, alone$", out, re.MULTILINE)
    found = document(capsys, str(path))
    assert found["log"]["events"] == path.read_bytes().count(b"\n") - 1
