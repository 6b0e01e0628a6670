"""What type checkers infer of `ask`: mypy checks this file with the rest, pyright by name."""

from __future__ import annotations

import inspect
from typing import Literal, NamedTuple, TypedDict, assert_type

import attrs
import msgspec
from tests.agent.kit import played
from tests.agent.rig import one

from terzetto import Agent, Answer, Turn
from terzetto.llm.scripted import call


@attrs.frozen
class Weather:
    city: str


class Row(TypedDict):
    name: str


class Point(NamedTuple):
    x: int


class Shape(msgspec.Struct):
    side: float


async def inferred(agent: Agent) -> None:
    """Never run: what is checked are the types."""
    assert_type(await agent.ask("go"), Turn)
    assert_type(await agent.ask("go", on_cancel="leave"), Turn)
    assert_type(await agent.ask("go", returns=Weather), Answer[Weather])
    assert_type((await agent.ask("go", returns=Weather)).value, Weather)
    assert_type((await agent.ask("go", returns=Row, on_cancel="leave")).value, Row)
    assert_type((await agent.ask("go", returns=Point)).value, Point)
    assert_type((await agent.ask("go", returns=Shape)).value, Shape)
    assert_type((await agent.ask("go", returns=int)).value, int)
    assert_type((await agent.ask("go", returns=list[int])).value, list[int])
    assert_type((await agent.ask("go", returns=dict[str, Weather])).value, dict[str, Weather])
    # What is no class to a type checker gives an object; `isinstance` tells the rest.
    assert_type((await agent.ask("go", returns=Literal["a", "b"])).value, object)
    union = (await agent.ask("go", returns=Weather | None)).value
    assert_type(union, object)
    if isinstance(union, Weather):
        assert_type(union.city, str)


def wider(answer: Answer[bool]) -> Answer[object]:
    """An answer is covariant in its value, and is a turn."""
    turn: Turn = answer
    assert turn.number
    return answer


@played
async def test_the_types_that_are_inferred_are_those_of_the_values() -> None:
    """A typed ask returns an `Answer`, which is a `Turn` that has a `value`."""
    assert inspect.iscoroutinefunction(inferred)
    async with one([call("answer", value=True)]) as life:
        found = await life.agent.ask("go", returns=bool)
        assert wider(found) is found
        assert found.value is True
