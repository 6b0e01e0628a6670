"""``terzetto chat``: talk to a model in the terminal, with tools.

Owns the conversation: opening or resuming it, who speaks when, and what Ctrl-C means.
Which model is `_chat_route`'s business, what lines are typed `_chat_input`'s, what they mean
`_chat_commands`', and what is shown `_chat_view`'s.
"""

from __future__ import annotations

import argparse
import secrets
import signal
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from pathlib import Path
from typing import Literal, overload

import trio
from attrs import define, field, frozen

from ..agent import Agent
from ..engine import Engine, open_engine
from ..session import Session, replay
from ..stores import JsonlStore
from ..stores.jsonl import JsonlHandle, JsonlReader
from ..tools import Tool
from ..vocabulary import (
    Event,
    InvalidValue,
    ModelSelection,
    SessionLocked,
    SessionNotFound,
    StoreError,
    SystemMessage,
)
from ._chat_commands import Talk
from ._chat_input import Input, open_input
from ._chat_options import NEWEST
from ._chat_route import Asked, Route, Stored, find_route
from ._chat_view import View, repairs
from ._table import count
from ._terminal import CommandError, Diagnostics, Terminal, let_ctrl_c_kill, on_interrupt


@frozen
class Stdin:
    """Where lines come from; *fd* None means nowhere. *live*: it is a terminal."""

    fd: int | None = None
    encoding: str = "utf-8"
    live: bool = False


@frozen(kw_only=True)
class ChatOptions:
    """What the command line says, apart from the model.

    *resume* is a session in *log*, `NEWEST` for the one made last, None for a fresh one.
    """

    system: str | None = None
    tools: tuple[Tool, ...] = ()
    log: Path | None = None
    resume: str | None = None


def chat_options(arguments: argparse.Namespace, tools: Iterable[Tool]) -> ChatOptions:
    """Raises `CommandError` for what cannot be."""
    if arguments.resume is not None and arguments.log is None:
        raise CommandError("--resume: name the folder that keeps the conversation with --log", 2)
    return ChatOptions(
        system=arguments.system,
        tools=tuple(tools),
        log=arguments.log,
        resume=arguments.resume,
    )


async def run_chat(
    asked: Asked,
    options: ChatOptions,
    environ: Mapping[str, str],
    stdin: Stdin,
    terminal: Terminal,
    diagnostics: Diagnostics,
) -> int:
    """Chat until the input ends or Ctrl-C; the exit code.

    0 at the end of input, 1 if it was no person's and a turn failed, 130 after Ctrl-C, and
    likewise 128 and the signal's number when told to end: the log is closed in every case.
    Raises `CommandError` and `UsageError` for options that cannot work, OSError if nobody
    reads *terminal*.
    """
    chat = _Chat(asked, options, environ, stdin, terminal, diagnostics)
    async with on_interrupt(chat.interrupt, chat.leave):
        with chat.scope:
            await chat.run()
    if chat.broken is not None and not chat.left:
        raise chat.broken
    with suppress(OSError) if chat.left else nullcontext():  # the terminal may be gone
        terminal.fresh()
        chat.tell_how_to_resume()
    if chat.left:
        return 128 + chat.left
    return 1 if chat.failures and not stdin.live else 0


class _Store(JsonlStore):
    """Remembers what opening a log had to cut."""

    repaired: str | None = None

    @overload
    async def open(self, session_id: str, mode: Literal["write"] = "write") -> JsonlHandle: ...

    @overload
    async def open(self, session_id: str, mode: Literal["read"]) -> JsonlReader: ...

    async def open(
        self, session_id: str, mode: Literal["write", "read"] = "write"
    ) -> JsonlHandle | JsonlReader:
        if mode == "read":
            return await super().open(session_id, "read")
        handle = await super().open(session_id)
        self.repaired = handle.repaired
        return handle


@frozen(kw_only=True)
class _Earlier:
    """A session as it is stored, before anything is repaired."""

    id: str
    events: list[Event]
    selection: ModelSelection | None
    system: str | None
    base_url: str | None

    def stored(self) -> Stored | None:
        if self.selection is None:
            return None
        return Stored(selection=self.selection, base_url=self.base_url)


