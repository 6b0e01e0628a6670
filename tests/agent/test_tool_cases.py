"""Tools through whole turns: timeouts, long results, barriers, threads, contexts, nesting and
schemas, as the model and the log see them. The parts alone are tested in ``tests/tools``."""

from __future__ import annotations

import contextvars
import dataclasses
import re
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.agent.kit import (
    Faults,
    check,
    codes,
    ending_kinds,
    engine_on,
    play,
    played,
    results,
    settled,
    tasks,
)
from tests.agent.rig import one, shown

from terzetto import (
    InvalidTool,
    InvalidValue,
    LongResult,
    Read,
    Session,
    Tool,
    ToolRun,
    Write,
    raw_tool,
    tool,
)
from terzetto.llm.scripted import Delay, Gate, ScriptedModel, answer, call, say
from terzetto.vocabulary import ToolCallEvent, texts


def in_threads(main: Callable[[], Awaitable[None]]) -> None:
    """Run *main* on the real clock; a test that waits too long fails and does not hang."""

    async def bounded() -> None:
        with trio.fail_after(30):
            await main()

    trio.run(bounded)


@tool(parallel=True)
async def echo(x: int = 0) -> str:
    return f"echo {x}"


# --- BC-13: timeouts ---------------------------------------------------------------------


@tool(timeout=0.2, parallel=True)
async def slow(seconds: float) -> str:
    await trio.sleep(seconds)
    return "slept"


@played
async def test_a_timed_out_tool_is_a_result_and_the_turn_goes_on() -> None:
    """BC-13 (a)."""
    script = [answer(call("slow", id="c1", seconds=5), call("echo", id="c2")), "I will wait."]
    async with one(script, [slow, echo]) as life:
        turn = await life.agent.ask("go")
        assert (turn.reason, turn.text) == ("completed", "I will wait.")
        assert codes(life.session) == {"c1": texts.TOOL_TIMEOUT, "c2": None}
        assert life.request()[-2:] == [
            "result c1!: Error: tool call timed out after 0.2 s",
            "result c2: echo 0",
        ]
        assert trio.current_time() == pytest.approx(0.2)
        check(life.session)


@pytest.mark.parametrize("error", [TimeoutError("took long"), trio.TooSlowError("took long")])
def test_an_error_of_the_tool_is_not_labelled_as_the_engines_deadline(error: Exception) -> None:
    """BC-13 (b)."""

    @played
    async def run() -> None:
        @tool(timeout=0.2)
        async def raises() -> str:
            raise error

        async with one([call("raises", id="c1"), "done"], [raises]) as life:
            assert (await life.agent.ask("go")).text == "done"
            assert codes(life.session) == {"c1": None}
            assert results(life.session) == {"c1": "Error: took long"}

    run()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("at", [0.1, 0.2], ids=["before", "at the same instant"])
@pytest.mark.parametrize("first", ["canceller", "turn"])
def test_a_cancel_is_no_timeout(at: float, first: str, seed: int) -> None:
    """BC-13 (c) (d): also when both fall on one instant, whoever's clock was set first."""

    async def main() -> None:
        async with one([call("slow", id="c1", seconds=5), "never"], [slow]) as life:

            async def stop() -> None:
                await trio.sleep(at)
                life.agent.cancel()

            async with trio.open_nursery() as nursery:
                if first == "canceller":
                    nursery.start_soon(stop)
                    await settled()
                life.agent.followup("go")
                await settled()
                if first == "turn":
                    nursery.start_soon(stop)
            await life.agent.wait_idle()
            assert codes(life.session) == {"c1": texts.ABORTED}
            assert "timed out" not in results(life.session)["c1"]
            assert ending_kinds(life.session) == ["Aborted UserCause"]
            check(life.session)

    play(main, seed=seed)


# --- BC-39: long results -----------------------------------------------------------------

LIMIT = 65_536


@tool
async def one_line() -> str:
    return "é" * 2_500_000


@tool
async def long_error() -> str:
    raise RuntimeError("é" * 2_500_000)


@tool
async def long_json() -> list[str]:
    return ["é" * 1000 for _ in range(2500)]


