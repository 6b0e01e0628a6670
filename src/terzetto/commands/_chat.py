"""``terzetto chat``: talk to a model in the terminal, with tools.

Owns the prompt, what is shown of a turn, and what Ctrl-C means. Answers, calls and notes
go to stdout, failures and diagnostics to stderr.
"""

from __future__ import annotations

import os
import secrets
from contextlib import AsyncExitStack
from pathlib import Path

import trio
from attrs import define, field, frozen

from ..agent import Agent, Turn, TurnFailed
from ..engine import open_engine
from ..llm.openai_chat import OpenAIChat
from ..stores import JsonlStore
from ..tools import Tool
from ..vocabulary import (
    Aborted,
    AssistantChunk,
    AssistantMessage,
    CallId,
    EndedAtMaxTokens,
    Event,
    Failure,
    MessageDiscarded,
    ReasoningDelta,
    StepStart,
    StoreError,
    TextBlock,
    TextDelta,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
)
from ._table import count
from ._terminal import (
    CommandError,
    Diagnostics,
    Flow,
    Style,
    Terminal,
    clean,
    let_ctrl_c_kill,
    on_interrupt,
    one_line,
    shorten,
)


@frozen(kw_only=True)
class ChatOptions:
    """What the command line says. *key_variable* names where *api_key* came from."""

    base_url: str
    model: str
    provider: str = "openai"
    key_variable: str | None = None
    api_key: str | None = field(default=None, repr=False)
    system: str | None = None
    tools: tuple[Tool, ...] = ()
    session_dir: Path | None = None

    def adapter(self) -> OpenAIChat:
        """Raises `InvalidValue` for what cannot work; the key is never shown."""
        return OpenAIChat(provider=self.provider, base_url=self.base_url, api_key=self.api_key)


@define(eq=False)
class Lines:
    """Lines from a file descriptor: a terminal, a pipe or a file. None has no lines."""

    fd: int | None
    encoding: str = "utf-8"
    live: bool = False
    """A person types them."""
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
        if not line and not end:
            return None
        return line.decode(self.encoding, "replace").rstrip("\r")


async def run_chat(
    options: ChatOptions, lines: Lines, terminal: Terminal, diagnostics: Diagnostics
) -> int:
    """Chat until the input ends or Ctrl-C; the exit code.

    0 at the end of input, 1 if it was no person's and a turn failed, 130 after Ctrl-C.
    Raises `CommandError` and `UsageError` for options that cannot work, OSError if nobody
    reads *terminal*.
    """
    chat = _Chat(options, lines, terminal, diagnostics)
    async with on_interrupt(chat.interrupt):
        with chat.scope:
            await chat.run()
    if chat.broken is not None:
        raise chat.broken
    if chat.left:
        terminal.fresh()
        return 130
    return 1 if chat.failures and not lines.live else 0


