"""The rules of the house, checked against the source text of every module.

Imports run down, each dependency has its home, and nothing hides inside a function.
A rule is a function from a `House` to the places that break it. Each is run on the real house,
and on a made-up one that breaks it: a check that finds nothing must be able to find something.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest
from attrs import field, frozen

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "src/terzetto/"

FLOORS = {
    "_lazy": 0,
    "vocabulary": 0,
    "session": 1,
    "hooks": 1,
    "llm": 2,
    "tools": 2,
    "prompt": 2,
    "stores": 2,
    "agent": 3,
    "extras": 4,
    "engine": 5,
    "_entering": 5,
    "_leaving": 5,
    "timeline": 5,
    "cli": 5,
    "commands": 5,
    "testing": 5,
    "__main__": 5,
    "": 5,  # terzetto/__init__.py
}
"""The floor of everything directly under ``terzetto``, packages and modules alike."""

FOREIGN_TO_PURE_FLOORS = {
    0: frozenset({"attr", "attrs"}),
    1: frozenset({"attr", "attrs", "cattrs", "msgspec"}),  # the last two: see HOMES
}
"""What floors 0 and 1 may import besides the standard library: never Trio."""

CODEC = "session/_codec"  # _codec.py and the files it is split into, _codec_*.py
HOMES = {
    "cattrs": (CODEC,),
    "httpx": ("llm/_http.py",),
    "msgspec": (CODEC, "stores/", "tools/", "llm/"),
}
"""How the paths begin that may import a dependency."""

OPTIONAL: dict[str, str] = {
    "zstandard": "the layout zstd of JsonlStore",
}
"""What a function may import, and why: optional dependencies only."""

LATE = {"cli.py", "_lazy.py"}
"""What imports inside functions, so that a program waits for what it uses only."""

LONGEST = 400
"""Lines in a source file, at most."""

MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:" + "|".join(["work", "root"]) + r")/")
"""Folders that people work in: what stands behind them is true on one machine only."""


@frozen
class Import:
    """One name that a module imports: a dotted *target*, *name* in it if it was ``from``."""

    line: int
    target: str
    name: str | None = None
    nested: bool = False
    typing_only: bool = False


@frozen
class Module:
    """A source file: *path* is relative to ``src/terzetto``."""

    path: str
    text: str
    imports: tuple[Import, ...]

    @property
    def dotted(self) -> str:
        parts = ["terzetto", *self.path.removesuffix(".py").split("/")]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def at(self, line: int) -> str:
        return f"{SOURCE}{self.path}:{line}"


@frozen
class House:
    modules: Mapping[str, Module] = field(repr=False)  # by dotted name

    def target(self, found: Import) -> str:
        """The module that *found* executes: the imported name itself if that is a module."""
        if found.name is not None and (whole := f"{found.target}.{found.name}") in self.modules:
            return whole
        return found.target

    def __iter__(self) -> Iterator[tuple[Module, Import, str]]:
        for module in self.modules.values():
            for found in module.imports:
                yield module, found, self.target(found)


class _Finder(ast.NodeVisitor):
    """Collects imports, knowing whether they are nested and whether only type checkers run them."""

    def __init__(self, package: list[str]) -> None:
        self.package = package
        self.found: list[Import] = []
        self.depth = 0
        self.typing = 0

    def _add(self, line: int, target: str, name: str | None = None) -> None:
        self.found.append(Import(line, target, name, self.depth > 0, self.typing > 0))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(node.lineno, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        above = self.package[: len(self.package) - node.level + 1] if node.level else []
        target = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            self._add(node.lineno, target, alias.name)

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        if called in {"__import__", "import_module", "importlib.import_module"}:
            match node.args[:1]:
                case [ast.Constant(value=str(name))]:
                    self._add(node.lineno, name)
                case _:
                    self._add(node.lineno, "<computed>")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        typing = ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
        self.typing += typing
        for statement in node.body:
            self.visit(statement)
        self.typing -= typing
        for statement in node.orelse:
            self.visit(statement)

    def _inside(self, node: ast.AST) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _inside


def house_of(sources: Mapping[str, str]) -> House:
    """The house made of *sources*: texts by path under ``src/terzetto``."""
    modules = []
    for path, text in sources.items():
        finder = _Finder(["terzetto", *path.split("/")[:-1]])
        finder.visit(ast.parse(text, path))
        modules.append(Module(path, text, tuple(finder.found)))
    return House({module.dotted: module for module in modules})


def part(dotted: str) -> str | None:
    """``agent`` for ``terzetto.agent._step``, empty for ``terzetto``, `None` for foreign ones."""
    top, _, rest = dotted.partition(".")
    return rest.partition(".")[0] if top == "terzetto" else None


def inside(house: House) -> Iterator[tuple[Module, Import, str, str]]:
    """Every import of ours, with the parts that it leads from and to."""
    for module, found, target in house:
        to = part(target)
        if to is not None:
            yield module, found, part(module.dotted) or "", to if to in FLOORS else ""


def foreign(house: House) -> Iterator[tuple[Module, Import, str]]:
    """Every import of somebody else's package, with that package's name."""
    for module, found, target in house:
        top = target.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in {"terzetto", "<computed>"}:
            yield module, found, top


# The rules.


def without_floor(house: House) -> list[str]:
    return [
        f"{module.at(1)}: {part(module.dotted)!r} has no floor; FLOORS gives it one"
        for module in house.modules.values()
        if part(module.dotted) not in FLOORS
    ]


def upward(house: House) -> list[str]:
    return [
        f"{module.at(found.line)}: floor {FLOORS[here]} imports {to or 'terzetto'} of "
        f"floor {FLOORS[to]}; take a value, a callable or a Protocol instead"
        for module, found, here, to in inside(house)
        if FLOORS.get(here, 5) < FLOORS[to]
    ]


def between_services(house: House) -> list[str]:
    return [
        f"{module.at(found.line)}: {here} imports {to}; services never import each other"
        for module, found, here, to in inside(house)
        if here != to and FLOORS.get(here) == FLOORS[to] == 2
    ]


def private_names_in_extras(house: House) -> list[str]:
    return [
        f"{module.at(found.line)}: an extra imports {target}; extras use public names only"
        for module, found, resolved in house
        if part(module.dotted) == "extras" and part(resolved) not in {None, "extras"}
        for target in [f"{found.target}.{found.name}" if found.name else found.target]
        if any(piece.startswith("_") for piece in target.split("."))
    ]


def impure(house: House) -> list[str]:
    return [
        f"{module.at(found.line)}: floor {floor} imports {top}; floors 0 and 1 know the standard "
        "library and attrs, and never Trio"
        for module, found, top in foreign(house)
        if (floor := FLOORS.get(part(module.dotted) or "", 5)) in FOREIGN_TO_PURE_FLOORS
        and top not in FOREIGN_TO_PURE_FLOORS[floor]
    ]


def away_from_home(house: House, package: str) -> list[str]:
    return [
        f"{module.at(found.line)}: {package} is imported in {', '.join(HOMES[package])} only"
        for module, found, top in foreign(house)
        if top == package and not module.path.startswith(HOMES[package])
    ]


def second_users_of_trio_util(house: House) -> list[str]:
    """It is untyped and one person's work, so one module of ours stands between it and the rest."""
    users = {
        module.path: (module, found) for module, found, top in foreign(house) if top == "trio_util"
    }
    return [
        f"{module.at(found.line)}: trio_util has more than one user: {', '.join(users)}"
        for module, found in users.values()
        if len(users) > 1
    ]


