"""Budgets: a turn, or a whole session, ends when it has used up what it was given.

    budget = Budget(steps=20, tokens=200_000, seconds=600)
    budget.attach(engine.scope)

A turn goes on as long as tools owe a request or steering comes (C69); a budget bounds it.
It ends cooperatively: nothing is cut. Before each step what was used is compared with
the limits, so the last round is fully answered, and the turn then ends ``aborted`` with
a `HookCause` that says which limit was reached. What was not entered stays pending.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias
from weakref import WeakKeyDictionary

import trio
from attrs import Attribute, define, field, frozen

from ..agent import AgentScope, PreStep, StepDecision
from ..hooks import Proceed, Registration
from ..session import Session
from ..vocabulary import (
    AssistantMessageEvent,
    EndSeed,
    Event,
    HookCause,
    InvalidValue,
    RequestHeaderEvent,
    StepStart,
    TurnEnd,
    TurnStart,
    Usage,
)

Price: TypeAlias = Callable[[str, str, Usage], float]
"""From provider, model and the usage of one request to what it cost, in any one unit."""


@frozen(kw_only=True)
class Spent:
    """What was used. *tokens* are those that providers reported, in and out.

    *cost* is 0 without a price. *seconds* are those of turns, to the millisecond of the
    log's clock.
    """

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0


@define(eq=False)
class _Tally:
    """What one session has used, folded from its log, each event once."""

    price: Price | None
    turn: Spent = Spent()
    ended: Spent = Spent()
    _next: int = 0
    _unanswered: int = 0
    _route: tuple[str, str] = ("", "")
    _started_ms: int | None = None
    _steps: int = 0
    _tokens: int = 0
    _cost: float = 0.0

    def read(self, session: Session) -> None:
        # Attempts that no message tells of: failed ones, and those cut before any text.
        others = [*session.place.unanswered[self._unanswered :]]
        for event in session.events[self._next :]:
            while others and others[0][0] <= event.seq:
                self._spend(others[0][1])
                self._unanswered += 1
                del others[0]
            self._take(event)  # raises what a price raises; then it is taken again
            self._next = event.seq + 1
        for _, usage in others:
            self._spend(usage)
            self._unanswered += 1
        now = session.now_ms()
        self.turn = self._of_turn(now)

    def _of_turn(self, now_ms: int) -> Spent:
        begun = self._started_ms
        seconds = 0.0 if begun is None else max(0, now_ms - begun) / 1000
        return Spent(steps=self._steps, tokens=self._tokens, seconds=seconds, cost=self._cost)

    def _take(self, event: Event) -> None:
        match event.data:
            case TurnStart():
                self._started_ms = event.time_ms
                self._steps, self._tokens, self._cost = 0, 0, 0.0
            case TurnEnd():
                self.ended = _added(self.ended, self._of_turn(event.time_ms))
                self._started_ms, self._steps, self._tokens, self._cost = None, 0, 0, 0.0
            case StepStart():
                self._steps += 1
            case RequestHeaderEvent(header=header):
                self._route = (header.config.provider, header.config.model)
            case AssistantMessageEvent(usage=usage) if usage is not None:
                self._spend(usage)
            case EndSeed(inherited=True):
                self.ended = Spent()  # what another session used
            case _:
                pass

    def _spend(self, usage: Usage) -> None:
        self._cost += 0.0 if self.price is None else self.price(*self._route, usage)
        self._tokens += usage.input_tokens + usage.output_tokens


def _added(one: Spent, other: Spent) -> Spent:
    return Spent(
        steps=one.steps + other.steps,
        tokens=one.tokens + other.tokens,
        seconds=one.seconds + other.seconds,
        cost=one.cost + other.cost,
    )


def _count(_: object, attribute: Attribute[int | None], value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InvalidValue(
            f"{attribute.name}: expected a whole number of at least 1, got {value!r}"
        )


def _amount(_: object, attribute: Attribute[float | None], value: float | None) -> None:
    if value is not None and (isinstance(value, bool) or not (math.isfinite(value) and value > 0)):
        raise InvalidValue(f"{attribute.name}: expected a number above 0, got {value!r}")


@define(eq=False, kw_only=True)
class Budget:
    """Limits for each agent that it is attached to. Every limit can be changed at any time.

    Args:
        steps: Most requests to the model, retries not counted.
        tokens: Tokens that providers reported, in and out, failed attempts included.
        seconds: Of the log's clock, from the turn's start.
        cost: In the unit of *price*, which it needs.
        price: What one request cost.
        per: ``"turn"``: each turn has all of it. ``"session"``: all turns of a session
            share it, resumed ones too; seconds between turns do not count.

    A limit is reached when that much is used, and is looked at before each step. So one
    request may go past *tokens*, *seconds* and *cost*; none goes past *steps*. To bound a
    tool that hangs, give the tool a timeout.

    A turn that has reached a limit ends ``aborted``, its cause ``HookCause("budget: ...")``.
    Tool results that no request has carried yet are in history, and the next turn's
    request carries them. Input that had not entered is pending, and waits for the next
    wake. A turn that comes to its end by itself is never touched.
    """

    steps: int | None = field(default=None, validator=_count)
    tokens: int | None = field(default=None, validator=_count)
    seconds: float | None = field(default=None, validator=_amount)
    cost: float | None = field(default=None, validator=_amount)
    price: Price | None = None
    per: Literal["turn", "session"] = "turn"
    _tallies: WeakKeyDictionary[Session, _Tally] = field(
        factory=WeakKeyDictionary, init=False, repr=False
    )

    def __attrs_post_init__(self) -> None:
        if self.per not in ("turn", "session"):
            raise InvalidValue(f"per: expected 'turn' or 'session', got {self.per!r}")
        if self.cost is not None and self.price is None:
            raise InvalidValue("cost: expected a price= to count it with, got none")

    def attach(self, scope: AgentScope) -> Registration:
        """Bound the agent of *scope*, or each agent of an engine's scope."""
        return scope.hooks.pre_step.listen(self._before_step)

    def spent(self, session: Session) -> Spent:
        """What the open turn of *session* has used, or with ``per="session"`` all of it."""
        tally = self._tallies.get(session)
        if tally is None:
            tally = self._tallies[session] = _Tally(self.price)
        tally.read(session)
        return tally.turn if self.per == "turn" else _added(tally.ended, tally.turn)

    def reached(self, spent: Spent) -> str | None:
        """The limit that *spent* has reached, in words; None below all of them."""
        limits: tuple[tuple[str, float | None, float], ...] = (
            ("steps", self.steps, spent.steps),
            ("tokens", self.tokens, spent.tokens),
            ("seconds", self.seconds, spent.seconds),
            ("cost", self.cost, spent.cost),
        )
        for name, limit, used in limits:
            if limit is not None and used >= limit:
                return f"budget: {used:.10g} of {limit:.10g} {name} used in this {self.per}"
        return None

    async def _before_step(
        self, value: PreStep, proceed: Proceed[PreStep, StepDecision]
    ) -> StepDecision:
        reason = self.reached(self.spent(value.agent.session))
        if reason is not None:
            value.agent.cancel(HookCause(reason), keep_inbox=True)
            await trio.lowlevel.checkpoint()  # the turn ends here
        return await proceed()
