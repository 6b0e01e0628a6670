"""The terminal: what it can show, and how text flows over it. What is safe to print: `_text`.

Plain text with a little ANSI colour, and none of it where it would be in the way: in a
pipe, with ``NO_COLOR``, on a dumb terminal. The cursor only ever moves forward.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Literal, Protocol, TextIO, TypeAlias

import trio
from attrs import define, field, frozen

from ._errors import CommandError as CommandError
from ._text import (
    clean as clean,
    columns as columns,
    head as head,
    one_line as one_line,
    shorten as shorten,
)

Style: TypeAlias = Literal["bold", "dim", "red", "green", "yellow", "cyan"]

_CODES: Mapping[Style, str] = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}
_NARROWEST, _WIDEST = 30, 92
"""Longer lines are hard to read, however wide the window is."""


@frozen(kw_only=True)
class Look:
    """What a stream can show. *width* is in columns; *live*: a person is watching."""

    width: int = 80
    color: bool = False
    unicode: bool = False
    live: bool = False

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str] = os.environ) -> Look:
        """What *stream* can show, from its kind, its encoding and *environ*."""
        live = stream.isatty()
        width = shutil.get_terminal_size((80, 24)).columns
        return cls(
            width=min(max(width - 1, _NARROWEST), _WIDEST),
            color=live and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb",
            unicode=(stream.encoding or "").lower().replace("-", "") == "utf8",
            live=live,
        )


class Below(Protocol):
    """What stands under what a terminal prints, such as a line that is being typed."""

    def hide(self) -> None:
        """Leave no trace, the cursor where printing goes on. Nested calls count."""
        ...

    def show(self) -> None: ...


@define(eq=False)
class Terminal:
    """Writes to a stream, each time at once. Everything but styles must be `clean` by then.

    Writing blocks: a command that nobody reads stands still. Raises OSError when the other
    side is gone.
    """

    stream: TextIO
    look: Look
    column: int = field(default=0, init=False)
    """How many columns of its line are printed."""
    below: Below | None = field(default=None, init=False)
    """What stands under what is printed; it makes way for each write."""

    @classmethod
    def on(cls, stream: TextIO) -> Terminal:
        """A terminal on *stream*. What its encoding lacks is shown as ``?``."""
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")
        return cls(stream, Look.of(stream))

    def style(self, text: str, *styles: Style) -> str:
        """*text* with *styles*, where there are colours."""
        if not (self.look.color and styles and text):
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"

    def write(self, text: str, *styles: Style) -> None:
        """*text* as it is; a newline in it is the caller's."""
        if not text:
            return
        with self.above():
            self.stream.write(self.style(text, *styles))
            self.stream.flush()
            _, ended, rest = text.rpartition("\n")
            self.column = columns(rest) if ended else self.column + columns(rest)

    @contextmanager
    def above(self) -> Iterator[None]:
        """While the block writes to the terminal, here or past us, nothing is below."""
        below = self.below
        if below is not None:
            below.hide()
        try:
            yield
        finally:
            if below is not None:
                below.show()

    @property
    def at_start(self) -> bool:
        """Whether the cursor is at the start of a line."""
        return self.column == 0

    def returned(self) -> None:
        """Somebody else ended the line: the person who typed."""
        self.column = 0

    def line(self, text: str = "", *styles: Style) -> None:
        """A line of its own."""
        with self.above():
            self.fresh()
            self.write(self.style(text, *styles) + "\n")

    def fresh(self) -> None:
        """Begin a new line, unless the cursor is at the start of one."""
        if not self.at_start:
            self.write("\n")


