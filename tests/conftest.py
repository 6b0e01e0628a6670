"""What every test gets: Hypothesis without deadlines, and without luck when `CI` is set.

A test that leaves anything running or open fails, with the name of what it left.

Trio mode, strict markers and warnings as errors are set in ``pyproject.toml``; `nursery` and
`autojump_clock` come from pytest-trio.
"""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from terzetto.testing import OrphanMeter
from tests.whole import forgotten as forgotten

# No deadline: a slow machine is not a failing test.
settings.register_profile("terzetto", deadline=None)
# Derandomized: the same commit gives the same verdict.
settings.register_profile("terzetto-ci", deadline=None, derandomize=True)
settings.load_profile("terzetto-ci" if os.environ.get("CI") else "terzetto")

# A job that a shell put in the background ignores Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Nor is SIGHUP below `nohup`: what we start must hear it when its terminal closes.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="module", autouse=True)
def nothing_old_is_looked_through() -> None:
    """What is there by now stays for good: half a million objects, which each of the many
    collections that tests ask for would look through. They look at what tests make."""
    gc.collect()
    gc.freeze()


# Where tests hold nothing from one to the next; with TERZETTO_ORPHANS set, everywhere.
WATCHED = {"agent", "model", "prompt", "session", "soak", "tools", "vocabulary"}


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No thread, child process or descriptor outlives its test; tasks cannot outlive its run."""
    if request.path.parent.name not in WATCHED and "TERZETTO_ORPHANS" not in os.environ:
        yield
        return
    meter = OrphanMeter()
    yield
    left = meter.left()
    if left:
        pytest.fail("left behind: " + "\n".join(map(str, left)), pytrace=False)
