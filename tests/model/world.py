"""A small world for the turn machine: every event that may come next, within a budget.

`explore` walks the machine through all of it. Two states are one when nothing that the machine
looks at tells them apart: ids by their places, numbers by whether they are the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any

from attrs import define, evolve, field, frozen

from terzetto import vocabulary as v
from terzetto.testing._turn_facts import Facts
from terzetto.testing._turn_kinds import kind_of
from terzetto.testing._turn_machine import TurnMachine
from terzetto.testing._turn_table import MOVES

LIMIT = v.Failure(message="slow down", code="RATE_LIMIT")
CONFIG = v.CallConfig(provider="p", model="m")
TOOL = v.ToolSchema(name="t", description="T.", parameters=v.freeze_object({}))
ENDINGS: tuple[v.TurnEnding, ...] = (
    v.Completed(),
    v.EndedAtMaxTokens(),
    v.Blocked(),
    v.Aborted(v.UserCause()),
    v.Failed(LIMIT),
    v.Interrupted(),
)


@frozen
class Budget:
    """How often each may still happen. *cuts*: cancels, interruptions and crashes."""

    turns: int = 2
    steps: int = 2
    calls: int = 3
    inputs: int = 2
    cuts: int = 2
    retries: int = 1
    lives: int = 1
    changes: int = 1
    chunks: int = 2


@frozen
class Node:
    """A state of the world, and how it was reached first."""

    machine: TurnMachine
    budget: Budget
    trace: tuple[v.Event, ...] = ()


def event_of(
    f: Facts,
    data: v.EventData,
    op: v.SurfaceOp | None = None,
    sources: tuple[int, ...] | None = None,
) -> v.Event:
    return v.Event(f.next_seq, f.next_seq, data, op, sources)


def message(f: Facts) -> v.UserMessage:
    return v.UserMessage("hello", id=v.MessageId(f"m{f.next_seq}"))


Step = tuple[v.Event, Budget]


def candidates(machine: TurnMachine, budget: Budget) -> Iterator[Step]:
    """Events that might come next, the machine's opinion not asked."""
    f = machine.facts
    yield from _turns(machine, f, budget)
    yield from _inbox(f, budget)
    if machine.state in ("idle", "repaired"):
        return
    yield from _admission(f, budget)
    yield from _attempts(f, budget)
    yield from _tools(f, budget)


def _turns(machine: TurnMachine, f: Facts, b: Budget) -> Iterator[Step]:
    if b.turns:
        yield event_of(f, v.TurnStart(f.turn + 1)), evolve(b, turns=b.turns - 1, steps=2)
    if b.lives:
        yield event_of(f, v.EndSeed()), evolve(b, lives=b.lives - 1)
    if b.steps:
        yield event_of(f, v.StepStart(f.turn, f.step + 1)), evolve(b, steps=b.steps - 1)
    if f.step:
        yield event_of(f, v.StepEnd(f.turn, f.step)), b
    for ending in ENDINGS:
        after = b
        if isinstance(ending, (v.Aborted, v.Interrupted)) and not f.closing:
            if not b.cuts:
                continue
            after = evolve(b, cuts=b.cuts - 1)
        yield event_of(f, v.TurnEnd(f.turn, ending)), after


def _inbox(f: Facts, b: Budget) -> Iterator[Step]:
    for target in ("next-step", "next-turn"):
        size = len(f.lists[target])
        if b.inputs:
            splice = v.InboxSpliced(target, size, 0, (message(f),))  # type: ignore[arg-type]
            yield event_of(f, splice), evolve(b, inputs=b.inputs - 1)
        if (back := f.claimed[target]) and (b.cuts or f.closing):
            returned = tuple(v.UserMessage("hello", id=i) for i in back)
            spent = b if f.closing else evolve(b, cuts=b.cuts - 1)
            yield event_of(f, v.InboxSpliced(target, 0, 0, returned)), spent
        if size:
            for count in {1, size}:
                yield event_of(f, v.InboxSpliced(target, 0, count)), b
            if b.cuts:
                cleared = v.InboxSpliced(target, 0, size, (), "canceled")
                yield event_of(f, cleared), evolve(b, cuts=b.cuts - 1)


