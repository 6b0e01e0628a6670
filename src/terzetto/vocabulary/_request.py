"""What a model is asked: tool schemas, call configuration, headers, requests.

A request is a pure function of the log: its header, the derived messages and the
tools (C75). It has no system field; prompts are messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from attrs import evolve, field, frozen
from attrs.converters import optional

from ._errors import InvalidValue
from ._json import EMPTY_OBJECT, JsonObject, clean_text, freeze_object
from ._kinds import among, exactly, flag, whole_or_none
from ._messages import AssistantMessage, Message, SessionId
from ._stream import FinishReason, Usage

HeaderReason: TypeAlias = Literal["initial", "resume", "change", "series"]
CONFIG_KEYS = frozenset(
    {"provider", "model", "reasoningEffort", "maxTokens", "messages", "tools", "sessionId"}
)
"""Names that adapter-owned options may not take: requests have fields of these names."""


@frozen(kw_only=True)
class ToolSchema:
    """A tool as the model sees it; *parameters* is JSON Schema."""

    name: str = field(converter=clean_text)
    description: str = field(converter=clean_text)
    parameters: JsonObject = field(converter=freeze_object)


@frozen
class ModelSelection:
    """The route of a step and its retries. No effort means the adapter's default."""

    provider: str = field(converter=clean_text)
    model: str = field(converter=clean_text)
    effort: str | None = field(default=None, converter=optional(clean_text))


def _max_tokens(value: int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidValue(f"max_tokens: expected a positive integer, got {value!r}")
    if value > 2**53 - 1:  # the largest that every reader of JSON reads as it is
        raise InvalidValue("max_tokens: expected at most 2**53 - 1; None sets no limit")
    return value


def _options(value: Mapping[str, object]) -> JsonObject:
    frozen_options = freeze_object(value)
    if taken := CONFIG_KEYS & set(frozen_options):
        raise InvalidValue(f"options: {sorted(taken)} are fields of a request, not options")
    return frozen_options


@frozen(kw_only=True)
class CallConfig:
    """The envelope of a request.

    *options* are adapter-owned controls such as ``temperature``; they are written
    beside the other fields in the log's JSON.
    """

    provider: str = field(converter=clean_text)
    model: str = field(converter=clean_text)
    effort: str | None = field(default=None, converter=optional(clean_text))
    max_tokens: int | None = field(default=None, converter=_max_tokens)
    options: JsonObject = field(default=EMPTY_OBJECT, converter=_options)

    @property
    def selection(self) -> ModelSelection:
        return ModelSelection(self.provider, self.model, self.effort)

    def with_options(self, /, **options: object) -> CallConfig:
        """A copy with *options* merged in."""
        return evolve(self, options={**self.options, **options})


DefaultField: TypeAlias = Literal["reasoningEffort", "maxTokens"]


@frozen(kw_only=True)
class RequestHeader:
    """What the log keeps of a request beside its messages (C80, C82)."""

    config: CallConfig
    adapter_defaults: frozenset[DefaultField] = frozenset()
    tools: tuple[ToolSchema, ...] = ()


@frozen(kw_only=True)
class RetryPolicy:
    """The provider's advice to retrying listeners (C140). Delays are milliseconds."""

    max_retries: int | None = 5
    codes: frozenset[str] = frozenset(
        {"EMPTY_RESPONSE", "RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT"}
    )
    first_delay_ms: int = 500
    max_delay_ms: int = 10_000
    jitter: float = 0.1


@frozen(kw_only=True)
class ModelInfo:
    """What an adapter declares about the exact model of a prepared call.

    *context_window* and *max_output_tokens* are tokens; None means that nobody said.
    Neither is enforced: the provider knows better.
    """

    context_window: int | None = field(default=None, validator=whole_or_none)
    max_output_tokens: int | None = field(default=None, validator=whole_or_none)
    system_prompt_update: Literal["in-history"] | None = field(
        default=None, validator=among("in-history", None)
    )
    tool_update: bool = field(default=False, validator=flag)
    retry_policy: RetryPolicy | None = field(
        default=None, validator=exactly(RetryPolicy, type(None))
    )


@frozen(kw_only=True)
class ToolHistory:
    """The tools that headers of this session declared, each in its latest form (C101).

    In the order in which their names were first declared; a tool that is not offered any
    more stays.
    """

    declared: tuple[ToolSchema, ...] = ()


@frozen(kw_only=True)
class Request:
    """One frozen request, equal to what the log gives (C162).

    *messages* is an immutable view of the derived history, in surface order.
    """

    session_id: SessionId
    config: CallConfig
    messages: Sequence[Message]
    tools: tuple[ToolSchema, ...] = ()
    tool_history: ToolHistory = ToolHistory()


@frozen(kw_only=True)
class Completion:
    """The answer to a request outside the log.

    *finish* is why it ended: `MaxTokens` says that the limit cut it. *usage* is absent
    when the provider reported none.
    """

    message: AssistantMessage
    finish: FinishReason
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """The text blocks, joined; reasoning and calls left out."""
        return self.message.text
