"""One model request: assembled, prepared, admitted in one breath, frozen.

`assemble` runs once for a step; `prepare` once for each attempt; `admit` is the
synchronous breath (docs/explanation/architecture.md): no await between reconciling the prompt and
freezing the request, so a cancel commits all of it or nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from attrs import define

from ..llm import ModelRuntime, PreparedCall
from ..prompt import admit_prompt, owed_snapshot, refreshed
from ..session import AgentView, Node, Session
from ..vocabulary import (
    APPEND,
    CallConfig,
    CodedError,
    ContextSection,
    DefaultField,
    DeveloperMessage,
    DeveloperMessageEvent,
    ModelSelection,
    PluginSource,
    Replace,
    Request,
    RequestContextEvent,
    RequestHeader,
    RequestHeaderEvent,
    SystemMessage,
    SystemMessageEvent,
    TextBlock,
    ToolSchema,
    UserMessage,
    UserMessageEvent,
    texts,
)
from ..vocabulary._quick import request
from ._decisions import header_needed, next_config, route_change, tool_changes
from ._dispatch import check_admitted
from ._hooks import Assembly, Enter, PreStep, Reject, RequestHook, StepDecision, decided
from ._repeated import Repeated
from ._scope import AgentScope

# What a step found out, for the next one: in a turn of many steps mostly nothing changes.
# Each holds for exactly the values it was made from, compared by identity or by count, so
# that what is kept is what would be made again.


class _Assembled(NamedTuple):
    """*assembly* is that of the tools and prompt parts at these counts of changes. *context*:
    the runtime context at them, if nothing of it and of the prompt is a function."""

    tool_changes: int
    prompt_changes: int
    assembly: Assembly
    context: tuple[ContextSection, ...] | None


class _Configured(NamedTuple):
    """*config* is what `next_config` gives for these."""

    last: RequestHeader | None
    selection: ModelSelection
    config: CallConfig


class _Compared(NamedTuple):
    """A header of these parts is equal to *last*."""

    last: RequestHeader
    config: CallConfig
    defaults: frozenset[DefaultField]
    tools: tuple[ToolSchema, ...]


@define(eq=False)
class RequestBuilder:
    """Builds the requests of one agent, for as long as it lives."""

    agent: AgentView
    session: Session
    scope: AgentScope
    runtime: ModelRuntime
    max_tokens: int | None
    _wrote_header: bool = False
    _generation: int = -1
    _assembled: _Assembled | None = None
    _configured: _Configured | None = None
    _compared: _Compared | None = None
    _repeated: Repeated | None = None
    _told: tuple[tuple[ContextSection, ...], Node] | None = None

    def __attrs_post_init__(self) -> None:
        # Restored replacements are old news: the series goes on over a resume (C96).
        self._generation = self.session.surface.generation

    def unchanged(self, selection: ModelSelection) -> Assembly | None:
        """The assembly of the step before, if there is nothing to assemble and nothing to
        decide for a step that nobody has put anything in: `assemble` would give the same, and
        `decide` would enter nothing. Nobody is asked."""
        scope, known = self.scope, self._assembled
        if (
            known is None
            or known.context is None
            or known.assembly.selection is not selection
            or known.tool_changes != scope.tools.changes
            or known.prompt_changes != scope.prompt.changes
            or scope.heard.assemble
            or scope.heard.pre_step
            or not self._is_told(known.context)
        ):
            return None
        return known.assembly

    async def assemble(self, selection: ModelSelection) -> Assembly:
        """The prompt and the tools for a step on *selection*.

        Raises `CodedError` ``ROUTE_CHANGED`` when a listener changed the selection: the prompt
        would speak of another model than the one that is asked (C86).
        """
        assembly = self._own_assembly(selection)
        hook = self.scope.heard.assemble
        if not hook:
            return assembly
        assembly = decided(hook, await hook.run(assembly, _same), Assembly)
        if assembly.selection != selection:
            raise CodedError(
                f"an assemble listener changed the route to {assembly.selection}; "
                "select another model with agent.model.select() instead",
                texts.ROUTE_CHANGED,
            )
        return assembly

    def _own_assembly(self, selection: ModelSelection) -> Assembly:
        """The assembly before any listener; the one before it, if nothing in it is new."""
        tools, prompt, known = self.scope.tools, self.scope.prompt, self._assembled
        tool_changes, prompt_changes = tools.changes, prompt.changes
        if (
            known is not None
            and known.tool_changes == tool_changes
            and known.prompt_changes == prompt_changes
            and (known.assembly.selection is selection or known.assembly.selection == selection)
        ):
            if prompt.fixed:
                return known.assembly
            declared = known.assembly.tools
        else:
            over = tools.laid_over()
            ordered = prompt.arrange(t.schema() for t in tools.visible().values() if t not in over)
            # Last, so that the declarations before them are the same in every turn.
            declared = (*ordered, *(tool.schema() for tool in over))
        variables = {"provider": selection.provider, "model": selection.model}
        system = prompt.render(self.agent, variables)
        assembly = Assembly(agent=self.agent, selection=selection, system=system, tools=declared)
        context = prompt.fixed_context
        self._assembled = _Assembled(tool_changes, prompt_changes, assembly, context)
        return assembly

    async def decide(
        self, turn: int, step: int, claimed: tuple[UserMessage, ...], selection: ModelSelection
    ) -> StepDecision:
        """Run `pre_step`. The innermost decision enters what was claimed, and a snapshot
        of the runtime context when one is owed (C73)."""
        hook = self.scope.heard.pre_step
        if not hook:
            return self._entering(claimed)
        proposed = PreStep(
            agent=self.agent, turn=turn, step=step, messages=claimed, selection=selection
        )

        async def enter(value: PreStep) -> StepDecision:
            return self._entering(value.messages)

        decision = await hook.run(proposed, enter)
        decided(hook, decision, Enter, Reject)
        return decision

    def _entering(self, messages: tuple[UserMessage, ...]) -> Enter:
        entering = refreshed(messages, self._snapshot(self._context()))
        return Enter(entering) if entering else ENTER_NOTHING

    async def prepare(
        self, turn: int, step: int, attempt: int, selection: ModelSelection
    ) -> PreparedCall:
        """Run `request` listeners, then the adapter's own preparation.

        Raises `CodedError` ``ROUTE_CHANGED`` when a listener changed provider, model or
        effort. Nothing is in the log yet.
        """
        config = self._own_config(selection)
        hook = self.scope.heard.request
        if hook:
            proposed = RequestHook(
                agent=self.agent, turn=turn, step=step, attempt=attempt, config=config
            )
            config = decided(hook, await hook.run(proposed, _config), CallConfig)
            if change := route_change(config, selection):
                raise CodedError(
                    f"a request listener changed the {change}; "
                    "select another model with agent.model.select() instead",
                    texts.ROUTE_CHANGED,
                )
        return await self.runtime.prepare_call(config)

    def _own_config(self, selection: ModelSelection) -> CallConfig:
        """The config before any listener: the last header's own object, if it is equal."""
        last, known = self.session.folds.header, self._configured
        if known is not None and known.last is last and known.selection is selection:
            return known.config
        config = next_config(last, selection, self.max_tokens)
        if last is not None and config == last.config:
            config = last.config
        self._configured = _Configured(last, selection, config)
        return config

    def admit(
        self,
        turn: int,
        step: int,
        assembly: Assembly,
        prepared: PreparedCall,
        batch: tuple[UserMessage, ...] | None,
        starts_series: bool,
    ) -> Request:
        """Commit everything the request needs and freeze it. No await.

        *batch* is None on a retry: its users are in history already.
        """
        session = self.session
        known = None if batch or starts_series else self._repeated
        if known is not None and known.by(assembly, prepared, session, self.scope.prompt):
            return self._frozen()
        before = session.place.next_seq
        context = self._context()  # may raise: nothing is in the log yet
        last, last_seq = session.folds.header, session.folds.header_seq
        header = self._header(last, prepared, assembly.tools)
        self._admit_prompt(turn, step, assembly, prepared, header, starts_series)
        for message in refreshed(batch or (), self._snapshot(context)):
            session.append(UserMessageEvent(message), APPEND)
        series = starts_series or session.surface.generation != self._generation
        needed = None
        if header is not last or series or not self._wrote_header:
            needed = header_needed(
                last=last,
                header=header,
                first_of_instance=not self._wrote_header,
                starts_series=series,
            )
        if needed is not None:
            written = session.append(
                RequestHeaderEvent(header, needed.reason, needed.starts_series)
            )
            self._wrote_header = True
            if last_seq is not None and last is not None:
                self._announce_tools(turn, step, last, header, written.seq)
        self._admit_context(header.config, prepared)
        self._generation = session.surface.generation
        if session.place.next_seq == before:
            self._repeated = self._repeatable(assembly, prepared)
        return self._frozen()

    def _frozen(self) -> Request:
        """The request that the log gives now."""
        session = self.session
        header = session.folds.header
        assert header is not None
        made = request(
            session.header.id,
            header.config,
            session.history(),
            header.tools,
            session.folds.tool_history(),
        )
        check_admitted(session, made)
        return made

    def _repeatable(self, assembly: Assembly, prepared: PreparedCall) -> Repeated | None:
        """An admission that has appended nothing, unless functions were asked for it."""
        own = self._assembled
        if own is None or own.assembly is not assembly or own.context is None:
            return None
        return Repeated.of(assembly, prepared, self.session, own.prompt_changes)

    def _header(
        self, last: RequestHeader | None, prepared: PreparedCall, tools: tuple[ToolSchema, ...]
    ) -> RequestHeader:
        """The header of the request; *last* itself, if they are equal."""
        config, defaults, known = prepared.config, prepared.adapter_defaults, self._compared
        if (
            known is not None
            and known.last is last
            and known.config is config
            and known.tools is tools
            and known.defaults == defaults
        ):
            return known.last
        header = RequestHeader(config=config, adapter_defaults=defaults, tools=tools)
        if last is None or last != header:
            return header
        self._compared = _Compared(last, config, defaults, tools)
        # Equal, but the keys of a schema may come in another order: what is sent is
        # what was logged, to the byte.
        return last

    def _admit_prompt(
        self,
        turn: int,
        step: int,
        assembly: Assembly,
        prepared: PreparedCall,
        header: RequestHeader,
        starts_series: bool,
    ) -> None:
        session, info = self.session, prepared.info
        last = session.folds.header
        tools_changed = header is not last and last is not None and last.tools != header.tools
        new_series = (
            starts_series
            or session.surface.generation != self._generation
            or (tools_changed and not info.tool_update)
        )
        changes = admit_prompt(
            session.surface.system,
            assembly.system,
            in_history=info.system_prompt_update == "in-history",
            starts_series=new_series,
        )
        for change in changes:
            content = (TextBlock(change.text),) if change.text else ()
            source = PluginSource(texts.SYSTEM_PROMPT_PLUGIN)
            message = SystemMessage(content, source, session.new_id())
            event = SystemMessageEvent(turn, step, message)
            if change.replaces is None:
                session.append(event, APPEND)
            else:
                op = Replace(change.replaces, change.replaces)
                session.append(event, op, (change.replaces,))

    def _announce_tools(
        self, turn: int, step: int, last: RequestHeader, header: RequestHeader, seq: int
    ) -> None:
        changes = tool_changes(last, header)
        if not changes:
            return
        adds = any(tool.name not in {t.name for t in last.tools} for tool in header.tools)
        message = DeveloperMessage(changes, id=self.session.new_id())
        event = DeveloperMessageEvent(turn, step, message, seq if adds else None)
        self.session.append(event, APPEND)

    def _admit_context(self, config: CallConfig, prepared: PreparedCall) -> None:
        info, known = prepared.info, self.session.folds.context
        if (
            known is not None
            and known.provider == config.provider
            and known.model == config.model
            and known.context_window == info.context_window
            and known.system_prompt_update == info.system_prompt_update
        ):
            return
        context = RequestContextEvent(
            config.provider, config.model, info.context_window, info.system_prompt_update
        )
        self.session.append(context)

    def _context(self) -> tuple[ContextSection, ...]:
        return self.scope.prompt.context(self.agent)

    def _snapshot(self, context: tuple[ContextSection, ...]) -> UserMessage | None:
        if self._is_told(context):
            return None
        retained = self.session.surface.snapshots
        owed = owed_snapshot(context, retained, self.session.new_id)
        if owed is None:
            self._told = (context, retained[-1])
        return owed

    def _is_told(self, context: tuple[ContextSection, ...]) -> bool:
        """Whether *context* is known to be what the last snapshot says."""
        retained, told = self.session.surface.snapshots, self._told
        if not retained:
            return not context
        return told is not None and told[0] is context and told[1] is retained[-1]


ENTER_NOTHING = Enter(())


async def _same(assembly: Assembly) -> Assembly:
    return assembly


async def _config(hook: RequestHook) -> CallConfig:
    return hook.config
