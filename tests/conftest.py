"""What every test gets: Hypothesis without deadlines, and without luck when `CI` is set.

Trio mode, strict markers and warnings as errors are set in ``pyproject.toml``; `nursery` and
`autojump_clock` come from pytest-trio.
"""

import os
import signal

from hypothesis import settings

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
