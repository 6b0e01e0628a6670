"""The error tree, and how a chain of exceptions is put into words.

::

    TerzettoError
    ├── DefectError                ours: please report it
    │   └── AgentCrashed           a driver or executor failed; the log was closed
    ├── UsageError                 the caller's
    │   ├── InvalidValue           a value that cannot be what was asked for (also a ValueError)
    │   │   └── InvalidTool        a tool that cannot be registered
    │   ├── IllegalEvent           an event the log's order does not allow, with its seq
    │   ├── EventReleased          an event that has left memory (also a LookupError)
    │   ├── ReentrantAppend        an append from inside an observer of an append
    │   ├── DuplicateMessage       a message id that is pending already
    │   ├── DuplicateName          a name taken in this layer
    │   ├── ScopeClosed            a registration on an ended scope
    │   ├── WrongThread            a Trio-thread method called from elsewhere
    │   ├── WouldDeadlock          an agent waiting for itself
    │   ├── AgentBusy              maintenance asked of a busy agent
    │   ├── AgentDisposed          input for an agent that is gone
    │   ├── AgentExists            an id in use
    │   ├── NoDriver               creation without a driver
    │   ├── ActivityCancelled      maintenance ended by a cancel
    │   ├── MessageDiscarded       the message waited for was removed unread
    │   └── ForkError              a fork that cannot be made; `code` says why
    ├── StoreError                 the world's: storage
    │   ├── SessionNotFound  SessionExists  SessionLocked
    │   └── CorruptLog             damage before the tail, with its position
    └── CodedError                 a failure that carries a stable `code`
        ├── ProviderError          the provider's; carries a `Failure` (in `_stream.py`)
        ├── TurnFailed             `ask`'s turn ended in error; carries the turn
        ├── NoAnswer               `ask`'s turn ended without a value of the type asked for
        └── ToolError              raised by tools for a structured error result

Route on `code` or on the class, never on the text.
"""

from __future__ import annotations


class TerzettoError(Exception):
    """Base of everything Terzetto raises on purpose."""


class DefectError(TerzettoError):
    """Something of ours is broken."""


class AgentCrashed(DefectError):
    """The agent's driver failed with an exception of its own (``__cause__``)."""


class UsageError(TerzettoError):
    """The call cannot be what the caller meant; nothing was changed."""


class InvalidValue(UsageError, ValueError):
    """A value that is not what was asked for."""


class InvalidTool(InvalidValue):
    """A tool whose definition cannot be registered."""


class IllegalEvent(UsageError):
    """An event that may not come next in this log.

    `seq` is where it stood or would have stood, `expected` what may come there.
    """

    def __init__(self, seq: int, got: str, expected: str) -> None:
        super().__init__(f"event {seq}: {got} cannot come here; expected {expected}")
        self.seq = seq
        self.got = got
        self.expected = expected


class EventReleased(UsageError, LookupError):
    """An event that is in the store and not in memory any more: read it from there."""


class ReentrantAppend(UsageError):
    """An observer of an append tried to append. Do it after the append returned."""


class DuplicateMessage(UsageError):
    """A message with this id is pending already; nothing was inserted."""


class DuplicateName(InvalidValue):
    """The name is taken in this layer."""


class ScopeClosed(UsageError):
    """The scope has ended; registrations would outlive their owner."""


class WrongThread(UsageError):
    """A plain method was called outside the Trio thread; nothing was changed."""


class WouldDeadlock(UsageError):
    """The call would wait for the very work it is called from."""


class AgentBusy(UsageError):
    """Maintenance runs from true idle only."""


class AgentDisposed(UsageError):
    """The agent is gone and takes no input."""


class AgentExists(UsageError):
    """A live agent has this id."""


class NoDriver(UsageError):
    """No driver is registered, so nothing can run an agent."""


class ActivityCancelled(UsageError):
    """Maintenance was ended by `Agent.cancel` before it returned."""


class MessageDiscarded(UsageError):
    """The message was removed from the inbox before any turn entered it."""


class ForkError(UsageError):
    """A fork that cannot be made.

    `code`: ``OPEN_TURN``, ``SESSION_NOT_FOUND``, ``SESSION_NOT_LIVE``,
    ``INVALID_BOUNDARY`` or ``SESSION_ALREADY_EXISTS``.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StoreError(TerzettoError):
    """Storage failed; what is in memory is intact."""

    code = "STORE"


class SessionNotFound(StoreError):
    """No session of this id is stored."""


class SessionExists(StoreError):
    """A session of this id is stored already."""


class SessionLocked(StoreError):
    """Another writer owns the session."""


class CorruptLog(StoreError):
    """Damage that is not a torn tail; `position` says where."""

    def __init__(self, message: str, position: str) -> None:
        super().__init__(f"{position}: {message}")
        self.position = position


class CodedError(TerzettoError):
    """An error with a stable code. Raise it in hooks to choose the turn's error code."""

    def __init__(self, message: str, code: str = "UNKNOWN") -> None:
        super().__init__(message)
        self.code = code


class ToolError(CodedError):
    """Raise it in a tool for an error result with a `code` of your own."""


def chain_text(error: BaseException) -> str:
    """*error* and its causes in one line, joined with ``": "``.

    Implicit contexts count when they are ordinary exceptions. A group gives its own text
    and then its members' texts, joined with ``"; "``. An exception whose ``str`` fails or
    is empty gives its type's name. What the text before says already is left out.
    """
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        text = _one_text(current)
        if not parts or _told_in(text, current) not in parts[-1]:
            parts.append(text)
        current = current.__cause__ or _context(current)
    return ": ".join(parts)


def _context(error: BaseException) -> BaseException | None:
    """What *error* was raised in the handling of. A cancellation or a stop of the program
    is no cause of a failure: it is left out."""
    context = None if error.__suppress_context__ else error.__context__
    return context if isinstance(context, Exception) else None


def _one_text(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        members = "; ".join(chain_text(member) for member in error.exceptions)
        return f"{error.message}: {members}"
    try:
        text = str(error)
    except Exception:  # a __str__ of somebody else's may do anything
        text = ""
    return text or type(error).__name__


def _told_in(text: str, error: BaseException) -> str:
    """What another text has to hold for *error*'s own *text* to say nothing new: the system's
    words are enough, its number is not missed."""
    if isinstance(error, OSError) and error.filename is None and isinstance(error.strerror, str):
        return error.strerror or text
    return text


def error_code(error: BaseException) -> str:
    """The stable code of *error*: its own ``code`` if that is a text, else ``UNKNOWN``."""
    code = getattr(error, "code", None)
    return code if isinstance(code, str) and code else "UNKNOWN"


def single(error: BaseException) -> BaseException:
    """The one exception in *error*, or *error* itself when it is no group of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def without(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """*error* less every *kind* in it; None when nothing else is left."""
    if error is None or isinstance(error, kind):
        return None
    if isinstance(error, BaseExceptionGroup):
        return error.split(kind)[1]
    return error
