"""One model request: assembled, prepared, admitted in one breath, frozen.

`assemble` runs once for a step; `prepare` once for each attempt; `admit` is the
synchronous breath (docs/explanation/architecture.md): no await between reconciling the prompt and
freezing the request, so a cancel commits all of it or nothing.
"""

from __future__ import annotations

from attrs import define

from ..llm import ModelRuntime, PreparedCall
from ..prompt import admit_prompt, owed_snapshot, refreshed
from ..session import AgentView, Session
from ..vocabulary import (
    APPEND,
    CallConfig,
    CodedError,
    ContextSection,
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
    UserMessage,
    UserMessageEvent,
    texts,
)
from ._decisions import header_needed, next_config, route_change, tool_changes
from ._dispatch import check_admitted
from ._hooks import Assembly, Enter, PreStep, Reject, RequestHook, StepDecision, decided
from ._scope import AgentScope


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

    def __attrs_post_init__(self) -> None:
        # Restored replacements are old news: the series goes on over a resume (C96).
        self._generation = self.session.surface.generation

    async def assemble(self, selection: ModelSelection) -> Assembly:
        """The prompt and the tools for a step on *selection*.

        Raises `CodedError` ``ROUTE_CHANGED`` when a listener changed the selection: the prompt
        would speak of another model than the one that is asked (C86).
        """
        variables = {"provider": selection.provider, "model": selection.model}
        over = self.scope.tools.laid_over()
        visible = self.scope.tools.visible().values()
        ordered = self.scope.prompt.arrange(t.schema() for t in visible if t not in over)
        assembly = Assembly(
            agent=self.agent,
            selection=selection,
            system=self.scope.prompt.render(self.agent, variables),
            # Last, so that the declarations before them are the same in every turn.
            tools=(*ordered, *(tool.schema() for tool in over)),
        )
        hook = self.scope.hooks.assemble
        if not hook:
            return assembly
        assembly = decided("assemble", await hook.run(assembly, _same), Assembly)
        if assembly.selection != selection:
            raise CodedError(
                f"an assemble listener changed the route to {assembly.selection}; "
                "select another model with agent.model.select() instead",
                texts.ROUTE_CHANGED,
            )
        return assembly

    async def decide(
        self, turn: int, step: int, claimed: tuple[UserMessage, ...], selection: ModelSelection
    ) -> StepDecision:
        """Run `pre_step`. The innermost decision enters what was claimed, and a snapshot
        of the runtime context when one is owed (C73)."""
        proposed = PreStep(
            agent=self.agent, turn=turn, step=step, messages=claimed, selection=selection
        )

        async def enter(value: PreStep) -> StepDecision:
            return Enter(refreshed(value.messages, self._snapshot(self._context())))

        decision = await self.scope.hooks.pre_step.run(proposed, enter)
        decided("pre_step", decision, Enter, Reject)
        return decision

    async def prepare(
        self, turn: int, step: int, attempt: int, selection: ModelSelection
    ) -> PreparedCall:
        """Run `request` listeners, then the adapter's own preparation.

        Raises `CodedError` ``ROUTE_CHANGED`` when a listener changed provider, model or
        effort. Nothing is in the log yet.
        """
        config = next_config(self.session.folds.header, selection, self.max_tokens)
        hook = self.scope.hooks.request
        if hook:
            proposed = RequestHook(
                agent=self.agent, turn=turn, step=step, attempt=attempt, config=config
            )
            config = decided("request", await hook.run(proposed, _config), CallConfig)
            if change := route_change(config, selection):
                raise CodedError(
                    f"a request listener changed the {change}; "
                    "select another model with agent.model.select() instead",
                    texts.ROUTE_CHANGED,
                )
        return await self.runtime.prepare_call(config)

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
        context = self._context()  # may raise: nothing is in the log yet
        last, last_seq = session.folds.header, session.folds.header_seq
        header = RequestHeader(
            config=prepared.config,
            adapter_defaults=prepared.adapter_defaults,
            tools=assembly.tools,
        )
        if last is not None and last == header:
            # Equal, but the keys of a schema may come in another order: what is sent is
            # what was logged, to the byte.
            header = last
        self._admit_prompt(turn, step, assembly, prepared, header, starts_series)
        for message in refreshed(batch or (), self._snapshot(context)):
            session.append(UserMessageEvent(message), APPEND)
        series = starts_series or session.surface.generation != self._generation
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
        request = Request(
            session_id=session.id,
            config=header.config,
            messages=session.history(),
            tools=header.tools,
            tool_history=session.folds.tool_history(),
        )
        check_admitted(session, request)
        return request

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
        tools_changed = last is not None and last.tools != header.tools
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
        info = prepared.info
        context = RequestContextEvent(
            config.provider, config.model, info.context_window, info.system_prompt_update
        )
        if context != self.session.folds.context:
            self.session.append(context)

    def _context(self) -> tuple[ContextSection, ...]:
        return self.scope.prompt.context(self.agent)

    def _snapshot(self, context: tuple[ContextSection, ...]) -> UserMessage | None:
        return owed_snapshot(context, self.session.surface.snapshots, self.session.new_id)


async def _same(assembly: Assembly) -> Assembly:
    return assembly


async def _config(hook: RequestHook) -> CallConfig:
    return hook.config
