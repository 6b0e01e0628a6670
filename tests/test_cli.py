"""The command line: arguments, exit codes, failures in one line, and text on a terminal."""

import socket
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

import pytest

import terzetto
from terzetto.commands._demo_stage import title
from terzetto.commands._terminal import Flow, Look, Terminal, clean, columns, shorten
from terzetto.vocabulary import ToolCallBlock
from tests.commands import (
    MODEL_VARIABLES,
    SECRET,
    TOOLS,
    command,
    environment,
    in_process,
    one_error,
    run,
)


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo puts its temporary folders, as a process and in this one."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


def test_refused_connection_is_one_line(closed_port: int, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{closed_port}/v1"
    done = run("chat", "--base-url", url, "--model", "m", cwd=tmp_path, stdin="hello\n")
    assert (done.returncode, done.stdout) == (1, "")
    line = one_error(done.stderr)
    assert line.endswith(f"(TRANSPORT); expected a server at {url}: is it running?")


BASE = ("chat", "--base-url", "http://127.0.0.1:9/v1", "--model", "m")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            [],
            "expected a command: demo, chat, show, sessions, fork, verify, export, explain, r",
        ),
        (["sing"], "invalid choice: 'sing' (choose from "),
        (["demo", "--slow"], "'--slow' is no option of this command"),
        (["show"], "the following arguments are required: SESSION"),
        (["show", "x", "--turn", "two"], "expected 3, 2-4 or 2-, got 'two'"),
        (["show", "x", "--turn", "3-2"], "expected turns from 1 on, upwards, got '3-2'"),
        (["show", "x", "--turn", "0"], "expected turns from 1 on, upwards, got '0'"),
        (["show", "x", "--width", "29"], "expected a number from 30 to 1000, got '29'"),
        (["show", "x", "--width", "wide"], "expected a number from 30 to 1000, got 'wide'"),
        (["show", ".."], "session id '..' cannot name a session"),
        (["demo", "here"], "expected options only, got something else"),
        (["demo", "--dir", "not-there"], "--dir: expected a folder, got 'not-there'"),
        (["chat"], "no model to talk to: put a key into DEEPSEEK_API_KEY or OPENAI_API_KEY"),
        (["chat", "--base-url", "http://127.0.0.1:9/v1"], "--model: expected the name of a model"),
        ([*BASE, "--model", " "], "expected a name, got an empty text"),
        (["chat", "--base-url", "ftp://x/v1", "--model", "m"], "--base-url: expected http://host"),
        (["chat", "--base-url", "localhost:80", "--model", "m"], "got 'localhost:80'"),
        (["chat", "--base-url", f"http://u:{SECRET}@x", "--model", "m"], "--base-url: put the"),
        ([*BASE, "--api-key", SECRET], "--api-key: keys are not taken from the command line"),
        ([*BASE, f"--api-key={SECRET}"], "--api-key: keys are not taken from the command line"),
        ([*BASE, "--api-key-env", SECRET], "--api-key-env: expected the name of a variable"),
        ([*BASE, "--api-key-env", "NOT_SET_AT_ALL"], "NOT_SET_AT_ALL, which is not set; run 'exp"),
        ([*BASE, "--api-key-env", "EMPTY_KEY"], "EMPTY_KEY, which is empty"),
        ([*BASE, "--api-key-env", "SPACED_KEY"], "--api-key-env: api_key of provider 'openai'"),
        ([*BASE, "--tools", "nothing"], "--tools: expected module:name, got 'nothing'"),
        ([*BASE, "--tools", "no_such_mod:x"], "expected a module 'no_such_mod' in "),
        ([*BASE, "--tools", "good:missing"], "--tools: 'good' has nothing called 'missing'"),
        ([*BASE, "--tools", "good:not_a_tool"], "got builtin_function_or_method; put @"),
        ([*BASE, "--tools", "good:both", "good:shout"], "shout"),
    ],
)
def test_wrong_command_line_is_one_line_and_code_2(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "good.py").write_text(TOOLS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in MODEL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EMPTY_KEY", "")
    monkeypatch.setenv("SPACED_KEY", f"{SECRET} and more")
    monkeypatch.setattr(sys, "stdin", None)
    code, out, err = in_process(capsys, *arguments)
    assert (code, out) == (2, "")
    assert says in one_error(err)
    assert SECRET not in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["demo", "--fast", "--sessions", "file/deep"], "--sessions: expected a folder that can"),
        ([*BASE, "--log", "file/deep"], "--log: expected a folder that can"),
        ([*BASE, "--tools", "bad:x"], "--tools: importing 'bad' failed: RuntimeError: not today"),
        ([*BASE, "--tools", "ends:x"], "--tools: importing 'ends' failed: SystemExit: 3"),
        ([*BASE, "--tools", "typo:x"], "--tools: importing 'typo' failed: SyntaxError: "),
    ],
)
def test_failure_is_one_line_and_code_1(
    arguments: list[str], says: str, tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "bad.py").write_text("raise RuntimeError('not today')")
    (tmp_path / "ends.py").write_text("raise SystemExit(3)")
    (tmp_path / "typo.py").write_text("def (:")
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert says in one_error(done.stderr)
    assert not list(temporary.iterdir())


