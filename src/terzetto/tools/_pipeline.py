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
from collections.abc import Awaitable
from functools import partial
from typing import Any

import trio
from attrs import define, evolve, field

from ..hooks import Waterfall
from ..session import AgentView
from ..vocabulary import (
    InvalidValue,
    TextBlock,
    ToolCallBlock,
    ToolError,
    ToolErrorInfo,
    UserMessage,
    chain_text,
    texts,
    without,
)
from ._bodies import SLOT_TAKEN, await_body as await_body, call_body
from ._encode import MAX_RESULT_BYTES, InvalidOutput, bound, encode_result, surely_fits
from ._hooks import (
    Allow,
    Approver,
    Ask,
    Deny,
    PreExecute,
    ToolCallHook,
    ToolHooks,
    ToolResultHook,
    call_hook,
    result_hook,
)
from ._registry import ToolLayer
from ._running import RunningCall, Timer
from ._schema import InvalidArguments
from ._spill import NOT_KEPT, LongResult, Spill, spilled
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

    def classify(self, call: ToolCallBlock) -> RunningCall:
        """Look the tool up, parse the arguments, ask its classifier. Never raises."""
        tool = self.layer.lookup(call.name)
        found = RunningCall(call, tool)
        if tool is None:
            found.refused = unknown_tool(call.name)
            return found
        try:
            found.arguments = tool.parse(call.arguments)
            found.claim = tool.claim(found.arguments)
        except InvalidArguments as error:
            found.refused = invalid_arguments(str(error))
        except BaseException as error:  # part of the tool's own code
            rest = self._rest(found, error) or ToolError("classification was interrupted")
            found.refused = raised(rest)
        return found

    # --- starts lane --------------------------------------------------------------------

    async def admit(self, call: RunningCall) -> None:
        """Pre-execute, approval and guards; sets the outcome of a call that may not run.

        May wait. Without listeners of `pre_execute`, `admit_now` does the same.
        """
        hook = call.hook = call_hook(self.agent, call.call, call.tool)
        try:
            decision = await self.hooks.pre_execute.around(hook, _allow)
            if isinstance(decision, Ask):
                decision = await self._ask(hook, decision)
        except BaseException as error:  # listeners and approvers: somebody else's code
            rest = self._rest(call, error)
            if rest is None:
                call.outcome = aborted_before_dispatch()
            else:
                call.outcome, call.reviewed = raised(rest), False
            return
        match decision:
            case Allow():
                self.admit_now(call)
            case Deny(reason=reason):
                call.outcome = denied(reason)
            case _:  # a policy that decides nothing must not let the call through
                call.outcome = raised(self.hooks.pre_execute.wrong(decision, "Allow, Deny or Ask"))

    def admit_now(self, call: RunningCall) -> None:
        """Guards and refusals alone."""
        if guards := self.layer.guards():
            hook = call.hook = call.hook or call_hook(self.agent, call.call, call.tool)
            for guard in guards:
                try:
                    reason = guard(hook)
                except BaseException as error:  # a guard that fails lets no call through
                    rest = self._rest(call, error)
                    call.outcome = aborted_before_dispatch() if rest is None else raised(rest)
                    call.reviewed = False
                    return
                if reason is not None:
                    call.outcome = denied(reason)
                    return
        call.outcome = call.refused

    async def _ask(self, hook: ToolCallHook, ask: Ask) -> PreExecute:
        reason = ask.reason or texts.approval_text(hook.call.name)
        if self.approver is None:
            return Deny(reason)
        return Allow() if await self.approver(hook, reason) is True else Deny(reason)

    # --- the body -----------------------------------------------------------------------

    async def execute(self, call: RunningCall) -> None:
        """Run an admitted call and set its outcome."""
        tool = call.tool
        assert tool is not None
        run = None  # whose parameter it is not, nobody sees
        if tool.injects is not None:
            run = ToolRun(call.call.id, tool.name, self.agent, self.agent.session.new_id)
        self.running.add(call)
        try:
            if tool.timeout is not None:
                outcome = _checked(await self._timed(call, tool, run), self.hooks.execute)
            elif self.hooks.execute:
                outcome = _checked(await self._listened(call, tool, run), self.hooks.execute)
            else:
                outcome = await self._body(call, tool, run)
        except BaseException as error:  # execute listeners: somebody else's code
            rest = self._rest(call, error)
            outcome = _aborted(call) if rest is None else raised(rest)
        finally:
            if run is not None:
                run.close()
            self.running.discard(call)
        if call.timer is not None and call.timer.fired:
            outcome = timed_out(call.timer.seconds)
        # Of most outcomes nothing changes, and a copy costs more than the rest of this.
        if outcome.is_error and outcome.concludes:
            outcome = evolve(outcome, concludes=False)
        if run is not None and (contexts := run.contexts):
            outcome = evolve(outcome, contexts=(*contexts, *outcome.contexts))
        call.outcome = outcome

    def _timed(self, call: RunningCall, tool: Tool, run: ToolRun | None) -> Awaitable[ToolOutcome]:
        """The body, with the listeners around it, and its timeout around these."""
        assert tool.timeout is not None
        call.timer = Timer(tool.timeout, self.agent)
        around = self._listened if self.hooks.execute else self._body
        return call.timer.run(partial(around, call, tool, run))

    def _listened(
        self, call: RunningCall, tool: Tool, run: ToolRun | None
    ) -> Awaitable[ToolOutcome]:
        hook = call.hook = call.hook or call_hook(self.agent, call.call, tool)
        return self.hooks.execute.around(hook, partial(self._body, call, tool, run))

    async def _body(
        self, call: RunningCall, tool: Tool, run: ToolRun | None, hook: ToolCallHook | None = None
    ) -> ToolOutcome:
        """Run the body. *hook* is what listeners may say of it: a changed one changes nothing."""
        # With a spill a result is whole until it is committed: who reviews it, reviews all
        # that the spill will keep.
        limit = tool.max_result_bytes if self.spill is None else None
        try:
            if tool.is_async:
                # A call is started once it passed this line: nothing is awaited after it.
                await trio.lowlevel.checkpoint_if_cancelled()
                call.started = call.in_body = True
                value = await await_body(tool, call.arguments, run)
            else:
                value = await self._in_thread(call, tool, run)
        except BaseException as error:  # a tool body: whatever it raises is its result
            rest = self._rest(call, error)
            if rest is None:
                # Goes on: a listener around the body may have a deadline of its own.
                raise
            return raised(rest, limit)
        finally:
            call.in_body = False
        try:
            content = encode_result(value, limit)
        except InvalidOutput as error:
            return invalid_output(str(error))
        return success(content, concludes=run is not None and run.concludes)

    async def _in_thread(self, call: RunningCall, tool: Tool, run: ToolRun | None) -> object:
        async with self.limiter:
            await trio.lowlevel.checkpoint_if_cancelled()
            call.started = call.in_body = True
            (value,) = await trio.to_thread.run_sync(
                partial(call_body, tool, call.arguments, run),
                limiter=SLOT_TAKEN,
            )
            return value

    # --- commits lane -------------------------------------------------------------------

    def review_now(self, call: RunningCall) -> ToolOutcome | None:
        """`review` of an outcome that nobody has to look at; None where somebody has to."""
        outcome, tool = call.outcome, call.tool
        assert outcome is not None
        if call.reviewed and self.hooks.post_execute:
            return None
        limit = DEFAULT_LIMIT
        if tool is not None:
            if tool.finalize is not None:
                return None
            limit = tool.max_result_bytes
        if limit is not None and not surely_fits(outcome.content, limit):
            return None
        call.outcome = None
        if self.hooks.result:
            self._tell(call, outcome, None)
        return outcome

    async def review(self, call: RunningCall) -> ToolOutcome:
        """Post-execute, finalize, and the observe-only notification: what is committed."""
        outcome, call.outcome = call.outcome, None
        assert outcome is not None
        seen: ToolResultHook | None = None
        if call.reviewed and self.hooks.post_execute:
            seen = result_hook(self.agent, call.call, call.tool, outcome)
            outcome = await self._post_execute(call, seen)
        tool = call.tool
        if tool is not None and tool.finalize is not None:
            try:
                made = tool.finalize(outcome.content)
                content = tuple(made)
                if isinstance(made, str) or not all(isinstance(b, TextBlock) for b in content):
                    raise _not_a(made, "finalize", "TextBlocks")
                outcome = evolve(outcome, content=content)
            except BaseException as error:  # part of the tool's own code
                rest = self._rest(call, error) or ToolError("finalize was interrupted")
                outcome = evolve(raised(rest), contexts=outcome.contexts)
        limit = tool.max_result_bytes if tool is not None else DEFAULT_LIMIT
        if limit is not None and not surely_fits(outcome.content, limit):
            outcome = await self._fitted(call, outcome, limit)
        if self.hooks.result:
            self._tell(call, outcome, seen)
        return outcome

    def _tell(self, call: RunningCall, outcome: ToolOutcome, seen: ToolResultHook | None) -> None:
        """Notify of *outcome*; who reviewed it may have *seen* just that."""
        if seen is None or seen.outcome is not outcome:
            seen = result_hook(self.agent, call.call, call.tool, outcome)
        try:
            self.hooks.result.notify(seen)
        except KeyboardInterrupt as error:
            call.interrupt = error

    async def _fitted(self, call: RunningCall, outcome: ToolOutcome, limit: int) -> ToolOutcome:
        """*outcome* within its *limit*; what has to be cut goes to the spill first."""
        tool = call.tool
        content = bound(outcome.content, limit)
        if tool is not None and self.spill is not None and content is not outcome.content:
            text = "".join(block.text for block in outcome.content)
            note = await self._spilled(call, tool, self.spill, text)
            content = bound((TextBlock(text),), limit, note)
        return outcome if content is outcome.content else evolve(outcome, content=content)

    async def _spilled(self, call: RunningCall, tool: Tool, spill: Spill, text: str) -> str:
        if cancelled_here():  # as with bodies: nothing starts after a cancel
            return NOT_KEPT
        result = LongResult(agent=self.agent, call_id=call.call.id, tool=tool.name, text=text)
        try:
            return await spilled(spill, result, self.limiter)
        except BaseException as error:  # a spill: somebody else's code; the result is not lost
            if (rest := self._rest(call, error)) is not None:
                told = chain_text(rest)
                logger.warning("spilling a result of tool %r failed: %.500s", tool.name, told)
            return NOT_KEPT

    def _rest(self, call: RunningCall, error: BaseException) -> BaseException | None:
        """*error* less cancellation and Ctrl-C; the latter is kept on *call*."""
        if type(error) is trio.Cancelled:
            return None
        if isinstance(error, KeyboardInterrupt):
            call.interrupt = error
        elif isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt):
            call.interrupt = KeyboardInterrupt()
        return without(without(error, trio.Cancelled), KeyboardInterrupt)

    async def _post_execute(self, call: RunningCall, hook: ToolResultHook) -> ToolOutcome:
        outcome = hook.outcome
        try:
            reviewed = await self.hooks.post_execute.around(hook, partial(_outcome, hook))
            return outcome if reviewed is outcome else _checked(reviewed, self.hooks.post_execute)
        except BaseException as error:  # listeners: somebody else's code
            rest = self._rest(call, error)
            if rest is not None:
                return raised(rest)
            # Cut short: policy may have wanted to redact a success; an error keeps its text.
            return outcome if outcome.is_error else evolve(aborted(), contexts=outcome.contexts)


