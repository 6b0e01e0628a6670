"""Answers of a scripted model: actions, endings, and what they mean in both modes.

Values only. `_script` builds answers and chooses among them; waiting belongs to
whoever plays one: `scripted` in process, `loopback` behind HTTP. The form is that of
the model attempts in the recorded runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

from attrs import Attribute, evolve, field, frozen

from ..vocabulary import Failure, InvalidValue, StreamChunk


@frozen
class Gate:
    """Wait until the gate *name* is open.

    In process a cancel ends the wait, unless *ignore_cancel*: then it is shielded.
    """

    name: str
    ignore_cancel: bool = False


def _seconds(value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise InvalidValue(f"Delay: expected finite seconds of at least 0, got {value!r}")
    return value


@frozen
class Delay:
    """Wait *seconds*: finite, at least 0."""

    seconds: float = field(converter=_seconds)


@frozen
class Headers:
    """Send the status line and headers now, not with the first bytes. In process: nothing."""


@frozen
class Comment:
    """A comment line, as servers send to keep a connection alive. In process: nothing."""

    text: str = "keep-alive"


@frozen
class Done:
    """The ``[DONE]`` marker now; `End` then adds none. In process: nothing."""


@frozen
class Malformed:
    """An event whose *data* is not JSON. In process: a ``TRANSPORT`` failure."""

    data: str = '{"choices":[{"index":0,"delta":'


@frozen
class Raw:
    """*data* as a part of the response body. In process: an error, for it has no meaning there."""

    data: bytes


Action: TypeAlias = StreamChunk | Gate | Delay | Headers | Comment | Done | Malformed | Raw


@frozen
class End:
    """The stream ends; over HTTP with ``[DONE]``, unless it ended in an error object."""


@frozen
class Hang:
    """Nothing more comes and nothing closes, until the request is cancelled."""


@frozen
class Throw:
    """Raise *error*.

    Over HTTP: as `Cut`, except that an error raised before anything was sent is an error
    response: a `ProviderError`'s failure (not ``TRANSPORT``) in OpenAI's words, with its
    status and Retry-After; for other exceptions 500.
    """

    error: Exception


@frozen
class Truncate:
    """The body ends correctly, without a terminal marker. In process: ``TRANSPORT``."""


@frozen
class Cut:
    """The connection is closed in mid-body. In process: a ``TRANSPORT`` failure."""


@frozen
class Reset:
    """The connection is reset (TCP RST). In process: a ``TRANSPORT`` failure."""


@frozen(kw_only=True)
class Refuse:
    """An HTTP error instead of a stream, made by `refuse`. In process: raises *failure*.

    *failure* has a status. *body* absent means an error object in OpenAI's form. Where
    something was sent already, as `Cut`.
    """

    failure: Failure
    provider_code: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None


Ending: TypeAlias = End | Hang | Throw | Truncate | Cut | Reset | Refuse


def _at_least(least: int) -> Callable[[object, Attribute[int | None], int | None], None]:
    def check(_: object, attribute: Attribute[int | None], value: int | None) -> None:
        if value is not None and value < least:
            raise InvalidValue(f"{attribute.name}: expected at least {least}, got {value!r}")

    return check


@frozen(kw_only=True)
class Wire:
    """How the loopback server writes a body. Nothing of it matters in process.

    Attributes:
        bytes_per_write: Split the body into HTTP chunks of at most so many bytes, at least
            1, each written alone. Absent: one chunk and one write per event.
        stop_after_bytes: After so many body bytes, at least 0, the ending happens as if no
            action followed; `End` then ends the body without a marker.
        crlf: End lines with CRLF; `Raw` bytes stay as they are.
        close_delimited: No length and no chunks: the body ends with the connection.
        headers: More headers of a 200 response.
    """

    bytes_per_write: int | None = field(default=None, validator=_at_least(1))
    stop_after_bytes: int | None = field(default=None, validator=_at_least(0))
    crlf: bool = False
    close_delimited: bool = False
    headers: tuple[tuple[str, str], ...] = ()


def _actions(values: Iterable[Action]) -> tuple[Action, ...]:
    actions = tuple(values)
    for action in actions:
        if not isinstance(action, Action):
            raise InvalidValue(f"action of an answer: expected a chunk or a pause, got {action!r}")
    return actions


@frozen
class Answer:
    """What one request gets: *actions* in order, then *ending*.

    Nothing is added to it: without a `Finish` among the actions there is none. With
    *ignore_cancel* every gate and delay is shielded, as with a provider that goes on after
    a cancel; `Hang` is the wait for the cancel and never shielded. Behind HTTP nothing is
    shielded, for there a client that left is gone.
    """

    actions: tuple[Action, ...] = field(default=(), converter=_actions)
    ending: Ending = field(factory=End)
    ignore_cancel: bool = field(default=False, kw_only=True)
    wire: Wire = field(factory=Wire, kw_only=True)

    def over(self, wire: Wire) -> Answer:
        """A copy that the loopback server writes like that."""
        return evolve(self, wire=wire)

    def stop(
        self, ending: Ending, *, chunks: int | None = None, body_bytes: int | None = None
    ) -> Answer:
        """A copy that breaks off with *ending*.

        Args:
            ending: Anything but `End`.
            chunks: Only the first so many chunks are played, at least 0, with the pauses
                before them and between them. Absent: all.
            body_bytes: Over HTTP, only so many bytes of the body are sent, at least 0. In
                process it says nothing.
        """
        if isinstance(ending, End):
            raise InvalidValue("stop: expected an ending that breaks off, got End()")
        actions = self.actions
        if chunks is not None:
            places = [at for at, action in enumerate(actions) if isinstance(action, StreamChunk)]
            last = places[:chunks][-1:]
            actions = actions[: last[0] + 1] if last else ()
        wire = self.wire if body_bytes is None else evolve(self.wire, stop_after_bytes=body_bytes)
        return evolve(self, actions=actions, ending=ending, wire=wire)
