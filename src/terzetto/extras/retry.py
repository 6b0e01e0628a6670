"""Retry: failed requests are made again, as their provider advises.

Decides about a failure in `request_error`, waits there, and records both: ``llm/retry`` before
the wait, ``llm/retry-started`` after it (C142). What may be retried and how long to wait is the
`RetryPolicy` of the adapter that served the request; that the failed attempt stays out of
history is the engine's business (C133).
"""

from __future__ import annotations

import logging
from random import Random
from weakref import WeakKeyDictionary

import trio
from attrs import Attribute, define, field

from ..agent import AgentScope, FailureDecision, RequestFailed, Retry
from ..hooks import Proceed, Registration
from ..session import Session
from ..vocabulary import InvalidValue, LlmRetry, LlmRetryStarted, RetryPolicy

logger = logging.getLogger("terzetto")

_MOST_DOUBLINGS = 40


@define(eq=False)
class _Count:
    """Retries of one step, of one provider under one policy: of others they begin anew."""

    key: tuple[int, int, str, RetryPolicy]
    retries: int = 0


def _fault(policy: RetryPolicy) -> str | None:
    """What is wrong with the numbers of *policy*."""
    most, first, longest = policy.max_retries, policy.first_delay_ms, policy.max_delay_ms
    if not (most is None or (type(most) is int and most >= 0)):
        return f"expected max_retries of 0 or more, or None, got {most!r}"
    if not (type(first) is int and type(longest) is int and 0 <= first <= longest):
        return (
            "expected whole milliseconds with 0 <= first_delay_ms <= max_delay_ms, "
            f"got {first!r} and {longest!r}"
        )
    if not (type(policy.jitter) in (int, float) and 0 <= policy.jitter <= 1):
        return f"expected a jitter from 0 to 1, got {policy.jitter!r}"
    return None


def _policy(_: object, attribute: Attribute[RetryPolicy | None], value: object) -> None:
    if value is None:
        return
    if not isinstance(value, RetryPolicy):
        raise InvalidValue(
            f"{attribute.name}: expected a RetryPolicy or None, got {type(value).__name__}"
        )
    if (fault := _fault(value)) is not None:
        raise InvalidValue(f"{attribute.name}: {fault}")


@define(eq=False, kw_only=True)
class Retries:
    """Retries for each agent that it is attached to.

    Args:
        policy: What is retried, how often and after how long. Absent: what the adapter that
            served the request advises, and nothing where it advises nothing, or a ``stream``
            listener answered in its place. May be changed at any time.
        random: Where the jitter comes from.

    The wait doubles from ``first_delay_ms`` to ``max_delay_ms``, give or take ``jitter`` of it.
    A delay that the provider asks for replaces it as it is, if it is no longer than
    ``max_delay_ms``. A longer one is left to the listeners inside of this one, and without
    any the failure ends the turn: who waits for minutes should know.

    With ``max_retries=None`` there is no limit. Then listeners inside are asked first, and
    only what they do not retry is retried here; a delay above ``max_delay_ms`` is not
    obeyed. An adapter's policy whose numbers make no sense is logged, and nothing is retried.

    Failures of other codes, and those after the last retry, go to the listeners inside.
    Cancellation: a cancel of the turn, like the host's, ends the wait at once; then the log
    has no ``llm/retry-started`` for it.
    """

    policy: RetryPolicy | None = field(default=None, validator=_policy)
    random: Random = field(factory=Random, repr=False)
    _counts: WeakKeyDictionary[Session, _Count] = field(
        factory=WeakKeyDictionary, init=False, repr=False
    )

    def attach(self, scope: AgentScope) -> Registration:
        """Retry for the agent of *scope*, or for each agent of an engine's scope."""
        return scope.hooks.request_error.listen(self._failed)

    def delay_ms(self, policy: RetryPolicy, retries: int, asked_ms: int | None) -> int | None:
        """Milliseconds to wait after so many *retries*; None if this is not for us.

        *asked_ms* is what the provider asked for, if it did.
        """
        if type(asked_ms) is int and asked_ms >= 0:  # whatever an adapter found there
            if asked_ms <= policy.max_delay_ms:
                return asked_ms
            if policy.max_retries is not None:
                return None
        doubled: float = policy.first_delay_ms * 2 ** min(retries, _MOST_DOUBLINGS)
        jitter = self.random.uniform(-policy.jitter, policy.jitter)
        return max(0, round(min(doubled, policy.max_delay_ms) * (1 + jitter)))

    async def _failed(
        self, failed: RequestFailed, proceed: Proceed[RequestFailed, FailureDecision]
    ) -> FailureDecision:
        policy = self.policy or failed.policy
        if policy is None or failed.failure.code not in policy.codes:
            return await proceed()
        if (fault := _fault(policy)) is not None:  # an adapter's: ours was checked
            logger.error("retry policy of %s: %s; not retried", failed.provider, fault)
            return await proceed()
        if policy.max_retries is None:
            decision = await proceed()
            if isinstance(decision, Retry):
                return decision
        session = failed.agent.session
        count = self._count(session, (failed.turn, failed.step, failed.provider, policy))
        asked_ms = failed.failure.provider_retry_after_ms
        delay_ms = self.delay_ms(policy, count.retries, asked_ms)
        if policy.max_retries is not None and (
            delay_ms is None or count.retries >= policy.max_retries
        ):
            return await proceed()
        assert delay_ms is not None
        count.retries += 1
        retry_id = session.new_id()
        session.append(
            LlmRetry(
                turn=failed.turn,
                step=failed.step,
                retry_id=retry_id,
                attempt=count.retries,
                delay_ms=delay_ms,
                failure=failed.failure,
            )
        )
        await trio.sleep(delay_ms / 1000)
        session.append(LlmRetryStarted(turn=failed.turn, step=failed.step, retry_id=retry_id))
        return Retry()

    def _count(self, session: Session, key: tuple[int, int, str, RetryPolicy]) -> _Count:
        count = self._counts.get(session)
        if count is None or count.key != key:
            count = self._counts[session] = _Count(key)
        return count
