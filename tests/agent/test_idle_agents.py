"""What an agent is while it does nothing: few objects, and hook points that nobody misses.

Hook points are made when somebody asks for them, which nobody may be able to tell.
"""

from __future__ import annotations

import gc
from functools import partial

import pytest
import trio
from tests.agent.kit import ROUTE, engine_on, play, played, settled, tasks

from terzetto import (
    Agent,
    AgentDisposed,
    Engine,
    MemoryStore,
    WrongThread,
    current_agent,
)
from terzetto.agent._hooks import _KINDS, Hooks
from terzetto.agent._run_state import RunState
from terzetto.hooks import Notification, Serial, Waterfall
from terzetto.llm.scripted import Delay, ScriptedModel, answer, say
from terzetto.vocabulary import Aborted, ScopeClosed, TurnEnd

FRESH, AFTER_A_TURN = 54, 114
"""Most objects of an idle agent that the garbage collector looks at; a full collection is the
longest pause of a program with many agents. Sixty of the second are the log of the turn."""
POINTS = sorted(_KINDS)


def talking() -> ScriptedModel:
    return ScriptedModel(lambda request: answer(say("ok")))


async def test_an_idle_agent_is_few_objects() -> None:
    async with engine_on(talking()) as engine:

        async def made() -> Agent:
            return (await engine.agents.create(**ROUTE)).agent

        await (await made()).ask("what the first one alone makes")
        await settled()
        gc.collect()
        before = len(gc.get_objects())
        agents = [await made() for _ in range(20)]
        await settled()
        gc.collect()
        assert 20 < (len(gc.get_objects()) - before) / 20 <= FRESH
        for agent in agents:
            await agent.ask("go")
        await settled()
        gc.collect()
        assert FRESH < (len(gc.get_objects()) - before) / 20 <= AFTER_A_TURN


def nurseries(agent: Agent) -> int:
    assert agent._task is not None
    return len(agent._task.child_nurseries)


@played
async def test_an_agent_at_rest_has_no_nursery() -> None:
    """It has one while a turn runs, and while a child lives."""
    async with engine_on(ScriptedModel([answer(Delay(1000))] * 3)) as engine:
        agent = (await engine.agents.create(**ROUTE)).agent
        await settled()
        assert nurseries(agent) == 0
        agent.followup("go")
        await settled()
        assert nurseries(agent) == 1
        agent.cancel()
        await settled()
        assert nurseries(agent) == 0
        child = await engine.agents.create(**ROUTE, parent=agent)
        await settled()
        assert nurseries(agent) == 1
        await child.dispose()
        await settled()
        assert nurseries(agent) == 0
        agent.followup("go on")
        await settled()
        assert nurseries(agent) == 1
        agent.cancel()
        await settled()
        assert nurseries(agent) == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", ["dispose", "block", "created"])
