"""The calls of one step as bars over a time that they share. Pure.

A bar shows what the log knows: when the call was asked for, when it was started, when its
result came. Columns keep the order of the log where they are too few for its times: a call
that began after the result of another never stands beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

from attrs import define, frozen

from ..timeline import Outcome, ToolSpan
from ._lines import Line, Part, beginning, line
from ._table import duration
from ._terminal import Style, columns, shorten

LEAST = 6
"""Columns of a bar, below which none is drawn."""


@frozen(kw_only=True)
class Glyphs:
    """What bars are made of. *unclear*: running, or done and held back by an earlier call."""

    waiting: str
    running: str
    unclear: str
    result: str
    goes_on: str
    alone: str
    at_most: str

    def legend(self) -> str:
        """What they mean."""
        return (
            f"{self.waiting} waiting, {self.running} running, "
            f"{self.unclear} running or done, {self.result} result, {self.alone} ran alone"
        )


UNICODE = Glyphs(
    waiting="·", running="━", unclear="╍", result="┃", goes_on="▶", alone="┊", at_most="≤"
)
ASCII = Glyphs(
    waiting=".", running="=", unclear="-", result="|", goes_on=">", alone=":", at_most="<="
)

_WORDS: dict[Outcome, str] = {"not-started": "not started"}
_STYLES: dict[Outcome, Style] = {
    "ok": "green",
    "running": "green",
    "waiting": "dim",
    "error": "red",
    "unknown": "red",
    "aborted": "yellow",
    "not-started": "dim",
}


def brief(ms: int) -> str:
    """`duration`, in milliseconds where it is short."""
    return f"{ms} ms" if 0 <= ms < 100 else duration(ms)


def chart(calls: Sequence[ToolSpan], now_ms: int, width: int, glyphs: Glyphs) -> list[Line]:
    """One line a call, and the axis below if there are several; no bars where it is too narrow.

    *now_ms* is the end of what the log knows; bars of calls without a result go up to it.
    """
    several = len(calls) > 1
    tooks = [_took(call, glyphs) for call in calls]
    words = [_outcome(call) for call in calls]
    middle = max(map(columns, tooks))
    right = min(max(map(columns, words)), 11 if width < 40 else max(width // 5, 14))
    rest = width - middle - right - 4
    names = [_name(call, n, width // 3, several) for n, call in enumerate(calls, 1)]
    room = rest - max(map(columns, names))
    if room < LEAST:
        room = 0
        names = [_name(call, n, rest + 1, several) for n, call in enumerate(calls, 1)]
    left = max(map(columns, names))
    bars = _bars(calls, now_ms, room, glyphs) if room else [()] * len(calls)
    lines = []
    for call, name, bar, took, word in zip(calls, names, bars, tooks, words, strict=True):
        gap = " " * (left - columns(name) + (1 if room else 0))
        end = f" {took:>{middle}}  "
        shown: Part = (shorten(word, right), (_STYLES[call.outcome],))
        lines.append(line(name, gap, *bar, (end, ("dim",)), shown))
    if several and room:
        lines.append(_axis(calls, now_ms, left, room))
    return lines


def _name(call: ToolSpan, number: int, width: int, numbered: bool) -> str:
    """The tool and its arguments in a few words."""
    said = f"{number} " if numbered else ""
    name = shorten(beginning(call.name, width) or "(no name)", max(width - len(said), 4))
    room = width - len(said) - columns(name) - 1
    arguments = shorten(_arguments(call.arguments), room) if room >= 6 else ""
    return f"{said}{name} {arguments}".rstrip()


def _arguments(text: str) -> str:
    """The values of an object, or the text as it is."""
    try:
        found = json.loads(text) if len(text) < 4096 else None
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        values = (one if isinstance(one, str) else json.dumps(one) for one in found.values())
        text = ", ".join(values)
    return beginning(text, 60)


def _took(call: ToolSpan, glyphs: Glyphs) -> str:
    if call.running_ms is None:
        return ""
    return (glyphs.at_most if call.held else "") + brief(call.running_ms)


def _outcome(call: ToolSpan) -> str:
    word = _WORDS.get(call.outcome, call.outcome)
    if call.outcome == "error" and call.code:
        word = beginning(call.code, 40)
    return f"{word}, alone" if call.alone else word


def _axis(calls: Sequence[ToolSpan], now_ms: int, left: int, room: int) -> Line:
    begin, end = _limits(calls, now_ms)
    return line(" " * (left + 1), (f"0{brief(end - begin):>{room - 1}}", ("dim",)))


# --- bars -------------------------------------------------------------------------------------

_Kind: TypeAlias = Literal["start", "result"]


@define
class _Moment:
    """*column* is where it is to be shown."""

    call: int
    kind: _Kind
    column: int


def _limits(calls: Sequence[ToolSpan], now_ms: int) -> tuple[int, int]:
    begin = min(call.asked_ms for call in calls)
    results = [call.committed_ms for call in calls if call.committed_ms is not None]
    end = max(results) if len(results) == len(calls) else now_ms
    return begin, max(end, begin)


def _bars(
    calls: Sequence[ToolSpan], now_ms: int, room: int, glyphs: Glyphs
) -> list[tuple[Part, ...]]:
    places = {(one.call, one.kind): one.column for one in _placed(calls, now_ms, room)}
    walls = {
        column
        for n, call in enumerate(calls)
        if call.alone
        for column in (places[n, "start"], places[n, "result"])
    }
    rows = []
    for n, call in enumerate(calls):
        start, result = places.get((n, "start")), places.get((n, "result"))
        cells = _cells(call, start, result, room, glyphs)
        if not call.alone:
            for column in walls:
                if cells[column][0] in (" ", glyphs.waiting):
                    cells[column] = (glyphs.alone, ("dim",))
        rows.append(_joined(cells))
    return rows


def _placed(calls: Sequence[ToolSpan], now_ms: int, room: int) -> list[_Moment]:
    """All starts and results in the order of the log, each in its column."""
    begin, end = _limits(calls, now_ms)
    last = room - 1
    found: list[tuple[int, int, int, _Kind]] = []
    for n, call in enumerate(calls):
        if call.ran and call.started_seq is not None and call.started_ms is not None:
            found.append((call.started_seq, call.started_ms, n, "start"))
        if call.committed_seq is not None and call.committed_ms is not None:
            found.append((call.committed_seq, call.committed_ms, n, "result"))
    moments = [
        _Moment(n, kind, min(max((at - begin) * last // max(end - begin, 1), 0), last))
        for _, at, n, kind in sorted(found)
    ]
    # Whatever started before a result came gets at least one column to itself.
    for before, one in pairwise(moments):
        one.column = max(one.column, before.column + _gap(before, one))
    if moments:
        moments[-1].column = min(moments[-1].column, last)
    for one, after in pairwise(reversed(moments)):
        after.column = max(min(after.column, one.column - _gap(after, one)), 0)
    return moments


def _gap(before: _Moment, one: _Moment) -> int:
    return int((before.kind, one.kind) == ("start", "result"))


def _cells(
    call: ToolSpan, start: int | None, result: int | None, room: int, glyphs: Glyphs
) -> list[Part]:
    end = room if result is None else result
    begin = end if start is None else min(start, end)
    style: Style = "cyan" if call.alone else _STYLES[call.outcome]
    body = glyphs.unclear if call.held else glyphs.running
    waiting: Part = (glyphs.waiting, ("dim",))
    running: Part = (body, (style,))
    cells = [waiting] * begin + [running] * (end - begin)
    if result is not None:
        cells.append((glyphs.result, (style,)))
    elif start is not None:
        cells[-1] = (glyphs.goes_on, (style,))
    return cells + [(" ", ())] * (room - len(cells))


def _joined(cells: Sequence[Part]) -> tuple[Part, ...]:
    """*cells* with neighbours of one style as one part."""
    parts: list[Part] = []
    for text, styles in cells:
        if parts and parts[-1][1] == styles:
            parts[-1] = (parts[-1][0] + text, styles)
        else:
            parts.append((text, styles))
    return tuple(parts)


def errors(calls: Sequence[ToolSpan]) -> list[tuple[int, str]]:
    """The number and the text of each result that says what went wrong."""
    return [(n, call.result) for n, call in enumerate(calls, 1) if call.outcome == "error"]
