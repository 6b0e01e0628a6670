"""What your own tests can import: the explorer of cancellations and its invariants."""

from ._explorer import SOURCES as SOURCES
from ._explorer import Report as Report
from ._explorer import Scenario as Scenario
from ._explorer import Source as Source
from ._explorer import Stage as Stage
from ._explorer import Violation as Violation
from ._explorer import explore as explore
from ._invariants import BodyRecord as BodyRecord
from ._invariants import Evidence as Evidence
from ._invariants import check_invariants as check_invariants
from ._invariants import history_is_valid as history_is_valid
