"""Hooks and scopes: three kinds of dispatch, parents, lifetimes (C37-C41, C139, C156, C159)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

import pytest
from hypothesis import given, strategies as st

from terzetto.hooks import Notification, Proceed, Registration, Scope, Serial, Waterfall
from terzetto.vocabulary import InvalidValue, ScopeClosed

T = TypeVar("T")
KINDS = [Notification, Serial, Waterfall]


def driven(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result, without an event loop: it must not wait for anything."""
    try:
        waited_for = coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    pytest.fail(f"waited for {waited_for!r}")


def under(parent: T) -> T:
    """A point of an inner scope."""
    kind: Any = type(parent)
    return kind("h", parent)


class Parked:
    """An awaitable that gives control away once."""

    def __await__(self) -> Generator[str, None, str]:
        yield "parked"
        return "resumed"


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


async def final(value: str) -> str:
    return f"[{value}]"


Hook = Waterfall[str, str]


def wrap(mark: str) -> Callable[[str, Proceed[str, str]], Awaitable[str]]:
    async def around(value: str, proceed: Proceed[str, str]) -> str:
        return f"{mark}({await proceed(value + mark)})"

    return around


# --- waterfall ------------------------------------------------------------------------------


def test_a_waterfall_without_listeners_is_its_final_decision() -> None:
    """C156: nothing is awaited but that."""
    hook: Hook = Waterfall("h")
    assert driven(hook.run("v", final)) == "[v]"


def test_listeners_run_around_the_decision_first_registered_outermost() -> None:
    """C156."""
    hook: Hook = Waterfall("h")
    hook.listen(wrap("a"))
    hook.listen(wrap("b"))
    assert driven(hook.run("-", final)) == "a(b([-ab]))"


def test_listeners_of_outer_scopes_stand_outside() -> None:
    """C40, C41: whatever the order of registration."""
    outer: Hook = Waterfall("h")
    middle: Hook = under(outer)
    inner: Hook = under(middle)
    inner.listen(wrap("i"))
    outer.listen(wrap("o"))
    middle.listen(wrap("m"))
    assert driven(inner.run("", final)) == "o(m(i([omi])))"
    assert driven(middle.run("", final)) == "o(m([om]))"
    assert driven(outer.run("", final)) == "o([o])"


def test_proceed_without_an_argument_passes_the_value_on() -> None:
    """C156."""
    hook: Waterfall[Any, Any] = Waterfall("h")
    values: list[Any] = []

    async def around(value: Any, proceed: Proceed[Any, Any]) -> Any:
        values.append(value)
        return await proceed()

    async def end(value: Any) -> Any:
        return value

    hook.listen(around)
    hook.listen(around)
    value = object()
    assert driven(hook.run(value, end)) is value
    assert values == [value, value]


@pytest.mark.parametrize("changed", [None, False, 0, "", ()], ids=repr)
def test_a_changed_value_may_be_any_value(changed: Any) -> None:
    """C156: None is a value."""
    hook: Waterfall[Any, Any] = Waterfall("h")

    async def around(value: Any, proceed: Proceed[Any, Any]) -> Any:
        return await proceed(changed)

    async def end(value: Any) -> Any:
        return (value,)

    hook.listen(around)
    assert driven(hook.run("original", end)) == (changed,)


def test_returning_without_proceed_short_circuits() -> None:
    """C156."""
    hook: Hook = Waterfall("h")
    reached: list[str] = []

    async def stop(value: str, proceed: Proceed[str, str]) -> str:
        return "stopped"

    async def inner(value: str, proceed: Proceed[str, str]) -> str:
        reached.append(value)
        return await proceed()

    hook.listen(wrap("a"))
    hook.listen(stop)
    hook.listen(inner)
    assert driven(hook.run("v", final)) == "a(stopped)"
    assert reached == []


