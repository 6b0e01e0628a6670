"""What leaves a block: the user's exception as itself, the host's stop, our defects as ours."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio
from tests.agent.kit import (
    ROUTE,
    Faults,
    check,
    codes,
    ending_kinds,
    engine_on,
    kinds,
    pending,
    play,
    played,
    settled,
    sigint,
    tasks,
)
from tests.whole import whole

from terzetto import (
    Agent,
    AgentCrashed,
    CodedError,
    Engine,
    StoreError,
    ToolRun,
    TurnFailed,
    tool,
)
from terzetto.agent import Driven, Enter, LoopDriver
from terzetto.llm.scripted import Gate, Hang, ScriptedModel, answer, call, say
from terzetto.session import Session
from terzetto.testing._invariants import BodyRecord
from terzetto.tools import BatchResult, ToolBatch, ToolExecutor
from terzetto.vocabulary import Aborted, AssistantMessageEvent, DisposedCause, TurnEnd, texts

BLOCKS = ["engine", "agent", "both"]


def talking() -> ScriptedModel:
    return ScriptedModel(lambda request: "fine")


async def leave(block: str, body: Callable[[], Any], **options: Any) -> None:
    """Await *body* in an engine's block, in an agent's, or in an agent's left by itself."""
    async with engine_on(talking(), **options) as engine:
        if block == "engine":
            handle = await engine.agents.create(**ROUTE)
            handle.agent.followup("go")
            await body()
        else:
            async with engine.open_agent(**ROUTE) as agent:
                agent.followup("go")
                await body()


def parts(error: BaseException) -> list[BaseException]:
    """The leaves of a group, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for member in error.exceptions for leaf in parts(member)]
    return [error]


# --- the user's -----------------------------------------------------------------------


MINE: list[BaseException] = [
    KeyError("mine"),
    SystemExit(3),
    CodedError("mine", "MINE"),
    AgentCrashed("mine"),
    StoreError("mine"),
    ExceptionGroup("one", [KeyError("mine")]),
    ExceptionGroup("two", [KeyError("mine"), ValueError("mine")]),
    ExceptionGroup("nested", [ExceptionGroup("inner", [KeyError("mine")])]),
    BaseExceptionGroup("base", [SystemExit(1), KeyError("mine")]),
]


@pytest.mark.parametrize("block", ["engine", "agent"])
@pytest.mark.parametrize("error", MINE, ids=repr)
def test_an_exception_of_the_block_leaves_as_itself(block: str, error: BaseException) -> None:
    """DESIGN 4: the same object, no group around it, after teardown; groups included."""

    @played
    async def run() -> None:
        async def body() -> None:
            await settled()
            raise error

        before = tasks()
        try:
            await leave(block, body)
        except BaseException as caught:
            assert caught is error, f"got {caught!r}"
        else:
            pytest.fail("nothing left the block")
        assert tasks() == before

    run()


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
def test_even_a_stop_iteration_leaves_as_itself(kind: type[Exception]) -> None:
    """DESIGN 4: the generators under our context managers do not show."""

    @played
    async def run() -> None:
        error = kind("mine")
        manager = engine_on(talking())
        engine = await manager.__aenter__()
        inner = engine.open_agent(**ROUTE)
        await inner.__aenter__()
        assert not await inner.__aexit__(kind, error, None)
        assert not await manager.__aexit__(kind, error, None)

    run()


@pytest.mark.parametrize("block", ["engine", "agent"])
def test_an_exception_in_the_users_nursery_keeps_the_users_group(block: str) -> None:
    """DESIGN 4: the group that the user's own nursery made is the user's, same object."""

    @played
    async def run() -> None:
        mine = KeyError("mine")
        made: list[BaseException] = []

        async def fail() -> None:
            raise mine

        async def body() -> None:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(fail)
                    await trio.sleep_forever()
            except BaseException as group:
                made.append(group)
                raise

        with pytest.raises(ExceptionGroup) as caught:
            await leave(block, body)
        assert caught.value is made[0]
        assert parts(caught.value) == [mine]

    run()


@played
async def test_the_traceback_names_the_users_line() -> None:
    """DESIGN 4: an exception that leaves as itself still tells where it came from."""

    async def body() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        await leave("agent", body)
    names = [entry.name for entry in caught.traceback]
    assert names[-1] == "body"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@played
async def test_an_error_and_a_group_are_not_mixed_up_by_two_engines() -> None:
    """C177: through two engines and two agents, still the same object."""
    mine = ExceptionGroup("mine", [KeyError("mine")])
    with pytest.raises(ExceptionGroup) as caught:
        async with engine_on(talking()) as one, engine_on(talking()) as two:
            async with one.open_agent(**ROUTE), two.open_agent(**ROUTE):
                raise mine
    assert caught.value is mine


# --- the host's -----------------------------------------------------------------------


@pytest.mark.parametrize("block", ["engine", "agent"])
@pytest.mark.parametrize("how", ["cancel", "deadline", "already cancelled"])
def test_the_hosts_cancel_is_raised_on_and_caught_by_its_scope(block: str, how: str) -> None:
    """C176 and DESIGN 4: the host's `Cancelled` goes on; the line after the block never runs."""

    @played
    async def run() -> None:
        after: list[str] = []
        before = tasks()
        with trio.CancelScope() as host:

            async def body() -> None:
                if how == "deadline":
                    host.deadline = trio.current_time() + 1
                else:
                    host.cancel()
                if how != "already cancelled":
                    await trio.sleep_forever()

            await leave(block, body)
            after.append("reached")
            await trio.lowlevel.checkpoint()
        assert host.cancelled_caught
        # A block left without a wait of its own has nothing to raise but at its own checkpoint.
        assert after == [] or how == "already cancelled"
        assert tasks() == before

    run()


