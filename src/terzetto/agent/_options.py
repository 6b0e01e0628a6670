"""What an agent is made with, checked before anything is built."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar, cast, get_args

from attrs import define

from ..session import fresh_id
from ..stores._base import escape_id
from ..tools import Tool
from ..vocabulary import (
    CallConfig,
    Durability,
    Event,
    InvalidValue,
    ModelSelection,
    SessionId,
)
from ._agent import Agent
from ._model import checked_selection

T = TypeVar("T")

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
    if parent is not None and not isinstance(parent, Agent):
        raise InvalidValue(f"parent: expected an Agent, got {type(parent).__name__}")
    if setup is not None and not callable(setup):
        raise InvalidValue(
            f"setup: expected a function that takes the agent, got {type(setup).__name__}"
        )
    return Options(
        selection=selection,
        system=system,
        tools=several("tools", tools),
        max_tokens=CallConfig(provider="", model="", max_tokens=max_tokens).max_tokens,
        parent=parent,
        setup=setup,
    )


def several(name: str, values: Iterable[T]) -> tuple[T, ...]:
    """*values*, or `InvalidValue` for one alone, which is easily given instead."""
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes)):
        got = repr(values) if values is None else type(values).__name__
        raise InvalidValue(f"{name}: expected a list of them, got {got}")
    return tuple(values)


def id_of(session_id: str | None) -> SessionId:
    """The identity of a fresh session: what a store can name, whether or not there is one."""
    if session_id is None:
        return fresh_id()
    escape_id(session_id)
    return SessionId(session_id)


def seed_of(seed: Sequence[Event]) -> Sequence[Event]:
    """*seed*, if it is events."""
    if not isinstance(seed, Sequence) or not all(isinstance(event, Event) for event in seed):
        raise InvalidValue(
            "seed: expected a list of Events, such as list(session.events); "
            f"got {type(seed).__name__}"
        )
    return seed


def absolute(cwd: str | None) -> str | None:
    """A workspace directory as it is stored: absolute, or none."""
    if cwd is not None and not (isinstance(cwd, str) and cwd.startswith("/")):
        raise InvalidValue(f"cwd: expected an absolute path, got {cwd!r}")
    return cwd


def checked_durability(value: object) -> Durability:
    """*value*, if it is a level."""
    levels = get_args(Durability)
    if value not in levels:
        expected = ", ".join(map(repr, levels[:-1])) + f" or {levels[-1]!r}"
        raise InvalidValue(f"durability: expected {expected}, got {value!r}")
    return cast(Durability, value)
