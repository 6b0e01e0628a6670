"""A hook cannot hang or silently disable the loop (BC-50), at every point that is awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from tests.agent.kit import (
    ROUTE,
    check,
    codes,
    ending_kinds,
    endings,
    engine_on,
    pending,
    play,
    played,
    results,
    settled,
    texts_of,
)

from terzetto import (
    Agent,
    Engine,
    HookCause,
    TextBlock,
    ToolOutcome,
    ToolRun,
    TurnFailed,
    tool,
)
from terzetto.agent import End, Enter, Retry
from terzetto.llm.scripted import ScriptedModel, answer, call, finish_error, say
from terzetto.testing._invariants import BodyRecord, history_is_valid
from terzetto.tools import Allow, Ask
from terzetto.vocabulary import Aborted, Failed, UserCause, texts

WATERFALLS = [
    "pre_step",
    "assemble",
    "request",
    "stream",
    "request_error",
    "tool_pre_execute",
    "tool_execute",
    "tool_post_execute",
]
POINTS = [*WATERFALLS, "turn_stopping", "approver", "inside the stream", "after the decision"]
BEFORE_ADMISSION = {"pre_step", "assemble", "request", "after the decision"}
IN_TOOLS = {"tool_pre_execute", "tool_execute", "tool_post_execute", "approver"}


class Scene:
    """An agent whose first turn meets *act* at *point*, once; later turns are plain."""

    def __init__(self, point: str, act: Any) -> None:
        self.point = point
        self.act = act
        self.met: list[str] = []
        self.bodies: list[BodyRecord] = []
        failing = [answer(say("half"), finish_error())] if point == "request_error" else []
        self.model = ScriptedModel(
            [
                *failing,
                answer(say("Looking."), call("look", id="c1"), call("look", id="c2")),
                "done",
                "again",
                "more",
            ]
        )

        @tool
        async def look(run: ToolRun) -> str:
            """Look."""
            record = BodyRecord(run.call_id, 0, False, left_at=0)
            self.bodies.append(record)
            await trio.lowlevel.checkpoint()
            record.returned = True
            return "seen"

        self.tools = [look]

    async def meet(self) -> bool:
        """Act at the first meeting; whether this was it."""
        if self.met:
            return False
        self.met.append(self.point)
        await self.act()
        return True

    async def approve(self, hook: Any, reason: str) -> bool:
        if self.point == "approver":
            await self.meet()
        return True

    def install(self, engine: Engine) -> None:
        hooks, point = engine.scope.hooks, self.point

        async def around(value: Any, proceed: Any) -> Any:
            if point == "after the decision":
                decision = await proceed()
                await self.meet()
                return decision
            await self.meet()
            return await proceed()

        async def serial(value: Any) -> None:
            await self.meet()

        async def ask(value: Any, proceed: Any) -> Any:
            return Ask("sure?")

        async def tap(value: Any, proceed: Any) -> Any:
            return Tap(self, await proceed())

        if point == "turn_stopping":
            hooks.turn_stopping.listen(serial)
        elif point == "approver":
            hooks.tool_pre_execute.listen(ask)
        elif point == "inside the stream":
            hooks.stream.listen(tap)
        elif point == "after the decision":
            hooks.pre_step.listen(around)
        else:
            getattr(hooks, point).listen(around)


class Tap:
    """A stream that acts before its second chunk."""

    def __init__(self, scene: Scene, stream: Any) -> None:
        self.scene = scene
        self.stream = stream

    async def __aenter__(self) -> AsyncIterator[Any]:
        self.chunks = await self.stream.__aenter__()
        self.count = 0
        return self

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        self.count += 1
        if self.count == 3:
            await self.scene.meet()
        return await self.chunks.__anext__()

    async def __aexit__(self, *args: Any) -> Any:
        return await self.stream.__aexit__(*args)


@pytest.mark.parametrize("keep_inbox", [True, False])
@pytest.mark.parametrize("point", POINTS)
def test_a_hook_that_sleeps_for_ever_is_cancelled_at_once(point: str, keep_inbox: bool) -> None:
    """BC-50 C128: the turn's signal covers every hook; the turn ends aborted, history is valid,
    claimed input is put back or discarded on the record, and the next turn runs."""

    @played
    async def run() -> None:
        scene = Scene(point, trio.sleep_forever)
        async with engine_on(scene.model, scene.tools, approver=scene.approve) as engine:
            scene.install(engine)
            async with engine.open_agent(**ROUTE) as agent:
                agent.inject("note")
                agent.followup("go")
                await settled()
                assert scene.met == [point]
                start = trio.current_time()
                agent.cancel(HookCause("stuck"), keep_inbox=keep_inbox)
                await agent.wait_idle()
                assert trio.current_time() == start, "at once"
                assert endings(agent.session) == [Aborted(HookCause("stuck"))]
                if point in BEFORE_ADMISSION:
                    assert pending(agent) == (["note", "go"] if keep_inbox else [])
                    assert list(agent.history()) == []
                else:
                    assert pending(agent) == []
                    assert "go" in texts_of(agent.history())
                _calls_are_true(scene, agent)
                check(agent.session, scene.bodies)
                assert history_is_valid(agent.history()) == []
                assert (await agent.ask("again")).reason == "completed"
                check(agent.session)

    run()


def _calls_are_true(scene: Scene, agent: Agent) -> None:
    """No body ran before its policy had spoken; a review cut short withholds the result."""
    if scene.point in IN_TOOLS:
        first = texts.ABORTED_BEFORE_DISPATCH
        if scene.point == "tool_post_execute":
            first = texts.ABORTED
            # DESIGN 6 withholds what a listener might have redacted: its own outcome is this.
            scene.bodies[0].returned = False
        assert codes(agent.session) == {"c1": first, "c2": texts.ABORTED_BEFORE_DISPATCH}


@pytest.mark.parametrize("how", ["dispose", "host cancel", "host deadline"])
@pytest.mark.parametrize("point", POINTS)
def test_a_hook_that_sleeps_for_ever_holds_nobody_up(point: str, how: str) -> None:
    """BC-50 C176: neither disposal nor the host's own stop waits for it."""

    @played
    async def run() -> None:
        scene = Scene(point, trio.sleep_forever)
        with trio.CancelScope() as host:
            async with engine_on(scene.model, scene.tools, approver=scene.approve) as engine:
                scene.install(engine)
                async with engine.open_agent(**ROUTE) as agent:
                    agent.inject("note")
                    agent.followup("go")
                    await settled()
                    start = trio.current_time()
                    if how == "host cancel":
                        host.cancel()
                        await trio.sleep_forever()
                    elif how == "host deadline":
                        host.deadline = start + 1
                        await trio.sleep_forever()
        assert trio.current_time() <= start + 1
        assert ending_kinds(agent.session) == ["Aborted DisposedCause"]
        kept = point in BEFORE_ADMISSION and how != "dispose"
        assert pending(agent) == (["note", "go"] if kept else [])
        _calls_are_true(scene, agent)
        check(agent.session, scene.bodies)

    run()


