"""The stages of one tool call: policy, body, review.

``pre-execute -> guards -> execute -> body -> post-execute -> finalize -> result``
(C113). Every stage turns what may happen in it into a `ToolOutcome`; a
KeyboardInterrupt is kept beside it, for the batch to raise at its end. When the batch
is cancelled, what counts as started, what keeps its result and what is withheld is
decided here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import cast

import trio
from attrs import define, evolve, field

from ..session import AgentView
from ..vocabulary import (
    InvalidValue,
    TextBlock,
    ToolCallBlock,
    ToolError,
    UserMessage,
    chain_text,
    texts,
    without,
)
from ._encode import InvalidOutput, bound, encode_result
from ._hooks import Allow, Approver, Ask, Deny, PreExecute, ToolCallHook, ToolHooks, ToolResultHook
from ._registry import ToolLayer
from ._running import PreparedTool, RunningCall, Timer
from ._schema import InvalidArguments
from ._spill import NOT_KEPT, LongResult, Spill, await_spill, call_spill, spilled
from ._tool import (
    Tool,
    ToolOutcome,
    ToolRun,
    aborted,
    aborted_before_dispatch,
    denied,
    invalid_arguments,
    invalid_output,
    raised,
    success,
    timed_out,
    unknown_tool,
)

logger = logging.getLogger("terzetto")


def cancelled_here() -> bool:
    """Whether the running task is inside a cancelled scope."""
    return trio.current_effective_deadline() == -math.inf


@define(eq=False)
class ToolPipeline:
    """Runs single calls for one agent.

    *limiter* bounds the threads of plain functions over the whole engine. *spill* is given
    the full text of what is cut; without one, results are cut as soon as there are any.
    *running* holds the calls whose bodies run or are about to.
    """

    agent: AgentView
    layer: ToolLayer
    hooks: ToolHooks
    approver: Approver | None
    limiter: trio.CapacityLimiter
    spill: Spill | None = field(default=None, kw_only=True)
    running: set[RunningCall] = field(factory=set, kw_only=True)

    def classify(self, call: ToolCallBlock) -> PreparedTool:
        """Look the tool up, parse the arguments, ask its classifier. Never raises."""
        tool = self.layer.lookup(call.name)
        if tool is None:
            return PreparedTool(call, None, refused=unknown_tool(call.name))
        prepared = PreparedTool(call, tool)
        try:
            prepared.arguments = tool.parse(call.arguments)
            prepared.claim = tool.claim(prepared.arguments)
        except InvalidArguments as error:
            prepared.refused = invalid_arguments(str(error))
        except BaseException as error:  # part of the tool's own code
            rest = self._rest(prepared, error) or ToolError("classification was interrupted")
            prepared.refused = raised(rest)
        return prepared

    # --- starts lane --------------------------------------------------------------------

    @property
    def waits_before(self) -> bool:
        """Whether `admit` may wait; without listeners `admit_now` does the same."""
        return bool(self.hooks.pre_execute)

    async def admit(self, prepared: PreparedTool) -> None:
        """Pre-execute, approval and guards; sets the outcome of a call that may not run."""
        hook = ToolCallHook(self.agent, prepared.call, prepared.tool)
        try:
            decision = await self.hooks.pre_execute.run(hook, _allow)
            if isinstance(decision, Ask):
                decision = await self._ask(hook, decision)
        except BaseException as error:  # listeners and approvers: somebody else's code
            rest = self._rest(prepared, error)
            if rest is None:
                prepared.outcome = aborted_before_dispatch()
            else:
                prepared.outcome, prepared.reviewed = raised(rest), False
            return
        match decision:
            case Allow():
                self.admit_now(prepared)
            case Deny(reason=reason):
                prepared.outcome = denied(reason)
            case _:  # a policy that decides nothing must not let the call through
                prepared.outcome = raised(_not_a(decision, "pre-execute", "Allow, Deny or Ask"))

    def admit_now(self, prepared: PreparedTool) -> None:
        """Guards and refusals alone."""
        if guards := self.layer.guards():
            hook = ToolCallHook(self.agent, prepared.call, prepared.tool)
            for guard in guards:
                try:
                    reason = guard(hook)
                except BaseException as error:  # a guard that fails lets no call through
                    rest = self._rest(prepared, error)
                    prepared.outcome = aborted_before_dispatch() if rest is None else raised(rest)
                    prepared.reviewed = False
                    return
                if reason is not None:
                    prepared.outcome = denied(reason)
                    return
        prepared.outcome = prepared.refused

    async def _ask(self, hook: ToolCallHook, ask: Ask) -> PreExecute:
        reason = ask.reason or texts.approval_text(hook.call.name)
        if self.approver is None:
            return Deny(reason)
        return Allow() if await self.approver(hook, reason) is True else Deny(reason)

    # --- the body -----------------------------------------------------------------------

    async def execute(self, prepared: PreparedTool) -> None:
        """Run an admitted call and set its outcome."""
        tool = prepared.tool
        assert tool is not None
        run = ToolRun(prepared.call.id, tool.name, self.agent, self.agent.session.new_id)
        timer = Timer(tool.timeout)
        running = RunningCall(self.agent, prepared, timer)
        self.running.add(running)
        try:
            if tool.timeout is not None:
                outcome = await timer.run(partial(self._around, prepared, tool, run))
            else:
                outcome = await self._around(prepared, tool, run)
        except BaseException as error:  # execute listeners: somebody else's code
            rest = self._rest(prepared, error)
            outcome = _aborted(prepared) if rest is None else raised(rest)
        finally:
            run.close()
            self.running.discard(running)
        outcome = timed_out(tool.timeout or 0.0) if timer.fired else _checked(outcome, "execute")
        # Of most outcomes nothing changes, and a copy costs more than the rest of this.
        if outcome.is_error and outcome.concludes:
            outcome = evolve(outcome, concludes=False)
        if contexts := run.contexts:
            outcome = evolve(outcome, contexts=(*contexts, *outcome.contexts))
        prepared.outcome = outcome

    async def _around(self, prepared: PreparedTool, tool: Tool, run: ToolRun) -> ToolOutcome:
        if not self.hooks.execute:
            return await self._body(prepared, tool, run)

        async def body(hook: ToolCallHook) -> ToolOutcome:
            return await self._body(prepared, tool, run)

        hook = ToolCallHook(self.agent, prepared.call, tool)
        return await self.hooks.execute.run(hook, body)

    async def _body(self, prepared: PreparedTool, tool: Tool, run: ToolRun) -> ToolOutcome:
        # With a spill a result is whole until it is committed: who reviews it, reviews all
        # that the spill will keep.
        limit = tool.max_result_bytes if self.spill is None else None
        try:
            if tool.is_async:
                # A call is started once it passed this line: nothing is awaited after it.
                await trio.lowlevel.checkpoint_if_cancelled()
                prepared.started = prepared.in_body = True
                value = await await_body(tool, prepared.arguments, run)
            else:
                value = await self._in_thread(prepared, tool, run)
        except BaseException as error:  # a tool body: whatever it raises is its result
            rest = self._rest(prepared, error)
            if rest is None:
                # Goes on: a listener around the body may have a deadline of its own.
                raise
            return raised(rest, limit)
        finally:
            prepared.in_body = False
        try:
            content = encode_result(value, limit)
        except InvalidOutput as error:
            return invalid_output(str(error))
        return success(content, concludes=run.concludes)

    async def _in_thread(self, prepared: PreparedTool, tool: Tool, run: ToolRun) -> object:
        async with self.limiter:
            await trio.lowlevel.checkpoint_if_cancelled()
            prepared.started = prepared.in_body = True
            (value,) = await trio.to_thread.run_sync(
                partial(call_body, tool, prepared.arguments, run),
                limiter=cast(trio.CapacityLimiter, _SLOT_TAKEN),
            )
            return value

    # --- commits lane -------------------------------------------------------------------

    async def review(self, prepared: PreparedTool) -> ToolOutcome:
        """Post-execute, finalize, and the observe-only notification: what is committed."""
        outcome, prepared.outcome = prepared.outcome, None
        assert outcome is not None
        if prepared.reviewed and self.hooks.post_execute:
            outcome = await self._post_execute(prepared, outcome)
        tool = prepared.tool
        if tool is not None and tool.finalize is not None:
            try:
                made = tool.finalize(outcome.content)
                content = tuple(made)
                if isinstance(made, str) or not all(isinstance(b, TextBlock) for b in content):
                    raise _not_a(made, "finalize", "TextBlocks")
                outcome = evolve(outcome, content=content)
            except BaseException as error:  # part of the tool's own code
                rest = self._rest(prepared, error) or ToolError("finalize was interrupted")
                outcome = evolve(raised(rest), contexts=outcome.contexts)
        outcome = await self._fitted(prepared, outcome)
        if self.hooks.result:
            try:
                self.hooks.result.notify(ToolResultHook(self.agent, prepared.call, tool, outcome))
            except KeyboardInterrupt as error:
                prepared.interrupt = error
        return outcome

    async def _fitted(self, prepared: PreparedTool, outcome: ToolOutcome) -> ToolOutcome:
        """*outcome* within its limit; what has to be cut goes to the spill first."""
        tool = prepared.tool
        limit = tool.max_result_bytes if tool is not None else DEFAULT_LIMIT
        content = bound(outcome.content, limit)
        if tool is not None and self.spill is not None and content is not outcome.content:
            text = "".join(block.text for block in outcome.content)
            note = await self._spilled(prepared, tool, self.spill, text)
            content = bound((TextBlock(text),), limit, note)
        return outcome if content is outcome.content else evolve(outcome, content=content)

    async def _spilled(self, prepared: PreparedTool, tool: Tool, spill: Spill, text: str) -> str:
        if cancelled_here():  # as with bodies: nothing starts after a cancel
            return NOT_KEPT
        result = LongResult(agent=self.agent, call_id=prepared.call.id, tool=tool.name, text=text)
        try:
            return await spilled(spill, result, self.limiter)
        except BaseException as error:  # a spill: somebody else's code; the result is not lost
            if (rest := self._rest(prepared, error)) is not None:
                told = chain_text(rest)
                logger.warning("spilling a result of tool %r failed: %.500s", tool.name, told)
            return NOT_KEPT

    def _rest(self, prepared: PreparedTool, error: BaseException) -> BaseException | None:
        """*error* less cancellation and Ctrl-C; the latter is kept on *prepared*."""
        if isinstance(error, KeyboardInterrupt):
            prepared.interrupt = error
        elif isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt):
            prepared.interrupt = KeyboardInterrupt()
        return without(without(error, trio.Cancelled), KeyboardInterrupt)

    async def _post_execute(self, prepared: PreparedTool, outcome: ToolOutcome) -> ToolOutcome:
        hook = ToolResultHook(self.agent, prepared.call, prepared.tool, outcome)
        try:
            reviewed = await self.hooks.post_execute.run(hook, _outcome)
            return _checked(reviewed, "post-execute")
        except BaseException as error:  # listeners: somebody else's code
            rest = self._rest(prepared, error)
            if rest is not None:
                return raised(rest)
            # Cut short: policy may have wanted to redact a success; an error keeps its text.
            return outcome if outcome.is_error else evolve(aborted(), contexts=outcome.contexts)


DEFAULT_LIMIT = 65536


async def _allow(hook: ToolCallHook) -> PreExecute:
    return Allow()


async def _outcome(hook: ToolResultHook) -> ToolOutcome:
    return hook.outcome


def _aborted(prepared: PreparedTool) -> ToolOutcome:
    return aborted() if prepared.started else aborted_before_dispatch()


def _checked(outcome: object, stage: str) -> ToolOutcome:
    """*outcome* if it is a whole one, else the error of who made it."""
    if not isinstance(outcome, ToolOutcome):
        return raised(_not_a(outcome, stage, "a ToolOutcome"))
    for part, kind in ((outcome.content, TextBlock), (outcome.contexts, UserMessage)):
        if not isinstance(part, tuple) or not all(isinstance(item, kind) for item in part):
            return raised(_not_a(part, stage, f"a tuple of {kind.__name__}"))
    return outcome


def _not_a(value: object, stage: str, expected: str) -> InvalidValue:
    return InvalidValue(f"{stage}: expected {expected}, got {type(value).__name__}")


class _SlotTaken:
    """A limiter for a thread whose slot is held already: no checkpoint, so that nothing
    can come between the check for cancellation and the start."""

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        return None

    def release_on_behalf_of(self, borrower: object) -> None:
        return None


_SLOT_TAKEN = _SlotTaken()


# The engine gives these two back the KeyboardInterrupt that its own frames hold off.
async def await_body(tool: Tool, arguments: object, run: ToolRun) -> object:
    """Run an async body in this task."""
    return await tool.start(arguments, run)


def call_body(tool: Tool, arguments: object, run: ToolRun) -> tuple[object]:
    """Run a plain body, in a worker thread. In a tuple, for Trio raises over a coroutine."""
    return (tool.call(arguments, run),)


def unprotected_frames() -> tuple[Callable[..., object], ...]:
    """The frames under which tool bodies and spills run: they stay interruptible."""
    return (await_body, call_body, await_spill, call_spill)