@played
async def test_a_host_scope_inside_the_engine_is_the_users_to_catch() -> None:
    """C176: the engine and the agent outside the scope go on; the one inside is disposed."""
    async with engine_on(talking()) as engine, engine.open_agent(**ROUTE) as outer:
        with trio.move_on_after(1) as scope:
            async with engine.open_agent(**ROUTE) as inner:
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert inner.disposed
        assert (await outer.ask("x")).text == "fine"


@played
async def test_a_siblings_exception_ends_the_turn_and_leaves_alone() -> None:
    """BC-10 (c): a sibling of the host's fails: its nursery's cancel ends us, disposed."""
    agents: list[Agent] = []
    mine = KeyError("mine")

    async def program() -> None:
        model = ScriptedModel(lambda request: answer(say("part"), Hang()))
        async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
            agents.append(agent)
            agent.followup("go")
            await trio.sleep_forever()

    async def sibling() -> None:
        await trio.sleep(1)
        raise mine

    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(program)
            nursery.start_soon(sibling)
    assert caught.value.exceptions == (mine,)
    assert ending_kinds(agents[0].session) == ["Aborted DisposedCause"]
    check(agents[0].session)


@pytest.mark.parametrize("stop", ["host's cancel", "interrupt"])
@pytest.mark.parametrize("hook", ["pre_step", "turn_stopping"])
def test_what_a_listeners_nursery_raises_beside_a_stop_is_no_crash(
    stop: str, hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    """BC-12 C176: its group holds the stop and a clean-up's error. The stop leaves, alone; the
    error is recorded."""

    async def clean_up(then: BaseException) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise then

    async def listener(value: Any, proceed: Any = None) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clean_up, RuntimeError("the tap leaks"))
            await trio.sleep(2)
            raise KeyboardInterrupt

    async def main() -> None:
        async with engine_on(talking()) as engine, engine.open_agent(**ROUTE) as agent:
            sessions.append(agent.session)
            getattr(agent.scope.hooks, hook).listen(listener)
            agent.followup("go")
            await trio.sleep_forever()

    async def bounded() -> None:
        with trio.move_on_after(1) as host:
            await main()
        assert host.cancelled_caught

    sessions: list[Session] = []
    if stop == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            play(main)
    else:
        play(bounded)
    assert ending_kinds(sessions[0]) == ["Aborted DisposedCause"]
    assert "the tap leaks" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    check(sessions[0])


@pytest.mark.parametrize("part", ["store", "adapter"])
def test_what_fails_while_its_closing_runs_out_of_time_stops_no_teardown(
    part: str, caplog: pytest.LogCaptureFixture
) -> None:
    """BC-12: a store or an adapter with a nursery, whose group holds the bound's `Cancelled`."""

    async def clean_up() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("the pipe leaks")

    async def closing() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clean_up)
            await trio.sleep_forever()

    class Leaking(ScriptedModel):
        async def aclose(self) -> None:
            await closing()

    @played
    async def run() -> None:
        store = Faults()
        model = Leaking(["fine"]) if part == "adapter" else ScriptedModel(["fine"])
        async with engine_on(model, store=store, shutdown_timeout=1) as engine:
            async with engine.open_agent(**ROUTE) as agent:
                await agent.ask("go")
                if part == "store":
                    store.at["close"] = closing
        assert agent.disposed
        assert trio.current_time() < 5
        assert part == "store" or "the pipe leaks" in caplog.text
        check(agent.session)

    run()


@played
async def test_the_users_error_under_the_hosts_cancel_leaves_as_itself() -> None:
    """DESIGN 4: cleanup of the user's that fails while the host cancels."""
    mine = KeyError("mine")
    with pytest.raises(KeyError) as caught, trio.CancelScope() as host:

        async def body() -> None:
            host.cancel()
            try:
                await trio.sleep_forever()
            finally:
                raise mine

        await leave("agent", body)
    assert caught.value is mine


