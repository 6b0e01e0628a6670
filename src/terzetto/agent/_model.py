"""AgentModel: the model selection of one session, kept in its log (C85-C88)."""

from __future__ import annotations

from attrs import define

from ..session import Session
from ..vocabulary import InvalidValue, ModelSelected, ModelSelection


@define(eq=False)
class AgentModel:
    """Which model the agent asks. A choice takes effect at the next step."""

    _session: Session
    _initial: ModelSelection | None

    def current(self) -> ModelSelection | None:
        """The latest recorded choice, else the one the agent was made with."""
        return self._session.folds.selection or self._initial

    def select(self, provider: str, model: str, effort: str | None = None) -> ModelSelection:
        """Record a choice. Without *effort* the adapter's default applies.

        It persists over resume and fork. Raises `InvalidValue` for empty names,
        `WrongThread` outside of the Trio thread. Whether the model can do *effort* is seen
        when it is asked: the step fails with ``UNSUPPORTED_REASONING_EFFORT``.
        """
        self._session.check_thread()
        selection = checked_selection(provider, model, effort)
        if selection != self.current() or self._session.folds.selection is None:
            self._session.append(ModelSelected(selection))
        return selection


def checked_selection(provider: str, model: str, effort: str | None) -> ModelSelection:
    """A selection with every name checked."""
    for name, value in (("provider", provider), ("model", model)):
        if not isinstance(value, str) or not value:
            raise InvalidValue(f"{name}: expected a name, got {value!r}")
    if effort is not None and (not isinstance(effort, str) or not effort):
        raise InvalidValue(f"effort: expected a non-empty text or None, got {effort!r}")
    return ModelSelection(provider, model, effort)
