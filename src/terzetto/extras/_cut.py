"""Where a history may be cut, and what of it can be shortened. Pure.

A *unit* is what stays together: an assistant message with the results of its calls, or
any other single node. A cut runs between two units, so it never parts a call from its
result (C166). A *round* is a unit with an assistant message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

from attrs import frozen

from ..session import Node
from ..vocabulary import (
    AssistantMessage,
    DeveloperMessage,
    Message,
    PluginSource,
    ReasoningBlock,
    SystemMessage,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultEvent,
    UserBlock,
    UserMessage,
    UserSource,
)

PLUGIN = "terzetto/compaction"
"""Source of the message that takes the place of what was summarized."""

_CARRIED = "carried"
_SUMMARY = "Summary of the earlier conversation, which was removed to save context:\n\n"
_LATEST = "The latest message of the user, unchanged:"

Estimate: TypeAlias = Callable[[Message], int]


def estimate_tokens(message: Message) -> int:
    """About how many tokens *message* takes: a quarter of its ASCII characters, one for
    every other character, and four for the message itself."""
    return 4 + sum(_text_tokens(text) for text in _texts(message))


def _text_tokens(text: str) -> int:
    if text.isascii():
        return (len(text) + 3) // 4
    plain = sum(character.isascii() for character in text)
    return (plain + 3) // 4 + len(text) - plain


def _texts(message: Message) -> Iterator[str]:
    for block in message.content:
        match block:
            case TextBlock(text=text) | ReasoningBlock(text=text):
                yield text
            case ToolCallBlock(name=name, arguments=arguments):
                yield name
                yield arguments
            case ToolResultBlock(content=parts):
                yield from (part.text for part in parts)
            case _:
                pass  # a changed tool set: nothing that a provider is sent


# --- units ------------------------------------------------------------------------------


@frozen
class Unit:
    """Nodes *start* to before *stop* (positions), which stay together."""

    kind: Literal["prompt", "round", "input"]
    start: int
    stop: int


def units(nodes: Sequence[Node]) -> list[Unit]:
    """The units of *nodes*, up to the first place where calls and results do not match.

    Nothing behind such a place may be cut away, nor the place itself.
    """
    found: list[Unit] = []
    at = 0
    while at < len(nodes):
        message, stop = nodes[at].message, at + 1
        kind: Literal["prompt", "round", "input"] = "input"
        if isinstance(message, (SystemMessage, DeveloperMessage)):
            kind = "prompt"
        elif isinstance(message, AssistantMessage):
            kind = "round"
            stop = at + 1 + len(message.tool_calls)
            asked = [call.id for call in message.tool_calls]
            if [_answered(node) for node in nodes[at + 1 : stop]] != asked:
                break
        elif isinstance(nodes[at].data, ToolResultEvent):
            break
        found.append(Unit(kind, at, stop))
        at = stop
    return found


def _answered(node: Node) -> str | None:
    if not isinstance(node.data, ToolResultEvent):
        return None
    results = [b for b in node.data.message.content if isinstance(b, ToolResultBlock)]
    return results[0].tool_call_id if results else None


def _removable(nodes: Sequence[Node], keep_rounds: int) -> tuple[list[Unit], int]:
    """The units behind the leading prompt, and how many of them, from the first, are
    older than the last *keep_rounds* rounds of the whole history."""
    found = units(nodes)
    lead = 0
    while lead < len(found) and found[lead].kind == "prompt":
        lead += 1
    found = found[lead:]
    known = found[-1].stop if found else 0
    behind = sum(isinstance(node.message, AssistantMessage) for node in nodes[known:])
    owed = max(0, keep_rounds - behind)
    count = len(found)
    while owed and count:
        count -= 1
        owed -= found[count].kind == "round"
    return found, 0 if owed else count


# --- the cut ----------------------------------------------------------------------------


@frozen(kw_only=True)
class Cut:
    """What is to be summarized and replaced.

    *start* and *end* are the seqs of the first and the last node, both included.
    *prefix* is the history up to the end, the prompt included: what a summary is asked
    of. *tokens* is the size of the nodes alone. *latest* is the content of the most
    recent user message when the cut takes it away: it must be carried over.
    """

    start: int
    end: int
    prefix: tuple[Message, ...]
    tokens: int
    latest: tuple[UserBlock, ...] | None = None


def choose_cut(
    nodes: Sequence[Node],
    *,
    keep_tokens: int,
    keep_rounds: int,
    at_most: int | None = None,
    newer_input: bool = False,
    estimate: Estimate = estimate_tokens,
) -> Cut | None:
    """The smallest cut that leaves at most *keep_tokens* behind it, else the largest.

    Args:
        nodes: The surface.
        keep_tokens: What may stay behind the cut.
        keep_rounds: The last so many rounds stay, whatever their size.
        at_most: Cut away no more than so many tokens, for a summary whose request would
            not fit otherwise.
        newer_input: A newer user message is about to enter; else the most recent one of
            *nodes* survives, in its place or carried over.
        estimate: The size of a message in tokens.

    None when nothing may be cut away.
    """
    found, count = _removable(nodes, keep_rounds)
    if not count:
        return None
    sizes = [sum(estimate(node.message) for node in nodes[u.start : u.stop]) for u in found]
    known = found[-1].stop
    tail = sum(sizes) + sum(estimate(node.message) for node in nodes[known:])
    taken, tokens = 0, 0
    while taken < count and tail > keep_tokens:
        if at_most is not None and taken and tokens + sizes[taken] > at_most:
            break
        tail -= sizes[taken]
        tokens += sizes[taken]
        taken += 1
    if not taken:
        return None
    first, stop = found[0].start, found[taken - 1].stop
    messages = [node.message for node in nodes[:stop]]
    return Cut(
        start=nodes[first].seq,
        end=nodes[stop - 1].seq,
        prefix=tuple(message for message in messages if message.content),
        tokens=tokens,
        latest=None if newer_input else _latest(nodes, first, stop),
    )


def _latest(nodes: Sequence[Node], first: int, stop: int) -> tuple[UserBlock, ...] | None:
    """The most recent user message's content, if *first* to before *stop* take it away."""
    for at in range(len(nodes) - 1, first - 1, -1):
        content = _of_user(nodes[at])
        if content:
            return content if at < stop else None
    return None