def test_defect_is_one_line_that_can_be_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> str:
        raise KeyError("oops")

    monkeypatch.setattr("terzetto.commands._demo_facts.streamed", fail)
    code, _, err = in_process(capsys, "demo", "--fast", "--dir", str(tmp_path))
    assert code == 1
    assert "a defect of terzetto at test_cli.py:" in one_error(err)
    assert "KeyError: 'oops'" in err


def test_closed_standard_streams_are_no_input_and_no_output(tmp_path: Path) -> None:
    """As after ``terzetto chat <&- >&-``."""
    line = f"exec {' '.join(command(*BASE))} <&- >&-"
    done = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", ["--help", "--version", "demo --help", "chat -h"])
def test_help_and_version_import_no_http(arguments: str, tmp_path: Path) -> None:
    code = (
        "import sys; from terzetto.cli import main; code = main(); "
        "assert not {'httpx', 'h11', 'rich'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments.split()],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "terzetto" in done.stdout


# Text on a terminal.


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("a\r\nb", "a\nb"),
        ("\x1b[31m\x9b\x7f\r", r"\x1b[31m\x9b\x7f\r"),
        ("a\u202eb\u2066\u2028", r"a\u202eb\u2066\u2028"),
        ("half \ud800", r"half \ud800"),
        ("家 🎻 é e\u0301 \u200d", "家 🎻 é e\u0301 \u200d"),
    ],
)
def test_clean_shows_what_a_terminal_would_obey(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abc..."),
        ("日本語日本語", 8, "日本..."),
        ("e\u0301" * 5, 5, "e\u0301" * 5),
        ("abc", 2, ".."),
        ("abc", 0, ""),
    ],
)
def test_shortened_text_fits(text: str, width: int, shown: str) -> None:
    assert shorten(text, width) == shown
    assert columns(shorten(text, width)) <= width


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 1000])
def test_flow_breaks_between_words_however_the_text_comes(pieces: int) -> None:
    text = (
        "The quick brown fox jumps\n\nover 日本語日本語日本語日本語 "
        "and aVeryLongWordIndeedThatFitsNowhere."
    )
    terminal = Terminal(StringIO(), Look(width=24))
    flow = Flow(terminal, 4, "me")
    for at in range(0, len(text), pieces):
        flow.feed(text[at : at + pieces])
    flow.end()
    assert isinstance(terminal.stream, StringIO)
    assert terminal.stream.getvalue().splitlines() == [
        "me  The quick brown fox",
        "    jumps",
        "    over",
        "    日本語日本語日本語日",
        "    本語 and",
        "    aVeryLongWordIndeedT",
        "    hatFitsNowhere.",
    ]


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 1000])
def test_flow_that_keeps_lines_only_breaks_what_is_too_long(pieces: int) -> None:
    text = "\n\nA list of things:\n\n  - one\n  - two, and so on, and on\n\nhttp://a.long.address/x\n\n"
    terminal = Terminal(StringIO(), Look(width=20))
    flow = Flow(terminal, keep=True)
    for at in range(0, len(text), pieces):
        flow.feed(text[at : at + pieces])
    flow.end()
    assert isinstance(terminal.stream, StringIO)
    assert terminal.stream.getvalue().splitlines() == [
        "A list of things:",
        "",
        "  - one",
        "  - two, and so on,",
        "and on",
        "",
        "http://a.long.address/x",
    ]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"path": "a\\n\\u001b[2J b"}', r"look a \x1b[2J b"),
        ('{"path": 3}', "look"),
        ("[1]", "look"),
        ("not JSON", "look"),
    ],
)
def test_call_of_the_demo_has_a_title_of_one_line(arguments: str, shown: str) -> None:
    assert title(ToolCallBlock(terzetto.vocabulary.CallId("c"), "look", arguments)) == shown
