"""Every mutant, in the order in which they are planted."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.in_batches import IN_BATCHES
from tests.mutants.in_lives import IN_LIVES
from tests.mutants.in_logs import IN_LOGS
from tests.mutants.in_stores import IN_STORES
from tests.mutants.in_turns import IN_TURNS
from tests.mutants.mutant import Mutant

MUTANTS: Sequence[Mutant] = (*IN_TURNS, *IN_BATCHES, *IN_LOGS, *IN_LIVES, *IN_STORES)
