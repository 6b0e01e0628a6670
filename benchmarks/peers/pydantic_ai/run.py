"""pydantic-ai, by a model of its own for functions. Run in its environment."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pydantic_ai.models.function as function
from driving import Sleeping, cancelled, serve
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage

# The model for tests estimates tokens with a regex over the history, which is no cost of the
# library: a provider's model has them from the provider.
function._estimate_string_tokens = lambda _: 1
ANY = UsageLimits(request_limit=None)


def model(calls: int, steps: int, tool: str = "noop") -> FunctionModel:
    """Asks for *calls* in each of *steps*, and is done."""
    left = [steps]

    async def answer(messages: object, info: object) -> ModelResponse:
        usage = RequestUsage(input_tokens=1, output_tokens=1)
        if not left[0]:
            return ModelResponse(parts=[TextPart("done")], usage=usage)
        left[0] -= 1
        parts = [ToolCallPart(tool, {"i": i}, tool_call_id=f"c{left[0]}_{i}") for i in range(calls)]
        return ModelResponse(parts=parts, usage=usage)

    return FunctionModel(answer)


async def noop(i: int) -> str:
    return "ok"


async def sleep(i: int) -> str:
    return await Sleeping.body()


AGENT = Agent(model(1, 0), tools=[noop, sleep])


async def batch(size: int) -> None:
    await AGENT.run("go", model=model(size, 1), usage_limits=ANY)


async def steps(size: int) -> None:
    ended = await AGENT.run("go", model=model(1, size), usage_limits=ANY)
    assert len(ended.all_messages()) == 2 * size + 2


async def stream(size: int) -> None:
    async def answer(messages: object, info: object) -> AsyncIterator[str]:
        for _ in range(size):
            yield "word "

    seen = 0
    async with AGENT.run_stream("go", model=FunctionModel(stream_function=answer)) as run:
        async for _ in run.stream_text(delta=True, debounce_by=None):
            seen += 1
    assert seen >= size - 1


async def cancel(size: int) -> float:
    return await cancelled(AGENT.run("go", model=model(size, 1, "sleep"), usage_limits=ANY), size)


if __name__ == "__main__":
    serve({"batch": batch, "steps": steps, "stream": stream, "cancel": cancel})