def _admission(f: Facts, b: Budget) -> Iterator[Step]:
    if not f.prompts:
        prompt = v.SystemMessage((), v.PluginSource("x"), v.MessageId(f"s{f.next_seq}"))
        yield event_of(f, v.SystemMessageEvent(f.turn, f.step, prompt), v.APPEND), b
    claimed = [i for ids in f.claimed.values() for i in ids]
    if claimed:
        yield event_of(f, v.UserMessageEvent(v.UserMessage("hello", id=claimed[0])), v.APPEND), b
    elif not f.admitted:
        yield event_of(f, v.UserMessageEvent(message(f)), v.APPEND), b
    now = f.header or v.RequestHeader(config=CONFIG)
    other = evolve(now, tools=() if now.tools else (TOOL,))
    for reason in ("initial", "resume", "series"):
        yield event_of(f, v.RequestHeaderEvent(now, reason)), b  # type: ignore[arg-type]
    if b.changes:
        changed = v.RequestHeaderEvent(other, "change")
        yield event_of(f, changed), evolve(b, changes=b.changes - 1)
    if f.before is not None and f.header is not None and f.before.tools != f.header.tools:
        added = bool(f.header.tools)
        block = v.ToolAdditionBlock("t") if added else v.ToolRemovalBlock("t")
        told = v.DeveloperMessage((block,), id=v.MessageId(f"d{f.next_seq}"))
        cited = f.header_seq if added else None
        yield event_of(f, v.DeveloperMessageEvent(f.turn, f.step, told, cited), v.APPEND), b
    if f.context is None:
        yield event_of(f, v.RequestContextEvent("p", "m")), b


def _attempts(f: Facts, b: Budget) -> Iterator[Step]:
    yield from ((event_of(f, v.AssistantChunk(f.turn, f.step, c)), b) for c in _texts(f, b))
    ended = sum(isinstance(chunk, v.BlockEnd) for _, chunk in f.chunks)
    finished = any(isinstance(chunk, v.Finish) for _, chunk in f.chunks)
    if b.calls and len(f.chunks) == ended:
        call = v.ToolCallBlock(v.CallId(f"c{ended + 1}"), "t", "{}")
        part = v.AssistantChunk(f.turn, f.step, v.BlockEnd(ended + 1, call))
        yield event_of(f, part), evolve(b, calls=b.calls - 1)
    if not finished:
        for reason in (v.Stop(), v.MaxTokens()):
            yield event_of(f, v.AssistantChunk(f.turn, f.step, v.Finish(reason))), b
    if b.retries:
        failed = v.AssistantChunk(f.turn, f.step, v.Finish(v.ErrorFinish(LIMIT)))
        yield event_of(f, failed), evolve(b, retries=b.retries - 1)
    if not f.retry_id:
        retry = v.LlmRetry(
            turn=f.turn, step=f.step, retry_id="r", attempt=1, delay_ms=5, failure=LIMIT
        )
        yield event_of(f, retry), b
    yield event_of(f, v.LlmRetryStarted(turn=f.turn, step=f.step, retry_id="r")), b
    assembler = v.assemble([chunk for _, chunk in f.chunks])
    seqs = tuple(seq for seq, _ in f.chunks)
    for cut, content in ((False, assembler.assembled()), (True, assembler.delivered_prefix())):
        if content is None or (cut and not b.cuts):
            continue
        said = v.AssistantMessage(
            content.content, v.ModelSource("p", "m"), v.MessageId(f"a{f.next_seq}")
        )
        answer = v.AssistantMessageEvent(f.turn, f.step, said, content.usage, cut)
        yield event_of(f, answer, v.APPEND, seqs), evolve(b, cuts=b.cuts - cut)


def _texts(f: Facts, b: Budget) -> Iterator[v.StreamChunk]:
    if len(f.chunks) < b.chunks:
        yield v.TextDelta(0, "a")
        yield v.TextDelta(0, " ")