# --- defects of drivers -----------------------------------------------------------------


class Broken:
    """A driver that fails: at once, when woken, or once its turn is over."""

    def __init__(self, when: str, error: BaseException) -> None:
        self.when = when
        self.error = error

    async def run(self, agent: Driven) -> None:
        if self.when == "at once":
            raise self.error
        if self.when == "a moment later":
            await trio.lowlevel.checkpoint()
            raise self.error
        if self.when == "when woken":
            await agent.state.wait(lambda: agent.state.activity is not None or agent.state.closing)
            raise self.error
        if self.when == "in a group":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.fail)
                await trio.sleep_forever()
        if self.when == "when disposed":
            await agent.state.wait(lambda: agent.state.closing)
            raise self.error

    async def fail(self) -> None:
        await agent_moment()
        raise self.error


async def agent_moment() -> None:
    await trio.sleep(1)


DEFECTS = ["at once", "a moment later", "when woken", "in a group", "when disposed"]


@pytest.mark.parametrize("when", DEFECTS)
def test_a_defect_of_a_driver_cancels_the_block_and_leaves_as_agent_crashed(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    """DESIGN 4: "a defect of a driver leaves `open_agent` as AgentCrashed, cancelling the
    block" - whenever it fails, from the very first step of its task on."""
    defect = ValueError("a defect")

    async def run() -> None:
        before = tasks()
        async with engine_on(talking(), driver=Broken(when, defect)) as engine:
            with pytest.raises(AgentCrashed) as caught:
                async with engine.open_agent(**ROUTE) as agent:
                    if when != "at once":
                        agent.followup("go")
                    if when != "when disposed":
                        await trio.sleep_forever()
            assert caught.value.__cause__ is defect
            assert agent.disposed
            assert engine.agents.list() == []
            # The engine goes on.
            assert tasks() == before
        assert [r.levelno for r in caplog.records].count(logging.ERROR) == 1

    played(run)()


@pytest.mark.parametrize("when", ["at once", "when woken"])
def test_a_defect_and_the_users_error_leave_as_a_group(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    """DESIGN 4: a group leaves only when something of ours failed too, with the user's in it."""
    mine = KeyError("mine")
    defect = ValueError("a defect")

    async def run() -> None:
        async with engine_on(talking(), driver=Broken(when, defect)) as engine:
            with pytest.raises(ExceptionGroup) as caught:
                async with engine.open_agent(**ROUTE) as agent:
                    try:
                        if when != "at once":
                            agent.followup("go")
                        await trio.sleep_forever()
                    finally:
                        raise mine
            one, crashed = caught.value.exceptions
            assert one is mine
            assert isinstance(crashed, AgentCrashed)
            assert crashed.__cause__ is defect

    played(run)()


@pytest.mark.parametrize("waiting", ["ask", "wait_idle", "wait_status", "ask pending"])
def test_who_waits_for_an_agent_that_crashes_is_told(
    waiting: str, caplog: pytest.LogCaptureFixture
) -> None:
    """DESIGN 4: an agent of `create` has no block to cancel, so its waiters are told."""
    defect = ValueError("a defect")

    async def run() -> None:
        async with engine_on(talking(), driver=Broken("in a group", defect)) as engine:
            handle = await engine.agents.create(**ROUTE)
            agent = handle.agent
            with pytest.raises(AgentCrashed) as caught:
                if waiting.startswith("ask"):
                    await agent.ask("go")
                elif waiting == "wait_idle":
                    agent.followup("go")
                    await agent.wait_idle()
                else:
                    agent.followup("go")
                    await agent.wait_status("idle")
            assert caught.value.__cause__ is defect
            await handle.dispose()
            agent.cancel()

    played(run)()


def test_a_driver_that_breaks_inside_a_turn_leaves_a_log_that_resumes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """AgentCrashed: "a driver or executor failed; the log was closed"."""

    class Halfway(LoopDriver):
        async def run(self, agent: Driven) -> None:
            await agent.state.wait(lambda: agent.state.activity is not None)
            from terzetto.vocabulary import TurnStart

            agent.session.append(TurnStart(1))
            agent.state.claim(1, with_prompt=True)
            raise ValueError("a defect")

    async def run() -> None:
        store = Faults()
        async with engine_on(talking(), store=store, driver=Halfway()) as engine:
            with pytest.raises(AgentCrashed):
                async with engine.open_agent(**ROUTE, session_id="a") as agent:
                    agent.followup("go")
                    await trio.sleep_forever()
        async with engine_on(talking(), store=store) as engine:
            async with engine.open_agent(resume="a", **ROUTE) as again:
                assert pending(again) == ["go"], "after a crash: put back and pending"
                assert (await again.ask("more")).number == 3
        assert kinds(agent.session)[-1] == "TurnEnd", "the log was closed"

    played(run)()


@pytest.mark.parametrize("other", ["child", "parent"])
def test_a_crash_of_one_agent_is_not_a_crash_of_the_next(
    other: str, caplog: pytest.LogCaptureFixture
) -> None:
    """DESIGN 4: a child that crashes leaves its parent running; a parent takes its child along."""

    class Choosy(LoopDriver):
        async def run(self, agent: Driven) -> None:
            if agent.session.id == ("c" if other == "child" else "p"):
                await agent.state.wait(lambda: agent.state.activity is not None)
                raise ValueError("a defect")
            await super().run(agent)

    async def run() -> None:
        async with engine_on(talking(), driver=Choosy()) as engine:
            parent = (await engine.agents.create(**ROUTE, session_id="p")).agent
            child = (await engine.agents.create(**ROUTE, session_id="c", parent=parent)).agent
            (child if other == "child" else parent).followup("go")
            await settled()
            if other == "child":
                assert engine.agents.list() == [parent]
                assert (await parent.ask("still there?")).text == "fine"
            else:
                assert engine.agents.list() == []
                assert child.disposed
                await child.wait_idle()

    played(run)()


# --- defects of executors and hooks: failed turns ------------------------------------------


class Failing:
    """An executor that fails."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def execute(self, batch: ToolBatch) -> BatchResult:
        await trio.lowlevel.checkpoint()
        raise self.error


class Idle:
    """An executor that does nothing."""

    async def execute(self, batch: ToolBatch) -> BatchResult:
        await trio.lowlevel.checkpoint()
        return BatchResult(False)


class Grouped:
    async def execute(self, batch: ToolBatch) -> BatchResult:
        async def fail() -> None:
            raise OSError("disk")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()
        return BatchResult(False)


EXECUTORS: dict[str, ToolExecutor] = {
    "foreign": Failing(OSError("disk")),
    "coded": Failing(CodedError("no", "MINE")),
    "grouped": Grouped(),
    "idle": Idle(),
}


@pytest.mark.parametrize("which", EXECUTORS)
def test_a_defect_of_an_executor_is_a_failed_turn(
    which: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C125 C134 C68: the turn fails, every call is answered, the next turn runs."""

    @tool
    async def look() -> str:
        """Look."""
        return ""

    async def run() -> None:
        model = ScriptedModel([answer(call("look", id="c1"), call("look", id="c2")), "fine"])
        async with engine_on(model, [look], executor=EXECUTORS[which]) as engine:
            async with engine.open_agent(**ROUTE) as agent:
                with pytest.raises(TurnFailed) as caught:
                    await agent.ask("go")
                assert caught.value.turn.reason == "error"
                if which == "coded":
                    assert caught.value.code == "MINE"
                assert codes(agent.session) == {
                    "c1": texts.TOOL_NOT_STARTED,
                    "c2": texts.TOOL_NOT_STARTED,
                }
                assert agent.status == "idle"
                assert (await agent.ask("again")).text == "fine"
                check(agent.session)

    played(run)()


# --- KeyboardInterrupt --------------------------------------------------------------------


async def program(
    setup: Callable[[Engine, list[Agent]], None],
    agents: list[Agent],
    *,
    model: ScriptedModel | None = None,
    tools: tuple[Any, ...] = (),
    store: Faults | None = None,
) -> None:
    """An engine and an agent that a KeyboardInterrupt is about to end."""
    async with engine_on(model or talking(), tools, store=store or Faults()) as engine:
        setup(engine, agents)
        async with engine.open_agent(**ROUTE, session_id="a") as agent:
            agents.append(agent)
            agent.inject("a note")
            agent.followup("go")
            agent.followup("queued")
            await agent.wait_idle()
            await trio.sleep(1)


def interrupted(*args: Any, **kwargs: Any) -> None:
    """`program` ends by KeyboardInterrupt, alone."""
    import functools

    with pytest.raises(KeyboardInterrupt):
        play(functools.partial(program, *args, **kwargs))


@pytest.mark.parametrize("how", ["raised", "signal"])
@pytest.mark.parametrize("parallel", [False, True])
def test_an_interrupt_in_a_tool_body_aborts_the_call_and_leaves_alone(
    how: str, parallel: bool
) -> None:
    """DESIGN 4, Ctrl-C: the call commits as ABORTED, the turn closes as disposed, pending input
    is kept, and KeyboardInterrupt alone leaves trio.run."""
    bodies: list[BodyRecord] = []
    agents: list[Agent] = []

    @tool(parallel=parallel)
    async def struck(run: ToolRun) -> str:
        """Struck."""
        bodies.append(BodyRecord(run.call_id, 0, False, left_at=0))
        await trio.sleep(0.1)
        if how == "raised":
            raise KeyboardInterrupt
        sigint()
        await trio.sleep(1)
        return "never"

    @tool(parallel=parallel)
    async def beside(run: ToolRun) -> str:
        """Beside."""
        record = BodyRecord(run.call_id, 0, False, left_at=0)
        bodies.append(record)
        try:
            await trio.sleep_forever()
        finally:
            record.returned = False
        return ""

    store = Faults()
    model = ScriptedModel([answer(call("struck", id="c1"), call("beside", id="c2"))])
    interrupted(lambda e, a: None, agents, model=model, tools=(struck, beside), store=store)
    session = agents[0].session
    assert codes(session) == {
        "c1": texts.ABORTED,
        "c2": texts.ABORTED if parallel else texts.ABORTED_BEFORE_DISPATCH,
    }
    assert ending_kinds(session) == ["Aborted DisposedCause"]
    assert pending(agents[0]) == ["queued"]
    assert store.stored("a") == whole(session)
    check(session, bodies)


def test_an_interrupt_does_not_take_the_result_of_a_body_that_returned() -> None:
    """DESIGN 6: a started call has its own outcome; what returned before Ctrl-C stays."""
    bodies: list[BodyRecord] = []
    agents: list[Agent] = []

    @tool(parallel=True)
    async def quick(run: ToolRun) -> str:
        """Quick."""
        bodies.append(BodyRecord(run.call_id, 0, False, left_at=0, returned=True))
        return "done"

    @tool(parallel=True)
    async def slow(run: ToolRun) -> str:
        """Slow."""
        bodies.append(BodyRecord(run.call_id, 0, False, left_at=0))
        await trio.sleep(1)
        raise KeyboardInterrupt

    model = ScriptedModel([answer(call("slow", id="c1"), call("quick", id="c2"))])
    interrupted(lambda e, a: None, agents, model=model, tools=(quick, slow))
    session = agents[0].session
    assert codes(session) == {"c1": texts.ABORTED, "c2": None}
    check(session, bodies)


@tool(parallel=True)
async def look(run: ToolRun) -> str:
    """Look."""
    return "seen"


def busy() -> ScriptedModel:
    """A step with two calls, and a plain end."""
    return ScriptedModel(
        [answer(say("Looking. "), call("look", id="c1"), call("look", id="c2"))] + ["done"] * 5
    )


def _count_events() -> int:
    agents: list[Agent] = []

    async def run() -> None:
        await program(lambda e, a: None, agents, model=busy(), tools=(look,))

    play(run)
    return len(agents[0].session.events)


@pytest.mark.parametrize("number", range(_count_events()))
def test_an_interrupt_in_an_observer_of_the_log_at_every_event(number: int) -> None:
    """DESIGN 4 "raised inside ... listeners": at whatever event it comes, the turn is closed on
    the record as `disposed`, every call has its own outcome, and it leaves alone."""
    agents: list[Agent] = []
    done: list[int] = []

    def setup(engine: Engine, _: list[Agent]) -> None:
        def observe(session: Session) -> None:
            session.observe(strike)

        engine.scope.hooks.session_created.listen(observe)

    def strike(event: Any) -> None:
        if event.seq == number and not done:
            done.append(number)
            raise KeyboardInterrupt

    store = Faults()
    interrupted(setup, agents, model=busy(), tools=(look,), store=store)
    assert done == [number], "the event came, and the interrupt with it"
    _closed_properly(agents[0], store)


def _closed_properly(agent: Agent, store: Faults) -> None:
    session = agent.session
    check(session)
    assert agent.disposed
    assert store.stored("a") == whole(session)
    assert not store.owned("a")
    for event in session.events:
        if isinstance(event.data, TurnEnd) and isinstance(event.data.ending, Aborted):
            assert event.data.ending == Aborted(DisposedCause())
    assert texts.TOOL_OUTCOME_UNKNOWN not in codes(session).values(), "nothing is unknown here"


NOTICES = [
    "status",
    "inbox_inserted",
    "inbox_claimed",
    "tool_result",
    "session_started",
    "session_created",
    "agent_disposed",
    "session_disposed",
]


@pytest.mark.parametrize("how", ["raised", "signal"])
@pytest.mark.parametrize("notice", NOTICES)
def test_an_interrupt_in_a_plain_listener(notice: str, how: str) -> None:
    """DESIGN 4: listeners are interruptible; what is interrupted is closed, then it goes on."""
    agents: list[Agent] = []
    sessions: list[Session] = []
    ends: list[str] = []
    done: list[str] = []

    def setup(engine: Engine, _: list[Agent]) -> None:
        hooks = engine.scope.hooks
        hooks.session_created.listen(sessions.append)
        getattr(hooks, notice).listen(strike)
        hooks.session_disposed.listen(lambda v: ends.append("session"))

    def strike(value: object) -> None:
        if not done:
            done.append(notice)
            if how == "raised":
                raise KeyboardInterrupt
            sigint()

    store = Faults()
    interrupted(setup, agents, model=busy(), tools=(look,), store=store)
    assert done == [notice]
    assert not store.owned("a")
    assert not sessions[0].attached
    check(sessions[0])
    assert store.stored("a") == whole(sessions[0])
    for agent in agents:
        _closed_properly(agent, store)
    if notice != "session_disposed":
        assert ends == ["session"]


ASYNC_HOOKS = [
    "agent_created",
    "pre_step",
    "assemble",
    "request",
    "stream",
    "tool_pre_execute",
    "tool_execute",
    "tool_post_execute",
    "turn_stopping",
]


@pytest.mark.parametrize("how", ["raised", "signal"])
@pytest.mark.parametrize("hook", ASYNC_HOOKS)
def test_an_interrupt_in_an_async_listener(hook: str, how: str) -> None:
    """DESIGN 4: the turn closes as disposed, calls are answered, KeyboardInterrupt goes on."""
    agents: list[Agent] = []
    sessions: list[Session] = []
    done: list[str] = []

    def setup(engine: Engine, _: list[Agent]) -> None:
        engine.scope.hooks.session_created.listen(sessions.append)
        getattr(engine.scope.hooks, hook).listen(strike)

    async def strike(value: object, proceed: Any = None) -> Any:
        if not done:
            done.append(hook)
            if how == "raised":
                raise KeyboardInterrupt
            sigint()
        return await proceed() if proceed is not None else None

    store = Faults()
    interrupted(setup, agents, model=busy(), tools=(look,), store=store)
    session = sessions[0]
    check(session)
    assert not store.owned("a")
    if hook != "agent_created":
        _closed_properly(agents[0], store)
        assert ending_kinds(session) == ["Aborted DisposedCause"]
    expected: dict[str, dict[str, str | None]] = {
        "tool_pre_execute": {
            "c1": texts.ABORTED_BEFORE_DISPATCH,
            "c2": texts.ABORTED_BEFORE_DISPATCH,
        },
        "turn_stopping": {"c1": None, "c2": None},
    }
    if hook in expected:
        assert codes(session) == expected[hook]
    elif hook == "tool_post_execute":
        assert codes(session)["c1"] == texts.ABORTED


@pytest.mark.parametrize("where", ["request_error", "agent_error"])
def test_an_interrupt_while_a_failure_is_handled(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """DESIGN 4: also in what runs between `step/end` and `turn/end` of a failed turn."""
    agents: list[Agent] = []

    def setup(engine: Engine, _: list[Agent]) -> None:
        if where == "agent_error":
            engine.scope.hooks.agent_error.listen(plain)
        else:
            engine.scope.hooks.request_error.listen(around)

    def plain(value: object) -> None:
        raise KeyboardInterrupt

    async def around(value: object, proceed: Any) -> Any:
        raise KeyboardInterrupt

    from terzetto.llm.scripted import finish_error

    store = Faults()
    model = ScriptedModel(lambda request: answer("half", finish_error()))
    interrupted(setup, agents, model=model, store=store)
    _closed_properly(agents[0], store)


@pytest.mark.parametrize("notice", ["inbox_inserted", "inbox_discarded"])
def test_an_interrupt_in_a_listener_of_the_closers(notice: str) -> None:
    """DESIGN 4 and 6.1: closers are finished even if a listener of one of them is struck."""
    agents: list[Agent] = []
    armed: list[str] = []

    def setup(engine: Engine, _: list[Agent]) -> None:
        async def wait(value: Any, proceed: Any) -> Any:
            armed.append("armed")
            engine.agents.list()[0].cancel()
            await trio.sleep_forever()
            return Enter(())

        def strike(value: object) -> None:
            if armed == ["armed"] and agents and agents[0]._state.turn_open:
                armed.append("struck")
                raise KeyboardInterrupt

        engine.scope.hooks.pre_step.listen(wait)
        getattr(engine.scope.hooks, notice).listen(strike)

    store = Faults()
    interrupted(setup, agents, store=store)
    assert agents[0].session.place.open_turn is None
    check(agents[0].session)
    assert store.stored("a") == list(agents[0].session.events)


@pytest.mark.parametrize("number", range(7))
def test_an_interrupt_in_an_observer_of_every_closer(number: int) -> None:
    """DESIGN 4 and 6.1-6.2: a cancelled step with an anchor, two calls and a turn to close."""
    agents: list[Agent] = []
    cancelled_at: list[int] = []
    done: list[int] = []

    def setup(engine: Engine, _: list[Agent]) -> None:
        engine.scope.hooks.session_created.listen(watch)

    def watch(session: Session) -> None:
        session.observe(strike)

    def strike(event: Any) -> None:
        if isinstance(event.data, AssistantMessageEvent) and not cancelled_at:
            cancelled_at.append(event.seq)
            agents[0].cancel()
        elif cancelled_at and event.seq == cancelled_at[0] + 1 + number and not done:
            done.append(number)
            raise KeyboardInterrupt

    store = Faults()
    interrupted(setup, agents, model=busy(), tools=(look,), store=store)
    session = agents[0].session
    check(session)
    assert store.stored("a") == whole(session)
    # The user's cancel came first: the first cause stands.
    assert ending_kinds(session) == ["Aborted UserCause"]
    assert codes(session) == {
        "c1": texts.ABORTED_BEFORE_DISPATCH,
        "c2": texts.ABORTED_BEFORE_DISPATCH,
    }


def test_an_interrupt_in_the_block_ends_the_turn_and_leaves_alone() -> None:
    """DESIGN 4: at a delivery point in the host's own code."""
    agents: list[Agent] = []

    async def run() -> None:
        model = ScriptedModel(lambda request: answer(say("part"), Hang()))
        async with engine_on(model) as engine, engine.open_agent(**ROUTE) as agent:
            agents.append(agent)
            agent.followup("go")
            await settled()
            sigint()
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        play(run)
    assert ending_kinds(agents[0].session) == ["Aborted DisposedCause"]
    check(agents[0].session)


def test_an_interrupt_while_the_block_waits_for_teardown() -> None:
    """BC-56: a signal while a started tool is waited for; the log is whole all the same."""
    agents: list[Agent] = []

    @tool
    async def deaf() -> str:
        """Deaf."""
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        return ""

    async def run() -> None:
        async with trio.open_nursery() as nursery:

            async def strike() -> None:
                await trio.sleep(2)
                sigint()

            nursery.start_soon(strike)
            model = ScriptedModel([call("deaf", id="c")])
            async with engine_on(model, [deaf]) as engine:
                async with engine.open_agent(**ROUTE) as agent:
                    agents.append(agent)
                    agent.followup("go")
                    await trio.sleep(1)

    with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)) as caught:
        play(run)
    assert all(isinstance(leaf, KeyboardInterrupt) for leaf in parts(caught.value))
    assert agents[0].disposed
    check(agents[0].session)


def test_a_second_interrupt_while_the_first_is_on_its_way_is_not_a_group() -> None:
    """DESIGN 4 and BC-56 (e): Ctrl-C twice is one KeyboardInterrupt: "a group leaves only when
    something of ours failed as well", and two of the host's stops are no failure of ours."""
    agents: list[Agent] = []

    @tool
    async def deaf() -> str:
        """Deaf."""
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
            sigint()
            await trio.sleep(5)
        return ""

    async def run() -> None:
        async with engine_on(ScriptedModel([call("deaf", id="c")]), [deaf]) as engine:
            async with engine.open_agent(**ROUTE) as agent:
                agents.append(agent)
                agent.followup("go")
                await settled()
                sigint()
                await trio.sleep_forever()

    with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)) as caught:
        play(run)
    assert isinstance(caught.value, KeyboardInterrupt), repr(caught.value)
    assert ending_kinds(agents[0].session) == ["Aborted DisposedCause"]
    assert agents[0].disposed
    check(agents[0].session)