@pytest.mark.parametrize(
    ("long", "size"),
    [
        (one_line, 5_000_000),
        (long_error, 5_000_000 + len("Error: ")),
        (long_json, 2500 * 2003 + 1),
    ],
    ids=["one line", "error", "json"],
)
def test_a_long_result_is_bounded_in_the_log_and_in_every_request(long: Tool, size: int) -> None:
    """BC-39: 5 MB on one line, in pieces, in an exception: cut on a character, head and tail
    kept, the rest counted; the next requests and a resume carry no more."""

    @played
    async def run() -> None:
        store = Faults()
        script = [call(long.name, id="c1"), "done", "next"]
        async with one(script, [long], engine={"store": store}) as life:
            session = life.session
            assert (await life.agent.ask("go")).text == "done"
            assert (await life.agent.ask("more")).text == "next"
            kept = results(session)["c1"]
            assert LIMIT - 8 < len(kept.encode()) <= LIMIT
            cut = re.fullmatch(
                r"(.*)\n\[\.\.\. (\d+) bytes omitted \.\.\.\]\n(.*)", kept, re.DOTALL
            )
            assert cut is not None
            assert len((cut[1] + cut[3]).encode()) + int(cut[2]) == size
            assert cut[1].endswith("é")
            assert cut[3].startswith("é")
            assert kept in life.request()[-3]
            check(session)
        async with engine_on(ScriptedModel(["again"]), store=store) as engine:
            async with engine.open_agent(resume=session.id) as agent:
                assert (await agent.ask("and?")).text == "again"
                assert results(agent.session)["c1"] == kept

    run()


@played
async def test_the_model_can_ask_for_what_was_cut() -> None:
    """BC-39: a spill keeps the text, the note says where, a tool reads it there."""
    kept: dict[str, str] = {}
    given: list[LongResult] = []

    async def spill(result: LongResult) -> str:
        await trio.sleep(1)
        given.append(result)
        kept["ref-1"] = result.text
        return "ref-1"

    @tool
    async def tail_of(reference: str) -> str:
        return kept[reference][-5:]

    @tool(max_result_bytes=1000)
    async def dump() -> str:
        return "start" + "x" * 5000 + "final"

    def reply(request: Any) -> Any:
        last = shown(request.messages)[-1]
        if "full text: " in last:
            reference = last.partition("full text: ")[2].partition(" ")[0]
            return call("tail_of", id="c2", reference=reference)
        return f"It ends with {last[-5:]}." if "c2" in last else call("dump", id="c1")

    async with one(reply, [dump, tail_of], engine={"spill": spill}) as life:
        assert (await life.agent.ask("go")).text == "It ends with final."
        (result,) = given
        assert result.agent is life.agent
        assert (result.call_id, result.tool) == ("c1", "dump")
        assert len(results(life.session)["c1"].encode()) <= 1000
        assert "start" not in repr(result), "a text may be a secret"
        check(life.session)


@pytest.mark.parametrize("how", ["cancel", "cancel, inbox kept", "dispose", "host"])
def test_whoever_stops_the_turn_stops_a_spill_that_hangs(how: str) -> None:
    """BC-39 BC-03: the cut result is in the log, the turn ends, and the next request is valid."""

    async def hang(result: LongResult) -> str:
        await trio.sleep_forever()
        return "never"

    @tool(max_result_bytes=100)
    async def dump() -> str:
        return "x" * 5000

    @played
    async def run() -> None:
        before = tasks()
        session: Session | None = None
        script = [answer(call("dump", id="c1"), call("echo", id="c2")), "next"]
        with trio.CancelScope() as host:
            async with one(script, [dump, echo], engine={"spill": hang}) as life:
                session = life.session
                life.agent.followup("go")
                await trio.sleep(1)
                assert codes(session) == {}
                if how == "cancel, inbox kept":
                    life.agent.steer("never mind")
                if how.startswith("cancel"):
                    life.agent.cancel(keep_inbox=how != "cancel")
                    await life.agent.wait_idle()
                    assert trio.current_time() == 1
                    await life.say("and now?")
                    assert life.request()[-1] == "user: and now?"
                    assert ending_kinds(session) == ["Aborted UserCause", "Completed"]
                elif how == "host":
                    host.cancel(reason="the host stops")
                    await trio.lowlevel.checkpoint()
        assert session is not None
        assert trio.current_time() == 1
        assert results(session)["c1"].endswith("x" * 10)
        assert "the full text could not be kept" in results(session)["c1"]
        assert codes(session) == {"c1": None, "c2": texts.ABORTED_BEFORE_DISPATCH}
        assert tasks() == before
        check(session)

    run()


