"""``terzetto sessions``, ``fork`` and ``export`` on folders and on databases (C154)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings, strategies as st

import terzetto
from terzetto import vocabulary as v
from terzetto.commands._export import transcript
from terzetto.session._codec import dumps_event, loads_event, loads_json
from terzetto.timeline import read_timeline
from tests.commands import environment, in_process, linux_like
from tests.stored import KINDS, digest, lines, place, put, store_at, talk
from tests.strategies_logs import legal_logs

pytestmark = linux_like
Capture = pytest.CaptureFixture[str]


@pytest.fixture(params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder or a database with one session."""
    path = place(tmp_path, request.param)
    trio.run(talk, path)
    return path


def read(path: Path, session_id: str = "Tea") -> tuple[v.SessionHeader, list[v.Event]]:
    return trio.run(store_at(path).read, session_id)


# --- sessions -------------------------------------------------------------------------------


def test_sessions_are_listed_the_newest_first(made: Path, capsys: Capture) -> None:
    trio.run(put, made, v.SessionHeader(id=v.SessionId("old"), created_ms=1), [])
    header = v.SessionHeader(
        id=v.SessionId("new"),
        created_ms=1_900_000_000_000,
        parent_id=v.SessionId("Tea"),
        durability="lazy",
    )
    trio.run(put, made, header, [])
    code, out, err = in_process(capsys, "sessions", "--log", str(made))
    assert (code, err) == (0, "")
    heading, *rows = out.splitlines()
    assert heading.split()[0] == "SESSION"
    assert [row.split()[0] for row in rows] == ["new", "Tea", "old"]
    assert "fork of Tea; durability lazy" in rows[0]
    assert "durability" not in rows[1], "only what is not the usual is said"
    assert re.search(r"Tea +2023-11-14 22:13 +2 +completed +\d+ KB +A \\x1b\[1mtea", rows[1])
    assert "1970-01-01 00:00" in rows[2]


def test_sessions_as_a_document(made: Path, capsys: Capture) -> None:
    code, out, _ = in_process(capsys, "sessions", "--json", "--log", str(made))
    document = json.loads(out)
    assert (code, document["sessionsVersion"]) == (0, 1)
    [one] = document["sessions"]
    _, events = read(made)
    assert one["events"] == len(events)
    assert one["bytes"] >= sum(len(dumps_event(event)) for event in events)
    del one["bytes"], one["where"], one["createdMs"], one["events"]
    assert one == {
        "id": "Tea",
        "cwd": None,
        "parentId": None,
        "durability": "step",
        "title": "A \x1b[1mtea",
        "turns": 2,
        "ending": "completed",
        "tornBytes": 0,
        "ownerPid": None,
        "fault": None,
    }


def test_a_session_in_use_says_by_whom(made: Path, capsys: Capture) -> None:
    async def main() -> str:
        handle = await store_at(made).open("Tea")
        _, out, _ = in_process(capsys, "sessions", "--log", str(made))
        await handle.close()
        return out

    assert f"in use by process {os.getpid()}" in trio.run(main)
    assert "in use" not in in_process(capsys, "sessions", "--log", str(made))[1]


def test_a_note_of_a_dead_process_is_no_owner(tmp_path: Path, capsys: Capture) -> None:
    trio.run(talk, tmp_path, "a")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for pid in (str(dead.pid), "", "x", "-1", "0", "9" * 30):
        (tmp_path / "a.owner").write_text(pid)
        assert "in use" not in in_process(capsys, "sessions", "--log", str(tmp_path))[1]


