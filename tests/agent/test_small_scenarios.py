"""Small scenarios, struck at every point from every source; and who ended what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from tests.agent.kit import Faults, kind_of

from terzetto import (
    AgentDisposed,
    Engine,
    LongResult,
    MessageDiscarded,
    Read,
    Session,
    ToolRun,
    TurnFailed,
    UserMessage,
    Write,
    tool,
)
from terzetto.agent import Reject, Retry
from terzetto.llm.scripted import Delay, ScriptedModel, answer, call, finish_error, say, think
from terzetto.testing import SOURCES, Source, Stage, explore
from terzetto.vocabulary import (
    ActivityCancelled,
    AgentBusy,
    InboxSpliced,
    TurnEnd,
)

Scenario = Callable[[Stage], Awaitable[None]]

REFUSED = (AgentDisposed, MessageDiscarded, TurnFailed, ActivityCancelled, AgentBusy)
"""What a scenario that was struck may be told instead of what it asked for."""


def slowly(*texts: str) -> Callable[[], ScriptedModel]:
    def make() -> ScriptedModel:
        entries = [answer(Delay(0.1), say(text), Delay(0.1)) for text in texts]
        return ScriptedModel([*entries, "more", "more", "more", "more"])

    return make


@asynccontextmanager
async def nursery_of_the_host() -> AsyncIterator[trio.Nursery]:
    """A nursery of the scenario's own; a KeyboardInterrupt leaves it as itself, also beside the
    host's own cancel, so that a group around one is the engine's."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        interrupts, others = group.split(KeyboardInterrupt)
        if interrupts is None or (others and others.split(trio.Cancelled)[1]):
            raise
        raise KeyboardInterrupt from None


def tell(stage: Stage, how: str, text: str) -> None:
    """Send unless the agent is gone already."""
    with suppress(AgentDisposed):
        stage.send(how, text)


async def maintenance(stage: Stage) -> None:
    """A job between two turns; waking input comes during it."""
    async with stage.open_engine() as engine, stage.open_agent(engine) as agent:

        async def job() -> None:
            tell(stage, "inject", "a note")
            await trio.sleep(0.1)
            tell(stage, "followup", "wake")
            await trio.sleep(0.1)

        tell(stage, "followup", "first")
        await agent.wait_idle()
        try:
            await agent.run_maintenance(job)
        except REFUSED:
            pass
        await agent.wait_idle()


async def asking(stage: Stage) -> None:
    """Three asks at once behind a prompt; one gives up while it is pending, one while claimed."""
    async with stage.open_engine() as engine, stage.open_agent(engine) as agent:

        async def ask(text: str, patience: float) -> None:
            message = UserMessage(text)
            stage.sent.append(message.id)
            try:
                with trio.move_on_after(patience):
                    await agent.ask(message)
            except REFUSED:
                pass
            finally:
                if message.id not in _recorded(agent.session):
                    stage.sent.remove(message.id)  # given up before it was sent

        tell(stage, "followup", "first")
        async with nursery_of_the_host() as nursery:
            nursery.start_soon(ask, "patient", 100)
            nursery.start_soon(ask, "pending", 0.15)
            nursery.start_soon(ask, "claimed", 0.5)
        await agent.wait_idle()


def _recorded(session: Session) -> set[str]:
    return {
        message.id
        for event in session.events
        if isinstance(event.data, InboxSpliced)
        for message in event.data.inserted
    }


async def asked(stage: Stage) -> None:
    """What most programs do: ask, and ask again."""
    async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
        try:
            await agent.ask("first")
            await agent.ask("second")
        except REFUSED:
            pass


def watch_all(stage: Stage, engine: Engine) -> list[Session]:
    """Every session of the engine, also those that the stage forgets."""
    sessions: list[Session] = []
    engine.scope.hooks.session_created.listen(sessions.append)
    return sessions


