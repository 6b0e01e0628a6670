"""Cases of kind *history*: what the next request holds, judged by a strict provider.

BC-45, BC-46 and BC-51 are in tests/extras: they are about compaction and budgets.
"""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.agent.kit import check, codes, endings
from tests.cases.kit import (
    PATIENCE,
    another_life,
    calls,
    case,
    line,
    process,
    says,
    served,
)
from tests.cases.life import echo
from tests.commands import linux_like
from tests.llm.strict import judge

import terzetto
from terzetto import UserCause, raw_tool, tool
from terzetto.llm.loopback import serve_openai
from terzetto.session import Session, replay
from terzetto.vocabulary import Aborted, Completed, ToolCallEvent, texts


@case(2, "live", "resumed")
async def test_every_call_of_a_cancelled_batch_has_one_result(variant: str, tmp_path: Path) -> None:
    """BC-02: finished, running and queued can be told apart; nothing runs after the cancel."""
    began: list[float] = []
    both = trio.Event()

    @tool(parallel=True, name="slow")
    async def sleeping(s: float) -> str:
        """Sleep."""
        began.append(s)
        if len(began) == 2:
            both.set()
        await trio.sleep(s)
        return "never"

    batch = calls(
        ("c1", "echo", '{"x": 1}'),
        *((f"c{n}", "slow", '{"s": 3000}') for n in (2, 3, 4)),
    )
    script = [batch, says("then"), says("and then")]
    async with served(
        script, [echo, sleeping], folder=tmp_path / "live", max_parallel_tool_calls=2
    ) as life:
        life.agent.followup("go")
        await both.wait()
        while not codes(life.session):  # the first call's result is in the log
            await trio.sleep(0.005)
        life.agent.cancel()
        await life.agent.wait_idle()
        assert began == [3000, 3000]
        body = None
        if variant == "resumed":
            body = await life.resumed("hi", copy=tmp_path / "copy", tools="slow echo")
        await life.say("hi")
        assert list(codes(life.session).items()) == [
            ("c1", None),
            ("c2", texts.ABORTED),
            ("c3", texts.ABORTED),
            ("c4", texts.ABORTED_BEFORE_DISPATCH),
        ]
        assert life.roles() == ["user", "assistant", *["tool"] * 4, "user"]
        assert list(life.results().items()) == [
            ("c1", "1"),
            ("c2", texts.ABORTED_TEXT),
            ("c3", texts.ABORTED_TEXT),
            ("c4", texts.ABORTED_BEFORE_DISPATCH_TEXT),
        ]
        assert texts.ABORTED_TEXT != texts.ABORTED_BEFORE_DISPATCH_TEXT
        if body is not None:
            assert body["messages"] == life.sent()
        assert endings(life.session) == [Aborted(UserCause()), Completed()]
        assert began == [3000, 3000]
        check(life.session)


@case(9, "live")
async def test_steering_while_tools_run_goes_behind_the_results(variant: str) -> None:
    """BC-09: results first, then what was said, in the order in which it was sent."""
    running, release = trio.Event(), trio.Event()
    ran: list[str] = []

    @tool(parallel=True)
    async def first() -> str:
        """The first."""
        ran.append("first")
        return "1"

    @tool(parallel=True)
    async def second() -> str:
        """The second."""
        ran.append("second")
        running.set()
        await release.wait()
        return "2"

    script = [calls(("c1", "first", "{}"), ("c2", "second", "{}")), says("ok")]
    async with served(script, [first, second]) as life:
        life.agent.followup("go")
        await running.wait()
        while "c1" not in codes(life.session):
            await trio.sleep(0.005)
        life.agent.steer("use B")
        life.agent.inject("note")
        release.set()
        await life.agent.wait_idle()
        assert [m["content"] for m in life.sent()[2:]] == ["1", "2", "use B", "note"]
        assert life.roles() == ["user", "assistant", "tool", "tool", "user", "user"]
        assert sorted(ran) == ["first", "second"]
        check(life.session)