def test_proceeding_twice_decides_twice() -> None:
    """C156: each time everything inside runs, from that listener on."""
    hook: Hook = Waterfall("h")
    counted: list[str] = []

    async def twice(value: str, proceed: Proceed[str, str]) -> str:
        return await proceed("1") + await proceed("2") + await proceed()

    async def count(value: str, proceed: Proceed[str, str]) -> str:
        counted.append(value)
        return await proceed()

    hook.listen(count)
    hook.listen(twice)
    hook.listen(count)
    assert driven(hook.run("v", final)) == "[1][2][v]"
    assert counted == ["v", "1", "2", "v"]


def test_proceed_is_not_started_before_it_is_awaited() -> None:
    """C156."""
    hook: Hook = Waterfall("h")
    told: list[str] = []

    async def late(value: str, proceed: Proceed[str, str]) -> str:
        inner = proceed()
        told.append("before")
        return await inner

    async def end(value: str) -> str:
        told.append("end")
        return value

    hook.listen(late)
    driven(hook.run("v", end))
    assert told == ["before", "end"]


@pytest.mark.parametrize("where", ["final", "inner", "outer"])
def test_an_exception_goes_through_whoever_does_not_catch_it(where: str) -> None:
    """C68, C109: it stays what it is."""
    hook: Hook = Waterfall("h")
    error = ValueError("no")
    seen: list[BaseException] = []

    def listener(name: str) -> Callable[[str, Proceed[str, str]], Awaitable[str]]:
        async def around(value: str, proceed: Proceed[str, str]) -> str:
            if name == where:
                raise error
            try:
                return await proceed()
            except ValueError as caught:
                seen.append(caught)
                raise

        return around

    async def end(value: str) -> str:
        if where == "final":
            raise error
        return value

    hook.listen(listener("outer"))
    hook.listen(listener("inner"))
    with pytest.raises(ValueError, match="no") as caught:
        driven(hook.run("v", end))
    assert caught.value is error
    assert seen == [error] * {"final": 2, "inner": 1, "outer": 0}[where]


def test_a_listener_may_answer_an_exception() -> None:
    """C156."""
    hook: Hook = Waterfall("h")

    async def rescue(value: str, proceed: Proceed[str, str]) -> str:
        try:
            return await proceed()
        except ValueError:
            return "rescued"

    async def fail(value: str) -> str:
        raise ValueError

    hook.listen(rescue)
    assert driven(hook.run("v", fail)) == "rescued"


def test_a_waterfall_waits_for_what_its_listeners_wait_for() -> None:
    """C156."""
    hook: Waterfall[str, str] = Waterfall("h")

    async def slow(value: str, proceed: Proceed[str, str]) -> str:
        return await Parked() + await proceed()

    hook.listen(slow)
    running = hook.run("v", final)
    assert running.send(None) == "parked"
    with pytest.raises(StopIteration) as stop:
        running.send(None)
    assert stop.value.value == "resumed[v]"


# --- serial ---------------------------------------------------------------------------------


def test_serial_without_listeners_awaits_nothing() -> None:
    """C156."""
    assert driven(Serial[str]("h").run("v")) is None


def test_serial_listeners_are_awaited_one_after_the_other() -> None:
    """C156, C159."""
    outer: Serial[str] = Serial("h")
    inner: Serial[str] = under(outer)
    told: list[str] = []

    def listener(name: str) -> Callable[[str], Awaitable[None]]:
        async def listen(value: str) -> None:
            told.append(f"{name} begins")
            await Parked()
            told.append(f"{name} ends")

        return listen

    inner.listen(listener("inner"))
    outer.listen(listener("outer"))
    running = inner.run("v")
    running.send(None)
    assert told == ["outer begins"]
    running.send(None)
    assert told == ["outer begins", "outer ends", "inner begins"]
    with pytest.raises(StopIteration):
        running.send(None)
    assert told[-1] == "inner ends"


def test_serial_stops_at_a_failure() -> None:
    """C36, C156: a veto."""
    hook: Serial[str] = Serial("h")
    told: list[str] = []

    def listener(name: str, error: Exception | None) -> Callable[[str], Awaitable[None]]:
        async def listen(value: str) -> None:
            told.append(name)
            if error is not None:
                raise error

        return listen

    veto = ValueError("veto")
    hook.listen(listener("first", None))
    hook.listen(listener("second", veto))
    hook.listen(listener("third", None))
    with pytest.raises(ValueError, match="veto") as caught:
        driven(hook.run("v"))
    assert caught.value is veto
    assert told == ["first", "second"]


