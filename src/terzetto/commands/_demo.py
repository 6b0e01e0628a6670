"""``terzetto demo``: one session, from its first words to after a restart.

Everything is real but the model's wit: HTTP, tools, log, cancellation, resume. What the
demo says of it comes from `_demo_facts`, which reads the log, the order of moments and the
requests that the server recorded.
"""

from __future__ import annotations

import os
import secrets
import shlex
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import trio
from attrs import define, field, frozen

from ..agent import Agent, TurnFailed
from ..engine import Engine, open_engine
from ..llm.loopback import LoopbackServer, serve_openai
from ..llm.openai_chat import OpenAIChat
from ..stores import JsonlStore
from ..timeline import Timeline, read_timeline
from ..tools import Tool
from ..vocabulary import MessageId, StoreError
from . import _demo_facts as facts, _demo_model as script
from ._demo_facts import Body, Kept, Missing
from ._demo_model import DemoModel
from ._demo_stage import Stage
from ._demo_tools import Pace, demo_tools
from ._table import table
from ._terminal import CommandError, Terminal, let_ctrl_c_kill, on_interrupt

TOO_LONG = 55.0
"""Seconds after which the demo gives up."""
MODEL = "scripted"
SYSTEM = "You are the model of a demo. You see one folder, through your tools."
CUT_AFTER = 16
"""Words of the story after which it is interrupted."""
_IN_THE_WAY = frozenset({"http_proxy", "https_proxy", "all_proxy", "ssl_cert_file", "ssl_cert_dir"})
"""Variables, in lower case, about networks that the demo has nothing to do with."""


@frozen(kw_only=True)
class DemoOptions:
    """What the command line says.

    *folder* is looked at, *sessions* holds the log; None: a fresh temporary folder.
    """

    folder: Path
    sessions: Path | None = None
    pace: Pace = field(factory=Pace)


@frozen
class _Places:
    """Where the demo writes, and nowhere else."""

    session_id: str
    sessions: Path
    notes: Path

    @property
    def log(self) -> Path:
        return self.sessions / f"{self.session_id}.jsonl"

    @classmethod
    def fresh(cls, sessions: Path | None) -> _Places:
        temporary = Path(tempfile.mkdtemp(prefix="terzetto-demo-"))
        notes = temporary / "notes"
        notes.mkdir()
        where = temporary / "sessions" if sessions is None else sessions
        return cls(f"demo-{secrets.token_hex(4)}", where.absolute(), notes)

    def forget_empty(self) -> None:
        """Remove the folders that nothing was written to."""
        with suppress(OSError):
            self.notes.rmdir()
            self.notes.parent.rmdir()


async def run_demo(options: DemoOptions, terminal: Terminal) -> int:
    """Run the demo; its exit code: 0, 1 if something did not happen, 130 after Ctrl-C.

    Raises `CommandError` if there can be no log, OSError if nobody reads *terminal*.
    """
    places = _Places.fresh(options.sessions)
    scope = trio.CancelScope()
    stage = Stage(terminal, scope)
    interrupted = False
    code = 1

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        scope.cancel(reason="Ctrl-C")
        let_ctrl_c_kill()

    async with on_interrupt(interrupt):
        try:
            with scope, trio.move_on_after(TOO_LONG) as patience:
                code = await _Story(options, places, stage).tell()
        finally:
            places.forget_empty()
        if stage.failure is not None:
            raise stage.failure
        if interrupted:
            code = 130
            stage.note("Interrupted.")
        elif patience.cancelled_caught:
            stage.missing(f"Expected to be done within {TOO_LONG:g} s; something did not happen.")
        _tell_places(places, stage)
        if code == 0:
            terminal.line("With a model of your own: terzetto chat --help", "dim")
    return code


def _tell_places(places: _Places, stage: Stage) -> None:
    if places.log.is_file():
        count = places.log.read_bytes().count(b"\n")
        stage.terminal.line()
        stage.terminal.line(f"The log, {count} lines of JSON:", "bold")
        stage.terminal.line(f"  {places.log}")
        stage.terminal.line("To look at it again, with the tools over time:", "bold")
        stage.terminal.line(f"  terzetto show {shlex.quote(str(places.log))}")
    if notes := sorted(places.notes.glob("*")):
        stage.terminal.line("The note that the tool wrote:", "bold")
        stage.terminal.line(f"  {notes[-1]}")