def test_damaged_sessions_are_listed_as_such(tmp_path: Path, capsys: Capture) -> None:
    trio.run(talk, tmp_path, "good")
    whole = (tmp_path / "good.jsonl").read_bytes()
    (tmp_path / "torn.jsonl").write_bytes(whole.replace(b'"id":"good"', b'"id":"torn"', 1)[:-5])
    (tmp_path / "stolen.jsonl").write_bytes(whole)
    (tmp_path / "rubbish.jsonl").write_bytes(b"\x00\x1b[2J\n")
    (tmp_path / "begun.jsonl").write_bytes(whole[:9])
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "newer.jsonl").write_bytes(whole.replace(b'Version":1', b'Version":3', 1))
    broken = whole.replace(b'"id":"good"', b'"id":"broken"', 1).split(b"\n")
    broken[4] = broken[4][:-1]
    (tmp_path / "broken.jsonl").write_bytes(b"\n".join(broken))
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "notes.txt").write_text("nothing to see")
    code, out, err = in_process(capsys, "sessions", "--log", str(tmp_path))
    assert (code, err) == (0, "")
    told = {row.split()[0]: row for row in out.splitlines()[1:]}
    assert list(told)[-1] != "good"
    assert "damaged" not in told["good"]
    assert "torn at its end" in told["torn"]
    document = json.loads(in_process(capsys, "sessions", "--json", "--log", str(tmp_path))[1])
    faults = {one["id"]: one["fault"] for one in document["sessions"]}
    for name, said in {
        "stolen": "the log of session 'good'",
        "rubbish": "not JSON",
        "begun": "its creation was not finished",
        "empty": "its creation was not finished",
        "newer": "written by a newer",
        "broken": "line 5, byte",
        "folder": "reading failed",
    }.items():
        assert "damaged: " in told[name]
        assert said in faults[name]
    assert {name for name, fault in faults.items() if fault is None} == {"good", "torn"}
    assert "\x1b" not in out


def test_no_sessions_at_all(tmp_path: Path, capsys: Capture) -> None:
    code, out, _ = in_process(capsys, "sessions", "--log", str(tmp_path))
    assert (code, out) == (0, f"there are no sessions in '{tmp_path}'\n")
    for wrong, said in {
        "absent": "there is no folder",
        "file": "expected a folder or a data",
    }.items():
        (tmp_path / "file").write_text("x")
        code, out, err = in_process(capsys, "sessions", "--log", str(tmp_path / wrong))
        assert (code, out) == (1, "")
        assert said in err


# --- what only looks ------------------------------------------------------------------------


LOOKING = [["sessions"], ["sessions", "--json"], ["verify"], ["verify", "Tea"], ["show", "Tea"],
           ["export", "Tea"], ["export", "Tea", "--format", "markdown"]]  # fmt: skip


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
@pytest.mark.parametrize("state", ["closed", "in use", "crashed"])
def test_looking_changes_no_byte_and_takes_no_lock(
    words: list[str], state: str, made: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C148: whatever state the session is in; a lock would fail somebody's resume."""
    import fcntl

    def look() -> None:
        before = digest(made)
        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "flock", lambda *_: pytest.fail("a lock was taken"))
            code, out, err = in_process(capsys, *words, "--log", str(made))
        assert (code, err) == (0, "")
        assert out
        assert digest(made) == before

    async def in_use() -> None:
        handle = await store_at(made).open("Tea")
        _, events = await store_at(made).read("Tea")
        handle.append(v.Event(len(events), events[-1].time_ms, v.InboxSpliced("next-turn", 0, 0, (
            v.UserMessage("more"),))))  # fmt: skip
        await handle.flush()
        look()
        await handle.close()

    if state == "in use":
        trio.run(in_use)
        return
    if state == "crashed":
        program = (
            "import os, trio\nfrom pathlib import Path\nfrom terzetto import vocabulary as v\n"
            "from tests.stored import store_at\n"
            "async def main():\n"
            f"    path = Path({str(made)!r})\n"
            "    handle = await store_at(path).open('Tea')\n"
            "    events = await handle.read()\n"
            "    data = v.ModelSelected(v.ModelSelection('scripted', 'third'))\n"
            "    handle.append(v.Event(len(events), events[-1].time_ms, data))\n"
            "    await handle.flush()\n"
            "    os._exit(0)\n"
            "trio.run(main)\n"
        )
        root = Path(__file__).parents[1]
        env = environment(PYTHONPATH=f"{root / 'src'}{os.pathsep}{root}")
        subprocess.run([sys.executable, "-c", program], env=env, check=True)
    look()


# --- fork -----------------------------------------------------------------------------------


