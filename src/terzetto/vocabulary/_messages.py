"""Identities, content blocks, sources and messages.

Plain immutable values. Texts are cleaned of lone surrogates when a value is
built (`clean_text`), so nothing built here can make a log unwritable.
"""

from __future__ import annotations

import itertools
import os
import secrets
from typing import Literal, NewType, TypeAlias

from attrs import field, frozen
from attrs.converters import optional

from ._errors import InvalidValue
from ._json import JsonObject as JsonObject, JsonValue, clean_text, freeze_json
from ._kinds import each, exactly, flag, shown

SessionId = NewType("SessionId", str)
MessageId = NewType("MessageId", str)
CallId = NewType("CallId", str)


def clean_call_id(value: str) -> CallId:
    """A call id as the model gave it, writable."""
    return CallId(clean_text(value))


def clean_message_id(value: str) -> MessageId:
    return MessageId(clean_text(value))


class _Ids:
    """Ids that nobody else makes: a random number of the process, and a count.

    Every result has one, and asking the system for randomness each time is most of it.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start anew, as a process that was forked has to."""
        self.prefix = secrets.token_hex(8)
        self.count = itertools.count(1).__next__


_ids = _Ids()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ids.begin)


def new_message_id() -> MessageId:
    """An id of its own, here and elsewhere; engines under test inject a seeded source instead."""
    return MessageId(f"{_ids.prefix}{_ids.count():08x}")


@frozen
class TextBlock:
    """Plain text."""

    text: str = field(converter=clean_text)


@frozen
class ReasoningBlock:
    """What the model thought; kept in the log, sent back only where a provider needs it."""

    text: str = field(converter=clean_text)


@frozen
class ToolCallBlock:
    """A tool call as the model wrote it; *arguments* is its raw text, JSON or not."""

    id: CallId = field(converter=clean_call_id)
    name: str = field(converter=clean_text)
    arguments: str = field(converter=clean_text)


@frozen
class ToolResultBlock:
    """The answer to one tool call."""

    tool_call_id: CallId = field(converter=clean_call_id)
    content: tuple[TextBlock, ...] = field(validator=each(TextBlock))
    is_error: bool = field(default=False, validator=flag)


@frozen
class ToolAdditionBlock:
    """A tool that is new since the last header."""

    tool_name: str = field(converter=clean_text)


@frozen
class ToolRemovalBlock:
    """A tool that is gone since the last header."""

    tool_name: str = field(converter=clean_text)


AssistantBlock: TypeAlias = TextBlock | ReasoningBlock | ToolCallBlock
UserBlock: TypeAlias = TextBlock | ToolResultBlock
DeveloperBlock: TypeAlias = TextBlock | ToolAdditionBlock | ToolRemovalBlock


@frozen
class UserSource:
    """A person, or the program that speaks for one."""


@frozen
class ContextSection:
    """One named part of a runtime-context snapshot."""

    name: str = field(converter=clean_text)
    text: str = field(converter=clean_text)


@frozen
class PluginSource:
    """Code that contributes to the conversation; *form* and *sections* mark snapshots."""

    plugin: str = field(converter=clean_text)
    form: str | None = field(default=None, converter=optional(clean_text))
    sections: tuple[ContextSection, ...] | None = field(
        default=None, validator=each(ContextSection, none=True)
    )


@frozen
class ToolSource:
    """The tool call that a result answers."""

    call_id: CallId = field(converter=clean_call_id)


@frozen
class ModelSource:
    """*replay_state* is the adapter's private state, given back to that adapter only."""

    provider: str = field(converter=clean_text)
    model: str = field(converter=clean_text)
    replay_state: JsonValue = field(default=None, converter=freeze_json)


@frozen
class ToolRegistrySource:
    """The engine itself, announcing a changed tool set."""


MessageSource: TypeAlias = UserSource | PluginSource | ToolSource | ToolRegistrySource
USER = UserSource()


def _content(value: str | tuple[UserBlock, ...] | list[UserBlock]) -> tuple[UserBlock, ...]:
    if isinstance(value, str):
        return (TextBlock(value),)
    if not isinstance(value, (tuple, list)):
        raise InvalidValue(
            f"user content: expected a text or blocks in a tuple, got {shown(value)}"
        )
    blocks = tuple(value)
    for block in blocks:
        if type(block) not in (TextBlock, ToolResultBlock):
            raise InvalidValue(
                f"user content: expected TextBlock or ToolResultBlock, got {type(block).__name__}"
            )
    return blocks


@frozen
class UserMessage:
    """Input with an identity and exactly one source. A ``str`` becomes one text block.

    Tool results are user-role messages too, with one `ToolResultBlock`.
    """

    content: tuple[UserBlock, ...] = field(converter=_content)
    source: MessageSource = field(
        default=USER,
        validator=exactly(UserSource, PluginSource, ToolSource, ToolRegistrySource),
    )
    id: MessageId = field(factory=new_message_id, converter=clean_message_id)

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return "".join(b.text for b in self.content if isinstance(b, TextBlock))


@frozen
class AssistantMessage:
    """One answer of a model, its blocks in the order they appeared."""

    content: tuple[AssistantBlock, ...]
    source: ModelSource
    id: MessageId = field(factory=new_message_id, converter=clean_message_id)

    @property
    def text(self) -> str:
        """The text blocks, joined; reasoning and calls left out."""
        return "".join(b.text for b in self.content if isinstance(b, TextBlock))

    @property
    def tool_calls(self) -> tuple[ToolCallBlock, ...]:
        """The calls, in the order the model wrote them."""
        return tuple(b for b in self.content if isinstance(b, ToolCallBlock))


@frozen
class SystemMessage:
    """One version of the prompt. Empty content reserves or clears its node."""

    content: tuple[TextBlock, ...]
    source: PluginSource
    id: MessageId = field(factory=new_message_id, converter=clean_message_id)

    @property
    def text(self) -> str:
        return "".join(b.text for b in self.content)


@frozen
class DeveloperMessage:
    """A changed tool set, announced."""

    content: tuple[DeveloperBlock, ...]
    source: ToolRegistrySource = ToolRegistrySource()
    id: MessageId = field(factory=new_message_id, converter=clean_message_id)


Message: TypeAlias = UserMessage | AssistantMessage | SystemMessage | DeveloperMessage
InboxTarget: TypeAlias = Literal["next-turn", "next-step"]
