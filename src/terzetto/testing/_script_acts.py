"""Scenarios as data: lists of acts, which can be printed, and be shortened to find a cause."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeAlias, cast

import trio
from attrs import evolve, field, frozen

from ..agent import Agent, TurnFailed
from ..engine import Engine
from ..tools import Tool
from ..vocabulary import (
    ActivityCancelled,
    AgentBusy,
    AgentDisposed,
    Durability,
    MessageDiscarded,
    UserCause,
)
from ._recording import Answers, MakeAdapter
from ._stage import Stage

REFUSED = (AgentDisposed, MessageDiscarded, TurnFailed, ActivityCancelled, AgentBusy)
"""What a scenario that was struck may be told instead of what it asked for."""

MakeTools: TypeAlias = Callable[[Stage], Iterable[Tool]]
_Play: TypeAlias = Callable[[Stage, Agent], Awaitable[None]]


@frozen
class Act:
    """One thing that a script does. *play* is absent where the engine is left and opened anew."""

    text: str
    play: _Play | None = field(repr=False)

    def __str__(self) -> str:
        return self.text


@frozen
class Script:
    """A scenario for `explore`: an agent, and what is done with it, act by act.

    Each method gives a longer script and leaves this one as it is::

        bath = (
            Script([run_water], [call("run_water"), "It is ready."], name="bath")
            .followup("A bath, please.")
            .wait(10)
            .steer("Not too hot.")
            .idle()
        )
        assert explore(bath).violations == []

    Args:
        tools: The agent's, or a function of the stage that makes them afresh for each run;
            what tools share between calls has to be made there.
        model: What the model answers, request by request, then ``more``; or a function that
            makes an adapter.
        acts: Use the methods.
        name: Shown in violations.
        max_parallel_tool_calls: Of the engine.
        durability: Of the sessions.
        compose: Called with each engine that is opened, before the agent is: the place for
            listeners.

    A script that fails can be made shorter than a function can: `shortest_trace` leaves out
    acts and answers as long as the same thing stays wrong.
    """

    tools: Iterable[Tool] | MakeTools = ()
    model: MakeAdapter | Answers = ()
    acts: tuple[Act, ...] = ()
    name: str = field(default="script", kw_only=True)
    max_parallel_tool_calls: int = field(default=10, kw_only=True)
    durability: Durability = field(default="step", kw_only=True)
    compose: Callable[[Engine], None] | None = field(default=None, kw_only=True)

    @property
    def __name__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return "\n".join(f"{number}. {act}" for number, act in enumerate(self.acts, start=1))

    # --- acts -------------------------------------------------------------------------

    def followup(self, text: str) -> Script:
        """Send *text* for the next turn."""
        return self._send("followup", text)

    def steer(self, text: str) -> Script:
        """Send *text* for the next step."""
        return self._send("steer", text)

    def inject(self, text: str) -> Script:
        """Leave *text* for the next step, without waking the agent."""
        return self._send("inject", text)

    def interrupt(self, text: str) -> Script:
        """Cut the step that runs, and go on with *text*."""
        return self._send("interrupt", text)

    def ask(self, text: str, *, patience: float = 3_600.0) -> Script:
        """Ask, and wait for the turn's end, at most *patience* seconds. A refusal is no news."""

        async def play(stage: Stage, agent: Agent) -> None:
            with suppress(*REFUSED), trio.move_on_after(patience):
                await agent.ask(text)

        return self._with(Act(f"ask {text!r}", play))

    def wait(self, seconds: float) -> Script:
        """Let *seconds* of virtual time pass."""

        async def play(stage: Stage, agent: Agent) -> None:
            await trio.sleep(seconds)

        return self._with(Act(f"wait {seconds:g} s", play))

    def idle(self) -> Script:
        """Wait until the agent is idle."""

        async def play(stage: Stage, agent: Agent) -> None:
            await agent.wait_idle()

        return self._with(Act("wait until idle", play))

    def cancel(self, *, keep_inbox: bool = False) -> Script:
        """Cancel what the agent does, as its user."""

        async def play(stage: Stage, agent: Agent) -> None:
            agent.cancel(UserCause(), keep_inbox=keep_inbox)

        return self._with(Act("cancel, inbox kept" if keep_inbox else "cancel", play))

    def maintain(self, seconds: float) -> Script:
        """Run a maintenance job that takes *seconds*. A refusal is no news."""

        async def play(stage: Stage, agent: Agent) -> None:
            with suppress(*REFUSED):
                await agent.run_maintenance(trio.sleep, seconds)

        return self._with(Act(f"maintain for {seconds:g} s", play))

    def resume(self) -> Script:
        """Leave the agent and its engine, open another on the same store, resume the session."""
        return self._with(Act("leave, and resume", None))

    def do(self, what: Callable[[Stage], object], text: str | None = None) -> Script:
        """Call *what* with the stage; awaited if it gives something to await."""

        async def play(stage: Stage, agent: Agent) -> None:
            done = what(stage)
            if inspect.isawaitable(done):
                await cast(Awaitable[object], done)

        name: object = getattr(what, "__name__", "do")
        return self._with(Act(str(name) if text is None else text, play))

    def _send(self, how: str, text: str) -> Script:
        async def play(stage: Stage, agent: Agent) -> None:
            stage.send(how, text)

        return self._with(Act(f"{how} {text!r}", play))

    def _with(self, act: Act) -> Script:
        return evolve(self, acts=(*self.acts, act))

    # --- played -----------------------------------------------------------------------

    async def __call__(self, stage: Stage) -> None:
        """Play it: what `explore` does."""
        left, session_id = list(self.acts), None
        while True:
            tools = self.tools(stage) if callable(self.tools) else self.tools
            async with stage.open_engine(
                tools,
                max_parallel_tool_calls=self.max_parallel_tool_calls,
                durability=self.durability,
            ) as engine:
                if self.compose is not None:
                    self.compose(engine)
                async with stage.open_agent(engine, resume=session_id) as agent:
                    session_id = agent.id
                    again = await _until_left(stage, agent, left)
            if not again:
                return


async def _until_left(stage: Stage, agent: Agent, left: list[Act]) -> bool:
    """Play acts until the engine is to be left; whether more follow."""
    while left:
        act = left.pop(0)
        stage.acts.append(act.text)
        if act.play is None:
            return True
        await act.play(stage, agent)
    return False