@define(eq=False)
class _Chat:
    options: ChatOptions
    lines: Lines
    terminal: Terminal
    diagnostics: Diagnostics
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    agent: Agent = field(init=False)
    busy: bool = field(default=False, init=False)
    stopping: bool = field(default=False, init=False)
    left: bool = field(default=False, init=False)
    failures: int = field(default=0, init=False)
    _answered: bool = field(default=False, init=False)
    broken: Exception | None = field(default=None, init=False)
    """Why nothing can be shown any more."""
    _calls: dict[CallId, str] = field(factory=dict, init=False)
    _thinking: bool = field(default=False, init=False)
    _flow: Flow | None = field(default=None, init=False)
    """The text that is on its way, in a terminal; into a pipe it goes as it comes."""

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._greet()
            while (line := await self._ask_for_line()) is not None:
                if line.strip():
                    await self._turn(line)

    async def _open(self, stack: AsyncExitStack) -> None:
        options, folder = self.options, self.options.session_dir
        engine = await stack.enter_async_context(
            open_engine(
                adapters=[options.adapter()],
                tools=options.tools,
                store=JsonlStore(folder) if folder is not None else None,
            )
        )
        opening = engine.open_agent(
            provider=options.provider,
            model=options.model,
            system=options.system,
            session_id=f"chat-{secrets.token_hex(4)}",
        )
        try:
            self.agent = await stack.enter_async_context(opening)
        except StoreError as error:
            raise CommandError(
                f"--session-dir: expected a folder that can be made and written to, "
                f"got {str(folder)!r}: {error}"
            ) from error
        self.agent.session.observe(self._saw)

    # --- Ctrl-C -------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Stop the turn; without one, or the second time, leave."""
        if self.busy and not self.stopping:
            self.stopping = True
            self.agent.cancel()
            self._note_waiting("Ctrl-C again leaves")
        else:
            self.left = True
            self.scope.cancel(reason="Ctrl-C")
            let_ctrl_c_kill()
            self._note_waiting("Ctrl-C again kills")

    def _note_waiting(self, then: str) -> None:
        """Started tools are waited for, so say so."""
        if self._calls:
            self._note(f"waiting for {', '.join(self._calls.values())} to end; {then}")

    # --- the conversation ---------------------------------------------------------------

    def _greet(self) -> None:
        if not self.lines.live:
            return
        options = self.options
        self.terminal.line(f"{options.model} at {options.base_url}", "bold")
        self.terminal.line("Ctrl-C interrupts an answer, Ctrl-D leaves.", "dim")
        if options.session_dir is not None:
            log = options.session_dir / f"{self.agent.id}.jsonl"
            self.terminal.line(f"The conversation is kept in {log}", "dim")

    async def _ask_for_line(self) -> str | None:
        if self.lines.live:
            self.terminal.line()
            self.terminal.write("> ", "cyan", "bold")
        line = await self.lines.next()
        if self.lines.live:
            # What was typed has moved the cursor; after Ctrl-D it has not.
            self.terminal.at_start = line is not None
            self.terminal.fresh()
        return line

    async def _turn(self, line: str) -> None:
        self.busy, self.stopping = True, False
        try:
            turn = await self.agent.ask(line)
        except TurnFailed as failed:
            self._failed(failed.failure)
        except MessageDiscarded:
            self._note("interrupted before it was sent")
        else:
            self._ended(turn)
        finally:
            self.busy = False
            self._calls.clear()
        self.diagnostics.tell()

    def _ended(self, turn: Turn) -> None:
        self._end_text()
        if isinstance(turn.ending, Aborted):
            last = turn.messages[-1] if turn.messages else None
            text = last.text.strip() if isinstance(last, AssistantMessage) else ""
            kept = f"; {count(len(text), 'character')} of the answer are kept" if text else ""
            self._note(f"interrupted{kept}")
        elif isinstance(turn.ending, EndedAtMaxTokens):
            self._note("cut at the output limit")

    def _failed(self, failure: Failure) -> None:
        self.failures += 1
        self._end_text()
        self.diagnostics.tell(but=failure.message)
        text = f"{failure.message} ({failure.code}); {self._advice(failure)}"
        self.diagnostics.terminal.line(f"terzetto: {one_line(text)}", "red")

    def _advice(self, failure: Failure) -> str:
        options = self.options
        match failure.code:
            case "TRANSPORT" | "TIMEOUT" if self._answered:
                return "the answer was cut; what came of it is not kept, send it again"
            case "TRANSPORT" | "TIMEOUT":
                return f"expected a server at {options.base_url}: is it running?"
            case "AUTH" | "PERMISSION" if options.key_variable is not None:
                return f"check the key in {options.key_variable}"
            case "AUTH" | "PERMISSION":
                return "the server wants a key; name its variable with --api-key-env"
            case "NOT_FOUND":
                return f"check --model {options.model} and --base-url {options.base_url}"
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
                return f"check --session-dir {options.session_dir}"
            case _:
                return "send it again, or change the request"

    # --- what is shown ------------------------------------------------------------------

    def _saw(self, event: Event) -> None:
        """A session observer. The engine would contain what it raises."""
        try:
            self._show(event)
        except Exception as error:
            self.broken = self.broken or error
            self.scope.cancel(reason="the conversation cannot be shown")

    def _show(self, event: Event) -> None:
        match event.data:
            case StepStart():
                self._answered = False
            case AssistantChunk(chunk=TextDelta(text=text)):
                self._answered = True
                self._stream(text, thinking=False)
            case AssistantChunk(chunk=ReasoningDelta(text=text)):
                self._stream(text, thinking=True)
            case ToolCallEvent(call_id=call_id, name=name, arguments=arguments):
                self._calls[call_id] = one_line(name)
                self._one_line(f"{name} {arguments}", "yellow")
            case ToolResultEvent(message=message):
                for block in message.content:
                    if isinstance(block, ToolResultBlock):
                        self._result(block)

    def _stream(self, text: str, *, thinking: bool) -> None:
        text = text.replace("\r", "")  # here it is half a line end, or it hides something
        if thinking is not self._thinking:
            self._end_text()
            self._thinking = thinking
            if thinking and not self.terminal.look.color:
                text = f"(thinking) {text}"
        styles: tuple[Style, ...] = ("dim",) if thinking else ()
        if not self.terminal.look.live:
            self.terminal.write(clean(text), *styles)
            return
        if self._flow is None:
            self._flow = Flow(self.terminal, styles=styles, keep=True)
        self._flow.feed(text)

    def _end_text(self) -> None:
        if self._flow is not None:
            self._flow.end()
        self._flow, self._thinking = None, False
        self.terminal.fresh()

    def _result(self, block: ToolResultBlock) -> None:
        name = self._calls.pop(block.tool_call_id, "tool")
        if block.is_error:
            text = "".join(part.text for part in block.content if isinstance(part, TextBlock))
            self._one_line(f"{name} failed: {text}", "red")

    def _one_line(self, text: str, style: Style) -> None:
        self._end_text()
        self.terminal.line(shorten(f"* {one_line(text)}", self.terminal.look.width), style)

    def _note(self, text: str) -> None:
        self._end_text()
        self.terminal.line(f"({text})", "dim")
