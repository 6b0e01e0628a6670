"""``python -m tests.crash.owners``: how soon another process has a killed one's session (BC-43).

See `ownership.py`. A module of its own, because each owner imports the main module anew.
"""

import sys

from tests.crash.ownership import main

if __name__ == "__main__":
    sys.exit(main())
