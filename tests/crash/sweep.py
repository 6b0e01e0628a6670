"""``python -m tests.crash.sweep``: cut stored logs everywhere, and resume what is left.

Each scenario is played once, in virtual time. What it logged is written into a real store,
and the stored bytes are cut: at every boundary (JSONL: after every line or frame, and in its
middle; SQLite: after every frame of its log), and at every byte of the last two records or frames.
Cuts are resumed twice by fresh engines in real time: see `cuts.py` and `second_lives.py`.
"""

import sys

from tests.crash.cuts import main

if __name__ == "__main__":
    sys.exit(main())
