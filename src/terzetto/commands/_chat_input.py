"""What is typed: lines of a pipe, or of a terminal under whose text they are edited.

A terminal is read key by key, so that a line can be typed while an answer is printed: the
line stands below, and makes way for each piece of output (`Below`). Where that cannot be -
output that goes elsewhere, a terminal without cursor, another system - lines come as the
system gives them, and only the echo may fall into an answer.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Protocol

import trio
from attrs import define, field

from ._line_editor import LEFT, PASTE_OFF, PASTE_ON, LineEditor
from ._terminal import Terminal, clean, columns, head

if sys.platform != "win32":
    import termios

PROMPT = "> "


class Input(Protocol):
    """Where lines come from."""

    @property
    def live(self) -> bool:
        """Whether a person types them."""
        ...

    async def next(self) -> str | None:
        """The next line without its end, or None at the end."""
        ...

    def invite(self, ready: bool) -> None:
        """Show the prompt, or only what is typed meanwhile."""
        ...

    def forget(self) -> None:
        """Drop a line that is half typed."""
        ...

    def restore(self) -> None:
        """Leave the terminal as it was, at once: the process may end without clean-up."""
        ...


@define(eq=False)
class Lines:
    """Lines from a file descriptor: a terminal, a pipe or a file. None has no lines."""

    fd: int | None
    encoding: str = "utf-8"
    live: bool = False
    terminal: Terminal | None = None
    _rest: bytes = field(default=b"", init=False)
    _ended: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._ended = self.fd is None

    async def next(self) -> str | None:
        """The next line without its end, or None at the end.

        Cancellation: the thread that waits for input is left behind, with what it reads.
        """
        while b"\n" not in self._rest and not self._ended:
            assert self.fd is not None
            # Not through sys.stdin: the thread would hold its lock for good, and the
            # interpreter cannot end without that.
            try:
                data = await trio.to_thread.run_sync(
                    os.read, self.fd, 1 << 16, abandon_on_cancel=True
                )
            except OSError:  # the terminal is gone
                data = b""
            self._rest += data
            self._ended = not data
        line, end, self._rest = self._rest.partition(b"\n")
        if self.live and self.terminal is not None and end:
            self.terminal.returned()  # the echo of the key has moved the cursor
        if not line and not end:
            return None
        return line.decode(self.encoding, "replace").rstrip("\r")

    def invite(self, ready: bool) -> None:
        if self.live and self.terminal is not None and ready:
            self.terminal.line()
            self.terminal.write(PROMPT, "cyan", "bold")

    def forget(self) -> None:
        pass

    def restore(self) -> None:
        pass


@define(eq=False)
class Keyboard:
    """Lines that are edited below what *terminal* prints. Made by `open_keyboard`."""

    fd: int
    terminal: Terminal
    live: bool = field(default=True, init=False)
    _editor: LineEditor = field(factory=LineEditor, init=False)
    _entered: list[str | None] = field(factory=list, init=False)
    _ready: bool = field(default=False, init=False)
    _hidden: int = field(default=0, init=False)
    _row: int | None = field(default=None, init=False)
    """The column at which output stands above the drawn line; None while it is not drawn."""
    _before: list[object] | None = field(default=None, init=False)

    async def next(self) -> str | None:
        while not self._entered:
            await trio.lowlevel.wait_readable(self.fd)
            try:
                data = os.read(self.fd, 1 << 12)
            except OSError:  # the terminal is gone
                data = b""
            with self.terminal.above():
                lines = self._editor.feed(data) if data else [LEFT]
            self._entered += [None if line is LEFT else line for line in lines]
        line = self._entered.pop(0)
        if self._ready and line:  # what was typed at the prompt stays where it was
            with self.terminal.above():
                for number, part in enumerate(clean(line).split("\n")):
                    self.terminal.line(f"{'  ' if number else PROMPT}{part}", "cyan")
        return line

    def invite(self, ready: bool) -> None:
        with self.terminal.above():
            if ready:
                self.terminal.line()
            self._ready = ready

    def forget(self) -> None:
        with self.terminal.above():
            self._editor.clear()

    # --- drawing: see `Below` -------------------------------------------------------------

    def hide(self) -> None:
        self._hidden += 1
        if self._row is None:
            return
        back = "\x1b[A" if self._row else ""
        right = f"\x1b[{self._row}C" if self._row else ""
        self._draw(f"\r\x1b[K{back}{right}")
        self._row = None

    def show(self) -> None:
        self._hidden -= 1
        if self._hidden or self._before is None or not (self._ready or self._editor.text):
            return
        width = self._width()
        self._row = min(self.terminal.column, width - 1)
        editor = self._editor
        left, right = _shown(editor.text[: editor.cursor]), _shown(editor.text[editor.cursor :])
        room = width - len(PROMPT) - 1
        while columns(left) > room:
            left = left[1:]
        right = head(right, room - columns(left))
        prompt = self.terminal.style(PROMPT, "cyan", "bold")
        back = f"\x1b[{columns(right)}D" if right else ""
        down = "\n" if self._row else ""
        self._draw(f"{down}\r{prompt}{left}{right}\x1b[K{back}")

    def _draw(self, text: str) -> None:
        self.terminal.stream.write(text)
        self.terminal.stream.flush()

    def _width(self) -> int:
        try:
            return max(os.get_terminal_size(self.fd).columns, 10)
        except OSError:
            return 80

    # --- the terminal's mode ----------------------------------------------------------------

    def take(self) -> None:
        """Read key by key, without echo; Ctrl-C and Ctrl-Z stay the system's."""
        if sys.platform == "win32":
            return
        mode = termios.tcgetattr(self.fd)
        self._before = self._before or list(mode)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self.fd, termios.TCSADRAIN, mode)
        with self.terminal.above():
            self._draw(PASTE_ON)

    def restore(self) -> None:
        if sys.platform == "win32" or self._before is None:
            return
        before, self._before = self._before, None
        with suppress(OSError, termios.error):  # the terminal is gone
            self.hide()
            self._draw(PASTE_OFF)
            termios.tcsetattr(self.fd, termios.TCSADRAIN, before)  # type: ignore[arg-type]