@pytest.mark.parametrize("spill", ["path", 1, object()])
async def test_an_engine_refuses_what_can_never_be_a_spill(spill: Any) -> None:
    """And closes the adapters that it was handed."""
    model = ScriptedModel()
    with pytest.raises(InvalidValue, match="spill: expected a function, async or plain"):
        async with engine_on(model, spill=spill):
            raise AssertionError("it opened")


def test_a_plain_spill_may_write_files() -> None:
    """BC-34 BC-39: in a worker thread, counted among the engine's."""
    used: list[tuple[bool, int]] = []

    async def main() -> None:
        def keep(result: LongResult) -> Path:
            main_thread = threading.current_thread() is threading.main_thread()
            used.append((main_thread, engine.agents.services.thread_limiter.borrowed_tokens))
            return Path("spilled") / "1.txt"

        async with one([call("one_line", id="c1"), "done"], [one_line], engine={"spill": keep}) as (
            life
        ):
            engine = life.engine
            await life.agent.ask("go")
            assert "bytes omitted; full text: spilled/1.txt ...]" in results(life.session)["c1"]

    in_threads(main)
    assert used == [(False, 1)]


# --- BC-41: call order and barriers ------------------------------------------------------


class Workshop:
    """Tools that log when they start and end; the calls of the case, in its order."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.parallel: dict[str, Any] = {}

    async def work(self, name: str, seconds: float) -> str:
        self.times[name] = [trio.current_time()]
        await trio.sleep(seconds)
        self.times[name].append(trio.current_time())
        return f"did {name}"

    def tools(self) -> list[Tool]:
        @tool(parallel=True)
        async def slow(name: str, seconds: float) -> str:
            return await self.work(name, seconds)

        @tool
        async def excl(name: str) -> str:
            return await self.work(name, 0.2)

        return [slow, excl]

    @staticmethod
    def calls(third: Any = None) -> Any:
        return answer(
            call("slow", id="A", name="A", seconds=0.5),
            call("slow", id="B", name="B", seconds=0.1),
            call("excl", id="C", name="C") if third is None else third,
            call("slow", id="D", name="D", seconds=0.1),
            call("excl", id="E", name="E"),
        )

    def starts(self) -> dict[str, float]:
        return {name: round(times[0], 3) for name, times in sorted(self.times.items())}


@pytest.mark.parametrize(
    ("capacity", "starts"),
    [
        (8, {"A": 0, "B": 0, "C": 0.5, "D": 0.7, "E": 0.8}),
        (1, {"A": 0, "B": 0.5, "C": 0.6, "D": 0.8, "E": 0.9}),
    ],
)
def test_results_in_call_order_and_exclusive_calls_as_barriers(
    capacity: int, starts: dict[str, float]
) -> None:
    """BC-41 C120 C122: pool 8, and pool 1."""

    @played
    async def run() -> None:
        shop = Workshop()
        options = {"max_parallel_tool_calls": capacity}
        async with one([shop.calls(), "done"], shop.tools(), engine=options) as life:
            await life.agent.ask("go")
            assert shop.starts() == starts
            assert life.request()[-5:] == [f"result {name}: did {name}" for name in "ABCDE"]
            calls = [e.data.call_id for e in life.session.events if type(e.data) is ToolCallEvent]
            assert calls == list("ABCDE")
            check(life.session)

    run()


@pytest.mark.parametrize("how", ["classifier raises", "touches raises", "invalid arguments"])
def test_a_call_that_cannot_be_classified_is_a_barrier_and_is_not_skipped(how: str) -> None:
    """BC-41 C121."""

    def raising(args: object) -> Any:
        raise RuntimeError("a classifier that fails")

    @played
    async def run() -> None:
        shop = Workshop()
        options: dict[str, Any] = {
            "classifier raises": {"parallel": raising},
            "touches raises": {"touches": raising},
            "invalid arguments": {"parallel": True},
        }[how]

        @tool(**options)
        async def third(name: str) -> str:
            return await shop.work(name, 0.2)

        invalid = how == "invalid arguments"
        asked = call("third", id="C", name=7 if invalid else "C")
        async with one([shop.calls(asked), "done"], [*shop.tools(), third]) as life:
            await life.agent.ask("go")
            if invalid:
                assert shop.starts() == {"A": 0, "B": 0, "D": 0.5, "E": 0.6}
                assert codes(life.session)["C"] == texts.INVALID_ARGS
            else:
                assert shop.starts() == {"A": 0, "B": 0, "C": 0.5, "D": 0.7, "E": 0.8}
                assert life.request()[-3] == "result C: did C"
            assert list(results(life.session)) == list("ABCDE")

    run()


@pytest.mark.parametrize("how", ["registered", "changed", "removed"])
def test_a_tool_that_changes_while_others_run_is_judged_as_it_is_then(how: str) -> None:
    """BC-41 C120 C117: registered, replaced or removed during B."""

    @played
    async def run() -> None:
        shop = Workshop()

        @tool(name="third")
        async def exclusive(name: str) -> str:
            return await shop.work(name, 0.2)

        @tool(name="third", parallel=True)
        async def parallel(name: str) -> str:
            return await shop.work(name, 0.2)

        asked = call("third", id="C", name="C")
        options = {"max_parallel_tool_calls": 2}
        async with one([shop.calls(asked), "done"], shop.tools(), engine=options) as life:
            scope = life.agent.scope
            before = None if how == "registered" else scope.add_tool(parallel)
            life.agent.followup("go")
            await trio.sleep(0.05)
            if before is not None:
                before.remove()
            if how != "removed":
                scope.add_tool(exclusive)
            await life.agent.wait_idle()
            assert list(results(life.session)) == list("ABCDE")
            if how == "removed":
                assert codes(life.session)["C"] == texts.UNKNOWN_TOOL
                assert shop.starts()["D"] == 0.5
            else:
                assert shop.starts() == {"A": 0, "B": 0, "C": 0.5, "D": 0.7, "E": 0.8}

    run()


@played
async def test_touches_order_what_conflicts_and_nothing_else() -> None:
    """BC-41 C123: "a write marked exclusive overlaps a read of the same file" - not here, and
    reads of other files go on beside it."""
    shop = Workshop()

    @tool(touches=lambda args: {Read(args["path"])})
    async def read(path: str, name: str) -> str:
        return await shop.work(name, 0.5)

    @tool(touches=lambda args: {Write(args["path"])})
    async def write(path: str, name: str) -> str:
        return await shop.work(name, 0.5)

    plan = ["read a", "read a", "write b", "write a", "read b"]
    calls = [
        call(how, id=name, path=path, name=name)
        for name, (how, path) in zip("ABCDE", (entry.split() for entry in plan), strict=True)
    ]
    async with one([answer(*calls), "done"], [read, write]) as life:
        await life.agent.ask("go")
        assert shop.starts() == {"A": 0, "B": 0, "C": 0, "D": 0.5, "E": 0.5}
        assert life.request()[-5:] == [f"result {name}: did {name}" for name in "ABCDE"]
        check(life.session)


# --- BC-34: plain functions --------------------------------------------------------------


def test_a_blocking_tool_stops_neither_a_ticker_nor_another_agent() -> None:
    """BC-34: it blocks until the others have got on, so that it would never end if it did."""
    entered, release = threading.Event(), threading.Event()

    @tool
    def block() -> str:
        entered.set()
        return "released" if release.wait(20) else "stuck"

    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await trio.sleep(0.001)
                ticks += 1

        def reply(request: Any) -> Any:
            texts_of = shown(request.messages)
            if texts_of[0] == "user: block" and len(texts_of) == 1:
                return call("block", id="c1")
            return answer(say("a"), Delay(0.001), say("b"))

        async with one(reply, [block]) as life, trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            life.agent.followup("block")
            while not entered.is_set():
                await trio.sleep(0.001)
            before = ticks
            async with life.engine.open_agent(provider="scripted", model="m") as other:
                for _ in range(3):
                    assert (await other.ask("hello")).text == "ab"
            while ticks < before + 10:
                await trio.sleep(0.001)
            assert life.agent.status == "running"
            assert life.engine.statistics().threads_borrowed == 1
            release.set()
            await life.agent.wait_idle()
            assert results(life.session) == {"c1": "released"}
            nursery.cancel_scope.cancel(reason="it is over")

    in_threads(main)


def test_no_more_threads_than_the_pool_of_a_batch() -> None:
    """BC-34: ten plain calls, pool size 3."""
    lock, inside, most = threading.Lock(), [0], [0]
    full = threading.Event()

    @tool(parallel=True)
    def block() -> str:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            if inside[0] == 3:
                full.set()
        assert full.wait(20)  # the first three are in together; a fourth would be seen
        with lock:
            inside[0] -= 1
        return "ok"

    async def main() -> None:
        script = [answer(*(call("block", id=f"c{n}") for n in range(10))), "done"]
        async with one(script, [block], engine={"max_parallel_tool_calls": 3}) as life:
            assert (await life.agent.ask("go")).text == "done"
            assert results(life.session) == {f"c{n}": "ok" for n in range(10)}
            assert life.engine.statistics().threads_borrowed == 0

    in_threads(main)
    assert most == [3]


def test_a_timeout_fires_while_a_blocking_tool_runs() -> None:
    """BC-34: "timeouts do not fire" is what happens when it blocks the loop."""
    release = threading.Event()

    @tool(timeout=0.02)
    def block() -> str:
        assert release.wait(20)
        return "too late"

    async def main() -> None:
        async with one([call("block", id="c1"), "done"], [block]) as life:
            life.agent.followup("go")
            while not life.engine.statistics().calls_overdue:
                await trio.sleep(0.001)
            release.set()
            await life.agent.wait_idle()
            assert codes(life.session) == {"c1": texts.TOOL_TIMEOUT}

    in_threads(main)


# --- BC-35: context variables ------------------------------------------------------------


def test_plain_and_async_tools_see_the_context_of_their_agents_creation() -> None:
    """BC-35: two agents, ten turns interleaved, each with a plain and an async call; what a
    tool sets is seen by no other call, and the sender's value by none."""
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")

    @tool(parallel=True)
    def plain() -> str:
        seen = tenant.get()
        tenant.set("leak")
        return seen

    @tool(parallel=True)
    async def awaited() -> str:
        seen = tenant.get()
        tenant.set("leak")
        await trio.lowlevel.checkpoint()
        return seen

    def reply(request: Any) -> Any:
        if shown(request.messages)[-1].startswith("result"):
            return "done"
        number = len(request.messages)
        return answer(
            *(
                call(name, id=f"{name}-{number}-{n}")
                for n in range(2)
                for name in ("plain", "awaited")
            )
        )

    async def main() -> None:
        async with one(reply, [plain, awaited]) as life:
            agents = {}
            for name in "AB":
                tenant.set(name)
                handle = await life.engine.agents.create(provider="scripted", model="m")
                agents[name] = handle.agent
            async with trio.open_nursery() as nursery:
                for name, agent in agents.items():

                    async def talk(name: str = name, agent: Any = agent) -> None:
                        tenant.set(f"sender of {name}")
                        for turn in range(10):
                            await agent.ask(f"turn {turn}")

                    nursery.start_soon(talk)
            for name, agent in agents.items():
                found = results(agent.session)
                assert len(found) == 40
                assert set(found.values()) == {name}

    in_threads(main)


