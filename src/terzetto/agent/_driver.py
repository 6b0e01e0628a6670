"""The driver: the loop over turns of one agent.

We own this sequence, so it is straight-line code: the program counter is the state.
Why a turn ended is read from its activity and the exception's parts, never from
``cancelled_caught``: a nursery whose children turned `Cancelled` into outcomes leaves
without raising, and a cancelled batch may raise a group.
"""

from __future__ import annotations

import logging
import math
from typing import Protocol

import trio
from attrs import define, evolve, field

from ..session import Closing, Session, closers, is_snapshot
from ..vocabulary import (
    Aborted,
    Blocked,
    CancelCause,
    CodedError,
    DisposedCause,
    Draft,
    Failed,
    Failure,
    InboxSpliced,
    MessageId,
    ModelSelection,
    ParentCause,
    StoreError,
    TurnEnd,
    TurnEnding,
    TurnStart,
    UserMessage,
    texts,
)
from ._activity import Activity
from ._decisions import (
    Convergence,
    after_step,
    after_turn,
    natural_ending,
    opens_step,
    sticky_max_tokens,
)
from ._hooks import AgentErrorNotice, Enter, Reject, StepDecision, TurnStopping
from ._model import AgentModel
from ._request import ENTER_NOTHING, RequestBuilder
from ._run_state import RunState
from ._saving import Saving
from ._scope import AgentScope
from ._step import FAIR_AFTER, StepRunner, note_hidden
from ._turn import TurnFailed, summarize
from ._ways_out import goes_on, turn_failure

logger = logging.getLogger("terzetto")


@define(eq=False)
class Driven:
    """What a driver is given: one prepared session and its controls (C2)."""

    session: Session
    state: RunState
    scope: AgentScope
    model: AgentModel
    requests: RequestBuilder
    steps: StepRunner
    saving: Saving
    has_parent: bool

    async def flush(self) -> None:
        """Return once the log is durable, if the session's level wants that waited for."""
        await self.saving.barrier()


class Driver(Protocol):
    """The replaceable part that runs an agent (C1)."""

    async def run(self, agent: Driven) -> None:
        """Drive *agent* until its state is ``closing`` and nothing runs."""
        ...


class Loop(Protocol):
    """A driver that can be left while its agent rests."""

    async def drain(self) -> None:
        """Run turns until the agent is idle again."""
        ...


class LoopDriver:
    """The built-in driver: call the model, run the tools, repeat."""

    async def run(self, agent: Driven) -> None:
        await _Loop(agent).run()

    def loop(self, agent: Driven) -> Loop | None:
        """The loop over turns of *agent*, for who waits between them himself; None where `run`
        is somebody else's."""
        return _Loop(agent) if type(self) is LoopDriver else None


@define(eq=False)
class _Cut:
    """How a turn's body ended, and what must be raised after its closers."""

    ending: TurnEnding
    closing: Closing
    error: Exception | None = None
    reraise: BaseException | None = None


