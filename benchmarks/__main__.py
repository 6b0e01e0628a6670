"""``python -m benchmarks [--json FILE] [--quick] [--only NAME ... | --peers NAMES]``."""

from . import _peers, agents, batches, doors, floors, steps, store, streams
from ._run import main

PARTS = {
    **floors.PARTS,
    **batches.PARTS,
    **steps.PARTS,
    **streams.PARTS,
    **agents.PARTS,
    **doors.PARTS,
    **store.PARTS,
}

if __name__ == "__main__":
    main(PARTS, _peers.run)
