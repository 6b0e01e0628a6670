"""Choosing models and owning children: what a program may rely on."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.agent.kit import (
    ROUTE,
    check,
    ending_kinds,
    engine_on,
    pending,
    play,
    played,
    settled,
    texts_of,
)
from tests.agent.rig import Fussy, log, one
from tests.whole import whole

from terzetto import (
    Agent,
    AgentBusy,
    InvalidValue,
    ModelSelection,
    ToolRun,
    WouldDeadlock,
    current_agent,
    tool,
)
from terzetto.llm.scripted import Gate, Hang, ScriptedModel, answer, call, say
from terzetto.vocabulary import ModelSelected

# --- models ---------------------------------------------------------------------------------


@played
async def test_the_current_model_is_the_latest_choice_else_the_one_it_was_made_with() -> None:
    """C85 C88: a choice is an event at once, before any step takes it."""
    async with one(["ok"], effort="low") as life:
        model = life.agent.model
        assert model.current() == ModelSelection("scripted", "m", "low")
        assert whole(life.session) == []
        made = model.select("scripted", "big", "high")
        assert made == model.current() == ModelSelection("scripted", "big", "high")
        assert [type(event.data) for event in life.session.events] == [ModelSelected]
        assert life.agent.status == "idle", "choosing wakes nobody"
        assert model.select("scripted", "big") == ModelSelection("scripted", "big", None)


@played
async def test_an_agent_without_a_route_has_no_current_model() -> None:
    """C9: until one is chosen."""
    async with engine_on(ScriptedModel(["ok"])) as engine, engine.open_agent() as agent:
        assert agent.model.current() is None
        agent.model.select("scripted", "m")
        assert (await agent.ask("go")).text == "ok"


WRONG: dict[str, tuple[Any, ...]] = {
    "empty provider": ("", "m"),
    "empty model": ("scripted", ""),
    "no provider": (None, "m"),
    "no model": ("scripted", None),
    "empty effort": ("scripted", "m", ""),
    "effort in numbers": ("scripted", "m", 3),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_choice_that_names_nothing_is_refused_and_not_recorded(name: str) -> None:
    """C9: non-empty names; says which one and what came."""

    @played
    async def run() -> None:
        async with one() as life:
            with pytest.raises(InvalidValue, match=r"(provider|model|effort): expected"):
                life.agent.model.select(*WRONG[name])
            assert whole(life.session) == []
            assert life.agent.model.current() == ModelSelection("scripted", "m")

    run()


@played
async def test_a_choice_while_a_request_streams_leaves_that_request_alone() -> None:
    """C86: it is in the log between the chunks; the next step takes it."""
    async with one(Fussy(lambda request: answer(say("part"), Gate("go"), "ok"))) as life:
        life.agent.followup("first")
        await settled()
        life.agent.model.select("scripted", "next", "low")
        life.agent.steer("second")
        life.model.gates.open("go")
        await life.agent.wait_idle()
        assert [(r.config.model, r.config.effort) for r in life.model.requests] == [
            ("m", None),
            ("next", "low"),
        ]
        at = log(life.session)
        assert at.index("model/selected") < at.index("assistant/message")
        check(life.session)


@played
async def test_one_agents_choice_is_nobody_elses() -> None:
    """C88: it is the session's."""
    async with engine_on(ScriptedModel(lambda r: r.config.model)) as engine:
        async with engine.open_agent(**ROUTE) as a, engine.open_agent(**ROUTE) as b:
            a.model.select("scripted", "other")
            assert [(await a.ask("x")).text, (await b.ask("x")).text] == ["other", "m"]


# --- children -------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["parent", "grandparent"])
@pytest.mark.parametrize("what", ["ask", "typed ask", "wait_idle", "dispose", "engine.wait_idle"])
def test_a_child_may_not_wait_for_those_that_wait_for_it(what: str, target: str) -> None:
    """C46: from a child's tool every ancestor is busy waiting; it is told so at once."""

    @played
    async def run() -> None:
        refused: list[str] = []

        @tool
        async def act(run: ToolRun) -> str:
            """Act."""
            me = engine.agents.get(run.agent.id)
            assert me is not None
            if me.id != last:
                async with engine.open_agent(**ROUTE, session_id=f"{me.id}.c", parent=me) as child:
                    return (await child.ask("act")).text
            handle = handles[0]
            ancestor = engine.agents.get("p" if target == "grandparent" else "p.c")
            assert ancestor is not None
            with pytest.raises(WouldDeadlock):
                if what == "ask":
                    await ancestor.ask("me")
                elif what == "typed ask":
                    await ancestor.ask("me", returns=int)
                elif what == "wait_idle":
                    await ancestor.wait_idle()
                elif what == "dispose":
                    await handle.dispose()
                else:
                    await engine.wait_idle()
            with pytest.raises(AgentBusy):
                await ancestor.run_maintenance(trio.sleep, 0)
            refused.append(what)
            return "refused"

        def reply(request: Any) -> Any:
            return call("act") if texts_of(request.messages)[-1] == "act" else "done"

        last = "p.c.c"
        async with engine_on(ScriptedModel(reply), [act]) as engine:
            handles = [await engine.agents.create(**ROUTE, session_id="p")]
            turn = await handles[0].agent.ask("act")
            assert (refused, turn.reason) == ([what], "completed")

    run()


