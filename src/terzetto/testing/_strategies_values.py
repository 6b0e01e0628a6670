"""Hypothesis strategies of values, as plain functions with plural names.

They make well-typed values: all that may enter a log, the odd shapes included (empty texts,
big integers, absent against empty). Order is not theirs: `events` gives any event with any
seq; `logs` gives events numbered from 0, and still nothing that a session would accept.
"""

from __future__ import annotations

from typing import TypeVar

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from .. import vocabulary as v
from ..session._codec import TAGS

T = TypeVar("T")


def tuples(items: SearchStrategy[T]) -> SearchStrategy[tuple[T, ...]]:
    """Tuples of up to three *items*."""
    return st.lists(items, max_size=3).map(lambda found: tuple(found))


def maybe(items: SearchStrategy[T]) -> SearchStrategy[T | None]:
    """*items*, or None for an absent one."""
    return st.none() | items


# --- JSON -------------------------------------------------------------------------------


def texts(max_size: int = 20) -> SearchStrategy[str]:
    """Texts that UTF-8 can carry: no lone surrogates."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=max_size)


def names() -> SearchStrategy[str]:
    """Short texts that are not empty."""
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def counts() -> SearchStrategy[int]:
    """Integers from 0, sometimes far beyond 64 bits."""
    return st.integers(0, 100) | st.integers(min_value=0)


def json_leaves() -> SearchStrategy[v.JsonValue]:
    """Null, booleans, numbers and texts, without what JSON would lose (NaN, -0.0)."""
    floats = st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0)
    return st.none() | st.booleans() | st.integers() | floats | texts()


def json_values() -> SearchStrategy[v.JsonValue]:
    """Frozen JSON values."""
    return st.recursive(
        json_leaves(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3),
        max_leaves=6,
    ).map(v.freeze_json)


def json_objects() -> SearchStrategy[v.JsonObject]:
    """Frozen JSON objects."""
    return st.dictionaries(texts(), json_values(), max_size=3).map(v.freeze_object)


# --- messages ---------------------------------------------------------------------------


def call_ids() -> SearchStrategy[v.CallId]:
    return texts().map(v.CallId)


def message_ids() -> SearchStrategy[v.MessageId]:
    return names().map(v.MessageId)


def text_blocks() -> SearchStrategy[v.TextBlock]:
    return st.builds(v.TextBlock, texts())


def assistant_blocks() -> SearchStrategy[v.AssistantBlock]:
    return (
        text_blocks()
        | st.builds(v.ReasoningBlock, texts())
        | st.builds(v.ToolCallBlock, call_ids(), texts(), texts())
    )


def user_blocks() -> SearchStrategy[v.UserBlock]:
    results = st.builds(v.ToolResultBlock, call_ids(), tuples(text_blocks()), st.booleans())
    return text_blocks() | results


def developer_blocks() -> SearchStrategy[v.DeveloperBlock]:
    return (
        text_blocks()
        | st.builds(v.ToolAdditionBlock, texts())
        | st.builds(v.ToolRemovalBlock, texts())
    )


def plugin_sources() -> SearchStrategy[v.PluginSource]:
    sections = tuples(st.builds(v.ContextSection, texts(), texts()))
    return st.builds(v.PluginSource, texts(), maybe(texts()), maybe(sections))


def message_sources() -> SearchStrategy[v.MessageSource]:
    return (
        st.just(v.UserSource())
        | st.just(v.ToolRegistrySource())
        | st.builds(v.ToolSource, call_ids())
        | plugin_sources()
    )


def user_messages() -> SearchStrategy[v.UserMessage]:
    """User messages: texts and tool results, from every source."""
    return st.builds(v.UserMessage, tuples(user_blocks()), message_sources(), message_ids())


def assistant_messages() -> SearchStrategy[v.AssistantMessage]:
    """Assistant messages of text, reasoning and calls."""
    sources = st.builds(v.ModelSource, texts(), texts(), json_values())
    return st.builds(v.AssistantMessage, tuples(assistant_blocks()), sources, message_ids())


def system_messages() -> SearchStrategy[v.SystemMessage]:
    """System messages of plugins."""
    return st.builds(v.SystemMessage, tuples(text_blocks()), plugin_sources(), message_ids())


def developer_messages() -> SearchStrategy[v.DeveloperMessage]:
    """Developer messages: texts, tools added and removed."""
    return st.builds(v.DeveloperMessage, tuples(developer_blocks()), id=message_ids())


def messages() -> SearchStrategy[v.Message]:
    """Messages of every role."""
    return user_messages() | assistant_messages() | system_messages() | developer_messages()


def usages() -> SearchStrategy[v.Usage]:
    """Token counts, the optional ones absent or not."""
    return st.builds(
        v.Usage,
        input_tokens=counts(),
        output_tokens=counts(),
        cache_read_tokens=maybe(counts()),
        cache_write_tokens=maybe(counts()),
        reasoning_tokens=maybe(counts()),
    )


def failures() -> SearchStrategy[v.Failure]:
    """Failures of a provider, with and without the facts of HTTP."""
    return st.builds(
        v.Failure,
        message=texts(),
        code=texts(),
        status=maybe(counts()),
        provider_retry_after_ms=maybe(counts()),
        request_id=maybe(texts()),
    )


def finish_reasons() -> SearchStrategy[v.FinishReason]:
    plain: list[v.FinishReason] = [v.Stop(), v.ToolCalls(), v.MaxTokens()]
    return (
        st.sampled_from(plain)
        | st.builds(v.ErrorFinish, failures())
        | st.builds(v.AbortedFinish, failures())
    )


def chunks() -> SearchStrategy[v.StreamChunk]:
    """Chunks of every type, in no order that a stream would have."""
    return (
        st.builds(v.BlockStart, counts(), st.sampled_from(["text", "reasoning", "tool-call"]))
        | st.builds(v.TextDelta, counts(), texts())
        | st.builds(v.ReasoningDelta, counts(), texts())
        | st.builds(v.ToolCallDelta, counts(), call_ids(), texts(), maybe(texts()))
        | st.builds(v.BlockEnd, counts(), assistant_blocks())
        | st.builds(v.UsageChunk, usages())
        | st.builds(v.Finish, finish_reasons(), json_values())
    )


def selections() -> SearchStrategy[v.ModelSelection]:
    return st.builds(v.ModelSelection, texts(), texts(), maybe(texts()))


def option_objects() -> SearchStrategy[v.JsonObject]:
    """Adapter options: any keys but those that a request has itself."""
    taken = {"provider", "model", "reasoningEffort", "maxTokens", "messages", "tools", "sessionId"}
    return st.dictionaries(
        texts().filter(lambda key: key not in taken), json_values(), max_size=3
    ).map(v.freeze_object)


def call_configs() -> SearchStrategy[v.CallConfig]:
    """Call configurations, with adapter options of any kind."""
    return st.builds(
        v.CallConfig,
        provider=texts(),
        model=texts(),
        effort=maybe(texts()),
        max_tokens=maybe(st.integers(1, 2**53 - 1)),
        options=option_objects(),
    )


def tool_schemas() -> SearchStrategy[v.ToolSchema]:
    """Tool schemas whose parameters are any JSON object."""
    return st.builds(v.ToolSchema, name=texts(), description=texts(), parameters=json_objects())


def request_headers() -> SearchStrategy[v.RequestHeader]:
    return st.builds(
        v.RequestHeader,
        config=call_configs(),
        adapter_defaults=st.frozensets(st.sampled_from(["reasoningEffort", "maxTokens"])),
        tools=tuples(tool_schemas()),
    )


def requests() -> SearchStrategy[v.Request]:
    """Requests as an adapter gets them; nothing of one fits the rest."""
    return st.builds(
        v.Request,
        session_id=session_ids(),
        config=call_configs(),
        messages=tuples(messages()),
        tools=tuples(tool_schemas()),
    )


# --- events -----------------------------------------------------------------------------


def cancel_causes() -> SearchStrategy[v.CancelCause]:
    plain: list[v.CancelCause] = [
        v.UserCause(),
        v.ParentCause(),
        v.DisposedCause(),
        v.LegacyCause(),
    ]
    return st.sampled_from(plain) | st.builds(v.HookCause, texts())


def turn_endings() -> SearchStrategy[v.TurnEnding]:
    """Every ending a turn can have."""
    plain: list[v.TurnEnding] = [v.Completed(), v.Blocked(), v.EndedAtMaxTokens(), v.Interrupted()]
    return (
        st.sampled_from(plain)
        | st.builds(v.Aborted, cancel_causes())
        | st.builds(v.Failed, failures())
    )


def extensions() -> SearchStrategy[v.Extension]:
    """Facts of extras, under any name but Terzetto's own."""
    own = frozenset(TAGS.values())
    return st.builds(v.Extension, texts().filter(lambda name: name not in own), json_objects())