def test_a_fork_is_the_one_an_engine_makes(made: Path, capsys: Capture) -> None:
    """C17 C154: the header, the inherited events, the marker; and it goes on."""
    source, events = read(made)
    log = ("--log", str(made))
    code, out, err = in_process(capsys, "fork", "Tea", "--at", "1", "--as", "B", *log)
    assert (code, err) == (0, "")
    header, forked = read(made, "B")
    length = header.seed_length
    assert out == f"B: a fork of Tea with 1 turn, {length} events\n"
    assert isinstance(events[length - 1].data, v.TurnEnd)
    assert (header.parent_id, header.meta, header.cwd) == ("Tea", source.meta, source.cwd)
    assert [forked[:-1], forked[-1].data] == [events[:length], v.EndSeed(inherited=True)]
    assert read(made) == (source, events)

    async def go_on() -> None:
        model = terzetto.llm.scripted.ScriptedModel(["other"])
        async with terzetto.open_engine(adapters=[model], store=store_at(made)) as engine:
            async with engine.open_agent(resume="B") as agent:
                assert (await agent.ask("Otherwise.")).number == 2

    trio.run(go_on)
    assert in_process(capsys, "verify", *log)[0] == 0


def test_a_fork_of_now_has_an_id_of_its_own(made: Path, capsys: Capture) -> None:
    _, events = read(made)
    code, out, _ = in_process(capsys, "fork", "Tea", "--log", str(made))
    assert code == 0
    name = out.partition(":")[0]
    header, forked = read(made, name)
    assert (header.seed_length, forked[:-1]) == (len(events), events)


