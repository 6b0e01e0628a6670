"""What your own tests can import: the explorer of cancellations, simulations, invariants."""

from ._adapter_check import check_adapter as check_adapter
from ._checkpoints import Checkpoint as Checkpoint, Checkpoints as Checkpoints
from ._crashes import explore_crashes as explore_crashes
from ._disk import (
    DiskHandle as DiskHandle,
    DiskReader as DiskReader,
    Latency as Latency,
    SimulatedDisk as SimulatedDisk,
)
from ._effects import Effect as Effect, Effects as Effects
from ._explorer import (
    Report as Report,
    Violation as Violation,
    calling as calling,
    explore as explore,
)
from ._faults import (
    Fault as Fault,
    FaultEffect as FaultEffect,
    StoreCall as StoreCall,
    StoreOperation as StoreOperation,
)
from ._faulty_store import (
    FaultyHandle as FaultyHandle,
    FaultyReader as FaultyReader,
    FaultyStore as FaultyStore,
)
from ._hook_check import check_hook as check_hook
from ._invariants import (
    BodyRecord as BodyRecord,
    Evidence as Evidence,
    check_invariants as check_invariants,
    history_is_valid as history_is_valid,
)
from ._life import Scenario as Scenario
from ._orphans import (
    Living as Living,
    Orphan as Orphan,
    OrphanMeter as OrphanMeter,
    living as living,
)
from ._requests import check_requests as check_requests
from ._script_acts import Act as Act, MakeTools as MakeTools, Script as Script
from ._shrinking import Trace as Trace, shortest_trace as shortest_trace
from ._simulate_judge import SessionCheck as SessionCheck
from ._simulate_plan import Simulation as Simulation
from ._simulate_run import Simulated as Simulated, simulate as simulate
from ._simulate_shrink import shrink as shrink
from ._stage import SOURCES as SOURCES, Source as Source, Stage as Stage
from ._store_check import (
    STORE_LAWS as STORE_LAWS,
    BrokenLaw as BrokenLaw,
    BrokenStore as BrokenStore,
    StoreVerdict as StoreVerdict,
    check_store as check_store,
)
from ._tool_check import check_tool as check_tool
from ._turn_machine import check_trace as check_trace
from ._verdicts import (
    VERDICTS as VERDICTS,
    CheckReport as CheckReport,
    Defects as Defects,
    Verdict as Verdict,
)
from ._virtual import Hung as Hung, play as play
