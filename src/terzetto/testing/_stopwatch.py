"""How long a step held up its thread, whatever else the machine had to do."""

from __future__ import annotations

import time
from contextlib import suppress

from attrs import define

_SCHEDULED = "/proc/thread-self/schedstat"


@define(eq=False)
class Stopwatch:
    """Real seconds between `start` and `stop`, less those in which the thread was ready and no
    processor was free for it, where the system tells them. Only a *precise* one asks, which
    takes time of its own."""

    precise: bool = False
    _began: float = 0.0
    _queued: float = 0.0

    @property
    def running_since(self) -> float:
        """When it was started, on `time.monotonic`; 0 when it does not run."""
        return self._began

    def start(self) -> None:
        if self.precise:
            self._queued = _queued()
        self._began = time.monotonic()

    def stop(self) -> float:
        took = time.monotonic() - self._began
        self._began = 0.0
        return took - (_queued() - self._queued) if self.precise else took


def _queued() -> float:
    """Seconds that this thread has waited for a processor so far; 0 where nobody counts."""
    with suppress(OSError, IndexError, ValueError), open(_SCHEDULED) as file:
        return int(file.read().split()[1]) / 1e9
    return 0.0
