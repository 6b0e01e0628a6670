"""The values of a timeline: turns of steps, steps of attempts and tool calls, with times.

What has not happened is None. Times are the log's own, in milliseconds since the epoch;
two moments of the same millisecond are told apart by *seq*, their place in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias, assert_never

from attrs import field, frozen

from ..vocabulary import (
    Aborted,
    Blocked,
    CallId,
    CancelCause,
    Completed,
    DisposedCause,
    EndedAtMaxTokens,
    Failed,
    Failure,
    HookCause,
    InboxTarget,
    Interrupted,
    LegacyCause,
    MessageId,
    ModelSelection,
    ParentCause,
    TurnEnding,
    Usage,
    UserCause,
    texts,
)

_NEVER_STARTED = frozenset({texts.ABORTED_BEFORE_DISPATCH, texts.TOOL_NOT_STARTED})

Outcome: TypeAlias = Literal[
    "waiting", "running", "ok", "error", "aborted", "not-started", "unknown"
]
"""How a call stands or ended. Unknown: it was started, and its process died."""


@frozen(kw_only=True)
class ToolSpan:
    """One tool call.

    *asked_ms*: the answer that asks for it was complete. *started_ms*: its turn came, and
    it was recorded. *committed_ms*: its result entered the log. *code* is that of an error
    result, if it has one; *result* is the text of the result.

    When its body ended is not in a log: a result waits for those of earlier calls. *held*:
    it was started before the result of an earlier call came, and its own came so soon after
    that one that it may have waited for it: its body ended at some time since its start.

    Whether its tool is exclusive is not in a log either. *alone*: of several calls in its
    step, no other was started and without a result at any time between its start and its
    result. An exclusive call always is, another one may be.
    """

    call_id: CallId
    name: str
    arguments: str = field(repr=False)
    asked_ms: int
    started_ms: int | None = None
    committed_ms: int | None = None
    started_seq: int | None = None
    committed_seq: int | None = None
    is_error: bool = False
    code: str | None = None
    result: str = field(default="", repr=False)
    held: bool = False
    alone: bool = False

    @property
    def ran(self) -> bool:
        """Whether it was started, as far as the log knows."""
        return self.started_ms is not None and self.code not in _NEVER_STARTED

    @property
    def outcome(self) -> Outcome:
        """How it ended, or where it is."""
        if self.committed_ms is None:
            return "waiting" if self.started_ms is None else "running"
        if self.code in _NEVER_STARTED:
            return "not-started"
        if self.code == texts.TOOL_OUTCOME_UNKNOWN:
            return "unknown"
        if self.code == texts.ABORTED:
            return "aborted"
        return "error" if self.is_error else "ok"

    @property
    def waited_ms(self) -> int | None:
        """From asked to started: for a slot, a barrier, the store. None if it never started."""
        return between(self.asked_ms, self.started_ms) if self.ran else None

    @property
    def running_ms(self) -> int | None:
        """From started to committed; None while it runs, or if it never did."""
        return between(self.started_ms, self.committed_ms) if self.ran else None


@frozen
class InputSpan:
    """A message of the user or of a plugin.

    *plugin* names the code that sent it; None: the user. *at_ms* is when it entered a step,
    or, if it has not, when it was sent. *via* is the list of pending input in which it was,
    and *sent_ms* when it got there; None for what a policy put straight into a step.
    """

    at_ms: int
    message_id: MessageId
    text: str = field(repr=False)
    plugin: str | None = None
    via: InboxTarget | None = None
    sent_ms: int | None = None


@frozen(kw_only=True)
class AttemptSpan:
    """One try of a step to get an answer; all but the last have failed.

    *first_ms*: its first content came. *ended_ms*: its finish came. *pieces* counts its
    text and reasoning deltas. *retry_delay_ms*: the wait that was decided on after it.
    """

    started_ms: int
    first_ms: int | None = None
    ended_ms: int | None = None
    pieces: int = 0
    failure: Failure | None = None
    retry_delay_ms: int | None = None
    usage: Usage | None = None


@frozen(kw_only=True)
class StepSpan:
    """One model request and its tool calls.

    *route*: provider, model and effort as the request had them. *text* and *reasoning* are
    those of the answer, or what has come of it so far. *interrupted*: they are a prefix,
    kept when the answer was cut.
    """

    turn: int
    step: int
    seq: int
    started_ms: int
    answered_ms: int | None = None
    ended_ms: int | None = None
    route: ModelSelection | None = None
    text: str = field(default="", repr=False)
    reasoning: str = field(default="", repr=False)
    interrupted: bool = False
    attempts: tuple[AttemptSpan, ...] = ()
    inputs: tuple[InputSpan, ...] = ()
    calls: tuple[ToolSpan, ...] = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """The codes of the attempts that failed."""
        return tuple(one.failure.code for one in self.attempts if one.failure is not None)

    @property
    def first_ms(self) -> int | None:
        """The first content of the answer that counts came."""
        return None if self._counting is None else self._counting.first_ms

    @property
    def pieces(self) -> int:
        """Text and reasoning deltas of the answer that counts."""
        return 0 if self._counting is None else self._counting.pieces

    @property
    def _counting(self) -> AttemptSpan | None:
        """The last attempt, unless it failed as well."""
        last = self.attempts[-1] if self.attempts else None
        return None if last is None or last.failure is not None else last


@frozen(kw_only=True)
class TurnSpan:
    """One turn; *ending*, *ended_ms* and *end_seq* are None while it is open.

    *unentered*: what it claimed of the pending input, and neither let in nor gave back.
    """

    number: int
    seq: int
    started_ms: int
    ended_ms: int | None = None
    end_seq: int | None = None
    ending: TurnEnding | None = None
    steps: tuple[StepSpan, ...] = ()
    unentered: tuple[InputSpan, ...] = ()

    @property
    def reason(self) -> str:
        """Why it ended, in words; ``open`` while it has not."""
        return _ending_text(self.ending)


MarkKind: TypeAlias = Literal["resumed", "forked", "model", "compaction", "discarded"]


@frozen
class Mark:
    """Something beside the turns: *text* says more, if there is more to say."""

    at_ms: int
    kind: MarkKind
    text: str = ""
    seq: int = 0


@frozen(kw_only=True)
class Timeline:
    """A whole log. *turns* and *marks* are each in the order of the log.

    *pending*: the input that waits at its end, next-step before next-turn.
    *extensions*: how many events there are of each type that is not Terzetto's own.
    """

    turns: tuple[TurnSpan, ...] = ()
    marks: tuple[Mark, ...] = ()
    began_ms: int | None = None
    """When its first event happened; None for a log without events."""
    ended_ms: int | None = None
    """When its last event happened."""
    events: int = 0
    pending: tuple[InputSpan, ...] = ()
    extensions: Mapping[str, int] = field(factory=dict)

    @property
    def steps(self) -> Iterator[StepSpan]:
        """The steps of all turns."""
        return (step for turn in self.turns for step in turn.steps)

    @property
    def usage(self) -> Usage | None:
        """The tokens of all attempts; None if no provider has said."""
        return total_usage(one.usage for step in self.steps for one in step.attempts)


def between(start: int | None, end: int | None) -> int | None:
    """Milliseconds from *start* to *end*, if both have come."""
    return None if start is None or end is None else end - start


def total_usage(usages: Iterable[Usage | None]) -> Usage | None:
    """The sum of what was reported; what nobody reported stays None."""
    found = [usage for usage in usages if usage is not None]
    if not found:
        return None
    return Usage(
        input_tokens=sum(usage.input_tokens for usage in found),
        output_tokens=sum(usage.output_tokens for usage in found),
        cache_read_tokens=_sum(usage.cache_read_tokens for usage in found),
        cache_write_tokens=_sum(usage.cache_write_tokens for usage in found),
        reasoning_tokens=_sum(usage.reasoning_tokens for usage in found),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    reported = [count for count in counts if count is not None]
    return sum(reported) if reported else None


def _ending_text(ending: TurnEnding | None) -> str:
    match ending:
        case None:
            return "open"
        case Completed():
            return "completed"
        case Blocked():
            return "blocked"
        case EndedAtMaxTokens():
            return "cut at the output limit"
        case Interrupted():
            return "crashed, closed later"
        case Failed(error=failure):
            return f"failed: {failure.code}"
        case Aborted(cause=cause):
            return _cause_text(cause)
        case _:
            assert_never(ending)


def _cause_text(cause: CancelCause) -> str:
    match cause:
        case UserCause():
            return "aborted by the user"
        case ParentCause():
            return "aborted with its parent"
        case DisposedCause():
            return "aborted: agent or engine closed"
        case HookCause(reason=reason):
            return f"aborted by a policy: {reason}"
        case LegacyCause():
            return "aborted"
        case _:
            assert_never(cause)
