"""The scripted model of the demo: what it answers is a function of what it is asked.

It knows the demo's questions, and takes every number and every name from the tool results
in the request; so what it says is true of whatever folder the demo runs in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from attrs import field, frozen

from ..llm.scripted import Action, Answer, Delay, Gate, Part, answer, call, say
from ..vocabulary import (
    AssistantMessage,
    CallId,
    Message,
    Request,
    TextDelta,
    ToolResultBlock,
    UserMessage,
)
from ._demo_tools import Pace
from ._table import count

HELLO = "What can you do here?"
LOOK = "Look around, and leave a note of what you find."
COUNT = "How many words are there in all these files? Tell me how you counted."
STEER = "Just the number, please."
STORY = "Tell me the story of this folder."
GO_ON = "Sorry! Go on from where you were."
REMEMBER = "What do you remember of me?"

STORY_PAUSE = 22
"""Words of the story after which the model pauses: in mid-sentence, whatever the folder."""
PAUSE = "the model pauses"

_READABLE = re.compile(r"(?i)(readme.*|[^.].*\.(md|rst|txt|py|toml|c|h|rs|go|js|ts|html|css))")


@frozen
class Call:
    """A tool call of the request with its result. *data* is empty for an error."""

    tool: str
    path: str
    data: Mapping[str, object] = field(repr=False)
    is_error: bool = False

    def number(self, name: str) -> int:
        value = self.data.get(name)
        return value if isinstance(value, int) else 0


@frozen
class Heard:
    """What a request says, as the model reads it.

    *asked*: the texts of the user, in order. *now*: calls since the last of them that was
    not thrown in while tools ran; *calls*: all calls.
    """

    asked: tuple[str, ...]
    thrown_in: tuple[str, ...]
    calls: tuple[Call, ...]
    now: tuple[Call, ...]
    said: tuple[str, ...]
    tools: tuple[str, ...]


def heard(request: Request) -> Heard:
    """*request*, read."""
    asked: list[str] = []
    thrown_in: list[str] = []
    calls: list[Call] = []
    said: list[str] = []
    begun = 0
    open_calls: dict[CallId, tuple[str, str]] = {}
    before: Message | None = None
    for message in request.messages:
        if isinstance(message, AssistantMessage):
            open_calls |= {one.id: (one.name, one.arguments) for one in message.tool_calls}
            if message.text and not message.tool_calls:
                said.append(message.text)
        elif isinstance(message, UserMessage):
            results = [b for b in message.content if isinstance(b, ToolResultBlock)]
            calls += [_call(*open_calls[b.tool_call_id], b) for b in results]
            if not results:
                asked.append(message.text)
                if _is_result(before):
                    thrown_in.append(message.text)
                else:
                    begun = len(calls)
        before = message
    return Heard(
        tuple(asked),
        tuple(thrown_in),
        tuple(calls),
        tuple(calls[begun:]),
        tuple(said),
        tuple(tool.name for tool in request.tools),
    )


def _is_result(message: Message | None) -> bool:
    return isinstance(message, UserMessage) and any(
        isinstance(block, ToolResultBlock) for block in message.content
    )


def _call(tool: str, arguments: str, result: ToolResultBlock) -> Call:
    text = "".join(block.text for block in result.content)
    data = _object(text)
    path = _object(arguments).get("path", ".")
    return Call(tool, path if isinstance(path, str) else ".", data, not data)


def _object(text: str) -> Mapping[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


@frozen
class Said:
    """What the model decides to say, and the calls that it asks for after that.

    *pauses_after*: so many words, before it goes on; it waits for a gate that nobody opens.
    """

    text: str
    calls: tuple[Part, ...] = ()
    pauses_after: int | None = None


def decide(what: Heard) -> Said:
    """The answer to the last question."""
    question = what.asked[-1] if what.asked else ""
    return _ANSWERS.get(question, _lost)(what)


@frozen
class DemoModel:
    """Says what `decide` gives, word by word."""

    pace: Pace

    def respond(self, request: Request) -> Answer:
        """The answer to *request*. A `Responder`."""
        said = decide(heard(request))
        actions: list[Action] = []
        words = 0
        for chunk in say(said.text).chunks(0):
            actions.append(chunk)
            if isinstance(chunk, TextDelta):
                words += 1
                actions.append(Gate(PAUSE) if words == said.pauses_after else Delay(self.pace.word))
        return answer(*actions, *said.calls)


# --- the answers ------------------------------------------------------------------------------


def _hello(what: Heard) -> Said:
    tools = _and(what.tools)
    return Said(
        "I am a script and not a real model, but all that is around me is real. "
        f"I was given {len(what.tools)} tools: {tools}. "
        "With them I can look at your folder, and keep notes outside of it."
    )


def _look(what: Heard) -> Said:
    if not what.now:
        return Said("First, the list.", (call("list_files"),))
    if len(what.now) == 1:
        return _look_closer(what)
    return Said(" ".join(_findings(what)))


def _look_closer(what: Heard) -> Said:
    listing = what.now[0]
    names = _file_names(listing)
    readable = [name for name in names if _READABLE.fullmatch(name)]
    readable.sort(key=lambda name: not name.lower().startswith("readme"))
    read = readable[:1]
    counted = [name for name in names if name not in read and not name.startswith(".")][:1]
    looks = [call("read_file", path=name) for name in read]
    looks += [call("count_words", path=name) for name in [*counted, "."]]
    if len(looks) < 3:
        looks.append(call("list_files"))
    note = call("write_note", text=f"In the folder: {_holding(listing)}.")
    return Said(
        f"{_NUMBERS[len(looks)]} looks at once, then a note, then one more look.",
        (*looks, note, call("list_files")),
    )


def _findings(what: Heard) -> list[str]:
    listing = what.now[0]
    found = [f"I see {_holding(listing)}."]
    for one in what.now[1:]:
        if one.is_error:
            found.append(f"{one.tool} of {one.path} failed.")
        elif one.tool == "read_file":
            found.append(_first_line(one))
        elif one.tool == "count_words" and one.path != ".":
            found.append(f"{one.path} has {_words(one)}.")
        elif one.tool == "write_note":
            found.append(f"My note is {one.data.get('note')}.")
    return found


def _count_all(what: Heard) -> Said:
    if not what.now:
        return Said("I shall count them all.", (call("count_words", path="."),))
    counted = what.now[-1]
    return Said(
        f"I counted what stands between blanks in {count(counted.number('files'), 'file')}, "
        f"one after the other, and came to {_words(counted)}."
    )


def _number_only(what: Heard) -> Said:
    counted = [one for one in what.now if one.tool == "count_words"]
    if not counted or counted[-1].is_error:
        return Said("I have none: I could not count them.")
    return Said(f"{_words(counted[-1]).removesuffix('s').removesuffix(' word')}.")


def _story(what: Heard) -> Said:
    return Said(_whole_story(what), pauses_after=STORY_PAUSE)


def _whole_story(what: Heard) -> str:
    listing = next((one for one in what.calls if one.tool == "list_files"), None)
    counted = [one for one in what.calls if one.tool == "count_words" and one.path == "."]
    holding = _holding(listing) if listing else "who knows what"
    words = _words(counted[-1]) if counted else "words"
    return (
        f"There was once a folder with {holding} in it, and nobody had ever counted the {words} "
        "of it, until an agent came by and did. While it told of that, it was interrupted in the "
        "middle of a sentence. It did not mind: what it had said was kept, and it went on from "
        "there."
    )


def _rest_of_story(what: Heard) -> Said:
    told = _interrupted(what)
    if told is None:
        return Said("I do not know where I was.")
    return Said(f"... {_whole_story(what)[len(told) :].lstrip()}")


def _memory(what: Heard) -> Said:
    earlier = what.asked[:-1]
    told = _interrupted(what)
    memory = [f"You have said {count(len(earlier), 'thing')} to me before this."]
    memory += [f'The first was: "{text}"' for text in earlier[:1]]
    memory += [f'While I was counting you said: "{text}"' for text in what.thrown_in]
    if told is not None:
        memory.append(f'And you stopped me after: "... {" ".join(told.split()[-4:])}"')
    return Said(" ".join(memory))


def _lost(what: Heard) -> Said:
    return Said("That is not one of the questions that I know.")


_ANSWERS = {
    HELLO: _hello,
    LOOK: _look,
    COUNT: _count_all,
    STEER: _number_only,
    STORY: _story,
    GO_ON: _rest_of_story,
    REMEMBER: _memory,
}


# --- words ------------------------------------------------------------------------------------

_NUMBERS = ("No", "One", "Two", "Three", "Four")


def _interrupted(what: Heard) -> str | None:
    """The part of the story that was told, if it was not told to its end."""
    whole = _whole_story(what)
    return next((text for text in what.said if text != whole and whole.startswith(text)), None)


def _file_names(listing: Call) -> list[str]:
    files = listing.data.get("files")
    named = files if isinstance(files, list) else []
    return [str(file["name"]) for file in named if isinstance(file, dict) and "name" in file]


def _holding(listing: Call) -> str:
    """What is in the folder, as far as *listing* knows."""
    if listing.is_error:
        return "what I cannot list"
    if not (listing.number("file_count") or listing.number("other_count")):
        return "nothing at all"
    more = "more than " if listing.data.get("more") else ""
    files = count(listing.number("file_count"), "file")
    return f"{more}{files} and {count(listing.number('other_count'), 'other thing')}"


def _words(counted: Call) -> str:
    """How many words were counted; just "words" if that failed."""
    if counted.is_error:
        return "words"
    at_least = "at least " if counted.data.get("cut") or counted.number("skipped") else ""
    return at_least + count(counted.number("words"), "word")


def _first_line(one: Call) -> str:
    text = one.data.get("text")
    lines = [line.strip() for line in text.splitlines()] if isinstance(text, str) else []
    first = next((line for line in lines if line), None)
    if first is None:
        return f"{one.path} begins with nothing to read."
    return f'{one.path} begins with: "{first[:60]}{"..." * (len(first) > 60)}"'


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
