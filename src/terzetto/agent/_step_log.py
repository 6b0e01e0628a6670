"""Where the tool calls of one step are recorded.

Two events for each call, built from parts that are checked already: a batch is a thousand
times this and little else that is ours. What is built is what the constructors build.
"""

from __future__ import annotations

from attrs import define, evolve

from ..session import Session
from ..tools import ToolOutcome
from ..vocabulary import (
    APPEND,
    MessageId,
    ToolCallBlock,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    ToolSource,
    UserMessage,
    clean_text,
)
from ..vocabulary._opening import opened
from ._run_state import RunState
from ._saving import Saving

_OpenCall = opened(ToolCallEvent)
_OpenBlock = opened(ToolResultBlock)
_OpenSource = opened(ToolSource)
_OpenMessage = opened(UserMessage)
_OpenResult = opened(ToolResultEvent)


@define(eq=False)
class StepLog:
    """Where a batch of one step is recorded."""

    turn: int
    step: int
    session: Session
    state: RunState
    saving: Saving

    def call(self, call: ToolCallBlock) -> int:
        event = _OpenCall()
        event.turn = self.turn
        event.step = self.step
        event.call_id = call.id
        event.name = call.name
        event.arguments = call.arguments
        event.__class__ = ToolCallEvent
        return self.session.append(event).seq

    def result(self, call: ToolCallBlock, call_seq: int, outcome: ToolOutcome) -> None:
        """Append the result, then its contexts as next-step input (C118)."""
        block = _OpenBlock()
        block.tool_call_id = call.id
        block.content = outcome.content
        block.is_error = outcome.is_error
        block.__class__ = ToolResultBlock
        source = _OpenSource()
        source.call_id = call.id
        source.__class__ = ToolSource
        message = _OpenMessage()
        message.content = (block,)
        message.source = source
        message_id = self.session.new_id()  # whoever injects a source of ids may give anything
        if type(message_id) is not str or not message_id.isascii():
            message_id = MessageId(clean_text(message_id))
        message.id = message_id
        message.__class__ = UserMessage
        event = _OpenResult()
        event.turn = self.turn
        event.step = self.step
        event.message = message
        event.error = outcome.error
        event.__class__ = ToolResultEvent
        self.session.append(event, APPEND, (call_seq,))
        if outcome.contexts:
            self._defer(outcome)

    def _defer(self, outcome: ToolOutcome) -> None:
        for context in outcome.contexts:
            if context.id in self.session.pending.seen:
                # The same message was deferred before: both times are meant.
                context = evolve(context, id=self.session.new_id())
            self.state.inbox.append("next-step", context)

    def must_flush(self, read_only: bool = False) -> bool:
        return self.saving.must_flush(read_only)

    async def flush(self) -> None:
        await self.saving.flush()

    def must_catch_up(self) -> bool:
        return self.saving.must_catch_up_now

    async def catch_up(self) -> None:
        await self.saving.catch_up()