async def family(stage: Stage) -> None:
    """A tool asks a child that lives in its block; another child lives beside the turn."""

    @tool
    async def delegate(run: ToolRun) -> str:
        """Delegate."""
        parent = engine.agents.get(run.agent.id)
        async with stage.body(run):
            try:
                async with engine.open_agent(
                    provider="scripted", model="m", parent=parent, session_id="child"
                ) as child:
                    return (await child.ask("do it")).text
            except REFUSED as error:
                return f"refused: {type(error).__name__}"

    async with stage.open_engine([delegate]) as engine, stage.open_agent(engine) as agent:
        with suppress(*REFUSED):
            side = await engine.agents.create(
                provider="scripted", model="m", parent=agent, session_id="side"
            )
            side.agent.followup("aside")
        tell(stage, "followup", "delegate")
        tell(stage, "followup", "then")
        await agent.wait_idle()


def family_model() -> ScriptedModel:
    def reply(request: Any) -> Any:
        last = request.messages[-1]
        text = "".join(getattr(block, "text", "") for block in last.content)
        if text == "delegate":
            return answer(Delay(0.1), call("delegate"))
        return answer(Delay(0.1), say("fine"), Delay(0.1))

    return ScriptedModel(reply)


async def resumed(stage: Stage) -> None:
    """A first life with a turn and pending input, then a second in the same run."""
    async with stage.open_engine() as engine:
        handle = await engine.agents.create(provider="scripted", model="m", session_id="r")
        stage.agent, stage.session = handle.agent, handle.agent.session
        tell(stage, "followup", "first")
        await handle.agent.wait_idle()
        tell(stage, "inject", "pending")
    async with stage.open_engine() as engine, stage.open_agent(engine, resume="r") as agent:
        tell(stage, "followup", "second")
        await agent.wait_idle()


async def slow_store(stage: Stage) -> None:
    """Every write takes its time; the agent is left while an ending is being flushed."""
    store = Faults()

    async def slow() -> None:
        await trio.sleep(0.1)

    store.at.update(create=slow, created=slow, flush=slow, close=slow, closed=slow)
    stage.store = store  # type: ignore[assignment]

    @tool(parallel=True)
    async def look(run: ToolRun) -> str:
        """Look."""
        async with stage.body(run):
            await trio.sleep(0.1)
        return "seen"

    async with stage.open_engine([look]) as engine, stage.open_agent(engine) as agent:
        tell(stage, "followup", "look")
        tell(stage, "followup", "then")
        await agent.wait_status("running")
        with trio.move_on_after(10):  # a turn that was cut before it opened never ends
            async for event in agent.session.follow():
                if isinstance(event.data, TurnEnd):
                    tell(stage, "steer", "late")
                    break
    # As if no store had been there: a second life reads what is stored.
    store.at.clear()


def looking() -> ScriptedModel:
    return ScriptedModel(
        [
            answer(say("Looking."), call("look", id="c1"), call("look", id="c2")),
            answer(Delay(0.1), "done"),
            "more",
            "more",
            "more",
            "more",
        ]
    )


async def failing(stage: Stage) -> None:
    """A rejection, a failure that is retried, one that is not, and a queue behind them."""
    async with stage.open_engine() as engine:

        async def reject_first(value: Any, proceed: Any) -> Any:
            await trio.lowlevel.checkpoint()
            return Reject() if value.turn == 1 else await proceed()

        async def retry_once(value: Any, proceed: Any) -> Any:
            await trio.sleep(0.1)
            return Retry() if value.attempt == 1 else await proceed()

        engine.scope.hooks.pre_step.listen(reject_first)
        engine.scope.hooks.request_error.listen(retry_once)
        async with stage.open_agent(engine) as agent:
            for text in ("rejected", "retried", "failed"):
                tell(stage, "inject", f"a note on {text}")
                tell(stage, "followup", text)
                await agent.wait_idle()
            tell(stage, "followup", "last")
            await agent.wait_idle()


def failing_model() -> ScriptedModel:
    bad = answer(think("hm"), Delay(0.1), say("half"), finish_error())
    return ScriptedModel([bad, answer(Delay(0.1), "ok"), bad, bad, "last", "more", "more"])


