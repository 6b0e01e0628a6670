"""`ToolRun`: the handle that the body of a tool gets of its own call."""

from __future__ import annotations

import threading
from collections.abc import Callable

from attrs import define, field

from ..session import AgentView
from ..vocabulary import (
    CallId,
    InvalidValue,
    MessageId,
    PluginSource,
    UsageError,
    UserMessage,
    new_message_id,
)


@define(eq=False)
class ToolRun:
    """One call, as its body sees it: declare a parameter of this type to receive it.

    The methods may be called from the task or the thread of the body, until the body has
    ended; after that they raise `UsageError`, because nothing would come of them.
    """

    call_id: CallId
    name: str
    agent: AgentView = field(repr=False)
    _new_id: Callable[[], MessageId] = field(default=new_message_id, repr=False)
    _contexts: list[UserMessage] = field(factory=list, init=False, repr=False)
    _concludes: bool = field(default=False, init=False)
    _closed: bool = field(default=False, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def defer_context(self, message: str | UserMessage) -> None:
        """Add *message* to the input of the next step, after this step's results.

        A str is sent in the tool's name. Messages enter in the order they were added,
        those of earlier calls first, whether the call succeeds or fails.
        """
        if isinstance(message, str):
            message = UserMessage(message, PluginSource(self.name), self._new_id())
        elif type(message) is not UserMessage:
            raise InvalidValue(
                f"defer_context: expected a str or UserMessage, got {type(message).__name__}"
            )
        with self._lock:
            self._check_open()
            self._contexts.append(message)

    def conclude_turn(self) -> None:
        """Ask that the turn end after this step. It counts only if the call succeeds."""
        with self._lock:
            self._check_open()
            self._concludes = True

    @property
    def contexts(self) -> tuple[UserMessage, ...]:
        """What `defer_context` was given, in that order."""
        return tuple(self._contexts)

    @property
    def concludes(self) -> bool:
        """Whether `conclude_turn` was called."""
        return self._concludes

    def close(self) -> None:
        """End the call; what was collected stays readable. Closing twice does nothing."""
        with self._lock:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the call {self.call_id!r} of tool {self.name!r} has ended")
