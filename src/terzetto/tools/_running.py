"""A call on its way: what classification made of it, its timeout, and whether that has passed.

Owns what the stages of the pipeline hand on to each other, and what statistics tell of a
running call. The stages themselves belong to the pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio
from attrs import define, frozen

from ..session import AgentView
from ..vocabulary import CallId, SessionId, ToolCallBlock, without
from ._hooks import ToolCallHook
from ._tool import Tool, ToolOutcome, timed_out
from ._touches import Claim


@frozen(kw_only=True)
class OverdueCall:
    """A tool call whose timeout has passed and whose body has not ended yet.

    Its result is decided, and committed once the body has ended, with the listeners around
    it. *seconds*: since the timeout.
    """

    agent_id: SessionId
    call_id: CallId
    tool: str
    seconds: float


@define(eq=False)
class Timer:
    """A cooperative limit of *seconds*; whether it fired is decided when it fires.

    Its own task waits: a cancel that comes first, or in the same instant, ends that wait,
    and a timeout that came first stays one, however long the body cleans up.
    """

    seconds: float
    agent: AgentView
    fired: bool = False
    deadline: float = math.inf
    """When it fires, on Trio's clock."""

    async def run(self, body: Callable[[], Awaitable[ToolOutcome]]) -> ToolOutcome:
        self.deadline = trio.current_time() + self.seconds
        outcome: ToolOutcome | None = None
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._wait, self.seconds, nursery.cancel_scope)
                try:
                    outcome = await body()
                except BaseException as error:  # kept as itself: the nursery would wrap it
                    failure = error
                nursery.cancel_scope.cancel(reason="the call has ended")
        except BaseException as error:
            # The timer's own `Cancelled`: what the body did is known all the same.
            if without(error, trio.Cancelled) is not None:
                raise
        if self.fired:
            return timed_out(self.seconds)
        if failure is not None:
            raise failure
        assert outcome is not None
        return outcome

    async def _wait(self, seconds: float, scope: trio.CancelScope) -> None:
        await trio.sleep(seconds)
        for _ in range(2):  # a cancel of the same instant comes first
            await trio.lowlevel.checkpoint()
        self.fired = True
        scope.cancel(reason="the tool's timeout")


@define(eq=False)
class RunningCall:
    """A call on its way: what classification made of it, and what has come of it so far.

    One object for all of it, because a batch makes one for each call: its tool, its arguments
    or their refusal, its place in the log, its outcome.
    """

    call: ToolCallBlock
    tool: Tool | None
    arguments: object = None
    refused: ToolOutcome | None = None
    claim: Claim | None = None
    """What it touches; None: it is exclusive."""
    seq: int = -1
    """Of its `tool/call`, which the result cites."""
    ready: bool = False
    """Whether it has an outcome to commit."""
    started: bool = False
    in_body: bool = False
    """Whether the body has begun and not ended: nobody waits for a thread or a listener."""
    reviewed: bool = True
    """Whether post-execute listeners see the outcome."""
    outcome: ToolOutcome | None = None
    interrupt: KeyboardInterrupt | None = None
    """Ctrl-C that came inside a body or a listener: never a tool's error."""
    hook: ToolCallHook | None = None
    """What listeners see of it, once one was asked."""
    timer: Timer | None = None
    """The timeout of its tool, once it runs, if there is one."""

    def overdue(self) -> OverdueCall | None:
        """How long it has been overdue, if it is."""
        timer = self.timer
        if timer is None or not timer.fired:
            return None
        return OverdueCall(
            agent_id=timer.agent.id,
            call_id=self.call.id,
            tool=self.call.name,
            seconds=trio.current_time() - timer.deadline,
        )