async def drafted(stage: Stage) -> None:
    """Disposal by a handle, from another task, while a tool cleans up under a shield."""

    @tool
    async def stubborn(run: ToolRun) -> str:
        """Stubborn."""
        async with stage.body(run):
            with trio.CancelScope(shield=True):
                await trio.sleep(0.3)
        return "all the same"

    async with stage.open_engine([stubborn]) as engine, nursery_of_the_host() as nursery:
        handle = await engine.agents.create(provider="scripted", model="m", session_id="d")
        stage.agent, stage.session = handle.agent, handle.agent.session
        tell(stage, "followup", "go")
        await trio.sleep(0.1)
        nursery.start_soon(handle.dispose)
        nursery.start_soon(handle.dispose)
        await trio.sleep(0.1)
        tell(stage, "followup", "while it drains")


def stubborn_model() -> ScriptedModel:
    return ScriptedModel([call("stubborn", id="c1"), "more", "more", "more"])


async def touching(stage: Stage) -> None:
    """Readers and writers of two files, three at once; no two bodies that conflict overlap."""
    inside: dict[str, list[str]] = {}

    @tool(parallel=lambda args: args["path"] == "both")
    async def stat(path: str, run: ToolRun) -> str:
        """Look at the folder."""
        async with stage.body(run):
            await trio.sleep(0.1)
        return path

    def reads(args: Mapping[str, object]) -> Iterator[Read]:
        yield Read(str(args["path"]))

    @tool(touches=reads)
    async def read(path: str, run: ToolRun) -> str:
        """Read a file."""
        async with stage.body(run):
            return await use("read", path)

    @tool(touches=lambda args: {Write(str(args["path"]))})
    async def write(path: str, run: ToolRun) -> str:
        """Write a file, and clean up under a shield."""
        async with stage.body(run):
            return await use("write", path)

    async def use(how: str, path: str) -> str:
        others = inside.setdefault(path, [])
        if others and (how == "write" or "write" in others):
            stage.problems.append(f"a {how} of {path} during {others}")
        others.append(how)
        try:
            await trio.sleep(0.1)
        finally:
            if how == "write":
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.1)
            others.remove(how)
        return path

    engine: Engine | None = None
    try:
        async with stage.open_engine([stat, read, write], max_parallel_tool_calls=3) as engine:
            async with stage.open_agent(engine) as agent:
                tell(stage, "followup", "go")
                tell(stage, "followup", "then")
                await agent.wait_idle()
    finally:
        left = [] if engine is None else [engine.statistics()]
        if any(one.agents_living or one.tool_bodies_running or one.turns_open for one in left):
            stage.problems.append(f"left behind: {left}")
        if stage.agent is not None and stage.agent._state.calls:
            stage.problems.append(f"calls that still run: {stage.agent._state.calls}")


def touching_model() -> ScriptedModel:
    plan = ["read a", "read a", "write a", "write b", "read a", "stat both", "read b", "stat c"]
    calls = [
        call(name, id=f"c{number}", path=path)
        for number, (name, path) in enumerate(entry.split() for entry in plan)
    ]
    return ScriptedModel([answer(*calls), answer(Delay(0.1), "done"), *["more"] * 4])


async def spilling(stage: Stage) -> None:
    """Two long results at once, each kept by a spill that takes its time and cleans up."""

    @tool(parallel=True, max_result_bytes=200)
    async def dump(run: ToolRun) -> str:
        """Dump."""
        async with stage.body(run):
            await trio.sleep(0.1)
        return "long " * 100

    async def spill(result: LongResult) -> str:
        if result.text != "long " * 100:
            stage.problems.append(f"spilled {result.text!r}")
        try:
            await trio.sleep(0.1)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.1)
        return f"kept/{result.call_id}"

    async with stage.open_engine([dump]) as engine:
        engine.agents.services.spill = spill
        async with stage.open_agent(engine) as agent:
            tell(stage, "followup", "go")
            tell(stage, "followup", "then")
            await agent.wait_idle()


