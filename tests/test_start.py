"""What a program waits for at its start: modules are counted, not seconds.

Names load the module that they are in when somebody first asks for one (`terzetto._lazy`). Beside
that nothing may tell a lazy package from any other: `dir`, ``import *``, pickles, submodules,
suggestions in errors, and threads that ask at once.
"""

import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import terzetto
from terzetto import session, stores
from terzetto._lazy import at_first_use

ROOT = Path(__file__).resolve().parents[1]
OF_OTHERS = {"attr", "attrs", "cattrs", "h11", "httpx", "msgspec", "sqlite3", "trio", "zstandard"}
HTTP = {"h11", "httpcore", "httpx", "ssl"}
CODEC = {"terzetto.session._codec", "terzetto.session._prefix", "cattrs"}
STORES = {"terzetto.stores._jsonl", "terzetto.stores._sqlite", "sqlite3", "zstandard"}
ADAPTERS = {"terzetto.llm._http", "terzetto.llm.openai_chat", "terzetto.llm.scripted"}


def loaded(code: str, *arguments: str) -> set[str]:
    """The modules that a fresh Python has after *code*, but for those it begins with.

    Whatever `site` loads for other packages of this environment is among the latter.
    """
    report = "\nprint(*sorted(set(sys.modules) - before), file=sys.stderr)"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys\nbefore = set(sys.modules)\n{code}{report}",
            *arguments,
        ],
        cwd=ROOT / "src",
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


def test_import_loads_nothing_but_the_package() -> None:
    found = loaded("import terzetto")
    assert {name for name in found if name.startswith("terzetto")} == {"terzetto", "terzetto._lazy"}
    assert not found & (OF_OTHERS | {"typing", "inspect", "asyncio"})


@pytest.mark.parametrize(
    "arguments", ["--help", "--version", "demo --help", "chat -h", "show --help", "replay --help"]
)
def test_help_loads_a_parser_and_nothing_else(arguments: str) -> None:
    code = "from terzetto.cli import main\nassert main() == 0"
    found = loaded(code, *arguments.split())
    assert not found & (OF_OTHERS | {"typing", "pathlib", "inspect", "json", "logging", "asyncio"})
    assert {name for name in found if name.startswith("terzetto")} == {
        "terzetto",
        "terzetto._lazy",
        "terzetto.cli",
        "terzetto.commands",
        "terzetto.commands._chat_options",
        "terzetto.commands._errors",
        "terzetto.commands._show_options",
        "terzetto.commands._stored_options",
    }


@pytest.mark.parametrize("arguments", ["sing", "show", "show x --turn two", "chat --api-key k"])
def test_wrong_command_line_waits_for_no_engine(arguments: str) -> None:
    """Nor for Trio, to say that it is wrong."""
    code = "from terzetto.cli import main\nsys.stderr, err = None, sys.stderr\nassert main() == 2"
    found = loaded(code + "\nsys.stderr = err", *arguments.split())
    assert not found & (OF_OTHERS | {"typing", "pathlib", "terzetto.vocabulary"})


def test_engine_loads_no_adapter_no_store_on_disk_and_no_converter() -> None:
    """What is named when it is needed: the model's module, the store's, and the codec by that."""
    found = loaded("from terzetto import open_engine, tool, MemoryStore, UserMessage")
    assert {"terzetto.agent._agent", "terzetto.engine", "trio"} <= found
    # Trio itself needs ssl.
    assert not found & ((HTTP - {"ssl"}) | CODEC | STORES | ADAPTERS)


def test_one_store_loads_no_other() -> None:
    found = loaded("from terzetto import JsonlStore")
    assert "terzetto.stores._jsonl" in found
    assert not found & {"sqlite3", "terzetto.stores._sqlite", "terzetto.agent", "zstandard"}
    found = loaded("from terzetto.stores.sqlite import SqliteHandle")
    assert not found & {"terzetto.stores._jsonl", "terzetto.agent", "zstandard"}


def test_threads_that_ask_at_once_get_the_same_thing() -> None:
    code = """
import threading
import terzetto
names = ["open_engine", "UserMessage", "JsonlStore", "tool"] * 6
start, found, failed = threading.Barrier(len(names)), set(), []
def ask(name):
    start.wait()
    try:
        found.add((name, id(getattr(terzetto, name))))
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=ask, args=(name,)) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed, failed
assert found == {(name, id(getattr(terzetto, name))) for name in names}, found
"""
    assert "terzetto.engine" in loaded(code)


@pytest.mark.parametrize("package", [terzetto, session, stores], ids=lambda one: one.__name__)
def test_dir_names_what_was_not_asked_for_yet(package: ModuleType) -> None:
    known = {
        terzetto: {*terzetto.__all__, "__version__", "agent", "engine", "vocabulary"},
        session: {"canonical", "rebuild", "Session", "_prefix"},
        stores: {"JsonlStore", "SqliteStore", "MemoryStore", "_sqlite"},
    }[package]
    assert known <= set(dir(package))
    assert dir(package) == sorted(set(dir(package)))


def test_star_import_gives_what_all_lists() -> None:
    names: dict[str, object] = {}
    exec("from terzetto import *", names)
    assert {name: names[name] for name in terzetto.__all__} == {
        name: getattr(terzetto, name) for name in terzetto.__all__
    }


def test_names_are_those_of_their_modules_and_can_be_pickled() -> None:
    assert terzetto.Turn is terzetto.agent.Turn
    assert vars(terzetto)["Turn"] is terzetto.Turn  # kept: asked for once
    for thing in (terzetto.UserMessage, terzetto.open_engine, terzetto.TextBlock("x")):
        assert pickle.loads(pickle.dumps(thing)) == thing


def test_submodules_are_attributes_as_after_an_import_of_everything() -> None:
    code = "import terzetto\nterzetto.stores.JsonlStore, terzetto.vocabulary.texts, terzetto.hooks"
    assert "terzetto.stores._jsonl" in loaded(code)


def test_unknown_name_is_refused_as_by_any_module() -> None:
    with pytest.raises(AttributeError, match=r"module 'terzetto' has no attribute 'Enginee'") as e:
        terzetto.Enginee  # noqa: B018
    assert (e.value.name, e.value.obj) == ("Enginee", terzetto)  # the interpreter suggests: Engine
    assert not hasattr(terzetto, "attrs")  # a package of others is no attribute of ours
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'terzetto'"):
        exec("from terzetto import nothing")


def test_module_that_cannot_be_loaded_says_so_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "lazy_and_broken"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "_late.py").write_text("raise ImportError('the extra is missing')")
    package = __import__("lazy_and_broken")
    getattribute, directory = at_first_use("lazy_and_broken", {"._late": "one two"})
    for name in ("one", "two", "one", "_late"):
        with pytest.raises(ImportError, match="the extra is missing"):
            getattribute(name)
    assert {"one", "two", "_late", "__path__"} <= set(directory())
    (folder / "_late.py").write_text("one, two = 1, 2")
    assert getattribute("two") == 2 == package.two  # mended: a failure is not kept
    monkeypatch.delitem(sys.modules, "lazy_and_broken._late")
    monkeypatch.delitem(sys.modules, "lazy_and_broken")
