"""Terzetto inside an asyncio program, by Trio's guest mode.

    python docs/examples/guest_asyncio.py --scripted "What are you?" "And who hosts you?"

Both loops share one thread and take turns in it: asyncio is the host, and Trio runs in
callbacks of the host's loop. `Guest` opens the engine there; the asyncio side sends input
and iterates over events with its own ``await`` and ``async for``. Without ``--scripted`` it
wants OPENAI_API_KEY, and takes OPENAI_BASE_URL and OPENAI_MODEL.

The three rules of the bridge:

* What touches an agent runs in Trio, by `Guest.run`. Only finished values come back.
* Who is cancelled on one side cancels the other side's half, and waits until it has ended.
* Whichever side ends first ends the other: leaving the block closes the engine; an engine
  that fails cancels the block, and its error is what the block raises.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple

import outcome
import trio

import terzetto
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import Delay, Entry, ScriptedModel, answer
from terzetto.vocabulary import (
    AssistantChunk,
    BlockEnd,
    BlockStart,
    MessageId,
    Request,
    TextBlock,
    TextDelta,
    TurnEnd,
    UserMessageEvent,
    UserSource,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class GuestClosed(Exception):
    """The engine has ended; nothing more can be run in it."""


class Guest:
    """An engine in a Trio run of its own, inside the asyncio loop that enters the block.

    Args:
        adapter: The model.
        provider: The name under which *adapter* serves.
        model: The model's name.
        store: Where sessions are kept.
    """

    def __init__(
        self, adapter: terzetto.Adapter, provider: str, model: str, store: terzetto.Store
    ) -> None:
        self._adapter, self._provider, self._model, self._store = adapter, provider, model, store
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop_main = trio.Event()
        self._stopping = False
        self._struck = False
        self._waiting: set[asyncio.Future[Any]] = set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        host = asyncio.current_task()
        assert host is not None
        self._host = host
        self._ready: asyncio.Future[Any] = loop.create_future()
        self._ended: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=self._done,
            host_uses_signal_set_wakeup_fd=True,  # asyncio does; Trio must leave it alone
        )
        try:
            await asyncio.wait([self._ready, self._ended], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._stop()
            raise
        if self._ended.done():
            self._ended.result().unwrap()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._struck:  # the cancel was ours: take it back, arrived or not
            if kind is not asyncio.CancelledError:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            self._host.uncancel()
        await self._stop()
        self._ended.result().unwrap()

    async def _stop(self) -> None:
        self._stopping = True
        if self._token is not None and not self._ended.done():
            self._token.run_sync_soon(self._stop_main.set)
        await until_done(self._ended)

    # --- in Trio ------------------------------------------------------------------------

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        if self._stopping:  # the host was cancelled before this had begun
            return
        async with (
            terzetto.open_engine(adapters=[self._adapter], store=self._store) as self._engine,
            trio.open_nursery() as self._calls,
        ):
            async with trio.open_nursery() as self._agents:
                self._ready.set_result(None)
                await self._stop_main.wait()
                # The agents first, so that their turns are closed and their logs complete.
                self._agents.cancel_scope.cancel(reason="the host leaves")
            self._calls.cancel_scope.cancel(reason="the host leaves")

    def _done(self, result: outcome.Outcome[None]) -> None:
        for unanswered in self._waiting:
            if not unanswered.done():
                unanswered.set_exception(GuestClosed("the engine has ended"))
        self._ended.set_result(result)
        if not self._stopping and self._ready.done():
            self._struck = True
            self._host.cancel()  # the host's block must not go on without its engine

    async def _hold(
        self,
        closing: trio.Event,
        gone: trio.Event,
        session_id: str | None,
        resume: str | None,
        task_status: trio.TaskStatus[terzetto.Agent],
    ) -> None:
        try:
            async with self._engine.open_agent(
                provider=self._provider, model=self._model, session_id=session_id, resume=resume
            ) as agent:
                task_status.started(agent)
                await closing.wait()
        finally:
            gone.set()

    # --- in asyncio ---------------------------------------------------------------------

    async def run(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Run the Trio function *fn* in the engine's nursery, and wait for it here.

        Raises what it raises, and `GuestClosed` when the engine ends first.

        Cancellation: the function is cancelled, and has ended when this raises.
        """
        if self._token is None or self._stopping or self._ended.done():
            raise GuestClosed("the engine has ended")
        scope = trio.CancelScope()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def serve() -> None:
            try:
                with scope:
                    answer.set_result(await fn(*args))
            except Exception as error:
                answer.set_exception(error)
            except BaseException:  # the engine is closing, and takes this task along
                answer.set_exception(GuestClosed("the engine has ended"))
                raise
            if not answer.done():
                answer.cancel()  # as the host asked, below

        def start() -> None:
            try:
                self._calls.start_soon(serve)
            except RuntimeError:  # the nursery is closed: the engine is failing
                answer.set_exception(GuestClosed("the engine has ended"))

        self._waiting.add(answer)
        try:
            # The only call that may be made from outside Trio, even from the same thread.
            self._token.run_sync_soon(start)
            await asyncio.wait([answer])
        except asyncio.CancelledError:
            if not answer.done():
                self._token.run_sync_soon(scope.cancel)
                await until_done(answer)
            if not answer.cancelled():
                answer.exception()  # looked at, so that asyncio does not complain
            raise
        finally:
            self._waiting.discard(answer)
        return answer.result()

    async def open_chat(self, *, session_id: str | None = None, resume: str | None = None) -> Chat:
        """An agent of its own; it lives until `Chat.close`, or until the block is left."""
        closing, gone = trio.Event(), trio.Event()
        agent = await self.run(self._agents.start, self._hold, closing, gone, session_id, resume)
        return Chat(self, agent, closing, gone)


