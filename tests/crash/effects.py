"""A process that has effects: an engine with tools of every kind, until it is killed.

What its tools do and what it is told is saved goes into a `Ledger`. Its model is sensible:
it asks again for what its history says was not started, never for what may have happened.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen
from tests.crash.aims import Aim, Aimed, take_aim
from tests.crash.defects import lying, seed_defect
from tests.crash.ledger import Ledger
from tests.crash.lives import make_store
from tests.crash.syncs import note_syncs
from tests.llm.strict import judge

import terzetto
from terzetto import (
    Agent,
    Durability,
    Engine,
    Read,
    Session,
    Tool,
    ToolCallHook,
    ToolRun,
    Turn,
    Write,
    tool,
)
from terzetto.hooks import Proceed
from terzetto.llm._openai_wire import encode_request
from terzetto.llm.scripted import Entry, Part, ScriptedModel, answer, call, say
from terzetto.testing import history_is_valid
from terzetto.tools import PreExecute
from terzetto.vocabulary import (
    AssistantMessage,
    MessageDiscarded,
    Request,
    StoreError,
    TextBlock,
    ToolResultBlock,
    UserMessage,
    texts,
)

ROUTE: Mapping[str, Any] = {"provider": "scripted", "model": "m"}
ROOT = "root"
TURNS = 400
"""Turns after which a life gives up being killed."""
AT_ONCE = 4
"""Bodies of a batch that may run at the same time."""
NOT_STARTED = frozenset({texts.TOOL_NOT_STARTED_TEXT, texts.ABORTED_BEFORE_DISPATCH_TEXT})
LOOK = "look"
"""The tool without effects: it may run before its call is saved."""


@frozen(kw_only=True)
class Plan:
    """One life. *aim*: where it kills itself; None: somebody else does, or nobody.

    *turns*: how many it asks for. *torn*: sessions of children that it must close first.
    """

    kind: str
    folder: Path
    durability: Durability
    life: int
    seed: int
    aim: Aim | None = None
    turns: int = TURNS
    torn: Sequence[str] = ()
    session: str = ROOT
    defect: str | None = None
    power: bool = False


def live(plan: Plan, told: int | None = None) -> None:
    """One life. It returns only if nobody kills it. *told* is the pipe of its ledger."""
    ledger = Ledger(plan.folder / "ledger", told)
    if plan.defect is not None:
        seed_defect(plan.defect)
    aimed = take_aim(plan.aim)
    if plan.power:  # in front of the aims: whoever dies at the end of a sync has not synced
        note_syncs(ledger)
    trio.run(_Life(plan, ledger, aimed).run)


@define(eq=False)
class _Life:
    plan: Plan
    ledger: Ledger
    aimed: Aimed
    chance: random.Random = field(init=False)
    _engine: Engine | None = None
    _nursery: trio.Nursery | None = None

    def __attrs_post_init__(self) -> None:
        self.chance = random.Random(f"{self.plan.seed} {self.plan.life}")

    async def run(self) -> None:
        plan = self.plan
        model = ScriptedModel(Mind(plan.life, self.chance, self.ledger).answer)
        store: Any = make_store(plan.kind, plan.folder)
        store = lying(store) if plan.defect == "says saved" else store
        async with (
            trio.open_nursery() as self._nursery,
            terzetto.open_engine(
                adapters=[model],
                tools=self.tools(),
                store=store,
                max_parallel_tool_calls=AT_ONCE,
                durability=plan.durability,
                # What recovery may not trust is to be there when somebody dies.
                write_window=0.001 if plan.defect == "trusts lazy" else 0.25,
            ) as self._engine,
        ):
            if self.chance.random() < 0.5:
                self._engine.scope.hooks.tool_pre_execute.listen(self.hesitate)
            for session_id in plan.torn:
                async with self._engine.open_agent(**ROUTE, resume=session_id) as agent:
                    self.watch(agent)
            async with self._engine.open_agent(
                **ROUTE, session_id=plan.session, if_stored="resume"
            ) as agent:
                self.watch(agent)
                for number in range(plan.turns):
                    # A turn over what an earlier life had asked may end by discarding this.
                    with contextlib.suppress(MessageDiscarded):
                        self.over(agent, await agent.ask(f"life {plan.life}, {number}"))

    def over(self, agent: Agent, turn: Turn) -> None:
        if agent.health is not None:
            self.ledger.problem(f"{agent.id}: {agent.health}")
        self.ledger.turn(agent.id, turn.number)
        self.aimed.at("told")

    def watch(self, agent: Agent) -> None:
        """Note what its session is told is durable, until it is detached."""
        assert self._nursery is not None
        self._nursery.start_soon(self._watch, agent.session)

    async def _watch(self, session: Session) -> None:
        try:
            async for event in session.follow(durable=True):
                self.ledger.acknowledged(session.id, event)
                self.aimed.at("acknowledged")
        except StoreError as error:  # what was durable cannot be read back
            self.ledger.problem(f"{session.id}: what was durable is not there: {error}")

    # --- tools --------------------------------------------------------------------------

    def tools(self) -> Sequence[Tool]:
        @tool(parallel=True)
        async def note(effect: str, run: ToolRun) -> str:
            """An effect beside others. Now and then somebody disturbs it."""
            with self.having(run, effect):
                self.disturb()
                await self.dwell()
            return effect

        @tool(parallel=True)
        def press(effect: str, run: ToolRun) -> str:
            """An effect of a thread."""
            with self.having(run, effect):
                return effect

        @tool
        async def alone(effect: str, run: ToolRun) -> str:
            """An effect beside no other."""
            with self.having(run, effect):
                await self.dwell()
            return effect

        @tool(touches=lambda args: {Write(args["place"]), Read("all")})
        async def change(effect: str, place: str, run: ToolRun) -> str:
            """An effect on a place."""
            with self.having(run, effect):
                await self.dwell()
            return effect

        @tool(parallel=True, read_only=True)
        async def look(effect: str, run: ToolRun) -> str:
            """No effect: it may run twice, and before its call is saved."""
            with self.having(run, effect):
                await self.dwell()
            return effect

        @tool(parallel=True)
        async def delegate(effect: str, run: ToolRun) -> str:
            """Let a child have effects."""
            with self.having(run, effect):
                await self.delegated(f"child-{effect}")
            return effect

        return [note, press, alone, change, look, delegate]

    def having(self, run: ToolRun, effect: str) -> _Having:
        return _Having(self, run.agent.id, run.call_id, effect, run.name)

    def disturb(self) -> None:
        """Now and then: end the turn or the step, or say something into it."""
        agent = terzetto.current_agent()
        assert agent is not None
        what = self.chance.random()
        if what < 0.03:
            agent.cancel()
        elif what < 0.06:
            agent.interrupt("Wait.")
        elif what < 0.10:
            agent.steer("By the way.")

    async def hesitate(
        self, value: ToolCallHook, proceed: Proceed[ToolCallHook, PreExecute]
    ) -> PreExecute:
        """A policy that now and then thinks about a call, which ends the wave before it."""
        await self.dwell()
        return await proceed()

    async def dwell(self) -> None:
        """Let others run for a while; how long is a matter of chance."""
        for _ in range(self.chance.choice((0, 1, 2, 20))):
            await trio.lowlevel.checkpoint()

    async def delegated(self, session_id: str) -> None:
        assert self._engine is not None
        parent = terzetto.current_agent()
        assert isinstance(parent, Agent)
        async with self._engine.open_agent(**ROUTE, session_id=session_id, parent=parent) as child:
            self.watch(child)
            self.over(child, await child.ask("child"))


@define(eq=False)
class _Having:
    """The length of a body: its effect comes first, and what it returns comes after it."""

    life: _Life
    session: str
    call: str
    effect: str
    name: str

    def __enter__(self) -> None:
        self.life.ledger.begins(self.session, self.call, self.effect, self.name)
        self.life.aimed.at("began")

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            self.life.ledger.ends(self.session, self.call)
            self.life.aimed.at("ended")


# --- the model --------------------------------------------------------------------------


@define
class Mind:
    """Invents effects, each once, and asks again for those that were not started."""

    life: int
    chance: random.Random
    ledger: Ledger
    _effects: int = 0
    _calls: int = 0

    def answer(self, request: Request) -> Entry:
        if not self._calls or self.chance.random() < 0.1:
            # The first after each death, and some of the others.
            self._judge(request)
        again = owed(request)
        child = any(m.text == "child" for m in request.messages if isinstance(m, UserMessage))
        last = request.messages[-1]
        answers = isinstance(last, UserMessage) and any(
            isinstance(block, ToolResultBlock) for block in last.content
        )
        if not again and answers and self.chance.random() < (0.9 if child else 0.5):
            return answer(say("That is all, I think.", pieces=self.chance.randint(1, 6)))
        calls = [self._call(name, arguments) for name, arguments in again]
        calls += self._invented(self.chance.randint(1, 6), child)
        return answer(say("Let me see.", pieces=2), *calls)

    def _judge(self, request: Request) -> None:
        for problem in (*history_is_valid(request.messages), *judge(encode_request(request))):
            self.ledger.problem(f"a request is refused: {problem}")

    def _invented(self, count: int, child: bool) -> Iterator[Part]:
        names = ["note", "note", "press", "alone", "change", "change", LOOK, "delegate"]
        for _ in range(count):
            name = self.chance.choice(names[:-1] if child else names)
            self._effects += 1
            arguments = {"effect": f"{self.life}.{self._effects}"}
            if name == "change":
                arguments["place"] = self.chance.choice("xyz")
            yield self._call(name, arguments)

    def _call(self, name: str, arguments: Mapping[str, Any]) -> Part:
        self._calls += 1
        return call(name, arguments, id=f"call-{self.life}.{self._calls}")


def owed(request: Request) -> list[tuple[str, Mapping[str, Any]]]:
    """Calls that the history says were not started, and that nobody has repeated."""
    asked: dict[str, tuple[str, Mapping[str, Any]]] = {}
    found: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for message in request.messages:
        if isinstance(message, AssistantMessage):
            for block in message.tool_calls:
                arguments = json.loads(block.arguments)
                asked[block.id] = (block.name, arguments)
                found.pop(arguments["effect"], None)
        elif isinstance(message, UserMessage):
            for result in message.content:
                if isinstance(result, ToolResultBlock) and _text(result) in NOT_STARTED:
                    name, arguments = asked[result.tool_call_id]
                    found[arguments["effect"]] = (name, arguments)
    return list(found.values())


def _text(result: ToolResultBlock) -> str:
    return "".join(block.text for block in result.content if isinstance(block, TextBlock))
