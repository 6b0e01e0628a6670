"""A coroutine in a context of its own, within the task that awaits it.

What it sets of context variables nobody else sees, and it needs no task for that. It may
wait, open nurseries and be cancelled as it likes; only a cancel scope that it leaves open
would be its task's, as with any function that is awaited. So nothing runs so that has to be
contained: the body of a tool has a task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from types import CodeType, FrameType, TracebackType
from typing import Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Apart(Generator[Any, Any, T_co], Generic[T_co]):
    """Awaits *running* in a copy of this context. Await it at once, and once."""

    __slots__ = ("_context", "_running", "_send")

    def __init__(self, running: Coroutine[Any, Any, T_co]) -> None:
        self._running = running
        self._send: Callable[[Any], Any] = running.send
        self._context = copy_context()

    def __await__(self) -> Apart[T_co]:
        return self

    def __next__(self) -> Any:
        return self._context.run(self._send, None)

    def send(self, value: Any) -> Any:
        return self._context.run(self._send, value)

    def throw(
        self,
        kind: Any,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        error = kind if isinstance(kind, BaseException) else value or kind()
        thrown: Any = self._running.throw
        return self._context.run(thrown, error)

    def close(self) -> None:
        self._context.run(self._running.close)

    # Whoever walks what a task awaits looks through it, as if it were not there.

    @property
    def cr_frame(self) -> FrameType | None:
        frame: FrameType | None = getattr(self._running, "cr_frame", None)
        return frame

    @property
    def cr_code(self) -> CodeType | None:
        code: CodeType | None = getattr(self._running, "cr_code", None)
        return code

    @property
    def cr_await(self) -> object:
        return getattr(self._running, "cr_await", None)
