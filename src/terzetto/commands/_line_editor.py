"""Editing one line: the bytes of a keyboard in, entered lines out. Pure.

Knows the keys of a POSIX terminal in the manner of readline: arrows, Home and End, Delete,
Ctrl-A/E/B/F/K/U/W/D, earlier lines with Up and Down, Alt-Enter for a line break, and pasted
text, whose line breaks are text. Keys that mean nothing here do nothing. Drawing belongs to
`_keyboard`.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final, TypeAlias

from attrs import define, field

PASTE_ON: Final = "\x1b[?2004h"
PASTE_OFF: Final = "\x1b[?2004l"
"""Ask a terminal to mark what is pasted, and not to."""

_PASTE_ENDS = "\x1b[201~"
# A whole key: a control sequence, a function key, Alt with another key, or one character.
_KEY = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO[ -~]|\x1b[^\[O]|[^\x1b]", re.DOTALL)
_LONGEST_KEY = 32
_KEPT = 200
"""Earlier lines that Up remembers."""


class Left(Enum):
    """Ctrl-D on an empty line: there will be no more."""

    LEFT = auto()


LEFT = Left.LEFT
Entered: TypeAlias = str | Left


@define(eq=False)
class LineEditor:
    """One line being typed; *cursor* counts characters from its start."""

    text: str = field(default="", init=False)
    cursor: int = field(default=0, init=False)
    _earlier: list[str] = field(factory=list, init=False)
    _back: int = field(default=0, init=False)
    _draft: str = field(default="", init=False)
    _rest: str = field(default="", init=False)
    _pasting: bool = field(default=False, init=False)
    _decoder: codecs.IncrementalDecoder = field(
        factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"), init=False
    )

    def feed(self, data: bytes) -> list[Entered]:
        """Take what the keyboard sent, cut anywhere; the lines that were entered by it."""
        self._rest += self._decoder.decode(data)
        entered: list[Entered] = []
        while (key := self._next_key()) is not None:
            if self._pasting:
                self._pasted(key)
            elif (found := self._key(key)) is not None:
                entered.append(found)
        return entered

    def clear(self) -> None:
        """Forget what is typed."""
        self._set("")
        self._back = 0

    def _next_key(self) -> str | None:
        found = _KEY.match(self._rest)
        if found is None:
            if len(self._rest) > _LONGEST_KEY:  # no key: a sequence without an end
                self._rest = self._rest[1:]
                return "\x1b"
            return None
        self._rest = self._rest[found.end() :]
        return found[0]

    def _pasted(self, key: str) -> None:
        if key == _PASTE_ENDS:
            self._pasting = False
        elif len(key) == 1 and (key.isprintable() or key in "\r\n\t"):
            self._insert("\n" if key == "\r" else key)

    def _key(self, key: str) -> Entered | None:
        match key:
            case "\r" | "\n":
                return self._enter()
            case "\x04" if not self.text:
                return LEFT
            case "\x1b[200~":
                self._pasting = True
            case _ if (edit := _EDITS.get(key)) is not None:
                edit(self)
            case _ if len(key) == 1 and key.isprintable():
                self._insert(key)
        return None

    def _enter(self) -> str:
        line = self.text
        if line.strip() and line not in self._earlier[-1:]:
            self._earlier = [*self._earlier[-_KEPT:], line]
        self.clear()
        return line

    def _set(self, text: str) -> None:
        self.text, self.cursor = text, len(text)

    def _insert(self, text: str) -> None:
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)

    def _cut(self, start: int, end: int) -> None:
        self.text = self.text[: max(start, 0)] + self.text[end:]
        self.cursor = max(start, 0)

    def _move(self, to: int) -> None:
        self.cursor = min(max(to, 0), len(self.text))

    def _word_start(self) -> int:
        return len(re.sub(r"\S*\s*\Z", "", self.text[: self.cursor]))

    def _recall(self, step: int) -> None:
        back = self._back + step
        if not 0 <= back <= len(self._earlier):
            return
        if not self._back:
            self._draft = self.text
        self._back = back
        self._set(self._earlier[-back] if back else self._draft)


_Edit: TypeAlias = Callable[[LineEditor], None]


def _edits() -> Mapping[str, _Edit]:
    """What each key does."""
    by_name: dict[tuple[str, ...], _Edit] = {
        ("\x7f", "\x08"): lambda e: e._cut(e.cursor - 1, e.cursor),
        ("\x04", "\x1b[3~"): lambda e: e._cut(e.cursor, e.cursor + 1),
        ("\x15",): lambda e: e._cut(0, e.cursor),
        ("\x0b",): lambda e: e._cut(e.cursor, len(e.text)),
        ("\x17", "\x1b\x7f"): lambda e: e._cut(e._word_start(), e.cursor),
        ("\x01", "\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"): lambda e: e._move(0),
        ("\x05", "\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"): lambda e: e._move(len(e.text)),
        ("\x02", "\x1b[D", "\x1bOD"): lambda e: e._move(e.cursor - 1),
        ("\x06", "\x1b[C", "\x1bOC"): lambda e: e._move(e.cursor + 1),
        ("\x10", "\x1b[A", "\x1bOA"): lambda e: e._recall(1),
        ("\x0e", "\x1b[B", "\x1bOB"): lambda e: e._recall(-1),
        ("\x1b\r", "\x1b\n"): lambda e: e._insert("\n"),
        ("\t",): lambda e: e._insert(" "),
    }
    return {key: edit for keys, edit in by_name.items() for key in keys}


_EDITS: Final = _edits()