def nested(house: House) -> list[str]:
    return [
        f"{module.at(found.line)}: {target} is imported inside a function or class; only optional "
        "dependencies are (OPTIONAL in tests/test_floors.py), otherwise a floor is missing"
        for module, found, target in house
        if found.nested and module.path not in LATE and target.partition(".")[0] not in OPTIONAL
    ]


def cycles(house: House) -> list[str]:
    """At most one: the sorter stops at the first. Imports for type checkers alone do not count."""
    graph: dict[str, dict[str, Import]] = {name: {} for name in house.modules}
    for module, found, target in house:
        if target in house.modules and not (found.nested or found.typing_only):
            graph[module.dotted].setdefault(target, found)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        loop = error.args[1][::-1]  # each imports the next
        steps = [
            f"{house.modules[one].at(graph[one][other].line)}: imports {other}"
            for one, other in pairwise(loop)
        ]
        return [" ... ".join(steps)]
    return []


def too_long(house: House) -> list[str]:
    return [
        f"{module.at(lines)}: {lines} lines; at most {LONGEST}"
        for module in house.modules.values()
        if (lines := len(module.text.splitlines())) > LONGEST
    ]


def machine_paths(texts: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"{path}:{number}: a path of one machine: {line.strip()[:80]}"
        for path, text in texts
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]


