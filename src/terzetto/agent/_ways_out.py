"""What the exception that left a turn says, and whose it is."""

from __future__ import annotations

import trio

from ..llm import failure_of
from ..vocabulary import Failure, error_code, texts


def turn_failure(error: BaseException) -> Failure:
    """What `turn/end` says of *error*: a provider's facts, else its chain of texts."""
    failure = failure_of(error)
    if failure.code != texts.UNKNOWN:
        return failure
    return Failure(
        message=failure.message,
        code=error_code(error),
        status=failure.status,
        provider_retry_after_ms=failure.provider_retry_after_ms,
        request_id=failure.request_id,
    )


def goes_on(error: BaseException | None) -> BaseException | None:
    """What of *error* is the host's to see: a cancel from outside, or a KeyboardInterrupt."""
    if isinstance(error, (trio.Cancelled, KeyboardInterrupt)):
        return error
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup((trio.Cancelled, KeyboardInterrupt))
    return None