@define(eq=False)
class Flow:
    """Text that comes in pieces, broken between words under a hanging indent.

    A word is printed once its end has come, or with `end`. The first line begins with
    *label*, which is as wide as *indent* at most. With *keep*, lines, blanks and words
    that fit nowhere stay as they are; else runs of white space become one.
    """

    terminal: Terminal
    indent: int = 0
    label: str = ""
    label_styles: tuple[Style, ...] = ()
    styles: tuple[Style, ...] = ()
    keep: bool = False
    _space: str = field(default="", init=False)
    _word: str = field(default="", init=False)
    _used: int = field(default=0, init=False)
    _begun: bool = field(default=False, init=False)

    def feed(self, text: str) -> None:
        """More text, not cleaned yet."""
        for part in re.split(r"(\s+)", clean(text)):
            if part.isspace():
                self._put_word()
                self._space += part
            else:
                self._word += part

    def end(self) -> None:
        """Print what is left and end the line. The next text is a new paragraph."""
        self._put_word()
        if self._begun:
            self.terminal.fresh()
        self._space, self._used, self._begun = "", 0, False

    @property
    def _room(self) -> int:
        return max(self.terminal.look.width - self.indent, 10)

    def _put_word(self) -> None:
        if not self._word:
            return
        word, self._word = self._word, ""
        gap = self._gap()
        if self._used and self._used + columns(gap + word) > self._room:
            self._break()
            gap = ""
        while not self.keep and columns(word) > self._room:
            part = head(word, self._room)
            self._put(part)
            self._break()
            word = word[len(part) :]
        self._put(gap + word)

    def _gap(self) -> str:
        """What stands before the next word on its line; new lines are begun here."""
        space, self._space = self._space, ""
        if not self._begun:
            return ""
        lines = space.count("\n")
        if self.keep:
            self._break(lines)
            return space.rpartition("\n")[2].expandtabs(4)
        self._break(min(lines, 1))
        return " " if space and self._used else ""

    def _put(self, text: str) -> None:
        if not self._begun:
            self.terminal.fresh()
            label = self.label + " " * (self.indent - columns(self.label))
            self.terminal.write(label, *self.label_styles)
            self._begun = True
        elif not self._used:
            self.terminal.write(" " * self.indent)
        self.terminal.write(text, *self.styles)
        self._used += columns(text)

    def _break(self, lines: int = 1) -> None:
        if lines:
            self.terminal.write("\n" * lines)
            self._used = 0


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@define(eq=False)
class Diagnostics:
    """What the library logs as warning or worse, for stderr: a line each, no tracebacks.

    Lines are kept until `tell`, so that what a command says itself is not said twice.
    """

    terminal: Terminal
    _collector: _Collector = field(factory=_Collector, init=False)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect while the block runs; what is left by its end is told."""
        logger = logging.getLogger("terzetto")
        logger.addHandler(self._collector)
        try:
            yield
        finally:
            logger.removeHandler(self._collector)
            self.tell()

    def tell(self, *, but: str | None = None) -> None:
        """Print what was collected, except lines that only repeat *but*."""
        lines, self._collector.lines = self._collector.lines, []
        for line in lines:
            if but is None or but not in line:
                self.terminal.line(f"terzetto: {one_line(line)}")


def stops() -> list[int]:
    """What else asks a program to end: a supervisor, or a terminal that was closed. Not what
    is ignored, as with ``nohup``."""
    known = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
    return [n for n in known if n is not None and signal.getsignal(n) is not signal.SIG_IGN]


@asynccontextmanager
async def on_interrupt(
    react: Callable[[], None], stop: Callable[[int], None] | None = None
) -> AsyncIterator[None]:
    """Call *react* at each Ctrl-C while the block runs, and *stop* with each of `stops`.

    What the block raises leaves as itself. Its one task belongs to the block.
    """
    raised: BaseException | None = None
    numbers = (signal.SIGINT, *(stops() if stop is not None else ()))
    with trio.open_signal_receiver(*numbers) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_react, signals, react, stop)
            try:
                yield
            except BaseException as error:  # kept, and raised as itself below
                raised = error
            nursery.cancel_scope.cancel(reason="the block was left")
    if raised is not None:
        raise raised


async def _react(
    signals: AsyncIterator[int], react: Callable[[], None], stop: Callable[[int], None] | None
) -> None:
    async for number in signals:
        if number == signal.SIGINT or stop is None:
            react()
        else:
            stop(number)


def let_ctrl_c_kill() -> None:
    """The next Ctrl-C ends the process at once, until the block of `on_interrupt` is left.
    So does the next of `stops`."""
    for number in (signal.SIGINT, *stops()):
        signal.signal(number, signal.SIG_DFL)