def test_an_agent_rests_again_after_its_last_child(way: str, seed: int) -> None:
    """Not before, and whatever the child ended by; and it may have children once more."""

    async def run() -> None:
        async with engine_on(talking()) as engine:
            agent = (await engine.agents.create(**ROUTE)).agent
            for _ in range(2):
                first = await engine.agents.create(**ROUTE, parent=agent)
                grandchild = await engine.agents.create(**ROUTE, parent=first.agent)
                if way == "block":
                    async with engine.open_agent(**ROUTE, parent=agent):
                        await settled()
                        await first.dispose()
                        await settled()
                        assert nurseries(agent) == 1
                elif way == "dispose":
                    await grandchild.dispose()
                    await settled()
                    assert nurseries(first.agent) == 0
                    assert nurseries(agent) == 1
                    await first.dispose()
                else:
                    await first.dispose()
                    with pytest.raises(RuntimeError, match="nobody wants it"):
                        await engine.agents.create(
                            **ROUTE, parent=agent, setup=lambda agent: unwanted()
                        )
                await settled()
                assert grandchild.agent.disposed
                assert nurseries(agent) == 0
                assert agent._nursery is None
                assert (await agent.ask("go")).text == "ok"

    def unwanted() -> None:
        raise RuntimeError("nobody wants it")

    play(run, seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_stop_at_the_end_of_the_last_child_ends_its_parent(seed: int) -> None:
    """C27: what a listener stops the program with as a resting agent's last child ends is raised
    by that agent's nursery, and the agent is torn down like any other."""
    gone: list[str] = []

    async def run() -> None:
        living = tasks()
        with pytest.raises(KeyboardInterrupt, match="enough"):
            async with engine_on(talking()) as engine:
                parent = (await engine.agents.create(**ROUTE, session_id="p")).agent
                child = await engine.agents.create(**ROUTE, session_id="c", parent=parent)
                await settled()

                def stop(agent: Agent) -> None:
                    gone.append(agent.id)
                    if agent.id == "c":
                        raise KeyboardInterrupt("enough")

                engine.scope.hooks.agent_disposed.listen(stop)
                child.begin_disposal()
                await trio.sleep_forever()
        assert parent.disposed
        assert parent._state.leaving
        assert tasks() == living

    play(run, seed=seed)
    assert gone == ["c", "p"]


@played
async def test_the_task_of_an_agent_at_rest_is_its_own() -> None:
    """C43: whoever looks at the tasks of a program can tell whose it is."""
    async with engine_on(talking()) as engine:
        agent = (await engine.agents.create(**ROUTE)).agent
        await settled()
        assert agent._task is not None
        assert agent._task.context.run(current_agent) is agent
        assert (await agent.ask("go")).text == "ok"
        await settled()
        assert agent._task.context.run(current_agent) is agent


# --- told to end before the first step of its task ----------------------------------------


@pytest.mark.parametrize("asked", [False, True], ids=["fresh", "asked"])
@pytest.mark.parametrize("way", ["dispose", "begin", "block", "parent", "host", "engine"])
def test_an_agent_may_end_before_its_first_step(way: str, asked: bool) -> None:
    """C27 C28 C35: it is handed over before its task has run; nothing of it is left after the
    end, and its id is free. Input is discarded by whoever disposes, and kept when others go."""
    agents: list[Agent] = []

    async def run() -> None:
        store = MemoryStore()
        living = tasks()
        with trio.CancelScope() as host:
            async with engine_on(talking(), store=store) as engine:
                heard = listen(engine)
                parent = await engine.agents.create(**ROUTE, session_id="p")
                owner = parent.agent if way == "parent" else None

                def take(agent: Agent) -> None:
                    agents.append(agent)
                    if asked:
                        agent.followup("go")

                if way == "block":
                    async with engine.open_agent(**ROUTE, session_id="a") as agent:
                        take(agent)
                else:
                    handle = await engine.agents.create(**ROUTE, session_id="a", parent=owner)
                    take(handle.agent)
                    if way == "dispose":
                        await handle.dispose()
                    elif way == "begin":
                        handle.begin_disposal()
                        await settled()
                    elif way == "parent":
                        await parent.dispose()
                    elif way == "host":
                        host.cancel()
                        await trio.sleep_forever()
                if way != "engine":
                    assert engine.agents.get("a") is None
                    assert "a" in heard
                    again = await engine.agents.resume("a", **ROUTE)
                    assert again.agent.inbox.next_turn == agents[0].inbox.next_turn
        assert tasks() == living

    play(run)
    (agent,) = agents
    assert agent.disposed
    assert agent.status == "idle"
    stopped = asked and way in ("parent", "host", "engine")
    assert [m.text for m in agent.inbox.next_turn] == ["go"] * stopped
    turns = [event.data for event in agent.session.events if isinstance(event.data, TurnEnd)]
    assert len(turns) <= stopped
    assert all(isinstance(turn.ending, Aborted) for turn in turns)


def listen(engine: Engine) -> list[str]:
    """The ids of agents that are disposed of."""
    gone: list[str] = []
    engine.scope.hooks.agent_disposed.listen(lambda agent: gone.append(agent.session.id))
    return gone


@pytest.mark.parametrize("seed", range(10))
def test_a_child_of_an_agent_whose_task_has_not_run(seed: int) -> None:
    """C16: its creation waits for the nursery, in whatever order the two tasks run."""

    async def run() -> None:
        async with engine_on(talking()) as engine:
            parent = (await engine.agents.create(**ROUTE, session_id="p")).agent
            child = (await engine.agents.create(**ROUTE, session_id="c", parent=parent)).agent
            assert engine.agents.is_owned_by("c", parent)
            assert (await child.ask("go")).text == "ok"
            assert (await parent.ask("go")).text == "ok"

    play(run, seed=seed)


@pytest.mark.parametrize("what", ["cancelled", "parent disposed"])
def test_a_creation_that_waits_for_its_parents_nursery_is_rolled_back(what: str) -> None:
    """C16 C22: nothing is left of the child, and the parent rests again."""

    async def run() -> None:
        async with engine_on(talking()) as engine:
            handle = await engine.agents.create(**ROUTE, session_id="p")
            parent = handle.agent
            await settled()
            gone = listen(engine)
            scope = trio.CancelScope()

            async def strike(agent: object) -> None:
                if what == "cancelled":
                    scope.cancel()
                else:
                    handle.begin_disposal()

            engine.scope.hooks.agent_created.listen(strike)
            with scope:
                if what == "cancelled":
                    await engine.agents.create(**ROUTE, session_id="c", parent=parent)
                else:
                    with pytest.raises(AgentDisposed, match="can own no agent"):
                        await engine.agents.create(**ROUTE, session_id="c", parent=parent)
            assert scope.cancelled_caught == (what == "cancelled")
            await settled()
            assert sorted(gone) == (["c"] if what == "cancelled" else ["c", "p"])
            assert engine.agents.get("c") is None
            assert parent._state.adopting == 0
            assert parent._nursery is None
            if what == "cancelled":
                assert (await parent.ask("go")).text == "ok"

    play(run)


@played
async def test_no_ctrl_c_comes_between_the_start_of_a_task_and_its_release() -> None:
    """C16 C173: an agent has a task, is counted by its parent and is released, or nothing of it
    is; a parent that counts too few would rest while a child lives, and hear of nothing."""
    protected: list[bool] = []
    start = RunState.release

    def release(state: RunState) -> None:
        protected.append(trio.lowlevel.currently_ki_protected())
        start(state)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunState, "release", release)
        async with engine_on(talking()) as engine:
            parent = (await engine.agents.create(**ROUTE)).agent
            child = await engine.agents.create(**ROUTE, parent=parent)
            assert parent._state.children == 1
            await child.dispose()
            await settled()
            assert parent._state.children == 0
    assert protected == [True, True]