def test_a_fork_copies_what_it_does_not_know(tmp_path: Path, capsys: Capture) -> None:
    trio.run(talk, tmp_path, "a", True)
    code, _, err = in_process(capsys, "fork", "a", "--as", "b", "--log", str(tmp_path))
    assert (code, err) == (0, "")
    assert any(isinstance(event.data, v.Extension) for event in read(tmp_path, "b")[1])
    path = str(tmp_path / "b.jsonl")
    assert in_process(capsys, "fork", path, "--as", "c")[0] == 0
    assert read(tmp_path, "c")[0].parent_id == "b"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nobody"], 1, "there is no session 'nobody' in"),
        (["Tea", "--at", "3"], 1, "--at: expected 1 to 2, got 3"),
        (["Tea", "--at", "0"], 2, "expected the number of a turn, got '0'"),
        (["Tea", "--at", "x"], 2, "expected the number of a turn, got 'x'"),
        (["Tea", "--as", "Tea"], 1, "there is a session 'Tea' already"),
        (["Tea", "--as", "a/b"], 2, "expected no '/'"),
        (["a\nb"], 2, "control characters"),
    ],
)
def test_a_fork_that_cannot_be(
    words: list[str], code: int, said: str, made: Path, capsys: Capture
) -> None:
    before = digest(made)
    got, out, err = in_process(capsys, "fork", *words, "--log", str(made))
    assert (got, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1
    logs = {name for name in digest(made) if name.endswith((".jsonl", ".db"))}
    assert logs == {name for name in before if name.endswith((".jsonl", ".db"))}


def test_a_crashed_session_forks_before_its_open_turn(tmp_path: Path, capsys: Capture) -> None:
    trio.run(talk, tmp_path, "whole")
    header, events = read(tmp_path, "whole")
    cut = max(event.seq for event in events if isinstance(event.data, v.StepStart)) + 1
    trio.run(put, tmp_path, v.SessionHeader(id=v.SessionId("a"), created_ms=1), events[:cut])
    log = ("--log", str(tmp_path))
    code, _, err = in_process(capsys, "fork", "a", "--at", "2", *log)
    assert code == 1
    assert "--at: turn 2 is open; name an earlier one" in err
    assert in_process(capsys, "fork", "a", "--as", "b", *log)[0] == 0
    _, forked = read(tmp_path, "b")
    assert sum(isinstance(event.data, v.TurnStart) for event in forked) == 1


# --- export ---------------------------------------------------------------------------------


def exported(path: Path, *words: str) -> bytes:
    """What the command writes to a pipe."""
    ran = subprocess.run(
        [sys.executable, "-m", "terzetto", "export", *words, "--log", str(path)],
        env=environment(),
        capture_output=True,
        check=True,
    )
    assert ran.stderr == b""
    return ran.stdout


def test_an_export_is_the_log_whatever_store_it_is_in(made: Path) -> None:
    header, events = read(made)
    out = exported(made, "Tea")
    assert out == lines(header, events)
    if made.is_dir():
        assert out == next(made.glob("*.jsonl")).read_bytes()
    first, *rest = out.splitlines()
    assert loads_json(first)["id"] == "Tea"  # type: ignore[index,call-overload]
    assert [loads_event(line, seq_hint=seq) for seq, line in enumerate(rest)] == events


def test_an_export_for_a_terminal_is_ascii(made: Path, capsys: Capture) -> None:
    code, out, _ = in_process(capsys, "export", "Tea", "--log", str(made))
    assert code == 0
    assert all(json.loads(line) for line in out.splitlines())
    assert len(out.splitlines()) == len(read(made)[1]) + 1


TRANSCRIPT = """\
# Session `Tea`

Created 2023-11-14 22:13:20 UTC.

## Turn 1

**User:**

> Go.

**Model (`m`), thinking:**

> Hm.

**Model (`m`):**

> Let me see.

**Tool `look`** (ok):

```json
{"at": "here"}
```

`````text
seen: here \\x1b]0;title\\x07 ````
`````

**Model (`m`):**

> Done \\x1b[2J\\u202e日本語 ``` </x>.

*Another model was chosen.*

## Turn 2

**User:**

> Again.

**Model (`other`):**

> And again.
"""


def test_a_transcript_for_people(made: Path, capsys: Capture) -> None:
    code, out, _ = in_process(capsys, "export", "Tea", "--format", "markdown", "--log", str(made))
    assert (code, out) == (0, TRANSCRIPT)


_BAD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(legal_logs(), st.text(max_size=30))
def test_a_transcript_obeys_nobody(log: Any, text: str) -> None:
    """Nothing that a terminal would obey, and every fence that is opened is closed."""
    header = v.SessionHeader(id=v.SessionId("`s`"), created_ms=10**18)
    message = v.UserMessage(f"{text}\x1b[2J\u202e\n```\n> x")
    data = v.InboxSpliced("next-step", 0, 0, (message,))
    events = [*log, v.Event(len(log), 10**15, data)]
    document = "\n".join(transcript(header, read_timeline(events)))
    assert not _BAD.search(document.replace("\t", ""))
    fence = None
    for line in document.split("\n"):
        if fence is None and (opened := re.fullmatch("(`{3,})(json|text)", line)):
            fence = opened[1]
        elif line == fence:
            fence = None
    assert fence is None


def test_a_damaged_session_is_not_exported(tmp_path: Path, capsys: Capture) -> None:
    trio.run(talk, tmp_path, "a")
    path = tmp_path / "a.jsonl"
    damaged = path.read_bytes().split(b"\n")
    damaged[3] = b"{}"
    path.write_bytes(b"\n".join(damaged))
    code, out, err = in_process(capsys, "export", "a", "--log", str(tmp_path))
    assert (code, out) == (1, "")
    assert "is damaged" in err
    assert "line 4" in err


# --- names ----------------------------------------------------------------------------------


def test_a_session_in_a_database_has_a_path_too(tmp_path: Path, capsys: Capture) -> None:
    """What `Store.locate` says can be given to every command."""
    path = place(tmp_path, "database")
    trio.run(talk, path)
    named = store_at(path).locate("Tea")
    assert named is not None
    for command in ("show", "verify", "export"):
        assert in_process(capsys, command, named)[0] == 0
    assert in_process(capsys, "fork", named, "--as", "B")[0] == 0
    assert read(path, "B")[0].parent_id == "Tea"
    code, _, err = in_process(capsys, "verify", str(path))
    assert code == 1
    assert "is a database" in err


def test_show_is_the_same_from_either_store(tmp_path: Path, capsys: Capture) -> None:
    shown = []
    for kind in KINDS:
        path = place(tmp_path, kind)
        trio.run(talk, path)
        code, out, err = in_process(capsys, "show", "Tea", "--log", str(path), "--width", "80")
        assert (code, err) == (0, "")
        shown.append(re.sub(r"message-\w+|call-\w+", "ID", out))
    assert shown[0] == shown[1]
