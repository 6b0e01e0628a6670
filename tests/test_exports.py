"""``__all__`` is what users see: it exists, explains itself, and says what goes in and comes out.

The packages' own ``__init__`` files only re-export. As in ``test_floors``, every check is also
shown something that it has to refuse.
"""

import ast
import inspect
import sys
import tomllib
import typing
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType

import attrs
import pytest

import terzetto
from terzetto import vocabulary

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted((ROOT / "src").rglob("__init__.py"))


# The shape of a package's `__init__`.


def beyond_reexports(text: str, *, top: bool = False) -> list[str]:
    """The statements of an ``__init__`` that do anything but re-export, with their lines.

    Allowed are a docstring and ``from ._x import X as X``, at once or at first use (`LAZY`); *top*
    adds plain modules of the package's own (``from .engine import open_engine as open_engine``),
    names of attrs that belong to our values (``evolve``), ``__version__`` and a literal
    ``__all__``.
    """

    def reexports(statement: ast.stmt) -> bool:
        match statement:
            case ast.ImportFrom(module=None, level=1, names=names):  # from . import _texts as texts
                return all(name.asname == name.name.lstrip("_") for name in names)
            case ast.ImportFrom(module=str(module), level=1, names=names):
                return (top or module.startswith("_")) and all(
                    name.asname == name.name != "*" for name in names
                )
            case ast.ImportFrom(module="attrs", level=0, names=names):
                return top and all(name.asname == name.name for name in names)
        return False

    def allowed(statement: ast.stmt) -> bool:
        match statement:
            case ast.Expr(value=ast.Constant(value=str())):
                return statement is tree.body[0]
            case ast.Assign(targets=[ast.Name(id="__version__")], value=ast.Constant(value=str())):
                return top
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return top and isinstance(value, ast.List | ast.Tuple)
            case ast.If(body=body) if all(map(reexports, body)):
                return lazily(statement) == homes(body)
        return reexports(statement) or ast.unparse(statement) in {
            f"from {'.' * (2 - top)}_lazy import at_first_use",
            "TYPE_CHECKING = False",
        }

    tree = ast.parse(text)
    return [
        f"{statement.lineno}: {ast.unparse(statement)}"
        for statement in tree.body
        if not allowed(statement)
    ]


LAZY = """\
if TYPE_CHECKING:
    from ._a import A as A
else:
    __getattr__, __dir__ = at_first_use(__name__, {"._a": "A"})
"""


def lazily(statement: ast.If) -> dict[str, list[str]] | None:
    """What *statement* loads at first use: names by module. None if it does anything else."""
    match statement:
        case ast.If(
            test=ast.Name(id="TYPE_CHECKING"),
            orelse=[
                ast.Assign(
                    targets=[ast.Tuple(elts=[ast.Name("__getattr__"), ast.Name("__dir__")])],
                    value=ast.Call(
                        func=ast.Name(id="at_first_use"),
                        args=[ast.Name(id="__name__"), ast.Dict() as table],
                        keywords=[],
                    ),
                )
            ],
        ):
            return {home: names.split() for home, names in ast.literal_eval(table).items()}
    return None


def homes(body: list[ast.stmt]) -> dict[str, list[str]]:
    """What type checkers are told of: names by module."""
    return {
        "." * statement.level + (statement.module or ""): [name.name for name in statement.names]
        for statement in body
        if isinstance(statement, ast.ImportFrom)
    }


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.name)
def test_package_only_reexports(path: Path) -> None:
    found = beyond_reexports(path.read_text("utf-8"), top=path.parent.name == "terzetto")
    assert not found, (
        f"{path.relative_to(ROOT)}: only `from ._x import X as X` belongs here: {found}"
    )


