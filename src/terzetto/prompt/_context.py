"""Runtime-context snapshots: when one is owed, and what it says.

A snapshot is a user-role message of ours in the accepted batch. One is owed when
the text differs from the last snapshot that is still on the surface (C102, C103).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from ..session import AgentView, Node, is_snapshot
from ..vocabulary import ContextSection, MessageId, PluginSource, UserMessage, texts


def working_directory(agent: AgentView) -> str:
    """``Working directory: /path``, for `AgentScope.add_context`; empty when there is none.

    The path is the session's (``open_agent(cwd=...)``, which a resume and a fork keep), or else
    the process's at that moment. Nothing registers this by itself::

        engine.scope.add_context("cwd", terzetto.working_directory)
    """
    path = agent.session.header.cwd
    if path is None:
        try:
            path = os.getcwd()
        except OSError:  # somebody removed it
            return ""
    return f"Working directory: {path}"


def snapshot_text(sections: Sequence[ContextSection]) -> str:
    """The text of a snapshot of *sections*; of the cleared marker when there are none."""
    if not sections:
        return texts.CONTEXT_CLEARED
    return "\n\n".join((texts.CONTEXT_SNAPSHOT, *(section.text for section in sections)))


def owed_snapshot(
    sections: Sequence[ContextSection],
    retained: Sequence[Node],
    new_id: Callable[[], MessageId],
) -> UserMessage | None:
    """The snapshot that the next request needs, or None.

    Args:
        sections: The context as it is now.
        retained: Snapshot nodes on the surface, in order.
        new_id: Gives the message's id.
    """
    if not sections and not retained:
        return None
    text = snapshot_text(sections)
    if retained:
        last = retained[-1].message
        if isinstance(last, UserMessage) and last.text == text:
            return None
    source = PluginSource(texts.SYSTEM_PROMPT_PLUGIN)
    if sections:
        source = PluginSource(texts.SYSTEM_PROMPT_PLUGIN, texts.SNAPSHOT_FORM, tuple(sections))
    return UserMessage(text, source, new_id())


def refreshed(
    batch: Sequence[UserMessage], candidate: UserMessage | None
) -> tuple[UserMessage, ...]:
    """*batch* with its snapshot replaced in place by *candidate*, which may be none.

    A candidate whose text the batch holds already changes nothing; one that the batch
    has no place for goes to the end.
    """
    if not batch:
        return () if candidate is None else (candidate,)
    result: list[UserMessage] = []
    placed = candidate is None
    for message in batch:
        if not is_snapshot(message):
            result.append(message)
        elif candidate is not None and not placed:
            result.append(message if message.text == candidate.text else candidate)
            placed = True
    if candidate is not None and not placed:
        result.append(candidate)
    return tuple(result)
