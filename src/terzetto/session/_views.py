"""What hooks and tools may see of an agent, so that floor 2 needs no agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from ..vocabulary import (
    CancelCause,
    Completion,
    InboxTarget,
    Message,
    MessageId,
    ModelSelection,
    SessionId,
    ToolSchema,
    UserCause,
    UserMessage,
)
from ._log import Session

AgentStatus: TypeAlias = Literal["idle", "running"]


class AgentView(Protocol):
    """An agent without the power to dispose of it. Plain methods never block."""

    @property
    def id(self) -> SessionId: ...

    @property
    def status(self) -> AgentStatus: ...

    @property
    def session(self) -> Session: ...

    def history(self) -> Sequence[Message]:
        """The derived history as it stands."""
        ...

    def followup(self, message: str | UserMessage) -> MessageId: ...

    def steer(self, message: str | UserMessage) -> MessageId: ...

    def inject(self, message: str | UserMessage) -> MessageId: ...

    def send(self, message: str | UserMessage, target: InboxTarget, wakeup: bool) -> MessageId: ...

    def cancel(self, cause: CancelCause = UserCause(), *, keep_inbox: bool = False) -> None: ...

    async def complete(
        self,
        messages: str | Sequence[Message],
        *,
        selection: ModelSelection | None = None,
        tools: Sequence[ToolSchema] = (),
        max_tokens: int | None = None,
    ) -> Completion:
        """One request outside the log (`Agent.complete`)."""
        ...