DEFAULT_LIMIT: int | None = MAX_RESULT_BYTES
_ALLOW = Allow()


# The innermost decisions: a lone listener has them as its `proceed`, so each knows the value
# where it is called without one.
async def _allow(hook: ToolCallHook | None = None, /) -> PreExecute:
    return _ALLOW


async def _outcome(hook: ToolResultHook, *changed: ToolResultHook) -> ToolOutcome:
    return changed[0].outcome if changed else hook.outcome


def _aborted(call: RunningCall) -> ToolOutcome:
    return aborted() if call.started else aborted_before_dispatch()


def _checked(outcome: object, hook: Waterfall[Any, ToolOutcome]) -> ToolOutcome:
    """*outcome* if it is a whole one, else the error of who made it: the listeners of *hook*."""
    if type(outcome) is ToolOutcome:
        content, contexts = outcome.content, outcome.contexts
        plain = type(content) is tuple and type(contexts) is tuple and not contexts
        text = plain and len(content) == 1 and type(content[0]) is TextBlock
        if text and outcome.is_error is False and outcome.error is None:
            return outcome  # nearly all
    if not isinstance(outcome, ToolOutcome):
        return raised(hook.wrong(outcome, "ToolOutcome"))
    for name, part, kind in (
        ("content", outcome.content, TextBlock),
        ("contexts", outcome.contexts, UserMessage),
    ):
        # Exactly these: a log with a subclass in it could not be saved.
        if not isinstance(part, tuple) or not all(type(item) is kind for item in part):
            expected = f"a ToolOutcome with a tuple of {kind.__name__} as its {name}"
            return raised(hook.wrong(part, expected))
    if type(outcome.is_error) is not bool:
        return raised(hook.wrong(outcome.is_error, "a ToolOutcome with a bool as its is_error"))
    if outcome.error is not None and type(outcome.error) is not ToolErrorInfo:
        expected = "a ToolOutcome with a ToolErrorInfo or None as its error"
        return raised(hook.wrong(outcome.error, expected))
    return outcome


def _not_a(value: object, stage: str, expected: str) -> InvalidValue:
    return InvalidValue(f"{stage}: expected {expected}, got {type(value).__name__}")