@pytest.mark.parametrize(
    "line",
    [
        "from ._x import X",
        "from ._x import X as Y",
        "from ._x import *",
        "from .sqlite import X as X",
        "from .._x import X as X",
        "from terzetto._x import X as X",
        "import json",
        "from attrs import evolve as evolve",
        "X = 1",
        "__version__ = '1'",
        "__all__ = ['X']",
        "def f(): ...",
        "if True: from ._x import X as X",
        "if TYPE_CHECKING: from ._x import X as X",
        "if True" + LAZY.removeprefix("if TYPE_CHECKING"),
        LAZY.replace("import A as A", "import A as A, B as B"),
        LAZY.replace('"A"', '"A B"'),
        LAZY.replace("_a", "_b", 1),
        LAZY.replace("import A as A", "import A"),
        LAZY.replace("__name__", "'terzetto'"),
        LAZY + "    X = 1",
        "TYPE_CHECKING = True",
        "from ._lazy import at_first_use",
    ],
)
def test_anything_but_reexport_is_found(line: str) -> None:
    good = "'''Doc.'''\nfrom . import _texts as texts\nfrom ._a import (\n  A as A,\n  b as b,\n)\n"
    good += "from .._lazy import at_first_use\nTYPE_CHECKING = False\n" + LAZY
    assert not beyond_reexports(good)
    [found] = beyond_reexports(good + line)
    assert found.startswith("13: ")


@pytest.mark.parametrize(
    ("line", "accepted"),
    [
        ("from .engine import X as X", True),
        ("from .stores.jsonl import X as X", True),
        ("from attrs import evolve as evolve", True),
        ("from attrs import evolve", False),
        ("from json import dumps as dumps", False),
        ("__version__ = '1'", True),
        ("__all__ = ['X', 'Y']", True),
        ("__all__ = list(globals())", False),
        ("__version__ = read()", False),
        ("x = 1", False),
    ],
)
def test_top_package_may_also_list_and_version(line: str, accepted: bool) -> None:
    assert (not beyond_reexports(line, top=True)) is accepted


# What `__all__` names.


def exported() -> list[str]:
    tree = ast.parse(Path(terzetto.__file__).read_text("utf-8"))
    found = [homes(lazy.body) for lazy in tree.body if isinstance(lazy, ast.If)]
    return [
        name
        for home in [homes(tree.body), *found]
        for names in home.values()
        for name in names
        if name != "at_first_use"
    ]


def test_all_lists_what_the_top_package_exports() -> None:
    listed = list(getattr(terzetto, "__all__", []))
    assert len(listed) == len(set(listed))
    assert set(listed) - {"__version__"} == set(exported())


def test_version_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert getattr(terzetto, "__version__", project["version"]) == project["version"]


def test_types_are_shipped() -> None:
    assert (ROOT / "src/terzetto/py.typed").is_file()


# What a public name owes its reader: a docstring, and a type for everything but `Any`.


def undocumented(name: str, value: object) -> list[str]:
    """*name* if it is a class or function without a docstring of its own."""
    if not isinstance(value, type | FunctionType):
        return []  # a constant or a type alias: its module documents it
    text = value.__dict__.get("__doc__") if isinstance(value, type) else value.__doc__
    return [] if text and text.strip() else [f"{name}: no docstring"]


def untyped(name: str, value: object) -> list[str]:
    """What *value* takes, gives or holds without a type, or with `Any`, in its public parts."""
    if isinstance(value, FunctionType):
        return list(_untyped_function(name, value))
    if isinstance(value, type):
        return list(_untyped_class(name, value))
    return []


def _untyped_function(name: str, function: FunctionType) -> Iterator[str]:
    hints = _hints(function)
    parameters = list(inspect.signature(inspect.unwrap(function)).parameters.values())
    if parameters and parameters[0].name in {"self", "cls", "mcs"}:
        del parameters[0]
    for where in [*(parameter.name for parameter in parameters), "return"]:
        if where not in hints:
            yield f"{name}: {where} has no type"
        elif _has_any(hints[where]):
            yield f"{name}: {where} is {hints[where]}"


def _untyped_class(name: str, owner: type) -> Iterator[str]:
    for attribute, hint in _hints(owner).items():
        if not attribute.startswith("_") and _has_any(hint):
            yield f"{name}.{attribute}: is {hint}"
    for attribute, value in vars(owner).items():
        if attribute.startswith("_") and not (
            attribute == "__init__" and _is_written(value, owner)
        ):
            continue
        if isinstance(value, property):
            value = value.fget
        elif isinstance(value, cached_property):
            value = value.func
        elif isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if isinstance(value, FunctionType):
            yield from _untyped_function(f"{name}.{attribute}", value)


