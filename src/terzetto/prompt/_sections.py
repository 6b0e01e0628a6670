"""What an agent's prompt is made of: sections, variables, context, tool order.

One `PromptLayer` per scope; inner layers shadow outer ones by name (C39, C99). The
same contributions give the same bytes.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from attrs import define, field, frozen

from ..hooks import Registration, Scope
from ..session import AgentView
from ..vocabulary import (
    CodedError,
    ContextSection,
    DuplicateName,
    InvalidValue,
    ToolSchema,
    clean_text,
    texts,
)

Text: TypeAlias = str | Callable[[AgentView], str]
"""A text, or a plain function of the agent that gives it at each assembly."""

T = TypeVar("T")
_NAME = r"[A-Za-z_][\w.-]*"
_VARIABLE = re.compile(rf"\{{\{{\s*({_NAME})\s*\}}\}}")


@frozen
class Section:
    name: str
    text: Text
    order: float = 0
    complete: bool = False


@frozen
class ContextPart:
    name: str
    text: Text
    order: float = 0


class _Plan(NamedTuple):
    """What is visible from a layer, in order, found out at *changes*.

    *fixed*: no section and no variable is a function, so that the prompt for one selection
    is always the same text. *context*: the whole runtime context, if it is fixed as well.
    """

    changes: int
    sections: tuple[Section, ...]
    variables: Mapping[str, Text]
    parts: tuple[ContextPart, ...]
    fixed: bool
    context: tuple[ContextSection, ...] | None


@define(eq=False)
class PromptLayer:
    """The prompt contributions of one scope, over those of its parent."""

    scope: Scope
    parent: PromptLayer | None = None
    _sections: dict[str, Section] = field(factory=dict)
    _variables: dict[str, Text] = field(factory=dict)
    _context: dict[str, ContextPart] = field(factory=dict)
    _tool_orders: tuple[list[str], ...] = ()
    _changes: int = 0
    _known: _Plan | None = None

    @property
    def changes(self) -> int:
        """Grows whenever this layer or one under it changes."""
        count, layer = self._changes, self.parent
        while layer is not None:
            count, layer = count + layer._changes, layer.parent
        return count

    @property
    def fixed(self) -> bool:
        """Whether `render` gives the same text for the same variables, until `changes` does."""
        return self._plan().fixed

    @property
    def fixed_context(self) -> tuple[ContextSection, ...] | None:
        """What `context` gives until `changes` grows, if the prompt is `fixed` as well."""
        plan = self._plan()
        return plan.context if plan.fixed else None

    def add_section(
        self, name: str, text: Text, *, order: float = 0, complete: bool = False
    ) -> Registration:
        """Add a section. Sections are joined by a blank line, in ascending *order*.

        A *complete* section is the whole prompt; at most one may be visible.
        ``{{name}}`` in a text is replaced by that variable, and must be known.
        Raises `DuplicateName`, and `InvalidValue` for a name, text or order that cannot be.
        """
        _check_order(name, order)
        return self._add(
            self._sections, name, Section(name, text, order, complete), "section", text
        )

    def set_variable(self, name: str, value: Text) -> Registration:
        """Define ``{{name}}``. ``provider`` and ``model`` are always defined.

        A name begins with a letter or ``_``, and goes on with letters, digits, ``_.-``.
        """
        if isinstance(name, str) and name and not re.fullmatch(_NAME, name):
            raise InvalidValue(
                f"variable {name!r}: expected a letter or '_', then letters, digits, '_', '.' "
                "or '-'; no text could use it otherwise"
            )
        return self._add(self._variables, name, value, "variable", value)

    def add_context(self, name: str, text: Text, *, order: float = 0) -> Registration:
        """Contribute to the runtime context, a snapshot sent when it changes.

        An empty text contributes nothing.
        """
        _check_order(name, order)
        return self._add(self._context, name, ContextPart(name, text, order), "context", text)

    def order_tools(self, names: Iterable[str]) -> Registration:
        """Show the tools in this order; ``<unlisted-tools>`` marks where the rest goes.

        Unknown or repeated names fail the assembly. Without an order: by name. The latest
        order that is still registered counts.
        """
        self.scope.check_open()
        if isinstance(names, str):
            raise InvalidValue(f"tool order: expected names, got one text; write [{names!r}]")
        mine = list(names)
        self._tool_orders += (mine,)
        self._changes += 1

        def undo() -> None:
            self._tool_orders = tuple(o for o in self._tool_orders if o is not mine)
            self._changes += 1

        return self.scope.own(Registration(undo))

    # --- resolution ---------------------------------------------------------------------

    def render(self, agent: AgentView, variables: Mapping[str, str]) -> str:
        """The system prompt; empty when no section has a text."""
        plan = self._plan()
        whole = [section for section in plan.sections if section.complete]
        if len(whole) > 1:
            names = ", ".join(repr(section.name) for section in whole)
            raise CodedError(f"sections {names} are all complete; keep one", "PROMPT")
        defined = plan.variables
        rendered = []
        for section in whole or plan.sections:
            text = _evaluate(section.text, agent, "section", section.name)

            def value(match: re.Match[str], name: str = section.name) -> str:
                key = match.group(1)
                if key in defined:
                    return _evaluate(defined[key], agent, "variable", key)
                if key in variables:
                    return variables[key]
                known = ", ".join(sorted({*defined, *variables}))
                raise CodedError(
                    f"section {name!r} uses the unknown variable {key!r}; known: {known}",
                    "UNKNOWN_VARIABLE",
                )

            rendered.append(_VARIABLE.sub(value, text))
        return "\n\n".join(text for text in rendered if text)

    def context(self, agent: AgentView) -> tuple[ContextSection, ...]:
        """The runtime context as it is now, in ascending order, empty parts left out."""
        plan = self._plan()
        if plan.context is not None:
            return plan.context
        sections = (
            ContextSection(part.name, _evaluate(part.text, agent, "context", part.name))
            for part in plan.parts
        )
        return tuple(section for section in sections if section.text)

    def arrange(self, tools: Iterable[ToolSchema]) -> tuple[ToolSchema, ...]:
        """*tools* in the order in which the model sees them."""
        return arrange_tools(tools, self._order())

    def _order(self) -> Sequence[str] | None:
        if self._tool_orders:
            return self._tool_orders[-1]
        return self.parent._order() if self.parent is not None else None

    def _plan(self) -> _Plan:
        """What is visible now: merged and put in order again only after a change."""
        if self.parent is not None and not (self._sections or self._variables or self._context):
            return self.parent._plan()
        known, changes = self._known, self.changes
        if known is not None and known.changes == changes:
            return known
        sections = self._resolved(lambda layer: layer._sections).values()
        variables = self._resolved(lambda layer: layer._variables)
        found = self._resolved(lambda layer: layer._context).values()
        parts = sorted(found, key=lambda part: part.order)
        plain = [(part.name, part.text) for part in parts if isinstance(part.text, str)]
        fixed = None
        if len(plain) == len(parts):
            fixed = tuple(ContextSection(name, text) for name, text in plain if text)
        plan = self._known = _Plan(
            changes,
            tuple(sorted(sections, key=lambda section: section.order)),
            variables,
            tuple(parts),
            all(isinstance(s.text, str) for s in sections)
            and all(isinstance(text, str) for text in variables.values()),
            fixed,
        )
        return plan

    def _resolved(self, pick: Callable[[PromptLayer], dict[str, T]]) -> dict[str, T]:
        inherited = self.parent._resolved(pick) if self.parent else {}
        return {**inherited, **pick(self)}

    def _add(self, table: dict[str, T], name: str, entry: T, kind: str, text: Text) -> Registration:
        self.scope.check_open()
        if not isinstance(name, str) or not name:
            raise InvalidValue(f"{kind}: expected a name, got {name!r}")
        if not isinstance(text, str) and not callable(text):
            raise InvalidValue(
                f"{kind} {name!r}: expected a text, or a function of the agent that gives one; "
                f"got {type(text).__name__}"
            )
        if name in table:
            raise DuplicateName(f"{kind} {name!r} is registered on {self.scope.name} already")
        table[name] = entry
        self._changes += 1

        def undo() -> None:
            if table.get(name) is entry:
                del table[name]
                self._changes += 1

        return self.scope.own(Registration(undo))


def arrange_tools(
    tools: Iterable[ToolSchema], order: Sequence[str] | None
) -> tuple[ToolSchema, ...]:
    """*tools* by name, or by an explicit *order*.

    Raises `CodedError` ``TOOL_ORDER`` for a name that is missing or listed twice, and for
    an order that leaves tools out without a rest entry.
    """
    by_name = {tool.name: tool for tool in sorted(tools, key=lambda tool: tool.name)}
    if order is None:
        return tuple(by_name.values())
    listed = [name for name in order if name != texts.UNLISTED_TOOLS]
    missing = [name for name in listed if name not in by_name]
    if missing or len(set(order)) != len(order):
        problem = f"unknown tools {missing}" if missing else "a name listed twice"
        raise CodedError(
            f"tool order {list(order)} has {problem}; visible: {list(by_name)}", "TOOL_ORDER"
        )
    rest = [tool for name, tool in by_name.items() if name not in listed]
    if rest and texts.UNLISTED_TOOLS not in order:
        raise CodedError(
            f"tool order {list(order)} leaves out {[tool.name for tool in rest]}; "
            f"add {texts.UNLISTED_TOOLS!r} where they should go",
            "TOOL_ORDER",
        )
    arranged: list[ToolSchema] = []
    for name in order:
        arranged.extend(rest if name == texts.UNLISTED_TOOLS else [by_name[name]])
    return tuple(arranged)


def _check_order(name: str, order: float) -> None:
    if not isinstance(order, int | float) or not math.isfinite(order):
        raise InvalidValue(f"order of {name!r}: expected a finite number, got {order!r}")


def _evaluate(text: Text, agent: AgentView, kind: str, name: str) -> str:
    value = text if isinstance(text, str) else text(agent)
    if isinstance(value, str):
        return clean_text(value)
    if inspect.iscoroutine(value):
        value.close()  # or Python warns that nobody awaited it
        raise InvalidValue(
            f"{kind} {name!r}: its text is an async function; prompts are assembled without "
            "waiting, so find out beforehand, in a pre_step listener for example"
        )
    raise InvalidValue(f"{kind} {name!r}: expected a text, got {type(value).__name__}")