def _shown(text: str) -> str:
    """*text* on one line; a line break in it is shown as a sign."""
    return clean(text.replace("\n", "\u21b5").replace("\t", " "))


@contextmanager
def _taken(keyboard: Keyboard) -> Iterator[None]:
    keyboard.terminal.below = keyboard
    try:
        keyboard.take()
        yield
    finally:
        keyboard.restore()
        keyboard.terminal.below = None


@asynccontextmanager
async def open_input(
    fd: int | None, encoding: str, live: bool, terminal: Terminal
) -> AsyncIterator[Input]:
    """Lines from *fd*, edited in *terminal* where that can be, for the length of the block.

    The terminal is given back as it was. Its one task belongs to the block; it sets the
    mode again after Ctrl-Z and ``fg``.
    """
    edited = live and terminal.look.live and os.environ.get("TERM", "dumb") != "dumb"
    if fd is None or not edited or sys.platform == "win32":
        yield Lines(fd, encoding, live, terminal)
        return
    keyboard = Keyboard(fd, terminal)
    raised: BaseException | None = None
    with trio.open_signal_receiver(signal.SIGCONT) as signals, _taken(keyboard):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_take_again, keyboard, signals)
            try:
                yield keyboard
            except BaseException as error:  # kept, and raised as itself below
                raised = error
            nursery.cancel_scope.cancel(reason="the block was left")
    if raised is not None:
        raise raised


async def _take_again(keyboard: Keyboard, signals: AsyncIterator[int]) -> None:
    async for _ in signals:
        with suppress(OSError, termios.error):
            keyboard.take()
