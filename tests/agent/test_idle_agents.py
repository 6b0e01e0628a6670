"""What an agent is while it does nothing: few objects, and hook points that nobody misses.

Hook points are made when somebody asks for them, which nobody may be able to tell.
"""

from __future__ import annotations

import gc
from functools import partial

import pytest
import trio
from tests.agent.kit import ROUTE, engine_on

from terzetto import WrongThread
from terzetto.agent._hooks import _KINDS, Hooks
from terzetto.hooks import Notification, Serial, Waterfall
from terzetto.llm.scripted import ScriptedModel, answer, say
from terzetto.vocabulary import ScopeClosed

MOST = 160
"""Objects of a fresh agent that the garbage collector looks at; a full collection is the
longest pause of a program with many agents."""
POINTS = sorted(_KINDS)


async def test_an_idle_agent_is_few_objects() -> None:
    async with engine_on(ScriptedModel([answer(say("ok"))] * 3)) as engine:
        await engine.agents.create(**ROUTE)
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(20):
            await engine.agents.create(**ROUTE)
        gc.collect()
        assert 20 < (len(gc.get_objects()) - before) / 20 <= MOST


async def test_the_nursery_that_started_an_agent_is_let_go() -> None:
    """A start has a nursery of its own, which the task's frames must not keep."""
    async with engine_on(ScriptedModel([])) as engine:
        gc.collect()
        before = sum(isinstance(known, trio.Nursery) for known in gc.get_objects())
        await engine.agents.create(**ROUTE)
        gc.collect()
        after = sum(isinstance(known, trio.Nursery) for known in gc.get_objects())
        assert after == before + 1


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
