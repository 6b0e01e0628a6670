"""The timeline as a table for people. Pure; what is in it is `timeline`'s business."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from ..timeline import StepSpan, Timeline, ToolSpan, TurnSpan, between
from ._terminal import one_line, shorten


@frozen(kw_only=True)
class Row:
    """One line of the table: *depth* 0 for turns and marks, 1 for steps, 2 for calls.

    *at_ms* counts from the log's first event; *took_ms* is None for what has no length or
    no end yet. *note* may hold anything that a model or a user wrote.
    """

    at_ms: int
    depth: int
    what: str
    took_ms: int | None = None
    note: str = ""


def rows(timeline: Timeline) -> list[Row]:
    """The timeline line by line, in the order of time; what begins a thing comes first."""
    began = timeline.began_ms or 0
    found = [row for turn in timeline.turns for row in _turn_rows(turn, began)]
    for mark in timeline.marks:
        row = Row(at_ms=mark.at_ms - began, depth=0, what=mark.kind, note=mark.text)
        # Before the first row that is later, so after all that happened at the same time;
        # marks stand between turns, except in logs that were written by hand.
        at = next((n for n, other in enumerate(found) if other.at_ms > row.at_ms), len(found))
        found.insert(at, row)
    return found


def _turn_rows(turn: TurnSpan, began: int) -> Iterator[Row]:
    took = between(turn.started_ms, turn.ended_ms)
    what = f"turn {turn.number}"
    yield Row(at_ms=turn.started_ms - began, depth=0, what=what, took_ms=took, note=turn.reason)
    for step in turn.steps:
        yield from _step_rows(step, began)


def _step_rows(step: StepSpan, began: int) -> Iterator[Row]:
    took = between(step.started_ms, step.ended_ms)
    what = f"step {step.step}"
    yield Row(
        at_ms=step.started_ms - began, depth=1, what=what, took_ms=took, note=_step_note(step)
    )
    for entered in step.inputs:
        who = "user" if entered.plugin is None else entered.plugin
        yield Row(at_ms=entered.at_ms - began, depth=2, what=f"{who}:", note=entered.text)
    for call in step.calls:
        begin = call.started_ms if call.started_ms is not None else call.asked_ms
        yield Row(
            at_ms=begin - began,
            depth=2,
            what=call.name,
            took_ms=call.running_ms,
            note=_call_note(call),
        )


def _step_note(step: StepSpan) -> str:
    notes = [f"failed: {code}" for code in step.failures]
    if step.interrupted:
        notes.append(f"interrupted, {count(len(step.text), 'character')} kept")
    if step.calls:
        notes.append(count(len(step.calls), "call"))
    wait = between(step.started_ms, step.first_ms)
    if step.pieces and wait is not None:
        notes.append(f"{count(step.pieces, 'piece')}, first after {duration(wait)}")
    return "; ".join(notes)


def _call_note(call: ToolSpan) -> str:
    notes = []
    if call.waited_ms is not None and call.waited_ms >= _WORTH_TELLING_MS:
        notes.append(f"waited {duration(call.waited_ms)}")
    if call.committed_ms is None:
        notes.append("no result")
    elif not call.ran:
        notes.append("never started")
    elif call.is_error:
        notes.append(f"error: {call.code}" if call.code else "error")
    return "; ".join(notes)


_WORTH_TELLING_MS = 5


def count(number: int, thing: str) -> str:
    """*number* of *thing*, which takes an s."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def duration(ms: int) -> str:
    """*ms* for people: ``0.12 s``, ``2:03`` minutes, ``1:02:03`` hours, ``2 d 01:02:03``."""
    if ms < 100_000:
        return f"{ms / 1000:.2f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def table(timeline: Timeline, width: int = 80) -> list[str]:
    """The rows as lines of at most *width* columns, without control characters.

    Three columns: when, counted from the log's first event, how long, and what.
    """
    found = rows(timeline)
    at = ["at", *(duration(row.at_ms) for row in found)]
    took = ["took", *("" if row.took_ms is None else duration(row.took_ms) for row in found)]
    what = ["what", *(_what(row) for row in found)]
    left, middle = max(map(len, at)) + 2, max(map(len, took)) + 2
    room = width - left - middle - 2
    return [
        f"{one:>{left}}{two:>{middle}}  {shorten(three, room)}"
        for one, two, three in zip(at, took, what, strict=True)
    ]


def _what(row: Row) -> str:
    parts = [one_line(row.what), one_line(row.note)]
    return "  " * row.depth + "  ".join(filter(None, parts))
