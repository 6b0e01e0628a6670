"""Replacements that users ask for: which ranges of the surface may be shadowed, and by what.

Stricter than `Surface.judge`, which lets pass whatever an older log may hold: what is
written here leaves a history that every provider takes (C166).
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from ..vocabulary import (
    AssistantMessage,
    Draft,
    InvalidValue,
    Replace,
    SystemMessage,
    ToolResultBlock,
    ToolResultEvent,
    UserMessage,
    UserMessageEvent,
)
from ._surface import Node, Surface


def planned(surface: Surface, start: int, end: int, messages: Sequence[UserMessage]) -> list[Draft]:
    """The events that replace the nodes *start* to *end* by *messages*.

    Raises `InvalidValue`, saying what was expected, before anything is planned.
    """
    messages = tuple(messages)
    nodes = surface.span(start, end)
    if nodes is None:
        raise InvalidValue(
            f"replace: expected the seqs of the first and the last of some messages in "
            f"history, got {start}..{end}"
        )
    if not 0 < len(messages) <= len(nodes):
        raise InvalidValue(
            f"replace: expected 1 to {len(nodes)} messages for {len(nodes)} nodes, "
            f"got {len(messages)}"
        )
    for message in messages:
        if not isinstance(message, UserMessage):
            raise InvalidValue(f"replace: expected UserMessages, got a {type(message).__name__}")
    blocks = [block for message in messages for block in message.content]
    results = [block for block in blocks if isinstance(block, ToolResultBlock)]
    if results:
        return [_shortened(nodes, results[0], alone=len(blocks) == 1)]
    if (problem := _cut(surface, nodes)) is not None:
        raise InvalidValue(f"replace: {start}..{end} covers {problem}; choose another range")
    return _spread([node.seq for node in nodes], messages)


def _shortened(nodes: Sequence[Node], result: ToolResultBlock, *, alone: bool) -> Draft:
    """One tool result with other content; the surface checks that nothing else differs."""
    node, old = nodes[0], nodes[0].data
    if len(nodes) > 1 or not alone or not isinstance(old, ToolResultEvent):
        raise InvalidValue("replace: a tool result can only take the place of itself")
    if any((b.tool_call_id, b.is_error) != _identity(result) for b in _results(old)):
        raise InvalidValue(
            f"replace: expected a result of the same call and flag as node {node.seq}, "
            f"got one of {result.tool_call_id!r}"
        )
    message = evolve(old.message, content=(result,))
    return Draft(evolve(old, message=message), Replace(node.seq, node.seq), (node.seq,))


def _identity(result: ToolResultBlock) -> tuple[str, bool]:
    return result.tool_call_id, result.is_error


def _results(data: ToolResultEvent) -> list[ToolResultBlock]:
    return [block for block in data.message.content if isinstance(block, ToolResultBlock)]


def _cut(surface: Surface, nodes: Sequence[Node]) -> str | None:
    """What a replacement of these nodes would break, or None."""
    if nodes[0].seq == surface.nodes[0].seq and isinstance(nodes[0].message, SystemMessage):
        return "the first system message, which keeps the place of the prompt"
    owed = 0
    for node in nodes:
        if isinstance(node.message, AssistantMessage):
            owed = len(node.message.tool_calls)
        elif isinstance(node.data, ToolResultEvent):
            if not owed:
                return f"the tool result {node.seq} without the answer that called for it"
            owed -= 1
    return "an answer without the results of all its tool calls" if owed else None


def _spread(seqs: Sequence[int], messages: Sequence[UserMessage]) -> list[Draft]:
    """One node for each message; the last takes the rest of the range."""
    drafts = []
    for index, message in enumerate(messages):
        last = index == len(messages) - 1
        part = tuple(seqs[index:] if last else seqs[index : index + 1])
        drafts.append(Draft(UserMessageEvent(message), Replace(part[0], part[-1]), part))
    return drafts
