"""Which tools an agent has: layers, shadowing, restriction masks, guards.

One `ToolLayer` per scope. What the model is shown, what a lookup finds and what
may run are one resolution, so they cannot disagree (C117).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from attrs import define, field, frozen

from ..hooks import Registration, Scope
from ..vocabulary import DuplicateName, InvalidTool, InvalidValue
from ._hooks import ToolCallHook
from ._tool import Tool

_T = TypeVar("_T")
Guard: TypeAlias = Callable[[ToolCallHook], str | None]
"""Decides synchronously and may only deny: the reason, or None. Raising denies too."""


@frozen
class _Mask:
    allow: frozenset[str] | None
    deny: frozenset[str]

    def shows(self, name: str) -> bool:
        return name not in self.deny and (self.allow is None or name in self.allow)


@define(eq=False)
class ToolLayer:
    """The tools of one scope, over those of its parent.

    A tool shadows the parent's tool of the same name. A restriction hides tools of
    the parent layers from this one; restrictions intersect; own tools stay visible.
    """

    scope: Scope
    parent: ToolLayer | None = None
    _tools: dict[str, Tool] = field(factory=dict)
    _over: dict[str, Tool] = field(factory=dict)
    _masks: tuple[_Mask, ...] = ()
    _guards: tuple[Guard, ...] = ()
    _changes: int = 0

    @property
    def changes(self) -> int:
        """Grows whenever this layer or one under it changes: what was found out about the
        tools at a count holds for as long as that stays."""
        count, layer = self._changes, self.parent
        while layer is not None:
            count, layer = count + layer._changes, layer.parent
        return count

    def add(self, tool: Tool) -> Registration:
        """Add *tool* to this layer, visible from the next assembly and lookup on.

        Raises `DuplicateName` if the layer has a tool of that name, `ScopeClosed` after
        the scope's end.
        """
        self.scope.check_open()
        if not isinstance(tool, Tool):
            raise InvalidTool(
                f"expected a Tool (decorate the function with @tool), got {type(tool).__name__}"
            )
        if tool.name in self._tools:
            raise DuplicateName(
                f"a tool named {tool.name!r} is registered on {self.scope.name}; "
                "remove it first or choose another name"
            )
        self._tools[tool.name] = tool
        self._changes += 1

        def undo() -> None:
            if self._tools.get(tool.name) is tool:
                del self._tools[tool.name]
                self._changes += 1

        return self.scope.own(Registration(undo))

    def lay_over(self, tools: Iterable[Tool]) -> Registration:
        """Show *tools* over all others until removed, in the place of any laid over before.

        They are no registrations of the scope: their names stay free for it, and an order
        of tools is not asked for them.
        """
        over = self._over = {tool.name: tool for tool in tools}
        self._changes += 1

        def undo() -> None:
            over.clear()
            self._changes += 1

        return Registration(undo)

    def laid_over(self) -> tuple[Tool, ...]:
        """What `lay_over` shows, in its order."""
        return tuple(self._over.values())

    def restrict(
        self, *, allow: Iterable[str] | None = None, deny: Iterable[str] = ()
    ) -> Registration:
        """Hide inherited tools: all but *allow* when given, and all of *deny*."""
        if isinstance(allow, str) or isinstance(deny, str):
            raise InvalidValue("restrict: expected lists of tool names, got a str")
        mask = _Mask(None if allow is None else frozenset(allow), frozenset(deny))
        self.scope.check_open()
        self._masks += (mask,)
        self._changes += 1

        def undo() -> None:
            self._masks = _without(self._masks, mask)
            self._changes += 1

        return self.scope.own(Registration(undo))

    def guard(self, guard: Guard) -> Registration:
        """Ask *guard* before every call, after pre-execute; its denial is final."""
        self.scope.check_open()
        self._guards += (guard,)
        self._changes += 1

        def undo() -> None:
            self._guards = _without(self._guards, guard)
            self._changes += 1

        return self.scope.own(Registration(undo))

    def lookup(self, name: str) -> Tool | None:
        """The tool that a call of *name* runs, or None if none is visible."""
        layer: ToolLayer | None = self
        while layer is not None:
            own = layer._over.get(name) or layer._tools.get(name)
            if own is not None:
                return own
            if layer._masks and not layer._shows(name):
                return None
            layer = layer.parent
        return None

    def visible(self) -> dict[str, Tool]:
        """Every visible tool by name, in no particular order."""
        inherited = self.parent.visible() if self.parent else {}
        kept = {name: tool for name, tool in inherited.items() if self._shows(name)}
        return {**kept, **self._tools, **self._over}

    def guards(self) -> Sequence[Guard]:
        """All that are asked, those of the outermost scope first."""
        found: Sequence[Guard] = ()
        layer: ToolLayer | None = self
        while layer is not None:
            if layer._guards:  # mostly there are none: every call asks
                found = [*layer._guards, *found]
            layer = layer.parent
        return found

    def _shows(self, name: str) -> bool:
        return all(mask.shows(name) for mask in self._masks)


def _without(entries: tuple[_T, ...], entry: _T) -> tuple[_T, ...]:
    """*entries* less the first that is *entry*."""
    for index, known in enumerate(entries):
        if known is entry:
            return entries[:index] + entries[index + 1 :]
    return entries
