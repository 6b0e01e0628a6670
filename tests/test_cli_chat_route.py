"""Which model ``terzetto chat`` talks to, and that no key goes where it was not meant for."""

import sys
from pathlib import Path
from typing import Any

import pytest

from terzetto.commands import _chat
from terzetto.commands._chat_route import Asked, Route, Stored, find_route
from terzetto.commands._terminal import CommandError
from terzetto.llm.deepseek import DeepSeek
from terzetto.llm.loopback import BLANK, serve_openai
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import answer, refuse, say
from terzetto.vocabulary import ModelSelection
from tests.commands import (
    MODEL_VARIABLES,
    SECRET,
    environment,
    in_process,
    messages,
    one_error,
    running,
)

MINE = "sk-deepseek-0123456789"
THEIRS = "sk-openai-0123456789"
URL = "http://127.0.0.1:9/v1"
OTHER = "http://127.0.0.1:8/v1"
BOTH = {"DEEPSEEK_API_KEY": MINE, "OPENAI_API_KEY": THEIRS}


def route(environ: dict[str, str], asked: dict[str, str], stored: Stored | None = None) -> Route:
    return find_route(Asked(**asked), environ, stored)


@pytest.mark.parametrize(
    ("environ", "asked", "expected"),
    [
        (BOTH, {}, ("deepseek", "deepseek-flash", "https://api.deepseek.com", MINE)),
        (
            {"OPENAI_API_KEY": THEIRS, "DEEPSEEK_API_KEY": ""},
            {},
            ("openai", "gpt-6-luna", "https://api.openai.com/v1", THEIRS),
        ),
        (
            {"OPENAI_API_KEY": THEIRS, "OPENAI_BASE_URL": URL},
            {},
            ("openai", "gpt-6-luna", URL, THEIRS),
        ),
        ({"OPENAI_BASE_URL": URL}, {"model": "m"}, ("openai", "m", URL, None)),
        (
            {"DEEPSEEK_BASE_URL": URL},
            {"provider": "deepseek"},
            ("deepseek", "deepseek-flash", URL, None),
        ),
        (
            BOTH,
            {"provider": "openai"},
            ("openai", "gpt-6-luna", "https://api.openai.com/v1", THEIRS),
        ),
        (BOTH, {"model": "deepseek-v4-pro"}, ("deepseek", "deepseek-v4-pro", None, MINE)),
        (BOTH, {"base_url": URL, "model": "m"}, ("openai", "m", URL, None)),
        (
            {**BOTH, "DEEPSEEK_BASE_URL": OTHER},
            {"provider": "deepseek", "base_url": URL},
            ("deepseek", "deepseek-flash", URL, None),
        ),
        (
            {**BOTH, "MINE": SECRET},
            {"provider": "house", "base_url": URL, "model": "m", "key_variable": "MINE"},
            ("house", "m", URL, SECRET),
        ),
        ({**BOTH, "MINE": SECRET}, {"key_variable": "MINE"}, ("deepseek", None, None, SECRET)),
    ],
)
def test_order_in_which_it_looks(
    environ: dict[str, str], asked: dict[str, str], expected: tuple[str | None, ...]
) -> None:
    """A key goes to its provider's own address or to the one in its variable, and never to
    a ``--base-url`` that did not ask for it."""
    found = route(environ, asked)
    got = (found.provider, found.model, found.base_url, found.api_key)
    assert [g for g, e in zip(got[:3], expected[:3], strict=True) if e is not None] == [
        e for e in expected[:3] if e is not None
    ]
    assert found.api_key == expected[3]
    adapter = found.adapter()
    assert type(adapter) is (DeepSeek if found.provider == "deepseek" else OpenAIChat)
    assert adapter.provider == found.provider
    assert "0123456789" not in repr(found)


STORED = Stored(selection=ModelSelection("house", "big", "low"), base_url=URL)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ("house", "big", "low", URL, None)),
        ({"model": "small"}, ("house", "small", "low", URL, None)),
        ({"base_url": OTHER}, ("house", "big", "low", OTHER, None)),
        ({"provider": "deepseek"}, ("deepseek", "deepseek-flash", None, None, MINE)),
        ({"effort": "high"}, ("house", "big", "high", URL, None)),
    ],
)
def test_stored_route_stands_unless_another_is_asked_for(
    asked: dict[str, str], expected: tuple[str | None, ...]
) -> None:
    """Neither does a key go to an address that only stands in a log."""
    found = route(BOTH, asked, STORED)
    assert (found.provider, found.model, found.effort) == expected[:3]
    assert expected[3] in (None, found.base_url)
    assert found.api_key == expected[4]