def _is_written(init: object, owner: type) -> bool:
    """Whether *init* is in the source: attrs makes it from the fields, `Protocol` from nothing."""
    return not attrs.has(owner) and getattr(init, "__module__", "") == owner.__module__


def _hints(owner: FunctionType | type) -> dict[str, object]:
    """The annotations of *owner* itself, written as text or not."""
    names = _names_for_type_checkers(sys.modules[owner.__module__])
    if isinstance(owner, type):  # typing.get_type_hints would add those of the base classes
        return inspect.get_annotations(owner, globals=names, eval_str=True)
    return typing.get_type_hints(owner, globalns=names)  # it alone can read `*args: *Ts`


def _names_for_type_checkers(module: ModuleType) -> dict[str, object]:
    """The names in *module*, with those that it imports under ``if TYPE_CHECKING``."""
    names = dict(vars(module))
    assert module.__file__ is not None
    for node in ast.walk(ast.parse(Path(module.__file__).read_text("utf-8"))):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            exec(compile(ast.Module(node.body, []), module.__file__, "exec"), names)
    return names


def _has_any(hint: object) -> bool:
    if hint is typing.Any:
        return True
    inner = typing.get_args(hint)
    return any(
        any(map(_has_any, part)) if isinstance(part, list) else _has_any(part) for part in inner
    )


@pytest.mark.parametrize("name", exported())
def test_public_name_keeps_its_promises(name: str) -> None:
    value = getattr(terzetto, name)  # exists
    if not getattr(value, "__module__", "terzetto").startswith("terzetto"):
        return  # attrs promises for `evolve` itself
    found = undocumented(name, value) + untyped(name, value)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ["ProviderError", "BlockAssembler", "UserMessage", "chain_text"])
def test_checks_accept_names_of_the_vocabulary(name: str) -> None:
    value = getattr(vocabulary, name)
    assert not undocumented(name, value)
    assert not untyped(name, value)


def test_missing_docstring_is_found() -> None:
    class Base:
        """Has one, which its children do not inherit."""

    class Child(Base): ...

    def bare() -> None: ...

    assert not undocumented("Base", Base)
    assert undocumented("Child", Child) == ["Child: no docstring"]
    assert undocumented("bare", bare) == ["bare: no docstring"]
    assert not undocumented("LIMIT", 3)


def test_any_is_found_wherever_it_hides() -> None:
    def deep(value: dict[str, list[typing.Any]]) -> None: ...
    def called(value: Callable[[typing.Any], int]) -> None: ...
    def variadic(*args: int, **options: typing.Any) -> None: ...
    def given() -> "typing.Any | None": ...
    def bare(value, other: int) -> None: ...
    def fine(value: Callable[..., object], *rest: "list[int] | None") -> None: ...

    assert untyped("f", deep) == ["f: value is dict[str, list[typing.Any]]"]
    assert len(untyped("f", called)) == 1
    assert len(untyped("f", variadic)) == 1
    assert len(untyped("f", given)) == 1
    assert untyped("f", bare) == ["f: value has no type"]
    assert not untyped("f", fine)


def test_any_in_a_class_is_found() -> None:
    @attrs.frozen
    class Value:
        """Doc."""

        good: int
        bad: typing.Any
        _own: typing.Any = None

        @property
        def size(self) -> typing.Any:
            return 0

        @classmethod
        def make(cls, source: typing.Any) -> "int":
            return 0

        def _private(self, value: typing.Any) -> None: ...

    class Plain:
        """Doc."""

        def __init__(self, value: typing.Any) -> None: ...

    class Promise(typing.Protocol):
        """Doc."""

        def keep(self, value: typing.Any) -> None: ...

    names = [found.partition(":")[0] for found in untyped("Value", Value)]
    assert names == ["Value.bad", "Value.size", "Value.make"]
    assert untyped("Plain", Plain) == ["Plain.__init__: value is typing.Any"]
    assert untyped("Promise", Promise) == ["Promise.keep: value is typing.Any"]
