"""Cases of kind *tools*: odd calls, odd tools, odd results, before a strict provider.

BC-13, 34, 35, 39, 40, 41 and 55 are in tests/tools.
"""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import trio
from attrs import frozen
from tests.agent.kit import check, codes, endings, results
from tests.cases.kit import (
    DONE,
    calls,
    case,
    chunk,
    finish,
    plays,
    says,
    served,
    text,
    tool_call,
)

from terzetto import ToolRun, tool
from terzetto.llm.scripted import Raw
from terzetto.vocabulary import (
    AssistantMessageEvent,
    Completed,
    EndedAtMaxTokens,
    ToolCallEvent,
    UserMessageEvent,
    texts,
)


@tool(parallel=True)
async def echo(x: int) -> int:
    """Say it again."""
    return x


# --- BC-18 ----------------------------------------------------------------------------------


@case(18, "calls-only", "text-and-calls", "truncated-again")
async def test_no_call_of_an_answer_that_the_limit_cut_runs(variant: str) -> None:
    """BC-18 C110: both calls are dropped; the outcome says so; nobody asks again by himself."""
    ran: list[str] = []

    @tool
    async def write(path: str, text: str = "") -> str:
        """Write a file."""
        ran.append(path)
        return "ok"

    said = [text("Writing.")] if variant == "text-and-calls" else []
    cut = plays(
        *said,
        tool_call(0, "c1", "write", '{"path":"/a","text":"ok"}'),
        tool_call(1, "c2", "write", '{"path":"/home/user/proj'),
        finish("length"),
        DONE,
    )
    again = [cut] if variant == "truncated-again" else []
    async with served([cut, *again, says("retrying smaller")], [write]) as life:
        turns = [await life.agent.ask(str(n)) for n in range(2 + len(again))]
        cut_turns = turns[:-1]
        assert [t.ending for t in cut_turns] == [EndedAtMaxTokens()] * len(cut_turns)
        assert turns[-1].text == "retrying smaller"
        assert len(life.server.requests) == len(turns)
        assert ran == []
        kept = [{"role": "assistant", "content": "Writing."}] if said else []
        users: list[Any] = [{"role": "user", "content": str(n)} for n in range(len(turns))]
        assert life.sent() == [users[0], *kept, *users[1:]]
        check(life.session)


# --- BC-22 ----------------------------------------------------------------------------------

NOTHING: dict[str, Any] = {
    "empty": "",
    "null": None,
    "absent": ...,
    "spaces": "  ",
    "object": "{}",
    "text-null": "null",
}


@case(22, *NOTHING)
async def test_no_arguments_in_any_form_are_no_arguments(variant: str) -> None:
    """BC-22: the tool runs once; the history holds a JSON object; one that needs arguments is
    answered with an error."""
    ran: list[str] = []

    @tool
    async def now() -> str:
        """The time."""
        ran.append("now")
        return "noon"

    given = NOTHING[variant]
    batch = plays(
        tool_call(0, "c1", "now", given),
        tool_call(1, "c2", "echo", given),
        finish("tool_calls"),
        DONE,
    )
    async with served([batch, says("ok"), says("more")], [now, echo]) as life:
        await life.say("go")
        assert ran == ["now"]
        assert results(life.session)["c1"] == "noon"
        assert codes(life.session) == {"c1": None, "c2": texts.INVALID_ARGS}
        sent = [c["function"]["arguments"] for c in life.sent()[1]["tool_calls"]]
        assert [json.loads(a) for a in sent] == [{}, {}]
        await life.say("more")
        assert endings(life.session) == [Completed()] * 2
        check(life.session)


# --- BC-33 ----------------------------------------------------------------------------------

RAISED: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("broken pipe"),
    "SystemExit": lambda: SystemExit("broken pipe"),
    "asyncio-CancelledError": lambda: asyncio.CancelledError("broken pipe"),
    "GeneratorExit": lambda: GeneratorExit("broken pipe"),
    "ExceptionGroup": lambda: ExceptionGroup("x", [ValueError("broken pipe")]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("x", [SystemExit("broken pipe")]),
    "of-its-own": lambda: _Own("broken pipe"),
}


class _Own(BaseException):
    """Nobody's."""


@case(33, *RAISED)
async def test_one_failing_tool_does_not_lose_its_siblings(variant: str) -> None:
    """BC-33: three results in order, its own message among them; the turn goes on."""

    @tool(parallel=True)
    async def boom() -> str:
        """Fail."""
        await trio.lowlevel.checkpoint()
        raise RAISED[variant]()

    @tool(parallel=True)
    async def slow(s: float) -> str:
        """Sleep."""
        await trio.sleep(s)
        return "slept"

    batch = calls(("c1", "boom", "{}"), ("c2", "echo", '{"x": 1}'), ("c3", "slow", '{"s": 0.3}'))
    async with served([batch, says("ok")], [boom, echo, slow]) as life:
        turn = await life.agent.ask("go")
        assert (turn.ending, turn.text) == (Completed(), "ok")
        found = life.results()
        assert list(found) == ["c1", "c2", "c3"]
        assert "broken pipe" in found["c1"]
        assert (found["c2"], found["c3"]) == ("1", "slept")
        check(life.session)


# --- BC-36 ----------------------------------------------------------------------------------