@pytest.mark.parametrize(
    ("environ", "asked", "says"),
    [
        ({}, {}, "no model to talk to: put a key into DEEPSEEK_API_KEY or OPENAI_API_KEY"),
        ({"DEEPSEEK_API_KEY": ""}, {}, "DEEPSEEK_API_KEY is empty; put a key into"),
        (dict.fromkeys(BOTH, ""), {}, "DEEPSEEK_API_KEY and OPENAI_API_KEY are empty"),
        ({}, {"provider": "deepseek"}, "DEEPSEEK_API_KEY is not set: expected a key for deepseek"),
        ({"OPENAI_API_KEY": ""}, {"provider": "openai"}, "OPENAI_API_KEY is empty: expected a key"),
        (BOTH, {"provider": "house"}, "--provider: expected deepseek or openai, got 'house'"),
        (BOTH, {"base_url": URL}, "--model: expected the name of a model of that server"),
        ({"DEEPSEEK_API_KEY": f"{MINE} "}, {}, "DEEPSEEK_API_KEY: api_key of provider 'deepseek'"),
        ({**BOTH, "DEEPSEEK_BASE_URL": "ftp://x"}, {}, "DEEPSEEK_BASE_URL: expected http://"),
        (BOTH, {"base_url": "x", "model": "m"}, "--base-url: expected http://"),
        (BOTH, {"key_variable": MINE}, "--api-key-env: expected the name of a variable"),
        (BOTH, {"key_variable": "NOT_SET"}, "--api-key-env: expected a key in NOT_SET"),
    ],
)
def test_what_cannot_work_is_one_line_that_says_what_to_do(
    environ: dict[str, str], asked: dict[str, str], says: str
) -> None:
    with pytest.raises(CommandError) as caught:
        route(environ, asked)
    assert caught.value.code == 2
    assert says in str(caught.value)
    assert MINE not in str(caught.value)


@pytest.mark.parametrize("provider", ["deepseek", "openai"])
async def test_key_in_the_environment_is_all_that_it_takes(provider: str, tmp_path: Path) -> None:
    name = provider.upper()
    async with serve_openai("Hello.") as server:
        env = environment(**{f"{name}_API_KEY": MINE, f"{name}_BASE_URL": server.base_url})
        async with running(["chat"], cwd=tmp_path, env=env) as one:
            await one.type("hi\n")
            await one.end_input()
    assert (one.process.returncode, one.out, one.err) == (0, "Hello.\n", "")
    assert server.requests[0].headers["authorization"] == BLANK
    assert messages(server, 0) == [("user", "hi")]


async def test_system_prompt_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("Be brief.\nAlways.\n")
    script = ["One.", "Two."]
    async with serve_openai(script) as server:
        for text in ("@prompt.md", "@@home"):
            arguments = ["chat", "--base-url", server.base_url, "--model", "m", "--system", text]
            async with running(arguments, cwd=tmp_path) as one:
                await one.type("hi\n")
                await one.end_input()
    prompts: list[Any] = [request.body["messages"] for request in server.requests]
    assert [prompt[0]["content"] for prompt in prompts] == ["Be brief.\nAlways.\n", "@home"]


def test_system_prompt_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name, reason in (("none", "No such file or directory"), ("bytes", "it is not UTF-8")):
        code, _, err = in_process(capsys, "chat", "--system", f"@{name}")
        assert code == 2
        assert f"--system: expected a text file in '{name}': {reason}" in one_error(err)


# BC-49: the key of an environment variable is nowhere to be seen.


@pytest.mark.parametrize("how", ["fine", "refused", "in the stream", "cut", "nobody there"])
async def test_key_is_nowhere_to_be_seen(how: str, tmp_path: Path) -> None:
    script = {
        "fine": "Fine.",
        "refused": [refuse(401, f"Authentication Fails, Your api key: {SECRET} is invalid")],
        "in the stream": [answer(say("Well, "), refuse(500, f"no {SECRET}"))],
        "cut": [answer(say("Well, "), refuse(503, SECRET))],
        "nobody there": "Never asked.",
    }[how]
    async with serve_openai(script) as server:
        url = "http://127.0.0.1:1/v1" if how == "nobody there" else server.base_url
        env = environment(DEEPSEEK_API_KEY=SECRET, DEEPSEEK_BASE_URL=url)
        async with running(["chat", "--log", "log"], cwd=tmp_path, env=env) as one:
            await one.type("hello\n")
            await one.end_input()
    assert one.process.returncode == (0 if how == "fine" else 1)
    [log] = (tmp_path / "log").glob("*.jsonl")
    assert SECRET not in one.out + one.err + log.read_text("utf-8")
    if how == "refused":
        assert one_error(one.err).endswith("(AUTH); check the key in DEEPSEEK_API_KEY")


def test_key_is_not_in_the_report_of_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in MODEL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DEEPSEEK_API_KEY", SECRET)
    monkeypatch.setattr(sys, "stdin", None)

    def fail(*_: object, **__: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(_chat, "open_engine", fail)
    code, out, err = in_process(capsys, "chat")
    assert code == 1
    assert "a defect of terzetto at " in one_error(err)
    assert SECRET not in out + err
