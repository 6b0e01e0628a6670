"""Terzetto: the agent engine for Trio.

Open an engine inside your own Trio program, open agents on it, and ask:

    async with terzetto.open_engine(adapters=[...], tools=[...]) as engine:
        async with engine.open_agent(provider="...", model="...") as agent:
            turn = await agent.ask("Which file here is the longest?")

To pytest: PYTEST_DONT_REWRITE. The plugin is of the same distribution, and that is all.
"""

from ._lazy import at_first_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from attrs import evolve as evolve

    from .agent import (
        Agent as Agent,
        AgentErrorNotice as AgentErrorNotice,
        AgentHandle as AgentHandle,
        AgentModel as AgentModel,
        Agents as Agents,
        AgentScope as AgentScope,
        AgentStatistics as AgentStatistics,
        Answer as Answer,
        Assembly as Assembly,
        Driver as Driver,
        End as End,
        EngineStatistics as EngineStatistics,
        Enter as Enter,
        Hooks as Hooks,
        InboxNotice as InboxNotice,
        NoAnswer as NoAnswer,
        PreStep as PreStep,
        Reject as Reject,
        RequestFailed as RequestFailed,
        RequestHook as RequestHook,
        Retry as Retry,
        SessionStarted as SessionStarted,
        Settings as Settings,
        StatusChanged as StatusChanged,
        Turn as Turn,
        TurnFailed as TurnFailed,
        TurnStopping as TurnStopping,
        current_agent as current_agent,
    )
    from .engine import Engine as Engine, open_engine as open_engine
    from .hooks import (
        Notification as Notification,
        Registration as Registration,
        Serial as Serial,
        Waterfall as Waterfall,
    )
    from .llm import (
        Adapter as Adapter,
        ChunkStream as ChunkStream,
        PreparedCall as PreparedCall,
        StreamCall as StreamCall,
    )
    from .prompt import working_directory as working_directory
    from .session import (
        AgentView as AgentView,
        Compacting as Compacting,
        Inbox as Inbox,
        Messages as Messages,
        Session as Session,
    )
    from .stores import (
        JsonlStore as JsonlStore,
        MemoryStore as MemoryStore,
        ReadHandle as ReadHandle,
        SqliteStore as SqliteStore,
        Store as Store,
        WriteHandle as WriteHandle,
    )
    from .tools import (
        Allow as Allow,
        Ask as Ask,
        Deny as Deny,
        LongResult as LongResult,
        OverdueCall as OverdueCall,
        Read as Read,
        Tool as Tool,
        ToolCallHook as ToolCallHook,
        ToolExecutor as ToolExecutor,
        ToolOutcome as ToolOutcome,
        ToolResultHook as ToolResultHook,
        ToolRun as ToolRun,
        Write as Write,
        raw_tool as raw_tool,
        tool as tool,
    )
    from .vocabulary import (
        ActivityCancelled as ActivityCancelled,
        AgentBusy as AgentBusy,
        AgentCrashed as AgentCrashed,
        AgentDisposed as AgentDisposed,
        AgentExists as AgentExists,
        AssistantMessage as AssistantMessage,
        CallConfig as CallConfig,
        CodedError as CodedError,
        Completion as Completion,
        CorruptLog as CorruptLog,
        Durability as Durability,
        Event as Event,
        Failure as Failure,
        ForkError as ForkError,
        HookCause as HookCause,
        IllegalEvent as IllegalEvent,
        InvalidTool as InvalidTool,
        InvalidValue as InvalidValue,
        MessageDiscarded as MessageDiscarded,
        ModelInfo as ModelInfo,
        ModelSelection as ModelSelection,
        PluginSource as PluginSource,
        ProviderError as ProviderError,
        Request as Request,
        SessionExists as SessionExists,
        SessionLocked as SessionLocked,
        SessionNotFound as SessionNotFound,
        StoreError as StoreError,
        TerzettoError as TerzettoError,
        TextBlock as TextBlock,
        ToolError as ToolError,
        Usage as Usage,
        UsageError as UsageError,
        UserCause as UserCause,
        UserMessage as UserMessage,
        UserSource as UserSource,
        WouldDeadlock as WouldDeadlock,
        WrongThread as WrongThread,
    )