def spilling_model() -> ScriptedModel:
    calls = [call("dump", id="c1"), call("dump", id="c2")]
    return ScriptedModel([answer(*calls), answer(Delay(0.1), "done"), *["more"] * 4])


SCENARIOS: dict[str, tuple[Scenario, Callable[[], ScriptedModel]]] = {
    "maintenance": (maintenance, slowly("first", "second")),
    "asking": (asking, slowly("first", "a", "b", "c")),
    "asked": (asked, slowly("first", "second")),
    "family": (family, family_model),
    "resumed": (resumed, slowly("first", "second")),
    "slow store": (slow_store, looking),
    "failing": (failing, failing_model),
    "drafted": (drafted, stubborn_model),
    "touching": (touching, touching_model),
    "spilling": (spilling, spilling_model),
}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_point_of_a_small_scenario_keeps_the_invariants(name: str, source: Source) -> None:
    """C67 C34 C16 C28 C32 C120 C127 C134 C176 and the eight: one small scenario, one source."""
    scenario, model = SCENARIOS[name]
    report = explore(scenario, model, name=name, sources=[source])
    assert report.violations == []
    assert report.points >= 10 or source.inside


@pytest.mark.parametrize("source", [s for s in SOURCES if s.host], ids=lambda source: source.name)
@pytest.mark.parametrize("name", ["asked", "slow store", "failing"])
def test_a_host_that_stops_leaves_no_turn_ended_by_the_user(name: str, source: Source) -> None:
    """DESIGN 4: a host's cancellation, a deadline and Ctrl-C end the turn `disposed`, also where
    the program was asking: its own `Cancelled` in the same tick is no second cause."""
    scenario, model = SCENARIOS[name]
    found: set[str] = set()

    def check(stage: Stage) -> list[str]:
        for session in stage.sessions:
            ends = [event.data for event in session.events if isinstance(event.data, TurnEnd)]
            found.update(kind_of(end.ending) for end in ends)
        return []

    explore(scenario, model, name=name, sources=[source], check=check)
    assert {kind for kind in found if kind.startswith("Aborted")} <= {"Aborted DisposedCause"}


# --- two strikes --------------------------------------------------------------------------


def then(first: Source, second: Source, steps: int) -> Source:
    """*first*, and *second* a few task steps later."""

    def strike(stage: Stage) -> None:
        first.strike(stage)
        trio.lowlevel.add_instrument(Later(stage, second, steps))

    # The explorer knows by its name that this source may send a KeyboardInterrupt. The first
    # cause stands, unless nothing ran yet; then it is the second's.
    name = second.name if "Keyboard" in second.name else f"{first.name}, {second.name}"
    return Source(name, strike, first.cause, host=first.host or second.host)


class Later(trio.abc.Instrument):
    def __init__(self, stage: Stage, source: Source, steps: int) -> None:
        self.stage = stage
        self.source = source
        self.steps = steps

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps -= 1
        if self.steps == 0:
            self.source.strike(self.stage)


BY_NAME = {source.name: source for source in SOURCES}
PAIRS = [
    ("user", "host cancel"),
    ("user, inbox kept", "dispose"),
    ("dispose", "host cancel"),
    ("dispose", "user"),
    ("dispose", "KeyboardInterrupt"),
    ("host cancel", "KeyboardInterrupt"),
    ("host cancel", "user"),
    ("KeyboardInterrupt", "KeyboardInterrupt"),
]


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("pair", PAIRS, ids=" then ".join)
@pytest.mark.parametrize("name", ["slow store", "drafted"])
def test_a_second_strike_while_the_first_converges(
    name: str, pair: tuple[str, str], steps: int
) -> None:
    """BC-06 BC-56 C127: stopping twice, by the same or by another, breaks nothing."""
    scenario, model = SCENARIOS[name]
    first, second = BY_NAME[pair[0]], BY_NAME[pair[1]]
    report = explore(scenario, model, name=name, sources=[then(first, second, steps)], stride=2)
    mixed = f"was ended by {second.cause}"
    assert [v for v in report.violations if not v.problem.endswith(mixed)] == []
