"""Compaction: long conversations stay inside their model's window.

    compaction = Compaction()
    compaction.attach(engine.scope)

Before a step the size of the next request is compared with the window (C164); a request
that the provider refused as too large is repaired and retried. Old tool results are
shortened first, which costs nothing. Then the model is asked for a summary, and one
message takes the place of what it summarizes, in the bracket ``compaction/start``,
``compaction/summary``, the replacement, ``compaction/end`` (C165).

Nothing is lost: what was replaced stays in the log. The last rounds and the most recent
user message stay in front of the model, and no tool call is parted from its result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from weakref import WeakKeyDictionary

import trio
from attrs import Attribute, define, evolve, field

from ..agent import Agent, AgentScope, FailureDecision, PreStep, RequestFailed, Retry, StepDecision
from ..hooks import Proceed, Registration
from ..session import AgentView, Session
from ..vocabulary import (
    CodedError,
    InvalidValue,
    ModelSelection,
    ProviderError,
    UserMessage,
    UserSource,
)
from ._cut import (
    Cut,
    Estimate as Estimate,
    choose_cut,
    estimate_tokens as estimate_tokens,
    prunings,
    replacement,
)
from ._meter import Meter

logger = logging.getLogger("terzetto")

INSTRUCTIONS = (
    "Stop here. Write a summary of the conversation above that can replace it, so that the "
    "work can go on from your summary alone. Keep: what the user wants and every constraint "
    "they gave; decisions and their reasons; names, paths, numbers and identifiers exactly; "
    "what was done and what came of it; what is still open and the next step. Leave out "
    "greetings and dead ends. Do not call any tool. Answer with the summary only."
)
"""What the model is asked for, after the part of the history that is to be replaced."""

STALLED = "terzetto/compaction-stalled"
"""Name of the event that says, once, that compaction cannot help; ignorable."""

_OVERFLOW = "CONTEXT_OVERFLOW"


def _share(_: object, attribute: Attribute[float], value: float) -> None:
    if not 0 < value <= 1:
        raise InvalidValue(f"{attribute.name}: expected a share above 0, at most 1; got {value!r}")


def _tokens(_: object, attribute: Attribute[int | None], value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or value < 1):
        raise InvalidValue(f"{attribute.name}: expected a positive number of tokens, got {value!r}")


def _said(_: object, attribute: Attribute[str], value: str) -> None:
    if not value.strip():
        raise InvalidValue(f"{attribute.name}: expected a text to ask for a summary, got none")


def _at_least(least: int) -> Callable[[object, Attribute[int], int], None]:
    def check(_: object, attribute: Attribute[int], value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidValue(
                f"{attribute.name}: expected a whole number of at least {least}, got {value!r}"
            )

    return check


@define(eq=False)
class _State:
    """What is remembered of one session, for as long as it lives.

    *tries* counts compactions since the pressure was last below the limit, *overflows*
    those since the last request that was not refused as too large.
    """

    meter: Meter = field(factory=Meter)
    tries: int = 0
    overflows: int = 0
    place: tuple[int, int] = (0, 0)
    said: bool = False


@define(eq=False, kw_only=True)
class Compaction:
    """Keeps the conversations of the agents it is attached to inside the window.

    Args:
        window: Tokens that a request and its answer may have. By default what the adapter
            says of the model; without either, only refused requests are acted upon.
        at: The share of the window at which compaction begins.
        keep: The share of the window that stays behind the cut unsummarized, at most.
        keep_rounds: The last so many answers stay with the results of their calls, at
            least 1, whatever their size.
        prune_over: Older tool results of more tokens are shortened first, at least 100.
        attempts: Most compactions without getting below the limit; and most for one
            refused request. At least 1. Then it pauses, says so once (`STALLED` in the
            log, and an ERROR record), and requests go on as they are.
        instructions: What the model is asked for.
        selection: The route of summaries; the agent's own by default.
        summary_tokens: Most tokens of a summary, which is used as it is when this cuts it
            short; the adapter's default when None.
        estimate: The size of a message in tokens.

    One object serves any number of agents and engines. A summary that fails, or is not
    smaller than what it would replace, is refused; the turn goes on without it.
    """

    window: int | None = field(default=None, validator=_tokens)
    at: float = field(default=0.8, validator=_share)
    keep: float = field(default=0.3, validator=_share)
    keep_rounds: int = field(default=2, validator=_at_least(1))
    prune_over: int = field(default=1000, validator=_at_least(100))
    attempts: int = field(default=2, validator=_at_least(1))
    instructions: str = field(default=INSTRUCTIONS, validator=_said)
    selection: ModelSelection | None = None
    summary_tokens: int | None = None
    estimate: Estimate = estimate_tokens
    _states: WeakKeyDictionary[Session, _State] = field(
        factory=WeakKeyDictionary, init=False, repr=False
    )

    def attach(self, scope: AgentScope) -> Registration:
        """Watch the agent of *scope*, or all agents of an engine's scope."""
        before = scope.hooks.pre_step.listen(self._before_step)
        after = scope.hooks.request_error.listen(self._after_failure)

        def undo() -> None:
            before.remove()
            after.remove()

        return Registration(undo)

    async def compact(self, agent: Agent) -> str | None:
        """Compact now, whatever the size; the agent must be idle.

        Returns the summary, or None when there is nothing that may be cut away, or so
        little that no summary could be smaller. Old tool results are shortened in any case.

        Raises:
            AgentBusy: Something runs, or this session is being compacted.
            ProviderError: The model could not be asked.
            CodedError: ``COMPACTION_REFUSED``: the summary was empty or no smaller than
                what it would replace.
            ActivityCancelled: `Agent.cancel` ended it; the log says so.
        """
        return await agent.run_maintenance(self._manually, agent)

    def pressure(self, session: Session) -> int:
        """The tokens that the history of *session* takes in its next request.

        Reported by the provider where nothing was replaced since, else estimated.
        """
        return self._state(session).meter.read(session, self.estimate)

    # --- when ---------------------------------------------------------------------------

    async def _before_step(
        self, value: PreStep, proceed: Proceed[PreStep, StepDecision]
    ) -> StepDecision:
        session = value.agent.session
        window = self._window(session, value.selection)
        if window is None:
            return await proceed()
        state, limit = self._state(session), self.at * window
        incoming = sum(self.estimate(message) for message in value.messages)
        if self.pressure(session) + incoming < limit:
            state.tries, state.said = 0, False
        elif state.tries < self.attempts:
            newer = any(isinstance(m.source, UserSource) for m in value.messages)
            room = int(limit * _RELIEF) - incoming
            await self._relieve(
                value.agent, value.selection, int(self.keep * window), room, newer_input=newer
            )
        else:
            self._say_stalled(session, f"{self.attempts} compactions did not help")
        return await proceed()

    async def _after_failure(
        self, failed: RequestFailed, proceed: Proceed[RequestFailed, FailureDecision]
    ) -> FailureDecision:
        if failed.failure.code != _OVERFLOW:
            return await proceed()
        session = failed.agent.session
        state, place = self._state(session), (failed.turn, failed.step)
        if state.place != place:
            state.place, state.overflows = place, 0
        if state.overflows >= self.attempts:
            return await proceed()
        state.overflows += 1
        generation = session.surface.generation
        # The provider's word counts, whatever was estimated: half of it has to go.
        half = self.pressure(session) // 2
        await self._relieve(failed.agent, None, half, half, newer_input=False)
        # Without a change the same request would only be refused again (C133).
        return Retry() if session.surface.generation != generation else await proceed()

    async def _manually(self, agent: Agent) -> str | None:
        session = agent.session
        await self._prune(session)
        cut = choose_cut(
            session.surface.nodes,
            keep_tokens=0,
            keep_rounds=self.keep_rounds,
            estimate=self.estimate,
        )
        if cut is None or self._is_pointless(cut):
            return None
        summary = await self._summarize(agent, None, cut, newer_input=False)
        state = self._state(session)
        state.tries, state.said = 0, False
        return summary

    def _window(self, session: Session, selection: ModelSelection) -> int | None:
        if self.window is not None:
            return self.window
        known = session.folds.context
        if known is None or (known.provider, known.model) != (selection.provider, selection.model):
            return None
        return known.context_window

    # --- how ----------------------------------------------------------------------------

    async def _relieve(
        self,
        agent: AgentView,
        selection: ModelSelection | None,
        keep_tokens: int,
        room: int,
        *,
        newer_input: bool,
    ) -> None:
        """Shorten old results; if the history does not fit into *room* then, summarize."""
        session = agent.session
        state = self._state(session)
        scale = state.meter.scale()
        keep_tokens, room = int(keep_tokens * scale), int(room * scale)
        await self._prune(session)
        if self.pressure(session) <= room:
            return
        cut = choose_cut(
            session.surface.nodes,
            keep_tokens=keep_tokens,
            keep_rounds=self.keep_rounds,
            newer_input=newer_input,
            estimate=self.estimate,
        )
        if cut is None or self._is_pointless(cut):
            self._say_stalled(session, "what is left may not be summarized or is too short")
            return
        if session.compaction.live:
            return  # somebody else compacts it
        state.tries += 1
        try:
            await self._summarize(agent, selection, cut, newer_input=newer_input)
        except (CodedError, InvalidValue) as error:
            # The turn goes on as it is: its request may fit, or the provider says so itself.
            logger.warning("compaction of %s failed: %s", session.id, error)

    def _is_pointless(self, cut: Cut) -> bool:
        """Whether not even an empty summary would be smaller than what it replaces."""
        return self.estimate(replacement(cut, "")) >= cut.tokens

    async def _prune(self, session: Session) -> None:
        changes = prunings(
            session.surface.nodes,
            keep_rounds=self.keep_rounds,
            over=self.prune_over,
            estimate=self.estimate,
        )
        for seq, message in changes:
            if session.surface.span(seq, seq) is not None:  # others ran meanwhile
                session.replace(seq, seq, [message])
            # Each costs as much as the history is long: let others run in between.
            await trio.lowlevel.checkpoint()

    async def _summarize(
        self, agent: AgentView, selection: ModelSelection | None, cut: Cut, *, newer_input: bool
    ) -> str:
        """Replace *cut*, or what of it fits into a request, by the model's summary."""
        session = agent.session
        with session.compacting() as bracket:
            while True:
                try:
                    summary = await self._ask(agent, selection, cut)
                except ProviderError as error:
                    shorter = self._shorter(session, cut, newer_input=newer_input)
                    if error.code != _OVERFLOW or shorter is None:
                        raise
                    cut = shorter
                    continue
                message = replacement(cut, summary)
                if not summary or self.estimate(message) >= cut.tokens:
                    size = f"of {self.estimate(message)} tokens for {cut.tokens}"
                    raise CodedError(
                        f"a summary {size if summary else 'without text'} was refused",
                        "COMPACTION_REFUSED",
                    )
                message = evolve(message, id=session.new_id())
                bracket.commit(cut.start, cut.end, message, summary)
                return summary

    def _shorter(self, session: Session, cut: Cut, *, newer_input: bool) -> Cut | None:
        """A cut of at most half of *cut*, for a summary whose request was too large."""
        shorter = choose_cut(
            session.surface.nodes,
            keep_tokens=0,
            keep_rounds=self.keep_rounds,
            at_most=cut.tokens // 2,
            newer_input=newer_input,
            estimate=self.estimate,
        )
        return shorter if shorter is not None and shorter.tokens < cut.tokens else None

    async def _ask(self, agent: AgentView, selection: ModelSelection | None, cut: Cut) -> str:
        header = agent.session.folds.header
        completion = await agent.complete(
            [*cut.prefix, UserMessage(self.instructions)],
            selection=self.selection or selection,
            # The same tools as ever: the prefix stays cached, and some providers refuse
            # calls in a history without them.
            tools=header.tools if header is not None else (),
            max_tokens=self.summary_tokens,
        )
        return completion.text.strip()

    def _say_stalled(self, session: Session, why: str) -> None:
        state = self._state(session)
        if state.said:
            return
        state.said = True
        tokens = self.pressure(session)
        logger.error("compaction of %s pauses at %d tokens: %s", session.id, tokens, why)
        session.record(STALLED, {"tokens": tokens, "reason": why}, ignorable=True)

    def _state(self, session: Session) -> _State:
        return self._states.setdefault(session, _State())


_RELIEF = 0.75
"""Shortening results is enough when it gets below this share of the limit; a little less
would be needed again at the next step, and each time the provider's cache is lost."""
