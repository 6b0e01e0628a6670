"""AgentScope: where tools, prompt parts, guards and listeners are registered.

One for the engine, one for each agent with the engine's as its parent. What an
agent's scope registers is seen by that agent alone and ends with it (C37-C42).
Scopes route trusted code; they are no authority boundary.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from ..hooks import Registration, Scope
from ..prompt import PromptLayer, Text
from ..tools import Guard, Tool, ToolLayer
from ._hooks import Hooks


@define(eq=False)
class AgentScope:
    """Registrations of one lifetime. All methods are active at once.

    Each returns a `Registration`: leave its ``with`` block, call ``remove()``, or let the
    scope end. After the end every one raises `ScopeClosed`.
    """

    name: str
    parent: AgentScope | None = None
    lifetime: Scope = field(init=False, repr=False)
    hooks: Hooks = field(init=False, repr=False)
    tools: ToolLayer = field(init=False, repr=False)
    prompt: PromptLayer = field(init=False, repr=False)
    heard: Hooks = field(init=False, repr=False)
    """The hook points for who dispatches; `hooks` is for who listens."""

    def __attrs_post_init__(self) -> None:
        parent = self.parent
        self.lifetime = Scope(self.name, parent.lifetime if parent else None)
        self.hooks = Hooks.over(parent.hooks if parent else None)
        self.heard = self.hooks.heard()
        self.tools = ToolLayer(self.lifetime, parent.tools if parent else None)
        self.prompt = PromptLayer(self.lifetime, parent.prompt if parent else None)

    @property
    def closed(self) -> bool:
        return self.lifetime.closed

    def close(self) -> None:
        """End the scope: remove every registration and listener. Idempotent."""
        self.lifetime.close()
        self.hooks.close()

    def compose(self, system: str | None, tools: Iterable[Tool]) -> None:
        """What an agent is made with: its section of the prompt, and its own tools."""
        if system:
            self.add_section("system", system)
        for tool in tools:
            self.add_tool(tool)

    def add_tool(self, tool: Tool) -> Registration:
        """Give the agent (or all agents) *tool*; it shadows an outer one of its name."""
        return self.tools.add(tool)

    def restrict(
        self, *, allow: Iterable[str] | None = None, deny: Iterable[str] = ()
    ) -> Registration:
        """Hide tools of outer scopes: all but *allow* when given, and all of *deny*."""
        return self.tools.restrict(allow=allow, deny=deny)

    def guard(self, guard: Guard) -> Registration:
        """Ask *guard* before every tool call; it may only deny, and its denial is final."""
        return self.tools.guard(guard)

    def add_section(
        self, name: str, text: Text, *, order: float = 0, complete: bool = False
    ) -> Registration:
        """Add a section to the system prompt (`PromptLayer.add_section`)."""
        return self.prompt.add_section(name, text, order=order, complete=complete)

    def set_variable(self, name: str, value: Text) -> Registration:
        """Define ``{{name}}`` for the sections of the prompt."""
        return self.prompt.set_variable(name, value)

    def add_context(self, name: str, text: Text, *, order: float = 0) -> Registration:
        """Contribute to the runtime context, sent as a snapshot when it changes."""
        return self.prompt.add_context(name, text, order=order)

    def order_tools(self, names: Iterable[str]) -> Registration:
        """Show tools in this order; ``<unlisted-tools>`` marks where the rest goes."""
        return self.prompt.order_tools(names)
