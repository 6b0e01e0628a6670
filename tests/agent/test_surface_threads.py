"""Plain methods belong to the Trio thread: each of them says so before anything changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import trio
from tests.agent.kit import ROUTE, engine_on, pending
from tests.whole import whole

import terzetto
from terzetto import Agent, AgentModel, Inbox, Registration, Session, UserMessage, WrongThread, tool
from terzetto.agent import AgentScope, Hooks
from terzetto.llm.scripted import ScriptedModel
from terzetto.vocabulary import InboxSpliced

Act = Callable[[Agent], object]


@tool
def spare() -> str:
    """Spare."""
    return ""


def _known(agent: Agent) -> Any:
    return agent.inbox.next_turn[0].id


CHANGES: dict[type, dict[str, Act]] = {
    Agent: {
        "followup": lambda agent: agent.followup("x"),
        "steer": lambda agent: agent.steer("x"),
        "inject": lambda agent: agent.inject("x"),
        "send": lambda agent: agent.send("x", "next-step", False),
        "interrupt": lambda agent: agent.interrupt("x"),
        "cancel": lambda agent: agent.cancel(),
        "statistics": lambda agent: agent.statistics(),
        "wake": lambda agent: agent.wake(),
    },
    Inbox: {
        "append": lambda agent: agent.inbox.append("next-turn", UserMessage("x")),
        "prepend": lambda agent: agent.inbox.prepend("next-turn", UserMessage("x")),
        "replace": lambda agent: agent.inbox.replace(_known(agent), UserMessage("x")),
        "remove": lambda agent: agent.inbox.remove(_known(agent)),
        "clear": lambda agent: agent.inbox.clear(),
        "splice": lambda agent: agent.inbox.splice("next-turn", 0, 1),
    },
    AgentModel: {"select": lambda agent: agent.model.select("scripted", "other")},
    Session: {
        "append": lambda agent: agent.session.append(InboxSpliced("next-turn", 0, 1)),
        "record": lambda agent: agent.session.record("mine/note", {}),
        "replace": lambda agent: agent.session.replace(0, 0, [UserMessage("x")]),
        "observe": lambda agent: agent.session.observe(print),
        "follow": lambda agent: agent.session.follow(),
        "check_thread": lambda agent: agent.session.check_thread(),
    },
    AgentScope: {
        "add_tool": lambda agent: agent.scope.add_tool(spare),
        "restrict": lambda agent: agent.scope.restrict(allow=[]),
        "guard": lambda agent: agent.scope.guard(lambda hook: None),
        "add_section": lambda agent: agent.scope.add_section("x", "x"),
        "set_variable": lambda agent: agent.scope.set_variable("x", "x"),
        "add_context": lambda agent: agent.scope.add_context("x", "x"),
        "order_tools": lambda agent: agent.scope.order_tools(["x"]),
    },
}
"""Every plain method that changes something, or that begins to watch it."""

READS: dict[type, set[str]] = {
    Agent: {"history", "last_turn"},
    Inbox: set(),
    AgentModel: {"current"},
    Session: {"history"},
    AgentScope: set(),
}
"""Plain methods that look at what cannot change under them."""

OF_THE_ENGINE: dict[type, set[str]] = {
    Session: {"append_draft", "after_append", "detach", "compacting", "release", "saved"},
    AgentScope: {"close", "compose"},
}
"""Not for users of these objects; some need no check because what they call has one."""

CALLS = [(kind, name) for kind, acts in CHANGES.items() for name in acts]


def plain_methods(kind: type) -> set[str]:
    return {
        name
        for name, value in vars(kind).items()
        if not name.startswith("_")
        and inspect.isfunction(value)
        and not inspect.iscoroutinefunction(value)
    }


@pytest.mark.parametrize("kind", CHANGES, ids=lambda kind: kind.__name__)
def test_every_plain_method_is_in_these_tables(kind: type) -> None:
    """A method that is added later has to be put in one of them, and tested."""
    listed = {*CHANGES[kind], *READS[kind], *OF_THE_ENGINE.get(kind, ())}
    assert plain_methods(kind) == listed


def state_of(agent: Agent) -> list[object]:
    scope = agent.scope
    return [
        whole(agent.session),
        pending(agent),
        agent.status,
        agent.model.current(),
        sorted(scope.tools.visible()),
        len(scope.tools.guards()),
        scope.prompt.render(agent, {}),
        scope.prompt.context(agent),
        len(scope.lifetime._owned or ()),
        len(agent.session.observers.listeners()),
    ]


@pytest.mark.parametrize(("kind", "name"), CALLS, ids=lambda part: getattr(part, "__name__", part))
async def test_another_thread_is_refused_before_anything_changes(kind: type, name: str) -> None:
    """WrongThread, with what to do instead; from a real thread, one that Trio started."""
    async with engine_on(ScriptedModel()) as engine, engine.open_agent(**ROUTE) as agent:
        agent.inbox.append("next-turn", UserMessage("pending"))
        before = state_of(agent)
        with pytest.raises(WrongThread, match=r"trio\.from_thread\.run_sync"):
            await trio.to_thread.run_sync(CHANGES[kind][name], agent)
        assert state_of(agent) == before
        agent.inbox.clear()


@pytest.mark.parametrize("point", [name for name in Hooks.__slots__ if not name.startswith("_")])
async def test_a_listener_is_added_and_removed_in_the_trio_thread(point: str) -> None:
    """C37: a registration is the scope's, and its removal too."""
    async with engine_on(ScriptedModel()) as engine, engine.open_agent(**ROUTE) as agent:
        hook = getattr(agent.scope.hooks, point)
        with pytest.raises(WrongThread):
            await trio.to_thread.run_sync(hook.listen, print)
        assert hook.listeners() == ()
        registration: Registration = hook.listen(print)
        with pytest.raises(WrongThread):
            await trio.to_thread.run_sync(registration.remove)
        assert registration.active
        assert len(hook.listeners()) == 1
        registration.remove()
        assert hook.listeners() == ()