# The real house.


@pytest.fixture(scope="module")
def terzetto() -> House:
    folder = ROOT / SOURCE
    return house_of(
        {
            path.relative_to(folder).as_posix(): path.read_text("utf-8")
            for path in sorted(folder.rglob("*.py"))
        }
    )


def expect_none(found: list[str]) -> None:
    assert not found, "\n" + "\n".join(dict.fromkeys(found))


def project_texts() -> Iterator[tuple[str, str]]:
    """Every text that is or will be in the repository; without git, every text there is."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        names = listing.stdout.decode().split("\0")
        paths = [ROOT / name for name in names if name]
    else:
        paths = [path for top in ("src", "tests", "docs") for path in (ROOT / top).rglob("*")]
    for path in paths:
        if path.is_file():
            try:
                yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
            except UnicodeDecodeError:
                continue  # not a text


def test_every_module_has_a_floor(terzetto: House) -> None:
    expect_none(without_floor(terzetto))


def test_imports_run_down(terzetto: House) -> None:
    expect_none(upward(terzetto))


def test_services_never_import_each_other(terzetto: House) -> None:
    expect_none(between_services(terzetto))


def test_extras_use_public_names_only(terzetto: House) -> None:
    """C5: compaction, retries and budgets attach from outside, as anybody's would."""
    expect_none(private_names_in_extras(terzetto))


def test_floors_0_and_1_never_import_trio(terzetto: House) -> None:
    expect_none(impure(terzetto))


@pytest.mark.parametrize("package", HOMES)
def test_dependency_stays_at_home(terzetto: House, package: str) -> None:
    expect_none(away_from_home(terzetto, package))


def test_trio_util_has_one_user(terzetto: House) -> None:
    expect_none(second_users_of_trio_util(terzetto))


def test_functions_import_optional_dependencies_only(terzetto: House) -> None:
    expect_none(nested(terzetto))


def test_optional_dependencies_are_extras() -> None:
    """Nothing gets on the list of excuses that a plain installation has anyway."""

    def packages(requirements: Iterable[str]) -> set[str]:
        return {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in requirements}

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = set[str]().union(*map(packages, project["optional-dependencies"].values()))
    assert OPTIONAL.keys() <= extras
    assert not OPTIONAL.keys() & packages(project["dependencies"])


def test_no_import_cycles(terzetto: House) -> None:
    expect_none(cycles(terzetto))


def test_no_long_files(terzetto: House) -> None:
    expect_none(too_long(terzetto))


def test_no_paths_of_one_machine() -> None:
    expect_none(machine_paths(project_texts()))


# Made-up houses: every rule can fail, and says where.


def found_at(found: list[str], *places: str) -> None:
    assert [line.partition(": ")[0] for line in found] == [SOURCE + place for place in places]


def test_new_package_without_floor_is_found() -> None:
    found_at(without_floor(house_of({"attic/_x.py": "", "agent/_y.py": ""})), "attic/_x.py:1")


@pytest.mark.parametrize(
    "line",
    [
        "from ..agent import Agent",
        "from ..agent._agent import Agent",
        "from .. import agent",
        "from .. import open_engine",
        "import terzetto.agent",
        "from terzetto.agent import Agent",
        "if TYPE_CHECKING: from ..agent import Agent",
        "def f(): from ..agent import Agent",
        "importlib.import_module('terzetto.agent')",
    ],
)
def test_upward_import_is_found(line: str) -> None:
    sources = {"tools/_x.py": "'''Doc.'''\n" + line, "agent/__init__.py": "", "__init__.py": ""}
    found_at(upward(house_of(sources)), "tools/_x.py:2")


@pytest.mark.parametrize("line", ["from ..vocabulary import X", "from ._y import X", "import trio"])
def test_downward_import_is_accepted(line: str) -> None:
    house = house_of(
        {"tools/_x.py": line, "vocabulary/__init__.py": "X = 1", "tools/_y.py": "X = 1"}
    )
    assert not upward(house)
    assert not between_services(house)


def test_import_between_services_is_found() -> None:
    house = house_of(
        {"tools/_x.py": "from ..llm import Adapter", "tools/_y.py": "from . import _x"}
    )
    found_at(between_services(house), "tools/_x.py:1")


