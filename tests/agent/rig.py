"""What the tests of turns and requests stand on: one agent on a scripted model, and its log
and requests in few words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from attrs import define, evolve, field
from tests.agent.kit import engine_on

from terzetto import Agent, CallConfig, Engine, ModelInfo, PreparedCall, Request, Session
from terzetto.llm.scripted import ScriptedModel, ScriptSource
from terzetto.session import is_snapshot
from terzetto.session._codec import TAGS
from terzetto.vocabulary import (
    AssistantBlock,
    AssistantChunk,
    AssistantMessage,
    DeveloperMessage,
    Failure,
    Finish,
    InboxSpliced,
    Message,
    ProviderError,
    ReasoningBlock,
    RequestHeaderEvent,
    SystemMessage,
    TextBlock,
    ToolAdditionBlock,
    ToolResultBlock,
    ToolResultEvent,
    TurnEnd,
    UserMessage,
    texts,
)


@define(eq=False, init=False)
class Fussy(ScriptedModel):
    """A scripted model that knows which efforts it can do, and fills in a default one.

    *infos* says what it declares for a model name; others get the plain declaration.
    """

    efforts: tuple[str, ...]
    default_effort: str | None
    infos: dict[str, ModelInfo]
    prepared: list[CallConfig]

    def __init__(
        self,
        answers: ScriptSource = (),
        *,
        efforts: Sequence[str] = ("low", "high"),
        default_effort: str | None = None,
        infos: dict[str, ModelInfo] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(answers, **options)
        self.efforts, self.default_effort = tuple(efforts), default_effort
        self.infos, self.prepared = infos or {}, []

    async def prepare(self, config: CallConfig) -> PreparedCall:
        self.prepared.append(config)
        if config.effort is not None and config.effort not in self.efforts:
            raise ProviderError(
                Failure(
                    message=f"{config.model} cannot do {config.effort}",
                    code=texts.UNSUPPORTED_REASONING_EFFORT,
                )
            )
        fills = config.effort is None and self.default_effort is not None
        if fills:
            config = evolve(config, effort=self.default_effort)
        prepared: Any = await super().prepare(config)
        if fills:
            prepared.adapter_defaults |= {"reasoningEffort"}
        prepared.info = self.infos.get(config.model, prepared.info)
        return prepared  # type: ignore[no-any-return]


@define(eq=False)
class Life:
    """One agent, its engine and its model."""

    engine: Engine
    agent: Agent
    model: ScriptedModel
    heard: list[str] = field(factory=list)

    @property
    def session(self) -> Session:
        return self.agent.session

    @property
    def hooks(self) -> Any:
        return self.agent.scope.hooks

    async def say(self, text: str = "go") -> None:
        """One follow-up, until the agent is idle; a failure is no exception."""
        self.agent.followup(text)
        await self.agent.wait_idle()

    def request(self, number: int = -1) -> list[str]:
        """The messages of a request, in few words."""
        return shown(self.model.requests[number].messages)


@asynccontextmanager
async def one(
    answers: ScriptSource | ScriptedModel = (),
    tools: Iterable[Any] = (),
    *,
    engine: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Life]:
    """An agent on a model with these answers; *options* are those of `open_agent`."""
    model = answers if isinstance(answers, ScriptedModel) else ScriptedModel(answers)
    route = {"provider": model.provider, "model": "m", **options}
    async with engine_on(model, tools, **(engine or {})) as opened:
        async with opened.open_agent(**route) as agent:
            yield Life(opened, agent, model)


# --- in few words ------------------------------------------------------------------------


def shown(messages: Iterable[Message]) -> list[str]:
    return [show(message) for message in messages]


def show(message: Message) -> str:
    """One message: its role and its content."""
    match message:
        case SystemMessage():
            return f"system: {message.text}"
        case DeveloperMessage(content=blocks):
            signs = [("+" if isinstance(b, ToolAdditionBlock) else "-", b) for b in blocks]
            return "developer: " + " ".join(f"{s}{getattr(b, 'tool_name', '')}" for s, b in signs)
        case AssistantMessage(content=blocks):
            return "assistant: " + "|".join(map(_block, blocks))
    if is_snapshot(message):
        return f"context: {message.text.rpartition(chr(10))[2]}"
    assert isinstance(message, UserMessage)
    results = [block for block in message.content if isinstance(block, ToolResultBlock)]
    if results:
        (result,) = results
        mark = "!" if result.is_error else ""
        text = "".join(b.text for b in result.content)
        return f"result {result.tool_call_id}{mark}: {text}"
    return f"user: {message.text}"


def _block(block: AssistantBlock) -> str:
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, ReasoningBlock):
        return f"<{block.text}>"
    return f"{block.id}={block.name}{block.arguments}"


def log(session: Session, *, chunks: bool = False, splices: bool = False) -> list[str]:
    """The types of the log's events, in order, some with what matters most of them."""
    found = []
    for event in session.events:
        data = event.data
        if isinstance(data, InboxSpliced) and not splices:
            continue
        if isinstance(data, AssistantChunk) and not chunks:
            if isinstance(data.chunk, Finish):
                found.append(f"finish {type(data.chunk.reason).__name__}")
            continue
        name = TAGS.get(type(data), type(data).__name__)
        match data:
            case RequestHeaderEvent(reason=reason, starts_series=series):
                name += f" {reason}" + (" series" if series else "")
            case TurnEnd(ending=ending):
                name += f" {type(ending).__name__}"
            case ToolResultEvent(error=error):
                name += f" {error.code}" if error else ""
            case _:
                pass
        if event.surface_op is not None and type(event.surface_op).__name__ == "Replace":
            name += " replace"
        found.append(name)
    return found


def headers(session: Session) -> list[str]:
    """Every `request/header` by its reason."""
    return [entry for entry in log(session) if entry.startswith("request/header")]


def configs(model: ScriptedModel) -> list[dict[str, object]]:
    """What each request was configured with, but for its route."""
    return [_config(request) for request in model.requests]


def _config(request: Request) -> dict[str, object]:
    config = request.config
    found: dict[str, object] = {"effort": config.effort, "max_tokens": config.max_tokens}
    found = {name: value for name, value in found.items() if value is not None}
    return {**found, **config.options}
