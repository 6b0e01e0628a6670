"""The values that every step makes, built quickly: see `_opening`.

Each function gives what the constructor of its class gives, for parts that have the declared
types. Texts are cleaned as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._events import AssistantChunk, AssistantMessageEvent
from ._json import clean_text
from ._messages import AssistantBlock, AssistantMessage, Message, MessageId, ModelSource, SessionId
from ._opening import opened
from ._request import CallConfig, Request, ToolHistory, ToolSchema
from ._stream import StreamChunk, Usage

_Chunk = opened(AssistantChunk)
_Answer, _AnswerEvent = opened(AssistantMessage), opened(AssistantMessageEvent)
_Request = opened(Request)

# `made` is of the class itself only where it is returned.


def assistant_chunk(turn: int, step: int, chunk: StreamChunk) -> AssistantChunk:
    made = _Chunk()
    made.turn = turn
    made.step = step
    made.chunk = chunk
    made.__class__ = AssistantChunk
    if TYPE_CHECKING:
        assert isinstance(made, AssistantChunk)
    return made


def answer_event(
    turn: int,
    step: int,
    content: tuple[AssistantBlock, ...],
    source: ModelSource,
    message_id: MessageId,
    usage: Usage | None,
    interrupted: bool,
) -> AssistantMessageEvent:
    """An `AssistantMessageEvent` with its message."""
    message = _Answer()
    message.content = content
    message.source = source
    message.id = _clean(message_id)
    message.__class__ = AssistantMessage
    made = _AnswerEvent()
    made.turn = turn
    made.step = step
    made.message = message
    made.usage = usage
    made.interrupted = interrupted
    made.__class__ = AssistantMessageEvent
    if TYPE_CHECKING:
        assert isinstance(made, AssistantMessageEvent)
    return made


def request(
    session_id: SessionId,
    config: CallConfig,
    messages: Sequence[Message],
    tools: tuple[ToolSchema, ...],
    tool_history: ToolHistory,
) -> Request:
    made = _Request()
    made.session_id = session_id
    made.config = config
    made.messages = messages
    made.tools = tools
    made.tool_history = tool_history
    made.__class__ = Request
    if TYPE_CHECKING:
        assert isinstance(made, Request)
    return made


def _clean(message_id: MessageId) -> MessageId:
    """Whoever injects a source of ids may give anything."""
    if type(message_id) is str and message_id.isascii():
        return message_id
    return MessageId(clean_text(message_id))
