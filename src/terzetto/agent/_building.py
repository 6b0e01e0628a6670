"""An agent and all that runs it, around a session that was acquired. No await."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable, iscoroutine

from attrs import define

from ..session import Session
from ..stores import WriteHandle
from ..vocabulary import Failure, InvalidValue, SessionId
from ._agent import Agent
from ._beginning import initial_selection
from ._bound import Bound
from ._driver import Driven, Driver
from ._hooks import AgentErrorNotice
from ._lifetime import Lifetime
from ._model import AgentModel
from ._options import Options
from ._registry import AgentRegistry
from ._request import RequestBuilder
from ._run_state import RunState
from ._saving import Saving
from ._scope import AgentScope
from ._services import Services
from ._step import StepRunner
from ._writer import Writer


@define(eq=False, kw_only=True)
class Workshop:
    """What an engine has for every agent it builds."""

    registry: AgentRegistry
    services: Services
    scope: AgentScope
    writer: Writer
    shutdown_timeout: float
    report_unsaved: Callable[[SessionId, str], None]

    def build(
        self, session: Session, handle: WriteHandle | None, options: Options, driver: Driver
    ) -> Lifetime:
        """The life of a new agent, which has not begun; its appends are written behind."""
        scope = AgentScope(f"agent {session.id}", self.scope)
        state = RunState(session, scope.heard)
        model = AgentModel(session, initial_selection(session, options.selection))
        parent, runtime = options.parent, self.services.runtime
        bound = parent._bound if parent is not None else Bound(self.shutdown_timeout)
        saving = Saving(session, handle, self.writer)
        agent = Agent(session, scope, model, parent, state, bound, saving, runtime)
        state.view = agent
        if self.writer.needed:
            saving.on_trouble = lambda error, failure: _tell(state, scope, error, failure)
        saving.attach()
        requests = RequestBuilder(agent, session, scope, runtime, options.max_tokens)
        steps = StepRunner(agent, session, state, scope, self.services, requests, saving)
        driven = Driven(session, state, scope, model, requests, steps, saving, parent is not None)
        return Lifetime(
            agent,
            driven,
            driver,
            saving,
            self.registry,
            self.scope,
            bound,
            self.report_unsaved,
        )


def _tell(state: RunState, scope: AgentScope, error: Exception, failure: Failure) -> None:
    """A write behind failed: say so, beside the turn and step that were the latest."""
    place = state.session.place
    notice = AgentErrorNotice(
        agent=state.view,
        turn=place.last_turn,
        step=place.last_step,
        error=error,
        failure=failure,
    )
    state.tell(scope.heard.agent_error, notice)


def run_commit(commit: object) -> None:
    """Run what *setup* gave back, if anything: a plain function, for nothing may wait there."""
    if commit is None:
        return
    if not callable(commit):
        raise InvalidValue(f"setup: expected a commit or None back, got {type(commit).__name__}")
    given = commit()
    if isawaitable(given):
        if iscoroutine(given):
            given.close()
        raise InvalidValue("setup: its commit is async; nothing may wait there, so write `def`")
