"""`check_requests`: it finds nothing in what an engine did, and finds what is wrong (C162)."""

from __future__ import annotations

from attrs import evolve
from tests.agent.kit import played
from tests.agent.rig import Life, one

from terzetto import UserMessage
from terzetto.llm.scripted import answer, call
from terzetto.session import Messages
from terzetto.testing import check_requests


def check(life: Life, drop: int | None = None) -> list[str]:
    requests = [r for n, r in enumerate(life.model.requests) if n != drop]
    return check_requests(life.session.header, life.session.events, requests)


@played
async def test_what_was_asked_is_what_the_log_gives() -> None:
    async with one([answer(call("nothing")), "one", "aside", "two"]) as life:
        await life.say("one")
        await life.agent.complete("a title, please")
        await life.say("two")
        assert check(life) == []


@played
async def test_every_difference_is_told() -> None:
    async with one(["one", "two"]) as life:
        await life.say("one")
        await life.say("two")
        assert check(life, drop=1) == ["request 2.1.1 is not what was asked"]
        life.model.requests.append(life.model.requests[0])
        assert check(life) == ["a request of 1 messages is not in the log"]
        life.model.requests.pop()
        forged = Messages([UserMessage("forged")], 1)
        life.model.requests[0] = evolve(life.model.requests[0], messages=forged)
        assert check(life) == ["request 1.1.1 is not what was asked"]
        hole = [event for event in life.session.events if event.seq != 3]
        found = check_requests(life.session.header, hole, ())
        assert found[0].startswith("the requests cannot be rebuilt: event 4: ")
