"""``python -m tests.crash.full_disk``: disks that fill up in the middle of a turn (BC-47).

See `full.py`.
"""

import sys

from tests.crash.full import main

if __name__ == "__main__":
    sys.exit(main())
