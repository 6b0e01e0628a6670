"""Frozen values built quickly: filled by assignment while open, then closed.

The constructor of a frozen attrs class sets each attribute through ``object.__setattr__``,
which is most of its cost. Where millions of values are built from parts that were checked
already, an instance of `opened` is filled by plain assignment instead and closed by setting
its ``__class__``. Between the two nothing may run that could see it.
"""

from __future__ import annotations

from typing import Any


def opened(cls: type) -> Any:
    """A subclass of *cls*, frozen and slotted, with the same layout and no constructor.

    ``made = opened(cls)()``, then every attribute, then ``made.__class__ = cls``. No
    converter and no validator runs, and no default is filled in.
    """
    # Both: CPython stores an attribute without a call only where neither is overridden.
    plain = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return type(cls)(cls.__name__, (cls,), {"__slots__": (), "__init__": object.__init__, **plain})
