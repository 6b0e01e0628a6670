"""What ``terzetto chat`` shows of a conversation, live and afterwards.

Answers, calls and notes go to stdout, failures and diagnostics to stderr. Everything that a
model, a tool or a server wrote is cleaned first.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from ..vocabulary import (
    Aborted,
    AssistantChunk,
    AssistantMessage,
    AssistantMessageEvent,
    CallId,
    EndedAtMaxTokens,
    Event,
    Failed,
    Failure,
    InboxSpliced,
    Interrupted,
    Message,
    MessageId,
    ReasoningDelta,
    StepStart,
    TextBlock,
    TextDelta,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    TurnEnd,
    UserCause,
    UserMessage,
    UserMessageEvent,
    UserSource,
    texts,
)
from ._chat_route import Route
from ._table import count
from ._terminal import Diagnostics, Flow, Style, Terminal, clean, one_line, shorten

_TAIL = 8
"""Messages that are shown of a conversation that is resumed."""
_LONG = 1500
"""Characters of one message that are shown then."""


@define(eq=False)
class View:
    """Shows events as they come; see `show`. *live*: a person reads along."""

    terminal: Terminal
    diagnostics: Diagnostics
    route: Route
    log: str | None = None
    live: bool = False
    failures: int = field(default=0, init=False)
    """Turns that failed so far."""
    calls: dict[CallId, str] = field(factory=dict, init=False)
    """The names of the calls that run."""
    _on_screen: set[MessageId] = field(factory=set, init=False)
    _answered: bool = field(default=False, init=False)
    _kept: int = field(default=0, init=False)
    _dropped: int = field(default=0, init=False)
    _thinking: bool = field(default=False, init=False)
    _flow: Flow | None = field(default=None, init=False)
    """The text that is on its way, in a terminal; into a pipe it goes as it comes."""

    def show(self, event: Event) -> None:
        match event.data:
            case UserMessageEvent(message=message):
                self._entered(message)
            case StepStart():
                self.end_text()
                self._answered, self._kept = False, 0
            case AssistantChunk(chunk=TextDelta(text=text)):
                self._answered = True
                self._stream(text, thinking=False)
            case AssistantChunk(chunk=ReasoningDelta(text=text)):
                self._stream(text, thinking=True)
            case AssistantMessageEvent(message=message, interrupted=True):
                self._kept = len(message.text.strip())
            case ToolCallEvent(call_id=call_id, name=name, arguments=arguments):
                self.calls[call_id] = one_line(name)
                self._one_line(f"{name} {arguments}", "yellow")
            case ToolResultEvent(message=message):
                for block in message.content:
                    if isinstance(block, ToolResultBlock):
                        self._result(block, self.calls.pop(block.tool_call_id, "tool"))
            case InboxSpliced(removed_count=removed, outcome="canceled"):
                self._dropped += removed
            case TurnEnd():
                self._ended(event.data)

    def typed(self, message: MessageId) -> None:
        """The text of this message is on the screen already."""
        self._on_screen.add(message)

    def settled(self) -> None:
        """Nothing runs any more."""
        self.end_text()
        if self._dropped:
            self.note("interrupted before it was sent")
            self._dropped = 0
        with self.terminal.above():
            self.diagnostics.tell()

    def note(self, text: str) -> None:
        """A remark of ours. Cleaned here, for it may quote."""
        self.end_text()
        self.terminal.line(f"({one_line(text)})", "dim")

    def line(self, text: str, *styles: Style) -> None:
        self.end_text()
        self.terminal.line(one_line(text), *styles)

    def prompt(self, text: str) -> None:
        """What a person said."""
        self.end_text()
        for number, line in enumerate(clean(text).split("\n")):
            self.terminal.line(f"{'> ' if not number else '  '}{line}", "cyan")

    def error(self, text: str) -> None:
        """A line on stderr."""
        self.end_text()
        with self.terminal.above():
            self.diagnostics.terminal.line(f"terzetto: {one_line(text)}", "red")

    def end_text(self) -> None:
        """What comes next begins a line."""
        with self.terminal.above():
            if self._flow is not None:
                self._flow.end()
            self._flow, self._thinking = None, False
            self.terminal.fresh()

    # --- a turn -----------------------------------------------------------------------------

    def _entered(self, message: UserMessage) -> None:
        if message.id in self._on_screen:
            self._on_screen.remove(message.id)
        elif self.live and isinstance(message.source, UserSource):
            self.prompt(message.text)

    def _ended(self, end: TurnEnd) -> None:
        dropped, self._dropped = self._dropped, 0
        match end.ending:
            case Aborted(UserCause()):
                parts = ["interrupted"]
                if self._kept:
                    parts.append(f"{count(self._kept, 'character')} of the answer are kept")
                if dropped:
                    parts.append(f"{count(dropped, 'message')} not sent")
                self.note("; ".join(parts))
            case Failed(failure):
                self._failed(failure)
            case EndedAtMaxTokens():
                self.note("cut at the output limit")
            case _:
                self.end_text()
        self.calls.clear()

    def _failed(self, failure: Failure) -> None:
        self.failures += 1
        self.end_text()
        with self.terminal.above():
            self.diagnostics.tell(but=failure.message)
        self.error(f"{failure.message} ({failure.code}); {self._advice(failure)}")

    def _advice(self, failure: Failure) -> str:
        route = self.route
        match failure.code:
            case "TRANSPORT" | "TIMEOUT" if self._answered:
                return "the answer was cut; what came of it is not kept, send it again"
            case "TRANSPORT" | "TIMEOUT":
                return f"expected a server at {route.base_url}: is it running?"
            case "AUTH" | "PERMISSION" if route.key_variable is not None:
                return f"check the key in {route.key_variable}"
            case "AUTH" | "PERMISSION":
                return "the server wants a key; name its variable with --api-key-env"
            case "NOT_FOUND":
                return f"check --model {route.model} and --base-url {route.base_url}"
            case "CONTEXT_OVERFLOW":
                return "the conversation is too long for this model; begin a new one"
            case "RATE_LIMIT" if failure.provider_retry_after_ms is not None:
                return f"wait {failure.provider_retry_after_ms / 1000:g} s, then send it again"
            case "RATE_LIMIT":
                return "wait, then send it again"
            case "QUOTA":
                return "the account has nothing left to spend"
            case "UNKNOWN":
                return "is a setting of this machine in the way, such as a proxy or certificates?"
            case "STORE":
                return f"check --log {self.log}"
            case _:
                return "send it again, or change the request"

    def _stream(self, text: str, *, thinking: bool) -> None:
        text = text.replace("\r", "")  # here it is half a line end, or it hides something
        if thinking is not self._thinking:
            self.end_text()
            self._thinking = thinking
            if thinking and not self.terminal.look.color:
                text = f"(thinking) {text}"
        styles: tuple[Style, ...] = ("dim",) if thinking else ()
        if not self.terminal.look.live:
            self.terminal.write(clean(text), *styles)
            return
        if self._flow is None:
            self._flow = Flow(self.terminal, styles=styles, keep=True)
        with self.terminal.above():
            self._flow.feed(text)

    def _result(self, block: ToolResultBlock, name: str) -> None:
        if block.is_error:
            text = "".join(part.text for part in block.content if isinstance(part, TextBlock))
            self._one_line(f"{name} failed: {text}", "red")

    def _one_line(self, text: str, style: Style) -> None:
        self.end_text()
        self.terminal.line(shorten(f"* {one_line(text)}", self.terminal.look.width), style)

    # --- afterwards -------------------------------------------------------------------------

    def recall(self, messages: Sequence[Message], *, whole: bool = False) -> None:
        """Show a conversation: *whole*, or how it ended."""
        spoken = [m for m in messages if isinstance(m, (UserMessage, AssistantMessage))]
        shown = list(spoken) if whole else spoken[-_TAIL:]
        while len(shown) < len(spoken) and not _is_prompt(shown[0]) and len(shown) > 1:
            del shown[0]
        if left_out := len(spoken) - len(shown):
            self.note(f"{count(left_out, 'earlier message')}; /history shows all")
        with self.terminal.above():
            self._recall(shown, whole)

    def _recall(self, messages: Sequence[UserMessage | AssistantMessage], whole: bool) -> None:
        names: dict[CallId, str] = {}
        for message in messages:
            if isinstance(message, AssistantMessage):
                self._spoken(message.text, whole)
                for call in message.tool_calls:
                    names[call.id] = one_line(call.name)
                    self._one_line(f"{call.name} {call.arguments}", "yellow")
            elif isinstance(message.source, UserSource):
                self.prompt(message.text)
            else:
                for block in message.content:
                    if isinstance(block, ToolResultBlock):
                        self._result(block, names.get(block.tool_call_id, "tool"))

    def _spoken(self, text: str, whole: bool) -> None:
        if not whole and len(text) > _LONG:
            text = text[:_LONG] + " ..."
        if text.strip():
            self._stream(text, thinking=False)
            self.end_text()


def _is_prompt(message: Message) -> bool:
    return isinstance(message, UserMessage) and isinstance(message.source, UserSource)


def repairs(added: Sequence[Event], torn: str | None) -> list[str]:
    """What a resume had to add to a log that a crash cut, in words."""
    said = [torn] if torn is not None else []
    for event in added:
        match event.data:
            case AssistantMessageEvent(message=message, interrupted=True):
                kept = count(len(message.text.strip()), "character")
                said.append(f"the answer was cut; {kept} of it are kept")
            case ToolResultEvent(message=message, error=error) if error is not None:
                unknown = error.code == texts.TOOL_OUTCOME_UNKNOWN
                said.append(
                    "a tool was running; whether it did its work is unknown"
                    if unknown
                    else "a tool had been asked for and was not started"
                )
            case InboxSpliced(inserted=inserted) if inserted:
                said.append(f"{count(len(inserted), 'message')} had not been read; sent next")
            case TurnEnd(ending=Interrupted()):
                said.append("the last turn was closed")
    return said
