"""How long an answer may be silent: counted where a task waits for the network, not before.

A piece of a body may be there already: a hundred of them fit into what one wait brought. A cancel
scope around each costs as much as reading it. httpx gives the network stream of an answer as its
``network_stream``; for the time of the answer its ``read`` is `Silence.read`, and so every wait
has a scope, and what needs no wait has none.

Nothing promises that bytes are read by this very method. So it is trusted only where it has been
seen to be called, by `Silence.watches`; until then whoever reads has to open a scope as well.
"""

from __future__ import annotations

import math
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, TypeAlias, cast

import trio
from attrs import define, field

_Read: TypeAlias = Callable[..., Awaitable[bytes]]
AT_THE_NETWORK: Final = object()
"""What whoever drives a step of an answer is given where the network would be read from next,
if it is to be announced: see `Silence.announces`."""


@types.coroutine
def _announce() -> Generator[object, None, None]:
    yield AT_THE_NETWORK


class Silent(Exception):
    """No byte came within what was left."""


@define(eq=False)
class Silence:
    """The silence of one answer, in seconds of waiting: *left* until it is too much."""

    left: float
    watches: bool = field(default=False, init=False)
    """Whether every wait for this answer's network is limited by now."""
    announces: bool = field(default=False, init=False)
    """Whether `read` stops before it begins, for who drives it by hand; never for a task."""
    _network: Any = field(default=None, init=False, repr=False)
    _read: _Read | None = field(default=None, init=False, repr=False)
    _own: bool = field(default=False, init=False, repr=False)
    """The network's `read` is its own, and not of its class."""

    def watch(self, network: Any) -> None:
        """Limit what is read from *network* from here on, if that can be done."""
        read = getattr(network, "read", None)
        if not callable(read):
            return
        own = "read" in getattr(network, "__dict__", ())
        try:
            network.read = self.read
        except AttributeError:  # slots
            return
        self._network, self._own = network, own
        self._read = cast(_Read, read)

    def end(self) -> None:
        """Leave the network as it was; nothing is limited any more."""
        network, self._network = self._network, None
        self.watches = False
        self.left = math.inf  # for a read that was announced and has not begun
        if network is None:
            return
        if self._own:
            network.read = self._read
        else:
            del network.read

    async def read(self, *args: Any, **options: Any) -> bytes:
        """Bytes of the network, as its own method gives them. Raises `Silent` where none come
        in time."""
        assert self._read is not None
        self.watches = True
        if self.announces:
            await _announce()
        before = trio.current_time()
        with trio.CancelScope(deadline=before + max(0.0, self.left)):
            data = await self._read(*args, **options)
            # Only waiting counts: a slow caller is not a silent provider.
            self.left -= trio.current_time() - before
            return data
        raise Silent
