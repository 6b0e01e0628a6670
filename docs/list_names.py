"""Every public name of Terzetto, with the page of the reference that documents it.

    python docs/list_names.py

A module is public unless it, or a package it is in, has an underscore or is `INTERNAL`. Its
names are those in ``__all__``, or else what it defines or re-exports without an underscore.
A name is documented by an ``auto...`` directive of a page of the reference; one object under
two names needs one. Needs nothing but Terzetto: tests/docs/test_reference.py runs it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).resolve().parent
SOURCE = DOCS.parent / "src"

# Their names are public where `terzetto` re-exports them; a few more are documented because
# who replaces a part needs them.
INTERNAL = {
    "__main__",
    "agent",
    "cli",
    "commands",
    "engine",
    "hooks",
    "llm",
    "prompt",
    "session",
    "tools",
}
_DIRECTIVE = re.compile(r"^\.\. auto(?:class|function|exception|data):: +(\S+)", re.MULTILINE)
_MODULE = re.compile(r"^\.\. automodule:: +(\S+)\n +:members: *(.*)", re.MULTILINE)


def public_modules() -> list[str]:
    """The dotted names of the modules that users import from."""
    found = []
    for path in sorted((SOURCE / "terzetto").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        inside = parts[1:]
        leaf_of_llm = inside[:1] == ("llm",) and len(inside) == 2
        internal = inside[:1] and inside[0] in INTERNAL and not leaf_of_llm
        if not internal and not any(part.startswith("_") for part in inside):
            found.append(".".join(parts))
    # One that puts something else in its own place is a command, not a module to import from.
    return [name for name in found if isinstance(importlib.import_module(name), ModuleType)]


def _defined(module: str) -> Iterator[str]:
    """What the text of *module* defines or re-exports for others."""
    path = Path(inspect.getfile(importlib.import_module(module)))
    for node in _statements(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Assign(targets=[ast.Name(id="TYPE_CHECKING")]):
                pass
            case ast.ImportFrom():
                yield from (a.asname for a in node.names if a.asname and a.asname == a.name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those of *tree*; and what an ``__init__`` loads at first use, as type checkers are told."""
    for node in tree.body:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from node.body
            case _:
                yield node


def public_names() -> list[str]:
    """Every public name, with its module, in alphabetical order."""
    names = set()
    for module in public_modules():
        own = getattr(importlib.import_module(module), "__all__", None) or _defined(module)
        names |= {f"{module}.{name}" for name in own if not name.startswith("_")}
    names -= {f"{module}.logger" for module in public_modules()}
    return sorted(names)


def resolve(name: str) -> object:
    """What *name* stands for."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def identity(name: str) -> str:
    """Equal for two names of one object."""
    found = resolve(name)
    if inspect.isclass(found) or inspect.isfunction(found):
        return f"{found.__module__}.{found.__qualname__}"
    return f"{name.rpartition('.')[2]} {id(found)}"


def _members(module: str, names: str) -> list[str]:
    """What an ``automodule`` with ``:members:`` documents: those named, or all of its own."""
    if names:
        return re.split(r" *, *", names.strip())
    own = (name for name in _defined(module) if not name.startswith("_"))
    return [n for n in own if getattr(resolve(f"{module}.{n}"), "__module__", None) == module]


def documented() -> dict[str, list[tuple[str, str]]]:
    """For each documented object its names and pages; more than one is a mistake."""
    found: dict[str, list[tuple[str, str]]] = {}
    for page in sorted((DOCS / "reference").rglob("*.md")):
        text, where = page.read_text("utf-8"), page.relative_to(DOCS).as_posix()
        whole = [f"{m}.{n}" for m, names in _MODULE.findall(text) for n in _members(m, names)]
        for name in [*whole, *_DIRECTIVE.findall(text)]:
            found.setdefault(identity(name), []).append((name, where))
    return found


def main() -> int:
    """Print the list; 1 if a name has no page or several."""
    sys.path.insert(0, str(SOURCE))
    pages = documented()
    missing = doubled = 0
    names = public_names()
    for name in names:
        where = [page for _, page in pages.get(identity(name), [])]
        missing += not where
        doubled += len(where) > 1
        print(f"{name} -> {', '.join(where) or 'NO PAGE'}")
    print(f"{len(names)} names, {missing} without a page, {doubled} on several")
    return 1 if missing or doubled else 0


if __name__ == "__main__":
    raise SystemExit(main())
