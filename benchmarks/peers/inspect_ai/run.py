"""inspect_ai, by a provider's class of our own. Run in its environment."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
os.environ["INSPECT_DISPLAY"] = "none"
sys.path.insert(0, str(Path(__file__).parents[1]))

from driving import Sleeping, cancelled, serve
from inspect_ai.log._transcript import Transcript, init_transcript
from inspect_ai.model import (
    ChatMessageAssistant,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    get_model,
    modelapi,
)
from inspect_ai.model._stream import StreamTextEvent, report_model_stream_delta
from inspect_ai.tool import ToolCall, tool


class Script:
    calls = steps = deltas = number = 0
    tool = "noop"

    @classmethod
    def set(cls, calls: int, steps: int, tool: str = "noop", deltas: int = 0) -> None:
        init_transcript(Transcript())  # a fresh one, as each sample of an evaluation has
        cls.calls, cls.steps, cls.tool, cls.deltas = calls, steps, tool, deltas


class Scripted(ModelAPI):
    async def generate(self, input, tools, tool_choice, config):
        if Script.steps:
            Script.steps -= 1
            Script.number += 1
            calls = [
                ToolCall(id=f"c{Script.number}_{i}", function=Script.tool, arguments={"i": i})
                for i in range(Script.calls)
            ]
            message = ChatMessageAssistant(content="", tool_calls=calls)
            output = ModelOutput.from_message(message, stop_reason="tool_calls")
        else:
            for _ in range(Script.deltas):
                await report_model_stream_delta(StreamTextEvent(text="word "))
            output = ModelOutput.from_content("scripted", "word " * (Script.deltas or 1))
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output


@modelapi(name="scripted")
def scripted():
    return Scripted


@tool(parallel=True)
def noop():
    async def execute(i: int) -> str:
        """Do nothing.

        Args:
            i: index
        """
        return "ok"

    return execute


@tool(parallel=True)
def sleep():
    async def execute(i: int) -> str:
        """Sleep.

        Args:
            i: index
        """
        return await Sleeping.body()

    return execute


TOOLS = [noop(), sleep()]
MODEL = get_model("scripted/scripted", memoize=False)


async def batch(size: int) -> None:
    Script.set(size, 1)
    await MODEL.generate_loop("go", tools=TOOLS)


async def steps(size: int) -> None:
    Script.set(1, size)
    messages, _ = await MODEL.generate_loop("go", tools=TOOLS)
    assert len(messages) == 2 * size + 1


async def stream(size: int) -> None:
    Script.set(1, 0, deltas=size)
    seen = 0

    async def on(event: object) -> None:
        nonlocal seen
        seen += 1

    await MODEL.generate("go", on_stream=on)
    assert seen >= size


async def cancel(size: int) -> float:
    Script.set(size, 1, "sleep")
    return await cancelled(MODEL.generate_loop("go", tools=TOOLS), size)


if __name__ == "__main__":
    serve({"batch": batch, "steps": steps, "stream": stream, "cancel": cancel})