class Chat:
    """One agent, as an asyncio program sees it. Made by `Guest.open_chat`."""

    def __init__(
        self, guest: Guest, agent: terzetto.Agent, closing: trio.Event, gone: trio.Event
    ) -> None:
        self._guest, self._agent, self._closing, self._gone = guest, agent, closing, gone

    async def send(self, text: str) -> MessageId:
        """Hand *text* to the agent, and do not wait for what comes of it."""

        async def followup() -> MessageId:
            return self._agent.followup(text)

        return await self._guest.run(followup)

    async def ask(self, text: str) -> terzetto.Turn:
        """`Agent.ask`. Cancelled, it cancels the turn."""
        return await self._guest.run(self._agent.ask, text)

    async def interrupt(self, text: str) -> MessageId:
        """`Agent.interrupt`."""

        async def interrupt() -> MessageId:
            return self._agent.interrupt(text)

        return await self._guest.run(interrupt)

    async def events(self, from_seq: int = 0) -> AsyncIterator[terzetto.Event]:
        """The log from *from_seq* on, past and to come, until the agent has ended.

        The log is the queue: an event is fetched when it is asked for, so a slow reader
        costs nothing and misses nothing.
        """
        session = self._agent.session
        follower = session.follow(from_seq)

        async def fetch() -> terzetto.Event | None:
            return await anext(follower, None)

        try:
            while (event := await self._guest.run(fetch)) is not None:
                from_seq = event.seq + 1
                yield event
        except GuestClosed:
            # What the engine wrote while it closed, such as the end of a turn.
            for event in session.events:
                if event.seq >= from_seq:
                    yield event

    async def close(self) -> None:
        """End the agent: its log is closed and stored. `open_chat(resume=...)` goes on."""

        async def close() -> None:
            self._closing.set()
            await self._gone.wait()

        await self._guest.run(close)

    @property
    def session_id(self) -> str:
        return self._agent.id


async def until_done(future: asyncio.Future[T]) -> None:
    """Wait for *future*, whoever cancels; the cancel is raised by then at the latest."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


# --- a small host -------------------------------------------------------------------------


async def main(options: argparse.Namespace) -> None:
    adapter, model = scripted() if options.scripted else from_environment()
    store = terzetto.JsonlStore(options.sessions)
    async with Guest(adapter, "openai", model, store) as guest:
        chat = await guest.open_chat()
        print(f"session {chat.session_id}", flush=True)
        showing = asyncio.create_task(show(chat))
        try:
            for question in options.questions:
                await chat.ask(question)
        finally:
            # After Ctrl-C as well: `ask` was cancelled and has ended its turn, and the log
            # ends with the agent, so `showing` ends by itself when it has shown everything.
            await chat.close()
            await showing


async def show(chat: Chat) -> None:
    async for event in chat.events():
        match event.data:
            case UserMessageEvent(message=message) if isinstance(message.source, UserSource):
                print(f"> {message.text}", flush=True)
            case AssistantChunk(chunk=TextDelta(text=text)):
                print(text, end="", flush=True)
            case TurnEnd(ending=ending):
                print(f"\n({type(ending).__name__.lower()})", flush=True)


def scripted() -> tuple[terzetto.Adapter, str]:
    """A model that says, word by word, what it was asked."""

    def reply(request: Request) -> Entry:
        asked = getattr(request.messages[-1], "text", "")
        text = f"You asked: {asked} I run in Trio, and Trio runs in your asyncio loop."
        words = re.findall(r"\S+\s*", text)
        streamed = [part for word in words for part in (Delay(0.02), TextDelta(0, word))]
        return answer(BlockStart(0, "text"), *streamed, BlockEnd(0, TextBlock(text)))

    return ScriptedModel(reply, provider="openai"), "scripted"


def from_environment() -> tuple[terzetto.Adapter, str]:
    try:
        return OpenAIChat.from_env(), os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
    except terzetto.InvalidValue as error:
        raise SystemExit(f"guest: {error}; or try --scripted") from None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Terzetto in an asyncio program.")
    parser.add_argument("questions", nargs="*", default=["What are you?", "Who hosts you?"])
    parser.add_argument("--sessions", type=Path, default=Path("guest-sessions"), metavar="DIR")
    parser.add_argument("--scripted", action="store_true", help="no key and no network")
    try:
        asyncio.run(main(parser.parse_args()))
    except KeyboardInterrupt:
        sys.exit(130)
