"""Compaction before a strict provider: over HTTP where the request matters (BC-31, BC-45)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from tests.agent.kit import check, play
from tests.agent.rig import one
from tests.extras.test_compaction import is_summary
from tests.llm.strict import judge

import terzetto
from terzetto import Failure, ToolRun, UserMessage, tool
from terzetto.extras.compaction import Compaction
from terzetto.llm._openai_wire import encode_request
from terzetto.llm.loopback import LoopbackServer, serve_openai
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import (
    Answer,
    Raw,
    Refuse,
    ScriptedModel,
    answer,
    call,
    say,
)
from terzetto.vocabulary import Request

STREAMED = (
    b'data: {"error":{"message":"too long","type":"invalid_request_error",'
    b'"code":"context_length_exceeded"}}\n\n'
)


def refused(message: str, code: object = None) -> Answer:
    import json

    body = json.dumps({"error": {"message": message, "code": code}}).encode()
    failure = Failure(message=message, code="INVALID_REQUEST", status=400)
    return Answer((), Refuse(failure=failure, body=body))


FORMS = {
    "a code": refused("too long", "context_length_exceeded"),
    "a sentence and a number": refused(
        "This model's maximum context length is 131072 tokens. However, you requested 152533 "
        "tokens (148437 in the messages, 4096 in the completion).",
        400,
    ),
    "prompt is too long": refused("prompt is too long: 214676 tokens > 200000 maximum"),
    "available context size": refused(
        "request (152533 tokens) exceeds the available context size (131072 tokens)"
    ),
    "an event in the stream": Answer((Raw(STREAMED),)),
}


def is_asked(server: LoopbackServer, number: int) -> bool:
    """Whether that request asked for a summary."""
    messages: Any = server.requests[number].body["messages"]
    return str(messages[-1]["content"]).startswith("Stop here.")


@pytest.mark.parametrize("form", FORMS, ids=str)
async def test_every_form_of_overflow_is_compacted_and_retried_once(form: str) -> None:
    """BC-31: one compaction, one retry, which succeeds; what was before is in the log."""
    script = ["a" * 800, "b" * 800, FORMS[form], "the summary", "fits now", "and on"]
    with trio.fail_after(30):
        async with serve_openai(script, judge=judge) as server:
            adapter = OpenAIChat(api_key="k", base_url=server.base_url)
            async with terzetto.open_engine(adapters=[adapter]) as engine:
                Compaction(keep_rounds=1).attach(engine.scope)
                async with engine.open_agent(provider="openai", model="m") as agent:
                    await agent.ask("one")
                    await agent.ask("two")
                    before = list(agent.history())
                    turn = await agent.ask("three")
                    assert turn.text == "fits now"
                    assert (await agent.ask("four")).text == "and on"
                    logged = [
                        e.data.message for e in agent.session.events if hasattr(e.data, "message")
                    ]
                    assert [m for m in before if m in logged] == before
                    check(agent.session)
            kinds = [is_asked(server, n) for n in range(len(server.requests))]
            assert kinds == [False, False, False, True, False, False]
            assert [r.violations for r in server.requests] == [()] * 6


@pytest.mark.parametrize("form", FORMS, ids=str)
async def test_an_overflow_that_comes_again_ends_the_turn_clearly(form: str) -> None:
    """BC-31: a bounded number of tries; the history before the compaction is in the log."""

    def script(request: Request) -> Any:
        text = str(request.messages[-1])
        if "Stop here." in text:
            return "S"
        return FORMS[form] if "three" in str(request.messages) else "a" * 800

    with trio.fail_after(30):
        async with serve_openai(script, judge=judge) as server:
            adapter = OpenAIChat(api_key="k", base_url=server.base_url)
            async with terzetto.open_engine(adapters=[adapter]) as engine:
                Compaction(keep_rounds=1).attach(engine.scope)
                async with engine.open_agent(provider="openai", model="m") as agent:
                    await agent.ask("one")
                    await agent.ask("two")
                    with pytest.raises(terzetto.TurnFailed) as caught:
                        await agent.ask("three")
                    assert caught.value.code == "CONTEXT_OVERFLOW"
                    texts = [str(e.data) for e in agent.session.events]
                    assert any("a" * 800 in text for text in texts)
                    check(agent.session)
            assert len(server.requests) <= 2 + 1 + 2 * 2
            assert [r.violations for r in server.requests] == [()] * len(server.requests)


# --- every budget --------------------------------------------------------------------------


@tool(parallel=True)
async def read(size: int, run: ToolRun) -> str:
    """Read something of that size."""
    if size < 0:  # until the turn is cancelled
        await trio.sleep_forever()
    await trio.lowlevel.checkpoint()
    if size == 7:
        run.agent.steer("by the way, in between")
    return "r" * size


def six_rounds(last: str) -> list[Any]:
    """1 to 3 parallel calls a round; the last one as *last* says."""
    sizes = [[60], [300, 20], [5, 900, 40], [100], [30, 30], [400, 10, 10]]
    if last == "cancelled":
        sizes[-1] = [40, -1, 40]
    elif last == "steered":
        sizes[-1] = [7, 200]
    return [
        answer(
            say(f"Round {number}." + " more" * 10 * number),
            *(call("read", size=s, id=f"c{number}-{i}") for i, s in enumerate(row)),
        )
        for number, row in enumerate(sizes)
    ]


def strict(requests: list[Request]) -> None:
    """Each request as the wire has it."""
    for request in requests:
        assert judge(encode_request(request)) == []


@pytest.mark.parametrize("last", ["answered", "cancelled", "steered"])
def test_at_every_budget_both_requests_are_valid(last: str) -> None:
    """BC-45: six rounds, and a compaction forced at every size that the next request can be
    told to have."""

    async def main(window: int) -> int:
        waiting = six_rounds(last)

        def script(request: Request) -> Any:
            if is_summary(request):
                return "the summary"
            return waiting.pop(0) if waiting else "done"

        model = ScriptedModel(script)
        async with one(model, [read], system="be brief") as life:
            compaction = Compaction(window=window, keep_rounds=1, attempts=50, prune_over=100)
            compaction.attach(life.agent.scope)
            life.agent.followup("Read them all: 'alpha'")
            if last == "cancelled":
                await trio.testing.wait_all_tasks_blocked()
                if life.agent.status == "running":
                    life.agent.cancel()
            await life.agent.wait_idle()
            turn = await life.agent.ask("And now 'omega'")
            assert turn.text == "done"
            strict(model.requests)
            asked = [r for r in model.requests if is_summary(r)]
            for request in model.requests:
                if not is_summary(request):
                    users = [m.text for m in request.messages if isinstance(m, UserMessage)]
                    newest = "omega" if request is model.requests[-1] else "alpha"
                    if last != "steered" or newest == "omega":
                        assert any(newest in text for text in users)
            check(life.session)
            return len(asked)

    counts = [play(main, window) for window in range(40, 1200, 20)]
    assert max(counts) >= 3
    assert counts[-1] == 0


@pytest.mark.parametrize("number", [2, 3, 6])
async def test_the_next_life_sends_what_this_one_would_have(number: int, tmp_path: Path) -> None:
    """BC-45 before a real server, resumed: the compacted history is what is stored."""

    def script(request: Request) -> Any:
        if "Stop here." in str(request.messages[-1]):
            return "the summary"
        rounds = sum(m.tool_calls != () for m in request.messages if hasattr(m, "tool_calls"))
        return six_rounds("answered")[rounds] if rounds < number else "done"

    with trio.fail_after(30):
        async with serve_openai(script, judge=judge) as server:
            store = terzetto.JsonlStore(tmp_path)

            async def live(resume: str | None, text: str) -> str:
                adapter = OpenAIChat(api_key="k", base_url=server.base_url)
                async with terzetto.open_engine(
                    adapters=[adapter], tools=[read], store=store
                ) as engine:
                    async with engine.open_agent(
                        provider="openai", model="m", resume=resume
                    ) as agent:
                        await agent.ask(text)
                        if resume is None:
                            await Compaction(keep_rounds=1).compact(agent)
                        expected.append(list(agent.history()))
                        return agent.id

            expected: list[Any] = []
            name = await live(None, "first")
            await live(name, "second")
            assert expected[1][: len(expected[0])] == expected[0]
            assert [r.violations for r in server.requests] == [()] * len(server.requests)
            assert "the summary" in str(server.requests[-1].body["messages"])
