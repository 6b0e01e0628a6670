"""Lines with styles, as values: made and measured before anything is printed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from attrs import frozen

from ._terminal import Style, columns, head, one_line

Part: TypeAlias = tuple[str, tuple[Style, ...]]
"""A clean text, and how it looks."""


@frozen
class Line:
    """One line, from left to right."""

    parts: tuple[Part, ...] = ()

    @property
    def text(self) -> str:
        """What it says, without its styles."""
        return "".join(text for text, _ in self.parts)

    def painted(self, paint: Callable[..., str]) -> str:
        """As text for a terminal: *paint* is `Terminal.style`, or something like it."""
        return "".join(paint(text, *styles) for text, styles in self.parts)

    def within(self, width: int) -> Line:
        """In at most *width* columns; what is cut ends in ``...``."""
        if columns(self.text) <= width:
            return self
        dots = "..."[: max(width, 0)]
        room = width - len(dots)
        kept: list[Part] = []
        for text, styles in self.parts:
            part = head(text, room)
            kept.append((part, styles))
            room -= columns(part)
            if part != text:
                break
        return Line((*kept, (dots, kept[-1][1])))


def line(*parts: str | Part) -> Line:
    """A line of *parts*; a plain text has no style."""
    return Line(tuple((part, ()) if isinstance(part, str) else part for part in parts))


def spread(left: Sequence[Part], rights: Sequence[str], width: int) -> Line:
    """*left*, and at the end of the line the first of *rights* for which there is room, in dim."""
    used = sum(columns(text) for text, _ in left)
    for right in rights:
        if (gap := width - used - columns(right)) >= 2:
            return line(*left, " " * gap, (right, ("dim",)))
    return line(*left)


def beginning(text: str, width: int) -> str:
    """`one_line`, of no more than what can show in *width* columns. Cheap for long texts."""
    # White space collapses, and characters of no width take none: so there is a margin.
    limit = 8 * width + 64
    return one_line(text if len(text) <= limit else text[:limit])


def wrapped(text: str, width: int, limit: int) -> tuple[list[str], bool]:
    """*text* broken between words into at most *limit* lines of *width* columns.

    Also whether that is less than all of it.
    """
    lines: list[str] = []
    now = ""
    for word in _words(beginning(text, width * limit), width):
        if now and columns(now) + 1 + columns(word) > width:
            if len(lines) + 1 == limit:  # no room for all of it: fill what there is
                rest = head(word, width - columns(now) - 1)
                return [*lines, f"{now} {rest}".rstrip()], True
            lines.append(now)
            now = word
        else:
            now = f"{now} {word}" if now else word
    if now:
        lines.append(now)
    return lines, len(text) > 8 * width * limit + 64


def _words(text: str, width: int) -> Iterator[str]:
    """Those of *text*, cut where they are wider than *width*."""
    for word in text.split():
        while columns(word) > width:
            part = head(word, width) or word[0]
            yield part
            word = word[len(part) :]
        if word:
            yield word