def test_an_interrupt_inside_a_child_goes_through_its_parent() -> None:
    """DESIGN 4: also in a child's body it is raised on from `open_engine`, alone."""
    agents: list[Agent] = []

    @tool
    async def struck() -> str:
        """Struck."""
        raise KeyboardInterrupt

    async def run() -> None:
        model = ScriptedModel([call("struck", id="c")])
        async with engine_on(model, [struck]) as engine:
            parent = (await engine.agents.create(**ROUTE)).agent
            child = (await engine.agents.create(**ROUTE, parent=parent)).agent
            agents.extend([parent, child])
            child.followup("go")
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        play(run)
    parent, child = agents
    assert ending_kinds(child.session) == ["Aborted DisposedCause"] or ending_kinds(
        child.session
    ) == ["Aborted ParentCause"]
    assert codes(child.session) == {"c": texts.ABORTED}
    assert parent.disposed
    assert child.disposed


def test_an_interrupt_from_setup_rolls_back() -> None:
    """C23 and DESIGN 4: creation is closed before it goes on."""
    store = Faults()
    ends: list[str] = []

    async def run() -> None:
        async with engine_on(talking(), store=store) as engine:
            engine.scope.hooks.session_disposed.listen(lambda v: ends.append("session"))

            def setup(agent: Agent) -> None:
                raise KeyboardInterrupt

            await engine.agents.create(**ROUTE, session_id="a", setup=setup)

    with pytest.raises(KeyboardInterrupt):
        play(run)
    assert ends == ["session"]
    assert not store.owned("a")


