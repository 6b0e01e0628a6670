"""What code costs, without a clock: its calls, and how much text they were given to look at."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from attrs import define

import terzetto

OURS = os.path.dirname(os.path.abspath(terzetto.__file__))
NOT_ON_TRIAL = (os.path.join(OURS, "llm", "_loopback"), os.path.join(OURS, "llm", "loopback"))
"""The providers that tests play with."""
AT_THE_END = frozenset({"append", "extend", "clear"})
"""Methods of buffers that do not look at what is there."""


@define
class Work:
    """What Terzetto's own code did: *calls*, of Python and of C, and *seen*: the characters and
    bytes of all texts and buffers that these were given."""

    calls: int = 0
    seen: int = 0

    def per(self, size: int) -> tuple[float, float]:
        return self.calls / size, self.seen / size


@contextmanager
def counted() -> Iterator[Work]:
    """Counts in this thread. A buffer that grows, and is looked at again at every delta, is
    seen as often: its bytes then grow with the square of the size."""
    work = Work()
    ours: dict[str, bool] = {}

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_call"):
            return
        name = frame.f_code.co_filename
        if name not in ours:
            ours[name] = name.startswith(OURS) and not name.startswith(NOT_ON_TRIAL)
        if not ours[name]:
            return
        work.calls += 1
        if event == "c_call":  # `text.find(...)`: what the method belongs to
            if argument.__name__ not in AT_THE_END:
                work.seen += _size(getattr(argument, "__self__", None))
        else:
            code, values = frame.f_code, frame.f_locals
            given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            work.seen += sum(_size(values.get(one)) for one in given)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield work
    finally:
        sys.setprofile(before)


def _size(value: object) -> int:
    return len(value) if isinstance(value, (str, bytes, bytearray, memoryview)) else 0


def assert_linear(small: Work, large: Work, times: int) -> None:
    """*large* had *times* as much to do as *small*: then its cost is that, and a quarter more."""
    assert small.calls > 0
    assert small.seen > 0
    assert large.calls <= small.calls * times * 1.25, (small, large)
    assert large.seen <= small.seen * times * 1.25, (small, large)
