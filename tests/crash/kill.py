"""``python -m tests.crash.kill``: kill engines in the middle of their effects.

See `engine_lives.py`; ``--power`` also takes what was not synced. Stores without an engine
are killed by ``python -m tests.crash.kill_writers``.

A module of its own, because each life imports the main module anew.
"""

import sys

from tests.crash.engine_lives import main

if __name__ == "__main__":
    sys.exit(main())