@define(eq=False)
class _Chat:
    asked: Asked
    options: ChatOptions
    environ: Mapping[str, str]
    stdin: Stdin
    terminal: Terminal
    diagnostics: Diagnostics
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    view: View = field(init=False)
    agent: Agent | None = field(default=None, init=False)
    source: Input | None = field(default=None, init=False)
    stopping: bool = field(default=False, init=False)
    ending: bool = field(default=False, init=False)
    left: int = field(default=0, init=False)
    """The signal that asked for the end."""
    broken: Exception | None = field(default=None, init=False)
    """Why nothing can be shown any more."""

    @property
    def failures(self) -> int:
        return self.view.failures if self.agent is not None else 0

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            agent = await self._open(stack)
            stdin = self.stdin
            source = self.source = await stack.enter_async_context(
                open_input(stdin.fd, stdin.encoding, stdin.live, self.terminal)
            )
            if stdin.live:
                await self._converse(agent, source)
            else:
                await self._work_off(agent, source)

    # --- opening ----------------------------------------------------------------------------

    async def _open(self, stack: AsyncExitStack) -> Agent:
        options = self.options
        store = _Store(options.log) if options.log is not None else None
        earlier = None
        if store is not None and options.resume is not None:
            earlier = await self._earlier(store, options.resume)
        route = find_route(self.asked, self.environ, earlier.stored() if earlier else None)
        self.view = View(self.terminal, self.diagnostics, route, str(options.log), self.stdin.live)
        engine = await stack.enter_async_context(
            open_engine(adapters=[route.adapter()], tools=options.tools, store=store)
        )
        opening = self._opening(engine, route, earlier)
        try:
            agent = await stack.enter_async_context(opening)
        except StoreError as error:
            raise self._no_session(error) from error
        self._greet(agent, route)
        if earlier is not None and store is not None:
            self._go_on(agent, route, earlier, store.repaired)
        agent.session.observe(self._saw)
        self.agent = agent
        return agent

    def _opening(
        self, engine: Engine, route: Route, earlier: _Earlier | None
    ) -> AbstractAsyncContextManager[Agent]:
        system, url = self.options.system, self.asked.base_url
        if earlier is None:
            return engine.open_agent(
                provider=route.provider,
                model=route.model,
                effort=route.effort,
                system=system,
                session_id=f"chat-{secrets.token_hex(4)}",
                meta={"baseUrl": url} if url is not None else None,
            )
        # What the session recorded wins over the route given here; see `_go_on`.
        return engine.open_agent(
            provider=route.provider,
            model=route.model,
            effort=route.effort,
            system=system or earlier.system,
            resume=earlier.id,
        )

    async def _earlier(self, store: JsonlStore, session_id: str) -> _Earlier:
        folder, known = self.options.log, []
        try:
            known = [header.id for header in await store.list()]
            if session_id == NEWEST:
                if not known:
                    raise CommandError(f"--resume: no conversation is kept in {folder}", 2)
                session_id = known[-1]
            header, events = await store.read(session_id)
        except SessionNotFound as error:
            held = f"it keeps {', '.join(known[-5:])}" if known else "it keeps none"
            raise CommandError(f"--resume: {error} in {folder}; {held}", 2) from error
        except InvalidValue as error:
            raise CommandError(f"--resume: {error}", 2) from error
        except StoreError as error:
            raise self._no_session(error) from error
        session = Session(header, lambda: 0)
        replay(session, events)
        last = session.folds.header
        prompts = [m.text for m in session.history() if isinstance(m, SystemMessage) and m.text]
        url = header.meta.get("baseUrl")
        return _Earlier(
            id=session_id,
            events=events,
            selection=session.folds.selection or (last.config.selection if last else None),
            system=prompts[-1] if prompts else None,
            base_url=url if isinstance(url, str) else None,
        )

    def _no_session(self, error: StoreError) -> CommandError:
        if self.options.resume is None and not isinstance(error, SessionLocked):
            return CommandError(
                "--log: expected a folder that can be made and written to, "
                f"got {str(self.options.log)!r}: {error}"
            )
        return CommandError(f"--resume: {error}")

    def _greet(self, agent: Agent, route: Route) -> None:
        if not self.stdin.live:
            return
        self.terminal.line(f"{route.model} at {route.base_url}", "bold")
        self.terminal.line("Ctrl-C interrupts an answer, Ctrl-D leaves, /help tells more.", "dim")
        if self.options.log is not None:
            log = self.options.log / f"{agent.id}.jsonl"
            level = agent.session.header.durability  # another one was made by a program
            how = "" if level == "step" else f", durability {level}"
            self.terminal.line(f"The conversation is kept in {log}{how}", "dim")

    def _go_on(self, agent: Agent, route: Route, earlier: _Earlier, torn: str | None) -> None:
        """Show where the conversation stands, and make the wanted model its model."""
        view = self.view
        if self.stdin.live:
            view.recall(agent.history())
        say = view.note if self.stdin.live else view.error
        for text in repairs(agent.session.events[len(earlier.events) :], torn):
            say(f"repaired: {text}")
        wanted = ModelSelection(route.provider, route.model, route.effort)
        if agent.model.current() != wanted:
            agent.model.select(route.provider, route.model, route.effort)
        if waiting := len(agent.inbox):
            then = "; /queue lists, /cancel drops" if self.stdin.live else ""
            say(f"{count(waiting, 'message')} not read yet, sent before the next one{then}")

    def tell_how_to_resume(self) -> None:
        folder, agent = self.options.log, self.agent
        if folder is not None and agent is not None and self.stdin.live:
            self.terminal.line(
                f"Go on with: terzetto chat --log {folder} --resume {agent.id}", "dim"
            )

    # --- Ctrl-C -------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Stop the turn; without one, or the second time, leave."""
        agent = self.agent
        if agent is not None and agent.status == "running" and not self.stopping:
            self.stopping = True
            if self.source is not None:
                self.source.forget()
            agent.cancel()
            self._note_waiting("Ctrl-C again leaves")
        else:
            self.leave(signal.SIGINT)

    def leave(self, number: int) -> None:
        """Close the log and end. The next signal ends the process without that."""
        self.left = self.left or number
        self.scope.cancel(reason=signal.Signals(number).name)
        if self.source is not None:
            self.source.restore()  # the next Ctrl-C leaves no time for it
        let_ctrl_c_kill()
        with suppress(OSError):  # the terminal may be gone
            self._note_waiting("Ctrl-C again kills")

    def _note_waiting(self, then: str) -> None:
        """Started tools are waited for, so say so."""
        if self.agent is not None and self.view.calls:
            names = ", ".join(self.view.calls.values())
            self.view.note(f"waiting for {names} to end; {then}")

    # --- the conversation ---------------------------------------------------------------

    async def _work_off(self, agent: Agent, source: Input) -> None:
        """Each line is a prompt, in order; no line is a command."""
        while (line := await source.next()) is not None:
            if line.strip():
                self.stopping = False
                agent.followup(line)
                await agent.wait_idle()
                self.view.settled()

    async def _converse(self, agent: Agent, source: Input) -> None:
        """Lines are taken while the model works, too."""
        talk = Talk(agent, self.view)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, agent, source)
            source.invite(True)
            while (line := await source.next()) is not None:
                if talk.enter(line) == "leave":
                    break
                source.invite(not talk.busy)
            self.ending = True
            source.invite(False)
            if talk.busy:
                self.view.note("leaving when this has ended; Ctrl-C interrupts it")
            await agent.wait_idle()
            nursery.cancel_scope.cancel(reason="the input ended")
        self.view.settled()

    async def _watch(self, agent: Agent, source: Input) -> None:
        """Gives the prompt back each time that all is quiet."""
        while True:
            await agent.wait_status("running")
            await agent.wait_idle()
            self.stopping = False
            self.view.settled()
            if not self.ending:
                source.invite(True)

    def _saw(self, event: Event) -> None:
        """A session observer. The engine would contain what it raises."""
        try:
            self.view.show(event)
        except Exception as error:
            self.broken = self.broken or error
            self.scope.cancel(reason="the conversation cannot be shown")
