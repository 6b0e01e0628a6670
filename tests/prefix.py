"""Every request is rebuilt from its log, and extends the one before or says why not.

Sessions are generated and played: prompts, tools, options, context and models change at any
step; batches are rewritten, requests fail and are retried, turns are steered, interrupted and
cancelled; messages are replaced between turns, before a request, while it waits, and while its
answer comes; sessions are resumed, crashed and resumed, and forked. What a listener saw on its
way to the adapter is compared with what the log alone gives.

    python -m tests.prefix [SESSIONS]

plays some hundred sessions and prints what was counted.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Literal, TypeAlias

import msgspec
from attrs import define, field, frozen
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st
from hypothesis.strategies import SearchStrategy

from terzetto import Agent, MemoryStore, ModelInfo
from terzetto.llm.deepseek import DeepSeek
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.session import Growth, SentRequest, canonical, growths, rebuild
from terzetto.session._codec import TAGS, dumps_json, encode_request
from terzetto.vocabulary import Event, InvalidValue, Replace, Request, SessionHeader
from tests.agent.kit import engine_on, play
from tests.agent.rig import Fussy
from tests.agent.test_requests_equal_log import (
    CHANGES,
    Scenario,
    Stage as Played,
    derived,
    header_of,
    scenarios,
)

Life: TypeAlias = Literal["resume", "crash", "fork"]
LIVES: tuple[Life, ...] = Life.__args__  # type: ignore[attr-defined]
WIRES = (OpenAIChat(api_key=None), DeepSeek(api_key=None))


@frozen
class Plan:
    """A scenario, what happens around its streams, and the lives after its first one.

    *cuts* says where a log is cut, in thousandths of its length.
    """

    scenario: Scenario
    waits: tuple[str, ...]
    streams: tuple[str, ...]
    lives: tuple[Life, ...]
    cuts: tuple[int, ...]


def plans() -> SearchStrategy[Plan]:
    around = st.sampled_from((*CHANGES, "interrupt", "cancel", "nothing", "nothing"))
    some = st.lists(around, max_size=6).map(tuple)
    return st.builds(
        Plan,
        scenario=scenarios(),
        waits=some,
        streams=some,
        lives=st.lists(st.sampled_from(LIVES), max_size=3).map(tuple),
        cuts=st.tuples(*[st.integers(0, 1000)] * 3),
    )


@frozen
class Asked:
    """A request on its way to the adapter, and how long the log was then."""

    request: Request
    length: int


@define(eq=False)
class Stage(Played):
    """A plan being played. *asked* holds what each session asked, by turn, step and attempt."""

    around: Plan = field(kw_only=True)
    asked: dict[tuple[int, int, int], Asked] = field(factory=dict, init=False)
    logs: list[tuple[SessionHeader, list[Event], dict[tuple[int, int, int], Asked]]] = field(
        factory=list, init=False
    )

    def compose(self, agent: Agent) -> None:
        super().compose(agent)
        agent.scope.hooks.stream.listen(self.stream)

    async def stream(self, call: Any, proceed: Any) -> Any:
        key = (call.turn, call.step, call.attempt)
        self.asked[key] = Asked(call.request, len(call.agent.session.events))
        self.disturb("wait", self.around.waits)
        return Tapped(await proceed(), self)

    def disturb(self, name: str, changes: Sequence[str]) -> None:
        agent = self.agent
        assert agent is not None
        change: Any = self.next(name, changes, "nothing")
        if change == "interrupt":
            agent.interrupt("stop it")
        elif change == "cancel":
            agent.cancel(keep_inbox=True)
        else:
            with suppress(InvalidValue):
                self.change(change, agent, "between")

    async def play(self) -> None:
        info = ModelInfo(system_prompt_update="in-history", tool_update=True)
        model = Fussy(
            self.reply,
            infos={"capable model": info} | ({"m": info} if self.plan.capable else {}),
            default_max_tokens=100,
        )
        source = await self.live(model, session_id="S")
        for number, life in enumerate(self.around.lives):
            if life == "resume":
                source = await self.live(model, resume=source)
            elif life == "fork":
                self.asked = {}
                source = await self.live(model, fork=source, session_id=f"F{number}")
            else:
                await self.crash(source, self.around.cuts[number])
                source = await self.live(model, resume=source)

    async def live(self, model: Any, **options: Any) -> str:
        async with engine_on(model, store=self.store) as engine:
            async with engine.open_agent(
                provider="scripted", model="m", setup=self.compose, **options
            ) as agent:
                for turn in range(self.plan.turns):
                    agent.followup(f"prompt {turn}")
                    await agent.wait_idle()
                    self.visit("between")
                    await agent.wait_idle()
        header, events = await self.store.read(agent.id)
        self.logs.append((header, events, dict(self.asked)))
        return str(agent.id)

    async def crash(self, session_id: str, cut: int) -> None:
        """The log loses its end: what came after was never on disk."""
        header, events = await self.store.read(session_id)
        seeded = header.seed_length + 1 if header.seed_length else 0  # else it cannot be resumed
        kept = max(len(events) * cut // 1000, seeded)
        self.store = MemoryStore()
        handle = await self.store.create(header)
        for event in events[:kept]:
            handle.append(event)
        await handle.close()
        self.asked = {key: one for key, one in self.asked.items() if one.length <= kept}


@define(eq=False)
class Tapped:
    """A stream around which, and in which, something happens."""

    inner: Any
    stage: Stage
    chunks: Any = None
    begun: bool = False

    async def __aenter__(self) -> Tapped:
        self.chunks = await self.inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self.inner.__aexit__(*error)

    def __aiter__(self) -> Tapped:
        return self

    async def __anext__(self) -> Any:
        if self.begun:
            self.stage.disturb("piece", self.stage.around.streams)
        self.begun = True
        return await self.chunks.__anext__()


# --- the laws ---------------------------------------------------------------------------


def played(plan: Plan) -> Stage:
    stage = Stage(plan.scenario, around=plan)
    play(stage.play)
    return stage


def whole(request: Request) -> bytes:
    """All of *request*, as bytes."""
    history = [tool.name for tool in request.tool_history.declared]
    return dumps_json({"request": encode_request(request), "history": list(history)})


def violations(stage: Stage, counts: Counter[str] | None = None) -> list[str]:
    """What is wrong with the sessions of *stage*; they are counted in *counts*."""
    counts = Counter() if counts is None else counts
    found = []
    counts["sessions"] += 1
    for header, events, asked in stage.logs:
        found += unequal(header, events, asked)
        measured = [g for g in growths(header, events) if not g.sent.inherited]
        counts["requests"] += len(asked)
        counts["breaks"] += sum(growth.broken for growth in measured)
        found += unexplained(header, events)
        found += cut(header, events, len(events) * stage.around.cuts[0] // 1000)
    return found


def unequal(
    header: SessionHeader, events: Sequence[Event], asked: dict[tuple[int, int, int], Asked]
) -> list[str]:
    """Requests that are not what the log gives: C84."""
    found = []
    rebuilt = {(s.turn, s.step, s.attempt): s for s in rebuild(header, events) if not s.inherited}
    for key, one in asked.items():
        if key not in rebuilt:
            found.append(f"{key} is not in the log")
        elif whole(rebuilt[key].request) != whole(one.request):
            found.append(f"{key} is another one in the log")
    for key, sent in rebuilt.items():
        if sent.answered and key not in asked:
            found.append(f"{key} was never asked")
        prefix = events[: sent.seq + 1]  # the naive fold, which shares no code
        if list(sent.request.messages) != derived(prefix):
            found.append(f"{key} has other messages than the fold of the log")
        if sent.answered and sent.request.config != header_of(events[: sent.seq + 1]).header.config:
            found.append(f"{key} has another configuration than its header")
    return found


def cut(header: SessionHeader, events: Sequence[Event], length: int) -> list[str]:
    """A log that ends earlier gives the first of the same requests, and at most one in doubt."""
    known = [whole(sent.request) for sent in rebuild(header, events) if sent.answered]
    sent = list(rebuild(header, events[:length]))
    first = [whole(one.request) for one in sent if one.answered]
    return [] if first == known[: len(first)] else [f"cut at {length}, it sent something else"]


def unexplained(header: SessionHeader, events: Sequence[Event]) -> list[str]:
    """Prefixes that break without an event that says why, or that are measured wrongly."""
    found = []
    before: Growth | None = None
    for growth in growths(header, events):
        sent = growth.sent
        key = (sent.turn, sent.step, sent.attempt)
        now = canonical(sent.request)
        if growth.size != len(now):
            found.append(f"{key} has {len(now)} bytes, not {growth.size}")
        if before is not None:
            was = canonical(before.sent.request)
            if growth.broken != (not now.startswith(was)):
                found.append(f"{key} is broken: {not growth.broken}")
            if growth.shared != _common(was, now):
                found.append(f"{key} shares another number of bytes than {growth.shared}")
            found += causes(key, growth, before.sent, events)
            if not growth.broken:
                found += wires(key, before.sent, sent)
        if sent.answered:
            before = growth
    return found


def _common(one: bytes, other: bytes) -> int:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same)


def causes(key: Any, growth: Growth, before: SentRequest, events: Sequence[Event]) -> list[str]:
    found = []
    if growth.unexplained or growth.broken != bool(growth.causes):
        found.append(f"{key} breaks, and nothing says why")
    for cause in growth.causes:
        event = events[cause.seq]
        if TAGS[type(event.data)] != cause.type or not before.seq < cause.seq <= growth.sent.seq:
            found.append(f"{key} breaks by {cause}, which is no such event")
        if cause.type != "request/header" and not isinstance(event.surface_op, Replace):
            found.append(f"{key} breaks by {cause}, which replaces nothing")
    return found


def wires(key: Any, before: SentRequest, sent: SentRequest) -> list[str]:
    """What adapters write extends what they wrote, where the canonical sequence does."""
    found = []
    for adapter in WIRES:
        was, now = (msgspec.json.decode(adapter.body(s.request)) for s in (before, sent))
        if now.get("tools") != was.get("tools"):
            found.append(f"{key} has other tools on the wire of {adapter.provider}")
        if now["messages"][: len(was["messages"])] != was["messages"]:
            found.append(f"{key} has other messages on the wire of {adapter.provider}")
    return found


def main(arguments: Sequence[str]) -> int:
    sessions = int(arguments[0]) if arguments else 300
    counts: Counter[str] = Counter()
    found: list[str] = []

    @seed(0)
    @settings(
        max_examples=sessions,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(plans())
    def one(plan: Plan) -> None:
        found.extend(violations(played(plan), counts))

    one()
    for violation in found[:20]:
        print(violation)
    what = ", ".join(f"{counts[name]:,} {name}" for name in ("sessions", "requests", "breaks"))
    print(f"{what}, {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
