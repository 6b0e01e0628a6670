"""``python -m terzetto.testing.explore``: the shipped scenarios, struck everywhere.

Imported, this module is the function of the same name: it puts `explore` in its own place,
so that ``import terzetto.testing.explore`` cannot hide ``from terzetto.testing import
explore``, whichever comes first.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import cast

from ._command import main
from ._explorer import explore

if __name__ == "__main__":
    raise SystemExit(main())
if __spec__ is not None and __name__ == __spec__.name:  # not in a worker process
    sys.modules[__name__] = cast(ModuleType, explore)
