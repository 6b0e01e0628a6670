"""The simulated model: answers from the script, and asks again for what was not started."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from attrs import define, field

from ..llm.scripted import (
    Answer as Played,
    Cut,
    Delay,
    Entry,
    Hang,
    Part as Block,
    Throw,
    answer,
    call,
    finish_error,
    say,
    think,
)
from ..session import Messages
from ..vocabulary import (
    AssistantMessage,
    Finish,
    MaxTokens,
    Request,
    SessionId,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    UserMessage,
    texts,
)
from ._simulate_plan import Answer, Call, seconds
from ._simulate_world import PLANNED, Planned, World

NOT_STARTED = frozenset({texts.TOOL_NOT_STARTED_TEXT, texts.ABORTED_BEFORE_DISPATCH_TEXT})
MOST_AGAIN = 8
"""Calls that are asked for again at once, at most."""


@define(eq=False)
class Mind:
    """Answers every request of a simulation. The numbers of answers go on over its lives."""

    world: World = field(init=False)
    _counts: dict[SessionId, int] = field(factory=dict)

    def reply(self, request: Request) -> Entry:
        world, who = self.world, request.session_id
        if not isinstance(request.messages, Messages):  # of `Agent.complete`
            return answer(Delay(0.05), "An answer on the side.")
        if world.over:
            return answer("Done.")
        if world.plan.repeats and (again := owed(request.messages)):
            calls = [call(c.name, c.arguments, id=world.call_id()) for c in again[:MOST_AGAIN]]
            return answer("Again, then.", *calls)
        count = self._counts.get(who, 0)
        self._counts[who] = count + 1
        answers = world.plan.answers.get(who, ())
        return self._played(answers[count]) if count < len(answers) else answer("Done.")

    def _played(self, given: Answer) -> Played:
        played: list[Block | str | Delay] = []
        finish = None
        for part in given.parts:
            if isinstance(part, Call):
                played.append(self._call(part))
                continue
            kind, _, value = part.partition(":")
            match kind:
                case "say":
                    played.append(say(value))
                case "think":
                    played.append(think(value))
                case "delay":
                    played.append(Delay(seconds(value)))
                case "garbage":
                    name = value or "note"
                    played.append(call(name, "{not JSON", id=self.world.call_id()))
                case "max-tokens":
                    finish = MaxTokens()
                case _:
                    return answer(*played, _endings(kind, value))
        return answer(*played, finish=finish)

    def _call(self, part: Call) -> Block:
        world = self.world
        if part.given is not None:
            return _named(world.calls[part.given], world.call_id())
        effect = world.effect_name()
        arguments: dict[str, object] = {"effect": effect, "does": list(part.does)}
        if part.tool == "change":
            arguments["place"] = "xyz"[len(effect) % 3]
        return call(part.tool, arguments, id=world.call_id())


def _endings(kind: str, value: str) -> Finish | Throw | Cut | Hang:
    match kind:
        case "fail":
            return finish_error(value or "SERVER", PLANNED)
        case "throw":
            return Throw(Planned())
        case "cut":
            return Cut()
        case _:
            return Hang()


def _named(part: Block, call_id: str) -> Block:
    block = part.block
    assert isinstance(block, ToolCallBlock)
    return call(block.name, block.arguments, id=call_id)


def owed(messages: Sequence[object]) -> list[ToolCallBlock]:
    """Calls that the history says were not started, and that nobody has repeated."""
    asked: dict[str, ToolCallBlock] = {}
    found: dict[str, ToolCallBlock] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            for block in message.tool_calls:
                asked[block.id] = block
                found.pop(_effect(block), None)
        elif isinstance(message, UserMessage):
            for result in message.content:
                if isinstance(result, ToolResultBlock) and _text(result) in NOT_STARTED:
                    block = asked[result.tool_call_id]
                    if effect := _effect(block):
                        found[effect] = block
    return list(found.values())


def _effect(block: ToolCallBlock) -> str:
    try:
        arguments = json.loads(block.arguments)
    except ValueError:
        return ""
    return str(arguments.get("effect", "")) if isinstance(arguments, Mapping) else ""


def _text(result: ToolResultBlock) -> str:
    return "".join(block.text for block in result.content if isinstance(block, TextBlock))