@pytest.mark.parametrize("name", POINTS)
def test_a_point_is_made_once_and_is_of_its_kind(name: str) -> None:
    outer = Hooks.over(None)
    inner = Hooks.over(outer)
    point = getattr(inner, name)
    assert isinstance(point, (Waterfall, Serial, Notification))
    assert point.name == name
    assert getattr(inner, name) is point
    assert point.parent is getattr(outer, name)


@pytest.mark.parametrize("name", POINTS)
def test_an_outer_listener_is_heard_whenever_it_came(name: str) -> None:
    """Before or after the inner point was asked for; and never the reverse (C40, C41)."""
    outer = Hooks.over(None)
    early, late = Hooks.over(outer), Hooks.over(outer)
    assert not getattr(early, name)
    registration = getattr(outer, name).listen(print)
    assert getattr(early, name).listeners() == getattr(late, name).listeners() == (print,)
    registration.remove()
    getattr(early, name).listen(repr)
    assert not getattr(outer, name)
    assert not getattr(late, name)


@pytest.mark.parametrize("asked_before", [True, False])
@pytest.mark.parametrize("name", POINTS)
def test_nothing_is_registered_after_the_end(name: str, asked_before: bool) -> None:
    """Neither on a point there was, nor on one that is made then."""
    hooks = Hooks.over(None)
    if asked_before:
        getattr(hooks, name).listen(print)
    hooks.close()
    assert not getattr(hooks, name)
    with pytest.raises(ScopeClosed, match=name):
        getattr(hooks, name).listen(print)


async def test_another_thread_cannot_make_a_point() -> None:
    """It gets the error that registering there gives."""
    hooks = Hooks.over(None)
    with pytest.raises(WrongThread, match="pre_step"):
        await trio.to_thread.run_sync(partial(getattr, hooks, "pre_step"))
    assert not hooks.pre_step


def test_what_is_no_hook_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="'Hooks' object has no attribute 'pre_stop'"):
        Hooks.over(None).pre_stop  # type: ignore[attr-defined]  # noqa: B018