@case(36, "in-order")
async def test_unknown_tool_names_are_answered(variant: str) -> None:
    """BC-36: invented, nameless and hidden; the request that follows is valid."""
    ran: list[str] = []

    @tool
    async def hidden() -> str:
        """Not for this agent."""
        ran.append("hidden")
        return "secret"

    batch = plays(
        tool_call(0, "c1", "nope", "{}"),
        tool_call(1, "c2", "", "{}"),
        tool_call(2, "c3", "echo", '{"x":1}'),
        tool_call(3, "c4", "hidden", "{}"),
        finish("tool_calls"),
        DONE,
    )
    async with served([batch, says("ok"), says("more")], [echo, hidden]) as life:
        life.agent.scope.restrict(deny=["hidden"])
        await life.say("go")
        assert codes(life.session) == {
            "c1": texts.UNKNOWN_TOOL,
            "c2": texts.UNKNOWN_TOOL,
            "c3": None,
            "c4": texts.UNKNOWN_TOOL,
        }
        assert list(life.results()) == ["c1", "c2", "c3", "c4"]
        assert life.results()["c3"] == "1"
        assert ran == []
        offered = [t["function"]["name"] for t in life.server.requests[0].body["tools"]]  # type: ignore[union-attr, index, call-overload]
        assert offered == ["echo"]
        await life.say("more")
        check(life.session)


# --- BC-37 ----------------------------------------------------------------------------------


@frozen
class Point:
    x: int
    y: int


class Colour(enum.Enum):
    RED = "red"


class Rude:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


async def forgotten() -> int:
    return 1


def generated() -> Any:
    yield 1


RETURNED: dict[str, Callable[[], object]] = {
    "datetime": lambda: datetime(2026, 1, 2, 3, 4, 5),
    "Decimal": lambda: Decimal("1.1"),
    "Path": lambda: Path("/x"),
    "set": lambda: {1, 2},
    "tuple-keys": lambda: {(1, 2): 3},
    "mixed-keys": lambda: {1: "a", "b": 2},
    "exception": lambda: ValueError("x"),
    "dataclass": lambda: Point(1, 2),
    "enum": lambda: Colour.RED,
    "rude-str": Rude,
    "None": lambda: None,
    "coroutine": forgotten,
    "generator": generated,
    "bytes": lambda: b"\xff\x00",
    "nan": lambda: float("nan"),
}
WITH_A_TEXT = {
    "datetime": "2026-01-02T03:04:05",
    "Decimal": "1.1",
    "Path": "/x",
    "set": "[1,2]",
    "dataclass": '{"x":1,"y":2}',
    "enum": "red",
}


@case(37, *RETURNED)
async def test_a_result_of_any_type_is_handled(variant: str, tmp_path: Path) -> None:
    """BC-37: one result, a text or an error that says so; the same after a resume."""

    @tool
    async def odd() -> object:
        """Return something."""
        return RETURNED[variant]()

    script = [calls(("c1", "odd", "{}")), *[says("ok")] * 3]
    async with served(script, [odd], folder=tmp_path / "live") as life:
        turn = await life.agent.ask("go")
        assert turn.ending == Completed()
        found = life.results()["c1"]
        if variant in WITH_A_TEXT:
            assert found == WITH_A_TEXT[variant]
            assert codes(life.session) == {"c1": None}
        elif variant in ("rude-str", "coroutine", "generator"):
            assert codes(life.session) == {"c1": texts.INVALID_TOOL_OUTPUT}
            assert "the tool returned" in found
        else:
            assert found
        body: Any = await life.resumed_here("more", copy=tmp_path / "copy", tools=[odd])
        await life.say("more")
        assert body["messages"] == life.sent()
        assert life.results()["c1"] == found
        check(life.session)


# --- BC-38 ----------------------------------------------------------------------------------

ESCAPED = {
    "a": '{"s": "x"}',
    "b": '{"s": "x"}',
    "c": '{"s": "x"}',
    "d": '{"s": "x"}',
    "e": '{"s": "\\ud83c\\udf78"}',
}


@case(38, *ESCAPED)
async def test_lone_surrogates_do_not_take_down_a_turn(variant: str, tmp_path: Path) -> None:
    """BC-38: a result, an error, the user, two deltas, an argument; nothing raises, the strict
    provider gets UTF-8, and the log can be read."""
    got: list[str] = []

    @tool
    async def read(s: str, run: ToolRun) -> str:
        """Read."""
        got.append(s)
        if variant == "b":
            raise ValueError("\ud835")
        return "a\udc97b" if variant == "a" else s

    answer_ = says("ok")
    if variant == "d":
        halves = [
            Raw(chunk({"content": "@"}).data.replace(b'"@"', half))
            for half in (b'"\\ud83d"', b'"\\ude00"')
        ]
        answer_ = plays(*halves, finish("stop"), DONE)
    batch = calls(("c1", "read", ESCAPED[variant]))
    script = [batch, answer_, says("more"), says("more")]
    async with served(script, [read], folder=tmp_path / "live") as life:
        await life.say("\ud800 go" if variant == "c" else "go")
        body: Any = await life.resumed_here("and now?", copy=tmp_path / "copy", tools=[read])
        await life.say("and now?")
        assert body["messages"] == life.sent()
        assert endings(life.session) == [Completed()] * 2
        for event in life.session.events:
            str(event.data).encode()
        result = life.results()["c1"]
        if variant == "a":
            assert result == "a\ufffdb"
        elif variant == "b":
            assert result == "Error: \ufffd"
        elif variant == "c":
            first = next(e for e in life.session.events if isinstance(e.data, UserMessageEvent))
            assert first.data.message.text == "\ufffd go"  # type: ignore[union-attr]
        elif variant == "d":
            last = [e for e in life.session.events if isinstance(e.data, AssistantMessageEvent)][1]
            assert last.data.message.text == "\U0001f600", "halves that meet are joined"
        else:
            assert got == ["\U0001f378"]
            [call] = [e.data for e in life.session.events if isinstance(e.data, ToolCallEvent)]
            assert call.arguments == ESCAPED["e"]
        check(life.session)