@played
async def test_a_child_is_a_peer_in_the_registry_and_ends_with_its_parents_block() -> None:
    """C33 C34: listed in order of creation, no root, owned; gone when the parent is."""
    async with engine_on(ScriptedModel(lambda r: answer(say("half"), Hang()))) as engine:
        async with engine.open_agent(**ROUTE, session_id="p") as parent:
            child = (await engine.agents.create(**ROUTE, session_id="c", parent=parent)).agent
            assert (child.parent, parent.parent) == (parent, None)
            assert engine.agents.list() == [parent, child]
            assert engine.agents.roots() == [parent]
            assert engine.agents.is_owned_by("c", parent)
            assert engine.statistics().agents_living == 2
            child.followup("go")
            await settled()
            assert engine.statistics().agents_running == 1
        assert engine.agents.list() == []
        assert child.disposed
        assert ending_kinds(child.session) == ["Aborted ParentCause"]
        check(child.session)


@played
async def test_a_childs_end_is_its_own_affair() -> None:
    """C35: disposing of a child ends it `disposed`; its parent and its sibling go on."""
    async with engine_on(ScriptedModel(lambda r: answer(Gate("go"), "ok"))) as engine:
        async with engine.open_agent(**ROUTE) as parent:
            first = await engine.agents.create(**ROUTE, parent=parent)
            second = await engine.agents.create(**ROUTE, parent=parent)
            for agent in (parent, first.agent, second.agent):
                agent.followup("go")
            await settled()
            await first.dispose()
            assert ending_kinds(first.agent.session) == ["Aborted DisposedCause"]
            assert (parent.status, second.agent.status) == ("running", "running")
            parent.cancel()
            second.agent.cancel()
            await parent.wait_idle()
            await second.agent.wait_idle()


@played
async def test_a_parents_cancel_leaves_children_that_live_beside_its_turn() -> None:
    """C34: a child belongs to the agent, not to the turn; only one in the turn's block ends."""
    async with engine_on(ScriptedModel(lambda r: answer(Gate("go"), "ok"))) as engine:
        async with engine.open_agent(**ROUTE) as parent:
            child = (await engine.agents.create(**ROUTE, parent=parent)).agent
            parent.followup("go")
            child.followup("go")
            await settled()
            parent.cancel()
            await parent.wait_idle()
            assert child.status == "running"
            child.cancel()
            await child.wait_idle()
            assert ending_kinds(child.session) == ["Aborted UserCause"]


@pytest.mark.parametrize("seed", range(3))
def test_a_tool_may_make_use_and_dispose_of_a_child_by_handle(seed: int) -> None:
    """C35 C46: the handle's holder is outside of the child, although inside of the parent."""
    seen: list[Agent | None] = []

    @tool
    async def delegate(run: ToolRun) -> str:
        """Delegate."""
        parent = engine_[0].agents.get(run.agent.id)
        handle = await engine_[0].agents.create(**ROUTE, parent=parent, tools=[inner])
        text = (await handle.agent.ask("child")).text
        await handle.dispose()
        assert handle.agent.disposed
        return text

    @tool
    async def inner() -> str:
        """Inner."""
        seen.append(current_agent())
        return "inner"

    def reply(request: Any) -> Any:
        last = texts_of(request.messages)[-1]
        return {"parent": call("delegate"), "child": call("inner")}.get(last, "done")

    engine_: list[Any] = []

    async def run() -> None:
        async with engine_on(ScriptedModel(reply), [delegate]) as engine:
            engine_.append(engine)
            async with engine.open_agent(**ROUTE) as parent:
                turn = await parent.ask("parent")
                assert turn.text == "done"
                assert engine.agents.list() == [parent]
                (child,) = seen
                assert child is not None
                assert child.parent is parent
                assert pending(parent) == []

    play(run, seed=seed)


@played
async def test_a_hook_of_the_parent_does_not_hear_its_child() -> None:
    """C41: a parent owns its child's life, not its scope; the engine's listeners hear both."""
    async with engine_on(ScriptedModel(["ok"])) as engine, engine.open_agent(**ROUTE) as parent:
        heard: list[str] = []
        parent.scope.hooks.status.listen(lambda change: heard.append(f"parent's {change.status}"))
        engine.scope.hooks.status.listen(lambda change: heard.append(f"engine's {change.status}"))
        async with engine.open_agent(**ROUTE, parent=parent) as child:
            await child.ask("go")
        assert heard == ["engine's running", "engine's idle"]
