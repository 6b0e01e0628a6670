"""``python -m terzetto.testing.simulate``: whole programs of agents, played from seeds.

Imported, this module is the function of the same name: it puts `simulate` in its own place,
so that ``import terzetto.testing.simulate`` cannot hide ``from terzetto.testing import
simulate``, whichever comes first.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import cast

from ._simulate_command import main
from ._simulate_run import simulate

if __name__ == "__main__":
    raise SystemExit(main())
if __spec__ is not None and __name__ == __spec__.name:  # not in a worker process
    sys.modules[__name__] = cast(ModuleType, simulate)
