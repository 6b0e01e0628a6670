"""What an agent is made with, checked before anything is built."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias, cast, get_args

from attrs import define

from ..tools import Tool
from ..vocabulary import Durability, InvalidValue, ModelSelection
from ._agent import Agent
from ._model import checked_selection

Commit: TypeAlias = Callable[[], None]
Setup: TypeAlias = Callable[[Agent], Awaitable[Commit | None] | Commit | None]
"""Composes an agent nobody has seen yet. Sync or async; may return a commit, a plain
function called right before publication."""


@define(kw_only=True, eq=False)
class Options:
    """What `create` and `resume` were asked for."""

    selection: ModelSelection | None
    system: str | None
    tools: tuple[Tool, ...]
    max_tokens: int | None
    parent: Agent | None
    setup: Setup | None


def checked_options(
    provider: str | None,
    model: str | None,
    effort: str | None,
    system: str | None,
    tools: Iterable[Tool],
    max_tokens: int | None,
    parent: Agent | None,
    setup: Setup | None,
) -> Options:
    """The options of `Agents.create` and `Agents.resume`, or `InvalidValue`."""
    if (provider is None) != (model is None):
        raise InvalidValue("provider and model come as a pair; give both or neither")
    selection = None
    if provider is not None and model is not None:
        selection = checked_selection(provider, model, effort)
    if max_tokens is not None and (
        isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1
    ):
        raise InvalidValue(f"max_tokens: expected a positive integer, got {max_tokens!r}")
    return Options(
        selection=selection,
        system=system,
        tools=tuple(tools),
        max_tokens=max_tokens,
        parent=parent,
        setup=setup,
    )


def absolute(cwd: str | None) -> str | None:
    """A workspace directory as it is stored: absolute, or none."""
    if cwd is not None and not cwd.startswith("/"):
        raise InvalidValue(f"cwd: expected an absolute path, got {cwd!r}")
    return cwd


def checked_durability(value: object) -> Durability:
    """*value*, if it is a level."""
    levels = get_args(Durability)
    if value not in levels:
        expected = ", ".join(map(repr, levels[:-1])) + f" or {levels[-1]!r}"
        raise InvalidValue(f"durability: expected {expected}, got {value!r}")
    return cast(Durability, value)