# --- notification ---------------------------------------------------------------------------


def test_a_notification_reaches_all_outer_scopes_first() -> None:
    """C40, C41, C156."""
    outer: Notification[int] = Notification("h")
    inner: Notification[int] = under(outer)
    other: Notification[int] = under(outer)
    told: list[str] = []
    inner.listen(lambda value: told.append(f"inner {value}"))
    outer.listen(lambda value: told.append(f"outer {value}"))
    other.listen(lambda value: told.append(f"other {value}"))
    inner.notify(1)
    assert told == ["outer 1", "inner 1"]
    outer.notify(2)
    assert told[2:] == ["outer 2"]


def test_a_failing_listener_is_contained_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C139, C156."""
    hook: Notification[int] = Notification("status")
    told: list[int] = []

    def fail(value: int) -> None:
        raise ValueError("oh") from KeyError("why")

    hook.listen(fail)
    hook.listen(told.append)
    hook.notify(7)
    assert told == [7]
    (text,) = errors(caplog)
    assert "status" in text
    assert "oh" in text
    assert "why" in text
    assert caplog.records[0].name == "terzetto"


def test_an_exception_without_words_is_contained_too(caplog: pytest.LogCaptureFixture) -> None:
    """C139."""

    class Wordless(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even that")

    hook: Notification[int] = Notification("h")

    def fail(value: int) -> None:
        raise Wordless

    hook.listen(fail)
    hook.notify(1)
    (text,) = errors(caplog)
    assert "Wordless" in text


def test_a_group_of_failures_is_one_failure(caplog: pytest.LogCaptureFixture) -> None:
    """C139."""
    hook: Notification[int] = Notification("h")

    def fail(value: int) -> None:
        raise ExceptionGroup("both", [ValueError("one"), KeyError("two")])

    hook.listen(fail)
    hook.notify(1)
    (text,) = errors(caplog)
    assert "one" in text
    assert "two" in text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_failure_passes(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """DESIGN 4: Ctrl-C is raised on."""
    hook: Notification[int] = Notification("h")

    def stop(value: int) -> None:
        raise error

    hook.listen(stop)
    with pytest.raises(error):
        hook.notify(1)
    assert errors(caplog) == []


def test_return_values_are_ignored() -> None:
    """C156."""
    hook: Notification[int] = Notification("h")
    told: list[int] = []

    def answer(value: int) -> Any:
        told.append(value)
        return "x"

    hook.listen(answer)
    hook.listen(told.append)
    assert hook.notify(1) is None  # type: ignore[func-returns-value]
    assert told == [1, 1]


# --- registrations --------------------------------------------------------------------------


def collector(told: list[str], name: str) -> Callable[..., Any]:
    def listen(value: Any) -> None:
        told.append(name)

    return listen


def test_removal_is_idempotent() -> None:
    """C38."""
    hook: Notification[int] = Notification("h")
    told: list[str] = []
    registration = hook.listen(collector(told, "a"))
    again = hook.listen(collector(told, "b"))
    assert registration.active
    registration.remove()
    registration.remove()
    assert not registration.active
    assert again.active
    hook.notify(1)
    assert told == ["b"]


def test_a_registration_ends_with_its_block() -> None:
    """C38: also when the block fails, whose exception goes on."""
    hook: Notification[int] = Notification("h")
    told: list[str] = []
    with pytest.raises(ValueError, match="x"), hook.listen(collector(told, "a")) as registration:
        hook.notify(1)
        raise ValueError("x")
    assert not registration.active
    hook.notify(2)
    assert told == ["a"]
    assert not hook


def test_one_function_may_listen_twice() -> None:
    """C38: two registrations, each with its own end."""
    hook: Notification[int] = Notification("h")
    told: list[str] = []
    listener = collector(told, "a")
    first, second = hook.listen(listener), hook.listen(listener)
    hook.notify(1)
    assert told == ["a", "a"]
    first.remove()
    first.remove()
    hook.notify(2)
    assert told == ["a"] * 3
    second.remove()
    assert not hook


def test_removing_one_of_two_registrations_removes_that_one() -> None:
    """C38: the place in the order is the registration's, not the function's."""
    hook: Notification[int] = Notification("h")
    told: list[str] = []
    both = collector(told, "both")
    hook.listen(both)
    hook.listen(collector(told, "between"))
    hook.listen(both).remove()
    hook.notify(1)
    assert told == ["both", "between"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["listen", "listen", "remove"]), st.integers(0, 2)), max_size=16
    )
)
def test_dispatch_follows_the_registrations_that_are_left(plan: list[tuple[str, int]]) -> None:
    """C38, C156: any order of listening and removing, shared functions among them."""
    hook: Notification[int] = Notification("h")
    told: list[str] = []
    listeners = [collector(told, name) for name in "abc"]
    left: list[tuple[str, Registration]] = []
    for act, which in plan:
        if act == "listen":
            left.append(("abc"[which], hook.listen(listeners[which])))
        elif left:
            left.pop(which % len(left))[1].remove()
        told.clear()
        hook.notify(1)
        assert told == [name for name, _ in left]
        assert bool(hook) == bool(left)


def test_a_removal_in_a_dispatch_skips_nobody_else() -> None:
    """C30: the others see a stable list, and the next dispatch is without it."""
    hook: Notification[int] = Notification("h")
    told: list[str] = []
    registrations: list[Registration] = []

    def first(value: int) -> None:
        told.append("first")
        registrations[0].remove()

    registrations.append(hook.listen(first))
    hook.listen(collector(told, "second"))
    hook.listen(collector(told, "third"))
    hook.notify(1)
    assert told == ["first", "second", "third"]
    told.clear()
    hook.notify(2)
    assert told == ["second", "third"]


def test_a_listener_added_in_a_dispatch_waits_for_the_next() -> None:
    """C30."""
    hook: Notification[int] = Notification("h")
    told: list[str] = []

    def add(value: int) -> None:
        told.append("add")
        hook.listen(collector(told, f"added {value}"))

    hook.listen(add)
    hook.notify(1)
    assert told == ["add"]
    hook.notify(2)
    assert told == ["add", "add", "added 1"]


def test_a_waterfall_keeps_its_listeners_while_it_runs() -> None:
    """C30: removal during a dispatch does not change who is inside."""
    hook: Hook = Waterfall("h")
    registrations: list[Registration] = []

    async def remove(value: str, proceed: Proceed[str, str]) -> str:
        registrations[0].remove()
        return await proceed()

    hook.listen(remove)
    registrations.append(hook.listen(wrap("b")))
    hook.listen(wrap("c"))
    assert driven(hook.run("", final)) == "b(c([bc]))"
    assert driven(hook.run("", final)) == "c([c])"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("listener", [None, "f", 1, ()], ids=repr)
def test_what_cannot_be_called_is_refused(kind: Any, listener: Any) -> None:
    hook = kind("agent_error")
    with pytest.raises(InvalidValue, match="agent_error"):
        hook.listen(listener)
    assert not hook


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_point_drops_all_and_refuses_more(kind: Any) -> None:
    """C37, C38: and the outer scope's listeners stay."""
    outer = kind("status")
    inner = kind("status", outer)
    outer.listen(print)
    registration = inner.listen(print)
    inner.close()
    inner.close()
    assert inner.listeners() == (print,)
    with pytest.raises(ScopeClosed, match="status"):
        inner.listen(print)
    registration.remove()
    assert inner.listeners() == (print,)
    outer.close()
    assert inner.listeners() == ()
    assert not inner


