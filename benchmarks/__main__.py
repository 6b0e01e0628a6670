"""``python -m benchmarks [--json FILE] [--quick] [--only NAME ...]``."""

from . import floors, store
from ._run import main

PARTS = {**floors.PARTS, **store.PARTS}

if __name__ == "__main__":
    main(PARTS)