@pytest.mark.parametrize("point", POINTS)
def test_a_hook_that_absorbs_its_cancel_does_not_save_the_turn(point: str) -> None:
    """BC-03 C128 C130: what it returns or raises afterwards counts for nothing: no further request,
    no further body, the turn is aborted."""

    @played
    async def run() -> None:
        async def absorb() -> None:
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                pass

        scene = Scene(point, absorb)
        async with engine_on(scene.model, scene.tools, approver=scene.approve) as engine:
            scene.install(engine)
            async with engine.open_agent(**ROUTE) as agent:
                agent.followup("go")
                await settled()
                requests, bodies = scene.model.attempts, len(scene.bodies)
                agent.cancel(keep_inbox=True)
                await agent.wait_idle()
                assert endings(agent.session) == [Aborted(UserCause())]
                assert scene.model.attempts == requests
                assert len(scene.bodies) == bodies
                if point in BEFORE_ADMISSION:
                    assert pending(agent) == ["go"]
                check(agent.session)
                assert history_is_valid(agent.history()) == []

    run()


@pytest.mark.parametrize("point", POINTS)
def test_a_hook_whose_cleanup_raises_does_not_replace_the_cancel(point: str, caplog: Any) -> None:
    """BC-12 (c): outcome cancelled; the cleanup's error does not become the ending."""

    async def run() -> None:
        async def fail() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise RuntimeError("cleanup failed")

        scene = Scene(point, fail)
        async with engine_on(scene.model, scene.tools, approver=scene.approve) as engine:
            scene.install(engine)
            async with engine.open_agent(**ROUTE) as agent:
                agent.followup("go")
                await settled()
                agent.cancel(keep_inbox=True)
                await agent.wait_idle()
                assert endings(agent.session) == [Aborted(UserCause())]
                if point in BEFORE_ADMISSION:
                    assert pending(agent) == ["go"]
                check(agent.session)

    played(run)()


