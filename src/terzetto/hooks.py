"""Hooks: typed points where others observe or intercept work; scopes that own them.

Three kinds of dispatch (C156):

- `Notification`: plain functions, called in order, each one's failure contained;
- `Serial`: async functions, awaited in order, a failure stops the rest;
- `Waterfall`: async functions around a decision, each given the value and ``proceed``.

Dispatch without listeners awaits nothing. A hook of an inner scope has the outer
scope's hook as its parent: listeners of the outer scope come first and see the work
of every inner scope, never the reverse (C40, C41).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from types import CoroutineType, TracebackType
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

from attrs import define, field

from .vocabulary import InvalidValue, ScopeClosed, WrongThread, chain_text

logger = logging.getLogger("terzetto")

V = TypeVar("V")
D = TypeVar("D")
L = TypeVar("L")
V_contra = TypeVar("V_contra", contravariant=True)
D_co = TypeVar("D_co", covariant=True)


def check_thread(thread: int, what: str) -> None:
    """Raise `WrongThread` outside *thread*, to which *what* belongs."""
    if threading.get_ident() != thread:
        raise WrongThread(
            f"{what} belongs to the thread that made it, which is Trio's; from a worker thread "
            "use trio.from_thread.run_sync"
        )


@define(eq=False)
class Registration:
    """Something registered. Leave its block, call `remove`, or let its scope end."""

    _undo: Callable[[], None] | None = field(repr=False)
    _thread: int = field(factory=threading.get_ident, init=False, repr=False)

    @property
    def active(self) -> bool:
        return self._undo is not None

    def remove(self) -> None:
        """Undo the registration. A second call does nothing. Raises `WrongThread`."""
        check_thread(self._thread, "a registration")
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()


@define(eq=False)
class _Point(Generic[L]):
    """What the three kinds share: a name, listeners in order, a parent."""

    name: str
    parent: Self | None = None
    _listeners: tuple[L, ...] = ()
    # Tuples: every agent has a score of points, and on most of them nobody ever listens.
    _registered: tuple[tuple[Registration, L], ...] = ()
    _closed: bool = False
    _thread: int = field(factory=threading.get_ident, init=False, repr=False)

    def listen(self, listener: L) -> Registration:
        """Add *listener* after those there are.

        Raises `ScopeClosed` after the end, and `WrongThread`.
        """
        check_thread(self._thread, f"the hook {self.name}")
        if self._closed:
            raise ScopeClosed(f"{self.name}: its scope has ended, nothing can be registered on it")
        if not callable(listener):
            raise InvalidValue(f"{self.name}: expected a function, got {listener!r}")
        self._check(listener)

        def undo() -> None:
            self._registered = tuple(known for known in self._registered if known[0] is not made)
            self._listeners = tuple(listener for _, listener in self._registered)

        made = Registration(undo)
        self._registered += ((made, listener),)
        self._listeners += (listener,)
        return made

    def _check(self, listener: L) -> None:
        """Refuse a function that no dispatch could call rightly."""

    def close(self) -> None:
        """Drop every listener and refuse new ones."""
        self._closed = True
        self._registered = ()
        self._listeners = ()

    def listeners(self) -> tuple[L, ...]:
        """All that a dispatch would call, outermost scope first."""
        found, point = self._listeners, self.parent
        while point is not None:
            if point._listeners:
                found = point._listeners + found
            point = point.parent
        return found

    # A loop, not a recursion: every call of a tool asks four points.
    def __bool__(self) -> bool:
        if self._listeners:
            return True
        point = self.parent
        while point is not None:
            if point._listeners:
                return True
            point = point.parent
        return False


# The engine gives these two back the KeyboardInterrupt that its own frames hold off:
# a listener is somebody else's code and must stay interruptible.
def call_listener(listener: Callable[[V], None], value: V) -> None:
    """Call a plain listener."""
    listener(value)


def contained(name: str, listener: Callable[[V], None], value: V) -> BaseException | None:
    """Call a plain listener of *name*; returns what it stops the program with. A failure of
    its own is logged."""
    try:
        call_listener(listener, value)
    except Exception as error:  # a listener: somebody else's code
        logger.error("%s listener failed: %s", name, chain_text(error))
    except BaseException as error:  # the program is being stopped
        return error
    return None


async def await_listener(name: str, listener: object, awaitable: Awaitable[D]) -> D:
    """Await what *listener*, an async one of *name*, has given."""
    if type(awaitable) is not CoroutineType and not isawaitable(awaitable):
        raise InvalidValue(
            f"{name}: expected an async function as its listener, and {listener_name(listener)} "
            f"is a plain one that returned {type(awaitable).__name__}; write `async def`"
        )
    return await awaitable


def listener_name(listener: object) -> str:
    """What a reader finds *listener* by: where it is from, and its name there."""
    while isinstance(listener, partial):
        listener = listener.func
    name = getattr(listener, "__qualname__", None) or type(listener).__qualname__
    return f"{listener.__module__}.{name}"


class Notification(_Point[Callable[[V], None]], Generic[V]):
    """Observers. Their return value is ignored, their exceptions are logged and contained.

    A KeyboardInterrupt or SystemExit in one is raised after all of them were called.
    """

    def _check(self, listener: Callable[[V], None]) -> None:
        if iscoroutinefunction(listener):
            raise InvalidValue(
                f"{self.name}: expected a plain function, and {listener_name(listener)} is an "
                "async one, which nobody would await; write `def`, and start what has to wait "
                "in a nursery of your own"
            )

    def notify(self, value: V) -> None:
        stop: BaseException | None = None
        for listener in self.listeners():
            struck = contained(self.name, listener, value)
            stop = stop or struck
        if stop is not None:
            raise stop

    def delivery(self, value: V) -> Delivery[V]:
        """One dispatch, not yet begun: for who must keep several in order."""
        return Delivery(self.name, value, list(self.listeners()))


@define(eq=False)
class Delivery(Generic[V]):
    """A value on its way to the listeners there were. *stop* is what a listener stops the
    program with."""

    name: str
    value: V
    waiting: list[Callable[[V], None]]
    stop: BaseException | None = None

    def drain(self) -> None:
        """Call every listener that has not been called yet."""
        while self.waiting:
            struck = contained(self.name, self.waiting.pop(0), self.value)
            self.stop = self.stop or struck


@define(eq=False)
class Told:
    """Notifications that may make one another, told in the order in which things happened.

    A change that a listener makes is told after the change it heard of: whoever has not
    heard of the first one yet hears of it now.
    """

    _deliveries: list[Delivery[Any]] = field(factory=list)

    def tell(self, point: Notification[V], value: V) -> BaseException | None:
        """Tell *value*; returns what a listener stops the program with."""
        for outer in self._deliveries:
            outer.drain()
        delivery = point.delivery(value)
        self._deliveries.append(delivery)
        delivery.drain()
        self._deliveries.remove(delivery)
        return delivery.stop


class Serial(_Point[Callable[[V], Awaitable[None]]], Generic[V]):
    """Async listeners awaited one after the other; one that raises ends the dispatch."""

    async def run(self, value: V) -> None:
        for listener in self.listeners():
            await await_listener(self.name, listener, listener(value))


class Proceed(Protocol[V_contra, D_co]):
    """The rest of a waterfall. Without an argument the value goes on unchanged."""

    def __call__(self, value: V_contra = ..., /) -> Awaitable[D_co]: ...


Around: TypeAlias = Callable[[V, Proceed[V, D]], Awaitable[D]]


class Waterfall(_Point[Callable[[V, Proceed[V, D]], Awaitable[D]]], Generic[V, D]):
    """Listeners around a decision, outermost first.

    A listener is ``async def f(value, proceed)``: ``await proceed()`` or
    ``proceed(changed)`` gives the inner decision; returning without it short-circuits.
    """

    async def run(self, value: V, final: Callable[[V], Awaitable[D]]) -> D:
        """The decision about *value*; *final* is the innermost one."""
        if not self:
            return await final(value)

        def inner(changed: V | object = _SAME, /) -> Awaitable[D]:
            return final(value if changed is _SAME else changed)  # type: ignore[arg-type]

        return await self.around(value, inner)

    def around(self, value: V, inner: Proceed[V, D]) -> Awaitable[D]:
        """`run` for an *inner* decision that knows the value itself where it is called
        without one: a lone listener is given *inner* as its ``proceed``, with nothing between.

        To be awaited at once. There has to be a listener.
        """
        listeners = self.listeners()
        if len(listeners) == 1:
            return await_listener(self.name, listeners[0], listeners[0](value, inner))
        return _Call(self.name, listeners, inner).step(0, value)

    def wrong(self, decision: object, expected: str) -> InvalidValue:
        """The error of listeners whose decision is not the *expected* one."""
        names = [listener_name(listener) for listener in self.listeners()]
        by = f": {names[0]}" if names else ""
        if len(names) > 1:
            by += f", or it came to it from a listener inside: {', '.join(names[1:])}"
        return InvalidValue(
            f"a listener of {self.name} returned {type(decision).__name__}, expected {expected}"
            f"{by}; one that only looks ends with `return await proceed()`"
        )


_SAME = object()


@define(eq=False)
class _Call(Generic[V, D]):
    """One dispatch of a waterfall."""

    _name: str
    _listeners: tuple[Callable[[V, Proceed[V, D]], Awaitable[D]], ...]
    _final: Callable[[V], Awaitable[D]]

    async def step(self, index: int, value: V) -> D:
        if index == len(self._listeners):
            return await self._final(value)

        def proceed(changed: V | object = _SAME, /) -> Awaitable[D]:
            return self.step(index + 1, value if changed is _SAME else changed)  # type: ignore[arg-type]

        listener = self._listeners[index]
        return await await_listener(self._name, listener, listener(value, proceed))


@define(eq=False)
class Scope:
    """A lifetime for registrations: what it registers ends with it, in reverse order.

    Visibility and lifetime are one thing (C38): an inner scope sees what its parents
    register. Closing is idempotent; afterwards nothing can be registered.
    """

    name: str
    parent: Scope | None = None
    closed: bool = False
    _thread: int = field(factory=threading.get_ident, init=False, repr=False)
    _owned: list[Registration] | None = None
    _sweep_above: int = 64

    def own(self, registration: Registration) -> Registration:
        """Remove *registration* when this scope ends."""
        self.check_open()
        # A long-lived scope with short registrations must not collect dead ones. Sweeping
        # only when the list has doubled makes this a constant cost for each registration.
        owned = self._owned
        if owned is None:
            self._owned = [registration]
            return registration
        if len(owned) > self._sweep_above:
            owned = self._owned = [kept for kept in owned if kept.active]
            self._sweep_above = max(64, 2 * len(owned))
        owned.append(registration)
        return registration

    def check_open(self) -> None:
        """Raise `ScopeClosed` after the end, `WrongThread` in another thread."""
        check_thread(self._thread, self.name)
        if self.closed:
            raise ScopeClosed(f"{self.name} has ended; nothing can be registered on it")

    def close(self) -> None:
        self.closed = True
        while self._owned:
            self._owned.pop().remove()
