"""``terzetto replay``: the requests of a session from its log, and the session run again."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio

from terzetto import Request, vocabulary as v
from terzetto.commands._replay import digest, lines
from terzetto.commands._terminal import Look, Terminal
from terzetto.llm.deepseek import DeepSeek
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.session import growths
from terzetto.session._codec import encode_request
from tests.commands import command, environment, in_process, linux_like, run
from tests.stored import KINDS, digest as files, lines as log_lines, place, store_at
from tests.test_cli_explain import SCRIPT, eventful, live

pytestmark = linux_like
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Request]]]:
    found = {}
    for kind in KINDS:
        path = place(tmp_path_factory.mktemp(kind), kind)
        sent = trio.run(lambda path=path: live(path, SCRIPT, eventful, system="Be nice."))
        found[kind] = (path, sent)
    return found


Played = dict[str, tuple[Path, list[Request]]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_for_each_request(kind: str, played: Played, capsys: Capture) -> None:
    path, sent = played[kind]
    before = files(path)
    code, out, err = in_process(capsys, "replay", "Tea", "--log", str(path))
    assert (code, err) == (0, "")
    own = sent[:5]
    assert out.splitlines() == [
        "   #  turn  step  try tools  messages       bytes  sha256",
        "scripted, m",
        f"   1     1     1    1     1         2         288  {digest(own[0])[:12]}",
        f"   2     1     1    2     1         2         288  {digest(own[1])[:12]}",
        f"   3     1     2    1     1         4         607  {digest(own[2])[:12]}",
        "scripted, other \\x1b[2J, effort high",
        f"   4     2     1    1     1         6         754  {digest(own[3])[:12]}",
        f"   5     3     1    1     1         8         877  {digest(own[4])[:12]}  no answer came",
        "5 requests",
    ]
    assert files(path) == before  # it only reads


def test_the_document_has_every_request_whole(played: Played, capsys: Capture) -> None:
    path, sent = played["database"]
    code, out, _ = in_process(capsys, "replay", "Tea", "--json", "--log", str(path))
    assert (code, out.isascii()) == (0, True)
    found = json.loads(out)
    assert found["replayVersion"] == 1
    assert found["session"] == {"id": "Tea"}
    assert [one["request"] for one in found["requests"]] == [encode_request(r) for r in sent[:5]]
    assert [one["sha256"] for one in found["requests"]] == [digest(r) for r in sent[:5]]
    assert [one["answered"] for one in found["requests"]] == [True] * 4 + [False]
    assert found["requests"][1]["attempt"] == 2


@pytest.mark.parametrize(("wire", "adapter"), [("openai_chat", OpenAIChat), ("deepseek", DeepSeek)])
def test_one_request_as_the_bytes_that_are_sent(
    wire: str, adapter: Any, played: Played, tmp_path: Path
) -> None:
    """C84: to the byte, without a key and without a network."""
    path, sent = played["folder"]
    for number in (2, 4):
        arguments = ("replay", "Tea", "--log", str(path), "--request", str(number), "--wire", wire)
        done = subprocess.run(
            command(*arguments), env=environment(), cwd=tmp_path, capture_output=True, check=True
        )
        assert done.stdout == adapter(api_key=None).body(sent[number - 1])


def test_one_request_as_json(played: Played, capsys: Capture) -> None:
    path, sent = played["folder"]
    code, out, _ = in_process(capsys, "replay", "Tea", "--log", str(path), "--request", "4")
    assert (code, json.loads(out)) == (0, encode_request(sent[3]))
    assert out.isascii()  # a terminal would obey some of what a model may say


def test_what_cannot_be_replayed_is_one_line(played: Played, capsys: Capture) -> None:
    path, _ = played["folder"]
    for arguments, code, says in (
        (["--request", "6"], 1, "--request: 'Tea' has requests 1 to 5, not 6"),
        (["--request", "0"], 2, "expected the number of a request, got '0'"),
        (["--wire", "deepseek"], 2, "--wire: name the request with --request"),
        (["--verify", "--json"], 2, "--verify runs the whole session; it prints no requests"),
        (["--request", "1", "--wire", "smoke"], 2, "invalid choice: 'smoke'"),
    ):
        done, out, err = in_process(capsys, "replay", "Tea", "--log", str(path), *arguments)
        assert (done, out) == (code, "")
        assert says in err


def test_options_that_have_fields_of_their_own_are_refused(tmp_path: Path, capsys: Capture) -> None:
    """An adapter of somebody else may have taken them; ours do not."""

    async def stream(engine: Any, agent: Any, model: Any) -> None:
        async def streaming(value: Any, proceed: Any) -> Any:
            return (await proceed()).with_options(stream=False)

        agent.scope.hooks.request.listen(streaming)
        await agent.ask("Go.")

    path = place(tmp_path, "folder")
    trio.run(lambda: live(path, ["done"], stream))
    arguments = ("--log", str(path), "--request", "1", "--wire", "deepseek")
    code, out, err = in_process(capsys, "replay", "Tea", *arguments)
    assert (code, out) == (1, "")
    assert "--wire deepseek: options: ['stream'] are written from the request's own" in err


def test_colours_are_for_terminals(played: Played) -> None:
    header, events = trio.run(store_at(played["folder"][0]).read, "Tea")
    found = list(lines(list(growths(header, events))))
    terminal = Terminal(io.StringIO(), Look(color=True))
    assert found[1].painted(terminal.style) == "\x1b[36mscripted, m\x1b[0m"
    assert found[-2].painted(terminal.style).startswith("\x1b[2m   5")


# --- run again ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("session", ["Tea", "Fork"])
def test_a_session_runs_again(kind: str, session: str, played: Played, capsys: Capture) -> None:
    path, _ = played[kind]
    before = files(path)
    code, out, err = in_process(capsys, "replay", session, "--verify", "--log", str(path))
    assert (code, err) == (0, "")
    counted = "58 events and 4 requests" if session == "Tea" else "15 events and 1 request"
    assert out == f"run again: {counted}, all the same\n"
    assert files(path) == before


def test_what_the_engine_would_do_otherwise_is_named(
    played: Played, tmp_path: Path, capsys: Capture
) -> None:
    header, events = trio.run(store_at(played["folder"][0]).read, "Tea")
    before, _, after = log_lines(header, events).rpartition(b'"text":"Yes."')  # as it was kept
    data = before + b'"text":"Noo\\u001b[2J"' + after
    (tmp_path / "%54ea.jsonl").write_bytes(data)
    done = run("replay", "Tea", "--verify", "--log", ".", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == ""
    assert done.stdout.startswith("run again: ")
    assert " the same, then a difference: event " in done.stdout
    assert done.stdout.count("\n") == 1
    assert "\x1b" not in done.stdout


def test_a_log_of_an_older_engine_is_said_to_be_one(tmp_path: Path, capsys: Capture) -> None:
    header = v.SessionHeader(id=v.SessionId("old"), created_ms=1)
    blocks = (v.ToolCallBlock("c", "t", "{}"),)
    message = v.AssistantMessage(blocks, v.ModelSource("p", "m"))
    config = v.CallConfig(provider="p", model="m")
    data: list[tuple[v.EventData, v.SurfaceOp | None]] = [
        (v.TurnStart(1), None),
        (v.StepStart(1, 1), None),
        (v.RequestHeaderEvent(v.RequestHeader(config=config), "initial"), None),
        (v.AssistantMessageEvent(1, 1, message), v.APPEND),
        (v.StepEnd(1, 1), None),
    ]
    events = [v.Event(seq, 0, one, op) for seq, (one, op) in enumerate(data)]
    (tmp_path / "old.jsonl").write_bytes(log_lines(header, events))
    code, out, _ = in_process(capsys, "replay", "old", "--verify", "--log", str(tmp_path))
    assert code == 1
    assert out.startswith("not re-runnable: event 4: StepEnd of turn 1, step 1 cannot come here")
