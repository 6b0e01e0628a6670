"""The names of the format: which text says of which class a piece of JSON is."""

from __future__ import annotations

from collections.abc import Mapping

from .. import vocabulary as v

TAGS: Mapping[type, str] = {
    v.TurnStart: "turn/start",
    v.TurnEnd: "turn/end",
    v.StepStart: "step/start",
    v.StepEnd: "step/end",
    v.UserMessageEvent: "user/message",
    v.SystemMessageEvent: "system/message",
    v.DeveloperMessageEvent: "developer/message",
    v.AssistantChunk: "assistant/chunk",
    v.AssistantMessageEvent: "assistant/message",
    v.ToolCallEvent: "tool/call",
    v.ToolResultEvent: "tool/result",
    v.RequestHeaderEvent: "request/header",
    v.RequestContextEvent: "request/context",
    v.InboxSpliced: "agent/inbox/spliced",
    v.EndSeed: "session/end-seed",
    v.ModelSelected: "model/selected",
    v.LlmRetry: "llm/retry",
    v.LlmRetryStarted: "llm/retry-started",
    v.CompactionStart: "compaction/start",
    v.CompactionSummary: "compaction/summary",
    v.CompactionEnd: "compaction/end",
}
"""The ``type`` of each payload. Every other name is an `Extension`'s."""

TAGGED: Mapping[type, tuple[str, str]] = {
    v.TextBlock: ("type", "text"),
    v.ReasoningBlock: ("type", "reasoning"),
    v.ToolCallBlock: ("type", "tool-call"),
    v.ToolResultBlock: ("type", "tool-result"),
    v.ToolAdditionBlock: ("type", "tool-addition"),
    v.ToolRemovalBlock: ("type", "tool-removal"),
    v.UserSource: ("kind", "user"),
    v.PluginSource: ("kind", "plugin"),
    v.ToolSource: ("kind", "tool"),
    v.ModelSource: ("kind", "model"),
    v.ToolRegistrySource: ("kind", "tool-registry"),
    v.UserMessage: ("role", "user"),
    v.AssistantMessage: ("role", "assistant"),
    v.SystemMessage: ("role", "system"),
    v.DeveloperMessage: ("role", "developer"),
    v.BlockStart: ("type", "block-start"),
    v.TextDelta: ("type", "text-delta"),
    v.ReasoningDelta: ("type", "reasoning-delta"),
    v.ToolCallDelta: ("type", "tool-call-delta"),
    v.BlockEnd: ("type", "block-end"),
    v.UsageChunk: ("type", "usage"),
    v.Finish: ("type", "finish"),
    v.Stop: ("kind", "stop"),
    v.ToolCalls: ("kind", "tool-calls"),
    v.MaxTokens: ("kind", "max-tokens"),
    v.ErrorFinish: ("kind", "error"),
    v.AbortedFinish: ("kind", "aborted"),
    v.Completed: ("kind", "completed"),
    v.Blocked: ("kind", "blocked"),
    v.Aborted: ("kind", "aborted"),
    v.Failed: ("kind", "error"),
    v.EndedAtMaxTokens: ("kind", "max-tokens"),
    v.Interrupted: ("kind", "interrupted"),
    v.UserCause: ("kind", "user"),
    v.ParentCause: ("kind", "parent"),
    v.DisposedCause: ("kind", "disposed"),
    v.HookCause: ("kind", "hook"),
    v.LegacyCause: ("kind", "legacy"),
    v.Replace: ("op", "replace"),
}
"""The key and the value that name a class among those that may stand in its place."""
