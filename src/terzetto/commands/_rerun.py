"""A session run again: a fresh engine in memory, with its log in the place of the world.

The model answers with the chunks of the log, tools with its results, listeners decide as they
did; what came from outside is appended where the log has it, cancels and failures strike where
they struck. What the engine writes then has to be the log, event for event, and what it asks
has to be what the log rebuilds, request for request.

Which tools ran side by side is not in a log, so the order of calls and results is the log's.
Nothing outside is touched: no tool runs, nothing is sent, and the store is one in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import trio.testing
from attrs import frozen

from ..agent import Agent
from ..engine import open_engine
from ..stores import MemoryStore
from ..vocabulary import ModelSelected, TerzettoError, TurnStart, chain_text
from ._playback import Playback
from ._rerun_world import Listeners, RecordedModel, RecordedTools
from ._tape import Tape


@frozen(kw_only=True)
class Rerun:
    """How far it went. *difference*: where the engine first did something else."""

    events: int
    requests: int
    difference: str | None = None


async def rerun(tape: Tape) -> Rerun:
    """Run the session of *tape* again, life by life, until the engine does something else."""
    events = requests = 0
    difference = None
    for life in tape.lives():
        play = Playback(tape, life)
        with _quiet():
            await _live(play)
        events += play.at - life.prefix
        requests += play.requests
        difference = play.difference
        if difference is not None:
            break
    return Rerun(events=events, requests=requests, difference=difference)


@contextmanager
def _quiet() -> Iterator[None]:
    """What failed then fails again, and is no news."""
    logger = logging.getLogger("terzetto")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


async def _live(play: Playback) -> None:
    """Run one life of a log."""
    tape, life = play.tape, play.life
    header, events = tape.header, tape.events
    store = MemoryStore()
    if not life.fresh:
        handle = await store.create(header)
        for event in events[: life.prefix]:
            handle.append(event)
        await handle.close()
    selection = _route(tape)
    try:
        with play.scope:
            async with (
                open_engine(
                    adapters=[RecordedModel(play, name) for name in sorted(_providers(tape))],
                    store=store,
                    executor=RecordedTools(play),
                    now_ms=play.now_ms,
                    new_id=play.new_id,
                ) as engine,
                engine.open_agent(
                    provider=selection[0],
                    model=selection[1],
                    session_id=header.id if life.fresh else None,
                    resume=None if life.fresh else header.id,
                    durability=header.durability if life.fresh else None,
                    setup=partial(_compose, play),
                ) as agent,
            ):
                await _play(play, agent)
                play.scope.cancel(reason="the log ends here")
    except TerzettoError as error:
        play.differ(f"the engine failed: {chain_text(error)}")


def _route(tape: Tape) -> tuple[str, str]:
    for asked in tape.asked.values():
        route = asked.sent.request.config
        return route.provider, route.model
    return "none", "none"


def _providers(tape: Tape) -> set[str]:
    names = {asked.sent.request.config.provider for asked in tape.asked.values()}
    for event in tape.events:
        if isinstance(event.data, ModelSelected):
            names.add(event.data.selection.provider)
    return names | {_route(tape)[0]}


def _compose(play: Playback, agent: Agent) -> None:
    play.agent = agent
    for event in agent.session.events[play.life.prefix :]:  # what closed a crashed log
        play.compare(event)
    agent.session.observe(play.observe)
    Listeners(play).compose(agent)


async def _play(play: Playback, agent: Agent) -> None:
    """Wake the agent where the log has it wake, until the log ends or differs."""
    while not play.done:
        before = play.at
        play.feed()
        state = agent._state
        idle = not play.done and state.activity is None
        if idle and isinstance(play.tape.events[play.at].data, TurnStart):
            state.start()
            before = -1
        await trio.testing.wait_all_tasks_blocked()
        if play.at == before and not play.done:
            play.differ(f"the engine waits, where the log has {play.told(play.at)}")