@pytest.mark.parametrize("kind", KINDS)
def test_a_point_is_true_when_a_dispatch_would_call_somebody(kind: Any) -> None:
    """C156."""
    outer = kind("h")
    inner = kind("h", outer)
    assert not inner
    with outer.listen(print):
        assert inner
        assert outer
    with inner.listen(print):
        assert inner
        assert not outer
    assert not inner


# --- scopes ---------------------------------------------------------------------------------


def registrations(scope: Scope, told: list[str], names: str) -> list[Registration]:
    return [scope.own(Registration(lambda name=name: told.append(name))) for name in names]  # type: ignore[misc]


def test_a_scope_removes_what_it_owns_in_reverse() -> None:
    """C37, C38."""
    scope = Scope("agent")
    told: list[str] = []
    owned = registrations(scope, told, "abc")
    scope.close()
    assert told == ["c", "b", "a"]
    assert not any(registration.active for registration in owned)
    scope.close()
    assert told == ["c", "b", "a"]
    assert scope.closed


def test_what_was_removed_is_not_removed_again() -> None:
    """C38."""
    scope = Scope("agent")
    told: list[str] = []
    owned = registrations(scope, told, "ab")
    owned[0].remove()
    scope.close()
    assert told == ["a", "b"]


def test_a_closed_scope_refuses() -> None:
    """C37: it would outlive its owner."""
    scope = Scope("agent 7")
    scope.close()
    told: list[str] = []
    with pytest.raises(ScopeClosed, match="agent 7"):
        scope.own(Registration(lambda: told.append("x")))
    with pytest.raises(ScopeClosed):
        scope.check_open()
    assert told == []