async def test_an_edit_that_would_change_nothing_is_refused_as_well() -> None:
    """Whether a call is allowed does not depend on what happens to be pending."""
    async with engine_on(ScriptedModel()) as engine, engine.open_agent(**ROUTE) as agent:
        selection = agent.model.select("scripted", "m")
        for act in (
            lambda: agent.inbox.clear(),
            lambda: agent.inbox.remove(terzetto.UserMessage("gone").id),
            lambda: agent.model.select(selection.provider, selection.model),
        ):
            with pytest.raises(WrongThread):
                await trio.to_thread.run_sync(act)


async def test_what_a_thread_may_do_it_does_through_trio() -> None:
    """The advice in the message works."""
    async with engine_on(ScriptedModel(["ok"])) as engine, engine.open_agent(**ROUTE) as agent:
        await trio.to_thread.run_sync(lambda: trio.from_thread.run_sync(agent.followup, "go"))
        await agent.wait_idle()
        assert agent.session.place.last_turn == 1


@pytest.mark.parametrize("name", ["ask", "wait_idle", "wait_status", "run_maintenance", "complete"])
async def test_another_trio_run_is_refused(name: str) -> None:
    """An agent belongs to one run: a second one, in a thread, may not wait for it."""
    async with engine_on(ScriptedModel()) as engine, engine.open_agent(**ROUTE) as agent:
        calls: dict[str, Callable[[], Any]] = {
            "ask": lambda: agent.ask("x"),
            "wait_idle": agent.wait_idle,
            "wait_status": lambda: agent.wait_status("running"),
            "run_maintenance": lambda: agent.run_maintenance(trio.sleep, 0),
            "complete": lambda: agent.complete("x"),
        }
        before = whole(agent.session)
        with pytest.raises(WrongThread):
            await trio.to_thread.run_sync(lambda: trio.run(calls[name]))
        assert whole(agent.session) == before


async def test_a_tools_thread_knows_its_agent_and_may_use_its_run() -> None:
    """C43: the initiator is seen in the thread of a plain tool; `ToolRun` may be used there."""
    seen: list[object] = []

    @tool
    def look(run: terzetto.ToolRun) -> str:
        """Look."""
        seen.append(terzetto.current_agent())
        run.defer_context("from the thread")
        with pytest.raises(WrongThread):
            agent.followup("x")
        return "ok"

    model = ScriptedModel([terzetto.llm.scripted.call("look"), "done"])
    async with engine_on(model, [look]) as engine, engine.open_agent(**ROUTE) as agent:
        turn = await agent.ask("go")
        assert seen == [agent]
        assert turn.text == "done"
        assert terzetto.current_agent() is None