@pytest.mark.parametrize("whose", ["the turn's cancel", "a cancel of the hook's own"])
def test_a_cancelled_is_never_stored_or_formatted_as_an_error(whose: str, caplog: Any) -> None:
    """BC-12: neither in `turn/end` nor in a log record, also where an error was raised from it."""

    async def run() -> None:
        async def fail() -> None:
            with trio.CancelScope() as scope:
                if whose != "the turn's cancel":
                    scope.cancel()
                try:
                    await trio.sleep_forever()
                except trio.Cancelled:
                    raise RuntimeError("gave up")  # noqa: B904

        scene = Scene("pre_step", fail)
        async with engine_on(scene.model, scene.tools) as engine:
            scene.install(engine)
            async with engine.open_agent(**ROUTE) as agent:
                agent.followup("go")
                await settled()
                agent.cancel()
                await agent.wait_idle()
                (ending,) = endings(agent.session)
        told = [r.getMessage() for r in caplog.records]
        if isinstance(ending, Failed):
            assert ending.error.message == "gave up"
        assert not any("cancelled due to" in text for text in told), told

    played(run)()


@pytest.mark.parametrize("point", POINTS)
def test_a_hook_that_raises_ends_the_turn_or_the_call_as_the_contract_says(
    point: str, caplog: Any
) -> None:
    """C68 C132 BC-50: an extension's failure closes the turn with its error; around a tool it is
    that call's error result, and a call whose policy failed is not let through."""

    async def run() -> None:
        async def fail() -> None:
            raise ValueError("a defect of the hook")

        scene = Scene(point, fail)
        heard: list[object] = []
        async with engine_on(scene.model, scene.tools, approver=scene.approve) as engine:
            scene.install(engine)
            engine.scope.hooks.agent_error.listen(lambda v: heard.append(v.error))
            async with engine.open_agent(**ROUTE) as agent:
                if point in IN_TOOLS:
                    turn = await agent.ask("go")
                    assert turn.reason == "completed"
                    assert heard == []
                    assert "a defect of the hook" in results(agent.session)["c1"]
                    assert results(agent.session)["c2"] == "seen"
                    ran = [body.call_id for body in scene.bodies]
                    assert ran == (["c1", "c2"] if point == "tool_post_execute" else ["c2"])
                elif point == "inside the stream":
                    # C109: a listener's stream is not an adapter's: what it raises stays thrown.
                    with pytest.raises(TurnFailed) as caught:
                        await agent.ask("go")
                    assert isinstance(caught.value.__cause__, ValueError)
                    assert scene.model.attempts == 1
                else:
                    with pytest.raises(TurnFailed) as caught:
                        await agent.ask("go")
                    assert isinstance(caught.value.__cause__, ValueError)
                    (ending,) = endings(agent.session)
                    assert isinstance(ending, Failed)
                    assert (ending.error.code, ending.error.message) == (
                        "UNKNOWN",
                        "a defect of the hook",
                    )
                    assert heard == [caught.value.__cause__]
                assert agent.status == "idle"
                check(agent.session)
                assert history_is_valid(agent.history()) == []
                assert (await agent.ask("again")).reason == "completed"
                check(agent.session)

    played(run)()


@pytest.mark.parametrize("point", WATERFALLS)
def test_a_hook_that_decides_nonsense_does_not_disable_the_loop(point: str, caplog: Any) -> None:
    """C68 BC-50: a listener that forgets its return value ends the turn or the call, closed."""

    async def run() -> None:
        scene = Scene("none", trio.lowlevel.checkpoint)
        if point == "request_error":
            scene = Scene("request_error", trio.lowlevel.checkpoint)
        forgot: list[str] = []

        async def forget(value: Any, proceed: Any) -> Any:
            if forgot:
                return await proceed()
            forgot.append(point)
            return None

        async with engine_on(scene.model, scene.tools) as engine:
            getattr(engine.scope.hooks, point).listen(forget)
            async with engine.open_agent(**ROUTE) as agent:
                agent.followup("go")
                await agent.wait_idle()
                assert forgot == [point]
                check(agent.session)
                if point == "tool_pre_execute":
                    assert "c1" not in [body.call_id for body in scene.bodies], (
                        "a guard that says nothing must not let the call through"
                    )
                assert (await agent.ask("again")).reason == "completed"

    played(run)()


