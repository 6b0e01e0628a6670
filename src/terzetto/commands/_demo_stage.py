"""What the demo shows while it happens: the model's words, and the tools at work.

Listens to one agent at a time and keeps the moments in their order, for `_demo_facts` to
read. Which story is told is the business of `_demo`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import trio
from attrs import define, field

from ..tools import ToolCallHook, ToolOutcome
from ..vocabulary import (
    AssistantChunk,
    AssistantMessageEvent,
    CallId,
    Event,
    TextDelta,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultEvent,
    TurnStart,
)
from ._demo_facts import Began, Ended, Moment, Span
from ._table import duration
from ._terminal import Flow, Style, Terminal, clean, columns, one_line, shorten

INDENT = 8


@define(eq=False)
class Stage:
    """The demo's half of the terminal.

    *scope* is cancelled when showing fails, and *failure* says why: the engine contains
    what a listener raises.
    """

    terminal: Terminal
    scope: trio.CancelScope
    moments: list[Moment] = field(factory=list, init=False)
    words: int = field(default=0, init=False)
    """Pieces of text that came in the turn so far."""
    running: int = field(default=0, init=False)
    """Tool bodies at work."""
    failure: Exception | None = field(default=None, init=False)
    _changed: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _flow: Flow = field(init=False)
    _batch: dict[CallId, tuple[int, ToolCallBlock]] = field(factory=dict, init=False)
    _batch_at: float = field(default=0.0, init=False)
    _logged_at: str = field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self._flow = self._paragraph("model", "bold")

    # --- telling ------------------------------------------------------------------------

    def chapter(self, number: int, title: str, how: str) -> None:
        """*how* names what a program would call."""
        self.terminal.line()
        title = f"{number}  {title}"
        fits = columns(title) + columns(how) + 2 <= self.terminal.look.width
        self.terminal.write(title, "bold")
        self.terminal.write(("  " if fits else "\n   ") + how, "dim")
        self.terminal.fresh()

    def label(self, name: str, text: str) -> None:
        """A fact of the opening; *text* is not broken, so that it can be copied."""
        self.terminal.line(self.terminal.style(f"  {name:<9}", "dim") + clean(text))

    def you(self, text: str) -> None:
        self._flow.end()
        self._tell("you", text, "cyan", label_styles=("cyan", "bold"))

    def note(self, text: str) -> None:
        """Something that is shown as it is."""
        self._flow.end()
        self._tell("", text)

    def fact(self, text: str) -> None:
        """Something that was checked."""
        self._tell(self.check, text, label_styles=("green", "bold"))

    def missing(self, text: str) -> None:
        """Something that should have happened and did not."""
        self._flow.end()
        mark = "✗" if self.terminal.look.unicode else "NO"
        self._tell(mark, text, label_styles=("red", "bold"))

    @property
    def check(self) -> str:
        return "✓" if self.terminal.look.unicode else "ok"

    def _tell(
        self, label: str, text: str, *styles: Style, label_styles: tuple[Style, ...] = ()
    ) -> None:
        flow = self._paragraph(label, *label_styles, styles=styles)
        flow.feed(text)
        flow.end()

    def _paragraph(self, label: str, *label_styles: Style, styles: tuple[Style, ...] = ()) -> Flow:
        return Flow(self.terminal, INDENT, f"  {label}", label_styles, styles)

    # --- listening ----------------------------------------------------------------------

    async def wait(self, reached: Callable[[], bool]) -> None:
        """Return while *reached* is true; it is asked again at every moment."""
        await trio.lowlevel.checkpoint()
        while not reached():
            await self._changed.park()

    def saw(self, event: Event) -> None:
        """A session observer."""
        with self._moment(event):
            match event.data:
                case TurnStart():
                    self.words = 0
                case AssistantChunk(chunk=TextDelta(text=text)):
                    self.words += 1
                    self._flow.feed(text)
                case AssistantMessageEvent(message=message):
                    self._flow.end()
                    numbered = enumerate(message.tool_calls, 1)
                    self._batch = {call.id: (number, call) for number, call in numbered}
                    self._batch_at = trio.current_time()
                case ToolResultEvent(message=message):
                    for block in message.content:
                        if isinstance(block, ToolResultBlock):
                            self._show_result(block)

    async def around(
        self, hook: ToolCallHook, proceed: Callable[..., Awaitable[ToolOutcome]]
    ) -> ToolOutcome:
        """A listener of `tool_execute`."""
        alone = hook.tool is None or not hook.tool.is_parallel(hook.tool.parse(hook.call.arguments))
        self.running += 1
        with self._moment(Began(hook.call.id, alone)):
            self._show_move("start", hook.call.id)
        try:
            return await proceed()
        finally:
            self.running -= 1
            with self._moment(Ended(hook.call.id)):
                self._show_move("end", hook.call.id)

    @contextmanager
    def _moment(self, what: Event | Began | Ended) -> Iterator[None]:
        """Record *what*, then show it."""
        self.moments.append(Moment(trio.current_time(), what))
        try:
            yield
        except Exception as error:  # the engine would contain it, and the demo would go on blind
            self.failure = self.failure or error
            self.scope.cancel(reason="the demo cannot be shown")
        self._changed.unpark_all()

    # --- tools --------------------------------------------------------------------------

    def _show_move(self, verb: str, call_id: CallId) -> None:
        if len(self._batch) > 1:
            number, call = self._batch[call_id]
            self._line(f"{self._since()}  {verb:<6} #{number} {title(call)}")

    def _show_result(self, block: ToolResultBlock) -> None:
        number, call = self._batch[block.tool_call_id]
        if len(self._batch) == 1:
            text = "".join(part.text for part in block.content)
            self._line(f"{title(call)} -> {one_line(text)}")
        elif self._logged_at == self._since() and not self.terminal.at_start:
            self.terminal.write(f" #{number}", "dim")
        else:
            self._logged_at = self._since()
            self._line(f"{self._logged_at}  logged #{number}", "dim", open_end=True)

    def _since(self) -> str:
        return f"{trio.current_time() - self._batch_at:4.2f} s"

    def _line(self, text: str, *styles: Style, open_end: bool = False) -> None:
        """A line about tools; with *open_end* more may be added to it."""
        self.terminal.fresh()
        self.terminal.write(f"{'  tool':<{INDENT}}", "yellow")
        self.terminal.write(shorten(text, self.terminal.look.width - INDENT), *styles)
        if not open_end:
            self.terminal.fresh()

    def chart(self, batch: Sequence[Span]) -> None:
        """The bodies of *batch* over time, one bar each."""
        room = self.terminal.look.width - INDENT
        names = [f"#{one.number} {one.call.name}{' alone' * one.alone}" for one in batch]
        left = min(max(map(columns, names)), room // 2)
        times = [(self.moments[one.began].at, self.moments[one.ended].at) for one in batch]
        begin, end = min(began for began, _ in times), max(ended for _, ended in times)
        scale = (room - left - 2) / max(end - begin, 1e-9)
        mark = "━" if self.terminal.look.unicode else "="
        for one, name, (began, ended) in zip(batch, names, times, strict=True):
            start = min(int((began - begin) * scale), room - left - 3)
            size = max(int((ended - began) * scale), 1)
            name = shorten(name, left)
            line = f"{' ' * INDENT}{name}{' ' * (left - columns(name) + 2 + start)}"
            style: Style = "yellow" if one.alone else "green"
            self.terminal.line(line + self.terminal.style(mark * size, style))
        width = room - left - 2
        took = duration(round((end - begin) * 1000))
        self.terminal.line(f"{' ' * (INDENT + left + 2)}0{took:>{width - 1}}", "dim")


def title(call: ToolCallBlock) -> str:
    """*call* in a few words: its tool, and its path if it has one."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = None
    path = arguments.get("path") if isinstance(arguments, dict) else None
    return one_line(f"{call.name} {path}" if isinstance(path, str) else call.name)
