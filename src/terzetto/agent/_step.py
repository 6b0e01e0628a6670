"""One step: attempts at one model request, then the tools that the answer asked for.

Chunks are appended as they come, with no wait between them; so whatever cuts the
stream finds the delivered prefix in the log already. What a cut step still needs is
decided by `session.closers`, not here.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence

import trio
from attrs import define, field, frozen

from ..llm import ChunkStream, PreparedCall, StreamCall, several
from ..session import (
    AgentView,
    Closing,
    Session,
    anchor_draft,
    answer_draft,
    append_chunks,
    closers,
)
from ..tools import PoolExecutor, RunningCall, ToolBatch, ToolPipeline
from ..tools._batch import run_in
from ..vocabulary import (
    AbortedFinish,
    ErrorFinish,
    Failure,
    Finish,
    FinishReason,
    MessageId,
    ModelSelection,
    ProviderError,
    Request,
    RetryPolicy,
    StepEnd,
    StepStart,
    StreamChunk,
    UserMessage,
    chain_text,
    is_complete,
    without,
)
from ..vocabulary._quick import assistant_chunk
from ._decisions import StepResult
from ._dispatch import check_dispatched
from ._hooks import (
    Assembly,
    End,
    Enter,
    FailureDecision,
    RequestFailed,
    Retry,
    check_chunk,
    check_chunks,
    check_opened,
)
from ._request import RequestBuilder
from ._run_state import RunState
from ._saving import Saving
from ._scope import AgentScope
from ._services import Services
from ._step_log import StepLog as StepLog
from ._stretch import Stretch

logger = logging.getLogger("terzetto")

FAIR_AFTER = 50
"""Chunks in a row after which the driver makes one real checkpoint."""


@frozen
class _Attempt:
    """How one stream ended: with *failure* or an answer, unless it was *cut*.

    *served*: by the adapter; otherwise a ``stream`` listener owned the route.
    """

    failure: Failure | None
    served: bool
    cut: bool


def note_hidden(error: BaseException | None, session_id: str) -> None:
    """Say what a clean-up raised while it gave way to a cancel, which stands in front."""
    rest = without(without(error, trio.Cancelled), KeyboardInterrupt)
    if isinstance(rest, Exception):
        logger.warning("hidden by a cancel of %s: %s", session_id, chain_text(rest))


@define(eq=False)
class StepRunner:
    """Runs the steps of one agent."""

    agent: AgentView
    session: Session
    state: RunState
    scope: AgentScope
    services: Services
    requests: RequestBuilder
    saving: Saving
    _pipeline: ToolPipeline | None = field(default=None, init=False)
    _stretch: Stretch = field(init=False)
    _unparked: int = 0

    def __attrs_post_init__(self) -> None:
        self._stretch = Stretch(self.state)

    def _tools(self) -> ToolPipeline:
        """The pipeline, made for the first batch: many agents never have one."""
        running: set[RunningCall] = set()
        self.state.calls = running
        self._pipeline = ToolPipeline(
            self.agent,
            self.scope.tools,
            self.scope.hooks.tools(),
            self.services.approver,
            self.services.thread_limiter,
            spill=self.services.spill,
            running=running,
        )
        return self._pipeline

    async def run(
        self, turn: int, step: int, entry: Enter, assembly: Assembly, selection: ModelSelection
    ) -> StepResult:
        """Run one accepted step to its `step/end`, which may come early: `interrupt`.

        Raises `ProviderError` for a request that failed and was not retried, and whatever
        listeners raise; the step is then still open.
        """
        session = self.session
        session.append(StepStart(turn, step))
        if session.place.next_seq >= self.saving.look_at and self.saving.must_catch_up:
            await self.saving.catch_up()
        await trio.lowlevel.checkpoint_if_cancelled()
        finish, cut = await self._ask_model(turn, step, entry, assembly, selection)
        await trio.lowlevel.checkpoint_if_cancelled()
        calls = tuple([owed.call for owed in session.place.owed()])
        owes = bool(calls)
        if calls and not cut:
            with self._stretch:
                batch = ToolBatch(
                    calls=calls,
                    capacity=self.services.settings.max_parallel_tool_calls,
                    pipeline=self._pipeline or self._tools(),
                    log=StepLog(turn, step, session, self.state, self.saving),
                )
                executor = self.services.executor
                if type(executor) is PoolExecutor:
                    nursery = await self._stretch.calls()
                    result = await run_in(nursery, batch, self._stretch.spoil)
                else:
                    # Somebody else's may have a scope of its own, which is to cancel the
                    # bodies as well.
                    result = await executor.execute(batch)
                owes = not result.concludes
            if self.state.interrupted:
                cut = await self._leave()
            self._unparked += len(calls)
            await trio.lowlevel.checkpoint_if_cancelled()
        if cut:
            self._close_step()
        else:
            session.append(StepEnd(turn, step))
        return StepResult(finish, owes)

    async def end_calls(self) -> None:
        """No call is owed: the turn may end. Others run meanwhile, if there were any calls."""
        await self._stretch.end_calls()

    async def end_turn(self) -> None:
        """The steps of a turn are over."""
        await self._stretch.end()

    async def _leave(self) -> bool:
        """`interrupt` cut what ran; what comes next is not of that stretch."""
        await self._stretch.end()
        return True

    def _close_step(self) -> None:
        """Append what a step that was cut still needs, the last of it `step/end`."""
        session = self.session
        closing = Closing(cut="cancel", ending=None, new_id=self._new_id)
        for draft in closers(session.place, session.pending, session.folds, closing):
            session.append_draft(draft)

    # --- the request --------------------------------------------------------------------

    async def _ask_model(
        self, turn: int, step: int, entry: Enter, assembly: Assembly, selection: ModelSelection
    ) -> tuple[FinishReason | None, bool]:
        """Attempts until one gives an answer, which is then in the log, or is cut.

        Returns why the answer finished, None if it did not; and whether it was cut.
        """
        attempt = 1
        batch: tuple[UserMessage, ...] | None = entry.messages
        starts_series = entry.starts_series
        place = self.session.place
        while True:
            prepared = await self.requests.prepare(turn, step, attempt, selection)
            await trio.lowlevel.checkpoint_if_cancelled()
            request = self.requests.admit(turn, step, assembly, prepared, batch, starts_series)
            # The log may have no word for it: what `pre_step` set aside is consumed now.
            self.session.pending.settle_claims()
            # By whom the log told, or by a function that was asked for the context.
            await trio.lowlevel.checkpoint_if_cancelled()
            tried = await self._attempt(turn, step, attempt, prepared, request)
            if tried.cut:
                return self._anchor(), True
            if tried.failure is None:
                break
            policy = prepared.info.retry_policy if tried.served else None
            if not await self._retries(turn, step, attempt, prepared, tried.failure, policy):
                raise ProviderError(tried.failure)
            await trio.lowlevel.checkpoint_if_cancelled()
            batch, starts_series, attempt = None, False, attempt + 1
        draft, reason = answer_draft(self.session.place, self.session.folds, self._new_id)
        self.session.append_draft(draft)
        if place.next_seq >= self.saving.look_at and self.saving.must_catch_up:
            await self.saving.catch_up()
        return reason, False

    def _anchor(self) -> FinishReason | None:
        """Keep what an interrupted attempt delivered; why it finished, if it had."""
        place = self.session.place
        finish = place.attempt.content().finish
        if draft := anchor_draft(place, self.session.folds, self._new_id):
            self.session.append_draft(draft)
        return finish.reason if finish else None

    async def _attempt(
        self, turn: int, step: int, attempt: int, prepared: PreparedCall, request: Request
    ) -> _Attempt:
        """Stream one attempt into the log."""
        if self.saving.waits:
            await self.saving.barrier()
        own: _OwnStream | None = None
        failure: Failure | None = None
        hook = self.scope.heard.stream
        with self._stretch:
            try:
                if hook:
                    call = StreamCall(self.agent, turn, step, attempt, request)
                    own = _OwnStream(prepared, request)
                    stream = await hook.run(call, own.open)
                    check_opened(hook, stream)
                else:
                    stream = prepared.open_stream(request)
                async with stream as chunks:
                    if own is not None:
                        check_chunks(hook, chunks)
                    failure = await self._record(turn, step, chunks)
            except BaseException as error:  # a listener's clean-up after the interruption
                # In a group, if it has a nursery; what is no Exception goes on.
                hidden = isinstance(without(error, trio.Cancelled), Exception)
                if not self.state.interrupted or not hidden:
                    raise
                note_hidden(error, self.session.id)
        cut = await self._leave() if self.state.interrupted else False
        await trio.lowlevel.checkpoint_if_cancelled()
        if failure is None and own is None and not cut:
            return _ANSWERED
        return _Attempt(failure, own is None or own.opened, cut)

    async def _record(
        self, turn: int, step: int, chunks: AsyncIterator[StreamChunk]
    ) -> Failure | None:
        """Append *chunks* as they come, until they end, or with what the attempt failed of."""
        session, saving, hook = self.session, self.saving, self.scope.heard.stream
        heard = bool(hook)
        following = several(aiter(chunks))
        while found := await following():
            # What arrives after the cancel was not delivered.
            await trio.lowlevel.checkpoint_if_cancelled()
            at, many = 0, len(found)
            while at < many:
                # Where nothing waits, only who is told of a chunk can cancel before the next.
                told, behind = bool(session.observers), False
                taken = 0 if told or heard or many == 1 else self._append_run(turn, step, found, at)
                if not taken:
                    chunk, taken = found[at], 1
                    if heard:
                        check_chunk(hook, chunk)
                    event = session.append(assistant_chunk(turn, step, chunk))
                    if behind := event.seq >= saving.look_at and saving.must_catch_up:
                        await saving.catch_up()
                    if type(chunk) is Finish and not is_complete(chunk.reason):
                        assert isinstance(chunk.reason, (ErrorFinish, AbortedFinish))
                        return chunk.reason.failure
                at += taken
                self._unparked += taken
                if self._unparked >= FAIR_AFTER:
                    self._unparked = 0
                    await trio.lowlevel.checkpoint()
                elif told or behind:
                    await trio.lowlevel.checkpoint_if_cancelled()
        return None

    def _append_run(self, turn: int, step: int, found: Sequence[StreamChunk], at: int) -> int:
        """Append those of *found* from *at* on that need no look before the next; how many."""
        look_at = self.saving.look_at - self.session.place.next_seq
        stop = at + FAIR_AFTER - self._unparked
        if look_at < stop - at:
            stop = at + int(look_at)
        return append_chunks(self.session, turn, step, found[at:stop]) if stop > at else 0

    async def _retries(
        self,
        turn: int,
        step: int,
        attempt: int,
        prepared: PreparedCall,
        failure: Failure,
        policy: RetryPolicy | None,
    ) -> bool:
        hook = self.scope.heard.request_error
        if not hook:
            return False
        failed = RequestFailed(
            agent=self.agent,
            turn=turn,
            step=step,
            attempt=attempt,
            provider=prepared.config.provider,
            failure=failure,
            policy=policy,
        )
        decision = await hook.run(failed, _end)
        if not isinstance(decision, (Retry, End)):
            # No decision ends the turn as well, with its own failure and not with this one.
            logger.error("%s", hook.wrong(decision, "Retry or End"))
        return isinstance(decision, Retry)

    def _new_id(self, purpose: str, seq: int) -> MessageId:
        return self.session.new_id()


_ANSWERED = _Attempt(failure=None, served=True, cut=False)


@define(eq=False)
class _OwnStream:
    """The innermost of the ``stream`` listeners: the adapter's own stream."""

    prepared: PreparedCall
    request: Request
    opened: bool = False

    async def open(self, value: StreamCall) -> ChunkStream:
        self.opened = True
        check_dispatched(self.request, value.request)
        return self.prepared.open_stream(value.request)


async def _end(value: RequestFailed) -> FailureDecision:
    return End()
