"""Agent: the handle everybody programs against."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar, TypeVarTuple, overload

import trio
from attrs import define, field

from ..llm import ModelRuntime
from ..session import AgentStatus, Inbox, Messages, Session
from ..vocabulary import (
    AgentCrashed,
    AgentDisposed,
    CancelCause,
    Completion,
    Failure,
    InboxTarget,
    InvalidValue,
    Message,
    MessageId,
    ModelSelection,
    ParentCause,
    SessionId,
    ToolSchema,
    UserCause,
    UserMessage,
    WouldDeadlock,
    WrongThread,
)
from ._answers import Answer, Expectation
from ._bound import Bound
from ._completion import complete
from ._initiator import agent_being_created, current_agent, is_inside_job
from ._maintenance import maintain
from ._model import AgentModel
from ._run_state import RunState
from ._saving import Saving
from ._scope import AgentScope
from ._statistics import AgentStatistics, statistics_of
from ._turn import Turn, last_turn
from ._waiters import Waiter

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_A_TURN = object()


@define(eq=False, repr=False)
class Agent:
    """One running agent: a controller around model requests, never the model itself.

    Plain methods never block and belong to the Trio thread; elsewhere they raise
    `WrongThread` before anything changes.
    """

    session: Session
    scope: AgentScope
    model: AgentModel
    parent: Agent | None
    _state: RunState
    _bound: Bound
    _saving: Saving
    _runtime: ModelRuntime
    _crash: BaseException | None = field(default=None, init=False)
    _thread: int = field(factory=threading.get_ident, init=False)
    _nursery: trio.Nursery | None = field(default=None, init=False)
    _task: trio.lowlevel.Task | None = field(default=None, init=False)

    def __repr__(self) -> str:
        return f"<Agent {self.id}: {self.status}>"

    @property
    def id(self) -> SessionId:
        """The identity shared by the agent and its session."""
        return self.session.id

    @property
    def status(self) -> AgentStatus:
        """``running`` from a wake until the queue has converged; maintenance is ``idle``."""
        return self._state.status

    @property
    def disposed(self) -> bool:
        """Whether the agent takes no input any more."""
        return self._state.gone

    @property
    def health(self) -> Failure | None:
        """What keeps the log from being saved, since the last flush that failed; None if all
        is well.

        What is in memory is intact, ``session.durable_seq`` says how much of it is stored,
        and no request is sent and no tool starts until a flush succeeds, at any level of
        durability.
        """
        return self._saving.trouble

    @property
    def inbox(self) -> Inbox:
        """What is pending, and editing it."""
        return self._state.inbox

    def history(self) -> Messages:
        """The messages the model would see now."""
        return self.session.history()

    def last_turn(self) -> Turn | None:
        """The latest turn that has ended, of an earlier life or of a fork's past included; None
        without one.

        Read from the log at each call, so it costs what the log is long.
        """
        return last_turn(self.session)

    def statistics(self) -> AgentStatistics:
        """What the agent is doing at this moment; cheap enough to ask often.

        Raises `WrongThread` outside of the Trio thread.
        """
        self._check_thread()
        return statistics_of(self._state, self._task)

    # --- input --------------------------------------------------------------------------

    def followup(self, message: str | UserMessage) -> MessageId:
        """Queue a prompt for a turn of its own and wake the agent. Returns its id."""
        return self.send(message, "next-turn", True)

    def steer(self, message: str | UserMessage) -> MessageId:
        """Give input to the next step: of the running turn, or of a turn it starts."""
        return self.send(message, "next-step", True)

    def inject(self, message: str | UserMessage) -> MessageId:
        """Add input to the next step that happens, without waking the agent."""
        return self.send(message, "next-step", False)

    @trio.lowlevel.enable_ki_protection
    def interrupt(self, message: str | UserMessage) -> MessageId:
        """Cut the answer or the tools that run now, and give *message* to the next step.

        While a request streams or its tools run, that step ends as under `cancel`:
        delivered text is kept, marked interrupted; started tools are asked to stop and
        waited for; every call is answered. The turn goes on with *message*. At any other
        moment, an idle agent included, this is `steer`. A `cancel` wins over it. Returns
        the message's id at once, and raises what `send` raises.
        """
        self._check_thread()
        message = self._message(message)
        self._state.interrupt(message)
        return message.id

    @trio.lowlevel.enable_ki_protection
    def send(self, message: str | UserMessage, target: InboxTarget, wakeup: bool) -> MessageId:
        """The primitive under `followup`, `steer` and `inject`.

        A ``str`` becomes a message from the user. Sends of one synchronous stretch all
        land before the driver starts or goes on.

        Raises:
            DuplicateMessage: A message with this id is pending.
            ReentrantAppend: Called from an observer of the session's log.
            AgentDisposed: The agent is gone.
        """
        self._check_thread()
        if target not in ("next-turn", "next-step"):
            raise InvalidValue(f"target: expected 'next-turn' or 'next-step', got {target!r}")
        message = self._message(message)
        self._state.send(message, target, wakeup)
        return message.id

    @trio.lowlevel.enable_ki_protection
    def wake(self) -> bool:
        """Run what is pending without adding to it: after a resume, or after a cancel or a
        failure that left input in the inbox.

        Returns whether anything is pending. Raises `AgentDisposed` if the agent is gone.
        """
        self._check_thread()
        return self._state.wake()

    @trio.lowlevel.enable_ki_protection
    def cancel(self, cause: CancelCause = UserCause(), *, keep_inbox: bool = False) -> None:
        """Ask the running turn or maintenance to end, and clear pending input.

        Returns at once; `wait_idle` waits for the end. Delivered text is kept, started
        tools are waited for, every call is answered. With *keep_inbox* pending input
        stays. On an idle agent only the inbox is cleared; nothing is armed for later.
        """
        self._check_thread()
        if not self._state.gone:
            self._state.cancel(cause, keep_inbox=keep_inbox)

    # --- waiting ------------------------------------------------------------------------

    @overload
    async def ask(
        self, message: str | UserMessage, *, on_cancel: Literal["cancel", "leave"] = "cancel"
    ) -> Turn: ...
    @overload
    async def ask(
        self,
        message: str | UserMessage,
        *,
        returns: type[T],
        on_cancel: Literal["cancel", "leave"] = "cancel",
    ) -> Answer[T]: ...
    @overload
    async def ask(
        self,
        message: str | UserMessage,
        *,
        returns: object,
        on_cancel: Literal["cancel", "leave"] = "cancel",
    ) -> Answer[object]: ...
    async def ask(
        self,
        message: str | UserMessage,
        *,
        returns: object = _A_TURN,
        on_cancel: Literal["cancel", "leave"] = "cancel",
    ) -> Turn:
        """`followup`, then wait for the end of the turn that claims this message.

        Returns the `Turn` for ``completed``, ``max-tokens``, ``blocked`` and ``aborted``.
        With *returns*, a type, the model answers with a value of it, by a tool that is
        shown for this turn alone: an `Answer` with the last one that the turn committed.
        A model that fails to answer is told so once.

        Raises:
            TurnFailed: The turn ended in error.
            NoAnswer: The turn ended in another way, without a value of type *returns*.
            InvalidValue: JSON cannot describe *returns*; nothing was sent.
            MessageDiscarded: The message was removed before any turn claimed it.
            AgentDisposed: The agent went away first.
            WouldDeadlock: Called from inside this agent's own tools, hooks or children.

        Cancellation: a pending message is removed, a claimed one cancels its turn (the
        inbox kept) unless *on_cancel* is ``"leave"``; `trio.Cancelled` goes on at once.
        """
        if on_cancel not in ("cancel", "leave"):
            raise InvalidValue(f"on_cancel: expected 'cancel' or 'leave', got {on_cancel!r}")
        self._check_outside("ask")
        expects = None
        if returns is not _A_TURN:
            expects = Expectation(returns, self.session, self.scope.tools)
        await trio.lowlevel.checkpoint_if_cancelled()
        message = self._message(message)
        state = self._state
        waiter = state.waiters.add(message.id, expects)
        try:
            self.followup(message)
            await waiter.done.wait()
        except trio.Cancelled:
            if on_cancel == "cancel" and not waiter.done.is_set() and not state.sealed:
                self._withdraw(waiter)
            raise
        finally:
            state.waiters.remove(waiter)
        if waiter.error is not None:
            raise waiter.error
        assert waiter.turn is not None
        return waiter.turn if expects is None else expects.answer(waiter.turn)

    def _withdraw(self, waiter: Waiter) -> None:
        if waiter.turn_number is None:
            self.inbox.remove(waiter.message_id)
        elif self._state.turn_open and self._state.activity is not None:
            # A parent's tool that is cancelled while it asks a child: the child says so.
            by_parent = self.parent is not None and current_agent() is self.parent
            self._state.activity.withdraw(ParentCause() if by_parent else UserCause())

    async def wait_idle(self) -> None:
        """Return once the whole agent is quiescent, replacement work included.

        No result for any one message. Returns at once for a disposed agent. Raises
        `WouldDeadlock` from inside this agent's own tools, hooks or children.
        """
        self._check_outside("wait_idle")
        await trio.lowlevel.checkpoint()
        await self._state.wait(lambda: self._state.quiescent or self._state.gone)
        self._check_crash()

    async def wait_status(self, status: AgentStatus) -> None:
        """Return once the status is or was *status*, at once if it is.

        A disposed agent is idle; waiting for ``running`` returns when it is gone.
        """
        if status not in ("idle", "running"):
            raise InvalidValue(f"status: expected 'idle' or 'running', got {status!r}")
        self._check_thread()
        state = self._state
        await state.wait_moment(lambda: state.status == status or state.gone)
        self._check_crash()

    async def flush(self) -> None:
        """Return once everything recorded so far is durable, at any level of durability.

        A barrier for a program that tells others: what was read from the log before this call
        is not lost by a crash after it. Raises `StoreError`; `health` says so, too, until a
        flush succeeds. Of an agent that is being disposed of it waits for the last write, and
        says afterwards whether that saved everything. Without a store there is nothing to wait
        for. Cancellation: a write that has begun is finished first.
        """
        self._check_thread()
        await trio.lowlevel.checkpoint()
        await self._saving.flush()

    async def run_maintenance(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Run one job that is no turn, from true idle, in the caller's task.

        Waking input waits in the inbox until it has settled. `cancel` ends the job
        (`ActivityCancelled`). Raises `AgentBusy` if anything runs or is about to, a turn
        from whose tools it is called included; `AgentDisposed` for an agent that is gone.
        Inside *fn*, whatever would wait for the agent raises `WouldDeadlock`.
        """
        self._check_thread()
        self._check_alive()
        return await maintain(self._state, self.id, fn, *args)

    async def complete(
        self,
        messages: str | Sequence[Message],
        *,
        selection: ModelSelection | None = None,
        tools: Sequence[ToolSchema] = (),
        max_tokens: int | None = None,
    ) -> Completion:
        """Make one model request that is no part of the conversation, and return its answer.

        Nothing of it enters the log. It runs in the caller's task, at any time, beside a
        turn too; ``stream`` listeners see it with ``attempt`` 0. It is not retried.

        Args:
            messages: The whole request; a text becomes one user message. Give calls and
                their results together, or providers refuse it.
            selection: The route; the agent's current model when absent.
            tools: Declared to the model. Calls in the answer are not run.
            max_tokens: Most tokens of the answer; the adapter's default when absent.

        Raises:
            ProviderError: The request failed, with the provider's facts.
            CodedError: ``NO_ROUTE``: neither a selection nor a current model.
            InvalidValue: *messages*, *tools* or *selection* are something else.
            AgentDisposed: The agent is gone.

        Cancellation: the connection is closed and nothing is left behind.
        """
        self._check_thread()
        self._check_alive()
        selection = selection or self.model.current()
        stream = self.scope.heard.stream
        return await complete(self, stream, self._runtime, messages, selection, tools, max_tokens)

    # --- checks -------------------------------------------------------------------------

    def _message(self, message: str | UserMessage) -> UserMessage:
        if isinstance(message, str):
            return UserMessage(message, id=self.session.new_id())
        if type(message) is not UserMessage:  # of a subclass more might be lost than it says
            raise InvalidValue(
                f"message: expected a str or a UserMessage, got {type(message).__name__}"
            )
        return message

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise WrongThread(
                "an agent's methods belong to its Trio thread; from a worker thread use "
                "trio.from_thread.run_sync"
            )

    def _check_outside(self, call: str) -> None:
        """Refuse to wait for an agent from inside its own work."""
        self._check_thread()
        if agent_being_created() is self and self._state.held:
            raise WouldDeadlock(f"{call} on {self.id!r} would wait for its own creation")
        if self._state.activity is not None and is_inside_job(self._state.activity):
            raise WouldDeadlock(
                f"{call} on {self.id!r} from inside its maintenance would wait for itself"
            )
        inside = current_agent()
        while inside is not None:
            if inside is self:
                raise WouldDeadlock(
                    f"{call} on {self.id!r} from inside its own tools, hooks or children "
                    "would wait for itself"
                )
            inside = inside.parent

    def _check_alive(self) -> None:
        if self._state.gone:
            raise AgentDisposed(f"agent {self.id!r} is disposed")

    def _check_crash(self) -> None:
        if self._crash is not None:
            raise AgentCrashed(f"the driver of {self.id!r} failed") from self._crash
