"""Floor 3: the only loop."""

from ._agent import Agent as Agent
from ._answers import Answer as Answer, NoAnswer as NoAnswer
from ._creation import Agents as Agents
from ._driver import Driven as Driven, Driver as Driver, LoopDriver as LoopDriver
from ._hooks import (
    AgentErrorNotice as AgentErrorNotice,
    Assembly as Assembly,
    End as End,
    Enter as Enter,
    FailureDecision as FailureDecision,
    Hooks as Hooks,
    InboxNotice as InboxNotice,
    PreStep as PreStep,
    Reject as Reject,
    RequestFailed as RequestFailed,
    RequestHook as RequestHook,
    Retry as Retry,
    SessionStarted as SessionStarted,
    StatusChanged as StatusChanged,
    StepDecision as StepDecision,
    TurnStopping as TurnStopping,
)
from ._initiator import (
    current_agent as current_agent,
    initiated_by as initiated_by,
    require_agent as require_agent,
)
from ._lifetime import AgentHandle as AgentHandle
from ._model import AgentModel as AgentModel
from ._options import (
    Commit as Commit,
    Setup as Setup,
    checked_durability as checked_durability,
    several as several,
)
from ._registry import AgentRegistry as AgentRegistry
from ._scope import AgentScope as AgentScope
from ._services import Services as Services, Settings as Settings
from ._statistics import (
    AgentStatistics as AgentStatistics,
    EngineStatistics as EngineStatistics,
    sum_of as sum_of,
)
from ._turn import Turn as Turn, TurnFailed as TurnFailed
from ._waiting import TrioBell as TrioBell
from ._writer import Writer as Writer, checked_window as checked_window