@linux_like
@case(9, "killed-saved", "killed-unsaved")
async def test_killed_between_the_steering_and_the_second_result(
    variant: str, tmp_path: Path
) -> None:
    """BC-09: the next life sends results first, then what was said and saved; nothing is run
    again. What had not been flushed is gone, as the durability says, and breaks nothing."""
    what = "steered and saved" if variant == "killed-saved" else "steered"
    script = [calls(("c1", "slow", '{"s": 0.01}'), ("c2", "slow", '{"s": 3000}')), says("ok")]
    with trio.fail_after(PATIENCE):
        async with serve_openai(script, judge=judge) as server:
            async with process(server.base_url, tmp_path, "s", what, "go", "slow") as child:
                assert await line(child) == "steered"
                child.send_signal(signal.SIGKILL)
                await child.wait()
            body = await another_life(server, tmp_path, "go on", session="s", tools="slow")
            messages: Any = body["messages"]
            assert [r.violations for r in server.requests] == [(), ()]
    roles = [m["role"] for m in messages]
    said = [m["content"] for m in messages if m["role"] == "user"]
    assert roles[:4] == ["user", "assistant", "tool", "tool"]
    assert messages[3]["content"] == texts.TOOL_OUTCOME_UNKNOWN_TEXT
    if variant == "killed-saved":
        assert messages[2]["content"] == "slept 0.01"
        assert said == ["go", "use B", "note", "go on"]
    else:
        assert said == ["go", "go on"]
    header, events = await terzetto.JsonlStore(tmp_path).read("s")
    session = Session(header, now_ms=lambda: 0)
    replay(session, events)
    assert sum(isinstance(e.data, ToolCallEvent) for e in events) == 2
    check(session)


MALFORMED = ['{"x": "He said "hi""}', "{", "[1]", '"str"', '{"x":1}{"x":2}']


@pytest.mark.parametrize("arguments", MALFORMED, ids=lambda a: f"BC-23-{a}")
async def test_malformed_arguments_do_not_poison_the_session(
    arguments: str, tmp_path: Path
) -> None:
    """BC-23: one error result that says what was wrong; every later request is valid, in the
    next turn and after a resume; the log keeps what the model wrote."""
    ran: list[object] = []

    @tool(name="echo")
    async def typed(x: int) -> int:
        """Say it again."""
        ran.append(x)
        return x

    script = [calls(("c1", "echo", arguments)), *[says("ok")] * 4]
    async with served(script, [typed], folder=tmp_path / "live") as life:
        await life.say("go")
        assert ran == []
        assert codes(life.session) == {"c1": texts.INVALID_ARGS}
        assert "echo" in life.results()["c1"] or "JSON" in life.results()["c1"]
        assert life.sent()[1]["tool_calls"][0]["function"]["arguments"] == "{}"
        await life.say("more")
        await life.resumed_here("and more", copy=tmp_path / "copy", tools=[typed])
        assert life.sent()[-1]["content"] == "and more"
        raw = [e.data.arguments for e in life.session.events if isinstance(e.data, ToolCallEvent)]
        assert raw == [arguments]
        check(life.session)


@pytest.mark.parametrize("arguments", MALFORMED, ids=lambda a: f"BC-23-raw-{a}")
async def test_a_tool_with_a_raw_schema_receives_what_was_written(arguments: str) -> None:
    """BC-23: and the request that follows is valid all the same."""
    got: list[object] = []

    async def body(given: object) -> str:
        got.append(given)
        return "seen"

    anything = {"type": "object", "additionalProperties": True}
    raw = raw_tool(name="echo", description="Take it.", parameters=anything, body=body)
    async with served([calls(("c1", "echo", arguments)), says("ok")], [raw]) as life:
        await life.say("go")
        # C117: JSON of another type is given as its value, what is no JSON as the text.
        values: dict[str, object] = {"[1]": [1], '"str"': "str"}
        assert got == [values.get(arguments, arguments)]
        assert life.results() == {"c1": "seen"}
        check(life.session)


def test_the_judge_would_have_seen_it() -> None:
    """The checks above can fail: what other engines sent is refused."""
    strict = partial(judge)
    poisoned = {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "echo", "arguments": "{"},
                    }
                ],
            },
            {"role": "user", "content": "split"},
        ],
    }
    found = strict(json.dumps(poisoned).encode())
    assert any("not a JSON object" in problem for problem in found)
    assert any("calls without a result" in problem for problem in found)
