"""C84 C162: every request equals the fold of the log at the moment it was dispatched.

Scenarios are generated: prompts, tools, options, context and model change at any step, from
any place; batches are rewritten, requests fail and are retried, the surface is replaced, turns
are cancelled, sessions are resumed. The fold here is written anew from the documents and
shares no code with the engine but the event types.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from attrs import define, evolve, field, frozen
from hypothesis import given, settings, strategies as st
from hypothesis.strategies import SearchStrategy
from tests.agent.kit import engine_on, play
from tests.agent.rig import Fussy
from tests.whole import whole

from terzetto import Agent, Enter, MemoryStore, ModelInfo, Reject, Retry, UserMessage
from terzetto.llm.scripted import answer, call, finish_error, say, think
from terzetto.session._codec import encode_request
from terzetto.testing._invariants import Evidence, check_invariants, history_is_valid
from terzetto.tools import raw_tool
from terzetto.vocabulary import (
    Append,
    Event,
    MaxTokens,
    Message,
    PluginSource,
    Replace,
    Request,
    RequestHeaderEvent,
    Stop,
    SystemMessageEvent,
    ToolCalls,
)

# --- the fold ----------------------------------------------------------------------------


def derived(events: Sequence[Event]) -> list[Message]:
    """The messages of a log, from scratch: appended, then replaced by range; empty ones out."""
    nodes: list[Event] = []
    for event in events:
        if isinstance(event.surface_op, Append):
            nodes.append(event)
        elif isinstance(event.surface_op, Replace):
            seqs = [node.seq for node in nodes]
            first, last = seqs.index(event.surface_op.start), seqs.index(event.surface_op.end)
            nodes[first : last + 1] = [event]
    messages = [node.data.message for node in nodes]  # type: ignore[union-attr]
    return [message for message in messages if message.content]


def header_of(events: Sequence[Event]) -> RequestHeaderEvent:
    """The latest header."""
    return [e.data for e in events if isinstance(e.data, RequestHeaderEvent)][-1]


# --- what a scenario may do --------------------------------------------------------------

Change: TypeAlias = Literal[
    "prompt",
    "no prompt",
    "add tool",
    "remove tool",
    "context",
    "no context",
    "option",
    "model",
    "capable model",
    "steer",
    "inject",
    "followup",
    "summary",
    "prune",
    "nothing",
]
CHANGES: tuple[Change, ...] = Change.__args__  # type: ignore[attr-defined]
Place: TypeAlias = Literal["pre_step", "request", "request_error", "tool", "stopping", "between"]
PLACES: tuple[Place, ...] = Place.__args__  # type: ignore[attr-defined]
Reply: TypeAlias = Literal["text", "tools", "empty", "fails", "max", "think", "cut calls"]
REPLIES: tuple[Reply, ...] = Reply.__args__  # type: ignore[attr-defined]
Batch: TypeAlias = Literal["keep", "append", "rewrite", "empty", "series", "reject"]
BATCHES: tuple[Batch, ...] = Batch.__args__  # type: ignore[attr-defined]


@frozen
class Scenario:
    """*changes* happen at the visits of their place; a list that ends does nothing more."""

    replies: tuple[Reply, ...]
    changes: dict[Place, tuple[Change, ...]]
    batches: tuple[Batch, ...]
    turns: int
    cancel_at: int | None
    resume_after: int | None
    capable: bool


def scenarios() -> SearchStrategy[Scenario]:
    def lists(items: Sequence[Any], most: int) -> SearchStrategy[tuple[Any, ...]]:
        return st.lists(st.sampled_from(items), max_size=most).map(tuple)

    return st.builds(
        Scenario,
        replies=lists(REPLIES, 10),
        changes=st.fixed_dictionaries({place: lists(CHANGES, 5) for place in PLACES}),
        batches=lists((*BATCHES, "keep", "keep"), 8),
        turns=st.integers(1, 4),
        cancel_at=st.none() | st.integers(1, 8),
        resume_after=st.none() | st.integers(1, 3),
        capable=st.booleans(),
    )


@define(eq=False)
class Dispatched:
    """A request, the log at its dispatch, and what was in it then."""

    request: Request
    events: list[Event]
    messages: list[Message]
    encoded: Any


@define(eq=False)
class Stage:
    """A scenario being played."""

    plan: Scenario
    store: MemoryStore = field(factory=MemoryStore)
    sent: list[Dispatched] = field(factory=list)
    agent: Agent | None = None
    _seen: dict[str, int] = field(factory=dict)
    _tools: list[Any] = field(factory=list)
    _names: Any = field(factory=lambda: itertools.count(1))
    _parts: dict[str, Any] = field(factory=dict)
    _weather: str = ""

    def next(self, name: str, items: Sequence[Any], otherwise: Any) -> Any:
        at = self._seen.get(name, 0)
        self._seen[name] = at + 1
        return items[at] if at < len(items) else otherwise

    # --- the model -----------------------------------------------------------------------

    def reply(self, request: Request) -> Any:
        agent = self.agent
        assert agent is not None
        self.sent.append(
            Dispatched(
                request,
                whole(agent.session),
                list(request.messages),
                encode_request(request),
            )
        )
        if len(self.sent) == self.plan.cancel_at:
            agent.cancel(keep_inbox=True)
        number = next(self._names)
        match self.next("reply", self.plan.replies, "text"):
            case "tools":
                names = [tool.name for tool in request.tools][:2]
                calls = [call(name, id=f"c{number}.{n}") for n, name in enumerate(names)]
                return answer(say(f"calling {number}"), *calls, finish=ToolCalls())
            case "empty":
                return answer(finish=Stop())
            case "fails":
                return answer(say("lost"), finish_error())
            case "max":
                return answer(say(f"cut {number}"), finish=MaxTokens())
            case "cut calls":
                return answer(call("t0", id=f"x{number}"), finish=MaxTokens())
            case "think":
                return answer(think(f"hm {number}"), say(f"reply {number}"))
        return f"reply {number}"

    # --- changes -------------------------------------------------------------------------

    def visit(self, place: Place) -> None:
        agent = self.agent
        assert agent is not None
        self.change(self.next(place, self.plan.changes[place], "nothing"), agent, place)

    def change(self, change: Change, agent: Agent, place: Place) -> None:
        number, scope = next(self._names), agent.scope
        match change:
            case "prompt" | "no prompt":
                if section := self._parts.pop("section", None):
                    section.remove()
                if change == "prompt":
                    self._parts["section"] = scope.add_section(
                        "s", f"prompt {number} {{{{model}}}}"
                    )
            case "add tool":
                self._tools.append(scope.add_tool(self.tool(f"t{number}")))
            case "remove tool":
                if self._tools:
                    self._tools.pop(0).remove()
            case "context" | "no context":
                self._weather = f"weather {number}" if change == "context" else ""
            case "option":
                self._parts["option"] = number
            case "model" | "capable model":
                agent.model.select("scripted", change, "low" if number % 2 else None)
            case "steer" | "inject" | "followup":
                # A turn that is steered at each of its ends would never be over.
                if number < 200:
                    getattr(agent, change)(f"{change} {number}")
            case "summary" if place in ("pre_step", "request_error", "between"):
                nodes = agent.session.surface.nodes
                while nodes and isinstance(nodes[0].data, SystemMessageEvent):
                    nodes = nodes[1:]
                if nodes:
                    agent.session.replace(
                        nodes[0].seq, nodes[-1].seq, [UserMessage(f"summary {number}")]
                    )
            case "prune" if place == "between":
                self.prune(agent)
            case _:
                pass

    def prune(self, agent: Agent) -> None:
        for node in agent.session.surface.nodes:
            if type(node.data).__name__ == "ToolResultEvent":
                data: Any = node.data
                pruned = evolve(data.message.content[0], content=())
                event = evolve(data, message=evolve(data.message, content=(pruned,)))
                agent.session.append(event, Replace(node.seq, node.seq), (node.seq,))
                return

    def tool(self, name: str) -> Any:
        async def body(arguments: object) -> str:
            self.visit("tool")
            return name

        parameters = {"type": "object", "properties": {}}
        return raw_tool(name=name, description=name, parameters=parameters, body=body)

    # --- listeners -----------------------------------------------------------------------

    async def pre_step(self, value: Any, proceed: Any) -> Any:
        self.visit("pre_step")
        decision = await proceed()
        note = UserMessage(f"note {next(self._names)}", PluginSource("policy"))
        match self.next("batch", self.plan.batches, "keep"):
            case "append":
                return evolve(decision, messages=(*decision.messages, note))
            case "rewrite":
                return Enter((note,))
            case "empty":
                return Enter(())
            case "series":
                return evolve(decision, starts_series=True)
            case "reject":
                return Reject()
        return decision

    async def request(self, value: Any, proceed: Any) -> Any:
        self.visit("request")
        config = await proceed()
        option = self._parts.pop("option", None)
        return config if option is None else config.with_options(n=option)

    async def request_error(self, value: Any, proceed: Any) -> Any:
        self.visit("request_error")
        return Retry() if value.attempt < 4 else await proceed()

    async def stopping(self, value: Any) -> None:
        self.visit("stopping")

    # --- the play ------------------------------------------------------------------------

    def compose(self, agent: Agent) -> None:
        self.agent = agent
        hooks = agent.scope.hooks
        hooks.pre_step.listen(self.pre_step)
        hooks.request.listen(self.request)
        hooks.request_error.listen(self.request_error)
        hooks.turn_stopping.listen(self.stopping)
        self._parts.pop("section", None)
        self._tools = [agent.scope.add_tool(self.tool("t0"))]
        agent.scope.add_context("weather", lambda view: self._weather)

    async def main(self) -> None:
        info = ModelInfo(system_prompt_update="in-history", tool_update=True)
        model = Fussy(
            self.reply,
            infos={"capable model": info} | ({"m": info} if self.plan.capable else {}),
            default_max_tokens=100,
        )
        turns, lives = self.plan.turns, [self.plan.turns]
        if self.plan.resume_after is not None and self.plan.resume_after < turns:
            lives = [self.plan.resume_after, turns - self.plan.resume_after]
        async with engine_on(model, store=self.store) as engine:
            for life, count in enumerate(lives):
                options: dict[str, Any] = {"resume": "S"} if life else {"session_id": "S"}
                async with engine.open_agent(
                    provider="scripted", model="m", setup=self.compose, **options
                ) as agent:
                    for turn in range(count):
                        agent.followup(f"prompt {life}.{turn}")
                        await agent.wait_idle()
                        self.visit("between")
                        await agent.wait_idle()
                    session = agent.session
        assert check_invariants(Evidence(whole(session), set_aside=True)) == []


# --- the law -----------------------------------------------------------------------------


@settings(max_examples=80)
@given(scenarios())
def test_every_request_equals_the_fold_of_the_log(plan: Scenario) -> None:
    """C75 C83 C84 C162, invariant 8: at its dispatch, and ever after."""
    stage = Stage(plan)
    play(stage.main)
    for sent in stage.sent:
        request, header = sent.request, header_of(sent.events)
        assert sent.messages == derived(sent.events)
        assert request.config == header.header.config
        assert request.tools == header.header.tools
        assert history_is_valid(request.messages) == []
        known = {tool for e in sent.events for tool in _declared(e)}
        assert set(request.tools) <= set(request.tool_history.declared) <= known
        # Nothing that came later has changed it.
        assert list(request.messages) == sent.messages
        assert encode_request(request) == sent.encoded


def _declared(event: Event) -> tuple[Any, ...]:
    return event.data.header.tools if isinstance(event.data, RequestHeaderEvent) else ()


@settings(max_examples=30)
@given(scenarios())
def test_what_is_stored_derives_the_same_requests(plan: Scenario) -> None:
    """C84: "byte for byte", from the store as from memory - the live log is no richer."""
    stage = Stage(plan)
    play(stage.main)

    async def read() -> list[Event]:
        return (await stage.store.read("S"))[1]

    stored = play(read)
    for sent in stage.sent:
        assert stored[: len(sent.events)] == sent.events
