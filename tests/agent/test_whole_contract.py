"""Rows of the contract that are about the engine as a whole, and no module's own."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import trio
from tests.agent.kit import ROUTE, engine_on, played, settled
from tests.whole import whole

from terzetto import Agent, Engine, MemoryStore, Session, StatusChanged, TurnFailed, tool
from terzetto.agent import Agents
from terzetto.agent._hooks import _KINDS
from terzetto.extras.budget import Budget
from terzetto.hooks import Notification, Serial, Waterfall
from terzetto.llm.scripted import ScriptedModel, answer, call, finish_error
from terzetto.session import replay
from terzetto.vocabulary import AssistantMessage, CompactionStart, ModelSelection

EVENT_SET: dict[str, type] = {
    "agent_created": Serial,
    "agent_disposed": Notification,
    "status": Notification,
    "session_started": Notification,
    "agent_error": Notification,
    "inbox_inserted": Notification,
    "inbox_claimed": Notification,
    "inbox_discarded": Notification,
    "pre_step": Waterfall,
    "request": Waterfall,
    "request_error": Waterfall,
    "turn_stopping": Serial,
}
"""Of agents; the other points are those of sessions, models and tools."""


@tool
async def look() -> str:
    """Look."""
    return "seen"


def hear(engine: Engine, heard: Counter[str]) -> None:
    """Count every dispatch of every point there is."""
    for name, kind in _KINDS.items():
        getattr(engine.scope.hooks, name).listen(listener(name, kind, heard))


def listener(name: str, kind: type, heard: Counter[str]) -> Callable[..., Any]:
    async def around(value: object, proceed: Any) -> object:
        heard[name] += 1
        return await proceed()

    async def awaited(value: object) -> None:
        heard[name] += 1

    def told(value: object) -> None:
        heard[name] += 1

    return {Waterfall: around, Serial: awaited, Notification: told}[kind]


@played
async def test_one_life_is_told_at_every_point_there_is() -> None:
    """C157: each event of the set has its point, of the kind that the row says, and a life of
    one turn with a tool, one that fails and one message that is taken back reaches them all."""
    assert EVENT_SET.items() <= _KINDS.items()
    heard: Counter[str] = Counter()
    script = [answer(call("look", id="c1")), "done", answer(finish_error("SERVER", "no luck"))]
    async with engine_on(ScriptedModel(script), tools=[look]) as engine:
        hear(engine, heard)
        async with engine.open_agent(**ROUTE) as agent:
            await agent.ask("go")
            with pytest.raises(TurnFailed):
                await agent.ask("and now")
            agent.inbox.remove(agent.inject("never mind"))
    assert set(heard) == set(_KINDS)
    once = ("agent_created", "agent_disposed", "session_started", "session_created")
    assert [heard[name] for name in once] == [1, 1, 1, 1]
    # One waiting turn after the other: running and idle, twice.
    assert (heard["status"], heard["turn_stopping"], heard["agent_error"]) == (4, 1, 1)
    assert (heard["inbox_inserted"], heard["inbox_claimed"], heard["inbox_discarded"]) == (3, 2, 1)


@played
async def test_a_status_change_that_changes_nothing_is_a_defect() -> None:
    """C161 C62: it fails where it is made; no listener ever hears the same status twice."""
    heard: list[str] = []
    async with engine_on(ScriptedModel(["one", "two", "three"])) as engine:
        async with engine.open_agent(**ROUTE) as agent:

            def told(change: StatusChanged) -> None:
                heard.append(change.status)

            agent.scope.hooks.status.listen(told)
            await agent.ask("go")
            agent.followup("go")
            agent.followup("go on")
            await agent.wait_idle()
            assert heard == ["running", "idle"] * 2
            with pytest.raises(AssertionError, match="changes nothing"):
                agent._state.set_status("idle")
            assert heard == ["running", "idle"] * 2


# --- projections ----------------------------------------------------------------------------


def projected(session: Session) -> tuple[object, ...]:
    """What the three standard projections say, in values."""
    place, pending, folds = session.place, session.pending, session.folds
    lists = {target: [m.text for m in messages] for target, messages in pending.lists.items()}
    return (
        lists,
        (place.next_seq, place.last_turn, place.open_turn, place.last_step),
        folds.selection,
        folds.header,
        folds.context,
        list(session.history()),
    )


@played
async def test_the_standard_projections_belong_to_the_log_and_not_to_an_agent() -> None:
    """C169 C58: inbox, turn boundary and model selection are there before any agent is, while
    one lives, and after it; folded by whoever has the events, they are the same."""
    store = MemoryStore()
    async with engine_on(ScriptedModel(["one"]), store=store) as engine:
        async with engine.open_agent(**ROUTE, session_id="a") as agent:
            agent.model.select("scripted", "one more")
            await agent.ask("go")
            agent.model.select("scripted", "other")
            agent.inject("a note")
            alive = projected(agent.session)
        gone = projected(agent.session)
    assert gone[2:5] == alive[2:5]
    assert alive[2] == ModelSelection("scripted", "other")
    # No engine, no agent: only the events, as far as they go.
    events = whole(agent.session)
    cold = Session(agent.session.header, lambda: 0, agent.session.new_id, agent.session.bell)
    replay(cold, events[: alive[1][0]])  # type: ignore[index]
    assert projected(cold) == alive
    replay(cold, events[alive[1][0] :])  # type: ignore[index]
    assert projected(cold) == gone


@played
async def test_what_an_event_does_not_change_stays_the_same_object() -> None:
    """C168: a reader that keeps what it was given sees by identity that nothing is new."""
    async with engine_on(ScriptedModel(["one", "two"])) as engine:
        async with engine.open_agent(**ROUTE) as agent:
            agent.model.select("scripted", "other")
            await agent.ask("go")
            session = agent.session
            before = (session.folds.header, session.folds.context, session.folds.selection)
            messages = list(session.history())
            session.append(CompactionStart("c"))
            session.record("my-app/note", {"n": 1}, ignorable=True)
            await agent.ask("go on")
            after = (session.folds.header, session.folds.context, session.folds.selection)
            assert None not in before
            assert all(one is other for one, other in zip(before, after, strict=True))
            now = list(session.history())
            assert len(now) == len(messages) + 2
            assert all(one is other for one, other in zip(messages, now, strict=False))


@played
async def test_a_fold_that_comes_late_reads_from_the_start() -> None:
    """C168: at its first touch, so it agrees with one that was there all the time."""
    async with engine_on(ScriptedModel(["one", "two", "three"])) as engine:
        early, late = Budget(steps=9, per="session"), Budget(steps=9, per="session")
        early.attach(engine.scope)
        async with engine.open_agent(**ROUTE) as agent:
            for _ in range(2):
                await agent.ask("go")
                early.spent(agent.session)
            late.attach(agent.scope)
            await agent.ask("go on")
            assert late.spent(agent.session) == early.spent(agent.session)
            assert late.spent(agent.session).steps == 3


# --- doors ----------------------------------------------------------------------------------


def keywords(function: Callable[..., object]) -> set[str]:
    parameters = inspect.signature(inspect.unwrap(function)).parameters.values()
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_one_catalog_of_what_an_agent_is_made_with() -> None:
    """C13: the door of a block takes what the three ways to make an agent take, no more and no
    less, but for which of the three it is."""
    ways = keywords(Agents.create) | keywords(Agents.resume) | keywords(Agents.fork)
    assert keywords(Engine.open_agent) == ways | {"resume", "fork", "if_stored"}


@played
async def test_what_is_in_no_catalog_is_refused_and_makes_nothing() -> None:
    """C13: a field that is misspelt is no field that is ignored."""
    store = MemoryStore()
    async with engine_on(ScriptedModel([]), store=store) as engine:
        for misspelt in ("modell", "max_token", "sesion_id"):
            with pytest.raises(TypeError, match=misspelt):
                await engine.agents.create(**ROUTE, **{misspelt: 1})
            with pytest.raises(TypeError, match=misspelt):
                async with engine.open_agent(**ROUTE, **{misspelt: 1}):
                    pass
        assert engine.agents.list() == []
        assert await store.list() == []


@played
async def test_descendants_end_before_their_parent_and_keep_what_nobody_claimed() -> None:
    """C170: the innermost first; an interrupted child has its unclaimed input still, and reads
    it when it is interrupted only."""
    ended: list[str] = []
    gates = [answer(call("hang", id=f"c{n}")) for n in range(3)]

    @tool
    async def hang() -> str:
        """Hang."""
        await trio.sleep_forever()
        return "never"

    async with engine_on(ScriptedModel([*gates, "interrupted", "next"]), tools=[hang]) as engine:

        def gone(agent: Agent) -> None:
            ended.append(agent.id)

        engine.scope.hooks.agent_disposed.listen(gone)
        parent = await engine.agents.create(**ROUTE, session_id="p")
        child = await engine.agents.create(**ROUTE, session_id="c", parent=parent.agent)
        inner = await engine.agents.create(**ROUTE, session_id="g", parent=child.agent)
        for handle in (parent, child, inner):
            handle.agent.followup("go")
            await settled()
        child.agent.followup("later")
        child.agent.interrupt("look up")
        await child.agent.wait_idle()
        answers = [m.text for m in child.agent.history() if isinstance(m, AssistantMessage)]
        assert answers[-2:] == ["interrupted", "next"]
        await parent.dispose()
    assert ended == ["g", "c", "p"]