@pytest.mark.parametrize("point", ["create", "created", "open", "opened", "read", "close"])
def test_an_interrupt_while_a_creation_waits_for_its_store(point: str) -> None:
    """C23 C25 and DESIGN 4: KeyboardInterrupt alone, and no handle is left behind."""
    store = Faults()

    async def run() -> None:
        async with engine_on(talking(), store=store) as engine:
            async with engine.open_agent(**ROUTE, session_id="b") as agent:
                agent.session.record("mine/note", {}, ignorable=True)

            async def struck() -> None:
                sigint()
                await trio.sleep(1)

            def setup(agent: Agent) -> None:
                raise KeyError("mine")

            store.at[point] = struck
            if point in ("open", "opened", "read"):
                await engine.agents.resume("b")
            else:
                failing = setup if point == "close" else None
                await engine.agents.create(**ROUTE, session_id="a", setup=failing)

    with pytest.raises(KeyboardInterrupt):
        play(run)
    assert not any(store.owned(session_id) for session_id in store.inner._sessions)


def _steps_of_a_creation() -> int:
    counted: list[int] = []

    async def run() -> None:
        async with engine_on(talking(), store=Faults()) as engine:
            counter = Steps()
            trio.lowlevel.add_instrument(counter)
            async with engine.open_agent(**ROUTE, session_id="a"):
                pass
            trio.lowlevel.remove_instrument(counter)
            counted.append(counter.steps)

    play(run)
    return counted[0]