@define(eq=False)
class _Loop:
    agent: Driven
    session: Session = field(init=False)
    state: RunState = field(init=False)
    _consumed: list[MessageId] | None = None
    _rounds: int = 0

    def __attrs_post_init__(self) -> None:
        self.session = self.agent.session
        self.state = self.agent.state

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        state = self.state
        while True:
            await state.wait(state.is_due)
            if state.activity is None:
                return
            await self.drain()

    @trio.lowlevel.enable_ki_protection
    async def drain(self) -> None:
        """Run turns until the agent is idle again."""
        state = self.state
        while True:
            activity = state.activity
            assert activity is not None
            # An activity cancelled before its turn opened opens none.
            ending = None if activity.cancelled else await self._turn(activity)
            if state.stop is not None:
                state.stopped = True
                self._idle()
                stop, state.stop = state.stop, None
                raise stop
            match after_turn(self._convergence(activity, ending)):
                case "turn":
                    state.late_wake = False
                    state.activity = Activity("turn")
                    await self._fair()
                    continue
                case "idle":
                    self._idle()
                case "idle, then turn":
                    self._idle()
                    # A listener of the idle status may have woken it, or disposed of it.
                    if state.activity is None and not state.closing and self.session.pending:
                        state.start()
            return

    async def _fair(self) -> None:
        """Let others run now and then, however little there is to wait for."""
        self._rounds += 1
        if self._rounds % FAIR_AFTER == 0:
            await trio.lowlevel.checkpoint()

    def _convergence(self, activity: Activity, ending: TurnEnding | None) -> Convergence:
        state = self.state
        pending = self.session.pending
        if activity.cancelled:
            # A cancel that came after `turn/end` rewrites nothing, but it parks the queue.
            ending = Aborted(activity.cause or activity.fallback or DisposedCause())
        return Convergence(
            ending=ending,
            queued=bool(pending.lists["next-turn"]),
            pending=bool(pending),
            latched=activity.latched,
            late_wake=state.late_wake,
            asked=state.waiters.wait_for(pending),
            closing=state.closing,
        )

    def _idle(self) -> None:
        self.state.late_wake = False
        self.state.activity = None
        self.state.set_status("idle")

    # --- one turn -----------------------------------------------------------------------

    async def _turn(self, activity: Activity) -> TurnEnding:
        session, state = self.session, self.state
        number = session.place.last_turn + 1
        first = session.append(TurnStart(number)).seq
        state.turn_open, state.late_wake = True, False
        self._consumed = None
        outcome: TurnEnding | None = None
        caught: BaseException | None = None
        try:
            with activity.scope:
                try:
                    outcome = await self._steps(number)
                finally:
                    await self.agent.steps.end_turn()
        except BaseException as error:  # every way out of a turn is closed on the record
            caught = error
        # The scope says whether the host stops us, not the exception: a clean-up may have
        # put its own in the place of `Cancelled`.
        stopped = trio.current_effective_deadline() == -math.inf
        cut = self._judge(activity, outcome, caught, stopped)
        state.stopped = state.stopped or cut.reraise is not None or state.stop is not None
        self._close(number, cut)
        state.owed.end(state.inbox)
        state.turn_open = False
        try:
            if cut.reraise is None:
                await self._flush_ending(number)
        finally:
            # Who asked for the turn is told when its end is durable, or cannot be.
            self._settle_waiters(number, first, cut)
            self._consumed = None
        if cut.reraise is not None:
            self._idle()
            raise cut.reraise
        return cut.ending

    def _judge(
        self,
        activity: Activity,
        outcome: TurnEnding | None,
        caught: BaseException | None,
        stopped: bool,
    ) -> _Cut:
        """Why the turn ended: a cause given, the host, an exception, or by itself."""
        ours = activity.cause
        if ours is None and (goes_on(caught) or (stopped and caught is not None)):
            ours = ParentCause() if self.agent.has_parent else DisposedCause()
        if ours is None and activity.fallback is not None:
            ours = activity.fallback
        if ours is not None:
            note_hidden(caught, self.session.id)
            cut = self._aborted(ours, discard=activity.discard_claimed)
            cut.reraise = goes_on(caught)
            return cut
        if caught is None:
            if outcome is not None:
                return _Cut(outcome, Closing(cut="error", ending=outcome))
            # The scope swallowed a cancel that nobody gave a cause: treat it as a stop.
            return self._aborted(DisposedCause(), discard=False)
        failure = turn_failure(caught)
        cut = _Cut(Failed(failure), Closing(cut="error", ending=Failed(failure)))
        if isinstance(caught, Exception):
            cut.error = caught
        else:
            cut.reraise = caught
        return cut

    def _aborted(self, cause: CancelCause, *, discard: bool) -> _Cut:
        ending = Aborted(cause)
        return _Cut(ending, Closing(cut="cancel", ending=ending, discard_claimed=discard))

    def _close(self, number: int, cut: _Cut) -> None:
        """Append what the turn still needs, the last of it `turn/end`."""
        session = self.session
        closing = evolve(cut.closing, new_id=lambda purpose, seq: session.new_id())
        step = session.place.last_step
        for draft in closers(session.place, session.pending, session.folds, closing):
            if isinstance(draft.data, TurnEnd) and cut.error is not None:
                self._report(number, step, cut)
            self._append(draft)

    def _append(self, draft: Draft) -> None:
        if isinstance(draft.data, InboxSpliced):
            back = {message.id for message in draft.data.inserted}
            self._consumed = [i for i in self._consumed or () if i not in back]
            self.state.splice(draft.data)
        else:
            self.session.append_draft(draft)

    def _report(self, turn: int, step: int, cut: _Cut) -> None:
        assert isinstance(cut.ending, Failed)
        assert cut.error is not None
        failure = cut.ending.error
        logger.error("turn %d of %s failed: %s", turn, self.session.id, failure.message)
        self._tell(turn, step, cut.error, failure)

    def _tell(self, turn: int, step: int, error: Exception, failure: Failure) -> None:
        notice = AgentErrorNotice(
            agent=self.state.view, turn=turn, step=step, error=error, failure=failure
        )
        self.state.tell(self.agent.scope.heard.agent_error, notice)

    def _settle_waiters(self, number: int, first: int, cut: _Cut) -> None:
        waiters = self.state.waiters.of_turn(number)
        if not waiters:
            return
        events = self.session.held.whole(first)  # deltas tell nothing that their answer does not
        consumed = [i for i in self._consumed or () if i not in self.session.pending]
        turn = summarize(number, cut.ending, events, consumed)
        for waiter in waiters:
            if isinstance(cut.ending, Failed):
                error = TurnFailed(turn, cut.ending.error)
                error.__cause__ = cut.error
                waiter.settle(error=error)
            else:
                waiter.settle(turn)

    async def _flush_ending(self, turn: int) -> None:
        """Make the ending durable before idle; if that fails, the ending stands and
        ``agent_error`` says so.

        Disposal does not wait here: closing the write path flushes, within its bound.
        """
        state = self.state
        if state.closing:
            return
        try:
            with trio.CancelScope() as state.flushing:
                await self.agent.flush()
        except StoreError as error:
            failure = turn_failure(error)
            logger.error(
                "the end of turn %d of %s is not saved: %s", turn, self.session.id, failure.message
            )
            self._tell(turn, self.session.place.last_step, error, failure)
        finally:
            state.flushing = None

    # --- the body -----------------------------------------------------------------------

    async def _steps(self, turn: int) -> TurnEnding:
        """Steps until nothing is owed. Returns the natural ending."""
        state = self.state
        requests, saving, place = self.agent.requests, self.agent.saving, self.session.place
        await trio.lowlevel.checkpoint_if_cancelled()
        claimed = await self._claim(turn, with_prompt=True)
        step, owes, hit_max_tokens = 0, False, False
        while True:
            await self._fair()
            selection = self._selection()
            decision: StepDecision = ENTER_NOTHING
            assembly = None if claimed else requests.unchanged(selection)
            if assembly is None:
                assembly = await requests.assemble(selection)
                await trio.lowlevel.checkpoint_if_cancelled()
                decision = await requests.decide(turn, step + 1, claimed, selection)
                await trio.lowlevel.checkpoint_if_cancelled()
            if isinstance(decision, Reject):
                return Blocked()
            assert isinstance(decision, Enter)
            # A snapshot alone is no input: it goes with what is entered.
            messages = decision.messages
            entered = sum(not is_snapshot(m) for m in messages) if messages else 0
            if opens_step(entered, owes):
                step += 1
                result = await self.agent.steps.run(turn, step, decision, assembly, selection)
                result = state.owed.judge(result)
                hit_max_tokens = sticky_max_tokens(hit_max_tokens, result.finish)
                owes = result.owes
                if not owes:  # before anybody looks at what came meanwhile
                    await self.agent.steps.end_calls()
                if place.next_seq >= saving.look_at and saving.must_catch_up:
                    await saving.catch_up()
                # Cancelled by an observer of `step/end`, say: nothing more is claimed or asked.
                await trio.lowlevel.checkpoint_if_cancelled()
                move = after_step(result, not owes and bool(state.inbox.next_step))
            elif state.steered and state.inbox.next_step:
                move = "step"  # steering that came while the batch was emptied
            else:
                return natural_ending(hit_max_tokens)
            if move == "stopping":
                await self.agent.scope.heard.turn_stopping.run(TurnStopping(state.view, turn))
                await trio.lowlevel.checkpoint_if_cancelled()
                if not state.inbox.next_step and not state.owed.ask_again(state.inbox):
                    return natural_ending(hit_max_tokens)
            claimed = await self._claim(turn, with_prompt=False)

    async def _claim(self, turn: int, *, with_prompt: bool) -> tuple[UserMessage, ...]:
        claimed = self.state.claim(turn, with_prompt=with_prompt)
        if claimed:
            self._consumed = self._consumed or []
            self._consumed.extend(message.id for message in claimed)
            if self.agent.saving.must_catch_up:
                await self.agent.saving.catch_up()
        return claimed

    def _selection(self) -> ModelSelection:
        selection = self.agent.model.current()
        if selection is None:
            raise CodedError(
                "no model is selected; give open_agent(provider=, model=) or call "
                "agent.model.select()",
                texts.NO_ROUTE,
            )
        return selection
