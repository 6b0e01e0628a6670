"""RunState: what an agent is doing, who may change it, and when it wakes.

It routes input and keeps status and activity in step; the driver waits on its level, so
no wake can be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import TypeVar

import trio
from attrs import define, field

from ..hooks import Notification, Told
from ..session import TARGETS, AgentStatus, AgentView, Inbox, Session
from ..tools import RunningCall
from ..vocabulary import (
    AgentDisposed,
    CancelCause,
    DisposedCause,
    InboxSpliced,
    InboxTarget,
    MessageId,
    UserMessage,
)
from ._activity import Activity
from ._answers import OwedAnswer
from ._hooks import Hooks, InboxNotice, StatusChanged
from ._waiters import Waiters

T = TypeVar("T")


@define(eq=False)
class RunState:
    """The run controls of one agent. All methods are plain and run in the Trio thread.

    *held*: creation is not finished, wakes are remembered. *closing*: disposal has
    begun, input parks. *leaving*: the driver has ended, nobody joins the children that are
    left. *sealed*: the write path closes, input is refused. *gone*: it is
    over. *late_wake*: waking input came after `turn/end`. *steered*: waking input for the
    open turn is unclaimed. *step*: the scope of the stream or batch that runs.
    *interrupted*: that was cut, and the turn has not gone on yet. *stop*: a
    KeyboardInterrupt or SystemExit of a listener, raised by the driver once the turn is
    closed. *stopped*: the driver raises the host's cancel or such a stop, so pending input
    is kept however the agent's block is left. *adopting*: how many creations of children
    need the agent's nursery, which an agent at rest has not opened. *children*: how many of
    the tasks in that nursery have not ended.

    Thousands of agents may be at rest, so what only some need is made when it is needed.
    """

    session: Session
    hooks: Hooks
    view: AgentView = field(init=False)
    inbox: Inbox = field(init=False)
    activity: Activity | None = None
    status: AgentStatus = "idle"
    held: bool = True
    closing: bool = False
    leaving: bool = False
    sealed: bool = False
    gone: bool = False
    stop: BaseException | None = None
    stopped: bool = False
    turn_open: bool = False
    late_wake: bool = False
    steered: bool = False
    step: trio.CancelScope | None = None
    interrupted: bool = False
    flushing: trio.CancelScope | None = None
    owed: OwedAnswer = field(factory=OwedAnswer)
    waiters: Waiters = field(factory=Waiters)
    calls: Set[RunningCall] = frozenset()
    adopting: int = 0
    children: int = 0
    _held_wake: bool = False
    _splicing: int = 0
    _doomed: Set[MessageId] = frozenset()
    _told: Told | None = None
    _waiting: tuple[_Wait, ...] = ()

    def __attrs_post_init__(self) -> None:
        self.inbox = Inbox(self.session.pending, self)
        self.session.on_stop = self.take_stop

    # --- waiting ------------------------------------------------------------------------

    async def wait(self, reached: Callable[[], bool]) -> None:
        """Return while *reached* is true; it is asked again at every change."""
        while not reached():
            await trio.lowlevel.wait_task_rescheduled(self._waits(reached))

    async def wait_moment(self, reached: Callable[[], bool]) -> None:
        """Return once *reached* was true, even if it is not any more."""
        if reached():
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_task_rescheduled(self._waits(reached))

    def _waits(self, reached: Callable[[], bool]) -> _Wait:
        """The running task is about to wait, until `changed` finds that *reached* is true."""
        wait = _Wait(self, reached, trio.lowlevel.current_task())
        self._waiting += (wait,)
        return wait

    def leave(self) -> None:
        """The driver has ended, however it did: nobody new joins the children that are left."""
        self.leaving = True
        self.changed()

    def child_ended(self) -> None:
        """The last act of a child's task."""
        self.children -= 1
        self.changed()

    @trio.lowlevel.enable_ki_protection
    def changed(self) -> None:
        """Something changed: wake those whose moment has come, who came first at first."""
        if not self._waiting:
            return
        waiting: list[_Wait] = []
        due: list[_Wait] = []
        for wait in self._waiting:
            (due if wait.reached() else waiting).append(wait)
        self._waiting = tuple(waiting)
        for wait in due:
            trio.lowlevel.reschedule(wait.task)

    def is_due(self) -> bool:
        """Whether there is something for the driver: a turn to run, or the end."""
        if self.activity is None:
            return self.closing
        return self.activity.kind == "turn"

    def is_wanted(self) -> bool:
        """Whether an agent at rest has to be awake."""
        return self.adopting > 0 or self.is_due()

    @property
    def has_family(self) -> bool:
        """Whether a child lives or is being made."""
        return self.adopting > 0 or self.children > 0

    def is_over(self) -> bool:
        """Whether nothing is left for the driver to do, ever."""
        return self.closing and self.activity is None

    @property
    def quiescent(self) -> bool:
        """Nothing runs and nothing is about to."""
        return self.activity is None and not self._held_wake

    # --- input --------------------------------------------------------------------------

    def send(self, message: UserMessage, target: InboxTarget, wakeup: bool) -> None:
        """Insert *message* and wake the driver if asked.

        Waking input that comes between a cancel and its convergence goes to next-turn and
        is latched. The classification is taken before the insertion, so a cancel from an
        ``inserted`` listener cannot change it (C129).
        """
        self.check_open()
        activity = self.activity
        converging = activity is not None and activity.cancelled
        disposing = self._disposing(activity)
        if wakeup and converging and not disposing:
            target = "next-turn"
        self.inbox.append(target, message)
        if wakeup and self.turn_open and target == "next-step":
            self.steered = True
        if wakeup and not disposing:
            self._wake(activity, converging)

    def wake(self) -> bool:
        """Wake the driver for what is pending, as `send` does; whether anything is."""
        self.check_open()
        activity = self.activity
        if self.turn_open and self.inbox.next_step:
            self.steered = True
        if self.session.pending and not self._disposing(activity):
            self._wake(activity, activity is not None and activity.cancelled)
        return bool(self.session.pending)

    def _disposing(self, activity: Activity | None) -> bool:
        return self.closing or (activity is not None and isinstance(activity.cause, DisposedCause))

    def interrupt(self, message: UserMessage) -> None:
        """Steer, then cut the stream or batch that runs, if any; its turn goes on."""
        self.send(message, "next-step", True)
        # Told of the message, a listener may have cancelled the turn: that wins.
        if self.activity is not None and not self.activity.cancelled:
            self.cut_step()

    def cut_step(self) -> None:
        """Cut the stream or batch that runs, if any."""
        if self.step is not None:
            self.interrupted = True
            self.step.cancel(reason="the step was interrupted")

    def check_open(self) -> None:
        """Refuse input that the store could not take any more, and another thread's."""
        self.session.check_thread()
        if self.sealed:
            raise AgentDisposed(f"agent {self.session.id!r} is disposed and takes no input")

    def _wake(self, activity: Activity | None, converging: bool) -> None:
        if self.held:
            self._held_wake = True
        elif activity is None:
            # An observer of the insertion may have woken it already.
            if self.activity is None:
                self.start()
        elif converging or activity.kind == "maintenance":
            activity.latched = True
        elif not self.turn_open:
            self.late_wake = True

    def start(self) -> None:
        """Enter ``running`` with a fresh activity, at once."""
        self.activity = Activity("turn")
        self.set_status("running")
        self.changed()

    def release(self) -> None:
        """Creation is finished: let held input run."""
        self.held = False
        if self._held_wake:
            self._held_wake = False
            if self.activity is None and self.session.pending:
                self.start()
        self.changed()

    def cancel(self, cause: CancelCause, *, keep_inbox: bool) -> None:
        """Abort the activity, if any, and clear the inbox unless told to keep it."""
        if self.activity is not None:
            self.activity.cancel(cause, keep_inbox=keep_inbox)
        if not keep_inbox and not self.sealed:
            self.late_wake = False
            self._held_wake = False
            if self._splicing:
                self._doomed |= {m.id for m in (*self.inbox.next_step, *self.inbox.next_turn)}
            else:
                self.session.after_append(self.inbox.clear)

    @trio.lowlevel.enable_ki_protection
    def begin_closing(self, cause: CancelCause, *, keep_inbox: bool) -> None:
        """Disposal: the driver ends its turn, or stops where it waits."""
        if self.closing:
            return
        self.closing = True
        try:
            # Who waited for the agent may leave its block before he hears what stopped it.
            self.cancel(cause, keep_inbox=keep_inbox or self.stopped)
        finally:  # a listener of what is discarded may stop the program
            if self.flushing is not None:
                self.flushing.cancel(reason="the agent is being disposed of")
            self.changed()

    # --- the inbox, on the record -------------------------------------------------------

    def splice(self, splice: InboxSpliced) -> None:
        """Append an edit and publish it: discarded, then inserted, after the event."""
        removed = self.session.pending.removed(splice)
        self._splicing += 1
        try:
            self.session.append(splice)
            stays = {message.id for message in splice.inserted}
            for message in removed if splice.outcome is not None else ():
                if message.id not in stays:
                    self.waiters.discarded(message.id)
                self.tell(self.hooks.inbox_discarded, InboxNotice(self.view, message))
            for message in splice.inserted:
                self.tell(self.hooks.inbox_inserted, InboxNotice(self.view, message))
        finally:
            self._splicing -= 1
        if self._doomed and not self._splicing:
            # Cancelled meanwhile: what was inserted is announced before it is discarded.
            doomed, self._doomed = self._doomed, frozenset()
            for target in TARGETS:
                pending = self.session.pending.lists[target]
                for message in [m for m in pending if m.id in doomed]:
                    self.inbox.remove(message.id)

    def claim(self, turn: int, *, with_prompt: bool) -> tuple[UserMessage, ...]:
        """Take all next-step input and, at a turn's start, one prompt (C56)."""
        if not self.session.pending:
            self.steered = False
            return ()
        claimed: list[UserMessage] = []
        activity = self.activity
        for target in TARGETS:
            # An observer of the first claim may have cancelled, and so cleared the second list.
            if activity is not None and activity.cancelled:
                break
            pending = len(self.session.pending.lists[target])
            self.steered = self.steered and target != "next-step"
            count = pending if target == "next-step" else min(pending, int(with_prompt))
            if count:
                splice = InboxSpliced(target, 0, count)
                claimed.extend(self.session.pending.removed(splice))
                self.session.append(splice)
        for message in claimed:
            self.owed.begin(self.waiters.claimed(message.id, turn))
            self.tell(self.hooks.inbox_claimed, InboxNotice(self.view, message, turn))
        return tuple(claimed)

    # --- status -------------------------------------------------------------------------

    def set_status(self, status: AgentStatus) -> None:
        assert status != self.status, "a status change that changes nothing"
        self.status = status
        self.changed()
        self.tell(self.hooks.status, StatusChanged(self.view, status))

    # --- stops --------------------------------------------------------------------------

    def tell(self, point: Notification[T], value: T) -> None:
        """Notify; what a listener stops the program with is raised where it harms nothing."""
        if self._told is None:
            if not point:
                return  # nobody hears of it, nor of anything that it came of
            self._told = Told()
        stop = self._told.tell(point, value)
        if stop is not None and not self.take_stop(stop):
            raise stop

    def take_stop(self, error: BaseException) -> bool:
        """Keep *error* for the driver, which ends the turn first. False if nothing runs."""
        if self.activity is None:
            return False
        self.stop = self.stop or error
        self.activity.withdraw(DisposedCause())
        return True

    def end(self) -> None:
        """The driver is gone, however it went: nothing runs any more."""
        self.activity = None
        if self.status == "running":
            self.set_status("idle")

    @trio.lowlevel.enable_ki_protection
    def finish_maintenance(self, activity: Activity) -> None:
        """Maintenance is over; a latched wake runs now."""
        self.activity = None
        stop, self.stop = self.stop, None
        if activity.latched and self.session.pending and not self.closing:
            self.start()
        self.changed()
        if stop is not None:
            raise stop


@define(eq=False)
class _Wait:
    """A task that waits for *reached*; what Trio calls to cancel that."""

    state: RunState
    reached: Callable[[], bool]
    task: trio.lowlevel.Task

    def __call__(self, raise_cancel: object) -> trio.lowlevel.Abort:
        self.state._waiting = tuple(w for w in self.state._waiting if w is not self)
        return trio.lowlevel.Abort.SUCCEEDED