else:
    __getattr__, __dir__ = at_first_use(
        __name__,
        {
            "attrs": "evolve",
            ".agent": """
                Agent AgentErrorNotice AgentHandle AgentModel Agents AgentScope AgentStatistics
                Answer Assembly Driver End EngineStatistics Enter Hooks InboxNotice NoAnswer PreStep
                Reject RequestFailed RequestHook Retry SessionStarted Settings StatusChanged Turn
                TurnFailed TurnStopping current_agent
            """,
            ".engine": "Engine open_engine",
            ".hooks": "Notification Registration Serial Waterfall",
            ".llm": "Adapter ChunkStream PreparedCall StreamCall",
            ".prompt": "working_directory",
            ".session": "AgentView Compacting Inbox Messages Session",
            ".stores": "JsonlStore MemoryStore ReadHandle SqliteStore Store WriteHandle",
            ".tools": """
                Allow Ask Deny LongResult OverdueCall Read Tool ToolCallHook ToolExecutor
                ToolOutcome ToolResultHook ToolRun Write raw_tool tool
            """,
            ".vocabulary": """
                ActivityCancelled AgentBusy AgentCrashed AgentDisposed AgentExists AssistantMessage
                CallConfig CodedError Completion CorruptLog Durability Event Failure ForkError
                HookCause IllegalEvent InvalidTool InvalidValue MessageDiscarded ModelInfo
                ModelSelection PluginSource ProviderError Request SessionExists SessionLocked
                SessionNotFound StoreError TerzettoError TextBlock ToolError Usage UsageError
                UserCause UserMessage UserSource WouldDeadlock WrongThread
            """,
        },
    )

__version__ = "0.1.0"

__all__ = [
    "ActivityCancelled",
    "Adapter",
    "Agent",
    "AgentBusy",
    "AgentCrashed",
    "AgentDisposed",
    "AgentErrorNotice",
    "AgentExists",
    "AgentHandle",
    "AgentModel",
    "AgentScope",
    "AgentStatistics",
    "AgentView",
    "Agents",
    "Allow",
    "Answer",
    "Ask",
    "Assembly",
    "AssistantMessage",
    "CallConfig",
    "ChunkStream",
    "CodedError",
    "Compacting",
    "Completion",
    "CorruptLog",
    "Deny",
    "Driver",
    "Durability",
    "End",
    "Engine",
    "EngineStatistics",
    "Enter",
    "Event",
    "Failure",
    "ForkError",
    "HookCause",
    "Hooks",
    "IllegalEvent",
    "Inbox",
    "InboxNotice",
    "InvalidTool",
    "InvalidValue",
    "JsonlStore",
    "LongResult",
    "MemoryStore",
    "MessageDiscarded",
    "Messages",
    "ModelInfo",
    "ModelSelection",
    "NoAnswer",
    "Notification",
    "OverdueCall",
    "PluginSource",
    "PreStep",
    "PreparedCall",
    "ProviderError",
    "Read",
    "ReadHandle",
    "Registration",
    "Reject",
    "Request",
    "RequestFailed",
    "RequestHook",
    "Retry",
    "Serial",
    "Session",
    "SessionExists",
    "SessionLocked",
    "SessionNotFound",
    "SessionStarted",
    "Settings",
    "SqliteStore",
    "StatusChanged",
    "Store",
    "StoreError",
    "StreamCall",
    "TerzettoError",
    "TextBlock",
    "Tool",
    "ToolCallHook",
    "ToolError",
    "ToolExecutor",
    "ToolOutcome",
    "ToolResultHook",
    "ToolRun",
    "Turn",
    "TurnFailed",
    "TurnStopping",
    "Usage",
    "UsageError",
    "UserCause",
    "UserMessage",
    "UserSource",
    "Waterfall",
    "WouldDeadlock",
    "Write",
    "WriteHandle",
    "WrongThread",
    "current_agent",
    "evolve",
    "open_engine",
    "raw_tool",
    "tool",
    "working_directory",
]