@pytest.mark.parametrize(
    "line",
    ["from ..agent._step import run", "from ..agent import _step", "import terzetto.agent._step"],
)
def test_private_name_in_extra_is_found(line: str) -> None:
    sources = {
        "extras/_x.py": line,
        "extras/_y.py": "from ._x import _z\nfrom ..agent import Agent",
    }
    found_at(private_names_in_extras(house_of(sources)), "extras/_x.py:1")


@pytest.mark.parametrize("path", ["vocabulary/_x.py", "session/_x.py", "hooks.py"])
@pytest.mark.parametrize(
    "line", ["import trio", "from trio.lowlevel import checkpoint", "import outcome"]
)
def test_trio_on_pure_floor_is_found(path: str, line: str) -> None:
    found_at(impure(house_of({path: "import attrs\nimport json\n" + line})), f"{path}:3")


def test_cattrs_in_vocabulary_is_found() -> None:
    found_at(impure(house_of({"vocabulary/_x.py": "import cattrs"})), "vocabulary/_x.py:1")


@pytest.mark.parametrize(
    ("package", "path"),
    [("cattrs", "session/_log.py"), ("httpx", "llm/deepseek.py"), ("msgspec", "agent/_step.py")],
)
def test_dependency_away_from_home_is_found(package: str, path: str) -> None:
    homes = [home if home.endswith(".py") else f"{home}_x.py" for home in HOMES[package]]
    line = f"from {package}.sub import x"
    house = house_of(dict.fromkeys([*homes, path], line))
    found_at(away_from_home(house, package), f"{path}:1")


def test_second_user_of_trio_util_is_found() -> None:
    line = "from trio_util import AsyncValue"
    assert not second_users_of_trio_util(house_of({"agent/_x.py": f"{line}\n{line}"}))
    house = house_of({"agent/_x.py": line, "stores/_y.py": line})
    found_at(second_users_of_trio_util(house), "agent/_x.py:1", "stores/_y.py:1")


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    import json",
        "async def f():\n    from ._y import x",
        "class C:\n    import json",
        "def f(name):\n    return importlib.import_module(name)",
        "f = lambda:\\\n    __import__('json')",
    ],
)
def test_nested_import_is_found(text: str) -> None:
    house = house_of({"agent/_x.py": text, "cli.py": text})
    found_at(nested(house), "agent/_x.py:2")


def test_nested_import_of_optional_dependency_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(OPTIONAL, "rich", "an extra of a test")
    assert not nested(house_of({"timeline.py": "def f():\n    from rich.live import Live"}))


def test_cycle_is_found_and_told_in_order() -> None:
    sources = {
        "agent/__init__.py": "from ._a import A as A",
        "agent/_a.py": "import json\nfrom ._b import B",
        "agent/_b.py": "from . import _c",
        "agent/_c.py": "from ._a import A",
    }
    [message] = cycles(house_of(sources))
    places = [f"{SOURCE}agent/_a.py:2", f"{SOURCE}agent/_b.py:1", f"{SOURCE}agent/_c.py:1"]
    assert sorted(step.partition(": ")[0] for step in message.split(" ... ")) == places
    assert f"{places[0]}: imports terzetto.agent._b" in message


def test_module_importing_its_own_package_is_a_cycle() -> None:
    sources = {"agent/__init__.py": "from ._a import A as A", "agent/_a.py": "from . import helper"}
    assert cycles(house_of(sources))


def test_import_for_type_checkers_makes_no_cycle() -> None:
    text = "if TYPE_CHECKING:\n    from ._b import B"
    assert not cycles(house_of({"agent/_a.py": text, "agent/_b.py": "from ._a import A"}))


def test_long_file_is_found() -> None:
    house = house_of({"agent/_x.py": "x = 1\n" * (LONGEST + 1), "agent/_y.py": "x = 1\n" * LONGEST})
    found_at(too_long(house), f"agent/_x.py:{LONGEST + 1}")


def test_path_of_one_machine_is_found() -> None:
    bad = "see\n  open('" + "/".join(["", "work", "main", "log.jsonl"]) + "')"
    good = "https://example.org/work/main and src/work/main and /workers/x"
    assert machine_paths([("docs/a.md", bad), ("docs/b.md", good)])[0].startswith("docs/a.md:2: ")
    assert len(machine_paths([("docs/a.md", bad), ("docs/b.md", good)])) == 1
