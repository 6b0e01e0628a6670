"""Admission of the system prompt: which nodes to append or rewrite before a request.

A pure function (C89-C98). Nodes are the system messages on the surface in surface
order. *head* is the first; the *effective* one is the last that is not empty, else
the head. An empty node has no wire message.

| case | events |
|---|---|
| no node | append the rendering, even empty: node 0 is reserved |
| empty rendering | empty every later node that is not, then the head |
| route cannot update in history | the same emptying, then rewrite the head if it differs |
| series starts, effective text equal | none: the prefix is kept |
| series starts, effective text differs | emptying, then rewrite the head if it differs |
| series continues, effective text equal | none |
| series continues, effective text differs | append a node |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from ..session import Node
from ..vocabulary import SystemMessage


@frozen
class PromptChange:
    """Write *text*: as a new node, or in the place of the node *replaces* (a seq)."""

    text: str
    replaces: int | None = None


def admit_prompt(
    nodes: Sequence[Node], rendering: str, *, in_history: bool, starts_series: bool
) -> list[PromptChange]:
    """The changes that make *rendering* the prompt of the next request, in order.

    Args:
        nodes: The system nodes on the surface.
        rendering: The assembled prompt; empty means no prompt.
        in_history: The prepared call declares ``systemPromptUpdate: in-history``.
        starts_series: The request does not continue the one before.
    """
    if not nodes:
        return [PromptChange(rendering)]
    if len(nodes) == 1 and _text(nodes[0]) == rendering:
        return []  # as every line of the table says, and nearly every step is this one
    texts = [_text(node) for node in nodes]
    effective = next((text for text in reversed(texts) if text), texts[0])
    if in_history and rendering:
        if effective == rendering:
            return []
        if not starts_series:
            return [PromptChange(rendering)]
    return list(_consolidate(nodes, texts, rendering))


def _consolidate(
    nodes: Sequence[Node], texts: Sequence[str], rendering: str
) -> Iterator[PromptChange]:
    for node, text in zip(nodes[1:], texts[1:], strict=True):
        if text:
            yield PromptChange("", node.seq)
    if texts[0] != rendering:
        yield PromptChange(rendering, nodes[0].seq)


def _text(node: Node) -> str:
    message = node.message
    return message.text if isinstance(message, SystemMessage) else ""