# --- BC-40: nested agents ----------------------------------------------------------------


def nested(depth: int = 3) -> tuple[list[Tool], Callable[[Any], Any], dict[str, Any]]:
    """Tools and model of the case: the root delegates twice at once, each child echoes twice
    and delegates further; the deepest waits at a gate. The third is where the engine goes."""
    level: contextvars.ContextVar[int] = contextvars.ContextVar("level", default=0)
    home: dict[str, Any] = {"sessions": []}

    @tool(parallel=True)
    async def delegate(run: ToolRun) -> str:
        mine = level.get() + 1
        level.set(mine)
        parent: Any = run.agent
        async with home["engine"].open_agent(
            provider="scripted", model=f"level{mine}", parent=parent
        ) as child:
            home["sessions"].append(child.session)
            return (await child.ask("do it")).text

    def reply(request: Any) -> Any:
        mine = int(request.config.model[5:])
        last = shown(request.messages)[-1]
        if last == "user: again":
            return "again"
        if last.startswith("result"):
            return f"done at {mine}"
        if mine == depth:
            return answer(say("at the bottom"), Gate(f"bottom {len(home['sessions'])}"))
        echoes = [call("echo", id=f"e{n}") for n in range(2)] if mine else []
        delegates = [call("delegate", id=f"d{n}") for n in range(1 if mine else 2)]
        return answer(*echoes, *delegates)

    return [echo, delegate], reply, home


