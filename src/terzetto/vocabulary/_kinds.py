"""What the fields of a value may hold, looked at where the value is built.

Adapters, listeners and programs build what enters the log. A number that is none, or an
object that is no block, would be found by the store much later, and no event after it could
be saved any more. Each function here is an attrs validator, or makes one; they ask for no
more than the types say, so who has checked those needs none of them (`by_type`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from attrs import Attribute

from ._errors import InvalidValue

Check: TypeAlias = Callable[[Any, "Attribute[Any]", Any], None]

_CHECKS: set[object] = set()


def by_type(validator: object) -> bool:
    """Whether *validator* is one of these."""
    return validator in _CHECKS


def _noted(check: Check) -> Check:
    _CHECKS.add(check)
    return check


def _of_type(kind: type[object], expected: str, none: bool) -> Check:
    def check(instance: object, attribute: Attribute[object], value: object) -> None:
        if type(value) is kind or (none and value is None):
            return
        # Statuses and the like are numbers with a name; that True is one is an accident.
        if kind is not int or not isinstance(value, int) or isinstance(value, bool):
            _refuse(instance, attribute, expected, value)

    return _noted(check)


whole = _of_type(int, "an integer", none=False)
whole_or_none = _of_type(int, "an integer or None", none=True)
flag = _of_type(bool, "True or False", none=False)


def exactly(*kinds: type[object]) -> Check:
    """Instances of *kinds*; a subclass may hold more than is written."""

    def check(instance: object, attribute: Attribute[object], value: object) -> None:
        if type(value) not in kinds:
            names = " or ".join(kind.__name__ for kind in kinds)
            _refuse(instance, attribute, names.replace("NoneType", "None"), value)

    return _noted(check)


def each(kind: type[object], *, none: bool = False) -> Check:
    """Tuples of instances of *kind*; or None, if that may be."""

    def check(instance: object, attribute: Attribute[object], value: object) -> None:
        if none and value is None:
            return
        if not isinstance(value, tuple):
            _refuse(instance, attribute, f"a tuple of {kind.__name__}", value)
        else:
            for item in value:
                if type(item) is not kind:
                    _refuse(instance, attribute, f"{kind.__name__} in a tuple", item)

    return _noted(check)


def among(*known: str | None) -> Check:
    """One of *known*."""

    def check(instance: object, attribute: Attribute[object], value: object) -> None:
        if not (value is None or isinstance(value, str)) or value not in known:
            _refuse(instance, attribute, " or ".join(map(repr, known)), value)

    return _noted(check)


def shown(value: object) -> str:
    """*value* in a message: numbers and the like as they are, of others the type alone."""
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)[:60]
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return type(value).__name__


def _refuse(instance: object, attribute: Attribute[Any], expected: str, value: object) -> None:
    place = f"{type(instance).__name__}: {attribute.name}"
    raise InvalidValue(f"{place}: expected {expected}, got {shown(value)}")