@define(eq=False)
class _Story:
    """The five parts, in order; each ends with what was found to be true."""

    options: DemoOptions
    places: _Places
    stage: Stage
    tools: list[Tool] = field(init=False)
    server: LoopbackServer = field(init=False)
    engine: Engine = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.tools = demo_tools(self.options.folder, self.places.notes, self.options.pace)

    async def tell(self) -> int:
        """0 if everything happened, else 1, and what did not is shown."""
        try:
            with _without_network_settings():
                await self._parts()
        except Missing as missing:
            self.stage.missing(str(missing))
        except TurnFailed as failed:
            self.stage.missing(f"Expected an answer; the turn failed: {failed} ({failed.code})")
        else:
            return 0
        return 1

    async def _parts(self) -> None:
        async with serve_openai(DemoModel(self.options.pace).respond) as self.server:
            self._opening()
            async with self._open() as agent:
                await self._streaming(agent)
                await self._tools_at_work(agent)
                await self._steer(agent)
                prefix = await self._interruption(agent)
                answer = (await self._timeline(agent)).turns[-1].steps[-1].text
            await self._restart(prefix, answer)
        await self._ending()

    def _opening(self) -> None:
        stage = self.stage
        stage.terminal.line("Terzetto demo", "bold")
        stage.label("folder", str(self.options.folder.absolute()))
        stage.label("model", f"a script, at {self.server.base_url}")
        stage.label("session", self.places.session_id)
        stage.fact("marks what was checked against the log, and the requests the server got")

    @asynccontextmanager
    async def _open(self, *, resume: bool = False) -> AsyncIterator[Agent]:
        """An engine of its own, and the session's agent in it."""
        adapter = OpenAIChat(base_url=self.server.base_url, api_key=None)
        async with open_engine(
            adapters=[adapter], tools=self.tools, store=JsonlStore(self.places.sessions)
        ) as self.engine:
            opening = (
                self.engine.open_agent(resume=self.places.session_id, system=SYSTEM)
                if resume
                else self.engine.open_agent(
                    provider=adapter.provider,
                    model=MODEL,
                    system=SYSTEM,
                    session_id=self.places.session_id,
                )
            )
            async with AsyncExitStack() as stack:
                try:
                    agent = await stack.enter_async_context(opening)
                except StoreError as error:
                    raise CommandError(
                        "--sessions: expected a folder that can be made and written to, "
                        f"got {str(self.places.sessions)!r}: {error}"
                    ) from error
                agent.session.observe(self.stage.saw)
                agent.scope.hooks.tool_execute.listen(self.stage.around)
                yield agent

    # --- the parts ----------------------------------------------------------------------

    async def _streaming(self, agent: Agent) -> None:
        await self._chapter(1, "A streamed answer", "agent.ask()")
        await self._ask(agent, script.HELLO)
        turn = facts.completed(facts.last_turn(await self._timeline(agent)))
        self.stage.fact(facts.streamed(turn, await agent.session.read()))

    async def _tools_at_work(self, agent: Agent) -> None:
        await self._chapter(2, "Tools side by side, and one alone", "@tool(parallel=True), @tool")
        await self._ask(agent, script.LOOK)
        turn = facts.completed(facts.last_turn(await self._timeline(agent)))
        batch = facts.spans(max(turn.steps, key=lambda step: len(step.calls)), self.stage.moments)
        self.stage.chart(batch)
        self.stage.fact(facts.side_by_side(batch))
        self.stage.fact(facts.barrier(batch))
        self.stage.fact(facts.in_model_order(batch, self.stage.moments))

    async def _steer(self, agent: Agent) -> None:
        await self._chapter(3, "A word in passing", "agent.steer()")
        sent: list[MessageId] = []

        async def steer() -> None:
            await self.stage.wait(lambda: self.stage.running > 0)
            self.stage.you(script.STEER)
            sent.append(agent.steer(script.STEER))

        await self._ask(agent, script.COUNT, meanwhile=steer)
        if not sent:
            raise Missing("expected a tool to run, so that something can be said meanwhile")
        timeline = await self._timeline(agent)
        facts.completed(facts.last_turn(timeline))
        self.stage.fact(facts.steered(timeline, sent[0], self.stage.moments))
        self.stage.fact(facts.carried(script.STEER, self._requests()))

    async def _interruption(self, agent: Agent) -> Kept:
        await self._chapter(4, "An interruption in mid-sentence", "agent.cancel()")

        async def interrupt() -> None:
            await self.stage.wait(lambda: self.stage.words >= CUT_AFTER)
            agent.cancel()
            self.stage.you("(interrupts)")

        await self._ask(agent, script.STORY, meanwhile=interrupt)
        await agent.wait_idle()  # by then the end of the turn is in the file as well
        _, events = await JsonlStore(self.places.sessions).read(self.places.session_id)
        turn = facts.last_turn(read_timeline(events))
        prefix = facts.kept(turn, events)
        self.stage.fact(
            f"Turn {turn.number} was {turn.reason}. Event {prefix.seq} of the log file keeps "
            f'{len(prefix.text)} characters: "{prefix.text.strip()}"'
        )
        await self._hung_up()
        self.stage.fact("The model's server saw the connection closed.")
        await self._ask(agent, script.GO_ON)
        facts.completed(facts.last_turn(await self._timeline(agent)))
        self.stage.fact(facts.sent_back(prefix, self._requests()))
        return prefix

    async def _restart(self, prefix: Kept, answer: str) -> None:
        await self._chapter(5, "A restart", "open_agent(resume=...)")
        _, stored = await JsonlStore(self.places.sessions).read(self.places.session_id)
        await self._closed()
        async with self._open(resume=True) as agent:
            if await agent.session.read(0, len(stored)) != stored:
                raise Missing("expected the events of the log file in the new session")
            self.stage.fact(f"A new engine resumed the session: {len(stored)} events from the log.")
            await self._ask(agent, script.REMEMBER)
            facts.completed(facts.last_turn(await self._timeline(agent)))
            self.stage.fact(facts.remembered(answer, self._requests()))
            self.stage.fact(facts.sent_back(prefix, self._requests()))

    async def _closed(self) -> None:
        """Nothing of the old engine is left."""
        await self._hung_up()
        if agents := len(self.engine.agents.list()):
            raise Missing(f"expected no agent to outlive its engine, found {agents}")
        self.stage.fact("The engine is closed: no agent is left of it, and no connection.")

    async def _hung_up(self) -> None:
        """The server sees no connection any more."""
        with trio.move_on_after(5) as patience:
            await self.server.wait_connections(0)
        if patience.cancelled_caught:
            raise Missing(f"expected no connection, found {self.server.connections}")

    async def _ending(self) -> None:
        _, events = await JsonlStore(self.places.sessions).read(self.places.session_id)
        terminal = self.stage.terminal
        terminal.line()
        terminal.line("What happened when, from the log file", "bold")
        for line in table(read_timeline(events), terminal.look.width):
            terminal.line(line)

    # --- what they share ----------------------------------------------------------------

    async def _chapter(self, number: int, title: str, how: str) -> None:
        await trio.sleep(self.options.pace.rest)
        self.stage.chapter(number, title, how)

    async def _ask(
        self, agent: Agent, text: str, meanwhile: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Ask, and do something *meanwhile*, which ends with the turn at the latest."""
        self.stage.you(text)
        failed: TurnFailed | None = None
        async with trio.open_nursery() as nursery:
            if meanwhile is not None:
                nursery.start_soon(meanwhile)
            try:
                await agent.ask(text)
            except TurnFailed as error:  # raised out here, where no group is made of it
                failed = error
            nursery.cancel_scope.cancel(reason="the turn is over")
        if failed is not None:
            raise failed

    async def _timeline(self, agent: Agent) -> Timeline:
        return read_timeline(await agent.session.read())

    def _requests(self) -> list[Body]:
        return [request.body for request in self.server.requests]


@contextmanager
def _without_network_settings() -> Iterator[None]:
    """The demo talks to itself alone; a proxy would not find it, a lost file would stop it."""
    names = [name for name in os.environ if name.lower() in _IN_THE_WAY]
    saved = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(saved)