def splices() -> SearchStrategy[v.InboxSpliced]:
    return st.builds(
        v.InboxSpliced,
        st.sampled_from(["next-turn", "next-step"]),
        counts(),
        counts(),
        tuples(user_messages()),
        st.sampled_from([None, "canceled"]),
    )


def payloads() -> SearchStrategy[v.EventData]:
    """The data of an event, of every class."""
    turn = counts()
    in_step = {"turn": turn, "step": counts()}
    return st.one_of(
        st.builds(v.TurnStart, turn),
        st.builds(v.TurnEnd, turn, turn_endings()),
        st.builds(v.StepStart, **in_step),
        st.builds(v.StepEnd, **in_step),
        st.builds(v.UserMessageEvent, user_messages()),
        st.builds(v.SystemMessageEvent, **in_step, message=system_messages()),
        st.builds(
            v.DeveloperMessageEvent,
            **in_step,
            message=developer_messages(),
            header_seq=maybe(counts()),
        ),
        st.builds(v.AssistantChunk, **in_step, chunk=chunks()),
        st.builds(
            v.AssistantMessageEvent,
            **in_step,
            message=assistant_messages(),
            usage=maybe(usages()),
            interrupted=st.booleans(),
        ),
        st.builds(v.ToolCallEvent, **in_step, call_id=call_ids(), name=texts(), arguments=texts()),
        st.builds(
            v.ToolResultEvent,
            **in_step,
            message=user_messages(),
            error=maybe(st.builds(v.ToolErrorInfo, texts(), texts())),
        ),
        st.builds(
            v.RequestHeaderEvent,
            request_headers(),
            st.sampled_from(["initial", "resume", "change", "series"]),
            st.booleans(),
        ),
        st.builds(
            v.RequestContextEvent,
            texts(),
            texts(),
            maybe(counts()),
            st.sampled_from([None, "in-history"]),
        ),
        splices(),
        st.builds(v.EndSeed, st.booleans()),
        st.builds(v.ModelSelected, selections()),
        st.builds(
            v.LlmRetry,
            **in_step,
            retry_id=texts(),
            attempt=counts(),
            delay_ms=counts(),
            failure=failures(),
        ),
        st.builds(v.LlmRetryStarted, **in_step, retry_id=texts()),
        st.builds(v.CompactionStart, texts()),
        st.builds(v.CompactionSummary, texts(), texts()),
        st.builds(v.CompactionEnd, texts(), st.sampled_from(["completed", "failed", "canceled"])),
        extensions(),
    )


