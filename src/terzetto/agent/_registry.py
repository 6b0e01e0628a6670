"""AgentRegistry: the live agents of one engine, without the power to dispose.

Entries are bound to the exact agent that was entered, so a late detach can never
remove a later agent of the same id (C30).
"""

from __future__ import annotations

from attrs import define, field

from ..hooks import Registration
from ..vocabulary import AgentExists, DuplicateName, NoDriver, SessionId, UsageError
from ._agent import Agent
from ._driver import Driver


@define(eq=False)
class AgentRegistry:
    """Who lives, in registration order; and the slot for the driver (C1)."""

    _agents: dict[SessionId, Agent] = field(factory=dict)
    _reserved: set[SessionId] = field(factory=set)
    _driver: Driver | None = None

    def get(self, agent_id: str) -> Agent | None:
        """The live agent of this id, or None."""
        return self._agents.get(SessionId(agent_id))

    def roots(self) -> list[Agent]:
        """Live agents made without an owning agent, whatever their lineage."""
        return [agent for agent in self._agents.values() if agent.parent is None]

    def list(self) -> list[Agent]:
        """A fresh list of all live agents."""
        return [*self._agents.values()]

    def is_owned_by(self, agent_id: str, owner: Agent) -> bool:
        """Whether the live agent of this id was created with *owner* as its parent."""
        agent = self.get(agent_id)
        return agent is not None and agent.parent is owner

    def register_driver(self, driver: Driver) -> Registration:
        """Fill the driver slot. Raises `DuplicateName` if it is filled."""
        if self._driver is not None:
            raise DuplicateName("a driver is registered already; remove it first")
        self._driver = driver

        def undo() -> None:
            if self._driver is driver:
                self._driver = None

        return Registration(undo)

    def driver(self) -> Driver:
        """The registered driver, or `NoDriver`."""
        if self._driver is None:
            raise NoDriver("no driver is registered, so no agent can run")
        return self._driver

    # --- creation only ------------------------------------------------------------------

    def taken(self, agent_id: SessionId) -> bool:
        """Whether an agent of this id lives, or is being created."""
        return agent_id in self._agents or agent_id in self._reserved

    def reserve(self, agent_id: SessionId) -> None:
        """Keep the id for a creation in progress. Raises `AgentExists`."""
        if self.taken(agent_id):
            raise AgentExists(f"an agent with id {agent_id!r} is live; dispose of it first")
        self._reserved.add(agent_id)

    def release(self, agent_id: SessionId) -> None:
        """Free the id, after all private cleanup."""
        self._reserved.discard(agent_id)

    def enter(self, agent: Agent) -> None:
        """List *agent*, whose id is reserved."""
        if agent.id not in self._reserved or agent.id in self._agents:
            raise UsageError(f"agent {agent.id!r} is not being created")
        self._agents[agent.id] = agent

    def detach(self, agent: Agent) -> None:
        """Take exactly *agent* off the list."""
        if self._agents.get(agent.id) is agent:
            del self._agents[agent.id]