class Steps(trio.abc.Instrument):
    """Counts task steps; raises SIGINT before one of them."""

    def __init__(self, at: int = -1) -> None:
        self.steps = 0
        self.at = at

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.steps == self.at:
            sigint()
        self.steps += 1


@pytest.mark.parametrize("fails", [False, True], ids=["it works", "its setup fails"])
@pytest.mark.parametrize("at", range(_steps_of_a_creation()))
def test_an_interrupt_at_every_step_of_a_creation_and_its_end(at: int, fails: bool) -> None:
    """C23 C24 and DESIGN 4: it leaves alone; the session can be opened again; announcements come
    in pairs; nothing is left."""
    store = Faults()
    heard: list[str] = []
    engines: list[Engine] = []

    async def run() -> None:
        async def wait() -> None:
            await trio.lowlevel.checkpoint()

        store.at.update(create=wait, close=wait, closed=wait)
        async with engine_on(talking(), store=store) as engine:
            engines.append(engine)
            hooks = engine.scope.hooks
            hooks.session_created.listen(lambda v: heard.append("session"))
            hooks.agent_disposed.listen(lambda v: heard.append("agent disposed"))
            hooks.session_disposed.listen(lambda v: heard.append("session disposed"))

            async def created(view: object) -> None:
                heard.append("agent")
                await trio.lowlevel.checkpoint()

            hooks.agent_created.listen(created)

            def setup(agent: Agent) -> None:
                if fails:
                    raise KeyError("mine")

            trio.lowlevel.add_instrument(Steps(at))
            try:
                async with engine.open_agent(**ROUTE, session_id="a", setup=setup):
                    await trio.lowlevel.checkpoint()
            except KeyError:
                await trio.sleep(1)

    with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)) as caught:
        play(run)
    stops = [leaf for leaf in parts(caught.value) if not isinstance(leaf, KeyError)]
    assert [type(stop) for stop in stops] == [KeyboardInterrupt]
    assert isinstance(caught.value, KeyboardInterrupt), "alone"
    assert engines[0].agents.list() == []
    assert heard.count("session") == heard.count("session disposed") <= 1
    assert heard.count("agent") == heard.count("agent disposed") <= 1
    if "a" in store.inner._sessions:
        assert not store.owned("a")


def test_an_interrupt_in_maintenance_leaves_alone_and_frees_the_agent() -> None:
    """C67: the job is the caller's code; the agent is idle again."""
    agents: list[Agent] = []

    async def run() -> None:
        async with engine_on(talking()) as engine, engine.open_agent(**ROUTE) as agent:
            agents.append(agent)

            async def job() -> None:
                agent.followup("while it runs")
                raise KeyboardInterrupt

            await agent.run_maintenance(job)

    with pytest.raises(KeyboardInterrupt):
        play(run)
    assert agents[0].status == "idle"
    assert pending(agents[0]) == ["while it runs"]


def test_a_gate_that_is_never_opened_is_found() -> None:
    """The kit itself: a run that can never end is a failure, at once."""

    async def run() -> None:
        await ScriptedModel().gates.wait("never")

    with pytest.raises(pytest.fail.Exception, match="blocked for ever"):
        play(run)
    assert Gate("x").name == "x"
