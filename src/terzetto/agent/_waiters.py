"""Waiters: who waits for the turn that claims a message, from the ask to its answer."""

from __future__ import annotations

from collections.abc import Callable, Container

import trio
from attrs import define, field

from ..vocabulary import DuplicateMessage, MessageDiscarded, MessageId
from ._answers import Expectation
from ._turn import Turn


@define(eq=False)
class Waiter:
    """Somebody waits for the turn that claims a message."""

    message_id: MessageId
    expects: Expectation | None = None
    done: trio.Event = field(factory=trio.Event)
    turn_number: int | None = None
    turn: Turn | None = None
    error: BaseException | None = None

    def settle(self, turn: Turn | None = None, error: BaseException | None = None) -> None:
        if not self.done.is_set():
            self.turn, self.error = turn, error
            self.done.set()


@define(eq=False)
class Waiters:
    """Everybody who waits, by message."""

    _by_message: dict[MessageId, Waiter] = field(factory=dict)

    def add(self, message_id: MessageId, expects: Expectation | None) -> Waiter:
        """Somebody begins to wait. Raises `DuplicateMessage` if somebody does already."""
        if message_id in self._by_message:
            raise DuplicateMessage(f"message {message_id!r} is asked already; ask with a new one")
        waiter = self._by_message[message_id] = Waiter(message_id, expects)
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """It waits no longer, however that came."""
        if self._by_message.get(waiter.message_id) is waiter:
            del self._by_message[waiter.message_id]

    def claimed(self, message_id: MessageId, turn: int) -> Expectation | None:
        """*turn* has claimed the message: what its asker expects of it, if anything."""
        waiter = self._by_message.get(message_id)
        if waiter is None:
            return None
        waiter.turn_number = turn
        return waiter.expects

    def discarded(self, message_id: MessageId) -> None:
        """The message was removed; who waits for it hears so, unless a turn had it."""
        waiter = self._by_message.get(message_id)
        if waiter is not None and waiter.turn_number is None:
            text = f"message {message_id!r} was removed before any turn entered it"
            waiter.settle(error=MessageDiscarded(text))

    def of_turn(self, number: int) -> list[Waiter]:
        return [w for w in self._by_message.values() if w.turn_number == number]

    def wait_for(self, pending: Container[MessageId]) -> bool:
        """Whether somebody waits for a *pending* message: a standing wake."""
        return any(
            waiter.message_id in pending and not waiter.done.is_set()
            for waiter in self._by_message.values()
        )

    def abandon(self, error: Callable[[], BaseException]) -> None:
        """Nobody will be answered any more; each hears an error of his own."""
        for waiter in list(self._by_message.values()):
            waiter.settle(error=error())