def surface_ops() -> SearchStrategy[v.SurfaceOp]:
    return st.just(v.APPEND) | st.builds(v.Replace, counts(), counts())


def events(*, seqs: SearchStrategy[int] | None = None) -> SearchStrategy[v.Event]:
    """Any event that can be built, with *seqs* for its seq (any count)."""
    return st.builds(
        v.Event,
        counts() if seqs is None else seqs,
        st.integers(0, 2**53),
        payloads(),
        maybe(surface_ops()),
        maybe(tuples(counts())),
        st.booleans(),
    )


def logs(max_size: int = 6) -> SearchStrategy[list[v.Event]]:
    """Events numbered from 0, each loadable without knowing any extension."""

    def number(found: list[v.Event]) -> list[v.Event]:
        return [
            evolve(e, seq=seq, ignorable=e.ignorable or isinstance(e.data, v.Extension))
            for seq, e in enumerate(found)
        ]

    return st.lists(events(), max_size=max_size).map(number)


def session_ids() -> SearchStrategy[v.SessionId]:
    """Ids that every store takes."""
    return (
        st.text(
            st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"),
            min_size=1,
            max_size=8,
        )
        .filter(lambda text: text not in {".", ".."})
        .map(v.SessionId)
    )


def session_headers() -> SearchStrategy[v.SessionHeader]:
    """Headers that every store takes."""
    return st.builds(
        v.SessionHeader,
        id=session_ids(),
        created_ms=st.integers(0, 2**53),
        cwd=maybe(texts()),
        parent_id=maybe(session_ids()),
        seed_length=counts(),
        durability=st.sampled_from(["lazy", "step", "each"]),
        meta=json_objects(),
    )