def _of_user(node: Node) -> tuple[UserBlock, ...]:
    """What a user said in *node*, in person or carried over; empty for anything else."""
    message = node.message
    if not isinstance(message, UserMessage) or isinstance(node.data, ToolResultEvent):
        return ()
    match message.source:
        case UserSource():
            return message.content
        case PluginSource(plugin=plugin, form=form) if (plugin, form) == (PLUGIN, _CARRIED):
            return message.content[2:]
    return ()


def replacement(cut: Cut, summary: str) -> UserMessage:
    """The one message that takes the place of *cut*."""
    content: tuple[UserBlock, ...] = (TextBlock(_SUMMARY + summary),)
    if cut.latest is None:
        return UserMessage(content, PluginSource(PLUGIN))
    content += (TextBlock(f"\n\n{_LATEST}\n\n"), *cut.latest)
    return UserMessage(content, PluginSource(PLUGIN, _CARRIED))


# --- pruning ----------------------------------------------------------------------------


def prunings(
    nodes: Sequence[Node],
    *,
    keep_rounds: int,
    over: int,
    estimate: Estimate = estimate_tokens,
) -> list[tuple[int, UserMessage]]:
    """Old tool results of more than *over* tokens, shortened: (seq, replacement) each.

    Results of the last *keep_rounds* rounds stay as they are. A shortened result keeps
    its beginning and says how much is gone.
    """
    found, count = _removable(nodes, keep_rounds)
    changes: list[tuple[int, UserMessage]] = []
    for unit in found[:count]:
        for node in nodes[unit.start : unit.stop]:
            if not isinstance(node.data, ToolResultEvent) or estimate(node.message) <= over:
                continue
            shorter = _shortened(node.data.message, over)
            if shorter is not None and estimate(shorter) < estimate(node.message):
                changes.append((node.seq, shorter))
    return changes


def _shortened(message: UserMessage, over: int) -> UserMessage | None:
    [block, *others] = message.content
    if others or not isinstance(block, ToolResultBlock):
        return None
    text = "".join(part.text for part in block.content)
    kept = text[:over]  # of ASCII, a quarter of the limit; of anything else, not above it
    note = f"\n[{len(text) - len(kept)} of {len(text)} characters were removed to save context]"
    content = (TextBlock(kept + note),)
    return UserMessage((ToolResultBlock(block.tool_call_id, content, block.is_error),))
