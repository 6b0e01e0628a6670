"""Every public name has its one page, and the tables of the reference are those of the code."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path
from types import ModuleType

import attrs
import pytest

import terzetto
from terzetto import vocabulary
from terzetto.agent._step import FAIR_AFTER
from terzetto.llm import _failures
from terzetto.llm._sse import MAX_EVENT_BYTES
from terzetto.session import _codec, _codec_names
from terzetto.stores._base import LONGEST_NAME
from terzetto.stores._jsonl import _THREADS
from terzetto.tools._encode import MAX_RESULT_BYTES, MAX_VALUES
from terzetto.tools._spill import MAX_REFERENCE_BYTES
from terzetto.tools._touches import MAX_TOUCHES
from terzetto.vocabulary import MAX_DEPTH, texts

DOCS = Path(__file__).resolve().parents[2] / "docs"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


listing = load(DOCS / "list_names.py")
NAMES = listing.public_names()
PAGES = listing.documented()


def rows(page: str, columns: int) -> list[list[str]]:
    """The rows of the tables of *page* that have so many columns, heads left out."""
    lines = (DOCS / "reference" / page).read_text("utf-8").splitlines()
    cells = [line[1:-1].split(" |") for line in lines if line.startswith("| ")]
    cells = [[cell.strip() for cell in row] for row in cells]
    return [row for row in cells if len(row) == columns and row[0].startswith("`")]


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


# --- names ------------------------------------------------------------------------------------


def test_every_public_name_is_on_exactly_one_page() -> None:
    pages = {name: [page for _, page in PAGES.get(listing.identity(name), [])] for name in NAMES}
    assert {name: where for name, where in pages.items() if len(where) != 1} == {}
    assert len(NAMES) > 300


def test_nothing_is_documented_twice() -> None:
    assert [where for where in PAGES.values() if len(where) > 1] == []


def test_the_list_has_what_users_import() -> None:
    for name in terzetto.__all__:
        assert f"terzetto.{name}" in NAMES
    modules = {name.rpartition(".")[0] for name in NAMES}
    assert modules >= {
        "terzetto.testing",
        "terzetto.stores",
        "terzetto.vocabulary",
        "terzetto.llm.openai_chat",
        "terzetto.llm.deepseek",
        "terzetto.llm.scripted",
        "terzetto.llm.loopback",
    }
    assert [name for name in NAMES if "._" in name] == []


@pytest.mark.parametrize("name", [n for where in PAGES.values() for n, _ in where])
def test_what_is_documented_exists_and_says_something(name: str) -> None:
    found = listing.resolve(name)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert (found.__doc__ or "").strip(), f"{name} has no docstring"


def test_a_name_without_a_page_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terzetto, "__all__", [*terzetto.__all__, "engine"])
    assert "terzetto.engine" in listing.public_names()
    assert listing.identity("terzetto.engine") not in PAGES


def test_the_command_prints_the_list() -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "list_names.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert "terzetto.Agent -> reference/agent.md" in lines
    assert lines[-1] == f"{len(NAMES)} names, 0 without a page, 0 on several"


# --- tables -----------------------------------------------------------------------------------


def test_the_table_of_hooks() -> None:
    """Name, kind and value of every hook, in the order of the class."""
    shown = [(code(row[0])[0], row[1], code(row[2])[0]) for row in rows("hooks.md", 4)]
    hints = typing.get_type_hints(terzetto.Hooks)
    expected = {
        (name, typing.get_origin(hint).__name__.lower(), typing.get_args(hint)[0].__name__)
        for name, hint in hints.items()
        if not name.startswith("_")
    }
    assert set(shown) == expected
    assert len(shown) == len(expected)


def json_keys(payload: type) -> list[str]:
    """The keys of *payload*'s data in JSON, all of them."""
    through = {
        vocabulary.UserMessageEvent: vocabulary.UserMessage,
        vocabulary.ModelSelected: vocabulary.ModelSelection,
    }
    cls = through.get(payload, payload)
    renamed = _codec._shapes._keys.get(cls, {})
    keys = ["role"] if cls is vocabulary.UserMessage else []
    for attribute in attrs.fields(cls):
        head, *rest = attribute.name.split("_")
        camel = head + "".join(word.title() for word in rest)
        keys.append(renamed.get(attribute.name, camel))
    return keys


def test_the_table_of_events() -> None:
    shown = {code(row[0])[0]: (code(row[1])[0], code(row[2])) for row in rows("events.md", 4)}
    assert shown
    for tag, payload in {tag: cls for cls, tag in _codec.TAGS.items()}.items():
        assert shown.pop(tag) == (payload.__name__, json_keys(payload))
    endings = {_codec_names.TAGGED[cls][1] for cls in typing.get_args(vocabulary.TurnEnding)}
    assert set(shown) == endings


def test_the_tables_of_codes() -> None:
    shown = {code(row[0])[0] for row in rows("errors.md", 2)}
    constants = {
        value
        for module in (texts, _failures)
        for name, value in vars(module).items()
        if name.isupper() and name == value
    }
    assert constants
    source = [path.read_text("utf-8") for path in (DOCS.parent / "src").rglob("*.py")]
    raised = {
        found
        for text in source
        for found in re.findall(r"CodedError\([^()]*?\"([A-Z]{3}[A-Z_]*)\"\s*,?\s*\)", text)
    }
    assert raised >= {"PROMPT"}
    assert constants | raised <= shown
    assert [name for name in shown if not re.fullmatch(r"[A-Z][A-Z_]+", name)] == []


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("Result of a tool", f"{MAX_RESULT_BYTES:,} bytes"),
        ("Values in a tool's result", f"{MAX_VALUES:,}"),
        ("A reference that a `spill`", f"{MAX_REFERENCE_BYTES:,} bytes"),
        ("Resources that one call touches", f"{MAX_TOUCHES:,}"),
        ("Depth of JSON", f"{MAX_DEPTH}"),
        ("A session id", f"{LONGEST_NAME} bytes"),
        ("One event of a provider's stream", f"{MAX_EVENT_BYTES // 2**20} MiB"),
        ("Text kept of a provider's", f"{_failures.MAX_MESSAGE_CHARS:,} characters"),
        ("Chunks or results between", f"{FAIR_AFTER}"),
        ("Files that one", f"{_THREADS}"),
        ("Tool bodies of one batch", f"{terzetto.Settings().max_parallel_tool_calls}"),
    ],
)
def test_the_table_of_limits(what: str, value: str) -> None:
    lines = (DOCS / "reference" / "limits.md").read_text("utf-8").splitlines()
    [row] = [line for line in lines if line.startswith(f"| {what}")]
    assert row.split(" | ")[1] == value