@pytest.mark.parametrize("how", ["cancel", "dispose", "host"])
def test_a_cancel_of_the_root_stops_all_levels(how: str) -> None:
    """BC-40 BC-03: pool size 2, depth 3; every log is closed, no task is left."""

    @played
    async def run() -> None:
        before = tasks()
        made, reply, home = nested()
        with trio.CancelScope() as host:
            options = {"max_parallel_tool_calls": 2}
            async with one(reply, made, engine=options, model="level0") as life:
                home["engine"], root = life.engine, life.session
                life.agent.followup("go")
                await settled()
                assert life.engine.statistics().agents_living == 7, "1 + 2 * 3"
                assert life.engine.statistics().tool_bodies_running == 6
                if how == "cancel":
                    life.agent.cancel()
                    await life.agent.wait_idle()
                    assert life.engine.agents.list() == [life.agent]
                    await life.say("again")
                    assert ending_kinds(root) == ["Aborted UserCause", "Completed"]
                elif how == "host":
                    host.cancel(reason="the host stops")
                    await trio.lowlevel.checkpoint()
        assert tasks() == before
        assert codes(root) == dict.fromkeys(("d0", "d1"), texts.ABORTED)
        assert len(home["sessions"]) == 6
        for session in home["sessions"]:
            assert ending_kinds(session) == ["Aborted ParentCause"]
            check(session)
        check(root)

    run()


