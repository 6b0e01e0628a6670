"""Names of a package that load their module when somebody first asks for one.

The package's ``__init__`` imports them for type checkers only, and tells where they are:

    TYPE_CHECKING = False
    if TYPE_CHECKING:
        from ._prefix import canonical as canonical
    else:
        __getattr__, __dir__ = at_first_use(__name__, {"._prefix": "canonical"})

So that a program pays at its start for what it uses only. `typing` is not imported for its
`TYPE_CHECKING`: it is half of what `terzetto --help` takes. A name that was asked for once is an
attribute like any other. Asking is safe in every thread: the interpreter's import locks decide.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def at_first_use(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of the module called *package* (PEP 562).

    *homes*: by module, relative to *package* if it begins with a dot, the names that it has,
    with white space between them.
    A module that begins with one dot is an attribute itself, as it is after ``import``.

    What loading a module raises is raised on, and the next time it is tried again.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    modules = {home[1:]: home for home in homes if home[:1] == "." and "." not in home[1:]}
    this = sys.modules[package]

    def getattribute(name: str) -> object:
        if home := home_of.get(name):
            value: object = getattr(import_module(home, package), name)
        elif home := modules.get(name):
            value = import_module(home, package)
        else:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=this)
        setattr(this, name, value)
        return value

    def directory() -> list[str]:
        return sorted({*vars(this), *home_of, *modules})

    return getattribute, directory
