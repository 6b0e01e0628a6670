"""What the agents of the example can do, and a scripted model that does it.

A made-up shop: nothing here needs a key, a network or a database.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import trio

import terzetto
from terzetto.llm.scripted import Action, Delay, Entry, ScriptedModel, answer, call
from terzetto.vocabulary import (
    AssistantMessage,
    BlockEnd,
    BlockStart,
    Message,
    Request,
    TextBlock,
    TextDelta,
    ToolSource,
    UserMessage,
    UserSource,
)

SYSTEM = (
    "You help the people at the service desk of a lamp shop. Look things up before you "
    "answer, and be brief."
)


def shop_tools(pace: float) -> list[terzetto.Tool]:
    """The tools. *pace*: seconds that each takes, as if another system were asked."""

    @terzetto.tool(parallel=True, read_only=True)
    async def find_order(number: int) -> dict[str, object]:
        """Find an order.

        Args:
            number: The order's number.
        """
        await trio.sleep(pace)
        if number >= 9000:
            raise terzetto.ToolError(f"there is no order {number}", "NO_ORDER")
        return {"order": number, "item": "desk lamp, brass", "parcel": f"TZ{number}X"}

    @terzetto.tool(parallel=True, read_only=True)
    async def check_stock(item: str) -> dict[str, object]:
        """Say how many of an item there are, and where.

        Args:
            item: What it is called.
        """
        await trio.sleep(1.5 * pace)
        return {"item": item, "warehouse": 14, "shop": 2}

    @terzetto.tool(parallel=True, read_only=True)
    async def track_parcel(parcel: str) -> dict[str, object]:
        """Say where a parcel is.

        Args:
            parcel: Its code.
        """
        await trio.sleep(2 * pace)
        return {"parcel": parcel, "at": "Lyon", "expected": "Thursday"}

    @terzetto.tool
    async def leave_note(text: str) -> str:
        """Leave a note for a colleague. Runs alone.

        Args:
            text: What it says.
        """
        await trio.sleep(pace)
        return "the note is on the board"

    return [find_order, check_stock, track_parcel, leave_note]


# --- the scripted model -------------------------------------------------------------------

LOOKING = "Let me look order {number} up, and what we have in stock."
ASKING = "It has left us. I am asking the carrier where the parcel is."
FOUND = (
    "Order {number} is a brass desk lamp. The parcel left us on Monday, passed Geneva, and is "
    "in Lyon now; the carrier expects to deliver it on Thursday, before noon. Should it be "
    "late, there are 14 more in the warehouse and 2 in the shop, so we can replace it at once."
)
MISSING = "I cannot find order {number}. Is the number right? Ours have four digits."
SHORT = "Order {number} arrives on Thursday."
HELLO = (
    "I am a scripted model, so I need no key and no network. Ask me where an order is, such as "
    "1042. While I work you can steer me: what you write then reaches me at my next step. You "
    "can also interrupt me in the middle of a sentence, as this one, which is long enough for "
    "you to try; what I had said until then is kept, and marked."
)


def scripted_model(pace: float) -> ScriptedModel:
    """A model without a model. *pace*: seconds for about fifteen words."""

    def reply(request: Request) -> Entry:
        asked = [one.text for one in inputs(request.messages, UserSource)]
        answered = [
            n for n, one in enumerate(request.messages) if isinstance(one, AssistantMessage)
        ]
        fresh = request.messages[answered[-1] + 1 :] if answered else request.messages
        results = "".join(str(one.content) for one in inputs(fresh, ToolSource))
        numbers = re.findall(r"\d+", " ".join(asked))
        number = numbers[-1] if numbers else ""
        if "there is no order" in results:
            return answer(*slowly(MISSING.format(number=number), pace))
        if "TZ" in results and "Lyon" not in results:
            asks = call("track_parcel", parcel=f"TZ{number}X")
            return answer(*slowly(ASKING, pace), asks)
        if results:
            also = "".join(f" And you said: {one.text}" for one in inputs(fresh, UserSource))
            return answer(*slowly(FOUND.format(number=number) + also, pace))
        if re.search(r"\d", asked[-1]):
            finds = call("find_order", number=int(number))
            looks = call("check_stock", item="desk lamp, brass")
            return answer(*slowly(LOOKING.format(number=number), pace), finds, looks)
        return answer(*slowly(SHORT.format(number=number) if number else HELLO, pace))

    return ScriptedModel(reply, provider="openai")


def inputs(messages: Sequence[Message], source: type[UserSource | ToolSource]) -> list[UserMessage]:
    """Those of *messages* that came from *source*: people, or tools."""
    users = [one for one in messages if isinstance(one, UserMessage)]
    return [one for one in users if isinstance(one.source, source)]


def slowly(text: str, pace: float) -> list[Action]:
    """*text* as the first block of an answer, word by word."""
    actions: list[Action] = [BlockStart(0, "text")]
    for word in re.findall(r"\S+\s*", text):
        actions += [Delay(pace / 15), TextDelta(0, word)]
    return [*actions, BlockEnd(0, TextBlock(text))]