@played
async def test_nested_agents_complete_without_any_timeout() -> None:
    """BC-40: as many parents as slots, and each waits for a child that needs slots."""
    made, reply, home = nested()
    options = {"max_parallel_tool_calls": 2}
    async with one(reply, made, engine=options, model="level0") as life:
        home["engine"] = life.engine
        life.agent.followup("go")
        await settled()
        for gate in ("bottom 5", "bottom 6"):
            life.model.gates.open(gate)
        await life.agent.wait_idle()
        assert trio.current_time() == 0
        assert results(life.session) == {"d0": "done at 1", "d1": "done at 1"}
        assert len(home["sessions"]) == 6
        for session in (life.session, *home["sessions"]):
            assert ending_kinds(session) == ["Completed"]
            check(session)


# --- BC-55: schemas ----------------------------------------------------------------------


@dataclasses.dataclass
class Node:
    name: str
    children: list[Node] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Left:
    right: Right | None = None


@dataclasses.dataclass
class Right:
    left: Left | None = None


@tool
async def count_nodes(tree: Node) -> int:
    """Count the nodes of a tree."""

    def count(node: Node) -> int:
        return 1 + sum(map(count, node.children))

    return count(tree)


@tool
async def swing(left: Left) -> str:
    """Swing."""
    return "right" if left.right else "left"


def chained() -> dict[str, Any]:
    definitions: dict[str, Any] = {"d30": {"type": "string"}}
    for level in range(30):
        ref = {"$ref": f"#/$defs/d{level + 1}"}
        definitions[f"d{level}"] = {"type": "object", "properties": {"a": ref, "b": ref}}
    top = {"x": {"$ref": "#/$defs/d0"}}
    return {"type": "object", "properties": top, "$defs": definitions}


@played
async def test_recursive_schemas_reach_the_model_and_a_bad_one_hurts_nobody() -> None:
    """BC-55: kept by reference, or that one tool refused; the others and the loop go on."""

    async def body(arguments: Any) -> str:
        return "chained"

    long_chain = raw_tool(name="chain", description="", parameters=chained(), body=body)
    tree = {"name": "a", "children": [{"name": "b"}, {"name": "c", "children": [{"name": "d"}]}]}
    script = [
        answer(
            call("count_nodes", id="c1", tree=tree),
            call("swing", id="c2", left={"right": {"left": {}}}),
            call("chain", id="c3", x={"a": {}}),
        ),
        "done",
    ]
    async with one(script, [count_nodes, swing, long_chain]) as life:
        dangling = {"type": "object", "properties": {"x": {"$ref": "#/$defs/Nobody"}}}
        with pytest.raises(InvalidTool, match=r"'bad'.*#/\$defs/Nobody"):
            raw_tool(name="bad", description="", parameters=dangling, body=body)
        assert (await life.agent.ask("go")).text == "done"
        assert results(life.session) == {"c1": "4", "c2": "right", "c3": "chained"}
        offered = {schema.name: schema.parameters for schema in life.model.requests[0].tools}
        assert set(offered) == {"count_nodes", "swing", "chain"}
        assert len(repr(offered)) < 20_000, "written out they would fill the memory"
        check(life.session)
