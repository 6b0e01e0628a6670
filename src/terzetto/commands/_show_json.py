"""A session as one JSON document for programs: ``terzetto show --json``. Pure.

The names of its keys are stable; new ones may be added. Times are milliseconds since the
epoch, as in the log. What has not happened is null.
"""

from __future__ import annotations

from typing import cast

from ..timeline import AttemptSpan, InputSpan, StepSpan, ToolSpan, TurnSpan
from ..vocabulary import Aborted, Failed, ModelSelection, PlainJson, SessionHeader, Usage
from ._show_lines import Shown

VERSION = 1
"""Of the document's shape. It grows when a key changes its meaning or goes."""


def document(shown: Shown) -> dict[str, PlainJson]:
    """*shown* as plain JSON. ``counts`` and ``usage`` are of the whole log in any case."""
    timeline = shown.timeline
    steps = list(timeline.steps)
    return {
        "showVersion": VERSION,
        "session": _session(shown.header),
        "log": {
            "events": timeline.events,
            "beganMs": timeline.began_ms,
            "endedMs": timeline.ended_ms,
            "tornBytes": shown.torn,
            "extensions": dict(timeline.extensions),
        },
        "counts": {
            "turns": len(timeline.turns),
            "steps": len(steps),
            "calls": sum(len(step.calls) for step in steps),
        },
        "usage": _usage(timeline.usage),
        "turns": [_turn(turn) for turn in shown.wanted()],
        "marks": [
            {"atMs": mark.at_ms, "kind": mark.kind, "text": mark.text, "seq": mark.seq}
            for mark in timeline.marks
        ],
        "pending": [_input(message) for message in timeline.pending],
    }


def _session(header: SessionHeader) -> PlainJson:
    return {
        "id": header.id,
        "createdMs": header.created_ms,
        "cwd": header.cwd,
        "parentId": header.parent_id,
        "seedLength": header.seed_length,
        "durability": header.durability,
    }


def _turn(turn: TurnSpan) -> PlainJson:
    ending = turn.ending
    return {
        "number": turn.number,
        "seq": turn.seq,
        "endSeq": turn.end_seq,
        "startedMs": turn.started_ms,
        "endedMs": turn.ended_ms,
        "ending": None if ending is None else _ENDINGS[type(ending).__name__],
        "cause": _CAUSES[type(ending.cause).__name__] if isinstance(ending, Aborted) else None,
        "reason": turn.reason,
        "error": (
            {"code": ending.error.code, "message": ending.error.message}
            if isinstance(ending, Failed)
            else None
        ),
        "unentered": [_input(message) for message in turn.unentered],
        "steps": [_step(step) for step in turn.steps],
    }


# The names that the log itself uses for them.
_ENDINGS = {
    "Completed": "completed",
    "Blocked": "blocked",
    "Aborted": "aborted",
    "Failed": "error",
    "EndedAtMaxTokens": "max-tokens",
    "Interrupted": "interrupted",
}
_CAUSES = {
    "UserCause": "user",
    "ParentCause": "parent",
    "DisposedCause": "disposed",
    "HookCause": "hook",
    "LegacyCause": "legacy",
}


def _step(step: StepSpan) -> PlainJson:
    return {
        "number": step.step,
        "seq": step.seq,
        "startedMs": step.started_ms,
        "firstMs": step.first_ms,
        "answeredMs": step.answered_ms,
        "endedMs": step.ended_ms,
        "route": _route(step.route),
        "pieces": step.pieces,
        "text": step.text,
        "reasoning": step.reasoning,
        "interrupted": step.interrupted,
        "attempts": [_attempt(attempt) for attempt in step.attempts],
        "inputs": [_input(message) for message in step.inputs],
        "calls": [_call(call) for call in step.calls],
    }


def _route(route: ModelSelection | None) -> PlainJson:
    if route is None:
        return None
    return {"provider": route.provider, "model": route.model, "effort": route.effort}


def _attempt(attempt: AttemptSpan) -> PlainJson:
    failure = attempt.failure
    return {
        "startedMs": attempt.started_ms,
        "firstMs": attempt.first_ms,
        "endedMs": attempt.ended_ms,
        "pieces": attempt.pieces,
        "failure": (
            None
            if failure is None
            else {"code": failure.code, "message": failure.message, "status": failure.status}
        ),
        "retryDelayMs": attempt.retry_delay_ms,
        "usage": _usage(attempt.usage),
    }


def _call(call: ToolSpan) -> PlainJson:
    return {
        "id": call.call_id,
        "name": call.name,
        "arguments": call.arguments,
        "askedMs": call.asked_ms,
        "startedMs": call.started_ms,
        "startedSeq": call.started_seq,
        "resultMs": call.committed_ms,
        "resultSeq": call.committed_seq,
        "outcome": call.outcome,
        "code": call.code,
        "result": call.result,
        "held": call.held,
        "alone": call.alone,
    }


def _input(message: InputSpan) -> PlainJson:
    return {
        "id": message.message_id,
        "atMs": message.at_ms,
        "sentMs": message.sent_ms,
        "via": message.via,
        "plugin": message.plugin,
        "text": message.text,
    }


def _usage(usage: Usage | None) -> PlainJson:
    if usage is None:
        return None
    found = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "cacheReadTokens": usage.cache_read_tokens,
        "cacheWriteTokens": usage.cache_write_tokens,
        "reasoningTokens": usage.reasoning_tokens,
    }
    return cast(PlainJson, found)