MALFORMED = {
    "no contexts": ToolOutcome((TextBlock("x"),), False, None, None),  # type: ignore[arg-type]
    "no content": ToolOutcome(None, False),  # type: ignore[arg-type]
    "text content": ToolOutcome("x", False),  # type: ignore[arg-type]
    "wrong contexts": ToolOutcome((TextBlock("x"),), False, None, ("x",)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("which", MALFORMED)
@pytest.mark.parametrize("point", ["tool_execute", "tool_post_execute"])
def test_an_outcome_that_is_malformed_does_not_hang_the_batch(
    point: str, which: str, caplog: Any
) -> None:
    """BC-50 C125: whatever a listener makes, the batch comes to an end, every call is answered
    once, and the next turn runs."""

    async def run() -> None:
        scene = Scene("none", trio.lowlevel.checkpoint)
        made: list[str] = []

        async def make(value: Any, proceed: Any) -> Any:
            outcome = await proceed()
            if made:
                return outcome
            made.append(which)
            return MALFORMED[which]

        async with engine_on(scene.model, scene.tools) as engine:
            getattr(engine.scope.hooks, point).listen(make)
            async with engine.open_agent(**ROUTE) as agent:
                agent.followup("go")
                await agent.wait_idle()
                assert made == [which]
                assert set(codes(agent.session)) == {"c1", "c2"}
                check(agent.session)
                assert (await agent.ask("again")).reason == "completed"

    played(run)()


@pytest.mark.parametrize("point", ["tool_pre_execute", "approver"])
def test_a_policy_that_ends_under_a_shield_after_the_cancel_does_not_hang(point: str) -> None:
    """BC-50 BC-03: a policy that may not be interrupted is waited for; its call is unstarted."""

    @played
    async def run() -> None:
        async def shielded() -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep(5)

        scene = Scene(point, shielded)
        async with engine_on(scene.model, scene.tools, approver=scene.approve) as engine:
            scene.install(engine)
            async with engine.open_agent(**ROUTE) as agent:
                agent.followup("go")
                await settled()
                agent.cancel()
                await agent.wait_idle()
                assert scene.bodies == []
                assert set(codes(agent.session).values()) == {texts.ABORTED_BEFORE_DISPATCH}
                check(agent.session, scene.bodies)

    run()


@pytest.mark.parametrize(
    "hook",
    [
        "status",
        "tool_result",
        "inbox_inserted",
        "inbox_claimed",
        "inbox_discarded",
        "session_started",
        "session_created",
        "agent_error",
    ],
)
def test_a_raising_observer_does_not_change_the_turn(hook: str, caplog: Any) -> None:
    """BC-50 C139: contained per listener, logged once, the other listeners still hear."""

    async def run() -> None:
        scene = Scene("none", trio.lowlevel.checkpoint)
        heard: list[object] = []

        def fail(value: object) -> None:
            raise ValueError("a defect of the observer")

        async with engine_on(scene.model, scene.tools) as engine:
            getattr(engine.scope.hooks, hook).listen(fail)
            getattr(engine.scope.hooks, hook).listen(heard.append)
            async with engine.open_agent(**ROUTE) as agent:
                agent.session.observe(fail)
                agent.inbox.remove(agent.inject("gone"))
                turn = await agent.ask("go")
                assert (turn.reason, turn.text) == ("completed", "done")
                check(agent.session)
                if hook == "agent_error":
                    with pytest.raises(TurnFailed):
                        for _ in range(3):
                            await agent.ask("the script is over soon")
                if hook not in ("session_started", "session_created"):
                    assert heard

    played(run)()


@pytest.mark.parametrize("verdict", ["raises", "denies"])
def test_a_guard_that_fails_lets_nothing_through(verdict: str) -> None:
    """BC-50 C114: a raising guard blocks that call; its denial is final."""

    @played
    async def run() -> None:
        scene = Scene("none", trio.lowlevel.checkpoint)

        def guard(hook: Any) -> str | None:
            if hook.call.id != "c1":
                return None
            if verdict == "raises":
                raise ValueError("a defect of the guard")
            return "not that one"

        async def allow(value: Any, proceed: Any) -> Any:
            await proceed()
            return Allow()

        async with engine_on(scene.model, scene.tools) as engine:
            engine.scope.guard(guard)
            engine.scope.hooks.tool_pre_execute.listen(allow)
            async with engine.open_agent(**ROUTE) as agent:
                turn = await agent.ask("go")
                assert turn.reason == "completed"
                assert [body.call_id for body in scene.bodies] == ["c2"]
                assert results(agent.session)["c1"].startswith("Error: ")

    run()


@pytest.mark.parametrize("seed", range(4))
def test_a_hang_in_one_agent_is_not_a_hang_in_another(seed: int) -> None:
    """BC-50 C41: the other agents of the engine go on."""

    async def run() -> None:
        async def hang(value: Any, proceed: Any) -> Any:
            await trio.sleep_forever()

        async with engine_on(ScriptedModel(lambda r: "fine")) as engine:
            async with engine.open_agent(**ROUTE) as stuck, engine.open_agent(**ROUTE) as free:
                stuck.scope.hooks.pre_step.listen(hang)
                stuck.followup("go")
                assert (await free.ask("go")).text == "fine"
                assert stuck.status == "running"

    play(run, seed=seed)


@pytest.mark.parametrize("where", ["setup", "agent_created"])
def test_a_hang_in_creation_ends_with_the_callers_cancel(where: str) -> None:
    """BC-50 C23: what nobody's turn covers, the creator's scope does."""

    @played
    async def run() -> None:
        async def hang(agent: object) -> None:
            await trio.sleep_forever()

        async with engine_on(ScriptedModel(lambda r: "fine")) as engine:
            listening = engine.scope.hooks.agent_created.listen(
                hang if where == "agent_created" else _nothing
            )
            with trio.move_on_after(1) as scope:
                await engine.agents.create(
                    **ROUTE, session_id="a", setup=hang if where == "setup" else None
                )
            assert scope.cancelled_caught
            assert engine.agents.list() == []
            listening.remove()
            await engine.agents.create(**ROUTE, session_id="a")

    run()


async def _nothing(view: object) -> None:
    return None


@played
async def test_a_retry_for_ever_can_be_cancelled() -> None:
    """BC-05 BC-50: a policy that always retries is cut by the cancel, with nothing in between."""
    model = ScriptedModel(lambda r: answer(say("half"), finish_error()))

    async def always(value: Any, proceed: Any) -> Any:
        await trio.sleep(1)
        return Retry()

    async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
        agent.scope.hooks.request_error.listen(always)
        agent.followup("go")
        await trio.sleep(10.5)
        attempts = model.attempts
        assert attempts == 11
        agent.cancel()
        await agent.wait_idle()
        assert model.attempts == attempts
        assert ending_kinds(agent.session) == ["Aborted UserCause"]
        assert not any("half" in text for text in texts_of(agent.history())), (
            "a failed attempt is no content"
        )
        check(agent.session)


@played
async def test_a_retry_that_never_waits_can_be_cancelled_from_another_task() -> None:
    """BC-50 C128: a policy that retries without a wait leaves room for the cancel."""
    model = ScriptedModel(lambda r: answer(say("half"), finish_error()))

    async def always(value: Any, proceed: Any) -> Any:
        return Retry() if model.attempts < 5000 else End()

    async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
        agent.scope.hooks.request_error.listen(always)
        agent.followup("go")
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        agent.cancel()
        await agent.wait_idle()
        assert ending_kinds(agent.session) == ["Aborted UserCause"]
        assert model.attempts < 5000
        check(agent.session)


@played
async def test_an_enter_decision_may_replace_everything_but_not_hang() -> None:
    """C70 BC-50: a wrapper that waits and then decides is honoured."""

    async def slowly(value: Any, proceed: Any) -> Any:
        decision = await proceed()
        await trio.sleep(3)
        return Enter(decision.messages, starts_series=decision.starts_series)

    async with engine_on(ScriptedModel(lambda r: "fine")) as engine:
        async with engine.open_agent(**ROUTE) as agent:
            agent.scope.hooks.pre_step.listen(slowly)
            assert (await agent.ask("go")).text == "fine"