def _tools(f: Facts, b: Budget) -> Iterator[Step]:
    if f.recorded < len(f.calls):
        call = f.calls[f.recorded].block
        data = v.ToolCallEvent(f.turn, f.step, call.id, call.name, call.arguments)
        yield event_of(f, data), b
    if f.settled < len(f.calls):
        owed = f.calls[f.settled]
        for code in (None, v.texts.ABORTED, v.texts.TOOL_OUTCOME_UNKNOWN, v.texts.TOOL_NOT_STARTED):
            text = _TEXTS.get(code, "ok")
            block = v.ToolResultBlock(owed.block.id, (v.TextBlock(text),), code is not None)
            result = v.UserMessage(
                (block,), v.ToolSource(owed.block.id), v.MessageId(f"t{f.next_seq}")
            )
            error = None if code is None else v.ToolErrorInfo("E", code)
            sources = None if owed.seq is None else (owed.seq,)
            yield (
                event_of(f, v.ToolResultEvent(f.turn, f.step, result, error), v.APPEND, sources),
                b,
            )


_TEXTS: dict[str | None, str] = {
    v.texts.TOOL_OUTCOME_UNKNOWN: v.texts.TOOL_OUTCOME_UNKNOWN_TEXT,
    v.texts.TOOL_NOT_STARTED: v.texts.TOOL_NOT_STARTED_TEXT,
}


_STEP = {"started", "failed", "retrying", "prompt", "input", "header", "tools", "context"}
_STREAM = _STEP | {"streaming", "finished", "waiting"}
_OPEN = {"idle", "opened", "claimed"}


def key(node: Node) -> Hashable:
    """What tells two states apart, and nothing else."""
    f: Any = node.machine.facts
    state = node.machine.state
    where = {i: (name, n) for name, ids in f.lists.items() for n, i in enumerate(ids)}
    claimed = tuple(len(ids) for ids in f.claimed.values())
    return (
        state,
        node.budget,
        f.last if state in _OPEN else "",
        f.step > 0,
        *(len(ids) for ids in f.lists.values()),
        claimed,
        tuple(sorted(where[i] for i in f.due if i in where)),
        (f.prompted, f.closing, f.hit_max) if state != "idle" else (),
        (f.edited, f.asked, f.concludes, f.answered, f.failed_steps),
        (f.admitted > 0, f.prompts > 0, f.owed_request, f.signed) if state in _STEP else (),
        (f.signed, f.admitted > 0, f.owed_request) if any(claimed) else (),
        (f.attempt > 1, f.retry_id) if state in _STREAM else (),
        _chunks(f) if state in _STREAM else (),
        tuple((call.seq is None, call.shared) for call in f.calls),
        (f.recorded, f.settled, f.succeeded, f.failing),
        (f.headed, f.header, f.context is None, f.has_prompt, f.compaction),
        f.before if state in _STEP else None,
    )


def _chunks(f: Facts) -> Hashable:
    """An attempt, as far as its answer and the rest of it depend on it."""
    finishes = [chunk.reason for _, chunk in f.chunks if isinstance(chunk, v.Finish)]
    calls = sum(isinstance(chunk, v.BlockEnd) for _, chunk in f.chunks)
    return len(f.chunks), f.delivered(), calls, repr(finishes[-1:])


@define(eq=False)
class World:
    """All states within a budget. *back*: from which states one move leads to a state."""

    nodes: list[Node] = field(factory=list)
    moves: list[list[tuple[v.Event, int]]] = field(factory=list)

    def closing(self) -> set[int]:
        """The states from which some way leads to where no turn is open."""
        back: list[list[int]] = [[] for _ in self.nodes]
        for here, moves in enumerate(self.moves):
            for _, there in moves:
                back[there].append(here)
        queue = deque(i for i, n in enumerate(self.nodes) if n.machine.state == "idle")
        reached = set(queue)
        while queue:
            for before in back[queue.popleft()]:
                if before not in reached:
                    reached.add(before)
                    queue.append(before)
        return reached


def explore(budget: Budget) -> World:
    """Breadth first, so that each state is reached by a shortest trace."""
    world = World()
    start = Node(TurnMachine(), budget)
    known = {key(start): 0}
    world.nodes.append(start)
    for node in world.nodes:
        moves: list[tuple[v.Event, int]] = []
        world.moves.append(moves)
        for event, after in candidates(node.machine, node.budget):
            if (node.machine.state, kind_of(event)) not in MOVES:
                continue
            machine = node.machine.fork()
            if machine.take(event) is not None:
                continue
            found = Node(machine, after, (*node.trace, event))
            place = known.setdefault(key(found), len(world.nodes))
            if place == len(world.nodes):
                world.nodes.append(found)
            moves.append((event, place))
    return world
