"""``python -m tests.crash.kill_writers --store sqlite --kills 30``: see `lives.py`.

A module of its own, because each life imports the main module anew.
"""

import sys

from tests.crash.lives import main

if __name__ == "__main__":
    sys.exit(main())