def test_a_scope_refuses_while_it_closes() -> None:
    """C37: a removal cannot bring something new."""
    scope = Scope("agent")
    refused: list[bool] = []

    def undo() -> None:
        with pytest.raises(ScopeClosed):
            scope.own(Registration(None))
        refused.append(True)

    scope.own(Registration(undo))
    scope.close()
    assert refused == [True]


@given(st.lists(st.integers(0, 1), min_size=70, max_size=200))
def test_short_registrations_leave_nothing_and_long_ones_stay(plan: list[int]) -> None:
    """C38: a scope that lives long does not collect what has ended."""
    scope = Scope("engine")
    told: list[str] = []
    kept = []
    for number, keep in enumerate(plan):
        (registration,) = registrations(scope, told, [str(number)])  # type: ignore[arg-type]
        if keep:
            kept.append(str(number))
        else:
            registration.remove()
    assert len(scope._owned) <= 2 * len(kept) + 65
    told.clear()
    scope.close()
    assert told == kept[::-1]


@pytest.mark.parametrize("lived", [1, 5000], ids=["short", "long"])
def test_owning_costs_a_constant_number_of_looks(lived: int) -> None:
    """C38: with thousands of live registrations as with dead ones; counted, not timed.
    A registration lives until *lived* more were made."""
    looks = 0

    class Watched(Registration):
        @property
        def active(self) -> bool:
            nonlocal looks
            looks += 1
            return super().active

    scope, count = Scope("engine"), 5000
    made: list[Registration] = []
    for number in range(count):
        made.append(scope.own(Watched(lambda: None)))
        if number >= lived:
            made[number - lived].remove()
    assert looks <= 2 * count
    assert len(scope._owned) <= 2 * min(lived, count) + 65


def test_closing_an_inner_scope_leaves_the_outer_one() -> None:
    """C38, C40."""
    outer = Scope("engine")
    inner = Scope("agent", outer)
    told: list[str] = []
    registrations(outer, told, "o")
    registrations(inner, told, "i")
    inner.close()
    assert told == ["i"]
    assert not outer.closed
    outer.check_open()
    outer.close()
    assert told == ["i", "o"]


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "with another"])
def test_proceed_may_be_called_again_and_only_counts_when_awaited(others: int) -> None:
    """The same for a lone listener, which is next to the decision, as for any."""
    hook: Hook = Waterfall("h")
    made: list[str] = []

    async def decide(value: str) -> str:
        made.append(value)
        return f"[{value}]"

    async def twice(value: str, proceed: Proceed[str, str]) -> str:
        unused = proceed("never")
        assert made == []
        unused.close()  # type: ignore[attr-defined]
        return await proceed() + await proceed("changed")

    hook.listen(twice)
    for _ in range(others):
        hook.listen(lambda value, proceed: proceed())
    assert driven(hook.run("v", decide)) == "[v][changed]"
    assert made == ["v", "changed"]
